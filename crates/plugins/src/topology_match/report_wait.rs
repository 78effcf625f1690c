//! Waiting for reports that count the pods on a node, and the timeout of that wait.

use super::TopologyMatch;
use super::args::{CacheMode, ForeignPods, OverReserve};
use super::node_state::NodeTopologyState;
use super::pod::PodFingerprint;
use jiff::{SignedDuration, Timestamp};
use koord_scheduler::framework::{Effects, Problem, View};
use koord_scheduler::state::{NodeIndex, PodInfo};
use std::sync::Arc;

/// Number of resync periods to wait for a matching report before a problem is reported.
const TIMEOUT_PERIODS: i32 = 10;

impl TopologyMatch {
    /// Records a pod that came to a node, as the cache mode requires.
    pub(super) fn record_pod(&mut self, pod: &PodInfo, node: NodeIndex, view: View<'_>) {
        let own = self.own_schedulers.contains(pod.scheduler_name());
        let name = view.nodes.name(node).clone();
        let mode = match self.settings.cache_mode {
            CacheMode::None => return,
            CacheMode::Discard => {
                if pod.node.is_none() {
                    self.state_mut(&name).binding.insert(pod.uid.clone());
                }
                return;
            }
            CacheMode::OverReserve(mode) => mode,
        };
        self.unchecked.insert(name.clone());
        let node_state = self.state_mut(&name);
        if own {
            // A pod that is bound already was placed before this process became leader.
            if node_state.report().is_some() && (pod.node.is_none() || node_state.has_fingerprint())
            {
                node_state.hold(&pod.uid, &pod.requests, view.now);
            }
        } else {
            if self.affects_report(&name, pod, mode, view) {
                let node_state = self.state_mut(&name);
                node_state.add_foreign(&pod.uid, &pod.requests, view.now);
            }
        }
        self.schedule_check(mode, view);
    }

    /// Returns true if a foreign pod that comes to the node, or leaves it, makes the node's report doubtful.
    pub(super) fn affects_report(
        &self,
        name: &str,
        pod: &PodInfo,
        mode: OverReserve,
        view: View<'_>,
    ) -> bool {
        let Some(report) = self.states.get(name).and_then(NodeTopologyState::report) else {
            return false;
        };
        match mode.foreign {
            ForeignPods::None => false,
            ForeignPods::All => true,
            ForeignPods::OnlyExclusiveResources => {
                PodFingerprint::from_pod(pod, view.resources).is_exclusive(|id| report.lists(id))
            }
        }
    }

    /// Schedules a check for unmatched reports, unless one is scheduled.
    pub(super) fn schedule_check(&mut self, mode: OverReserve, view: View<'_>) {
        if self.next_check.is_none() {
            self.next_check = Some(deadline(view.now, mode));
        }
    }

    /// Compares reports with pods on all nodes where either changed.
    pub(super) fn check_reports(&mut self, mode: OverReserve, view: View<'_>, fx: &mut Effects) {
        for name in std::mem::take(&mut self.unchecked) {
            let (Some(node_state), Some(node)) =
                (self.states.get_mut(&name), view.nodes.find(&name))
            else {
                continue;
            };
            if node_state.resync(node, view, &mode, |since| deadline(since, mode) <= view.now) {
                fx.touched.push(node);
                self.wake(node, view, fx);
            }
        }
    }

    /// Activates rejected pods that may fit the node now. Only those: thousands may wait, and every node
    /// reports each minute.
    fn wake(&mut self, node: NodeIndex, view: View<'_>, fx: &mut Effects) {
        let refused = self.refused.values();
        let may = refused.filter(|pod| self.may_fit(pod, node, view));
        let woken: Vec<Arc<str>> = may.map(|pod| pod.uid.clone()).collect();
        for uid in &woken {
            self.refused.remove(uid);
        }
        fx.activate.extend(woken);
    }

    /// Stops waiting for reports that have not matched in time, and reports a problem for each of them.
    pub(super) fn handle_timeouts(&mut self, mode: OverReserve, view: View<'_>, fx: &mut Effects) {
        let mut next: Option<Timestamp> = None;
        let mut opened = Vec::new();
        let mut is_due = |since: Timestamp| {
            let due_at = deadline(since, mode);
            let is_due = due_at <= view.now;
            if !is_due {
                next = Some(next.map_or(due_at, |next| next.min(due_at)));
            }
            is_due
        };
        for (name, node_state) in &mut self.states {
            for since in node_state.foreign_since() {
                // A foreign pod that never starts is no reason to wait for another report.
                if is_due(since) {
                    self.unchecked.insert(name.clone());
                }
            }
            let opens = node_state.doubtful_since().is_some_and(&mut is_due);
            if opens {
                node_state.give_up();
            }
            let lasts = node_state
                .since
                .filter(|_| !node_state.problem_reported)
                .is_some_and(&mut is_due);
            let node = view.nodes.find(name);
            let Some((node, info)) = node.and_then(|it| Some((it, view.nodes.info(it)?))) else {
                continue;
            };
            if opens {
                fx.touched.push(node);
                opened.push(node);
            }
            if !opens && !lasts {
                continue;
            }
            node_state.problem_reported = true;
            let meta = &info.object.metadata;
            fx.problems.push(Problem {
                kind: "Node",
                namespace: String::new(),
                name: name.to_string(),
                uid: meta.uid.clone().unwrap_or_default(),
                message: node_state.problem_message(node, view, &mode),
            });
        }
        self.next_check = next;
        for node in opened {
            self.wake(node, view, fx);
        }
    }
}

fn deadline(from: Timestamp, mode: OverReserve) -> Timestamp {
    let period = SignedDuration::try_from(mode.period).unwrap_or(SignedDuration::MAX);
    let timeout = period
        .checked_mul(TIMEOUT_PERIODS)
        .unwrap_or(SignedDuration::MAX);
    from.saturating_add(timeout).unwrap_or(Timestamp::MAX)
}
