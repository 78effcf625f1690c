//! Tests a NodeSLO, annotations and samples with arbitrary values. Nothing panics or overflows, and the
//! kernel accepts the results.

use koord_api::extension::Resctrl;
use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::{CPUBurstStrategy, MemoryQOSCfg, ResourceThresholdStrategy, SystemStrategy};
use koord_model::burst::{self, Config, Limiter, Operation, PoolPod, Raised};
use koord_model::cpu_limit::{self, Container, Source};
use koord_model::evict::config::{
    AllocatableThreshold, BatchCpu, Satisfaction, UsageThreshold, enough_samples,
};
use koord_model::evict::plan::{
    Dimension, DimensionAmounts, EvictionPod, EvictionTask, Measure, by_batch_cpu, by_batch_memory,
    by_priority, choose, requested,
};
use koord_model::memory_qos::{self, MemoryAmounts};
use koord_model::resctrl::{self, Bandwidth, Hardware, Resource};
use koord_model::suppress::{self, NodeUsage, Threshold};
use koord_model::system_config;
use proptest::prelude::*;
use serde_json::json;

/// Generates any number, often one near a limit.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        any::<i64>(),
        -5_i64..200,
        Just(i64::MIN),
        Just(i64::MAX),
        Just(i64::MIN + 1),
    ]
}

fn some() -> impl Strategy<Value = Option<i64>> {
    prop::option::of(number())
}

fn thresholds() -> impl Strategy<Value = ResourceThresholdStrategy> {
    let wide = prop::array::uniform12(some());
    (wide, any::<Option<i32>>()).prop_map(|(v, priority)| ResourceThresholdStrategy {
        cpu_suppress_threshold_percent: v[0],
        cpu_suppress_min_percent: v[1],
        memory_evict_threshold_percent: v[2],
        memory_evict_lower_percent: v[3],
        memory_allocatable_evict_threshold_percent: v[4],
        memory_allocatable_evict_lower_percent: v[5],
        cpu_evict_be_satisfaction_upper_percent: v[6],
        cpu_evict_be_satisfaction_lower_percent: v[7],
        cpu_evict_be_usage_threshold_percent: v[8],
        cpu_evict_time_window_seconds: v[9],
        cpu_evict_threshold_percent: v[10],
        cpu_evict_lower_percent: v[11],
        cpu_allocatable_evict_threshold_percent: v[4],
        cpu_allocatable_evict_lower_percent: v[5],
        evict_enabled_priority_threshold: priority,
        allocatable_evict_priority_threshold: priority,
        ..ResourceThresholdStrategy::default()
    })
}

