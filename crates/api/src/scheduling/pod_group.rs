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
        /// Members cannot be seen.
        Unknown = "Unknown",
        /// All members finished well.
        Finished = "Finished",
        /// A member failed.
        Failed = "Failed",
    }
}

/// Pods that start together or not at all.
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
    /// Least number of members that must start together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_member: Option<i32>,
    /// Least resources the members need together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min_resources: ResourceList,
    /// How long members wait for the rest, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i32>,
}

/// Progress of the group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// State.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PodGroupPhase>,
    /// Owner of the members, `namespace/name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub occupied_by: String,
    /// Members with a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<i32>,
    /// Members that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Members that finished well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Members that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// When scheduling of the group began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_start_time: Option<Time>,
}

/// A quota that may use what others leave.
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

/// Use of the quota.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ElasticQuotaStatus {
    /// What its pods use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub used: ResourceList,
}
