//! Elastic quotas: a tree of shares of the cluster, where siblings lend each other what they are
//! guaranteed and do not ask for.
//!
//! [`Tree`] holds what quotas may have ([`Spec`]) and what their pods ask for and use. Sums move up
//! the tree with every change, in O(depth). What a quota may use now is divided from the root down when
//! its owner asks for it ([`Tree::refresh`]), and only where something changed since; readers find it as
//! it was divided last. A [`Forest`] is several of them.

mod forest;
mod revoke;
mod runtime;
mod settle;
mod share;
#[cfg(test)]
mod tests;

pub use forest::Forest;
pub use revoke::{Holding, revoke};
pub use share::{Claim, divide, scale_min};

use crate::resources::{Amounts, ResourceId};
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a tree does beyond the basics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Whether guaranteed amounts shrink when the siblings' together exceed what there is.
    pub scale_min: bool,
    /// Whether a quota keeps what it uses beyond what it is guaranteed. Then nothing is lent.
    pub guarantee_used: bool,
}

/// What a quota may have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spec {
    /// The parent's name; empty means the root.
    pub parent: String,
    /// Whether it is meant to have children. Of no effect here.
    pub is_parent: bool,
    /// Whether others may use what it is guaranteed and does not ask for.
    pub lendable: bool,
    /// What it is guaranteed.
    pub min: Amounts,
    /// The most it may use. Only the resources listed here are accounted.
    pub max: Amounts,
    /// Its part, per resource, of what nobody is guaranteed.
    pub weight: Amounts,
}

/// Sums over pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sums {
    /// Requests of all pods, placed or not.
    pub request: Amounts,
    /// Of these, requests of pods that must not be preempted.
    pub non_preemptible_request: Amounts,
    /// Requests of placed pods.
    pub used: Amounts,
    /// Of these, of pods that must not be preempted.
    pub non_preemptible_used: Amounts,
}

impl Sums {
    fn side(&mut self, side: Side, non_preemptible: bool) -> &mut Amounts {
        match (side, non_preemptible) {
            (Side::Request, false) => &mut self.request,
            (Side::Request, true) => &mut self.non_preemptible_request,
            (Side::Used, false) => &mut self.used,
            (Side::Used, true) => &mut self.non_preemptible_used,
        }
    }
}

/// One quota.
#[derive(Debug, Clone, Default)]
pub struct Quota {
    /// Its name.
    pub name: Arc<str>,
    /// What it may have.
    pub spec: Spec,
    /// Its own pods, every resource they name.
    own: Sums,
    /// The subtree, with what children ask for limited to their maximum.
    pub sums: Sums,
    /// What children, so limited, and own pods ask for.
    pub child_request: Amounts,
    /// What the children keep, and own pods use. Empty unless use is guaranteed.
    pub allocated: Amounts,
    /// The larger of that and the minimum. Empty unless use is guaranteed.
    pub guaranteed: Amounts,
    /// The minimum, scaled.
    pub scaled_min: Amounts,
    /// What it may use, as of the last [`Tree::refresh`].
    pub runtime: Amounts,
    /// How often its children's shares were divided.
    pub version: u64,
    parent: Option<Id>,
    children: Vec<Id>,
    /// What was divided among the children last; `None` when something changed since.
    divided: Option<Amounts>,
    /// How often the tree had changed when this was refreshed last.
    refreshed: Option<u64>,
}

impl Quota {
    /// Its own pods' sums, limited to the accounted resources.
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

    /// What it passes on to its parent: its request, at most its maximum.
    #[must_use]
    pub fn limited_request(&self) -> Amounts {
        let ids = self.sums.request.iter().map(|(id, _)| id);
        ids.map(|id| (id, self.limited(id))).collect()
    }

    fn limited(&self, id: ResourceId) -> i64 {
        let asked = self.sums.request.get(id);
        if self.spec.max.contains(id) {
            asked.min(self.spec.max.get(id))
        } else {
            asked
        }
    }

    /// Recomputes the request from [`Quota::child_request`].
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

/// What is changed by [`Tree::charge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What pods ask for.
    Request,
    /// What placed pods use.
    Used,
}

type Id = usize;
const ROOT: Id = 0;

/// Whether the quota takes no part in the division: what it uses is taken off the total first.
fn is_outside(name: &str) -> bool {
    matches!(name, SYSTEM_QUOTA | DEFAULT_QUOTA)
}

