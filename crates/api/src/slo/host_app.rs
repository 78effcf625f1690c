//! Host applications: services that run on a node outside Kubernetes but take part in co-location.
//!
//! Source: Koordinator `apis/slo/v1alpha1/host_application.go`.

use crate::priority::PriorityClass;
use crate::qos::QosClass;
use crate::serde_util::open_enum;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

open_enum! {
    /// Base directory of a host application's cgroup path.
    CgroupBase {
        /// The root of the cgroup tree.
        Root = "CgroupRoot",
        /// The kubepods directory.
        Kubepods = "Kubepods",
        /// The burstable directory under kubepods.
        KubepodsBurstable = "KubepodsBurstable",
        /// The besteffort directory under kubepods.
        KubepodsBesteffort = "KubepodsBesteffort",
    }
}

/// Description of one host application.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostApplicationSpec {
    /// Name used in reports.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Priority class.
    #[serde(default, skip_serializing_if = "PriorityClass::is_unset")]
    pub priority: PriorityClass,
    /// QoS class.
    #[serde(default, skip_serializing_if = "QosClass::is_unset")]
    pub qos: QosClass,
    /// Cgroup of the application; unset means `host-latency-sensitive/<name>` and the like, depending on the
    /// QoS class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<CgroupPath>,
    /// Settings of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<HostApplicationStrategy>,
}

/// Path of a cgroup directory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CgroupPath {
    /// Base directory; unset means the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<CgroupBase>,
    /// Directory below the base.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parent_dir: String,
    /// Directory below the parent directory.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub relative_path: String,
}

/// Empty: there are no settings yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostApplicationStrategy {}
