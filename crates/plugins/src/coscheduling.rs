//! `Coscheduling`: gang scheduling, which starts the pods of a gang together or not at all.
//!
//! The rules are in [`koord_model::gang`]; this plugin passes them pods and PodGroups and hands their
//! decisions to the engine. While a gang is being tried, [`Grouping::next_pod`] returns its members one after
//! the other, so that no other pod is scheduled in between and everything can be rolled back. For a gang
//! group that requests a network topology, nodes of all members are planned first ([`Planning`]); then each
//! member has one node.

mod args;
mod metrics;
mod orphans;
mod pod_groups;
mod preemption;
#[cfg(test)]
mod tests;
mod topology;

use crate::common::budgets;
use args::{Args, GangSettings};
use jiff::Timestamp;
use koord_api::annotations;
use koord_api::scheduling::{ClusterNetworkTopology, PodGroup};
use koord_model::gang::{
    Blocked, Gangs, Ignored, MemberView, Moves, Permission, Phase, PlacedGroup, spec,
};
use koord_scheduler::framework::Diagnosis;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Explain, Grouping,
    Holders, IndexKind, Inputs, Interest, MetricSamples, MetricSource, Normalize, NotShown,
    ObjectChange, ObjectEvents, Offer, PerProfile, Permit, PermitResult, Planning, Plugin,
    PodEvents, PodPatch, Points, PostBind, PostFilterTransformer, PreBind, PreEnqueue, PreFilter,
    PreFilterResult, PreScore, PreScoreResult, Problem, QueueHints, QueueingHint, Reason,
    Rejection, ReportedProblems, Reserve, Roles, Score, State, Subject, Tick, Verdict, View,
    Volatile,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use koord_scheduler::{Watch, event_names};
use orphans::Orphans;
use pod_groups::PodGroups;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::{Plan, Topology};

const NAME: &str = "Coscheduling";
const POD_GROUPS: &str = "podgroups.v1alpha1.scheduling.sigs.k8s.io";
const TOPOLOGIES: &str = "clusternetworktopologies.v1alpha1.scheduling.koordinator.sh";
const UNAWARE: &str = "awareNetworkTopology of CoschedulingArgs is off";
/// Cause of [`Blocked::NoTopology`] if the scheduler does not read topology objects at all.
const UNMANAGED: &str = "--enable-network-topology-manager is off";
/// Feature gate: members that are not tried get a condition with the reason.
const EXPLAIN_GATE: &str = "GangPendingPodsConditionPatch";

/// State of the `Coscheduling` plugin.
#[derive(Debug)]
pub(crate) struct Coscheduling {
    settings: PerProfile<GangSettings>,
    explain_skipped: bool,
    gangs: Gangs,
    /// Network topology; `None` if its feature is off.
    topology: Option<Topology>,
    /// Network plan of the gang group that is being tried.
    plan: Option<Plan>,
    budgets: budgets::BudgetChecks,
    /// Number of the attempt in which preemption ran, and the message for the other members.
    preempted: Option<(u64, String)>,
    /// PodGroup status controller; `None` if another process runs it.
    pod_groups: Option<PodGroups>,
    reported: ReportedProblems,
    orphans: Orphans,
    attempts: metrics::Attempts,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = crate::common::args::decode(NAME, value)?;
    let settings = args.settings()?;
    args.warn(context);
    Ok(Box::new(Coscheduling {
        settings: PerProfile::new(settings),
        explain_skipped: context.gates.get(EXPLAIN_GATE).copied().unwrap_or(true),
        gangs: Gangs::default(),
        topology: context.network_topology.then(Topology::default),
        plan: None,
        budgets: budgets::BudgetChecks::from_gates(context),
        preempted: None,
        pod_groups: context.controllers.enabled(NAME).then(PodGroups::default),
        reported: ReportedProblems::default(),
        orphans: Orphans::default(),
        attempts: metrics::Attempts::default(),
    }))
}

/// Passes the effects of gang decisions on other pods to the engine.
fn apply_moves(moves: Moves, fx: &mut Effects) {
    let reason = |text: Arc<str>| Reason::Shared(text);
    fx.withdraw.extend(moves.withdraw);
    fx.regate.extend(moves.regate);
    fx.activate.extend(moves.activate);
    fx.allow
        .extend(moves.allow.into_iter().map(|uid| (uid, NAME)));
    let tell = |(uid, text)| (uid, NAME, reason(text));
    fx.reject.extend(moves.reject.into_iter().map(tell));
    fx.rollback.extend(moves.rollback.into_iter().map(tell));
}

