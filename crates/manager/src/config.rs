//! The effective settings: an immutable snapshot of the ConfigMap `slo-controller-config`.
//!
//! A key that cannot be read or makes no sense leaves the last good settings of that key in force
//! and is reported; the other keys are taken over.

use crate::suppress;
use k8s_openapi::api::core::v1::Node;
use koord_api::configmap::{
    CPUNormalizationStrategy, CalculatePolicy, ColocationStrategy, MID_RECLAIM_STATIC, Origin,
    ResourceAmplificationStrategy, SloControllerConfig, colocation_origins,
    colocation_strategy_for_node, keys, system_strategy_for_node,
};
use koord_api::slo::{NodeMetricCollectPolicy, NodeSLOSpec};
use koord_model::reclaim::{BatchPolicy, CpuPolicy, MemoryPolicy, MidMode, MidPolicy};
use std::collections::{BTreeMap, BTreeSet};

/// Event reason for a refused key that NodeSLOs are built from.
const REFUSED: &str = "SLOCfgUnmarshalFailed";

/// A problem in the ConfigMap: a value that was refused, or one without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingsProblem {
    /// The key in `data`.
    pub(crate) key: &'static str,
    /// The event's reason.
    pub(crate) reason: &'static str,
    /// Names the key, the field and the value, and what happens to it.
    pub(crate) message: String,
    /// True if the effective settings differ from this value.
    pub(crate) is_refused: bool,
}

impl SettingsProblem {
    /// Returns the problem for settings that were removed while the previous ones stay in effect.
    fn for_removed_key(key: &'static str, message: String) -> Self {
        Self {
            key,
            reason: "SLOConfigEmptied",
            message,
            is_refused: true,
        }
    }
}

/// Returns the supported keys.
fn supported_keys() -> impl Iterator<Item = &'static str> {
    keys::ALL.into_iter().chain([suppress::CONFIG_KEY])
}

/// Returns the supported keys that have a value in `data`. An empty text and `null` are no value.
pub(crate) fn keys_with_value(data: &BTreeMap<String, String>) -> BTreeSet<&'static str> {
    let is_given = |key: &&str| {
        let text = data.get(*key).map_or("", |text| text.trim());
        !matches!(text, "" | "null")
    };
    supported_keys().filter(is_given).collect()
}

/// Returns a problem for each unsupported key.
fn unknown_keys(data: &BTreeMap<String, String>) -> Vec<SettingsProblem> {
    let unknown = data
        .iter()
        .filter(|(key, _)| supported_keys().all(|supported| supported != *key));
    let problem = |(key, value): (&String, &String)| {
        let shown: String = value.chars().take(100).collect();
        SettingsProblem {
            key: "",
            reason: "SLOCfgUnknownKey",
            message: format!("nobody here reads key {key:?}, which is {shown:?}"),
            is_refused: false,
        }
    };
    unknown.map(problem).collect()
}

/// The effective settings.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Config {
    /// True once a ConfigMap, or its absence, was applied.
    observed: bool,
    /// True once `colocation-config` was valid.
    available: bool,
    colocation_error: bool,
    settings: SloControllerConfig,
    /// The last valid text of [`suppress::CONFIG_KEY`], which upstream does not have.
    suppress: Option<String>,
    /// The keys with a value in the ConfigMap that these settings come from.
    present_keys: BTreeSet<&'static str>,
}

impl Config {
    /// Returns true once `colocation-config` was valid: before that, no decisions are made.
    pub(crate) fn is_available(&self) -> bool {
        self.available
    }

    /// Returns true once a ConfigMap was observed, valid or not.
    pub(crate) fn is_present(&self) -> bool {
        self.observed
    }

    /// Returns true if the newest `colocation-config` was refused.
    pub(crate) fn has_colocation_error(&self) -> bool {
        self.colocation_error
    }

