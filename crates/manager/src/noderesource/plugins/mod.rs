//! What is computed for a node: a table of plugins, each a pure function of the same input.

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
pub(crate) use batch::{normalized, numbered, third_parties};

/// How a plugin results: its name, and why it could not do its work.
pub(crate) type PluginResult = (&'static str, Result<(), String>);

/// A plugin.
pub(crate) struct Plugin {
    /// As `--noderesource-plugins` names it.
    pub(crate) name: &'static str,
    /// Whether it runs on nodes where co-location is off.
    runs_without_colocation: fn(&Input<'_>) -> bool,
    /// Adds what it wants to the draft. An error leaves what it owns as it is.
    run: fn(&Input<'_>, Option<&NodeView>, &mut Draft) -> Result<(), String>,
}

/// All plugins, in the order they run: later ones build on the ratio that earlier ones found.
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

/// What the plugins want of a node.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Amounts to publish as capacity and allocatable; `None` for what is to be taken away.
    pub(crate) resources: BTreeMap<&'static str, Option<Quantity>>,
    /// Changes of annotations, `None` to remove one.
    pub(crate) annotations: BTreeMap<&'static str, Option<String>>,
    /// Changes of annotations that wait until the status is written.
    pub(super) with_status: BTreeMap<&'static str, Option<String>>,
    /// Changes of labels.
    pub(super) labels: BTreeMap<&'static str, String>,
    /// How much a core of this node counts for; 1 unless normalized.
    pub(crate) cpu_ratio: Option<f64>,
    /// Batch resources by NUMA node, by the zones' names.
    pub(super) zones: Vec<ZoneAmounts>,
    /// The computed amount of each resource, before thresholds and third parties.
    pub(super) computed: BTreeMap<&'static str, Quantity>,
    /// The arithmetic, for the operator.
    pub(super) messages: Vec<String>,
}

/// Runs the enabled plugins. `view` is `None` where there is nothing to reclaim from: co-location is
/// off or the report cannot be used. Returns how each results.
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

/// Whole units: extended resources must not be fractional.
fn to_whole_units(quantity: Quantity) -> Quantity {
    Quantity::from_value(quantity.value()).with_format(quantity.format())
}
