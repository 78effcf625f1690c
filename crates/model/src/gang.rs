//! Gangs: pods that start together or not at all.
//!
//! [`Gangs`] holds every gang with its members and says, for each thing that happens to a pod or a
//! PodGroup, what follows for the others ([`Moves`]). A gang is tried as one *attempt*: its first
//! member opens it, [`Gangs::next`] names the others one after the other, and it ends when the gang
//! may bind, when a member fails, or when no member is left. What an attempt held is given back in
//! time proportional to what it held.

mod reading;
pub mod spec;
pub mod status;
#[cfg(test)]
mod tests;

pub use reading::Blocked;
pub use spec::{Defaults, Ignored, Spec};

use koord_api::extension::{GangMatchPolicy, GangMode};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Why waiting members are given up when the last member has been tried.
const ALL_TRIED: &str = "all pending pods is already been attempted";
/// Why waiting members are given up when nothing describes their gang any more.
const GANG_GONE: &str = "gang is nil, may be already deleted";

/// A pod's phase, as far as PodGroups count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Any other.
    #[default]
    Pending,
    /// It runs.
    Running,
    /// It finished well.
    Succeeded,
    /// It failed.
    Failed,
}

/// A member as its object shows it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The pod's uid.
    pub uid: Arc<str>,
    /// `namespace/name` of the pod.
    pub key: Arc<str>,
    /// `namespace/name` of its gang.
    pub gang: Arc<str>,
    /// The gang as the pod describes it, where it may.
    pub own: Option<Spec>,
    /// Whether it has a node.
    pub bound: bool,
    /// Whether it could be placed: neither finished nor being deleted nor behind a scheduling gate.
    pub ready: bool,
    /// Its phase.
    pub phase: Phase,
    /// Its owners: sorted `namespace/name`, joined by commas.
    pub owners: String,
}

/// What follows for other pods, by uid.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Whether they may enter the queue is to be asked again.
    pub regate: Vec<Arc<str>>,
    /// To be tried again at once.
    pub activate: Vec<Arc<str>>,
    /// Waiting ones that may bind.
    pub allow: Vec<Arc<str>>,
    /// Waiting ones that must give back what they hold.
    pub reject: Vec<(Arc<str>, Arc<str>)>,
    /// As `reject`, for what the present attempt booked.
    pub rollback: Vec<(Arc<str>, Arc<str>)>,
    /// Ones that will not be tried in this attempt.
    pub skipped: Vec<Arc<str>>,
}

/// Whether a placed member may bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Now, with those in [`Moves::allow`].
    Go,
    /// When the others are placed, at most after this time.
    Wait(Duration),
    /// No gang is known for it.
    NotFound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Without a node and not to be placed.
    Idle,
    /// To be placed.
    Pending,
    /// Placed, and kept until the gang may bind; by the attempt with this number.
    Held(u64),
    /// Placed, and on its way to be bound.
    Going,
    Bound,
}

#[derive(Debug)]
struct Member {
    number: u64,
    key: Arc<str>,
    own: Option<Arc<Spec>>,
    stage: Stage,
    phase: Phase,
    owners: Arc<str>,
}

/// A gang; read it through [`Gangs`].
#[derive(Debug, Default)]
struct Gang {
    spec: Option<Arc<Spec>>,
    /// Described by a PodGroup, not by its pods.
    from_group: bool,
    members: FxHashMap<Arc<str>, Member>,
    /// By order of appearance, as the next two.
    pending: BTreeMap<u64, Arc<str>>,
    held: BTreeMap<u64, Arc<str>>,
    going: BTreeMap<u64, Arc<str>>,
    bound: usize,
    idle: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
    /// Whether a member was ever bound.
    began: bool,
    /// Id of its gang group.
    group: Arc<str>,
}

