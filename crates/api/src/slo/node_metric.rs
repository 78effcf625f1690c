//! NodeMetric: usage that koordlet measures on a node, and the settings of the measurement.
//!
//! The manager writes the spec, koordlet the status. CPU amounts are in cores, memory in bytes.

use crate::duration::GoDuration;
use crate::priority::PriorityClass;
use crate::qos::QosClass;
use crate::quantity::ResourceList;
use crate::scheduling::DeviceInfo;
use crate::serde_util::open_enum;
use crate::slo::ExtensionsMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

open_enum! {
    /// Memory that counts as used.
    MemoryCollectPolicy {
        /// Usage without page cache; the default.
        WithoutPageCache = "usageWithoutPageCache",
        /// Usage with the page cache that is in use.
        WithHotPageCache = "usageWithHotPageCache",
        /// Usage with all page cache.
        WithPageCache = "usageWithPageCache",
    }
}

open_enum! {
    /// Keys of aggregated usage.
    AggregationType {
        /// Mean.
        Avg = "avg",
        /// 99th percentile.
        P99 = "p99",
        /// 95th percentile.
        P95 = "p95",
        /// 90th percentile.
        P90 = "p90",
        /// Median.
        P50 = "p50",
    }
}

/// Settings of koordlet's measurement.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "slo.koordinator.sh",
    version = "v1alpha1",
    kind = "NodeMetric",
    plural = "nodemetrics",
    status = "NodeMetricStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct NodeMetricSpec {
    /// Collection windows; unset until the manager has configured the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_collect_policy: Option<NodeMetricCollectPolicy>,
}

/// Windows and intervals for sampling, aggregating and reporting usage.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeMetricCollectPolicy {
    /// Window of the plain usage averages, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_duration_seconds: Option<i64>,
    /// Time between two reports, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report_interval_seconds: Option<i64>,
    /// Windows of the aggregated usages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_aggregate_policy: Option<AggregatePolicy>,
    /// Memory that counts as used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"])))]
    pub node_memory_collect_policy: Option<MemoryCollectPolicy>,
}

/// Windows over which percentiles are reported.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AggregatePolicy {
    /// Windows; one aggregate is reported for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub durations: Vec<GoDuration>,
}

/// Newest report of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeMetricStatus {
    /// Time of the report. If it is unset or old, the values must not be trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// Usage of the node and of its system part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_metric: Option<NodeMetricInfo>,
    /// Usage by pod, sorted by namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_metric: Vec<PodMetricInfo>,
    /// Usage by host application, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_application_metric: Vec<HostApplicationMetricInfo>,
    /// Predicted amount that prod pods request but will not use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_reclaimable_metric: Option<ReclaimableMetric>,
    /// Predicted peak of prod pods and the system, safety margin included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_peak_metric: Option<ReclaimableMetric>,
}

/// Usage of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeMetricInfo {
    /// Average usage of the whole node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_usage: Option<ResourceMap>,
    /// Percentiles of the usage of the whole node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregated_node_usages: Vec<AggregatedUsage>,
    /// Average usage outside of pods and host applications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_usage: Option<ResourceMap>,
    /// Percentiles of the usage outside of pods and host applications.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregated_system_usages: Vec<AggregatedUsage>,
    /// Average usage by NUMA node, sorted by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_usages: Vec<NumaUsage>,
}

/// Usage of one NUMA node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NumaUsage {
    /// NUMA node.
    #[serde(rename = "numaNodeID")]
    pub numa_node_id: i32,
    /// Average usage of the NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_usage: Option<ResourceMap>,
    /// Average usage outside of pods and host applications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_usage: Option<ResourceMap>,
}

/// Percentiles over one window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AggregatedUsage {
    /// Usage by aggregation type, such as `p95`. Empty until half of the window is covered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub usage: BTreeMap<String, ResourceMap>,
    /// The window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<GoDuration>,
}

/// An amount of plain resources and of devices.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceMap {
    /// Resource name to amount.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: ResourceList,
    /// Device usage; only id, minor, type and resources are filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceInfo>,
}

/// Usage of one pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodMetricInfo {
    /// Pod name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Pod namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Average usage of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_usage: Option<ResourceMap>,
    /// Priority class, with default.
    #[serde(default, skip_serializing_if = "PriorityClass::is_unset")]
    pub priority: PriorityClass,
    /// QoS class, with default.
    #[serde(default, skip_serializing_if = "QosClass::is_unset")]
    pub qos: QosClass,
    /// Free-form additions of third parties.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::schema::free_form_object")
    )]
    pub extensions: Option<ExtensionsMap>,
}

/// Usage of one host application.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostApplicationMetricInfo {
    /// Name from the NodeSLO.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Average usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceMap>,
    /// Priority class.
    #[serde(default, skip_serializing_if = "PriorityClass::is_unset")]
    pub priority: PriorityClass,
    /// QoS class.
    #[serde(default, skip_serializing_if = "QosClass::is_unset")]
    pub qos: QosClass,
}

/// A predicted amount.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReclaimableMetric {
    /// The amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceMap>,
}
