//! Pods that keep their reservation while they wait for permission.

use super::cluster::ClusterState;
use super::measure::{self, Measurement, Meter, Point};
use super::nominator::Nominator;
use super::output::Output;
use super::plugin_table::PluginTable;
use crate::queue::PluginSet;
use crate::state::PodInfo;
use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A pod that keeps its reservation while it waits for permission.
#[derive(Debug, Clone)]
pub(super) struct WaitingPod {
    pub(super) pod: Arc<PodInfo>,
    pub(super) profile: usize,
    pub(super) on: Vec<&'static str>,
    pub(super) since: Timestamp,
    /// The point at which it waits: for permission, or for something that must precede the binding.
    pub(super) point: Point,
    pub(super) until: Timestamp,
    /// The plugin whose wait ends first, and its timeout.
    pub(super) patience: (&'static str, SignedDuration),
    /// The last event that would have woken the pod, had it been refused by a plugin that it waits for.
    pub(super) missed: Option<&'static str>,
}

/// The outcome of the wait of a pod that is not permitted.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitEnd {
    /// The pod's reservation is undone, and pods that this may help are woken.
    Rejected,
    /// The pod's reservation is undone with those of its group, so that the group is tried again.
    RolledBack,
}

/// Waiting pods and their deadlines.
///
/// Invariant: each wait has an entry in `deadlines`, and each plugin that a pod waits for is in `awaited`.
#[derive(Debug, Default)]
pub(super) struct WaitingPods {
    pub(super) pods: FxHashMap<Arc<str>, WaitingPod>,
    /// Plugins that pods wait for, and those of waits that ended, until no pod waits.
    pub(super) awaited: PluginSet,
    /// Deadlines of waits; entries of pods that no longer wait are dropped when they come up.
    pub(super) deadlines: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
}

impl WaitingPods {
    /// Holds an assumed pod until all plugins have permitted it or its time is over. Returns the output that
    /// makes the binder expect the pod on its node.
    pub(super) fn hold(
        &mut self,
        wait: WaitingPod,
        table: &PluginTable,
        cluster: &ClusterState,
        nominator: &mut Nominator,
    ) -> Option<Output> {
        let uid = &wait.pod.uid;
        let record = cluster.pods.get(uid).filter(|_| !wait.pod.is_holder());
        let output = record.map(|record| {
            let node = cluster.nodes.name(record.node).clone();
            // A nomination that its status shows already was made before the pod was placed.
            if wait.pod.nominated.as_ref() != Some(&node) {
                nominator.expect(uid, &node);
            }
            Output::Expect {
                pod: wait.pod.clone(),
                node,
            }
        });
        let on = table.named(&wait.on);
        self.add(wait, on);
        output
    }

    /// Adds a pod that waits for the plugins `on`.
    pub(super) fn add(&mut self, wait: WaitingPod, on: PluginSet) {
        let uid = wait.pod.uid.clone();
        self.deadlines.push(Reverse((wait.until, uid.clone())));
        if self.pods.is_empty() {
            self.awaited = 0;
        }
        self.awaited |= on;
        self.pods.insert(uid, wait);
        if self.deadlines.len() > 2 * self.pods.len() + 64 {
            let waiting = &self.pods;
            self.deadlines.retain(|Reverse((until, uid))| {
                waiting.get(uid).is_some_and(|w| w.until == *until)
            });
        }
    }

    /// Returns when the next wait ends, as far as is known.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.peek().map(|Reverse((until, _))| *until)
    }

    /// Returns the next pod whose wait is over by `now`, with the plugin that had the shortest timeout and
    /// that timeout. The pod waits until it is stopped.
    pub(super) fn next_expired(
        &mut self,
        now: Timestamp,
    ) -> Option<(Arc<str>, &'static str, SignedDuration)> {
        while self.next_deadline().is_some_and(|until| until <= now) {
            let Reverse((until, uid)) = self.deadlines.pop()?;
            let waiting = self.pods.get(&uid).filter(|w| w.until == until);
            if let Some((plugin, longest)) = waiting.map(|w| w.patience) {
                return Some((uid, plugin, longest));
            }
        }
        None
    }

    /// Ends the wait of a pod, if it waits.
    pub(super) fn stop(
        &mut self,
        uid: &str,
        result: &'static str,
        now: Timestamp,
        meter: &Meter,
    ) -> Option<WaitingPod> {
        let waiting = self.pods.remove(uid)?;
        let waited = now.duration_since(waiting.since);
        meter.note(match waiting.point {
            Point::Permit => Measurement::Permit {
                result,
                seconds: waited.as_secs_f64().max(0.0),
            },
            point => Measurement::Point {
                profile: waiting.profile,
                point,
                status: result,
                nanos: measure::nanos_of(waited),
            },
        });
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::resources::ResourceTable;
    use serde_json::json;

    const NEVER: Timestamp = Timestamp::MAX;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn wait(name: &str, until: Timestamp) -> WaitingPod {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"containers": []}});
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        WaitingPod {
            pod: Arc::new(PodInfo::new(pod, &ResourceTable::new()).unwrap()),
            profile: 0,
            on: vec!["Gate"],
            since: at(0),
            point: Point::Permit,
            until,
            patience: ("Gate", SignedDuration::from_secs(9)),
            missed: None,
        }
    }

    #[test]
    fn expired_waits_come_up_in_order_and_once() {
        let mut waits = WaitingPods::default();
        for (name, second) in [("late", 9), ("early", 3), ("gone", 5), ("again", 2)] {
            waits.add(wait(name, at(second)), 1);
        }
        waits.pods.remove("gone");
        // Waits again, for longer.
        waits.add(wait("again", at(7)), 1);
        assert_eq!(waits.next_deadline(), Some(at(2)));
        let mut expired = |now| waits.next_expired(at(now)).map(|(uid, ..)| uid.to_string());
        assert_eq!(expired(2), None);
        assert_eq!(expired(8).as_deref(), Some("early"));
        assert_eq!(expired(8).as_deref(), Some("again"));
        assert_eq!(expired(8), None);
        assert_eq!(expired(9).as_deref(), Some("late"));
        assert_eq!((expired(99), waits.next_deadline()), (None, None));
    }

    #[test]
    fn awaited_plugins_start_afresh_when_no_pod_waits() {
        let meter = Meter::new(1, 1);
        let mut waits = WaitingPods::default();
        waits.add(wait("a", NEVER), 0b01);
        waits.add(wait("b", NEVER), 0b10);
        assert!(waits.stop("a", "Success", at(1), &meter).is_some());
        assert!(waits.stop("a", "Success", at(1), &meter).is_none());
        assert_eq!(waits.awaited, 0b11);
        waits.stop("b", "Success", at(1), &meter);
        waits.add(wait("c", NEVER), 0b100);
        assert_eq!(waits.awaited, 0b100);
    }

    #[test]
    fn stale_deadlines_are_dropped_before_they_pile_up() {
        let mut waits = WaitingPods::default();
        for second in 0..1000 {
            waits.add(wait("a", at(second)), 1);
            waits.pods.remove("a");
        }
        assert!(waits.deadlines.len() < 100, "{}", waits.deadlines.len());
    }
}
