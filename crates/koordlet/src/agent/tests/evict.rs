//! Which pods are evicted, and when.

use super::*;

fn rig(gates: &[Gate], threshold: serde_json::Value) -> Rig {
    let mut settings = Settings {
        cpu_cool_down_ms: 5_000,
        ..Settings::default()
    };
    for gate in gates {
        settings.gates.set(*gate, true);
    }
    let rig = Rig::with(settings);
    rig.slo(json!({ "resourceUsedThresholdWithBE": threshold }));
    rig
}

fn names(evictions: &[Eviction]) -> Vec<(&str, &str)> {
    let names = evictions.iter();
    names
        .map(|eviction| (eviction.feature, eviction.name.as_str()))
        .collect()
}

/// Lets time pass until the first eviction, up to `limit` seconds. Returns the second and the evictions.
fn first(rig: &mut Rig, second: SecondOfLoad, limit: u64) -> (u64, Vec<Eviction>) {
    for second_number in 1..=limit {
        let evictions = rig.step(second).evictions;
        if !evictions.is_empty() {
            return (second_number, evictions);
        }
    }
    (limit, Vec::new())
}

#[test]
fn batch_pods_go_when_they_get_too_little() {
    let mut rig = rig(
        &[Gate::BECPUEvict],
        json!({"enable": true, "cpuSuppressPolicy": "cfsQuota",
            "cpuEvictBESatisfactionLowerPercent": 40, "cpuEvictBESatisfactionUpperPercent": 80}),
    );
    // The class may use half a core of the two that its pod requests, and uses it.
    let class = rig.tree.root().cgroup(&rig.class);
    class.set_cfs_quota(50_000).unwrap();
    rig.slo(json!({"resourceUsedThresholdWithBE": {"enable": true,
        "cpuEvictBESatisfactionLowerPercent": 40, "cpuEvictBESatisfactionUpperPercent": 80},
        "extensions": {"cpuSuppress": {"mode": "upstream"}}}));
    let starved = SecondOfLoad {
        batch_cores: 0.5,
        service_cores: 3.2,
        node_cores: 3.8,
        stalled: 0.0,
    };
    let mut quota = || {
        let class = rig.tree.root().cgroup(&rig.class);
        class.set_cfs_quota(50_000).unwrap();
        rig.step(starved).evictions
    };
    let mut evicted = Vec::new();
    for _ in 0..12 {
        evicted = quota();
        if !evicted.is_empty() {
            break;
        }
    }
    assert_eq!(names(&evicted), [("BECPUEvict", "be")]);
    assert!(
        evicted[0].message.contains("2000m requested"),
        "{}",
        evicted[0].message
    );
}

#[test]
fn busy_node_evicts_only_evictable_pods() {
    let threshold = json!({"enable": true, "cpuEvictThresholdPercent": 90,
        "cpuEvictLowerPercent": 70, "evictEnabledPriorityThreshold": 7999});
    let mut rig = rig(&[Gate::CPUEvict], threshold);
    let (_, found) = first(&mut rig, BUSY, 10);
    assert!(found.is_empty(), "no eviction without the label");
    let batch = evictable_pod();
    rig.pods(vec![pod("ls", "LS", json!({})), batch]);
    let (_, found) = first(&mut rig, BUSY, 10);
    assert_eq!(names(&found), [("CPUEvict", "be")]);
    assert!(
        found[0].message.contains("node uses 3900m of 4000m CPU"),
        "{}",
        found[0].message
    );
    // Pods under eviction count as freed, and the cooldown applies.
    let now = rig.now();
    rig.agent.evicted(&found[0], now);
    assert!(first(&mut rig, BUSY, 20).1.is_empty());
}

/// Returns a batch pod that may be evicted for a threshold.
fn evictable_pod() -> Pod {
    let mut pod = batch_pod();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("koordinator.sh/eviction-enabled".into(), "true".into());
    pod
}

/// Returns a node on which batch pods may be evicted for the node's CPU usage.
fn rig_with_cpu_threshold() -> Rig {
    let threshold = json!({"enable": true, "cpuEvictThresholdPercent": 90,
        "evictEnabledPriorityThreshold": 7999});
    let rig = rig(&[Gate::CPUEvict], threshold);
    rig.pods(vec![evictable_pod()]);
    rig
}

#[test]
fn a_threshold_that_is_not_set_is_no_failure() {
    let state = |threshold: serde_json::Value| {
        let mut rig = rig(&[Gate::CPUEvict, Gate::CPUAllocatableEvict], threshold);
        rig.pods(vec![evictable_pod()]);
        let strategy_states = rig.step(BUSY).strategy_states.into_iter();
        let mut strategy_states = strategy_states.filter(|(strategy, ..)| *strategy == "CPUEvict");
        strategy_states
            .next()
            .map(|(_, state, why)| (state, why))
            .unwrap()
    };
    let (idle, why) = state(json!({"enable": true}));
    assert_eq!(idle, State::Idle);
    assert!(why.contains("cpuEvictThresholdPercent is not set"), "{why}");
    let usage = json!({"enable": true, "cpuEvictThresholdPercent": 90,
        "evictEnabledPriorityThreshold": 7999});
    assert_eq!(state(usage).0, State::Active, "one of two features is set");
}

