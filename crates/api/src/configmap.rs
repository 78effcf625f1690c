//! The ConfigMap `koordinator-system/slo-controller-config`.
//!
//! Each key of the ConfigMap is one section of JSON: a cluster-wide strategy and overrides for the nodes that
//! a label selector matches. [`SloControllerConfig::update`] parses all sections, fills in defaults and
//! merges the overrides over the cluster strategy, so that [`Section::for_node`] only has to select one.

mod check;
mod colocation;
mod duplicates;
mod node;
mod origin;
pub mod rollout;
mod section;
mod sections;
mod text_rules;
mod unknown;

pub use colocation::{CalculatePolicy, ColocationStrategy, MID_RECLAIM_STATIC};
pub use node::{NodeOverrideWarning, colocation_strategy_for_node, system_strategy_for_node};
pub use origin::{Origin, colocation_origins};
pub use section::{NodeOverride, Section};
pub use sections::{
    CPUNormalizationStrategy, HostApplications, ModelRatioCfg, ResourceAmplificationStrategy,
    burst_violations, qos_violations, system_violations, threshold_violations,
};
pub use unknown::field_names;

pub use crate::field::FieldError;
pub use crate::slo::{
    CPUBurstStrategy, HostApplicationSpec, ResourceQOSStrategy, ResourceThresholdStrategy,
    SystemStrategy,
};

use crate::crds;
use crate::lenient::ReadError;
use crate::selector::SelectorError;
use crate::slo::defaults;
use section::{Faults, Shape};
use std::collections::BTreeMap;

/// Name of the ConfigMap; flag `--slo-config-name`.
pub const NAME: &str = "slo-controller-config";
/// Namespace of the ConfigMap; flag `--config-namespace`.
pub const NAMESPACE: &str = "koordinator-system";

/// Keys of the ConfigMap. Every other key belongs to a third party.
pub mod keys {
    /// Share of a node that batch and mid pods may use.
    pub const COLOCATION: &str = "colocation-config";
    /// Thresholds that suppress and evict BE pods.
    pub const RESOURCE_THRESHOLD: &str = "resource-threshold-config";
    /// Kernel settings by QoS class.
    pub const RESOURCE_QOS: &str = "resource-qos-config";
    /// CPU burst.
    pub const CPU_BURST: &str = "cpu-burst-config";
    /// Kernel settings of whole nodes.
    pub const SYSTEM: &str = "system-config";
    /// Services that run outside Kubernetes.
    pub const HOST_APPLICATION: &str = "host-application-config";
    /// Relative speed of CPU models.
    pub const CPU_NORMALIZATION: &str = "cpu-normalization-config";
    /// Amplification of node resources.
    pub const RESOURCE_AMPLIFICATION: &str = "resource-amplification-config";

    /// All keys above.
    pub const ALL: [&str; 8] = [
        COLOCATION,
        RESOURCE_THRESHOLD,
        RESOURCE_QOS,
        CPU_BURST,
        SYSTEM,
        HOST_APPLICATION,
        CPU_NORMALIZATION,
        RESOURCE_AMPLIFICATION,
    ];
}

/// Section `colocation-config`.
pub type ColocationCfg = Section<ColocationStrategy>;
/// Section `resource-threshold-config`.
pub type ResourceThresholdCfg = Section<ResourceThresholdStrategy>;
/// Section `resource-qos-config`.
pub type ResourceQOSCfg = Section<ResourceQOSStrategy>;
/// Section `cpu-burst-config`.
pub type CPUBurstCfg = Section<CPUBurstStrategy>;
/// Section `system-config`.
pub type SystemCfg = Section<SystemStrategy>;
/// Section `host-application-config`.
pub type HostApplicationCfg = Section<HostApplications>;
/// Section `cpu-normalization-config`.
pub type CPUNormalizationCfg = Section<CPUNormalizationStrategy>;
/// Section `resource-amplification-config`.
pub type ResourceAmplificationCfg = Section<ResourceAmplificationStrategy>;

