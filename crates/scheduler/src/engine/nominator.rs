//! Which pods wait for room on which node: what `status.nominatedNodeName` and our own preemptions
//! say. Pods of the same or a lower priority must leave that room alone.

use crate::state::{NodeIndex, NodeStore, PodInfo};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// See the module documentation. Nodes are known by name: a nomination may precede its node.
///
/// Invariant: `on` and `of` hold the same nominations, and a node whose nominations change is touched.
#[derive(Debug, Default)]
pub(super) struct Nominator {
    on: FxHashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    of: FxHashMap<Arc<str>, Arc<str>>,
    /// What was written of pods that were placed and waited for permission, or were promised room that they
    /// do not need any more. It may come back from the API late: nobody waits for room there then.
    expected: FxHashMap<Arc<str>, Arc<str>>,
}

impl Nominator {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The node that the pod with this uid is nominated to.
    pub(super) fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.of.get(uid)
    }

    /// The pods nominated to `node`, in order of uid.
    pub(super) fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        self.on.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The nodes with nominated pods.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.on.keys()
    }

    /// Notes that the pod may be shown as nominated to `node`, and does not wait for room there.
    pub(super) fn expect(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        self.expected.insert(uid.clone(), node.clone());
    }

    /// Whether the pod may be shown as nominated to `node` without waiting for room there.
    fn is_expected(&self, uid: &str, node: &Arc<str>) -> bool {
        self.expected.get(uid) == Some(node)
    }

    /// The pod is bound or gone.
    pub(super) fn settled(&mut self, uid: &str) {
        self.expected.remove(uid);
    }

    fn insert(&mut self, pod: &Arc<PodInfo>, node: &Arc<str>) {
        self.of.insert(pod.uid.clone(), node.clone());
        let pods = self.on.entry(node.clone()).or_default();
        let at = pods.partition_point(|other| other.uid < pod.uid);
        pods.insert(at, pod.clone());
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
    /// Sets aside room for `pod` on `node`, in place of where it was nominated before.
    pub(super) fn nominate(&mut self, nodes: &mut NodeStore, pod: &Arc<PodInfo>, node: &Arc<str>) {
        self.denominate(nodes, &pod.uid);
        if self.is_expected(&pod.uid, node) {
            self.settled(&pod.uid);
        }
        self.insert(pod, node);
        touch(nodes, node);
    }

    /// Withdraws a nomination. Returns whether there was one.
    pub(super) fn denominate(&mut self, nodes: &mut NodeStore, uid: &str) -> bool {
        if self.is_empty() {
            return false;
        }
        let node = self.remove(uid);
        if let Some(node) = &node {
            touch(nodes, node);
        }
        node.is_some()
    }

    /// A waiting pod appeared or changed. Its status counts where it says something new: what was
    /// decided here may not have reached the API yet.
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
                self.denominate(nodes, &new.uid);
            }
        }
    }

    /// Whether a pod's status promised it room that it does not promise any more. Where the pod was
    /// placed and gave its place back, that has been told; to wake others, and the pod's own gang,
    /// once more when the status follows would have them tried without end.
    pub(super) fn promise_is_over(&self, old: &PodInfo, new: &PodInfo) -> bool {
        let before = old.nominated.as_ref();
        before != new.nominated.as_ref()
            && before.is_some_and(|node| !self.is_expected(&old.uid, node))
    }

    /// What becomes of the nomination of a pod that was refused: `said` is its new node, nothing
    /// when it keeps the one it has, and empty when it has none any more. It keeps it only where
    /// plugins that make room had their say, and left it.
    pub(super) fn settle_nomination(
        &mut self,
        nodes: &mut NodeStore,
        pod: &Arc<PodInfo>,
        said: Option<&str>,
    ) {
        let known = self.node_of(&pod.uid);
        match said {
            Some("") => {
                self.denominate(nodes, &pod.uid);
            }
            Some(node) if known.is_some_and(|known| **known == *node) => {}
            Some(node) => self.nominate(nodes, pod, &Arc::from(node)),
            None => {}
        }
    }

    /// What the pod with this uid takes changed: others are judged beside it where it is nominated.
    pub(super) fn touch_promised(&self, nodes: &mut NodeStore, uid: &str) {
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

/// The pods nominated to `node` that pods of the priority of `pod` must leave room for.
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
