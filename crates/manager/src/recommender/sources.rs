//! Sources of usage samples: the metrics API, which reports containers, or NodeMetrics, which report pods.

use super::pods::{RecommenderContainer, RecommenderPod};
use crate::facts::{MetricFacts, PackedAmount};
use jiff::Timestamp;
use koord_api::quantity::Quantity;
use koord_api::resources;
use koord_kube::{Client, ObjectKey, kube_core};
use koord_model::histogram::UnixMillis;
use koord_model::report_time;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum age of a sample in milliseconds: the report of a deleted node may still exist.
const STALE_MS: i64 = 15 * 60_000;
/// Up to this many namespaces are requested one by one, more by one request for all.
const FEW_NAMESPACES: usize = 5;

/// Source of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SampleSource {
    /// The metrics API, or NodeMetrics while it is unavailable.
    #[default]
    Auto,
    MetricsApi,
    NodeMetric,
}

impl std::str::FromStr for SampleSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "metrics-api" => Ok(Self::MetricsApi),
            "node-metric" => Ok(Self::NodeMetric),
            _ => Err(format!(
                "want auto, metrics-api or node-metric, got {text:?}"
            )),
        }
    }
}

/// Usage in cores and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ResourceUsage {
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<f64>,
}

/// Measured usage of one pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PodMeasurement {
    /// Usage of each container.
    Containers(Vec<(String, ResourceUsage)>),
    /// Usage of the pod as a whole.
    Whole(ResourceUsage),
}

/// Measured usage of pods, each with its time.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    pub(crate) pods: HashMap<ObjectKey, (UnixMillis, PodMeasurement)>,
    /// Reason why the metrics API could not be used; `None` if it was used or is not the source.
    pub(crate) problem: Option<String>,
}

/// Reads the usage of pods from the source.
pub(crate) async fn measure(
    client: &Client,
    source: SampleSource,
    namespaces: &[&str],
    node_metrics: &[Arc<MetricFacts>],
    now: UnixMillis,
) -> Measurements {
    let mut measurements = Measurements::default();
    if source != SampleSource::NodeMetric {
        match pod_metrics(client, namespaces).await {
            Ok(items) => {
                measurements.pods = items
                    .into_iter()
                    .filter_map(|item| item.into_measurement(now))
                    .collect();
                return measurements;
            }
            Err(error) => measurements.problem = Some(format!("metrics.k8s.io: {error}")),
        }
    }
    if source != SampleSource::MetricsApi {
        measurements.pods = node_metric_usage(node_metrics, namespaces, now);
    }
    measurements
}

async fn pod_metrics(
    client: &Client,
    namespaces: &[&str],
) -> Result<Vec<PodMetrics>, koord_kube::Error> {
    let mut paths = vec!["/apis/metrics.k8s.io/v1beta1/pods".to_owned()];
    if namespaces.len() <= FEW_NAMESPACES {
        let path_of =
            |namespace| format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
        paths = namespaces.iter().map(path_of).collect();
    }
    let mut items = Vec::new();
    for path in paths {
        let request = kube_core::Request::new(path)
            .list(&koord_kube::api::ListParams::default())
            .map_err(koord_kube::Error::BuildRequest)?;
        let list: PodMetricsList = client.request(request).await?;
        items.extend(list.items);
    }
    Ok(items)
}

#[derive(Debug, Deserialize)]
struct PodMetricsList {
    #[serde(default)]
    items: Vec<PodMetrics>,
}

/// `PodMetrics` of `metrics.k8s.io/v1beta1`. Amounts are parsed one by one: an invalid one only affects its
/// own container.
#[derive(Debug, Deserialize)]
struct PodMetrics {
    #[serde(default)]
    metadata: ObjectName,
    #[serde(default)]
    timestamp: String,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Default, Deserialize)]