fn is_built_in(name: &str) -> bool {
    name == ROOT_QUOTA || is_outside(name)
}

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct Tree {
    options: Options,
    quotas: Vec<Option<Quota>>,
    ids: HashMap<Arc<str>, Id>,
    free: Vec<Id>,
    total: Amounts,
    /// The resources that any quota's maximum names.
    keys: BTreeSet<ResourceId>,
    /// Parents have to be looked up again.
    stale: bool,
    /// How often anything changed that a share depends on.
    changes: u64,
}

impl Tree {
    /// A tree of the three built-in quotas.
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
        let root = Spec {
            is_parent: true,
            ..Spec::default()
        };
        let outside = Spec {
            lendable: true,
            ..Spec::default()
        };
        tree.set(ROOT_QUOTA, root);
        tree.set(SYSTEM_QUOTA, outside.clone());
        tree.set(DEFAULT_QUOTA, outside);
        tree
    }

    /// Adds a quota, or changes what it may have. Its pods stay.
    pub fn set(&mut self, name: &str, mut spec: Spec) {
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

    /// Takes a quota out, with what is charged to it. Its children have no parent until it returns.
    /// The built-in quotas stay.
    pub fn remove(&mut self, name: &str) {
        self.take(name);
    }

    /// The same; returns what was charged to it.
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

    /// Charges quota `name` with what was charged to it in another tree.
    fn give(&mut self, name: &str, own: Sums) {
        let id = self.ids.get(name).copied();
        if let Some(quota) = id.and_then(|id| self.get_mut(id)) {
            quota.own = own;
            self.changes += 1;
            self.stale = true;
        }
    }

    /// Whether there is a quota `name`.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.ids.contains_key(name)
    }

    /// The name of a quota, shared; `None` when there is no such quota.
    #[must_use]
    pub fn interned(&self, name: &str) -> Option<Arc<str>> {
        self.ids.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// The names of all quotas, in order.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self.ids.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Sets what the cluster has.
    pub fn set_total(&mut self, total: Amounts) {
        self.total = total;
        self.changes += 1;
    }

    /// What the cluster has.
    #[must_use]
    pub fn total(&self) -> &Amounts {
        &self.total
    }

    /// What is divided among the quotas below the root: the total less what the quotas outside the
    /// division use.
    #[must_use]
    pub fn divisible(&self) -> Amounts {
        let mut total = self.total.clone();
        for name in [SYSTEM_QUOTA, DEFAULT_QUOTA] {
            if let Some(quota) = self.ids.get(name).and_then(|id| self.get(*id)) {
                // Not the subtree's sums, which may be due to be recomputed. No zeros, which would
                // make it a resource that the cluster has none of.
                let used = masked(&quota.own.used, &quota.spec.max);
                for (resource, amount) in used.iter().filter(|(_, amount)| *amount != 0) {
                    total.add(resource, amount.saturating_neg());
                }
            }
        }
        total
    }

    /// Books `amounts` of a pod on quota `name`, or with `back` takes them off again.
    pub fn charge(
        &mut self,
        name: &str,
        side: Side,
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
            Side::Request => self.pass_request(id, delta),
            Side::Used => {
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

    /// Notes that the claim of `child` changed.
    fn disturb(&mut self, child: Id, parent: Option<Id>) {
        if self.get(child).is_some_and(Quota::is_outside) {
            return;
        }
        if let Some(parent) = parent.and_then(|id| self.get_mut(id)) {
            parent.divided = None;
        }
    }

    /// A quota with its sums as of the last [`Tree::settle`], its runtime as of the last
    /// [`Tree::refresh`].
    #[must_use]
    pub fn quota(&self, name: &str) -> Option<&Quota> {
        self.get(*self.ids.get(name)?)
    }

    /// The parent of `name` as of the last [`Tree::settle`]: the root has none, and so has a quota whose
    /// parent does not exist.
    #[must_use]
    pub fn parent(&self, name: &str) -> Option<&Quota> {
        let id = *self.ids.get(name)?;
        self.get(self.get(id)?.parent?)
    }
}

/// `amounts` of the resources that `keys` lists.
#[must_use]
pub fn masked(amounts: &Amounts, keys: &Amounts) -> Amounts {
    amounts
        .iter()
        .filter(|(id, _)| keys.contains(*id))
        .collect()
}

/// Whether every amount is zero.
#[must_use]
pub fn is_zero(amounts: &Amounts) -> bool {
    amounts.iter().all(|(_, amount)| amount == 0)
}

/// The resources of which `used` has more than `limit` says. What `limit` does not list is not
/// limited.
#[must_use]
pub fn exceeded(used: &Amounts, limit: &Amounts) -> Vec<ResourceId> {
    limit
        .iter()
        .filter(|(id, amount)| used.contains(*id) && used.get(*id) > *amount)
        .map(|(id, _)| id)
        .collect()
}
