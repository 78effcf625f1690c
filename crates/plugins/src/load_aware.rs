//! `LoadAwareScheduling`: places pods by the actual usage of nodes instead of the pods' requests.
//!
//! The load of a node is its NodeMetric report plus an estimate for each pod that the report does not cover
//! yet. So a burst of placements between two reports does not pile up on one node.

mod args;
mod load;
mod skew;
#[cfg(test)]
mod tests;
mod trimmed;

use args::{Args, NodeThresholds, Thresholds};
use jiff::{SignedDuration, Timestamp};
use koord_api::annotations;
use koord_api::priority::PriorityClass;
use koord_api::quantity::ResourceList;
use koord_api::slo::NodeMetric;
use koord_model::estimate;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Explain, Filter,
    Holders, Inputs, Interest, NotShown, ObjectChange, ObjectEvents, Plugin, PodEvents, Points,
    PreFilter, PreFilterResult, PreScore, PreScoreResult, Problem, QueueHints, QueueingHint,
    Rejection, Roles, Score, Sign, Signable, Signature, State, Subject, Tick, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo};
use koord_scheduler::{Watch, event_names};
use load::{Dimensions, Limits, NodeLoad, NodeUsage, ResourceRow};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use trimmed::TrimmedNodeMetric;

const NAME: &str = "LoadAwareScheduling";
const NODE_METRICS: &str = "nodemetrics.v1alpha1.slo.koordinator.sh";

/// State of the `LoadAwareScheduling` plugin.
#[derive(Debug)]
pub(crate) struct LoadAware {
    args: Args,
    dimensions: Dimensions,
    /// Score weight of each resource in `dimensions`.
    weights: Vec<i64>,
    /// Reports by node name; a report may arrive before its node.
    reports: FxHashMap<Arc<str>, NodeReport>,
    /// Load of each node, by row.
    loads: Vec<NodeLoad>,
    /// True for rows with a report. A node without one is neither rejected nor scored.
    has_report: Vec<bool>,
    /// Expiry times of reports: filter results change at that time without an event.
    expiries: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
    /// Node of the last report with its usage before that report, and whether it was [`NodeLoad::eased`].
    /// Queueing hints compare it with the current state.
    last_report: Option<(NodeIndex, NodeUsage, bool)>,
}

/// Report of one node.
#[derive(Debug)]
struct NodeReport {
    metric: Arc<TrimmedNodeMetric>,
    /// Earliest time in `expiries` for this node. A newer report leaves that entry in place, so a node
    /// usually has only one.
    first_expiry: Option<Timestamp>,
    /// True if the time of the report was rejected as too far ahead and that was reported.
    is_ahead: bool,
}

