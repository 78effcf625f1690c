//! Publishes batch and mid resources on nodes.
//!
//! A node is reconciled when its report, its relevant fields or the settings change, and when time alone
//! changes the result (a report becomes stale, a small change becomes due).

mod plan;
mod plugins;
mod skew;
mod view;

use crate::cache::ObjectKind;
use crate::config::Strategy;
use crate::controller::{Action, Controller, ControllerSpec};
use crate::node;
use crate::replica::Replica;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use koord_api::annotations;
use koord_api::quantity::Quantity;
use koord_api::resources::{self, BATCH_CPU, BATCH_MEMORY};
use koord_api::scheduling::Device;
use koord_api::topology::v1alpha1;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_kube::api::{Patch, PatchParams};
use koord_kube::events::{self, Severity};
use koord_kube::{Cacheable, Change, Client, ObjectKey, patch};
use koord_model::reclaim::NodeView;
use koord_model::report_time;
use parking_lot::Mutex;
use plan::Plan;
use plugins::PluginResult;
use rustc_hash::FxHasher;
use serde_json::Value;
use skew::{ClockSkew, SkewedNodes};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use plan::{Input, Reset};
pub(crate) use plugins::{Draft, formula_zones, normalized, third_parties};
pub(crate) use view::read_amount;

/// Returns the view that a node's resources are reclaimed from, or why none are; the resulting draft; and the
/// result of each plugin.
pub(crate) fn decide(input: &Input<'_>) -> (Result<NodeView, Reset>, Draft, Vec<PluginResult>) {
    let view = plan::reclaimable(input, &mut Plan::default());
    let mut draft = Draft::default();
    let results = plugins::run(input, view.as_ref().ok(), &mut draft);
    (view, draft, results)
}

/// The names that `--noderesource-plugins` accepts.
pub(crate) const PLUGINS: [&str; 6] = plugins::NAMES;

/// The controller.
pub(crate) const SPEC: ControllerSpec = ControllerSpec {
    name: "noderesource",
    gate: None,
    needs: &[ObjectKind::Settings, ObjectKind::Nodes],
    wants: &[
        ObjectKind::NodeMetrics,
        ObjectKind::Pods,
        ObjectKind::Topologies,
        ObjectKind::Devices,
    ],
    build,
};

/// Builds the controller and subscribes it to changes of the caches.
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
                state.reset_sync_time(&metric.node);
                state.skewed.remove(&metric.node);
                metrics.add(metric.key());
            }
            Change::Synced => {}
        });
    let topologies = queue.clone();
    replica
        .caches
        .topologies
        .on_change(move |change| match change {
            Change::Applied { old, new } => {
                if old.as_ref().is_none_or(|old| is_relevant(old, new)) {
                    topologies.add(new.key());
                }
            }
            Change::Deleted(topology) => topologies.add(topology.key()),
            Change::Synced => {}
        });
    let devices = queue.clone();
    replica
        .caches
        .devices
        .on_change(move |change| match change {
            Change::Applied { old, new } => {
                let is_unchanged = |old: &Arc<Device>| {
                    old.spec == new.spec && old.metadata.labels == new.metadata.labels
                };
                if !old.as_ref().is_some_and(is_unchanged) {
                    devices.add(new.key());
                }
            }
            Change::Deleted(device) => devices.add(device.key()),
            Change::Synced => {}
        });
    SPEC.controller(replica, queue, move |key| {
        let resources = resources.clone();
        async move { resources.reconcile(&key).await }
    })
}

/// Delay before zones are planned again after a conflicting write of the NodeResourceTopology.
const ZONE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Field manager of batch resources in zones. It shows koord's exporter that no other exporter wrote them.
const FIELD_MANAGER: &str = "koordinator-manager";

/// Result of writing the zones of a NodeResourceTopology.
enum ZoneWrite {
    /// The zones are written, or needed no change.
    Settled,
    /// The object changed in the meantime: plan again from the new version.
    Outdated,
}

/// State of the controller: when each node was last synced.
struct Resources {
    replica: Arc<Replica>,
    started: Timestamp,
    synced: Mutex<HashMap<String, Timestamp>>,
    /// Resource version of each node after the last write.
    written: Mutex<HashMap<String, Option<String>>>,
    skewed: SkewedNodes,
}

impl Resources {
    fn new(replica: Arc<Replica>) -> Self {
        Self {
            started: replica.clock.now(),
            replica,
            synced: Mutex::default(),
            written: Mutex::default(),
            skewed: SkewedNodes::default(),
        }
    }

