//! `NodeResourceTopologyMatch`: keeps pods off nodes whose kubelet would reject them with
//! `TopologyAffinityError`.
//!
//! An exporter reports the free resources of each NUMA node; the kubelet chooses a NUMA node after the
//! binding. The plugin predicts that choice. Pods placed between two reports are subtracted from every NUMA
//! node until a report has counted them, which the report's fingerprint of the node's pods shows ([`Desk`]).

mod args;
mod desk;
mod pod;
mod report;
#[cfg(test)]
mod tests;
mod waiting;

use crate::common::topologies::{self, SeenTopology, TOPOLOGIES};
use args::{Args, Books, OverReserve, ResyncScope, Settings};
use desk::{Desk, is_counted};
use jiff::Timestamp;
use koord_api::topology::zone_name;
use koord_model::alignment::{self, Ask, Policy, Unfit};
use koord_model::resources::{Amounts, ResourceId, ResourceTable, shown};
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter, Helps,
    Holders, Inputs, Insight, Interest, Lacks, NotShown, ObjectChange, ObjectEvents, Plugin,
    PodEvents, Points, PostBind, PostFilterTransformer, PreFilter, PreFilterResult, PreScore,
    PreScoreResult, QueueHints, Rejection, ReportedProblems, Roles, Score, Sign, Signable,
    Signature, State, Subject, Tick, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use pod::Print;
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
    settings: Settings,
    /// Scheduler names of this process's profiles; pods of all other schedulers are foreign.
    own: BTreeSet<String>,
    /// State by node name; a report may arrive before its node.
    desks: FxHashMap<Arc<str>, Desk>,
    /// The node of each pod that has ended but still exists, by uid.
    ended_on: FxHashMap<Arc<str>, Arc<str>>,
    /// Nodes whose report or pods changed since the two were last compared.
    unchecked: FxHashSet<Arc<str>>,
    /// Rejected pods by uid; they are tried again when a report is accepted.
    refused: FxHashMap<Arc<str>, Arc<PodInfo>>,
    /// The node whose last report offers more than the one before, if any.
    heard: Option<NodeIndex>,
    /// When to check next for reports that still do not match their node's pods.
    look: Option<Timestamp>,
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
        own: context.schedulers.clone(),
        desks: FxHashMap::default(),
        ended_on: FxHashMap::default(),
        unchecked: FxHashSet::default(),
        refused: FxHashMap::default(),
        heard: None,
        look: None,
        reported: ReportedProblems::default(),
    }))
}

impl TopologyMatch {
    fn over_reserve(&self) -> Option<OverReserve> {
        match self.settings.books {
            Books::OverReserve(how) => Some(how),
            Books::None | Books::Discard => None,
        }
    }

    fn desk(&self, node: NodeIndex, view: View<'_>) -> Option<&Desk> {
        self.desks.get(view.nodes.name(node))
    }

    fn desk_mut(&mut self, node: &Arc<str>) -> &mut Desk {
        self.desks.entry(node.clone()).or_default()
    }

    /// Returns true if the node's state does not allow a decision now.
    fn is_unknown(&self, desk: &Desk) -> bool {
        desk.is_doubtful() || !desk.binding.is_empty()
    }

    /// Returns the amounts to subtract from every zone, as this cycle assumes them.
    fn held<'a>(&self, desk: &'a Desk, cycle: &Cycle<'_>) -> Cow<'a, Amounts> {
        if cycle.overlay.is_empty() || self.over_reserve().is_none() {
            return Cow::Borrowed(desk.held());
        }
        let mut held = desk.held().clone();
        let removed = cycle.overlay.removed.iter();
        for needs in removed.filter_map(|pod| desk.held_by(&pod.uid)) {
            held.sub_all(needs);
        }
        let added = cycle.overlay.added.iter();
        for pod in added.filter(|pod| !pod.is_holder() && desk.held_by(&pod.uid).is_none()) {
            held.add_all(&pod.requests);
        }
        Cow::Owned(held)
    }

    fn judge(&self, cycle: &Cycle<'_>, ask: &Ask, node: NodeIndex) -> Result<(), Refusal> {
        let Some(desk) = self.desk(node, cycle.view) else {
            return Ok(());
        };
        if desk.is_doubtful() {
            return Err(Refusal::Doubtful);
        }
        if !desk.binding.is_empty() {
            return Err(Refusal::Binding);
        }
        let held = self.held(desk, cycle);
        let Some(free) = desk.free(&held) else {
            return Ok(());
        };
        if desk.config.policy != Policy::SingleNumaNode {
            return Ok(());
        }
        let on_node = |id: ResourceId| cycle.view.nodes.allocatable(node, id) > 0;
        alignment::single(ask, desk.config.scope, free, on_node).map_err(Refusal::Unfit)
    }

