//! Gang groups: their gangs, their progress, and the member that represents them in the queue.

use super::{Gangs, Moves};
use std::sync::Arc;

impl Gangs {
    /// Records that a member of the group was bound: late members need not wait for others any more.
    pub(super) fn record_bound(&mut self, group: &Arc<str>, uid: &Arc<str>, moves: &mut Moves) {
        self.clear_binding(group);
        let Some(members) = self.groups.get_mut(group) else {
            return;
        };
        if members.representative.as_ref() == Some(uid) {
            members.representative = None;
        }
        if std::mem::replace(&mut members.once, true) {
            return;
        }
        members.failure = None;
        self.admit_independent(group, moves);
    }

    /// Admits members that need not wait for others to the queue.
    pub(super) fn admit_independent(&self, group: &str, moves: &mut Moves) {
        for id in self.groups.get(group).iter().flat_map(|g| &g.gangs) {
            if self.is_independent(id)
                && let Some(gang) = self.gangs.get(id)
            {
                moves.regate.extend(gang.pending.values().cloned());
                moves.activate.extend(gang.pending.values().cloned());
            }
        }
    }

    /// Clears the set of members that were allowed to bind together once none of them is waiting.
    pub(super) fn clear_binding(&mut self, group: &str) {
        if self.gangs_of(group).all(|gang| gang.waiting() == 0)
            && let Some(members) = self.groups.get_mut(group)
        {
            members.binding.clear();
        }
    }

    /// Selects the member that represents the group in the queue, if needed; `prefer` is selected if it can be
    /// and the current one cannot stay. If `reactivate` is true, the member is queued even if it stays the same.
    pub(super) fn select_representative(
        &mut self,
        group: &Arc<str>,
        prefer: Option<&Arc<str>>,
        reactivate: bool,
        moves: &mut Moves,
    ) {
        if self.attempt.as_ref().is_some_and(|a| a.group == *group) {
            return;
        }
        let complete = self.check_members(group).is_ok();
        if !complete {
            self.withdraw_preemption(group, moves);
        }
        let Some(members) = self.groups.get(group) else {
            return;
        };
        let current = members.representative.clone();
        let stands = current
            .as_ref()
            .filter(|uid| self.can_represent(uid, group));
        let next = if !complete {
            None
        } else if let Some(stands) = stands {
            Some(stands.clone())
        } else {
            let preferred = prefer.filter(|uid| self.can_represent(uid, group)).cloned();
            preferred.or_else(|| {
                let gangs = members.gangs.iter().filter(|id| !self.is_independent(id));
                let gangs = gangs.filter_map(|id| self.gangs.get(id));
                gangs
                    .filter(|gang| gang.group == *group)
                    .find_map(|gang| gang.pending.values().next().cloned())
            })
        };
        let short = members.short && prefer.is_some();
        let moved = next != current;
        if let Some(members) = self.groups.get_mut(group) {
            members.representative.clone_from(&next);
            members.short &= !moved && !short && !reactivate;
        }
        if moved {
            moves.regate.extend(current);
        }
        if let Some(next) = next.filter(|_| moved || reactivate || short) {
            moves.regate.push(next.clone());
            moves.activate.push(next);
        }
    }

    /// Records that pods are preempted for the pending members of the group.
    pub fn promise(&mut self, group: &str) {
        if let Some(members) = self.groups.get_mut(group) {
            members.promised = true;
        }
    }

    /// Withdraws the preemption for the group, because it cannot start for now and other pods may use the
    /// resources.
    fn withdraw_preemption(&mut self, group: &str, moves: &mut Moves) {
        let members = self.groups.get_mut(group);
        if members.is_some_and(|members| std::mem::take(&mut members.promised)) {
            let waits = |uid: &&Arc<str>| {
                !self
                    .gang_by_pod
                    .get(*uid)
                    .is_some_and(|id| self.is_independent(id))
            };
            let waiting = self.pending_of(group).filter(waits);
            moves.withdraw.extend(waiting.cloned());
        }
    }

    /// Withdraws the preemption for members of groups that cannot start. To be called after all existing pods
    /// have been observed.
    pub fn review_promises(&mut self, moves: &mut Moves) {
        for group in std::mem::take(&mut self.doubtful) {
            self.promise(&group);
            if self.check_members(&group).is_err() {
                self.withdraw_preemption(&group, moves);
            }
        }
    }

    /// Selects the representatives of the groups other than `own` that list gang `id`, where needed, as
    /// [`Self::select_representative`] does.
    pub(super) fn select_other_representatives(
        &mut self,
        id: &str,
        own: &str,
        reactivate: bool,
        moves: &mut Moves,
    ) {
        let Some(listed) = self.listed.get(id) else {
            return;
        };
        for group in listed.clone() {
            if *group != *own {
                self.select_representative(&group, None, reactivate, moves);
            }
        }
    }

    /// Moves a gang to the group its description names. Returns the id of the group.
    pub(super) fn regroup(&mut self, id: &Arc<str>) -> Arc<str> {
        let Some(gang) = self.gangs.get_mut(id) else {
            return id.clone();
        };
        let gangs = match &gang.spec {
            Some(spec) => spec.group.clone(),
            None => vec![id.clone()],
        };
        let group: Arc<str> = if gangs.len() == 1 {
            id.clone()
        } else {
            gangs.join(",").into()
        };
        let old = std::mem::replace(&mut gang.group, group.clone());
        let began = gang.began;
        let members = self.groups.entry(group.clone()).or_default();
        if members.gangs.is_empty() && gangs.len() > 1 {
            for id in &gangs {
                let listed = self.listed.entry(id.clone()).or_default();
                listed.insert(group.clone());
            }
        }
        members.gangs = gangs;
        members.once |= began;
        if old != group {
            self.end_attempt(&old);
            self.drop_group(&old);
        }
        group
    }

    /// Removes a group that no gang belongs to any more.
    pub(super) fn drop_group(&mut self, group: &str) {
        if self.gangs_of(group).any(|gang| *gang.group == *group) {
            return;
        }
        self.end_attempt(group);
        for id in self.groups.remove(group).iter().flat_map(|g| &g.gangs) {
            if let Some(listed) = self.listed.get_mut(id) {
                listed.remove(group);
                if listed.is_empty() {
                    self.listed.remove(id);
                }
            }
        }
    }
}