#[test]
fn a_new_agent_waits_before_it_evicts_for_cpu() {
    let mut rig = rig_with_cpu_threshold();
    let (at, found) = first(&mut rig, BUSY, 20);
    assert_eq!(
        (at, found.len()),
        (6, 1),
        "after the cool-down of five seconds"
    );
}

#[test]
fn more_requested_than_allocatable() {
    let threshold = json!({"enable": true, "memoryAllocatableEvictThresholdPercent": 100,
        "memoryAllocatableEvictLowerPercent": 90, "allocatableEvictPriorityThreshold": 5999});
    let mut rig = rig(&[Gate::MemoryAllocatableEvict], threshold);
    let batch = evictable_pod();
    rig.pods(vec![pod("ls", "LS", json!({})), batch]);
    // Nothing is allocatable as batch memory: everything requested is too much.
    let (_, found) = first(&mut rig, BUSY, 5);
    assert_eq!(names(&found), [("MemoryAllocatableEvict", "be")]);
}

#[test]
fn a_lower_bound_above_the_threshold_costs_only_itself() {
    let threshold = json!({"enable": true, "memoryEvictThresholdPercent": 50,
        "memoryEvictLowerPercent": 60});
    let mut rig = rig(&[Gate::BEMemoryEvict], threshold);
    assert!(first(&mut rig, BUSY, 5).1.is_empty());
    rig.available_kib = 1 << 20;
    let (_, found) = first(&mut rig, BUSY, 5);
    assert_eq!(names(&found), [("BEMemoryEvict", "be")]);
    assert!(
        found[0].message.contains("node memory 93% >= 50%"),
        "{}",
        found[0].message
    );
}

/// Upstream continues with the next candidate if an eviction fails; a refused eviction frees nothing.
#[test]
fn refused_eviction_frees_nothing_and_is_retried_later() {
    let threshold = json!({"enable": true, "memoryEvictThresholdPercent": 80});
    let mut rig = rig(&[Gate::BEMemoryEvict], threshold);
    let service = pod("ls", "LS", json!({}));
    rig.pods(vec![service, batch_pod(), pod("be-2", "BE", json!({}))]);
    rig.available_kib = 2 << 20;
    // The first pod has 2 GiB, more than must be freed.
    let (_, found) = first(&mut rig, BUSY, 5);
    assert_eq!(names(&found), [("BEMemoryEvict", "be")]);
    let now = rig.now();
    rig.agent.refused(&found[0], None, now);
    let next = rig.step(BUSY).evictions;
    assert_eq!(names(&next), [("BEMemoryEvict", "be-2")]);
    let now = rig.now();
    rig.agent.refused(&next[0], None, now);
    // Each is retried after two seconds, in order, and then after four.
    let retried = rig.step(BUSY).evictions;
    assert_eq!(names(&retried), [("BEMemoryEvict", "be")]);
    let now = rig.now();
    rig.agent.refused(&retried[0], None, now);
    let (at, found) = first(&mut rig, BUSY, 5);
    assert_eq!((at, names(&found)), (1, vec![("BEMemoryEvict", "be-2")]));
    let wait = Some(Duration::from_secs(20));
    let now = rig.now();
    rig.agent.refused(&found[0], wait, now);
    let (at, found) = first(&mut rig, BUSY, 30);
    assert_eq!((at, names(&found)), (3, vec![("BEMemoryEvict", "be")]));
    // An accepted eviction starts the cooldown, and the refused pod stays.
    let now = rig.now();
    rig.agent.evicted(&found[0], now);
    assert!(first(&mut rig, BUSY, 10).1.is_empty());
}

#[test]
fn a_pod_that_is_being_deleted_counts_as_released() {
    let threshold = json!({"enable": true, "memoryEvictThresholdPercent": 80});
    let mut rig = rig(&[Gate::BEMemoryEvict], threshold);
    let mut going = batch_pod();
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    rig.pods(vec![going, pod("be-2", "BE", json!({}))]);
    rig.available_kib = 2 << 20;
    assert!(
        first(&mut rig, BUSY, 10).1.is_empty(),
        "its 2 GiB are enough"
    );
}

#[test]
fn an_eviction_lets_only_its_own_strategy_rest() {
    let mut rig = rig_with_cpu_threshold();
    assert!(first(&mut rig, BUSY, 3).1.is_empty());
    let for_memory = Eviction {
        uid: "other".to_owned(),
        namespace: "default".to_owned(),
        name: "other".to_owned(),
        feature: "BEMemoryEvict",
        message: String::new(),
    };
    let now = rig.now();
    rig.agent.evicted(&for_memory, now);
    let (at, found) = first(&mut rig, BUSY, 20);
    assert_eq!((at, found.len()), (3, 1), "six seconds after the start");
}
