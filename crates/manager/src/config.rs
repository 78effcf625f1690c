//! The settings in force: an immutable snapshot of the ConfigMap `slo-controller-config`.
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

/// Reason of events about keys that NodeSLOs are made of.
const REFUSED: &str = "SLOCfgUnmarshalFailed";

/// Something in the ConfigMap that was refused, or means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingsProblem {
    /// The key in `data`.
    pub(crate) key: &'static str,
    /// The event's reason.
    pub(crate) reason: &'static str,
    /// Names the key, the field and the value, and says what became of it.
    pub(crate) message: String,
    /// Whether something else is in force than what it says.
    pub(crate) is_refused: bool,
}

impl SettingsProblem {
    /// Settings are gone, and what they were stays in force.
    fn emptied(key: &'static str, message: String) -> Self {
        Self {
            key,
            reason: "SLOConfigEmptied",
            message,
            is_refused: true,
        }
    }
}

/// Returns the keys that are read.
fn supported_keys() -> impl Iterator<Item = &'static str> {
    keys::ALL.into_iter().chain([suppress::CONFIG_KEY])
}

/// Returns the keys that are read and have a text in `data`. The text `null` gives nothing.
pub(crate) fn keys_with_value(data: &BTreeMap<String, String>) -> BTreeSet<&'static str> {
    let is_given = |key: &&str| {
        let text = data.get(*key).map_or("", |text| text.trim());
        !matches!(text, "" | "null")
    };
    supported_keys().filter(is_given).collect()
}

/// Returns a problem for each key that is not read.
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

/// The settings in force.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Config {
    /// Whether a ConfigMap, or its absence, was ever taken over.
    seen: bool,
    /// Whether `colocation-config` could ever be read.
    available: bool,
    colocation_error: bool,
    settings: SloControllerConfig,
    /// The last good text of our own key.
    suppress: Option<String>,
    /// The keys with a text in the ConfigMap that these settings are from.
    given: BTreeSet<&'static str>,
}

impl Config {
    /// Whether decisions can be made at all.
    pub(crate) fn is_available(&self) -> bool {
        self.available
    }

    /// Whether a ConfigMap was ever seen, readable or not.
    pub(crate) fn is_present(&self) -> bool {
        self.seen
    }

    /// Whether the newest `colocation-config` was refused.
    pub(crate) fn has_colocation_error(&self) -> bool {
        self.colocation_error
    }

    /// The settings after `data` is taken over, and what of it was refused.
    pub(crate) fn updated(&self, data: &BTreeMap<String, String>) -> (Self, Vec<SettingsProblem>) {
        let mut next = Self {
            seen: true,
            ..self.clone()
        };
        let mut problems = unknown_keys(data);
        let present = keys_with_value(data);
        let was_on =
            self.given.contains(keys::COLOCATION) && self.settings.colocation.cluster.is_enabled();
        if present.is_empty() && was_on {
            // An emptied ConfigMap is like a deleted one: it must not take resources from running batch work.
            next.colocation_error = false;
            problems.push(SettingsProblem::emptied(
                "",
                "the settings are empty; the last ones stay in force until a restart".to_owned(),
            ));
            return (next, problems);
        }
        let report = next.settings.update(data);
        next.colocation_error = report.failed(keys::COLOCATION);
        next.available |= !next.colocation_error;
        next.given = present;
        for key in self.given.difference(&next.given.clone()) {
            if *key == keys::COLOCATION && was_on {
                next.settings.colocation = self.settings.colocation.clone();
                next.given.insert(key);
                let message = format!(
                    "{key}: the section is empty; the last settings stay in force until a restart, and \
                     {{\"enable\": false}} switches co-location off"
                );
                problems.push(SettingsProblem::emptied(key, message));
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
        let own = |message, is_refused| SettingsProblem {
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
                        .map(|(remark, refused)| own(remark, refused)),
                );
            }
            Some((_, Err(error))) => {
                let message = format!("{error}; the settings before it stay in force");
                problems.push(own(message, true));
            }
        }
        (next, problems)
    }

    /// The last good text of [`suppress::CONFIG_KEY`].
    pub(crate) fn suppress(&self) -> Option<&str> {
        self.suppress.as_deref()
    }

    /// How resources of a node are reclaimed; `None` where co-location is off.
    ///
    /// Off for the cluster is off everywhere, whatever a node's own settings say.
    pub(crate) fn strategy(&self, node: &Node) -> Option<Strategy> {
        if !self.available || !self.settings.colocation.cluster.is_enabled() {
            return None;
        }
        let strategy = self.for_node(node);
        strategy
            .is_enabled()
            .then(|| Strategy::from_config(&strategy))
    }

    /// How a node's CPU compares.
    pub(crate) fn normalization(&self, node: &Node) -> &CPUNormalizationStrategy {
        let (labels, _) = maps(node);
        self.settings.cpu_normalization.for_node(&labels)
    }

