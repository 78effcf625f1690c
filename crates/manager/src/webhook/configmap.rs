//! `/validate-configmap`: validates `slo-controller-config` before it is stored.
//!
//! Only keys with a text that changed are checked, so that one old mistake does not block other changes.
//! Refusals are upstream's JSON between three underscores; the message names key, field and value. Source:
//! Koordinator `pkg/webhook/cm/plugins/sloconfig`.

mod network;

use super::metrics::WebhookMetrics;
use super::{Deps, json};
use crate::config::keys_with_value;
use crate::replica::Replica;
use crate::suppress;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::configmap::{
    ConfigError, ConfigProblem, NodeOverride, Section, SloControllerConfig, keys,
};
use koord_api::selector;
use koord_kube::ObjectKey;
use koord_kube::webhook::{Answer, Handler, Operation, Request};
use koord_object::selector::label_problem;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Strings = BTreeMap<String, String>;

/// The keys in the order in which they are checked.
const ORDER: [&str; 9] = [
    keys::COLOCATION,
    keys::RESOURCE_THRESHOLD,
    keys::RESOURCE_QOS,
    keys::SYSTEM,
    keys::CPU_BURST,
    // Upstream does not check these.
    keys::HOST_APPLICATION,
    keys::CPU_NORMALIZATION,
    keys::RESOURCE_AMPLIFICATION,
    suppress::CONFIG_KEY,
];

/// Maximum number of sample nodes per selector: enough for any two values of any two requirements.
const MAX_SAMPLE_NODES: usize = 4096;

/// Access to the settings and the nodes of the cluster.
pub trait SettingsSource: Send + Sync {
    /// Returns the key of the ConfigMap.
    fn key(&self) -> ObjectKey;
    /// Returns the stored `data`; `None` if there is no ConfigMap.
    fn data(&self) -> Option<Strings>;
    /// Returns the names and labels of all nodes.
    fn nodes(&self) -> Vec<(String, Strings)>;
    /// Returns true if node strategies must have names.
    fn requires_names(&self) -> bool;
}

impl SettingsSource for Arc<Replica> {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(&*self.options.config_namespace, &*self.options.config_name)
    }

    fn data(&self) -> Option<Strings> {
        let config_map = self.caches.settings.get(&self.key())?;
        Some(config_map.data.clone().unwrap_or_default())
    }

    fn nodes(&self) -> Vec<(String, Strings)> {
        let nodes = self.caches.nodes.objects();
        let named_labels = nodes.map(|node| {
            let labels = node.metadata.labels.unwrap_or_default();
            (node.metadata.name.unwrap_or_default(), labels)
        });
        named_labels.collect()
    }

    fn requires_names(&self) -> bool {
        self.options.node_strategy_names_needed
    }
}

/// Reason why a ConfigMap or a node is refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SettingsRefusal {
    reason: &'static str,
    message: Value,
}

impl std::fmt::Display for SettingsRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reason, message } = self;
        let content = json!({ "reason": reason, "message": message });
        write!(f, "___{content}___")
    }
}

impl SettingsRefusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self {
            reason: "ConfigParamInvalid",
            message: Value::String(message.into()),
        }
    }

    /// Returns the refusal as a sentence that begins with the key.
    fn sentence(&self) -> String {
        match &self.message {
            Value::String(message) => message.clone(),
            conflict => {
                let names = conflict["strategies"].as_array().into_iter().flatten();
                let names: Vec<String> = names.map(Value::to_string).collect();
                let key = conflict["config"].as_str().unwrap_or_default();
                format!(
                    "{key}: override {} select the same nodes",
                    names.join(" and override ")
                )
            }
        }
    }

    fn conflict(reason: &'static str, key: &str, names: &[&str], node: Option<&str>) -> Self {
        let mut message = json!({ "config": key, "strategies": names });
        if let Some(node) = node {
            message["exampleNodes"] = json!([node]);
        }
        Self { reason, message }
    }
}

/// The node strategies of one key.
struct Overrides {
    key: &'static str,
    /// Name and node selector of each strategy.
    entries: Vec<(String, Option<LabelSelector>)>,
}

