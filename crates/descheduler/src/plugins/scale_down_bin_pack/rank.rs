//! In which order pods go.

use crate::state::{NodeInfo, PodInfo};
use koord_model::resources::{ResourceId, ResourceTable};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pods of a node.
#[derive(Debug, Clone)]
pub struct NodePods {
    /// The node.
    pub node: Arc<NodeInfo>,
    /// Who may go.
    pub eligible: Vec<Arc<PodInfo>>,
    /// Who is meant, but may not go.
    pub skipped: Vec<Arc<PodInfo>>,
    /// Everybody else.
    pub others: Vec<Arc<PodInfo>>,
}

/// A node among others.
#[derive(Debug, Clone)]
pub struct RankedNode {
    /// ExecutionMode much stays for what goes: 0 is a node that would be empty, infinite one where nothing is gained.
    pub score: f64,
    /// Its pods, those that may go in the order in which they do.
    pub pods: NodePods,
}

impl NodePods {
    /// `node` without pods yet.
    #[must_use]
    pub fn new(node: &Arc<NodeInfo>) -> Self {
        Self {
            node: node.clone(),
            eligible: Vec::new(),
            skipped: Vec::new(),
            others: Vec::new(),
        }
    }
}

/// The nodes of `all` with what stays least first, then the fewest pods that may go, then by name; `weights` are those
/// of resources.
#[must_use]
pub fn rank(
    all: Vec<NodePods>,
    weights: &BTreeMap<String, f64>,
    table: &ResourceTable,
) -> Vec<RankedNode> {
    let weights = weights.iter();
    let weights: Vec<_> = weights
        .filter_map(|(name, weight)| Some((table.get(name)?, *weight)))
        .collect();
    let mut ranked: Vec<_> = all
        .into_iter()
        .map(|mut pods| {
            let score = score(&pods, &weights);
            sort(&pods.node, &mut pods.eligible, &weights);
            RankedNode { score, pods }
        })
        .collect();
    ranked.sort_by(|a, b| {
        let (few, many) = (&a.pods.eligible, &b.pods.eligible);
        a.score
            .total_cmp(&b.score)
            .then_with(|| few.len().cmp(&many.len()))
            .then_with(|| a.pods.node.name.cmp(&b.pods.node.name))
    });
    ranked
}

/// Shares of what `node` has that `pods` ask for, weighted and added up.
fn share<'a>(
    node: &NodeInfo,
    pods: impl Iterator<Item = &'a Arc<PodInfo>> + Clone,
    weights: &[(ResourceId, f64)],
) -> f64 {
    let of = |(id, weight): &(ResourceId, f64)| {
        let there = node.allocatable.get(*id);
        if there <= 0 {
            return 0.0;
        }
        let wanted = pods.clone().map(|pod| pod.shape.requests.get(*id));
        let wanted = wanted.fold(0, i64::saturating_add);
        weight * (wanted as f64 / there as f64)
    };
    weights.iter().map(of).sum()
}

fn score(pods: &NodePods, weights: &[(ResourceId, f64)]) -> f64 {
    let goes = share(&pods.node, pods.eligible.iter(), weights);
    let stays = share(&pods.node, pods.others.iter().chain(&pods.skipped), weights);
    if goes > 0.0 {
        stays / goes
    } else if stays > 0.0 {
        f64::INFINITY
    } else {
        0.0
    }
}

/// Large pods first, then new ones, then by name.
fn sort(node: &NodeInfo, pods: &mut [Arc<PodInfo>], weights: &[(ResourceId, f64)]) {
    let size = |pod: &Arc<PodInfo>| share(node, std::iter::once(pod), weights);
    let names = |a: &PodInfo, b: &PodInfo| -> Ordering {
        (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
    };
    pods.sort_by(|a, b| {
        size(b)
            .total_cmp(&size(a))
            .then_with(|| b.created.cmp(&a.created))
            .then_with(|| names(a, b))
    });
}
