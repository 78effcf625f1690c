//! What gangs answer without changing.

use super::status::Members;
use super::{Gang, Gangs, Group, Stage};
use koord_api::extension::{GangMatchPolicy, GangMode, NetworkTopologySpec};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Where a gang group wants to be in the network topology.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathering {
    /// Id of the group.
    pub group: Arc<str>,
    /// The word of the first of its gangs that says anything.
    pub spec: Arc<NetworkTopologySpec>,
    /// Whether some of them have been, just now.
    pub trying: bool,
}

/// What members that come late find of their gang group in the network topology.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// The word of the first of its gangs that says anything.
    pub spec: Arc<NetworkTopologySpec>,
    /// The members that have a node, by uid.
    pub mates: Vec<Arc<str>>,
}

/// What is to be placed together with a member that finds no place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Id of the group.
    pub group: Arc<str>,
    /// The members that are to be placed, by uid, in the order in which they will be tried: that one first.
    pub pending: Vec<Arc<str>>,
    /// Those that are placed and kept.
    pub held: Vec<Arc<str>>,
    /// Whether the first that finds no place ends the attempt for all.
    pub strict: bool,
    /// The number of the attempt under way, if the group is tried.
    pub attempt: Option<u64>,
}

/// Why a member is not tried now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// Nothing is known of its gang.
    #[error("can't find gang, gangName: {gang}, podName: {pod}")]
    NotFound {
        /// `namespace/name` of the gang.
        gang: Arc<str>,
        /// `namespace/name` of the pod.
        pod: Arc<str>,
    },
    /// Its gang is not described yet: the PodGroup or the minimum is missing.
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
        /// Which of them lack what.
        lacks: Box<Lacks>,
        /// `namespace/name` of the gang.
        gang: Arc<str>,
        /// `namespace/name` of the pod.
        pod: Arc<str>,
    },
    /// The group is being tried, and this member's turn comes.
    #[error("gangGroup {group} is scheduling and this pod has not been attempted")]
    NotYet {
        /// Id of the group.
        group: Arc<str>,
    },
    /// Another member is in the queue for all of them.
    #[error("representative pod {representative} of gangGroupID {group} already exists")]
    Represented {
        /// `namespace/name` of the other member.
        representative: Arc<str>,
        /// Id of the group.
        group: Arc<str>,
    },
    /// It is not to be placed at all.
    #[error("pod {pod} is not exists in gangCache")]
    NotPending {
        /// `namespace/name` of the pod.
        pod: Arc<str>,
    },
    /// The gang wants to be gathered in a network topology that nobody describes.
    #[error("no cluster network topology")]
    NoTopology,
}

/// Gangs of a group that keep it from starting, by what they lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacks {
    missing: Vec<Arc<str>>,
    undescribed: Vec<Arc<str>>,
    members: Vec<Arc<str>>,
}

impl std::fmt::Display for Lacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            (&self.missing, "doesn't exists"),
            (&self.undescribed, "has not init"),
            (&self.members, "child pod not collect enough"),
        ];
        let said = parts.iter().filter(|(gangs, _)| !gangs.is_empty());
        let said: Vec<String> = said
            .map(|(gangs, what)| format!("memberGangs {} {what}", list(gangs)))
            .collect();
        f.write_str(&said.join(", "))
    }
}

fn list(ids: &[Arc<str>]) -> String {
    format!("[{}]", ids.join(" "))
}

impl Gangs {
    /// The number of the attempt under way, and how many members it has tried.
    #[must_use]
    pub fn under_way(&self) -> Option<(u64, usize)> {
        let attempt = self.attempt.as_ref()?;
        Some((attempt.number, attempt.tried.len()))
    }

    /// How many groups have members that are placed and not bound yet.
    #[must_use]
    pub fn waiting_groups(&self) -> usize {
        let waits = |group: &&Group| {
            let mut gangs = group.gangs.iter().filter_map(|id| self.gangs.get(id));
            gangs.any(|gang| gang.waiting() > 0)
        };
        self.groups.values().filter(waits).count()
    }

    /// Whether the pod is a member of a gang.
    #[must_use]
    pub fn knows(&self, uid: &str) -> bool {
        self.of.contains_key(uid)
    }

