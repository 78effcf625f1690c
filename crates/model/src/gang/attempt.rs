//! The scheduling attempt of a gang: from its first member to all or nothing.

use super::{ALL_TRIED, Attempt, Gang, Gangs, MemberStage, Moves, Permission};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::sync::Arc;

impl Gangs {
    /// Records that a member has a node and returns whether it may bind.
    pub fn permit(&mut self, uid: &str, moves: &mut Moves) -> Permission {
        let Some((uid, id)) = self.gang_by_pod.get_key_value(uid) else {
            return Permission::NotFound;
        };
        let (uid, id) = (uid.clone(), id.clone());
        let number = self.attempt.as_ref().map_or(0, |a| a.number);
        let Some(gang) = self.gangs.get_mut(&id) else {
            return Permission::NotFound;
        };
        gang.set(&uid, MemberStage::Held(number));
        let (group, wait) = (gang.group.clone(), gang.spec.as_ref().map(|spec| spec.wait));
        self.changed.insert(id);
        let Some(members) = self.groups.get(&group) else {
            return Permission::NotFound;
        };
        let gangs = members.gangs.clone();
        if !gangs.iter().all(|gang| self.may_bind(gang)) {
            if self.attempt.as_ref().is_none_or(|a| a.group != group) {
                self.finish_attempt(moves);
                self.start_attempt(&group, &uid);
                let number = self.attempt.as_ref().map_or(0, |a| a.number);
                if let Some(gang) = self
                    .gang_by_pod
                    .get(&uid)
                    .and_then(|id| self.gangs.get_mut(id))
                {
                    gang.set(&uid, MemberStage::Held(number));
                }
            }
            return Permission::Wait(wait.unwrap_or_default());
        }
        let binding = self.groups.get(&group).is_none_or(|g| g.binding.is_empty());
        let mut together: FxHashSet<Arc<str>> = FxHashSet::default();
        for id in &gangs {
            let Some(gang) = self.gangs.get_mut(id) else {
                continue;
            };
            if binding {
                together.extend(gang.held.values().chain(gang.binding.values()).cloned());
            }
            for held_uid in std::mem::take(&mut gang.held).into_values() {
                gang.set(&held_uid, MemberStage::Binding);
                if held_uid != uid {
                    moves.allow.push(held_uid);
                }
            }
        }
        self.end_attempt(&group);
        if let Some(members) = self.groups.get_mut(&group) {
            if binding {
                members.binding = together;
            }
            members.representative = None;
            members.failure = None;
            members.short = false;
        }
        self.select_representative(&group, None, false, moves);
        Permission::Go
    }

    /// Records that no node fits a member, for the reason `fit`. Returns the message for the members that are
    /// therefore not tried, if there are any.
    pub fn failed(&mut self, uid: &str, fit: &str, moves: &mut Moves) -> Option<Arc<str>> {
        let (uid, id) = self.gang_by_pod.get_key_value(uid)?;
        let (uid, id) = (uid.clone(), id.clone());
        let gang = self.gangs.get(&id)?;
        let (group, strict, key) = (
            gang.group.clone(),
            gang.strict(),
            gang.members.get(&uid)?.key.clone(),
        );
        if self.is_independent(&id) {
            return None;
        }
        if self.check_members(&group).is_err() {
            let ended_attempt = self.end_attempt(&group);
            self.reject_held(&group, fit, ended_attempt, moves);
            self.select_representative(&group, None, false, moves);
            return None;
        }
        let waiting: usize = self.gangs_of(&group).map(Gang::waiting).sum();
        let message: Arc<str> = format!(
            "GangGroup {group:?} gets rejected due to member Pod {key:?} is unschedulable with \
             reason {fit:?}, alreadyWaitForBound: {waiting}",
            group = &*group,
            key = &*key,
        )
        .into();
        if !strict {
            if self.attempt.as_ref().is_none_or(|a| a.group != group) {
                self.finish_attempt(moves);
                self.start_attempt(&group, &uid);
            }
            let members = self.groups.get_mut(&group)?;
            members.failure = Some(message);
            members.representative.get_or_insert(uid);
            return None;
        }
        let (ended_attempt, tried) = match self.attempt.take_if(|a| a.group == group) {
            Some(attempt) => (attempt.number, attempt.queued),
            None => (0, FxHashSet::default()),
        };
        for gang in self.gangs_of(&group) {
            let pending = gang.pending.values();
            moves.skipped.extend(
                pending
                    .filter(|other| **other != uid && !tried.contains(*other))
                    .cloned(),
            );
        }
        let members = self.groups.get_mut(&group)?;
        members.binding.clear();
        members.failure = Some(message.clone());
        members.short = false;
        let before = members.representative.replace(uid.clone());
        moves.regate.extend(before.filter(|before| *before != uid));
        self.reject_held(&group, &message, ended_attempt, moves);
        Some(message)
    }