/// Problem of a section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigProblem {
    /// The section cannot be parsed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A value of the cluster strategy is out of bounds.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A value of a node override is out of bounds.
    #[error("override {name:?}: {error}")]
    NodeField {
        /// Name or position of the override.
        name: String,
        /// The field, its value and the violated rule.
        error: FieldError,
    },
    /// The selector of a node override is missing or invalid.
    #[error("override {name:?}: {}", match error { Some(e) => e.to_string(), None => "nodeSelector is missing".to_owned() })]
    Selector {
        /// Name or position of the override.
        name: String,
        /// Reason; `None` if there is no selector.
        error: Option<SelectorError>,
    },
}

/// A problem of one section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigError {
    /// Key of the section in the ConfigMap.
    pub key: &'static str,
    /// The problem.
    pub problem: ConfigProblem,
}

impl ConfigError {
    /// Returns the reason of the Warning event on the ConfigMap.
    #[must_use]
    pub fn event_reason(&self) -> &'static str {
        match self.key {
            keys::COLOCATION => "ColocationCfgUnmarshalFailed",
            keys::CPU_NORMALIZATION => "CPUNormalizationCfgUnmarshalFailed",
            keys::RESOURCE_AMPLIFICATION => "ResourceAmplificationCfgUnmarshalFailed",
            _ => "SLOCfgUnmarshalFailed",
        }
    }
}

/// Problems found while parsing a ConfigMap, by consequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Sections that were rejected; their previous content stays in effect.
    pub errors: Vec<ConfigError>,
    /// Overrides that were dropped because their selector is invalid or because the definition of NodeSLO
    /// rejects their values. Their nodes use the cluster strategy.
    pub warnings: Vec<ConfigError>,
    /// Values that were accepted, as upstream accepts them, although they are questionable.
    pub doubts: Vec<ConfigError>,
    /// Invalid enumerated values, and list elements that contain one: they count as unset, the rest of their
    /// section is in effect. Upstream writes them to NodeSLOs.
    pub left_out: Vec<ConfigError>,
    /// Settings without effect or with another effect than expected, such as unknown fields and percentages
    /// above 100. Each states its effect. Upstream does not report them.
    pub remarks: Vec<ConfigError>,
}

impl Report {
    /// Returns true if the section `key` was rejected.
    #[must_use]
    pub fn failed(&self, key: &str) -> bool {
        self.errors.iter().any(|error| error.key == key)
    }
}

/// All sections, with defaults filled in and overrides merged.
#[derive(Debug, Clone, PartialEq)]
pub struct SloControllerConfig {
    /// Share of a node that batch and mid pods may use.
    pub colocation: ColocationCfg,
    /// Thresholds that suppress and evict BE pods.
    pub resource_threshold: ResourceThresholdCfg,
    /// Kernel settings by QoS class. Empty by default, because koordlet applies the class defaults.
    pub resource_qos: ResourceQOSCfg,
    /// CPU burst.
    pub cpu_burst: CPUBurstCfg,
    /// Kernel settings of whole nodes.
    pub system: SystemCfg,
    /// Services that run outside Kubernetes.
    pub host_application: HostApplicationCfg,
    /// Relative speed of CPU models.
    pub cpu_normalization: CPUNormalizationCfg,
    /// Amplification of node resources.
    pub resource_amplification: ResourceAmplificationCfg,
    /// Keys of third parties, not parsed.
    pub extensions: BTreeMap<String, String>,
}

impl Default for SloControllerConfig {
    fn default() -> Self {
        Self {
            colocation: Section::without_overrides(ColocationStrategy::defaults()),
            resource_threshold: Section::without_overrides(defaults::resource_threshold_strategy()),
            resource_qos: Section::without_overrides(ResourceQOSStrategy::default()),
            cpu_burst: Section::without_overrides(defaults::cpu_burst_strategy()),
            system: Section::without_overrides(defaults::system_strategy()),
            host_application: Section::without_overrides(HostApplications::default()),
            cpu_normalization: Section::without_overrides(CPUNormalizationStrategy::defaults()),
            resource_amplification: Section::without_overrides(
                ResourceAmplificationStrategy::defaults(),
            ),
            extensions: BTreeMap::new(),
        }
    }
}

