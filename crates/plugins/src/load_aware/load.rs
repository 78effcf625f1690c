//! What a node uses, by its report and by what was placed since.

use super::args::{Args, Thresholds};
use jiff::Timestamp;
use koord_api::annotations;
use koord_api::duration::GoDuration;
use koord_api::priority::PriorityClass;
use koord_api::quantity::{Format, Quantity, ResourceList};
use koord_api::slo::NodeMetric;
use koord_model::estimate::{self, Coverage, Fallback};
use koord_model::resources::{self, ResourceTable};
use koord_scheduler::inspection;
use koord_scheduler::state::PodInfo;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reports come this often when they do not say, in milliseconds.
const DEFAULT_INTERVAL: i64 = 60_000;

/// Amounts in the order of [`Dims`].
pub(super) type Row = Vec<i64>;

/// The resources that are estimated or compared, and their scaling factors.
#[derive(Debug, Clone)]
pub(super) struct Dims {
    pub names: Vec<String>,
    /// Percent; none for a resource that only has a threshold.
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
        vec![0; self.names.len()]
    }

    /// The listed amounts of these resources.
    pub(super) fn read(&self, list: &ResourceList) -> Row {
        let amount = |name: &String| {
            list.get(name).map_or(0, |quantity| match name.as_str() {
                "cpu" => quantity.milli_value(),
                _ => quantity.value(),
            })
        };
        self.names.iter().map(amount).collect()
    }

    /// The amounts of `row` with their names.
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

    /// What `pod` will probably use: of each resource, the variant of the pod's priority class is
    /// looked at (batch pods ask for `batch-cpu`), and counted as the resource itself.
    pub(super) fn estimate(&self, pod: &PodInfo, table: &ResourceTable, custom: bool) -> Row {
        let own: BTreeMap<String, i64> = custom
            .then(|| pod.annotation(annotations::LOAD_ESTIMATED_SCALING_FACTORS))
            .flatten()
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let one = |(name, factor): (&String, &Option<i64>)| {
            let Some(factor) = own.get(name).copied().or(*factor) else {
                return 0;
            };
            let real = match pod.priority_class {
                PriorityClass::Prod | PriorityClass::None => Some(name.as_str()),
                class => koord_api::resources::translate(class, name),
            };
            let Some(real) = real else { return 0 };
            let fallback = match real {
                "cpu" | koord_api::resources::BATCH_CPU => Fallback::Cpu,
                "memory" | koord_api::resources::BATCH_MEMORY => Fallback::Memory,
                _ => Fallback::Zero,
            };
            let id = table.get(real);
            let of = |amounts: &resources::Amounts| id.map_or(0, |id| amounts.get(id));
            estimate::estimate(of(&pod.requests), of(&pod.limits), factor, fallback)
        };
        self.names.iter().zip(&self.factors).map(one).collect()
    }
}

/// A NodeMetric, parsed.
#[derive(Debug)]
pub(super) struct Report {
    /// `status.updateTime`.
    pub updated: Option<Timestamp>,
    interval: i64,
    /// None when the report has no node part.
    pub usage: Option<Row>,
    system: Row,
    aggregated: Vec<(GoDuration, BTreeMap<String, Row>)>,
    pods: FxHashMap<(String, String), (Row, bool)>,
}

impl Report {
    pub(super) fn of(metric: &NodeMetric, dims: &Dims) -> Self {
        let read = |map: &Option<koord_api::slo::ResourceMap>| {
            map.as_ref()
                .map_or_else(|| dims.zero(), |map| dims.read(&map.resources))
        };
        let interval = metric
            .spec
            .metric_collect_policy
            .as_ref()
            .and_then(|policy| policy.report_interval_seconds)
            .map_or(DEFAULT_INTERVAL, |seconds| seconds.saturating_mul(1000));
        let status = metric.status.as_ref();
        let node = status.and_then(|status| status.node_metric.as_ref());
        let aggregated = node
            .map(|node| node.aggregated_node_usages.as_slice())
            .unwrap_or_default();
        let pods = status
            .map(|status| status.pods_metric.as_slice())
            .unwrap_or_default();
        Self {
            updated: status
                .and_then(|status| status.update_time.as_ref())
                .map(|time| time.0),
            interval,
            usage: node.map(|node| read(&node.node_usage)),
            system: node.map_or_else(|| dims.zero(), |node| read(&node.system_usage)),
            aggregated: aggregated
                .iter()
                .map(|window| {
                    let by_kind = window
                        .usage
                        .iter()
                        .filter(|(_, map)| !map.resources.is_empty())
                        .map(|(kind, map)| (kind.clone(), dims.read(&map.resources)))
                        .collect();
                    (window.duration.unwrap_or_default(), by_kind)
                })
                .collect(),
            pods: pods
                .iter()
                .filter(|pod| {
                    pod.pod_usage
                        .as_ref()
                        .is_some_and(|u| !u.resources.is_empty())
                })
                .map(|pod| {
                    let prod = pod.priority == PriorityClass::Prod;
                    let key = (pod.namespace.clone(), pod.name.clone());
                    (key, (read(&pod.pod_usage), prod))
                })
                .collect(),
        }
    }

