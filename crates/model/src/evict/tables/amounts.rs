use crate::evict::config::*;
use crate::evict::plan::{Dimension, DimensionAmounts, EvictionPod, requested};
use koord_api::priority::PriorityClass;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, CPU, MID_CPU, MID_MEMORY};
use koord_api::slo::{CPUEvictPolicy, ResourceThresholdStrategy};
use std::collections::BTreeMap;

fn text<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "ok".to_owned())
}

/// Upstream: `Test_isSatisfactionConfigValid`; a missing section is the caller's matter.
#[test]
fn satisfaction_limits() {
    let check = |lower, upper| {
        let strategy = ResourceThresholdStrategy {
            cpu_evict_be_satisfaction_lower_percent: lower,
            cpu_evict_be_satisfaction_upper_percent: upper,
            ..ResourceThresholdStrategy::default()
        };
        text(Satisfaction::new(&strategy, 1))
    };
    for (name, lower, upper, want) in [
        (
            "test_nil",
            None,
            None,
            "cpuEvictBESatisfactionLowerPercent is not set",
        ),
        (
            "only the lower",
            Some(30),
            None,
            "cpuEvictBESatisfactionUpperPercent is not set",
        ),
        (
            "test_lowPercent_invalid",
            Some(0),
            Some(50),
            "cpuEvictBESatisfactionLowerPercent must be in 1..=60, got 0",
        ),
        (
            "too high",
            Some(61),
            Some(70),
            "cpuEvictBESatisfactionLowerPercent must be in 1..=60, got 61",
        ),
        (
            "test_upperPercent_invalid",
            Some(30),
            Some(100),
            "cpuEvictBESatisfactionUpperPercent must be in 1..=99, got 100",
        ),
        (
            "test_lowPercent>upperPercent",
            Some(40),
            Some(30),
            "cpuEvictBESatisfactionLowerPercent must be less than \
             cpuEvictBESatisfactionUpperPercent 30, got 40",
        ),
        ("test_valid", Some(30), Some(40), "ok"),
        ("equal bounds", Some(40), Some(40), "ok"),
    ] {
        assert_eq!(check(lower, upper), want, "{name}");
    }
}

/// Upstream: `Test_isUsedThresholdConfigValid`, and the rows of `Test_generateConfigCheck` for
/// BEMemoryEvict and MemoryEvict, which are the same but for the names.
#[test]
fn usage_limits() {
    for (name, percent, lower, want) in [
        ("ThresholdPercent nil", None, None, "Percent is not set"),
        (
            "ThresholdPercent < 0",
            Some(-1),
            None,
            "Percent must be at least 0, got -1",
        ),
        ("LowerPercent == nil", Some(20), None, "ok"),
        (
            "LowerPercent > ThresholdPercent",
            Some(20),
            Some(30),
            "must be less than",
        ),
        (
            "LowerPercent == ThresholdPercent",
            Some(80),
            Some(80),
            "must be less than",
        ),
        ("nil error", Some(20), Some(10), "ok"),
    ] {
        let strategy = ResourceThresholdStrategy {
            cpu_evict_threshold_percent: percent,
            cpu_evict_lower_percent: lower,
            memory_evict_threshold_percent: percent,
            memory_evict_lower_percent: lower,
            ..ResourceThresholdStrategy::default()
        };
        let (cpu, memory) = (
            text(UsageThreshold::cpu(&strategy)),
            text(UsageThreshold::memory(&strategy)),
        );
        assert!(cpu.contains(want), "{name}: {cpu}");
        assert!(memory.contains(want), "{name}: {memory}");
        if want != "ok" {
            assert!(cpu.starts_with("cpuEvict"), "{name}: {cpu}");
            assert!(memory.starts_with("memoryEvict"), "{name}: {memory}");
        }
    }
    // "EvictEnabledPriorityThreshold nil", and its value.
    let mut strategy = ResourceThresholdStrategy::default();
    assert_eq!(
        text(usage_priority(&strategy)),
        "evictEnabledPriorityThreshold is not set"
    );
    strategy.evict_enabled_priority_threshold = Some(0);
    assert_eq!(usage_priority(&strategy), Ok(0));
}

