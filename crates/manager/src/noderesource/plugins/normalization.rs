//! CPU normalization: an annotation with the performance ratio of this node's CPU model.

use super::{Draft, Plugin};
use crate::noderesource::plan::Input;
use koord_api::extension::{self, CpuBasicInfo};
use koord_api::{annotations, labels};
use koord_model::normalization;
use koord_model::reclaim::NodeView;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "CPUNormalization",
    runs_without_colocation: |_| false,
    run,
};

fn run(input: &Input<'_>, _: Option<&NodeView>, draft: &mut Draft) -> Result<(), String> {
    let key = annotations::NODE_CPU_NORMALIZATION_RATIO;
    let present = input.node.metadata.annotations.as_ref();
    let old = present
        .and_then(|all| all.get(key))
        .and_then(|text| extension::parse_normalization_ratio(text).ok());
    let new = if is_enabled(input)? {
        ratio(input)?
    } else {
        1.0
    };
    draft.cpu_ratio = Some(new);
    if normalization::stable_ratio(old, Some(new)) != old || old.is_none() {
        let text = extension::format_normalization_ratio(new);
        draft.annotations.insert(key, Some(text));
    }
    Ok(())
}

/// Returns true if normalization is enabled: by the node's label, otherwise by the settings.
fn is_enabled(input: &Input<'_>) -> Result<bool, String> {
    let key = labels::NODE_CPU_NORMALIZATION_ENABLED;
    let labels = input.node.metadata.labels.as_ref();
    match labels.and_then(|all| all.get(key)).map(String::as_str) {
        None => Ok(input.normalization.enable == Some(true)),
        // The values that Go's ParseBool accepts.
        Some("1" | "t" | "T" | "TRUE" | "true" | "True") => Ok(true),
        Some("0" | "f" | "F" | "FALSE" | "false" | "False") => Ok(false),
        Some(other) => Err(format!("label {key} is {other:?}, not true or false")),
    }
}

/// Returns the CPU normalization ratio of the node from the CPU model that its topology reports.
fn ratio(input: &Input<'_>) -> Result<f64, String> {
    let key = annotations::NODE_CPU_BASIC_INFO;
    let topology = input
        .topology
        .ok_or("there is no NodeResourceTopology of the node")?;
    let info: CpuBasicInfo = extension::read(topology.metadata.annotations.as_ref(), key)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("its NodeResourceTopology has no annotation {key}"))?;
    let (config, model) = (&input.normalization, &info.cpu_model);
    let listed = config.ratio_model.get(model).and_then(|ratios| {
        match (info.hyper_thread_enabled, info.turbo_enabled) {
            (true, true) => ratios.hyper_thread_turbo_enabled_ratio,
            (true, false) => ratios.hyper_thread_enabled_ratio,
            (false, true) => ratios.turbo_enabled_ratio,
            (false, false) => ratios.base_ratio,
        }
    });
    let ratio = listed
        .or(config.default_ratio)
        .ok_or_else(|| format!("there is no ratio for CPU model {model:?}"))?;
    if (normalization::MIN_RATIO..=normalization::MAX_RATIO).contains(&ratio) {
        Ok(ratio)
    } else {
        Err(format!(
            "the ratio of CPU model {model:?} is {ratio}, not from {} to {}",
            normalization::MIN_RATIO,
            normalization::MAX_RATIO
        ))
    }
}
