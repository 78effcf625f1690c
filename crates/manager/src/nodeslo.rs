//! Keeps one NodeSLO per node: the QoS settings that apply to it.

use crate::config::Config;
use crate::object::{self, Action};
use crate::suppress;
use crate::world::{Outcome, World};
use k8s_openapi::api::core::v1::Node;
use koord_api::slo::{NodeSLO, NodeSLOSpec};
use koord_kube::events::Severity;
use koord_kube::{ObjectKey, events};

/// The name of the controller.
pub(crate) const NAME: &str = "nodeslo";

/// Decides about the NodeSLO of a node; the second part says what in the node's annotations could
/// not be used.
pub(crate) fn plan(
    node: Option<&Node>,
    existing: Option<&NodeSLO>,
    config: &Config,
) -> (Action<NodeSLOSpec>, Option<String>) {
    let Some(node) = node else {
        let action = if existing.is_some() {
            Action::Delete
        } else {
            Action::Nothing
        };
        return (action, None);
    };
    let (mut wanted, mut problem) = config.slo(node);
    // Extensions belong to third parties, all but one.
    wanted.extensions = existing.and_then(|existing| existing.spec.extensions.clone());
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let text = config.extension(suppress::CONFIG_KEY);
    if let Err(error) = suppress::extend(&mut wanted.extensions, text, &labels) {
        problem.get_or_insert(error);
    }
    let action = match existing {
        None => Action::Create(wanted),
        Some(existing) => {
            if existing.spec == wanted {
                Action::Nothing
            } else {
                Action::Update(wanted)
            }
        }
    };
    (action, problem)
}

pub(crate) async fn reconcile(world: &World, name: &str) -> Result<Outcome, crate::Error> {
    let key = ObjectKey::new("", name);
    let config = world.config.borrow().clone();
    let (node, existing) = (world.nodes.get(&key), world.node_slos.get(&key));
    let (action, problem) = plan(node.as_deref(), existing.as_deref(), &config);
    world
        .metrics
        .nodeslo_spec_parse
        .count(problem.is_none(), "getNodeSLOSpec");
    if let (Some(node), Some(problem)) = (node, problem) {
        let about = events::reference(&*node);
        world
            .recorder
            .event(about, Severity::Warning, "SLOAnnotationIgnored", problem);
    }
    let objects = koord_kube::Api::all(world.client.clone());
    let old = existing.as_ref().map(|existing| &existing.spec);
    let result = object::apply(&objects, name, old, action, NodeSLO::new).await;
    world
        .metrics
        .nodeslo_reconcile
        .count(result.is_ok(), "reconcileNodeSLO");
    result.map(|()| Outcome::Done)
}
