//! Read-only queries of gangs.

use super::status::MemberCounts;
use super::{Gang, Gangs, Group, MemberStage};
use koord_api::extension::{GangMatchPolicy, GangMode, NetworkTopologySpec};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Network topology requirements of a gang group.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathering {
    /// Id of the group.
    pub group: Arc<str>,
    /// Requirements of the first of its gangs that has any.
    pub spec: Arc<NetworkTopologySpec>,
    /// True if the group is being tried now.
    pub trying: bool,
}

/// Network topology requirements of a gang group for late members.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedGroup {
    /// Requirements of the first of its gangs that has any.
    pub spec: Arc<NetworkTopologySpec>,
    /// UIDs of the members that have a node.
    pub mates: Vec<Arc<str>>,
}

/// Members of a gang group to schedule together, because one of them fits no node on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Id of the group.
    pub group: Arc<str>,
    /// UIDs of the pending members in the order in which they will be tried, the failed one first.
    pub pending: Vec<Arc<str>>,
    /// UIDs of the members that hold a node while they wait.
    pub held: Vec<Arc<str>>,
    /// True if the first member that fits no node ends the attempt for all.
    pub strict: bool,
    /// Number of the current attempt, if the group is being tried.
    pub attempt: Option<u64>,
}

/// Reason why a member is not tried now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// The gang is unknown.
    #[error("can't find gang, gangName: {gang}, podName: {pod}")]
    NotFound {
        /// `namespace/name` of the gang.
        gang: Arc<str>,
        /// `namespace/name` of the pod.
        pod: Arc<str>,
    },
    /// The gang is not described yet: the PodGroup or the minimum is missing.
    #[error("gang has not init, gangName: {gang}, podName: {pod}")]
    NotDescribed {
        /// `namespace/name` of the gang.
        gang: Arc<str>,
        /// `namespace/name` of the pod.
        pod: Arc<str>,
    },
    /// The group is not complete.
    #[error(
        "gangGroup {} basic check: {lacks}, current gang: {gang}, podName: {pod}",
        list(group)
    )]
    Incomplete {
        /// Ids of the group's gangs.
        group: Vec<Arc<str>>,
        /// The gangs that are not ready and what they lack.
        lacks: Box<GangShortfall>,
        /// `namespace/name` of the gang.
        gang: Arc<str>,
        /// `namespace/name` of the pod.
        pod: Arc<str>,
    },
    /// The group is being tried, and this member's turn is yet to come.
    #[error("gangGroup {group} is scheduling and this pod has not been attempted")]
    NotYet {
        /// Id of the group.
        group: Arc<str>,
    },
    /// Another member represents the group in the queue.
    #[error("representative pod {representative} of gangGroupID {group} already exists")]
    Represented {
        /// `namespace/name` of the other member.
        representative: Arc<str>,
        /// Id of the group.
        group: Arc<str>,
    },
    /// The member is not to be scheduled.
    #[error("pod {pod} is not exists in gangCache")]
    NotPending {
        /// `namespace/name` of the pod.
        pod: Arc<str>,
    },
    /// The gang has network topology requirements, but there is no cluster network topology.
    #[error("no cluster network topology")]
    NoTopology,
}

/// Gangs of a group that prevent it from starting, by what they lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GangShortfall {
    missing: Vec<Arc<str>>,
    undescribed: Vec<Arc<str>>,
    members: Vec<Arc<str>>,
}

impl std::fmt::Display for GangShortfall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            (&self.missing, "doesn't exists"),
            (&self.undescribed, "has not init"),
            (&self.members, "child pod not collect enough"),
        ];
        let parts = parts.iter().filter(|(gangs, _)| !gangs.is_empty());
        let parts: Vec<String> = parts
            .map(|(gangs, what)| format!("memberGangs {} {what}", list(gangs)))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

fn list(ids: &[Arc<str>]) -> String {
    format!("[{}]", ids.join(" "))
}

impl Gangs {
    /// Returns the number of the current attempt and the number of members it has tried.
    #[must_use]
    pub fn current_attempt(&self) -> Option<(u64, usize)> {
        let attempt = self.attempt.as_ref()?;
        Some((attempt.number, attempt.tried.len()))
    }

