//! Load of a node: usage from its report, plus estimates for pods placed since.

use super::args::{Args, ByResource, Thresholds};
use super::trimmed::{ReportedAmounts, TrimmedNodeMetric, amount};
use jiff::Timestamp;
use koord_api::annotations;
use koord_api::priority::PriorityClass;
use koord_api::quantity::{Format, Quantity, ResourceList};
use koord_model::estimate::{self, Coverage, Fallback};
use koord_model::resources::{self, ResourceTable};
use koord_scheduler::inspection;
use koord_scheduler::state::PodInfo;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Amounts in the order of [`Dimensions`]. Up to four resources are stored inline; more cost one allocation per
/// row.
pub(super) type ResourceRow = SmallVec<[i64; 4]>;

/// Thresholds in percent by position in [`Dimensions`], without disabled ones.
pub(super) type Limits = SmallVec<[(usize, i64); 4]>;

/// Resources that are estimated or compared, with their scaling factors.
#[derive(Debug, Clone)]
pub(super) struct Dimensions {
    pub names: Vec<String>,
    /// Scaling factors in percent; `None` for a resource that only has a threshold.
    factors: Vec<Option<i64>>,
}

impl Dimensions {
    /// Collects the resources that the arguments name.
    pub(super) fn from_args(args: &Args) -> Self {
        let mut all: BTreeMap<String, Option<i64>> = BTreeMap::new();
        let aggregated = args
            .aggregated
            .iter()
            .flat_map(|a| a.usage_thresholds.keys());
        let thresholds = args
            .usage_thresholds
            .keys()
            .chain(args.prod_usage_thresholds.keys());
        let scored = args
            .resource_weights
            .keys()
            .chain(&args.supported_resources);
        for name in thresholds.chain(aggregated).chain(scored) {
            all.insert(name.clone(), None);
        }
        for (name, factor) in &args.estimated_scaling_factors {
            all.insert(name.clone(), Some(*factor));
        }
        let (names, factors) = all.into_iter().unzip();
        Self { names, factors }
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.names
            .iter()
            .position(|listed_name| listed_name == name)
    }

    pub(super) fn zero(&self) -> ResourceRow {
        SmallVec::from_elem(0, self.names.len())
    }

    /// Returns the amounts of these resources in `list`.
    pub(super) fn row_from_list(&self, list: &ResourceList) -> ResourceRow {
        let amount_of = |name: &String| {
            let listed = list.get(name);
            listed.map_or(0, |quantity| amount(name, quantity))
        };
        self.names.iter().map(amount_of).collect()
    }

    /// Returns the reported amounts of these resources.
    fn row_from_report(&self, amounts: &ReportedAmounts) -> ResourceRow {
        self.names.iter().map(|name| amounts.get(name)).collect()
    }

    /// Converts thresholds to [`Limits`], in the order of resource names. A threshold of 0 is disabled.
    pub(super) fn limits(&self, thresholds: &ByResource) -> Limits {
        let limits = thresholds.iter().filter(|(_, threshold)| **threshold != 0);
        limits
            .filter_map(|(name, threshold)| Some((self.position(name)?, *threshold)))
            .collect()
    }

    /// Returns `row` as a JSON resource list.
    fn row_to_json(&self, row: &ResourceRow) -> Value {
        let amounts = self.names.iter().zip(row).map(|(name, amount)| {
            let quantity = match name.as_str() {
                "cpu" => Quantity::from_milli(*amount),
                "memory" => Quantity::from_value(*amount).with_format(Format::BinarySi),
                _ => Quantity::from_value(*amount),
            };
            (name.clone(), Value::String(quantity.to_string()))
        });
        amounts.collect()
    }

