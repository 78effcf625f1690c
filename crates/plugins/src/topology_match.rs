//! `NodeResourceTopologyMatch`: keeps pods off nodes whose kubelet would reject them with
//! `TopologyAffinityError`.
//!
//! An exporter reports the free resources of each NUMA node; the kubelet chooses a NUMA node after the
//! binding. The plugin predicts that choice. Pods placed between two reports are subtracted from every NUMA
//! node until a report has counted them, which the report's fingerprint of the node's pods shows
//! ([`NodeTopologyState`]).

mod args;
mod node_state;
mod pod;
mod report;
mod report_wait;
#[cfg(test)]
mod tests;

use crate::common::topologies::{self, TOPOLOGIES, TrimmedTopology};
use args::{Args, CacheMode, OverReserve, ResyncScope, TopologyMatchSettings};
use jiff::Timestamp;
use koord_api::topology::zone_name;
use koord_model::alignment::{self, AlignmentError, AlignmentRequest, Policy};
use koord_model::resources::{Amounts, ResourceId, ResourceTable, shown};
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Explain, Filter,
    Holders, Inputs, Interest, NotShown, ObjectChange, ObjectEvents, Plugin, PodEvents, Points,
    PostBind, PostFilterTransformer, PreFilter, PreFilterResult, PreScore, PreScoreResult,
    QueueHints, QueueingHint, Rejection, ReportedProblems, Roles, Score, Shortfall, Sign, Signable,
    Signature, State, Subject, Tick, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use node_state::{NodeTopologyState, is_counted};
use pod::PodFingerprint;
use report::Report;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

const NAME: &str = "NodeResourceTopologyMatch";

/// The `NodeResourceTopologyMatch` plugin.
#[derive(Debug)]
pub(crate) struct TopologyMatch {
    settings: TopologyMatchSettings,
    /// Scheduler names of this process's profiles; pods of all other schedulers are foreign.
    own_schedulers: BTreeSet<String>,
    /// State by node name; a report may arrive before its node.
    states: FxHashMap<Arc<str>, NodeTopologyState>,
    /// The node of each pod that has ended but still exists, by uid.
    ended_on: FxHashMap<Arc<str>, Arc<str>>,
    /// Nodes whose report or pods changed since the two were last compared.
    unchecked: FxHashSet<Arc<str>>,
    /// Rejected pods by uid; they are tried again when a report is accepted.
    refused: FxHashMap<Arc<str>, Arc<PodInfo>>,
    /// The node whose last report offers more than the one before, if any.
    improved_node: Option<NodeIndex>,
    /// Time of the next check for reports that still do not match their node's pods.
    next_check: Option<Timestamp>,
    reported: ReportedProblems,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = crate::common::args::decode(NAME, value)?;
    Ok(Box::new(TopologyMatch {
        settings: args.settings()?,
        own_schedulers: context.schedulers.clone(),
        states: FxHashMap::default(),
        ended_on: FxHashMap::default(),
        unchecked: FxHashSet::default(),
        refused: FxHashMap::default(),
        improved_node: None,
        next_check: None,
        reported: ReportedProblems::default(),
    }))
}

impl TopologyMatch {
    fn over_reserve(&self) -> Option<OverReserve> {
        match self.settings.cache_mode {
            CacheMode::OverReserve(mode) => Some(mode),
            CacheMode::None | CacheMode::Discard => None,
        }
    }

    fn state(&self, node: NodeIndex, view: View<'_>) -> Option<&NodeTopologyState> {
        self.states.get(view.nodes.name(node))
    }

    fn state_mut(&mut self, node: &Arc<str>) -> &mut NodeTopologyState {
        self.states.entry(node.clone()).or_default()
    }

    /// Returns true if the node's state does not allow a decision now.
    fn is_unknown(&self, node_state: &NodeTopologyState) -> bool {
        node_state.is_doubtful() || !node_state.binding.is_empty()
    }

