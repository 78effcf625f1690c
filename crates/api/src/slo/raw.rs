//! Objects whose spec is not parsed yet, so that one invalid field does not hide the others.

use super::{NodeMetric, NodeSLO};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::marker::PhantomData;

/// A NodeSLO whose spec is not parsed yet.
pub type RawNodeSLO = Raw<NodeSLO>;

/// A NodeMetric whose spec is not parsed yet.
pub type RawNodeMetric = Raw<NodeMetric>;

/// Object of kind `K` with an unparsed spec; its status is dropped.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Raw<K> {
    /// The object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The unparsed spec.
    #[serde(default)]
    pub spec: Value,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

crate::delegate_resource!(<K> Raw<K> as K, metadata);
