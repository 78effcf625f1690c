use crate::evict::config::{AllocatableThreshold, UsageThreshold};
use crate::evict::plan::*;
use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::resources::{BATCH_CPU, CPU, MEMORY, MID_CPU};
use proptest::prelude::*;
use std::collections::BTreeMap;

const GIB: i64 = 1 << 30;
const G: i64 = 1_000_000_000;
const USED_MEMORY: Measure = Measure::Used(Dimension::Memory);

fn pod(name: &str, class: PriorityClass, priority: i32) -> EvictionPod {
    EvictionPod {
        name: name.into(),
        qos: QosClass::Be,
        class,
        priority: Some(priority),
        priority_value: priority,
        sub_priority: i64::from(priority),
        active: true,
        enabled: true,
        ..EvictionPod::default()
    }
}

fn with(pod: EvictionPod, cpu: (i64, i64), memory: (i64, i64)) -> EvictionPod {
    let amounts = |(used, request)| DimensionAmounts {
        used: Some(used),
        request,
    };
    let batch = pod.class == PriorityClass::Batch;
    EvictionPod {
        cpu: amounts(cpu),
        memory: amounts(memory),
        batch_cpu_request: if batch { cpu.1 } else { 0 },
        ..pod
    }
}

fn names<'a>(pods: &'a [EvictionPod], plan: &Plan) -> Vec<&'a str> {
    plan.victims
        .iter()
        .map(|victim| pods[victim.pod].name.as_str())
        .collect()
}

/// Upstream: `Test_KillAndEvictPods`.
#[test]
fn released_amounts_count_once_for_every_task() {
    let pods = [
        with(
            pod("batch-1", PriorityClass::Batch, 5500),
            (800, 1_000),
            (1_536 << 20, 2 * GIB),
        ),
        with(
            pod("batch-2", PriorityClass::Batch, 5500),
            (400, 500),
            (768 << 20, GIB),
        ),
        with(
            pod("mid", PriorityClass::Mid, 7500),
            (1_800, 2_000),
            (3 * GIB, 4 * GIB),
        ),
    ];
    let tasks = [
        EvictionTask {
            feature: "memory-usage",
            measure: USED_MEMORY,
            wanted: BTreeMap::from([(MEMORY, 2 * GIB)]),
            candidates: vec![0, 1],
        },
        EvictionTask {
            feature: "request",
            measure: Measure::Request(Dimension::Cpu),
            wanted: BTreeMap::from([(BATCH_CPU, 1_200), (MID_CPU, 1_500)]),
            candidates: vec![0, 1, 2],
        },
    ];
    let plan = choose(&pods, &tasks);
    assert_eq!(
        plan.victims,
        [
            Victim { pod: 0, task: 0 },
            Victim { pod: 1, task: 0 },
            Victim { pod: 2, task: 1 },
        ]
    );
    let want = BTreeMap::from([
        ((Basis::Used, MEMORY), (2_304 << 20) + 3 * GIB),
        ((Basis::Request, BATCH_CPU), 1_500),
        ((Basis::Request, MID_CPU), 2_000),
    ]);
    assert_eq!(plan.released, want);
    assert!(plan.missing.iter().all(BTreeMap::is_empty));
}

fn memory_task(wanted: i64, candidates: Vec<usize>) -> EvictionTask {
    EvictionTask {
        feature: "MemoryEvict",
        measure: USED_MEMORY,
        wanted: BTreeMap::from([(MEMORY, wanted)]),
        candidates,
    }
}

fn memory_pod(name: &str, used: i64) -> EvictionPod {
    with(pod(name, PriorityClass::Batch, 0), (0, 0), (used, 0))
}

/// Upstream: `Test_KillAndEvictPods_PendingRelease`.
#[test]
fn amounts_of_terminating_pods_count() {
    let leaving = |used| EvictionPod {
        standing: EvictionState::Leaving,
        ..memory_pod("marked", used)
    };
    let pods = [leaving(2 * GIB), memory_pod("other", GIB)];
    let plan = choose(&pods, &[memory_task(2 * GIB, vec![0, 1])]);
    assert!(plan.victims.is_empty(), "the target is met");
    assert_eq!(plan.released[&(Basis::Used, MEMORY)], 2 * GIB);

    let pods = [leaving(GIB), memory_pod("other", 2 * GIB)];
    let plan = choose(&pods, &[memory_task(2 * GIB, vec![0, 1])]);
    assert_eq!(names(&pods, &plan), ["other"]);
    assert_eq!(plan.released[&(Basis::Used, MEMORY)], 3 * GIB);

    // Differs from upstream: also if it is later in the order. Upstream would evict "other".
    let pods = [memory_pod("other", GIB), leaving(2 * GIB)];
    let plan = choose(&pods, &[memory_task(2 * GIB, vec![0, 1])]);
    assert!(plan.victims.is_empty());
}

