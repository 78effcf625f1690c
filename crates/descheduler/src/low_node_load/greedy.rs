//! Upstream's pod selection: among pods of equal urgency, the one whose usage is closest to the excess.
//! Upstream's accounting is kept as well: a pod that fits a cold node counts there for the rest of the cycle,
//! whether it is evicted or not. In addition, a moved pod is left alone for an hour.

use super::balance::{BalanceRun, Candidate};
use super::load::{Row, UsageKind};
use crate::framework::SkipReason;
use crate::rules::sort_by;
use crate::state::PodInfo;
use koord_model::resources::{Amounts, PODS, ResourceId};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::sync::Arc;

/// Usage of a resource above its threshold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Excess {
    pub(super) id: ResourceId,
    pub(super) amount: i64,
    pub(super) weight: i64,
}

/// Returns how close the usage of a pod is to the excess: higher is better, and usage above the excess scores
/// higher than below.
pub(super) fn closeness(metric: &Amounts, excess: &[Excess]) -> f64 {
    let reported = excess.iter().filter(|excess| metric.contains(excess.id));
    let (mut sum, mut weights) = (0.0, 0_i64);
    for Excess { id, amount, weight } in reported {
        let ratio = if *amount == 0 {
            0.0
        } else {
            metric.get(*id) as f64 / *amount as f64
        };
        let score = if ratio >= 1.0 {
            1.0 / ratio + 1.0
        } else {
            ratio
        };
        sum += score * *weight as f64;
        weights = weights.saturating_add(*weight);
    }
    if weights == 0 {
        0.0
    } else {
        sum / weights as f64
    }
}

impl<'a> BalanceRun<'_, 'a> {
    pub(super) fn greedy(
        &mut self,
        usage_kind: UsageKind,
        sources: &[usize],
        targets: &[usize],
        budget: &mut Row,
    ) {
        for source in sources {
            let mut pods = Vec::new();
            let mut metrics = FxHashMap::default();
            let all = self.candidates(*source, usage_kind);
            let total = all.len();
            for candidate in all {
                if !self.removable(usage_kind, targets, &candidate) {
                    continue;
                }
                if let Some(metric) = candidate.metric {
                    metrics.insert(candidate.pod.uid.clone(), metric);
                }
                pods.push(candidate.pod.clone());
            }
            if pods.is_empty() {
                self.note_outcome(*source, 0, &format!("none of {total} may"));
                continue;
            }
            self.sort(usage_kind, *source, &mut pods, &metrics);
            self.drain(usage_kind, *source, &pods, &metrics, budget);
        }
    }

    fn drain(
        &mut self,
        usage_kind: UsageKind,
        source: usize,
        pods: &[Arc<PodInfo>],
        metrics: &FxHashMap<Arc<str>, &'a Amounts>,
        budget: &mut Row,
    ) {
        let mut moved = 0;
        for pod in pods {
            if let Some(stop) = self.stop_reason(usage_kind, source, budget) {
                let reason = self.describe(&stop);
                return self.note_outcome(source, moved, &reason);
            }
            if !self.admits(pod) || self.evict(usage_kind, source, pod).is_err() {
                continue;
            }
            moved += 1;
            let metric = metrics.get(&pod.uid).copied();
            let to = self.cycle.tentative_target().cloned();
            self.record_move(pod, metric.unwrap_or(&Amounts::new()), to);
            let Some(metric) = metric else { continue };
            let usage_kinds: &[UsageKind] = match usage_kind {
                UsageKind::Node => &[UsageKind::Node],
                UsageKind::Prod => &[UsageKind::Node, UsageKind::Prod],
            };
            self.account(usage_kinds, source, metric, budget);
        }
        self.note_outcome(source, moved, "no other may");
    }

    /// Returns true if `candidate` may be evicted and, if required, fits a target node. The pod then counts
    /// on that node.
    fn removable(
        &mut self,
        usage_kind: UsageKind,
        targets: &[usize],
        candidate: &Candidate<'a>,
    ) -> bool {
        let pod = candidate.pod;
        if !self.admits(pod) || !self.check_cooldown(pod) {
            return false;
        }
        if !self.args.node_fit {
            return true;
        }
        let Some(metric) = candidate.metric else {
            self.cycle.skip_pod(
                pod,
                SkipReason::new("NoPodMetric", "nothing is known of what it uses"),
            );
            return false;
        };
        let mut row = self.watched.pod_row(metric);
        for (amount, resource) in row.iter_mut().zip(&self.watched.resources) {
            if resource.id == PODS {
                *amount = 0;
            }
        }
        for target in targets {
            let Some(load) = self.loads.get_mut(*target) else {
                continue;
            };
            let high = match usage_kind {
                UsageKind::Node => &load.node_bounds.high,
                UsageKind::Prod => &load.prod_bounds.high,
            };
            let used = match usage_kind {
                UsageKind::Node => &mut load.usage,
                UsageKind::Prod => &mut load.prod,
            };
            let mut with = used.iter().zip(&row).zip(high);
            if with.any(|((used, more), high)| used.saturating_add(*more) > *high)
                || !self.fit.can_place(pod, load.node)
            {
                continue;
            }
            for (used, more) in used.iter_mut().zip(&row) {
                *used = used.saturating_add(*more);
            }
            return true;
        }
        let count = targets.len();
        let detail =
            format!("it fits none of {count} cold nodes, or would take them over a threshold");
        self.cycle.skip_pod(pod, SkipReason::new("NodeFit", detail));
        false
    }

    /// Sorts `pods` by how well their usage matches the excess of node `source` over its high thresholds,
    /// best match first.
    fn sort(
        &self,
        usage_kind: UsageKind,
        source: usize,
        pods: &mut [Arc<PodInfo>],
        metrics: &FxHashMap<Arc<str>, &'a Amounts>,
    ) {
        let Some(load) = self.loads.get(source) else {
            return;
        };
        let excess: Vec<_> = load
            .over(usage_kind)
            .filter_map(|index| {
                let resource = self.watched.resources.get(index)?;
                let (used, high) = (
                    load.used(usage_kind).get(index)?,
                    load.bounds(usage_kind).high.get(index)?,
                );
                Some(Excess {
                    id: resource.id,
                    amount: used.saturating_sub(*high),
                    weight: resource.weight,
                })
            })
            .collect();
        let score = |pod: &PodInfo| {
            let metric = metrics.get(&pod.uid);
            metric.map(|metric| closeness(metric, &excess))
        };
        sort_by(pods, |a, b| by_closeness(score(a), score(b)));
    }
}

/// Compares two pods by their [`closeness`] to the excess, closest first. `None`, for an unknown usage, comes last.
pub(super) fn by_closeness(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}
