//! `RemovePodsViolatingNodeAffinity`: evicts pods that do not match the required affinity to their node any
//! more, or that prefer another node.

use super::free_capacity::FreeCapacity;
use super::{check_listed, check_namespaces, check_selected, try_evict};
use crate::framework::{Cycle, SkipReason, Strategy, StrategyError};
use crate::rules::{Namespaces, allows};
use crate::state::{NodeInfo, PodInfo};
use k8s_openapi::api::core::v1::{NodeAffinity, PreferredSchedulingTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_model::nodes::term_matches;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub(super) const NAME: &str = "RemovePodsViolatingNodeAffinity";

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// `RemovePodsViolatingNodeAffinityArgs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    node_affinity_type: Vec<String>,
}

pub(super) fn check(args: &Args) -> Result<(), String> {
    if args.node_affinity_type.is_empty() {
        return Err("nodeAffinityType: one has to be given".to_owned());
    }
    check_listed(
        "nodeAffinityType",
        &args.node_affinity_type,
        &[REQUIRED, PREFERRED],
    )?;
    check_namespaces(args.namespaces.as_ref())
}

#[derive(Debug)]
pub(super) struct ViolatingNodeAffinity(pub(super) Args);

/// The reason to evict a pod, and the preference weight that a target node must exceed: `None` for any node.
type Violation = (String, Option<i64>);

impl Strategy for ViolatingNodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let mut capacity = None;
        for kind in &self.0.node_affinity_type {
            let judge = match kind.as_str() {
                REQUIRED => required,
                _ => preferred,
            };
            self.each(cycle, &mut capacity, judge);
        }
        Ok(())
    }
}

impl ViolatingNodeAffinity {
    /// Evicts each selected pod for which `judge` finds a violation, if a suitable node has capacity for it.
    fn each(
        &self,
        cycle: &mut Cycle<'_>,
        capacity: &mut Option<FreeCapacity>,
        judge: fn(&PodInfo, &NodeInfo, &[Arc<NodeInfo>]) -> Option<Violation>,
    ) {
        let (snapshot, nodes) = (cycle.snapshot(), cycle.nodes());
        for node in nodes {
            for pod in cycle.active_on(&node.name) {
                let Some((reason, above)) = judge(pod, node, nodes) else {
                    continue;
                };
                if let Err(cause) = check_selected(
                    self.0.namespaces.as_ref(),
                    self.0.label_selector.as_ref(),
                    pod,
                ) {
                    cycle.skip_pod(pod, cause);
                    continue;
                }
                let better =
                    |node: &Arc<NodeInfo>| above.is_none_or(|above| weight(pod, node) > above);
                let mut targets = nodes.iter().filter(|node| better(node));
                let capacity = capacity.get_or_insert_with(|| FreeCapacity::after_moves(cycle));
                if targets.any(|node| capacity.can_take(snapshot, pod, node)) {
                    if try_evict(cycle, pod, reason) {
                        capacity.release(pod);
                    }
                } else {
                    let detail = format!(
                        "{reason}, but no such node has room: {}",
                        capacity.obstacles(snapshot, pod, nodes)
                    );
                    cycle.skip_pod(pod, SkipReason::new("NodeFit", detail));
                }
            }
        }
    }
}

fn affinity(pod: &PodInfo) -> Option<&NodeAffinity> {
    pod.shape.affinity.as_ref()?.node_affinity.as_ref()
}

fn required(pod: &PodInfo, node: &NodeInfo, _: &[Arc<NodeInfo>]) -> Option<Violation> {
    affinity(pod)?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let violated = !allows(&pod.shape, node);
    violated.then(|| {
        (
            format!("node {} is not one that it requires", node.name),
            None,
        )
    })
}

fn preferred(pod: &PodInfo, node: &NodeInfo, nodes: &[Arc<NodeInfo>]) -> Option<Violation> {
    if preferences(pod).is_empty() {
        return None;
    }
    let (here, best) = (
        weight(pod, node),
        nodes.iter().map(|node| weight(pod, node)).max()?,
    );
    let better = best > here;
    better.then(|| {
        let reason = format!("prefers another node to {} by {best} to {here}", node.name);
        (reason, Some(here))
    })
}

fn preferences(pod: &PodInfo) -> &[PreferredSchedulingTerm] {
    let preferred = affinity(pod).and_then(|affinity| {
        affinity
            .preferred_during_scheduling_ignored_during_execution
            .as_deref()
    });
    preferred.unwrap_or_default()
}

/// Returns the weight with which `pod` prefers `node`.
fn weight(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let terms = preferences(pod).iter();
    let terms =
        terms.filter(|term| term_matches(&term.preference, &node.name, |key| node.label(key)));
    terms.map(|term| i64::from(term.weight)).sum()
}
