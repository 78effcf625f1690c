//! `DeviceShareArgs`: arguments of the plugin and their validation.

use super::NAME;
use crate::common::args::invalid;
use koord_api::resources;
use koord_model::device::{DeviceResource, Scorer};
use koord_scheduler::framework::BuildError;
use serde::Deserialize;

/// Arguments of `DeviceShare`, with upstream's defaults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    /// Deprecated upstream, without effect.
    allocator: String,
    scoring_strategy: Option<DeviceScoringStrategy>,
    #[serde(rename = "disableDeviceNUMATopologyAlignment")]
    disable_alignment: bool,
    #[serde(rename = "gpuSharedResourceTemplatesConfig")]
    templates: Option<TemplatesConfig>,
    #[serde(rename = "gpuShareUnsupportedModels")]
    unsupported: Vec<GpuModel>,
}

/// The scoring strategy and the resources it scores.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DeviceScoringStrategy {
    #[serde(rename = "type")]
    kind: String,
    resources: Vec<DeviceWeight>,
}

/// A device resource and its weight, 1 to 100.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DeviceWeight {
    name: String,
    weight: i64,
}

/// Location of the templates for shared GPUs, and the resources that need one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TemplatesConfig {
    config_map_namespace: Option<String>,
    config_map_name: Option<String>,
    matched_resources: Option<Vec<String>>,
}

/// A GPU model that cannot be shared.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GpuModel {
    vendor: String,
    model: String,
}

impl Args {
    /// Returns the scoring strategy.
    ///
    /// # Errors
    /// Fails for an unknown strategy, or a weight that is out of range.
    pub(super) fn scorer(&self) -> Result<Scorer, BuildError> {
        let Some(strategy) = &self.scoring_strategy else {
            let usual = [
                DeviceResource::GpuMemoryRatio,
                DeviceResource::GpuMemory,
                DeviceResource::Rdma,
                DeviceResource::Fpga,
            ];
            return Ok(Scorer {
                most: false,
                weights: usual.map(|resource| (resource, 1)).to_vec(),
            });
        };
        let most = match strategy.kind.as_str() {
            "LeastAllocated" => false,
            "MostAllocated" => true,
            other => {
                let message = format!("scoringStrategy.type: {other:?} is not supported");
                return Err(invalid(NAME, message));
            }
        };
        let mut weights = Vec::new();
        for (at, DeviceWeight { name, weight }) in strategy.resources.iter().enumerate() {
            if !(1..=100).contains(weight) {
                return Err(invalid(
                    NAME,
                    format!(
                        "scoringStrategy.resources[{at}].weight: {weight} of {name} is not within 1..=100"
                    ),
                ));
            }
            // Resources that no device offers are ignored.
            if let Some(resource) = DeviceResource::parse(name) {
                weights.retain(|(other, _)| *other != resource);
                weights.push((resource, *weight));
            }
        }
        Ok(Scorer { most, weights })
    }

    /// Returns true if devices are not aligned to the NUMA nodes of the pod.
    pub(super) fn disable_alignment(&self) -> bool {
        self.disable_alignment
    }

    /// Returns true if GPUs of this vendor and model cannot be shared.
    pub(super) fn forbids_sharing(&self, vendor: &str, model: &str) -> bool {
        let mut models = self.unsupported.iter();
        models.any(|it| it.vendor == vendor && it.model == model)
    }

    /// Returns the resources whose shared requests must match a template.
    pub(super) fn matched_resources(&self) -> Vec<DeviceResource> {
        let set = self.templates.as_ref();
        match set.and_then(|templates| templates.matched_resources.as_ref()) {
            Some(names) => names
                .iter()
                .filter_map(|n| DeviceResource::parse(n))
                .collect(),
            None => DeviceResource::parse(resources::HUAWEI_NPU_CORE)
                .into_iter()
                .collect(),
        }
    }

    /// Logs the settings that are accepted but have no effect.
    pub(super) fn warn_about_unused(&self, adaption: bool) {
        if !self.allocator.is_empty() {
            tracing::warn!(plugin = NAME, allocator = %self.allocator, "allocator has no effect");
        }
        if let Some(templates) = &self.templates {
            tracing::warn!(
                plugin = NAME,
                namespace = ?templates.config_map_namespace,
                name = ?templates.config_map_name,
                "gpuSharedResourceTemplatesConfig: templates are not read yet; shared requests for \
                 its matchedResources are not scheduled"
            );
        }
        if adaption {
            tracing::warn!(
                plugin = NAME,
                "feature gate DevicePluginAdaption has no effect yet"
            );
        }
    }
}
