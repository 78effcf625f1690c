//! The table of noderesource plugins, each a pure function of the same input.

mod amplification;
mod batch;
mod devices;
mod mid;
mod normalization;

use super::plan::Input;
use koord_api::quantity::Quantity;
use koord_model::reclaim::NodeView;
use std::collections::BTreeMap;

pub(super) use batch::ZoneAmounts;
pub(crate) use batch::{formula_zones, normalized, third_parties};

/// Name of a plugin, and why it failed if it did.
pub(crate) type PluginResult = (&'static str, Result<(), String>);

/// A plugin that computes some of a node's resources or annotations.
pub(crate) struct Plugin {
    /// The name in `--noderesource-plugins`.
    pub(crate) name: &'static str,
    /// Returns true if the plugin also runs on nodes where co-location is off.
    runs_without_colocation: fn(&Input<'_>) -> bool,
    /// Adds its changes to the draft. After an error the plugin's fields on the node stay unchanged.
    run: fn(&Input<'_>, Option<&NodeView>, &mut Draft) -> Result<(), String>,
}

/// All plugins in execution order: later ones use the ratio that earlier ones computed.
pub(crate) const TABLE: [Plugin; 6] = [
    normalization::PLUGIN,
    amplification::PLUGIN,
    mid::PLUGIN,
    batch::PLUGIN,
    devices::GPU_PLUGIN,
    devices::RDMA_PLUGIN,
];

/// The names, in upstream's order.
pub(crate) const NAMES: [&str; 6] = [
    mid::PLUGIN.name,
    batch::PLUGIN.name,
    normalization::PLUGIN.name,
    amplification::PLUGIN.name,
    devices::GPU_PLUGIN.name,
    devices::RDMA_PLUGIN.name,
];

/// The changes of a node that the plugins computed.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Amounts to publish as capacity and allocatable; `None` removes a resource.
    pub(crate) resources: BTreeMap<&'static str, Option<Quantity>>,
    /// Changes of annotations; `None` removes an annotation.
    pub(crate) annotations: BTreeMap<&'static str, Option<String>>,
    /// Changes of annotations that are written together with the status; `None` removes an annotation.
    pub(super) with_status: BTreeMap<&'static str, Option<String>>,
    /// Changes of labels.
    pub(super) labels: BTreeMap<&'static str, String>,
    /// CPU normalization ratio of this node; `None` if normalization did not run.
    pub(crate) cpu_ratio: Option<f64>,
    /// Batch resources by NUMA zone.
    pub(super) zones: Vec<ZoneAmounts>,
    /// The computed amount of each resource, before thresholds and third parties.
    pub(super) computed: BTreeMap<&'static str, Quantity>,
    /// Messages that show the arithmetic, for the log.
    pub(super) messages: Vec<String>,
}

/// Runs the enabled plugins and returns their results. `view` is `None` if nothing is reclaimed: co-location
/// is off or the report cannot be used.
pub(super) fn run(
    input: &Input<'_>,
    view: Option<&NodeView>,
    draft: &mut Draft,
) -> Vec<PluginResult> {
    let mut results = Vec::new();
    for plugin in TABLE {
        let enabled = input.plugins.enabled(plugin.name);
        if enabled && (input.strategy.is_some() || (plugin.runs_without_colocation)(input)) {
            results.push((plugin.name, (plugin.run)(input, view, draft)));
        }
    }
    results
}

/// Rounds up to whole units: extended resources must not be fractional.
fn to_whole_units(quantity: Quantity) -> Quantity {
    Quantity::from_value(quantity.value()).with_format(quantity.format())
}
