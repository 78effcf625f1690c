//! Shadow mode: this scheduler decides next to the cluster's, writes nothing, and compares.
//!
//! What the engine requests is recorded instead of carried out. A pod that it has placed stays assumed on its
//! node until the informer shows where the cluster's scheduler has bound it, until the pod changes, or until
//! the patience ends; then the assumed placement is withdrawn, and the real one applied.

use super::monitor::Monitor;
use crate::debug::{DebugHandle, ShadowDifference, ShadowReport, ShadowResult};
use crate::engine::{BindError, Engine, Failure, Output};
use crate::guard::guarded;
use crate::metrics::ShadowMetrics;
use crate::state::{ParsedPod, PodInfo};
use jiff::{SignedDuration, Timestamp};
use koord_app::TokenBucket;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Interval of looking for decisions whose patience has ended.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of logged differences at once, and the time until one more is logged.
const LOG_BURST: u32 = 20;
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of full evaluations at once for a comparison, and the time until one more is made.
const COMPARE_BURST: u32 = 50;
const COMPARE_INTERVAL: Duration = Duration::from_millis(50);

/// The engine's last verdict on a pod that is not bound.
#[derive(Debug, Clone)]
enum ShadowVerdict {
    Placed(Arc<str>),
    Refused {
        plugin: Option<&'static str>,
        reason: String,
        /// The node on which the engine would evict pods for this one.
        nominated: Option<Arc<str>>,
    },
}

/// A pending pod with a verdict.
#[derive(Debug)]
struct ShadowPod {
    pod: Arc<PodInfo>,
    verdict: ShadowVerdict,
    /// Time of the verdict.
    since: Timestamp,
    /// True if the placement was withdrawn, and the failure that this causes is still to come.
    withdrawn: bool,
    /// True if it was reported that the cluster's scheduler does not bind the pod.
    reported: bool,
}

/// Compares decisions with those of the cluster's scheduler.
pub(super) struct Shadow {
    pods: FxHashMap<Arc<str>, ShadowPod>,
    /// Victims of preemptions, which are not evicted, with the time at which the engine learns that.
    victims: VecDeque<(Timestamp, Arc<str>)>,
    patience: SignedDuration,
    metrics: ShadowMetrics,
    debug: DebugHandle,
    monitor: Monitor,
    started: Instant,
    next_sweep: Instant,
    logs: TokenBucket,
    comparisons: TokenBucket,
    /// Number of differences that were not logged since the last one.
    unlogged: u64,
}

impl Shadow {
    /// Creates a comparison without verdicts. A decision waits `patience` for the cluster's scheduler.
    pub(super) fn new(
        patience: Duration,
        metrics: ShadowMetrics,
        debug: DebugHandle,
        monitor: Monitor,
    ) -> Self {
        debug.update_shadow(|_| {});
        Self {
            pods: FxHashMap::default(),
            victims: VecDeque::new(),
            patience: SignedDuration::try_from(patience).unwrap_or(SignedDuration::MAX),
            metrics,
            debug,
            monitor,
            started: Instant::now(),
            next_sweep: Instant::now(),
            logs: TokenBucket::new(LOG_INTERVAL, LOG_BURST),
            comparisons: TokenBucket::new(COMPARE_INTERVAL, COMPARE_BURST),
            unlogged: 0,
        }
    }

    /// Returns the time until the next sweep; `None` if there is nothing to wait for.
    pub(super) fn time_to_sweep(&self) -> Option<Duration> {
        let idle = self.pods.is_empty() && self.victims.is_empty();
        (!idle).then(|| self.next_sweep.saturating_duration_since(Instant::now()))
    }

    /// Records an output. Returns it if it changes nothing in the cluster.
    pub(super) fn withhold(&mut self, output: Output, now: Timestamp) -> Option<Output> {
        let kind = match output {
            Output::Consult(_) | Output::Problem(_) => return Some(output),
            Output::Failed(failure) => {
                return self.record_refusal(failure, now).map(Output::Failed);
            }
            Output::Bind(request) => {
                self.monitor.end(&request.pod.uid);
                let verdict = ShadowVerdict::Placed(request.node);
                self.record_verdict(request.pod, verdict, now);
                "bind"
            }
            Output::Evict {
                preemptor,
                node,
                victims,
            } => {
                tracing::info!(pod = %preemptor, %node, victims = victims.len(), "pods not evicted: shadow mode");
                let until = now.saturating_add(self.patience).unwrap_or(Timestamp::MAX);
                let uids = victims.iter().map(|victim| (until, victim.uid.clone()));
                self.victims.extend(uids);
                "evict"
            }
            Output::Write(_) => "write",
            Output::Expect { .. } | Output::Explain { .. } => "status",
        };
        self.metrics.withheld(kind);
        self.debug.update_shadow(|report| {
            *report.withheld.entry(kind).or_default() += 1;
        });
        None
    }