    /// Returns the amounts to subtract from every zone, as this cycle assumes them.
    fn uncounted_sum<'a>(
        &self,
        node_state: &'a NodeTopologyState,
        cycle: &Cycle<'_>,
    ) -> Cow<'a, Amounts> {
        if cycle.overlay.is_empty() || self.over_reserve().is_none() {
            return Cow::Borrowed(node_state.uncounted_sum());
        }
        let mut uncounted = node_state.uncounted_sum().clone();
        let removed = cycle.overlay.removed.iter();
        for needs in removed.filter_map(|pod| node_state.uncounted_by(&pod.uid)) {
            uncounted.sub_all(needs);
        }
        let added = cycle.overlay.added.iter();
        for pod in
            added.filter(|pod| !pod.is_holder() && node_state.uncounted_by(&pod.uid).is_none())
        {
            uncounted.add_all(&pod.requests);
        }
        Cow::Owned(uncounted)
    }

    fn check_fit(
        &self,
        cycle: &Cycle<'_>,
        ask: &AlignmentRequest,
        node: NodeIndex,
    ) -> Result<(), TopologyRefusal> {
        let Some(node_state) = self.state(node, cycle.view) else {
            return Ok(());
        };
        if node_state.is_doubtful() {
            return Err(TopologyRefusal::Doubtful);
        }
        if !node_state.binding.is_empty() {
            return Err(TopologyRefusal::Binding);
        }
        let uncounted = self.uncounted_sum(node_state, cycle);
        let Some(free) = node_state.free(&uncounted) else {
            return Ok(());
        };
        if node_state.config.policy != Policy::SingleNumaNode {
            return Ok(());
        }
        let on_node = |id: ResourceId| cycle.view.nodes.allocatable(node, id) > 0;
        alignment::check_single_zone(ask, node_state.config.scope, free, on_node)
            .map_err(TopologyRefusal::AlignmentError)
    }

    /// Returns true if the pod fits the node's accepted report without any subtraction. What a reservation
    /// holds is free for its owners, so it must not count here.
    fn may_fit(&self, pod: &PodInfo, node: NodeIndex, view: View<'_>) -> bool {
        let Some(node_state) = self.state(node, view) else {
            return true;
        };
        let nothing = Amounts::new();
        let (Some(ask), Some(free)) = (
            pod::alignment_request(pod, view.resources),
            node_state.free(&nothing),
        ) else {
            return true;
        };
        if node_state.config.policy != Policy::SingleNumaNode {
            return true;
        }
        let on_node = |id: ResourceId| view.nodes.allocatable(node, id) > 0;
        alignment::check_single_zone(ask, node_state.config.scope, free, on_node).is_ok()
    }
}

/// Returns the zones that list a resource, with the free amount of each.
fn zone_amounts(
    free: &alignment::FreeZones<'_>,
    zones: impl Iterator<Item = u32>,
    id: ResourceId,
) -> impl Iterator<Item = (u32, i64)> {
    let zones = zones.enumerate();
    zones.filter_map(move |(due_at, zone)| Some((zone, free.get(due_at, id)?)))
}

/// The reason why a node is rejected.
enum TopologyRefusal {
    /// Pods of other schedulers came or went, and no report has counted that yet.
    Doubtful,
    /// Another pod is about to be bound to the node.
    Binding,
    AlignmentError(AlignmentError),
}

impl From<TopologyRefusal> for Rejection {
    fn from(refusal: TopologyRefusal) -> Self {
        Self::unschedulable(match refusal {
            TopologyRefusal::Doubtful => {
                "invalid node topology data: no report has counted the pods of other schedulers"
            }
            TopologyRefusal::Binding => "invalid node topology data: another pod is being bound",
            TopologyRefusal::AlignmentError(unfit) => unfit.message,
        })
    }
}

