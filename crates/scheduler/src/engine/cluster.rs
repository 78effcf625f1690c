//! Nodes, the pods that are booked on them, and what plugins have indexed of both.

use crate::framework::{Diagnosis, Indexes, View};
use crate::state::{NodeIndex, NodeStore, PodInfo};
use jiff::Timestamp;
use koord_model::resources::ResourceTable;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A booked pod.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) info: Arc<PodInfo>,
    pub(super) node: NodeIndex,
    pub(super) profile: Option<usize>,
    pub(super) assumed: bool,
}

/// The cluster as decisions read it.
///
/// Invariant: each record's pod is on its node in `nodes`, `assumed` counts the records that are only assumed, and
/// `priorities` counts the pods of records by priority, holders excepted.
#[derive(Debug)]
pub struct ClusterState {
    pub(super) resources: Arc<ResourceTable>,
    pub(super) nodes: NodeStore,
    pub(super) indexes: Indexes,
    /// Booked pods by uid.
    pub(super) pods: FxHashMap<Arc<str>, Record>,
    /// How many of them are only assumed.
    pub(super) assumed: usize,
    /// Booked pods by priority.
    pub(super) priorities: BTreeMap<i32, usize>,
    /// An empty list to be filled with the nodes that the next event touches.
    pub(super) touched: Vec<NodeIndex>,
}

impl ClusterState {
    /// Returns a cluster without nodes and pods.
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

    /// Returns why a pod is not placed that no node was looked at for.
    pub(super) fn unplaced(&self, message: String) -> Box<Diagnosis> {
        Box::new(Diagnosis {
            total_nodes: self.nodes.len(),
            pre_filter_message: message,
            ..Diagnosis::default()
        })
    }

    /// Returns the state as plugins read it.
    pub(super) fn view(&self, now: Timestamp) -> View<'_> {
        View {
            nodes: &self.nodes,
            resources: &self.resources,
            indexes: &self.indexes,
            now,
        }
    }

    /// The lowest priority among booked pods that are not merely reservations.
    pub(super) fn lowest_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// Counts `pod` among the booked ones, or out of them.
    pub(super) fn count_priority(&mut self, pod: &PodInfo, there: bool) {
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

    /// How many pods are booked, and how many of them are not confirmed by the informer yet.
    #[must_use]
    pub fn booked(&self) -> (usize, usize) {
        (self.pods.len(), self.assumed)
    }

    /// The node on which the pod with this uid is booked, and whether that is only assumed.
    #[must_use]
    pub fn placement(&self, uid: &str) -> Option<(&Arc<str>, bool)> {
        self.pods
            .get(uid)
            .map(|record| (self.nodes.name(record.node), record.assumed))
    }

    /// The pod with this uid that is booked on a node, as it is known.
    #[must_use]
    pub fn booked_pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|record| &record.info)
    }
}