    /// Records that a member released its resources: its wait or its binding failed, or another plugin
    /// rejected it after it was reserved.
    pub fn released(&mut self, uid: &str, moves: &mut Moves) {
        let Some((uid, id)) = self.gang_by_pod.get_key_value(uid) else {
            return;
        };
        let (uid, id) = (uid.clone(), id.clone());
        let independent = self.is_independent(&id);
        let Some(gang) = self.gangs.get_mut(&id) else {
            return;
        };
        let Some(member) = gang.members.get(&uid) else {
            return;
        };
        let (group, strict, unplaced) = (gang.group.clone(), gang.strict(), member.unplaced());
        let attempted = self.attempt.as_ref().is_some_and(|a| a.group == group);
        match member.stage {
            MemberStage::Held(_) | MemberStage::Binding => {}
            // A pending member was released with its gang already, except during an attempt, where another
            // plugin rejected it.
            MemberStage::Pending if attempted => {}
            _ => return,
        }
        let name = member.key.split('/').next_back().unwrap_or_default();
        let reason = format!("Gang {id:?} gets rejected due to Pod {name:?} in Unreserve");
        gang.set(&uid, unplaced);
        self.changed.insert(id.clone());
        self.clear_binding(&group);
        let comes_back = unplaced == MemberStage::Pending;
        if !independent && strict {
            let ended_attempt = self.end_attempt(&group);
            if let Some(members) = self.groups.get_mut(&group) {
                members.failure = Some(reason.as_str().into());
                if comes_back {
                    let before = members.representative.replace(uid.clone());
                    moves.regate.extend(before.filter(|before| *before != uid));
                }
            }
            self.reject_held(&group, &reason, ended_attempt, moves);
        }
        if !comes_back {
            // It left the queue: another member represents the rest, if they suffice.
            self.select_representative(&group, None, false, moves);
            self.select_other_representatives(&id, &group, false, moves);
        }
    }

    /// Records that a member is bound.
    pub fn bound(&mut self, uid: &str, moves: &mut Moves) {
        let Some((uid, id)) = self.gang_by_pod.get_key_value(uid) else {
            return;
        };
        let (uid, id) = (uid.clone(), id.clone());
        let Some(gang) = self.gangs.get_mut(&id) else {
            return;
        };
        if gang
            .members
            .get(&uid)
            .is_none_or(|m| m.stage == MemberStage::Bound)
        {
            return;
        }
        gang.set(&uid, MemberStage::Bound);
        let group = gang.group.clone();
        self.changed.insert(id);
        self.record_bound(&group, &uid, moves);
        self.select_representative(&group, None, false, moves);
    }

