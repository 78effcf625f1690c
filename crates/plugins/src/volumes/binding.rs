//! `VolumeBinding`: places a pod where the volumes of its claims are, or where they can be provisioned.
//!
//! A claim whose class waits for its first consumer gets its volume here: either a suitable existing volume
//! is bound to it, or the selected node is written to the claim so that a volume is provisioned there. The
//! pod keeps its reservation of volumes, and is bound once its claims are.

use super::matching::ClaimId;
use super::metrics::Failures;
use super::plan::{self, Plan, Progress};
use super::pool::hosts_of;
use super::search::PodClaims;
use super::storage::Storage;
use super::trimmed::{TrimmedClaim, TrimmedVolume};
use super::{
    CAPACITIES, CLAIMS, CLASSES, CSI_DRIVERS, Key, VOLUMES, indexes, interest, storage, uses,
    uses_claims,
};
use crate::common::args::{decode, invalid};
use crate::common::hostname_index::HostnameIndex;
use crate::common::shape::Shape;
use jiff::{SignedDuration, Timestamp};
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter, IndexKind,
    Inputs, Interest, MetricSamples, MetricSource, ObjectChange, ObjectEvents, PerProfile, Permit,
    PermitResult, Plugin, PodEvents, Points, PreFilter, PreFilterResult, PreScore, PreScoreResult,
    QueueHints, QueueingHint, Reason, Rejection, Reserve, Roles, Score, Sign, Signable, Signature,
    State, Subject, Tick, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "VolumeBinding";
/// Timeout after which writes that the informer has not shown are sent again.
const RESEND: SignedDuration = SignedDuration::from_secs(10);

/// VolumeBindingArgs.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    bind_timeout_seconds: i64,
    shape: Option<Shape>,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            bind_timeout_seconds: 600,
            shape: None,
        }
    }
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let gate = context.gates.get("DisableCSIStorageCapacityInformer");
    Ok(Box::new(VolumeBinding {
        settings: PerProfile::new(BindingSettings::new(value, context)?),
        capacities: gate.is_none_or(|off| !off),
        assigned: FxHashMap::default(),
        selected: FxHashMap::default(),
        plans: FxHashMap::default(),
        by_claim: FxHashMap::default(),
        resend: VecDeque::new(),
        assignment_changes: 0,
        failures: Failures::default(),
        hosts: HostnameIndex::default(),
    }))
}

/// Settings of one profile.
#[derive(Debug)]
struct BindingSettings {
    timeout: Duration,
    /// Score by storage utilization; `None` in every profile if scoring is off.
    shape: Option<Shape>,
}

impl BindingSettings {
    /// Parses and validates the arguments of one profile.
    fn new(value: Option<&Value>, context: &BuildContext) -> Result<Self, BuildError> {
        let args: Args = decode(NAME, value)?;
        let scores = context.gates.get("StorageCapacityScoring") == Some(&true);
        let Ok(seconds) = u64::try_from(args.bind_timeout_seconds) else {
            let message = format!(
                "args.bindTimeoutSeconds: {} is below 0",
                args.bind_timeout_seconds
            );
            return Err(invalid(NAME, message));
        };
        let shape = match (scores, args.shape) {
            (false, None) => None,
            (false, Some(_)) => {
                let message =
                    "args.shape: needs the feature gate StorageCapacityScoring".to_owned();
                return Err(invalid(NAME, message));
            }
            (true, shape) => {
                let shape = shape.filter(|shape| !shape.is_empty());
                let shape = shape.unwrap_or_else(Shape::falling);
                let checked = shape.validate();
                checked.map_err(|message| invalid(NAME, format!("args.shape: {message}")))?;
                Some(shape)
            }
        };
        let timeout = Duration::from_secs(seconds);
        Ok(Self { timeout, shape })
    }
}