/// Upstream: `Test_isAllocatableThresholdConfigValid`, and the rows of `Test_generateConfigCheck` for
/// MemoryAllocatableEvict.
#[test]
fn allocatable_limits() {
    for (name, percent, lower, priority, want) in [
        ("ThresholdPercent nil", None, None, None, "is not set"),
        (
            "ThresholdPercent < 0",
            Some(-1),
            None,
            None,
            "must be at least 0, got -1",
        ),
        (
            "LowerPercent == nil",
            Some(80),
            None,
            Some(5999),
            "AllocatableEvictLowerPercent is not set",
        ),
        (
            "LowerPercent > ThresholdPercent",
            Some(80),
            Some(90),
            None,
            "ThresholdPercent 80, got 90",
        ),
        (
            "LowerPercent == ThresholdPercent",
            Some(80),
            Some(80),
            None,
            "ThresholdPercent 80, got 80",
        ),
        (
            "AllocatableEvictPriorityThreshold nil",
            Some(80),
            Some(70),
            None,
            "allocatableEvictPriorityThreshold is not set",
        ),
        (
            "invalid config higher than PriorityMidValueMax",
            Some(90),
            Some(0),
            Some(9999),
            "allocatableEvictPriorityThreshold must be at most 7999, so that prod pods stay, got 9999",
        ),
        (
            "AllocatableEvictPriorityThreshold > PriorityMidValueDefault",
            Some(80),
            Some(70),
            Some(8000),
            "got 8000",
        ),
        (
            "AllocatableEvictPriorityThreshold == PriorityMidValueDefault",
            Some(80),
            Some(70),
            Some(7500),
            "ok",
        ),
        (
            "valid config with batch priority",
            Some(85),
            Some(75),
            Some(7999),
            "ok",
        ),
    ] {
        let strategy = ResourceThresholdStrategy {
            cpu_allocatable_evict_threshold_percent: percent,
            cpu_allocatable_evict_lower_percent: lower,
            memory_allocatable_evict_threshold_percent: percent,
            memory_allocatable_evict_lower_percent: lower,
            allocatable_evict_priority_threshold: priority,
            ..ResourceThresholdStrategy::default()
        };
        for got in [
            text(AllocatableThreshold::cpu(&strategy)),
            text(AllocatableThreshold::memory(&strategy)),
        ] {
            assert!(got.contains(want), "{name}: {got}");
        }
    }
}

const fn cpu(real_limit: i64, used: i64, request: i64) -> BatchCpu {
    BatchCpu {
        real_limit,
        request,
        used,
    }
}

