//! One section: a cluster strategy and overrides for nodes.

use super::words::{self, Rule};
use super::{ConfigError, ConfigProblem, FieldError, Report, duplicates, unknown};
use crate::lenient::{self, ReadError};
use crate::{merge, selector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A strategy for the cluster and overrides for some nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Section<T> {
    /// Strategy of nodes without an override; defaults are filled in.
    pub cluster: T,
    /// Overrides, in the order they are tried.
    pub nodes: Vec<NodeOverride<T>>,
}

/// A strategy for the nodes a selector picks.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeOverride<T> {
    /// Name, for people.
    pub name: String,
    /// Picks the nodes; `None` picks none, an empty selector all.
    pub selector: Option<LabelSelector>,
    /// The override laid over the cluster strategy.
    pub strategy: T,
}

/// How a section spells its two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Cluster strategy at the top, overrides in `nodeConfigs`.
    Inline,
    /// `clusterStrategy` and `nodeStrategies`.
    Nested,
}

/// What is wrong with the values of a strategy.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// With these it is not taken over.
    pub(super) refused: Vec<FieldError>,
    /// With these it is, as upstream takes it over where its ConfigMap webhook is off.
    pub(super) doubtful: Vec<FieldError>,
    /// What upstream says nothing about at all.
    pub(super) remarkable: Vec<FieldError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    name: String,
    node_selector: Option<LabelSelector>,
}

struct Raw<T> {
    cluster: T,
    nodes: Vec<(Header, T, Vec<FieldError>)>,
    unknown: Vec<FieldError>,
    /// Of the cluster's strategy; those of an override are beside it.
    left_out: Vec<FieldError>,
}

impl<T> Section<T> {
    /// A section without overrides.
    pub(super) fn of(cluster: T) -> Self {
        Self {
            cluster,
            nodes: Vec::new(),
        }
    }

    /// The strategy of a node: the first override whose selector matches its labels, else the
    /// cluster's. A malformed selector matches nothing.
    #[must_use]
    pub fn for_node(&self, labels: &BTreeMap<String, String>) -> &T {
        self.override_for_node(labels)
            .map_or(&self.cluster, |found| &found.strategy)
    }

    /// The override that applies to a node, if any.
    #[must_use]
    pub fn override_for_node(&self, labels: &BTreeMap<String, String>) -> Option<&NodeOverride<T>> {
        self.nodes.get(self.place_for_node(labels)?)
    }

    /// The place in [`Self::nodes`] of the override that applies to a node.
    pub(super) fn place_for_node(&self, labels: &BTreeMap<String, String>) -> Option<usize> {
        self.nodes.iter().position(|node| {
            node.selector
                .as_ref()
                .is_some_and(|selector| selector::matches(selector, labels).unwrap_or(false))
        })
    }
}

impl<T: Serialize + DeserializeOwned + Clone> Section<T> {
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
        let refused = |problem| ConfigError { key, problem };
        let read = match Self::read(key, text, standard, shape, rules) {
            Ok(read) => read,
            Err(error) => {
                report.errors.push(refused(error.into()));
                return;
            }
        };
        let Raw {
            cluster,
            nodes,
            unknown,
            left_out,
        } = read;
        let found = faults(&cluster);
        let told = |errors: Vec<FieldError>| errors.into_iter().map(|e| refused(e.into()));
        if !found.refused.is_empty() {
            report.errors.extend(told(found.refused));
            return;
        }
        report.left_out.extend(told(left_out));
        report.doubts.extend(told(found.doubtful));
        report.remarks.extend(told(unknown));
        let of_cluster = found.remarkable;
        report.remarks.extend(told(of_cluster.clone()));
        let mut overrides = Vec::with_capacity(nodes.len());
        for (position, (header, given, left_out)) in nodes.into_iter().enumerate() {
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
                    .push(refused(ConfigProblem::Selector { name, error }));
            }
            let mut strategy = match merge::merged(&cluster, &given) {
                Ok(strategy) => strategy,
                Err(error) => {
                    let error = ReadError::Field {
                        path: name.clone(),
                        message: error.to_string(),
                    };
                    report.warnings.push(refused(error.into()));
                    cluster.clone()
                }
            };
            let found = faults(&strategy);
            let told = |error| {
                let name = name.clone();
                refused(ConfigProblem::NodeField { name, error })
            };
            if found.refused.is_empty() {
                report.left_out.extend(left_out.into_iter().map(&told));
                report.doubts.extend(found.doubtful.into_iter().map(&told));
                let mut own = found.remarkable;
                own.retain(|remark| !of_cluster.contains(remark));
                report.remarks.extend(own.into_iter().map(told));
            } else {
                strategy = cluster.clone();
                report.warnings.extend(found.refused.into_iter().map(told));
            }
            overrides.push(NodeOverride {
                name: header.name,
                selector: header.node_selector,
                strategy,
            });
        }
        *self = Self {
            cluster,
            nodes: overrides,
        };
    }

    fn read(
        key: &str,
        text: &str,
        standard: &T,
        shape: Shape,
        rules: &[Rule],
    ) -> Result<Raw<T>, ReadError> {
        if text.trim().is_empty() {
            return Ok(Raw {
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
        let mut given = cluster_value.cloned().unwrap_or_default();
        let left_out = words::strip(&mut given, rules);
        let given: T = lenient::from_value(&given).map_err(|error| match shape {
            Shape::Inline => error,
            Shape::Nested => below("clusterStrategy", error),
        })?;
        let cluster = merge::merged(standard, &given).map_err(|error| ReadError::Field {
            path: ".".to_owned(),
            message: error.to_string(),
        })?;
        let mut unknown = duplicates::fields(text);
        unknown.extend(match (shape, cluster_value) {
            (Shape::Inline, _) => unknown::fields(key, &document, "", &[nodes_key]),
            (Shape::Nested, given) => {
                let mut found = unknown::members(&document, &["clusterStrategy", nodes_key]);
                let below = given.map(|given| unknown::fields(key, given, "clusterStrategy", &[]));
                found.extend(below.into_iter().flatten());
                found
            }
        });
        let mut nodes = Vec::new();
        match lenient::member(&document, nodes_key) {
            None | Some(Value::Null) => {}
            Some(Value::Array(items)) => {
                for (position, item) in items.iter().enumerate() {
                    let at = format!("{nodes_key}[{position}]");
                    let header = lenient::from_value(item).map_err(|error| below(&at, error))?;
                    let mut given = item.clone();
                    let left_out = words::strip(&mut given, rules);
                    let given = lenient::from_value(&given).map_err(|error| below(&at, error))?;
                    unknown.extend(unknown::fields(key, item, &at, &["name", "nodeSelector"]));
                    nodes.push((header, given, left_out));
                }
            }
            Some(other) => {
                return Err(ReadError::Field {
                    path: nodes_key.to_owned(),
                    message: format!("invalid type: {other}, expected a list"),
                });
            }
        }
        Ok(Raw {
            cluster,
            nodes,
            unknown,
            left_out,
        })
    }
}

/// Puts `prefix` before the path of an error.
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
