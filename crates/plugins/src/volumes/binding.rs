//! `VolumeBinding`: a pod goes where its claims' volumes are, or where they can be had.
//!
//! A claim whose class waits for its first consumer gets its volume here: an existing one that suits
//! is given to it, or the node is written to the claim so that a volume is made there. The pod keeps
//! what it booked and is bound when the claims are.

use super::matching::{self, ClaimId, has_room, reachable, topology_allows};
use super::metrics::Failures;
use super::plan::{self, Fill, Plan, Progress, SELECTED_NODE, Step};
use super::storage::{
    Storage, annotation, claim_class, claim_ref, fully_bound, key, request, volume_name,
};
use super::{
    CAPACITIES, CLAIMS, CLASSES, CSI_DRIVERS, Key, VOLUMES, claims, indexes, interest, storage,
    uses, uses_claims,
};
use crate::args::{decode, invalid};
use crate::hosts::Hosts;
use crate::shape::Shape;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BuildContext, BuildError, ClusterEvent, Code, Cycle, Effects, Helps, IndexKind,
    Interest, ObjectChange, PerProfile, Permit, Plugin, Points, PreFilter, PreScore, Readings,
    Reason, Reasons, Rejection, Signable, Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "VolumeBinding";
const UNBOUND: &str = "pod has unbound immediate PersistentVolumeClaims";
const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const NO_ROOM: &str = "node(s) did not have enough free storage";
const NO_SUCH_VOLUME: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// The provisioner of classes whose volumes are made by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Writes that the informer has not shown by then are sent again.
const RESEND: SignedDuration = SignedDuration::from_secs(10);

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
) -> Result<Box<dyn Plugin>, BuildError> {
    let gate = context.gates.get("DisableCSIStorageCapacityInformer");
    Ok(Box::new(VolumeBinding {
        settings: PerProfile::new(Settings::new(value, context)?),
        capacities: gate.is_none_or(|off| !off),
        given: FxHashMap::default(),
        selected: FxHashMap::default(),
        plans: FxHashMap::default(),
        failures: Failures::default(),
        hosts: Hosts::default(),
    }))
}

/// What the arguments come down to.
#[derive(Debug)]
struct Settings {
    timeout: Duration,
    /// How full storage scores; none, in every profile: it does not.
    shape: Option<Shape>,
}

