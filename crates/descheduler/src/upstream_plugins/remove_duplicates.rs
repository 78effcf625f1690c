//! `RemoveDuplicates`: evicts pods of one owner that share a node although they could be spread.

use super::{check_namespaces, check_selected, try_evict};
use crate::framework::{Cycle, SkipReason, Strategy, StrategyError};
use crate::rules::{Namespaces, allows};
use crate::state::{NodeInfo, PodInfo};
use koord_model::nodes::untolerated;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const NAME: &str = "RemoveDuplicates";

/// `RemoveDuplicatesArgs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    exclude_owner_kinds: Vec<String>,
}

pub(super) fn check(args: &Args) -> Result<(), String> {
    check_namespaces(args.namespaces.as_ref())
}

#[derive(Debug)]
pub(super) struct RemoveDuplicates(pub(super) Args);

/// Kind and name of an owner.
type OwnerName<'a> = (&'a str, &'a str);

/// Identifies the pods of one owner with equal images.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct DuplicateKey<'a> {
    namespace: &'a str,
    owner: OwnerName<'a>,
    images: &'a [String],
}

/// The pods of a [`DuplicateKey`] over all nodes.
#[derive(Debug, Default)]
struct DuplicateSet<'a> {
    /// Number of all pods, including those that leave: their replacements need a node, too.
    pods: usize,
    /// Number of pods that stay in any case, by node: those that may not be evicted, or else the first one.
    fixed: BTreeMap<&'a Arc<str>, usize>,
    /// Other pods, by node.
    duplicates: BTreeMap<&'a Arc<str>, Vec<&'a Arc<PodInfo>>>,
}

impl Strategy for RemoveDuplicates {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let mut sets = BTreeMap::<DuplicateKey<'_>, DuplicateSet<'_>>::new();
        for node in cycle.nodes() {
            // The pods of this node by what makes them duplicates, separated into those that may be evicted
            // and those that may not.
            let mut groups = BTreeMap::<_, NodeDuplicates<'_>>::new();
            for pod in cycle.snapshot().active_on(&node.name) {
                if !self.0.is_candidate(pod) {
                    continue;
                }
                let owners = pod.owners.iter();
                let mut owners: Vec<OwnerName<'_>> =
                    owners.map(|owner| (&*owner.kind, &*owner.name)).collect();
                owners.sort_unstable();
                let images = &pod.shape.images[..];
                let key = (&*pod.namespace, owners.clone(), images);
                let group = groups.entry(key).or_default();
                if cycle.is_planned(pod) {
                    group.leaving += 1;
                    continue;
                }
                let is_leaving = cycle.is_leaving(pod);
                let verdict = cycle.admits(pod).and_then(|()| cycle.admits_eviction(pod));
                match (is_leaving, &verdict) {
                    // A pod that is being deleted has been replaced already.
                    (true, _) => group.leaving += usize::from(!pod.deleting),
                    (false, Err(_)) => group.fixed += 1,
                    (false, Ok(())) => group.movable.push(pod),
                }
                if let Err(reason) = verdict {
                    group.immovable.push((pod, reason));
                }
            }
            for ((namespace, owners, images), mut group) in groups {
                if group.movable.len() + group.immovable.len() > 1 {
                    for (pod, reason) in std::mem::take(&mut group.immovable) {
                        cycle.skip_pod(pod, reason);
                    }
                }
                let first = usize::from(group.fixed == 0).min(group.movable.len());
                for owner in owners {
                    let set = DuplicateKey {
                        namespace,
                        owner,
                        images,
                    };
                    let duplicate_set = sets.entry(set).or_default();
                    duplicate_set.pods += group.leaving + group.fixed + group.movable.len();
                    duplicate_set
                        .fixed
                        .insert(&node.name, group.fixed.max(first));
                    let duplicates = group.movable.iter().skip(first).copied();
                    let duplicates: Vec<_> = duplicates.collect();
                    if !duplicates.is_empty() {
                        duplicate_set.duplicates.insert(&node.name, duplicates);
                    }
                }
            }
        }
        // A pod with several owners is in several sets.
        let mut evicted = FxHashSet::default();
        for (set, duplicate_set) in sets
            .iter()
            .filter(|(_, duplicate_set)| !duplicate_set.duplicates.is_empty())
        {
            spread(cycle, set, duplicate_set, &mut evicted);
        }
        Ok(())
    }
}