    /// Returns when a node was last synced. Nodes that this process never wrote are spread over the update
    /// interval, so that a new leader does not write all of them at once.
    fn last_synced(&self, node: &str, strategy: Option<&Strategy>) -> Timestamp {
        if let Some(synced) = self.synced.lock().get(node) {
            return *synced;
        }
        let interval = strategy
            .map_or(300, |strategy| strategy.update_threshold_secs)
            .max(1);
        let mut hasher = FxHasher::default();
        node.hash(&mut hasher);
        let place = i64::try_from(hasher.finish() >> 1).unwrap_or_default() % interval;
        let due = self.started.as_second().saturating_add(place);
        Timestamp::from_second(due.saturating_sub(interval)).unwrap_or(Timestamp::MIN)
    }

    /// Drops the sync time of a node, so that the next change is written immediately.
    fn reset_sync_time(&self, node: &str) {
        self.synced.lock().remove(node);
    }

    /// Computes the resources of a node and writes them if they changed or are due.
    async fn reconcile(&self, key: &ObjectKey) -> Result<Action, crate::Error> {
        let (replica, name) = (&self.replica, key.name.as_str());
        let Some(node) = replica.caches.nodes.object(key) else {
            self.reset_sync_time(name);
            self.written.lock().remove(name);
            self.skewed.remove(name);
            replica.metrics.remove_node(name);
            replica.resolve_difference("nodes", name);
            return Ok(Action::Done);
        };
        let config = replica.settings.current();
        if !config.is_available() {
            return Ok(Action::Done);
        }
        let gates = &replica.options.gates;
        let mut strategy = config.strategy(&node);
        if let Some(strategy) = &mut strategy {
            strategy.batch.charge_unmeasured = gates.enabled("ChargeUnmeasuredPods");
        }
        let caches = &replica.caches;
        let metric = caches.node_metrics.get(key);
        let report = metric.as_ref().and_then(|metric| metric.report.as_ref());
        let now = replica.clock.now();
        let life = strategy
            .as_ref()
            .map_or(report_time::MAX_AHEAD, |strategy| {
                SignedDuration::from_secs(strategy.degrade_minutes.saturating_mul(60))
            });
        let reported = report.and_then(|report| report.updated);
        let skew = self.skewed.observe(name, reported, now, life);
        self.report_skew(&node, skew);
        let plan = plan::plan(&Input {
            node: &node,
            strategy: strategy.as_ref(),
            normalization: config.normalization(&node),
            amplification: config.amplification(&node),
            report,
            is_report_ahead: skew.is_refused(),
            pods: &replica.pods_by_node.get(name),
            topology: caches.topologies.get(key).as_deref(),
            device: caches.devices.get(key).as_deref(),
            plugins: &replica.options.noderesource_plugins,
            share_gpus: gates.enabled("EnableSyncGPUSharedResource"),
            devices_always: gates.enabled("DeviceResourceWithoutColocation"),
            synced: Some(self.last_synced(name, strategy.as_ref())),
            now,
        });
        self.report(name, &plan);
        let result = self.apply(name, &plan).await;
        replica
            .metrics
            .noderesource_reconcile
            .count(result.is_ok(), "reconcileNodeResource");
        match result? {
            ZoneWrite::Settled => Ok(plan.recheck.map_or(Action::Done, Action::RequeueAfter)),
            // By then the cache has the conflicting write.
            ZoneWrite::Outdated => Ok(Action::RequeueAfter(ZONE_RETRY_DELAY)),
        }
    }

