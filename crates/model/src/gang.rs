//! Gangs: groups of pods that start together or not at all.
//!
//! [`Gangs`] stores every gang with its members and returns, for each event of a pod or a PodGroup, the
//! actions for other pods ([`Moves`]). A gang is scheduled in one *attempt*: its first member starts it,
//! [`Gangs::next`] returns the others one after the other, and it ends when the gang may bind, when a member
//! fails, or when no member is left. Resources held by an attempt are released in time proportional to their
//! number.

mod attempt;
mod groups;
mod queries;
pub mod spec;
pub mod status;
#[cfg(test)]
mod tests;

pub use queries::{Blocked, Gathering, Job, PlacedGroup};
pub use spec::{Defaults, GangDescription, Ignored};

use koord_api::extension::{GangMatchPolicy, GangMode};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Reason for rejecting waiting members after the last member was tried.
const ALL_TRIED: &str = "all pending pods is already been attempted";
/// Reason for rejecting waiting members of a gang that is no longer described.
const GANG_GONE: &str = "gang is nil, may be already deleted";

/// Phase of a pod, as counted by PodGroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Any other phase.
    #[default]
    Pending,
    /// The pod runs.
    Running,
    /// The pod succeeded.
    Succeeded,
    /// The pod failed.
    Failed,
}

/// Member of a gang, as its pod object shows it.
#[derive(Debug, Clone)]
pub struct MemberView {
    /// UID of the pod.
    pub uid: Arc<str>,
    /// `namespace/name` of the pod.
    pub key: Arc<str>,
    /// `namespace/name` of the gang.
    pub gang: Arc<str>,
    /// Description of the gang by the pod; `None` if it has none or a PodGroup describes the gang.
    pub own: Option<GangDescription>,
    /// True if the pod has a node.
    pub bound: bool,
    /// True if pods are preempted on a node for this pod.
    pub promised: bool,
    /// True if the pod can be scheduled: it is not finished, not terminating and has no scheduling gate.
    pub ready: bool,
    /// Phase of the pod.
    pub phase: Phase,
    /// Owners: sorted `namespace/name`, joined by commas.
    pub owners: String,
}

/// Actions for other pods, by UID.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Pods whose admission to the queue must be checked again.
    pub regate: Vec<Arc<str>>,
    /// Pods to retry at once.
    pub activate: Vec<Arc<str>>,
    /// Waiting pods that may bind.
    pub allow: Vec<Arc<str>>,
    /// Waiting pods that must release their resources, with the reason.
    pub reject: Vec<(Arc<str>, Arc<str>)>,
    /// Pods reserved by the current attempt that must release their resources, with the reason.
    pub rollback: Vec<(Arc<str>, Arc<str>)>,
    /// Pods that are not tried in this attempt.
    pub skipped: Vec<Arc<str>>,
    /// Pods for which the ongoing preemption of their group is no longer needed.
    pub withdraw: Vec<Arc<str>>,
}

/// Decision on whether a member that has a node may bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// The member may bind now, together with the pods in [`Moves::allow`].
    Go,
    /// The member waits for the others, at most for this time.
    Wait(Duration),
    /// The pod belongs to no known gang.
    NotFound,
}

/// Progress of a member from the queue to its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberStage {
    /// Has no node and is not to be scheduled.
    Idle,
    /// Waits to be scheduled.
    Pending,
    /// Reserved, and waiting until the gang may bind; by the attempt with this number.
    Held(u64),
    /// Reserved and being bound.
    Binding,
    Bound,
}

#[derive(Debug)]
struct Member {
    number: u64,
    key: Arc<str>,
    own: Option<Arc<GangDescription>>,
    stage: MemberStage,
    /// True if the pod could be scheduled if it had no node.
    ready: bool,
    phase: Phase,
    owners: Arc<str>,
}

impl Member {
    /// Returns the stage after the member releases its resources.
    fn unplaced(&self) -> MemberStage {
        if self.ready {
            MemberStage::Pending
        } else {
            MemberStage::Idle
        }
    }
}

