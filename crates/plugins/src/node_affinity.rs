//! `NodeAffinity`: node selectors, required and preferred node affinity.

use crate::common::args;
use crate::common::hostname_index::HostnameIndex;
use crate::common::node_selector::{
    RequiredNodeAffinity, affinity, any_term, sign_selector, sign_terms, term_matches,
};
use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorTerm};
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects, Filter, Holders,
    Interest, Normalize, ObjectEvents, Plugin, Points, PreFilter, PreFilterResult, PreScore,
    PreScoreResult, QueueHints, QueueingHint, Rejection, Roles, Score, Sign, Signable, Signature,
    State, Subject, Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde::Deserialize;
use serde_json::Value;

const NAME: &str = "NodeAffinity";
const NO_MATCH: &str = "node(s) didn't match Pod's node affinity/selector";
const CONFLICT: &str = "pod affinity terms conflict";
const NO_ADDED_MATCH: &str = "node(s) didn't match scheduler-enforced node affinity";

/// NodeAffinityArgs.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    added_affinity: Option<Affinity>,
}

/// State of the `NodeAffinity` plugin.
#[derive(Debug, Default)]
pub(crate) struct NodeAffinity {
    /// Affinity that the profile adds to every pod.
    added: Option<Affinity>,
    hosts: HostnameIndex,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    _context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = args::decode(NAME, value)?;
    Ok(Box::new(NodeAffinity {
        added: args.added_affinity,
        hosts: HostnameIndex::default(),
    }))
}

impl NodeAffinity {
    /// Returns the required terms that the profile adds.
    fn added_terms(&self) -> Option<&[NodeSelectorTerm]> {
        let added = self.added.as_ref()?;
        let required = added
            .required_during_scheduling_ignored_during_execution
            .as_ref()?;
        Some(&required.node_selector_terms)
    }

    /// Returns the weight and the term of each preference.
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
    const ROLES: Roles<Self> = Roles::none()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .object_events();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Sign for NodeAffinity {
    fn sign(&self, pod: &PodInfo, _: &ResourceTable, signature: &mut Signature) -> Signable {
        let selector = pod.spec().and_then(|spec| spec.node_selector.as_ref());
        sign_selector(selector, signature);
        let Some(affinity) = affinity(pod) else {
            signature.number(-1);
            return Signable::Yes;
        };
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        // An empty list of terms matches nothing; a missing one matches everything.
        signature.flag(required.is_some());
        let terms = required.as_ref().map(|all| &all.node_selector_terms[..]);
        sign_terms(terms.unwrap_or_default(), signature);
        let preferred = &affinity.preferred_during_scheduling_ignored_during_execution;
        for term in preferred.iter().flatten() {
            signature.number(term.weight.into());
            sign_terms(std::slice::from_ref(&term.preference), signature);
        }
        Signable::Yes
    }
}

impl PreFilter for NodeAffinity {
    fn only_nodes(&self, cycle: &Cycle<'_>, state: &State) -> Option<Vec<NodeIndex>> {
        let required_affinity = state.get::<RequiredNodeAffinity>()?;
        if let Some(name) = required_affinity.selector.get("kubernetes.io/hostname") {
            return Some(self.hosts.nodes(name).to_vec());
        }
        let terms = required_affinity.required.as_ref()?;
        self.hosts.candidate_nodes(terms, cycle.view.nodes)
    }
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let required_affinity = RequiredNodeAffinity::from_pod(cycle.pod);
        if required_affinity.is_empty() && self.added_terms().is_none() {
            return PreFilterResult::Skip;
        }
        let nodes = match required_affinity.names() {
            Some(names) if names.is_empty() => {
                return PreFilterResult::Reject(Rejection::unresolvable(CONFLICT));
            }
            Some(names) => {
                let nodes = names.iter().filter_map(|name| cycle.view.nodes.find(name));
                Some(nodes.collect())
            }
            None => None,
        };
        PreFilterResult::Ready {
            state: State::new(required_affinity),
            nodes,
        }
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(info) = cycle.view.nodes.info(node) else {
            return Ok(());
        };
        if self
            .added_terms()
            .is_some_and(|terms| !any_term(terms, info))
        {
            return Err(Rejection::unresolvable(NO_ADDED_MATCH));
        }
        if state
            .get::<RequiredNodeAffinity>()
            .is_some_and(|required_affinity| !required_affinity.matches(info))
        {
            return Err(Rejection::unresolvable(NO_MATCH));
        }
        Ok(())
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        let preferences = self.preferences(cycle.pod);
        if preferences.is_empty() {
            return PreScoreResult::Skip;
        }
        PreScoreResult::Ready(State::new(preferences))
    }
}

impl Score for NodeAffinity {
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

impl QueueHints for NodeAffinity {
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
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        match event.node {
            Some(node) if !RequiredNodeAffinity::from_pod(pod).matches(node) => QueueingHint::Skip,
            _ => QueueingHint::Queue,
        }
    }
}

impl ObjectEvents for NodeAffinity {
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let info = view.nodes.info(node);
        self.hosts.set(node, info.map(|info| &**info));
    }
}