    /// Records that the engine refused a pod, and returns `failure`. Returns `None`, without a record, if the
    /// failure results from the withdrawal of the pod's assumed placement.
    fn record_refusal(&mut self, failure: Failure, now: Timestamp) -> Option<Failure> {
        if let Some(known) = self.pods.get_mut(&failure.pod.uid)
            && std::mem::take(&mut known.withdrawn)
        {
            return None;
        }
        let diagnosis = failure.diagnosis.as_deref();
        let nominated = failure.nominated.as_deref().filter(|node| !node.is_empty());
        let verdict = ShadowVerdict::Refused {
            plugin: diagnosis.and_then(|it| it.plugins.first().copied()),
            reason: failure.message.to_string(),
            nominated: nominated.map(Into::into),
        };
        self.record_verdict(failure.pod.clone(), verdict, now);
        self.metrics.withheld("status");
        Some(failure)
    }

    fn record_verdict(&mut self, pod: Arc<PodInfo>, verdict: ShadowVerdict, now: Timestamp) {
        let before = self.pods.remove(&pod.uid);
        let reported = before
            .is_some_and(|before| before.reported && !before.pod.differs_for_scheduling(&pod));
        let entry = ShadowPod {
            pod: pod.clone(),
            verdict,
            since: now,
            withdrawn: false,
            reported,
        };
        self.pods.insert(pod.uid.clone(), entry);
    }

    /// Handles a pod that an informer reports, before the engine does.
    pub(super) fn pod_applied(&mut self, pod: &ParsedPod, engine: &mut Engine, now: Timestamp) {
        let ParsedPod::Pod(info) = pod else {
            self.pods.remove(pod.uid());
            return;
        };
        match &info.node {
            Some(node) => self.bound(info, node, engine, now),
            None => self.changed(info, engine, now),
        }
    }

    /// Removes a deleted pod.
    pub(super) fn pod_deleted(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Withdraws the placement of a pod that has changed since, so that the engine decides again. Keeps the pod
    /// otherwise, for the condition that the cluster's scheduler has set.
    fn changed(&mut self, info: &Arc<PodInfo>, engine: &mut Engine, now: Timestamp) {
        let Some(entry) = self.pods.get_mut(&info.uid) else {
            return;
        };
        if !entry.pod.differs_for_scheduling(info) {
            entry.pod = info.clone();
        } else if matches!(entry.verdict, ShadowVerdict::Placed(_)) {
            self.withdraw(&info.uid.clone(), "the pod has changed", engine, now);
        }
    }

    /// Withdraws the placement of a pod, which goes back to the queue.
    fn withdraw(&mut self, uid: &Arc<str>, why: &str, engine: &mut Engine, now: Timestamp) {
        let placement = engine.cluster().placement(uid);
        if !placement.is_some_and(|(_, assumed)| assumed) {
            return;
        }
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.withdrawn = true;
        }
        let message = why.to_owned();
        let gone = false;
        engine.bind_finished(uid, Err(BindError { message, gone }), now);
    }

    /// Compares the engine's verdict with the real binding.
    fn bound(&mut self, info: &Arc<PodInfo>, node: &Arc<str>, engine: &mut Engine, now: Timestamp) {
        let entry = self.pods.remove(&info.uid);
        let pending = engine.queued(&info.uid).cloned();
        // A member of a group that still waits for the others has no verdict, but a node.
        let held = engine.cluster().placement(&info.uid);
        let held = held.and_then(|(node, assumed)| assumed.then(|| node.clone()));
        let Some(pod) = entry.as_ref().map(|it| it.pod.clone()).or(pending) else {
            return;
        };
        engine.withdraw_assumed(&info.uid, now);
        let (verdict, late) = match (entry, held) {
            (_, Some(node)) => (Some(ShadowVerdict::Placed(node)), false),
            (Some(entry), None) => (Some(entry.verdict), false),
            (None, None) => (self.decide_late(&pod, engine, now), true),
        };
        let mut difference = ShadowDifference {
            pod: pod.to_string(),
            profile: pod.scheduler_name().to_owned(),
            time: now,
            result: ShadowResult::Undecided,
            node: None,
            bound_to: Some(node.to_string()),
            plugin: None,
            reason: String::new(),
            late,
            nodes: Vec::new(),
        };
        let ours = match verdict {
            None => None,
            Some(ShadowVerdict::Placed(ours)) => Some(ours),
            Some(ShadowVerdict::Refused {
                plugin,
                reason,
                nominated,
            }) => {
                difference.result = ShadowResult::Unschedulable;
                (difference.plugin, difference.reason) = (plugin, reason);
                nominated
            }
        };
        if let Some(ours) = ours {
            difference.node = Some(ours.to_string());
            difference.result = match ours == *node {
                true => ShadowResult::Agree,
                false => ShadowResult::OtherNode,
            };
            if ours != *node && self.comparisons.take(self.started.elapsed()) {
                let compare = || {
                    engine
                        .inspector()
                        .compare_nodes(&pod, &[&*ours, &**node], now)
                };
                match guarded("comparing nodes", compare) {
                    Some(nodes) => difference.compare(nodes),
                    None => engine.classes.clear(),
                }
            }
        }
        self.record(difference);
    }

