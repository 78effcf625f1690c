//! A topology spread constraint of a pod.

use crate::rules::allows;
use crate::state::{NodeInfo, PodInfo};
use k8s_openapi::api::core::v1::{NodeSelector, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;
use koord_model::nodes::untolerated;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A constraint and the nodes that it applies to. Constraints of pods with equal requirements are equal.
#[derive(Debug, Clone)]
pub(super) struct Constraint {
    pub(super) max_skew: i32,
    pub(super) topology_key: String,
    /// Pod selector; without one, no pod matches.
    selector: Option<LabelSelector>,
    /// Labels of `matchLabelKeys` with the pod's values.
    labels: BTreeMap<String, String>,
    /// Node selector and affinity of the pod, if they count.
    nodes: Option<(BTreeMap<String, String>, Option<NodeSelector>)>,
    /// Tolerations of the pod, if taints count.
    tolerations: Option<Vec<Toleration>>,
    pod: Arc<PodInfo>,
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        self.max_skew == other.max_skew
            && self.topology_key == other.topology_key
            && self.selector == other.selector
            && self.labels == other.labels
            && self.nodes == other.nodes
            && self.tolerations == other.tolerations
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, skew) = (&self.topology_key, self.max_skew);
        write!(
            f,
            "the spread over {key} with maxSkew {skew} of {}",
            self.pod.name
        )
    }
}

impl Constraint {
    pub(super) fn new(of: &TopologySpreadConstraint, pod: &Arc<PodInfo>) -> Self {
        let keys = of.match_label_keys.iter().flatten();
        let labels = keys.filter_map(|key| Some((key.clone(), pod.label(key)?.to_owned())));
        let honours = |policy: &Option<String>, by_default| match policy.as_deref() {
            Some(policy) => policy == "Honor",
            None => by_default,
        };
        let nodes = honours(&of.node_affinity_policy, true).then(|| {
            let affinity = pod.shape.affinity.as_ref();
            let affinity = affinity.and_then(|affinity| affinity.node_affinity.clone());
            let required =
                affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution);
            (pod.shape.node_selector.clone(), required)
        });
        let taints = honours(&of.node_taints_policy, false);
        Self {
            max_skew: of.max_skew,
            topology_key: of.topology_key.clone(),
            selector: of.label_selector.clone(),
            labels: labels.collect(),
            nodes,
            tolerations: taints.then(|| pod.shape.tolerations.clone()),
            pod: pod.clone(),
        }
    }

    /// Returns true if the constraint counts `pod`.
    pub(super) fn selects(&self, pod: &PodInfo) -> bool {
        let mut labels = self.labels.iter();
        labels.all(|(key, value)| pod.label(key) == Some(value))
            && self.selector.as_ref().is_some_and(|selector| {
                selector::matches(selector, &pod.shape.labels).unwrap_or(false)
            })
    }

    /// Returns true if the constraint includes `node`.
    pub(super) fn includes(&self, node: &NodeInfo) -> bool {
        let tolerations = self.tolerations.as_ref();
        (self.nodes.is_none() || allows(&self.pod.shape, node))
            && tolerations
                .is_none_or(|tolerations| untolerated(tolerations, &node.taints).is_none())
    }
}
