//! Publishes batch and mid resources on nodes.
//!
//! A node is looked at when its report, its own relevant fields or the settings change, and when
//! time alone changes the answer (a report goes stale, a small change becomes due).

mod plan;
mod view;

use crate::cache::Kind;
use crate::controllers::{Controller, Outcome, Row};
use crate::node;
use crate::replica::Replica;
use jiff::Timestamp;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY};
use koord_kube::{Change, Mirrored, ObjectKey, patch};
use parking_lot::Mutex;
use plan::{Input, Plan, Reset};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

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

/// The controller.
pub(crate) const ROW: Row = Row {
    name: "noderesource",
    gate: None,
    needs: &[Kind::Settings, Kind::Nodes],
    wants: &[Kind::NodeMetrics, Kind::Pods],
    build,
};

fn build(replica: &Arc<Replica>) -> Controller {
    let queue = node::queue(replica);
    let resources = Arc::new(Resources::new(replica.clone()));
    let (metrics, state) = (queue.clone(), resources.clone());
    replica
        .caches
        .node_metrics
        .on_change(move |change| match change {
            Change::Applied { old, new } => {
                if old.as_ref().is_none_or(|old| old.report != new.report) {
                    metrics.add(new.key());
                }
            }
            Change::Deleted(metric) => {
                state.forget(&metric.node);
                metrics.add(metric.key());
            }
            Change::Synced => {}
        });
    Controller::new(queue, move |key| {
        let resources = resources.clone();
        async move { resources.reconcile(&key).await }
    })
}

/// The controller's own state: when each node was last brought up to date.
struct Resources {
    replica: Arc<Replica>,
    synced: Mutex<HashMap<String, Timestamp>>,
    /// The version of each node that the last write left.
    written: Mutex<HashMap<String, Option<String>>>,
}

impl Resources {
    fn new(replica: Arc<Replica>) -> Self {
        Self {
            replica,
            synced: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Forgets when a node was brought up to date, so that the next change is written at once.
    fn forget(&self, node: &str) {
        self.synced.lock().remove(node);
    }

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome, crate::Error> {
        let (replica, name) = (&self.replica, key.name.as_str());
        let Some(node) = replica.caches.nodes.get(key) else {
            self.forget(name);
            self.written.lock().remove(name);
            replica.metrics.forget(name);
            return Ok(Outcome::Done);
        };
        let config = replica.settings.current();
        if !config.is_available() {
            return Ok(Outcome::Done);
        }
        let strategy = config.strategy(&node);
        let metric = replica.caches.node_metrics.get(key);
        let pods = replica.pods_by_node.get(name);
        let plan = plan::plan(&Input {
            node: &node,
            strategy: strategy.as_ref(),
            report: metric.as_ref().and_then(|metric| metric.report.as_ref()),
            pods: &pods,
            plugins: &replica.options.noderesource_plugins,
            synced: self.synced.lock().get(name).copied(),
            now: replica.clock.now(),
        });
        self.report(name, &plan);
        let result = self.apply(name, &plan).await;
        replica
            .metrics
            .noderesource_reconcile
            .count(result.is_ok(), "reconcileNodeResource");
        result?;
        Ok(plan.recheck.map_or(Outcome::Done, Outcome::Again))
    }

    fn report(&self, node: &str, plan: &Plan) {
        let phase = if plan.reset.is_some() {
            "ResourceReset"
        } else {
            "ResourceCalculate"
        };
        for plugin in [plan::MID, plan::BATCH] {
            if self.replica.options.noderesource_plugins.enabled(plugin) {
                self.replica.metrics.plugin(plugin, true, phase);
            }
        }
        for (resource, amount) in &plan.computed {
            self.replica
                .metrics
                .computed(node, resource, amount.to_f64());
        }
        for message in &plan.messages {
            tracing::debug!(node, "{message}");
        }
    }

    async fn apply(&self, node: &str, plan: &Plan) -> Result<(), crate::Error> {
        if let Some(change) = &plan.meta {
            patch::retry_on_conflict(|| patch::merge_node(&self.replica.client, node, change))
                .await?;
        }
        if let Some(change) = &plan.status {
            let write = || patch::merge_node_status(&self.replica.client, node, change);
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
                .insert(node.to_owned(), self.replica.clock.now());
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
