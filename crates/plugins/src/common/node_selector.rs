//! A pod's node selector and required node affinity: matching and signatures.

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorTerm};
use koord_model::nodes;
use koord_scheduler::framework::Signature;
use koord_scheduler::state::{NodeInfo, PodInfo};
use std::collections::{BTreeMap, BTreeSet};

/// A pod's node selector and required node affinity, copied once per scheduling cycle.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RequiredNodeAffinity {
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) required: Option<Vec<NodeSelectorTerm>>,
}

/// Writes a pod's `nodeSelector` to `signature`.
pub(crate) fn sign_selector(
    selector: Option<&BTreeMap<String, String>>,
    signature: &mut Signature,
) {
    signature.count(selector.map_or(0, BTreeMap::len));
    for (key, value) in selector.into_iter().flatten() {
        signature.text(key);
        signature.text(value);
    }
}

/// Writes node selector terms, of which one has to match, to `signature`.
pub(crate) fn sign_terms(terms: &[NodeSelectorTerm], signature: &mut Signature) {
    signature.count(terms.len());
    for term in terms {
        for requirements in [&term.match_expressions, &term.match_fields] {
            let requirements = requirements.as_deref().unwrap_or_default();
            signature.count(requirements.len());
            for requirement in requirements {
                signature.text(&requirement.key);
                signature.text(&requirement.operator);
                signature.texts(requirement.values.as_deref().unwrap_or_default());
            }
        }
    }
}

impl RequiredNodeAffinity {
    /// Copies the node selector and required node affinity of `pod`.
    pub(crate) fn from_pod(pod: &PodInfo) -> Self {
        let Some(spec) = pod.spec() else {
            return Self::default();
        };
        let required = affinity(pod)
            .and_then(|affinity| {
                affinity
                    .required_during_scheduling_ignored_during_execution
                    .as_ref()
            })
            .map(|selector| selector.node_selector_terms.clone());
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            required,
        }
    }

    /// Returns the names of the only nodes that can match, or `None` if some term does not require a node
    /// name. The terms of DaemonSet pods do.
    pub(crate) fn names(&self) -> Option<BTreeSet<&str>> {
        let mut all = BTreeSet::new();
        for term in self.required.as_ref().filter(|terms| !terms.is_empty())? {
            let mut named: Option<BTreeSet<&str>> = None;
            for field in term.match_fields.iter().flatten() {
                if field.key == "metadata.name" && field.operator == "In" {
                    let values = field.values.iter().flatten().map(String::as_str).collect();
                    named = Some(match named {
                        Some(before) => before.intersection(&values).copied().collect(),
                        None => values,
                    });
                }
            }
            all.append(&mut named?);
        }
        Some(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.required.is_none()
    }

    /// Returns true if `node` matches the selector and one of the terms.
    pub(crate) fn matches(&self, node: &NodeInfo) -> bool {
        self.selector
            .iter()
            .all(|(key, value)| node.label(key) == Some(value))
            && self
                .required
                .as_ref()
                .is_none_or(|terms| any_term(terms, node))
    }
}

/// Returns the node affinity of `pod`.
pub(crate) fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.spec()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// Returns true if `node` matches one of `terms`; a term without requirements matches nothing.
pub(crate) fn any_term(terms: &[NodeSelectorTerm], node: &NodeInfo) -> bool {
    nodes::any_term(terms, &node.name, |key| node.label(key))
}

pub(crate) fn term_matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    nodes::term_matches(term, &node.name, |key| node.label(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(labels: Value) -> NodeInfo {
        let node = serde_json::from_value(json!({"metadata": {"name": "n1", "labels": labels}}));
        let table = koord_model::resources::ResourceTable::new();
        NodeInfo::new(std::sync::Arc::new(node.unwrap()), None, &table).0
    }

    fn term(value: Value) -> NodeSelectorTerm {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn operators_follow_the_api() {
        let node = node(json!({"zone": "a", "cores": "16"}));
        let expression = |key: &str, operator: &str, values: &[&str]| {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            term_matches(&term(json!({"matchExpressions": [requirement]})), &node)
        };
        assert!(expression("zone", "In", &["a", "b"]));
        assert!(!expression("zone", "NotIn", &["a"]));
        assert!(
            expression("other", "NotIn", &["a"]),
            "an absent label is not in any list"
        );
        assert!(expression("zone", "Exists", &[]) && !expression("zone", "DoesNotExist", &[]));
        assert!(expression("cores", "Gt", &["8"]) && !expression("cores", "Lt", &["16"]));
        assert!(!expression("zone", "Gt", &["8"]), "not a number");
    }

    #[test]
    fn names_lists_nodes_if_every_term_names_some() {
        let field = |operator: &str, values: &[&str]| json!({"key": "metadata.name", "operator": operator, "values": values});
        let zone = json!({"key": "zone", "operator": "Exists"});
        type Case<'a> = (&'a str, Vec<Value>, Option<&'a [&'a str]>);
        let cases: [Case<'_>; 5] = [
            ("nothing required", vec![], None),
            (
                "a daemon pod and one more",
                vec![
                    json!({"matchFields": [field("In", &["n1"])], "matchExpressions": [zone]}),
                    json!({"matchFields": [field("In", &["n2"])]}),
                ],
                Some(&["n1", "n2"]),
            ),
            (
                "one term names none",
                vec![
                    json!({"matchFields": [field("In", &["n1"])]}),
                    json!({"matchExpressions": [zone]}),
                ],
                None,
            ),
            (
                "all but one",
                vec![json!({"matchFields": [field("NotIn", &["n1"])]})],
                None,
            ),
            (
                "requirements of a term add up",
                vec![json!({"matchFields": [field("In", &["n1"]), field("In", &["n2"])]})],
                Some(&[]),
            ),
        ];
        for (case, terms, expected) in cases {
            let required_affinity = RequiredNodeAffinity {
                required: Some(terms.into_iter().map(term).collect()),
                ..RequiredNodeAffinity::default()
            };
            let expected = expected.map(|names| names.iter().copied().collect());
            assert_eq!(required_affinity.names(), expected, "{case}");
        }
    }

    #[test]
    fn empty_term_matches_nothing() {
        let node = node(json!({}));
        assert!(!term_matches(&NodeSelectorTerm::default(), &node));
        let by_name = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        assert!(term_matches(
            &term(json!({"matchFields": [by_name]})),
            &node
        ));
    }
}
