//! A manager with many Recommendations whose containers have histories of days, which it loads from their
//! checkpoints at its start, and whose pods are measured.

use super::nodes::wait_for_all;
use super::objects::{self, ManagerCluster, each};
use super::process::{Manager, ManagerProgram};
use super::{Args, ManagerCost};
use crate::meter::Window;
use anyhow::Result;
use koord_apiserver::store::{Entry, TableId};
use koord_model::histogram::Checkpoint;
use koord_model::recommend::container::Sample;
use koord_model::recommend::{ContainerModel, Settings};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Recommendations in a namespace.
const PER_NAMESPACE: u32 = 100;
const PODS: u32 = 2;
const CONTAINERS: u32 = 3;
const PODS_PER_NODE: u32 = 20;
/// Days of history of each container, with a sample of each pod every hour.
const DAYS: i64 = 9;
/// Histories that differ in size.
const SIZES: u32 = 97;
/// Longest `--recommender-interval` here, in seconds; the default is a minute.
const ROUND: f64 = 10.0;
const API: &str = "/apis/analysis.koordinator.sh/v1alpha1";

/// Figures of the recommender.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecommenderFigures {
    recommendations: u32,
    pods: u32,
    containers: u32,
    nodes: u32,
    /// Seconds from the start of the manager until every Recommendation has one.
    first_round_sec: f64,
    #[serde(flatten)]
    pub(super) cost: ManagerCost,
    noisy: bool,
}

/// Measures.
///
/// # Errors
/// The manager does not start, or leaves a Recommendation without one.
pub(super) async fn run(
    args: &Args,
    program: &ManagerProgram,
    work: &Path,
) -> Result<RecommenderFigures> {
    let work = work.join("recommender");
    let cluster = Arc::new(ManagerCluster::start(&work).await?);
    let count = args.recommendations;
    let nodes = (count * PODS).div_ceil(PODS_PER_NODE);
    fill(&cluster, count, nodes).await?;
    cluster.install_webhooks().await?;
    let mut reports = JoinSet::new();
    for index in 0..nodes {
        let metric = json!({"metadata": {"name": objects::node_name(index)}, "spec": {}});
        let metric = with_types(metric, "slo.koordinator.sh/v1alpha1", "NodeMetric");
        cluster
            .local
            .post("/apis/slo.koordinator.sh/v1alpha1/nodemetrics", &metric)
            .await?;
    }
    let mut random = fastrand::Rng::with_seed(1);
    report_all(&cluster, nodes, &mut random).await?;
    let began = Instant::now();
    let round = Duration::from_secs_f64(args.interval.clamp(1.0, ROUND));
    let flag = format!("--recommender-interval={}s", round.as_secs());
    let mut manager = Manager::start(program, &cluster.local.kubeconfig, &work, &[&flag]).await?;
    let recommended = |entry: &Entry| {
        let recommended = &entry.value()["status"]["podStatus"]["containerStatuses"];
        recommended
            .as_array()
            .is_some_and(|all| all.len() == CONTAINERS as usize)
    };
    let table = TableId::new("analysis.koordinator.sh", "recommendations");
    wait_for_all(&cluster, &mut manager, &table, count, recommended).await?;
    let first_round_sec = began.elapsed().as_secs_f64();
    reports.spawn({
        let cluster = cluster.clone();
        async move {
            let mut random = fastrand::Rng::with_seed(2);
            loop {
                report_all(&cluster, nodes, &mut random).await?;
                tokio::time::sleep(round).await;
            }
            #[allow(unreachable_code, reason = "says what the task fails with")]
            anyhow::Ok(())
        }
    });
    tokio::time::sleep(round).await;
    let window = Window::begin(manager.pid())?;
    tokio::time::sleep(Duration::from_secs(args.seconds).max(2 * round)).await;
    manager.check_running()?;
    let cost = ManagerCost::from(window.usage()?);
    reports.shutdown().await;
    Ok(RecommenderFigures {
        recommendations: count,
        pods: count * PODS,
        containers: count * CONTAINERS,
        nodes,
        first_round_sec,
        noisy: cost.is_noisy(),
        cost,
    })
}