impl SloControllerConfig {
    /// Replaces the sections by those of the ConfigMap's `data`. A missing or empty key resets its section to
    /// the default; a section that cannot be parsed keeps its previous content.
    pub fn update(&mut self, data: &BTreeMap<String, String>) -> Report {
        let mut report = Report::default();
        let standard = Self::default();
        let text = |key: &str| data.get(key).map(String::as_str).unwrap_or_default();

        self.colocation.update(
            keys::COLOCATION,
            text(keys::COLOCATION),
            &standard.colocation.cluster,
            Shape::Inline,
            text_rules::COLOCATION,
            &mut report,
            |strategy| {
                let rejections = strategy.violations();
                let mut doubts = strategy.admission_violations();
                doubts.retain(|doubt| !rejections.contains(doubt));
                Faults {
                    rejections,
                    doubts,
                    remarks: strategy.remarks(),
                }
            },
        );
        macro_rules! lenient {
            ($field:ident, $key:expr, $shape:expr, $rules:expr, $part:expr, $check:expr) => {
                self.$field.update(
                    $key,
                    text($key),
                    &standard.$field.cluster,
                    $shape,
                    $rules,
                    &mut report,
                    |strategy| {
                        // The NodeSLO definition and the checks may report the same field: once is enough.
                        let by_definition =
                            $part.map_or_else(Vec::new, |part| crds::refusals(part, strategy));
                        let (mut rejections, mut doubts) = $check(strategy).split();
                        for errors in [&mut rejections, &mut doubts] {
                            errors.retain(|e| by_definition.iter().all(|d| d.field != e.field));
                        }
                        rejections.extend(by_definition);
                        Faults {
                            rejections,
                            doubts,
                            remarks: Vec::new(),
                        }
                    },
                );
            };
        }
        lenient!(
            resource_threshold,
            keys::RESOURCE_THRESHOLD,
            Shape::Nested,
            text_rules::THRESHOLD,
            Some("resourceUsedThresholdWithBE"),
            sections::check_threshold
        );
        lenient!(
            resource_qos,
            keys::RESOURCE_QOS,
            Shape::Nested,
            text_rules::QOS,
            Some("resourceQOSStrategy"),
            sections::check_qos
        );
        lenient!(
            cpu_burst,
            keys::CPU_BURST,
            Shape::Nested,
            text_rules::BURST,
            Some("cpuBurstStrategy"),
            sections::check_burst
        );
        lenient!(
            system,
            keys::SYSTEM,
            Shape::Nested,
            &[],
            Some("systemStrategy"),
            sections::check_system
        );
        lenient!(
            host_application,
            keys::HOST_APPLICATION,
            Shape::Inline,
            text_rules::HOST_APPLICATION,
            None,
            |_: &HostApplications| check::Checker::default()
        );
        lenient!(
            cpu_normalization,
            keys::CPU_NORMALIZATION,
            Shape::Inline,
            &[],
            None,
            CPUNormalizationStrategy::check
        );
        lenient!(
            resource_amplification,
            keys::RESOURCE_AMPLIFICATION,
            Shape::Inline,
            &[],
            None,
            ResourceAmplificationStrategy::check
        );
        self.extensions = data
            .iter()
            .filter(|(key, _)| !keys::ALL.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        report
    }

    /// Parses a configuration from `data`, starting from the defaults.
    #[must_use]
    pub fn parse(data: &BTreeMap<String, String>) -> (Self, Report) {
        let mut config = Self::default();
        let report = config.update(data);
        (config, report)
    }
}

#[cfg(test)]
mod tests;
