//! Keeps one NodeMetric per node, whose spec says how koordlet measures.

use crate::config::Config;
use crate::world::{Outcome, World};
use k8s_openapi::api::core::v1::Node;
use koord_api::slo::{NodeMetric, NodeMetricSpec};
use koord_kube::{ObjectKey, api, patch};
use serde_json::json;

/// The name of the controller.
pub(crate) const NAME: &str = "nodemetric";

/// What to do about one node's object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action<S> {
    Nothing,
    Create(S),
    Update(S),
    Delete,
}

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
    let result = apply(world, name, existing.as_deref(), action).await;
    world
        .metrics
        .nodemetric_reconcile
        .count(result.is_ok(), "reconcileNodeMetric");
    result.map(|()| Outcome::Done)
}

async fn apply(
    world: &World,
    name: &str,
    existing: Option<&NodeMetric>,
    action: Action<NodeMetricSpec>,
) -> Result<(), crate::Error> {
    let objects: koord_kube::Api<NodeMetric> = koord_kube::Api::all(world.client.clone());
    match action {
        Action::Nothing => {}
        Action::Create(spec) => {
            let object = NodeMetric::new(name, spec);
            let created = objects.create(&api::PostParams::default(), &object).await;
            crate::world::unless_conflict(created)?;
        }
        Action::Update(spec) => {
            let old = existing
                .map(|existing| existing.spec.clone())
                .unwrap_or_default();
            if let Some(change) = patch::diff(&old, &spec)? {
                patch::merge(&objects, name, &json!({ "spec": change })).await?;
            }
        }
        Action::Delete => {
            crate::world::unless_gone(objects.delete(name, &Default::default()).await)?;
        }
    }
    Ok(())
}