/// Upstream: `Test_EvictTaskCheck`, `Test_SubReleaseListNoNegative` and `Test_mergeResourceListByMax`:
/// what stays missing, per basis.
#[test]
fn missing_amounts_are_reported_per_basis() {
    let pods = [memory_pod("only", GIB)];
    let plan = choose(
        &pods,
        &[
            memory_task(3 * GIB, vec![0]),
            EvictionTask {
                feature: "CPUEvict",
                measure: Measure::Used(Dimension::Cpu),
                wanted: BTreeMap::from([(CPU, 100)]),
                candidates: vec![0, 7],
            },
            EvictionTask {
                feature: "asks for nothing",
                measure: Measure::Used(Dimension::Cpu),
                wanted: BTreeMap::from([(CPU, -400)]),
                candidates: vec![0],
            },
        ],
    );
    assert_eq!(
        plan.missing,
        [
            BTreeMap::from([(MEMORY, 2 * GIB)]),
            BTreeMap::from([(CPU, 100)]),
            BTreeMap::new(),
        ]
    );
    assert_eq!(choose(&pods, &[]), Plan::default());
    // No pod is evicted twice, although two tasks request more than the pods can release.
    let plan = choose(
        &pods,
        &[memory_task(3 * GIB, vec![0]), memory_task(9 * GIB, vec![0])],
    );
    assert_eq!(names(&pods, &plan), ["only"]);
    assert_eq!(plan.released[&(Basis::Used, MEMORY)], GIB);
}

#[test]
fn pods_that_release_nothing_are_not_evicted() {
    // Batch pods release no mid CPU, an idle pod releases nothing, a pod whose eviction was refused is
    // skipped, and a pod of unknown use may help.
    let batch = with(pod("batch", PriorityClass::Batch, 100), (0, 85_000), (0, 0));
    let mid = with(pod("mid", PriorityClass::Mid, 7000), (0, 85_000), (0, 0));
    let pods = [batch, mid];
    let task = EvictionTask {
        feature: "CPUAllocatableEvict",
        measure: Measure::Request(Dimension::Cpu),
        wanted: BTreeMap::from([(MID_CPU, 15_000)]),
        candidates: vec![0, 1],
    };
    assert_eq!(names(&pods, &choose(&pods, &[task])), ["mid"]);

    let mut pods = [
        memory_pod("idle", 0),
        memory_pod("refused", 5 * GIB),
        memory_pod("busy", GIB),
        memory_pod("unknown", 0),
    ];
    pods[1].standing = EvictionState::Refused;
    pods[3].memory.used = None;
    let plan = choose(&pods, &[memory_task(2 * GIB, vec![0, 1, 2, 3])]);
    assert_eq!(names(&pods, &plan), ["busy", "unknown"]);
}

/// Creates the pods of `Test_memoryEvict`: used gigabytes by QoS and priority; the node has 120 G, 115 used.
fn memory_pods() -> Vec<EvictionPod> {
    let service = |name: &str, qos, priority, used| EvictionPod {
        qos,
        enabled: false,
        ..with(
            pod(name, PriorityClass::Prod, priority),
            (0, 0),
            (used * G, 0),
        )
    };
    let batch = |name: &str, priority, used| EvictionPod {
        enabled: false,
        ..with(
            pod(name, PriorityClass::Batch, priority),
            (0, 0),
            (used * G, 0),
        )
    };
    vec![
        service("lsr", QosClass::Lsr, 1000, 40),
        service("ls", QosClass::Ls, 500, 30),
        service("noqos", QosClass::None, 100, 10),
        batch("be100_1", 100, 5),
        batch("be100_2", 100, 20),
        batch("be120", 120, 10),
    ]
}

fn by_use(
    feature: &'static str,
    limits: (i64, i64),
    used: i64,
    candidates: Vec<usize>,
) -> EvictionTask {
    let (percent, lower) = limits;
    let release = UsageThreshold { percent, lower }.release(120 * G, used);
    EvictionTask {
        feature,
        measure: USED_MEMORY,
        wanted: BTreeMap::from([(MEMORY, release)]),
        candidates,
    }
}

