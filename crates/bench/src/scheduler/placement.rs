//! Pods as the benchmark reads and creates them: with as little work as possible, because a load generator's
//! work is part of the measured CPU time.

use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_kube::api::PostParams;
use koord_kube::kube_core::Request;
use koord_kube::{Client, Error};
use serde::{Deserialize, Deserializer};

/// A pod's names and its node.
#[derive(Debug, Clone, Default)]
pub(super) struct Placement {
    metadata: ObjectMeta,
    node: Option<String>,
}

impl Placement {
    /// Returns the pod's name.
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns whether the pod has a node.
    pub(super) fn is_bound(&self) -> bool {
        self.node.is_some()
    }
}

koord_api::delegate_resource!(Placement as Pod, metadata);

koord_kube::decode!(Placement);

impl<'de> Deserialize<'de> for Placement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            name: Option<String>,
            namespace: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            node_name: Option<String>,
        }
        #[derive(Deserialize)]
        struct Parts {
            metadata: Metadata,
            spec: Option<Spec>,
        }
        let Parts { metadata, spec } = Parts::deserialize(deserializer)?;
        Ok(Self {
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                ..ObjectMeta::default()
            },
            node: spec.and_then(|spec| spec.node_name),
        })
    }
}

/// Posts `body`, an object, to `url`; the answer is not decoded.
///
/// # Errors
/// The refusal, or that there was no answer.
pub(super) async fn post(client: &Client, url: &str, body: Bytes) -> Result<(), Error> {
    let request = Request::new(url).create(&PostParams::default(), body.into());
    let request = request.map_err(Error::BuildRequest)?;
    client.request_text(request).await.map(drop)
}
