//! Charges of pods to quotas.

use super::args::Gates;
use super::objects::Objects;
use crate::common::budgets::is_non_preemptible;
use jiff::{SignedDuration, Timestamp};
use koord_api::labels;
use koord_api::quota::DEFAULT_QUOTA;
use koord_model::quota::{ChargeKind, QuotaForest};
use koord_model::resources::{Amounts, MOST, ResourceTable, amount};
use koord_scheduler::state::PodInfo;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A pod with the amounts it is charged.
#[derive(Debug, Clone)]
pub(super) struct Charge {
    pub info: Arc<PodInfo>,
    pub amounts: Amounts,
    pub non_preemptible: bool,
    /// Quota of the pod; `None` if it belongs to none.
    pub quota: Option<Arc<str>>,
    /// True if the pod is on a node.
    pub placed: bool,
}

/// Charges of all pods, indexed by quota, quota label and namespace.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    gates: Gates,
    pods: FxHashMap<Arc<str>, Charge>,
    by_label: FxHashMap<String, FxHashSet<Arc<str>>>,
    /// Uids of pods on nodes, by quota.
    placed: FxHashMap<Arc<str>, FxHashSet<Arc<str>>>,
    /// Uids of pods without a quota label, by namespace.
    by_namespace: FxHashMap<Arc<str>, FxHashSet<Arc<str>>>,
    /// Times at which terminating pods stop counting.
    ends: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
}

/// Returns the quota in the pod's label.
fn named(pod: &PodInfo) -> Option<&str> {
    let name = pod.label(labels::POD_QUOTA_NAME)?;
    (!name.is_empty()).then_some(name)
}

impl Ledger {
    pub(super) fn new(gates: Gates) -> Self {
        Self {
            gates,
            ..Self::default()
        }
    }

    /// Returns the charge of a pod.
    pub(super) fn get(&self, uid: &str) -> Option<&Charge> {
        self.pods.get(uid)
    }

    /// Returns the charges of one quota's pods.
    pub(super) fn quota_pods<'a>(&'a self, quota: &'a str) -> impl Iterator<Item = &'a Charge> {
        let in_quota = move |charge: &&Charge| charge.quota.as_deref() == Some(quota);
        self.pods.values().filter(in_quota)
    }

    /// Returns the uids of one quota's pods that are on nodes; `None` if some may be missing because
    /// terminating pods are not charged.
    pub(super) fn placed_pods(&self, quota: &str) -> Option<Option<&FxHashSet<Arc<str>>>> {
        let all = !self.gates.ignore_deleted && !self.gates.ignore_terminating;
        all.then(|| self.placed.get(quota))
    }

    /// Returns the charges of one quota's pods that are on nodes.
    pub(super) fn placed_charges(&self, quota: &str) -> impl Iterator<Item = &Charge> {
        let placed = self.placed.get(quota).into_iter().flatten();
        placed.filter_map(|uid| self.pods.get(uid))
    }

    /// Returns the amounts that `pod` is charged.
    pub(super) fn amounts(&self, pod: &PodInfo, table: &ResourceTable) -> Amounts {
        let mut amounts = pod.requests.clone();
        if self.gates.ignore_overhead {
            let overhead = pod.spec().and_then(|spec| spec.overhead.as_ref());
            for (name, quantity) in overhead.into_iter().flatten() {
                if let Ok(quantity) = koord_api::quantity::parse(quantity) {
                    let id = table.intern(name);
                    amounts.add(id, amount(id, &quantity).saturating_neg());
                }
            }
        }
        amounts
            .iter()
            .map(|(id, amount)| (id, amount.clamp(0, MOST)))
            .collect()
    }

    /// Returns the quota to which `pod` belongs.
    pub(super) fn resolve(
        &self,
        pod: &PodInfo,
        objects: &Objects,
        trees: &QuotaForest,
    ) -> Option<Arc<str>> {
        let name = match named(pod) {
            Some(name) => name,
            None if self.gates.no_default_quota => return None,
            None => objects.namespace_quota(&pod.namespace),
        };
        if let Some(name) = trees.interned(name) {
            return Some(name);
        }
        (!self.gates.no_default_quota).then(|| DEFAULT_QUOTA.into())
    }

    /// Adds or updates a pod. Returns true if its charge changed.
    pub(super) fn apply(
        &mut self,
        pod: &Arc<PodInfo>,
        table: &ResourceTable,
        objects: &Objects,
        trees: &mut QuotaForest,
        now: Timestamp,
    ) -> bool {
        if pod.terminal || self.has_stopped_counting(pod, now) {
            return self.remove(&pod.uid, trees);
        }
        let mut charge = Charge {
            amounts: self.amounts(pod, table),
            non_preemptible: is_non_preemptible(pod),
            quota: self.resolve(pod, objects, trees),
            placed: pod.node.is_some(),
            info: pod.clone(),
        };
        if let Some(old) = self.pods.get_mut(&pod.uid) {
            charge.placed |= old.placed;
            let same_charge = old.amounts == charge.amounts
                && old.non_preemptible == charge.non_preemptible
                && old.quota == charge.quota
                && old.placed == charge.placed
                && named(&old.info) == named(pod);
            if same_charge {
                old.info = pod.clone();
                return false;
            }
            self.remove(&pod.uid, trees);
        }
        charge_quota(&charge, false, trees);
        index_placed(&charge, false, &mut self.placed);
        let uid = pod.uid.clone();
        match named(pod) {
            Some(name) => self
                .by_label
                .entry(name.to_owned())
                .or_default()
                .insert(uid),
            None => {
                let namespace_pods = self.by_namespace.entry(pod.namespace.clone());
                namespace_pods.or_default().insert(uid)
            }
        };
        self.pods.insert(pod.uid.clone(), charge);
        true
    }

