//! Index of the running pods that pending reservations may be placed over, updated with pod events. A
//! scheduling attempt evaluates these pods instead of all.

use super::owners::{SpecId, is_owner};
use super::table::{Record, Table};
use koord_api::scheduling::ReservationOwner;
use koord_scheduler::framework::View;
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The criterion by which a reservation selects pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    /// Pods that this list of owners matches.
    Owners(SpecId),
    /// Pods whose label of this key is `true`.
    Label(Arc<str>),
}

impl Mark {
    fn is_on(&self, pod: &PodInfo, owners: &[ReservationOwner]) -> bool {
        match self {
            Self::Owners(_) => is_owner(owners, pod),
            Self::Label(key) => says_true(pod, key),
        }
    }

    /// Like [`Self::is_on`], for a pod that matches the owner lists `lists`.
    fn is_among(&self, pod: &PodInfo, lists: &[SpecId]) -> bool {
        match self {
            Self::Owners(list) => lists.contains(list),
            Self::Label(key) => says_true(pod, key),
        }
    }
}

/// Returns true if the label `key` of `pod` is `true`.
pub(super) fn says_true(pod: &PodInfo, key: &str) -> bool {
    pod.label(key) == Some("true")
}

#[derive(Debug, Default)]
struct Crowd {
    /// Uids of the reservations that use it.
    users: FxHashSet<Arc<str>>,
    /// Uids of bound pods by node; nodes without such pods are absent.
    on: BTreeMap<NodeIndex, BTreeSet<Arc<str>>>,
}

impl Crowd {
    fn add(&mut self, pod: &PodInfo, node: NodeIndex) {
        self.on.entry(node).or_default().insert(pod.uid.clone());
    }

    fn drop(&mut self, pod: &str, node: NodeIndex) {
        let Some(pods) = self.on.get_mut(&node) else {
            return;
        };
        pods.remove(pod);
        if pods.is_empty() {
            self.on.remove(&node);
        }
    }
}

/// All indexed sets of pods, by criterion.
#[derive(Debug, Default)]
pub(super) struct Crowds {
    by_mark: FxHashMap<Mark, Crowd>,
    /// Criterion by uid of the reservation.
    marks: FxHashMap<Arc<str>, Mark>,
}

impl Crowds {
    /// Sets the criterion of the reservation with this uid; `None` stops tracking. A criterion's first use
    /// scans all pods once.
    pub(super) fn follow(&mut self, uid: &str, mark: Option<(Mark, &Record)>, view: View<'_>) {
        let known = self.marks.get(uid);
        if known == mark.as_ref().map(|(mark, _)| mark) {
            return;
        }
        if let Some(old) = self.marks.remove(uid)
            && let Some(crowd) = self.by_mark.get_mut(&old)
        {
            crowd.users.remove(uid);
            if crowd.users.is_empty() {
                self.by_mark.remove(&old);
            }
        }
        let Some((mark, record)) = mark else { return };
        self.marks.insert(record.uid.clone(), mark.clone());
        if let Some(crowd) = self.by_mark.get_mut(&mark) {
            crowd.users.insert(record.uid.clone());
            return;
        }
        let mut crowd = Crowd::default();
        crowd.users.insert(record.uid.clone());
        for node in (0..view.nodes.rows()).filter_map(|row| u32::try_from(row).ok().map(NodeIndex))
        {
            let bound = view.nodes.pods(node).filter(|pod| pod.node.is_some());
            for pod in bound.filter(|pod| mark.is_on(pod, &record.object.spec.owners)) {
                crowd.add(pod, node);
            }
        }
        self.by_mark.insert(mark, crowd);
    }

    /// Updates the index for a bound pod that appeared on `node` or changed there.
    pub(super) fn seen(&mut self, pod: &PodInfo, node: NodeIndex, table: &Table) {
        if self.by_mark.is_empty() {
            return;
        }
        let lists = table.matching(pod);
        for (mark, crowd) in &mut self.by_mark {
            if mark.is_among(pod, &lists) {
                crowd.add(pod, node);
            } else {
                crowd.drop(&pod.uid, node);
            }
        }
    }

    /// Removes a pod that left `node` from the index.
    pub(super) fn gone(&mut self, pod: &str, node: NodeIndex) {
        for crowd in self.by_mark.values_mut() {
            crowd.drop(pod, node);
        }
    }

    /// Returns true if some reservation selects pods like this one.
    pub(super) fn seek(&self, pod: &PodInfo, table: &Table) -> bool {
        if self.by_mark.is_empty() {
            return false;
        }
        let lists = table.matching(pod);
        self.by_mark.keys().any(|mark| mark.is_among(pod, &lists))
    }

    fn of(&self, uid: &str) -> Option<&Crowd> {
        self.by_mark.get(self.marks.get(uid)?)
    }

    /// Returns true if the index agrees with a scan of all pods; for a debug assertion.
    pub(super) fn is_exact(&self, record: &Record, view: View<'_>) -> bool {
        let Some(mark) = self.marks.get(&record.uid) else {
            return false;
        };
        let rows = (0..view.nodes.rows()).filter_map(|row| u32::try_from(row).ok());
        rows.map(NodeIndex).all(|node| {
            let bound = view.nodes.pods(node).filter(|pod| pod.node.is_some());
            let found = bound.filter(|pod| mark.is_on(pod, &record.object.spec.owners));
            let found: BTreeSet<Arc<str>> = found.map(|pod| pod.uid.clone()).collect();
            let known = self.of(&record.uid).and_then(|crowd| crowd.on.get(&node));
            known.map_or(found.is_empty(), |known| *known == found)
        })
    }

    /// Returns the existing nodes with pods that the reservation with this uid selects.
    pub(super) fn nodes<'a>(
        &'a self,
        uid: &str,
        view: View<'a>,
    ) -> impl Iterator<Item = NodeIndex> + 'a {
        let nodes = self.of(uid).into_iter().flat_map(|crowd| crowd.on.keys());
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
        let found = self.of(uid).and_then(|crowd| crowd.on.get(&node));
        found
            .into_iter()
            .flatten()
            .filter_map(move |pod| view.nodes.pod(node, pod))
    }
}