    /// Returns true if the pod fits the node's accepted report without any subtraction. What a reservation
    /// holds is free for its owners, so it must not count here.
    fn may_have_room(&self, pod: &PodInfo, node: NodeIndex, view: View<'_>) -> bool {
        let Some(desk) = self.desk(node, view) else {
            return true;
        };
        let nothing = Amounts::new();
        let (Some(ask), Some(free)) = (pod::ask(pod, view.resources), desk.free(&nothing)) else {
            return true;
        };
        if desk.config.policy != Policy::SingleNumaNode {
            return true;
        }
        let on_node = |id: ResourceId| view.nodes.allocatable(node, id) > 0;
        alignment::single(ask, desk.config.scope, free, on_node).is_ok()
    }
}

/// Returns the zones that list a resource, with the free amount of each.
fn zone_amounts(
    free: &alignment::Free<'_>,
    zones: impl Iterator<Item = u32>,
    id: ResourceId,
) -> impl Iterator<Item = (u32, i64)> {
    let zones = zones.enumerate();
    zones.filter_map(move |(at, zone)| Some((zone, free.get(at, id)?)))
}

enum Refusal {
    /// Pods of other schedulers came or went, and no report has counted that yet.
    Doubtful,
    /// Another pod is about to be bound to the node.
    Binding,
    Unfit(Unfit),
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::unschedulable(match refusal {
            Refusal::Doubtful => {
                "invalid node topology data: no report has counted the pods of other schedulers"
            }
            Refusal::Binding => "invalid node topology data: another pod is being bound",
            Refusal::Unfit(unfit) => unfit.message,
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
        .insight()
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
            // Preempts nothing, but must learn which pods were rejected.
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
        match pod::ask(pod, table) {
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
        match pod::ask(cycle.pod, cycle.view.resources) {
            Some(ask) => PreFilterResult::ready(ask.clone()),
            None => PreFilterResult::Skip,
        }
    }
}

impl Filter for TopologyMatch {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(ask) = state.get::<Arc<Ask>>() else {
            return Ok(());
        };
        Ok(self.judge(cycle, ask, node)?)
    }
}

impl PreScore for TopologyMatch {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        // Nodes do not differ for a pod that gets no exclusive resources.
        match pod::ask(cycle.pod, cycle.view.resources) {
            Some(ask) if ask.guaranteed => PreScoreResult::Ready(State::of(ask.clone())),
            _ => PreScoreResult::Skip,
        }
    }
}

impl Score for TopologyMatch {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let (Some(ask), Some(desk)) = (state.get::<Arc<Ask>>(), self.desk(node, cycle.view)) else {
            return 0;
        };
        let held = self.held(desk, cycle);
        let Some(free) = desk.free(&held).filter(|_| !self.is_unknown(desk)) else {
            return 0;
        };
        let scope = desk.config.scope;
        match self.settings.strategy {
            None => alignment::least(ask, scope, free, desk.config.max_zones),
            Some(_) if desk.config.policy != Policy::SingleNumaNode => 0,
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
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, view: View<'_>) -> Helps {
        let helps = event.subject != Subject::Object(TOPOLOGIES)
            || (self.heard).is_some_and(|node| self.may_have_room(pod, node, view));
        if helps { Helps::Queue } else { Helps::Skip }
    }
}

impl Insight for TopologyMatch {
    fn lack(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex, out: &mut Lacks) {
        // The rejection reasons cover the other cases.
        let _ = self.lack_in_zones(cycle, state, node, out);
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
        let desk = self.desks.get(*name).ok_or_else(|| {
            NotShown::missing(format_args!("a NodeResourceTopology of node {name:?}"))
        })?;
        Ok(desk.describe(view.resources))
    }
}

