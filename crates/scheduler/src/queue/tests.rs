use super::*;
use serde_json::json;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn queue() -> Queue {
    let (initial, max) = (SignedDuration::from_secs(1), SignedDuration::from_secs(10));
    Queue::new(Backoff { initial, max })
}

fn pod(name: &str, priority: i32) -> Arc<PodInfo> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"priority": priority, "containers": []}
    }))
    .unwrap();
    let table = koord_model::resources::ResourceTable::new();
    Arc::new(PodInfo::new(Arc::new(pod), &table).unwrap())
}

fn pop(queue: &mut Queue, seconds: i64) -> Option<String> {
    queue.pop(at(seconds)).map(|pod| pod.info.name.to_string())
}

const REFUSED: Refusal = Refusal::Unschedulable {
    by: 1,
    pending: false,
};

#[test]
fn priority_first_then_age() {
    let mut queue = queue();
    queue.add(pod("late", 5), 0, at(2));
    queue.add(pod("low", 1), 0, at(0));
    queue.add(pod("early", 5), 0, at(1));
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue, 3)).collect();
    assert_eq!(order, ["early", "late", "low"]);
}

#[test]
fn a_refused_pod_waits_for_an_event_and_then_for_its_backoff() {
    let mut queue = queue();
    queue.add(pod("a", 0), 0, at(0));
    queue.add(pod("b", 0), 0, at(100));
    assert_eq!(pop(&mut queue, 100).as_deref(), Some("a"));
    queue.refuse("a", REFUSED, at(100));
    assert_eq!(
        queue.pending(),
        Pending {
            active: 1,
            unschedulable: 1,
            ..Pending::default()
        }
    );
    assert!(queue.wake("a", "test", at(100)));
    assert_eq!(queue.pending().backoff, 1);
    assert_eq!(
        pop(&mut queue, 100).as_deref(),
        Some("b"),
        "ready pods go first"
    );
    assert_eq!(
        pop(&mut queue, 100).as_deref(),
        Some("a"),
        "an idle scheduler does not wait"
    );
}

#[test]
fn backoffs_in_same_second_are_ordered_by_priority() {
    let mut queue = queue();
    for (name, priority, millis) in [("low", 1, 0), ("high", 9, 300), ("next", 10, 1200)] {
        let tried = at(0) + SignedDuration::from_millis(millis);
        queue.add(pod(name, priority), 0, tried);
        queue.pop(tried).unwrap();
        queue.refuse(name, REFUSED, tried);
        queue.wake(name, "test", tried);
    }
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue, 0)).collect();
    assert_eq!(order, ["high", "low", "next"]);
}

#[test]
fn backoff_doubles_up_to_the_maximum_and_failed_pods_do_wait() {
    let mut queue = queue();
    queue.add(pod("a", 0), 0, at(0));
    let mut now = 0;
    for expected in [1, 2, 4, 8, 10, 10] {
        assert_eq!(pop(&mut queue, now).as_deref(), Some("a"));
        queue.refuse("a", Refusal::Error, at(now));
        assert_eq!(pop(&mut queue, now + expected - 1), None);
        assert_eq!(queue.next_deadline(), Some(at(now + expected)));
        now += expected;
    }
}

#[test]
fn refused_pod_is_retried_after_five_minutes() {
    let mut queue = queue();
    queue.add(pod("a", 0), 0, at(0));
    pop(&mut queue, 0);
    queue.refuse("a", REFUSED, at(0));
    queue.tick(at(299));
    assert_eq!(pop(&mut queue, 300), None);
    assert_eq!(pop(&mut queue, 331).as_deref(), Some("a"));
}

#[test]
fn gated_pod_enters_when_gate_opens() {
    let mut queue = queue();
    queue.add(pod("a", 0), 1, at(0));
    assert_eq!(pop(&mut queue, 0), None);
    assert_eq!(queue.pending().gated, 1);
    queue.gate("a", 0, at(1));
    assert_eq!(pop(&mut queue, 1).as_deref(), Some("a"));
}

#[test]
fn a_removed_pod_never_comes_back() {
    let mut queue = queue();
    for name in ["a", "b", "c"] {
        queue.add(pod(name, 0), 0, at(0));
    }
    pop(&mut queue, 0);
    queue.refuse("a", REFUSED, at(0));
    for name in ["a", "b", "c"] {
        assert!(queue.remove(name).is_some());
    }
    assert!(!queue.wake("a", "test", at(1)));
    assert_eq!(pop(&mut queue, 1000), None);
    assert_eq!(queue.pending(), Pending::default());
}
