//! NodeMetric: the usage report of this node.

use crate::agent::Agent;
use crate::gates::Gate;
use crate::metrics::{HostApplication, Usage};
use crate::predict::{Reclaimable, reclaimable};
use crate::states::metric_policy::{MemoryPolicy, MetricPolicy};
use crate::states::node::Amounts;
use crate::store::{Metric, SeriesSubject, Store};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::slo::{
    AggregatedUsage, ExtensionsMap, HostApplicationMetricInfo, NodeMetricInfo, NodeMetricStatus,
    NumaUsage, PodMetricInfo, ReclaimableMetric, ResourceMap,
};
use koord_api::{GoDuration, Quantity, resources};
use koord_model::percentile::WindowAggregates;

/// Key of the pressure guard in a pod's extensions.
pub const GUARD_EXTENSION: &str = "pressureGuard";

/// Returns CPU in milli-cores and memory in bytes as a resource map. Fractions are cut off.
#[must_use]
pub fn usage(milli: f64, bytes: f64) -> ResourceMap {
    amounts(Amounts {
        cpu: milli as i64,
        memory: bytes as i64,
    })
}

fn amounts(amounts: Amounts) -> ResourceMap {
    let resources = [
        (resources::CPU.to_owned(), Quantity::from_milli(amounts.cpu)),
        (
            resources::MEMORY.to_owned(),
            Quantity::from_bytes(amounts.memory),
        ),
    ];
    ResourceMap {
        resources: resources.into(),
        devices: Vec::new(),
    }
}

/// CPU and memory usage of one subject.
#[derive(Debug, Clone, Copy)]
pub struct SubjectUsage<'a> {
    /// Store of the samples.
    pub store: &'a Store,
    /// Object whose usage it is.
    pub subject: SeriesSubject,
    /// Metric of the memory usage.
    pub memory: Metric,
    /// Current time, in milliseconds of the store's clock.
    pub now_ms: u64,
}

impl SubjectUsage<'_> {
    /// Returns the means over a window; `None` if CPU or memory has no sample in it.
    fn average(&self, window_ms: u64) -> Option<ResourceMap> {
        let mean = |metric| (self.store).average((self.subject, metric), self.now_ms, window_ms);
        Some(usage(mean(Metric::CpuUsage)?, mean(self.memory)?))
    }

    /// Returns mean and percentiles of the usage for each window; without amounts if samples cover less than half of it.
    fn aggregated(&self, windows: &[GoDuration]) -> Vec<AggregatedUsage> {
        let (mut cpu, mut memory) = (Vec::new(), Vec::new());
        let collect = |metric, millis, out: &mut Vec<f64>| {
            (self.store).collect((self.subject, metric), self.now_ms, millis, out)
        };
        windows
            .iter()
            .map(|window| {
                let millis = u64::try_from(window.as_nanos() / 1_000_000).unwrap_or(0);
                let cpu_span = collect(Metric::CpuUsage, millis, &mut cpu);
                let memory_span = collect(self.memory, millis, &mut memory);
                let covered = cpu_span.min(memory_span).saturating_mul(2) >= millis;
                let summaries = (
                    WindowAggregates::from_samples(&mut cpu),
                    WindowAggregates::from_samples(&mut memory),
                );
                let usage = match summaries {
                    (Some(cpu), Some(memory)) if covered => [
                        ("avg", cpu.avg, memory.avg),
                        ("p50", cpu.p50, memory.p50),
                        ("p90", cpu.p90, memory.p90),
                        ("p95", cpu.p95, memory.p95),
                        ("p99", cpu.p99, memory.p99),
                    ]
                    .map(|(name, cpu, memory)| (name.to_owned(), usage(cpu, memory)))
                    .into(),
                    _ => Default::default(),
                };
                AggregatedUsage {
                    usage,
                    duration: Some(*window),
                }
            })
            .collect()
    }
}

