//! `RemovePodsViolatingTopologySpreadConstraint`: pods of domains that have more than their share.

mod constraint;

use self::constraint::Constraint;
use super::room::Room;
use super::{check_listed, check_namespaces, remove, within};
use crate::framework::{Cycle, Strategy, StrategyError, Why};
use crate::rules::Namespaces;
use crate::state::{NodeInfo, PodInfo, Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const NAME: &str = "RemovePodsViolatingTopologySpreadConstraint";

const DO_NOT_SCHEDULE: &str = "DoNotSchedule";

/// `RemovePodsViolatingTopologySpreadConstraintArgs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    /// Which constraints count, by `whenUnsatisfiable`; an empty list is the default one.
    constraints: Vec<String>,
    topology_balance_node_fit: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            namespaces: None,
            label_selector: None,
            constraints: vec![DO_NOT_SCHEDULE.to_owned()],
            topology_balance_node_fit: true,
        }
    }
}

pub(super) fn check(args: &Args) -> Result<(), String> {
    check_namespaces(args.namespaces.as_ref())?;
    check_listed(
        "constraints",
        &args.constraints,
        &[DO_NOT_SCHEDULE, "ScheduleAnyway"],
    )
}

#[derive(Debug)]
pub(super) struct ViolatingSpread(pub(super) Args);

/// Pods by the value of the topology key, as many as there are nodes with such a value.
type Domains = BTreeMap<String, Vec<Arc<PodInfo>>>;

impl Strategy for ViolatingSpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let snapshot = cycle.snapshot();
        let mut namespaces = BTreeMap::<&str, Vec<&Arc<PodInfo>>>::new();
        for node in cycle.nodes() {
            for pod in snapshot.active_on(&node.name) {
                if within(
                    self.0.namespaces.as_ref(),
                    self.0.label_selector.as_ref(),
                    pod,
                )
                .is_ok()
                {
                    namespaces.entry(&pod.namespace).or_default().push(pod);
                }
            }
        }
        let mut room = None;
        let mut going = Going::default();
        for (namespace, pods) in namespaces {
            let mut constraints = Vec::new();
            if !pods.iter().any(|pod| {
                pod.shape
                    .spread
                    .iter()
                    .any(|of| self.counts(of.when_unsatisfiable.as_str()))
            }) {
                continue;
            }
            // As upstream, who may not go is not counted either.
            let (mut counted, mut held) = (Vec::new(), Vec::new());
            for pod in pods {
                match cycle.admits(pod) {
                    Ok(()) => counted.push(pod),
                    Err(why) => held.push((pod, why)),
                }
            }
            let pods = counted;
            for pod in &pods {
                for spread in &pod.shape.spread {
                    if self.counts(&spread.when_unsatisfiable) {
                        let constraint = Constraint::new(spread, pod);
                        if !constraints.contains(&constraint) {
                            constraints.push(constraint);
                        }
                    }
                }
            }
            for constraint in &constraints {
                let domains = domains(snapshot, cycle.nodes(), constraint, &pods);
                let sizes: Vec<_> = domains
                    .iter()
                    .map(|(value, pods)| format!("{value}: {}", pods.len()))
                    .collect();
                let text = format!(
                    "{constraint} in namespace {namespace}, pods by domain: {}",
                    sizes.join(", ")
                );
                if is_balanced(&domains, constraint.max_skew) {
                    cycle.note(None, format!("within the limit: {text}"));
                    continue;
                }
                held.retain(|(pod, why)| {
                    let concerned = constraint.selects(pod);
                    if concerned {
                        cycle.keep(pod, why.clone());
                    }
                    !concerned
                });
                let before = going.pods.len();
                let room = &*room.get_or_insert_with(|| Room::new(snapshot));
                self.balance(cycle, room, constraint, domains, &mut going);
                let more = going.pods.len() - before;
                cycle.note(None, format!("{more} more pods have to go: {text}"));
            }
        }
        for (pod, reason) in going.pods {
            remove(cycle, &pod, reason);
        }
        Ok(())
    }
}

/// Pods that have to go, each once.
#[derive(Debug, Default)]
struct Going {
    pods: Vec<(Arc<PodInfo>, String)>,
    seen: FxHashSet<Arc<str>>,
}

impl ViolatingSpread {
    fn counts(&self, when_unsatisfiable: &str) -> bool {
        let listed = self
            .0
            .constraints
            .iter()
            .any(|listed| listed == when_unsatisfiable);
        listed || (self.0.constraints.is_empty() && when_unsatisfiable == DO_NOT_SCHEDULE)
    }

