//! Whether a pod fits a node: what its spec says of nodes, and what the node has left. Less than a scheduler asks:
//! neither other pods' affinity nor ports, volumes, devices, quotas or load.
//!
//! Source: Koordinator `pkg/descheduler/node`.

use crate::state::{NodeInfo, PodInfo, Shape, Snapshot};
use k8s_openapi::api::core::v1::NodeSelector;
use koord_model::nodes;
use koord_model::resources::{Amounts, ResourceTable};
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::Arc;

/// One thing about a node that a pod does not get along with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FitError {
    /// `nodeSelector` or required node affinity.
    NodeSelector,
    /// A taint with this key.
    Taint(String),
    /// There is not enough left of this resource.
    Insufficient(Arc<str>),
    /// It takes no pods.
    Unschedulable,
    /// What the pod asks for cannot be read.
    Malformed,
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeSelector => f.write_str("node selector or affinity"),
            Self::Taint(key) => write!(f, "taint {key}"),
            Self::Insufficient(resource) => write!(f, "insufficient {resource}"),
            Self::Unschedulable => f.write_str("unschedulable"),
            Self::Malformed => f.write_str("unreadable requests"),
        }
    }
}

/// What the nodes of a snapshot have left, and who fits.
#[derive(Debug, Clone)]
pub struct Fit {
    table: Arc<ResourceTable>,
    requested: FxHashMap<Arc<str>, Amounts>,
}

impl Fit {
    /// Adds up what the pods of each node ask for that have not ended.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut requested = FxHashMap::<Arc<str>, Amounts>::default();
        requested.reserve(snapshot.nodes.len());
        for pod in snapshot.pods.iter().filter(|pod| pod.is_active()) {
            if let Some(node) = &pod.node {
                let of_node = match requested.get_mut(node) {
                    Some(of_node) => of_node,
                    None => requested.entry(node.clone()).or_default(),
                };
                of_node.add_all(&pod.shape.requests);
            }
        }
        let table = snapshot.table.clone();
        Self { table, requested }
    }

    /// From now on `pod` counts on `node` too.
    pub fn add(&mut self, pod: &PodInfo, node: &Arc<str>) {
        let of_node = self.requested.entry(node.clone()).or_default();
        of_node.add_all(&pod.shape.requests);
    }

    /// From now on `pod` does not count on `node`, on which it did.
    pub fn remove(&mut self, pod: &PodInfo, node: &str) {
        if let Some(of_node) = self.requested.get_mut(node) {
            of_node.sub_all(&pod.shape.requests);
        }
    }

    /// What the pods of `node` ask for.
    #[must_use]
    pub fn requested(&self, node: &str) -> Option<&Amounts> {
        self.requested.get(node)
    }

    /// Whether `pod` fits `node`.
    ///
    /// # Errors
    /// Everything that it does not get along with.
    pub fn fits(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Vec<FitError>> {
        let mut misfits = Vec::new();
        self.each(&pod.shape, node, |misfit| {
            misfits.push(misfit(&self.table));
            true
        });
        if misfits.is_empty() {
            Ok(())
        } else {
            Err(misfits)
        }
    }

    /// As [`Fit::fits`], without reasons.
    #[must_use]
    pub fn can_place(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let mut fits = true;
        self.each(&pod.shape, node, |_| {
            fits = false;
            false
        });
        fits
    }

    /// Whether `pod` fits any of `nodes`.
    #[must_use]
    pub fn any(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> bool {
        nodes.iter().any(|node| self.can_place(pod, node))
    }

    /// Whether `pod` fits any of `nodes` other than its own.
    #[must_use]
    pub fn any_other(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> bool {
        let own = |node: &NodeInfo| pod.node.as_ref() == Some(&node.name);
        nodes
            .iter()
            .any(|node| !own(node) && self.can_place(pod, node))
    }

    /// Why `pod` fits none of `nodes` other than its own: `3 insufficient cpu, 1 unschedulable`.
    #[must_use]
    pub fn reasons(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> String {
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        let others = nodes
            .iter()
            .filter(|node| pod.node.as_ref() != Some(&node.name));
        for misfit in others
            .filter_map(|node| self.fits(pod, node).err())
            .flatten()
        {
            *counts.entry(misfit.to_string()).or_default() += 1;
        }
        let counts = counts
            .into_iter()
            .map(|(misfit, nodes)| format!("{nodes} {misfit}"));
        match counts.collect::<Vec<_>>() {
            counts if counts.is_empty() => "there is no other node".to_owned(),
            counts => counts.join(", "),
        }
    }

    /// Tells `found` of each misfit until it has heard enough.
    fn each(
        &self,
        shape: &Shape,
        node: &NodeInfo,
        mut found: impl FnMut(&dyn Fn(&ResourceTable) -> FitError) -> bool,
    ) {
        if !allows(shape, node) && !found(&|_| FitError::NodeSelector) {
            return;
        }
        if let Some(taint) = nodes::untolerated(&shape.tolerations, &node.taints)
            && !found(&|_| FitError::Taint(taint.key.clone()))
        {
            return;
        }
        if node.unschedulable && !found(&|_| FitError::Unschedulable) {
            return;
        }
        if shape.malformed.is_some() && !found(&|_| FitError::Malformed) {
            return;
        }
        let requested = self.requested.get(&node.name);
        for (id, wanted) in shape.requests.iter() {
            let taken = requested.map_or(0, |of_node| of_node.get(id));
            let left = node.allocatable.get(id).saturating_sub(taken);
            if wanted > left && !found(&|table| FitError::Insufficient(table.name(id))) {
                return;
            }
        }
    }
}

/// Whether [`Fit`] says the same of pods of either shape, whatever the node: they ask for the same, and say the same of
/// nodes.
#[must_use]
pub fn same_requirements(a: &Shape, b: &Shape) -> bool {
    a.requests == b.requests
        && a.malformed.is_some() == b.malformed.is_some()
        && a.node_selector == b.node_selector
        && a.tolerations == b.tolerations
        && required(a) == required(b)
}

/// Required node affinity.
fn required(shape: &Shape) -> Option<&NodeSelector> {
    let affinity = shape.affinity.as_ref()?.node_affinity.as_ref()?;
    affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()
}

/// Whether `nodeSelector` and required node affinity allow `node`.
#[must_use]
pub fn allows(shape: &Shape, node: &NodeInfo) -> bool {
    let mut selector = shape.node_selector.iter();
    if !selector.all(|(key, value)| node.label(key) == Some(value)) {
        return false;
    }
    required(shape).is_none_or(|required| {
        nodes::any_term(&required.node_selector_terms, &node.name, |key| {
            node.label(key)
        })
    })
}