/// A gang; accessed through [`Gangs`].
#[derive(Debug, Default)]
struct Gang {
    spec: Option<Arc<GangDescription>>,
    /// True if a PodGroup describes the gang, instead of its pods.
    from_group: bool,
    members: FxHashMap<Arc<str>, Member>,
    /// Pending members by order of appearance, as the next two fields.
    pending: BTreeMap<u64, Arc<str>>,
    held: BTreeMap<u64, Arc<str>>,
    binding: BTreeMap<u64, Arc<str>>,
    bound: usize,
    idle: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
    /// True if a member was ever bound.
    began: bool,
    /// Id of the gang group.
    group: Arc<str>,
}

/// Gang group: gangs that are scheduled together.
#[derive(Debug, Default)]
struct Group {
    /// Ids of the gangs, sorted.
    gangs: Vec<Arc<str>>,
    /// True once a member was bound, which means that the group had enough resources.
    once: bool,
    /// The only member that may be in the queue.
    representative: Option<Arc<str>>,
    /// Members that were allowed to bind together.
    binding: FxHashSet<Arc<str>>,
    /// Reason for the failure of the last attempt.
    failure: Option<Arc<str>>,
    /// True if the last attempt placed all members, but there were too few.
    short: bool,
    /// True if pods are preempted for its members.
    promised: bool,
}

/// Scheduling attempt of a gang group.
#[derive(Debug)]
struct Attempt {
    number: u64,
    group: Arc<str>,
    /// Members that are still to be tried.
    remaining: VecDeque<Arc<str>>,
    tried: Vec<Arc<str>>,
    /// Members that were queued in this attempt.
    queued: FxHashSet<Arc<str>>,
}

/// All gangs with their members, groups and the current attempt; see the module documentation for the
/// protocol.
#[derive(Debug, Default)]
pub struct Gangs {
    gangs: FxHashMap<Arc<str>, Gang>,
    groups: FxHashMap<Arc<str>, Group>,
    /// Gang to the groups of several gangs that list it, whether or not the gang lists them itself.
    listed: FxHashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Pod UID to its gang.
    gang_by_pod: FxHashMap<Arc<str>, Arc<str>>,
    attempt: Option<Attempt>,
    numbers: u64,
    changed: BTreeSet<Arc<str>>,
    /// Groups with members for which pods are preempted, possibly since before this process started.
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

    /// Returns the number of members that count toward the minimum.
    fn collected(&self) -> usize {
        self.members.len() - self.idle
    }

    fn waiting(&self) -> usize {
        self.held.len() + self.binding.len()
    }

    fn count(&mut self, stage: MemberStage, phase: Phase, number: u64, uid: &Arc<str>, sign: bool) {
        let list = match stage {
            MemberStage::Pending => Some(&mut self.pending),
            MemberStage::Held(_) => Some(&mut self.held),
            MemberStage::Binding => Some(&mut self.binding),
            MemberStage::Idle | MemberStage::Bound => None,
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
            MemberStage::Idle => step(&mut self.idle),
            MemberStage::Bound => step(&mut self.bound),
            _ => {}
        }
        match phase {
            Phase::Running => step(&mut self.running),
            Phase::Succeeded => step(&mut self.succeeded),
            Phase::Failed => step(&mut self.failed),
            Phase::Pending => {}
        }
    }

    fn set(&mut self, uid: &Arc<str>, stage: MemberStage) {
        let Some(member) = self.members.get_mut(uid) else {
            return;
        };
        let (old, phase, number) = (member.stage, member.phase, member.number);
        member.stage = stage;
        self.count(old, phase, number, uid, false);
        self.count(stage, phase, number, uid, true);
        self.began |= stage == MemberStage::Bound;
    }
}