/// State of the `VolumeBinding` plugin.
#[derive(Debug)]
pub(crate) struct VolumeBinding {
    settings: PerProfile<BindingSettings>,
    /// True if the storage capacity that CSI drivers report is checked.
    pub(super) capacities: bool,
    /// Volumes that plans assign to claims, by volume name.
    assigned: FxHashMap<String, AssignedVolume>,
    /// Nodes that plans selected for claims, with the number of pods that depend on each selection.
    selected: FxHashMap<Key, (String, usize)>,
    /// Plans in progress, by pod uid.
    plans: FxHashMap<Arc<str>, Plan>,
    /// Uids of the pods whose plans involve a claim.
    by_claim: FxHashMap<Key, BTreeSet<Arc<str>>>,
    /// Times of the last writes of plans, in order. Entries of plans that were written again or finished are
    /// skipped.
    resend: VecDeque<(Timestamp, Arc<str>)>,
    /// Counts assignments and releases of volumes that are reachable from more than single hosts.
    pub(super) assignment_changes: u64,
    pub(super) failures: Failures,
    hosts: HostnameIndex,
}

/// Volume that plans assign to a claim.
#[derive(Debug)]
struct AssignedVolume {
    to: ClaimId,
    /// Uids of the pods whose plans do so.
    by: BTreeSet<Arc<str>>,
}

impl VolumeBinding {
    /// Returns the node that plans selected for a claim.
    pub(super) fn selected_node_for(&self, claim: &str) -> Option<&str> {
        let (node, _) = self.selected.get(claim)?;
        Some(node)
    }

    /// Returns the claim to which plans assign a volume.
    pub(super) fn assigned_claim(&self, volume: &str) -> Option<&ClaimId> {
        self.assigned.get(volume).map(|assigned| &assigned.to)
    }

    /// Returns the volumes that plans assign to a claim.
    pub(super) fn assigned_volumes(&self, claim: &str) -> impl Iterator<Item = &String> {
        let uids = self.by_claim.get(claim).into_iter().flatten();
        let steps = uids
            .filter_map(|uid| self.plans.get(uid))
            .flat_map(|plan| &plan.steps);
        let steps = steps.filter(move |step| step.claim == *claim);
        steps.filter_map(|step| step.volume.as_ref())
    }

    /// Handles the assignment or release of a volume: touches the nodes of its hosts, or counts it in
    /// [`Self::assignment_changes`] if any node may reach it.
    fn on_assignment_changed(&mut self, volume: &TrimmedVolume, fx: &mut Effects) {
        match hosts_of(volume) {
            Some(hosts) => {
                let nodes = hosts.into_iter().flat_map(|host| self.hosts.nodes(host));
                fx.touched.extend(nodes);
            }
            None => self.assignment_changes += 1,
        }
    }

    /// Records the assignments and selected nodes of a plan.
    fn record_plan(&mut self, storage: &Storage, uid: &Arc<str>, plan: &Plan, fx: &mut Effects) {
        for step in &plan.steps {
            let pods = self.by_claim.entry(step.claim.clone()).or_default();
            pods.insert(uid.clone());
            match &step.volume {
                Some(name) => {
                    let assigned =
                        self.assigned
                            .entry(name.clone())
                            .or_insert_with(|| AssignedVolume {
                                to: step.id.clone(),
                                by: BTreeSet::new(),
                            });
                    assigned.by.insert(uid.clone());
                    if let Some(volume) = storage.volumes.get(name) {
                        self.on_assignment_changed(volume, fx);
                    }
                }
                None => {
                    let entry = self.selected.entry(step.claim.clone());
                    entry.or_insert_with(|| (plan.node.clone(), 0)).1 += 1;
                }
            }
        }
    }

