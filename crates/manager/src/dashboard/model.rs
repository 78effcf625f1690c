//! The content of the dashboard as values: pure functions of cached objects.

use crate::facts::{MetricReport, PodFacts};
use crate::noderesource::read_amount;
use k8s_openapi::api::core::v1::Node;
use koord_api::PriorityClass;
use koord_api::quantity::Quantity;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, CPU, MEMORY};
use koord_model::reclaim::Amount;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of samples in the history: four hours at [`INTERVAL_SECONDS`].
pub(super) const CAPACITY: usize = 480;
/// Seconds between two samples.
pub(super) const INTERVAL_SECONDS: i64 = 30;
/// Number of rows of each table; totals count all objects.
pub(super) const MAX_ROWS: usize = 50;
/// Number of hot and of cold nodes.
const MAX_NODES: usize = 10;
/// Age in seconds from which a report is not shown: the default of degradeTimeMinutes.
const MAX_AGE_SECONDS: i64 = 900;

/// Names of the values of a [`Row`], in order. The first five are usage.
pub(super) const COLUMNS: [&str; 8] = [
    "system",
    "prod",
    "mid",
    "batch",
    "free",
    "capacity",
    "allocatable",
    "batchAllocatable",
];
const USAGE: usize = 5;

/// Cores or bytes, by [`COLUMNS`].
pub(super) type Row = [f32; COLUMNS.len()];

/// Sums over all nodes at one time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sample {
    /// Unix seconds.
    pub(super) at: i64,
    pub(super) cpu: Row,
    pub(super) memory: Row,
}

/// The newest samples, oldest first. It never has more than [`CAPACITY`].
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Sample>);

impl History {
    /// Returns true if the next sample is due.
    pub(super) fn is_due(&self, now: i64) -> bool {
        let last = self.0.back();
        last.is_none_or(|last| now < last.at || now - last.at >= INTERVAL_SECONDS)
    }

    /// Adds a sample, and removes the oldest one if the history is full.
    pub(super) fn push(&mut self, sample: Sample) {
        if self.0.len() == CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns the samples for the page.
    pub(super) fn table(&self) -> HistoryTable {
        let rows = |row: fn(&Sample) -> &Row| self.0.iter().map(row).copied().collect();
        HistoryTable {
            interval_seconds: INTERVAL_SECONDS,
            columns: COLUMNS,
            times: self.0.iter().map(|sample| sample.at).collect(),
            cpu: rows(|sample| &sample.cpu),
            memory: rows(|sample| &sample.memory),
        }
    }
}

/// The history as columns: CPU in cores, memory in bytes.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistoryTable {
    interval_seconds: i64,
    columns: [&'static str; COLUMNS.len()],
    times: Vec<i64>,
    cpu: Vec<Row>,
    memory: Vec<Row>,
}

/// Counts of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counts {
    pub(super) nodes: usize,
    /// Nodes with a report of the last 15 minutes.
    pub(super) reporting: usize,
    pub(super) pods: usize,
}

/// Usage of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    name: String,
    /// Percent of capacity.
    cpu_percent: f32,
    /// Percent of capacity.
    memory_percent: f32,
}

impl NodeRow {
    fn hottest(&self) -> f32 {
        self.cpu_percent.max(self.memory_percent)
    }
}

/// A service under the pressure guard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ServiceRow {
    node: String,
    namespace: String,
    name: String,
    verdict: String,
    held: Vec<String>,
}

/// A pod without a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PendingRow {
    namespace: String,
    name: String,
    priority_class: &'static str,
    qos: &'static str,
    /// Creation in Unix seconds.
    since: i64,
    reason: String,
    message: String,
}

/// Pods without a node, the oldest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Pending {
    total: usize,
    pods: Vec<PendingRow>,
}

/// Accumulates nodes one by one.
#[derive(Debug, Default)]
pub(super) struct Overview {
    pub(super) counts: Counts,
    pub(super) sample: Sample,
    pub(super) nodes: Vec<NodeRow>,
    pub(super) services: Vec<ServiceRow>,
    pub(super) service_total: usize,
    pub(super) pending: Pending,
}

impl Overview {
    /// Creates an overview of no nodes at `now`.
    pub(super) fn new(now: i64) -> Self {
        let sample = Sample {
            at: now,
            ..Sample::default()
        };
        Self {
            sample,
            ..Self::default()
        }
    }

