//! What quotas may use now: divided from the root down, on demand.

use super::{Claim, Id, Quota, ROOT, Tree, divide, scale_min};
use crate::resources::{Amounts, ResourceId};

impl Tree {
    /// A quota with its sums and what it may use now.
    ///
    /// The root and the quotas outside the division have no runtime: nothing but their maximum
    /// limits them.
    pub fn runtime(&mut self, name: &str) -> Option<&Quota> {
        self.settle();
        let id = *self.ids.get(name)?;
        if id == ROOT || self.get(id)?.is_outside() {
            return self.get(id);
        }
        let mut path = vec![id];
        while let Some(parent) = self.get(path[path.len() - 1]).and_then(|q| q.parent) {
            path.push(parent);
        }
        let top = path[path.len() - 1];
        let mut total = if top == ROOT {
            self.divisible()
        } else {
            // Nobody divides anything for it: it has what it is guaranteed.
            let quota = self.get_mut(top)?;
            let alone = [(top, quota.limited_request())];
            let keys: Vec<ResourceId> = quota.spec.max.iter().map(|(id, _)| id).collect();
            let runtime = self.divide_one(&keys, &Amounts::new(), &alone).pop()?;
            let quota = self.get_mut(top)?;
            quota.runtime.clone_from(&runtime);
            runtime
        };
        for pair in path.windows(2).rev() {
            let (child, parent) = (pair[0], pair[1]);
            if self.get(parent)?.divided.as_ref() != Some(&total) {
                self.share_out(parent, total);
            }
            total = self.get(child)?.runtime.clone();
        }
        self.get(id)
    }

    /// Divides `total` among the children of `parent`.
    fn share_out(&mut self, parent: Id, total: Amounts) {
        let Some(quota) = self.get(parent) else {
            return;
        };
        let children: Vec<(Id, Amounts)> = quota
            .children
            .iter()
            .filter_map(|id| Some((*id, self.get(*id)?)))
            .filter(|(_, child)| !child.is_outside())
            .map(|(id, child)| (id, child.limited_request()))
            .collect();
        let keys: Vec<ResourceId> = if parent == ROOT {
            self.keys.iter().copied().collect()
        } else {
            quota.spec.max.iter().map(|(id, _)| id).collect()
        };
        if self.options.scale_min {
            self.scale(&total, &children);
        }
        let runtimes = self.divide_one(&keys, &total, &children);
        for ((id, _), runtime) in children.iter().zip(runtimes) {
            if let Some(child) = self.get_mut(*id) {
                child.runtime = runtime;
            }
        }
        if let Some(quota) = self.get_mut(parent) {
            quota.divided = Some(total);
            quota.version += 1;
        }
    }

    fn scale(&mut self, total: &Amounts, children: &[(Id, Amounts)]) {
        let mut short = Vec::new();
        for (resource, amount) in total.iter() {
            let mins = children.iter().filter_map(|(id, _)| self.get(*id));
            let sum: i128 = mins
                .map(|child| i128::from(child.spec.min.get(resource)))
                .sum();
            if i128::from(amount) < sum {
                short.push((resource, amount, sum));
            }
        }
        for (id, _) in children {
            let Some(child) = self.get_mut(*id) else {
                continue;
            };
            child.scaled_min.clone_from(&child.spec.min);
            for (resource, amount, sum) in &short {
                let min = child.spec.min.get(*resource);
                child
                    .scaled_min
                    .set(*resource, scale_min(*amount, min, *sum));
            }
        }
    }

    /// The runtimes of `children`, whose limited requests are given, over the resources `keys`.
    fn divide_one(
        &self,
        keys: &[ResourceId],
        total: &Amounts,
        children: &[(Id, Amounts)],
    ) -> Vec<Amounts> {
        let mut runtimes = vec![Amounts::new(); children.len()];
        for key in keys {
            let claims: Vec<Claim> = children
                .iter()
                .map(|(id, request)| {
                    self.get(*id).map_or_else(Claim::default, |child| Claim {
                        request: request.get(*key),
                        min: child.scaled_min.get(*key),
                        guaranteed: child.guaranteed.get(*key),
                        weight: child.spec.weight.get(*key),
                        lendable: child.spec.lendable,
                    })
                })
                .collect();
            let shares = divide(total.get(*key), &claims);
            for (runtime, share) in runtimes.iter_mut().zip(shares) {
                runtime.set(*key, share);
            }
        }
        runtimes
    }
}