impl Settings {
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

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct VolumeBinding {
    settings: PerProfile<Settings>,
    /// Whether the room that drivers report is looked at.
    capacities: bool,
    /// Volumes given to claims by plans, by name.
    given: FxHashMap<String, ClaimId>,
    /// Nodes chosen for claims by plans, and how many pods rely on it.
    selected: FxHashMap<Key, (String, usize)>,
    /// What is under way, by pod uid.
    plans: FxHashMap<Arc<str>, Plan>,
    failures: Failures,
    hosts: Hosts,
}

/// The pod's claims, as they are this cycle.
#[derive(Debug, Default)]
struct Wanted {
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Those that wait for their first consumer, smallest first.
    delayed: Vec<Arc<PersistentVolumeClaim>>,
}

/// Whether there is room for a volume that is to be made.
enum Room<'a> {
    /// The driver does not say how much it has.
    NotAsked,
    Here(&'a CSIStorageCapacity),
    None,
}

/// What a node can do for the delayed claims.
type Answer = Result<Vec<Step>, Rejection>;

fn unresolvable(reasons: Vec<&'static str>) -> Rejection {
    let reasons: Vec<Reason> = reasons.into_iter().map(Reason::Static).collect();
    Rejection {
        code: Code::Unresolvable,
        reasons: Reasons::Many(reasons.into()),
    }
}

impl VolumeBinding {
    fn wanted(storage: &Storage, pod: &PodInfo) -> Result<Wanted, Rejection> {
        let mut out = Wanted::default();
        let mut immediate = false;
        for used in claims(pod) {
            let name = &used.name;
            let Some(claim) = storage.claims.get(&used.key(pod)) else {
                let text = if used.ephemeral {
                    format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                    )
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                };
                return Err(Rejection::unresolvable(text));
            };
            let volume = volume_name(claim);
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            let problem = if phase == Some("Lost") {
                Some(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ))
            } else if claim.metadata.deletion_timestamp.is_some() {
                Some(format!("persistentvolumeclaim {name:?} is being deleted"))
            } else {
                used.foreign(pod, claim)
            };
            if let Some(problem) = problem {
                return Err(Rejection::unresolvable(problem));
            }
            if fully_bound(claim) {
                out.bound.push(claim.clone());
                continue;
            }
            let delayed = storage.delayed(claim).map_err(Rejection::error)?;
            if delayed && volume.is_empty() {
                out.delayed.push(claim.clone());
            } else {
                immediate = true;
            }
        }
        if immediate {
            return Err(Rejection::unresolvable(UNBOUND));
        }
        out.delayed
            .sort_by_key(|claim| (request(claim), key(&claim.metadata)));
        Ok(out)
    }

    /// Whether the node can reach or get all volumes, and how.
    fn answer(&self, storage: &Storage, wanted: &Wanted, node: &NodeInfo) -> Answer {
        let mut reasons = Vec::new();
        let mut missing = false;
        for claim in &wanted.bound {
            match storage.volumes.get(volume_name(claim)) {
                Some(volume) if reachable(volume, node) => {}
                Some(_) => {
                    reasons.push(ELSEWHERE);
                    break;
                }
                None => {
                    missing = true;
                    break;
                }
            }
        }
        let mut steps = Vec::new();
        let found = self.find(storage, &wanted.delayed, node, &mut steps)?;
        reasons.extend(found);
        if missing {
            reasons.push(NO_SUCH_VOLUME);
        }
        if reasons.is_empty() {
            Ok(steps)
        } else {
            Err(unresolvable(reasons))
        }
    }

    /// Volumes for claims that have none; why not, if not.
    fn find(
        &self,
        storage: &Storage,
        delayed: &[Arc<PersistentVolumeClaim>],
        node: &NodeInfo,
        steps: &mut Vec<Step>,
    ) -> Result<Option<&'static str>, Rejection> {
        let mut make = Vec::new();
        let mut search = Vec::new();
        for claim in delayed {
            match self.node_of(claim) {
                Some(selected) if *selected != *node.name => return Ok(Some(NO_VOLUME)),
                Some(_) => make.push(claim),
                None => search.push(claim),
            }
        }
        let mut taken = Vec::new();
        for claim in search {
            let class = claim_class(claim);
            let all = storage.of_class(&class).map(|volume| {
                let name = volume.metadata.name.as_deref().unwrap_or_default();
                (volume, self.given.get(name))
            });
            match matching::find(claim, all, node, &taken) {
                Some(volume) => {
                    let name = volume.metadata.name.clone().unwrap_or_default();
                    taken.push(name.clone());
                    let id = ClaimId::of(claim);
                    let fill = Some(Fill::of_volume(&class, claim, volume));
                    steps.push(Step::new(key(&claim.metadata), id, Some(name), fill));
                }
                None => make.push(claim),
            }
        }
        for claim in make {
            let name = claim_class(claim);
            let Some(class) = storage.classes.get(&name) else {
                Failures::count(&self.failures.predicate);
                let text = format!("failed to find storage class {name:?}");
                return Err(Rejection::error(text));
            };
            let by_hand = matches!(class.provisioner.as_str(), "" | NO_PROVISIONER);
            if by_hand || !topology_allows(class, node) {
                return Ok(Some(NO_VOLUME));
            }
            let fill = match self.room(storage, class, &name, claim, node) {
                Room::NotAsked => None,
                Room::Here(capacity) => Some(Fill::of_class(&name, claim, capacity)),
                Room::None => return Ok(Some(NO_ROOM)),
            };
            let id = ClaimId::of(claim);
            steps.push(Step::new(key(&claim.metadata), id, None, fill));
        }
        Ok(None)
    }

    fn node_of<'a>(&'a self, claim: &'a PersistentVolumeClaim) -> Option<&'a str> {
        match self.selected.get(&key(&claim.metadata)) {
            Some((node, _)) => Some(node),
            None => annotation(&claim.metadata, SELECTED_NODE),
        }
    }

    fn room<'a>(
        &self,
        storage: &'a Storage,
        class: &StorageClass,
        name: &str,
        claim: &PersistentVolumeClaim,
        node: &NodeInfo,
    ) -> Room<'a> {
        let driver = storage.csi_drivers.get(&class.provisioner);
        let asks = self.capacities
            && driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
        let (true, Some(size)) = (asks, request(claim)) else {
            return Room::NotAsked;
        };
        let mut all = storage.capacities.values();
        let found = all.find(|capacity| has_room(capacity, name, size, node));
        found.map_or(Room::None, |capacity| Room::Here(capacity))
    }

    /// Books what the plan gives away.
    fn hold(&mut self, plan: &Plan) {
        for step in &plan.steps {
            match &step.volume {
                Some(volume) => {
                    self.given.insert(volume.clone(), step.id.clone());
                }
                None => {
                    let entry = self.selected.entry(step.claim.clone());
                    entry.or_insert_with(|| (plan.node.clone(), 0)).1 += 1;
                }
            }
        }
    }

    fn let_go(&mut self, uid: &str) {
        let Some(plan) = self.plans.remove(uid) else {
            return;
        };
        for step in &plan.steps {
            if let Some(volume) = &step.volume {
                // Another pod may rely on the same claim getting the same volume.
                let mut others = self.plans.values().flat_map(|plan| &plan.steps);
                if !others.any(|other| other.volume.as_ref() == Some(volume)) {
                    self.given.remove(volume);
                }
            } else if let Some((_, pods)) = self.selected.get_mut(&step.claim) {
                *pods -= 1;
                if *pods == 0 {
                    self.selected.remove(&step.claim);
                }
            }
        }
    }

    /// Looks at the plans that have to do with a claim or volume again.
    fn review(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let claim = change
            .new_as::<PersistentVolumeClaim>()
            .map(|c| key(&c.metadata));
        let volume = change
            .new_as::<PersistentVolume>()
            .map(|v| key(&v.metadata));
        let bound_to = change
            .new_as::<PersistentVolume>()
            .and_then(claim_ref)
            .map(|of| {
                let text = |field: &Option<String>| field.clone().unwrap_or_default();
                format!("{}/{}", text(&of.namespace), text(&of.name))
            });
        let storage = storage(view);
        for (uid, plan) in &mut self.plans {
            let concerned = plan.steps.iter().any(|step| {
                claim.as_ref() == Some(&step.claim)
                    || bound_to.as_ref() == Some(&step.claim)
                    || (volume.is_some() && step.volume == volume)
            });
            if !concerned || plan.sent.is_none() {
                continue;
            }
            match plan.progress(storage, node_info(&plan.node, view).as_deref()) {
                Progress::Done => fx.allow.push((uid.clone(), NAME)),
                Progress::Pending => {}
                Progress::Failed(problem) => {
                    let reason = Reason::from(format!("binding volumes: {problem}"));
                    fx.reject.push((uid.clone(), NAME, reason));
                }
            }
        }
    }
}