    /// Adds a node and its report.
    pub(super) fn add_node(&mut self, node: &Node, report: Option<&MetricReport>) {
        self.counts.nodes += 1;
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let status = node.status.as_ref();
        let capacity = status.and_then(|status| status.capacity.as_ref());
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let of = |list, name| read_amount(list, name).unwrap_or_default();
        let capacity = Amount::new(of(capacity, CPU), of(capacity, MEMORY));
        let batch_cpu = Quantity::from_milli(of(allocatable, BATCH_CPU).value());
        let batch = Amount::new(batch_cpu, of(allocatable, BATCH_MEMORY));
        let allocatable = Amount::new(of(allocatable, CPU), of(allocatable, MEMORY));
        for (index, amount) in [capacity, allocatable, batch].into_iter().enumerate() {
            self.add(USAGE + index, amount);
        }
        let Some(report) = report else { return };
        let age = report
            .updated
            .map(|updated| self.sample.at.saturating_sub(updated));
        if !report.measured || age.is_none_or(|age| age > MAX_AGE_SECONDS) {
            return;
        }
        self.counts.reporting += 1;
        self.add(0, report.system_usage);
        for pod in &report.pods {
            if let Some(usage) = pod.usage {
                self.add(column(pod.priority), usage.amount());
            }
        }
        for app in &report.host_apps {
            self.add(column(app.priority), app.usage);
        }
        if let Some(usage) = report.node_usage {
            self.nodes.push(NodeRow {
                name: name.to_owned(),
                cpu_percent: percent(usage.cpu, capacity.cpu),
                memory_percent: percent(usage.memory, capacity.memory),
            });
        }
        self.service_total += report.guarded.len();
        for service in &report.guarded {
            if self.services.len() == MAX_ROWS {
                break;
            }
            self.services.push(ServiceRow {
                node: name.to_owned(),
                namespace: service.namespace.to_string(),
                name: service.name.to_string(),
                verdict: service.verdict.to_string(),
                held: service.held.iter().map(ToString::to_string).collect(),
            });
        }
    }

    fn add(&mut self, column: usize, amount: Amount) {
        self.sample.cpu[column] += float(amount.cpu);
        self.sample.memory[column] += float(amount.memory);
    }

    /// Sets the pods of the cluster.
    pub(super) fn set_pods(&mut self, pods: &[Arc<PodFacts>]) {
        self.counts.pods = pods.iter().filter(|pod| pod.active).count();
        let mut waiting: Vec<_> = pods
            .iter()
            .filter_map(|pod| Some((pod, pod.unscheduled()?)))
            .collect();
        waiting.sort_by(|(a, since_a), (b, since_b)| {
            let order = since_a.created.cmp(&since_b.created);
            order.then_with(|| a.key.cmp(&b.key))
        });
        let rows = waiting.iter().take(MAX_ROWS);
        let rows = rows.map(|(pod, unscheduled)| PendingRow {
            namespace: pod.key.namespace.clone(),
            name: pod.key.name.clone(),
            priority_class: pod.priority.as_str(),
            qos: pod.qos.as_str(),
            since: unscheduled.created,
            reason: unscheduled.reason.to_string(),
            message: unscheduled.message.to_string(),
        });
        self.pending = Pending {
            total: waiting.len(),
            pods: rows.collect(),
        };
    }

    /// Returns the nodes with the highest usage, highest first, and those with the lowest, lowest first. A
    /// node is in one of the lists only.
    pub(super) fn hot_and_cold(&mut self) -> (Vec<NodeRow>, Vec<NodeRow>) {
        self.nodes.sort_by(|a, b| {
            let order = b.hottest().total_cmp(&a.hottest());
            order.then_with(|| a.name.cmp(&b.name))
        });
        let half = self.nodes.len().div_ceil(2);
        let hot = self.nodes[..half].iter().take(MAX_NODES);
        let cold = self.nodes[half..].iter().rev().take(MAX_NODES);
        (hot.cloned().collect(), cold.cloned().collect())
    }
}

/// Returns the column of a class. Pods without a class are charged like services.
fn column(class: PriorityClass) -> usize {
    match class {
        PriorityClass::Prod | PriorityClass::None => 1,
        PriorityClass::Mid => 2,
        PriorityClass::Batch => 3,
        PriorityClass::Free => 4,
    }
}

/// Returns the quantity for a chart, in which seven digits are enough.
#[allow(
    clippy::cast_possible_truncation,
    reason = "f32 has the digits of a chart"
)]
fn float(quantity: Quantity) -> f32 {
    quantity.to_f64() as f32
}