fn with_types(mut object: Value, api_version: &str, kind: &str) -> Value {
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object
}

fn namespace_of(recommendation: u32) -> String {
    format!("team-{}", recommendation / PER_NAMESPACE)
}

/// Returns namespace and name of a pod: `PODS` of each workload, one after the other.
fn name_of_pod(pod: u32) -> (String, String) {
    let workload = pod / PODS;
    let name = format!("app-{workload}-7d9c6bd5f-{:05}", pod % PODS);
    (namespace_of(workload), name)
}

/// Writes the status of the NodeMetric of every node.
async fn report_all(
    cluster: &ManagerCluster,
    nodes: u32,
    random: &mut fastrand::Rng,
) -> Result<()> {
    for index in 0..nodes {
        let status = objects::report(index, PODS_PER_NODE, name_of_pod, 1.0, random);
        let name = objects::node_name(index);
        let path = format!("/apis/slo.koordinator.sh/v1alpha1/nodemetrics/{name}/status");
        cluster
            .local
            .patch(&path, &json!({"status": status}))
            .await?;
    }
    Ok(())
}

async fn fill(cluster: &ManagerCluster, count: u32, nodes: u32) -> Result<()> {
    cluster
        .create_all("/api/v1/nodes", (0..nodes).map(objects::node))
        .await?;
    let namespaces = (0..count.div_ceil(PER_NAMESPACE))
        .map(|index| json!({"metadata": {"name": format!("team-{index}")}}));
    cluster.create_all("/api/v1/namespaces", namespaces).await?;
    let histories: Vec<Value> = (0..SIZES).map(history).collect();
    each((0..count).map(|index| workload(cluster, index, &histories))).await
}

/// Creates a Deployment with its ReplicaSet and pods, and a Recommendation with its histories.
async fn workload(cluster: &ManagerCluster, index: u32, histories: &[Value]) -> Result<()> {
    let namespace = namespace_of(index);
    let name = format!("app-{index}");
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c0", "image": "none"}]}});
    let selector = json!({"matchLabels": labels});
    let owned = |kind: &str, name: &str, uid: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let spec = json!({"replicas": PODS, "selector": selector, "template": template});
    let deployment = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
    let apps = format!("/apis/apps/v1/namespaces/{namespace}");
    let uid = cluster
        .local
        .post(&format!("{apps}/deployments"), &deployment)
        .await?;
    let set = format!("{name}-7d9c6bd5f");
    let owners = owned("Deployment", &name, &uid);
    let replica_set = json!({"metadata": {"name": set, "labels": labels, "ownerReferences": owners},
        "spec": spec});
    let uid = cluster
        .local
        .post(&format!("{apps}/replicasets"), &replica_set)
        .await?;
    let owners = owned("ReplicaSet", &set, &uid);
    let mut pods = Vec::new();
    for pod in index * PODS..(index + 1) * PODS {
        let mut object = objects::bare_pod(pod, CONTAINERS);
        let status = object["status"].take();
        object["metadata"]["namespace"] = namespace.clone().into();
        let (_, pod_name) = name_of_pod(pod);
        object["metadata"]["name"] = pod_name.clone().into();
        object["metadata"]["labels"]["app"] = name.clone().into();
        object["metadata"]["ownerReferences"] = owners.clone();
        object["spec"]["nodeName"] = objects::node_name(pod / PODS_PER_NODE).into();
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        pods.push(cluster.local.post(&path, &object).await?);
        let path = format!("{path}/{pod_name}/status");
        cluster
            .local
            .patch(&path, &json!({"status": status}))
            .await?;
    }
    let target = json!({"type": "workload", "workload":
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}});
    let recommendation = json!({"metadata": {"name": name}, "spec": {"target": target}});
    let version = "analysis.koordinator.sh/v1alpha1";
    let recommendation = with_types(recommendation, version, "Recommendation");
    let path = format!("{API}/namespaces/{namespace}/recommendations");
    let uid = cluster.local.post(&path, &recommendation).await?;
    let path = format!("{API}/namespaces/{namespace}/recommendationcheckpoints");
    for number in 0..CONTAINERS {
        let at = (index * CONTAINERS + number) as usize % histories.len().max(1);
        let mut status = histories.get(at).cloned().unwrap_or_default();
        let peaks = status["memoryPeaks"].as_array_mut();
        for (peak, pod) in peaks.into_iter().flatten().zip(&pods) {
            peak["podUID"] = pod.as_str().into();
        }
        let container = format!("c{number}");
        let checkpoint = json!({
            "metadata": {"name": format!("{name}.{container}"), "ownerReferences": [
                {"apiVersion": version, "kind": "Recommendation", "name": name, "uid": uid}]},
            "spec": {"recommendation": name, "containerName": container},
            "status": status,
        });
        let checkpoint = with_types(checkpoint, version, "RecommendationCheckpoint");
        cluster.local.post(&path, &checkpoint).await?;
    }
    Ok(())
}

