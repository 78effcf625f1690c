//! BEMemoryEvict: when the node runs out of memory, BE pods go, cheapest loss first.

use crate::gates::Gate;
use crate::qos::{Eviction, Plan, Planner, Strategy, View};
use crate::states::{PodInfo, Slo};
use koord_api::qos::QosClass;
use koord_model::evict::{Candidate, MemoryThreshold, ThresholdError, victims};
use rustc_hash::FxHashMap;

/// The strategy's name, which is also what `koordinator.sh/eviction-policy` lists.
pub const NAME: &str = "BEMemoryEvict";

/// The row.
pub const STRATEGY: Strategy = Strategy {
    name: NAME,
    gates: &[Gate::BEMemoryEvict],
    every: |settings| settings.memory_evict_interval_ms,
    claims: &[],
    make: |settings, _| Box::new(MemoryEvict::new(settings.memory_cool_down_ms)),
};

/// What the strategy looks at.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Steady clock.
    pub now_ms: u64,
    /// The settings.
    pub slo: &'a Slo,
    /// The node's memory in bytes.
    pub capacity: i64,
    /// The newest sample of the memory in use, in bytes.
    pub used: Option<i64>,
    /// The pods with the memory each uses, in bytes.
    pub pods: &'a [(&'a PodInfo, Option<i64>)],
    /// UIDs of pods that are on their way out.
    pub leaving: &'a FxHashMap<String, u64>,
}

/// The strategy's memory between ticks.
#[derive(Debug, Default)]
pub struct MemoryEvict {
    cool_down_ms: u64,
    last_ms: Option<u64>,
    complained: Option<ThresholdError>,
}

impl MemoryEvict {
    /// With the pause between two rounds of eviction.
    #[must_use]
    pub fn new(cool_down_ms: u64) -> Self {
        Self {
            cool_down_ms,
            ..Self::default()
        }
    }

    /// Whom to evict now.
    pub fn choose(&mut self, input: Input<'_>) -> Vec<Eviction> {
        let Input {
            now_ms,
            slo,
            capacity,
            used,
            pods,
            leaving,
        } = input;
        if !slo.enabled {
            return Vec::new();
        }
        let threshold = match MemoryThreshold::new(slo.memory_percent, slo.memory_lower_percent) {
            Ok(threshold) => threshold,
            Err(error) => {
                // Once per change, not once per second.
                if self.complained.as_ref() != Some(&error) {
                    tracing::warn!(%error, "memory eviction is off");
                    self.complained = Some(error);
                }
                return Vec::new();
            }
        };
        self.complained = None;
        let Some(used) = used else { return Vec::new() };
        let release = threshold.release(capacity, used);
        let cooling = self
            .last_ms
            .is_some_and(|last| now_ms.saturating_sub(last) < self.cool_down_ms);
        if release <= 0 || cooling {
            return Vec::new();
        }
        let candidates: Vec<Candidate<usize>> = pods
            .iter()
            .enumerate()
            .filter(|(_, (pod, _))| {
                pod.qos == QosClass::Be && pod.is_active() && pod.may_be_evicted_by(NAME)
            })
            .map(|(id, (pod, used))| Candidate {
                id,
                priority: pod.priority,
                used: *used,
                name: pod.name.clone(),
                pending: pod.deleting || leaving.contains_key(&pod.uid),
            })
            .collect();
        let percent = used.saturating_mul(100) / capacity.max(1);
        victims(release, &candidates)
            .into_iter()
            .filter_map(|id| pods.get(id))
            .map(|(pod, used)| Eviction {
                uid: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                feature: NAME,
                message: format!(
                    "trigger by koordlet feature {NAME}, kill pod: {}; node memory {percent}% >= {}%, \
                     pod used {} bytes",
                    pod.name,
                    threshold.percent,
                    used.unwrap_or(0)
                ),
            })
            .collect()
    }
}

impl Planner for MemoryEvict {
    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        let pods: Vec<_> = view.pods().map(|pod| (pod.info, pod.memory)).collect();
        let evictions = self.choose(Input {
            now_ms: view.now.ms(),
            slo: view.facts.slo,
            capacity: view.facts.memory_capacity(),
            used: view.node_memory,
            pods: &pods,
            leaving: view.leaving,
        });
        for eviction in evictions {
            plan.evict(eviction);
        }
    }

    fn evicted(&mut self, eviction: &Eviction, now_ms: u64) {
        if eviction.feature == NAME {
            self.last_ms = Some(now_ms);
        }
    }
}
