//! Gangs: pods that start together or not at all.
//!
//! [`Gangs`] holds every gang with its members and says, for each thing that happens to a pod or a
//! PodGroup, what follows for the others ([`Moves`]). A gang is tried as one *attempt*: its first
//! member opens it, [`Gangs::next`] names the others one after the other, and it ends when the gang
//! may bind, when a member fails, or when no member is left. What an attempt held is given back in
//! time proportional to what it held.

mod attempt;
mod groups;
mod reading;
pub mod spec;
pub mod status;
#[cfg(test)]
mod tests;

pub use reading::{Blocked, Gathering, Job, Settled};
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
    /// Whether room on a node is being made for it.
    pub promised: bool,
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
    /// Ones that do not need the room any more that was being made for their group.
    pub withdraw: Vec<Arc<str>>,
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
    /// Whether it could be placed, were it not already.
    ready: bool,
    phase: Phase,
    owners: Arc<str>,
}

impl Member {
    /// What it is when it gives back what it holds.
    fn unplaced(&self) -> Stage {
        if self.ready {
            Stage::Pending
        } else {
            Stage::Idle
        }
    }
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
    /// Room was being made for its members.
    promised: bool,
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
    /// By gang, the groups of several gangs that list it, whatever it says itself.
    listed: FxHashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// The gang of each pod.
    of: FxHashMap<Arc<str>, Arc<str>>,
    attempt: Option<Attempt>,
    numbers: u64,
    changed: BTreeSet<Arc<str>>,
    /// Groups with members for whom room is being made, perhaps since before anything was known here.
    doubtful: BTreeSet<Arc<str>>,
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
        let member = Member {
            number,
            key: seen.key,
            own: own.clone(),
            stage,
            ready: seen.ready,
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
            self.let_pass(&group, moves);
        }
        if seen.promised && stage == Stage::Pending {
            self.doubtful.insert(group.clone());
        }
        let before = old.map(|old| old.stage);
        if stage == Stage::Bound && before != Some(Stage::Bound) {
            self.satisfied(&group, &uid, moves);
            // Not before: a group that is known to have begun lets nobody pass once more.
            if let Some(gang) = self.gangs.get_mut(&id) {
                gang.began = true;
            }
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
        self.review_others(&id, &group, false, moves);
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
        self.review_others(&id, &group, false, moves);
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
            self.review_others(id, &old, false, moves);
            return;
        }
        let group = self.regroup(id);
        if changed {
            self.let_pass(&group, moves);
        }
        self.review(&group, None, changed, moves);
        self.review_others(id, &group, changed, moves);
    }

    /// The gangs whose members have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }
}