impl Agent {
    /// Returns the pressure guard's state of a service as a free-form extension: its signals, the start mode
    /// of batch work and the verdict.
    fn guard_extension(&self, namespace: &str, name: &str) -> Option<ExtensionsMap> {
        let guard = self.guard.as_ref()?;
        let is_it = |pod: &str| pod.split_once('/') == Some((namespace, name));
        let service = guard.services.iter().find(|service| is_it(&service.pod))?;
        let levers: Vec<&str> = service
            .held
            .iter()
            .map(|levers| levers.lever.as_str())
            .collect();
        let value = serde_json::json!({
            "verdict": service.verdict,
            "held": levers,
            "signals": guard.signals,
            "start": guard.start.split(':').next(),
        });
        Some(ExtensionsMap::from_iter([(
            GUARD_EXTENSION.to_owned(),
            value,
        )]))
    }

    /// Returns the status to publish at `wall` under `policy`; `None` before the first samples.
    #[must_use]
    pub fn report(
        &mut self,
        policy: &MetricPolicy,
        now_ms: u64,
        wall: Timestamp,
    ) -> Option<NodeMetricStatus> {
        self.measure.memory = policy.memory;
        let hot = self.measure.facts.cold.load().is_some();
        let usage_of = |subject, memory: MemoryPolicy| SubjectUsage {
            store: &self.measure.store,
            subject,
            memory: memory.metric(hot),
            now_ms,
        };
        let node = usage_of(SeriesSubject::Node, policy.memory);
        let system = usage_of(SeriesSubject::System, MemoryPolicy::WithoutPageCache);
        let info = NodeMetricInfo {
            node_usage: Some(node.average(policy.aggregate_ms)?),
            aggregated_node_usages: node.aggregated(&policy.windows),
            system_usage: system.average(policy.aggregate_ms),
            aggregated_system_usages: system.aggregated(&policy.windows),
            numa_usages: self.numa_usages(policy.aggregate_ms, now_ms),
        };
        let mut pods = Vec::new();
        let mut with_sample = Vec::new();
        for (info, tracked) in self.measure.pods.iter() {
            let usage = usage_of(SeriesSubject::Pod(tracked.id), policy.memory);
            let Some(usage) = usage.average(policy.aggregate_ms) else {
                continue;
            };
            with_sample.push(info);
            pods.push(PodMetricInfo {
                name: info.name.clone(),
                namespace: info.namespace.clone(),
                pod_usage: Some(usage),
                priority: info.priority_class,
                qos: info.qos_default,
                extensions: self.guard_extension(&info.namespace, &info.name),
            });
        }
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let reclaimable = self.node_info().map(|node| {
            reclaimable::estimate(
                &self.learning.predictor,
                with_sample.iter().copied(),
                node.raw_allocatable,
                wall,
            )
        });
        self.metrics.reclaimable(reclaimable.as_ref());
        let mut apps: Vec<HostApplicationMetricInfo> = Vec::new();
        for app in self.states().slo.load().host_apps.iter() {
            let Some(subject) = self.measure.host_apps.subject(&app.name) else {
                continue;
            };
            if let Some(usage) = usage_of(subject, policy.memory).average(policy.aggregate_ms)
                && !apps.iter().any(|other| other.name == app.name)
            {
                apps.push(HostApplicationMetricInfo {
                    name: app.name.clone(),
                    usage: Some(usage),
                    priority: app.priority,
                    qos: app.qos,
                });
            }
        }
        apps.sort_by(|a, b| a.name.cmp(&b.name));
        self.metrics.host_applications(app_rows(&apps));
        let metric = |amount: fn(&Reclaimable) -> Amounts| {
            reclaimable.as_ref().map(|r| ReclaimableMetric {
                resource: Some(amounts(amount(r))),
            })
        };
        if self.gates().is_on(Gate::NodeMetricPromMetrics) {
            self.metrics.node_metric(rows(&info));
        }
        Some(NodeMetricStatus {
            update_time: Some(Time(seconds(wall))),
            node_metric: Some(info),
            pods_metric: pods,
            host_application_metric: apps,
            prod_reclaimable_metric: metric(|r| r.published.reclaimable).or(Some(
                ReclaimableMetric {
                    resource: Some(ResourceMap::default()),
                },
            )),
            prod_peak_metric: metric(|r| r.published.peak),
        })
    }
}