impl Plugin for TopologyMatch {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .explain()
        .object_events()
        .pod_events()
        .tick()
        .post_filter_transformer()
        .post_bind();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            // Preempts nothing, but must be notified of rejected pods.
            .or(Points::POST_FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
            .or(Points::RESERVE)
            .or(Points::POST_BIND)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for TopologyMatch {
    fn sign(&self, pod: &PodInfo, table: &ResourceTable, signature: &mut Signature) -> Signable {
        match pod::alignment_request(pod, table) {
            Some(ask) => pod::sign(ask, signature),
            None => signature.number(-1),
        }
        Signable::Yes
    }
}

impl Inputs for TopologyMatch {
    fn watches(&self) -> Vec<Watch> {
        vec![topologies::watch()]
    }
}

impl PreFilter for TopologyMatch {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        match pod::alignment_request(cycle.pod, cycle.view.resources) {
            Some(ask) => PreFilterResult::ready(ask.clone()),
            None => PreFilterResult::Skip,
        }
    }
}

impl Filter for TopologyMatch {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(ask) = state.get::<Arc<AlignmentRequest>>() else {
            return Ok(());
        };
        Ok(self.check_fit(cycle, ask, node)?)
    }
}

impl PreScore for TopologyMatch {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        // Nodes do not differ for a pod that gets no exclusive resources.
        match pod::alignment_request(cycle.pod, cycle.view.resources) {
            Some(ask) if ask.guaranteed => PreScoreResult::Ready(State::new(ask.clone())),
            _ => PreScoreResult::Skip,
        }
    }
}

impl Score for TopologyMatch {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let (Some(ask), Some(node_state)) = (
            state.get::<Arc<AlignmentRequest>>(),
            self.state(node, cycle.view),
        ) else {
            return 0;
        };
        let uncounted = self.uncounted_sum(node_state, cycle);
        let Some(free) = node_state
            .free(&uncounted)
            .filter(|_| !self.is_unknown(node_state))
        else {
            return 0;
        };
        let scope = node_state.config.scope;
        match self.settings.strategy {
            None => alignment::least_zones_score(ask, scope, free, node_state.config.max_zones),
            Some(_) if node_state.config.policy != Policy::SingleNumaNode => 0,
            Some(strategy) => {
                let weight = |id: ResourceId| {
                    let weights = &self.settings.weights;
                    if weights.is_empty() {
                        return 1;
                    }
                    let name = cycle.view.resources.name(id);
                    weights.get(&*name).copied().unwrap_or(1)
                };
                alignment::strategy(strategy, ask, scope, &free, weight)
            }
        }
    }
}

impl QueueHints for TopologyMatch {
    fn interests(&self) -> Vec<Interest> {
        [
            (Subject::AssignedPod, Action::DELETE),
            (Subject::Node, Action::ADD.or(Action::NODE_ALLOCATABLE)),
            (
                Subject::Object(TOPOLOGIES),
                Action::ADD.or(Action::UPDATE).or(Action::DELETE),
            ),
        ]
        .map(|(subject, actions)| Interest { subject, actions })
        .to_vec()
    }
    /// Wakes pods that may fit the node of a report that offers more than the one before: exporters report
    /// often, and thousands of pods may wait. A report that is not accepted yet wakes no pod; waiting pods
    /// are activated when it is.
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, view: View<'_>) -> QueueingHint {
        let helps = event.subject != Subject::Object(TOPOLOGIES)
            || (self.improved_node).is_some_and(|node| self.may_fit(pod, node, view));
        if helps {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
}

impl Explain for TopologyMatch {
    fn explain_shortfall(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Shortfall,
    ) {
        // The rejection reasons cover the other cases.
        let _ = self.add_zone_shortfall(cycle, state, node, out);
    }
    fn inspections(&self) -> &'static [&'static str] {
        &["nodes/:nodeName"]
    }
    fn inspect(
        &self,
        path: &[&str],
        _query: &std::collections::BTreeMap<String, String>,
        view: View<'_>,
    ) -> Result<Value, NotShown> {
        let ["nodes", name] = path else {
            return Err(NotShown::NoSuchPath);
        };
        let node_state = self.states.get(*name).ok_or_else(|| {
            NotShown::missing(format_args!("a NodeResourceTopology of node {name:?}"))
        })?;
        Ok(node_state.describe(view.resources))
    }
}

