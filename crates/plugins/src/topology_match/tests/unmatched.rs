//! Reports that never match: the plugin waits for pods of other schedulers to be counted, but not forever.

use super::cache::{apply_report, cached, each_zone_has, fits, foreign_pod, sized_pod};
use super::*;

/// A fingerprint of unknown pods.
const UNKNOWN_PODS: &str = "pfp0v0010000000000000001";

/// Processes everything due at `second`. Returns the problems and the number of pods placed; those are
/// removed again.
fn wait_until(engine: &mut Engine, second: i64) -> (Vec<String>, usize) {
    engine.take_outputs();
    let mut outputs = Vec::new();
    for _ in 0..8 {
        engine.schedule_one(at(second));
        outputs.extend(engine.take_outputs());
    }
    let (mut messages, mut placed) = (Vec::new(), 0);
    for output in outputs {
        match output {
            Output::Problem(it) => {
                messages.push(format!("{} {}: {}", it.kind, it.name, it.message))
            }
            Output::Bind(bind) => {
                placed += 1;
                engine.pod_deleted(&bind.pod.object.pod, at(second));
            }
            _ => {}
        }
    }
    (messages, placed)
}

/// Returns the number of problems reported by then.
fn complaints(engine: &mut Engine, second: i64) -> usize {
    wait_until(engine, second).0.len()
}

/// Returns a running pod of another scheduler.
fn foreign(name: &str, cpu: u32, memory: u32) -> Arc<Pod> {
    bound(
        foreign_pod(sized_pod(name, cpu, memory), "default"),
        "node1",
        "Running",
    )
}

/// After ten periods of five seconds the foreign pod's requests are subtracted from each zone, since its zone
/// is unknown, until a report has counted it.
#[test]
fn wait_for_foreign_pod_times_out() {
    for attributes in [json!({}), printed(UNKNOWN_PODS)] {
        let mut engine = cached(json!({}));
        apply_report(&mut engine, "node1", attributes.clone(), [(30, 60); 2]);
        engine.pod_applied(foreign("pod1", 8, 16), now());
        assert_eq!(place(&mut engine, sized_pod("a", 1, 1)), refused(WAITS));
        for second in [1, 20, 49] {
            // Exporters continue. What they report as free must not be used.
            let free = 30 + u32::try_from(second).unwrap();
            apply_report(&mut engine, "node1", attributes.clone(), [(free, 60); 2]);
            assert_eq!(wait_until(&mut engine, second), (Vec::new(), 0));
            let waits = sized_pod(&format!("b{second}"), 1, 1);
            assert_eq!(place(&mut engine, waits), refused(WAITS));
        }
        let (messages, placed) = wait_until(&mut engine, 50);
        // Waiting pods are tried again.
        assert_eq!(placed, 4);
        let [messages] = messages.as_slice() else {
            panic!("{messages:?}")
        };
        assert!(
            messages.starts_with("Node node1: NodeResourceTopology of the node "),
            "{messages}"
        );
        let difference = attributes.as_object().unwrap().keys().next();
        let difference = difference.map_or("has no attribute nodeTopologyPodsFingerprint", |_| {
            UNKNOWN_PODS
        });
        assert!(messages.contains(difference), "{messages}");
        let effect = "what 1 pods need is missing in each of its NUMA nodes until they agree";
        assert!(messages.ends_with(effect), "{messages}");
        each_zone_has(&mut engine, 22, 44);
        assert_eq!(complaints(&mut engine, 500), 0);
        // The report of a repaired exporter.
        apply_report(&mut engine, "node1", printed(POD1), [(22, 44), (30, 44)]);
        each_zone_has(&mut engine, 30, 44);
    }
}

/// While no report matches, other foreign pods come and go without a new wait.
#[test]
fn foreign_pod_after_timeout_counts_at_once() {
    let mut engine = cached(json!({}));
    apply_report(&mut engine, "node1", printed(UNKNOWN_PODS), [(30, 60); 2]);
    engine.pod_applied(foreign("pod1", 8, 16), now());
    assert_eq!(complaints(&mut engine, 50), 1);
    each_zone_has(&mut engine, 22, 44);
    engine.pod_applied(foreign("pod2", 2, 4), at(60));
    each_zone_has(&mut engine, 20, 40);
    let own_pod = sized_pod("pod3", 3, 3);
    assert!(place(&mut engine, own_pod.clone()).is_ok());
    each_zone_has(&mut engine, 17, 37);
    engine.pod_deleted(&foreign("pod1", 8, 16), at(61));
    each_zone_has(&mut engine, 25, 53);
    engine.pod_deleted(&object(own_pod), at(61));
    each_zone_has(&mut engine, 28, 56);
    // A matching report ends this state, so that the next foreign pod starts a wait again.
    let hash = koord_model::alignment::fingerprint::pod("default", "pod2");
    let only = koord_model::alignment::fingerprint::from_hashes([hash]);
    apply_report(&mut engine, "node1", printed(&only), [(28, 56), (30, 56)]);
    each_zone_has(&mut engine, 30, 56);
    engine.pod_applied(foreign("pod4", 1, 1), at(70));
    assert_eq!(place(&mut engine, sized_pod("c", 1, 1)), refused(WAITS));
    assert_eq!(complaints(&mut engine, 119), 0);
    assert_eq!(place(&mut engine, sized_pod("d", 1, 1)), refused(WAITS));
    assert_eq!(complaints(&mut engine, 120), 1);
    each_zone_has(&mut engine, 29, 55);
}

/// A foreign pod that left is in no matching report and takes no resources.
#[test]
fn wait_for_departed_foreign_pod_times_out() {
    let mut engine = cached(json!({}));
    apply_report(&mut engine, "node1", printed(POD1), [(30, 60); 2]);
    engine.pod_applied(foreign("pod1", 8, 16), now());
    apply_report(&mut engine, "node1", printed(POD1), [(22, 44), (30, 44)]);
    each_zone_has(&mut engine, 30, 44);
    engine.pod_deleted(&foreign("pod1", 8, 16), at(10));
    apply_report(&mut engine, "node1", printed(UNKNOWN_PODS), [(64, 128); 2]);
    assert_eq!(place(&mut engine, sized_pod("a", 1, 1)), refused(WAITS));
    assert_eq!(complaints(&mut engine, 59), 0);
    assert!(!fits(&mut engine, 1, 1));
    assert_eq!(complaints(&mut engine, 60), 1);
    each_zone_has(&mut engine, 30, 44);
    apply_report(&mut engine, "node1", printed(NO_PODS), [(30, 60); 2]);
    each_zone_has(&mut engine, 30, 60);
}