/// Properties of the pod that is being scheduled.
#[derive(Debug)]
struct PodLoad {
    estimate: ResourceRow,
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
        let dimensions = Dimensions::from_args(&args);
        let weight = |name: &String| args.resource_weights.get(name).copied().unwrap_or(0);
        let weights = dimensions.names.iter().map(weight).collect();
        Ok(Self {
            args,
            dimensions,
            weights,
            reports: FxHashMap::default(),
            loads: Vec::new(),
            has_report: Vec::new(),
            expiries: BinaryHeap::new(),
            last_report: None,
        })
    }

    /// Returns the properties of `pod` that filter and score read.
    fn pod_load(&self, pod: &PodInfo, view: View<'_>) -> PodLoad {
        let custom = self.args.allow_customize_estimation;
        PodLoad {
            estimate: self.dimensions.estimate(pod, view.resources, custom),
            prod: pod.priority_class == PriorityClass::Prod,
        }
    }

    /// Returns the load of `node`, and the settings that its methods need.
    fn load_mut(&mut self, node: NodeIndex) -> (&mut NodeLoad, (&Args, &Dimensions)) {
        while self.loads.len() <= node.row() {
            self.loads.push(NodeLoad::new(&self.dimensions));
        }
        (&mut self.loads[node.row()], (&self.args, &self.dimensions))
    }

    /// Returns the expiry time of a report; `None` if it has no update time.
    fn expires(&self, report: &TrimmedNodeMetric) -> Option<Timestamp> {
        let life = SignedDuration::from_secs(self.args.node_metric_expiration_seconds);
        report
            .updated
            .map(|updated| updated.saturating_add(life).unwrap_or(Timestamp::MAX))
    }

    /// Returns true if a report is expired, or has no update time.
    fn is_expired(&self, report: &TrimmedNodeMetric, now: Timestamp) -> bool {
        self.expires(report).is_none_or(|at| at <= now)
    }

    /// Rebuilds the load of a node from its allocatable, thresholds, pods and report.
    fn rebuild(&mut self, node: NodeIndex, view: View<'_>, fx: &mut Effects) {
        let mut load = NodeLoad::new(&self.dimensions);
        if let Some(info) = view.nodes.info(node) {
            load.allocatable = self.allocatable(info, view, fx);
            let own = node_thresholds(info, fx);
            load.thresholds = Thresholds::resolve(&self.args, own.as_ref(), &self.dimensions);
            let report = self.reports.get(&info.name);
            let report = report.map(|node_report| node_report.metric.clone());
            load.set_report(report, (&self.args, &self.dimensions));
        }
        let old = std::mem::take(self.load_mut(node).0);
        load.eased = old.eased;
        let custom = self.args.allow_customize_estimation;
        for pod in view.nodes.pods(node) {
            let at = old.assigned_at(&pod.uid).unwrap_or(view.now);
            let estimate = self.dimensions.estimate(pod, view.resources, custom);
            load.add(pod, estimate, (&self.args, &self.dimensions), at, view.now);
        }
        *self.load_mut(node).0 = load;
        self.update_reported(node);
    }

    /// Updates [`Self::has_report`] for `node`.
    fn update_reported(&mut self, node: NodeIndex) {
        let row = node.row();
        if self.has_report.len() <= row {
            self.has_report.resize(row + 1, false);
        }
        let load = self.loads.get(row);
        self.has_report[row] = load.is_some_and(|load| load.node_usage.report.is_some());
    }

    /// Returns the loads of those of `nodes` that have a report, with their positions in `nodes`.
    fn reported_loads<'a>(
        &'a self,
        nodes: &'a [NodeIndex],
    ) -> impl Iterator<Item = (usize, &'a NodeLoad)> {
        let is_reported = |node: &NodeIndex| self.has_report.get(node.row()) == Some(&true);
        let nodes = nodes.iter().enumerate();
        let reported = nodes.filter(move |(_, node)| is_reported(node));
        reported.filter_map(|(at, node)| Some((at, self.loads.get(node.row())?)))
    }

    /// Stores a report, or removes it if `deleted`. The node's previous usage is saved in
    /// [`LoadAware::last_report`].
    fn apply_report(
        &mut self,
        metric: Arc<TrimmedNodeMetric>,
        deleted: bool,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let (metric, is_ahead) = match deleted {
            true => (metric, false),
            false => self.reject_future_time(metric, view, fx),
        };
        let node = view.nodes.find(&metric.name);
        self.last_report = node.map(|node| {
            let load = self.load_mut(node).0;
            let eased = std::mem::take(&mut load.eased);
            (node, load.node_usage.clone(), eased)
        });
        let expires = self.expires(&metric);
        let stored = (!deleted).then(|| metric.clone());
        match self.reports.get_mut(&metric.name) {
            _ if deleted => drop(self.reports.remove(&metric.name)),
            Some(node_report) => {
                node_report.metric = metric;
                node_report.is_ahead = is_ahead;
                let first_expiry = node_report.first_expiry.unwrap_or(Timestamp::MAX);
                if let Some(at) = expires.filter(|at| *at < first_expiry) {
                    node_report.first_expiry = Some(at);
                    let name = node_report.metric.name.clone();
                    self.expiries.push(Reverse((at, name)));
                }
            }
            None => {
                let (name, first_expiry) = (metric.name.clone(), expires);
                if let Some(at) = expires {
                    self.expiries.push(Reverse((at, name.clone())));
                }
                let node_report = NodeReport {
                    metric,
                    first_expiry,
                    is_ahead,
                };
                self.reports.insert(name, node_report);
            }
        }
        if let Some(node) = node {
            let (load, rules) = self.load_mut(node);
            load.set_report(stored, rules);
            self.update_reported(node);
            fx.touched.push(node);
        }
    }

    /// Returns the allocatable of a node before amplification, in the order of `dimensions`.
    fn allocatable(&self, info: &NodeInfo, view: View<'_>, fx: &mut Effects) -> ResourceRow {
        let amount = |name: &String| {
            view.resources
                .get(name)
                .map_or(0, |id| info.allocatable.get(id))
        };
        let mut row: ResourceRow = self.dimensions.names.iter().map(amount).collect();
        let key = annotations::NODE_RAW_ALLOCATABLE;
        if let Some(text) = info.annotation(key) {
            match serde_json::from_str::<ResourceList>(text) {
                Ok(raw) => {
                    let values = self.dimensions.row_from_list(&raw);
                    for (at, name) in self.dimensions.names.iter().enumerate() {
                        if raw.contains_key(name) {
                            row[at] = values[at];
                        }
                    }
                }
                Err(error) => fx
                    .problems
                    .push(invalid_annotation(info, key, text, &error)),
            }
        }
        row
    }

    /// Returns the first resource whose usage exceeds its threshold.
    fn exceeded(
        &self,
        limits: &Limits,
        used: impl Fn(usize) -> i64,
        load: &NodeLoad,
    ) -> Option<&str> {
        let over = |(at, threshold): &&(usize, i64)| {
            estimate::exceeds(used(*at), load.allocatable[*at], *threshold)
        };
        let (at, _) = limits.iter().find(over)?;
        self.dimensions.names.get(*at).map(String::as_str)
    }

    /// Returns the filter result of a node for `pod_load`, with usage `node_usage`.
    fn check(
        &self,
        load: &NodeLoad,
        node_usage: &NodeUsage,
        pod_load: &PodLoad,
        now: Timestamp,
    ) -> Verdict {
        let Some(report) = &node_usage.report else {
            return Ok(());
        };
        if self.args.filter_expired_node_metrics && self.is_expired(report, now) {
            if self.args.enable_schedule_when_node_metrics_expired {
                return Ok(());
            }
            return Err(Rejection::unschedulable("node(s) nodeMetric expired"));
        }
        let Some(usage) = &node_usage.usage else {
            return Ok(());
        };
        let plus = |at: usize, base: &ResourceRow, delta: &ResourceRow| {
            base[at] + delta[at] + pod_load.estimate[at]
        };
        let thresholds = &load.thresholds;
        if let Some(prod) = thresholds.prod.as_ref().filter(|_| pod_load.prod) {
            let used = |at: usize| plus(at, &node_usage.prod_usage, &node_usage.prod_delta);
            return reject_exceeded(self.exceeded(prod, used, load), "");
        }
        let Some(aggregated) = &thresholds.aggregated else {
            let used = |at: usize| plus(at, usage, &node_usage.node_delta);
            return reject_exceeded(self.exceeded(&thresholds.usage, used, load), "");
        };
        let used = |at: usize| match &node_usage.filtered {
            Some(base) => plus(at, base, &node_usage.node_delta),
            None => node_usage.estimated[at] + pod_load.estimate[at],
        };
        let exceeded = self.exceeded(&aggregated.limits, used, load);
        reject_exceeded(exceeded, "aggregated ")
    }

    /// Returns the score of a node for `pod_load`.
    fn score_node(&self, load: &NodeLoad, pod_load: &PodLoad, now: Timestamp) -> i64 {
        let node_usage = &load.node_usage;
        let (Some(report), Some(usage)) = (&node_usage.report, &node_usage.usage) else {
            return 0;
        };
        if self.is_expired(report, now) {
            return 0;
        }
        let prod = pod_load.prod && self.args.score_according_prod_usage;
        let aggregated = self
            .args
            .aggregated
            .as_ref()
            .filter(|aggregated| !aggregated.score_aggregation_type.is_empty());
        let base = match aggregated {
            _ if prod => Some(&node_usage.prod_usage),
            Some(_) => node_usage.scored.as_ref(),
            None => Some(usage),
        };
        let delta = if prod {
            &node_usage.prod_delta
        } else {
            &node_usage.node_delta
        };
        let dominant = self.args.dominant_resource_weight;
        // The dominant resource may be one without a weight of its own.
        let counted = self.weights.iter().enumerate();
        let counted = counted.filter(|(_, weight)| **weight > 0 || dominant > 0);
        let scores = counted.map(|(at, weight)| {
            let used = base.map_or(node_usage.estimated[at], |base| base[at] + delta[at]);
            let used = used.saturating_add(pod_load.estimate[at]);
            let score = estimate::least_used_score(used, load.allocatable[at]);
            (*weight, score)
        });
        estimate::weighted_score(scores, dominant)
    }
}

