//! Nominations of pods, and the victims being evicted for them.

use super::nominator::Nominator;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Nominations, and pending evictions.
///
/// Invariant: `evicting` holds only pods that are on a node; `kept` is empty except from the settlement of a
/// group until the post-filter plugins have run.
#[derive(Debug, Default)]
pub struct Preemptor {
    pub(super) nominator: Nominator,
    /// Victims with a requested eviction, and the preemptor of each, by uid.
    pub(super) evicting: FxHashMap<Arc<str>, Arc<str>>,
    /// Pods that keep their node as a nomination if their reservation is undone now, by uid.
    pub(super) kept: FxHashMap<Arc<str>, Arc<str>>,
    /// The number of preemption attempts.
    pub(super) searches: u64,
    /// The number of victims.
    pub(super) victims: usize,
}

impl Preemptor {
    /// Returns the node that the pod with this uid is nominated to.
    #[must_use]
    pub fn nominated_node(&self, uid: &str) -> Option<&Arc<str>> {
        self.nominator.node_of(uid)
    }

    /// Returns the number of preemption attempts and the number of victims.
    #[must_use]
    pub fn preemptions(&self) -> (u64, usize) {
        (self.searches, self.victims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Output;
    use crate::queue::{Backoff, Queue};
    use crate::state::{NodeStore, PodInfo};
    use jiff::{SignedDuration, Timestamp};
    use koord_model::resources::ResourceTable;
    use serde_json::json;

    fn pod(uid: &str, priority: i32) -> Arc<PodInfo> {
        let pod = json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid},
            "spec": {"priority": priority, "containers": []}});
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        Arc::new(PodInfo::new(pod, &ResourceTable::new()).unwrap())
    }

    #[test]
    fn outranked_pods_lose_their_nomination_but_mates_do_not() {
        let (mut preemptor, mut nodes) = (Preemptor::default(), NodeStore::default());
        let node: Arc<str> = "n".into();
        for (uid, priority) in [("low", 1), ("mate", 1), ("high", 9)] {
            let nominator = &mut preemptor.nominator;
            nominator.nominate(&mut nodes, &pod(uid, priority), &node);
        }
        let mut outbox = Vec::new();
        let mates = std::iter::once("mate".into()).collect();
        preemptor.clear_outranked((&mut nodes, &mut outbox), "n", 5, &mates);
        let nominated = preemptor.nominator.on("n").iter().map(|pod| &*pod.uid);
        assert_eq!(nominated.collect::<Vec<_>>(), ["high", "mate"]);
        // Its status is cleared, and the binder no longer expects it.
        assert!(matches!(&outbox[..], [
            Output::Write(write),
            Output::Expect { pod, node },
        ] if write.name == "low" && &*pod.uid == "low" && node.is_empty()));
    }

    #[test]
    fn claimed_node_is_promised_to_the_pod_and_its_betters() {
        let (mut preemptor, mut nodes) = (Preemptor::default(), NodeStore::default());
        let row = nodes.add_pod("n", pod("booked", 0));
        let node: Arc<str> = "n".into();
        for (uid, priority) in [("low", 1), ("high", 9)] {
            let nominator = &mut preemptor.nominator;
            nominator.nominate(&mut nodes, &pod(uid, priority), &node);
        }
        let mut outbox = Vec::new();
        let claimed = preemptor.claim((&mut nodes, &mut outbox), &pod("new", 5), row);
        assert_eq!((&*claimed, outbox.len()), ("n", 2));
        let nominated = preemptor.nominator.on("n").iter().map(|pod| &*pod.uid);
        assert_eq!(nominated.collect::<Vec<_>>(), ["high", "new"]);
    }

    #[test]
    fn group_claims_its_places_and_frees_the_rest() {
        let (mut preemptor, mut nodes) = (Preemptor::default(), NodeStore::default());
        let rows = ["n1", "n2"].map(|node| nodes.add_pod(node, pod(node, 0)));
        let second = SignedDuration::from_secs(1);
        let mut queue = Queue::new(Backoff {
            initial: second,
            max: second,
        });
        let pods = ["a", "b", "c"].map(|uid| pod(uid, 5));
        for pod in &pods {
            queue.add(pod.clone(), 0, Timestamp::UNIX_EPOCH);
        }
        // "c" was nominated before, and a mate of lower priority keeps its own nomination.
        let node: Arc<str> = "n1".into();
        for pod in [&pods[2], &pod("held", 1), &pod("other", 1)] {
            let nominator = &mut preemptor.nominator;
            nominator.nominate(&mut nodes, pod, &node);
        }
        let mut outbox = Vec::new();
        let places = [(pods[0].clone(), rows[0]), (pods[1].clone(), rows[1])];
        let pending: Vec<Arc<str>> = pods.iter().map(|pod| pod.uid.clone()).collect();
        let (own, withdrawn) = preemptor.claim_together(
            (&mut nodes, &mut outbox),
            &queue,
            &pods[0],
            &places,
            (&pending, &["held".into()]),
        );
        assert_eq!(own.as_deref(), Some("n1"));
        assert!(matches!(&withdrawn[..], [pod] if &*pod.uid == "c"));
        let on = |node: &str| -> Vec<String> {
            let pods = preemptor.nominator.on(node).iter();
            pods.map(|pod| pod.uid.to_string()).collect()
        };
        assert_eq!(
            (on("n1"), on("n2")),
            (vec!["a".into(), "held".into()], vec!["b".into()])
        );
        let expected = outbox.iter().filter_map(|output| match output {
            Output::Expect { pod, node } => Some((&*pod.uid, &**node)),
            _ => None,
        });
        let expected: Vec<_> = expected.collect();
        assert_eq!(expected, [("other", ""), ("b", "n2"), ("c", "")]);
    }

    #[test]
    fn withdrawn_nomination_is_written_once_for_queued_pods() {
        let (mut preemptor, mut nodes) = (Preemptor::default(), NodeStore::default());
        let second = SignedDuration::from_secs(1);
        let mut queue = Queue::new(Backoff {
            initial: second,
            max: second,
        });
        queue.add(pod("queued", 1), 0, Timestamp::UNIX_EPOCH);
        let node: Arc<str> = "n".into();
        for uid in ["queued", "gone"] {
            let nominator = &mut preemptor.nominator;
            nominator.nominate(&mut nodes, &pod(uid, 1), &node);
        }
        let mut outbox = Vec::new();
        let mut withdraw = |uid| {
            let parts = (&mut nodes, &mut outbox);
            preemptor.withdraw(parts, &queue, uid).is_some()
        };
        let withdrawn = ["queued", "queued", "gone", "unknown"].map(&mut withdraw);
        assert_eq!(withdrawn, [true, false, false, false]);
        assert_eq!(outbox.len(), 1);
        assert!(preemptor.nominator.is_empty());
    }
}
