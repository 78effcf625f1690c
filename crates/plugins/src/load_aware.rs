//! `LoadAwareScheduling`: places pods by the actual usage of nodes instead of the pods' requests.
//!
//! The load of a node is its NodeMetric report plus an estimate for each pod that the report does not cover
//! yet. So a burst of placements between two reports does not pile up on one node.

mod args;
mod load;
mod seen;
mod skew;
#[cfg(test)]
mod tests;

use args::{Args, NodeThresholds, Thresholds};
use jiff::{SignedDuration, Timestamp};
use koord_api::annotations;
use koord_api::priority::PriorityClass;
use koord_api::quantity::ResourceList;
use koord_api::slo::NodeMetric;
use koord_model::estimate;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter, Helps,
    Holders, Inputs, Insight, Interest, NotShown, ObjectChange, ObjectEvents, Plugin, PodEvents,
    Points, PreFilter, PreFilterResult, PreScore, PreScoreResult, Problem, QueueHints, Rejection,
    Roles, Score, Sign, Signable, Signature, State, Subject, Tick, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo};
use koord_scheduler::{Watch, event_names};
use load::{Dims, Limits, Load, Row, Standing};
use rustc_hash::FxHashMap;
use seen::SeenMetric;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

const NAME: &str = "LoadAwareScheduling";
const NODE_METRICS: &str = "nodemetrics.v1alpha1.slo.koordinator.sh";

/// State of the `LoadAwareScheduling` plugin.
#[derive(Debug)]
pub(crate) struct LoadAware {
    args: Args,
    dims: Dims,
    /// Score weight of each resource in `dims`.
    weights: Vec<i64>,
    /// Reports by node name; a report may arrive before its node.
    reports: FxHashMap<Arc<str>, Known>,
    /// Load of each node, by row.
    loads: Vec<Load>,
    /// True for rows with a report. A node without one is neither rejected nor scored.
    reported_on: Vec<bool>,
    /// Expiry times of reports: filter results change at that time without an event.
    expiries: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
    /// Node of the last report with its usage before that report, and whether it was [`Load::eased`].
    /// Queueing hints compare it with the current state.
    reported: Option<(NodeIndex, Standing, bool)>,
}

/// Report of one node.
#[derive(Debug)]
struct Known {
    seen: Arc<SeenMetric>,
    /// Earliest time in `expiries` for this node. A newer report leaves that entry in place, so a node
    /// usually has only one.
    looked_at: Option<Timestamp>,
    /// True if the time of the report was rejected as too far ahead and that was reported.
    is_ahead: bool,
}

/// Properties of the pod that is being scheduled.
#[derive(Debug)]
struct Incoming {
    estimate: Row,
    prod: bool,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    Ok(Box::new(LoadAware::new(crate::common::args::decode(
        NAME, value,
    )?)?))
}

impl LoadAware {
    fn new(args: Args) -> Result<Self, BuildError> {
        let args = args.complete();
        args.validate()?;
        let dims = Dims::of(&args);
        let weight = |name: &String| args.resource_weights.get(name).copied().unwrap_or(0);
        let weights = dims.names.iter().map(weight).collect();
        Ok(Self {
            args,
            dims,
            weights,
            reports: FxHashMap::default(),
            loads: Vec::new(),
            reported_on: Vec::new(),
            expiries: BinaryHeap::new(),
            reported: None,
        })
    }

    fn incoming(&self, pod: &PodInfo, view: View<'_>) -> Incoming {
        let custom = self.args.allow_customize_estimation;
        Incoming {
            estimate: self.dims.estimate(pod, view.resources, custom),
            prod: pod.priority_class == PriorityClass::Prod,
        }
    }

    /// Returns the load of `node`, and the settings that its methods need.
    fn load(&mut self, node: NodeIndex) -> (&mut Load, (&Args, &Dims)) {
        while self.loads.len() <= node.row() {
            self.loads.push(Load::new(&self.dims));
        }
        (&mut self.loads[node.row()], (&self.args, &self.dims))
    }