    /// Returns the estimated usage of `pod`. For each resource, the variant of the pod's priority class is
    /// read (batch pods request `batch-cpu`) and counted as the resource itself. If `custom`, the pod's own
    /// scaling factors apply.
    pub(super) fn estimate(
        &self,
        pod: &PodInfo,
        table: &ResourceTable,
        custom: bool,
    ) -> ResourceRow {
        let custom_factors = custom.then(|| custom_factors(pod)).flatten();
        let estimate_of = |(name, factor): (&String, &Option<i64>)| {
            let own = custom_factors.and_then(|factors| factors.get(name).copied());
            let Some(factor) = own.or(*factor) else {
                return 0;
            };
            let variant = match pod.priority_class {
                PriorityClass::Prod | PriorityClass::None => Some(name.as_str()),
                class => koord_api::priority::translate(class, name),
            };
            let Some(variant) = variant else { return 0 };
            let fallback = match variant {
                "cpu" | koord_api::resources::BATCH_CPU => Fallback::Cpu,
                "memory" | koord_api::resources::BATCH_MEMORY => Fallback::Memory,
                _ => Fallback::Zero,
            };
            let id = table.get(variant);
            let amount_of = |amounts: &resources::Amounts| id.map_or(0, |id| amounts.get(id));
            // The factor may come from a pod annotation, so the result is clamped.
            let estimate = estimate::estimate(
                amount_of(&pod.requests),
                amount_of(&pod.limits),
                factor,
                fallback,
            );
            estimate.clamp(-resources::MOST, resources::MOST)
        };
        self.names
            .iter()
            .zip(&self.factors)
            .map(estimate_of)
            .collect()
    }
}

/// A pod on a node, with its estimate.
#[derive(Debug)]
struct AssignedPod {
    pod: Arc<PodInfo>,
    assigned: Timestamp,
    /// Time at which the pod's init containers had completed.
    initialized: Option<Timestamp>,
    estimate: ResourceRow,
}

/// Contribution of a pod to the sums of its node.
struct Contribution {
    node_delta: ResourceRow,
    prod_delta: ResourceRow,
    prod_usage: ResourceRow,
}

/// Usage of a node that filter and score read.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeUsage {
    pub report: Option<Arc<TrimmedNodeMetric>>,
    /// Reported usage; `None` without a report or if the report has no node usage.
    pub usage: Option<ResourceRow>,
    /// Usage for aggregated thresholds; `None` if not configured or not reported.
    pub filtered: Option<ResourceRow>,
    /// Aggregated usage for scoring; `None` if not configured or not reported.
    pub scored: Option<ResourceRow>,
    /// Sum of estimates that the report does not cover yet.
    pub node_delta: ResourceRow,
    /// As [`Self::node_delta`], for production pods only.
    pub prod_delta: ResourceRow,
    /// Sum of reported usage of production pods, and of the system if so configured.
    pub prod_usage: ResourceRow,
    /// Sum of all estimates.
    pub estimated: ResourceRow,
}

/// Load of one node.
#[derive(Debug, Default)]
pub(super) struct NodeLoad {
    pub node_usage: NodeUsage,
    pub thresholds: Thresholds,
    pub allocatable: ResourceRow,
    /// True if usage may have fallen since the last report without an event: a pod was removed, a pod
    /// requests less, or the report expired.
    pub eased: bool,
    assigned_pods: FxHashMap<Arc<str>, AssignedPod>,
}

impl NodeLoad {
    pub(super) fn new(dimensions: &Dimensions) -> Self {
        let zero = || dimensions.zero();
        Self {
            allocatable: zero(),
            node_usage: NodeUsage {
                node_delta: zero(),
                prod_delta: zero(),
                prod_usage: zero(),
                estimated: zero(),
                ..NodeUsage::default()
            },
            ..Self::default()
        }
    }

    /// Adds `pod`. Its assignment time is taken from its PodScheduled condition, else it is `assigned`. Times
    /// of other machines that lie in the future are limited to `now`: otherwise an estimate would count for
    /// as long as that clock is ahead.
    pub(super) fn add(
        &mut self,
        pod: &Arc<PodInfo>,
        estimate: ResourceRow,
        (args, dimensions): (&Args, &Dimensions),
        assigned: Timestamp,
        now: Timestamp,
    ) {
        self.remove(&pod.uid, (args, dimensions));
        let assigned_pod = AssignedPod {
            pod: pod.clone(),
            assigned: pod.scheduled_at.map_or(assigned, |time| time.min(now)),
            initialized: pod.initialized_at.map(|time| time.min(now)),
            estimate,
        };
        self.node_usage
            .add_contribution(&assigned_pod, (args, dimensions), 1);
        self.assigned_pods.insert(pod.uid.clone(), assigned_pod);
    }

    /// Replaces `pod`. Keeps its assignment time unless its condition has one.
    pub(super) fn update(
        &mut self,
        pod: &Arc<PodInfo>,
        estimate: ResourceRow,
        rules: (&Args, &Dimensions),
        now: Timestamp,
    ) {
        let assigned = self
            .assigned_pods
            .get(&pod.uid)
            .map_or(now, |assigned_pod| assigned_pod.assigned);
        self.add(pod, estimate, rules, assigned, now);
    }