    /// Returns the member to try next; `None` if no attempt is in progress, or if this call ends it.
    pub fn next(&mut self, moves: &mut Moves) -> Option<Arc<str>> {
        let group = self.attempt.as_ref()?.group.clone();
        while let Some(uid) = self.attempt.as_mut()?.remaining.pop_front() {
            let pending = self.gang_by_pod.get(&uid).is_some_and(|id| {
                self.gangs.get(id).is_some_and(|gang| {
                    gang.group == group
                        && gang
                            .members
                            .get(&uid)
                            .is_some_and(|m| m.stage == MemberStage::Pending)
                })
            });
            let attempt = self.attempt.as_mut()?;
            if pending && attempt.queued.insert(uid.clone()) {
                attempt.tried.push(uid.clone());
                return Some(uid);
            }
        }
        self.finish_attempt(moves);
        None
    }

    /// Ends the current attempt, if any: every member was tried, and the gang may still not bind.
    pub(super) fn finish_attempt(&mut self, moves: &mut Moves) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        let group = attempt.group;
        // A member that failed for its own reasons returns to the queue by itself, and brings the others.
        let comes_back = attempt.tried.iter().find(|uid| {
            let gang = self.gang_by_pod.get(*uid).and_then(|id| self.gangs.get(id));
            let member = gang.and_then(|gang| gang.members.get(*uid));
            member.is_some_and(|member| member.stage == MemberStage::Pending)
        });
        let comes_back = comes_back.cloned();
        if self.gangs_of(&group).any(Gang::strict) {
            self.reject_held(&group, ALL_TRIED, attempt.number, moves);
        }
        if let Some(members) = self.groups.get_mut(&group) {
            members.short = comes_back.is_none();
            members.representative = comes_back.or_else(|| attempt.tried.first().cloned());
        }
    }

    /// Starts an attempt with `first`, which is being tried already.
    pub(super) fn start_attempt(&mut self, group: &Arc<str>, first: &Arc<str>) {
        self.numbers += 1;
        let mut remaining = VecDeque::new();
        for gang in self.gangs_of(group).filter(|gang| gang.group == *group) {
            remaining.extend(gang.pending.values().filter(|uid| *uid != first).cloned());
        }
        self.attempt = Some(Attempt {
            number: self.numbers,
            group: group.clone(),
            remaining,
            tried: vec![first.clone()],
            queued: FxHashSet::from_iter([first.clone()]),
        });
        if let Some(members) = self.groups.get_mut(group) {
            members.representative = None;
        }
    }

    /// Ends the attempt of `group` and returns its number, 0 if there is none.
    pub(super) fn end_attempt(&mut self, group: &str) -> u64 {
        let ended = self.attempt.take_if(|attempt| *attempt.group == *group);
        ended.map_or(0, |attempt| attempt.number)
    }

    /// Makes every waiting member of the group release its resources. Members that the attempt with number
    /// `ended_attempt` reserved are rolled back; 0 means that no attempt ended.
    pub(super) fn reject_held(
        &mut self,
        group: &str,
        reason: &str,
        ended_attempt: u64,
        moves: &mut Moves,
    ) {
        let Some(members) = self.groups.get(group) else {
            return;
        };
        let reason: Arc<str> = reason.into();
        for id in &members.gangs {
            let Some(gang) = self.gangs.get_mut(id) else {
                continue;
            };
            if gang.held.is_empty() {
                continue;
            }
            self.changed.insert(id.clone());
            let held_uids: Vec<Arc<str>> = gang.held.values().cloned().collect();
            for uid in held_uids {
                let Some(member) = gang.members.get(&uid) else {
                    continue;
                };
                let (stage, unplaced) = (member.stage, member.unplaced());
                gang.set(&uid, unplaced);
                let list = if stage == MemberStage::Held(ended_attempt) && ended_attempt != 0 {
                    &mut moves.rollback
                } else {
                    &mut moves.reject
                };
                list.push((uid, reason.clone()));
            }
        }
    }

    /// Returns true if an attempt is in progress.
    #[must_use]
    pub fn is_trying(&self) -> bool {
        self.attempt.is_some()
    }
}