/// Gangs that start together.
#[derive(Debug, Default)]
struct Group {
    /// Sorted.
    gangs: Vec<Arc<str>>,
    /// Whether the group once had what it needs: it is when a member was bound.
    once: bool,
    /// The one member that may be in the queue.
    representative: Option<Arc<str>>,
    /// The members that were let go together.
    binding: FxHashSet<Arc<str>>,
    /// Why the last attempt failed.
    failure: Option<Arc<str>>,
    /// The last attempt placed all there were, and they were too few.
    short: bool,
}

/// A gang group that is being placed.
#[derive(Debug)]
struct Attempt {
    number: u64,
    group: Arc<str>,
    left: VecDeque<Arc<str>>,
    tried: Vec<Arc<str>>,
    known: FxHashSet<Arc<str>>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Gangs {
    gangs: FxHashMap<Arc<str>, Gang>,
    groups: FxHashMap<Arc<str>, Group>,
    /// The gang of each pod.
    of: FxHashMap<Arc<str>, Arc<str>>,
    attempt: Option<Attempt>,
    numbers: u64,
    changed: BTreeSet<Arc<str>>,
}

impl Gang {
    fn strict(&self) -> bool {
        let mode = self.spec.as_ref().map(|spec| &spec.mode);
        mode != Some(&GangMode::NonStrict)
    }

    fn once_satisfied(&self) -> bool {
        let policy = self.spec.as_ref().map(|spec| &spec.policy);
        policy == Some(&GangMatchPolicy::OnceSatisfied)
    }

    /// Members that count towards the start.
    fn collected(&self) -> usize {
        self.members.len() - self.idle
    }

    fn waiting(&self) -> usize {
        self.held.len() + self.going.len()
    }

    fn count(&mut self, stage: Stage, phase: Phase, number: u64, uid: &Arc<str>, sign: bool) {
        let list = match stage {
            Stage::Pending => Some(&mut self.pending),
            Stage::Held(_) => Some(&mut self.held),
            Stage::Going => Some(&mut self.going),
            Stage::Idle | Stage::Bound => None,
        };
        if let Some(list) = list {
            if sign {
                list.insert(number, uid.clone());
            } else {
                list.remove(&number);
            }
        }
        let step = |counter: &mut usize| {
            *counter = if sign {
                *counter + 1
            } else {
                counter.saturating_sub(1)
            };
        };
        match stage {
            Stage::Idle => step(&mut self.idle),
            Stage::Bound => step(&mut self.bound),
            _ => {}
        }
        match phase {
            Phase::Running => step(&mut self.running),
            Phase::Succeeded => step(&mut self.succeeded),
            Phase::Failed => step(&mut self.failed),
            Phase::Pending => {}
        }
    }

    fn set(&mut self, uid: &Arc<str>, stage: Stage) {
        let Some(member) = self.members.get_mut(uid) else {
            return;
        };
        let (old, phase, number) = (member.stage, member.phase, member.number);
        member.stage = stage;
        self.count(old, phase, number, uid, false);
        self.count(stage, phase, number, uid, true);
        self.began |= stage == Stage::Bound;
    }
}

impl Gangs {
    /// A member appeared or changed.
    pub fn observe(&mut self, seen: Seen, moves: &mut Moves) {
        if self
            .of
            .get(&seen.uid)
            .is_some_and(|gang| *gang != seen.gang)
        {
            self.vanish(&seen.uid, moves);
        }
        let (uid, id) = (seen.uid, seen.gang);
        self.of.insert(uid.clone(), id.clone());
        let gang = self.gangs.entry(id.clone()).or_default();
        let own = seen.own.map(|own| match &gang.spec {
            Some(spec) if **spec == own => spec.clone(),
            _ => Arc::new(own),
        });
        let old = gang.members.remove(&uid);
        let stage = match old.as_ref().map(|old| old.stage) {
            _ if seen.bound => Stage::Bound,
            Some(stage @ (Stage::Held(_) | Stage::Going | Stage::Bound)) => stage,
            _ if seen.ready => Stage::Pending,
            _ => Stage::Idle,
        };
        let number = old.as_ref().map_or(self.numbers, |old| old.number);
        self.numbers += 1;
        if let Some(old) = &old {
            gang.count(old.stage, old.phase, number, &uid, false);
        }
        gang.count(stage, seen.phase, number, &uid, true);
        gang.began |= stage == Stage::Bound;
        let member = Member {
            number,
            key: seen.key,
            own: own.clone(),
            stage,
            phase: seen.phase,
            owners: seen.owners.into(),
        };
        gang.members.insert(uid.clone(), member);
        let described = gang.spec.is_none() && own.is_some();
        if described {
            gang.spec = own;
        }
        self.changed.insert(id.clone());
        let group = self.regroup(&id);
        if described {
            self.let_pass(&id, moves);
        }
        let before = old.map(|old| old.stage);
        if stage == Stage::Bound && before != Some(Stage::Bound) {
            self.satisfied(&group, &uid, moves);
        }
        let fresh = stage == Stage::Pending && before != Some(Stage::Pending);
        if fresh
            && let Some(attempt) = &mut self.attempt
            && attempt.group == group
            && !attempt.known.contains(&uid)
        {
            attempt.left.push_back(uid.clone());
        }
        self.review(&group, fresh.then_some(&uid), false, moves);
    }

