//! Elastic quotas: a tree of shares of the cluster, where siblings lend each other the guaranteed amounts
//! that they do not request.
//!
//! [`QuotaTree`] stores the limits of quotas ([`QuotaSpec`]) and the requests and usage of their pods. Sums propagate
//! up the tree with every change, in O(depth). The runtime quota is divided from the root down when it is
//! requested ([`QuotaTree::refresh`]), and only where something changed since; readers get the result of the last
//! division. A [`QuotaForest`] consists of several trees.

mod forest;
mod rebuild;
mod revoke;
mod runtime;
mod share;
#[cfg(test)]
mod tests;

pub use forest::QuotaForest;
pub use revoke::{ChargedPod, revoke};
pub use share::{ShareClaim, divide, scale_min};

use crate::resources::{Amounts, ResourceId};
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Options of a quota tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// True if minimums are scaled down when those of siblings together exceed the available amount.
    pub scale_min: bool,
    /// True if the usage of a quota beyond its minimum is guaranteed. Then nothing is lent.
    pub guarantee_used: bool,
}

/// Limits of a quota.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuotaSpec {
    /// Name of the parent; empty means the root.
    pub parent: String,
    /// True if the quota is meant to have children. Has no effect here.
    pub is_parent: bool,
    /// True if other quotas may use the part of the minimum that is not requested.
    pub lendable: bool,
    /// Guaranteed amounts.
    pub min: Amounts,
    /// Maximum amounts. Only the resources listed here are accounted.
    pub max: Amounts,
    /// Weight, per resource, in the division of amounts that are not guaranteed to any quota.
    pub weight: Amounts,
}

/// Sums over pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sums {
    /// Requests of all pods, with or without a node.
    pub request: Amounts,
    /// Requests of pods that must not be preempted.
    pub non_preemptible_request: Amounts,
    /// Requests of pods with a node.
    pub used: Amounts,
    /// Requests of pods with a node that must not be preempted.
    pub non_preemptible_used: Amounts,
}

impl Sums {
    fn side(&mut self, side: ChargeKind, non_preemptible: bool) -> &mut Amounts {
        match (side, non_preemptible) {
            (ChargeKind::Request, false) => &mut self.request,
            (ChargeKind::Request, true) => &mut self.non_preemptible_request,
            (ChargeKind::Used, false) => &mut self.used,
            (ChargeKind::Used, true) => &mut self.non_preemptible_used,
        }
    }
}

/// A quota with its sums.
#[derive(Debug, Clone, Default)]
pub struct Quota {
    /// Name of the quota.
    pub name: Arc<str>,
    /// Limits.
    pub spec: QuotaSpec,
    /// Sums of its own pods, of all resources.
    own: Sums,
    /// Sums of the subtree, with the requests of children limited to their maximum.
    pub sums: Sums,
    /// Requests of children, limited to their maximum, and of own pods.
    pub child_request: Amounts,
    /// Guaranteed amounts of children plus usage of own pods. Empty unless usage is guaranteed.
    pub allocated: Amounts,
    /// Maximum of `allocated` and the minimum. Empty unless usage is guaranteed.
    pub guaranteed: Amounts,
    /// Scaled minimum.
    pub scaled_min: Amounts,
    /// Runtime quota, as of the last [`QuotaTree::refresh`].
    pub runtime: Amounts,
    /// Number of divisions among its children.
    pub version: u64,
    parent: Option<Id>,
    children: Vec<Id>,
    /// Amounts last divided among the children; `None` if something changed since.
    divided: Option<Amounts>,
    /// Value of the tree's change counter at the last refresh.
    refreshed: Option<u64>,
}

impl Quota {
    /// Returns the sums of its own pods, limited to the accounted resources.
    #[must_use]
    pub fn own(&self) -> Sums {
        let mask = |amounts: &Amounts| masked(amounts, &self.spec.max);
        Sums {
            request: mask(&self.own.request),
            non_preemptible_request: mask(&self.own.non_preemptible_request),
            used: mask(&self.own.used),
            non_preemptible_used: mask(&self.own.non_preemptible_used),
        }
    }

    /// Returns the request that counts at its parent: its request, at most its maximum.
    #[must_use]
    pub fn limited_request(&self) -> Amounts {
        let ids = self.sums.request.iter().map(|(id, _)| id);
        ids.map(|id| (id, self.limited(id))).collect()
    }

    fn limited(&self, id: ResourceId) -> i64 {
        let request = self.sums.request.get(id);
        if self.spec.max.contains(id) {
            request.min(self.spec.max.get(id))
        } else {
            request
        }
    }

    /// Recomputes the request: [`Quota::child_request`], or at least the minimum if the quota does not lend
    /// it.
    fn demand(&mut self) {
        let mut request = self.child_request.clone();
        if !self.spec.lendable {
            request.max_all(&self.spec.min);
        }
        self.sums.request = request;
    }

    fn is_outside(&self) -> bool {
        is_outside(&self.name)
    }
}