/// Returns the status of a checkpoint after [`DAYS`] of uses that vary by a factor of ten.
fn history(size: u32) -> Value {
    let settings = Settings::peak();
    let mut model = ContainerModel::new(&settings);
    let now = jiff::Timestamp::now().as_millisecond();
    let size = 0.05 * f64::from(1 + size);
    for hour in 0..DAYS * 24 {
        let swing = 0.1 + 0.9 * ((hour * 7) % 24) as f64 / 23.0;
        for pod in ["1", "2"] {
            model.add(
                &settings,
                Sample {
                    pod,
                    time: now - (DAYS * 24 - hour) * 3_600_000,
                    cpu: Some(size * swing),
                    memory: Some(size * 1e9 * swing),
                },
            );
        }
    }
    let saved = model.save();
    let time = |millis: i64| {
        let time = jiff::Timestamp::from_second(millis.div_euclid(1000));
        time.map_or(Value::Null, |time| time.to_string().into())
    };
    let histogram = |saved: &Checkpoint, half_life_ms: i64| {
        let weights = saved.weights.iter();
        let weights: serde_json::Map<String, Value> = weights
            .map(|(bucket, weight)| (bucket.to_string(), json!(weight)))
            .collect();
        json!({"referenceTimestamp": time(saved.reference), "bucketWeights": weights,
            "totalWeight": saved.total, "halfLifeSeconds": half_life_ms / 1000})
    };
    let peaks = saved.instances.iter().map(|instance| {
        json!({"podUID": instance.pod, "windowEnd": time(instance.window_end), "peak": instance.peak,
            "oomPeak": instance.oom_peak, "lastSampleStart": instance.last.map(time)})
    });
    json!({
        "version": saved.version,
        "cpuHistogram": histogram(&saved.cpu, saved.cpu_half_life_ms),
        "memoryHistogram": histogram(&saved.memory, saved.memory_half_life_ms),
        "memoryPeaks": peaks.collect::<Vec<_>>(),
        "firstSampleStart": saved.first.map(time), "lastSampleStart": saved.last.map(time),
        "totalSamplesCount": saved.count, "lastUpdateTime": time(now),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields that the manager cannot parse would leave it without histories, and with too little memory in
    /// the figures.
    #[test]
    fn history_has_the_fields_of_a_checkpoint() {
        let status = history(3);
        let read: koord_api::analysis::RecommendationCheckpointStatus =
            serde_json::from_value(status.clone()).unwrap();
        assert_eq!(read.total_samples_count, DAYS * 24 * 2);
        assert!(read.cpu_histogram.unwrap().bucket_weights.len() > 5);
        assert_eq!(read.memory_peaks.len(), 2);
        let parsed_peaks = serde_json::to_value(&read.memory_peaks).unwrap();
        assert_eq!(
            parsed_peaks[0]["podUID"],
            status["memoryPeaks"][0]["podUID"]
        );
    }
}
