//! A section of the ConfigMap: a cluster strategy and overrides for nodes.

use super::text_rules::{self, Rule};
use super::{ConfigError, ConfigProblem, FieldError, Report, duplicates, rollout, unknown};
use crate::lenient::{self, ReadError};
use crate::{merge, selector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Strategy for the cluster and overrides for some nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Section<T> {
    /// Strategy of nodes without an override; defaults are filled in.
    pub cluster: T,
    /// Overrides, in the order they are tried.
    pub nodes: Vec<NodeOverride<T>>,
}

/// Strategy of the nodes that a selector matches.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeOverride<T> {
    /// Informational name.
    pub name: String,
    /// Selector of the nodes; `None` matches none, an empty selector matches all.
    pub selector: Option<LabelSelector>,
    /// Percentage of the selected nodes that it applies to, by [`rollout::bucket`].
    pub rollout_percent: u8,
    /// The override merged over the cluster strategy.
    pub strategy: T,
}

/// Layout of a section's JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Cluster strategy at the top, overrides in `nodeConfigs`.
    Inline,
    /// `clusterStrategy` and `nodeStrategies`.
    Nested,
}

/// Problems with the values of a strategy, by consequence.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Violations for which the strategy is rejected.
    pub(super) rejections: Vec<FieldError>,
    /// Violations with which the strategy is accepted, as upstream accepts it when its ConfigMap webhook is
    /// off.
    pub(super) doubts: Vec<FieldError>,
    /// Settings with an unexpected effect, which upstream does not report.
    pub(super) remarks: Vec<FieldError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    name: String,
    node_selector: Option<LabelSelector>,
    #[serde(default)]
    rollout_percent: Option<Value>,
}

struct ParsedSection<T> {
    cluster: T,
    nodes: Vec<(Header, T, Vec<FieldError>)>,
    unknown: Vec<FieldError>,
    /// Invalid enumerated values of the cluster strategy. Those of an override are in `nodes`.
    left_out: Vec<FieldError>,
}

impl<T> Section<T> {
    /// Creates a section without overrides.
    pub(super) fn without_overrides(cluster: T) -> Self {
        Self {
            cluster,
            nodes: Vec::new(),
        }
    }

    /// Returns the strategy of the node `name` with `labels`: that of the first override that applies to it,
    /// otherwise the cluster strategy. An invalid selector matches no node.
    #[must_use]
    pub fn for_node(&self, name: &str, labels: &BTreeMap<String, String>) -> &T {
        self.override_for_node(name, labels)
            .map_or(&self.cluster, |matched| &matched.strategy)
    }

    /// Returns the override that applies to the node `name` with `labels`; `None` means the cluster strategy.
    #[must_use]
    pub fn override_for_node(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Option<&NodeOverride<T>> {
        self.nodes.get(self.place_for_node(name, labels)?)
    }

    /// Returns the index in [`Self::nodes`] of the override that applies to the node `name` with `labels`: the
    /// first one whose selector matches and whose roll-out includes the node.
    pub(super) fn place_for_node(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Option<usize> {
        let bucket = rollout::bucket(name);
        let matches =
            |selector: &LabelSelector| selector::matches(selector, labels).unwrap_or(false);
        self.nodes.iter().position(|node| {
            bucket < node.rollout_percent && node.selector.as_ref().is_some_and(matches)
        })
    }
}

impl<T: Serialize + DeserializeOwned + Clone> Section<T> {
    /// Reads a section; keeps the previous one and reports an error if it is invalid.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call site, all parts differ by section"
    )]
    pub(super) fn update(
        &mut self,
        key: &'static str,
        text: &str,
        standard: &T,
        shape: Shape,
        rules: &[Rule],
        report: &mut Report,
        faults: impl Fn(&T) -> Faults,
    ) {
        let to_config_error = |problem| ConfigError { key, problem };
        let read = match Self::read(key, text, standard, shape, rules) {
            Ok(read) => read,
            Err(error) => {
                report.errors.push(to_config_error(error.into()));
                return;
            }
        };
        let ParsedSection {
            cluster,
            nodes,
            unknown,
            left_out,
        } = read;
        let findings = faults(&cluster);
        let to_errors =
            |errors: Vec<FieldError>| errors.into_iter().map(|e| to_config_error(e.into()));
        if !findings.rejections.is_empty() {
            report.errors.extend(to_errors(findings.rejections));
            return;
        }
        report.left_out.extend(to_errors(left_out));
        report.doubts.extend(to_errors(findings.doubts));
        report.remarks.extend(to_errors(unknown));
        let cluster_remarks = findings.remarks;
        report.remarks.extend(to_errors(cluster_remarks.clone()));
        let mut overrides = Vec::with_capacity(nodes.len());
        for (position, (header, settings, left_out)) in nodes.into_iter().enumerate() {
            let name = if header.name.is_empty() {
                format!("#{position}")
            } else {
                header.name.clone()
            };
            let selector_error = match &header.node_selector {
                None => Some(None),
                Some(selector) => selector::matches(selector, &BTreeMap::new())
                    .err()
                    .map(Some),
            };
            if let Some(error) = selector_error {
                let name = name.clone();
                report
                    .warnings
                    .push(to_config_error(ConfigProblem::Selector { name, error }));
            }
            let rollout_percent = rollout::parse(header.rollout_percent.as_ref());
            let rollout_percent = rollout_percent.unwrap_or_else(|error| {
                let name = name.clone();
                report
                    .warnings
                    .push(to_config_error(ConfigProblem::NodeField { name, error }));
                0
            });
            let mut strategy = match merge::merged(&cluster, &settings) {
                Ok(strategy) => strategy,
                Err(error) => {
                    let error = ReadError::Field {
                        path: name.clone(),
                        message: error.to_string(),
                    };
                    report.warnings.push(to_config_error(error.into()));
                    cluster.clone()
                }
            };
            let findings = faults(&strategy);
            let to_errors = |error| {
                let name = name.clone();
                to_config_error(ConfigProblem::NodeField { name, error })
            };
            if findings.rejections.is_empty() {
                report.left_out.extend(left_out.into_iter().map(&to_errors));
                report
                    .doubts
                    .extend(findings.doubts.into_iter().map(&to_errors));
                let mut own_remarks = findings.remarks;
                own_remarks.retain(|remark| !cluster_remarks.contains(remark));
                report
                    .remarks
                    .extend(own_remarks.into_iter().map(to_errors));
            } else {
                strategy = cluster.clone();
                report
                    .warnings
                    .extend(findings.rejections.into_iter().map(to_errors));
            }
            overrides.push(NodeOverride {
                name: header.name,
                selector: header.node_selector,
                rollout_percent,
                strategy,
            });
        }
        *self = Self {
            cluster,
            nodes: overrides,
        };
    }

