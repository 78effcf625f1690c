//! Which pods a plugin is about, as far as its arguments say so.

use super::Why;
use crate::state::PodInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Namespaces by name: only those of `include`, or all but those of `exclude`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Namespaces {
    /// Only these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// None of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// One entry of `podSelectors`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodSelector {
    /// What people call it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// By labels; every pod without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// What `evictableNamespaces` and `podSelectors` of a plugin leave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// All without them.
    pub namespaces: Option<Namespaces>,
    /// Any of these, passing over entries without a selector as upstream does; all pods if nothing is left.
    pub selectors: Vec<PodSelector>,
}

impl Namespaces {
    /// Whether they can be meant; `field` is their name.
    ///
    /// # Errors
    /// Both lists are given.
    pub fn check(&self, field: &str) -> Result<(), String> {
        if self.include.is_empty() || self.exclude.is_empty() {
            return Ok(());
        }
        let (include, exclude) = (self.include.join(", "), self.exclude.join(", "));
        Err(format!(
            "{field}: only one of include ({include}) and exclude ({exclude}) can be given"
        ))
    }

    /// Whether `namespace` is one of them.
    #[must_use]
    pub fn allow(&self, namespace: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|listed| listed == namespace);
        (self.include.is_empty() || listed(&self.include)) && !listed(&self.exclude)
    }
}

impl PodSelector {
    /// Whether `pod` is selected; a selector that cannot be evaluated selects nothing.
    #[must_use]
    pub fn selects(&self, pod: &PodInfo) -> bool {
        self.selector
            .as_ref()
            .is_none_or(|labels| selector::matches(labels, &pod.shape.labels).unwrap_or(false))
    }
}

impl Choice {
    /// Whether it can be meant.
    ///
    /// # Errors
    /// Both lists of namespaces are given, or a selector cannot be evaluated.
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

    /// Whether `pod` is chosen.
    ///
    /// # Errors
    /// It is not, and why.
    pub fn admits(&self, pod: &PodInfo) -> Result<(), Why> {
        if let Some(namespaces) = &self.namespaces
            && !namespaces.allow(&pod.namespace)
        {
            let said = format!("evictableNamespaces leave {} out", pod.namespace);
            return Err(Why::new("Namespaces", said));
        }
        let with = || {
            let entries = self.selectors.iter();
            entries.filter(|entry| entry.selector.is_some())
        };
        if with().next().is_none() || with().any(|entry| entry.selects(pod)) {
            return Ok(());
        }
        Err(Why::new("PodSelectors", "none of podSelectors selects it"))
    }
}
