//! The JSON behind the annotations of a Recommendation. Both annotations are koord's own: unknown
//! fields of spec and status would be pruned by upstream's definition.

use crate::quantity::ResourceList;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which share of use the recommendation covers: JSON [`PercentilesAnnotation`].
pub const PERCENTILES: &str = "analysis.koordinator.sh/percentiles";
/// What is known beside the recommendation: JSON map of container name to
/// [`ContainerDistribution`].
pub const DISTRIBUTION: &str = "analysis.koordinator.sh/distribution";

/// Percentiles from 0 (excluded) to 1; what is absent is the recommender's default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PercentilesAnnotation {
    /// Of CPU samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Of memory peaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
}

/// What is known of one container's use.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDistribution {
    /// The least that makes sense.
    #[serde(default)]
    pub lower_bound: ResourceList,
    /// The most that makes sense.
    #[serde(default)]
    pub upper_bound: ResourceList,
    /// Use at `p50`, `p90`, `p95`, `p98` and `max`, without margin and floor.
    #[serde(default)]
    pub usage: BTreeMap<String, ResourceList>,
    /// How many samples there are.
    #[serde(default)]
    pub samples: u64,
    /// Time of the first sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sample: Option<Time>,
    /// Time of the newest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sample: Option<Time>,
    /// Days of history.
    #[serde(default)]
    pub confidence_days: f64,
}