    fn expires(&self, report: &SeenMetric) -> Option<Timestamp> {
        let life = SignedDuration::from_secs(self.args.node_metric_expiration_seconds);
        report
            .updated
            .map(|updated| updated.saturating_add(life).unwrap_or(Timestamp::MAX))
    }

    fn is_expired(&self, report: &SeenMetric, now: Timestamp) -> bool {
        self.expires(report).is_none_or(|at| at <= now)
    }

    /// Rebuilds the load of a node from its allocatable, thresholds, pods and report.
    fn rebuild(&mut self, node: NodeIndex, view: View<'_>, fx: &mut Effects) {
        let mut load = Load::new(&self.dims);
        if let Some(info) = view.nodes.info(node) {
            load.allocatable = self.allocatable(info, view, fx);
            let own = node_thresholds(info, fx);
            load.thresholds = Thresholds::resolve(&self.args, own.as_ref(), &self.dims);
            let report = self.reports.get(&info.name);
            let report = report.map(|known| known.seen.clone());
            load.set_report(report, (&self.args, &self.dims));
        }
        let old = std::mem::take(self.load(node).0);
        load.eased = old.eased;
        let custom = self.args.allow_customize_estimation;
        for pod in view.nodes.pods(node) {
            let at = old.assigned_at(&pod.uid).unwrap_or(view.now);
            let estimate = self.dims.estimate(pod, view.resources, custom);
            load.add(pod, estimate, (&self.args, &self.dims), at, view.now);
        }
        *self.load(node).0 = load;
        self.note(node);
    }

    /// Updates [`Self::reported_on`] for `node`.
    fn note(&mut self, node: NodeIndex) {
        let row = node.row();
        if self.reported_on.len() <= row {
            self.reported_on.resize(row + 1, false);
        }
        let load = self.loads.get(row);
        self.reported_on[row] = load.is_some_and(|load| load.standing.report.is_some());
    }

