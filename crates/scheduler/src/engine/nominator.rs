//! Nominations: pods that wait for room on a node, from `status.nominatedNodeName` and our own preemptions.
//! Pods of the same or a lower priority must not use that room.

use crate::state::{NodeIndex, NodeStore, PodInfo};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Nominated pods by node, and nodes by pod. Nodes are identified by name, as a nomination may precede its
/// node.
///
/// Invariant: `on` and `of` hold the same nominations, and a node whose nominations change is touched.
#[derive(Debug, Default)]
pub(super) struct Nominator {
    on: FxHashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    of: FxHashMap<Arc<str>, Arc<str>>,
    /// Nominations that were written for pods which were placed and waited for permission, or which no longer
    /// need their room. They may come back from the API late, and are ignored then.
    expected: FxHashMap<Arc<str>, Arc<str>>,
}

impl Nominator {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Returns the node that the pod with this uid is nominated to.
    pub(super) fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.of.get(uid)
    }

    /// Returns the pods nominated to `node`, in order of uid.
    pub(super) fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        self.on.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Iterates over the nodes with nominated pods.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.on.keys()
    }

    /// Records that the API may show a nomination of the pod to `node` that must be ignored.
    pub(super) fn expect(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        self.expected.insert(uid.clone(), node.clone());
    }

    /// Returns true if a nomination of the pod to `node` must be ignored.
    fn is_expected(&self, uid: &str, node: &Arc<str>) -> bool {
        self.expected.get(uid) == Some(node)
    }

    /// Removes the expectations of a pod that is bound or deleted.
    pub(super) fn drop_expectation(&mut self, uid: &str) {
        self.expected.remove(uid);
    }

    fn insert(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        self.of.insert(pod.uid.clone(), node.clone());
        let pods = self.on.entry(node.clone()).or_default();
        let position = pods.partition_point(|other| other.uid < pod.uid);
        pods.insert(position, pod.clone());
    }

    fn remove(&mut self, uid: &str) -> Option<Arc<str>> {
        let node = self.of.remove(uid)?;
        if let Some(pods) = self.on.get_mut(&node) {
            pods.retain(|pod| *pod.uid != *uid);
            if pods.is_empty() {
                self.on.remove(&node);
            }
        }
        Some(node)
    }
}

impl Nominator {
    /// Nominates `pod` to `node`, in place of its previous nomination.
    pub(super) fn nominate(&mut self, nodes: &mut NodeStore, pod: &Arc<PodInfo>, node: &Arc<str>) {
        self.remove_nomination(nodes, &pod.uid);
        if self.is_expected(&pod.uid, node) {
            self.drop_expectation(&pod.uid);
        }
        self.insert(pod, node);
        touch(nodes, node);
    }

    /// Removes a nomination. Returns whether there was one.
    pub(super) fn remove_nomination(&mut self, nodes: &mut NodeStore, uid: &str) -> bool {
        if self.is_empty() {
            return false;
        }
        let node = self.remove(uid);
        if let Some(node) = &node {
            touch(nodes, node);
        }
        node.is_some()
    }

    /// Handles the nomination in the status of a waiting pod that was added or changed. It is applied only if
    /// it differs from the previous status: a local decision may not have reached the API yet.
    pub(super) fn nomination_seen(
        &mut self,
        nodes: &mut NodeStore,
        old: Option<&PodInfo>,
        new: &Arc<PodInfo>,
    ) {
        let before = old.and_then(|old| old.nominated.as_ref());
        if before == new.nominated.as_ref() && old.is_some() {
            if let Some(node) = self.node_of(&new.uid).cloned() {
                self.nominate(nodes, new, &node);
            }
            return;
        }
        match &new.nominated {
            Some(node) if self.is_expected(&new.uid, node) => {}
            Some(node) => self.nominate(nodes, new, node),
            None => {
                self.remove_nomination(nodes, &new.uid);
            }
        }
    }

    /// Returns true if a pod's status no longer shows a nomination that it showed before. Excludes pods that
    /// were placed and removed again: their removal was signaled then; waking other pods, and the pod's own
    /// gang, once more when the status follows would make them retry endlessly.
    pub(super) fn nomination_was_cleared(&self, old: &PodInfo, new: &PodInfo) -> bool {
        let before = old.nominated.as_ref();
        before != new.nominated.as_ref()
            && before.is_some_and(|node| !self.is_expected(&old.uid, node))
    }

    /// Updates the nomination of a refused pod: `new_node` is its new node, `None` to keep the current one, and
    /// empty to remove it. It keeps the current one only if plugins that make room left it in place.
    pub(super) fn update_nomination(
        &mut self,
        nodes: &mut NodeStore,
        pod: &Arc<PodInfo>,
        new_node: Option<&str>,
    ) {
        let current = self.node_of(&pod.uid);
        match new_node {
            Some("") => {
                self.remove_nomination(nodes, &pod.uid);
            }
            Some(node) if current.is_some_and(|current| **current == *node) => {}
            Some(node) => self.nominate(nodes, pod, &Arc::from(node)),
            None => {}
        }
    }

    /// Records that the node to which this pod is nominated may have other verdicts and scores, because the
    /// pod's demand changed.
    pub(super) fn touch_nominated(&self, nodes: &mut NodeStore, uid: &str) {
        if let Some(node) = self.node_of(uid).cloned() {
            touch(nodes, &node);
        }
    }
}

fn touch(nodes: &mut NodeStore, node: &str) {
    if let Some(index) = nodes.find(node) {
        nodes.touch(index);
    }
}

/// Returns the pods nominated to `node` whose room a pod of the priority of `pod` must not use.
pub(super) fn ahead_of(
    nominator: &Nominator,
    nodes: &NodeStore,
    pod: &PodInfo,
    node: NodeIndex,
) -> Vec<Arc<PodInfo>> {
    if nominator.is_empty() {
        return Vec::new();
    }
    nominator
        .on(nodes.name(node))
        .iter()
        .filter(|other| other.priority >= pod.priority)
        .cloned()
        .collect()
}
