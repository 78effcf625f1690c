//! Kernel settings by QoS class: the part `resourceQOSStrategy` of a NodeSLO.
//!
//! Source: Koordinator `apis/slo/v1alpha1/nodeslo_types.go`.

use crate::qos::QosClass;
use crate::serde_util::open_enum;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

open_enum! {
    /// Mechanism behind CPU QoS.
    CPUQOSPolicy {
        /// Group identity (`cpu.bvt_warp_ns`).
        GroupIdentity = "groupIdentity",
        /// Core scheduling.
        CoreSched = "coreSched",
    }
}

open_enum! {
    /// Mechanism behind network QoS.
    NETQOSPolicy {
        /// Linux traffic control.
        Tc = "tc",
        /// The Terway plugin.
        TerwayQos = "terway-qos",
    }
}

open_enum! {
    /// Object that a block-IO setting applies to.
    BlockType {
        /// A device.
        Device = "device",
        /// A volume group.
        VolumeGroup = "volumegroup",
        /// The volume of a pod.
        PodVolume = "podvolume",
    }
}

/// Kernel settings by QoS class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceQOSStrategy {
    /// Mechanisms in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<ResourceQOSPolicies>,
    /// Settings of LSE and LSR pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lsr_class: Option<ResourceQOS>,
    /// Settings of LS pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ls_class: Option<ResourceQOS>,
    /// Settings of BE pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub be_class: Option<ResourceQOS>,
    /// Settings of system daemons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_class: Option<ResourceQOS>,
    /// Settings of the root cgroup; only block IO is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_root: Option<ResourceQOS>,
}

impl ResourceQOSStrategy {
    /// Returns the settings of pods of `class`. LSE pods have those of LSR; [`QosClass::None`] has none.
    #[must_use]
    pub fn class_settings(&self, class: QosClass) -> Option<&ResourceQOS> {
        match class {
            QosClass::Lse | QosClass::Lsr => self.lsr_class.as_ref(),
            QosClass::Ls => self.ls_class.as_ref(),
            QosClass::Be => self.be_class.as_ref(),
            QosClass::System => self.system_class.as_ref(),
            QosClass::None => None,
        }
    }
}

/// Mechanisms behind CPU and network QoS.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceQOSPolicies {
    /// CPU mechanism.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_policy: Option<CPUQOSPolicy>,
    /// Network mechanism.
    #[serde(rename = "netQOSPolicy", skip_serializing_if = "Option::is_none")]
    pub net_qos_policy: Option<NETQOSPolicy>,
}

/// Settings of one class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceQOS {
    /// CPU scheduler.
    #[serde(rename = "cpuQOS", skip_serializing_if = "Option::is_none")]
    pub cpu_qos: Option<CPUQOSCfg>,
    /// Memory controller.
    #[serde(rename = "memoryQOS", skip_serializing_if = "Option::is_none")]
    pub memory_qos: Option<MemoryQOSCfg>,
    /// Block IO.
    #[serde(rename = "blkioQOS", skip_serializing_if = "Option::is_none")]
    pub blkio_qos: Option<BlkIOQOSCfg>,
    /// Cache and memory bandwidth.
    #[serde(rename = "resctrlQOS", skip_serializing_if = "Option::is_none")]
    pub resctrl_qos: Option<ResctrlQOSCfg>,
    /// Network bandwidth.
    #[serde(rename = "networkQOS", skip_serializing_if = "Option::is_none")]
    pub network_qos: Option<NetworkQOSCfg>,
}

/// CPU scheduler settings of one class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CPUQOSCfg {
    /// True if the settings are applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Group identity, from −1 (lowest priority) to 2 (highest).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_identity: Option<i64>,
    /// `cpu.idle`: 0 or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sched_idle: Option<i64>,
    /// True if BE tasks are kept off the sibling hyper-threads of the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_expeller: Option<bool>,
}

