//! What follows from an event: who is woken, and what plugins asked for.

use super::{Engine, Output, REFUSED, Waiting, cycle};
use crate::framework::{Action, ClusterEvent, Diagnosis, Effects, Instance, Interest, NodeRefusal};
use crate::guard::attempted;
use crate::queue::PluginSet;
use crate::state::PodInfo;
use jiff::Timestamp;
use std::sync::Arc;

impl Engine {
    /// Wakes the pods that room which was set aside for `pod` may help: to those that had to leave it alone, that is
    /// as if it had been there and went.
    pub(super) fn wake_by_freed(&mut self, pod: &PodInfo, now: Timestamp) {
        let event = ClusterEvent::of_assigned(Action::DELETE, pod);
        self.wake_up_to(pod.priority, &event, now);
    }

    /// Wakes the refused pods that `event` may help.
    pub(super) fn wake_for(&mut self, event: &ClusterEvent<'_>, now: Timestamp) {
        self.wake_up_to(i32::MAX, event, now);
    }

    /// The same, up to a priority.
    pub(super) fn wake_up_to(&mut self, priority: i32, event: &ClusterEvent<'_>, now: Timestamp) {
        let mut interested: PluginSet = 0;
        for (instance, interests) in self.table.interests.iter().enumerate() {
            let cares = |i: &Interest| i.subject == event.subject && i.actions.meets(event.action);
            if interests.iter().any(cares) {
                interested |= 1 << instance;
            }
        }
        let mut beyond: PluginSet = 0;
        for (instance, plugin) in self.table.plugins.iter().enumerate() {
            if interested & (1 << instance) != 0 && plugin.reaches_further(event) {
                beyond |= 1 << instance;
            }
        }
        // Plugins that know whom alone it may help.
        let (mut narrow, mut names): (PluginSet, Vec<(PluginSet, String)>) = (0, Vec::new());
        for (instance, plugin) in self.table.plugins.iter().enumerate() {
            let bit = 1 << instance;
            if interested & bit != 0
                && let Some(name) = plugin.about(event)
            {
                narrow |= bit;
                match names.iter_mut().find(|(_, known)| *known == name) {
                    Some((plugins, _)) => *plugins |= bit,
                    None => names.push((bit, name)),
                }
            }
        }
        let hinted = std::cell::Cell::new(false);
        let view = self.cluster.view(now);
        let meter = &self.telemetry.meter;
        let any_of = |asked: PluginSet, pod: &PodInfo| {
            (0..self.table.plugins.len()).any(|instance| {
                asked & (1 << instance) != 0
                    && self
                        .table
                        .helps(instance, pod, event, view, (meter, &hinted))
            })
        };
        let mut wake = Vec::new();
        for (plugins, name) in &names {
            for (by, queued) in self.queue.named(name) {
                let pod = &queued.info;
                if pod.priority <= priority && any_of(by & plugins, pod) {
                    wake.push(pod.uid.clone());
                }
            }
        }
        for (by, pods) in self.queue.refused() {
            // Refused by nobody in particular (no nodes): anything may help.
            // Nobody says what may change an extender's mind.
            let any = by == 0 || by & self.table.extenders_bit() != 0;
            let asked = if any {
                PluginSet::MAX
            } else {
                by & interested & !narrow | beyond
            };
            if asked == 0 {
                continue;
            }
            for uid in pods {
                let Some(queued) = self.queue.get(uid) else {
                    continue;
                };
                if queued.info.priority > priority {
                    continue;
                }
                if any || any_of(asked, &queued.info) {
                    wake.push(uid.clone());
                }
            }
        }
        // Who waits is not refused yet, and may be when its time is over.
        let mut missed = Vec::new();
        if self.waits.awaited & interested != 0 {
            for (uid, wait) in &self.waits.pods {
                let asked = self.table.named(&wait.on) & interested;
                let helps = |instance: Instance| {
                    asked & (1 << instance) != 0
                        && self
                            .table
                            .helps(instance, &wait.pod, event, view, (meter, &hinted))
                };
                let may = wait.missed.is_none() && wait.pod.priority <= priority;
                if may && (0..self.table.plugins.len()).any(helps) {
                    missed.push(uid.clone());
                }
            }
        }
        // Of who asks extenders it is not known who will refuse it.
        let asking: Vec<Arc<str>> = self.calls.asking().cloned().collect();
        let label = self.table.event_name(event);
        self.calls.missed(&asking, label);
        for uid in missed {
            if let Some(wait) = self.waits.pods.get_mut(&uid) {
                wait.missed = Some(label);
            }
        }
        for uid in wake {
            self.queue.wake(&uid, label, now);
        }
    }

    /// Does what plugins asked for.
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
        for uid in fx.imagined {
            self.preemptor
                .nominator
                .touch_promised(&mut self.cluster.nodes, &uid);
        }
        if fx.touch_all {
            self.forget_shared();
        }
        for problem in fx.problems {
            self.outbox.push(Output::Problem(problem));
        }
        // In this order: what is removed and applied at once starts afresh.
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
                self.wake_by_freed(&pod, now);
            }
        }
        for uid in fx.regate {
            self.regate(&uid, now);
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
            self.reject_waiting(&uid, plugin, reason.as_str(), now);
        }
        for (uid, plugin, reason) in fx.rollback {
            if let Some(wait) = self.waits.stop(&uid, REFUSED, now, &self.telemetry.meter) {
                self.unbook(&uid, now);
                self.refuse_waiting(&wait, plugin, reason.as_str(), now);
            }
        }
    }

    /// Asks the pre-enqueue plugins about a queued pod again.
    pub(super) fn regate(&mut self, uid: &str, now: Timestamp) {
        let Some(pod) = self.queue.get(uid).map(|queued| queued.info.clone()) else {
            return;
        };
        if let Some(profile) = self.table.profile_of(&pod) {
            let gates = self.table.gates_of(&pod, profile);
            self.queue.gate(uid, gates, now);
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
        let Some(Waiting { pod, profile, .. }) =
            self.waits.stop(uid, "Success", now, &self.telemetry.meter)
        else {
            return;
        };
        let Some(node) = self.cluster.pods.get(uid).map(|record| record.node) else {
            return;
        };
        let sent = attempted(|| self.send_to_bind(&pod, profile, node, now));
        if let Err(stop) = sent.unwrap_or_else(|said| Err(cycle::Stop::panicked(&said))) {
            self.undo(uid, now);
            self.refuse(&pod, stop, now);
        }
    }

    pub(super) fn reject_waiting(
        &mut self,
        uid: &str,
        plugin: &'static str,
        reason: &str,
        now: Timestamp,
    ) {
        let Some(wait) = self.waits.stop(uid, REFUSED, now, &self.telemetry.meter) else {
            return;
        };
        self.undo(uid, now);
        self.refuse_waiting(&wait, plugin, reason, now);
    }

    pub(super) fn refuse_waiting(
        &mut self,
        wait: &Waiting,
        plugin: &'static str,
        reason: &str,
        now: Timestamp,
    ) {
        let pod = &wait.pod;
        let by = self.table.named(&[plugin]);
        let kept = self.preemptor.kept.remove(&pod.uid);
        // Refused on the chosen node: the others do not count.
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
            nominated: Some(kept.map_or_else(String::new, |node| node.to_string())),
            ..Diagnosis::default()
        };
        self.refuse(pod, cycle::Stop::Refused(Box::new(diagnosis)), now);
        if let Some(event) = wait.missed {
            self.queue.wake(&pod.uid, event, now);
        }
    }
}