impl ObjectEvents for TopologyMatch {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let Some(object) = SeenTopology::of(change) else {
            return;
        };
        self.heard = None;
        let name: Arc<str> = (&*object.name).into();
        let how = self.over_reserve();
        let node = view.nodes.find(&name);
        let first = self.desk_mut(&name).report().is_none();
        let report = if change.action == Action::DELETE {
            self.reported.forget(&name);
            None
        } else {
            let (report, problems) = Report::new(&object, view.resources);
            if self.desk_mut(&name).newest() == Some(&report) {
                return;
            }
            self.reported.update(&name, problems, fx);
            Some(Arc::new(report))
        };
        let scope = how.map_or(ResyncScope::All, |how| how.scope);
        let desk = self.desk_mut(&name);
        let (before, config) = (desk.believed(), desk.config);
        let changed = desk.reported(report, scope);
        let more = desk.config != config
            || before.is_some_and(|before| before.leaves_less_than(desk.report()));
        if let Some(node) = node.filter(|_| changed) {
            fx.touched.push(node);
            self.heard = Some(node).filter(|_| more);
        }
        let Some(how) = how else {
            return;
        };
        if let Some(node) = node.filter(|_| first && self.desk_mut(&name).can_tell()) {
            // Its fingerprint will show which of the pods already on the node it has counted.
            let there: Vec<Arc<PodInfo>> = view.nodes.pods(node).cloned().collect();
            for pod in there {
                self.came(&pod, node, view);
            }
        }
        self.unchecked.insert(name);
        self.look_later(how, view);
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let Some(how) = self.over_reserve() else {
            return;
        };
        let name = view.nodes.name(node).clone();
        if self.desks.get(&name).is_some_and(Desk::is_dirty) {
            // While the node did not exist, no problem could be reported.
            self.look_later(how, view);
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
            let print = Print::of(pod, view.resources);
            self.desk_mut(node).ended.insert(pod.uid.clone(), print);
            self.ended_on.insert(pod.uid.clone(), node.clone());
        }
        self.unchecked.insert(node.clone());
    }
    fn on_pod_gone(&mut self, uid: &str, _view: View<'_>, _fx: &mut Effects) {
        self.refused.remove(uid);
        if let Some(node) = self.ended_on.remove(uid) {
            self.desk_mut(&node).ended.remove(uid);
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
        self.came(pod, node, view);
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        if let Some(how) = self.over_reserve()
            && !self.own.contains(new.scheduler_name())
            && is_counted(new, how.informer)
            && !is_counted(old, how.informer)
        {
            // From its start on, reports count the pod, however long it took to start.
            self.came(new, node, view);
            fx.touched.push(node);
        }
        if new.node.is_some() && self.settings.books == Books::Discard {
            self.bound(&new.uid, view.nodes.name(node), view, fx);
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
        match self.settings.books {
            Books::None => {}
            Books::Discard => self.bound(&pod.uid, &name, view, fx),
            Books::OverReserve(how) => {
                self.desk_mut(&name).let_go(&pod.uid);
                if !self.own.contains(pod.scheduler_name()) && self.matters(&name, pod, how, view) {
                    self.desk_mut(&name).foreign_left(&pod.uid, view.now);
                }
                self.unchecked.insert(name);
                self.look_later(how, view);
            }
        }
    }
}

impl Tick for TopologyMatch {
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        let Some(how) = self.over_reserve() else {
            return;
        };
        if !self.unchecked.is_empty() {
            self.check(how, view, fx);
        }
        if self.look.is_some_and(|at| at <= view.now) {
            self.complain(how, view, fx);
        }
    }
    fn next_tick(&self) -> Option<Timestamp> {
        let check = (!self.unchecked.is_empty()).then_some(Timestamp::UNIX_EPOCH);
        check.or(self.look)
    }
}

impl PostFilterTransformer for TopologyMatch {
    fn after_post_filter(
        &mut self,
        cycle: &Cycle<'_>,
        diagnosis: &mut koord_scheduler::framework::Diagnosis,
        _fx: &mut Effects,
    ) {
        if self.settings.books != Books::None && diagnosis.plugins.contains(&NAME) {
            let pod = cycle.pod.clone();
            self.refused.insert(pod.uid.clone(), pod);
        }
    }
}

impl PostBind for TopologyMatch {
    fn post_bind(&mut self, pod: &Arc<PodInfo>, node: &str, view: View<'_>, fx: &mut Effects) {
        if self.settings.books == Books::Discard {
            self.bound(&pod.uid, node, view, fx);
        }
    }
}

impl TopologyMatch {
    /// Adds the amount that each zone of `node` is short of, if that is why the kubelet would reject the pod.
    fn lack_in_zones(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Lacks,
    ) -> Option<()> {
        let ask = state.get::<Arc<Ask>>()?;
        let Refusal::Unfit(unfit) = self.judge(cycle, ask, node).err()? else {
            return None;
        };
        let desk = self.desk(node, cycle.view)?;
        let held = self.held(desk, cycle);
        let free = desk.free(&held)?;
        let wants = match unfit.container {
            Some(at) => &ask.containers.get(at)?.1,
            None => &ask.whole,
        };
        let want = wants.iter().find(|want| want.id == unfit.resource)?;
        let ids = desk.report()?.zones.iter().map(|zone| zone.id);
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
    fn bound(&mut self, uid: &str, node: &str, view: View<'_>, fx: &mut Effects) {
        let Some(desk) = self.desks.get_mut(node) else {
            return;
        };
        if desk.binding.remove(uid) && desk.binding.is_empty() {
            fx.touched.extend(view.nodes.find(node));
            fx.activate.extend(self.refused.drain().map(|(uid, _)| uid));
        }
    }
}