/// Returns the phase of `pod`; an unknown phase counts as pending.
fn phase(pod: &PodInfo) -> Phase {
    match pod.status().and_then(|status| status.phase.as_deref()) {
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        _ => Phase::Pending,
    }
}

/// Returns the owner references of `pod` as sorted, comma-separated `namespace/name`.
fn owner_names(pod: &PodInfo) -> String {
    let owners = pod.object.owners.iter();
    let mut names: Vec<String> = owners
        .map(|owner| format!("{}/{}", pod.namespace, owner.name))
        .collect();
    names.sort_unstable();
    names.join(",")
}

impl Coscheduling {
    /// Reports ignored values of `object`, each once.
    fn report(&mut self, object: &Problem, ignored: Vec<Ignored>, fx: &mut Effects) {
        let problem = |Ignored { key, value, why }| Problem {
            message: format!("{key}: {value:?}: {why}"),
            ..object.clone()
        };
        let problems = ignored.into_iter().map(problem).collect();
        self.reported.update(&object.uid, problems, fx);
    }
}

impl Coscheduling {
    /// Applies a change of the ClusterNetworkTopology `default`.
    fn on_topology(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let (Some(topology), Some(object)) = (
            &mut self.topology,
            change.new_as::<ClusterNetworkTopology>(),
        ) else {
            return;
        };
        let name = object.metadata.name.as_deref().unwrap_or_default();
        if name != topology::DEFAULT {
            return;
        }
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let mut ignored = Vec::new();
        if change.action == Action::DELETE {
            topology.remove_object();
        } else if let Err(bad) = topology.apply_object(object, view) {
            ignored.push(Ignored {
                key: "spec.networkTopologySpec",
                value: bad.to_string(),
                why: "there is no network topology until it is repaired",
            });
        }
        let object = Problem {
            kind: "ClusterNetworkTopology",
            namespace: String::new(),
            name: name.to_owned(),
            uid,
            message: String::new(),
        };
        self.report(&object, ignored, fx);
    }

    /// Returns the placed members of `pod`'s gang in the network topology, if the pod's profile uses that.
    fn placed_members(&self, pod: &PodInfo) -> Option<PlacedGroup> {
        let placed_members = self
            .topology
            .as_ref()
            .and(self.gangs.placed_group(&pod.uid));
        placed_members.filter(|_| self.settings.for_pod(pod).aware)
    }

    /// Restricts a member that is scheduled alone to the topology domain of its placed gang members, if they
    /// have to be together.
    fn restrict_late_member(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let topology = self.topology.as_ref().zip(self.placed_members(cycle.pod));
        match topology.and_then(|(topology, placed_members)| topology.home_nodes(&placed_members)) {
            Some(nodes) => PreFilterResult::Ready {
                state: State::default(),
                nodes: Some(nodes),
            },
            None => PreFilterResult::Skip,
        }
    }

    /// Restricts a member whose gang requests a network topology to its planned node.
    fn restrict_to_plan(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let reject = |text: String| PreFilterResult::Reject(Rejection::unresolvable(text));
        let Some(topology) = &self.topology else {
            return reject(format!("{}: {UNMANAGED}", Blocked::NoTopology));
        };
        if topology.tree().is_none() {
            return reject(topology.missing_reason());
        }
        if !self.settings.for_pod(cycle.pod).aware {
            return reject(UNAWARE.to_owned());
        }
        let gathering = self.gangs.gathering(&cycle.pod.uid);
        let group = gathering.as_ref().map(|g| &g.group);
        let Some(plan) = self.plan.as_ref().filter(|plan| Some(&plan.group) == group) else {
            // While its group is tried, a member goes to its planned node or nowhere: a gang that is not
            // strict tries its other members even if the first got no node.
            return match gathering.is_some_and(|g| g.trying) {
                true => reject("no planned pods".to_owned()),
                false => PreFilterResult::Skip,
            };
        };
        let node = plan.nodes.get(&cycle.pod.uid);
        match node.and_then(|node| cycle.view.nodes.find(node)) {
            Some(node) => PreFilterResult::Ready {
                state: State::default(),
                nodes: Some(vec![node]),
            },
            None => reject("no planned pods".to_owned()),
        }
    }
}

/// Returns the id of a pod's gang, which may no longer exist.
fn gang_of(pod: &PodInfo) -> Option<Arc<str>> {
    let name = spec::gang_name(pod)?;
    Some(spec::id(&pod.namespace, name))
}

