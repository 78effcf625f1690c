use super::*;
use proptest::prelude::*;

fn pod(qos: QosClass, request: i64, used: i64) -> PoolPod {
    PoolPod {
        qos,
        request,
        used: Some(used),
    }
}

/// Upstream: `TestCPUBurst_getNodeStateForBurst`; 16 processors, threshold 50 %.
#[test]
fn pool_states() {
    use QosClass::{Be, Ls, Lse, Lsr};
    let over = |over| PoolState::Overload { over };
    let cases = [
        ("no node sample", 16, None, vec![], PoolState::Unknown),
        ("no processors", 0, Some(6_000), vec![], PoolState::Unknown),
        (
            "3 of 8",
            16,
            Some(10_000),
            vec![pod(Lsr, 8_000, 7_000), pod(Ls, 1_000, 200)],
            PoolState::Idle,
        ),
        (
            "5 of 8",
            16,
            Some(10_000),
            vec![pod(Lsr, 8_000, 5_000), pod(Ls, 3_000, 3_000)],
            over(1_000),
        ),
        (
            "3.75 of 8",
            16,
            Some(10_000),
            vec![pod(Lsr, 8_000, 6_250), pod(Ls, 2_000, 1_000)],
            PoolState::Cooling,
        ),
        // Added rows: results of upstream's code for cases that its table does not have.
        (
            "LSE counts like LSR, batch work does not use the pool",
            16,
            Some(14_000),
            vec![pod(Lse, 8_000, 6_000), pod(Be, 0, 5_000)],
            PoolState::Idle,
        ),
        ("at the threshold", 16, Some(8_000), vec![], over(0)),
        ("just below", 16, Some(7_999), vec![], PoolState::Cooling),
        ("nine tenths", 16, Some(7_200), vec![], PoolState::Cooling),
        ("below", 16, Some(7_199), vec![], PoolState::Idle),
        (
            "no CPU left in the pool",
            16,
            Some(0),
            vec![pod(Lsr, 16_000, 0)],
            over(500),
        ),
    ];
    for (name, processors, used, pods, want) in cases {
        assert_eq!(pool_state(processors, used, pods, 50), want, "{name}");
    }
    let unsampled = PoolPod {
        used: None,
        ..pod(Lsr, 8_000, 0)
    };
    assert_eq!(
        pool_state(16, Some(3_000), [unsampled], 50),
        PoolState::Idle
    );
}

fn strategy(
    policy: CPUBurstPolicy,
    buffer: Option<i64>,
    quota: Option<i64>,
    period: Option<i64>,
) -> CPUBurstStrategy {
    CPUBurstStrategy {
        policy: Some(policy),
        cpu_burst_percent: buffer,
        cfs_quota_burst_percent: quota,
        cfs_quota_burst_period_seconds: period,
        share_pool_threshold_percent: None,
    }
}

fn config(policy: CPUBurstPolicy, buffer: i64, quota: i64, period: i64) -> Config {
    Config {
        policy,
        buffer_percent: buffer,
        quota_percent: quota,
        period_seconds: period,
    }
}

/// Upstream: `Test_genPodBurstConfig`.
#[test]
fn annotation_overrides_strategy() {
    use CPUBurstPolicy::{Auto, CpuBurstOnly};
    let node = strategy(Auto, Some(1000), Some(300), Some(600));
    let full = CPUBurstConfig {
        policy: Some(Auto),
        cpu_burst_percent: Some(1000),
        cfs_quota_burst_percent: Some(300),
        cfs_quota_burst_period_seconds: Some(600),
    };
    let part = CPUBurstConfig {
        policy: Some(CpuBurstOnly),
        cpu_burst_percent: Some(500),
        ..CPUBurstConfig::default()
    };
    let empty = CPUBurstStrategy::default();
    for (name, node, pod, want) in [
        ("use-node-config", &node, None, config(Auto, 1000, 300, 600)),
        (
            "use-pod-config",
            &empty,
            Some(&full),
            config(Auto, 1000, 300, 600),
        ),
        (
            "merge-pod-config",
            &node,
            Some(&part),
            config(CpuBurstOnly, 500, 300, 600),
        ),
    ] {
        assert_eq!(Config::merge(node, pod), (want, vec![]), "{name}");
    }
    // Nothing is configured: the defaults.
    let defaults = config(CPUBurstPolicy::None, 1000, 300, -1);
    assert_eq!(Config::merge(&empty, None), (defaults, vec![]));
}

#[test]
fn invalid_settings_are_reported_and_next_layer_applies() {
    let node = strategy(CPUBurstPolicy::Auto, Some(-1), Some(90), Some(600));
    let pod = CPUBurstConfig {
        policy: Some("sometimes".into()),
        cpu_burst_percent: Some(10_001),
        cfs_quota_burst_period_seconds: Some(-2),
        ..CPUBurstConfig::default()
    };
    let (got, errors) = Config::merge(&node, Some(&pod));
    assert_eq!(got, config(CPUBurstPolicy::Auto, 1000, 300, 600));
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "policy must be none, cpuBurstOnly, cfsQuotaBurstOnly or auto, got sometimes",
            "cpuBurstPercent must be in 0..=10000, got 10001",
            "cpuBurstPercent must be in 0..=10000, got -1",
            "cfsQuotaBurstPercent must be at least 100, got 90",
            "cfsQuotaBurstPeriodSeconds must be at least -1, got -2",
        ]
    );
}

