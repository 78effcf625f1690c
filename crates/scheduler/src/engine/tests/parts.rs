//! Invariants of single parts of the engine.

use super::*;

#[test]
fn plugin_table_lists_profiles_names_and_extenders() {
    let engine = engine();
    let table = engine.plugins();
    assert_eq!(table.profile_named("koord-scheduler"), Some(0));
    assert_eq!(table.profile_named("other"), None);
    assert_eq!(table.named(&["Knobs"]), 1);
    assert_eq!(table.named(&["Knobs", "Absent", "Extender"]), 0b11);
    assert_eq!(table.extenders_bit(), 0b10);
    let info = PodInfo::new(pod("a", "1"), &ResourceTable::new()).unwrap();
    assert_eq!(
        table.filter_plugins_for(&info),
        crate::queue::PluginSet::MAX
    );
    assert_eq!(
        table.tracking_plugins_for(&info),
        crate::queue::PluginSet::MAX
    );
}

#[test]
fn class_cache_stays_within_bounds() {
    let mut engine = engine();
    for name in ["n1", "n2", "n3"] {
        engine.node_applied(node(name, "8"), at(0));
    }
    for shape in 1..=6 {
        engine.pod_applied(pod(&format!("p{shape}"), &format!("{shape}m")), at(0));
    }
    schedule(&mut engine, 1);
    let classes = &mut engine.classes;
    assert_eq!(classes.by_shape.len(), 6);
    assert!(classes.memory_balances() && classes.bytes > 0);
    classes.evict(4, usize::MAX);
    assert_eq!(classes.by_shape.len(), 4);
    assert!(classes.memory_balances());
    // One stays whatever it takes.
    classes.evict(4, 0);
    assert_eq!(classes.by_shape.len(), 1);
    assert!(classes.memory_balances());
    classes.clear();
    assert_eq!((classes.by_shape.len(), classes.bytes), (0, 0));
}

#[test]
fn telemetry_lists_decisions_newest_first() {
    let mut engine = engine();
    engine.node_applied(node("n", "8"), at(0));
    for (nth, name) in (0..).zip(["a", "b"]) {
        engine.pod_applied(pod(name, "1"), at(nth));
        schedule(&mut engine, nth);
    }
    let telemetry = engine.telemetry;
    let pods: Vec<&str> = telemetry.decisions().map(|it| &*it.pod).collect();
    assert_eq!(pods, ["ns/b", "ns/a"]);
    assert_eq!(telemetry.decision("a").map(|it| &*it.node), Some("n"));
    assert!(telemetry.decision("c").is_none());
}
