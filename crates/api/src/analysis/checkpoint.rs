//! RecommendationCheckpoint: the usage history of one container, stored so that the recommender keeps it over
//! restarts.
//!
//! This kind is koord's own: upstream defines the Recommendation but has no controller that fills it in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Identifies the container whose history is stored.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "analysis.koordinator.sh",
    version = "v1alpha1",
    kind = "RecommendationCheckpoint",
    plural = "recommendationcheckpoints",
    namespaced,
    status = "RecommendationCheckpointStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    printcolumn = r#"{"name":"Recommendation","type":"string","jsonPath":".spec.recommendation"}"#,
    printcolumn = r#"{"name":"Container","type":"string","jsonPath":".spec.containerName"}"#,
    printcolumn = r#"{"name":"Samples","type":"integer","jsonPath":".status.totalSamplesCount"}"#,
    printcolumn = r#"{"name":"LastUpdateTime","type":"date","jsonPath":".status.lastUpdateTime"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RecommendationCheckpointSpec {
    /// Name of the Recommendation, in the same namespace.
    pub recommendation: String,
    /// Name of the container.
    pub container_name: String,
}

/// Stored usage history of the container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendationCheckpointStatus {
    /// Version of the histogram format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Histogram of CPU samples, in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_histogram: Option<HistogramCheckpoint>,
    /// Histogram of memory peaks, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_histogram: Option<HistogramCheckpoint>,
    /// Memory peaks of the windows that have not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_peaks: Vec<MemoryPeak>,
    /// Time of the first sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_sample_start: Option<Time>,
    /// Time of the newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sample_start: Option<Time>,
    /// Number of samples.
    #[serde(default)]
    pub total_samples_count: i64,
    /// Time of the newest write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

/// Histogram whose weights decay exponentially with age.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistogramCheckpoint {
    /// The time that weights refer to; absent without samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_timestamp: Option<Time>,
    /// Bucket number to weight; the largest weight is 10000.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bucket_weights: BTreeMap<String, i64>,
    /// Sum of the weights before they are scaled to the largest one.
    #[serde(default)]
    pub total_weight: f64,
    /// Half-life of a sample's weight, in seconds.
    #[serde(default)]
    pub half_life_seconds: i64,
}

/// Highest memory usage of one pod in its current window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MemoryPeak {
    /// `metadata.uid` of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// End of the window.
    pub window_end: Time,
    /// Highest sampled usage, in bytes.
    #[serde(default)]
    pub peak: f64,
    /// Memory that an OOM kill indicates as needed, in bytes.
    #[serde(default)]
    pub oom_peak: f64,
    /// Time of the newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sample_start: Option<Time>,
    /// Time of the newest OOM kill that is included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_oom_time: Option<Time>,
}
