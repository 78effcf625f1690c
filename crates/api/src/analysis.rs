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
    /// Way in which the pods of a Recommendation are selected.
    #[derive(Default)]
    RecommendationTargetType {
        /// The pods of a workload.
        #[default]
        Workload = "workload",
        /// The pods that a label selector matches.
        PodSelector = "podSelector",
    }
}

/// Condition types of a Recommendation.
pub mod recommendation_conditions {
    /// The usage history is too short.
    pub const LOW_CONFIDENCE: &str = "LowConfidence";
    /// The target matches no pod.
    pub const NO_OBJECTS_MATCHED: &str = "NoObjectsMatched";
    /// The usage history is being fetched.
    pub const FETCHING_HISTORY: &str = "FetchingHistory";
    /// The spec uses a deprecated setting.
    pub const CONFIG_DEPRECATED: &str = "ConfigDeprecated";
    /// The spec uses an unsupported setting.
    pub const CONFIG_UNSUPPORTED: &str = "ConfigUnsupported";
}

/// Desired recommendation: the pods to recommend requests for.
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
    /// Pods to recommend requests for.
    pub target: RecommendationTarget,
}

/// Pods of a Recommendation, selected by workload or by labels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendationTarget {
    /// Way in which the pods are selected.
    #[serde(rename = "type")]
    pub type_: RecommendationTargetType,
    /// The workload whose pods are selected; used with type `workload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<CrossVersionObjectReference>,
    /// Labels of the selected pods; used with type `podSelector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
}

/// Reference to a workload in the namespace of the Recommendation.
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
    /// Returns the API version of the workload; if it is empty, that of the built-in kind with this name. `None`
    /// if there is no such kind.
    #[must_use]
    pub fn api_version_or_builtin(&self) -> Option<&str> {
        match (self.api_version.as_str(), self.kind.as_str()) {
            ("", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => Some("apps/v1"),
            ("", "Job" | "CronJob") => Some("batch/v1"),
            ("", "ReplicationController") => Some("v1"),
            ("", _) => None,
            (api_version, _) => Some(api_version),
        }
    }
}

/// Current recommendation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendationStatus {
    /// Recommendations by container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_status: Option<RecommendedPodStatus>,
    /// Time of the newest update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// Quality of the recommendation: conditions such as `LowConfidence` or `NoObjectsMatched`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Recommendation for each container of a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendedPodStatus {
    /// Recommendations by container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<RecommendedContainerStatus>,
}

/// Recommendation for one container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendedContainerStatus {
    /// Name of the container.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container_name: String,
    /// Recommended requests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
}