impl Agent {
    /// Returns the NUMA nodes with samples, by number.
    fn numa_usages(&self, window_ms: u64, now_ms: u64) -> Vec<NumaUsage> {
        let store = &self.measure.store;
        let average = |subject| {
            let memory = Metric::MemoryUsage;
            let usage_of = SubjectUsage {
                store,
                subject,
                memory,
                now_ms,
            };
            usage_of.average(window_ms)
        };
        let mut usages: Vec<NumaUsage> = store
            .subjects()
            .filter_map(|subject| match subject {
                SeriesSubject::Numa(node) => Some(NumaUsage {
                    numa_node_id: i32::try_from(node).ok()?,
                    node_usage: Some(average(subject)?),
                    system_usage: average(SeriesSubject::NumaSystem(node)),
                }),
                _ => None,
            })
            .collect();
        usages.sort_by_key(|usage| usage.numa_node_id);
        usages
    }
}

/// Returns cores and bytes of a resource map.
fn plain(map: Option<&ResourceMap>) -> Option<(f64, f64)> {
    let map = &map?.resources;
    let cores = map.get(resources::CPU)?.milli_value() as f64 / 1000.0;
    Some((cores, map.get(resources::MEMORY)?.value() as f64))
}

/// Returns the reported usage of host applications, as rows of metrics.
fn app_rows(apps: &[HostApplicationMetricInfo]) -> Vec<HostApplication> {
    let rows = apps.iter().filter_map(|app| {
        let (cpu, memory) = plain(app.usage.as_ref())?;
        Some(HostApplication {
            name: app.name.clone(),
            priority: app.priority.as_str().to_owned(),
            qos: app.qos.as_str().to_owned(),
            cpu,
            memory,
        })
    });
    rows.collect()
}

/// Returns the reported usage of the node and its NUMA nodes, in cores and bytes, as rows of metrics.
fn rows(info: &NodeMetricInfo) -> Vec<Usage> {
    let row = |numa, node: Option<&ResourceMap>, system: Option<&ResourceMap>| {
        Some(Usage {
            numa,
            node: plain(node)?,
            system: plain(system),
        })
    };
    let node_row = row(None, info.node_usage.as_ref(), info.system_usage.as_ref());
    let numa = info.numa_usages.iter().filter_map(|numa| {
        let id = Some(numa.numa_node_id);
        row(id, numa.node_usage.as_ref(), numa.system_usage.as_ref())
    });
    node_row.into_iter().chain(numa).collect()
}