/// Sum that [`QuotaTree::charge`] changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChargeKind {
    /// Requests of pods.
    Request,
    /// Requests of pods with a node.
    Used,
}

type Id = usize;
const ROOT: Id = 0;

/// Returns true if the quota does not take part in the division: its usage is subtracted from the total
/// first.
fn is_outside(name: &str) -> bool {
    matches!(name, SYSTEM_QUOTA | DEFAULT_QUOTA)
}

fn is_built_in(name: &str) -> bool {
    name == ROOT_QUOTA || is_outside(name)
}

/// A tree of quotas with the sums of their pods.
#[derive(Debug, Clone)]
pub struct QuotaTree {
    options: Options,
    quotas: Vec<Option<Quota>>,
    ids: HashMap<Arc<str>, Id>,
    free: Vec<Id>,
    total: Amounts,
    /// Resources that the maximum of any quota lists.
    keys: BTreeSet<ResourceId>,
    /// True if parents and sums must be rebuilt.
    stale: bool,
    /// Number of changes that affect a share.
    changes: u64,
}

impl QuotaTree {
    /// Creates a tree of the three built-in quotas.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut tree = Self {
            options,
            quotas: Vec::new(),
            ids: HashMap::new(),
            free: Vec::new(),
            total: Amounts::new(),
            keys: BTreeSet::new(),
            stale: true,
            changes: 0,
        };
        let root = QuotaSpec {
            is_parent: true,
            ..QuotaSpec::default()
        };
        let outside = QuotaSpec {
            lendable: true,
            ..QuotaSpec::default()
        };
        tree.set(ROOT_QUOTA, root);
        tree.set(SYSTEM_QUOTA, outside.clone());
        tree.set(DEFAULT_QUOTA, outside);
        tree
    }

    /// Adds a quota, or changes its limits. Charged pods stay.
    pub fn set(&mut self, name: &str, mut spec: QuotaSpec) {
        spec.lendable &= !self.options.guarantee_used;
        for amounts in [&mut spec.min, &mut spec.max, &mut spec.weight] {
            *amounts = amounts.iter().map(|(id, n)| (id, n.max(0))).collect();
        }
        self.changes += 1;
        if let Some(id) = self.ids.get(name) {
            if let Some(quota) = &mut self.quotas[*id]
                && quota.spec != spec
            {
                quota.spec = spec;
                self.stale = true;
            }
            return;
        }
        self.stale = true;
        let name: Arc<str> = name.into();
        let quota = Quota {
            name: name.clone(),
            spec,
            ..Quota::default()
        };
        let id = self.free.pop().unwrap_or(self.quotas.len());
        if id == self.quotas.len() {
            self.quotas.push(Some(quota));
        } else {
            self.quotas[id] = Some(quota);
        }
        self.ids.insert(name, id);
    }

    /// Removes a quota and its charged pods. Its children have no parent until it is added again. Built-in
    /// quotas are kept.
    pub fn remove(&mut self, name: &str) {
        self.take(name);
    }

    /// Like [`Self::remove`], and returns the sums charged to the quota.
    fn take(&mut self, name: &str) -> Option<Sums> {
        if is_built_in(name) {
            return None;
        }
        let id = self.ids.remove(name)?;
        self.changes += 1;
        let quota = self.quotas[id].take();
        self.free.push(id);
        self.stale = true;
        quota.map(|quota| quota.own)
    }

    /// Charges quota `name` with the sums charged to it in another tree.
    fn give(&mut self, name: &str, own: Sums) {
        let id = self.ids.get(name).copied();
        if let Some(quota) = id.and_then(|id| self.get_mut(id)) {
            quota.own = own;
            self.changes += 1;
            self.stale = true;
        }
    }

    /// Returns true if there is a quota `name`.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.ids.contains_key(name)
    }

    /// Returns the shared name of a quota; `None` if there is no such quota.
    #[must_use]
    pub fn interned(&self, name: &str) -> Option<Arc<str>> {
        self.ids.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// Returns the names of all quotas, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self.ids.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Sets the total amounts of the cluster.
    pub fn set_total(&mut self, total: Amounts) {
        self.total = total;
        self.changes += 1;
    }

    /// Returns the total amounts of the cluster.
    #[must_use]
    pub fn total(&self) -> &Amounts {
        &self.total
    }

    /// Returns the amounts that are divided among the quotas below the root: the total minus the usage of the
    /// quotas outside of the division.
    #[must_use]
    pub fn divisible(&self) -> Amounts {
        let mut total = self.total.clone();
        for name in [SYSTEM_QUOTA, DEFAULT_QUOTA] {
            if let Some(quota) = self.ids.get(name).and_then(|id| self.get(*id)) {
                // Not the sums of the subtree, which may be stale. Zeros are left out, because they would
                // count as a resource that the cluster has none of.
                let used = masked(&quota.own.used, &quota.spec.max);
                for (resource, amount) in used.iter().filter(|(_, amount)| *amount != 0) {
                    total.add(resource, amount.saturating_neg());
                }
            }
        }
        total
    }

    /// Adds `amounts` of a pod to quota `name`, or subtracts them if `back` is true.
    pub fn charge(
        &mut self,
        name: &str,
        side: ChargeKind,
        amounts: &Amounts,
        non_preemptible: bool,
        back: bool,
    ) {
        let Some(id) = self.ids.get(name).copied() else {
            return;
        };
        self.changes += 1;
        let signed: Amounts = amounts
            .iter()
            .map(|(id, n)| (id, if back { n.saturating_neg() } else { n }))
            .collect();
        let Some(quota) = &mut self.quotas[id] else {
            return;
        };
        let delta = masked(&signed, &quota.spec.max);
        quota.own.side(side, false).add_all(&signed);
        if non_preemptible {
            quota.own.side(side, true).add_all(&signed);
        }
        if self.stale {
            return;
        }
        if non_preemptible {
            self.each_up(id, |quota| quota.sums.side(side, true).add_all(&delta));
        }
        match side {
            ChargeKind::Request => self.pass_request(id, delta),
            ChargeKind::Used => {
                self.each_up(id, |quota| quota.sums.used.add_all(&delta));
                if self.options.guarantee_used {
                    let delta = delta.iter().filter(|(id, _)| self.keys.contains(id));
                    let delta = delta.collect();
                    self.pass_allocated(id, delta);
                }
            }
        }
    }

    fn get(&self, id: Id) -> Option<&Quota> {
        self.quotas.get(id).and_then(Option::as_ref)
    }

    fn get_mut(&mut self, id: Id) -> Option<&mut Quota> {
        self.quotas.get_mut(id).and_then(Option::as_mut)
    }

    fn each_up(&mut self, from: Id, change: impl Fn(&mut Quota)) {
        let mut next = Some(from);
        while let Some(quota) = next.and_then(|id| self.get_mut(id)) {
            change(quota);
            next = quota.parent;
        }
    }

    fn pass_request(&mut self, from: Id, mut delta: Amounts) {
        let mut next = Some(from);
        while let Some(id) = next {
            let Some(quota) = self.get_mut(id) else {
                return;
            };
            next = quota.parent;
            if id == ROOT {
                quota.sums.request.add_all(&delta);
                return;
            }
            let before = quota.limited_request();
            quota.child_request.add_all(&delta);
            quota.demand();
            delta = quota.limited_request();
            delta.sub_all(&before);
            if is_zero(&delta) {
                return;
            }
            self.disturb(id, next);
        }
    }

    fn pass_allocated(&mut self, from: Id, mut delta: Amounts) {
        let mut next = Some(from);
        while let Some(id) = next {
            let Some(quota) = self.get_mut(id) else {
                return;
            };
            next = quota.parent;
            quota.allocated.add_all(&delta);
            if id == ROOT {
                return;
            }
            let before = std::mem::take(&mut quota.guaranteed);
            quota.guaranteed = quota.allocated.clone();
            quota.guaranteed.max_all(&quota.spec.min);
            delta = quota.guaranteed.clone();
            delta.sub_all(&before);
            if is_zero(&delta) {
                return;
            }
            self.disturb(id, next);
        }
    }

    /// Marks the division at `parent` as outdated because the claim of `child` changed.
    fn disturb(&mut self, child: Id, parent: Option<Id>) {
        if self.get(child).is_some_and(Quota::is_outside) {
            return;
        }
        if let Some(parent) = parent.and_then(|id| self.get_mut(id)) {
            parent.divided = None;
        }
    }

    /// Returns a quota with its sums as of the last [`QuotaTree::rebuild`] and its runtime as of the last
    /// [`QuotaTree::refresh`].
    #[must_use]
    pub fn quota(&self, name: &str) -> Option<&Quota> {
        self.get(*self.ids.get(name)?)
    }

    /// Returns the parent of `name` as of the last [`QuotaTree::rebuild`]; `None` for the root and for a quota
    /// whose parent does not exist.
    #[must_use]
    pub fn parent(&self, name: &str) -> Option<&Quota> {
        let id = *self.ids.get(name)?;
        self.get(self.get(id)?.parent?)
    }
}

/// Returns the `amounts` of the resources that `keys` lists.
#[must_use]
pub fn masked(amounts: &Amounts, keys: &Amounts) -> Amounts {
    amounts
        .iter()
        .filter(|(id, _)| keys.contains(*id))
        .collect()
}

/// Returns true if every amount is zero.
#[must_use]
pub fn is_zero(amounts: &Amounts) -> bool {
    amounts.iter().all(|(_, amount)| amount == 0)
}

/// Returns the resources whose amount in `used` exceeds that in `limit`. Resources that `limit` does not list
/// are unlimited.
#[must_use]
pub fn exceeded(used: &Amounts, limit: &Amounts) -> Vec<ResourceId> {
    limit
        .iter()
        .filter(|(id, amount)| used.contains(*id) && used.get(*id) > *amount)
        .map(|(id, _)| id)
        .collect()
}
