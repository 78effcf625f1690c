//! Index of the running pods that pending reservations may be placed over, updated with pod events. A
//! scheduling attempt evaluates these pods instead of all.

use super::owners::{OwnerListId, is_owner};
use super::table::{ReservationRecord, ReservationTable};
use koord_api::scheduling::ReservationOwner;
use koord_scheduler::framework::View;
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The criterion by which a reservation selects pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PodCriterion {
    /// Pods that this list of owners matches.
    Owners(OwnerListId),
    /// Pods whose label of this key is `true`.
    Label(Arc<str>),
}

impl PodCriterion {
    fn selects(&self, pod: &PodInfo, owners: &[ReservationOwner]) -> bool {
        match self {
            Self::Owners(_) => is_owner(owners, pod),
            Self::Label(key) => has_true_label(pod, key),
        }
    }

    /// Like [`Self::selects`], for a pod that matches the owner lists `lists`.
    fn selects_owned(&self, pod: &PodInfo, lists: &[OwnerListId]) -> bool {
        match self {
            Self::Owners(list) => lists.contains(list),
            Self::Label(key) => has_true_label(pod, key),
        }
    }
}

/// Returns true if the label `key` of `pod` is `true`.
pub(super) fn has_true_label(pod: &PodInfo, key: &str) -> bool {
    pod.label(key) == Some("true")
}

/// The pods that one criterion selects.
#[derive(Debug, Default)]
struct PreAllocatablePods {
    /// Uids of the reservations that use it.
    users: FxHashSet<Arc<str>>,
    /// Uids of bound pods by node; nodes without such pods are absent.
    by_node: BTreeMap<NodeIndex, BTreeSet<Arc<str>>>,
}

impl PreAllocatablePods {
    fn add(&mut self, pod: &PodInfo, node: NodeIndex) {
        self.by_node
            .entry(node)
            .or_default()
            .insert(pod.uid.clone());
    }

    fn remove(&mut self, pod: &str, node: NodeIndex) {
        let Some(pods) = self.by_node.get_mut(&node) else {
            return;
        };
        pods.remove(pod);
        if pods.is_empty() {
            self.by_node.remove(&node);
        }
    }
}

/// All indexed sets of pods, by criterion.
#[derive(Debug, Default)]
pub(super) struct PreAllocatableIndex {
    by_criterion: FxHashMap<PodCriterion, PreAllocatablePods>,
    /// Criterion by uid of the reservation.
    criteria: FxHashMap<Arc<str>, PodCriterion>,
}

impl PreAllocatableIndex {
    /// Sets the criterion of the reservation with this uid; `None` stops tracking. A criterion's first use
    /// scans all pods once.
    pub(super) fn set_criterion(
        &mut self,
        uid: &str,
        criterion: Option<(PodCriterion, &ReservationRecord)>,
        view: View<'_>,
    ) {
        let indexed = self.criteria.get(uid);
        if indexed == criterion.as_ref().map(|(criterion, _)| criterion) {
            return;
        }
        if let Some(old) = self.criteria.remove(uid)
            && let Some(pods) = self.by_criterion.get_mut(&old)
        {
            pods.users.remove(uid);
            if pods.users.is_empty() {
                self.by_criterion.remove(&old);
            }
        }
        let Some((criterion, record)) = criterion else {
            return;
        };
        self.criteria.insert(record.uid.clone(), criterion.clone());
        if let Some(pods) = self.by_criterion.get_mut(&criterion) {
            pods.users.insert(record.uid.clone());
            return;
        }
        let mut pods = PreAllocatablePods::default();
        pods.users.insert(record.uid.clone());
        for node in (0..view.nodes.rows()).filter_map(|row| u32::try_from(row).ok().map(NodeIndex))
        {
            let bound = view.nodes.pods(node).filter(|pod| pod.node.is_some());
            for pod in bound.filter(|pod| criterion.selects(pod, &record.object.spec.owners)) {
                pods.add(pod, node);
            }
        }
        self.by_criterion.insert(criterion, pods);
    }

    /// Updates the index for a bound pod that appeared on `node` or changed there.
    pub(super) fn update_pod(&mut self, pod: &PodInfo, node: NodeIndex, table: &ReservationTable) {
        if self.by_criterion.is_empty() {
            return;
        }
        let lists = table.matching_lists(pod);
        for (criterion, pods) in &mut self.by_criterion {
            if criterion.selects_owned(pod, &lists) {
                pods.add(pod, node);
            } else {
                pods.remove(&pod.uid, node);
            }
        }
    }

    /// Removes a pod that left `node` from the index.
    pub(super) fn remove_pod(&mut self, pod: &str, node: NodeIndex) {
        for pods in self.by_criterion.values_mut() {
            pods.remove(pod, node);
        }
    }

    /// Returns true if some reservation selects pods like this one.
    pub(super) fn selects_any(&self, pod: &PodInfo, table: &ReservationTable) -> bool {
        if self.by_criterion.is_empty() {
            return false;
        }
        let lists = table.matching_lists(pod);
        self.by_criterion
            .keys()
            .any(|criterion| criterion.selects_owned(pod, &lists))
    }

    fn pods_of(&self, uid: &str) -> Option<&PreAllocatablePods> {
        self.by_criterion.get(self.criteria.get(uid)?)
    }

    /// Returns true if the index agrees with a scan of all pods; for a debug assertion.
    pub(super) fn is_exact(&self, record: &ReservationRecord, view: View<'_>) -> bool {
        let Some(criterion) = self.criteria.get(&record.uid) else {
            return false;
        };
        let rows = (0..view.nodes.rows()).filter_map(|row| u32::try_from(row).ok());
        rows.map(NodeIndex).all(|node| {
            let bound = view.nodes.pods(node).filter(|pod| pod.node.is_some());
            let scanned = bound.filter(|pod| criterion.selects(pod, &record.object.spec.owners));
            let scanned: BTreeSet<Arc<str>> = scanned.map(|pod| pod.uid.clone()).collect();
            let indexed = self
                .pods_of(&record.uid)
                .and_then(|pods| pods.by_node.get(&node));
            indexed.map_or(scanned.is_empty(), |indexed| *indexed == scanned)
        })
    }

    /// Returns the existing nodes with pods that the reservation with this uid selects.
    pub(super) fn nodes<'a>(
        &'a self,
        uid: &str,
        view: View<'a>,
    ) -> impl Iterator<Item = NodeIndex> + 'a {
        let nodes = self
            .pods_of(uid)
            .into_iter()
            .flat_map(|pods| pods.by_node.keys());
        nodes
            .copied()
            .filter(move |node| view.nodes.is_present(*node))
    }

    /// Returns the pods on `node` that the reservation with this uid selects.
    pub(super) fn pods<'a>(
        &'a self,
        uid: &str,
        node: NodeIndex,
        view: View<'a>,
    ) -> impl Iterator<Item = &'a Arc<PodInfo>> + 'a {
        let pods = self.pods_of(uid).and_then(|pods| pods.by_node.get(&node));
        pods.into_iter()
            .flatten()
            .filter_map(move |pod| view.nodes.pod(node, pod))
    }
}
