//! Ranking of nodes and pods.

use crate::state::{NodeInfo, PodInfo};
use koord_model::resources::{ResourceId, ResourceTable};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pods of a node by eligibility.
#[derive(Debug, Clone)]
pub struct NodePods {
    /// The node.
    pub node: Arc<NodeInfo>,
    /// Pods that may be evicted.
    pub eligible: Vec<Arc<PodInfo>>,
    /// Selected pods that may not be evicted.
    pub skipped: Vec<Arc<PodInfo>>,
    /// All other pods.
    pub others: Vec<Arc<PodInfo>>,
}

/// A node with its rank score.
#[derive(Debug, Clone)]
pub struct RankedNode {
    /// Requests that stay, relative to those that leave: 0 for a node that would be empty, infinite if
    /// nothing may leave.
    pub score: f64,
    /// Pods of the node; eligible ones in the order of their rank.
    pub pods: NodePods,
}

impl NodePods {
    /// Returns the lists for `node` without pods.
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

/// Ranks the nodes of `all`: lowest score first, then the fewest eligible pods, then by name; `weights` are
/// those of resources.
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
        let (pods_a, pods_b) = (&a.pods.eligible, &b.pods.eligible);
        a.score
            .total_cmp(&b.score)
            .then_with(|| pods_a.len().cmp(&pods_b.len()))
            .then_with(|| a.pods.node.name.cmp(&b.pods.node.name))
    });
    ranked
}

/// Returns the weighted sum of the shares of the capacity of `node` that `pods` request.
fn share<'a>(
    node: &NodeInfo,
    pods: impl Iterator<Item = &'a Arc<PodInfo>> + Clone,
    weights: &[(ResourceId, f64)],
) -> f64 {
    let weighted = |(id, weight): &(ResourceId, f64)| {
        let capacity = node.allocatable.get(*id);
        if capacity <= 0 {
            return 0.0;
        }
        let requested = pods.clone().map(|pod| pod.shape.requests.get(*id));
        let requested = requested.fold(0, i64::saturating_add);
        weight * (requested as f64 / capacity as f64)
    };
    weights.iter().map(weighted).sum()
}

fn score(pods: &NodePods, weights: &[(ResourceId, f64)]) -> f64 {
    let movable = share(&pods.node, pods.eligible.iter(), weights);
    let remaining = share(&pods.node, pods.others.iter().chain(&pods.skipped), weights);
    if movable > 0.0 {
        remaining / movable
    } else if remaining > 0.0 {
        f64::INFINITY
    } else {
        0.0
    }
}

/// Sorts pods: large ones first, then new ones, then by name.
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