    /// Drops the plan of a pod, with its assignments and selected nodes.
    fn drop_plan(&mut self, storage: &Storage, uid: &str, fx: &mut Effects) {
        let Some(plan) = self.plans.remove(uid) else {
            return;
        };
        for step in &plan.steps {
            if let Some(pods) = self.by_claim.get_mut(&step.claim) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.by_claim.remove(&step.claim);
                }
            }
            if let Some(name) = &step.volume {
                // Another pod may depend on the same assignment.
                if let Some(assigned) = self.assigned.get_mut(name) {
                    assigned.by.remove(uid);
                    if assigned.by.is_empty() {
                        self.assigned.remove(name);
                    }
                }
                if let Some(volume) = storage.volumes.get(name) {
                    self.on_assignment_changed(volume, fx);
                }
            } else if let Some((_, pods)) = self.selected.get_mut(&step.claim) {
                *pods -= 1;
                if *pods == 0 {
                    self.selected.remove(&step.claim);
                }
            }
        }
    }

    /// Checks the progress of plans that involve a changed claim or volume.
    fn check_plans(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let mut uids = BTreeSet::new();
        let of_claim = |claim: &str| self.by_claim.get(claim).into_iter().flatten().cloned();
        if let Some(claim) = change.new_as::<TrimmedClaim>() {
            uids.extend(of_claim(&claim.names.key()));
        }
        if let Some(volume) = change.new_as::<TrimmedVolume>() {
            if let Some(claim) = volume.claim_key() {
                uids.extend(of_claim(&claim));
            }
            if let Some(assigned) = self.assigned.get(&*volume.names.name) {
                uids.extend(assigned.by.iter().cloned());
            }
        }
        let storage = storage(view);
        for uid in uids {
            let plan = self.plans.get_mut(&uid);
            let Some(plan) = plan.filter(|plan| plan.sent.is_some()) else {
                continue;
            };
            match plan.progress(storage, node_info(&plan.node, view).as_deref()) {
                Progress::Done => fx.allow.push((uid, NAME)),
                Progress::Pending => {}
                Progress::Failed(problem) => {
                    let reason = Reason::from(format!("binding volumes: {problem}"));
                    fx.reject.push((uid, NAME, reason));
                }
            }
        }
    }

    /// Returns true if `sent` is the time of the last write of the pod's plan.
    fn is_last_write(&self, sent: Timestamp, uid: &str) -> bool {
        let plan = self.plans.get(uid);
        plan.is_some_and(|plan| plan.sent.is_some_and(|(_, last)| last == sent))
    }
}

fn node_info(name: &str, view: View<'_>) -> Option<Arc<NodeInfo>> {
    let node = view.nodes.find(name)?;
    view.nodes.info(node).cloned()
}

impl Plugin for VolumeBinding {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .object_events()
        .pod_events()
        .tick()
        .reserve()
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
        let settings = BindingSettings::new(args, context);
        Some(settings.map(|settings| self.settings.join(profile, settings)))
    }
    fn points(&self) -> Points {
        let points = Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::RESERVE)
            .or(Points::PRE_BIND);
        match self.settings.first().shape {
            Some(_) => points.or(Points::PRE_SCORE).or(Points::SCORE),
            None => points,
        }
    }
}

impl Sign for VolumeBinding {
    fn sign(&self, _: &PodInfo, _: &ResourceTable, _: &mut Signature) -> Signable {
        Signable::Yes
    }
    fn sign_external(&self, pod: &PodInfo, view: View<'_>, signature: &mut Signature) -> Signable {
        if !uses_claims(pod) {
            return Signable::Yes;
        }
        let storage = storage(view);
        let Ok(pod_claims) = self.pod_claims(storage, pod) else {
            return Signable::No;
        };
        let scored = self.settings.for_pod(pod).shape.is_some();
        self.sign_claims(storage, &pod_claims, scored, signature);
        Signable::Yes
    }
}