impl ObjectEvents for TopologyMatch {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let Some(object) = TrimmedTopology::from_change(change) else {
            return;
        };
        self.improved_node = None;
        let name: Arc<str> = (&*object.name).into();
        let mode = self.over_reserve();
        let node = view.nodes.find(&name);
        let first = self.state_mut(&name).report().is_none();
        let report = if change.action == Action::DELETE {
            self.reported.remove(&name);
            None
        } else {
            let (report, problems) = Report::new(&object, view.resources);
            if self.state_mut(&name).newest() == Some(&report) {
                return;
            }
            self.reported.update(&name, problems, fx);
            Some(Arc::new(report))
        };
        let scope = mode.map_or(ResyncScope::All, |mode| mode.scope);
        let node_state = self.state_mut(&name);
        let (before, config) = (node_state.accepted_report(), node_state.config);
        let changed = node_state.receive_report(report, scope);
        let improved = node_state.config != config
            || before.is_some_and(|before| before.may_improve_with(node_state.report()));
        if let Some(node) = node.filter(|_| changed) {
            fx.touched.push(node);
            self.improved_node = Some(node).filter(|_| improved);
        }
        let Some(mode) = mode else {
            return;
        };
        if let Some(node) = node.filter(|_| first && self.state_mut(&name).has_fingerprint()) {
            // Its fingerprint will show which of the pods already on the node it has counted.
            let on_node: Vec<Arc<PodInfo>> = view.nodes.pods(node).cloned().collect();
            for pod in on_node {
                self.record_pod(&pod, node, view);
            }
        }
        self.unchecked.insert(name);
        self.schedule_check(mode, view);
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let Some(mode) = self.over_reserve() else {
            return;
        };
        let name = view.nodes.name(node).clone();
        if self
            .states
            .get(&name)
            .is_some_and(NodeTopologyState::is_dirty)
        {
            // While the node did not exist, no problem could be reported.
            self.schedule_check(mode, view);
        }
        self.unchecked.insert(name);
    }
}

impl PodEvents for TopologyMatch {
    fn on_pod(&mut self, pod: &Arc<PodInfo>, view: View<'_>, _fx: &mut Effects) {
        let Some(node) = pod.node.as_ref().filter(|_| self.over_reserve().is_some()) else {
            return;
        };
        if pod.terminal {
            let print = PodFingerprint::from_pod(pod, view.resources);
            self.state_mut(node).ended.insert(pod.uid.clone(), print);
            self.ended_on.insert(pod.uid.clone(), node.clone());
        }
        self.unchecked.insert(node.clone());
    }
    fn on_pod_gone(&mut self, uid: &str, _view: View<'_>, _fx: &mut Effects) {
        self.refused.remove(uid);
        if let Some(node) = self.ended_on.remove(uid) {
            self.state_mut(&node).ended.remove(uid);
            self.unchecked.insert(node);
        }
    }
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.refused.remove(&pod.uid);
        self.record_pod(pod, node, view);
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        if let Some(mode) = self.over_reserve()
            && !self.own_schedulers.contains(new.scheduler_name())
            && is_counted(new, mode.informer)
            && !is_counted(old, mode.informer)
        {
            // From its start on, reports count the pod, however long it took to start.
            self.record_pod(new, node, view);
            fx.touched.push(node);
        }
        if new.node.is_some() && self.settings.cache_mode == CacheMode::Discard {
            self.finish_binding(&new.uid, view.nodes.name(node), view, fx);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let name = view.nodes.name(node).clone();
        match self.settings.cache_mode {
            CacheMode::None => {}
            CacheMode::Discard => self.finish_binding(&pod.uid, &name, view, fx),
            CacheMode::OverReserve(mode) => {
                self.state_mut(&name).release(&pod.uid);
                if !self.own_schedulers.contains(pod.scheduler_name())
                    && self.affects_report(&name, pod, mode, view)
                {
                    self.state_mut(&name).remove_foreign(&pod.uid, view.now);
                }
                self.unchecked.insert(name);
                self.schedule_check(mode, view);
            }
        }
    }
}