    /// Parses the text of a section over the defaults.
    fn read(
        key: &str,
        text: &str,
        standard: &T,
        shape: Shape,
        rules: &[Rule],
    ) -> Result<ParsedSection<T>, ReadError> {
        if text.trim().is_empty() {
            return Ok(ParsedSection {
                cluster: standard.clone(),
                nodes: Vec::new(),
                unknown: Vec::new(),
                left_out: Vec::new(),
            });
        }
        let document: Value =
            serde_json::from_str(text).map_err(|error| ReadError::Syntax(error.to_string()))?;
        let (cluster_value, nodes_key) = match shape {
            Shape::Inline => (Some(&document), "nodeConfigs"),
            Shape::Nested => (
                lenient::member(&document, "clusterStrategy"),
                "nodeStrategies",
            ),
        };
        if !document.is_object() && !document.is_null() {
            return Err(ReadError::Field {
                path: ".".to_owned(),
                message: format!("invalid type: {document}, expected an object"),
            });
        }
        let mut strategy_value = cluster_value.cloned().unwrap_or_default();
        let left_out = text_rules::remove_invalid(&mut strategy_value, rules);
        let strategy_value: T =
            lenient::from_value(&strategy_value).map_err(|error| match shape {
                Shape::Inline => error,
                Shape::Nested => below("clusterStrategy", error),
            })?;
        let cluster =
            merge::merged(standard, &strategy_value).map_err(|error| ReadError::Field {
                path: ".".to_owned(),
                message: error.to_string(),
            })?;
        let mut unknown = duplicates::fields(text);
        unknown.extend(match (shape, cluster_value) {
            (Shape::Inline, _) => unknown::fields(key, &document, "", &[nodes_key]),
            (Shape::Nested, strategy_value) => {
                let mut unknown_fields =
                    unknown::members(&document, &["clusterStrategy", nodes_key]);
                let below = strategy_value.map(|strategy_value| {
                    unknown::fields(key, strategy_value, "clusterStrategy", &[])
                });
                unknown_fields.extend(below.into_iter().flatten());
                unknown_fields
            }
        });
        let mut nodes = Vec::new();
        match lenient::member(&document, nodes_key) {
            None | Some(Value::Null) => {}
            Some(Value::Array(items)) => {
                for (position, item) in items.iter().enumerate() {
                    let item_path = format!("{nodes_key}[{position}]");
                    let header =
                        lenient::from_value(item).map_err(|error| below(&item_path, error))?;
                    let mut strategy_value = item.clone();
                    let left_out = text_rules::remove_invalid(&mut strategy_value, rules);
                    let strategy_value = lenient::from_value(&strategy_value)
                        .map_err(|error| below(&item_path, error))?;
                    unknown.extend(unknown::fields(
                        key,
                        item,
                        &item_path,
                        &["name", "nodeSelector", rollout::FIELD],
                    ));
                    nodes.push((header, strategy_value, left_out));
                }
            }
            Some(other) => {
                return Err(ReadError::Field {
                    path: nodes_key.to_owned(),
                    message: format!("invalid type: {other}, expected a list"),
                });
            }
        }
        Ok(ParsedSection {
            cluster,
            nodes,
            unknown,
            left_out,
        })
    }
}

/// Prepends `prefix` to the path of an error.
fn below(prefix: &str, error: ReadError) -> ReadError {
    match error {
        ReadError::Field { path, message } if path == "." => ReadError::Field {
            path: prefix.to_owned(),
            message,
        },
        ReadError::Field { path, message } => ReadError::Field {
            path: format!("{prefix}.{path}"),
            message,
        },
        syntax @ ReadError::Syntax(_) => syntax,
    }
}