/// Memory settings of one class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MemoryQOSCfg {
    /// True if the settings are applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// `memory.min` as percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub min_limit_percent: Option<i64>,
    /// `memory.low` as percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub low_limit_percent: Option<i64>,
    /// `memory.high` as percent of the limit; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub throttling_percent: Option<i64>,
    /// Usage at which background reclaim starts, percent of the limit; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub wmark_ratio: Option<i64>,
    /// Amount that background reclaim frees, per mille of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub wmark_scale_permill: Option<i64>,
    /// Adjustment of the global minimum watermark, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = -25, max = 50)))]
    pub wmark_min_adj: Option<i64>,
    /// True if page cache is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_enable: Option<bool>,
    /// Page-cache limit in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_limit_size: Option<i64>,
    /// Page-cache limit as percent of the memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub page_cache_limit_percent: Option<i64>,
    /// True if the allocating task reclaims page cache itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_reclaim_sync: Option<bool>,
    /// Switch of the OOM priority: 0 or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_enable: Option<i64>,
    /// OOM priority, 0 to 12; pods with a lower one are killed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// `memory.oom.group`: 0 or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kill_group: Option<i64>,
}

/// Block-IO settings of one class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlkIOQOSCfg {
    /// True if the settings are applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Settings by block device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<BlockCfg>,
}

/// Settings for one block device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlockCfg {
    /// Device, volume group or volume name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Object that the name refers to.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<BlockType>,
    /// Limits and weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_cfg: Option<IOCfg>,
}

/// Block-IO limits, weights and the cost model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IOCfg {
    /// Reads per second; 0 is no limit.
    #[serde(rename = "readIOPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub read_iops: Option<i64>,
    /// Writes per second; 0 is no limit.
    #[serde(rename = "writeIOPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub write_iops: Option<i64>,
    /// Bytes read per second; 0 is no limit.
    #[serde(rename = "readBPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub read_bps: Option<i64>,
    /// Bytes written per second; 0 is no limit.
    #[serde(rename = "writeBPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub write_bps: Option<i64>,
    /// Weight, 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    pub io_weight_percent: Option<i64>,
    /// Target of the read latency, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency: Option<i64>,
    /// Target of the write latency, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<i64>,
    /// Percentile that the read target applies to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub read_latency_percent: Option<i64>,
    /// Percentile that the write target applies to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub write_latency_percent: Option<i64>,
    /// True if the model below replaces that of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_user_model: Option<bool>,
    /// Model: bytes read per second.
    #[serde(rename = "modelReadBPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub model_read_bps: Option<i64>,
    /// Model: bytes written per second.
    #[serde(rename = "modelWriteBPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub model_write_bps: Option<i64>,
    /// Model: sequential reads per second.
    #[serde(rename = "modelReadSeqIOPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub model_read_seq_iops: Option<i64>,
    /// Model: sequential writes per second.
    #[serde(rename = "modelWriteSeqIOPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub model_write_seq_iops: Option<i64>,
    /// Model: random reads per second.
    #[serde(rename = "modelReadRandIOPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub model_read_rand_iops: Option<i64>,
    /// Model: random writes per second.
    #[serde(rename = "modelWriteRandIOPS", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub model_write_rand_iops: Option<i64>,
}

/// Last-level cache and memory bandwidth of one class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResctrlQOSCfg {
    /// True if the settings are applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Start of the cache range, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub cat_range_start_percent: Option<i64>,
    /// End of the cache range, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub cat_range_end_percent: Option<i64>,
    /// Memory bandwidth, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub mba_percent: Option<i64>,
}

/// Network bandwidth of one class: percent of the node (number) or bits per second (quantity text).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkQOSCfg {
    /// True if the settings are applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Guaranteed incoming bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = 0)))]
    pub ingress_request: Option<IntOrString>,
    /// Most incoming bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = 100)))]
    pub ingress_limit: Option<IntOrString>,
    /// Guaranteed outgoing bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = 0)))]
    pub egress_request: Option<IntOrString>,
    /// Most outgoing bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = 100)))]
    pub egress_limit: Option<IntOrString>,
}
