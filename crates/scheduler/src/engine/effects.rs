//! Application of what plugins request of the engine while they handle an event.

use super::plugin_table::PluginTable;
use super::pod_waker::PodWaker;
use super::waiting::WaitEnd;
use super::{Engine, Output, REFUSED, WaitingPod, cycle};
use crate::framework::{Diagnosis, Effects, NodeRefusal};
use crate::guard::catch_panic;
use crate::queue::Queue;
use jiff::Timestamp;

impl Engine {
    /// Carries out what plugins requested.
    pub(super) fn apply(&mut self, fx: Effects, now: Timestamp) {
        if fx.is_empty() {
            return;
        }
        let mut touched = fx.touched;
        for node in touched.drain(..) {
            if node.row() < self.cluster.nodes.rows() {
                self.cluster.nodes.touch(node);
            }
        }
        self.cluster.touched = touched;
        for uid in fx.demand_changed {
            self.preemptor
                .nominator
                .touch_nominated(&mut self.cluster.nodes, &uid);
        }
        if fx.touch_all {
            self.classes.clear();
        }
        for problem in fx.problems {
            self.outbox.push(Output::Problem(problem));
        }
        // In this order: a pod that is removed and applied at once starts from scratch.
        for uid in fx.remove {
            self.pod_left(&uid, now);
        }
        for pod in fx.apply {
            self.info_applied(pod, now);
        }
        for uid in fx.withdraw {
            if let Some(pod) = self.preemptor.withdraw(
                (&mut self.cluster.nodes, &mut self.outbox),
                &self.queue,
                &uid,
            ) {
                PodWaker::new(self).wake_for_freed(&pod, now);
            }
        }
        for uid in fx.regate {
            self.table.regate(&mut self.queue, &uid, now);
        }
        for uid in fx.activate {
            self.queue.activate(&uid);
        }
        for (uid, message) in fx.explain {
            if let Some(pod) = self.queue.get(&uid).map(|queued| queued.info.clone()) {
                self.outbox.push(Output::Explain { pod, message });
            }
        }
        self.outbox.extend(fx.writes.into_iter().map(Output::Write));
        for (uid, plugin) in fx.allow {
            self.allow_waiting(&uid, plugin, now);
        }
        for (uid, plugin, reason) in fx.reject {
            self.reject_waiting(&uid, plugin, reason.as_str(), WaitEnd::Rejected, now);
        }
        for (uid, plugin, reason) in fx.rollback {
            self.reject_waiting(&uid, plugin, reason.as_str(), WaitEnd::RolledBack, now);
        }
    }

    pub(super) fn allow_waiting(&mut self, uid: &str, plugin: &str, now: Timestamp) {
        let Some(waiting) = self.waits.pods.get_mut(uid) else {
            return;
        };
        waiting.on.retain(|name| *name != plugin);
        if !waiting.on.is_empty() {
            return;
        }
        let Some(WaitingPod { pod, profile, .. }) =
            self.waits.stop(uid, "Success", now, &self.telemetry.meter)
        else {
            return;
        };
        let Some(node) = self.cluster.pods.get(uid).map(|record| record.node) else {
            return;
        };
        let result = catch_panic(|| self.send_to_bind(&pod, profile, node, now));
        if let Err(stop) = result.unwrap_or_else(|panic| Err(cycle::CycleError::panicked(&panic))) {
            self.withdraw_assumed(uid, now);
            self.refuse(&pod, stop, now);
        }
    }

    /// Ends the wait of a pod that a plugin does not permit, and puts the pod back into the queue.
    pub(super) fn reject_waiting(
        &mut self,
        uid: &str,
        plugin: &'static str,
        reason: &str,
        end: WaitEnd,
        now: Timestamp,
    ) {
        let Some(wait) = self.waits.stop(uid, REFUSED, now, &self.telemetry.meter) else {
            return;
        };
        match end {
            WaitEnd::Rejected => {
                self.withdraw_assumed(uid, now);
            }
            WaitEnd::RolledBack => {
                self.unbook(uid, now);
            }
        }
        let pod = &wait.pod;
        let by = self.table.named(&[plugin]);
        let kept_node = self.preemptor.kept.remove(&pod.uid);
        // The refusal concerns the chosen node only.
        let refusal = NodeRefusal {
            failed_plugin: plugin,
            reason: reason.to_owned().into(),
            preempt_might_help: false,
            nodes: 1,
        };
        let diagnosis = Diagnosis {
            total_nodes: 1,
            refusals: vec![refusal],
            plugins: vec![plugin],
            by,
            nominated: Some(kept_node.map_or_else(String::new, |node| node.to_string())),
            ..Diagnosis::default()
        };
        self.refuse(pod, cycle::CycleError::Refused(Box::new(diagnosis)), now);
        if let Some(event) = wait.missed {
            self.queue.wake(&pod.uid, event, now);
        }
    }
}

impl PluginTable {
    /// Runs the pre-enqueue plugins for a queued pod again.
    fn regate(&self, queue: &mut Queue, uid: &str, now: Timestamp) {
        let Some(pod) = queue.get(uid).map(|queued| queued.info.clone()) else {
            return;
        };
        if let Some(profile) = self.profile_of(&pod) {
            let gates = self.gates_of(&pod, profile);
            queue.gate(uid, gates, now);
        }
    }
}