    /// Returns the loads of those of `nodes` that have a report, with their positions in `nodes`.
    fn with_report<'a>(
        &'a self,
        nodes: &'a [NodeIndex],
    ) -> impl Iterator<Item = (usize, &'a Load)> {
        let is_reported = |node: &NodeIndex| self.reported_on.get(node.row()) == Some(&true);
        let nodes = nodes.iter().enumerate();
        let those = nodes.filter(move |(_, node)| is_reported(node));
        those.filter_map(|(at, node)| Some((at, self.loads.get(node.row())?)))
    }

    /// Stores a report, or removes it if `gone`. The node's previous usage is saved in
    /// [`LoadAware::reported`].
    fn report(&mut self, seen: Arc<SeenMetric>, gone: bool, view: View<'_>, fx: &mut Effects) {
        let (seen, is_ahead) = match gone {
            true => (seen, false),
            false => self.bound_time(seen, view, fx),
        };
        let node = view.nodes.find(&seen.name);
        self.reported = node.map(|node| {
            let load = self.load(node).0;
            let eased = std::mem::take(&mut load.eased);
            (node, load.standing.clone(), eased)
        });
        let expires = self.expires(&seen);
        let filed = (!gone).then(|| seen.clone());
        match self.reports.get_mut(&seen.name) {
            _ if gone => drop(self.reports.remove(&seen.name)),
            Some(known) => {
                known.seen = seen;
                known.is_ahead = is_ahead;
                let looked_at = known.looked_at.unwrap_or(Timestamp::MAX);
                if let Some(at) = expires.filter(|at| *at < looked_at) {
                    known.looked_at = Some(at);
                    let name = known.seen.name.clone();
                    self.expiries.push(Reverse((at, name)));
                }
            }
            None => {
                let (name, looked_at) = (seen.name.clone(), expires);
                if let Some(at) = expires {
                    self.expiries.push(Reverse((at, name.clone())));
                }
                let known = Known {
                    seen,
                    looked_at,
                    is_ahead,
                };
                self.reports.insert(name, known);
            }
        }
        if let Some(node) = node {
            let (load, rules) = self.load(node);
            load.set_report(filed, rules);
            self.note(node);
            fx.touched.push(node);
        }
    }

    fn allocatable(&self, info: &NodeInfo, view: View<'_>, fx: &mut Effects) -> Row {
        let amount = |name: &String| {
            view.resources
                .get(name)
                .map_or(0, |id| info.allocatable.get(id))
        };
        let mut row: Row = self.dims.names.iter().map(amount).collect();
        let key = annotations::NODE_RAW_ALLOCATABLE;
        if let Some(text) = info.annotation(key) {
            match serde_json::from_str::<ResourceList>(text) {
                Ok(raw) => {
                    let values = self.dims.read(&raw);
                    for (at, name) in self.dims.names.iter().enumerate() {
                        if raw.contains_key(name) {
                            row[at] = values[at];
                        }
                    }
                }
                Err(error) => fx.problems.push(malformed(info, key, text, &error)),
            }
        }
        row
    }

    /// Returns the first resource whose usage exceeds its threshold.
    fn exceeded(&self, limits: &Limits, used: impl Fn(usize) -> i64, load: &Load) -> Option<&str> {
        let over = |(at, threshold): &&(usize, i64)| {
            estimate::exceeds(used(*at), load.allocatable[*at], *threshold)
        };
        let (at, _) = limits.iter().find(over)?;
        self.dims.names.get(*at).map(String::as_str)
    }

    /// Returns the filter result of a node for `incoming`, with usage `standing`.
    fn judge(
        &self,
        load: &Load,
        standing: &Standing,
        incoming: &Incoming,
        now: Timestamp,
    ) -> Verdict {
        let Some(report) = &standing.report else {
            return Ok(());
        };
        if self.args.filter_expired_node_metrics && self.is_expired(report, now) {
            if self.args.enable_schedule_when_node_metrics_expired {
                return Ok(());
            }
            return Err(Rejection::unschedulable("node(s) nodeMetric expired"));
        }
        let Some(usage) = &standing.usage else {
            return Ok(());
        };
        let plus =
            |at: usize, base: &Row, delta: &Row| base[at] + delta[at] + incoming.estimate[at];
        let thresholds = &load.thresholds;
        if let Some(prod) = thresholds.prod.as_ref().filter(|_| incoming.prod) {
            let used = |at: usize| plus(at, &standing.prod_usage, &standing.prod_delta);
            return refuse(self.exceeded(prod, used, load), "");
        }
        let Some(aggregated) = &thresholds.aggregated else {
            let used = |at: usize| plus(at, usage, &standing.node_delta);
            return refuse(self.exceeded(&thresholds.usage, used, load), "");
        };
        let used = |at: usize| match &standing.filtered {
            Some(base) => plus(at, base, &standing.node_delta),
            None => standing.estimated[at] + incoming.estimate[at],
        };
        let exceeded = self.exceeded(&aggregated.limits, used, load);
        refuse(exceeded, "aggregated ")
    }

    /// Returns the score of a node for `incoming`.
    fn points(&self, load: &Load, incoming: &Incoming, now: Timestamp) -> i64 {
        let standing = &load.standing;
        let (Some(report), Some(usage)) = (&standing.report, &standing.usage) else {
            return 0;
        };
        if self.is_expired(report, now) {
            return 0;
        }
        let prod = incoming.prod && self.args.score_according_prod_usage;
        let aggregated = self
            .args
            .aggregated
            .as_ref()
            .filter(|aggregated| !aggregated.score_aggregation_type.is_empty());
        let base = match aggregated {
            _ if prod => Some(&standing.prod_usage),
            Some(_) => standing.scored.as_ref(),
            None => Some(usage),
        };
        let delta = if prod {
            &standing.prod_delta
        } else {
            &standing.node_delta
        };
        let dominant = self.args.dominant_resource_weight;
        // The dominant resource may be one without a weight of its own.
        let counted = self.weights.iter().enumerate();
        let counted = counted.filter(|(_, weight)| **weight > 0 || dominant > 0);
        let scores = counted.map(|(at, weight)| {
            let used = base.map_or(standing.estimated[at], |base| base[at] + delta[at]);
            let used = used.saturating_add(incoming.estimate[at]);
            let score = estimate::least_used_score(used, load.allocatable[at]);
            (*weight, score)
        });
        estimate::weighted_score(scores, dominant)
    }
}