    /// Usage by `kind` over `duration`; zero means the longest that has it, or the mean when none
    /// has. None when an explicit duration is missing.
    pub(super) fn aggregated(&self, kind: &str, duration: GoDuration) -> Option<&Row> {
        let having = self
            .aggregated
            .iter()
            .filter_map(|(d, by)| by.get(kind).map(|row| (*d, row)));
        if duration == GoDuration::ZERO {
            let longest = having.max_by_key(|(d, _)| d.as_nanos()).map(|(_, row)| row);
            return longest.or(self.usage.as_ref());
        }
        having
            .into_iter()
            .find(|(d, _)| *d == duration)
            .map(|(_, row)| row)
    }
}

/// One pod's share in its node's sums.
#[derive(Debug)]
struct Share {
    pod: Arc<PodInfo>,
    assigned: Timestamp,
    estimate: Row,
    delta: Row,
    prod_delta: Row,
    prod_usage: Row,
}

/// What is known of one node's load.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub report: Option<Arc<Report>>,
    pub thresholds: Thresholds,
    pub allocatable: Row,
    shares: FxHashMap<Arc<str>, Share>,
    /// Σ of what the report does not show yet.
    pub node_delta: Row,
    /// The same for production pods.
    pub prod_delta: Row,
    /// Σ of reported usage of production pods, and the system's if so configured.
    pub prod_usage: Row,
    /// Σ of all estimates.
    pub estimated: Row,
}

impl Load {
    pub(super) fn new(dims: &Dims) -> Self {
        let zero = || dims.zero();
        Self {
            allocatable: zero(),
            node_delta: zero(),
            prod_delta: zero(),
            prod_usage: zero(),
            estimated: zero(),
            ..Self::default()
        }
    }

    /// Adds `pod`, assigned at `now` unless its condition says when.
    pub(super) fn add(&mut self, pod: &Arc<PodInfo>, estimate: Row, args: &Args, now: Timestamp) {
        self.remove(&pod.uid);
        let assigned = pod.scheduled_at.unwrap_or(now);
        let share = self.share(pod.clone(), assigned, estimate, args);
        self.count(&share, 1);
        self.shares.insert(pod.uid.clone(), share);
    }

    /// Replaces `pod`; keeps its time of assignment unless its condition says when.
    pub(super) fn update(
        &mut self,
        pod: &Arc<PodInfo>,
        estimate: Row,
        args: &Args,
        now: Timestamp,
    ) {
        let assigned = self
            .shares
            .get(&pod.uid)
            .map_or(now, |share| share.assigned);
        self.add(pod, estimate, args, assigned);
    }

    /// When the pod with this uid was assigned.
    pub(super) fn assigned_at(&self, uid: &str) -> Option<Timestamp> {
        self.shares.get(uid).map(|share| share.assigned)
    }

    pub(super) fn remove(&mut self, uid: &str) {
        if let Some(share) = self.shares.remove(uid) {
            self.count(&share, -1);
        }
    }