    /// Decides about a pod that was bound before its turn, on the state without it. `None` if there were too
    /// many of them.
    fn decide_late(
        &mut self,
        pod: &Arc<PodInfo>,
        engine: &mut Engine,
        now: Timestamp,
    ) -> Option<ShadowVerdict> {
        if !self.comparisons.take(self.started.elapsed()) {
            return None;
        }
        let Some(decided) = guarded("deciding late", || engine.dry_run(pod, now)) else {
            engine.classes.clear();
            return None;
        };
        Some(match decided {
            Ok(node) => ShadowVerdict::Placed(node),
            Err(diagnosis) => ShadowVerdict::Refused {
                plugin: diagnosis.plugins.first().copied(),
                reason: diagnosis.message(),
                nominated: None,
            },
        })
    }

    /// Reports placements that the cluster's scheduler has not made in time, and withdraws them. Call it often.
    pub(super) fn sweep(&mut self, engine: &mut Engine, now: Timestamp) {
        if Instant::now() < self.next_sweep {
            return;
        }
        self.next_sweep = Instant::now() + SWEEP_EVERY;
        while self.victims.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, uid)) = self.victims.pop_front() {
                engine.eviction_failed(&uid);
            }
        }
        let overdue = |entry: &ShadowPod| {
            let until = entry.since.saturating_add(self.patience);
            let placed = matches!(entry.verdict, ShadowVerdict::Placed(_));
            placed && until.is_ok_and(|until| until <= now)
        };
        let overdue: Vec<Arc<str>> = self
            .pods
            .iter()
            .filter(|(_, entry)| overdue(entry))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in overdue {
            self.report_overdue(&uid, engine, now);
        }
        // A pod that was deleted before the failure of its withdrawal was handled has a verdict again.
        self.pods.retain(|uid, _| {
            engine.queued(uid).is_some() || engine.cluster().placement(uid).is_some()
        });
        let is_placed = |entry: &&ShadowPod| matches!(entry.verdict, ShadowVerdict::Placed(_));
        let placed = self.pods.values().filter(is_placed).count();
        let refused = self.pods.len() - placed;
        self.debug.update_shadow(|report: &mut ShadowReport| {
            (report.placed, report.refused) = (placed, refused);
        });
    }

    /// Reports and withdraws the placement of a pod that was not bound in time. What stands for another object,
    /// such as a reservation, is bound by a change of that object.
    fn report_overdue(&mut self, uid: &Arc<str>, engine: &mut Engine, now: Timestamp) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let ShadowVerdict::Placed(ours) = entry.verdict.clone() else {
            return;
        };
        let pod = entry.pod.clone();
        // A pod that waits for its turn again is reported again only after a change.
        entry.since = now;
        let reported = std::mem::replace(&mut entry.reported, true);
        let (result, bound_to) = match engine.cluster().placement(uid) {
            Some((node, false)) => match *node == ours {
                true => (ShadowResult::Agree, Some(node.to_string())),
                false => (ShadowResult::OtherNode, Some(node.to_string())),
            },
            _ => (ShadowResult::NotBound, None),
        };
        if bound_to.is_some() {
            self.pods.remove(uid);
        } else if engine.queued(uid).is_none() && engine.cluster().placement(uid).is_none() {
            // The object that it stood for is gone.
            self.pods.remove(uid);
            return;
        } else if reported {
            let why = "still not bound by the cluster's scheduler";
            return self.withdraw(uid, why, engine, now);
        }
        let reason = match result {
            ShadowResult::NotBound => scheduled_condition(&pod),
            _ => String::new(),
        };
        self.record(ShadowDifference {
            pod: pod.to_string(),
            profile: pod.scheduler_name().to_owned(),
            time: now,
            result,
            node: Some(ours.to_string()),
            bound_to,
            plugin: None,
            reason,
            late: false,
            nodes: Vec::new(),
        });
        let why = "not bound by the cluster's scheduler in time";
        self.withdraw(uid, why, engine, now);
    }

    /// Counts a result, and logs and keeps it if it is a difference.
    fn record(&mut self, difference: ShadowDifference) {
        let result = difference.result;
        self.metrics.compared(&difference.profile, result.name());
        if result.is_difference() {
            if self.logs.take(self.started.elapsed()) {
                tracing::info!(
                    pod = difference.pod,
                    result = result.name(),
                    node = difference.node,
                    bound_to = difference.bound_to,
                    plugin = difference.plugin,
                    reason = difference.reason,
                    unlogged = std::mem::take(&mut self.unlogged),
                    "decision differs from the cluster's scheduler"
                );
            } else {
                self.unlogged += 1;
            }
        }
        self.debug.update_shadow(|report| {
            report.count(result);
            if result.is_difference() {
                report.add(difference);
            }
        });
    }
}

/// Returns why the cluster's scheduler has not scheduled the pod, by its condition.
fn scheduled_condition(pod: &PodInfo) -> String {
    let conditions = pod.status().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == "PodScheduled");
    let message = condition.and_then(|condition| condition.message.clone());
    message.unwrap_or_else(|| "the cluster's scheduler gives no reason".to_owned())
}