/// The node strategies of all keys that can be parsed.
pub(crate) struct Sections(Vec<Overrides>);

impl Sections {
    /// Parses the node strategies in a ConfigMap.
    pub(crate) fn from_data(data: &Strings) -> Self {
        let (config, _) = SloControllerConfig::parse(data);
        Self::from_config(&config, data)
    }

    /// Collects the names and selectors of the node strategies of a parsed ConfigMap.
    fn from_config(config: &SloControllerConfig, data: &Strings) -> Self {
        fn overrides_of<T>(key: &'static str, section: &Section<T>) -> Overrides {
            let named = |(at, node): (usize, &NodeOverride<T>)| {
                let name = match node.name.as_str() {
                    "" => format!("#{at}"),
                    name => name.to_owned(),
                };
                (name, node.selector.clone())
            };
            let entries = section.nodes.iter().enumerate().map(named).collect();
            Overrides { key, entries }
        }
        let suppress_config = data.get(suppress::CONFIG_KEY).map(String::as_str);
        Self(vec![
            overrides_of(keys::COLOCATION, &config.colocation),
            overrides_of(keys::RESOURCE_THRESHOLD, &config.resource_threshold),
            overrides_of(keys::RESOURCE_QOS, &config.resource_qos),
            overrides_of(keys::SYSTEM, &config.system),
            overrides_of(keys::CPU_BURST, &config.cpu_burst),
            overrides_of(keys::HOST_APPLICATION, &config.host_application),
            overrides_of(keys::CPU_NORMALIZATION, &config.cpu_normalization),
            overrides_of(keys::RESOURCE_AMPLIFICATION, &config.resource_amplification),
            Overrides {
                key: suppress::CONFIG_KEY,
                entries: suppress::overrides(suppress_config).unwrap_or_default(),
            },
        ])
    }

    fn retain_keys(mut self, keys: &BTreeSet<&str>) -> Self {
        self.0.retain(|section| keys.contains(section.key));
        self
    }