    /// Returns the number of groups with members that are reserved but not bound yet.
    #[must_use]
    pub fn waiting_groups(&self) -> usize {
        let waits = |group: &&Group| {
            let mut gangs = group.gangs.iter().filter_map(|id| self.gangs.get(id));
            gangs.any(|gang| gang.waiting() > 0)
        };
        self.groups.values().filter(waits).count()
    }

    /// Returns true if the pod is a member of a gang.
    #[must_use]
    pub fn contains(&self, uid: &str) -> bool {
        self.gang_by_pod.contains_key(uid)
    }

    /// Returns true if the gang is described by its PodGroup or by a member.
    #[must_use]
    pub fn is_described(&self, id: &str) -> bool {
        self.gangs.get(id).is_some_and(|gang| gang.spec.is_some())
    }

    /// Returns the gang of a member, with its id and the member's `namespace/name`.
    fn find(&self, uid: &str) -> Option<(&Arc<str>, &Gang, Arc<str>)> {
        let id = self.gang_by_pod.get(uid)?;
        let gang = self.gangs.get(id)?;
        Some((id, gang, gang.members.get(uid)?.key.clone()))
    }

    /// Returns the existing gangs that the group's members wait for.
    pub(super) fn gangs_of(&self, group: &str) -> impl Iterator<Item = &Gang> {
        let ids = self.groups.get(group).into_iter().flat_map(|g| &g.gangs);
        ids.filter_map(|id| self.gangs.get(id))
    }

    /// Returns true if members of the gang are scheduled without regard to the others.
    pub(super) fn is_independent(&self, id: &str) -> bool {
        self.gangs.get(id).is_some_and(|gang| {
            gang.once_satisfied() && self.groups.get(&gang.group).is_some_and(|group| group.once)
        })
    }

    /// Checks that all gangs of the group have enough members.
    pub(super) fn check_members(&self, group: &str) -> Result<(), GangShortfall> {
        let mut lacks = GangShortfall::default();
        let ids = self.groups.get(group).map(|group| &group.gangs);
        for id in ids.into_iter().flatten() {
            let list = match self.gangs.get(id).map(|gang| (gang, &gang.spec)) {
                None => &mut lacks.missing,
                Some((_, None)) => &mut lacks.undescribed,
                Some((gang, Some(spec))) if gang.collected() < spec.min => &mut lacks.members,
                Some(_) => continue,
            };
            list.push(id.clone());
        }
        if lacks == GangShortfall::default() && ids.is_some() {
            Ok(())
        } else {
            Err(lacks)
        }
    }

    /// Returns true if the gang has enough members with a node.
    pub(super) fn may_bind(&self, id: &str) -> bool {
        self.may_bind_with(id, 0)
    }

    /// Like [`Self::may_bind`], with `more` additional members that have a node.
    fn may_bind_with(&self, id: &str, more: usize) -> bool {
        let Some(gang) = self.gangs.get(id) else {
            return false;
        };
        let Some(spec) = &gang.spec else {
            return false;
        };
        let waiting = gang.waiting() + more;
        match spec.policy {
            GangMatchPolicy::OnlyWaiting => waiting >= spec.min,
            GangMatchPolicy::WaitingAndRunning => waiting + gang.bound >= spec.min,
            _ => waiting >= spec.min || self.groups.get(&gang.group).is_some_and(|g| g.once),
        }
    }

    /// Returns true if the pod is pending and can hold the place of its group in the scheduling queue.
    pub(super) fn can_represent(&self, uid: &str, group: &str) -> bool {
        let Some(id) = self.gang_by_pod.get(uid) else {
            return false;
        };
        let pending = |gang: &Gang| {
            *gang.group == *group
                && gang
                    .members
                    .get(uid)
                    .is_some_and(|member| member.stage == MemberStage::Pending)
        };
        self.gangs.get(id).is_some_and(pending) && !self.is_independent(id)
    }