impl Planning for Coscheduling {
    fn members(&self, pod: &PodInfo) -> Option<Vec<Arc<str>>> {
        self.topology.as_ref()?.tree()?;
        let gathering = self.gangs.gathering(&pod.uid)?;
        let now = !gathering.trying && self.settings.for_pod(pod).aware;
        now.then(|| self.gangs.pending_of(&gathering.group).cloned().collect())
    }
    fn arrange(&self, members: &mut [Arc<PodInfo>]) {
        topology::arrange(members);
    }
    fn plan(
        &self,
        members: &[Arc<PodInfo>],
        offers: &[Offer],
        fit: &str,
        view: View<'_>,
    ) -> Result<Vec<Arc<str>>, String> {
        let gathering = members
            .first()
            .and_then(|pod| self.gangs.gathering(&pod.uid));
        let topology = self.topology.as_ref().zip(gathering);
        let (topology, gathering) = topology.ok_or_else(|| Blocked::NoTopology.to_string())?;
        let placed_members = members
            .first()
            .and_then(|pod| self.gangs.placed_group(&pod.uid));
        topology.plan(&gathering, placed_members, members, offers, fit, view)
    }
}

impl Plugin for Coscheduling {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .pre_enqueue()
        .pre_filter()
        .pre_score()
        .score()
        .volatile()
        .post_filter()
        .planning()
        .pre_bind()
        .explain()
        .object_events()
        .pod_events()
        .tick()
        .reserve()
        .post_filter_transformer()
        .post_bind()
        .grouping()
        .permit()
        .metric_source();

    fn name(&self) -> &'static str {
        NAME
    }
    fn join(
        &mut self,
        profile: &str,
        args: Option<&Value>,
        context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        let args = crate::common::args::decode::<Args>(NAME, args);
        let settings = args.and_then(|args| {
            args.warn(context);
            args.settings()
        });
        Some(settings.map(|settings| self.settings.join(profile, settings)))
    }
    fn points(&self) -> Points {
        Points::PRE_ENQUEUE
            .or(Points::PRE_FILTER)
            .or(Points::POST_FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
            .or(Points::RESERVE)
            .or(Points::PERMIT)
            .or(Points::PRE_BIND)
            .or(Points::POST_BIND)
    }
    fn holders(&self) -> Holders {
        Holders::Booked
    }
}

impl Inputs for Coscheduling {
    fn watches(&self) -> Vec<Watch> {
        let groups = Watch::trimmed::<PodGroup, crate::common::trim::Trimmer>(POD_GROUPS)
            .counted_as(event_names!("podgroups.v1alpha1.scheduling.sigs.k8s.io"));
        let topologies = self.topology.is_some().then(|| {
            Watch::trimmed::<ClusterNetworkTopology, crate::common::trim::Trimmer>(TOPOLOGIES)
        });
        let budgets = self.budgets.watch().filter(|_| self.preempts());
        [Some(groups), topologies, budgets]
            .into_iter()
            .flatten()
            .collect()
    }
    fn indexes(&self) -> Vec<IndexKind> {
        let index = self.budgets.index().filter(|_| self.preempts());
        index.into_iter().collect()
    }
}

impl PreEnqueue for Coscheduling {
    fn pre_enqueue(&self, pod: &PodInfo) -> Verdict {
        let admitted = self.gangs.admit(&pod.uid);
        admitted.map_err(|blocked| Rejection::unresolvable(blocked.to_string()))
    }
}

impl PreFilter for Coscheduling {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        match self.gangs.check(&cycle.pod.uid) {
            Ok(()) => self.restrict_late_member(cycle),
            Err(Blocked::NoTopology) => self.restrict_to_plan(cycle),
            Err(blocked) => PreFilterResult::Reject(Rejection::unresolvable(blocked.to_string())),
        }
    }
}

impl PreScore for Coscheduling {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let pod = cycle.pod;
        let planned = |plan: &Plan| plan.nodes.contains_key(&pod.uid);
        let topology = self.topology.as_ref();
        let topology = topology.filter(|_| !self.plan.as_ref().is_some_and(planned));
        match topology.and_then(|topology| topology.related_pods(pod, self.placed_members(pod))) {
            Some(related_pods) => PreScoreResult::Ready(State::new(related_pods)),
            None => PreScoreResult::Skip,
        }
    }
}

impl Score for Coscheduling {
    fn normalization(&self) -> Normalize {
        Normalize::MaxReversed
    }
}

