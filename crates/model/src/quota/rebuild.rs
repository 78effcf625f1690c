//! Rebuilds the quota tree and its sums after quota objects changed.

use super::{Id, Quota, QuotaTree, ROOT, Sums};
use crate::resources::Amounts;
use koord_api::quota::ROOT_QUOTA;

impl QuotaTree {
    /// Rebuilds parents, children and sums if quotas were added, removed or changed.
    pub fn rebuild(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let parents = self.parents();
        let mut order: Vec<Id> = (0..self.quotas.len())
            .filter(|id| self.get(*id).is_some())
            .collect();
        order.sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
        self.keys = order
            .iter()
            .filter_map(|id| self.get(*id))
            .filter(|quota| *quota.name != *ROOT_QUOTA && !quota.is_outside())
            .flat_map(|quota| quota.spec.max.iter().map(|(id, _)| id))
            .collect();
        for id in &order {
            if let Some(quota) = self.get_mut(*id) {
                quota.parent = parents[*id];
                quota.children.clear();
                quota.divided = None;
                quota.sums = Sums::default();
                quota.child_request = Amounts::new();
                quota.allocated = Amounts::new();
                quota.guaranteed = Amounts::new();
                quota.scaled_min = quota.spec.min.clone();
                quota.runtime = Amounts::new();
            }
        }
        // In order of name, so that children are sorted, too.
        for id in &order {
            if let Some(parent) = parents[*id].and_then(|parent| self.get_mut(parent)) {
                parent.children.push(*id);
            }
        }
        for id in self.bottom_up(&order) {
            self.sum_up(id);
        }
    }

    fn name(&self, id: Id) -> &str {
        self.get(id).map_or("", |quota| &quota.name)
    }

    /// Returns the parent of each id. A quota in a cycle has none, and so has one whose parent does not
    /// exist.
    fn parents(&self) -> Vec<Option<Id>> {
        let named = |quota: &Quota| {
            if quota.spec.parent.is_empty() || quota.is_outside() {
                return Some(ROOT);
            }
            self.ids.get(quota.spec.parent.as_str()).copied()
        };
        let mut parents: Vec<Option<Id>> = (0..self.quotas.len())
            .map(|id| self.get(id).filter(|_| id != ROOT).and_then(named))
            .collect();
        // The quotas outside of the division have no children.
        for parent in &mut parents {
            *parent = parent.filter(|id| !self.get(*id).is_some_and(Quota::is_outside));
        }
        // 0: not visited; 1: on the current walk; 2: done.
        let mut visited = vec![0_u8; parents.len()];
        for start in 0..parents.len() {
            let mut walk = Vec::new();
            let mut next = Some(start);
            while let Some(id) = next.filter(|id| visited[*id] == 0) {
                visited[id] = 1;
                walk.push(id);
                next = parents[id];
            }
            if let Some(closing) = next.filter(|id| visited[*id] == 1) {
                let from = walk.iter().position(|id| *id == closing).unwrap_or(0);
                for id in &walk[from..] {
                    parents[*id] = None;
                }
            }
            for id in walk {
                visited[id] = 2;
            }
        }
        parents
    }

    /// Returns all ids, children before parents.
    fn bottom_up(&self, ids: &[Id]) -> Vec<Id> {
        let tops = ids
            .iter()
            .filter(|id| self.get(**id).is_some_and(|quota| quota.parent.is_none()));
        let mut out: Vec<Id> = tops.copied().collect();
        let mut index = 0;
        while index < out.len() {
            if let Some(quota) = self.get(out[index]) {
                out.extend_from_slice(&quota.children);
            }
            index += 1;
        }
        out.reverse();
        out
    }

    /// Recomputes the sums of one quota from its own pods and its children.
    fn sum_up(&mut self, id: Id) {
        let Some(quota) = self.get(id) else { return };
        let mut sums = quota.own();
        let mut allocated = Amounts::new();
        if self.options.guarantee_used {
            let used = sums.used.iter().filter(|(id, _)| self.keys.contains(id));
            allocated = used.collect();
        }
        for child in quota.children.iter().filter_map(|child| self.get(*child)) {
            sums.request.add_all(&child.limited_request());
            sums.used.add_all(&child.sums.used);
            sums.non_preemptible_request
                .add_all(&child.sums.non_preemptible_request);
            sums.non_preemptible_used
                .add_all(&child.sums.non_preemptible_used);
            allocated.add_all(&child.guaranteed);
        }
        let guarantee_used = self.options.guarantee_used;
        let Some(quota) = self.get_mut(id) else {
            return;
        };
        quota.sums = sums;
        if guarantee_used {
            quota.allocated = allocated;
        }
        if id == ROOT {
            return;
        }
        quota.child_request = quota.sums.request.clone();
        quota.demand();
        if guarantee_used {
            quota.guaranteed = quota.allocated.clone();
            quota.guaranteed.max_all(&quota.spec.min);
        }
    }
}