/// Upstream: `Test_memoryEvict`, the rows with the BE feature and with both.
#[test]
fn memory_features() {
    for (name, used, limits, want) in [
        ("test_memory_under_evict_line", 80, (80, 78), vec![]),
        (
            "..._sort_by_priority_and_usage_82",
            115,
            (82, 80),
            vec!["be100_2"],
        ),
        (
            "MemoryEvictThresholdPercent_80",
            115,
            (80, 78),
            vec!["be100_2", "be100_1"],
        ),
        (
            "MemoryEvictThresholdPercent_50",
            115,
            (50, 48),
            vec!["be100_2", "be100_1", "be120"],
        ),
        ("MemoryEvictLowerPercent_80", 115, (82, 80), vec!["be100_2"]),
        (
            "MemoryEvictLowerPercent_78",
            115,
            (82, 78),
            vec!["be100_2", "be100_1"],
        ),
        (
            "MemoryEvictLowerPercent_74",
            115,
            (82, 74),
            vec!["be100_2", "be100_1", "be120"],
        ),
    ] {
        let pods = memory_pods();
        let be = by_use(
            "BEMemoryEvict",
            limits,
            used * G,
            by_batch_memory(&pods, "BEMemoryEvict"),
        );
        let all = by_use(
            "MemoryEvict",
            limits,
            used * G,
            by_priority(&pods, "MemoryEvict", 3000, USED_MEMORY),
        );
        let plan = choose(&pods, std::slice::from_ref(&be));
        assert_eq!(names(&pods, &plan), want, "{name}");
        // Nobody but BE pods may go without the label, so the second feature adds none.
        let plan = choose(&pods, &[be, all]);
        assert_eq!(names(&pods, &plan), want, "{name}, both");
    }
}

/// Upstream: `Test_memoryEvict`, the rows with MemoryAllocatableEvict.
#[test]
fn memory_by_allocatable() {
    let batch = |name: &str, request: i64, used: i64| {
        with(
            pod(name, PriorityClass::Batch, 5000),
            (0, 0),
            (used * G, request * GIB),
        )
    };
    let task = |pods: &[EvictionPod], limits: AllocatableThreshold, allocatable| {
        let feature = "MemoryAllocatableEvict";
        let measure = Measure::Request(Dimension::Memory);
        EvictionTask {
            feature,
            measure,
            wanted: requested(pods, limits.priority, Dimension::Memory)
                .into_iter()
                .map(|(name, amount)| (name, limits.release(amount, allocatable)))
                .collect(),
            candidates: by_priority(pods, feature, limits.priority, measure),
        }
    };
    let limits = |percent, lower| AllocatableThreshold {
        percent,
        lower,
        priority: 5000,
    };
    // "…ThresholdPercent_80, …LowerPercent_70": no batch memory on the node at all.
    let pods = [batch("batch-1", 20, 10), batch("batch-2", 30, 20)];
    let plan = choose(&pods, &[task(&pods, limits(80, 70), None)]);
    assert_eq!(names(&pods, &plan), ["batch-2", "batch-1"]);
    // With BEMemoryEvict and MemoryEvict: what these free (by use) does not count by request.
    let mut pods = memory_pods();
    pods.push(batch("batch-1", 20, 10));
    pods.push(batch("batch-2", 30, 20));
    let be = by_use(
        "BEMemoryEvict",
        (82, 74),
        115 * G,
        by_batch_memory(&pods, "BEMemoryEvict"),
    );
    let allocatable = task(&pods, limits(45, 40), Some(100 * GIB));
    assert_eq!(allocatable.wanted["kubernetes.io/batch-memory"], 10 * GIB);
    let plan = choose(&pods, &[be, allocatable]);
    assert_eq!(
        names(&pods, &plan),
        ["be100_2", "be100_1", "be120", "batch-2"]
    );
}