    /// A pod is gone, or belongs to no gang any more.
    pub fn vanish(&mut self, uid: &str, moves: &mut Moves) {
        let Some((uid, id)) = self.of.remove_entry(uid) else {
            return;
        };
        let Some(gang) = self.gangs.get_mut(&id) else {
            return;
        };
        let Some(member) = gang.members.remove(&uid) else {
            return;
        };
        gang.count(member.stage, member.phase, member.number, &uid, false);
        let (group, strict) = (gang.group.clone(), gang.strict());
        let name = member.key.split('/').next_back().unwrap_or_default();
        let reason = format!("Gang {id:?} gets rejected due to Pod {name:?} in Unreserve");
        let deleted = gang.members.is_empty() && !gang.from_group;
        let passes = self.passes(&id);
        if let Some(group) = self.groups.get_mut(&group) {
            group.binding.remove(&uid);
            if group.representative.as_ref() == Some(&uid) {
                group.representative = None;
            }
        }
        self.changed.insert(id.clone());
        if matches!(member.stage, Stage::Held(_)) && strict && !passes {
            let fresh = self.end_attempt_of(&group);
            self.give_up(&group, &reason, fresh, moves);
        }
        if deleted {
            self.gangs.remove(&id);
            self.drop_group(&group);
        }
        self.settle_binding(&group);
        self.review(&group, None, false, moves);
    }

    /// A PodGroup appeared or changed, or is gone.
    pub fn declare(&mut self, id: &Arc<str>, spec: Option<Spec>, moves: &mut Moves) {
        let gang = self.gangs.entry(id.clone()).or_default();
        gang.from_group = spec.is_some();
        let spec = spec.map(Arc::new).or_else(|| {
            let mut own: Vec<(u64, &Arc<Spec>)> = gang
                .members
                .values()
                .filter_map(|member| Some((member.number, member.own.as_ref()?)))
                .collect();
            own.sort_unstable_by_key(|(number, _)| *number);
            own.first().map(|(_, spec)| (*spec).clone())
        });
        let changed = gang.spec != spec;
        gang.spec = spec;
        let undescribed = gang.spec.is_none();
        let old = gang.group.clone();
        self.changed.insert(id.clone());
        if undescribed {
            let fresh = self.end_attempt_of(&old);
            self.give_up(&old, GANG_GONE, fresh, moves);
        }
        let deleted = |gang: &Gang| gang.members.is_empty() && !gang.from_group;
        if self.gangs.get(id).is_some_and(deleted) {
            self.gangs.remove(id);
            self.drop_group(&old);
            self.review(&old, None, false, moves);
            return;
        }
        let group = self.regroup(id);
        if changed {
            self.let_pass(id, moves);
        }
        self.review(&group, None, changed, moves);
        // Groups of others may list this gang.
        let listing: Vec<Arc<str>> = self
            .groups
            .iter()
            .filter(|(other, members)| **other != group && members.gangs.contains(id))
            .map(|(other, _)| other.clone())
            .collect();
        for other in listing {
            self.review(&other, None, changed, moves);
        }
    }

