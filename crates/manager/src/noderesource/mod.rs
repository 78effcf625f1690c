//! Publishes batch and mid resources on nodes.
//!
//! A node is looked at when its report, its own relevant fields or the settings change, and when
//! time alone changes the answer (a report goes stale, a small change becomes due).

mod plan;
pub(crate) mod view;

use crate::world::{Outcome, World};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY};
use koord_app::flags::Selection;
use koord_kube::{ObjectKey, patch};
use parking_lot::Mutex;
use plan::{Input, Plan, Reset};
use serde_json::Value;
use std::collections::HashMap;

/// The name of the controller.
pub(crate) const NAME: &str = "noderesource";

/// The plugins that `--noderesource-plugins` may name.
pub(crate) const PLUGINS: [&str; 6] = [
    plan::MID,
    plan::BATCH,
    "CPUNormalization",
    "ResourceAmplification",
    "GPUDeviceResource",
    "RDMADeviceResource",
];

/// The resources this controller owns.
pub(crate) const RESOURCES: [&str; 4] = [BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY];

/// The controller's own state: when each node was last brought up to date.
#[derive(Debug)]
pub(crate) struct Controller {
    plugins: Selection,
    synced: Mutex<HashMap<String, Timestamp>>,
    /// The version of each node that the last write left.
    written: Mutex<HashMap<String, Option<String>>>,
}

impl Controller {
    pub(crate) fn new(plugins: Selection) -> Self {
        Self {
            plugins,
            synced: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Forgets when a node was brought up to date, so that the next change is written at once.
    pub(crate) fn forget(&self, node: &str) {
        self.synced.lock().remove(node);
    }

    pub(crate) async fn reconcile(
        &self,
        world: &World,
        name: &str,
    ) -> Result<Outcome, crate::Error> {
        let key = ObjectKey::new("", name);
        let Some(node) = world.nodes.get(&key) else {
            self.forget(name);
            self.written.lock().remove(name);
            world.metrics.forget(name);
            return Ok(Outcome::Done);
        };
        let config = world.config.borrow().clone();
        if !config.is_available() {
            return Ok(Outcome::Done);
        }
        let strategy = config.strategy(&node);
        let metric = world.node_metrics.get(&key);
        let pods = world.pods.of_node(name);
        let plan = plan::plan(&Input {
            node: &node,
            strategy: strategy.as_ref(),
            metric: metric.as_deref(),
            pods: &pods,
            plugins: &self.plugins,
            synced: self.synced.lock().get(name).copied(),
            now: world.clock.now(),
        });
        self.report(world, name, &plan);
        let result = self.apply(world, name, &plan).await;
        world
            .metrics
            .noderesource_reconcile
            .count(result.is_ok(), "reconcileNodeResource");
        result?;
        Ok(plan.recheck.map_or(Outcome::Done, Outcome::Again))
    }

    fn report(&self, world: &World, node: &str, plan: &Plan) {
        let phase = if plan.reset.is_some() {
            "ResourceReset"
        } else {
            "ResourceCalculate"
        };
        for plugin in [plan::MID, plan::BATCH] {
            if self.plugins.enabled(plugin) {
                world.metrics.plugin(plugin, true, phase);
            }
        }
        for (resource, amount) in &plan.computed {
            world.metrics.computed(node, resource, amount.to_f64());
        }
        for message in &plan.messages {
            tracing::debug!(node, "{message}");
        }
    }

    async fn apply(&self, world: &World, node: &str, plan: &Plan) -> Result<(), crate::Error> {
        if let Some(change) = &plan.meta {
            patch::retry_on_conflict(|| patch::merge_node(&world.client, node, change)).await?;
        }
        if let Some(change) = &plan.status {
            let write = || patch::merge_node_status(&world.client, node, change);
            let written = patch::retry_on_conflict(write).await?;
            // Planned from a cache that lags behind the last write, the same is written again and
            // the node stays what it is: nothing to say.
            let version = written.metadata.resource_version;
            let before = self.written.lock().insert(node.to_owned(), version.clone());
            if before != Some(version) {
                say(node, change, plan.reset.as_ref());
            }
        }
        if plan.in_sync {
            self.synced
                .lock()
                .insert(node.to_owned(), world.clock.now());
        }
        Ok(())
    }
}

/// Logs what was published on `node`.
fn say(node: &str, change: &Value, reset: Option<&Reset>) {
    match reset {
        None => {
            tracing::debug!(node, change = %change["status"]["allocatable"], "resources published");
        }
        Some(Reset::Disabled) => tracing::info!(node, "resources taken away: co-location is off"),
        Some(Reset::Degraded(why)) => tracing::warn!(node, why, "resources taken away"),
    }
}

/// Whether a change of the node itself can change what is published on it. Heartbeats cannot.
pub(crate) fn is_relevant(old: &Node, new: &Node) -> bool {
    let status = |node: &Node| node.status.clone().unwrap_or_default();
    let (was, is) = (status(old), status(new));
    old.metadata.labels != new.metadata.labels
        || old.metadata.annotations != new.metadata.annotations
        || was.capacity != is.capacity
        || was.allocatable != is.allocatable
}
