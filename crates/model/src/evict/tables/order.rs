use crate::evict::plan::*;
use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, MID_CPU, MID_MEMORY};

const G: i64 = 1_000_000_000;

fn names(pods: &[EvictionPod], places: &[usize]) -> Vec<String> {
    places
        .iter()
        .map(|place| pods[*place].name.clone())
        .collect()
}

fn pod(name: &str, priority: i32, sub_priority: i64, used: i64) -> EvictionPod {
    let amounts = |unit| DimensionAmounts {
        used: Some(used * unit),
        request: 0,
    };
    EvictionPod {
        name: name.into(),
        qos: QosClass::Be,
        priority: Some(priority),
        priority_value: priority,
        sub_priority,
        active: true,
        enabled: true,
        cpu: amounts(1_000),
        memory: amounts(G),
        ..EvictionPod::default()
    }
}

/// Upstream: `Test_getPodEvictInfoAndSortByPriority` of CPU and memory.
#[test]
fn by_priority_threshold() {
    let measures = [
        Measure::Used(Dimension::Memory),
        Measure::Used(Dimension::Cpu),
    ];
    // "test_memoryevict_MemoryEvictThresholdPercent_80": the default sub-priority is the priority.
    let pods = [
        EvictionPod {
            active: false,
            ..pod("failed", 1000, 1000, 0)
        },
        EvictionPod {
            enabled: false,
            ..pod("evictDisabled", 1000, 1000, 40)
        },
        pod("higher_priority", 3400, 1000, 30),
        pod("120_2000", 120, 2000, 10),
        pod("120_3000", 120, 3000, 5),
        pod("120_4000", 120, 4000, 20),
        pod("100_9999", 100, 100, 10),
        pod("100_9999_1", 100, 100, 11),
    ];
    for measure in measures {
        let places = by_priority(&pods, "MemoryEvict", 3000, measure);
        assert_eq!(
            names(&pods, &places),
            ["100_9999_1", "100_9999", "120_2000", "120_3000", "120_4000"]
        );
    }
    // "test_memoryevict_sort_by_eviction_priority_annotation": an invalid one is 0.
    let evicted_at = |eviction_priority, pod: EvictionPod| EvictionPod {
        eviction_priority,
        ..pod
    };
    let pods = [
        evicted_at(100, pod("100", 120, 3000, 40)),
        evicted_at(-1, pod("negative", 120, 4000, 5)),
        pod("unset", 100, 100, 10),
        pod("invalid", 120, 120, 20),
    ];
    for measure in measures {
        let places = by_priority(&pods, "MemoryEvict", 3000, measure);
        assert_eq!(
            names(&pods, &places),
            ["negative", "unset", "invalid", "100"]
        );
    }
}

#[test]
fn pod_without_sample_is_no_threshold_candidate() {
    let mut pods = [pod("a", 100, 100, 1), pod("b", 100, 100, 1)];
    pods[0].memory.used = None;
    let by = |measure| by_priority(&pods, "MemoryEvict", 3000, measure);
    assert_eq!(by(Measure::Used(Dimension::Memory)), [1]);
    assert_eq!(by(Measure::Used(Dimension::Cpu)), [0, 1]);
    assert_eq!(by(Measure::Request(Dimension::Memory)), [1]);
}

/// Upstream: `Test_getBEPodEvictInfoAndSort`; all request 16 cores.
#[test]
fn by_satisfaction() {
    let batch = |name: &str, priority, used| EvictionPod {
        batch_cpu_request: 16_000,
        ..pod(name, priority, 0, used)
    };
    let service = |name: &str, qos| EvictionPod {
        qos,
        ..pod(name, 0, 0, 12)
    };
    let mut pods = vec![
        service("lsr", QosClass::Lsr),
        service("ls", QosClass::Ls),
        batch("1_priority100", 100, 3),
        batch("2_priority100", 100, 4),
        batch("3_priority10", 10, 4),
    ];
    assert_eq!(
        names(&pods, &by_batch_cpu(&pods, "BECPUEvict")),
        ["3_priority10", "2_priority100", "1_priority100"]
    );
    // Ours: the label is not needed, the phase and the policy are; no request is no ratio.
    pods[2].enabled = false;
    pods[3].active = false;
    pods[4].evictable_by = Some(vec!["BEMemoryEvict".into()]);
    let unrequested = EvictionPod {
        batch_cpu_request: 0,
        ..batch("no-request", 100, 9)
    };
    pods.push(unrequested);
    assert_eq!(
        names(&pods, &by_batch_cpu(&pods, "BECPUEvict")),
        ["1_priority100", "no-request"]
    );
}

#[test]
fn batch_memory_puts_pods_without_a_sample_last() {
    let unknown = |name: &str| {
        let mut pod = pod(name, 1, 0, 0);
        pod.memory.used = None;
        pod
    };
    let pods = [
        unknown("a"),
        unknown("b"),
        pod("high", 5900, 0, 30),
        pod("low-small", 5000, 0, 5),
        pod("low-large", 5000, 0, 10),
    ];
    assert_eq!(
        names(&pods, &by_batch_memory(&pods, "BEMemoryEvict")),
        ["low-large", "low-small", "high", "b", "a"]
    );
}

#[test]
fn classes_request_their_own_resources() {
    let of = |class| {
        (
            resource_of(class, Dimension::Cpu),
            resource_of(class, Dimension::Memory),
        )
    };
    assert_eq!(of(PriorityClass::Batch), (BATCH_CPU, BATCH_MEMORY));
    assert_eq!(of(PriorityClass::Mid), (MID_CPU, MID_MEMORY));
    for class in [
        PriorityClass::Prod,
        PriorityClass::Free,
        PriorityClass::None,
    ] {
        assert_eq!(of(class), (CPU, MEMORY), "{class}");
    }
}

/// Upstream: `Test_IsEvictionPolicyAllowed`, once the annotation is read: absent is `None`, and one
/// that is empty or unreadable an empty list.
#[test]
fn policies_name_features_exactly() {
    for (name, list, feature, want) in [
        ("absent", None, "evictByMemoryUsage", true),
        (
            "empty or malformed",
            Some(vec![]),
            "evictByMemoryUsage",
            false,
        ),
        (
            "single policy",
            Some(vec!["evictByMemoryUsage"]),
            "evictByMemoryUsage",
            true,
        ),
        (
            "multiple policies",
            Some(vec![
                "evictByMemoryUsage",
                "evictByCPUUsage",
                "evictByNodeMemoryUsage",
            ]),
            "evictByCPUUsage",
            true,
        ),
        (
            "not allowed - single",
            Some(vec!["evictByMemoryUsage"]),
            "evictByCPUUsage",
            false,
        ),
        (
            "not allowed - multiple",
            Some(vec!["evictByMemoryUsage", "evictByCPUUsage"]),
            "evictByDiskUsage",
            false,
        ),
        (
            "policy check with exact match",
            Some(vec!["evictByMemory", "evictByMemoryUsageHigh"]),
            "evictByMemoryUsage",
            false,
        ),
    ] {
        let pods = [EvictionPod {
            evictable_by: list.map(|list| list.into_iter().map(str::to_owned).collect()),
            ..pod("p", 100, 0, 1)
        }];
        let places = by_priority(&pods, feature, 3000, Measure::Used(Dimension::Memory));
        assert_eq!(places == [0], want, "{name}");
    }
}
