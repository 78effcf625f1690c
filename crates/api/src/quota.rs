//! Types of the API group `quota.koordinator.sh`: quota profiles; and accessors of an ElasticQuota's labels
//! and annotations.
//!
//! Source: Koordinator `apis/quota/v1alpha1/elastic_quota_profile_types.go`,
//! `apis/extension/elastic_quota.go`.

use crate::extension::{self, AnnotationError};
use crate::quantity::ResourceList;
use crate::scheduling::ElasticQuota;
use crate::{annotations, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Quota at the root of the default tree.
pub const ROOT_QUOTA: &str = "koordinator-root-quota";
/// Quota of system pods.
pub const SYSTEM_QUOTA: &str = "koordinator-system-quota";
/// Quota of pods that are assigned to no other one.
pub const DEFAULT_QUOTA: &str = "koordinator-default-quota";

/// Quota that is sized by a set of nodes. Has no status subresource.
#[derive(CustomResource, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(not(feature = "schema"), kube(schema = "disabled"))]
#[kube(
    crates(kube_core = "::kube_core"),
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
    /// Share of the nodes' resources, as a decimal number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_ratio: Option<String>,
    /// Labels of the nodes.
    pub node_selector: LabelSelector,
}

/// Empty: the kind has no status yet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ElasticQuotaProfileStatus {}

/// Returns true if the quota is one of the three that every cluster has: root, system and default.
#[must_use]
pub fn is_built_in(name: &str) -> bool {
    matches!(name, ROOT_QUOTA | SYSTEM_QUOTA | DEFAULT_QUOTA)
}

/// Returns a label or annotation; empty if it is missing.
fn text<'a>(map: Option<&'a BTreeMap<String, String>>, key: &str) -> &'a str {
    map.and_then(|all| all.get(key)).map_or("", String::as_str)
}

/// Accessors of labels and annotations.
impl ElasticQuota {
    /// Returns the value of a label; empty if it is missing.
    #[must_use]
    pub fn label(&self, key: &str) -> &str {
        text(self.metadata.labels.as_ref(), key)
    }

    /// Returns the value of an annotation; empty if it is missing.
    #[must_use]
    pub fn annotation(&self, key: &str) -> &str {
        text(self.metadata.annotations.as_ref(), key)
    }

    /// Returns the name of the parent quota: that of the label, otherwise the root quota. Empty for the root
    /// quota itself.
    #[must_use]
    pub fn parent(&self) -> &str {
        match self.label(labels::QUOTA_PARENT) {
            "" if self.metadata.name.as_deref() != Some(ROOT_QUOTA) => ROOT_QUOTA,
            parent => parent,
        }
    }

    /// Returns true if the quota has children and admits no pods.
    #[must_use]
    pub fn is_parent(&self) -> bool {
        self.label(labels::QUOTA_IS_PARENT) == "true"
    }

    /// Returns true if the quota is the root of its own tree.
    #[must_use]
    pub fn is_tree_root(&self) -> bool {
        self.label(labels::QUOTA_IS_ROOT) == "true"
    }

    /// Returns true if other quotas may use the part of its minimum that it does not request.
    #[must_use]
    pub fn is_lendable(&self) -> bool {
        self.label(labels::QUOTA_ALLOW_LENT_RESOURCE) != "false"
    }

    /// Returns true if its minimum may violate the sums of the tree.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.label(labels::QUOTA_ALLOW_FORCE_UPDATE) == "true"
    }

    /// Returns the namespaces whose pods belong to the quota unless they name one.
    ///
    /// # Errors
    /// The annotation is not a JSON list of names; the error shows it.
    pub fn namespaces(&self) -> Result<Vec<String>, AnnotationError> {
        self.list(annotations::QUOTA_NAMESPACES)
    }

    /// Parses an annotation that is a JSON list of texts; empty if it is missing.
    ///
    /// # Errors
    /// The annotation is not such a list; the error shows it.
    pub fn list(&self, key: &str) -> Result<Vec<String>, AnnotationError> {
        let read: Option<Option<_>> = extension::read(self.metadata.annotations.as_ref(), key)?;
        Ok(read.flatten().unwrap_or_default())
    }

    /// Parses an annotation that is a resource list; empty if it is missing.
    ///
    /// # Errors
    /// The annotation is not a resource list; the error shows it.
    pub fn amounts(&self, key: &str) -> Result<ResourceList, AnnotationError> {
        let read: Option<Option<_>> = extension::read(self.metadata.annotations.as_ref(), key)?;
        Ok(read.flatten().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn quota(metadata: serde_json::Value) -> ElasticQuota {
        serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
    }

    #[test]
    fn quota_without_labels_is_lending_leaf() {
        let plain = quota(json!({"name": "a"}));
        assert_eq!(plain.parent(), ROOT_QUOTA);
        assert!(!plain.is_parent() && !plain.is_tree_root() && !plain.is_forced());
        assert!(plain.is_lendable());
        assert_eq!(plain.namespaces(), Ok(Vec::new()));
        assert_eq!(quota(json!({"name": ROOT_QUOTA})).parent(), "");
    }

    #[test]
    fn malformed_annotations_are_shown() {
        let bad = quota(json!({"name": "a", "annotations": {
            annotations::QUOTA_NAMESPACES: "team-a",
            annotations::QUOTA_ADMISSION: "{\"cpu\":\"many\"}",
        }}));
        let error = bad.namespaces().unwrap_err().to_string();
        assert!(
            error.contains("/namespaces") && error.contains("team-a"),
            "{error}"
        );
        let error = bad
            .amounts(annotations::QUOTA_ADMISSION)
            .unwrap_err()
            .to_string();
        assert!(error.contains("cpu") && error.contains("many"), "{error}");
    }
}
