//! Wakes the refused pods that an event can make schedulable.

use super::Engine;
use super::cluster::ClusterState;
use super::extender_calls::ExtenderCalls;
use super::measure::Meter;
use super::plugin_table::PluginTable;
use super::waiting::WaitingPods;
use crate::framework::{Action, ClusterEvent, Instance, Interest};
use crate::queue::{PluginSet, Queue};
use crate::state::PodInfo;
use jiff::Timestamp;
use std::sync::Arc;

/// The parts of the engine needed to pass an event to refused pods.
pub(super) struct PodWaker<'a> {
    cluster: &'a ClusterState,
    table: &'a PluginTable,
    meter: &'a Meter,
    queue: &'a mut Queue,
    waits: &'a mut WaitingPods,
    calls: &'a mut ExtenderCalls,
}

impl<'a> PodWaker<'a> {
    /// Creates a waker of the pods of `engine`.
    pub(super) fn new(engine: &'a mut Engine) -> Self {
        Self {
            cluster: &engine.cluster,
            table: &engine.table,
            meter: &engine.telemetry.meter,
            queue: &mut engine.queue,
            waits: &mut engine.waits,
            calls: &mut engine.calls,
        }
    }

    /// Wakes the pods that can use the room that was reserved for `pod` by its nomination: for those that had
    /// to leave it free, this is as if `pod` had been deleted.
    pub(super) fn wake_for_freed(&mut self, pod: &PodInfo, now: Timestamp) {
        let event = ClusterEvent::for_assigned_pod(Action::DELETE, pod);
        self.wake_up_to(pod.priority, &event, now);
    }

    /// Wakes the refused pods that `event` can make schedulable.
    pub(super) fn wake_for(&mut self, event: &ClusterEvent<'_>, now: Timestamp) {
        self.wake_up_to(i32::MAX, event, now);
    }

    /// Wakes the refused pods up to `priority` that `event` can make schedulable.
    fn wake_up_to(&mut self, priority: i32, event: &ClusterEvent<'_>, now: Timestamp) {
        let mut interested: PluginSet = 0;
        for (instance, interests) in self.table.interests.iter().enumerate() {
            let cares = |i: &Interest| i.subject == event.subject && i.actions.meets(event.action);
            if interests.iter().any(cares) {
                interested |= 1 << instance;
            }
        }
        let mut beyond: PluginSet = 0;
        for (instance, plugin) in self.table.plugins.iter().enumerate() {
            if interested & (1 << instance) != 0
                && plugin
                    .queue_hints()
                    .is_some_and(|hints| hints.affects_unrefused(event))
            {
                beyond |= 1 << instance;
            }
        }
        // Plugins that name the object by which the affected pods are found.
        let (mut narrow, mut names): (PluginSet, Vec<(PluginSet, String)>) = (0, Vec::new());
        for (instance, plugin) in self.table.plugins.iter().enumerate() {
            let bit = 1 << instance;
            if interested & bit != 0
                && let Some(name) = plugin
                    .queue_hints()
                    .and_then(|hints| hints.event_subject(event))
            {
                narrow |= bit;
                match names.iter_mut().find(|(_, subject)| *subject == name) {
                    Some((plugins, _)) => *plugins |= bit,
                    None => names.push((bit, name)),
                }
            }
        }
        let hinted = std::cell::Cell::new(false);
        let view = self.cluster.view(now);
        let meter = self.meter;
        let any_of = |instances: PluginSet, pod: &PodInfo| {
            (0..self.table.plugins.len()).any(|instance| {
                instances & (1 << instance) != 0
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
            // Any event may help a pod that no plugin refused (there were no nodes), or that an extender
            // refused: extenders do not declare events.
            let any = by == 0 || by & self.table.extenders_bit() != 0;
            let candidates = if any {
                PluginSet::MAX
            } else {
                by & interested & !narrow | beyond
            };
            if candidates == 0 {
                continue;
            }
            for uid in pods {
                let Some(queued) = self.queue.get(uid) else {
                    continue;
                };
                if queued.info.priority > priority {
                    continue;
                }
                if any || any_of(candidates, &queued.info) {
                    wake.push(uid.clone());
                }
            }
        }
        // A pod that waits for permission is not refused yet, but may be when its time is over.
        let mut missed = Vec::new();
        if self.waits.awaited & interested != 0 {
            for (uid, wait) in &self.waits.pods {
                let candidates = self.table.named(&wait.on) & interested;
                let helps = |instance: Instance| {
                    candidates & (1 << instance) != 0
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
        // Which extender will refuse a pod is unknown while the calls are pending.
        let asking: Vec<Arc<str>> = self.calls.pending_pods().cloned().collect();
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
}