impl Inputs for VolumeBinding {
    fn watches(&self) -> Vec<Watch> {
        let all = [CLAIMS, VOLUMES, CLASSES, CSI_DRIVERS, CAPACITIES];
        let count = if self.capacities {
            all.len()
        } else {
            all.len() - 1
        };
        Storage::watches(&all[..count])
    }
    fn indexes(&self) -> Vec<IndexKind> {
        indexes()
    }
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        if !uses_claims(cycle.pod) {
            return PreFilterResult::Skip;
        }
        match self.pod_claims(storage(cycle.view), cycle.pod) {
            Ok(pod_claims) => PreFilterResult::ready(pod_claims),
            Err(rejection) => PreFilterResult::Reject(rejection),
        }
    }
    /// Returns the nodes of the local volume that the fewest nodes reach, or the node that was selected
    /// before.
    fn only_nodes(&self, cycle: &Cycle<'_>, state: &State) -> Option<Vec<NodeIndex>> {
        let pod_claims = state.get::<PodClaims>()?;
        let (nodes, storage) = (cycle.view.nodes, storage(cycle.view));
        let bound = pod_claims.bound.iter();
        let volumes = bound.filter_map(|claim| storage.volumes.get(&*claim.volume));
        let local = volumes.filter_map(|volume| {
            let terms = volume.reachable.as_deref()?;
            self.hosts.candidate_nodes(terms, nodes)
        });
        let chosen = pod_claims.delayed.iter().filter_map(|delayed| {
            let selected = delayed.selected.as_ref()?;
            Some(nodes.find(selected).into_iter().collect())
        });
        local.chain(chosen).min_by_key(Vec::len)
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(pod_claims), Some(info)) =
            (state.get::<PodClaims>(), cycle.view.nodes.info(node))
        else {
            return Ok(());
        };
        self.check_node(storage(cycle.view), pod_claims, info, None)
    }
}

impl PreScore for VolumeBinding {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let shape = self.settings.for_pod(cycle.pod).shape.as_ref();
        let pod_claims = shape.map(|_| self.pod_claims(storage(cycle.view), cycle.pod));
        match pod_claims {
            Some(Ok(pod_claims)) if !pod_claims.delayed.is_empty() => {
                PreScoreResult::Ready(State::new(pod_claims))
            }
            _ => PreScoreResult::Skip,
        }
    }
}

impl Score for VolumeBinding {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let shape = &self.settings.for_pod(cycle.pod).shape;
        let (Some(shape), Some(pod_claims)) = (shape, state.get::<PodClaims>()) else {
            return 0;
        };
        let Some(info) = cycle.view.nodes.info(node) else {
            return 0;
        };
        let mut steps = Vec::new();
        let verdict = self.check_node(storage(cycle.view), pod_claims, info, Some(&mut steps));
        if verdict.is_err() {
            steps.clear();
        }
        plan::score(&steps, shape)
    }
}

impl QueueHints for VolumeBinding {
    fn interests(&self) -> Vec<Interest> {
        let change = Action::ADD.or(Action::UPDATE);
        vec![
            interest(Subject::Object(CLASSES), change),
            interest(Subject::Object(CLAIMS), change),
            interest(Subject::Object(VOLUMES), change),
            interest(Subject::Node, Action::ADD.or(Action::NODE_LABEL)),
            interest(Subject::Object(CSI_DRIVERS), Action::UPDATE),
            interest(Subject::Object(CAPACITIES), change),
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        let claim = event.object.and_then(ObjectChange::new_as);
        match claim {
            Some(claim) if !uses(pod, claim) => QueueingHint::Skip,
            _ => QueueingHint::Queue,
        }
    }
    fn event_subject(&self, event: &ClusterEvent<'_>) -> Option<String> {
        super::event_claim_key(event)
    }
    fn referenced_objects<'a>(&self, pod: &'a PodInfo) -> Vec<&'a str> {
        super::used_claim_keys(pod)
    }
}