    /// A member has been placed. Whether it may bind.
    pub fn permit(&mut self, uid: &str, moves: &mut Moves) -> Permission {
        let Some((uid, id)) = self.of.get_key_value(uid) else {
            return Permission::NotFound;
        };
        let (uid, id) = (uid.clone(), id.clone());
        let number = self.attempt.as_ref().map_or(0, |a| a.number);
        let Some(gang) = self.gangs.get_mut(&id) else {
            return Permission::NotFound;
        };
        gang.set(&uid, Stage::Held(number));
        let (group, wait) = (gang.group.clone(), gang.spec.as_ref().map(|spec| spec.wait));
        self.changed.insert(id);
        let Some(members) = self.groups.get(&group) else {
            return Permission::NotFound;
        };
        let gangs = members.gangs.clone();
        if !gangs.iter().all(|gang| self.may_bind(gang)) {
            if self.attempt.as_ref().is_none_or(|a| a.group != group) {
                self.finish(moves);
                self.open(&group, &uid);
                let number = self.attempt.as_ref().map_or(0, |a| a.number);
                if let Some(gang) = self.of.get(&uid).and_then(|id| self.gangs.get_mut(id)) {
                    gang.set(&uid, Stage::Held(number));
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
                together.extend(gang.held.values().chain(gang.going.values()).cloned());
            }
            for held in std::mem::take(&mut gang.held).into_values() {
                gang.set(&held, Stage::Going);
                if held != uid {
                    moves.allow.push(held);
                }
            }
        }
        self.end_attempt_of(&group);
        if let Some(members) = self.groups.get_mut(&group) {
            if binding {
                members.binding = together;
            }
            members.representative = None;
            members.failure = None;
            members.short = false;
        }
        self.review(&group, None, false, moves);
        Permission::Go
    }

    /// A member could not be placed: no node takes it, for the reason `fit`. Returns the text for the
    /// members that are therefore not tried, when there is one.
    pub fn failed(&mut self, uid: &str, fit: &str, moves: &mut Moves) -> Option<Arc<str>> {
        let (uid, id) = self.of.get_key_value(uid)?;
        let (uid, id) = (uid.clone(), id.clone());
        let gang = self.gangs.get(&id)?;
        let (group, strict, key) = (
            gang.group.clone(),
            gang.strict(),
            gang.members.get(&uid)?.key.clone(),
        );
        if self.passes(&id) {
            return None;
        }
        if self.collected(&group).is_err() {
            let fresh = self.end_attempt_of(&group);
            self.give_up(&group, fit, fresh, moves);
            self.review(&group, None, false, moves);
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
                self.finish(moves);
                self.open(&group, &uid);
            }
            let members = self.groups.get_mut(&group)?;
            members.failure = Some(message);
            members.representative.get_or_insert(uid);
            return None;
        }
        let (fresh, tried) = match self.attempt.take_if(|a| a.group == group) {
            Some(attempt) => (attempt.number, attempt.known),
            None => (0, FxHashSet::default()),
        };
        for gang in self.gangs_of(&group) {
            let others = gang.pending.values();
            moves.skipped.extend(
                others
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
        self.give_up(&group, &message, fresh, moves);
        Some(message)
    }

    /// A member gave back what it held: its wait or its binding failed, or another rule refused it
    /// after it was placed.
    pub fn released(&mut self, uid: &str, moves: &mut Moves) {
        let Some((uid, id)) = self.of.get_key_value(uid) else {
            return;
        };
        let (uid, id) = (uid.clone(), id.clone());
        let passes = self.passes(&id);
        let Some(gang) = self.gangs.get_mut(&id) else {
            return;
        };
        let Some(member) = gang.members.get(&uid) else {
            return;
        };
        let (group, strict) = (gang.group.clone(), gang.strict());
        let attempted = self.attempt.as_ref().is_some_and(|a| a.group == group);
        match member.stage {
            Stage::Held(_) | Stage::Going => {}
            // Given up with its gang: that is settled. In an attempt: another rule refused it.
            Stage::Pending if attempted => {}
            _ => return,
        }
        let name = member.key.split('/').next_back().unwrap_or_default();
        let reason = format!("Gang {id:?} gets rejected due to Pod {name:?} in Unreserve");
        gang.set(&uid, Stage::Pending);
        self.changed.insert(id.clone());
        self.settle_binding(&group);
        if passes || !strict {
            return;
        }
        let fresh = self.end_attempt_of(&group);
        if let Some(members) = self.groups.get_mut(&group) {
            members.failure = Some(reason.as_str().into());
            let before = members.representative.replace(uid.clone());
            moves.regate.extend(before.filter(|before| *before != uid));
        }
        self.give_up(&group, &reason, fresh, moves);
    }

    /// A member is bound.
    pub fn bound(&mut self, uid: &str, moves: &mut Moves) {
        let Some((uid, id)) = self.of.get_key_value(uid) else {
            return;
        };
        let (uid, id) = (uid.clone(), id.clone());
        let Some(gang) = self.gangs.get_mut(&id) else {
            return;
        };
        if gang
            .members
            .get(&uid)
            .is_none_or(|m| m.stage == Stage::Bound)
        {
            return;
        }
        gang.set(&uid, Stage::Bound);
        let group = gang.group.clone();
        self.changed.insert(id);
        self.satisfied(&group, &uid, moves);
        self.review(&group, None, false, moves);
    }

    /// The member to try next; none when no attempt is under way, or when this ends it.
    pub fn next(&mut self, moves: &mut Moves) -> Option<Arc<str>> {
        let group = self.attempt.as_ref()?.group.clone();
        while let Some(uid) = self.attempt.as_mut()?.left.pop_front() {
            let pending = self.of.get(&uid).is_some_and(|id| {
                self.gangs.get(id).is_some_and(|gang| {
                    gang.group == group
                        && gang
                            .members
                            .get(&uid)
                            .is_some_and(|m| m.stage == Stage::Pending)
                })
            });
            let attempt = self.attempt.as_mut()?;
            if pending && attempt.known.insert(uid.clone()) {
                attempt.tried.push(uid.clone());
                return Some(uid);
            }
        }
        self.finish(moves);
        None
    }

    /// Ends the present attempt, if any: every member was tried, and still the gang may not bind.
    fn finish(&mut self, moves: &mut Moves) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        let group = attempt.group;
        // One that failed for its own reasons comes back by itself, and brings the others.
        let comes_back = attempt.tried.iter().find(|uid| {
            let gang = self.of.get(*uid).and_then(|id| self.gangs.get(id));
            let member = gang.and_then(|gang| gang.members.get(*uid));
            member.is_some_and(|member| member.stage == Stage::Pending)
        });
        let comes_back = comes_back.cloned();
        if self.gangs_of(&group).any(Gang::strict) {
            self.give_up(&group, ALL_TRIED, attempt.number, moves);
        }
        if let Some(members) = self.groups.get_mut(&group) {
            members.short = comes_back.is_none();
            members.representative = comes_back.or_else(|| attempt.tried.first().cloned());
        }
    }

    /// Begins an attempt with `first`, which is being tried already.
    fn open(&mut self, group: &Arc<str>, first: &Arc<str>) {
        self.numbers += 1;
        let mut left = VecDeque::new();
        for gang in self.gangs_of(group).filter(|gang| gang.group == *group) {
            left.extend(gang.pending.values().filter(|uid| *uid != first).cloned());
        }
        self.attempt = Some(Attempt {
            number: self.numbers,
            group: group.clone(),
            left,
            tried: vec![first.clone()],
            known: FxHashSet::from_iter([first.clone()]),
        });
        if let Some(members) = self.groups.get_mut(group) {
            members.representative = None;
        }
    }

    /// Returns the number of the attempt that ends, 0 if none does.
    fn end_attempt_of(&mut self, group: &str) -> u64 {
        let ended = self.attempt.take_if(|attempt| *attempt.group == *group);
        ended.map_or(0, |attempt| attempt.number)
    }

    /// Makes every held member of the group give back what it holds.
    /// What the attempt `fresh` booked is rolled back.
    fn give_up(&mut self, group: &str, reason: &str, fresh: u64, moves: &mut Moves) {
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
            let held: Vec<Arc<str>> = gang.held.values().cloned().collect();
            for uid in held {
                let stage = gang.members.get(&uid).map(|member| member.stage);
                gang.set(&uid, Stage::Pending);
                let list = if stage == Some(Stage::Held(fresh)) && fresh != 0 {
                    &mut moves.rollback
                } else {
                    &mut moves.reject
                };
                list.push((uid, reason.clone()));
            }
        }
    }