impl QueueHints for Coscheduling {
    /// A changed network topology may admit gangs that request it; a pod's assignment may admit late members
    /// of its gang.
    fn interests(&self) -> Vec<Interest> {
        let interests = [
            (Subject::Node, Action::ADD.or(Action::NODE_LABEL)),
            (Subject::Object(TOPOLOGIES), Action::ADD.or(Action::UPDATE)),
            (Subject::AssignedPod, Action::ADD.or(Action::DELETE)),
        ];
        let interests = interests.into_iter().filter(|_| self.topology.is_some());
        interests
            .map(|(subject, actions)| Interest { subject, actions })
            .collect()
    }
    /// The placement of a pod matters only to members of its gangs, and only if they request a topology.
    fn event_subject(&self, event: &ClusterEvent<'_>) -> Option<String> {
        let gang = event.pod.and_then(gang_of);
        let matters = gang.is_some_and(|gang| self.gangs.has_topology_requirements(&gang));
        (event.subject == Subject::AssignedPod && !matters).then(String::new)
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        if event.subject == Subject::AssignedPod {
            let gang = event.pod.and_then(gang_of);
            let mate = gang.is_some_and(|gang| self.gangs.has_gang_in_group(&pod.uid, &gang));
            return if mate {
                QueueingHint::Queue
            } else {
                QueueingHint::Skip
            };
        }
        let is_late_member = || self.gangs.placed_group(&pod.uid).is_some();
        if self.gangs.gathering(&pod.uid).is_none() && !is_late_member() {
            return QueueingHint::Skip;
        }
        // This plugin writes the status itself; only the spec matters.
        let same_spec = event.object.is_some_and(|change| {
            let old = change.old.as_ref();
            let old = old.and_then(|old| old.downcast_ref::<ClusterNetworkTopology>());
            let new = change.new_as::<ClusterNetworkTopology>();
            old.zip(new).is_some_and(|(old, new)| old.spec == new.spec)
        });
        if same_spec {
            QueueingHint::Skip
        } else {
            QueueingHint::Queue
        }
    }
}

/// Distances to related pods change with every placement, so scores are not cached.
impl Volatile for Coscheduling {
    fn score_rows(&self, cycle: &Cycle<'_>, state: &State, rows: &[NodeIndex], scores: &mut [i64]) {
        scores.fill(0);
        // A single node needs no rank.
        let topology = self.topology.as_ref().filter(|_| rows.len() > 1);
        if let Some((topology, related_pods)) = topology.zip(state.get()) {
            let ranks = topology.ranks(related_pods, rows, cycle.view);
            for (score, rank) in scores.iter_mut().zip(ranks) {
                *score = i64::try_from(rank).unwrap_or(i64::MAX);
            }
        }
    }
}

impl Grouping for Coscheduling {
    fn next_pod(&mut self, view: View<'_>, fx: &mut Effects) -> Option<Arc<str>> {
        self.track_attempt(None, view.now);
        if !self.gangs.is_trying() {
            self.plan = None;
            return None;
        }
        let mut moves = Moves::default();
        let next = self.gangs.next(&mut moves);
        self.track_attempt(Some(metrics::ALL_TRIED), view.now);
        apply_moves(moves, fx);
        next
    }
    fn is_grouped(&self, pod: &PodInfo) -> bool {
        self.gangs.contains(&pod.uid)
    }
    fn planned(&mut self, plan: Option<Vec<(Arc<str>, Arc<str>)>>) {
        self.plan = plan.and_then(|plan| {
            let group = self.gangs.gathering(&plan.first()?.0)?.group;
            let nodes = plan.into_iter().collect();
            Some(Plan { group, nodes })
        });
    }
}

impl Permit for Coscheduling {
    fn permit(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, fx: &mut Effects) -> PermitResult {
        let uid = &cycle.pod.uid;
        if !self.gangs.contains(uid) {
            return PermitResult::Allow;
        }
        let mut moves = Moves::default();
        let permission = self.gangs.permit(uid, &mut moves);
        self.track_attempt(Some(metrics::PLACED), cycle.view.now);
        apply_moves(moves, fx);
        match permission {
            Permission::Go => PermitResult::Allow,
            Permission::Wait(longest) => PermitResult::Wait(longest),
            Permission::NotFound => {
                PermitResult::Reject(Rejection::unschedulable("Gang not found"))
            }
        }
    }
}