    /// Reports once when the clock of `node` is ahead, and once when it is correct again.
    fn report_skew(&self, node: &Node, skew: ClockSkew) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let metrics = &self.replica.metrics;
        match skew {
            ClockSkew::None | ClockSkew::Ongoing => {}
            ClockSkew::Ended => {
                metrics.set_clock_skew(name, None);
                tracing::info!(node = name, "clock skew ended, NodeMetric is used again");
            }
            ClockSkew::Started(ahead) => {
                let seconds = ahead.as_secs();
                metrics.set_clock_skew(name, Some(seconds));
                tracing::warn!(
                    node = name,
                    seconds,
                    "ignoring NodeMetric dated ahead of now"
                );
                let limit = report_time::MAX_AHEAD.as_secs();
                let message = format!(
                    "NodeMetric {name:?} is dated {seconds} s ahead of now, expected less than {limit} s: the clock of \
                     the node or of this manager is wrong; the report is not used, and batch and mid resources are \
                     taken away"
                );
                let about = events::reference(node);
                let recorder = &self.replica.recorder;
                recorder.event(about, Severity::Warning, "NodeClockSkew", message);
            }
        }
    }

    fn report(&self, node: &str, plan: &Plan) {
        let phase = if plan.reset.is_some() {
            "ResourceReset"
        } else {
            "ResourceCalculate"
        };
        for (plugin, result) in &plan.plugin_results {
            self.replica.metrics.plugin(plugin, result.is_ok(), phase);
            if let Err(why) = result {
                tracing::debug!(
                    node,
                    plugin,
                    why,
                    "noderesource plugin failed, keeping its previous values"
                );
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

    /// Writes the planned changes of a node and of the zones of its NodeResourceTopology.
    async fn apply(&self, node: &str, plan: &Plan) -> Result<ZoneWrite, crate::Error> {
        let client = &self.replica.client;
        let mut zones = ZoneWrite::Settled;
        if let Some(change) = &plan.topology {
            match write_zones(client, node, change).await {
                // The change by another client may not trigger a reconcile of this node.
                Err(error) if patch::is_conflict(&error) => zones = ZoneWrite::Outdated,
                Err(error) if !patch::is_not_found(&error) => return Err(error.into()),
                _ => {}
            }
        }
        // A patch of the status subresource may change metadata, too: one write for both.
        let change = merge_patches(plan.meta.as_ref(), plan.status.as_ref());
        if change.is_none() {
            self.replica.resolve_difference("nodes", node);
        }
        if plan.topology.is_none() {
            self.replica
                .resolve_difference("noderesourcetopologies", node);
        }
        if let Some(change) = &change {
            let write = || async {
                if plan.status.is_some() {
                    patch::merge_node_status(client, node, change).await
                } else {
                    patch::merge_node(client, node, change).await
                }
            };
            let written = patch::retry_on_conflict(write).await?;
            // A plan from a stale cache repeats the last write, which leaves the node's version unchanged:
            // log nothing.
            let version = written.metadata.resource_version;
            let before = self.written.lock().insert(node.to_owned(), version.clone());
            if before != Some(version) {
                log_published(node, change, plan);
            }
        }
        // A node with outstanding zones is not synced yet.
        if plan.in_sync && matches!(zones, ZoneWrite::Settled) {
            self.synced
                .lock()
                .insert(node.to_owned(), self.replica.clock.now());
        }
        Ok(zones)
    }
}

/// Patches a node's NodeResourceTopology. Fields that the version of a request does not have are taken from
/// the stored object, so v1alpha1 is used only if it is the only version: "not found" may refer to the
/// version or to the object, and the patch is valid for one `resourceVersion`.
async fn write_zones(client: &Client, node: &str, change: &Value) -> Result<(), koord_kube::Error> {
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let change = Patch::Merge(change);
    let topologies = koord_kube::Api::<NodeResourceTopology>::all(client.clone());
    match topologies.patch(node, &params, &change).await {
        Err(error) if patch::is_not_found(&error) => {
            let old = koord_kube::Api::<v1alpha1::NodeResourceTopology>::all(client.clone());
            old.patch(node, &params, &change).await.map(drop)
        }
        written => written.map(drop),
    }
}

/// Merges both patches into one.
fn merge_patches(meta: Option<&Value>, status: Option<&Value>) -> Option<Value> {
    let mut merged = serde_json::Map::new();
    for patch in [meta, status].into_iter().flatten() {
        merged.extend(
            patch
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.clone(), v.clone())),
        );
    }
    (!merged.is_empty()).then_some(Value::Object(merged))
}

/// Returns true if a change of a NodeResourceTopology, other than of batch amounts, can change the result:
/// CPU and memory of zones, presence of batch resources, the node's CPU info.
fn is_relevant(old: &NodeResourceTopology, new: &NodeResourceTopology) -> bool {
    let info = |topology: &NodeResourceTopology| {
        let annotations = topology.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(annotations::NODE_CPU_BASIC_INFO).cloned())
    };
    let amounts = |topology: &NodeResourceTopology| -> Vec<(String, Option<Quantity>)> {
        let zones = topology.spec.zones.iter();
        let all = zones.flat_map(|zone| zone.resources.iter().map(move |r| (zone, r)));
        all.filter_map(|(zone, r)| {
            let amount = match r.name.as_str() {
                BATCH_CPU | BATCH_MEMORY => None,
                resources::CPU | resources::MEMORY => Some(r.allocatable),
                _ => return None,
            };
            Some((format!("{}/{}", zone.name, r.name), amount))
        })
        .collect()
    };
    info(old) != info(new) || amounts(old) != amounts(new)
}

/// Logs what was published on `node`.
fn log_published(node: &str, change: &Value, plan: &Plan) {
    match &plan.reset {
        None => {
            tracing::debug!(node, change = %change["status"]["allocatable"], "published reclaimed resources");
        }
        Some(Reset::Disabled) => {
            tracing::info!(node, "removed reclaimed resources, co-location is off")
        }
        // A new node has no report yet.
        Some(Reset::Degraded(why)) if !plan.has_resources => {
            tracing::debug!(node, why, "published no reclaimed resources");
        }
        Some(Reset::Degraded(why)) => tracing::warn!(node, why, "removed reclaimed resources"),
    }
}