/// Builds a problem of an invalid node annotation.
fn invalid_annotation(
    info: &NodeInfo,
    key: &str,
    text: &str,
    error: &serde_json::Error,
) -> Problem {
    Problem {
        kind: "Node",
        namespace: String::new(),
        name: info.name.to_string(),
        uid: info.object.metadata.uid.clone().unwrap_or_default(),
        message: format!("annotation {key} is ignored: {error}: {text:?}"),
    }
}

/// Parses the thresholds in the node's annotation; an invalid one is reported and ignored.
fn node_thresholds(info: &NodeInfo, fx: &mut Effects) -> Option<NodeThresholds> {
    let key = annotations::NODE_USAGE_THRESHOLDS;
    let text = info.annotation(key)?;
    match serde_json::from_str(text) {
        Ok(thresholds) => Some(thresholds),
        Err(error) => {
            fx.problems
                .push(invalid_annotation(info, key, text, &error));
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
        .explain()
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
            Watch::mapped::<NodeMetric, TrimmedNodeMetric>(NODE_METRICS)
                .counted_as(event_names!("nodemetrics.v1alpha1.slo.koordinator.sh")),
        ]
    }
}

impl PreFilter for LoadAware {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        if cycle.pod.daemon {
            return PreFilterResult::Skip;
        }
        PreFilterResult::ready(self.pod_load(cycle.pod, cycle.view))
    }
}

