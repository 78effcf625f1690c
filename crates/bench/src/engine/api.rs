//! The scenarios of the engine for a run through an API server: objects to be created, and the report.

use super::objects::{self, NAMESPACE};
use super::scenario::{Fixture, Step};
use super::{EngineFigures, Options, as_f64, rate, ratio};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_workload::statistics::time_percentile;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Objects of a scenario to be created. Churn is left out.
#[derive(Debug)]
pub struct ApiObjects {
    /// Nodes, with their status.
    pub nodes: Vec<Arc<Node>>,
    /// Custom resources by `plural.version.group`, with their status.
    pub others: Vec<(&'static str, Value)>,
    /// Pods that are on the nodes before.
    pub bound: Vec<Arc<Pod>>,
    /// Pods to be placed.
    pub pods: Vec<Arc<Pod>>,
}

impl ApiObjects {
    /// Namespaces of the objects.
    pub fn namespaces(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(NAMESPACE)
    }
}

/// Returns the objects of a scenario.
#[must_use]
pub fn api_objects(options: &Options) -> ApiObjects {
    let fixture = Fixture::from_options(options);
    let bound = fixture.bound().map(Arc::new).collect();
    let pods = fixture.steps.into_iter().flat_map(|step| match step {
        Step::Pods(pods) => pods,
        _ => Vec::new(),
    });
    ApiObjects {
        pods: pods.collect(),
        nodes: fixture.nodes,
        bound,
        others: fixture
            .objects
            .iter()
            .filter_map(|object| Some((object.kind, objects::to_value(object)?)))
            .collect(),
    }
}

/// Returns the figures of a run through an API server; CPU and memory are those of the whole process, the
/// server and the clients included.
#[must_use]
pub fn api_report(
    options: &Options,
    mut latencies: Vec<Duration>,
    elapsed: Duration,
    creation: Duration,
    cpu: Duration,
    rss_mib: f64,
) -> EngineFigures {
    let placed = latencies.len();
    let failed = options.pods.saturating_sub(placed);
    let (nodes, pods) = (options.nodes, options.pods);
    let name = options.scenario.name();
    let mut at = |percent| time_percentile(&mut latencies, percent).as_secs_f64();
    EngineFigures {
        name: name.to_owned(),
        run_id: format!("{name}-{nodes}n-{pods}p-api"),
        timestamp: Timestamp::now().to_string(),
        koordinator_version: concat!("koord-", env!("CARGO_PKG_VERSION")).to_owned(),
        node_count: nodes,
        pod_count: pods,
        throughput_pods_per_sec: rate(placed, elapsed),
        api_creation_duration_sec: creation.as_secs_f64(),
        total_duration_sec: elapsed.as_secs_f64(),
        latency_p50_sec: at(50),
        latency_p90_sec: at(90),
        latency_p99_sec: at(99),
        timed_out: failed > 0,
        scheduling_failure_count: failed,
        scheduling_failure_rate: ratio(failed, pods),
        path: "api".to_owned(),
        profile: if options.koord { "koord" } else { "plain" }.to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        pods_bound_before: options.bound,
        attempts: placed,
        cpu_seconds_per_1000_pods: 1000.0 * cpu.as_secs_f64() / as_f64(placed.max(1)),
        rss_mib,
        ..EngineFigures::default()
    }
}