proptest! {
    #[test]
    fn suppression(v in prop::array::uniform9(number()), min_percent in some()) {
        let usage = NodeUsage {
            node: v[0],
            pods: v[1],
            pods_not_be: v[2],
            hosts: v[3],
            hosts_not_be: v[4],
        };
        let threshold = Threshold { percent: v[5], min_percent };
        let budget = suppress::budget(v[6], v[7], &usage, threshold);
        if let Some(quota) = suppress::next_quota(v[6], budget, v[8]) {
            prop_assert!(quota >= suppress::MIN_QUOTA_US);
        }
        let count = suppress::next_cpu_count(64, budget, 3);
        prop_assert!((suppress::MIN_CPUS..=10).contains(&count));
    }

    /// A service never gets less than its limit, whatever the strategy.
    #[test]
    fn burst_of_services(
        strategy in prop::array::uniform5(some()),
        samples in prop::array::uniform6(number()),
        limit in 1_i64..512_000,
        ratio in prop::option::of(any::<f64>()),
        share in any::<f64>(),
    ) {
        let strategy = CPUBurstStrategy {
            policy: Some("auto".into()),
            cpu_burst_percent: strategy[0],
            cfs_quota_burst_percent: strategy[1],
            cfs_quota_burst_period_seconds: strategy[2],
            share_pool_threshold_percent: strategy[3],
        };
        let (config, _) = Config::merge(&strategy, None);
        let pod = PoolPod { qos: QosClass::Lsr, request: samples[0], used: Some(samples[1]) };
        let threshold = strategy.share_pool_threshold_percent.unwrap_or(50);
        let state = burst::pool_state(16, Some(samples[2]), [pod, pod], threshold);
        let mut limiter = Limiter::new(&config, share, samples[3]);
        let allowed = limiter.allow(samples[4], burst::usage_percent(limit, Some(samples[5])));
        let _ = limiter.expired(samples[5]);
        let base = cpu_limit::normalized(cpu_limit::quota_of(Some(limit)), ratio);
        let raised = Raised { id: 0, base, present: samples[0] };
        let chosen = !burst::lowered(samples[1], vec![raised, raised]).is_empty();
        let operation = burst::admitted(burst::operation(&config, allowed, Some(share)), state, chosen);
        let next = burst::next_quota(base, samples[0], config.quota_percent, operation);
        let rebased_quota = cpu_limit::rebased(samples[0], base, base);
        let container = Container {
            limit: Some(limit),
            source: Source::Native,
            present: Some(base),
            raised: next.or(Some(rebased_quota)),
            quota_percent: config.quota_percent,
            buffer_percent: config.buffer_percent,
        };
        let limits = cpu_limit::container(&container, ratio).expect("a limited container");
        prop_assert!(limits.quota >= base && limits.burst <= limits.quota && limits.burst >= 0);
        let both = [container, container];
        let pod = cpu_limit::pod(Some(limit * 2), Source::Native, Some(1), &both, ratio);
        let pod = pod.expect("a limited pod");
        prop_assert!(pod.quota >= limits.quota && pod.burst <= pod.quota);
        prop_assert!(operation != Operation::Up || chosen || allowed);
    }

    #[test]
    fn eviction(
        strategy in thresholds(),
        amounts in prop::collection::vec((some(), number(), any::<i32>()), 0..6),
        v in prop::array::uniform8(number()),
    ) {
        let pods: Vec<EvictionPod> = amounts
            .into_iter()
            .map(|(used, request, priority)| EvictionPod {
                qos: QosClass::Be,
                priority: Some(priority),
                priority_value: priority,
                active: true,
                enabled: true,
                cpu: DimensionAmounts { used, request },
                memory: DimensionAmounts { used, request },
                batch_cpu_request: request,
                ..EvictionPod::default()
            })
            .collect();
        let mut tasks = Vec::new();
        let mut task = |feature, measure, wanted: i64, candidates| {
            let wanted = [("cpu", wanted), ("memory", wanted)].into_iter().collect();
            tasks.push(EvictionTask { feature, measure, wanted, candidates });
        };
        if let Ok(limits) = Satisfaction::new(&strategy, v[0]) {
            let sample = |at: usize| BatchCpu { real_limit: v[at], request: v[at + 1], used: v[at + 2] };
            let release = limits.release(sample(1), sample(4), Some(v[7]));
            prop_assert!(release >= 0);
            prop_assert!(enough_samples(limits.window_seconds, i64::MAX, v[0].max(1)));
            task("BECPUEvict", Measure::BatchCpu, release, by_batch_cpu(&pods, "BECPUEvict"));
        }
        for limits in [UsageThreshold::cpu(&strategy), UsageThreshold::memory(&strategy)].into_iter().flatten() {
            let release = limits.release(v[0], v[1]);
            task("use", Measure::Used(Dimension::Memory), release, by_batch_memory(&pods, "use"));
        }
        for limits in [AllocatableThreshold::cpu(&strategy), AllocatableThreshold::memory(&strategy)].into_iter().flatten() {
            prop_assert!(limits.priority <= 7999);
            for dimension in [Dimension::Cpu, Dimension::Memory] {
                let measure = Measure::Request(dimension);
                for (_, requested) in requested(&pods, limits.priority, dimension) {
                    let release = limits.release(requested, Some(v[2]));
                    task("allocatable", measure, release, by_priority(&pods, "allocatable", limits.priority, measure));
                }
            }
        }
        let plan = choose(&pods, &tasks);
        prop_assert!(plan.victims.len() <= pods.len());
    }

    #[test]
    fn memory(v in prop::array::uniform11(some()), w in prop::array::uniform4(number())) {
        let node = MemoryQOSCfg {
            enable: Some(true),
            min_limit_percent: v[0],
            low_limit_percent: v[1],
            throttling_percent: v[2],
            wmark_ratio: v[3],
            wmark_scale_permill: v[4],
            wmark_min_adj: v[5],
            page_cache_limit_size: v[6],
            page_cache_limit_percent: v[7],
            priority_enable: v[8],
            priority: v[9],
            oom_kill_group: v[10],
            ..MemoryQOSCfg::default()
        };
        let (settings, _) = memory_qos::settings(Some(&node), QosClass::Ls, None);
        let ask = MemoryAmounts { request: w[0], limit: Some(w[1]) };
        for values in [
            memory_qos::container(&settings, ask, Some(w[2]), w[3]),
            memory_qos::pod(&settings, ask),
        ] {
            for value in [values.min, values.low, values.high, values.page_cache_size].into_iter().flatten() {
                prop_assert!(value >= 0);
            }
            prop_assert!(values.high.is_none_or(|high| high >= values.min.unwrap_or(0)));
        }
        let pods = [(KubeQos::Burstable, &settings, w[0]), (KubeQos::Guaranteed, &settings, w[1])];
        let dirs = memory_qos::directories(memory_qos::Classes::default(), pods);
        prop_assert!(dirs.kubepods.min >= dirs.burstable.min);
    }

    #[test]
    fn system(v in prop::array::uniform7(some()), memory in number()) {
        let strategy = SystemStrategy {
            min_free_kbytes_factor: v[0],
            watermark_scale_factor: v[1],
            memcg_reap_back_ground: v[2],
            sched_idle_saver_wmark: v[3],
            sched_group_identity_enabled: v[4],
            page_cache_limit_enabled: v[5],
            ..SystemStrategy::default()
        };
        let (values, errors) = system_config::values(&strategy, memory);
        prop_assert!(values.len() + errors.len() <= 6);
    }

    #[test]
    fn cache_and_bandwidth(
        cbm in prop::option::of(any::<u64>()),
        min_bits in any::<u32>(),
        step in prop::option::of(any::<u64>()),
        v in prop::array::uniform5(number()),
        l3 in prop::collection::vec(any::<u32>(), 0..3),
        mb in prop::collection::vec(any::<u32>(), 0..3),
    ) {
        let hardware = Hardware {
            cbm_mask: cbm,
            min_cbm_bits: min_bits,
            bandwidth: Some(Bandwidth::from_vendor("GenuineIntel", step, step)),
            domains: [(Resource::L3, l3), (Resource::Mb, mb)].into(),
        };
        let annotation: Resctrl = serde_json::from_value(json!({
            "llc": {"schemata": {"range": [v[0], v[1]]}, "schemataPerCache": [{"cacheID": v[2], "range": [v[0]]}]},
            "mb": {"schemata": {"percent": v[3]}, "schemataPerCache": [{"cacheID": v[2], "percent": v[4]}]},
        }))
        .expect("an annotation");
        let (lines, _) = resctrl::pod_lines(&hardware, &annotation);
        for line in lines {
            let masks_fit = |mask: &u64| cbm.is_some_and(|full| mask & !full == 0 && *mask != 0);
            let fits = line.resource == Resource::Mb || line.domains.values().all(masks_fit);
            prop_assert!(fits, "{}", line);
        }
    }
}