fn node_info(name: &str, view: View<'_>) -> Option<Arc<NodeInfo>> {
    let node = view.nodes.find(name)?;
    view.nodes.info(node).cloned()
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }
    fn join(
        &mut self,
        profile: &str,
        args: Option<&Value>,
        context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        let settings = Settings::new(args, context);
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
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> Helps {
        let claim = event.object.and_then(ObjectChange::new_as);
        match claim {
            Some(claim) if !uses(pod, claim) => Helps::Skip,
            _ => Helps::Queue,
        }
    }
    fn sign(&self, pod: &PodInfo, _view: View<'_>, _signature: &mut Signature) -> Signable {
        if uses_claims(pod) {
            Signable::No
        } else {
            Signable::Yes
        }
    }

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
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        if matches!(change.kind, CLAIMS | VOLUMES) {
            self.review(change, view, fx);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.let_go(&pod.uid);
    }
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        for plan in self.plans.values_mut() {
            if let Some((_, last)) = &mut plan.sent
                && view.now.duration_since(*last) >= RESEND
            {
                *last = view.now;
                fx.writes.extend(plan.writes(storage(view)));
            }
        }
    }
    fn next_tick(&self) -> Option<Timestamp> {
        let sent = self.plans.values().filter_map(|plan| plan.sent);
        sent.filter_map(|(_, last)| last.saturating_add(RESEND).ok())
            .min()
    }

    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilter {
        if !uses_claims(cycle.pod) {
            return PreFilter::Skip;
        }
        match Self::wanted(storage(cycle.view), cycle.pod) {
            Ok(wanted) => PreFilter::ready(wanted),
            Err(rejection) => PreFilter::Reject(rejection),
        }
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let info = view.nodes.info(node);
        self.hosts.set(node, info.map(|info| &**info));
    }
    /// Those of the local volume that the fewest nodes have.
    fn only_nodes(&self, cycle: &Cycle<'_>, state: &State) -> Option<Vec<NodeIndex>> {
        let bound = state.get::<Wanted>()?.bound.iter();
        let storage = storage(cycle.view);
        let volumes = bound.filter_map(|claim| storage.volumes.get(volume_name(claim)));
        let lists = volumes.filter_map(|volume| {
            let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
            let terms = &affinity.required.as_ref()?.node_selector_terms;
            self.hosts.of_terms(terms, cycle.view.nodes)
        });
        lists.min_by_key(Vec::len)
    }
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(wanted), Some(info)) = (state.get::<Wanted>(), cycle.view.nodes.info(node))
        else {
            return Ok(());
        };
        self.answer(storage(cycle.view), wanted, info).map(drop)
    }
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScore {
        let shape = self.settings.of(cycle.pod).shape.as_ref();
        let wanted = shape.map(|_| Self::wanted(storage(cycle.view), cycle.pod));
        match wanted {
            Some(Ok(wanted)) if !wanted.delayed.is_empty() => PreScore::Ready(State::of(wanted)),
            _ => PreScore::Skip,
        }
    }
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let shape = &self.settings.of(cycle.pod).shape;
        let (Some(shape), Some(wanted)) = (shape, state.get::<Wanted>()) else {
            return 0;
        };
        let Some(info) = cycle.view.nodes.info(node) else {
            return 0;
        };
        let steps = self
            .answer(storage(cycle.view), wanted, info)
            .unwrap_or_default();
        plan::score(&steps, shape)
    }

    fn reserve(&mut self, cycle: &Cycle<'_>, node: NodeIndex, _fx: &mut Effects) -> Verdict {
        if !uses_claims(cycle.pod) {
            return Ok(());
        }
        let Some(info) = cycle.view.nodes.info(node) else {
            return Ok(());
        };
        let storage = storage(cycle.view);
        let steps =
            Self::wanted(storage, cycle.pod).and_then(|wanted| self.answer(storage, &wanted, info));
        if steps.is_err() {
            Failures::count(&self.failures.assume);
        }
        let steps = steps?;
        if !steps.is_empty() {
            let node = info.name.to_string();
            let plan = Plan {
                node,
                steps,
                sent: None,
            };
            self.hold(&plan);
            self.plans.insert(cycle.pod.uid.clone(), plan);
        }
        Ok(())
    }
    fn unreserve(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, _fx: &mut Effects) {
        // What was done is forgotten when it has succeeded.
        let plan = self.plans.get(&cycle.pod.uid);
        if plan.is_some_and(|plan| plan.sent.is_some()) {
            Failures::count(&self.failures.bind);
        }
        self.let_go(&cycle.pod.uid);
    }
    fn read(&mut self, _view: View<'_>, out: &mut Readings) {
        self.failures.read(out);
    }
    fn ready_to_bind(&mut self, cycle: &Cycle<'_>, _node: NodeIndex, fx: &mut Effects) -> Permit {
        let now = cycle.view.now;
        let storage = storage(cycle.view);
        let Some(plan) = self.plans.get_mut(&cycle.pod.uid) else {
            return Permit::Allow;
        };
        let since = match plan.sent {
            Some((first, _)) => first,
            None => {
                plan.sent = Some((now, now));
                fx.writes.extend(plan.writes(storage));
                now
            }
        };
        match plan.progress(storage, node_info(&plan.node, cycle.view).as_deref()) {
            Progress::Done => {
                self.let_go(&cycle.pod.uid);
                Permit::Allow
            }
            Progress::Pending => {
                let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                let timeout = self.settings.of(cycle.pod).timeout;
                Permit::Wait(timeout.saturating_sub(waited))
            }
            Progress::Failed(problem) => {
                let reason = format!("binding volumes: {problem}");
                Permit::Reject(Rejection::unschedulable(reason))
            }
        }
    }
}
