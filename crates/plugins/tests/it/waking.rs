//! Events that activate a pod that waits for free resources.

use crate::small;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use koord_scheduler::engine::Engine;
use serde_json::{Value, json};
use std::sync::Arc;

struct WakingWorld {
    engine: Engine,
    now: Timestamp,
}

fn bound(name: &str, node: &str) -> Arc<Pod> {
    pod(name, json!({"cpu": "500m"}), Some(node))
}

fn pod(name: &str, requests: Value, node: Option<&str>) -> Arc<Pod> {
    let value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": requests}}]}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

impl WakingWorld {
    /// Builds nodes with a pod each, and `waits`, which fits on none of them; `small` could never hold it.
    fn new() -> Self {
        Self::with(json!({}), json!({"cpu": "3"}))
    }

    /// Builds a world like [`Self::new`], with these arguments of the plugin and these requests of `waits`.
    fn with(args: Value, requests: Value) -> Self {
        let mut world = Self {
            engine: small::engine(&["NodeResourcesFit"], args),
            now: small::now(),
        };
        for (name, cpu) in [("large", "3"), ("small", "1")] {
            let amounts = json!({"cpu": cpu, "pods": "9"});
            small::node(&mut world.engine, name, amounts);
            let existing = bound(&format!("on-{name}"), name);
            world.engine.pod_applied(existing, world.now);
        }
        world
            .engine
            .pod_applied(pod("waits", requests, None), world.now);
        assert_eq!(world.tried().as_deref(), Some("nowhere"));
        assert_eq!(world.tried(), None, "once");
        world
    }

    /// Returns the node of `waits` if it was tried.
    fn tried(&mut self) -> Option<String> {
        // Longer than any backoff, and shorter than the time after which a pod is retried without an event.
        self.now = self
            .now
            .saturating_add(SignedDuration::from_secs(20))
            .unwrap();
        let outcome = self.engine.schedule_one(self.now)?;
        assert_eq!(&*outcome.pod.name, "waits");
        Some(
            outcome
                .node
                .map_or("nowhere".to_owned(), |node| node.to_string()),
        )
    }
}

#[test]
fn release_on_too_small_node_activates_no_pod() {
    let mut world = WakingWorld::new();
    let deleted = bound("on-small", "small");
    world.engine.pod_deleted(&deleted, world.now);
    assert_eq!(world.tried(), None);
    let mut world = WakingWorld::new();
    world
        .engine
        .pod_deleted(&bound("on-large", "large"), world.now);
    assert_eq!(world.tried().as_deref(), Some("large"));
}

/// Resources that no node lists and the filter ignores do not prevent activation.
#[test]
fn ignored_resources_do_not_block_activation() {
    let requests = json!({"cpu": "3", "example.com/mem": "1"});
    for ignored in [
        json!({"ignoredResources": ["example.com/mem"]}),
        json!({"ignoredResourceGroups": ["example.com"]}),
    ] {
        let mut world = WakingWorld::with(ignored.clone(), requests.clone());
        world
            .engine
            .pod_deleted(&bound("on-large", "large"), world.now);
        assert_eq!(world.tried().as_deref(), Some("large"), "{ignored}");
        let mut world = WakingWorld::with(ignored.clone(), requests.clone());
        let amounts = json!({"cpu": "4", "pods": "9"});
        small::node(&mut world.engine, "small", amounts);
        assert_eq!(world.tried().as_deref(), Some("small"), "{ignored}");
    }
    let mut world = WakingWorld::with(json!({}), requests);
    world
        .engine
        .pod_deleted(&bound("on-large", "large"), world.now);
    assert_eq!(world.tried(), None, "it is asked for here");
}

/// A pod that appears on another node releases what it was assumed to use.
#[test]
fn release_of_assumed_resources_activates_pods() {
    let mut world = WakingWorld::new();
    world
        .engine
        .pod_deleted(&bound("on-large", "large"), world.now);
    assert_eq!(world.tried().as_deref(), Some("large"));
    let second_pod = pod("more", json!({"cpu": "3"}), None);
    world.engine.pod_applied(second_pod, world.now);
    world.now = world
        .now
        .saturating_add(SignedDuration::from_secs(1))
        .unwrap();
    let outcome = world.engine.schedule_one(world.now).unwrap();
    assert_eq!(outcome.node, None, "{outcome:?}");
    let elsewhere = pod("waits", json!({"cpu": "3"}), Some("small"));
    world.engine.pod_applied(elsewhere, world.now);
    world.now = world
        .now
        .saturating_add(SignedDuration::from_secs(20))
        .unwrap();
    let outcome = world.engine.schedule_one(world.now);
    assert_eq!(
        outcome.and_then(|outcome| outcome.node).as_deref(),
        Some("large")
    );
}