impl PreBind for Coscheduling {
    fn pre_bind(&self, cycle: &Cycle<'_>, _node: NodeIndex, patch: &mut PodPatch) -> Verdict {
        if let Some((group, count)) = self.gangs.binding(&cycle.pod.uid) {
            for (key, value) in [
                (annotations::BIND_GANG_GROUP_ID, group.to_string()),
                (
                    annotations::BIND_GANG_GROUP_ID_DEPRECATED,
                    group.to_string(),
                ),
                (annotations::BIND_GANG_MEMBER_COUNT, count.to_string()),
                (
                    annotations::BIND_GANG_MEMBER_COUNT_DEPRECATED,
                    count.to_string(),
                ),
            ] {
                patch.annotations.insert(key.to_owned(), value);
            }
        }
        Ok(())
    }
}

impl Explain for Coscheduling {
    fn explain(&self, pod: &PodInfo, _view: View<'_>) -> Option<Value> {
        self.gangs.explain(&pod.uid)
    }
    fn inspections(&self) -> &'static [&'static str] {
        &["gang/:namespace/:name", "gangs"]
    }
    fn inspect(
        &self,
        path: &[&str],
        _query: &BTreeMap<String, String>,
        _view: View<'_>,
    ) -> Result<Value, NotShown> {
        match path {
            ["gangs"] => {
                let ids = self.gangs.ids();
                let all = ids.filter_map(|id| Some((id.to_string(), self.gangs.summary(id)?)));
                Ok(Value::Object(all.collect()))
            }
            ["gang", namespace, name] => {
                let gang = self.gangs.summary(&spec::id(namespace, name));
                gang.ok_or_else(|| NotShown::missing(format_args!("gang {namespace}/{name}")))
            }
            _ => Err(NotShown::NoSuchPath),
        }
    }
}

impl MetricSource for Coscheduling {
    fn read(&mut self, _view: View<'_>, out: &mut MetricSamples) {
        self.report_metrics(out);
    }
}

impl ObjectEvents for Coscheduling {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        if change.kind == TOPOLOGIES {
            self.on_topology(change, view, fx);
        }
        if change.kind != POD_GROUPS {
            return;
        }
        let Some(group) = change.new_as::<PodGroup>() else {
            return;
        };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let meta = &group.metadata;
        let object = Problem {
            kind: "PodGroup",
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
            message: String::new(),
        };
        let id = spec::id(&object.namespace, &object.name);
        let mut moves = Moves::default();
        if change.action == Action::DELETE {
            if let Some(groups) = &mut self.pod_groups {
                groups.remove(&id);
            }
            self.reported.remove(&object.uid);
            self.gangs.declare(&id, None, &mut moves);
            for uid in self.gangs.pending_of(&id) {
                self.orphans.add(uid, view.now);
            }
        } else {
            if let Some(groups) = &mut self.pod_groups {
                groups.apply(&id, group);
            }
            let (described, ignored) =
                spec::from_pod_group(group, &id, &self.settings.first().defaults);
            self.report(&object, ignored, fx);
            self.gangs.declare(&id, Some(described), &mut moves);
        }
        apply_moves(moves, fx);
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        if let Some(topology) = &mut self.topology {
            topology.update_node(node, view);
        }
    }
}

impl PodEvents for Coscheduling {
    fn on_pod(&mut self, pod: &Arc<PodInfo>, view: View<'_>, fx: &mut Effects) {
        let mut moves = Moves::default();
        let Some(name) = spec::gang_name(&**pod) else {
            if self.gangs.contains(&pod.uid) {
                self.gangs.vanish(&pod.uid, &mut moves);
                apply_moves(moves, fx);
            }
            return;
        };
        let gang = spec::id(&pod.namespace, name);
        let mut own = None;
        if !spec::has_pod_group(&**pod) {
            let (described, ignored) =
                spec::from_pod(&**pod, &gang, &self.settings.for_pod(pod).defaults);
            own = described;
            // It suffices that one member describes the gang correctly.
            let ignored = if self.gangs.is_described(&gang) && own.is_none() {
                Vec::new()
            } else {
                ignored
            };
            let object = Problem {
                kind: "Pod",
                namespace: pod.namespace.to_string(),
                name: pod.name.to_string(),
                uid: pod.uid.to_string(),
                message: String::new(),
            };
            self.report(&object, ignored, fx);
        }
        let observation = MemberView {
            uid: pod.uid.clone(),
            key: spec::id(&pod.namespace, &pod.name),
            gang,
            own,
            bound: pod.node.is_some(),
            promised: self.settings.for_pod(pod).preempts && pod.nominated.is_some(),
            ready: !pod.terminal && !pod.deleting && pod.gates.is_empty(),
            phase: phase(pod),
            owners: owner_names(pod),
        };
        let waits = !observation.bound && observation.ready;
        self.gangs.observe(observation, &mut moves);
        apply_moves(moves, fx);
        if waits && self.missing_gang(&pod.uid).is_some() {
            self.orphans.add(&pod.uid, view.now);
        }
    }
    fn on_pod_gone(&mut self, uid: &str, _view: View<'_>, fx: &mut Effects) {
        if !self.gangs.contains(uid) {
            return;
        }
        let mut moves = Moves::default();
        self.gangs.vanish(uid, &mut moves);
        self.reported.remove(uid);
        apply_moves(moves, fx);
    }
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        if let Some(topology) = &mut self.topology {
            topology.pod_added(pod, node, self.gangs.contains(&pod.uid));
        }
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        if let Some(topology) = &mut self.topology {
            topology.pod_removed(old, node);
            topology.pod_added(new, node, self.gangs.contains(&new.uid));
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        if let Some(topology) = &mut self.topology {
            topology.pod_removed(pod, node);
        }
    }
}

