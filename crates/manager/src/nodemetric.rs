//! Creates one NodeMetric per node, whose spec configures how koordlet measures.

use crate::cache::ObjectKind;
use crate::config::Config;
use crate::controller::{Action, Controller, ControllerSpec};
use crate::node;
use crate::object::{self, ObjectChange};
use crate::replica::Replica;
use k8s_openapi::api::core::v1::Node;
use koord_api::slo::{NodeMetric, NodeMetricSpec};
use koord_kube::{Cacheable, Change, ObjectKey};
use std::sync::Arc;

/// Computes the change to the NodeMetric of a node.
pub(crate) fn plan(
    node: Option<&Node>,
    existing: Option<&NodeMetricSpec>,
    config: &Config,
) -> ObjectChange<NodeMetricSpec> {
    let Some(node) = node else {
        return if existing.is_some() {
            ObjectChange::Delete
        } else {
            ObjectChange::Nothing
        };
    };
    let desired = NodeMetricSpec {
        metric_collect_policy: Some(config.metric_collect_policy(node)),
    };
    match existing {
        None => ObjectChange::Create(desired),
        // An old policy is better than a default one.
        Some(_) if config.has_colocation_error() => ObjectChange::Nothing,
        Some(existing) if *existing == desired => ObjectChange::Nothing,
        Some(_) => ObjectChange::Update(desired),
    }
}

/// The controller.
pub(crate) const SPEC: ControllerSpec = ControllerSpec {
    name: "nodemetric",
    gate: None,
    needs: &[
        ObjectKind::Settings,
        ObjectKind::Nodes,
        ObjectKind::NodeMetrics,
    ],
    wants: &[],
    build,
};

fn build(replica: &Arc<Replica>) -> Controller {
    let queue = node::queue(replica);
    let metrics = queue.clone();
    replica
        .caches
        .node_metrics
        .on_change(move |change| match change {
            Change::Applied { old, new } => {
                if old.as_ref().is_none_or(|old| old.spec != new.spec) {
                    metrics.add(new.key());
                }
            }
            Change::Deleted(metric) => metrics.add(metric.key()),
            Change::Synced => {}
        });
    let own = replica.clone();
    SPEC.controller(replica, queue, move |key| reconcile(own.clone(), key))
}

async fn reconcile(replica: Arc<Replica>, key: ObjectKey) -> Result<Action, crate::Error> {
    let config = replica.settings.current();
    if !config.is_available() {
        return Ok(Action::Done);
    }
    let existing = replica.caches.node_metrics.get(&key);
    let existing = existing.as_ref().map(|metric| &metric.spec);
    let node = replica.caches.nodes.object(&key);
    let action = plan(node.as_ref(), existing, &config);
    if action == ObjectChange::Nothing {
        replica.resolve_difference("nodemetrics", &key.name);
    }
    let metrics = &replica.metrics;
    metrics
        .nodemetric_spec_parse
        .count(true, "getNodeMetricSpec");
    let objects = koord_kube::Api::all(replica.client.clone());
    let result = object::apply(&objects, &key.name, existing, action, NodeMetric::new).await;
    metrics
        .nodemetric_reconcile
        .count(result.is_ok(), "reconcileNodeMetric");
    result.map(|()| Action::Done)
}