    /// Whether the gang is described, by its PodGroup or by a member.
    #[must_use]
    pub fn is_described(&self, id: &str) -> bool {
        self.gangs.get(id).is_some_and(|gang| gang.spec.is_some())
    }

    /// The gang of a member, and the member's `namespace/name`.
    fn find(&self, uid: &str) -> Option<(&Arc<str>, &Gang, Arc<str>)> {
        let id = self.of.get(uid)?;
        let gang = self.gangs.get(id)?;
        Some((id, gang, gang.members.get(uid)?.key.clone()))
    }

    /// The gangs that the group's members wait for, as far as they exist.
    pub(super) fn gangs_of(&self, group: &str) -> impl Iterator<Item = &Gang> {
        let ids = self.groups.get(group).into_iter().flat_map(|g| &g.gangs);
        ids.filter_map(|id| self.gangs.get(id))
    }

    /// Whether members of the gang go without regard to the others.
    pub(super) fn passes(&self, id: &str) -> bool {
        self.gangs.get(id).is_some_and(|gang| {
            gang.once_satisfied() && self.groups.get(&gang.group).is_some_and(|group| group.once)
        })
    }

    /// Whether all gangs of the group have the members they need.
    pub(super) fn collected(&self, group: &str) -> Result<(), Lacks> {
        let mut lacks = Lacks::default();
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
        if lacks == Lacks::default() && ids.is_some() {
            Ok(())
        } else {
            Err(lacks)
        }
    }

    /// Whether the gang has enough members that are placed.
    pub(super) fn may_bind(&self, id: &str) -> bool {
        self.may_bind_with(id, 0)
    }

    /// The same, as if so many more were.
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

    /// Whether the pod could be in the queue for its group.
    pub(super) fn stands_for(&self, uid: &str, group: &str) -> bool {
        let Some(id) = self.of.get(uid) else {
            return false;
        };
        let pending = |gang: &Gang| {
            *gang.group == *group
                && gang
                    .members
                    .get(uid)
                    .is_some_and(|member| member.stage == Stage::Pending)
        };
        self.gangs.get(id).is_some_and(pending) && !self.passes(id)
    }