    /// Returns the settings after `data` is applied, and the problems in `data`.
    pub(crate) fn updated(&self, data: &BTreeMap<String, String>) -> (Self, Vec<SettingsProblem>) {
        let mut next = Self {
            observed: true,
            ..self.clone()
        };
        let mut problems = unknown_keys(data);
        let present = keys_with_value(data);
        let was_on = self.present_keys.contains(keys::COLOCATION)
            && self.settings.colocation.cluster.is_enabled();
        if present.is_empty() && was_on {
            // An emptied ConfigMap is treated as a deleted one: it must not take resources from running batch
            // pods.
            next.colocation_error = false;
            problems.push(SettingsProblem::for_removed_key(
                "",
                "the settings are empty; the last ones stay in force until a restart".to_owned(),
            ));
            return (next, problems);
        }
        let report = next.settings.update(data);
        next.colocation_error = report.failed(keys::COLOCATION);
        next.available |= !next.colocation_error;
        next.present_keys = present;
        for key in self.present_keys.difference(&next.present_keys.clone()) {
            if *key == keys::COLOCATION && was_on {
                next.settings.colocation = self.settings.colocation.clone();
                next.present_keys.insert(key);
                let message = format!(
                    "{key}: the section is empty; the last settings stay in force until a restart, and \
                     {{\"enable\": false}} switches co-location off"
                );
                problems.push(SettingsProblem::for_removed_key(key, message));
            } else {
                problems.push(SettingsProblem {
                    key,
                    reason: "SLOConfigSectionRemoved",
                    message: format!("{key}: the section is empty; its defaults are in force"),
                    is_refused: false,
                });
            }
        }
        for (errors, so, is_refused) in [
            (report.errors, "the settings before it stay in force", true),
            (
                report.warnings,
                "its nodes have the cluster's settings",
                true,
            ),
            (report.left_out, "it counts as not given", true),
            (
                report.doubts,
                "it is in force, as Koordinator accepts it",
                false,
            ),
            (report.remarks, "", false),
        ] {
            let semicolon = if so.is_empty() { "" } else { "; " };
            problems.extend(errors.into_iter().map(|error| SettingsProblem {
                key: error.key,
                reason: error.event_reason(),
                message: format!("{error}{semicolon}{so}"),
                is_refused,
            }));
        }
        let problem = |message, is_refused| SettingsProblem {
            key: suppress::CONFIG_KEY,
            reason: REFUSED,
            message,
            is_refused,
        };
        match data
            .get(suppress::CONFIG_KEY)
            .map(|text| (text, suppress::check(text)))
        {
            None => next.suppress = None,
            Some((text, Ok(remarks))) => {
                next.suppress = Some(text.clone());
                problems.extend(
                    remarks
                        .into_iter()
                        .map(|(remark, refused)| problem(remark, refused)),
                );
            }
            Some((_, Err(error))) => {
                let message = format!("{error}; the settings before it stay in force");
                problems.push(problem(message, true));
            }
        }
        (next, problems)
    }

    /// Returns the last valid text of [`suppress::CONFIG_KEY`].
    pub(crate) fn suppress(&self) -> Option<&str> {
        self.suppress.as_deref()
    }

    /// Returns the reclaim strategy of a node; `None` if co-location is off.
    ///
    /// If it is off for the cluster, it is off on every node, whatever the node's own settings.
    pub(crate) fn strategy(&self, node: &Node) -> Option<Strategy> {
        if !self.available || !self.settings.colocation.cluster.is_enabled() {
            return None;
        }
        let strategy = self.for_node(node);
        strategy
            .is_enabled()
            .then(|| Strategy::from_config(&strategy))
    }

    /// Returns the CPU normalization settings of a node.
    pub(crate) fn normalization(&self, node: &Node) -> &CPUNormalizationStrategy {
        let (labels, _) = maps(node);
        let name = name_of(node);
        self.settings.cpu_normalization.for_node(name, &labels)
    }