/// Duplicates on one node.
#[derive(Debug, Default)]
struct NodeDuplicates<'a> {
    movable: Vec<&'a Arc<PodInfo>>,
    /// Number of pods that may not be evicted.
    fixed: usize,
    /// Number of pods that leave regardless of this strategy.
    leaving: usize,
    /// Pods that stay, and why.
    immovable: Vec<(&'a Arc<PodInfo>, SkipReason)>,
}

impl Args {
    /// Returns true if `pod` can be a duplicate.
    fn is_candidate(&self, pod: &PodInfo) -> bool {
        let excluded = |kind: &str| self.exclude_owner_kinds.iter().any(|other| other == kind);
        !pod.owners.is_empty()
            && !pod.owners.iter().any(|owner| excluded(&owner.kind))
            && check_selected(self.namespaces.as_ref(), None, pod).is_ok()
    }
}

/// Evicts the duplicates of `set` that exceed an even spread over the target nodes.
fn spread(
    cycle: &mut Cycle<'_>,
    set: &DuplicateKey<'_>,
    found: &DuplicateSet<'_>,
    gone: &mut FxHashSet<Arc<str>>,
) {
    let (kind, owner) = set.owner;
    let targets = targets(found, cycle.nodes());
    let most = if targets < 2 {
        usize::MAX
    } else {
        found.pods.div_ceil(targets)
    };
    for (node, pods) in &found.duplicates {
        let fixed = found.fixed.get(node).copied().unwrap_or(0);
        let count = pods.len() + fixed;
        for (at, pod) in pods.iter().enumerate() {
            if gone.contains(&pod.uid) {
                continue;
            }
            if targets < 2 {
                let detail = format!(
                    "{count} pods of {kind} {owner} are on node {node}, but only {targets} nodes take them"
                );
                cycle.skip_pod(pod, SkipReason::new("NoTarget", detail));
            } else if fixed + at < most {
                let detail = format!(
                    "node {node} may have {most} of {} pods of {kind} {owner}",
                    found.pods
                );
                cycle.skip_pod(pod, SkipReason::new("Spread", detail));
            } else {
                let reason = format!(
                    "is one of {count} pods of {kind} {owner} on node {node}, {most} of which are enough"
                );
                if try_evict(cycle, pod, reason) {
                    gone.insert(pod.uid.clone());
                }
            }
        }
    }
}

/// Returns how many of `nodes` can take duplicates. Pods that fit only one node have no other target and do
/// not count.
fn targets(found: &DuplicateSet<'_>, nodes: &[Arc<NodeInfo>]) -> usize {
    let mut distinct: Vec<&PodInfo> = Vec::new();
    let selector = |pod: &PodInfo| {
        let affinity = pod.shape.affinity.as_ref()?.node_affinity.clone()?;
        affinity.required_during_scheduling_ignored_during_execution
    };
    for pod in found.duplicates.values().flatten() {
        let is_similar = |other: &&PodInfo| {
            Arc::ptr_eq(&other.shape, &pod.shape)
                || (other.shape.tolerations == pod.shape.tolerations
                    && other.shape.node_selector == pod.shape.node_selector
                    && selector(other) == selector(pod))
        };
        if !distinct.iter().any(is_similar) {
            distinct.push(pod);
        }
    }
    let mut targets = FxHashMap::default();
    for pod in distinct {
        let takes = |node: &&Arc<NodeInfo>| {
            untolerated(&pod.shape.tolerations, &node.taints).is_none() && allows(&pod.shape, node)
        };
        let takers: Vec<_> = nodes.iter().filter(takes).collect();
        if takers.len() > 1 {
            targets.extend(takers.into_iter().map(|node| (&node.name, ())));
        }
    }
    targets.len()
}
