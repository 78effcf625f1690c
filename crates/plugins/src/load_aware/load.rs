//! Load of a node: usage from its report, plus estimates for pods placed since.

use super::args::{Args, ByResource, Thresholds};
use super::seen::{Amounts, SeenMetric, amount};
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

/// Amounts in the order of [`Dims`]. Up to four resources are stored inline; more cost one allocation per
/// row.
pub(super) type Row = SmallVec<[i64; 4]>;

/// Thresholds in percent by position in [`Dims`], without disabled ones.
pub(super) type Limits = SmallVec<[(usize, i64); 4]>;

/// Resources that are estimated or compared, with their scaling factors.
#[derive(Debug, Clone)]
pub(super) struct Dims {
    pub names: Vec<String>,
    /// Scaling factors in percent; `None` for a resource that only has a threshold.
    factors: Vec<Option<i64>>,
}

impl Dims {
    pub(super) fn of(args: &Args) -> Self {
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
        self.names.iter().position(|known| known == name)
    }

    pub(super) fn zero(&self) -> Row {
        SmallVec::from_elem(0, self.names.len())
    }

    /// Returns the amounts of these resources in `list`.
    pub(super) fn read(&self, list: &ResourceList) -> Row {
        let of = |name: &String| {
            let listed = list.get(name);
            listed.map_or(0, |quantity| amount(name, quantity))
        };
        self.names.iter().map(of).collect()
    }