    /// Returns the resource amplification settings of a node.
    pub(crate) fn amplification(&self, node: &Node) -> &ResourceAmplificationStrategy {
        let (labels, _) = maps(node);
        let name = name_of(node);
        self.settings.resource_amplification.for_node(name, &labels)
    }

    /// Returns how koordlet collects metrics on a node: the defaults if co-location is off.
    pub(crate) fn metric_collect_policy(&self, node: &Node) -> NodeMetricCollectPolicy {
        let strategy = self.for_node(node);
        let strategy = if strategy.is_enabled() {
            strategy
        } else {
            ColocationStrategy::defaults()
        };
        NodeMetricCollectPolicy {
            aggregate_duration_seconds: strategy.metric_aggregate_duration_seconds,
            report_interval_seconds: strategy.metric_report_interval_seconds,
            node_aggregate_policy: strategy.metric_aggregate_policy,
            node_memory_collect_policy: strategy.metric_memory_collect_policy,
        }
    }

    /// Returns the strategy of a node. Later sources win: cluster, first matching node settings, annotation,
    /// labels.
    fn for_node(&self, node: &Node) -> ColocationStrategy {
        let (strategy, _, warnings) = self.resolved(node);
        for warning in warnings {
            tracing::warn!(node = node.metadata.name, %warning);
        }
        strategy
    }

    /// Returns the strategy of a node, the annotations that were used for it, and warnings about ignored
    /// values.
    fn resolved(&self, node: &Node) -> (ColocationStrategy, StringMap, Vec<String>) {
        let (labels, annotations) = maps(node);
        let (section, name) = (&self.settings.colocation, name_of(node));
        let (strategy, warnings) =
            colocation_strategy_for_node(section, name, &labels, &annotations);
        let mut warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        // The section was validated when it was parsed, so this can only be the annotation.
        match strategy.violations().first() {
            None => (strategy, annotations, warnings),
            Some(problem) => {
                let key = koord_api::annotations::NODE_COLOCATION_STRATEGY;
                warnings.push(format!("annotation {key} is ignored: {problem}"));
                let without = StringMap::new();
                let (strategy, _) = colocation_strategy_for_node(section, name, &labels, &without);
                (strategy, without, warnings)
            }
        }
    }

    /// Returns the sources of a node's settings; `text` is the effective `colocation-config`.
    pub(crate) fn origins(&self, node: &Node, text: &str) -> Origins {
        let (name, (labels, _)) = (name_of(node), maps(node));
        let (strategy, annotations, ignored) = self.resolved(node);
        let settings = &self.settings;
        let text = if self.colocation_error { "" } else { text };
        Origins {
            fields: colocation_origins(&settings.colocation, text, name, &labels, &annotations),
            cluster_is_on: settings.colocation.cluster.is_enabled(),
            is_on: strategy.is_enabled(),
            normalization: settings.cpu_normalization.origin(
                keys::CPU_NORMALIZATION,
                name,
                &labels,
            ),
            amplification: settings.resource_amplification.origin(
                keys::RESOURCE_AMPLIFICATION,
                name,
                &labels,
            ),
            ignored,
        }
    }

    /// Returns the QoS settings of a node, and the problem in its annotations, if any.
    pub(crate) fn slo(&self, node: &Node) -> (NodeSLOSpec, Option<String>) {
        let (labels, annotations) = maps(node);
        let (settings, name) = (&self.settings, name_of(node));
        let (system, warning) =
            system_strategy_for_node(&settings.system, name, &labels, &annotations);
        let spec = NodeSLOSpec {
            resource_used_threshold_with_be: Some(
                settings.resource_threshold.for_node(name, &labels).clone(),
            ),
            resource_qos_strategy: Some(settings.resource_qos.for_node(name, &labels).clone()),
            cpu_burst_strategy: Some(settings.cpu_burst.for_node(name, &labels).clone()),
            system_strategy: Some(system),
            extensions: None,
            host_applications: settings
                .host_application
                .for_node(name, &labels)
                .applications
                .clone(),
        };
        (spec, warning.map(|warning| warning.to_string()))
    }
}

