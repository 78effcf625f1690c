use super::*;
use crate::states::{Driver, Layout};
use k8s_openapi::api::core::v1::Pod;
use koord_host::CgroupPath;
use koord_model::guard::{Readings, Signal};
use serde_json::json;

#[test]
fn votes_follow_priority_and_qos() {
    let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
    let service = json!({"requests": {"cpu": "1"}});
    let check = |qos: &str, priority: i32, resources: &serde_json::Value| {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": qos}},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]},
            "status": {"phase": "Running"}}))
        .unwrap();
        vote(&PodInfo::from_pod(&pod, &layout).unwrap())
    };
    for (qos, priority, want) in [
        ("LSE", 9500, 1.0),
        ("LSR", 9500, 1.0),
        ("LS", 9500, 1.0),
        ("LS", 7500, 0.25),
        ("LS", 5500, 0.0),
        ("LS", 3500, 0.0),
        ("", 9500, 0.5),
        ("", 0, 0.5),
        ("BE", 9500, 0.0),
        ("SYSTEM", 9500, 0.0),
        ("LS", 2_000_001_000, 0.0),
    ] {
        assert_eq!(check(qos, priority, &service), want, "{qos} {priority}");
    }
    assert_eq!(check("", 0, &json!({})), 0.0, "the kubelet's BestEffort");
}

#[test]
fn transitions_are_described_in_words() {
    let event = |kind, lever| Event {
        key: 1,
        signal: Signal::CpuStall,
        lever,
        kind,
    };
    let tried = EventKind::Tried {
        value: 0.3,
        expected: 0.02,
    };
    for (kind, lever, want) in [
        (
            tried,
            Lever::Idle,
            "CPU stall of a/b is 30.0 % where 2.0 % is expected: cpu.idle is tried",
        ),
        (
            EventKind::Muted { until_ms: 121_000 },
            Lever::Quota,
            "nothing helps a/b: batch work is not the cause of its CPU stall, which is ignored for 120 s",
        ),
        (
            EventKind::Over,
            Lever::Partition,
            "a/b does not need CPU partition any more",
        ),
    ] {
        assert_eq!(targets::message(&event(kind, lever), "a/b", 1000), want);
    }
}

#[test]
fn a_service_that_pauses_does_not_make_the_node_blind() {
    let mut coverage = SignalCoverage::default();
    let stalls = Readings::default().with(Signal::CpuStall, Some(0.1));
    let work = stalls.with(Signal::CpuPerWork, Some(100.0));
    let mut look = |now_ms, services: &[(u64, Readings)]| {
        coverage.update(now_ms, 600_000, services.iter().copied());
        (coverage.sees_bandwidth(), coverage.signals().count())
    };
    assert_eq!(look(0, &[(1, stalls)]), (false, 1));
    assert_eq!(look(1_000, &[(1, stalls), (2, work)]), (true, 2));
    for hours in 1..24 {
        let idle = [(1, stalls), (2, stalls)];
        assert_eq!(look(hours * 3_600_000, &idle), (true, 2));
    }
    let day_later = 23 * 3_600_000;
    assert_eq!(
        look(day_later + 600_000, &[(1, stalls)]),
        (true, 2),
        "a restart"
    );
    assert_eq!(look(day_later + 600_001, &[(1, stalls)]), (false, 1));
}