    /// Takes a new report, or none, and sums anew.
    pub(super) fn set_report(&mut self, report: Option<Arc<Report>>, args: &Args) {
        self.report = report;
        for sum in [
            &mut self.node_delta,
            &mut self.prod_delta,
            &mut self.prod_usage,
            &mut self.estimated,
        ] {
            sum.fill(0);
        }
        if args.prod_usage_include_sys
            && let Some(report) = &self.report
        {
            self.prod_usage.clone_from(&report.system);
        }
        for old in std::mem::take(&mut self.shares).into_values() {
            let share = self.share(old.pod, old.assigned, old.estimate, args);
            self.count(&share, 1);
            self.shares.insert(share.pod.uid.clone(), share);
        }
    }

    fn share(&self, pod: Arc<PodInfo>, assigned: Timestamp, estimate: Row, args: &Args) -> Share {
        let zero = || vec![0; estimate.len()];
        let (mut delta, mut prod_delta, mut prod_usage) = (zero(), zero(), zero());
        if let Some(report) = &self.report {
            let key = (pod.namespace.to_string(), pod.name.to_string());
            let reported = report.pods.get(&key);
            let coverage = Coverage {
                assigned: assigned.as_millisecond(),
                deadline: deadline(&pod, assigned, args),
                reported: report.updated.map_or(0, |time| time.as_millisecond()),
                interval: report.interval,
            };
            let part = |usage: Option<&Row>| match usage {
                None => Some(estimate.clone()),
                Some(usage) if coverage.estimate_counts() => Some(
                    estimate
                        .iter()
                        .zip(usage)
                        .map(|(e, u)| estimate::unreported(*e, *u))
                        .collect(),
                ),
                Some(_) => None,
            };
            delta = part(reported.map(|(usage, _)| usage)).unwrap_or(delta);
            if pod.priority_class == PriorityClass::Prod {
                let prod = reported.filter(|(_, prod)| *prod).map(|(usage, _)| usage);
                prod_delta = part(prod).unwrap_or(prod_delta);
                if let Some(usage) = prod {
                    prod_usage.clone_from(usage);
                }
            }
        }
        Share {
            pod,
            assigned,
            estimate,
            delta,
            prod_delta,
            prod_usage,
        }
    }

    /// The node in the form of the inspection API: sums only when there is a report.
    pub(super) fn show(&self, dims: &Dims) -> Value {
        let mut shares: Vec<&Share> = self.shares.values().collect();
        shares.sort_by(|a, b| (a.assigned, &a.pod.uid).cmp(&(b.assigned, &b.pod.uid)));
        let pods = shares
            .iter()
            .map(|share| json!({"timestamp": share.assigned, "pod": *share.pod.object}));
        let mut out = json!({"pods": pods.collect::<Vec<_>>()});
        if self.report.is_some() {
            let names = |listed: fn(&Share) -> bool| {
                let counted = shares.iter().filter(|share| listed(share));
                let mut names: Vec<String> = counted.map(|share| share.pod.to_string()).collect();
                names.sort_unstable();
                names
            };
            out["prodUsage"] = dims.list(&self.prod_usage);
            out["nodeDelta"] = dims.list(&self.node_delta);
            out["prodDelta"] = dims.list(&self.prod_delta);
            out["nodeEstimated"] = dims.list(&self.estimated);
            out["nodeDeltaPods"] = json!(names(|share| counts(&share.delta)));
            out["prodDeltaPods"] = json!(names(|share| counts(&share.prod_delta)));
            out["nodeEstimatedPods"] = json!(names(|_| true));
        }
        inspection::without_empty(out)
    }

    fn count(&mut self, share: &Share, sign: i64) {
        let parts = [
            (&mut self.node_delta, &share.delta),
            (&mut self.prod_delta, &share.prod_delta),
            (&mut self.prod_usage, &share.prod_usage),
            (&mut self.estimated, &share.estimate),
        ];
        for (sum, part) in parts {
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum = sum.saturating_add(sign * part);
            }
        }
    }
}

fn counts(row: &Row) -> bool {
    row.iter().any(|amount| *amount != 0)
}

/// Until when the estimate counts whatever the report says, in milliseconds.
pub(super) fn deadline(pod: &PodInfo, assigned: Timestamp, args: &Args) -> Option<i64> {
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
    if let (Some(seconds), Some(time)) = (initialized, pod.initialized_at) {
        return Some(after(time, seconds));
    }
    let scheduled = setting(
        annotations::LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED,
        args.estimated_seconds_after_pod_scheduled,
    );
    scheduled.map(|seconds| after(assigned, seconds))
}