impl Gangs {
    /// Records a new or changed member.
    pub fn observe(&mut self, view: MemberView, moves: &mut Moves) {
        if self
            .gang_by_pod
            .get(&view.uid)
            .is_some_and(|gang| *gang != view.gang)
        {
            self.vanish(&view.uid, moves);
        }
        let (uid, id) = (view.uid, view.gang);
        self.gang_by_pod.insert(uid.clone(), id.clone());
        let gang = self.gangs.entry(id.clone()).or_default();
        let description = view.own.map(|own| match &gang.spec {
            Some(spec) if **spec == own => spec.clone(),
            _ => Arc::new(own),
        });
        let old = gang.members.remove(&uid);
        let stage = match old.as_ref().map(|old| old.stage) {
            _ if view.bound => MemberStage::Bound,
            Some(stage @ (MemberStage::Held(_) | MemberStage::Binding | MemberStage::Bound)) => {
                stage
            }
            _ if view.ready => MemberStage::Pending,
            _ => MemberStage::Idle,
        };
        let number = old.as_ref().map_or(self.numbers, |old| old.number);
        self.numbers += 1;
        if let Some(old) = &old {
            gang.count(old.stage, old.phase, number, &uid, false);
        }
        gang.count(stage, view.phase, number, &uid, true);
        let member = Member {
            number,
            key: view.key,
            own: description.clone(),
            stage,
            ready: view.ready,
            phase: view.phase,
            owners: view.owners.into(),
        };
        gang.members.insert(uid.clone(), member);
        let newly_described = gang.spec.is_none() && description.is_some();
        if newly_described {
            gang.spec = description;
        }
        self.changed.insert(id.clone());
        let group = self.regroup(&id);
        if newly_described {
            self.admit_independent(&group, moves);
        }
        if view.promised && stage == MemberStage::Pending {
            self.doubtful.insert(group.clone());
        }
        let before = old.map(|old| old.stage);
        if stage == MemberStage::Bound && before != Some(MemberStage::Bound) {
            self.record_bound(&group, &uid, moves);
            // Set only now: a group that counts as started would not admit its other members again.
            if let Some(gang) = self.gangs.get_mut(&id) {
                gang.began = true;
            }
        }
        let became_pending = stage == MemberStage::Pending && before != Some(MemberStage::Pending);
        if became_pending
            && let Some(attempt) = &mut self.attempt
            && attempt.group == group
            && !attempt.queued.contains(&uid)
        {
            attempt.remaining.push_back(uid.clone());
        }
        self.select_representative(&group, became_pending.then_some(&uid), false, moves);
        self.select_other_representatives(&id, &group, false, moves);
    }

    /// Removes a pod that was deleted or no longer belongs to a gang.
    pub fn vanish(&mut self, uid: &str, moves: &mut Moves) {
        let Some((uid, id)) = self.gang_by_pod.remove_entry(uid) else {
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
        let independent = self.is_independent(&id);
        if let Some(group) = self.groups.get_mut(&group) {
            group.binding.remove(&uid);
            if group.representative.as_ref() == Some(&uid) {
                group.representative = None;
            }
        }
        self.changed.insert(id.clone());
        if matches!(member.stage, MemberStage::Held(_)) && strict && !independent {
            let ended_attempt = self.end_attempt(&group);
            self.reject_held(&group, &reason, ended_attempt, moves);
        }
        if deleted {
            self.gangs.remove(&id);
            self.drop_group(&group);
        }
        self.clear_binding(&group);
        self.select_representative(&group, None, false, moves);
        self.select_other_representatives(&id, &group, false, moves);
    }

    /// Records a new or changed PodGroup; `None` means that it was deleted.
    pub fn declare(&mut self, id: &Arc<str>, spec: Option<GangDescription>, moves: &mut Moves) {
        let gang = self.gangs.entry(id.clone()).or_default();
        gang.from_group = spec.is_some();
        let spec = spec.map(Arc::new).or_else(|| {
            let mut own: Vec<(u64, &Arc<GangDescription>)> = gang
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
            let ended_attempt = self.end_attempt(&old);
            self.reject_held(&old, GANG_GONE, ended_attempt, moves);
        }
        let deleted = |gang: &Gang| gang.members.is_empty() && !gang.from_group;
        if self.gangs.get(id).is_some_and(deleted) {
            self.gangs.remove(id);
            self.drop_group(&old);
            self.select_representative(&old, None, false, moves);
            self.select_other_representatives(id, &old, false, moves);
            return;
        }
        let group = self.regroup(id);
        if changed {
            self.admit_independent(&group, moves);
        }
        self.select_representative(&group, None, changed, moves);
        self.select_other_representatives(id, &group, changed, moves);
    }

    /// Returns the gangs whose members have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }
}
