//! The JSON behind the annotations of a Recommendation. Both annotations are koord's own: unknown
//! fields of spec and status would be pruned by upstream's definition.

use crate::quantity::ResourceList;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Annotation key for the percentiles that the recommendation covers: JSON [`PercentilesAnnotation`].
pub const PERCENTILES: &str = "analysis.koordinator.sh/percentiles";
/// Annotation key for the usage distribution behind the recommendation: JSON map of container name to
/// [`ContainerDistribution`].
pub const DISTRIBUTION: &str = "analysis.koordinator.sh/distribution";

/// Percentiles in the range (0, 1]. `None` means the recommender's default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PercentilesAnnotation {
    /// Percentile of CPU samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Percentile of memory peaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
}

/// Usage distribution of one container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDistribution {
    /// Lower bound of sensible requests.
    #[serde(default)]
    pub lower_bound: ResourceList,
    /// Upper bound of sensible requests.
    #[serde(default)]
    pub upper_bound: ResourceList,
    /// Usage at `p50`, `p90`, `p95`, `p98` and `max`, without safety margin and minimum.
    #[serde(default)]
    pub usage: BTreeMap<String, ResourceList>,
    /// Number of samples.
    #[serde(default)]
    pub samples: u64,
    /// Time of the first sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sample: Option<Time>,
    /// Time of the newest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sample: Option<Time>,
    /// Length of the history in days.
    #[serde(default)]
    pub confidence_days: f64,
}
