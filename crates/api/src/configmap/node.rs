//! Overrides in the annotations and labels of a node.

use super::text_rules;
use super::{ColocationCfg, ColocationStrategy, SystemCfg, SystemStrategy};
use crate::quantity::Quantity;
use crate::{annotations, labels, lenient, merge};
use std::collections::BTreeMap;

/// Warning about a label or annotation of a node that was ignored because its value is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} has value {value:?}, which is ignored: {reason}")]
pub struct NodeOverrideWarning {
    /// The label or annotation key.
    pub key: &'static str,
    /// Value of the label or annotation.
    pub value: String,
    /// Reason why the value is invalid.
    pub reason: String,
}

pub(super) type Strings = BTreeMap<String, String>;

/// Returns the colocation strategy of the node with the name `node`: that of the section, overridden by the annotation
/// `node.koordinator.sh/colocation-strategy`, overridden by the ratio labels. Invalid values are ignored and
/// returned as warnings.
///
/// A ratio becomes a percentage by `trunc(ratio × 100)` in binary floating point, so `0.29` gives 28. These
/// are the numbers of upstream's manager, which matters while both run in one cluster.
#[must_use]
pub fn colocation_strategy_for_node(
    section: &ColocationCfg,
    node: &str,
    node_labels: &Strings,
    node_annotations: &Strings,
) -> (ColocationStrategy, Vec<NodeOverrideWarning>) {
    let mut strategy = section.for_node(node, node_labels).clone();
    let mut warnings = Vec::new();
    let mut ignored = |key: &'static str, value: &str, reason: String| {
        warnings.push(NodeOverrideWarning {
            key,
            value: value.to_owned(),
            reason,
        });
    };
    if let Some(text) = node_annotations.get(annotations::NODE_COLOCATION_STRATEGY) {
        let merged = || -> Result<_, String> {
            let mut document = lenient::from_json(text).map_err(|error| error.to_string())?;
            let left_out = text_rules::remove_invalid(&mut document, text_rules::COLOCATION);
            let document = lenient::from_value(&document).map_err(|error| error.to_string())?;
            let merged = merge::merged(&strategy, &document).map_err(|error| error.to_string())?;
            Ok((merged, left_out))
        };
        match merged() {
            Ok((merged, left_out)) => {
                strategy = merged;
                for error in left_out {
                    ignored(
                        annotations::NODE_COLOCATION_STRATEGY,
                        error.value.trim_matches('"'),
                        format!("field {}: {}", error.field, error.reason),
                    );
                }
            }
            Err(reason) => ignored(annotations::NODE_COLOCATION_STRATEGY, text, reason),
        }
    }
    for (key, target) in [
        (
            labels::NODE_CPU_RECLAIM_RATIO,
            &mut strategy.cpu_reclaim_threshold_percent,
        ),
        (
            labels::NODE_MEMORY_RECLAIM_RATIO,
            &mut strategy.memory_reclaim_threshold_percent,
        ),
        (
            labels::NODE_MID_STATIC_CPU_RESERVED_RATIO,
            &mut strategy.mid_static_cpu_reserved_percent,
        ),
        (
            labels::NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
            &mut strategy.mid_static_memory_reserved_percent,
        ),
    ] {
        if let Some(text) = node_labels.get(key) {
            match ratio_percent(text) {
                Some(percent) => *target = Some(percent),
                None => ignored(key, text, "want a number of at least 0".to_owned()),
            }
        }
    }
    (strategy, warnings)
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "truncation is the rule; casts saturate"
)]
pub(super) fn ratio_percent(text: &str) -> Option<i64> {
    let ratio: f64 = text.parse().ok()?;
    (ratio.is_finite() && ratio >= 0.0).then_some((ratio * 100.0) as i64)
}

/// Returns the system strategy of the node with the name `node`: that of the section, with the bandwidth of the annotation
/// `node.koordinator.sh/network-bandwidth`. An invalid annotation is ignored and returned as a warning.
#[must_use]
pub fn system_strategy_for_node(
    section: &SystemCfg,
    node: &str,
    node_labels: &Strings,
    node_annotations: &Strings,
) -> (SystemStrategy, Option<NodeOverrideWarning>) {
    let mut strategy = section.for_node(node, node_labels).clone();
    let Some(text) = node_annotations.get(annotations::NODE_BANDWIDTH) else {
        return (strategy, None);
    };
    let parsed = text.parse::<Quantity>();
    let reason = match parsed {
        Ok(bandwidth) if bandwidth.signum() >= 0 => {
            strategy.total_network_bandwidth = Some(bandwidth);
            return (strategy, None);
        }
        Ok(_) => "must be at least 0".to_owned(),
        Err(error) => error.to_string(),
    };
    let warning = NodeOverrideWarning {
        key: annotations::NODE_BANDWIDTH,
        value: text.clone(),
        reason,
    };
    (strategy, Some(warning))
}