impl Permit for VolumeBinding {
    fn ready_to_bind(
        &mut self,
        cycle: &Cycle<'_>,
        _node: NodeIndex,
        fx: &mut Effects,
    ) -> PermitResult {
        let now = cycle.view.now;
        let storage = storage(cycle.view);
        let Some(plan) = self.plans.get_mut(&cycle.pod.uid) else {
            return PermitResult::Allow;
        };
        let since = match plan.sent {
            Some((first, _)) => first,
            None => {
                plan.sent = Some((now, now));
                self.resend.push_back((now, cycle.pod.uid.clone()));
                fx.writes.extend(plan.writes(storage));
                now
            }
        };
        match plan.progress(storage, node_info(&plan.node, cycle.view).as_deref()) {
            Progress::Done => {
                self.drop_plan(storage, &cycle.pod.uid, fx);
                PermitResult::Allow
            }
            Progress::Pending => {
                let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                let timeout = self.settings.for_pod(cycle.pod).timeout;
                PermitResult::Wait(timeout.saturating_sub(waited))
            }
            Progress::Failed(problem) => {
                let reason = format!("binding volumes: {problem}");
                PermitResult::Reject(Rejection::unschedulable(reason))
            }
        }
    }
}

impl MetricSource for VolumeBinding {
    fn read(&mut self, _view: View<'_>, out: &mut MetricSamples) {
        self.failures.read(out);
    }
}

impl ObjectEvents for VolumeBinding {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        if matches!(change.kind, CLAIMS | VOLUMES) {
            let hosts = storage(view).changed_hosts().iter();
            fx.touched
                .extend(hosts.flat_map(|host| self.hosts.nodes(host)));
            self.check_plans(change, view, fx);
        }
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let info = view.nodes.info(node);
        self.hosts.set(node, info.map(|info| &**info));
    }
}

impl PodEvents for VolumeBinding {
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        _node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        self.drop_plan(storage(view), &pod.uid, fx);
    }
}

impl Tick for VolumeBinding {
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        while let Some((sent, uid)) = self.resend.front() {
            let is_last_write = self.is_last_write(*sent, uid);
            if is_last_write && view.now.duration_since(*sent) < RESEND {
                break;
            }
            let Some((_, uid)) = self.resend.pop_front() else {
                break;
            };
            if let Some(plan) = self.plans.get_mut(&uid).filter(|_| is_last_write)
                && let Some((_, last)) = &mut plan.sent
            {
                *last = view.now;
                fx.writes.extend(plan.writes(storage(view)));
                self.resend.push_back((view.now, uid));
            }
        }
    }
    fn next_tick(&self) -> Option<Timestamp> {
        let mut resends = self.resend.iter();
        let (sent_at, _) = resends.find(|(sent_at, uid)| self.is_last_write(*sent_at, uid))?;
        sent_at.saturating_add(RESEND).ok()
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&mut self, cycle: &Cycle<'_>, node: NodeIndex, fx: &mut Effects) -> Verdict {
        if !uses_claims(cycle.pod) {
            return Ok(());
        }
        let Some(info) = cycle.view.nodes.info(node) else {
            return Ok(());
        };
        let storage = storage(cycle.view);
        let mut steps = Vec::new();
        let verdict = self
            .pod_claims(storage, cycle.pod)
            .and_then(|pod_claims| self.check_node(storage, &pod_claims, info, Some(&mut steps)));
        if verdict.is_err() {
            Failures::count(&self.failures.assume);
        }
        verdict?;
        if !steps.is_empty() {
            let node = info.name.to_string();
            let plan = Plan {
                node,
                steps,
                sent: None,
            };
            self.record_plan(storage, &cycle.pod.uid, &plan, fx);
            self.plans.insert(cycle.pod.uid.clone(), plan);
        }
        Ok(())
    }
    fn unreserve(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, fx: &mut Effects) {
        // A plan is removed when it succeeds, so an existing one that was sent has failed.
        let plan = self.plans.get(&cycle.pod.uid);
        if plan.is_some_and(|plan| plan.sent.is_some()) {
            Failures::count(&self.failures.bind);
        }
        self.drop_plan(storage(cycle.view), &cycle.pod.uid, fx);
    }
}
