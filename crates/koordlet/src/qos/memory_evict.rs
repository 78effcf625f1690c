//! MemoryEvict: pods go when the node runs out of memory, cheapest loss first, or when more is
//! requested than is allocatable.

use crate::gates::Gate;
use crate::qos::cpu_evict::by_allocatable;
use crate::qos::evict::{self, Round};
use crate::qos::{Eviction, Plan, Planner, Strategy, View};
use crate::status::State;
use koord_api::resources;
use koord_model::evict::config::{AllocatableThreshold, UsageThreshold, usage_priority};
use koord_model::evict::plan::{Dimension, Measure, Pod, Task, by_batch_memory, by_priority};
use std::collections::BTreeMap;

/// The strategy's name.
pub const NAME: &str = "MemoryEvict";

const FEATURES: [(&str, Gate); 3] = [
    ("BEMemoryEvict", Gate::BEMemoryEvict),
    ("MemoryAllocatableEvict", Gate::MemoryAllocatableEvict),
    ("MemoryEvict", Gate::MemoryEvict),
];

/// The row.
pub const STRATEGY: Strategy = Strategy {
    name: NAME,
    gates: &[
        Gate::BEMemoryEvict,
        Gate::MemoryEvict,
        Gate::MemoryAllocatableEvict,
    ],
    every: |settings| settings.memory_evict_interval_ms,
    claims: &[],
    make: |settings, _| {
        Box::new(MemoryEvict {
            round: Round::new(settings.memory_cool_down_ms),
        })
    },
};

#[derive(Debug)]
struct MemoryEvict {
    round: Round,
}

impl Planner for MemoryEvict {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
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
            let found = if gate == Gate::MemoryAllocatableEvict {
                let read = AllocatableThreshold::memory(view.facts.slo.thresholds());
                let limits = self.round.settings(feature, read);
                limits.and_then(|l| by_allocatable(feature, &l, view, &pods, Dimension::Memory))
            } else {
                self.usage(feature, gate, view, &pods)
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

impl MemoryEvict {
    fn usage(
        &mut self,
        feature: &'static str,
        gate: Gate,
        view: &View<'_>,
        pods: &[Pod],
    ) -> Option<(Task, String)> {
        let strategy = view.facts.slo.thresholds();
        let limits = self
            .round
            .settings(feature, UsageThreshold::memory(strategy))?;
        let measure = Measure::Used(Dimension::Memory);
        let candidates = if gate == Gate::BEMemoryEvict {
            by_batch_memory(pods, feature)
        } else {
            let priority = self.round.settings(feature, usage_priority(strategy))?;
            by_priority(pods, feature, priority, measure)
        };
        let (capacity, used) = (view.facts.memory_capacity(), view.node_memory?);
        let release = limits.release(capacity, used);
        let task = Task {
            feature,
            measure,
            wanted: BTreeMap::from([(resources::MEMORY, release)]),
            candidates,
        };
        let percent = used.saturating_mul(100) / capacity.max(1);
        let why = format!("node memory {percent}% >= {}%", limits.percent);
        (release > 0).then_some((task, why))
    }
}
