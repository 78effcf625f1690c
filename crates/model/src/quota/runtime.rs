//! Runtime quota: divided from the root down, on demand.

use super::{Id, Quota, QuotaTree, ROOT, ShareClaim, divide, scale_min};
use crate::resources::{Amounts, ResourceId};
use std::collections::BTreeMap;

impl QuotaTree {
    /// Returns true if the quota gets resources by the division: it is connected to the root, or is one of
    /// those outside of the tree. A quota whose parent is missing, or that is its own ancestor, gets none.
    #[must_use]
    pub fn is_connected(&self, name: &str) -> bool {
        let Some(mut id) = self.ids.get(name).copied() else {
            return false;
        };
        if self.get(id).is_some_and(Quota::is_outside) {
            return true;
        }
        while let Some(parent) = self.get(id).and_then(|quota| quota.parent) {
            id = parent;
        }
        id == ROOT
    }

    /// Returns a quota with its sums and its runtime, which is updated first.
    pub fn fresh(&mut self, name: &str) -> Option<&Quota> {
        self.refresh(name);
        self.quota(name)
    }

    /// Updates the runtime quota of the quota and its ancestors, where something changed.
    ///
    /// The root and the quotas outside of the division have no runtime: only their maximum limits them.
    pub fn refresh(&mut self, name: &str) {
        self.rebuild();
        if self.is_fresh(name) {
            return;
        }
        let changes = self.changes;
        if let Some(quota) = self.ids.get(name).copied().and_then(|id| self.get_mut(id)) {
            quota.refreshed = Some(changes);
        }
        let path = self.path(name);
        let Some(top) = path.last().copied() else {
            return;
        };
        let mut total = if top == ROOT {
            self.divisible()
        } else {
            // Not connected to the root: its runtime is its minimum.
            let keys = self.get(top).map(keys).unwrap_or_default();
            self.divide_among(&[top], &keys, &Amounts::new());
            self.shared(top)
        };
        for pair in path.windows(2).rev() {
            let (child, parent) = (pair[0], pair[1]);
            let divided = self.get(parent).and_then(|quota| quota.divided.as_ref());
            if divided != Some(&total) {
                self.share_out(parent, total);
            }
            total = self.shared(child);
        }
    }

    /// Returns true if nothing changed in the tree since [`QuotaTree::refresh`] of the quota: the runtime in
    /// [`QuotaTree::quota`] of it and of its ancestors is current.
    #[must_use]
    pub fn is_fresh(&self, name: &str) -> bool {
        let quota = self.quota(name);
        !self.stale && quota.is_none_or(|quota| quota.refreshed == Some(self.changes))
    }

    /// Returns the quota and its ancestors, the topmost last. Empty if it has no runtime.
    fn path(&self, name: &str) -> Vec<Id> {
        let mut path = Vec::new();
        let mut next = self.ids.get(name).copied();
        while let Some((id, quota)) = next.and_then(|id| Some((id, self.get(id)?))) {
            if path.is_empty() && (id == ROOT || quota.is_outside()) {
                break;
            }
            path.push(id);
            next = quota.parent;
        }
        path
    }

    /// Returns the runtime quota of the last division.
    fn shared(&self, id: Id) -> Amounts {
        self.get(id)
            .map(|quota| quota.runtime.clone())
            .unwrap_or_default()
    }

    /// Divides `total` among the children of `parent` that take part in the division.
    fn share_out(&mut self, parent: Id, total: Amounts) {
        let Some(quota) = self.get(parent) else {
            return;
        };
        let takes_part = |id: &&Id| self.get(**id).is_some_and(|child| !child.is_outside());
        let children: Vec<Id> = quota.children.iter().filter(takes_part).copied().collect();
        let keys = if parent == ROOT {
            self.keys.iter().copied().collect()
        } else {
            keys(quota)
        };
        if self.options.scale_min {
            self.scale(&children, &total);
        }
        self.divide_among(&children, &keys, &total);
        if let Some(quota) = self.get_mut(parent) {
            quota.divided = Some(total);
            quota.version += 1;
        }
    }

    /// Scales the minimums of `children` down to the available amounts.
    fn scale(&mut self, children: &[Id], total: &Amounts) {
        let mut sums: BTreeMap<ResourceId, i128> = BTreeMap::new();
        for child in children.iter().filter_map(|id| self.get(*id)) {
            for (resource, min) in child.spec.min.iter() {
                *sums.entry(resource).or_default() += i128::from(min);
            }
        }
        // A resource that no node has ever listed does not count as short.
        sums.retain(|id, sum| total.contains(*id) && i128::from(total.get(*id)) < *sum);
        for id in children {
            let Some(child) = self.get_mut(*id) else {
                continue;
            };
            if sums.is_empty() && child.scaled_min == child.spec.min {
                continue;
            }
            child.scaled_min = child.spec.min.clone();
            for (resource, sum) in &sums {
                let min = child.spec.min.get(*resource);
                let scaled = scale_min(total.get(*resource), min, *sum);
                child.scaled_min.set(*resource, scaled);
            }
        }
    }

    /// Divides `total`, resource by resource, among `children`, which are in order of name.
    fn divide_among(&mut self, children: &[Id], keys: &[ResourceId], total: &Amounts) {
        let mut claims = Vec::with_capacity(children.len());
        for key in keys {
            claims.clear();
            claims.extend(children.iter().map(|id| {
                self.get(*id)
                    .map_or_else(ShareClaim::default, |child| ShareClaim {
                        request: child.limited(*key),
                        min: child.scaled_min.get(*key),
                        guaranteed: child.guaranteed.get(*key),
                        weight: child.spec.weight.get(*key),
                        lendable: child.spec.lendable,
                    })
            }));
            let shares = divide(total.get(*key), &claims);
            for (id, share) in children.iter().zip(shares) {
                if let Some(child) = self.get_mut(*id) {
                    child.runtime.set(*key, share);
                }
            }
        }
    }
}

/// Returns the resources that a quota's maximum lists.
fn keys(quota: &Quota) -> Vec<ResourceId> {
    quota.spec.max.iter().map(|(id, _)| id).collect()
}
