//! RecommendationCheckpoint: what the recommender learned of one container, kept over restarts.
//!
//! This kind is koord's own: upstream has the Recommendation, and nobody who makes any.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whose history it is.
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
    /// The container.
    pub container_name: String,
}

/// The history.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecommendationCheckpointStatus {
    /// The format of the histograms.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// CPU samples, in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_histogram: Option<HistogramCheckpoint>,
    /// Memory peaks, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_histogram: Option<HistogramCheckpoint>,
    /// Memory windows that are not over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_peaks: Vec<MemoryPeak>,
    /// Time of the first sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_sample_start: Option<Time>,
    /// Time of the newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sample_start: Option<Time>,
    /// How many samples there were.
    #[serde(default)]
    pub total_samples_count: i64,
    /// When this was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
}

/// A decaying histogram.
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
    /// The sum of the real weights.
    #[serde(default)]
    pub total_weight: f64,
    /// After how long a sample weighs half, in seconds.
    #[serde(default)]
    pub half_life_seconds: i64,
}

/// The highest memory use of one pod in the window it is in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MemoryPeak {
    /// `metadata.uid` of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// When the window ends.
    pub window_end: Time,
    /// Bytes.
    #[serde(default)]
    pub peak: f64,
    /// Bytes that a kill for want of memory called for.
    #[serde(default)]
    pub oom_peak: f64,
    /// The newest sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sample_start: Option<Time>,
    /// The newest kill that was learned from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_oom_time: Option<Time>,
}
