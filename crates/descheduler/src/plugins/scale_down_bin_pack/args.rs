//! `ScaleDownBinPackArgs`.

use crate::rules::{Namespaces, PodSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// What is done with the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum ExecutionMode {
    /// They become deletion costs: whoever scales a workload down takes the lowest first.
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
    /// Whether nothing is done.
    pub paused: bool,
    /// What is done.
    pub strategy: ExecutionMode,
    /// ExecutionMode many pods are evicted in a cycle; needed to evict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pods_to_evict: Option<i32>,
    /// Which nodes are looked at; all without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Which pods are ranked: those that one of these selects; all without one.
    pub pod_selectors: Vec<PodSelector>,
    /// In which namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictable_namespaces: Option<Namespaces>,
    /// Resources that have a weight of 1 unless `resourceWeights` says another.
    pub resources: Vec<String>,
    /// ExecutionMode much each resource counts; one that is not here does not.
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
