//! Selection of pods by the arguments of a plugin.

use super::SkipReason;
use crate::state::PodInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Namespaces by name: only those in `include`, or all except those in `exclude`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Namespaces {
    /// Selected namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// All except these namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// A pod selector: one entry of `podSelectors`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodSelector {
    /// Name for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Label selector; every pod matches without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Pod selection by `evictableNamespaces` and `podSelectors` of a plugin.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSelection {
    /// Namespaces; all without a value.
    pub namespaces: Option<Namespaces>,
    /// Alternatives, of which one must match. Entries without a selector are skipped, like in upstream; all
    /// pods match if none remains.
    pub selectors: Vec<PodSelector>,
}

impl Namespaces {
    /// Validates the lists; `field` is the name to report.
    ///
    /// # Errors
    /// Returns an error if both lists are set.
    pub fn check(&self, field: &str) -> Result<(), String> {
        if self.include.is_empty() || self.exclude.is_empty() {
            return Ok(());
        }
        let (include, exclude) = (self.include.join(", "), self.exclude.join(", "));
        Err(format!(
            "{field}: only one of include ({include}) and exclude ({exclude}) can be given"
        ))
    }

    /// Returns true if `namespace` is selected.
    #[must_use]
    pub fn allow(&self, namespace: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|listed| listed == namespace);
        (self.include.is_empty() || listed(&self.include)) && !listed(&self.exclude)
    }
}

impl PodSelector {
    /// Returns true if `pod` is selected; an invalid selector selects nothing.
    #[must_use]
    pub fn selects(&self, pod: &PodInfo) -> bool {
        self.selector
            .as_ref()
            .is_none_or(|labels| selector::matches(labels, &pod.shape.labels).unwrap_or(false))
    }
}

impl PodSelection {
    /// Validates namespaces and selectors.
    ///
    /// # Errors
    /// Returns an error if both namespace lists are set or a selector is invalid.
    pub fn check(&self) -> Result<(), String> {
        if let Some(namespaces) = &self.namespaces {
            namespaces.check("evictableNamespaces")?;
        }
        for (at, entry) in self.selectors.iter().enumerate() {
            if let Some(labels) = &entry.selector
                && let Err(error) = selector::matches(labels, &BTreeMap::new())
            {
                return Err(format!("podSelectors[{at}].selector: {error}"));
            }
        }
        Ok(())
    }

    /// Checks whether `pod` is selected.
    ///
    /// # Errors
    /// Returns the argument that excludes the pod.
    pub fn admits(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        if let Some(namespaces) = &self.namespaces
            && !namespaces.allow(&pod.namespace)
        {
            let detail = format!("evictableNamespaces leave {} out", pod.namespace);
            return Err(SkipReason::new("Namespaces", detail));
        }
        let with = || {
            let entries = self.selectors.iter();
            entries.filter(|entry| entry.selector.is_some())
        };
        if with().next().is_none() || with().any(|entry| entry.selects(pod)) {
            return Ok(());
        }
        Err(SkipReason::new(
            "PodSelectors",
            "none of podSelectors selects it",
        ))
    }
}