/// Upstream: `Test_CPUEvict_calculateMilliReleaseByBESatisfaction`; bounds 30 and 40, a sample a
/// second. The three rows in which the query fails have no sample here, so no call either.
#[test]
fn releases_by_satisfaction() {
    let none = cpu(0, 0, 0);
    let limits = |usage, by_allocatable| Satisfaction {
        lower: 30,
        upper: 40,
        usage,
        window_seconds: 60,
        by_allocatable,
    };
    let by_limit = limits(90, false);
    let by_limit_50 = limits(50, false);
    let by_allocatable = limits(50, true);
    for (name, limits, mean, newest, allocatable, want) in [
        (
            "test_avgMetricQueryResult_CPURealLimit_zero",
            &by_limit,
            cpu(0, 20_000, 0),
            none,
            None,
            0,
        ),
        (
            "test_avgMetricQueryResult_cpuUsage_not_enough",
            &by_limit,
            cpu(20_000, 10_000, 0),
            none,
            None,
            0,
        ),
        (
            "test_avgMetricQueryResult_cpuRequest_zero",
            &by_limit,
            cpu(20_000, 19_000, 0),
            none,
            None,
            0,
        ),
        (
            "test_avgMetricQueryResult_ResourceSatisfaction_enough",
            &by_limit,
            cpu(20_000, 19_000, 40_000),
            none,
            None,
            0,
        ),
        (
            "test_avgMetricQueryResult_need_release_but_currentMetricQueryResult_invalid",
            &by_limit,
            cpu(10_000, 9_500, 50_000),
            none,
            None,
            0,
        ),
        (
            "test_avgMetricQueryResult_need_release_but_currentMetricQueryResult_cpuUsage_not_enough",
            &by_limit,
            cpu(10_000, 9_500, 50_000),
            cpu(10_000, 5_000, 50_000),
            None,
            0,
        ),
        (
            "test_avgRelease>currentRelease",
            &by_limit,
            cpu(10_000, 9_500, 50_000),
            cpu(14_000, 13_000, 50_000),
            None,
            6_000,
        ),
        (
            "test_avgRelease<currentRelease",
            &by_limit,
            cpu(13_000, 12_000, 50_000),
            cpu(11_000, 10_000, 50_000),
            None,
            7_000,
        ),
        (
            "test_BEUsageThresholdPercent_50_avgMetricQueryResult_cpuUsage_not_enough",
            &by_limit_50,
            cpu(20_000, 9_000, 0),
            none,
            None,
            0,
        ),
        (
            "test_BEUsageThresholdPercent_50_..._currentMetricQueryResult_cpuUsage_not_enough",
            &by_limit_50,
            cpu(10_000, 6_000, 50_000),
            cpu(10_000, 4_000, 50_000),
            None,
            0,
        ),
        (
            "test_BEUsageThresholdPercent_50_avgRelease>currentRelease",
            &by_limit_50,
            cpu(10_000, 6_000, 50_000),
            cpu(14_000, 8_000, 50_000),
            None,
            6_000,
        ),
        (
            "..._skip_release_when_allocatable_small_but_policy_by_reallimit",
            &by_limit_50,
            cpu(10_000, 6_000, 50_000),
            cpu(10_000, 4_000, 50_000),
            Some(8_000),
            0,
        ),
        (
            "..._need_release_since_allocatable_is_small",
            &by_allocatable,
            cpu(10_000, 6_000, 50_000),
            cpu(10_000, 4_000, 50_000),
            Some(8_000),
            12_000,
        ),
        (
            "..._need_release_since_allocatable_is_zero",
            &by_allocatable,
            cpu(10_000, 6_000, 50_000),
            cpu(10_000, 4_000, 50_000),
            Some(0),
            19_999,
        ),
        // Ours.
        (
            "no batch CPU on the node",
            &by_allocatable,
            cpu(10_000, 6_000, 50_000),
            cpu(10_000, 4_000, 50_000),
            None,
            0,
        ),
        (
            "a limit below one core counts as used",
            &by_limit,
            cpu(900, 0, 50_000),
            cpu(900, 0, 50_000),
            None,
            19_100,
        ),
    ] {
        assert_eq!(limits.release(mean, newest, allocatable), want, "{name}");
    }
}

#[test]
fn sample_window_limits() {
    // "test_avgMetricQueryResult_count_not_enough", and the edge.
    assert!(!enough_samples(60, 10, 1));
    assert!(!enough_samples(60, 19, 1));
    assert!(enough_samples(60, 20, 1));
    assert!(enough_samples(60, 2, 10));
    let mut strategy = ResourceThresholdStrategy {
        cpu_evict_be_satisfaction_lower_percent: Some(30),
        cpu_evict_be_satisfaction_upper_percent: Some(40),
        ..ResourceThresholdStrategy::default()
    };
    let limits = Satisfaction::new(&strategy, 5).unwrap();
    assert_eq!((limits.window_seconds, limits.usage), (5, 90));
    assert!(!limits.by_allocatable);
    strategy.cpu_evict_time_window_seconds = Some(60);
    strategy.cpu_evict_policy = Some(CPUEvictPolicy::ByAllocatable);
    let limits = Satisfaction::new(&strategy, 5).unwrap();
    assert_eq!((limits.window_seconds, limits.by_allocatable), (60, true));
}

/// Upstream: `Test_calculateReleaseByUsedThresholdPercent`, of CPU and of memory.
#[test]
fn releases_by_use() {
    for (name, percent, lower, capacity, used, want) in [
        ("cpu, lower78", 80, 78, 100_000, 81_000, 3_000),
        ("cpu, lower80", 80, 80, 100_000, 81_000, 1_000),
        ("cpu, lower than threshold", 80, 80, 100_000, 11_000, 0),
        (
            "memory, lower78",
            80,
            78,
            120_000_000_000,
            115_000_000_000,
            20_400_000_000,
        ),
        (
            "memory, lower80",
            80,
            80,
            120_000_000_000,
            115_000_000_000,
            18_000_000_000,
        ),
        (
            "memory, lower than threshold",
            80,
            80,
            120_000_000_000,
            80_000_000_000,
            0,
        ),
        ("no capacity", 80, 78, 0, 81_000, 0),
        ("absurd", 1, 0, i64::MAX, i64::MAX, i64::MAX),
    ] {
        let threshold = UsageThreshold { percent, lower };
        assert_eq!(threshold.release(capacity, used), want, "{name}");
    }
}

