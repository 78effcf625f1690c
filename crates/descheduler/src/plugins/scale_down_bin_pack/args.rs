//! `ScaleDownBinPackArgs`.

use crate::rules::{Namespaces, PodSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Use of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum ExecutionMode {
    /// Ranks become deletion costs: controllers that scale down delete the lowest first.
    #[default]
    #[serde(alias = "")]
    CalculateOnly,
    /// The first `maxPodsToEvict` pods are evicted.
    EvictDirectly,
}

/// Arguments, with upstream's names and defaults.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    remote = "Self"
)]
pub struct ScaleDownBinPackArgs {
    /// True if the plugin does nothing.
    pub paused: bool,
    /// Use of the ranks.
    pub strategy: ExecutionMode,
    /// Maximum number of pods evicted in a cycle; required to evict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pods_to_evict: Option<i32>,
    /// Selector of the nodes to consider; all nodes without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Selectors of the pods to rank, of which one must match; all pods without one.
    pub pod_selectors: Vec<PodSelector>,
    /// Namespaces whose pods are ranked; all without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictable_namespaces: Option<Namespaces>,
    /// Resources that get weight 1 unless `resourceWeights` sets another.
    pub resources: Vec<String>,
    /// Weights of resources; a resource that is not listed is ignored.
    pub resource_weights: BTreeMap<String, f64>,
}

impl<'de> Deserialize<'de> for ScaleDownBinPackArgs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut args = Self::deserialize(from)?;
        if args.resources.is_empty() {
            args.resources = vec!["cpu".to_owned(), "memory".to_owned()];
        }
        for name in &args.resources {
            args.resource_weights.entry(name.clone()).or_insert(1.0);
        }
        Ok(args)
    }
}

impl Serialize for ScaleDownBinPackArgs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}