    /// What a node shows more of than it has.
    pub(crate) fn amplification(&self, node: &Node) -> &ResourceAmplificationStrategy {
        let (labels, _) = maps(node);
        self.settings.resource_amplification.for_node(&labels)
    }

    /// How koordlet measures on a node: the defaults where co-location is off.
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

    /// Cluster, first matching node settings, annotation, labels.
    fn for_node(&self, node: &Node) -> ColocationStrategy {
        let (strategy, _, warnings) = self.resolved(node);
        for warning in warnings {
            tracing::warn!(node = node.metadata.name, %warning);
        }
        strategy
    }

    /// The strategy of a node, the annotations it was made with, and what was ignored.
    fn resolved(&self, node: &Node) -> (ColocationStrategy, StringMap, Vec<String>) {
        let (labels, annotations) = maps(node);
        let section = &self.settings.colocation;
        let (strategy, warnings) = colocation_strategy_for_node(section, &labels, &annotations);
        let mut warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        // The section was checked when it was read, so this is about the annotation.
        match strategy.violations().first() {
            None => (strategy, annotations, warnings),
            Some(problem) => {
                let key = koord_api::annotations::NODE_COLOCATION_STRATEGY;
                warnings.push(format!("annotation {key} is ignored: {problem}"));
                let without = StringMap::new();
                let (strategy, _) = colocation_strategy_for_node(section, &labels, &without);
                (strategy, without, warnings)
            }
        }
    }

    /// Where the settings of a node come from, `text` being the `colocation-config` in force.
    pub(crate) fn origins(&self, node: &Node, text: &str) -> Origins {
        let (labels, _) = maps(node);
        let (strategy, annotations, ignored) = self.resolved(node);
        let settings = &self.settings;
        let text = if self.colocation_error { "" } else { text };
        Origins {
            fields: colocation_origins(&settings.colocation, text, &labels, &annotations),
            cluster_is_on: settings.colocation.cluster.is_enabled(),
            is_on: strategy.is_enabled(),
            normalization: settings
                .cpu_normalization
                .origin(keys::CPU_NORMALIZATION, &labels),
            amplification: settings
                .resource_amplification
                .origin(keys::RESOURCE_AMPLIFICATION, &labels),
            ignored,
        }
    }

    /// The QoS settings of a node, and what in its annotations could not be used.
    pub(crate) fn slo(&self, node: &Node) -> (NodeSLOSpec, Option<String>) {
        let (labels, annotations) = maps(node);
        let settings = &self.settings;
        let (system, warning) = system_strategy_for_node(&settings.system, &labels, &annotations);
        let spec = NodeSLOSpec {
            resource_used_threshold_with_be: Some(
                settings.resource_threshold.for_node(&labels).clone(),
            ),
            resource_qos_strategy: Some(settings.resource_qos.for_node(&labels).clone()),
            cpu_burst_strategy: Some(settings.cpu_burst.for_node(&labels).clone()),
            system_strategy: Some(system),
            extensions: None,
            host_applications: settings
                .host_application
                .for_node(&labels)
                .applications
                .clone(),
        };
        (spec, warning.map(|warning| warning.to_string()))
    }
}

/// Where the settings of a node come from.
#[derive(Debug)]
pub(crate) struct Origins {
    /// The fields of its strategy, by their names in JSON.
    pub(crate) fields: BTreeMap<String, Origin>,
    /// Whether co-location is on for the cluster.
    pub(crate) cluster_is_on: bool,
    /// Whether it would be on for the node.
    pub(crate) is_on: bool,
    pub(crate) normalization: Origin,
    pub(crate) amplification: Origin,
    /// What the node carries that was not taken over.
    pub(crate) ignored: Vec<String>,
}

type StringMap = BTreeMap<String, String>;

/// Labels and annotations.
fn maps(node: &Node) -> (StringMap, StringMap) {
    let metadata = &node.metadata;
    (
        metadata.labels.clone().unwrap_or_default(),
        metadata.annotations.clone().unwrap_or_default(),
    )
}

/// How resources of one node are reclaimed, every field set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Strategy {
    pub(crate) batch: BatchPolicy,
    pub(crate) mid: MidPolicy,
    /// A report older than this counts for nothing.
    pub(crate) degrade_minutes: i64,
    /// Small changes are written this often.
    pub(crate) update_threshold_secs: i64,
    /// A change is small up to this part of the old amount.
    pub(crate) diff_threshold: f64,
}

impl Default for Strategy {
    fn default() -> Self {
        Self::from_config(&ColocationStrategy::defaults())
    }
}

impl Strategy {
    /// Resolves what is unset to the defaults.
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
                // "request" does not exist for CPU and means usage.
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