/// Upstream: `TestCPUBurst_applyCPUBurst`, before the kernel's cap, which upstream leaves out.
#[test]
fn buffers() {
    use CPUBurstPolicy::{Auto, CfsQuotaBurstOnly, CpuBurstOnly};
    for (name, config, base, want) in [
        (
            "default, 5 cores",
            config(Auto, 1000, 300, -1),
            500_000,
            5_000_000,
        ),
        (
            "default, 3 cores",
            config(Auto, 1000, 300, -1),
            300_000,
            3_000_000,
        ),
        (
            "500 %, 5 cores",
            config(Auto, 500, 300, -1),
            500_000,
            2_500_000,
        ),
        (
            "500 %, 3 cores",
            config(CpuBurstOnly, 500, 300, -1),
            300_000,
            1_500_000,
        ),
        ("off", config(CfsQuotaBurstOnly, 500, 300, -1), 500_000, 0),
        ("no limit", config(Auto, 1000, 300, -1), -1, 0),
    ] {
        assert_eq!(buffer(&config, base), want, "{name}");
    }
}

/// Upstream: `TestCPUBurst_applyCFSQuotaBurst`; the pod's part is in `cpu_limit`.
#[test]
fn quota_steps() {
    use CPUBurstPolicy::{Auto, CpuBurstOnly};
    let auto = config(Auto, 1000, 300, -1);
    let overload = PoolState::Overload { over: 100 };
    let cases = [
        (
            "scale-reset-for-burst-config-disabled-on-idle-state",
            config(CpuBurstOnly, 1000, 300, -1),
            PoolState::Idle,
            (200_000, 400_000, 0.5),
            Some(200_000),
        ),
        (
            "scale-remain-for-throttled-pod-on-cooling-state",
            auto.clone(),
            PoolState::Cooling,
            (200_000, 400_000, 0.5),
            None,
        ),
        (
            "scale-down-to-base-for-throttled-pod-on-overload-state",
            auto.clone(),
            overload,
            (200_000, 202_000, 0.5),
            Some(200_000),
        ),
        (
            "scale-down-for-throttled-pod-on-overload-state",
            auto.clone(),
            overload,
            (200_000, 400_000, 0.5),
            Some(320_000),
        ),
        (
            "scale-down-because-burst-period-config-zero-on-idle-state",
            config(Auto, 1000, 300, 0),
            PoolState::Idle,
            (200_000, 400_000, 0.5),
            Some(320_000),
        ),
        (
            "scale-reset-because-burst-percent-config-illegal-on-idle-state",
            config(Auto, 1000, 90, -1),
            PoolState::Idle,
            (200_000, 400_000, 0.5),
            Some(200_000),
        ),
        (
            "scale-remain-because-not-throttled-on-idle-state",
            auto.clone(),
            PoolState::Idle,
            (200_000, 580_000, 0.0),
            None,
        ),
        (
            "scale-up-limit-by-ceil-on-idle-state",
            auto.clone(),
            PoolState::Idle,
            (200_000, 580_000, 0.5),
            Some(600_000),
        ),
        (
            "scale-up-from-base-on-idle-state",
            auto.clone(),
            PoolState::Idle,
            (200_000, 200_000, 0.5),
            Some(240_000),
        ),
        (
            "scale-up-two-container-from-base-on-idle-state, the second",
            auto.clone(),
            PoolState::Idle,
            (300_000, 300_000, 0.5),
            Some(360_000),
        ),
        (
            "scale-up-one-container-in-unlimited-pod-from-base-on-idle-state, without a limit",
            auto.clone(),
            PoolState::Idle,
            (-1, -1, 0.5),
            None,
        ),
        // Ours: the kubelet runs without CFS quotas; upstream writes the limit here.
        (
            "the kubelet sets no quota",
            auto.clone(),
            PoolState::Idle,
            (200_000, -1, 0.5),
            None,
        ),
        (
            "an unknown pool raises no quota",
            auto,
            PoolState::Unknown,
            (200_000, 400_000, 0.5),
            None,
        ),
    ];
    for (name, config, state, (base, present, throttled), want) in cases {
        let allowed = config.period_seconds < 0 || Limiter::new(&config, 0.4, 0).allow(1000, 75);
        let raised = Raised {
            id: 0,
            base,
            present,
        };
        let chosen = match state {
            PoolState::Overload { over } => !lowered(over, vec![raised]).is_empty(),
            _ => false,
        };
        let requested = operation(&config, allowed, Some(throttled));
        let operation = admitted(requested, state, chosen);
        let quota = next_quota(base, present, config.quota_percent, operation);
        assert_eq!(quota, want, "{name}");
    }
}