fn malformed(info: &NodeInfo, key: &str, text: &str, error: &serde_json::Error) -> Problem {
    Problem {
        kind: "Node",
        namespace: String::new(),
        name: info.name.to_string(),
        uid: info.object.metadata.uid.clone().unwrap_or_default(),
        message: format!("annotation {key} is ignored: {error}: {text:?}"),
    }
}

fn node_thresholds(info: &NodeInfo, fx: &mut Effects) -> Option<NodeThresholds> {
    let key = annotations::NODE_USAGE_THRESHOLDS;
    let text = info.annotation(key)?;
    match serde_json::from_str(text) {
        Ok(thresholds) => Some(thresholds),
        Err(error) => {
            fx.problems.push(malformed(info, key, text, &error));
            None
        }
    }
}

impl Plugin for LoadAware {
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
        .tick();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        let filter = Points::PRE_FILTER.or(Points::FILTER);
        filter
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
            .or(Points::RESERVE)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for LoadAware {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        signature.text(pod.priority_class.as_str());
        signature.number(i64::from(pod.daemon));
        signature.amounts(&pod.requests);
        signature.amounts(&pod.limits);
        if self.args.allow_customize_estimation {
            let own = pod.annotation(annotations::LOAD_ESTIMATED_SCALING_FACTORS);
            signature.text(own.unwrap_or_default());
        }
        Signable::Yes
    }
}

impl Inputs for LoadAware {
    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::of_kept::<NodeMetric, SeenMetric>(NODE_METRICS)
                .counted_as(event_names!("nodemetrics.v1alpha1.slo.koordinator.sh")),
        ]
    }
}

impl PreFilter for LoadAware {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        if cycle.pod.daemon {
            return PreFilterResult::Skip;
        }
        PreFilterResult::ready(self.incoming(cycle.pod, cycle.view))
    }
}

impl Filter for LoadAware {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(incoming), Some(load)) = (state.get::<Incoming>(), self.loads.get(node.row()))
        else {
            return Ok(());
        };
        self.judge(load, &load.standing, incoming, cycle.view.now)
    }

    fn filter_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        refuse: &mut dyn FnMut(usize, Rejection),
    ) {
        let Some(incoming) = state.get::<Incoming>() else {
            return;
        };
        for (at, load) in self.with_report(nodes) {
            if let Err(no) = self.judge(load, &load.standing, incoming, cycle.view.now) {
                refuse(at, no);
            }
        }
    }
}

impl PreScore for LoadAware {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        PreScoreResult::Ready(State::of(self.incoming(cycle.pod, cycle.view)))
    }
}

impl Score for LoadAware {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let (incoming, load) = (state.get::<Incoming>(), self.loads.get(node.row()));
        let of = |(incoming, load)| self.points(load, incoming, cycle.view.now);
        incoming.zip(load).map_or(0, of)
    }
    fn score_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let Some(incoming) = state.get::<Incoming>() else {
            return;
        };
        for (at, load) in self.with_report(nodes) {
            scores[at] = self.points(load, incoming, cycle.view.now);
        }
    }
}

