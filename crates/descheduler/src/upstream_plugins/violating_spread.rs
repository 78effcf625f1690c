//! `RemovePodsViolatingTopologySpreadConstraint`: evicts pods from domains with more than their share.
//!
//! Constraints are processed one after the other. Pods that leave, by whichever strategy, do not count in
//! their domain; their replacements are expected in the smallest domains. Among pods of equal importance,
//! those that violate other constraints, too, are evicted first.

mod candidates;
mod constraint;
mod members;

use self::candidates::Candidates;
use self::members::{ConstraintCounts, Domain, Domains, Member, Members};
use super::free_capacity::FreeCapacity;
use super::{check_listed, check_namespaces, check_selected, try_evict};
use crate::framework::{Cycle, SkipReason, Strategy, StrategyError};
use crate::rules::Namespaces;
use crate::state::{NodeInfo, PodInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Constraints that count, by `whenUnsatisfiable`; an empty list means the default.
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

impl Strategy for ViolatingSpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let snapshot = cycle.snapshot();
        let mut namespaces = BTreeMap::<&str, Vec<&Arc<PodInfo>>>::new();
        for node in cycle.nodes() {
            for pod in snapshot.active_on(&node.name) {
                namespaces.entry(&pod.namespace).or_default().push(pod);
            }
        }
        let mut capacity = None;
        for (namespace, pods) in namespaces {
            if pods.iter().any(|pod| self.is_constrained(pod)) {
                let mut members = self.members(cycle, pods);
                for index in 0..members.constraints.len() {
                    self.spread(cycle, namespace, &mut members, index, &mut capacity);
                }
            }
        }
        Ok(())
    }
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

    /// Returns true if the arguments select `pod` and it has a constraint that counts.
    fn is_constrained(&self, pod: &PodInfo) -> bool {
        let mut spread = pod.shape.spread.iter();
        spread.any(|constraint| self.counts(&constraint.when_unsatisfiable)) && self.selects(pod)
    }

    fn selects(&self, pod: &PodInfo) -> bool {
        let (namespaces, labels) = (self.0.namespaces.as_ref(), self.0.label_selector.as_ref());
        check_selected(namespaces, labels, pod).is_ok()
    }

    /// Sorts `pods` of one namespace by whether they may be evicted, and collects the constraints of those
    /// that may.
    fn members<'a>(&self, cycle: &Cycle<'a>, pods: Vec<&'a Arc<PodInfo>>) -> Members<'a> {
        let mut members = Members::default();
        for pod in pods {
            let mut member = Member {
                pod,
                constraints: Vec::new(),
                is_movable: false,
                reason: None,
            };
            if !cycle.is_leaving(pod) && self.selects(pod) {
                member.reason = cycle.admits(pod).err();
                member.is_movable = member.reason.is_none();
            }
            if member.is_movable {
                let spread = pod.shape.spread.iter();
                for spread in
                    spread.filter(|constraint| self.counts(&constraint.when_unsatisfiable))
                {
                    member.constraints.push(members.constraint(spread, pod));
                }
            }
            members.pods.push(member);
        }
        members
    }

    /// Evicts the pods that violate the constraint at `at`, taking into account all pods that leave already.
    fn spread<'a>(
        &self,
        cycle: &mut Cycle<'a>,
        namespace: &str,
        members: &mut Members<'a>,
        at: usize,
        capacity: &mut Option<FreeCapacity>,
    ) {
        let Some(constraint) = members.constraints.get(at).cloned() else {
            return;
        };
        let mut domains = members.domains(cycle, &constraint);
        let sizes: Vec<_> = domains
            .list
            .iter()
            .map(|domain| format!("{}: {}", domain.value, domain.size))
            .collect();
        let leaving = match domains.leaving {
            0 => String::new(),
            leaving => format!(", {leaving} more leave theirs"),
        };
        let text = format!(
            "{constraint} in namespace {namespace}, pods by domain: {}{leaving}",
            sizes.join(", ")
        );
        domains.place_leaving();
        if domains.is_balanced(constraint.max_skew) {
            cycle.note(None, format!("within the limit: {text}"));
            return;
        }
        for member in &mut members.pods {
            if constraint.selects(member.pod)
                && let Some(cause) = member.reason.take()
            {
                cycle.skip_pod(member.pod, cause);
            }
        }
        let capacity = capacity.get_or_insert_with(|| FreeCapacity::after_moves(cycle));
        let balance = self.balance(cycle, capacity, members, at, domains);
        for (place, cause) in balance.kept {
            if let Some(member) = members.pods.get(place) {
                cycle.skip_pod(member.pod, cause);
            }
        }
        cycle.note(
            None,
            format!("{} more pods have to go: {text}", balance.surplus.len()),
        );
        for (place, reason) in balance.surplus {
            let Some(member) = members.pods.get_mut(place) else {
                continue;
            };
            let pod = member.pod;
            if try_evict(cycle, pod, reason) {
                capacity.release(pod);
            } else {
                member.is_movable = false;
            }
        }
    }

    /// Takes one pod after the other from the largest domain until the smallest would have enough if they
    /// moved there.
    fn balance<'a>(
        &self,
        cycle: &Cycle<'a>,
        capacity: &FreeCapacity,
        members: &Members<'a>,
        at: usize,
        domains: Domains<'a>,
    ) -> Balance {
        let mut balance = Balance::default();
        let Some(constraint) = members.constraints.get(at) else {
            return balance;
        };
        let mut constraint_counts = ConstraintCounts::new(cycle, members, at);
        let snapshot = cycle.snapshot();
        let average = domains.average();
        let mut domains = domains.list;
        let is_small = |domain: &&Domain<'_>| count(domain.size) < average;
        let small = domains.iter().filter(is_small);
        let small: FxHashSet<_> = small.map(|domain| domain.value.clone()).collect();
        let takes = |node: &&Arc<NodeInfo>| {
            let value = node.label(&constraint.topology_key);
            constraint.includes(node) && value.is_some_and(|value| small.contains(value))
        };
        let targets: Vec<_> = cycle.nodes().iter().filter(takes).cloned().collect();
        let fits = |pod: &Arc<PodInfo>| {
            !self.0.topology_balance_node_fit || capacity.fits_any_other(snapshot, pod, &targets)
        };
        let rank = |place: &usize| {
            let pod = members.pods.get(*place)?.pod;
            Some((*place, (fits(pod), eviction_order(pod))))
        };
        let max_skew = usize::try_from(constraint.max_skew).unwrap_or(0);
        let sizes = domains.iter().enumerate();
        let mut smallest: BTreeSet<_> = sizes.map(|(at, domain)| (domain.size, at)).collect();
        // Domains without further evictable pods are removed from this set.
        let mut largest = smallest.clone();
        while let Some((most, from)) = largest.last().copied()
            && let Some((least, to)) = smallest.first().copied()
            && most > least.saturating_add(max_skew)
            && count(least) < average
            && average < count(most)
        {
            let Ok([below, above]) = domains.get_disjoint_mut([to, from]) else {
                break;
            };
            let movable = std::mem::take(&mut above.movable);
            let candidates = above
                .candidates
                .get_or_insert_with(|| Candidates::new(movable.iter().filter_map(rank)));
            let Some((place, fits)) = candidates.next(&mut constraint_counts) else {
                largest.remove(&(most, from));
                continue;
            };
            if !fits {
                // The other pods of this domain do not fit either: those that fit come first.
                if let Some(member) = members.pods.get(place) {
                    let obstacles = capacity.obstacles(snapshot, member.pod, &targets);
                    let detail = format!("no node with too few pods has room: {obstacles}");
                    balance
                        .kept
                        .push((place, SkipReason::new("NodeFit", detail)));
                }
                largest.remove(&(most, from));
                continue;
            }
            let reason = format!(
                "{} {} has more than its share of {constraint}",
                constraint.topology_key, above.value
            );
            balance.surplus.push((place, reason));
            (below.size, above.size) = (least + 1, most - 1);
            smallest.remove(&(most, from));
            smallest.remove(&(least, to));
            smallest.extend([(most - 1, from), (least + 1, to)]);
            largest.remove(&(most, from));
            largest.insert((most - 1, from));
            if largest.remove(&(least, to)) {
                largest.insert((least + 1, to));
            }
        }
        balance
    }
}

/// Result for one constraint, by indexes of members.
#[derive(Debug, Default)]
struct Balance {
    /// Pods to evict, and why.
    surplus: Vec<(usize, String)>,
    /// Pods that would have to be evicted, but fit nowhere else.
    kept: Vec<(usize, SkipReason)>,
}

#[allow(clippy::cast_precision_loss, reason = "far fewer pods than 2^52")]
fn count(pods: usize) -> f64 {
    pods as f64
}

/// Returns the sort key of a pod: pods without node selector and node affinity are evicted first, as the
/// others are harder to place; then the least important.
fn eviction_order(pod: &PodInfo) -> (bool, Reverse<Option<i32>>) {
    let affinity = pod.shape.affinity.as_ref();
    let bound = !pod.shape.node_selector.is_empty()
        || affinity.is_some_and(|affinity| affinity.node_affinity.is_some());
    (!bound, Reverse(pod.shape.priority))
}
