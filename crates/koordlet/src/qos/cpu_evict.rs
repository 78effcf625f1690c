//! CPUEvict: evicts pods when batch work gets too little CPU, when the node uses too much of it, or when
//! requests exceed the allocatable amount.

use crate::gates::Gate;
use crate::qos::evict::{Candidates, Evict, EvictionNeed, EvictionPass, Feature, by_allocatable};
use crate::qos::{StrategySpec, View};
use crate::store::{Metric, SeriesSubject};
use koord_api::resources;
use koord_model::evict::config::{
    AllocatableThreshold, BatchCpu, Satisfaction, UsageThreshold, enough_samples, usage_priority,
};
use koord_model::evict::plan::{
    Dimension, EvictionPod, EvictionTask, Measure, by_batch_cpu, by_priority,
};
use std::collections::BTreeMap;

/// The strategy's name.
pub const NAME: &str = "CPUEvict";

const FEATURES: &[Feature] = &[
    Feature {
        name: "BECPUEvict",
        gate: Gate::BECPUEvict,
        candidates: Candidates::Batch,
        find: satisfaction,
    },
    Feature {
        name: "CPUAllocatableEvict",
        gate: Gate::CPUAllocatableEvict,
        candidates: Candidates::Labeled,
        find: allocatable,
    },
    Feature {
        name: "CPUEvict",
        gate: Gate::CPUEvict,
        candidates: Candidates::Labeled,
        find: usage,
    },
];

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[Gate::BECPUEvict, Gate::CPUEvict, Gate::CPUAllocatableEvict],
    every: |settings| settings.cpu_evict_interval_ms,
    claims: &[],
    make: |settings, _| {
        Box::new(Evict::with_initial_cooldown(
            FEATURES,
            settings.cpu_cool_down_ms,
        ))
    },
};

/// Returns the need to evict because batch work gets too little of its CPU request.
fn satisfaction(
    feature: &'static str,
    pass: &mut EvictionPass,
    view: &View<'_>,
    pods: &[EvictionPod],
) -> EvictionNeed {
    let interval_ms = view.facts.settings.interval_ms.max(1);
    let interval = i64::try_from(interval_ms.div_ceil(1000)).unwrap_or(1);
    let read = Satisfaction::new(view.facts.slo.thresholds(), interval);
    let limits = pass.settings(feature, read)?;
    let now = view.now.ms();
    let window = u64::try_from(limits.window_seconds)
        .unwrap_or(0)
        .saturating_mul(1000);
    let mut samples = Vec::new();
    let key = |metric| (SeriesSubject::Batch, metric);
    view.store
        .collect(key(Metric::CpuUsage), now, window, &mut samples);
    let count = i64::try_from(samples.len()).unwrap_or(i64::MAX);
    if !enough_samples(limits.window_seconds, count, interval) {
        return None;
    }
    let cpu = |read: &dyn Fn(Metric) -> Option<f64>| {
        Some(BatchCpu {
            real_limit: read(Metric::CpuRealLimit)? as i64,
            request: read(Metric::CpuRequest)? as i64,
            used: read(Metric::CpuUsage)? as i64,
        })
    };
    let mean = cpu(&|metric| view.store.average(key(metric), now, window))?;
    let newest = cpu(&|metric| view.store.last(key(metric), now, interval_ms * 2))?;
    let batch = view.facts.node?.extended.get(resources::BATCH_CPU).copied();
    let release = limits.release(mean, newest, batch);
    let task = EvictionTask {
        feature,
        measure: Measure::BatchCpu,
        wanted: BTreeMap::from([(resources::BATCH_CPU, release)]),
        candidates: by_batch_cpu(pods, feature),
    };
    let why = format!(
        "batch work may use {}m of {}m requested, lower bound {}%",
        newest.real_limit, newest.request, limits.lower
    );
    (release > 0).then_some((task, why))
}

/// Returns the need to evict because the node's CPU usage is above its threshold.
fn usage(
    feature: &'static str,
    pass: &mut EvictionPass,
    view: &View<'_>,
    pods: &[EvictionPod],
) -> EvictionNeed {
    let strategy = view.facts.slo.thresholds();
    let limits = pass.settings(feature, UsageThreshold::cpu(strategy))?;
    let priority = pass.settings(feature, usage_priority(strategy))?;
    let interval_ms = view.facts.settings.interval_ms.max(1);
    let interval = i64::try_from(interval_ms.div_ceil(1000)).unwrap_or(1);
    let seconds = strategy
        .cpu_evict_time_window_seconds
        .unwrap_or(0)
        .max(interval);
    let window = u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
    let (mut samples, now) = (Vec::new(), view.now.ms());
    let key = (SeriesSubject::Node, Metric::CpuUsage);
    view.store.collect(key, now, window, &mut samples);
    let count = i64::try_from(samples.len()).unwrap_or(i64::MAX);
    if !enough_samples(seconds, count, interval) {
        return None;
    }
    let used = view.store.average(key, now, window)? as i64;
    let capacity = view.facts.cpu_capacity();
    let release = limits.release(capacity, used);
    let measure = Measure::Used(Dimension::Cpu);
    let task = EvictionTask {
        feature,
        measure,
        wanted: BTreeMap::from([(resources::CPU, release)]),
        candidates: by_priority(pods, feature, priority, measure),
    };
    let why = format!(
        "node uses {used}m of {capacity}m CPU, threshold {}%",
        limits.percent
    );
    (release > 0).then_some((task, why))
}

fn allocatable(
    feature: &'static str,
    pass: &mut EvictionPass,
    view: &View<'_>,
    pods: &[EvictionPod],
) -> EvictionNeed {
    let read = AllocatableThreshold::cpu(view.facts.slo.thresholds());
    let limits = pass.settings(feature, read)?;
    by_allocatable(feature, &limits, view, pods, Dimension::Cpu)
}