    /// Checks that no node is selected by two strategies of one key.
    ///
    /// # Errors
    /// Names the first such node and the strategies.
    pub(crate) fn conflict<'a>(
        &self,
        nodes: impl IntoIterator<Item = (&'a str, &'a Strings)>,
    ) -> Result<(), SettingsRefusal> {
        let several: Vec<_> = self.0.iter().filter(|s| s.entries.len() > 1).collect();
        if several.is_empty() {
            return Ok(());
        }
        for (node, labels) in nodes {
            for section in &several {
                let names = section.matching(labels);
                if names.len() > 1 {
                    // The spelling is upstream's.
                    let reason = "ExistNodeConfict";
                    return Err(SettingsRefusal::conflict(
                        reason,
                        section.key,
                        &names,
                        Some(node),
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Overrides {
    fn matching(&self, labels: &Strings) -> Vec<&str> {
        let matches = |selector: &Option<LabelSelector>| {
            let selector = selector.as_ref();
            selector.is_some_and(|s| selector::matches(s, labels).unwrap_or(false))
        };
        let matching = self
            .entries
            .iter()
            .filter(|(_, selector)| matches(selector));
        matching.map(|(name, _)| name.as_str()).collect()
    }

    /// Checks the names and selectors, each strategy by itself.
    fn check(&self, names_needed: bool) -> Result<(), SettingsRefusal> {
        let key = self.key;
        let mut names = BTreeSet::new();
        for (at, (name, selector)) in self.entries.iter().enumerate() {
            let empty = |selector: &LabelSelector| {
                selector
                    .match_labels
                    .as_ref()
                    .is_none_or(BTreeMap::is_empty)
                    && selector
                        .match_expressions
                        .as_ref()
                        .is_none_or(Vec::is_empty)
            };
            if selector.as_ref().is_none_or(empty) {
                let message = format!("{key}: override {name:?}: nodeSelector is empty");
                return Err(SettingsRefusal::invalid(message));
            }
            if let Some(reason) = selector.as_ref().and_then(invalid_label) {
                let message = format!("{key}: override {name:?}: nodeSelector: {reason}");
                return Err(SettingsRefusal::invalid(message));
            }
            if !names_needed {
                continue;
            }
            if *name == format!("#{at}") {
                return Err(SettingsRefusal::invalid(format!(
                    "{key}: override {name:?} has no name"
                )));
            }
            if !names.insert(name) {
                let message = format!("{key}: two overrides have the name {name:?}");
                return Err(SettingsRefusal::invalid(message));
            }
        }
        Ok(())
    }

    /// Checks that no sample node of one selector is selected by another one, too.
    fn overlap(&self) -> Result<(), SettingsRefusal> {
        for labels in self
            .entries
            .iter()
            .flat_map(|(_, s)| sample_nodes(s.as_ref()))
        {
            let names = self.matching(&labels);
            if names.len() > 1 {
                let reason = "NodeStrategiesOverlap";
                return Err(SettingsRefusal::conflict(reason, self.key, &names, None));
            }
        }
        Ok(())
    }
}

/// Returns the problem with a label in a selector that no object can have; `None` if there is none.
pub(super) fn invalid_label(selector: &LabelSelector) -> Option<String> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| (key.as_str(), value.as_str()));
    let required = selector.match_expressions.iter().flatten();
    let required = required.flat_map(|expression| {
        // Requirements without values have a key, too.
        let values = expression.values.iter().flatten().map(String::as_str);
        std::iter::once("")
            .chain(values)
            .map(|value| (&*expression.key, value))
    });
    labels
        .chain(required)
        .find_map(|(key, value)| label_problem(key, value))
}

/// Returns the labels of sample nodes that a selector matches: its labels plus, in the k-th sample, the k-th
/// value (modulo their number) of each requirement that has values. As coarse as upstream's check.
fn sample_nodes(selector: Option<&LabelSelector>) -> Vec<Strings> {
    let Some(selector) = selector else {
        return Vec::new();
    };
    let with_values = || {
        let all = selector.match_expressions.iter().flatten();
        all.filter_map(|e| Some((&e.key, e.values.as_ref().filter(|v| !v.is_empty())?)))
    };
    let product = with_values().fold(1, |n: usize, (_, values)| n.saturating_mul(values.len()));
    let labels = selector.match_labels.clone().unwrap_or_default();
    (0..product.min(MAX_SAMPLE_NODES))
        .map(|k| {
            let mut labels = labels.clone();
            for (key, values) in with_values() {
                if let Some(value) = values.get(k % values.len()) {
                    labels.insert(key.clone(), value.clone());
                }
            }
            labels
        })
        .collect()
}

/// Checks the keys of `data` that have a text and differ from `old`, and returns warnings.
///
/// # Errors
/// The first key that is refused, with all its problems.
fn check(
    data: &Strings,
    old: &Strings,
    settings: &dyn SettingsSource,
) -> Result<Vec<String>, SettingsRefusal> {
    let changed = |key: &&str| {
        let text = data.get(*key).filter(|text| !text.is_empty());
        text.is_some() && text != old.get(*key)
    };
    let changed: BTreeSet<&str> = ORDER.into_iter().filter(changed).collect();
    let (config, report) = SloControllerConfig::parse(data);
    let problems = || {
        let refused = report.errors.iter().chain(&report.warnings);
        refused.chain(&report.left_out).chain(&report.doubts)
    };
    for key in ORDER.into_iter().filter(|key| changed.contains(key)) {
        let of_key = || problems().filter(|problem| problem.key == key);
        let unreadable = of_key().find(|p| matches!(p.problem, ConfigProblem::Read(_)));
        if let Some(problem) = unreadable {
            return Err(SettingsRefusal {
                reason: "ParseConfigFail",
                message: problem.to_string().into(),
            });
        }
        let mut messages: Vec<String> = of_key().map(ToString::to_string).collect();
        if key == keys::RESOURCE_QOS {
            let total = data.get(keys::SYSTEM).is_some_and(|text| !text.is_empty());
            messages.extend(network::violations(&config, total));
        }
        if !messages.is_empty() {
            return Err(SettingsRefusal::invalid(messages.join("; ")));
        }
    }
    let suppress_config = data.get(suppress::CONFIG_KEY).map(String::as_str);
    let remarks = report.remarks.iter();
    let remarks = remarks.filter(|remark| changed.contains(remark.key));
    let mut warnings: Vec<String> = remarks.map(ToString::to_string).collect();
    if changed.contains(suppress::CONFIG_KEY) {
        let unreadable = |problem: String| SettingsRefusal {
            reason: "ParseConfigFail",
            message: problem.into(),
        };
        let problems = suppress::check(suppress_config.unwrap_or_default()).map_err(unreadable)?;
        let (refused, odd): (Vec<_>, Vec<_>) =
            problems.into_iter().partition(|(_, refused)| *refused);
        if !refused.is_empty() {
            let messages: Vec<String> = refused.into_iter().map(|(message, _)| message).collect();
            return Err(SettingsRefusal::invalid(messages.join("; ")));
        }
        warnings.extend(odd.into_iter().map(|(message, _)| message));
    }
    for key in keys_with_value(old).difference(&keys_with_value(data)) {
        let reason = "its settings are removed; an event on the ConfigMap reports what is in force";
        warnings.push(format!("{key}: {reason}"));
    }
    let sections = Sections::from_config(&config, data).retain_keys(&changed);
    for section in &sections.0 {
        section.check(settings.requires_names())?;
        section.overlap()?;
    }
    let nodes = settings.nodes();
    sections.conflict(nodes.iter().map(|(name, labels)| (name.as_str(), labels)))?;
    Ok(warnings)
}

/// Returns the problems of `data` that its parser does not find: the key, the message, and true if [`check`] refuses
/// them.
pub(super) fn problems_of_sections(data: &Strings) -> Vec<(&'static str, String, bool)> {
    let (config, report) = SloControllerConfig::parse(data);
    let mut problems = Vec::new();
    let total = data.get(keys::SYSTEM).is_some_and(|text| !text.is_empty());
    if !report.failed(keys::RESOURCE_QOS) {
        for problem in network::violations(&config, total) {
            let key = keys::RESOURCE_QOS;
            problems.push((key, format!("{key}: {problem}"), true));
        }
    }
    let key = suppress::CONFIG_KEY;
    match suppress::check(data.get(key).map_or("{}", String::as_str)) {
        Ok(found) => problems.extend(
            found
                .into_iter()
                .map(|(message, is_refused)| (key, message, is_refused)),
        ),
        Err(problem) => problems.push((key, problem, true)),
    }
    for section in Sections::from_config(&config, data).0 {
        let is_selector = |problem: &&ConfigError| {
            problem.key == section.key && matches!(problem.problem, ConfigProblem::Selector { .. })
        };
        if report.warnings.iter().any(|problem| is_selector(&problem)) {
            continue;
        }
        if let Err(refusal) = section.check(false).and_then(|()| section.overlap()) {
            problems.push((section.key, refusal.sentence(), true));
        }
    }
    problems
}

/// Creates the handler that validates the ConfigMap with the SLO settings.
pub(super) fn validating(deps: &Deps) -> Arc<dyn Handler> {
    Arc::new(ConfigMapValidator {
        settings: deps.settings.clone(),
        metrics: deps.metrics.clone(),
    })
}

struct ConfigMapValidator {
    settings: Arc<dyn SettingsSource>,
    metrics: WebhookMetrics,
}

impl Handler for ConfigMapValidator {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(std::future::ready(self.validate(&request)))
    }
}

impl ConfigMapValidator {
    fn validate(&self, request: &Request) -> Answer {
        let key = self.settings.key();
        let about_it = request.resource.resource == "configmaps"
            && request.namespace == key.namespace
            && request.name == key.name;
        let (Some(object), true) = (&request.object, about_it) else {
            return Answer::allow();
        };
        if request.operation == Operation::Delete {
            return Answer::allow();
        }
        let data = |object: &Value| json::texts(object, &["data"]);
        let old = request.old_object.as_ref().map(data).unwrap_or_default();
        let steps = self
            .metrics
            .steps("validate", "configmap", request.operation.as_str());
        let step = steps.start("SLOConfig");
        match step.stop(check(&data(object), &old, &*self.settings)) {
            Ok(warnings) => Answer::Allow { warnings },
            Err(refusal) => Answer::deny(400, refusal.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