/// Sources of the settings of a node.
#[derive(Debug)]
pub(crate) struct Origins {
    /// Source of each field of the strategy, by the field's JSON name.
    pub(crate) fields: BTreeMap<String, Origin>,
    /// True if co-location is on for the cluster.
    pub(crate) cluster_is_on: bool,
    /// True if the node's own settings enable co-location.
    pub(crate) is_on: bool,
    pub(crate) normalization: Origin,
    pub(crate) amplification: Origin,
    /// Warnings about values on the node that are ignored.
    pub(crate) ignored: Vec<String>,
}

type StringMap = BTreeMap<String, String>;

/// Returns the name of a node.
fn name_of(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// Returns the labels and annotations of a node.
fn maps(node: &Node) -> (StringMap, StringMap) {
    let metadata = &node.metadata;
    (
        metadata.labels.clone().unwrap_or_default(),
        metadata.annotations.clone().unwrap_or_default(),
    )
}

/// The reclaim strategy of one node, with every field set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Strategy {
    pub(crate) batch: BatchPolicy,
    pub(crate) mid: MidPolicy,
    /// Reports older than this many minutes are ignored.
    pub(crate) degrade_minutes: i64,
    /// Interval in seconds after which small changes are written, too.
    pub(crate) update_threshold_secs: i64,
    /// A change of at most this fraction of the old amount is small.
    pub(crate) diff_threshold: f64,
}

impl Default for Strategy {
    fn default() -> Self {
        Self::from_config(&ColocationStrategy::defaults())
    }
}

impl Strategy {
    /// Creates the strategy from settings; unset fields get their defaults.
    fn from_config(strategy: &ColocationStrategy) -> Self {
        let mode = match strategy.mid_reclaim_mode.as_deref() {
            Some(MID_RECLAIM_STATIC) => MidMode::Static {
                cpu_percent: strategy.mid_static_cpu_reserved_percent.unwrap_or(0),
                memory_percent: strategy.mid_static_memory_reserved_percent.unwrap_or(0),
            },
            _ => MidMode::Predicted,
        };
        Self {
            batch: BatchPolicy {
                cpu_reclaim_percent: strategy.cpu_reclaim_threshold_percent.unwrap_or(60),
                memory_reclaim_percent: strategy.memory_reclaim_threshold_percent.unwrap_or(65),
                // The policy "request" does not exist for CPU and is treated as usage.
                cpu: match strategy.cpu_calculate_policy {
                    Some(CalculatePolicy::MaxUsageRequest) => CpuPolicy::MaxUsageRequest,
                    _ => CpuPolicy::Usage,
                },
                memory: match strategy.memory_calculate_policy {
                    Some(CalculatePolicy::Request) => MemoryPolicy::Request,
                    Some(CalculatePolicy::MaxUsageRequest) => MemoryPolicy::MaxUsageRequest,
                    _ => MemoryPolicy::Usage,
                },
                cpu_limit_percent: strategy.batch_cpu_threshold_percent,
                memory_limit_percent: strategy.batch_memory_threshold_percent,
                charge_unmeasured: true,
            },
            mid: MidPolicy {
                mode,
                cpu_limit_percent: strategy.mid_cpu_threshold_percent.unwrap_or(100),
                memory_limit_percent: strategy.mid_memory_threshold_percent.unwrap_or(100),
                unallocated_percent: strategy.mid_unallocated_percent.unwrap_or(0),
            },
            degrade_minutes: strategy.degrade_time_minutes.unwrap_or(15),
            update_threshold_secs: strategy.update_time_threshold_seconds.unwrap_or(300),
            diff_threshold: strategy.resource_diff_threshold.unwrap_or(0.1),
        }
    }
}

#[cfg(test)]
mod tests;
