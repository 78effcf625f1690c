//! PodGroup and ElasticQuota, the objects shared with the scheduler-plugins project.
//!
//! Neither has a status subresource: a status is written with a plain update.
//! Source: `sigs.k8s.io/scheduler-plugins` API as vendored by Koordinator (`apis/thirdparty`).

use crate::quantity::ResourceList;
use crate::serde_util::open_enum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

open_enum! {
    /// State of a pod group.
    PodGroupPhase {
        /// Accepted, but too few pods exist.
        Pending = "Pending",
        /// Enough members run.
        Running = "Running",
        /// Enough pods exist and wait for scheduling.
        PreScheduling = "PreScheduling",
        /// Some members are scheduled, but too few.
        Scheduling = "Scheduling",
        /// Enough members are scheduled.
        Scheduled = "Scheduled",
        /// The state of the members is unknown.
        Unknown = "Unknown",
        /// All members succeeded.
        Finished = "Finished",
        /// A member failed.
        Failed = "Failed",
    }
}

/// Group of pods that start together or not at all.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "scheduling.sigs.k8s.io",
    version = "v1alpha1",
    kind = "PodGroup",
    plural = "podgroups",
    namespaced,
    status = "PodGroupStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// Minimum number of members that must start together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_member: Option<i32>,
    /// Minimum resources that the members need together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min_resources: ResourceList,
    /// Time that members wait for the rest, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i32>,
}

/// Observed state of the group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// Phase of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PodGroupPhase>,
    /// Owner of the members, `namespace/name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub occupied_by: String,
    /// Number of members that have a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<i32>,
    /// Number of members that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Number of members that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Number of members that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// Start time of the group's scheduling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_start_time: Option<Time>,
}

/// Quota that may use resources that other quotas leave idle.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "scheduling.sigs.k8s.io",
    version = "v1alpha1",
    kind = "ElasticQuota",
    plural = "elasticquotas",
    namespaced,
    status = "ElasticQuotaStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct ElasticQuotaSpec {
    /// Guaranteed amount.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min: ResourceList,
    /// Upper bound.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub max: ResourceList,
}

/// Observed usage of the quota.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ElasticQuotaStatus {
    /// Amounts that its pods use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub used: ResourceList,
}
