//! Origins of the settings in effect on a node.

use super::node::{Strings, ratio_percent};
use super::{ColocationCfg, ColocationStrategy, Section, colocation_strategy_for_node, keys};
use crate::{annotations, labels, lenient};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Origin of a setting in effect on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default: the setting is not set.
    Default,
    /// Cluster strategy of a ConfigMap key.
    Cluster(&'static str),
    /// Node override of a ConfigMap key.
    Node {
        /// The key.
        key: &'static str,
        /// Name of the override, or its index such as `#0` if it has no name.
        name: String,
    },
    /// An annotation of the node.
    Annotation(&'static str),
    /// A label of the node.
    Label(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Cluster(key) => f.write_str(key),
            Self::Node { key, name } => write!(f, "{key}, nodes {name:?}"),
            Self::Annotation(key) => write!(f, "annotation {key}"),
            Self::Label(key) => write!(f, "label {key}"),
        }
    }
}

/// Labels that set a percentage, each with the JSON name of the field that it sets.
const RATIOS: [(&str, &str); 4] = [
    (labels::NODE_CPU_RECLAIM_RATIO, "cpuReclaimThresholdPercent"),
    (
        labels::NODE_MEMORY_RECLAIM_RATIO,
        "memoryReclaimThresholdPercent",
    ),
    (
        labels::NODE_MID_STATIC_CPU_RESERVED_RATIO,
        "midStaticCPUReservedPercent",
    ),
    (
        labels::NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
        "midStaticMemoryReservedPercent",
    ),
];

impl<T> Section<T> {
    /// Returns the part of the section `key` that applies to the node `node` with `node_labels`.
    #[must_use]
    pub fn origin(&self, key: &'static str, node: &str, node_labels: &Strings) -> Origin {
        match self.place_for_node(node, node_labels) {
            None => Origin::Cluster(key),
            Some(place) => Origin::Node {
                key,
                name: self.name(place),
            },
        }
    }

    fn name(&self, place: usize) -> String {
        let name = self.nodes.get(place).map(|node| node.name.as_str());
        name.filter(|name| !name.is_empty())
            .map_or_else(|| format!("#{place}"), str::to_owned)
    }
}

/// Returns the origin of each set field of a node's colocation strategy, by JSON field name: the last layer
/// that sets the value in effect. `text` is the ConfigMap value that `section` was parsed from. Unset fields
/// are not listed.
#[must_use]
pub fn colocation_origins(
    section: &ColocationCfg,
    text: &str,
    node: &str,
    node_labels: &Strings,
    node_annotations: &Strings,
) -> BTreeMap<String, Origin> {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let mut layers = vec![(Origin::Cluster(keys::COLOCATION), settings_of(&document))];
    if let Some(place) = section.place_for_node(node, node_labels) {
        let item = lenient::member(&document, "nodeConfigs").and_then(|list| list.get(place));
        let origin = section.origin(keys::COLOCATION, node, node_labels);
        layers.push((origin, settings_of(item.unwrap_or(&Value::Null))));
    }
    let key = annotations::NODE_COLOCATION_STRATEGY;
    let annotation = node_annotations.get(key);
    let annotation = annotation.and_then(|text| serde_json::from_str(text).ok());
    layers.push((
        Origin::Annotation(key),
        settings_of(&annotation.unwrap_or_default()),
    ));

    for (key, field) in RATIOS {
        let percent = node_labels.get(key).and_then(|text| ratio_percent(text));
        if let Some(percent) = percent {
            layers.push((Origin::Label(key), json!({ field: percent })));
        }
    }
    let (strategy, _) = colocation_strategy_for_node(section, node, node_labels, node_annotations);
    let in_force = serde_json::to_value(strategy).unwrap_or_default();
    let mut origins = BTreeMap::new();
    for (field, value) in in_force.as_object().into_iter().flatten() {
        let mut layers = layers.iter().rev();
        let layer = layers.find(|(_, settings)| settings.get(field) == Some(value));
        let origin = layer.map_or(Origin::Default, |(origin, _)| origin.clone());
        origins.insert(field.clone(), origin);
    }
    origins
}

/// Returns the settings of a document under the canonical field names.
fn settings_of(document: &Value) -> Value {
    let strategy = lenient::from_value::<ColocationStrategy>(document);
    let strategy = strategy.ok().map(serde_json::to_value);
    strategy.and_then(Result::ok).unwrap_or_default()
}
