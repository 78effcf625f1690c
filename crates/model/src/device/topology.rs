//! Selection of GPUs close to each other: within a PCIe root, a NUMA node, or the node.

use super::inventory::Device;
use super::need::GpuNeed;
use super::units::{bit, minors};
use std::collections::BTreeMap;

/// Topology scope: GPUs that share a PCIe root, a NUMA node or the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopologyScope {
    /// Level: 1 the node, 2 a NUMA node, 3 a PCIe root.
    level: u8,
    set: u64,
    within: Vec<TopologyScope>,
}

/// GPUs of one scope that can satisfy a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) minors: Vec<u8>,
    /// Number of surrounding scopes that are in use already.
    used_scopes: u32,
    depth: u32,
    score: i64,
}

/// Input of the search.
pub(super) struct ScopeSearch<'a> {
    pub(super) need: &'a GpuNeed,
    /// GPUs that can satisfy the request.
    pub(super) fit: u64,
    /// GPUs in use.
    pub(super) busy: u64,
    /// Score of a GPU for sharing.
    pub(super) score: &'a dyn Fn(u8) -> i64,
}

impl TopologyScope {
    /// Builds the scopes of the given GPUs. Returns `None` if the position of one is unknown, or there is
    /// none.
    pub(super) fn from_gpus(gpus: &[Device]) -> Option<Self> {
        let mut sets: BTreeMap<_, BTreeMap<&str, u64>> = BTreeMap::new();
        for gpu in gpus {
            let place = gpu.place.as_ref()?;
            let numa = sets.entry(place.numa).or_default();
            *numa.entry(&place.pcie).or_default() |= bit(gpu.minor);
        }
        let union = |scopes: &[Self]| scopes.iter().fold(0, |set, scope| set | scope.set);
        let numa = sets.values().map(|pcies| {
            let pcies = pcies.values().map(|set| Self {
                level: 3,
                set: *set,
                within: Vec::new(),
            });
            let within: Vec<Self> = pcies.collect();
            Self {
                level: 2,
                set: union(&within),
                within,
            }
        });
        let within: Vec<Self> = numa.collect();
        (!within.is_empty()).then(|| Self {
            level: 1,
            set: union(&within),
            within,
        })
    }

    /// Selects GPUs: from the smallest scope that has enough; of those from the one with the most surrounding
    /// scopes in use; of those, for shared GPUs, the one with the best score.
    pub(super) fn find(&self, search: &ScopeSearch<'_>) -> Option<Located> {
        self.find_in(search, 0, 0)
    }

    /// Searches this scope, inner scopes first; `depth` and `used_scopes` count the surrounding ones.
    fn find_in(&self, search: &ScopeSearch<'_>, depth: u32, used_scopes: u32) -> Option<Located> {
        let count = u32::try_from(search.need.count).unwrap_or(u32::MAX);
        if self.set.count_ones() < count {
            return None;
        }
        let depth = depth + 1;
        let used_scopes = used_scopes + u32::from(self.set & search.busy != 0);
        let mut best: Option<Located> = None;
        for scope in &self.within {
            let Some(found) = scope.find_in(search, depth, used_scopes) else {
                continue;
            };
            let better = best.as_ref().is_none_or(|best| {
                let (old, new) = (
                    (best.depth, best.used_scopes),
                    (found.depth, found.used_scopes),
                );
                new > old || (new == old && search.need.shared && found.score > best.score)
            });
            if better {
                best = Some(found);
            }
        }
        if best.is_some() {
            return best;
        }
        if search.need.scope.is_some_and(|level| level > self.level) {
            return None;
        }
        let fit = self.set & search.fit;
        let (chosen, score) = if search.need.shared {
            let mut best: Option<(i64, u8)> = None;
            for minor in minors(fit) {
                let score = (search.score)(minor);
                if best.is_none_or(|(most, _)| score > most) {
                    best = Some((score, minor));
                }
            }
            let (score, minor) = best?;
            (vec![minor], score)
        } else {
            if fit.count_ones() < count {
                return None;
            }
            (minors(fit).take(search.need.count).collect(), -1)
        };
        Some(Located {
            minors: chosen,
            used_scopes,
            depth,
            score,
        })
    }
}