    /// What has to find room together with the pod, which is to be placed and finds none. Nothing where it
    /// goes without regard to others, or where its group lacks members.
    #[must_use]
    pub fn job(&self, uid: &str) -> Option<Job> {
        let (id, gang, _) = self.find(uid)?;
        let member = gang.members.get_key_value(uid)?;
        let waits = member.1.stage == Stage::Pending && !self.passes(id);
        if !waits || self.collected(&gang.group).is_err() {
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

    /// Whether the members of `group` might bind if those with the uids `placed` were placed, too.
    #[must_use]
    pub fn would_start<'a>(&self, group: &str, placed: impl IntoIterator<Item = &'a str>) -> bool {
        let mut more: FxHashMap<&str, usize> = FxHashMap::default();
        for uid in placed {
            if let Some((id, gang, _)) = self.find(uid)
                && gang
                    .members
                    .get(uid)
                    .is_some_and(|m| m.stage == Stage::Pending)
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

    /// Id of the pod's group.
    #[must_use]
    pub fn group_of(&self, uid: &str) -> Option<&Arc<str>> {
        Some(&self.find(uid)?.1.group)
    }

    /// Whether the pod is placed without regard to others: one of no gang, or of one that has begun.
    #[must_use]
    pub fn goes_alone(&self, uid: &str) -> bool {
        self.of.get(uid).is_none_or(|id| self.passes(id))
    }

    /// What the pod's group asks of the network topology; nothing where its members go without regard to
    /// the others.
    #[must_use]
    pub fn gathering(&self, uid: &str) -> Option<Gathering> {
        let (id, gang, _) = self.find(uid)?;
        if self.passes(id) || self.collected(&gang.group).is_err() {
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

    /// What the pod's group asks of the network topology and which of the other members have a node; nothing
    /// where it asks for nothing, or none has.
    #[must_use]
    pub fn settled(&self, uid: &str) -> Option<Settled> {
        let (_, gang, _) = self.find(uid)?;
        let group = &gang.group;
        let spec = self.topology_of(group)?;
        let own = self.gangs_of(group).filter(|gang| gang.group == *group);
        // Most groups are asked about before any of them is placed, member by member.
        let begun = own.filter(|gang| gang.bound + gang.waiting() > 0);
        let members = begun.flat_map(|gang| &gang.members);
        let mates: Vec<Arc<str>> = members
            .filter(|(mate, member)| {
                let placed = !matches!(member.stage, Stage::Idle | Stage::Pending);
                placed && ***mate != *uid
            })
            .map(|(mate, _)| mate.clone())
            .collect();
        (!mates.is_empty()).then_some(Settled { spec, mates })
    }

    /// Whether the group of the gang `id` asks for anything of the network topology.
    #[must_use]
    pub fn asks_for_topology(&self, id: &str) -> bool {
        let gang = self.gangs.get(id);
        gang.is_some_and(|gang| self.topology_of(&gang.group).is_some())
    }

    /// Whether `gang` is one of those that the pod's own starts with.
    #[must_use]
    pub fn starts_with(&self, uid: &str, gang: &str) -> bool {
        let group = self.group_of(uid).and_then(|group| self.groups.get(group));
        group.is_some_and(|group| group.gangs.iter().any(|id| **id == *gang))
    }

    /// The members of the group that are to be placed, by uid.
    pub fn pending_of(&self, group: &str) -> impl Iterator<Item = &Arc<str>> {
        let gangs = self.gangs_of(group);
        let own = gangs.filter(move |gang| *gang.group == *group);
        own.flat_map(|gang| gang.pending.values())
    }

    /// Whether the pod may be tried now; pods without a gang always may, and where a gang asks for a
    /// network topology, that is for who knows it to say.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, uid: &str) -> Result<(), Blocked> {
        let Some((id, gang, pod)) = self.find(uid) else {
            return Ok(());
        };
        let Some(spec) = &gang.spec else {
            let gang = id.clone();
            return Err(Blocked::NotDescribed { gang, pod });
        };
        if self.passes(id) {
            return Ok(());
        }
        self.collected(&gang.group)
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

    /// Whether the pod may enter the queue; pods without a gang always may.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, uid: &str) -> Result<(), Blocked> {
        let Some((id, gang, pod)) = self.find(uid) else {
            return Ok(());
        };
        match self.check(uid) {
            Ok(()) | Err(Blocked::NoTopology) => {}
            Err(blocked) => return Err(blocked),
        }
        if self.passes(id) {
            return Ok(());
        }
        let group = gang.group.clone();
        if let Some(attempt) = &self.attempt
            && attempt.group == group
            && !attempt.known.contains(uid)
        {
            return Err(Blocked::NotYet { group });
        }
        if !gang
            .members
            .get(uid)
            .is_some_and(|m| m.stage == Stage::Pending)
        {
            return Err(Blocked::NotPending { pod });
        }
        // Members of a lenient gang fail for their own reasons, and come back by their own events.
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

    /// For a member that was let go with others: the id of its group, and how many they are.
    #[must_use]
    pub fn binding(&self, uid: &str) -> Option<(&Arc<str>, usize)> {
        let (_, gang, _) = self.find(uid)?;
        let binding = &self.groups.get(&gang.group)?.binding;
        (binding.len() > 1 && binding.contains(uid)).then_some((&gang.group, binding.len()))
    }

    /// The members of a gang, counted for its PodGroup.
    #[must_use]
    pub fn members(&self, id: &str) -> Members<'_> {
        let Some(gang) = self.gangs.get(id) else {
            return Members::default();
        };
        let first = gang.members.values().min_by_key(|member| member.number);
        Members {
            total: gang.members.len(),
            bound: gang.bound,
            running: gang.running,
            succeeded: gang.succeeded,
            failed: gang.failed,
            owners: first.map_or("", |member| &member.owners),
        }
    }

    /// The ids of all gangs.
    pub fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.gangs.keys()
    }

    /// A gang in the form of the inspection API.
    #[must_use]
    pub fn summary(&self, id: &str) -> Option<Value> {
        let gang = self.gangs.get(id)?;
        let set = |pick: &dyn Fn(Stage) -> bool| -> Value {
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
            "pendingChildren": set(&|stage| stage == Stage::Pending),
            "waitingForBindChildren": set(&|s| matches!(s, Stage::Held(_) | Stage::Going)),
            "boundChildren": set(&|stage| stage == Stage::Bound),
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

    /// What a member's gang waits for, for people.
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
