//! `NodeAffinity`: node selectors, required and preferred node affinity.

use crate::args;
use crate::hosts::Hosts;
use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorTerm};
use koord_model::nodes;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, Bookkeeping, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Helps, Holders,
    Interest, Normalize, Plugin, Points, PreFilter, PreScore, Rejection, Signable, Signature,
    State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, NodeInfo, PodInfo};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const NAME: &str = "NodeAffinity";
const NO_MATCH: &str = "node(s) didn't match Pod's node affinity/selector";
const CONFLICT: &str = "pod affinity terms conflict";
const NOT_ADDED: &str = "node(s) didn't match scheduler-enforced node affinity";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    added_affinity: Option<Affinity>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct NodeAffinity {
    /// Affinity that the profile adds to every pod.
    added: Option<Affinity>,
    hosts: Hosts,
}

/// The pod's side, taken once per cycle.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wanted {
    selector: BTreeMap<String, String>,
    required: Option<Vec<NodeSelectorTerm>>,
}

/// Writes a pod's `nodeSelector`.
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

/// Writes terms of which one has to match.
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

impl Wanted {
    pub(crate) fn of(pod: &PodInfo) -> Self {
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

    /// The only nodes that can match, where every term names its nodes, as those of daemon pods do.
    fn names(&self) -> Option<BTreeSet<&str>> {
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

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.spec()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// Whether one of `terms` matches; a term without requirements matches nothing.
pub(crate) fn any_term(terms: &[NodeSelectorTerm], node: &NodeInfo) -> bool {
    nodes::any_term(terms, &node.name, |key| node.label(key))
}

fn term_matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    nodes::term_matches(term, &node.name, |key| node.label(key))
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<Box<dyn Plugin>, BuildError> {
    let args: Args = args::decode(NAME, value)?;
    Ok(Box::new(NodeAffinity {
        added: args.added_affinity,
        hosts: Hosts::default(),
    }))
}

impl NodeAffinity {
    fn added_terms(&self) -> Option<&[NodeSelectorTerm]> {
        let added = self.added.as_ref()?;
        let required = added
            .required_during_scheduling_ignored_during_execution
            .as_ref()?;
        Some(&required.node_selector_terms)
    }

    /// Weights and terms of all preferences.
    fn preferences(&self, pod: &PodInfo) -> Vec<(i64, NodeSelectorTerm)> {
        let sources = affinity(pod).into_iter().chain(&self.added);
        sources
            .flat_map(|affinity| {
                affinity
                    .preferred_during_scheduling_ignored_during_execution
                    .iter()
                    .flatten()
            })
            .map(|term| (i64::from(term.weight), term.preference.clone()))
            .filter(|(weight, _)| *weight != 0)
            .collect()
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
    }
    fn books(&mut self) -> Option<&mut dyn Bookkeeping> {
        Some(self)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
    fn interests(&self) -> Vec<Interest> {
        vec![
            Interest {
                subject: Subject::Node,
                actions: Action::ADD.or(Action::NODE_LABEL),
            },
            Interest {
                subject: Subject::UnscheduledPod,
                actions: Action::POD_SPEC,
            },
        ]
    }
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> Helps {
        match event.node {
            Some(node) if !Wanted::of(pod).matches(node) => Helps::Skip,
            _ => Helps::Queue,
        }
    }
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        let selector = pod.spec().and_then(|spec| spec.node_selector.as_ref());
        sign_selector(selector, signature);
        let Some(affinity) = affinity(pod) else {
            signature.number(-1);
            return Signable::Yes;
        };
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        // No terms match nothing, and none given match everything.
        signature.flag(required.is_some());
        let terms = required.as_ref().map(|all| &all.node_selector_terms[..]);
        sign_terms(terms.unwrap_or_default(), signature);
        let preferred = &affinity.preferred_during_scheduling_ignored_during_execution;
        for one in preferred.iter().flatten() {
            signature.number(one.weight.into());
            sign_terms(std::slice::from_ref(&one.preference), signature);
        }
        Signable::Yes
    }
    fn only_nodes(&self, cycle: &Cycle<'_>, state: &State) -> Option<Vec<NodeIndex>> {
        let wanted = state.get::<Wanted>()?;
        if let Some(name) = wanted.selector.get("kubernetes.io/hostname") {
            return Some(self.hosts.named(name).to_vec());
        }
        let terms = wanted.required.as_ref()?;
        self.hosts.of_terms(terms, cycle.view.nodes)
    }
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilter {
        let wanted = Wanted::of(cycle.pod);
        if wanted.is_empty() && self.added_terms().is_none() {
            return PreFilter::Skip;
        }
        let nodes = match wanted.names() {
            Some(names) if names.is_empty() => {
                return PreFilter::Reject(Rejection::unresolvable(CONFLICT));
            }
            Some(names) => {
                let found = names.iter().filter_map(|name| cycle.view.nodes.find(name));
                Some(found.collect())
            }
            None => None,
        };
        PreFilter::Ready {
            state: State::of(wanted),
            nodes,
        }
    }
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(info) = cycle.view.nodes.info(node) else {
            return Ok(());
        };
        if self
            .added_terms()
            .is_some_and(|terms| !any_term(terms, info))
        {
            return Err(Rejection::unresolvable(NOT_ADDED));
        }
        if state
            .get::<Wanted>()
            .is_some_and(|wanted| !wanted.matches(info))
        {
            return Err(Rejection::unresolvable(NO_MATCH));
        }
        Ok(())
    }
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScore {
        let preferences = self.preferences(cycle.pod);
        if preferences.is_empty() {
            return PreScore::Skip;
        }
        PreScore::Ready(State::of(preferences))
    }
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let Some(info) = cycle.view.nodes.info(node) else {
            return 0;
        };
        let preferences = state.get::<Vec<(i64, NodeSelectorTerm)>>();
        preferences
            .into_iter()
            .flatten()
            .filter(|(_, term)| term_matches(term, info))
            .map(|(weight, _)| weight)
            .sum()
    }
    fn normalization(&self) -> Normalize {
        Normalize::Max
    }
}

impl Bookkeeping for NodeAffinity {
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let info = view.nodes.info(node);
        self.hosts.set(node, info.map(|info| &**info));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
    fn nodes_that_all_terms_name_are_the_only_ones() {
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
            let wanted = Wanted {
                required: Some(terms.into_iter().map(term).collect()),
                ..Wanted::default()
            };
            let expected = expected.map(|names| names.iter().copied().collect());
            assert_eq!(wanted.names(), expected, "{case}");
        }
    }

    #[test]
    fn an_empty_term_matches_nothing_and_fields_match_the_name() {
        let node = node(json!({}));
        assert!(!term_matches(&NodeSelectorTerm::default(), &node));
        let by_name = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        assert!(term_matches(
            &term(json!({"matchFields": [by_name]})),
            &node
        ));
    }
}
