//! The engine fed directly, without any API: what a decision costs.

use crate::config::Configuration;
use crate::engine::{Engine, EngineOptions, Output};
use crate::framework::{BuildContext, ProfileError, Profiles, Registry};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Equal nodes (32 CPU, 256 GiB, 110 pods), equal pods (500m, 512 MiB).
    Basic,
    /// As basic, but each pod in turn has one of ten shapes.
    Mixed,
}

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Nodes.
    pub nodes: usize,
    /// Pods offered.
    pub pods: usize,
    /// Pods placed.
    pub placed: usize,
    /// Wall time of all decisions, without building the objects.
    pub elapsed: Duration,
    /// The slowest hundredth of decisions took at least this long.
    pub p99: Duration,
}

impl Measured {
    /// Decisions per second.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn pods_per_second(&self) -> f64 {
        self.placed as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Schedules `pods` pods on `nodes` nodes; bindings succeed at once. With `cached` off, every pod is
/// evaluated against every node: the baseline.
///
/// # Errors
/// The registry's plugins cannot be built with their defaults.
pub fn engine(
    registry: &Registry,
    nodes: usize,
    pods: usize,
    scenario: Scenario,
    koord: bool,
    cached: bool,
) -> Result<Measured, ProfileError> {
    let config = Configuration::koord(&["koord-scheduler".to_owned()]);
    let profiles = Profiles::build(&config, registry, &BuildContext::default(), koord)?;
    let mut engine = Engine::new(&config, profiles, EngineOptions::default());
    engine.set_caching(cached);
    let mut now = Timestamp::UNIX_EPOCH;
    for number in 0..nodes {
        engine.node_applied(Arc::new(node(number)), now);
    }
    let offered: Vec<Arc<Pod>> = (0..pods)
        .map(|number| Arc::new(pod(number, scenario)))
        .collect();
    let mut latencies = Vec::with_capacity(pods);
    let mut placed = 0;
    let started = Instant::now();
    for pod in offered {
        now = now
            .saturating_add(SignedDuration::from_micros(1))
            .unwrap_or(now);
        engine.pod_applied(pod, now);
        let before = Instant::now();
        while let Some(outcome) = engine.schedule_one(now) {
            placed += usize::from(outcome.node.is_some());
        }
        latencies.push(before.elapsed());
        for output in engine.take_outputs() {
            if let Output::Bind(request) = output {
                engine.bind_finished(&request.pod.uid, Ok(()), now);
            }
        }
    }
    let elapsed = started.elapsed();
    latencies.sort_unstable();
    let p99 = latencies
        .get(latencies.len() * 99 / 100)
        .copied()
        .unwrap_or_default();
    Ok(Measured {
        nodes,
        pods,
        placed,
        elapsed,
        p99,
    })
}

fn node(number: usize) -> Node {
    let name = format!("node-{number:05}");
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name, "labels": {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
        }},
        "status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"}},
    }))
    .unwrap_or_default()
}

fn pod(number: usize, scenario: Scenario) -> Pod {
    let name = format!("pod-{number:06}");
    let shape = match scenario {
        Scenario::Basic => 0,
        Scenario::Mixed => number % 10,
    };
    let cpu = format!("{}m", 500 + 10 * shape);
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "bench", "uid": name},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": 9000,
            "containers": [{"name": "c", "resources": {
                "requests": {"cpu": cpu, "memory": "512Mi"}
            }}],
        },
    }))
    .unwrap_or_default()
}
