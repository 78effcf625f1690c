//! Types of the API group `quota.koordinator.sh`: quota profiles.
//!
//! Source: Koordinator `apis/quota/v1alpha1/elastic_quota_profile_types.go`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Quota at the root of the default tree.
pub const ROOT_QUOTA: &str = "koordinator-root-quota";
/// Quota of system pods.
pub const SYSTEM_QUOTA: &str = "koordinator-system-quota";
/// Quota of pods that name none.
pub const DEFAULT_QUOTA: &str = "koordinator-default-quota";

/// A quota sized by the nodes it stands for. Has no status subresource.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "quota.koordinator.sh",
    version = "v1alpha1",
    kind = "ElasticQuotaProfile",
    plural = "elasticquotaprofiles",
    shortname = "eqp",
    namespaced,
    status = "ElasticQuotaProfileStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))"
)]
#[serde(rename_all = "camelCase")]
pub struct ElasticQuotaProfileSpec {
    /// Name of the quota.
    pub quota_name: String,
    /// Labels of the quota.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quota_labels: BTreeMap<String, String>,
    /// Share of the nodes' resources, a decimal number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_ratio: Option<String>,
    /// The nodes.
    pub node_selector: LabelSelector,
}

/// Nothing is reported yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticQuotaProfileStatus {}