    /// Returns the assignment time of the pod with this uid.
    pub(super) fn assigned_at(&self, uid: &str) -> Option<Timestamp> {
        self.assigned_pods
            .get(uid)
            .map(|assigned_pod| assigned_pod.assigned)
    }

    pub(super) fn remove(&mut self, uid: &str, rules: (&Args, &Dimensions)) {
        if let Some(assigned_pod) = self.assigned_pods.remove(uid) {
            self.node_usage.add_contribution(&assigned_pod, rules, -1);
        }
    }

    /// Sets or removes the report, and recomputes all sums.
    pub(super) fn set_report(
        &mut self,
        report: Option<Arc<TrimmedNodeMetric>>,
        (args, dimensions): (&Args, &Dimensions),
    ) {
        let zero = || dimensions.zero();
        let metric = report.as_deref();
        let system = metric.filter(|_| args.prod_usage_include_sys);
        let aggregated = self.thresholds.aggregated.as_ref();
        let scored = args.aggregated.as_ref();
        let scored = scored.filter(|scored| !scored.score_aggregation_type.is_empty());
        self.node_usage = NodeUsage {
            usage: metric
                .and_then(|metric| metric.usage.as_ref())
                .map(|usage| dimensions.row_from_report(usage)),
            filtered: metric.zip(aggregated).and_then(|(metric, settings)| {
                let amounts = metric.aggregated(&settings.kind, settings.duration)?;
                Some(dimensions.row_from_report(amounts))
            }),
            scored: metric.zip(scored).and_then(|(metric, settings)| {
                let over = settings.score_aggregated_duration;
                let amounts = metric.aggregated(&settings.score_aggregation_type, over)?;
                Some(dimensions.row_from_report(amounts))
            }),
            node_delta: zero(),
            prod_delta: zero(),
            prod_usage: system
                .map_or_else(zero, |metric| dimensions.row_from_report(&metric.system)),
            estimated: zero(),
            report,
        };
        for assigned_pod in self.assigned_pods.values() {
            self.node_usage
                .add_contribution(assigned_pod, (args, dimensions), 1);
        }
    }

    /// Returns the load as JSON for the inspection API; sums only if there is a report.
    pub(super) fn to_json(&self, rules: (&Args, &Dimensions)) -> Value {
        let (_, dimensions) = rules;
        let mut assigned_pods: Vec<&AssignedPod> = self.assigned_pods.values().collect();
        assigned_pods.sort_by(|a, b| (a.assigned, &a.pod.uid).cmp(&(b.assigned, &b.pod.uid)));
        let pods = assigned_pods
            .iter()
            .map(|assigned_pod| json!({"timestamp": assigned_pod.assigned, "pod": assigned_pod.pod.named_object()}));
        let mut out = json!({"pods": pods.collect::<Vec<_>>()});
        let node_usage = &self.node_usage;
        if node_usage.report.is_some() {
            let names = |listed: fn(&Contribution) -> bool| {
                let counted = assigned_pods
                    .iter()
                    .filter(|assigned_pod| listed(&node_usage.contribution(assigned_pod, rules)));
                let mut names: Vec<String> = counted
                    .map(|assigned_pod| assigned_pod.pod.to_string())
                    .collect();
                names.sort_unstable();
                names
            };
            out["prodUsage"] = dimensions.row_to_json(&node_usage.prod_usage);
            out["nodeDelta"] = dimensions.row_to_json(&node_usage.node_delta);
            out["prodDelta"] = dimensions.row_to_json(&node_usage.prod_delta);
            out["nodeEstimated"] = dimensions.row_to_json(&node_usage.estimated);
            out["nodeDeltaPods"] =
                json!(names(|contribution| is_nonzero(&contribution.node_delta)));
            out["prodDeltaPods"] =
                json!(names(|contribution| is_nonzero(&contribution.prod_delta)));
            out["nodeEstimatedPods"] = json!(names(|_| true));
        }
        inspection::without_empty(out)
    }
}

