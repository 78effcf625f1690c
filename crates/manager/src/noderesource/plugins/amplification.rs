//! Resource amplification: an annotation with the factors by which a node's allocatable is increased.

use super::{Draft, Plugin};
use crate::noderesource::plan::Input;
use koord_api::extension::{self, AmplificationRatios, MAX_AMPLIFICATION};
use koord_api::{annotations, resources};
use koord_model::reclaim::NodeView;
use std::collections::BTreeMap;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "ResourceAmplification",
    runs_without_colocation: |_| true,
    run,
};

fn run(input: &Input<'_>, _: Option<&NodeView>, draft: &mut Draft) -> Result<(), String> {
    let desired = match input.strategy {
        Some(_) => ratios(input, draft.cpu_ratio.or_else(|| published(input)))?,
        None => BTreeMap::new(),
    };
    let key = annotations::NODE_RESOURCE_AMPLIFICATION_RATIO;
    let present = input.node.metadata.annotations.as_ref();
    let old = present.and_then(|all| all.get(key));
    let text = (!desired.is_empty()).then(|| AmplificationRatios(desired).to_annotation());
    if old != text.as_ref() {
        draft.annotations.insert(key, text);
    }
    Ok(())
}

/// Returns the normalization ratio in the node's annotation, which stays in effect if none was computed now.
fn published(input: &Input<'_>) -> Option<f64> {
    let present = input.node.metadata.annotations.as_ref()?;
    let text = present.get(annotations::NODE_CPU_NORMALIZATION_RATIO)?;
    extension::parse_normalization_ratio(text).ok()
}

/// Returns the configured factors; the CPU factor is multiplied with the normalization ratio.
fn ratios(input: &Input<'_>, cpu_ratio: Option<f64>) -> Result<BTreeMap<String, f64>, String> {
    let mut ratios = if input.amplification.enable == Some(true) {
        input.amplification.resource_amplification_ratio.clone()
    } else {
        BTreeMap::new()
    };
    let configured = ratios.get(resources::CPU).copied();
    let cpu = configured.filter(|ratio| *ratio > 0.0).unwrap_or(1.0) * cpu_ratio.unwrap_or(1.0);
    if cpu > 1.0 {
        ratios.insert(resources::CPU.to_owned(), cpu);
    }
    match ratios
        .iter()
        .find(|(_, ratio)| !(1.0..=MAX_AMPLIFICATION).contains(*ratio))
    {
        None => Ok(ratios),
        Some((name, ratio)) => Err(format!(
            "the amplification ratio of {name} is {ratio:?}, expected 1 to {MAX_AMPLIFICATION}"
        )),
    }
}