    /// Returns the members to schedule together with the pod, which is pending and fits no node. `None` if it
    /// is scheduled without regard to others, or if its group lacks members.
    #[must_use]
    pub fn job(&self, uid: &str) -> Option<Job> {
        let (id, gang, _) = self.find(uid)?;
        let member = gang.members.get_key_value(uid)?;
        let waits = member.1.stage == MemberStage::Pending && !self.is_independent(id);
        if !waits || self.check_members(&gang.group).is_err() {
            return None;
        }
        let group = gang.group.clone();
        let first = member.0.clone();
        let mut pending = vec![first.clone()];
        let mut held = Vec::new();
        let mut strict = false;
        for gang in self.gangs_of(&group).filter(|gang| gang.group == group) {
            let others = gang.pending.values().filter(|uid| **uid != first);
            pending.extend(others.cloned());
            held.extend(gang.held.values().cloned());
            strict |= gang.strict();
        }
        let attempt = self.attempt.as_ref().filter(|it| it.group == group);
        Some(Job {
            attempt: attempt.map(|attempt| attempt.number),
            group,
            pending,
            held,
            strict,
        })
    }

    /// Returns true if the members of `group` could bind if those with the UIDs `placed` had a node, too.
    #[must_use]
    pub fn would_start<'a>(&self, group: &str, placed: impl IntoIterator<Item = &'a str>) -> bool {
        let mut more: FxHashMap<&str, usize> = FxHashMap::default();
        for uid in placed {
            if let Some((id, gang, _)) = self.find(uid)
                && gang
                    .members
                    .get(uid)
                    .is_some_and(|m| m.stage == MemberStage::Pending)
            {
                *more.entry(&**id).or_default() += 1;
            }
        }
        self.groups.get(group).is_some_and(|group| {
            let more = |id: &Arc<str>| more.get(&**id).copied().unwrap_or_default();
            group
                .gangs
                .iter()
                .all(|id| self.may_bind_with(id, more(id)))
        })
    }

    /// Returns the id of the pod's group.
    #[must_use]
    pub fn group_of(&self, uid: &str) -> Option<&Arc<str>> {
        Some(&self.find(uid)?.1.group)
    }

    /// Returns true if the pod is scheduled without regard to others: it has no gang, or its gang has
    /// started.
    #[must_use]
    pub fn schedules_alone(&self, uid: &str) -> bool {
        self.gang_by_pod
            .get(uid)
            .is_none_or(|id| self.is_independent(id))
    }

    /// Returns the network topology requirements of the pod's group; `None` if its members are scheduled
    /// without regard to the others.
    #[must_use]
    pub fn gathering(&self, uid: &str) -> Option<Gathering> {
        let (id, gang, _) = self.find(uid)?;
        if self.is_independent(id) || self.check_members(&gang.group).is_err() {
            return None;
        }
        let group = gang.group.clone();
        let spec = self.topology_of(&group)?;
        Some(Gathering {
            trying: self.attempt.as_ref().is_some_and(|a| a.group == group),
            group,
            spec,
        })
    }

    fn topology_of(&self, group: &str) -> Option<Arc<NetworkTopologySpec>> {
        let specs = self.gangs_of(group).filter_map(|gang| gang.spec.as_ref());
        specs.filter_map(|spec| spec.topology.clone()).next()
    }

    /// Returns the network topology requirements of the pod's group and the other members that have a node;
    /// `None` if there are no requirements or no such members.
    #[must_use]
    pub fn placed_group(&self, uid: &str) -> Option<PlacedGroup> {
        let (_, gang, _) = self.find(uid)?;
        let group = &gang.group;
        let spec = self.topology_of(group)?;
        let own = self.gangs_of(group).filter(|gang| gang.group == *group);
        // Most groups are queried member by member before any of them has a node.
        let begun = own.filter(|gang| gang.bound + gang.waiting() > 0);
        let members = begun.flat_map(|gang| &gang.members);
        let mates: Vec<Arc<str>> = members
            .filter(|(mate, member)| {
                let placed = !matches!(member.stage, MemberStage::Idle | MemberStage::Pending);
                placed && ***mate != *uid
            })
            .map(|(mate, _)| mate.clone())
            .collect();
        (!mates.is_empty()).then_some(PlacedGroup { spec, mates })
    }

    /// Returns true if the group of the gang `id` has network topology requirements.
    #[must_use]
    pub fn has_topology_requirements(&self, id: &str) -> bool {
        let gang = self.gangs.get(id);
        gang.is_some_and(|gang| self.topology_of(&gang.group).is_some())
    }

    /// Returns true if `gang` belongs to the group of the pod's gang.
    #[must_use]
    pub fn has_gang_in_group(&self, uid: &str, gang: &str) -> bool {
        let group = self.group_of(uid).and_then(|group| self.groups.get(group));
        group.is_some_and(|group| group.gangs.iter().any(|id| **id == *gang))
    }

    /// Returns the UIDs of the pending members of the group.
    pub fn pending_of(&self, group: &str) -> impl Iterator<Item = &Arc<str>> {
        let gangs = self.gangs_of(group);
        let own = gangs.filter(move |gang| *gang.group == *group);
        own.flat_map(|gang| gang.pending.values())
    }

    /// Checks that the pod may be tried now. Pods without a gang always may. A gang with network topology
    /// requirements returns [`Blocked::NoTopology`], which the caller resolves if it has a topology.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn check(&self, uid: &str) -> Result<(), Blocked> {
        let Some((id, gang, pod)) = self.find(uid) else {
            return Ok(());
        };
        let Some(spec) = &gang.spec else {
            let gang = id.clone();
            return Err(Blocked::NotDescribed { gang, pod });
        };
        if self.is_independent(id) {
            return Ok(());
        }
        self.check_members(&gang.group)
            .map_err(|lacks| Blocked::Incomplete {
                group: spec.group.clone(),
                lacks: Box::new(lacks),
                gang: id.clone(),
                pod,
            })?;
        let topology = |gang: &Gang| gang.spec.as_ref().and_then(|spec| spec.topology.clone());
        if self
            .gangs_of(&gang.group)
            .any(|gang| topology(gang).is_some())
        {
            return Err(Blocked::NoTopology);
        }
        Ok(())
    }

    /// Checks that the pod may enter the queue. Pods without a gang always may.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn admit(&self, uid: &str) -> Result<(), Blocked> {
        let Some((id, gang, pod)) = self.find(uid) else {
            return Ok(());
        };
        match self.check(uid) {
            Ok(()) | Err(Blocked::NoTopology) => {}
            Err(blocked) => return Err(blocked),
        }
        if self.is_independent(id) {
            return Ok(());
        }
        let group = gang.group.clone();
        if let Some(attempt) = &self.attempt
            && attempt.group == group
            && !attempt.queued.contains(uid)
        {
            return Err(Blocked::NotYet { group });
        }
        if !gang
            .members
            .get(uid)
            .is_some_and(|m| m.stage == MemberStage::Pending)
        {
            return Err(Blocked::NotPending { pod });
        }
        // Members of a NonStrict gang fail for their own reasons, and return by their own events.
        let members = self.groups.get(&group).filter(|_| gang.strict());
        match members.and_then(|members| members.representative.as_deref()) {
            Some(other) if other != uid => {
                let key = self.find(other).map(|(_, _, key)| key);
                let representative = key.unwrap_or_else(|| other.into());
                Err(Blocked::Represented {
                    representative,
                    group,
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the id of the group and the number of members that were allowed to bind together with this
    /// one; `None` if it binds alone.
    #[must_use]
    pub fn binding(&self, uid: &str) -> Option<(&Arc<str>, usize)> {
        let (_, gang, _) = self.find(uid)?;
        let binding = &self.groups.get(&gang.group)?.binding;
        (binding.len() > 1 && binding.contains(uid)).then_some((&gang.group, binding.len()))
    }

    /// Returns the member counts of a gang, for the status of its PodGroup.
    #[must_use]
    pub fn members(&self, id: &str) -> MemberCounts<'_> {
        let Some(gang) = self.gangs.get(id) else {
            return MemberCounts::default();
        };
        let first = gang.members.values().min_by_key(|member| member.number);
        MemberCounts {
            total: gang.members.len(),
            bound: gang.bound,
            running: gang.running,
            succeeded: gang.succeeded,
            failed: gang.failed,
            owners: first.map_or("", |member| &member.owners),
        }
    }

    /// Returns the ids of all gangs.
    pub fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.gangs.keys()
    }

    /// Returns a gang in the form of the inspection API.
    #[must_use]
    pub fn summary(&self, id: &str) -> Option<Value> {
        let gang = self.gangs.get(id)?;
        let set = |pick: &dyn Fn(MemberStage) -> bool| -> Value {
            let members = gang.members.values().filter(|member| pick(member.stage));
            members
                .map(|m| (m.key.to_string(), json!({})))
                .collect::<Map<_, _>>()
                .into()
        };
        let alone = [Arc::<str>::from(id)];
        let spec = gang.spec.as_deref();
        let nanos = spec.map_or(0, |spec| {
            i64::try_from(spec.wait.as_nanos()).unwrap_or(i64::MAX)
        });
        let none = Group::default();
        let group = self.groups.get(&gang.group).unwrap_or(&none);
        let key = |uid: &Arc<str>| self.find(uid).map(|(_, _, key)| key.to_string());
        let waiting: Map<String, Value> = group
            .gangs
            .iter()
            .filter(|id| self.gangs.get(*id).is_some_and(|gang| gang.waiting() > 0))
            .map(|id| (id.to_string(), json!({})))
            .collect();
        let binding: Map<String, Value> = group
            .binding
            .iter()
            .map(|uid| (uid.to_string(), json!({})))
            .collect();
        Some(json!({
            "name": id,
            "waitTime": nanos,
            "createTime": spec.and_then(|spec| spec.created.as_ref()),
            "mode": spec.map_or(GangMode::Strict.as_str(), |spec| spec.mode.as_str()),
            "gangMatchPolicy": spec.map_or(
                GangMatchPolicy::OnceSatisfied.as_str(),
                |spec| spec.policy.as_str(),
            ),
            "minRequiredNumber": spec.map_or(0, |spec| spec.min),
            "totalChildrenNum": spec.map_or(0, |spec| spec.total),
            "gangGroup": spec.map_or(&alone[..], |spec| &spec.group),
            "children": set(&|_| true),
            "pendingChildren": set(&|stage| stage == MemberStage::Pending),
            "waitingForBindChildren": set(&|s| matches!(s, MemberStage::Held(_) | MemberStage::Binding)),
            "boundChildren": set(&|stage| stage == MemberStage::Bound),
            "onceResourceSatisfied": group.once,
            "gangGroupInfo": {
                "Initialized": spec.is_some(),
                "GangGroupId": gang.group,
                "GangGroup": group.gangs,
                "OnceResourceSatisfied": group.once,
                "WaitingGangIDs": waiting,
                "RepresentativePodKey":
                    group.representative.as_ref().and_then(key).unwrap_or_default(),
                "BindingMemberPods": if binding.is_empty() { Value::Null } else { binding.into() },
            },
            "gangFrom": if gang.from_group {
                "GangFromPodGroupCrd"
            } else {
                "GangFromPodAnnotation"
            },
            "hasGangInit": spec.is_some(),
        }))
    }

    /// Returns the state of a member's gang as an explanation for users.
    #[must_use]
    pub fn explain(&self, uid: &str) -> Option<Value> {
        let (id, gang, _) = self.find(uid)?;
        let group = self.groups.get(&gang.group);
        let blocked = self.admit(uid).err().map(|blocked| blocked.to_string());
        Some(json!({
            "gang": id,
            "group": gang.group,
            "needs": gang.spec.as_ref().map(|spec| spec.min),
            "members": gang.members.len(),
            "pending": gang.pending.len(),
            "waiting": gang.waiting(),
            "bound": gang.bound,
            "onceSatisfied": group.is_some_and(|group| group.once),
            "blocked": blocked,
            "lastFailure": group.and_then(|group| group.failure.as_deref()),
        }))
    }
}
