//! Overuse eviction: pods of a quota that exceeds its runtime for long are evicted.
//!
//! A quota can exceed its runtime when lent resources are reclaimed or the cluster shrinks. Admission alone
//! does not resolve that: it admits no new pods, but evicts none either.

use super::ElasticQuotas;
use super::admission::text;
use super::args::Args;
use super::ledger::Charge;
use jiff::{SignedDuration, Timestamp};
use koord_api::duration::GoDuration;
use koord_api::quota::{ROOT_QUOTA, SYSTEM_QUOTA};
use koord_model::quota::{ChargedPod, exceeded, revoke};
use koord_scheduler::framework::{Effects, Verb, View, Write};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::sync::Arc;

/// Minimum interval between two checks, whatever the arguments.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_millis(100);

/// Quotas that exceed their runtime, and for how long.
#[derive(Debug, Default)]
pub(super) struct Revoker {
    /// Timing of evictions; `None` if they are off.
    timing: Option<RevokeTiming>,
    /// Quotas over their runtime with the time since when, or of the last evictions.
    over: FxHashMap<Arc<str>, Timestamp>,
    /// True if something changed since the last check.
    pub dirty: bool,
    last_check: Timestamp,
}

/// Timing of overuse evictions.
#[derive(Debug, Clone, Copy)]
struct RevokeTiming {
    /// Time for which a quota may exceed its runtime.
    delay: SignedDuration,
    /// Interval between two checks.
    interval: SignedDuration,
}

impl Revoker {
    /// Creates a revoker; it is off unless the arguments enable it and `controls` is true.
    pub(super) fn from_args(args: &Args, controls: bool) -> Self {
        let enabled = args.monitor_all_quotas && args.enable_runtime_quota && controls;
        let signed = |duration: GoDuration| {
            let duration = duration.to_std().unwrap_or_default();
            SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
        };
        Self {
            timing: enabled.then(|| RevokeTiming {
                delay: signed(args.delay_evict_time),
                interval: signed(args.revoke_pod_interval).max(MIN_INTERVAL),
            }),
            ..Self::default()
        }
    }

    /// Returns the time of the next check.
    pub(super) fn next_check(&self) -> Option<Timestamp> {
        let timing = self.timing?;
        let after = |at: Timestamp, wait| at.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let soonest = after(self.last_check, timing.interval);
        if self.dirty {
            return Some(soonest);
        }
        let since = self.over.values().min()?;
        Some(after(*since, timing.delay).max(soonest))
    }
}

impl ElasticQuotas {
    /// Evicts pods of quotas that exceeded their runtime for too long.
    pub(super) fn revoke(&mut self, view: View<'_>, fx: &mut Effects) {
        let now = view.now;
        let Some(timing) = self.revoker.timing else {
            return;
        };
        if self.revoker.next_check().is_none_or(|next| now < next) {
            return;
        }
        self.revoker.dirty = false;
        self.revoker.last_check = now;
        let mut before = std::mem::take(&mut self.revoker.over);
        let mut over = FxHashMap::default();
        let trees = &mut self.trees;
        for name in trees.names() {
            if [ROOT_QUOTA, SYSTEM_QUOTA].contains(&&*name) {
                continue;
            }
            trees.refresh(&name);
            // A quota without a parent is not part of a tree: its runtime is its guarantee. That is no reason
            // to evict pods that were admitted while it had a parent.
            if !trees.is_connected(&name) {
                continue;
            }
            let Some(quota) = trees.quota(&name) else {
                continue;
            };
            let (used, share) = (&quota.sums.used, &quota.runtime);
            if exceeded(used, share).is_empty() {
                continue;
            }
            let since = before.remove(&name).unwrap_or(now);
            if now.duration_since(since) < timing.delay {
                over.insert(name, since);
                continue;
            }
            let mut pods: Vec<&Charge> = self.ledger.placed_charges(&name).collect();
            pods.sort_by(|a, b| importance(b).cmp(&importance(a)));
            let holdings: Vec<ChargedPod<'_>> = pods
                .iter()
                .map(|charge| ChargedPod {
                    amounts: &charge.amounts,
                    non_preemptible: charge.non_preemptible,
                    deleting: charge.info.deleting,
                })
                .collect();
            for at in revoke(used, share, &holdings) {
                let pod = &pods[at].info;
                let (used, share) = (text(used, view.resources), text(share, view.resources));
                tracing::info!(%pod, quota = %name, used, runtime = share, "evicting pod, its quota exceeds the runtime");
                fx.writes.push(Write {
                    group: "",
                    version: "v1",
                    plural: "pods",
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    verb: Verb::Evict(pod.uid.to_string()),
                    timed: None,
                });
            }
            over.insert(name, now);
        }
        self.revoker.over = over;
    }
}

/// Returns the sort key by importance, most important first: by priority, then by start time.
fn importance(charge: &Charge) -> (Reverse<i32>, Timestamp, &str) {
    let pod = &charge.info;
    let started = pod.started.unwrap_or(Timestamp::MAX);
    (Reverse(pod.priority), started, &pod.uid)
}