    /// Removes a pod that was deleted or stopped counting. Returns true if it was charged.
    pub(super) fn remove(&mut self, uid: &str, trees: &mut QuotaForest) -> bool {
        let Some(charge) = self.pods.remove(uid) else {
            return false;
        };
        charge_quota(&charge, true, trees);
        index_placed(&charge, true, &mut self.placed);
        if let Some(name) = named(&charge.info) {
            if let Some(same) = self.by_label.get_mut(name) {
                same.remove(uid);
                if same.is_empty() {
                    self.by_label.remove(name);
                }
            }
        } else if let Some(same) = self.by_namespace.get_mut(&charge.info.namespace) {
            same.remove(uid);
            if same.is_empty() {
                self.by_namespace.remove(&charge.info.namespace);
            }
        }
        true
    }

    /// Records that a pod was placed on a node or removed from it. Returns true if that changed its charge.
    pub(super) fn set_placed(&mut self, uid: &str, placed: bool, trees: &mut QuotaForest) -> bool {
        let Some(charge) = self.pods.get_mut(uid) else {
            return false;
        };
        if charge.placed == placed {
            return false;
        }
        index_placed(charge, true, &mut self.placed);
        charge.placed = placed;
        index_placed(charge, false, &mut self.placed);
        if let Some(quota) = &charge.quota {
            trees.charge(
                quota,
                ChargeKind::Used,
                &charge.amounts,
                charge.non_preemptible,
                !placed,
            );
        }
        true
    }

    /// Resolves the quota again for pods that name `quota` and for pods in `namespaces` that name none.
    pub(super) fn move_pods<'a>(
        &mut self,
        quota: &str,
        namespaces: impl Iterator<Item = &'a str>,
        objects: &Objects,
        trees: &mut QuotaForest,
    ) {
        let mut uids: Vec<Arc<str>> = Vec::new();
        uids.extend(self.by_label.get(quota).into_iter().flatten().cloned());
        for namespace in namespaces {
            uids.extend(
                self.by_namespace
                    .get(namespace)
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
        }
        for uid in uids {
            let Some(info) = self.pods.get(&uid).map(|charge| charge.info.clone()) else {
                continue;
            };
            let now = self.resolve(&info, objects, trees);
            if let Some(charge) = self.pods.get_mut(&uid)
                && charge.quota != now
            {
                charge_quota(charge, true, trees);
                index_placed(charge, true, &mut self.placed);
                charge.quota = now;
                charge_quota(charge, false, trees);
                index_placed(charge, false, &mut self.placed);
            }
        }
    }

    /// Returns true if a terminating pod is no longer charged; otherwise schedules the time at which it stops
    /// counting.
    fn has_stopped_counting(&mut self, pod: &PodInfo, now: Timestamp) -> bool {
        if !pod.deleting {
            return false;
        }
        if self.gates.ignore_deleted {
            return true;
        }
        if !self.gates.ignore_terminating {
            return false;
        }
        let meta = &pod.object.pod.metadata;
        let Some(deleted) = &meta.deletion_timestamp else {
            return false;
        };
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0));
        let end = deleted.0.saturating_add(grace).unwrap_or(Timestamp::MAX);
        if end >= now {
            self.ends.push(Reverse((end, pod.uid.clone())));
        }
        end < now
    }

    /// Returns the time at which the next pod stops counting.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        let Reverse((end, _)) = self.ends.peek()?;
        Some(
            end.saturating_add(SignedDuration::from_secs(1))
                .unwrap_or(*end),
        )
    }

    /// Removes pods that have stopped counting. Returns true if any was removed.
    pub(super) fn remove_ended(&mut self, trees: &mut QuotaForest, now: Timestamp) -> bool {
        let mut changed = false;
        while self.ends.peek().is_some_and(|Reverse((end, _))| *end < now) {
            if let Some(Reverse((_, uid))) = self.ends.pop() {
                let deleting = self
                    .pods
                    .get(&uid)
                    .is_some_and(|charge| charge.info.deleting);
                changed |= deleting && self.remove(&uid, trees);
            }
        }
        changed
    }
}

/// Adds a charge to its quota tree, or subtracts it if `back`.
fn charge_quota(charge: &Charge, back: bool, trees: &mut QuotaForest) {
    let Some(quota) = &charge.quota else { return };
    let (amounts, non_preemptible) = (&charge.amounts, charge.non_preemptible);
    trees.charge(quota, ChargeKind::Request, amounts, non_preemptible, back);
    if charge.placed {
        trees.charge(quota, ChargeKind::Used, amounts, non_preemptible, back);
    }
}

/// Adds a pod on a node to the index of its quota, or removes it if `off`.
fn index_placed(charge: &Charge, off: bool, placed: &mut FxHashMap<Arc<str>, FxHashSet<Arc<str>>>) {
    let Some(quota) = charge.quota.as_ref().filter(|_| charge.placed) else {
        return;
    };
    if !off {
        let pods = placed.entry(quota.clone()).or_default();
        pods.insert(charge.info.uid.clone());
    } else if let Some(pods) = placed.get_mut(quota) {
        pods.remove(&charge.info.uid);
        if pods.is_empty() {
            placed.remove(quota);
        }
    }
}
