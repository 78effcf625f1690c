//! Keeps one NodeMetric per node, whose spec says how koordlet measures.

use crate::config::Config;
use crate::object::{self, Action};
use crate::world::{Outcome, World};
use k8s_openapi::api::core::v1::Node;
use koord_api::slo::{NodeMetric, NodeMetricSpec};
use koord_kube::ObjectKey;

/// The name of the controller.
pub(crate) const NAME: &str = "nodemetric";

/// Decides about the NodeMetric of a node.
pub(crate) fn plan(
    node: Option<&Node>,
    existing: Option<&NodeMetric>,
    config: &Config,
) -> Action<NodeMetricSpec> {
    let Some(node) = node else {
        return if existing.is_some() {
            Action::Delete
        } else {
            Action::Nothing
        };
    };
    let wanted = NodeMetricSpec {
        metric_collect_policy: Some(config.metric_collect_policy(node)),
    };
    match existing {
        None => Action::Create(wanted),
        // Rather an old policy than a default one.
        Some(_) if config.has_colocation_error() => Action::Nothing,
        Some(existing) if existing.spec == wanted => Action::Nothing,
        Some(_) => Action::Update(wanted),
    }
}

pub(crate) async fn reconcile(world: &World, name: &str) -> Result<Outcome, crate::Error> {
    let key = ObjectKey::new("", name);
    let config = world.config.borrow().clone();
    if !config.is_available() {
        return Ok(Outcome::Done);
    }
    let existing = world.node_metrics.get(&key);
    let action = plan(
        world.nodes.get(&key).as_deref(),
        existing.as_deref(),
        &config,
    );
    world
        .metrics
        .nodemetric_spec_parse
        .count(true, "getNodeMetricSpec");
    let objects = koord_kube::Api::all(world.client.clone());
    let old = existing.as_ref().map(|existing| &existing.spec);
    let result = object::apply(&objects, name, old, action, NodeMetric::new).await;
    world
        .metrics
        .nodemetric_reconcile
        .count(result.is_ok(), "reconcileNodeMetric");
    result.map(|()| Outcome::Done)
}