struct ObjectName {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct ContainerMetrics {
    #[serde(default)]
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, String>,
}

impl PodMetrics {
    fn into_measurement(
        self,
        now: UnixMillis,
    ) -> Option<(ObjectKey, (UnixMillis, PodMeasurement))> {
        let time = current(self.timestamp.parse().ok()?, now)?;
        let container = |container: ContainerMetrics| {
            let amount = |name: &str| {
                let amount: Quantity = container.usage.get(name)?.parse().ok()?;
                Some(amount.to_f64())
            };
            let used = ResourceUsage {
                cpu: amount(resources::CPU),
                memory: amount(resources::MEMORY),
            };
            (container.name, used)
        };
        let containers = self.containers.into_iter().map(container).collect();
        let key = ObjectKey::new(self.metadata.namespace, self.metadata.name);
        Some((key, (time, PodMeasurement::Containers(containers))))
    }
}

/// Returns the time of a measurement, no later than now; `None` if it is too old or dated too far ahead.
fn current(time: Timestamp, now: UnixMillis) -> Option<UnixMillis> {
    let local = Timestamp::from_millisecond(now).ok()?;
    if report_time::excess(time, local, report_time::MAX_AHEAD).is_some() {
        return None;
    }
    let time = time.as_millisecond().min(now);
    (now - time <= STALE_MS).then_some(time)
}

/// Returns the usage of the pods of `namespaces` in current NodeMetric reports.
fn node_metric_usage(
    metrics: &[Arc<MetricFacts>],
    namespaces: &[&str],
    now: UnixMillis,
) -> HashMap<ObjectKey, (UnixMillis, PodMeasurement)> {
    let mut pods = HashMap::new();
    for report in metrics.iter().filter_map(|metric| metric.report.as_ref()) {
        let updated = report.updated.and_then(|s| Timestamp::from_second(s).ok());
        let Some(time) = updated.and_then(|time| current(time, now)) else {
            continue;
        };
        for pod in &report.pods {
            let Some(usage) = pod.usage.map(PackedAmount::amount) else {
                continue;
            };
            if namespaces.contains(&&*pod.namespace) {
                let key = ObjectKey::new(&*pod.namespace, &*pod.name);
                let usage = ResourceUsage {
                    cpu: Some(usage.cpu.to_f64()),
                    memory: Some(usage.memory.to_f64()),
                };
                pods.insert(key, (time, PodMeasurement::Whole(usage)));
            }
        }
    }
    pods
}

impl PodMeasurement {
    /// Returns the usage of each container of `pod`. The usage of a pod measured as a whole is split in
    /// proportion to the requests, or evenly if there are none.
    pub(crate) fn container_usage<'a>(
        &'a self,
        pod: &'a RecommenderPod,
    ) -> Vec<(&'a str, ResourceUsage)> {
        match self {
            Self::Containers(list) => list
                .iter()
                .map(|(name, used)| (name.as_str(), *used))
                .filter(|(name, _)| pod.containers.iter().any(|c| *c.name == **name))
                .collect(),
            Self::Whole(whole) => {
                let cpu = shares(&pod.containers, |container| container.cpu);
                let memory = shares(&pod.containers, |container| container.memory);
                let parts = cpu.into_iter().zip(memory);
                let part = |(container, (cpu, memory)): (&'a RecommenderContainer, _)| {
                    let used = ResourceUsage {
                        cpu: whole.cpu.map(|cores| cores * cpu),
                        memory: whole.memory.map(|bytes| bytes * memory),
                    };
                    (&*container.name, used)
                };
                pod.containers.iter().zip(parts).map(part).collect()
            }
        }
    }

    /// Returns true if the usage of containers is estimated from that of the pod.
    pub(crate) fn is_estimated(&self, pod: &RecommenderPod) -> bool {
        matches!(self, Self::Whole(_)) && pod.containers.len() > 1
    }
}

fn shares(
    containers: &[RecommenderContainer],
    of: fn(&RecommenderContainer) -> Option<f64>,
) -> Vec<f64> {
    let amounts: Vec<f64> = containers
        .iter()
        .map(|container| of(container).unwrap_or(0.0).max(0.0))
        .collect();
    let sum: f64 = amounts.iter().sum();
    let even = 1.0 / containers.len().max(1) as f64;
    let share = |amount: &f64| if sum > 0.0 { amount / sum } else { even };
    amounts.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: UnixMillis = 1_767_225_600_000;

    fn pod(requests: &[Option<f64>]) -> RecommenderPod {
        let mut pod = RecommenderPod::from_pod(&k8s_openapi::api::core::v1::Pod::default());
        let container = |(at, cpu): (usize, &Option<f64>)| RecommenderContainer {
            name: format!("c{at}").into(),
            cpu: *cpu,
            memory: None,
            oom_killed: None,
        };
        pod.containers = requests.iter().enumerate().map(container).collect();
        pod
    }

    #[test]
    fn pod_usage_is_split_by_requests() {
        let measurement = PodMeasurement::Whole(ResourceUsage {
            cpu: Some(2.0),
            memory: Some(900.0),
        });
        let three = pod(&[Some(1.0), Some(3.0), None]);
        let parts = measurement.container_usage(&three);
        let cpu: Vec<_> = parts.iter().map(|part| part.1.cpu.unwrap()).collect();
        assert_eq!(cpu, [0.5, 1.5, 0.0]);
        // No container requests memory: it is split evenly.
        assert_eq!(parts[2].1.memory, Some(300.0));
        assert!(measurement.is_estimated(&three) && !measurement.is_estimated(&pod(&[None])));
        assert_eq!(
            measurement.container_usage(&pod(&[None]))[0].1.cpu,
            Some(2.0)
        );
    }

    #[test]
    fn malformed_and_old_measurements_are_left_out() {
        let read = |value| {
            let list: PodMetricsList = serde_json::from_value(value).unwrap();
            list.items
                .into_iter()
                .filter_map(|item| item.into_measurement(NOW))
                .collect::<Vec<_>>()
        };
        let item = |time: &str| {
            json!({"items": [{"metadata": {"name": "a", "namespace": "n"}, "timestamp": time,
                "containers": [{"name": "c", "usage": {"cpu": "250m", "memory": "lots"}}]}]})
        };
        let used = ResourceUsage {
            cpu: Some(0.25),
            memory: None,
        };
        let got = read(item("2026-01-01T00:00:00Z"));
        assert_eq!(
            got[0].1,
            (
                NOW,
                PodMeasurement::Containers(vec![("c".to_owned(), used)])
            )
        );
        // The clock of the source is ahead.
        assert_eq!(read(item("2026-01-01T00:01:00Z"))[0].1.0, NOW);
        assert!(read(item("2025-12-31T23:00:00Z")).is_empty());
        assert!(read(item("yesterday")).is_empty());
        assert!(read(json!({})).is_empty());
    }
}
