//! Waiting for reports that count the pods on a node, and the timeout of that wait.

use super::TopologyMatch;
use super::args::{Books, ForeignPods, OverReserve};
use super::desk::Desk;
use super::pod::Print;
use jiff::{SignedDuration, Timestamp};
use koord_scheduler::framework::{Effects, Problem, View};
use koord_scheduler::state::{NodeIndex, PodInfo};
use std::sync::Arc;

/// Number of resync periods to wait for a matching report before a problem is reported.
const PATIENCE: i32 = 10;

impl TopologyMatch {
    /// Records a pod that came to a node, as the cache mode requires.
    pub(super) fn came(&mut self, pod: &PodInfo, node: NodeIndex, view: View<'_>) {
        let own = self.own.contains(pod.scheduler_name());
        let name = view.nodes.name(node).clone();
        let how = match self.settings.books {
            Books::None => return,
            Books::Discard => {
                if pod.node.is_none() {
                    self.desk_mut(&name).binding.insert(pod.uid.clone());
                }
                return;
            }
            Books::OverReserve(how) => how,
        };
        self.unchecked.insert(name.clone());
        let desk = self.desk_mut(&name);
        if own {
            // A pod that is bound already was placed before this process became leader.
            if desk.report().is_some() && (pod.node.is_none() || desk.can_tell()) {
                desk.hold(&pod.uid, &pod.requests, view.now);
            }
        } else {
            if self.matters(&name, pod, how, view) {
                let desk = self.desk_mut(&name);
                desk.await_foreign(&pod.uid, &pod.requests, view.now);
            }
        }
        self.look_later(how, view);
    }

    /// Returns true if a foreign pod that comes to the node, or leaves it, makes the node's report doubtful.
    pub(super) fn matters(
        &self,
        name: &str,
        pod: &PodInfo,
        how: OverReserve,
        view: View<'_>,
    ) -> bool {
        let Some(report) = self.desks.get(name).and_then(Desk::report) else {
            return false;
        };
        match how.foreign {
            ForeignPods::None => false,
            ForeignPods::All => true,
            ForeignPods::OnlyExclusiveResources => {
                Print::of(pod, view.resources).is_exclusive(|id| report.lists(id))
            }
        }
    }

    pub(super) fn look_later(&mut self, how: OverReserve, view: View<'_>) {
        if self.look.is_none() {
            self.look = Some(later(view.now, how));
        }
    }

    /// Compares reports with pods on all nodes where either changed.
    pub(super) fn check(&mut self, how: OverReserve, view: View<'_>, fx: &mut Effects) {
        for name in std::mem::take(&mut self.unchecked) {
            let (Some(desk), Some(node)) = (self.desks.get_mut(&name), view.nodes.find(&name))
            else {
                continue;
            };
            if desk.resync(node, view, &how, |since| later(since, how) <= view.now) {
                fx.touched.push(node);
                self.wake(node, view, fx);
            }
        }
    }

    /// Activates rejected pods that may fit the node now. Only those: thousands may wait, and every node
    /// reports each minute.
    fn wake(&mut self, node: NodeIndex, view: View<'_>, fx: &mut Effects) {
        let refused = self.refused.values();
        let may = refused.filter(|pod| self.may_have_room(pod, node, view));
        let woken: Vec<Arc<str>> = may.map(|pod| pod.uid.clone()).collect();
        for uid in &woken {
            self.refused.remove(uid);
        }
        fx.activate.extend(woken);
    }

    /// Stops waiting for reports that have not matched in time, and reports a problem for each of them.
    pub(super) fn complain(&mut self, how: OverReserve, view: View<'_>, fx: &mut Effects) {
        let mut next: Option<Timestamp> = None;
        let mut opened = Vec::new();
        let mut is_due = |since: Timestamp| {
            let at = later(since, how);
            let is_due = at <= view.now;
            if !is_due {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
            is_due
        };
        for (name, desk) in &mut self.desks {
            for since in desk.awaited() {
                // A foreign pod that never starts is no reason to wait for another report.
                if is_due(since) {
                    self.unchecked.insert(name.clone());
                }
            }
            let opens = desk.doubtful_since().is_some_and(&mut is_due);
            if opens {
                desk.give_up();
            }
            let lasts = desk.since.filter(|_| !desk.told).is_some_and(&mut is_due);
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
            desk.told = true;
            let meta = &info.object.metadata;
            fx.problems.push(Problem {
                kind: "Node",
                namespace: String::new(),
                name: name.to_string(),
                uid: meta.uid.clone().unwrap_or_default(),
                message: desk.complaint(node, view, &how),
            });
        }
        self.look = next;
        for node in opened {
            self.wake(node, view, fx);
        }
    }
}

fn later(from: Timestamp, how: OverReserve) -> Timestamp {
    let period = SignedDuration::try_from(how.period).unwrap_or(SignedDuration::MAX);
    let patience = period.checked_mul(PATIENCE).unwrap_or(SignedDuration::MAX);
    from.saturating_add(patience).unwrap_or(Timestamp::MAX)
}