impl Tick for TopologyMatch {
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        let Some(mode) = self.over_reserve() else {
            return;
        };
        if !self.unchecked.is_empty() {
            self.check_reports(mode, view, fx);
        }
        if self.next_check.is_some_and(|due_at| due_at <= view.now) {
            self.handle_timeouts(mode, view, fx);
        }
    }
    fn next_tick(&self) -> Option<Timestamp> {
        let check = (!self.unchecked.is_empty()).then_some(Timestamp::UNIX_EPOCH);
        check.or(self.next_check)
    }
}

impl PostFilterTransformer for TopologyMatch {
    fn after_post_filter(
        &mut self,
        cycle: &Cycle<'_>,
        diagnosis: &mut koord_scheduler::framework::Diagnosis,
        _fx: &mut Effects,
    ) {
        if self.settings.cache_mode != CacheMode::None && diagnosis.plugins.contains(&NAME) {
            let pod = cycle.pod.clone();
            self.refused.insert(pod.uid.clone(), pod);
        }
    }
}

impl PostBind for TopologyMatch {
    fn post_bind(&mut self, pod: &Arc<PodInfo>, node: &str, view: View<'_>, fx: &mut Effects) {
        if self.settings.cache_mode == CacheMode::Discard {
            self.finish_binding(&pod.uid, node, view, fx);
        }
    }
}

impl TopologyMatch {
    /// Adds the amount that each zone of `node` is short of, if that is why the kubelet would reject the pod.
    fn add_zone_shortfall(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Shortfall,
    ) -> Option<()> {
        let ask = state.get::<Arc<AlignmentRequest>>()?;
        let TopologyRefusal::AlignmentError(unfit) = self.check_fit(cycle, ask, node).err()? else {
            return None;
        };
        let node_state = self.state(node, cycle.view)?;
        let uncounted = self.uncounted_sum(node_state, cycle);
        let free = node_state.free(&uncounted)?;
        let wants = match unfit.container {
            Some(due_at) => &ask.containers.get(due_at)?.1,
            None => &ask.whole,
        };
        let want = wants.iter().find(|want| want.id == unfit.resource)?;
        let ids = node_state.report()?.zones.iter().map(|zone| zone.id);
        let zones: Vec<(u32, i64)> = zone_amounts(&free, ids, want.id).collect();
        let most = zones.iter().map(|(_, free)| *free).max().unwrap_or(0);
        let show = |amount: i64| shown(want.id, amount);
        let missing = want.amount.saturating_sub(most).max(0);
        out.add(missing as f64 / want.amount.max(1) as f64, || {
            let each = zones
                .iter()
                .map(|(zone, free)| format!("{} in {}", show(*free), zone_name(*zone)));
            let each: Vec<String> = each.collect();
            format!(
                "{} in one NUMA node: needs {}, free {}",
                cycle.view.resources.name(want.id),
                show(want.amount),
                if each.is_empty() {
                    "none".to_owned()
                } else {
                    each.join(" and ")
                },
            )
        });
        Some(())
    }

    /// Handles the end of a pod's binding, successful or not.
    fn finish_binding(&mut self, uid: &str, node: &str, view: View<'_>, fx: &mut Effects) {
        let Some(node_state) = self.states.get_mut(node) else {
            return;
        };
        if node_state.binding.remove(uid) && node_state.binding.is_empty() {
            fx.touched.extend(view.nodes.find(node));
            fx.activate.extend(self.refused.drain().map(|(uid, _)| uid));
        }
    }
}
