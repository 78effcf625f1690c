//! Resource amplification: an annotation with the factors by which the node shows more than it has.

use super::{Draft, Plugin};
use crate::noderesource::plan::Input;
use koord_api::extension::AmplificationRatios;
use koord_api::{annotations, resources};
use koord_model::reclaim::NodeView;
use std::collections::BTreeMap;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "ResourceAmplification",
    runs_without_colocation: |_| true,
    run,
};

fn run(input: &Input<'_>, _: Option<&NodeView>, draft: &mut Draft) -> Result<(), String> {
    let wanted = match input.strategy {
        Some(_) => ratios(input, draft.cpu_ratio)?,
        None => BTreeMap::new(),
    };
    let key = annotations::NODE_RESOURCE_AMPLIFICATION_RATIO;
    let present = input.node.metadata.annotations.as_ref();
    let old = present.and_then(|all| all.get(key));
    let text = (!wanted.is_empty()).then(|| AmplificationRatios(wanted).to_annotation());
    if old != text.as_ref() {
        draft.annotations.insert(key, text);
    }
    Ok(())
}

/// The configured factors; CPU's times the ratio of normalization that was found just now.
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
        .find(|(_, ratio)| ratio.is_nan() || **ratio < 1.0)
    {
        None => Ok(ratios),
        Some((name, ratio)) => Err(format!(
            "the amplification ratio of {name} is {ratio}, less than 1"
        )),
    }
}