    /// Returns the reported amounts of these resources.
    fn seen(&self, amounts: &Amounts) -> Row {
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
    fn list(&self, row: &Row) -> Value {
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
    pub(super) fn estimate(&self, pod: &PodInfo, table: &ResourceTable, custom: bool) -> Row {
        let own = custom.then(|| own_factors(pod)).flatten();
        let one = |(name, factor): (&String, &Option<i64>)| {
            let own = own.and_then(|own| own.get(name).copied());
            let Some(factor) = own.or(*factor) else {
                return 0;
            };
            let real = match pod.priority_class {
                PriorityClass::Prod | PriorityClass::None => Some(name.as_str()),
                class => koord_api::priority::translate(class, name),
            };
            let Some(real) = real else { return 0 };
            let fallback = match real {
                "cpu" | koord_api::resources::BATCH_CPU => Fallback::Cpu,
                "memory" | koord_api::resources::BATCH_MEMORY => Fallback::Memory,
                _ => Fallback::Zero,
            };
            let id = table.get(real);
            let of = |amounts: &resources::Amounts| id.map_or(0, |id| amounts.get(id));
            // The factor may come from a pod annotation, so the result is clamped.
            let estimate = estimate::estimate(of(&pod.requests), of(&pod.limits), factor, fallback);
            estimate.clamp(-resources::MOST, resources::MOST)
        };
        self.names.iter().zip(&self.factors).map(one).collect()
    }
}

/// A pod on a node, with its estimate.
#[derive(Debug)]
struct Share {
    pod: Arc<PodInfo>,
    assigned: Timestamp,
    /// Time at which the pod's init containers had completed.
    initialized: Option<Timestamp>,
    estimate: Row,
}

/// Contribution of a pod to the sums of its node.
struct Parts {
    node_delta: Row,
    prod_delta: Row,
    prod_usage: Row,
}

/// Usage of a node that filter and score read.
#[derive(Debug, Clone, Default)]
pub(super) struct Standing {
    pub report: Option<Arc<SeenMetric>>,
    /// Reported usage; `None` without a report or if the report has no node usage.
    pub usage: Option<Row>,
    /// Usage for aggregated thresholds; `None` if not configured or not reported.
    pub filtered: Option<Row>,
    pub scored: Option<Row>,
    /// Sum of estimates that the report does not cover yet.
    pub node_delta: Row,
    /// As [`Self::node_delta`], for production pods only.
    pub prod_delta: Row,
    /// Sum of reported usage of production pods, and of the system if so configured.
    pub prod_usage: Row,
    /// Sum of all estimates.
    pub estimated: Row,
}

/// Load of one node.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub standing: Standing,
    pub thresholds: Thresholds,
    pub allocatable: Row,
    /// True if usage may have fallen since the last report without an event: a pod was removed, a pod
    /// requests less, or the report expired.
    pub eased: bool,
    shares: FxHashMap<Arc<str>, Share>,
}

impl Load {
    pub(super) fn new(dims: &Dims) -> Self {
        let zero = || dims.zero();
        Self {
            allocatable: zero(),
            standing: Standing {
                node_delta: zero(),
                prod_delta: zero(),
                prod_usage: zero(),
                estimated: zero(),
                ..Standing::default()
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
        estimate: Row,
        (args, dims): (&Args, &Dims),
        assigned: Timestamp,
        now: Timestamp,
    ) {
        self.remove(&pod.uid, (args, dims));
        let share = Share {
            pod: pod.clone(),
            assigned: pod.scheduled_at.map_or(assigned, |time| time.min(now)),
            initialized: pod.initialized_at.map(|time| time.min(now)),
            estimate,
        };
        self.standing.count(&share, (args, dims), 1);
        self.shares.insert(pod.uid.clone(), share);
    }

    /// Replaces `pod`. Keeps its assignment time unless its condition has one.
    pub(super) fn update(
        &mut self,
        pod: &Arc<PodInfo>,
        estimate: Row,
        rules: (&Args, &Dims),
        now: Timestamp,
    ) {
        let assigned = self
            .shares
            .get(&pod.uid)
            .map_or(now, |share| share.assigned);
        self.add(pod, estimate, rules, assigned, now);
    }

    /// Returns the assignment time of the pod with this uid.
    pub(super) fn assigned_at(&self, uid: &str) -> Option<Timestamp> {
        self.shares.get(uid).map(|share| share.assigned)
    }

    pub(super) fn remove(&mut self, uid: &str, rules: (&Args, &Dims)) {
        if let Some(share) = self.shares.remove(uid) {
            self.standing.count(&share, rules, -1);
        }
    }

    /// Sets or removes the report, and recomputes all sums.
    pub(super) fn set_report(
        &mut self,
        report: Option<Arc<SeenMetric>>,
        (args, dims): (&Args, &Dims),
    ) {
        let zero = || dims.zero();
        let seen = report.as_deref();
        let system = seen.filter(|_| args.prod_usage_include_sys);
        let aggregated = self.thresholds.aggregated.as_ref();
        let scored = args.aggregated.as_ref();
        let scored = scored.filter(|scored| !scored.score_aggregation_type.is_empty());
        self.standing = Standing {
            usage: seen
                .and_then(|seen| seen.usage.as_ref())
                .map(|usage| dims.seen(usage)),
            filtered: seen.zip(aggregated).and_then(|(seen, by)| {
                let amounts = seen.aggregated(&by.kind, by.duration)?;
                Some(dims.seen(amounts))
            }),
            scored: seen.zip(scored).and_then(|(seen, by)| {
                let over = by.score_aggregated_duration;
                let amounts = seen.aggregated(&by.score_aggregation_type, over)?;
                Some(dims.seen(amounts))
            }),
            node_delta: zero(),
            prod_delta: zero(),
            prod_usage: system.map_or_else(zero, |seen| dims.seen(&seen.system)),
            estimated: zero(),
            report,
        };
        for share in self.shares.values() {
            self.standing.count(share, (args, dims), 1);
        }
    }

    /// Returns the load as JSON for the inspection API; sums only if there is a report.
    pub(super) fn show(&self, rules: (&Args, &Dims)) -> Value {
        let (_, dims) = rules;
        let mut shares: Vec<&Share> = self.shares.values().collect();
        shares.sort_by(|a, b| (a.assigned, &a.pod.uid).cmp(&(b.assigned, &b.pod.uid)));
        let pods = shares
            .iter()
            .map(|share| json!({"timestamp": share.assigned, "pod": share.pod.named_object()}));
        let mut out = json!({"pods": pods.collect::<Vec<_>>()});
        let standing = &self.standing;
        if standing.report.is_some() {
            let names = |listed: fn(&Parts) -> bool| {
                let counted = shares
                    .iter()
                    .filter(|share| listed(&standing.parts(share, rules)));
                let mut names: Vec<String> = counted.map(|share| share.pod.to_string()).collect();
                names.sort_unstable();
                names
            };
            out["prodUsage"] = dims.list(&standing.prod_usage);
            out["nodeDelta"] = dims.list(&standing.node_delta);
            out["prodDelta"] = dims.list(&standing.prod_delta);
            out["nodeEstimated"] = dims.list(&standing.estimated);
            out["nodeDeltaPods"] = json!(names(|parts| counts(&parts.node_delta)));
            out["prodDeltaPods"] = json!(names(|parts| counts(&parts.prod_delta)));
            out["nodeEstimatedPods"] = json!(names(|_| true));
        }
        inspection::without_empty(out)
    }
}

impl Standing {
    /// Returns the contribution of a pod, which is constant for a given report.
    fn parts(&self, share: &Share, (args, dims): (&Args, &Dims)) -> Parts {
        let mut parts = Parts {
            node_delta: dims.zero(),
            prod_delta: dims.zero(),
            prod_usage: dims.zero(),
        };
        let Some(report) = &self.report else {
            return parts;
        };
        let (pod, estimate) = (&share.pod, &share.estimate);
        let reported = report.pod(&pod.namespace, &pod.name);
        let usage = reported.map(|reported| dims.seen(&reported.usage));
        let coverage = Coverage {
            assigned: share.assigned.as_millisecond(),
            deadline: deadline(pod, share.assigned, share.initialized, args),
            reported: report.updated.map_or(0, |time| time.as_millisecond()),
            interval: report.interval,
        };
        let part = |usage: Option<&Row>| match usage {
            None => Some(estimate.clone()),
            Some(usage) if coverage.estimate_counts() => {
                let both = estimate.iter().zip(usage);
                Some(both.map(|(e, u)| estimate::unreported(*e, *u)).collect())
            }
            Some(_) => None,
        };
        if let Some(delta) = part(usage.as_ref()) {
            parts.node_delta = delta;
        }
        if pod.priority_class == PriorityClass::Prod {
            let prod = usage.filter(|_| reported.is_some_and(|reported| reported.prod));
            if let Some(delta) = part(prod.as_ref()) {
                parts.prod_delta = delta;
            }
            if let Some(usage) = prod {
                parts.prod_usage = usage;
            }
        }
        parts
    }

    fn count(&mut self, share: &Share, rules: (&Args, &Dims), sign: i64) {
        let parts = self.parts(share, rules);
        for (sum, part) in [
            (&mut self.node_delta, &parts.node_delta),
            (&mut self.prod_delta, &parts.prod_delta),
            (&mut self.prod_usage, &parts.prod_usage),
            (&mut self.estimated, &share.estimate),
        ] {
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum = sum.saturating_add(sign * part);
            }
        }
    }
}

fn counts(row: &Row) -> bool {
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
struct Factors(BTreeMap<String, i64>);

fn own_factors(pod: &PodInfo) -> Option<&BTreeMap<String, i64>> {
    let key = annotations::LOAD_ESTIMATED_SCALING_FACTORS;
    pod.annotation(key)?;
    let read = |pod: &PodInfo| {
        let text = pod.annotation(key).unwrap_or_default();
        Factors(serde_json::from_str(text).unwrap_or_default())
    };
    Some(&pod.facet(read).0)
}