impl QueueHints for LoadAware {
    fn interests(&self) -> Vec<Interest> {
        let any = Action::ADD.or(Action::UPDATE).or(Action::DELETE);
        let node = Action::ADD
            .or(Action::NODE_ALLOCATABLE)
            .or(Action::NODE_ANNOTATION);
        vec![
            Interest {
                subject: Subject::AssignedPod,
                actions: Action::DELETE,
            },
            Interest {
                subject: Subject::Object(NODE_METRICS),
                actions: any,
            },
            Interest {
                subject: Subject::Node,
                actions: node,
            },
        ]
    }
    /// A report queues pods that its node rejected before and admits now; for all other nodes nothing
    /// changed. If usage was released since the last report, any pod that fits now is queued: that release
    /// caused no event of its own. For example, a gang that did not fit was rejected because of its own
    /// members, although each of them fits.
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, view: View<'_>) -> Helps {
        if event.subject != Subject::Object(NODE_METRICS) {
            return Helps::Queue;
        }
        let reported = self.reported.as_ref();
        let helps = reported.is_some_and(|(node, before, eased)| {
            let incoming = self.incoming(pod, view);
            self.loads.get(node.row()).is_some_and(|load| {
                let fits =
                    |standing: &Standing| self.judge(load, standing, &incoming, view.now).is_ok();
                fits(&load.standing) && (*eased || !fits(before))
            })
        });
        if helps { Helps::Queue } else { Helps::Skip }
    }
}

impl Insight for LoadAware {
    fn inspections(&self) -> &'static [&'static str] {
        &["node/:nodeName"]
    }
    fn inspect(
        &self,
        path: &[&str],
        _query: &BTreeMap<String, String>,
        view: View<'_>,
    ) -> Result<Value, NotShown> {
        let ["node", name] = path else {
            return Err(NotShown::NoSuchPath);
        };
        let node = view.nodes.find(name);
        let load = node.and_then(|node| self.loads.get(node.row()));
        Ok(load.map_or_else(|| json!({}), |load| load.show((&self.args, &self.dims))))
    }
}

impl ObjectEvents for LoadAware {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        if change.kind != NODE_METRICS {
            return;
        }
        let seen = change.new.clone().downcast::<SeenMetric>().ok();
        let object = || change.new_as::<NodeMetric>().map(SeenMetric::from);
        if let Some(seen) = seen.or_else(|| object().map(Arc::new)) {
            self.report(seen, change.action == Action::DELETE, view, fx);
        }
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, fx: &mut Effects) {
        self.rebuild(node, view, fx);
    }
}

impl PodEvents for LoadAware {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        let custom = self.args.allow_customize_estimation;
        let estimate = self.dims.estimate(pod, view.resources, custom);
        let (load, rules) = self.load(node);
        load.add(pod, estimate, rules, view.now, view.now);
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let same = old.scheduled_at == new.scheduled_at
            && old.initialized_at == new.initialized_at
            && !old.differs_for_scheduling(new);
        if same {
            return;
        }
        let custom = self.args.allow_customize_estimation;
        let estimate = self.dims.estimate(new, view.resources, custom);
        let (load, rules) = self.load(node);
        load.update(new, estimate, rules, view.now);
        load.eased = true;
        fx.touched.push(node);
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        let (load, rules) = self.load(node);
        load.remove(&pod.uid, rules);
        load.eased = true;
    }
}

impl Tick for LoadAware {
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        while let Some(Reverse((at, _))) = self.expiries.peek()
            && *at <= view.now
        {
            let Some(Reverse((at, name))) = self.expiries.pop() else {
                return;
            };
            let life = SignedDuration::from_secs(self.args.node_metric_expiration_seconds);
            let Some(known) = self.reports.get_mut(&name) else {
                continue;
            };
            let expires = known.seen.updated;
            let expires = expires.map(|at| at.saturating_add(life).unwrap_or(Timestamp::MAX));
            match expires {
                Some(later) if later > view.now => {
                    // A newer report arrived.
                    if known.looked_at == Some(at) {
                        known.looked_at = Some(later);
                        self.expiries.push(Reverse((later, name)));
                    }
                }
                _ => {
                    known.looked_at = None;
                    if let Some(node) = view.nodes.find(&name) {
                        self.load(node).0.eased = true;
                        fx.touched.push(node);
                    }
                }
            }
        }
    }
}

fn refuse(exceeded: Option<&str>, kind: &str) -> Verdict {
    match exceeded {
        None => Ok(()),
        Some(resource) => {
            let reason = format!("node(s) {resource} {kind}usage exceed threshold");
            Err(Rejection::unschedulable(reason))
        }
    }
}
