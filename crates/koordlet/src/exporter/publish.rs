//! Publication of a report in the node's NodeResourceTopology.

use super::owner::{self, FIELD_MANAGER, TakeOver};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use koord_api::topology::v1alpha2::{NodeResourceTopology, NodeResourceTopologyFields};
use koord_kube::api::{Patch, PatchParams, PostParams};
use koord_kube::kube_core::Resource as _;
use koord_kube::{Api, Client, patch};
use koord_model::export::{Report, is_same, merged};
use serde_json::json;

/// Outcome of a successful publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The object already has the report's content.
    Unchanged,
    /// The object was written.
    Written,
}

/// Failure to publish a report.
#[derive(Debug, thiserror::Error)]
pub(super) enum PublishError {
    /// Content of another exporter must not be overwritten. A retry does not help.
    #[error(
        "NodeResourceTopology {node} is written by {other}: two exporters would write over each \
         other. Stop one of them; --take-over has this one write, and so has deleting the object"
    )]
    Taken { node: String, other: String },
    #[error(
        "the API server does not serve NodeResourceTopology as v1alpha2: the definition is not \
         installed, or old"
    )]
    NotServed,
    #[error("Node {node}: {source}")]
    Node {
        node: String,
        source: Box<koord_kube::Error>,
    },
    #[error("NodeResourceTopology {node}: {source}")]
    Object {
        node: String,
        source: Box<koord_kube::Error>,
    },
}

impl PublishError {
    /// Returns whether another client has changed the object meanwhile.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Object { source, .. } if patch::is_conflict(source))
    }

    /// Returns whether a retry can succeed without another change. The object of another exporter is retried
    /// once it changes or is deleted.
    pub(super) fn is_retryable(&self) -> bool {
        !matches!(self, Self::Taken { .. })
    }
}

/// Writes `report` into the NodeResourceTopology of `node`, if it differs. Content of other writers is kept.
pub(super) async fn publish(
    client: &Client,
    node: &str,
    report: &Report,
    take_over: TakeOver,
) -> Result<PublishOutcome, PublishError> {
    let api: Api<NodeResourceTopology> = Api::all(client.clone());
    let failed = |source: koord_kube::Error| PublishError::Object {
        node: node.to_owned(),
        source: Box::new(source),
    };
    let Some(before) = api.get_opt(node).await.map_err(failed)? else {
        let mut object = NodeResourceTopology {
            spec: merged(&NodeResourceTopologyFields::default(), report),
            ..NodeResourceTopology::default()
        };
        object.metadata.name = Some(node.to_owned());
        object.metadata.owner_references = Some(vec![owner_of(client, node).await?]);
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let created = api.create(&params, &object).await;
        return match created {
            Err(error) if patch::is_not_found(&error) => Err(PublishError::NotServed),
            created => created.map(|_| PublishOutcome::Written).map_err(failed),
        };
    };
    let after = merged(&before.spec, report);
    if is_same(&before.spec, &after) {
        return Ok(PublishOutcome::Unchanged);
    }
    if let Some(other) = owner::other_writer(&before, take_over) {
        let node = node.to_owned();
        return Err(PublishError::Taken { node, other });
    }
    // Lists are replaced as a whole, so the version guards against lost updates of other clients.
    let change = json!({
        "metadata": {"resourceVersion": before.metadata.resource_version},
        "topologyPolicies": after.topology_policies,
        "attributes": after.attributes,
        "zones": after.zones,
    });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let written = api.patch(node, &params, &Patch::Merge(&change)).await;
    written.map(|_| PublishOutcome::Written).map_err(failed)
}

/// Returns an owner reference to the node, so that the report is deleted with it. It does not block the
/// node's deletion, which would need another permission.
async fn owner_of(client: &Client, node: &str) -> Result<OwnerReference, PublishError> {
    let api: Api<Node> = Api::all(client.clone());
    let node_object = api.get(node).await.map_err(|source| PublishError::Node {
        node: node.to_owned(),
        source: Box::new(source),
    })?;
    Ok(OwnerReference {
        api_version: Node::api_version(&()).into_owned(),
        kind: Node::kind(&()).into_owned(),
        name: node.to_owned(),
        uid: node_object.metadata.uid.unwrap_or_default(),
        ..OwnerReference::default()
    })
}