/// Upstream: `Test_calculateMilliReleaseByAllocatableThresholdPercent` and the memory twin; 100 is
/// 100000 milli-cores there and 100 GiB in the twin.
#[test]
fn releases_by_allocatable() {
    const UNIT: i64 = 1_000;
    let pod = |class, priority: i32, request: i64| EvictionPod {
        class,
        priority_value: priority,
        active: true,
        cpu: DimensionAmounts {
            used: None,
            request: request * UNIT,
        },
        memory: DimensionAmounts {
            used: None,
            request: request << 30,
        },
        ..EvictionPod::default()
    };
    let (batch, mid) = (PriorityClass::Batch, PriorityClass::Mid);
    let all: &[&'static str] = &[BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY];
    let limits = |percent, lower, priority| AllocatableThreshold {
        percent,
        lower,
        priority,
    };
    for (name, limits, on_node, pods, want) in [
        (
            "allocatable threshold not exceeded",
            limits(80, 70, 5999),
            all,
            vec![pod(batch, 5000, 20), pod(batch, 5000, 30)],
            vec![],
        ),
        (
            "allocatable threshold exceeded - batch",
            limits(80, 70, 5999),
            all,
            vec![pod(batch, 5000, 45), pod(batch, 5000, 40)],
            vec![(BATCH_CPU, BATCH_MEMORY, 15)],
        ),
        (
            "allocatable threshold exceeded - mixed priority",
            limits(80, 70, 7999),
            all,
            vec![pod(batch, 5000, 85), pod(mid, 7000, 85)],
            vec![(BATCH_CPU, BATCH_MEMORY, 15), (MID_CPU, MID_MEMORY, 15)],
        ),
        (
            "mixed priority, lower AllocatableEvictPriorityThreshold",
            limits(80, 70, 5999),
            all,
            vec![pod(batch, 5000, 85), pod(mid, 7000, 85)],
            vec![(BATCH_CPU, BATCH_MEMORY, 15)],
        ),
        (
            "allocatable threshold = 0",
            limits(0, 0, 5999),
            all,
            vec![pod(batch, 5000, 85)],
            vec![(BATCH_CPU, BATCH_MEMORY, 85)],
        ),
        (
            "node without allocatable batch resource",
            limits(80, 70, 5999),
            &[],
            vec![pod(batch, 5000, 85)],
            vec![(BATCH_CPU, BATCH_MEMORY, 85)],
        ),
    ] {
        for (dimension, allocatable) in
            [(Dimension::Cpu, 100 * UNIT), (Dimension::Memory, 100 << 30)]
        {
            let got: BTreeMap<&str, i64> = requested(&pods, limits.priority, dimension)
                .into_iter()
                .map(|(resource, requested)| {
                    let allocatable = on_node.contains(&resource).then_some(allocatable);
                    (resource, limits.release(requested, allocatable))
                })
                .filter(|(_, release)| *release > 0)
                .collect();
            let want: BTreeMap<&str, i64> = want
                .iter()
                .map(|(cpu, memory, amount)| match dimension {
                    Dimension::Cpu => (*cpu, amount * UNIT),
                    Dimension::Memory => (*memory, amount << 30),
                })
                .collect();
            assert_eq!(got, want, "{name}");
        }
    }
}

/// Upstream keeps native CPU in whole cores here, so that every eligible pod would go (§4.2).
#[test]
fn native_cpu_is_counted_in_milli_cores_like_the_rest() {
    let pod = EvictionPod {
        class: PriorityClass::Prod,
        priority_value: 120,
        active: true,
        cpu: DimensionAmounts {
            used: None,
            request: 90_000,
        },
        ..EvictionPod::default()
    };
    let limits = AllocatableThreshold {
        percent: 80,
        lower: 70,
        priority: 7999,
    };
    let requested = requested(&[pod], limits.priority, Dimension::Cpu);
    assert_eq!(requested, BTreeMap::from([(CPU, 90_000)]));
    assert_eq!(limits.release(90_000, Some(100_000)), 20_000);
}
