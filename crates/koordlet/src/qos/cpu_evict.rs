//! CPUEvict: pods go when batch work gets too little CPU, when the node uses too much of it, or when
//! more is requested than is allocatable.

use crate::gates::Gate;
use crate::qos::evict::{self, Round};
use crate::qos::{Eviction, Facts, Needs, Plan, Planner, Strategy, View};
use crate::status::State;
use crate::store::{Metric, Subject};
use koord_api::resources;
use koord_model::evict::config::{
    AllocatableThreshold, BatchCpu, Satisfaction, UsageThreshold, enough_samples, usage_priority,
};
use koord_model::evict::plan::{
    Dimension, Measure, Pod, Task, by_batch_cpu, by_priority, requested,
};
use std::collections::BTreeMap;

/// The strategy's name.
pub const NAME: &str = "CPUEvict";

const FEATURES: [(&str, Gate); 3] = [
    ("BECPUEvict", Gate::BECPUEvict),
    ("CPUAllocatableEvict", Gate::CPUAllocatableEvict),
    ("CPUEvict", Gate::CPUEvict),
];

/// The row.
pub const STRATEGY: Strategy = Strategy {
    name: NAME,
    gates: &[Gate::BECPUEvict, Gate::CPUEvict, Gate::CPUAllocatableEvict],
    every: |settings| settings.cpu_evict_interval_ms,
    claims: &[],
    make: |settings, _| {
        Box::new(CpuEvict {
            round: Round::new(settings.cpu_cool_down_ms),
        })
    },
};

#[derive(Debug)]
struct CpuEvict {
    round: Round,
}

impl Planner for CpuEvict {
    fn needs(&self, facts: &Facts<'_>) -> Needs {
        Needs {
            batch_limit: facts.slo.enabled && facts.settings.gates.is_on(Gate::BECPUEvict),
            ..Needs::default()
        }
    }

    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        if self.round.is_fresh() {
            // The first samples of a new agent are no reason to evict.
            self.round.rest(view.now.ms());
        }
        if !view.facts.slo.enabled || view.pods.is_none() {
            plan.tell(State::Idle, "the NodeSLO does not enable it");
            return;
        }
        let pods = evict::pods(view);
        let (mut tasks, mut why) = (Vec::new(), Vec::new());
        for (feature, gate) in FEATURES {
            if !view.facts.settings.gates.is_on(gate) {
                continue;
            }
            let found = match gate {
                Gate::BECPUEvict => self.satisfaction(feature, view, &pods),
                Gate::CPUAllocatableEvict => {
                    let read = AllocatableThreshold::cpu(view.facts.slo.thresholds());
                    let limits = self.round.settings(feature, read);
                    limits.and_then(|l| by_allocatable(feature, &l, view, &pods, Dimension::Cpu))
                }
                _ => self.usage(feature, view, &pods),
            };
            if let Some((task, because)) = found {
                tasks.push(task);
                why.push(because);
            }
        }
        self.round.tell(plan);
        self.round.evict(view, &pods, &tasks, &why, plan);
    }

    fn evicted(&mut self, eviction: &Eviction, now_ms: u64) {
        if FEATURES.iter().any(|(name, _)| *name == eviction.feature) {
            self.round.rest(now_ms);
        }
    }
}

/// The task of an allocatable feature, when requests exceed what is allocatable.
pub(super) fn by_allocatable(
    feature: &'static str,
    limits: &AllocatableThreshold,
    view: &View<'_>,
    pods: &[Pod],
    dimension: Dimension,
) -> Option<(Task, String)> {
    let node = view.facts.node?;
    let allocatable = |resource: &str| match resource {
        resources::CPU => Some(node.allocatable.cpu),
        resources::MEMORY => Some(node.allocatable.memory),
        other => node.extended.get(other).copied(),
    };
    let mut wanted = BTreeMap::new();
    let mut why = Vec::new();
    for (resource, amount) in requested(pods, limits.priority, dimension) {
        let have = allocatable(resource);
        let release = limits.release(amount, have);
        if release > 0 {
            wanted.insert(resource, release);
            let have = have.unwrap_or(0);
            why.push(format!(
                "{amount} of {resource} requested over {have} allocatable"
            ));
        }
    }
    let measure = Measure::Request(dimension);
    let task = Task {
        feature,
        measure,
        wanted,
        candidates: by_priority(pods, feature, limits.priority, measure),
    };
    (!task.wanted.is_empty()).then(|| (task, why.join(", ")))
}

impl CpuEvict {
    fn satisfaction(
        &mut self,
        feature: &'static str,
        view: &View<'_>,
        pods: &[Pod],
    ) -> Option<(Task, String)> {
        let interval_ms = view.facts.settings.interval_ms.max(1);
        let interval = i64::try_from(interval_ms.div_ceil(1000)).unwrap_or(1);
        let read = Satisfaction::new(view.facts.slo.thresholds(), interval);
        let limits = self.round.settings(feature, read)?;
        let now = view.now.ms();
        let window = u64::try_from(limits.window_seconds)
            .unwrap_or(0)
            .saturating_mul(1000);
        let mut samples = Vec::new();
        let key = |metric| (Subject::Batch, metric);
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
        let task = Task {
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

    fn usage(
        &mut self,
        feature: &'static str,
        view: &View<'_>,
        pods: &[Pod],
    ) -> Option<(Task, String)> {
        let strategy = view.facts.slo.thresholds();
        let limits = self
            .round
            .settings(feature, UsageThreshold::cpu(strategy))?;
        let priority = self.round.settings(feature, usage_priority(strategy))?;
        let interval_ms = view.facts.settings.interval_ms.max(1);
        let interval = i64::try_from(interval_ms.div_ceil(1000)).unwrap_or(1);
        let seconds = strategy
            .cpu_evict_time_window_seconds
            .unwrap_or(0)
            .max(interval);
        let window = u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
        let (mut samples, now) = (Vec::new(), view.now.ms());
        let key = (Subject::Node, Metric::CpuUsage);
        view.store.collect(key, now, window, &mut samples);
        let count = i64::try_from(samples.len()).unwrap_or(i64::MAX);
        if !enough_samples(seconds, count, interval) {
            return None;
        }
        let used = view.store.average(key, now, window)? as i64;
        let capacity = view.facts.cpu_capacity();
        let release = limits.release(capacity, used);
        let measure = Measure::Used(Dimension::Cpu);
        let task = Task {
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
}