/// Creates the pods of `Test_cpuEvict`: priority, sub-priority, cores in use.
fn cpu_pods() -> Vec<EvictionPod> {
    let at = |name: &str, priority, sub_priority, used: i64| EvictionPod {
        sub_priority,
        ..with(
            pod(name, PriorityClass::Batch, priority),
            (used * 1_000, 0),
            (0, 0),
        )
    };
    vec![
        EvictionPod {
            active: false,
            ..at("failed", 1000, 1000, 0)
        },
        EvictionPod {
            enabled: false,
            ..at("evictDisabled", 1000, 1000, 4)
        },
        at("higher_priority", 3400, 1000, 3),
        at("120_2000", 120, 2000, 1),
        at("120_3000", 120, 3000, 5),
        at("120_4000", 120, 4000, 2),
        at("100_9999", 100, 100, 1),
        at("100_9999_1", 100, 100, 2),
    ]
}

/// Creates a task: 81 of 100 cores are in use and the threshold is 78, so 5 cores must be freed.
fn cpu_by_use(pods: &[EvictionPod]) -> EvictionTask {
    let threshold = UsageThreshold {
        percent: 78,
        lower: 76,
    };
    let measure = Measure::Used(Dimension::Cpu);
    EvictionTask {
        feature: "CPUEvict",
        measure,
        wanted: BTreeMap::from([(CPU, threshold.release(100_000, 81_000))]),
        candidates: by_priority(pods, "CPUEvict", 3000, measure),
    }
}

/// Creates a task with threshold 80 and lower bound 70, for pods up to priority 7999.
fn cpu_by_allocatable(pods: &[EvictionPod], allocatable: Option<i64>) -> EvictionTask {
    let limits = AllocatableThreshold {
        percent: 80,
        lower: 70,
        priority: 7999,
    };
    let (feature, measure) = ("CPUAllocatableEvict", Measure::Request(Dimension::Cpu));
    EvictionTask {
        feature,
        measure,
        wanted: requested(pods, limits.priority, Dimension::Cpu)
            .into_iter()
            .map(|(name, amount)| (name, limits.release(amount, allocatable)))
            .collect(),
        candidates: by_priority(pods, feature, limits.priority, measure),
    }
}

/// Upstream: `Test_cpuEvict`; rows whose other feature is misconfigured are those without it.
#[test]
fn cpu_features() {
    let pods = cpu_pods();
    let plan = choose(&pods, &[cpu_by_use(&pods)]);
    assert_eq!(
        names(&pods, &plan),
        ["100_9999_1", "100_9999", "120_2000", "120_3000"]
    );

    let requesting = [
        with(
            pod("batch-1", PriorityClass::Batch, 100),
            (4_000, 85_000),
            (0, 0),
        ),
        with(
            pod("mid-1", PriorityClass::Mid, 7000),
            (3_000, 85_000),
            (0, 0),
        ),
    ];
    let plan = choose(
        &requesting,
        &[cpu_by_allocatable(&requesting, Some(100_000))],
    );
    assert_eq!(names(&requesting, &plan), ["batch-1", "mid-1"]);

    // Both features, on a node without batch and mid CPU. Upstream evicts all eight: those that request nothing
    // come before the mid pod. What the two use is enough for the second feature, too.
    let mut all = cpu_pods();
    all.extend(requesting);
    let tasks = [cpu_by_allocatable(&all, None), cpu_by_use(&all)];
    assert_eq!(names(&all, &choose(&all, &tasks)), ["batch-1", "mid-1"]);
}

proptest! {
    /// Checks that each victim is needed, and that no amount stays missing while another pod could free some.
    #[test]
    fn enough_pods_are_evicted_and_no_more(
        used in prop::collection::vec(prop::option::of(0_i64..100), 1..20),
        wanted in prop::collection::vec(-50_i64..500, 1..4),
    ) {
        let pods: Vec<EvictionPod> = used
            .iter()
            .enumerate()
            .map(|(number, used)| {
                let mut pod = memory_pod(&number.to_string(), 0);
                pod.memory.used = *used;
                pod
            })
            .collect();
        let tasks: Vec<EvictionTask> = wanted
            .iter()
            .map(|wanted| memory_task(*wanted, by_batch_memory(&pods, "MemoryEvict")))
            .collect();
        let plan = choose(&pods, &tasks);
        let most = wanted.iter().copied().max().unwrap_or(0);
        let freed: i64 = plan.victims.iter().filter_map(|v| used[v.pod]).sum();
        let all: i64 = used.iter().flatten().sum();
        prop_assert!(freed >= most.min(all));
        if let Some((last, before)) = plan.victims.split_last() {
            let without: i64 = before.iter().filter_map(|v| used[v.pod]).sum();
            prop_assert!(without < most && used[last.pod] != Some(0));
        }
    }
}