impl Filter for LoadAware {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(pod_load), Some(load)) = (state.get::<PodLoad>(), self.loads.get(node.row()))
        else {
            return Ok(());
        };
        self.check(load, &load.node_usage, pod_load, cycle.view.now)
    }

    fn filter_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        refuse: &mut dyn FnMut(usize, Rejection),
    ) {
        let Some(pod_load) = state.get::<PodLoad>() else {
            return;
        };
        for (at, load) in self.reported_loads(nodes) {
            if let Err(rejection) = self.check(load, &load.node_usage, pod_load, cycle.view.now) {
                refuse(at, rejection);
            }
        }
    }
}

impl PreScore for LoadAware {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        PreScoreResult::Ready(State::new(self.pod_load(cycle.pod, cycle.view)))
    }
}

impl Score for LoadAware {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let (pod_load, load) = (state.get::<PodLoad>(), self.loads.get(node.row()));
        let score_of = |(pod_load, load)| self.score_node(load, pod_load, cycle.view.now);
        pod_load.zip(load).map_or(0, score_of)
    }
    fn score_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let Some(pod_load) = state.get::<PodLoad>() else {
            return;
        };
        for (at, load) in self.reported_loads(nodes) {
            scores[at] = self.score_node(load, pod_load, cycle.view.now);
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
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, view: View<'_>) -> QueueingHint {
        if event.subject != Subject::Object(NODE_METRICS) {
            return QueueingHint::Queue;
        }
        let last_report = self.last_report.as_ref();
        let helps = last_report.is_some_and(|(node, before, eased)| {
            let pod_load = self.pod_load(pod, view);
            self.loads.get(node.row()).is_some_and(|load| {
                let fits = |node_usage: &NodeUsage| {
                    self.check(load, node_usage, &pod_load, view.now).is_ok()
                };
                fits(&load.node_usage) && (*eased || !fits(before))
            })
        });
        if helps {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
}

impl Explain for LoadAware {
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
        Ok(load.map_or_else(
            || json!({}),
            |load| load.to_json((&self.args, &self.dimensions)),
        ))
    }
}

impl ObjectEvents for LoadAware {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        if change.kind != NODE_METRICS {
            return;
        }
        let metric = change.new.clone().downcast::<TrimmedNodeMetric>().ok();
        let object = || change.new_as::<NodeMetric>().map(TrimmedNodeMetric::from);
        if let Some(metric) = metric.or_else(|| object().map(Arc::new)) {
            self.apply_report(metric, change.action == Action::DELETE, view, fx);
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
        let estimate = self.dimensions.estimate(pod, view.resources, custom);
        let (load, rules) = self.load_mut(node);
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
        let unchanged = old.scheduled_at == new.scheduled_at
            && old.initialized_at == new.initialized_at
            && !old.differs_for_scheduling(new);
        if unchanged {
            return;
        }
        let custom = self.args.allow_customize_estimation;
        let estimate = self.dimensions.estimate(new, view.resources, custom);
        let (load, rules) = self.load_mut(node);
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
        let (load, rules) = self.load_mut(node);
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
            let Some(node_report) = self.reports.get_mut(&name) else {
                continue;
            };
            let expires = node_report.metric.updated;
            let expires = expires.map(|at| at.saturating_add(life).unwrap_or(Timestamp::MAX));
            match expires {
                Some(later) if later > view.now => {
                    // A newer report arrived.
                    if node_report.first_expiry == Some(at) {
                        node_report.first_expiry = Some(later);
                        self.expiries.push(Reverse((later, name)));
                    }
                }
                _ => {
                    node_report.first_expiry = None;
                    if let Some(node) = view.nodes.find(&name) {
                        self.load_mut(node).0.eased = true;
                        fx.touched.push(node);
                    }
                }
            }
        }
    }
}

/// Returns a rejection if `exceeded` names a resource over its threshold.
fn reject_exceeded(exceeded: Option<&str>, kind: &str) -> Verdict {
    match exceeded {
        None => Ok(()),
        Some(resource) => {
            let reason = format!("node(s) {resource} {kind}usage exceed threshold");
            Err(Rejection::unschedulable(reason))
        }
    }
}