impl NodeUsage {
    /// Returns what a pod adds to the sums of its node: the part of its estimate that the report does not
    /// cover, and the reported usage of a production pod. Constant for a given report, and zero without one.
    fn contribution(
        &self,
        assigned_pod: &AssignedPod,
        (args, dimensions): (&Args, &Dimensions),
    ) -> Contribution {
        let mut contribution = Contribution {
            node_delta: dimensions.zero(),
            prod_delta: dimensions.zero(),
            prod_usage: dimensions.zero(),
        };
        let Some(report) = &self.report else {
            return contribution;
        };
        let (pod, estimate) = (&assigned_pod.pod, &assigned_pod.estimate);
        let reported = report.pod(&pod.namespace, &pod.name);
        let usage = reported.map(|reported| dimensions.row_from_report(&reported.usage));
        let coverage = Coverage {
            assigned: assigned_pod.assigned.as_millisecond(),
            deadline: deadline(pod, assigned_pod.assigned, assigned_pod.initialized, args),
            reported: report.updated.map_or(0, |time| time.as_millisecond()),
            interval: report.interval,
        };
        // The part of the estimate that the reported usage does not cover; `None` if it covers all.
        let uncovered = |usage: Option<&ResourceRow>| match usage {
            None => Some(estimate.clone()),
            Some(usage) if coverage.estimate_counts() => {
                let pairs = estimate.iter().zip(usage);
                Some(pairs.map(|(e, u)| estimate::unreported(*e, *u)).collect())
            }
            Some(_) => None,
        };
        if let Some(delta) = uncovered(usage.as_ref()) {
            contribution.node_delta = delta;
        }
        if pod.priority_class == PriorityClass::Prod {
            let prod = usage.filter(|_| reported.is_some_and(|reported| reported.prod));
            if let Some(delta) = uncovered(prod.as_ref()) {
                contribution.prod_delta = delta;
            }
            if let Some(usage) = prod {
                contribution.prod_usage = usage;
            }
        }
        contribution
    }

    /// Adds the contribution of a pod to the sums, or subtracts it if `sign` is -1.
    fn add_contribution(
        &mut self,
        assigned_pod: &AssignedPod,
        rules: (&Args, &Dimensions),
        sign: i64,
    ) {
        let contribution = self.contribution(assigned_pod, rules);
        for (sum, part) in [
            (&mut self.node_delta, &contribution.node_delta),
            (&mut self.prod_delta, &contribution.prod_delta),
            (&mut self.prod_usage, &contribution.prod_usage),
            (&mut self.estimated, &assigned_pod.estimate),
        ] {
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum = sum.saturating_add(sign * part);
            }
        }
    }
}

fn is_nonzero(row: &ResourceRow) -> bool {
    row.iter().any(|amount| *amount != 0)
}

/// Returns the time until which the estimate counts regardless of the report, in milliseconds.
pub(super) fn deadline(
    pod: &PodInfo,
    assigned: Timestamp,
    initialized_at: Option<Timestamp>,
    args: &Args,
) -> Option<i64> {
    let setting = |key: &str, default: Option<i64>| {
        let own = args
            .allow_customize_estimation
            .then(|| pod.annotation(key))
            .flatten();
        own.and_then(|text| text.parse::<i64>().ok())
            .or(default)
            .filter(|seconds| *seconds > 0)
    };
    let after = |time: Timestamp, seconds: i64| {
        time.as_millisecond()
            .saturating_add(seconds.saturating_mul(1000))
    };
    let initialized = setting(
        annotations::LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED,
        args.estimated_seconds_after_initialized,
    );
    if let (Some(seconds), Some(time)) = (initialized, initialized_at) {
        return Some(after(time, seconds));
    }
    let scheduled = setting(
        annotations::LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED,
        args.estimated_seconds_after_pod_scheduled,
    );
    scheduled.map(|seconds| after(assigned, seconds))
}

/// Scaling factors by resource from the pod's annotation, parsed once; empty if invalid.
struct ScalingFactors(BTreeMap<String, i64>);

/// Returns the scaling factors in the pod's annotation; `None` without one.
fn custom_factors(pod: &PodInfo) -> Option<&BTreeMap<String, i64>> {
    let key = annotations::LOAD_ESTIMATED_SCALING_FACTORS;
    pod.annotation(key)?;
    let parse = |pod: &PodInfo| {
        let text = pod.annotation(key).unwrap_or_default();
        ScalingFactors(serde_json::from_str(text).unwrap_or_default())
    };
    Some(&pod.facet(parse).0)
}