    /// A member of the group is bound: late members need not wait for others any more.
    fn satisfied(&mut self, group: &Arc<str>, uid: &Arc<str>, moves: &mut Moves) {
        self.settle_binding(group);
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
        for id in members.gangs.clone() {
            self.let_pass(&id, moves);
        }
    }

    /// Lets members that need not wait for others into the queue.
    fn let_pass(&self, id: &str, moves: &mut Moves) {
        if self.passes(id)
            && let Some(gang) = self.gangs.get(id)
        {
            moves.regate.extend(gang.pending.values().cloned());
            moves.activate.extend(gang.pending.values().cloned());
        }
    }

    /// The members that were let go together are forgotten when the last of them has arrived.
    fn settle_binding(&mut self, group: &str) {
        if self.gangs_of(group).all(|gang| gang.waiting() == 0)
            && let Some(members) = self.groups.get_mut(group)
        {
            members.binding.clear();
        }
    }

    /// Chooses the one member that stands for the group in the queue, where that is due.
    fn review(
        &mut self,
        group: &Arc<str>,
        prefer: Option<&Arc<str>>,
        poke: bool,
        moves: &mut Moves,
    ) {
        if self.attempt.as_ref().is_some_and(|a| a.group == *group) {
            return;
        }
        let complete = self.collected(group).is_ok();
        let Some(members) = self.groups.get(group) else {
            return;
        };
        let current = members.representative.clone();
        let stands = current.as_ref().filter(|uid| self.stands_for(uid, group));
        let next = if !complete {
            None
        } else if let Some(stands) = stands {
            Some(stands.clone())
        } else {
            let preferred = prefer.filter(|uid| self.stands_for(uid, group)).cloned();
            preferred.or_else(|| {
                let gangs = members.gangs.iter().filter(|id| !self.passes(id));
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
            members.short &= !moved && !short && !poke;
        }
        if moved {
            moves.regate.extend(current);
        }
        if let Some(next) = next.filter(|_| moved || poke || short) {
            moves.regate.push(next.clone());
            moves.activate.push(next);
        }
    }

    /// Puts a gang into the group its description names. Returns the group's id.
    fn regroup(&mut self, id: &Arc<str>) -> Arc<str> {
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
        members.gangs = gangs;
        members.once |= began;
        if old != group {
            self.end_attempt_of(&old);
            self.drop_group(&old);
        }
        group
    }

    /// Forgets a group that no gang is in any more.
    fn drop_group(&mut self, group: &str) {
        if !self.gangs_of(group).any(|gang| *gang.group == *group) {
            self.groups.remove(group);
            self.end_attempt_of(group);
        }
    }

    /// Whether an attempt is under way.
    #[must_use]
    pub fn is_trying(&self) -> bool {
        self.attempt.is_some()
    }

    /// The gangs whose members have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }
}
