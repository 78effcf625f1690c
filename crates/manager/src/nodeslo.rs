//! Creates one NodeSLO per node, with the QoS settings that apply to it.

use crate::cache::ObjectKind;
use crate::config::Config;
use crate::controller::{Action, Controller, ControllerSpec};
use crate::node;
use crate::object::{self, ObjectChange};
use crate::replica::Replica;
use crate::suppress;
use k8s_openapi::api::core::v1::Node;
use koord_api::slo::{NodeSLO, NodeSLOSpec};
use koord_kube::events::Severity;
use koord_kube::{Cacheable, Change, ObjectKey, events};
use std::sync::Arc;

/// Computes the change to the NodeSLO of a node, and the problem in the node's annotations, if any.
pub(crate) fn plan(
    node: Option<&Node>,
    existing: Option<&NodeSLOSpec>,
    config: &Config,
) -> (ObjectChange<NodeSLOSpec>, Option<String>) {
    let Some(node) = node else {
        let action = if existing.is_some() {
            ObjectChange::Delete
        } else {
            ObjectChange::Nothing
        };
        return (action, None);
    };
    let (mut desired, mut problem) = config.slo(node);
    // Extensions belong to third parties, except for cpuSuppress.
    desired.extensions = match existing {
        Some(existing) => existing.extensions.clone(),
        None => Some(suppress::empty_extensions()),
    };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let (suppress, name) = (config.suppress(), node.metadata.name.as_deref());
    let name = name.unwrap_or_default();
    if let Err(error) = suppress::extend(&mut desired.extensions, suppress, name, &labels) {
        problem.get_or_insert(error);
    }
    let action = match existing {
        None => ObjectChange::Create(desired),
        Some(existing) => {
            if *existing == desired {
                ObjectChange::Nothing
            } else {
                ObjectChange::Update(desired)
            }
        }
    };
    (action, problem)
}

/// The controller.
pub(crate) const SPEC: ControllerSpec = ControllerSpec {
    name: "nodeslo",
    gate: None,
    needs: &[
        ObjectKind::Settings,
        ObjectKind::Nodes,
        ObjectKind::NodeSlos,
    ],
    wants: &[],
    build,
};

fn build(replica: &Arc<Replica>) -> Controller {
    let queue = node::queue(replica);
    let slos = queue.clone();
    replica
        .caches
        .node_slos
        .on_change(move |change| match change {
            Change::Applied { old, new } => {
                if old.as_ref().is_none_or(|old| old.spec != new.spec) {
                    slos.add(new.key());
                }
            }
            Change::Deleted(slo) => slos.add(slo.key()),
            Change::Synced => {}
        });
    let own = replica.clone();
    SPEC.controller(replica, queue, move |key| reconcile(own.clone(), key))
}

async fn reconcile(replica: Arc<Replica>, key: ObjectKey) -> Result<Action, crate::Error> {
    let config = replica.settings.current();
    let (node, existing) = (
        replica.caches.nodes.object(&key),
        replica.caches.node_slos.get(&key),
    );
    let existing = existing.as_ref().map(|existing| &*existing.spec);
    let (action, problem) = plan(node.as_ref(), existing, &config);
    if action == ObjectChange::Nothing {
        replica.resolve_difference("nodeslos", &key.name);
    }
    let metrics = &replica.metrics;
    metrics
        .nodeslo_spec_parse
        .count(problem.is_none(), "getNodeSLOSpec");
    if let (Some(node), Some(problem)) = (node, problem) {
        let (about, warning) = (events::reference(&node), Severity::Warning);
        replica
            .recorder
            .event(about, warning, "SLOAnnotationIgnored", problem);
    }
    let objects = koord_kube::Api::all(replica.client.clone());
    let result = object::apply(&objects, &key.name, existing, action, NodeSLO::new).await;
    metrics
        .nodeslo_reconcile
        .count(result.is_ok(), "reconcileNodeSLO");
    result.map(|()| Action::Done)
}
