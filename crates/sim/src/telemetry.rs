//! Measurements and reports of the simulated koordlets.
//!
//! One task owns this state. Nothing here does I/O: samples go in with the time, reports come out.

use crate::Options;
use crate::usage::{self, Generator, Usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::slo::{
    AggregatedUsage, NodeMetricInfo, NodeMetricSpec, NodeMetricStatus, PodMetricInfo,
    ReclaimableMetric, ResourceMap,
};
use koord_api::{
    GoDuration, PriorityClass, QosClass, Quantity, ResourceList, priority, qos, quantity, resources,
};
use koord_kube::ObjectKey;
use koord_model::percentile::WindowAggregates;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::Duration;

/// Default windows of usage percentiles where the NodeMetric does not set them.
const WINDOWS: [GoDuration; 3] = [
    GoDuration::from_mins(5),
    GoDuration::from_mins(10),
    GoDuration::from_mins(30),
];
/// Default window of plain averages where the NodeMetric does not set it, in seconds.
const AVERAGE_SECONDS: i64 = 300;
/// Maximum length of the history, in seconds.
const HISTORY_SECONDS: i64 = 1800;
/// Usage of a node's system: share of its CPU, and bytes.
const SYSTEM: (f64, f64) = (0.01, 1_073_741_824.0);
/// Margin on top of the highest usage when the unused part of requests is predicted.
const SAFETY: f64 = 1.1;

/// Simulated usage of all nodes and pods, and the times of their reports.
#[derive(Debug)]
pub(crate) struct Telemetry {
    seed: u64,
    /// Number of samples in half an hour.
    history: usize,
    sample_interval: Duration,
    report_interval: Duration,
    least_report_interval: Duration,
    nodes: FxHashMap<String, NodeState>,
    /// Node of each pod.
    places: FxHashMap<ObjectKey, String>,
}

#[derive(Debug, Default)]
struct NodeState {
    managed: bool,
    capacity: Usage,
    /// The NodeMetric's spec; nothing is reported without one.
    spec: Option<NodeMetricSpec>,
    /// Time of the next sample in Unix milliseconds.
    next_sample: Option<i64>,
    /// Time of the last report in Unix seconds; `None` before the first.
    last_report: Option<i64>,
    /// Time of the next report in Unix seconds; `None` if none is due.
    next_report: Option<i64>,
    /// True if pods started or ended since the last sample, and between the last report and that sample.
    changed: bool,
    change_sampled: bool,
    pods: FxHashMap<ObjectKey, PodState>,
    samples: VecDeque<Sample>,
}

#[derive(Debug)]
struct PodState {
    uid: String,
    /// Start in Unix seconds; only a running pod uses anything.
    started: Option<i64>,
    priority: PriorityClass,
    qos: QosClass,
    batch: bool,
    request: Usage,
    generator: Generator,
    samples: VecDeque<(i64, Usage)>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    time: i64,
    node: Usage,
    system: Usage,
}

impl Telemetry {
    /// Returns the telemetry of no nodes yet, with the seed and the intervals of `options`.
    pub(crate) fn new(options: &Options) -> Self {
        let seconds = whole_seconds(options.sample_interval);
        let history = usize::try_from(HISTORY_SECONDS / seconds + 2).unwrap_or(2);
        Self {
            seed: options.seed,
            history,
            sample_interval: options.sample_interval,
            report_interval: options.report_interval,
            least_report_interval: options.least_report_interval,
            nodes: FxHashMap::default(),
            places: FxHashMap::default(),
        }
    }

    /// Adds or updates a node. Returns the pods on it if the node has just become managed.
    pub(crate) fn apply_node(&mut self, node: &Node, managed: bool) -> Vec<ObjectKey> {
        let name = node.metadata.name.clone().unwrap_or_default();
        let state = self.nodes.entry(name).or_default();
        let capacity = node
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref());
        let amount = |name: &str| {
            let amount = capacity.and_then(|list| quantity::parse(list.get(name)?).ok());
            amount.map_or(0.0, |amount| amount.to_f64())
        };
        state.capacity = Usage {
            cpu: amount(resources::CPU) * 1000.0,
            memory: amount(resources::MEMORY),
        };
        let became = managed && !state.managed;
        state.managed = managed;
        if became {
            state.pods.keys().cloned().collect()
        } else {
            Vec::new()
        }
    }

    /// Removes a node's own state; its pods are removed when they are deleted.
    pub(crate) fn node_gone(&mut self, name: &str) {
        if let Some(state) = self.nodes.get_mut(name) {
            state.managed = false;
            state.samples.clear();
            state.next_sample = None;
            state.next_report = None;
        }
        self.drop_if_empty(name);
    }

    fn drop_if_empty(&mut self, name: &str) {
        let empty = self
            .nodes
            .get(name)
            .is_some_and(|state| !state.managed && state.pods.is_empty() && state.spec.is_none());
        if empty {
            self.nodes.remove(name);
        }
    }

    /// Stores the spec of a NodeMetric; `None` when it was deleted.
    pub(crate) fn metric(&mut self, name: &str, spec: Option<NodeMetricSpec>) {
        self.nodes.entry(name.to_owned()).or_default().spec = spec;
        self.drop_if_empty(name);
    }

    /// Adds or updates a bound pod.
    pub(crate) fn pod(&mut self, key: &ObjectKey, pod: &Pod) {
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default();
        let status = pod.status.as_ref();
        let ended = matches!(
            status.and_then(|status| status.phase.as_deref()),
            Some("Succeeded" | "Failed")
        );
        if node.is_empty() || ended {
            return self.pod_gone(key);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let running = status.is_some_and(|status| status.phase.as_deref() == Some("Running"));
        let started = status
            .filter(|_| running)
            .and_then(|status| status.start_time.as_ref())
            .map(|time| time.0.as_second());
        if self.places.get(key).is_some_and(|place| *place != node) {
            self.pod_gone(key);
        }
        let state = self.nodes.entry(node.clone()).or_default();
        match state.pods.get_mut(key) {
            Some(known) if known.uid == uid => {
                state.changed |= known.started != started;
                known.started = started;
            }
            _ => {
                state.changed |= started.is_some();
                let pod = PodState {
                    uid,
                    started,
                    priority: priority::pod_priority_class_or_default(pod),
                    qos: qos::pod_qos_class_or_default(pod),
                    batch: usage::is_batch(pod),
                    request: usage::demand(pod).request,
                    generator: Generator::for_pod(pod, self.seed),
                    samples: VecDeque::new(),
                };
                state.pods.insert(key.clone(), pod);
                self.places.insert(key.clone(), node);
            }
        }
    }

    /// Removes a pod.
    pub(crate) fn pod_gone(&mut self, key: &ObjectKey) {
        if let Some(node) = self.places.remove(key) {
            if let Some(state) = self.nodes.get_mut(&node) {
                let removed = state.pods.remove(key);
                state.changed |= removed.is_some_and(|pod| pod.started.is_some());
            }
            self.drop_if_empty(&node);
        }
    }

    /// Samples the managed nodes whose next sample is due, each once in an interval. The first sample of a node is
    /// due at once, the second spreads the nodes over the interval.
    pub(crate) fn sample(&mut self, now: Timestamp) {
        let (seconds, millis) = (now.as_second(), now.as_millisecond());
        let interval = i64::try_from(self.sample_interval.as_millis())
            .unwrap_or(i64::MAX)
            .max(1);
        for (name, node) in &mut self.nodes {
            if !node.managed || node.next_sample.is_some_and(|next| next > millis) {
                continue;
            }
            let next = match node.next_sample {
                None => millis.saturating_add(spread(self.seed, name, interval)),
                // A late sample does not move the following ones, unless they are late, too.
                Some(due) => due.saturating_add(interval),
            };
            node.next_sample = Some(if next > millis {
                next
            } else {
                millis.saturating_add(interval)
            });
            node.sample(seconds, self.history);
        }
    }

    /// Returns the reports that are due, at most `limit`, and schedules the next one of each node.
    ///
    /// A node reports once in the interval of its NodeMetric, if that is not shorter than the least interval.
    /// When pods have started or ended, a report follows the next sample as soon as the NodeMetric allows.
    pub(crate) fn due(&mut self, now: Timestamp, limit: usize) -> Vec<(String, NodeMetricStatus)> {
        let seconds = now.as_second();
        let default_interval = whole_seconds(self.report_interval);
        let least_interval = whole_seconds(self.least_report_interval);
        let mut reports = Vec::new();
        for (name, node) in &mut self.nodes {
            if reports.len() == limit {
                break;
            }
            let Some(spec) = node.spec.as_ref().filter(|_| node.managed) else {
                continue;
            };
            if node.samples.is_empty() {
                continue;
            }
            let policy = spec.metric_collect_policy.as_ref();
            let interval = policy
                .and_then(|policy| policy.report_interval_seconds)
                .filter(|interval| *interval > 0)
                .unwrap_or(default_interval);
            let last = node.last_report.filter(|_| node.change_sampled);
            let due = last
                .map(|last| last.saturating_add(interval))
                .into_iter()
                .chain(node.next_report)
                .min();
            if due.is_some_and(|due| due > seconds) {
                continue;
            }
            // The first report comes at once, the second spreads the nodes over the interval.
            let interval = interval.max(least_interval);
            let delay = match node.next_report {
                Some(_) => interval,
                None => spread(self.seed, name, interval),
            };
            node.last_report = Some(seconds);
            node.next_report = Some(seconds.saturating_add(delay));
            node.change_sampled = false;
            reports.push((name.clone(), node.report(now)));
        }
        reports
    }
}

/// Returns the delay of a node within an interval, from 1 to `interval`.
fn spread(seed: u64, node: &str, interval: i64) -> i64 {
    1 + (usage::hash(seed, node) % interval.unsigned_abs().max(1)).cast_signed()
}

/// Returns an interval in seconds, at least 1.
fn whole_seconds(interval: Duration) -> i64 {
    i64::try_from(interval.as_secs())
        .unwrap_or(HISTORY_SECONDS)
        .max(1)
}

impl NodeState {
    /// Records the usage of the node and its pods at `now`, limited to the node's capacity.
    fn sample(&mut self, now: i64, history: usize) {
        self.change_sampled |= std::mem::take(&mut self.changed);
        let system = Usage {
            cpu: self.capacity.cpu * SYSTEM.0,
            memory: SYSTEM.1.min(self.capacity.memory * 0.05),
        };
        let (mut services, mut batch) = (Usage::default(), Usage::default());
        let mut usages = Vec::with_capacity(self.pods.len());
        for pod in self.pods.values_mut() {
            let Some(started) = pod.started else { continue };
            #[allow(clippy::cast_precision_loss, reason = "an age in seconds is small")]
            let usage = pod.generator.at(now, (now - started).max(0) as f64);
            *if pod.batch { &mut batch } else { &mut services } += usage;
            usages.push((pod, usage));
        }
        // Services first; batch pods share the remaining CPU. Memory does not shrink, but cannot exceed the
        // node's.
        let services_share = share(self.capacity.cpu - system.cpu, services.cpu);
        let remaining_cpu = self.capacity.cpu - system.cpu - services.cpu * services_share;
        let batch_share = share(remaining_cpu, batch.cpu);
        let memory_share = share(
            self.capacity.memory - system.memory,
            services.memory + batch.memory,
        );
        let mut node = system;
        for (pod, usage) in usages {
            let got = Usage {
                cpu: usage.cpu
                    * if pod.batch {
                        batch_share
                    } else {
                        services_share
                    },
                memory: usage.memory * memory_share,
            };
            node += got;
            push(&mut pod.samples, (now, got), history.min(64));
        }
        push(
            &mut self.samples,
            Sample {
                time: now,
                node,
                system,
            },
            history,
        );
    }

    /// Returns the NodeMetric status: averages and percentiles over the configured windows.
    fn report(&self, now: Timestamp) -> NodeMetricStatus {
        let policy = self
            .spec
            .as_ref()
            .and_then(|spec| spec.metric_collect_policy.as_ref());
        let window = policy
            .and_then(|policy| policy.aggregate_duration_seconds)
            .unwrap_or(AVERAGE_SECONDS);
        let durations = policy
            .and_then(|policy| policy.node_aggregate_policy.as_ref())
            .map_or_else(|| WINDOWS.to_vec(), |policy| policy.durations.clone());
        let since = now.as_second() - window;
        let of_node = |sample: &Sample| (sample.time, sample.node);
        let of_system = |sample: &Sample| (sample.time, sample.system);
        let info = NodeMetricInfo {
            node_usage: Some(resource_map(average(
                self.samples.iter().map(of_node),
                since,
            ))),
            aggregated_node_usages: self.aggregate(now, &durations, of_node),
            system_usage: Some(resource_map(average(
                self.samples.iter().map(of_system),
                since,
            ))),
            aggregated_system_usages: self.aggregate(now, &durations, of_system),
            numa_usages: Vec::new(),
        };
        let mut pods: Vec<PodMetricInfo> = Vec::with_capacity(self.pods.len());
        let mut reclaimable = Usage::default();
        for (key, pod) in &self.pods {
            let recent = || pod.samples.iter().filter(|(time, _)| *time > since);
            if recent().next().is_none() {
                continue;
            }
            if pod.priority == PriorityClass::Prod && !pod.batch {
                let peak = recent().fold(Usage::default(), |peak, (_, usage)| Usage {
                    cpu: peak.cpu.max(usage.cpu),
                    memory: peak.memory.max(usage.memory),
                });
                reclaimable += Usage {
                    cpu: (pod.request.cpu - peak.cpu * SAFETY).max(0.0),
                    memory: (pod.request.memory - peak.memory * SAFETY).max(0.0),
                };
            }
            pods.push(PodMetricInfo {
                name: key.name.clone(),
                namespace: key.namespace.clone(),
                pod_usage: Some(resource_map(average(pod.samples.iter().copied(), since))),
                priority: pod.priority,
                qos: pod.qos,
                extensions: None,
            });
        }
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        NodeMetricStatus {
            update_time: Some(Time(now)),
            node_metric: Some(info),
            pods_metric: pods,
            prod_reclaimable_metric: Some(ReclaimableMetric {
                resource: Some(resource_map(reclaimable)),
            }),
            ..NodeMetricStatus::default()
        }
    }

    /// Returns the percentiles over each window; empty until half of the window is covered.
    fn aggregate(
        &self,
        now: Timestamp,
        durations: &[GoDuration],
        value: impl Fn(&Sample) -> (i64, Usage),
    ) -> Vec<AggregatedUsage> {
        let mut out = Vec::with_capacity(durations.len());
        for duration in durations {
            let since = now.as_second() - duration.as_secs();
            let inside: Vec<(i64, Usage)> = self
                .samples
                .iter()
                .map(&value)
                .filter(|(time, _)| *time > since)
                .collect();
            let span = match (inside.first(), inside.last()) {
                (Some((first, _)), Some((last, _))) => last - first,
                _ => 0,
            };
            let mut entry = AggregatedUsage {
                duration: Some(*duration),
                ..AggregatedUsage::default()
            };
            let mut cpu: Vec<f64> = inside.iter().map(|(_, usage)| usage.cpu).collect();
            let mut memory: Vec<f64> = inside.iter().map(|(_, usage)| usage.memory).collect();
            if span * 2 >= duration.as_secs()
                && let (Some(cpu), Some(memory)) = (
                    WindowAggregates::from_samples(&mut cpu),
                    WindowAggregates::from_samples(&mut memory),
                )
            {
                for (name, cpu, memory) in [
                    ("avg", cpu.avg, memory.avg),
                    ("p50", cpu.p50, memory.p50),
                    ("p90", cpu.p90, memory.p90),
                    ("p95", cpu.p95, memory.p95),
                    ("p99", cpu.p99, memory.p99),
                ] {
                    entry
                        .usage
                        .insert(name.to_owned(), resource_map(Usage { cpu, memory }));
                }
            }
            out.push(entry);
        }
        out
    }
}

/// Returns the share of `requested` that fits into `free`, 0 to 1.
fn share(free: f64, requested: f64) -> f64 {
    if requested > free {
        (free / requested).max(0.0)
    } else {
        1.0
    }
}

fn push<T>(samples: &mut VecDeque<T>, sample: T, limit: usize) {
    while samples.len() >= limit {
        samples.pop_front();
    }
    samples.push_back(sample);
}

/// Returns the mean usage of the samples taken after `since`; 0 if there are none.
fn average(samples: impl Iterator<Item = (i64, Usage)>, since: i64) -> Usage {
    let (mut sum, mut count) = (Usage::default(), 0.0);
    for (_, usage) in samples.filter(|(time, _)| *time > since) {
        sum += usage;
        count += 1.0;
    }
    if count == 0.0 {
        return sum;
    }
    Usage {
        cpu: sum.cpu / count,
        memory: sum.memory / count,
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "float to int casts saturate"
)]
fn resource_map(usage: Usage) -> ResourceMap {
    let resources: ResourceList = [
        (
            resources::CPU.to_owned(),
            Quantity::from_milli(usage.cpu.round() as i64),
        ),
        (
            resources::MEMORY.to_owned(),
            Quantity::from_bytes(usage.memory.round() as i64),
        ),
    ]
    .into();
    ResourceMap {
        resources,
        devices: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::slo::{AggregatePolicy, NodeMetricCollectPolicy};
    use serde_json::json;

    const START: i64 = 1_700_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(START + seconds).unwrap()
    }

    fn telemetry() -> Telemetry {
        let mut telemetry = Telemetry::new(&Options {
            seed: 1,
            ..Options::default()
        });
        let node = json!({
            "metadata": { "name": "sim-0" },
            "status": { "capacity": { "cpu": "8", "memory": "32Gi" } },
        });
        telemetry.apply_node(&serde_json::from_value(node).unwrap(), true);
        let policy = NodeMetricCollectPolicy {
            aggregate_duration_seconds: Some(300),
            report_interval_seconds: Some(60),
            node_aggregate_policy: Some(AggregatePolicy {
                durations: vec![GoDuration::from_mins(5), GoDuration::from_mins(30)],
            }),
            node_memory_collect_policy: None,
        };
        telemetry.metric(
            "sim-0",
            Some(NodeMetricSpec {
                metric_collect_policy: Some(policy),
            }),
        );
        telemetry
    }

    fn add(
        telemetry: &mut Telemetry,
        name: &str,
        annotations: serde_json::Value,
        qos: &str,
        cpu: &str,
    ) {
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "d", "uid": name, "annotations": annotations,
                "labels": { "koordinator.sh/qosClass": qos },
            },
            "spec": {
                "nodeName": "sim-0",
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": "1Gi" } } }],
            },
            "status": { "phase": "Running", "startTime": "2023-11-14T22:13:20Z" },
        });
        telemetry.pod(
            &ObjectKey::new("d", name),
            &serde_json::from_value(pod).unwrap(),
        );
    }

    fn constant(cpu: &str) -> serde_json::Value {
        json!({ "kwok.x-k8s.io/usage-cpu": cpu, "kwok.x-k8s.io/usage-memory": "100Mi" })
    }

    fn run(telemetry: &mut Telemetry, from: i64, to: i64) -> Vec<(i64, NodeMetricStatus)> {
        let mut reports = Vec::new();
        for second in from..to {
            telemetry.sample(at(second));
            let due = telemetry.due(at(second), usize::MAX);
            reports.extend(due.into_iter().map(|(_, status)| (second, status)));
        }
        reports
    }

    #[test]
    fn reports_follow_the_configured_interval_and_windows() {
        let mut telemetry = telemetry();
        add(&mut telemetry, "b", constant("500m"), "LS", "1");
        add(&mut telemetry, "a", constant("1"), "LS", "4");
        let reports = run(&mut telemetry, 0, 1200);
        let times: Vec<i64> = reports.iter().map(|(time, _)| *time).collect();
        assert_eq!(times[0], 0);
        assert!(
            times[2..].windows(2).all(|pair| pair[1] - pair[0] == 60),
            "{times:?}"
        );

        let (_, early) = &reports[0];
        let info = early.node_metric.as_ref().unwrap();
        assert!(
            info.aggregated_node_usages
                .iter()
                .all(|window| window.usage.is_empty())
        );
        let (_, late) = reports.last().unwrap();
        let info = late.node_metric.as_ref().unwrap();
        // Two pods and 1 % of 8 CPUs for the system.
        let node = info.node_usage.as_ref().unwrap();
        assert_eq!(node.resources["cpu"], Quantity::from_milli(1580));
        let windows = &info.aggregated_node_usages;
        assert_eq!(
            windows[0].usage["p99"].resources["cpu"],
            Quantity::from_milli(1580)
        );
        assert_eq!(windows[0].usage.len(), 5);
        assert_eq!(windows[1].usage.len(), 5, "15 of 30 minutes are covered");
        let names: Vec<_> = late
            .pods_metric
            .iter()
            .map(|pod| pod.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b"]);
        let reclaimable = late
            .prod_reclaimable_metric
            .clone()
            .unwrap()
            .resource
            .unwrap();
        // (4000 - 1100) + (1000 - 550)
        assert_eq!(reclaimable.resources["cpu"], Quantity::from_milli(3350));
        serde_json::to_value(late).unwrap();
    }

    /// Returns the times of a node's reports, in seconds, when its NodeMetric sets `interval`, in
    /// seconds. A pod starts after 100 seconds.
    fn times(interval: i64) -> Vec<i64> {
        let mut telemetry = telemetry();
        let state = telemetry.nodes.get_mut("sim-0").unwrap();
        let policy = state.spec.as_mut().unwrap().metric_collect_policy.as_mut();
        policy.unwrap().report_interval_seconds = Some(interval);
        let mut reports = run(&mut telemetry, 0, 100);
        add(&mut telemetry, "a", constant("1"), "LS", "1");
        reports.extend(run(&mut telemetry, 100, 300));
        reports.into_iter().map(|(time, _)| time).collect()
    }

    #[test]
    fn report_interval_has_the_least_of_koordlet() {
        let times = times(2);
        let gaps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // The first gap spreads the nodes, and the pod's report comes before its time.
        let short = gaps[1..].iter().filter(|gap| **gap != 30).count();
        assert_eq!(short, 1, "{times:?}");
        assert!(gaps.iter().all(|gap| *gap <= 30), "{times:?}");
    }

    #[test]
    fn report_follows_the_sample_of_a_new_pod() {
        assert!(times(2).iter().any(|time| (100..=115).contains(time)));
        // The NodeMetric does not allow it.
        let rare = times(60);
        assert!(
            rare[2..].windows(2).all(|pair| pair[1] - pair[0] == 60),
            "{rare:?}"
        );
    }

    #[test]
    fn samples_and_reports_of_nodes_are_spread() {
        let mut telemetry = telemetry();
        let spec = telemetry.nodes["sim-0"].spec.clone();
        for index in 1..1000 {
            let name = crate::node_name(index);
            let node = json!({"metadata": {"name": name}});
            telemetry.apply_node(&serde_json::from_value(node).unwrap(), true);
            telemetry.metric(&name, spec.clone());
        }
        assert_eq!(run(&mut telemetry, 0, 1).len(), 1000);
        let mut counts = [0; 60];
        for (time, _) in run(&mut telemetry, 1, 121) {
            counts[usize::try_from(time % 60).unwrap()] += 1;
        }
        // Each twice, about 33 in a second.
        assert_eq!(counts.iter().sum::<i32>(), 2000);
        assert!(
            counts.iter().all(|count| (4..100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn limit_of_reports_delays_none_by_an_interval() {
        let mut telemetry = telemetry();
        telemetry.sample(at(0));
        assert_eq!(telemetry.due(at(0), 0).len(), 0);
        assert_eq!(telemetry.due(at(1), 1).len(), 1);
    }

    #[test]
    fn batch_pods_get_what_services_leave() {
        let mut telemetry = telemetry();
        add(&mut telemetry, "service", constant("6"), "LS", "6");
        add(&mut telemetry, "batch", constant("6"), "BE", "0");
        let reports = run(&mut telemetry, 0, 400);
        let (_, last) = reports.last().unwrap();
        let usage = |index: usize| {
            last.pods_metric[index]
                .pod_usage
                .as_ref()
                .unwrap()
                .resources["cpu"]
                .milli_value()
        };
        assert_eq!((usage(0), usage(1)), (1920, 6000));
        let node = last
            .node_metric
            .as_ref()
            .unwrap()
            .node_usage
            .as_ref()
            .unwrap();
        assert_eq!(node.resources["cpu"].milli_value(), 8000);
    }

    #[test]
    fn node_without_metric_or_foreign_node_is_not_reported() {
        let mut telemetry = telemetry();
        telemetry.metric("sim-0", None);
        assert_eq!(run(&mut telemetry, 0, 120).len(), 0);
        let mut telemetry = self::telemetry();
        telemetry.node_gone("sim-0");
        assert_eq!(run(&mut telemetry, 0, 120).len(), 0);
    }

    #[test]
    fn pods_that_ended_use_nothing_and_leave_nothing_behind() {
        let mut telemetry = telemetry();
        add(&mut telemetry, "a", constant("1"), "LS", "1");
        telemetry.pod_gone(&ObjectKey::new("d", "a"));
        telemetry.node_gone("sim-0");
        telemetry.metric("sim-0", None);
        assert!(telemetry.nodes.is_empty() && telemetry.places.is_empty());
    }
}