    /// Takes pods from the largest domains until the smallest would have enough, if they went there.
    fn balance(
        &self,
        cycle: &mut Cycle<'_>,
        room: &Room,
        constraint: &Constraint,
        domains: Domains,
        going: &mut Going,
    ) {
        let snapshot = cycle.snapshot();
        let pods: usize = domains.values().map(Vec::len).sum();
        let average = ratio(pods, domains.len());
        let mut domains: Vec<_> = domains.into_iter().collect();
        for (_, pods) in &mut domains {
            pods.sort_by_key(last_goes_first);
        }
        domains.sort_by_key(|(_, pods)| pods.len());
        let targets: Vec<_> = {
            let below = |node: &&Arc<NodeInfo>| {
                let value = node.label(&constraint.topology_key);
                let domain = domains
                    .iter()
                    .find(|(domain, _)| Some(domain.as_str()) == value);
                domain.is_some_and(|(_, pods)| size(pods) < average)
            };
            let eligible = cycle
                .nodes()
                .iter()
                .filter(|node| constraint.includes(node));
            eligible.filter(below).cloned().collect()
        };
        let fits = |pod: &Arc<PodInfo>| room.any_other(snapshot, pod, &targets);
        let (mut low, mut high) = (0, domains.len().saturating_sub(1));
        while low < high {
            let ends = domains.get_disjoint_mut([low, high]);
            let Ok([(_, below), (from, above)]) = ends else {
                break;
            };
            if size(above) <= average {
                high -= 1;
                continue;
            }
            let skew = size(above) - size(below);
            let max_skew = f64::from(constraint.max_skew);
            if skew <= max_skew {
                low += 1;
                continue;
            }
            let spare = (size(above) - average).ceil();
            let missing = (average - size(below)).ceil();
            let half = ((skew - max_skew) / 2.0).ceil();
            let moving = spare.min(missing).min(half);
            if moving < 1.0 {
                low += 1;
                continue;
            }
            // Who fits where pods are missing goes before who does not.
            above.sort_by_cached_key(&fits);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at least 1 and at most the number of pods"
            )]
            let moved = above.split_off(above.len().saturating_sub(moving as usize));
            for pod in &moved {
                if self.0.topology_balance_node_fit && !fits(pod) {
                    let said = format!(
                        "no node with too few pods has room: {}",
                        room.obstacles(snapshot, pod, &targets)
                    );
                    cycle.keep(pod, Why::new("NodeFit", said));
                } else if going.seen.insert(pod.uid.clone()) {
                    let reason = format!(
                        "{} {from} has more than its share of {constraint}",
                        constraint.topology_key
                    );
                    going.pods.push((pod.clone(), reason));
                }
            }
            below.extend(moved);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "far fewer pods than 2^52")]
fn ratio(pods: usize, of: usize) -> f64 {
    pods as f64 / of as f64
}

fn size(pods: &[Arc<PodInfo>]) -> f64 {
    ratio(pods.len(), 1)
}

/// Pods with a node selector or node affinity first, which are harder to place; then those that matter most. Who is
/// last goes first.
fn last_goes_first(pod: &Arc<PodInfo>) -> (bool, std::cmp::Reverse<Option<i32>>) {
    let affinity = pod.shape.affinity.as_ref();
    let bound = !pod.shape.node_selector.is_empty()
        || affinity.is_some_and(|affinity| affinity.node_affinity.is_some());
    (!bound, std::cmp::Reverse(pod.shape.priority))
}

/// The pods of each domain that `constraint` is about; domains without any are there too.
fn domains(
    snapshot: &Snapshot,
    nodes: &[Arc<NodeInfo>],
    constraint: &Constraint,
    pods: &[&Arc<PodInfo>],
) -> Domains {
    let key = &constraint.topology_key;
    let included = nodes.iter().filter(|node| constraint.includes(node));
    let values = included.filter_map(|node| node.label(key));
    let mut domains: Domains = values.map(|value| (value.to_owned(), Vec::new())).collect();
    for pod in pods {
        if pod.deleting || !constraint.selects(pod) {
            continue;
        }
        let node = pod.node.as_ref().and_then(|name| snapshot.node(name));
        if let Some(value) = node.and_then(|node| node.label(key)) {
            domains
                .entry(value.to_owned())
                .or_default()
                .push((*pod).clone());
        }
    }
    domains
}

fn is_balanced(domains: &Domains, max_skew: i32) -> bool {
    let sizes = || domains.values().map(Vec::len);
    let (Some(least), Some(most)) = (sizes().min(), sizes().max()) else {
        return true;
    };
    i64::try_from(most - least).is_ok_and(|skew| skew <= i64::from(max_skew))
}
