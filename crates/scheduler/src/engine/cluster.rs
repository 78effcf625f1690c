//! Cluster state: nodes, the pods on them, and the indexes.

use crate::framework::{Diagnosis, Indexes, View};
use crate::state::{NodeIndex, NodeStore, PodInfo};
use jiff::Timestamp;
use koord_model::resources::ResourceTable;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod on a node.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) info: Arc<PodInfo>,
    pub(super) node: NodeIndex,
    pub(super) profile: Option<usize>,
    pub(super) assumed: bool,
}

/// The state of the cluster that decisions are based on.
///
/// Invariant: each record's pod is on its node in `nodes`, `assumed` counts the records that are only
/// assumed, and `priorities` counts the pods of records by priority, holders excepted.
#[derive(Debug)]
pub struct ClusterState {
    pub(super) resources: Arc<ResourceTable>,
    pub(super) nodes: NodeStore,
    pub(super) indexes: Indexes,
    /// Pods on nodes, by uid.
    pub(super) pods: FxHashMap<Arc<str>, Record>,
    /// Number of pods on nodes that are only assumed.
    pub(super) assumed: usize,
    /// The number of pods on nodes by priority, without holders.
    pub(super) priorities: BTreeMap<i32, usize>,
    /// An empty list, reused for the nodes that the next event touches.
    pub(super) touched: Vec<NodeIndex>,
}

impl ClusterState {
    /// Creates a cluster without nodes and pods.
    pub(super) fn new(resources: Arc<ResourceTable>, indexes: Indexes) -> Self {
        Self {
            resources,
            nodes: NodeStore::default(),
            indexes,
            pods: FxHashMap::default(),
            assumed: 0,
            priorities: BTreeMap::new(),
            touched: Vec::new(),
        }
    }

    /// Adds `pod` to `node`, which need not exist yet.
    pub(super) fn book(
        &mut self,
        pod: &Arc<PodInfo>,
        node: &str,
        profile: Option<usize>,
        assumed: bool,
    ) -> NodeIndex {
        let index = self.nodes.add_pod(node, pod.clone());
        let record = Record {
            info: pod.clone(),
            node: index,
            profile,
            assumed,
        };
        let before = self.pods.insert(pod.uid.clone(), record);
        let was_assumed = before.is_some_and(|before| before.assumed);
        self.assumed = self.assumed + usize::from(assumed) - usize::from(was_assumed);
        self.count_priority(pod, true);
        index
    }

    /// Removes a pod from the records. It stays on its node until the caller removes it there.
    pub(super) fn release(&mut self, uid: &str) -> Option<Record> {
        let record = self.pods.remove(uid)?;
        self.assumed -= usize::from(record.assumed);
        self.count_priority(&record.info, false);
        Some(record)
    }

    /// Replaces a pod on a node by its current state, in which it is bound. Returns the previous state and
    /// whether it was only assumed.
    pub(super) fn confirm(&mut self, info: &Arc<PodInfo>) -> Option<(Arc<PodInfo>, bool)> {
        let record = self.pods.get_mut(&info.uid)?;
        let was_assumed = std::mem::replace(&mut record.assumed, false);
        let old = std::mem::replace(&mut record.info, info.clone());
        let index = record.node;
        self.assumed -= usize::from(was_assumed);
        if old.priority != info.priority {
            self.count_priority(&old, false);
            self.count_priority(info, true);
        }
        self.nodes.update_pod(index, info.clone());
        Some((old, was_assumed))
    }

    /// Returns the diagnosis of a pod that was refused before any node was filtered.
    pub(super) fn unplaced(&self, message: String) -> Box<Diagnosis> {
        Box::new(Diagnosis {
            total_nodes: self.nodes.len(),
            pre_filter_message: message,
            ..Diagnosis::default()
        })
    }

    /// Returns the nodes with the pods on them.
    #[must_use]
    pub fn nodes(&self) -> &NodeStore {
        &self.nodes
    }

    /// Returns the mapping of resource names to numbers.
    #[must_use]
    pub fn resources(&self) -> &ResourceTable {
        &self.resources
    }

    /// Returns the state as plugins read it.
    #[must_use]
    #[inline]
    pub fn view(&self, now: Timestamp) -> View<'_> {
        View {
            nodes: &self.nodes,
            resources: &self.resources,
            indexes: &self.indexes,
            now,
        }
    }

    /// Returns the lowest priority of the pods on nodes, without holders.
    pub(super) fn lowest_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// Adds `pod` to the counts by priority, or removes it.
    fn count_priority(&mut self, pod: &PodInfo, there: bool) {
        if pod.is_holder() {
            return;
        }
        let count = self.priorities.entry(pod.priority).or_default();
        *count = if there {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *count == 0 {
            self.priorities.remove(&pod.priority);
        }
    }

    /// Returns how many pods are on nodes, and how many of them are only assumed.
    #[must_use]
    pub fn booked(&self) -> (usize, usize) {
        (self.pods.len(), self.assumed)
    }

    /// Returns the node that the pod with this uid is on, and whether it is only assumed.
    #[must_use]
    pub fn placement(&self, uid: &str) -> Option<(&Arc<str>, bool)> {
        self.pods
            .get(uid)
            .map(|record| (self.nodes.name(record.node), record.assumed))
    }

    /// Returns the pod with this uid if it is on a node.
    #[must_use]
    pub fn booked_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|record| &record.info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, priority: i32) -> Arc<PodInfo> {
        let pod = json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid},
            "spec": {"priority": priority, "containers": []}});
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        Arc::new(PodInfo::new(pod, &ResourceTable::new()).unwrap())
    }

    fn cluster() -> ClusterState {
        let resources = Arc::new(ResourceTable::new());
        ClusterState::new(resources, Indexes::new(std::iter::empty()))
    }

    fn counts(cluster: &ClusterState) -> Vec<(i32, usize)> {
        let all = cluster.priorities.iter();
        all.map(|(priority, pods)| (*priority, *pods)).collect()
    }

    #[test]
    fn booked_pods_are_counted_by_priority_and_assumption() {
        let mut cluster = cluster();
        cluster.book(&pod("a", 5), "n1", Some(0), true);
        cluster.book(&pod("b", 5), "n1", Some(0), false);
        cluster.book(&pod("c", -1), "n2", None, true);
        assert_eq!(cluster.booked(), (3, 2));
        assert_eq!(counts(&cluster), [(-1, 1), (5, 2)]);
        assert_eq!(cluster.lowest_priority(), Some(-1));
        let (node, assumed) = cluster.placement("c").unwrap();
        assert_eq!((&**node, assumed), ("n2", true));
        assert!(cluster.release("c").is_some_and(|record| record.assumed));
        assert!(cluster.release("c").is_none());
        assert_eq!(
            (cluster.booked(), cluster.lowest_priority()),
            ((2, 1), Some(5))
        );
    }

    #[test]
    fn confirmed_pod_is_bound_and_counts_as_it_is_now() {
        let mut cluster = cluster();
        let node = cluster.book(&pod("a", 5), "n1", Some(0), true);
        let (old, was_assumed) = cluster.confirm(&pod("a", 7)).unwrap();
        assert_eq!((old.priority, was_assumed), (5, true));
        assert_eq!((cluster.booked(), counts(&cluster)), ((1, 0), vec![(7, 1)]));
        assert!(cluster.nodes.pods(node).all(|pod| pod.priority == 7));
        assert!(
            cluster
                .confirm(&pod("a", 7))
                .is_some_and(|(_, assumed)| !assumed)
        );
        assert!(cluster.confirm(&pod("b", 7)).is_none());
    }
}
