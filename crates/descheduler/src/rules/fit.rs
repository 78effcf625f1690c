//! Check whether a pod fits a node by its scheduling constraints and the node's free resources. It checks
//! less than a scheduler: inter-pod affinity, ports, volumes, devices, quotas and load are ignored.
//!
//! Source: Koordinator `pkg/descheduler/node`.

use crate::state::{NodeInfo, PodInfo, Shape, Snapshot};
use k8s_openapi::api::core::v1::NodeSelector;
use koord_model::nodes;
use koord_model::resources::{Amounts, ResourceTable};
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::Arc;

/// A reason why a pod does not fit a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FitError {
    /// `nodeSelector` or required node affinity does not match.
    NodeSelector,
    /// The pod does not tolerate a taint with this key.
    Taint(String),
    /// The node lacks free capacity of this resource.
    Insufficient(Arc<str>),
    /// The node is unschedulable.
    Unschedulable,
    /// The pod's resource requests are invalid.
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

/// Requested resources of the nodes of a snapshot, to check which pods fit.
#[derive(Debug, Clone)]
pub struct Fit {
    table: Arc<ResourceTable>,
    requested: FxHashMap<Arc<str>, Amounts>,
}

impl Fit {
    /// Sums up the requests of the pods on each node that have not ended.
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

    /// Adds the requests of `pod` to `node`.
    pub fn add(&mut self, pod: &PodInfo, node: &Arc<str>) {
        let of_node = self.requested.entry(node.clone()).or_default();
        of_node.add_all(&pod.shape.requests);
    }

    /// Subtracts the requests of `pod` from `node`, to which they were added before.
    pub fn remove(&mut self, pod: &PodInfo, node: &str) {
        if let Some(of_node) = self.requested.get_mut(node) {
            of_node.sub_all(&pod.shape.requests);
        }
    }

    /// Returns the total requests of the pods on `node`.
    #[must_use]
    pub fn requested(&self, node: &str) -> Option<&Amounts> {
        self.requested.get(node)
    }

    /// Checks whether `pod` fits `node`.
    ///
    /// # Errors
    /// Returns every reason why it does not fit.
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

    /// Returns true if `pod` fits `node`, like [`Fit::fits`] without reasons.
    #[must_use]
    pub fn can_place(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let mut fits = true;
        self.each(&pod.shape, node, |_| {
            fits = false;
            false
        });
        fits
    }

    /// Returns true if `pod` fits any of `nodes`.
    #[must_use]
    pub fn any(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> bool {
        nodes.iter().any(|node| self.can_place(pod, node))
    }

    /// Returns true if `pod` fits any of `nodes` other than its own.
    #[must_use]
    pub fn fits_any_other(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> bool {
        let own = |node: &NodeInfo| pod.node.as_ref() == Some(&node.name);
        nodes
            .iter()
            .any(|node| !own(node) && self.can_place(pod, node))
    }

    /// Explains why `pod` fits none of `nodes` other than its own: `3 insufficient cpu, 1 unschedulable`.
    #[must_use]
    pub fn reasons(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> String {
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        let other_nodes = nodes
            .iter()
            .filter(|node| pod.node.as_ref() != Some(&node.name));
        for misfit in other_nodes
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

    /// Calls `found` for each error until it returns false.
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
        for (id, request) in shape.requests.iter() {
            let allocated = requested.map_or(0, |of_node| of_node.get(id));
            let free = node.allocatable.get(id).saturating_sub(allocated);
            if request > free && !found(&|table| FitError::Insufficient(table.name(id))) {
                return;
            }
        }
    }
}

/// Returns true if [`Fit`] gives equal results for pods of both shapes on every node: their requests and node
/// constraints are equal.
#[must_use]
pub fn same_requirements(a: &Shape, b: &Shape) -> bool {
    a.requests == b.requests
        && a.malformed.is_some() == b.malformed.is_some()
        && a.node_selector == b.node_selector
        && a.tolerations == b.tolerations
        && required(a) == required(b)
}

/// Returns the required node affinity.
fn required(shape: &Shape) -> Option<&NodeSelector> {
    let affinity = shape.affinity.as_ref()?.node_affinity.as_ref()?;
    affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()
}

/// Returns true if `nodeSelector` and required node affinity match `node`.
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