#[test]
fn missing_throttling_sample_changes_no_quota() {
    let config = config(CPUBurstPolicy::Auto, 1000, 300, -1);
    assert_eq!(operation(&config, true, None), Operation::Remain);
    assert_eq!(operation(&config, false, None), Operation::Down);
}

#[test]
fn overload_lowers_only_as_many_quotas_as_needed() {
    let raised = |id, base, present| Raised { id, base, present };
    let all = vec![
        raised("at-limit", 200_000, 200_000),
        raised("small", 100_000, 150_000),
        raised("large", 100_000, 300_000),
        raised("large-too", 100_000, 300_000),
        raised("no-limit", -1, -1),
    ];
    // One step of "large" gives back 600 milli-cores.
    assert_eq!(lowered(600, all.clone()), ["large"]);
    assert_eq!(lowered(601, all.clone()), ["large", "large-too"]);
    assert_eq!(lowered(9_000, all.clone()), ["large", "large-too", "small"]);
    // At the threshold exactly, the pool is overloaded still.
    assert_eq!(lowered(0, all), ["large"]);
    let overload = PoolState::Overload { over: 600 };
    assert_eq!(
        admitted(Operation::Up, overload, false),
        Operation::Remain,
        "an overload raises no quota"
    );
    assert_eq!(admitted(Operation::Reset, overload, true), Operation::Reset);
    assert_eq!(admitted(Operation::Down, overload, false), Operation::Down);
}

/// Upstream: `Test_burstLimiter_Allow`; ten seconds at the given use.
#[test]
fn limiter_tokens() {
    for (name, period, percent, share, usage, want) in [
        (
            "consume-enough-token-with-full-init",
            100,
            150,
            1.0,
            150,
            (true, 4_500),
        ),
        (
            "consume-not-enough-token-with-part-init",
            100,
            150,
            0.01,
            200,
            (false, -950),
        ),
        (
            "consume-not-enough-token-to-bottom-with-part-init",
            10,
            150,
            0.01,
            200,
            (false, -500),
        ),
        (
            "accumulate-token-with-part-init",
            100,
            150,
            0.1,
            40,
            (true, 1_100),
        ),
        (
            "accumulate-token-to-ceil-with-part-init",
            100,
            150,
            0.9,
            40,
            (true, 5_000),
        ),
        // Ours: between 60 % and 100 % nothing moves.
        ("neither", 100, 150, 0.1, 60, (true, 500)),
        ("just below the limit", 100, 150, 0.1, 99, (true, 500)),
        ("empty", 100, 150, 0.0, 60, (false, 0)),
    ] {
        let config = config(CPUBurstPolicy::Auto, 1000, percent, period);
        let mut limiter = Limiter::new(&config, share, 5_000);
        let allowed = limiter.allow(15_000, usage);
        assert_eq!((allowed, limiter.token()), want, "{name}");
    }
}

/// Upstream: `Test_burstLimiter_UpdateIfChanged`.
#[test]
fn changed_capacity_resets_the_limiter() {
    let old = config(CPUBurstPolicy::Auto, 1000, 300, 600);
    let mut limiter = Limiter::new(&old, 0.5, 0);
    let before = limiter.clone();
    limiter.follow(&old, 1.0, 9_000);
    assert_eq!(limiter, before);
    limiter.follow(&config(CPUBurstPolicy::Auto, 1000, 200, 300), 1.0, 9_000);
    assert_eq!(limiter.token(), 300 * 100);
    assert!(!limiter.expired(9_000 + 600_000));
    assert!(limiter.expired(9_001 + 600_000));
}

#[test]
fn short_ticks_add_up_and_clock_jumps_are_ignored() {
    let config = config(CPUBurstPolicy::Auto, 1000, 150, 100);
    let mut limiter = Limiter::new(&config, 1.0, 0);
    for tick in 1..=10 {
        limiter.allow(tick * 900, 200);
    }
    assert_eq!(limiter.token(), 5_000 - 9 * 100);
    // The clock goes back by an hour: no tokens are added, and time is counted from there.
    limiter.allow(-3_600_000, 200);
    assert_eq!(limiter.token(), 4_100);
    limiter.allow(-3_599_000, 200);
    assert_eq!(limiter.token(), 4_000);
    // The clock goes ahead by a year: the bucket becomes empty, not less.
    limiter.allow(i64::MAX, i64::MAX);
    assert_eq!(limiter.token(), -5_000);
}

#[test]
fn use_of_a_limit() {
    assert_eq!(usage_percent(2_000, Some(1_500)), 75);
    assert_eq!(usage_percent(2_000, None), 100);
    assert_eq!(usage_percent(0, Some(5)), 100);
}

proptest! {
    #[test]
    fn quota_is_between_limit_and_ceiling(
        base in 1_000_i64..10_000_000,
        present in 1_i64..40_000_000,
        percent in 0_i64..1_000,
        step in 0_usize..4,
    ) {
        let operation = [Operation::Up, Operation::Down, Operation::Remain, Operation::Reset][step];
        let next = next_quota(base, present, percent, operation).unwrap_or(present);
        prop_assert!(next >= base && next <= ceiling(base, percent));
    }
}
