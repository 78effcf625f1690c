//! Types of the API group `config.koordinator.sh`: colocation profiles.
//!
//! Source: Koordinator `apis/config/v1alpha1/cluster_colocation_profile_types.go`.

use crate::qos::QosClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Selects pods and lists the changes that the profile makes to them.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "config.koordinator.sh",
    version = "v1alpha1",
    kind = "ClusterColocationProfile",
    plural = "clustercolocationprofiles",
    status = "ClusterColocationProfileStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterColocationProfileSpec {
    /// Labels of the pods' namespaces; unset selects every namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Labels of the pods; unset selects every pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Share of the selected pods that are changed: a percentage as text or a number of percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<IntOrString>,
    /// QoS class to set.
    #[serde(default, skip_serializing_if = "QosClass::is_unset")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["LSE", "LSR", "LS", "BE", "SYSTEM"])))]
    pub qos_class: QosClass,
    /// Priority class to set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub priority_class_name: String,
    /// Sub-priority to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub koordinator_priority: Option<i32>,
    /// Scheduler to set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scheduler_name: String,
    /// Labels to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels to copy: source key to target key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub label_keys_mapping: BTreeMap<String, String>,
    /// Annotations to copy: source key to target key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotation_keys_mapping: BTreeMap<String, String>,
    /// Text to append to label values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub label_suffixes: BTreeMap<String, String>,
    /// Strategic merge patch, applied last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::any"))]
    pub patch: Option<serde_json::Value>,
}

/// Empty: the kind has no status yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterColocationProfileStatus {}