fn percent(part: Quantity, whole: Quantity) -> f32 {
    if whole.signum() <= 0 {
        return 0.0;
    }
    // One decimal, so that noise does not change the page.
    (float(part) / float(whole) * 1000.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::FieldMask;
    use k8s_openapi::api::core::v1::Pod;
    use koord_api::slo::NodeMetricStatus;
    use serde_json::{Value, json};

    const NOW: i64 = 1_000_000;

    fn node(name: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "status": {"capacity": {"cpu": "10", "memory": "100"},
                "allocatable": {"cpu": "9", "memory": "90",
                    "kubernetes.io/batch-cpu": "4500", "kubernetes.io/batch-memory": "40"}},
        }))
        .unwrap()
    }

    fn usage(cpu: &str, memory: &str) -> Value {
        json!({"resources": {"cpu": cpu, "memory": memory}})
    }

    fn report(cpu: &str, age: i64) -> MetricReport {
        let status: NodeMetricStatus = serde_json::from_value(json!({
            "nodeMetric": {"nodeUsage": usage(cpu, "10"), "systemUsage": usage("500m", "5")},
            "podsMetric": [
                {"namespace": "a", "name": "p", "podUsage": usage("2", "20"), "priority": "koord-prod",
                    "extensions": {"pressureGuard": {"verdict": "slow", "held": ["cpu"]}}},
                {"namespace": "a", "name": "u", "podUsage": usage("1", "1")},
                {"namespace": "a", "name": "m", "podUsage": usage("250m", "2"), "priority": "koord-mid"},
                {"namespace": "a", "name": "b", "podUsage": usage("1", "3"), "priority": "koord-batch"},
                {"namespace": "a", "name": "f", "podUsage": usage("1", "4"), "priority": "koord-free"},
            ],
            "hostApplicationMetric": [{"name": "h", "usage": usage("1", "1"), "priority": "koord-batch"}],
        }))
        .unwrap();
        MetricReport {
            updated: Some(NOW - age),
            ..MetricReport::from_status(&status)
        }
    }

    #[test]
    fn usage_is_summed_by_class() {
        let mut overview = Overview::new(NOW);
        overview.add_node(&node("a"), Some(&report("5", 60)));
        overview.add_node(&node("b"), None);
        // Too old to be shown.
        overview.add_node(&node("c"), Some(&report("5", MAX_AGE_SECONDS + 1)));
        assert_eq!(
            overview.sample.cpu,
            [0.5, 3.0, 0.25, 2.0, 1.0, 30.0, 27.0, 13.5]
        );
        assert_eq!(
            overview.sample.memory,
            [5.0, 21.0, 2.0, 4.0, 4.0, 300.0, 270.0, 120.0]
        );
        let Counts {
            nodes, reporting, ..
        } = overview.counts;
        assert_eq!((nodes, reporting), (3, 1));
        let service = &overview.services[0];
        assert_eq!((&*service.node, &*service.verdict), ("a", "slow"));
        assert_eq!(service.held, ["cpu"]);
    }

    #[test]
    fn hot_and_cold_nodes_do_not_overlap() {
        let cases: [(&[&str], &[&str], &[&str]); 4] = [
            (&[], &[], &[]),
            (&["5"], &["n0"], &[]),
            (&["1", "9"], &["n1"], &["n0"]),
            (&["1", "9", "5"], &["n1", "n2"], &["n0"]),
        ];
        for (loads, hot, cold) in cases {
            let mut overview = Overview::new(NOW);
            for (index, cpu) in loads.iter().enumerate() {
                overview.add_node(&node(&format!("n{index}")), Some(&report(cpu, 0)));
            }
            let (hottest, coldest) = overview.hot_and_cold();
            let names = |rows: Vec<NodeRow>| -> Vec<String> {
                rows.into_iter().map(|row| row.name).collect()
            };
            assert_eq!(names(hottest), hot, "{loads:?}");
            assert_eq!(names(coldest), cold, "{loads:?}");
        }
    }

    #[test]
    fn pending_pods_are_bounded_and_oldest_first() {
        let fields = FieldMask {
            unscheduled: true,
            ..FieldMask::default()
        };
        let pods: Vec<_> = (0..MAX_ROWS + 5)
            .map(|index| {
                let minute = 59 - index % 60;
                let pod: Pod = serde_json::from_value(json!({
                    "metadata": {"namespace": "a", "name": format!("p{index}"),
                        "creationTimestamp": format!("2026-01-01T00:{minute:02}:00Z")},
                    "status": {"phase": "Pending"},
                }))
                .unwrap();
                Arc::new(PodFacts::from_pod(&pod, fields))
            })
            .collect();
        let mut overview = Overview::new(NOW);
        overview.set_pods(&pods);
        let pending = overview.pending;
        assert_eq!(
            (pending.total, pending.pods.len()),
            (MAX_ROWS + 5, MAX_ROWS)
        );
        assert!(pending.pods.is_sorted_by_key(|row| row.since));
        assert_eq!(pending.pods[0].name, format!("p{}", MAX_ROWS + 4));
    }

    #[test]
    fn history_is_bounded() {
        let mut history = History::default();
        let mut at = 0;
        for _ in 0..CAPACITY + 100 {
            assert!(history.is_due(at));
            history.push(Sample {
                at,
                ..Sample::default()
            });
            assert!(!history.is_due(at + INTERVAL_SECONDS - 1));
            at += INTERVAL_SECONDS;
        }
        let table = history.table();
        assert_eq!(table.times.len(), CAPACITY);
        assert_eq!(table.times[0], 100 * INTERVAL_SECONDS);
        // docs/dashboard.md names the size.
        let bytes = history.0.capacity() * std::mem::size_of::<Sample>();
        assert!(bytes <= 40 * 1024, "{bytes}");
        assert!(history.is_due(0), "the clock was set back");
    }

    #[test]
    fn percent_of_nothing_is_zero() {
        assert_eq!(percent(Quantity::from_value(5), Quantity::ZERO), 0.0);
        assert_eq!(
            percent(Quantity::from_value(1), Quantity::from_value(3)),
            33.3
        );
    }
}
