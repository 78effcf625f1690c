//! Types of the API group `analysis.koordinator.sh`: resource recommendations.
//!
//! Source: Koordinator `apis/analysis/v1alpha1/recommendation_types.go`. Checkpoints and the
//! annotations of a Recommendation are koord's own.

mod checkpoint;
mod distribution;

pub use checkpoint::{
    HistogramCheckpoint, MemoryPeak, RecommendationCheckpoint, RecommendationCheckpointSpec,
    RecommendationCheckpointStatus,
};
pub use distribution::{ContainerDistribution, DISTRIBUTION, PERCENTILES, PercentilesAnnotation};

use crate::quantity::ResourceList;
use crate::serde_util::open_enum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

open_enum! {
    /// How the pods are found.
    #[derive(Default)]
    RecommendationTargetType {
        /// By their workload.
        #[default]
        Workload = "workload",
        /// By labels.
        PodSelector = "podSelector",
    }
}

/// Condition types of a Recommendation.
pub mod recommendation_conditions {
    /// Too little history.
    pub const LOW_CONFIDENCE: &str = "LowConfidence";
    /// No pod matches.
    pub const NO_OBJECTS_MATCHED: &str = "NoObjectsMatched";
    /// History is being read.
    pub const FETCHING_HISTORY: &str = "FetchingHistory";
    /// The spec uses something deprecated.
    pub const CONFIG_DEPRECATED: &str = "ConfigDeprecated";
    /// The spec uses something unsupported.
    pub const CONFIG_UNSUPPORTED: &str = "ConfigUnsupported";
}

/// Which pods to recommend for.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "analysis.koordinator.sh",
    version = "v1alpha1",
    kind = "Recommendation",
    plural = "recommendations",
    shortname = "recom",
    namespaced,
    status = "RecommendationStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.target.type"}"#,
    printcolumn = r#"{"name":"Kind","type":"string","jsonPath":".spec.target.workload.kind"}"#,
    printcolumn = r#"{"name":"Name","type":"string","jsonPath":".spec.target.workload.name"}"#,
    printcolumn = r#"{"name":"LastUpdateTime","type":"date","jsonPath":".status.updateTime"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RecommendationSpec {
    /// The pods.
    pub target: RecommendationTarget,
}

/// Pods, by workload or by labels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendationTarget {
    /// How they are found.
    #[serde(rename = "type")]
    pub type_: RecommendationTargetType,
    /// The workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<CrossVersionObjectReference>,
    /// The labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
}

/// A workload in the namespace of the object.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CrossVersionObjectReference {
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// API version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
}

impl CrossVersionObjectReference {
    /// The API version; that of Kubernetes' own workloads for those who leave it out, and `None` of
    /// another kind without one.
    #[must_use]
    pub fn api_version_or_usual(&self) -> Option<&str> {
        match (self.api_version.as_str(), self.kind.as_str()) {
            ("", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => Some("apps/v1"),
            ("", "Job" | "CronJob") => Some("batch/v1"),
            ("", "ReplicationController") => Some("v1"),
            ("", _) => None,
            (given, _) => Some(given),
        }
    }
}

/// The recommendation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendationStatus {
    /// By container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_status: Option<RecommendedPodStatus>,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// How good it is; see [`recommendation_conditions`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Recommendation for a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendedPodStatus {
    /// By container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<RecommendedContainerStatus>,
}

/// Recommendation for a container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendedContainerStatus {
    /// The container.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container_name: String,
    /// Recommended requests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
}