/// Cuts a time to whole seconds, as Kubernetes times have.
fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Upstream: `Test_nodeMetricInformer_collectNodeMetric`, `collectPodMetric`,
    /// `collectHostAppMetric`: which series each policy reads.
    #[test]
    fn each_policy_has_its_series() {
        for (memory, hot, want) in [
            (MemoryPolicy::WithoutPageCache, false, Metric::MemoryUsage),
            (MemoryPolicy::WithoutPageCache, true, Metric::MemoryUsage),
            (
                MemoryPolicy::WithPageCache,
                true,
                Metric::MemoryUsageWithPageCache,
            ),
            (
                MemoryPolicy::WithHotPageCache,
                true,
                Metric::MemoryUsageWithHotPageCache,
            ),
            (MemoryPolicy::WithHotPageCache, false, Metric::MemoryUsage),
        ] {
            assert_eq!(memory.metric(hot), want, "{memory:?} {hot}");
            let mut store = Store::new();
            for subject in [
                SeriesSubject::Node,
                SeriesSubject::Pod(1),
                SeriesSubject::HostApp(1),
            ] {
                store.push((subject, Metric::CpuUsage), 1000, 2000.0);
                store.push((subject, want), 1000, 10.0 * 1024.0 * 1024.0 * 1024.0);
                let usage_of = SubjectUsage {
                    store: &store,
                    subject,
                    memory: memory.metric(hot),
                    now_ms: 2000,
                };
                let used = serde_json::to_value(usage_of.average(120_000).unwrap()).unwrap();
                assert_eq!(used["resources"], json!({"cpu": "2", "memory": "10Gi"}));
            }
        }
    }

    /// Upstream: `Test_nodeMetricInformer_collectNodeAggregateMetric`,
    /// `collectSystemAggregateMetric`.
    #[test]
    fn five_figures_per_window() {
        // Of 100 samples the percentiles are the 50th, 90th, 95th and 99th.
        for subject in [SeriesSubject::Node, SeriesSubject::System] {
            let mut store = Store::new();
            for n in 1..=100_u64 {
                store.push((subject, Metric::CpuUsage), n * 3000, n as f64);
                store.push((subject, Metric::MemoryUsage), n * 3000, n as f64 * 1024.0);
            }
            let usage_of = SubjectUsage {
                store: &store,
                subject,
                memory: Metric::MemoryUsage,
                now_ms: 300_000,
            };
            let aggregated = usage_of.aggregated(&[GoDuration::from_mins(5)]);
            let aggregated = serde_json::to_value(&aggregated[0]).unwrap();
            assert_eq!(aggregated["duration"], "5m0s");
            for (name, cpu, memory) in [
                ("avg", "50m", "51712"),
                ("p50", "50m", "50Ki"),
                ("p90", "90m", "90Ki"),
                ("p95", "95m", "95Ki"),
                ("p99", "99m", "99Ki"),
            ] {
                let usage = &aggregated["usage"][name]["resources"];
                assert_eq!(usage, &json!({"cpu": cpu, "memory": memory}), "{name}");
            }
        }
    }

    #[test]
    fn reported_usage_becomes_metrics() {
        let info = NodeMetricInfo {
            node_usage: Some(usage(1500.0, 4096.0)),
            system_usage: None,
            numa_usages: vec![NumaUsage {
                numa_node_id: 1,
                node_usage: Some(usage(500.0, 1024.0)),
                system_usage: Some(usage(250.0, 7.0)),
            }],
            ..NodeMetricInfo::default()
        };
        let rows = rows(&info);
        assert_eq!(
            (rows[0].numa, rows[0].node, rows[0].system),
            (None, (1.5, 4096.0), None)
        );
        assert_eq!((rows[1].numa, rows[1].node), (Some(1), (0.5, 1024.0)));
        assert_eq!(rows[1].system, Some((0.25, 7.0)));
    }

    #[test]
    fn quantities_are_cut_off() {
        let text = serde_json::to_value(usage(429.9, 5_849_563_136.7)).unwrap();
        assert_eq!(
            text,
            json!({"resources": {"cpu": "429m", "memory": "5712464Ki"}})
        );
        let text = serde_json::to_value(usage(1.0, 64_553_043.0)).unwrap();
        assert_eq!(text["resources"]["memory"], "64553043");
    }

    #[test]
    fn a_short_history_gives_empty_aggregates() {
        let mut store = Store::new();
        for second in 0..=160_u64 {
            for metric in [Metric::CpuUsage, Metric::MemoryUsage] {
                store.push((SeriesSubject::Node, metric), second * 1000, 1000.0);
            }
        }
        let usage_of = SubjectUsage {
            store: &store,
            subject: SeriesSubject::Node,
            memory: Metric::MemoryUsage,
            now_ms: 160_000,
        };
        let windows = [GoDuration::from_mins(5), GoDuration::from_mins(10)];
        let aggregated = usage_of.aggregated(&windows);
        assert_eq!(aggregated.len(), 2);
        assert_eq!(aggregated[0].usage.len(), 5);
        assert!(aggregated[1].usage.is_empty());
        assert_eq!(aggregated[1].duration, Some(windows[1]));
    }
}
