//! Mid resources.

use super::{Draft, Plugin, to_whole_units};
use crate::noderesource::plan::Input;
use koord_api::resources::{MID_CPU, MID_MEMORY};
use koord_model::reclaim::{self, NodeView};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "MidResource",
    runs_without_colocation: |_| true,
    run,
};

/// Publishes the mid resources that can be reclaimed; removes them if nothing is reclaimed (`view` is `None`).
fn run(input: &Input<'_>, view: Option<&NodeView>, draft: &mut Draft) -> Result<(), String> {
    let (Some(strategy), Some(view)) = (input.strategy, view) else {
        draft
            .resources
            .extend([(MID_CPU, None), (MID_MEMORY, None)]);
        return Ok(());
    };
    let amount = reclaim::mid(view, &strategy.mid);
    draft.resources.insert(MID_CPU, Some(amount.milli_cpu()));
    draft
        .resources
        .insert(MID_MEMORY, Some(to_whole_units(amount.memory)));
    draft.computed.insert(MID_CPU, amount.cpu);
    draft.computed.insert(MID_MEMORY, amount.memory);
    draft
        .messages
        .extend([amount.cpu_message, amount.memory_message]);
    Ok(())
}
