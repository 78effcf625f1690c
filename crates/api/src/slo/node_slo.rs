//! NodeSLO: the QoS settings of one node. The manager writes them from the ConfigMap and the node's labels,
//! koordlet reads them. An unset field means the default (see [`crate::slo::defaults`]).
//!
//! Percentages are whole percent. Source: Koordinator `apis/slo/v1alpha1/nodeslo_types.go`.

use crate::quantity::Quantity;
use crate::serde_util::open_enum;
use crate::slo::{HostApplicationSpec, ResourceQOSStrategy};
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Free-form data of third parties, kept unchanged.
pub type ExtensionsMap = Map<String, Value>;

open_enum! {
    /// Mechanism that limits the CPU of BE pods.
    CPUSuppressPolicy {
        /// A limited set of CPUs.
        Cpuset = "cpuset",
        /// A CFS quota.
        CfsQuota = "cfsQuota",
    }
}

open_enum! {
    /// CPU amount that eviction compares with the requests of BE pods.
    CPUEvictPolicy {
        /// The limit after suppression.
        ByRealLimit = "evictByRealLimit",
        /// Allocatable batch CPU of the node.
        ByAllocatable = "evictByAllocatable",
    }
}

open_enum! {
    /// CPU burst mechanisms that are on.
    CPUBurstPolicy {
        /// No mechanism.
        None = "none",
        /// Kernel CFS burst only.
        CpuBurstOnly = "cpuBurstOnly",
        /// Scaling of the quota only.
        CfsQuotaBurstOnly = "cfsQuotaBurstOnly",
        /// Both mechanisms.
        Auto = "auto",
    }
}

/// QoS settings of the node that the object is named after.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "slo.koordinator.sh",
    version = "v1alpha1",
    kind = "NodeSLO",
    plural = "nodeslos",
    singular = "nodeslo",
    status = "NodeSLOStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct NodeSLOSpec {
    /// Thresholds that suppress and evict BE pods.
    #[serde(
        rename = "resourceUsedThresholdWithBE",
        skip_serializing_if = "Option::is_none"
    )]
    pub resource_used_threshold_with_be: Option<ResourceThresholdStrategy>,
    /// Kernel settings by QoS class.
    #[serde(
        rename = "resourceQOSStrategy",
        skip_serializing_if = "Option::is_none"
    )]
    pub resource_qos_strategy: Option<ResourceQOSStrategy>,
    /// CPU burst of services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_burst_strategy: Option<CPUBurstStrategy>,
    /// Kernel settings of the whole node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_strategy: Option<SystemStrategy>,
    /// Settings of third parties.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::schema::free_form_object")
    )]
    pub extensions: Option<ExtensionsMap>,
    /// Services outside Kubernetes that koordlet accounts for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_applications: Vec<HostApplicationSpec>,
}

/// Empty: the kind has no status yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeSLOStatus {}

/// Thresholds of node usage that suppress and evict BE pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceThresholdStrategy {
    /// True if BE pods are suppressed and evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Node CPU usage up to which BE pods may use CPU, percent of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub cpu_suppress_threshold_percent: Option<i64>,
    /// Percentage of the node's CPU that BE pods always keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub cpu_suppress_min_percent: Option<i64>,
    /// Mechanism that suppresses BE pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_suppress_policy: Option<CPUSuppressPolicy>,
    /// Node memory usage above which BE pods are evicted, percent of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub memory_evict_threshold_percent: Option<i64>,
    /// Node memory usage that eviction aims at, percent of the node; unset means the threshold − 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub memory_evict_lower_percent: Option<i64>,
    /// Ratio of requested to allocatable memory above which pods are evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub memory_allocatable_evict_threshold_percent: Option<i64>,
    /// Ratio of requested to allocatable memory that eviction aims at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub memory_allocatable_evict_lower_percent: Option<i64>,
    /// CPU satisfaction (limit over request) of BE pods that eviction aims at.
    #[serde(
        rename = "cpuEvictBESatisfactionUpperPercent",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_evict_be_satisfaction_upper_percent: Option<i64>,
    /// CPU satisfaction (limit over request) of BE pods below which some are evicted.
    #[serde(
        rename = "cpuEvictBESatisfactionLowerPercent",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_evict_be_satisfaction_lower_percent: Option<i64>,
    /// Usage of the BE limit below which satisfaction does not cause eviction.
    #[serde(
        rename = "cpuEvictBEUsageThresholdPercent",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_evict_be_usage_threshold_percent: Option<i64>,
    /// Window over which satisfaction is averaged, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_evict_time_window_seconds: Option<i64>,
    /// CPU amount that satisfaction is computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_evict_policy: Option<CPUEvictPolicy>,
    /// Node CPU usage above which pods are evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub cpu_evict_threshold_percent: Option<i64>,
    /// Node CPU usage that eviction aims at; unset means the threshold − 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub cpu_evict_lower_percent: Option<i64>,
    /// Ratio of requested to allocatable CPU above which pods are evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub cpu_allocatable_evict_threshold_percent: Option<i64>,
    /// Ratio of requested to allocatable CPU that eviction aims at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub cpu_allocatable_evict_lower_percent: Option<i64>,
    /// Pods above this priority are not evicted by usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict_enabled_priority_threshold: Option<i32>,
    /// Pods above this priority are not evicted because of the ratio of requested to allocatable resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable_evict_priority_threshold: Option<i32>,
}

/// CPU burst settings, also the format of the pod annotation `koordinator.sh/cpuBurst`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CPUBurstConfig {
    /// CPU burst mechanisms that are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<CPUBurstPolicy>,
    /// Kernel burst buffer as percent of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 10000)))]
    pub cpu_burst_percent: Option<i64>,
    /// Maximum to which a quota may be scaled up, percent of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfs_quota_burst_percent: Option<i64>,
    /// Time that a quota may stay scaled up, in seconds; −1 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfs_quota_burst_period_seconds: Option<i64>,
}

/// CPU burst of services on a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CPUBurstStrategy {
    /// CPU burst mechanisms that are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<CPUBurstPolicy>,
    /// Kernel burst buffer as percent of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 10000)))]
    pub cpu_burst_percent: Option<i64>,
    /// Maximum to which a quota may be scaled up, percent of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfs_quota_burst_percent: Option<i64>,
    /// Time that a quota may stay scaled up, in seconds; −1 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfs_quota_burst_period_seconds: Option<i64>,
    /// Usage of the shared CPU pool above which quotas are scaled down again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_pool_threshold_percent: Option<i64>,
}

/// Kernel settings of the whole node; unset fields leave the kernel setting unchanged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SystemStrategy {
    /// `vm.min_free_kbytes` as 1/10000 of the node's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_free_kbytes_factor: Option<i64>,
    /// `vm.watermark_scale_factor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark_scale_factor: Option<i64>,
    /// Background reaping of dead memory cgroups: 0 or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memcg_reap_back_ground: Option<i64>,
    /// Global page-cache limit: 0 or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_limit_enabled: Option<i64>,
    /// Idle-saver watermark of the CPU scheduler, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sched_idle_saver_wmark: Option<i64>,
    /// Group identity of the CPU scheduler: 0 or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sched_group_identity_enabled: Option<i64>,
    /// Scheduler feature to whether it is on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sched_features: BTreeMap<String, bool>,
    /// Bandwidth of the node in bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_network_bandwidth: Option<Quantity>,
}
