//! `CustomPriorityArgs`.

use crate::rules::{Namespaces, PodSelection, PodSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Mode in which pods leave a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum Mode {
    /// Evicts every pod that fits elsewhere.
    #[default]
    #[serde(alias = "")]
    BestEffort,
    /// Evicts the pods of a node if all of them fit elsewhere.
    DrainNode,
}

/// A class of nodes.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ResourcePriority {
    /// Name of the class.
    pub name: String,
    /// Selector of its nodes, excluding those of earlier classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Unsupported field that has no effect in upstream either; must be empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub keep_threshold: BTreeMap<String, f64>,
    /// Unsupported field, like `keepThreshold`; must be empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reject_threshold: BTreeMap<String, f64>,
}

/// Arguments, with upstream's names and defaults.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CustomPriorityArgs {
    /// True if the plugin does nothing.
    pub paused: bool,
    /// True if moves are only shown.
    pub dry_run: bool,
    /// Namespaces whose pods may be evicted; all without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictable_namespaces: Option<Namespaces>,
    /// Selector of the nodes to consider; all nodes without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Selectors of the pods that may be evicted, of which one must match; all pods without one.
    pub pod_selectors: Vec<PodSelector>,
    /// True if a pod stays that fits none of the cheaper nodes.
    pub node_fit: bool,
    /// Classes of nodes, most expensive first.
    pub eviction_order: Vec<ResourcePriority>,
    /// Mode in which pods leave a node.
    pub mode: Mode,
    /// True if a node is made unschedulable before it is drained. It stays unschedulable.
    pub auto_cordon: bool,
}

impl Default for CustomPriorityArgs {
    fn default() -> Self {
        Self {
            paused: false,
            dry_run: false,
            evictable_namespaces: None,
            node_selector: None,
            pod_selectors: Vec::new(),
            node_fit: true,
            eviction_order: Vec::new(),
            mode: Mode::BestEffort,
            auto_cordon: false,
        }
    }
}

pub(super) fn selection(args: &CustomPriorityArgs) -> PodSelection {
    PodSelection {
        namespaces: args.evictable_namespaces.clone(),
        selectors: args.pod_selectors.clone(),
    }
}

/// Validates the arguments.
///
/// # Errors
/// Returns the first field with an invalid value.
pub fn check(args: &CustomPriorityArgs) -> Result<(), String> {
    selection(args).check()?;
    let classes = args.eviction_order.len();
    if classes < 2 {
        return Err(format!(
            "evictionOrder: at least 2 classes of nodes are needed, there are {classes}"
        ));
    }
    let mut distinct = BTreeSet::new();
    for (at, class) in args.eviction_order.iter().enumerate() {
        let path = format!("evictionOrder[{at}]");
        if class.name.is_empty() {
            return Err(format!("{path}.name: is missing"));
        }
        if !distinct.insert(&class.name) {
            return Err(format!("{path}.name: {:?} is there twice", class.name));
        }
        if class.node_selector.is_none() {
            return Err(format!("{path}.nodeSelector: is missing"));
        }
        for (field, threshold) in [
            ("keepThreshold", &class.keep_threshold),
            ("rejectThreshold", &class.reject_threshold),
        ] {
            if let Some((name, value)) = threshold.first_key_value() {
                return Err(format!(
                    "{path}.{field}[{name}]: {value} would have no effect, as in Koordinator"
                ));
            }
        }
    }
    Ok(())
}