impl Tick for Coscheduling {
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        let mut moves = Moves::default();
        self.gangs.review_promises(&mut moves);
        apply_moves(moves, fx);
        self.explain_orphans(view.now, fx);
        match &mut self.pod_groups {
            Some(groups) => groups.sync(&mut self.gangs, view.now, &mut fx.writes),
            None => drop(self.gangs.take_changed()),
        }
        if let Some(topology) = &mut self.topology {
            topology.sync(view.now, &mut fx.writes);
        }
    }
    fn next_tick(&self) -> Option<Timestamp> {
        let groups = self.pod_groups.as_ref().and_then(PodGroups::next_deadline);
        let topology = self.topology.as_ref().and_then(Topology::next_check);
        let orphans = self.orphans.next_check();
        groups.into_iter().chain(topology).chain(orphans).min()
    }
}

impl PostFilterTransformer for Coscheduling {
    fn after_post_filter(
        &mut self,
        cycle: &Cycle<'_>,
        diagnosis: &mut Diagnosis,
        fx: &mut Effects,
    ) {
        let uid = &cycle.pod.uid;
        if !self.gangs.contains(uid) {
            return;
        }
        let own_message = std::mem::take(&mut diagnosis.post_filter_message);
        let fit = match &*diagnosis.pre_filter_message {
            "" => diagnosis.message(),
            // For the other members, a rejection by PreFilter counts for every node.
            text => {
                let nodes = diagnosis.total_nodes;
                format!("0/{nodes} nodes are available: {nodes} {text}.")
            }
        };
        let group_message = diagnosis.for_group.take().map(|message| {
            let pod = cycle.pod;
            format!("preemption: preemption already attempted by {pod} with message {message}")
        });
        let mut moves = Moves::default();
        let failure = self.gangs.failed(uid, &fit, &mut moves);
        self.track_attempt(Some(metrics::ALL_TRIED), cycle.view.now);
        if let Some(group_message) = &group_message {
            self.record_preemption(uid, group_message);
        }
        let skipped = std::mem::take(&mut moves.skipped);
        if let Some(failure) = failure.filter(|_| self.explain_skipped && !skipped.is_empty()) {
            let mut text = Diagnosis::default();
            text.total_nodes = diagnosis.total_nodes;
            text.pre_filter_message = failure.to_string();
            text.post_filter_message = group_message.unwrap_or_else(|| own_message.clone());
            let text = text.message();
            fx.explain
                .extend(skipped.into_iter().map(|uid| (uid, text.clone())));
        }
        diagnosis.post_filter_message = own_message;
        apply_moves(moves, fx);
    }
}

impl Reserve for Coscheduling {
    fn unreserve(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, fx: &mut Effects) {
        let uid = &cycle.pod.uid;
        if !self.gangs.contains(uid) {
            return;
        }
        let mut moves = Moves::default();
        self.gangs.released(uid, &mut moves);
        apply_moves(moves, fx);
    }
}

impl PostBind for Coscheduling {
    fn post_bind(&mut self, pod: &Arc<PodInfo>, _node: &str, _view: View<'_>, fx: &mut Effects) {
        let mut moves = Moves::default();
        self.gangs.bound(&pod.uid, &mut moves);
        apply_moves(moves, fx);
    }
}
