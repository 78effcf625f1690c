//! Our pod selection: among pods of equal urgency, the one whose move evens out the usage of nodes most. A
//! pod is moved only if a node can take it without exceeding a threshold, and is then left alone for an hour.

use super::balance::BalanceRun;
use super::load::{Load, Row, UsageKind};
use super::solve::{Bin, Bins, Item, Work};
use crate::framework::SkipReason;
use crate::rules::{Urgency, same_requirements, sort};
use crate::state::{PodInfo, Shape};
use koord_model::resources::Amounts;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Maximum number of pairs tried in one pass: a fraction of a second.
const WORK: u64 = 4_000_000;

/// Maximum number of groups of pods with equal requirements per pass: each new pod is compared with all
/// groups.
const KINDS: usize = 64;

/// Nodes that refuse kinds of pods. During a pass, nodes only receive pods, so a refusal stays valid.
#[derive(Debug, Default)]
struct Refusals {
    /// A representative shape of each kind, and the bins that refuse it.
    kinds: Vec<(Arc<Shape>, FxHashSet<usize>)>,
}

impl Refusals {
    /// Returns the kind of pods of this shape; `None` if there are too many kinds to distinguish.
    fn kind(&mut self, shape: &Arc<Shape>) -> Option<usize> {
        let position = self
            .kinds
            .iter()
            .position(|(one, _)| same_requirements(one, shape));
        if position.is_none() && self.kinds.len() < KINDS {
            self.kinds.push((shape.clone(), FxHashSet::default()));
            return Some(self.kinds.len() - 1);
        }
        position
    }

    /// Returns true if `bin` accepts pods of `kind`; calls `check` if that is not recorded.
    fn accepts(&mut self, kind: Option<usize>, bin: usize, check: impl FnOnce() -> bool) -> bool {
        let Some((_, refusing)) = kind.and_then(|kind| self.kinds.get_mut(kind)) else {
            return check();
        };
        if refusing.contains(&bin) {
            return false;
        }
        let accepts = check();
        if !accepts {
            refusing.insert(bin);
        }
        accepts
    }
}

/// A pod that may be evicted.
#[derive(Debug)]
struct MovablePod<'a> {
    pod: Arc<PodInfo>,
    /// Kind in the [`Refusals`] of its pass.
    kind: Option<usize>,
    metric: &'a Amounts,
    item: Item,
    urgency: Urgency,
    /// True if it was tried already.
    tried: bool,
}

/// State that the source nodes of a pass share.
#[derive(Debug)]
struct PassState {
    bins: Bins,
    /// Index of the load of each bin.
    places: Vec<usize>,
    /// Index of the load by node name, and of its bin if the node can take pods.
    nodes: FxHashMap<Arc<str>, (usize, Option<usize>)>,
    refusals: Refusals,
    work: Work,
}

fn bin(load: &Load<'_>) -> Bin {
    let with = |used: &Row| -> Row {
        let pairs = used.iter().zip(&load.coming);
        pairs
            .map(|(used, more)| used.saturating_add(*more))
            .collect()
    };
    Bin {
        used: with(&load.usage),
        prod: with(&load.prod),
        high: load.node_bounds.high.clone(),
        prod_high: load.prod_bounds.high.clone(),
        has: load.capacity.clone(),
    }
}

