//! MemoryEvict: evicts pods when the node runs out of memory, cheapest loss first, or when requests exceed
//! the allocatable amount.

use crate::gates::Gate;
use crate::qos::evict::{Candidates, Evict, EvictionNeed, EvictionPass, Feature, by_allocatable};
use crate::qos::{StrategySpec, View};
use koord_api::resources;
use koord_model::evict::config::{AllocatableThreshold, UsageThreshold, usage_priority};
use koord_model::evict::plan::{
    Dimension, EvictionPod, EvictionTask, Measure, by_batch_memory, by_priority,
};
use std::collections::BTreeMap;

/// The strategy's name.
pub const NAME: &str = "MemoryEvict";

const FEATURES: &[Feature] = &[
    Feature {
        name: "BEMemoryEvict",
        gate: Gate::BEMemoryEvict,
        candidates: Candidates::Batch,
        find: batch_usage,
    },
    Feature {
        name: "MemoryAllocatableEvict",
        gate: Gate::MemoryAllocatableEvict,
        candidates: Candidates::Labeled,
        find: allocatable,
    },
    Feature {
        name: "MemoryEvict",
        gate: Gate::MemoryEvict,
        candidates: Candidates::Labeled,
        find: usage,
    },
];

/// The row of the table of strategies.
pub const STRATEGY: StrategySpec = StrategySpec {
    name: NAME,
    gates: &[
        Gate::BEMemoryEvict,
        Gate::MemoryEvict,
        Gate::MemoryAllocatableEvict,
    ],
    every: |settings| settings.memory_evict_interval_ms,
    claims: &[],
    make: |settings, _| Box::new(Evict::new(FEATURES, settings.memory_cool_down_ms)),
};

fn batch_usage(
    feature: &'static str,
    pass: &mut EvictionPass,
    view: &View<'_>,
    pods: &[EvictionPod],
) -> EvictionNeed {
    over_threshold(feature, pass, view, |_| {
        Some(by_batch_memory(pods, feature))
    })
}

fn usage(
    feature: &'static str,
    pass: &mut EvictionPass,
    view: &View<'_>,
    pods: &[EvictionPod],
) -> EvictionNeed {
    over_threshold(feature, pass, view, |pass| {
        let priority = usage_priority(view.facts.slo.thresholds());
        let priority = pass.settings(feature, priority)?;
        let measure = Measure::Used(Dimension::Memory);
        Some(by_priority(pods, feature, priority, measure))
    })
}

fn over_threshold(
    feature: &'static str,
    pass: &mut EvictionPass,
    view: &View<'_>,
    candidates: impl FnOnce(&mut EvictionPass) -> Option<Vec<usize>>,
) -> EvictionNeed {
    let read = UsageThreshold::memory(view.facts.slo.thresholds());
    let limits = pass.settings(feature, read)?;
    let candidates = candidates(pass)?;
    let (capacity, used) = (view.facts.memory_capacity(), view.node_memory?);
    let release = limits.release(capacity, used);
    let task = EvictionTask {
        feature,
        measure: Measure::Used(Dimension::Memory),
        wanted: BTreeMap::from([(resources::MEMORY, release)]),
        candidates,
    };
    let percent = used.saturating_mul(100) / capacity.max(1);
    let why = format!("node memory {percent}% >= {}%", limits.percent);
    (release > 0).then_some((task, why))
}

fn allocatable(
    feature: &'static str,
    pass: &mut EvictionPass,
    view: &View<'_>,
    pods: &[EvictionPod],
) -> EvictionNeed {
    let read = AllocatableThreshold::memory(view.facts.slo.thresholds());
    let limits = pass.settings(feature, read)?;
    by_allocatable(feature, &limits, view, pods, Dimension::Memory)
}
