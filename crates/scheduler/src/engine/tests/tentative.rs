//! Tentative placements of pods' replacements.

use super::*;

/// Creates three nodes with two CPUs each; `a` and `b` run on the first.
fn cluster() -> Engine {
    let mut engine = engine();
    for name in ["n1", "n2", "n3"] {
        engine.node_applied(node(name, "2"), at(0));
    }
    for name in ["a", "b"] {
        engine.pod_applied(bound(name, "1", "n1"), at(0));
    }
    engine.pod_applied(bound("full", "2", "n3"), at(0));
    engine
}

fn next(engine: &Engine, name: &str) -> Arc<PodInfo> {
    let running = engine.cluster().booked_pod(name).unwrap();
    Arc::new(running.without_node(pod(name, "1")))
}

fn promise(engine: &mut Engine, name: &str) -> Result<String, String> {
    let next = next(engine, name);
    let promised = engine.place_tentatively(&next, at(1));
    promised
        .map(|node| node.to_string())
        .map_err(|diagnosis| diagnosis.message())
}

#[test]
fn tentative_placement_takes_room_on_both_nodes() {
    let mut engine = cluster();
    let before = format!("{:?}", free(&engine));
    for _ in 0..3 {
        assert_eq!(promise(&mut engine, "a"), Ok("n2".to_owned()));
        assert_eq!(promise(&mut engine, "b"), Ok("n2".to_owned()));
        assert_eq!(free(&engine), [0, 0, 0]);
        assert_eq!(engine.cluster().placement("a").unwrap().0.as_ref(), "n2");
        engine.withdraw_tentative_placements(at(2));
        assert_eq!(format!("{:?}", free(&engine)), before);
        assert_eq!(engine.cluster().placement("a").unwrap().0.as_ref(), "n1");
        assert_eq!(engine.cluster().booked(), (3, 0));
        assert!(engine.cluster().nodes().books_balance());
    }
    let nowhere = |engine: &mut Engine| promise(engine, "full").unwrap_err();
    assert_eq!(promise(&mut engine, "a"), Ok("n2".to_owned()));
    assert_eq!(promise(&mut engine, "b"), Ok("n2".to_owned()));
    assert_eq!(
        nowhere(&mut engine),
        "0/3 nodes are available: 1 node(s) were what the pod is to leave, 2 Insufficient cpu."
    );
}

fn free(engine: &Engine) -> Vec<i64> {
    let nodes = engine.cluster().nodes();
    let free = |node| nodes.allocatable(node, CPU) - nodes.requested(node, CPU);
    nodes.indices().map(free).collect()
}

#[test]
fn failed_tentative_placement_changes_nothing() {
    let mut engine = cluster();
    for name in ["unreservable", "panic", "never"] {
        engine.pod_applied(bound(name, "0", "n1"), at(0));
    }
    engine.pod_applied(pod("waits", "0"), at(0));
    let before = free(&engine);
    let refusal =
        ["unreservable", "panic", "never"].map(|name| promise(&mut engine, name).unwrap_err());
    assert!(refusal[0].contains("nothing left"), "{refusal:?}");
    assert!(refusal[1].contains("a plugin panicked"), "{refusal:?}");
    assert!(refusal[2].contains("3 never"), "{refusal:?}");
    let waits = PodInfo::new(pod("waits", "0"), engine.cluster().resources()).unwrap();
    let refusal = engine
        .place_tentatively(&Arc::new(waits), at(1))
        .unwrap_err()
        .message();
    assert!(refusal.contains("the pod is on no node"), "{refusal}");
    assert_eq!(free(&engine), before);
    assert_eq!(engine.cluster().booked(), (6, 0));
    engine.withdraw_tentative_placements(at(2));
    assert_eq!(engine.cluster().booked(), (6, 0));
    assert!(engine.cluster().nodes().books_balance());
}