impl<'a> BalanceRun<'_, 'a> {
    pub(super) fn variance(
        &mut self,
        usage_kind: UsageKind,
        sources: &[usize],
        targets: &[usize],
        budget: &mut Row,
    ) {
        let mut state = self.pass_state(usage_kind, targets);
        for source in sources {
            let total = self.candidates(*source, usage_kind).len();
            let mut movable = self.movable(usage_kind, *source, &mut state.refusals);
            if movable.is_empty() {
                self.note_outcome(*source, 0, &format!("none of {total} may"));
                continue;
            }
            let (moved, reason) =
                self.relieve(usage_kind, *source, &mut movable, &mut state, budget);
            self.note_outcome(*source, moved, &reason);
        }
    }

    /// Builds the solver from the target nodes and the mean usage over all nodes of the pool.
    fn pass_state(&self, usage_kind: UsageKind, targets: &[usize]) -> PassState {
        let bins = targets
            .iter()
            .filter_map(|place| self.loads.get(*place))
            .map(bin);
        // A resource without thresholds has no weight.
        let weight = |at: usize| {
            let resource = self.watched.resources.get(at)?;
            resource
                .has_thresholds(usage_kind)
                .then_some(resource.weight.max(0) as f64)
        };
        let resources = 0..self.watched.resources.len();
        let weights = resources
            .clone()
            .map(|index| weight(index).unwrap_or(0.0))
            .collect();
        let mean = resources.map(|index| {
            let sum: f64 = self
                .loads
                .iter()
                .map(|load| load.percent(usage_kind, index))
                .sum();
            sum / 100.0 / self.loads.len().max(1) as f64
        });
        let named = self.loads.iter().enumerate();
        let named = named.map(|(place, load)| (load.node.name.clone(), (place, None)));
        let mut nodes: FxHashMap<_, _> = named.collect();
        for (index, place) in targets.iter().enumerate() {
            if let Some(load) = self.loads.get(*place) {
                nodes.insert(load.node.name.clone(), (*place, Some(index)));
            }
        }
        PassState {
            bins: Bins::new(usage_kind, bins.collect(), weights, mean.collect()),
            places: targets.to_vec(),
            nodes,
            refusals: Refusals::default(),
            work: Work(WORK),
        }
    }

    /// Returns the pods of `source` that may be evicted, least important first.
    fn movable(
        &mut self,
        usage_kind: UsageKind,
        source: usize,
        refusals: &mut Refusals,
    ) -> Vec<MovablePod<'a>> {
        let mut metrics = FxHashMap::default();
        let mut pods = Vec::new();
        for candidate in self.candidates(source, usage_kind) {
            let pod = candidate.pod;
            if !self.admits(pod) || !self.check_cooldown(pod) {
                continue;
            }
            let Some(metric) = candidate.metric else {
                self.cycle.skip_pod(
                    pod,
                    SkipReason::new("NoPodMetric", "nothing is known of what it uses"),
                );
                continue;
            };
            metrics.insert(pod.uid.clone(), metric);
            pods.push(pod.clone());
        }
        sort(&mut pods);
        let with = |pod: Arc<PodInfo>| {
            let metric = *metrics.get(&pod.uid)?;
            let item = Item {
                usage: self.watched.pod_row(metric),
                prod: pod.is_prod(),
            };
            Some(MovablePod {
                urgency: Urgency::from_pod(&pod),
                kind: refusals.kind(&pod.shape),
                pod,
                metric,
                item,
                tried: false,
            })
        };
        pods.into_iter().filter_map(with).collect()
    }

    /// Moves pods off `source` until it is not hot any more. Returns their number, and why not more.
    fn relieve(
        &mut self,
        usage_kind: UsageKind,
        source: usize,
        movable: &mut [MovablePod<'a>],
        state: &mut PassState,
        budget: &mut Row,
    ) -> (usize, String) {
        let mut moved = 0;
        for group in movable.chunk_by_mut(|a, b| a.urgency == b.urgency) {
            loop {
                if let Some(stop) = self.stop_reason(usage_kind, source, budget) {
                    return (moved, self.describe(&stop));
                }
                let Some((item, bin)) = self.best(usage_kind, source, group, state) else {
                    break;
                };
                match self.try_move(usage_kind, source, &mut group[item], bin, state, budget) {
                    Ok(()) => moved += 1,
                    Err(reason) if is_node_limit(&reason) => return (moved, reason.to_string()),
                    Err(_) => {}
                }
            }
            if state.work == Work(0) {
                return (moved, "there was no time to look at more pods".to_owned());
            }
            self.skip_rest(group, state.places.len());
        }
        match self.stop_reason(usage_kind, source, budget) {
            Some(stop) => (moved, self.describe(&stop)),
            None => (moved, "no other may".to_owned()),
        }
    }

    /// Returns the untried pod of `group` and the bin whose pairing lowers the objective most, by index.
    fn best(
        &self,
        usage_kind: UsageKind,
        source: usize,
        group: &[MovablePod<'a>],
        state: &mut PassState,
    ) -> Option<(usize, usize)> {
        let load = self.loads.get(source)?;
        let over: Vec<_> = load.over(usage_kind).collect();
        // A pod that does not use an exceeded resource brings no relief.
        let relieves = |item: &Item| {
            let mut used = over.iter().filter_map(|index| item.usage.get(*index));
            used.any(|used| *used > 0)
        };
        let items = group.iter().enumerate();
        let items = items.filter(|(_, movable)| !movable.tried && relieves(&movable.item));
        let items = items.map(|(index, movable)| (index, &movable.item));
        let PassState {
            bins,
            places,
            work,
            refusals,
            ..
        } = state;
        let allows = |item: usize, bin: usize| {
            let (Some(movable), Some(place)) = (group.get(item), places.get(bin)) else {
                return false;
            };
            if !self.args.node_fit {
                return true;
            }
            let target = self.loads.get(*place);
            refusals.accepts(movable.kind, bin, || {
                target.is_some_and(|load| self.fit.can_place(&movable.pod, load.node))
            })
        };
        let pair = bins.best(&bin(load), items, allows, work)?;
        Some((pair.item, pair.bin))
    }

    /// Evicts `movable` and counts it on `bin`, unless a filter or a limit refuses it.
    fn try_move(
        &mut self,
        usage_kind: UsageKind,
        source: usize,
        movable: &mut MovablePod<'a>,
        bin: usize,
        state: &mut PassState,
        budget: &mut Row,
    ) -> Result<(), SkipReason> {
        movable.tried = true;
        // Earlier moves may have changed the verdict of filters.
        if let Err(reason) = self.cycle.admits(&movable.pod) {
            self.cycle.skip_pod(&movable.pod, reason.clone());
            return Err(reason);
        }
        self.evict(usage_kind, source, &movable.pod)?;
        let chosen = state
            .places
            .get(bin)
            .and_then(|place| self.loads.get(*place));
        let chosen = chosen.map(|load| load.node.clone());
        let promised = self
            .cycle
            .tentative_target()
            .filter(|_| !self.args.dry_run)
            .cloned();
        let to = promised.or(chosen.map(|node| node.name.clone()));
        self.account(
            if movable.item.prod {
                &[UsageKind::Node, UsageKind::Prod]
            } else {
                &[UsageKind::Node]
            },
            source,
            movable.metric,
            budget,
        );
        if let Some(to) = &to {
            self.receive(to, movable, state);
        }
        self.record_move(&movable.pod, movable.metric, to);
        Ok(())
    }

    /// Counts `movable` on node `to`.
    fn receive(&mut self, to: &Arc<str>, movable: &MovablePod<'a>, state: &mut PassState) {
        self.fit.add(&movable.pod, to);
        let Some((place, bin)) = state.nodes.get(to).copied() else {
            return;
        };
        if let Some(load) = self.loads.get_mut(place) {
            for (coming, more) in load.coming.iter_mut().zip(&movable.item.usage) {
                *coming = coming.saturating_add(*more);
            }
        }
        if let Some(at) = bin {
            state.bins.put(at, &movable.item);
        }
    }

    /// Records the pods in `group` that were not tried as skipped, with the reason.
    fn skip_rest(&mut self, group: &[MovablePod<'a>], targets: usize) {
        for movable in group.iter().filter(|movable| !movable.tried) {
            let detail = format!(
                "none of {targets} cold nodes takes it so that the load is more even and no threshold exceeded"
            );
            self.cycle
                .skip_pod(&movable.pod, SkipReason::new("NodeFit", detail));
        }
    }
}

/// Returns true if no other pod of the node can be evicted either.
fn is_node_limit(reason: &SkipReason) -> bool {
    matches!(
        reason.rule,
        "MaxNoOfPodsToEvictTotal" | "MaxNoOfPodsToEvictPerNode"
    )
}
