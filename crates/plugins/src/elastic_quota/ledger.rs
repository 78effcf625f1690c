//! What every pod is charged, and to which quota.

use super::args::Gates;
use super::objects::Objects;
use crate::common::budgets::is_non_preemptible;
use jiff::{SignedDuration, Timestamp};
use koord_api::labels;
use koord_api::quota::DEFAULT_QUOTA;
use koord_model::quota::{Forest, Side};
use koord_model::resources::{Amounts, MOST, ResourceTable, amount};
use koord_scheduler::state::PodInfo;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A pod and what it is charged.
#[derive(Debug, Clone)]
pub(super) struct Charge {
    pub info: Arc<PodInfo>,
    pub amounts: Amounts,
    pub non_preemptible: bool,
    /// `None`: it belongs to no quota.
    pub quota: Option<Arc<str>>,
    /// Whether it is on a node.
    pub placed: bool,
}

/// All pods.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    gates: Gates,
    pods: FxHashMap<Arc<str>, Charge>,
    by_label: FxHashMap<String, FxHashSet<Arc<str>>>,
    /// Pods on nodes by quota.
    placed: FxHashMap<Arc<str>, FxHashSet<Arc<str>>>,
    /// Pods that name no quota.
    by_namespace: FxHashMap<Arc<str>, FxHashSet<Arc<str>>>,
    /// When pods that are being deleted cease to count.
    endings: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
}

/// The quota that a pod names.
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

    pub(super) fn get(&self, uid: &str) -> Option<&Charge> {
        self.pods.get(uid)
    }

    /// The pods of one quota.
    pub(super) fn of<'a>(&'a self, quota: &'a str) -> impl Iterator<Item = &'a Charge> {
        let of = move |charge: &&Charge| charge.quota.as_deref() == Some(quota);
        self.pods.values().filter(of)
    }

    /// The pods of one quota that are on nodes, by uid; `None` when some may not be known.
    pub(super) fn placed(&self, quota: &str) -> Option<Option<&FxHashSet<Arc<str>>>> {
        let all = !self.gates.ignore_deleted && !self.gates.ignore_terminating;
        all.then(|| self.placed.get(quota))
    }

    /// What the pods of one quota that are on nodes are charged.
    pub(super) fn on_nodes(&self, quota: &str) -> impl Iterator<Item = &Charge> {
        let placed = self.placed.get(quota).into_iter().flatten();
        placed.filter_map(|uid| self.pods.get(uid))
    }

    /// What `pod` is charged wherever it belongs.
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

    /// The quota that `pod` belongs to.
    pub(super) fn resolve(
        &self,
        pod: &PodInfo,
        objects: &Objects,
        trees: &Forest,
    ) -> Option<Arc<str>> {
        let name = match named(pod) {
            Some(name) => name,
            None if self.gates.no_default_quota => return None,
            None => objects.of_namespace(&pod.namespace),
        };
        if let Some(name) = trees.interned(name) {
            return Some(name);
        }
        (!self.gates.no_default_quota).then(|| DEFAULT_QUOTA.into())
    }

    /// A pod appeared or changed.
    pub(super) fn apply(
        &mut self,
        pod: &Arc<PodInfo>,
        table: &ResourceTable,
        objects: &Objects,
        trees: &mut Forest,
        now: Timestamp,
    ) -> bool {
        if pod.terminal || self.counts_no_more(pod, now) {
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
            let same = old.amounts == charge.amounts
                && old.non_preemptible == charge.non_preemptible
                && old.quota == charge.quota
                && old.placed == charge.placed
                && named(&old.info) == named(pod);
            if same {
                old.info = pod.clone();
                return false;
            }
            self.remove(&pod.uid, trees);
        }
        book(&charge, false, trees);
        note(&charge, false, &mut self.placed);
        let uid = pod.uid.clone();
        match named(pod) {
            Some(name) => self
                .by_label
                .entry(name.to_owned())
                .or_default()
                .insert(uid),
            None => {
                let same = self.by_namespace.entry(pod.namespace.clone());
                same.or_default().insert(uid)
            }
        };
        self.pods.insert(pod.uid.clone(), charge);
        true
    }

    /// A pod is gone, or counts no more.
    pub(super) fn remove(&mut self, uid: &str, trees: &mut Forest) -> bool {
        let Some(charge) = self.pods.remove(uid) else {
            return false;
        };
        book(&charge, true, trees);
        note(&charge, true, &mut self.placed);
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

    /// A pod was placed, or taken off its node.
    pub(super) fn place(&mut self, uid: &str, placed: bool, trees: &mut Forest) -> bool {
        let Some(charge) = self.pods.get_mut(uid) else {
            return false;
        };
        if charge.placed == placed {
            return false;
        }
        note(charge, true, &mut self.placed);
        charge.placed = placed;
        note(charge, false, &mut self.placed);
        if let Some(quota) = &charge.quota {
            trees.charge(
                quota,
                Side::Used,
                &charge.amounts,
                charge.non_preemptible,
                !placed,
            );
        }
        true
    }

    /// Looks up again where pods belong: those that name `quota`, and those in `namespaces` that
    /// name none.
    pub(super) fn move_pods<'a>(
        &mut self,
        quota: &str,
        namespaces: impl Iterator<Item = &'a str>,
        objects: &Objects,
        trees: &mut Forest,
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
                book(charge, true, trees);
                note(charge, true, &mut self.placed);
                charge.quota = now;
                book(charge, false, trees);
                note(charge, false, &mut self.placed);
            }
        }
    }

    /// Whether a pod that is being deleted is not charged any more.
    fn counts_no_more(&mut self, pod: &PodInfo, now: Timestamp) -> bool {
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
            self.endings.push(Reverse((end, pod.uid.clone())));
        }
        end < now
    }

    /// When the next pod ceases to count.
    pub(super) fn next_ending(&self) -> Option<Timestamp> {
        let Reverse((end, _)) = self.endings.peek()?;
        Some(
            end.saturating_add(SignedDuration::from_secs(1))
                .unwrap_or(*end),
        )
    }

    /// Drops the pods that have ceased to count.
    pub(super) fn end(&mut self, trees: &mut Forest, now: Timestamp) -> bool {
        let mut changed = false;
        while self
            .endings
            .peek()
            .is_some_and(|Reverse((end, _))| *end < now)
        {
            if let Some(Reverse((_, uid))) = self.endings.pop() {
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

fn book(charge: &Charge, back: bool, trees: &mut Forest) {
    let Some(quota) = &charge.quota else { return };
    let (amounts, firm) = (&charge.amounts, charge.non_preemptible);
    trees.charge(quota, Side::Request, amounts, firm, back);
    if charge.placed {
        trees.charge(quota, Side::Used, amounts, firm, back);
    }
}

/// Lists a pod on a node under its quota, or strikes it off.
fn note(charge: &Charge, off: bool, placed: &mut FxHashMap<Arc<str>, FxHashSet<Arc<str>>>) {
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
