//! Checks every choice against the documented rules, which are computed from the free CPUs alone.

use super::CpuStrategy;
use super::*;
use proptest::prelude::{Strategy as _, any};
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::collections::BTreeSet;

struct Promise<'a> {
    topology: &'a Topology,
    free: &'a CpuSet,
    strategy: CpuStrategy,
}

impl Promise<'_> {
    fn cpus(&self, keep: impl Fn(&Cpu) -> bool) -> Vec<Cpu> {
        let free = self.topology.members(self.free);
        free.filter(|cpu| keep(cpu)).copied().collect()
    }

    /// Returns the free CPUs of cores that are wholly free.
    fn whole(&self) -> Vec<Cpu> {
        let whole = |cpu: &Cpu| {
            let siblings = self.cpus(|other| other.core == cpu.core);
            siblings.len() == self.topology.per_core()
        };
        self.cpus(whole)
    }

    /// Returns the NUMA node that has `needed` of `offered`: the fullest or the emptiest, then the one in
    /// the fullest or emptiest socket by `around`, then the first.
    fn node(&self, offered: &[Cpu], around: &[Cpu], needed: usize) -> Option<u8> {
        let mut nodes: Vec<(i64, i64, u8)> = Vec::new();
        for cpu in offered {
            if nodes.iter().any(|(_, _, node)| *node == cpu.node) {
                continue;
            }
            let on_node = offered
                .iter()
                .filter(|other| other.node == cpu.node)
                .count();
            let near = around
                .iter()
                .filter(|other| other.socket == cpu.socket)
                .count();
            if on_node >= needed {
                let [on_node, near] = [on_node, near].map(|count| {
                    let count = i64::try_from(count).unwrap();
                    if self.strategy == MOST { count } else { -count }
                });
                nodes.push((on_node, near, cpu.node));
            }
        }
        nodes.into_iter().min().map(|(_, _, node)| node)
    }

    fn single_node(&self, cpus: &CpuSet) -> Option<u8> {
        let nodes: BTreeSet<u8> = self.topology.members(cpus).map(|cpu| cpu.node).collect();
        (nodes.len() == 1)
            .then(|| nodes.into_iter().next())
            .flatten()
    }
}

/// Returns one thread of each core of `cpus`.
fn firsts(cpus: &[Cpu]) -> Vec<Cpu> {
    let mut cores = BTreeSet::new();
    let firsts = cpus.iter().filter(|cpu| cores.insert(cpu.core));
    firsts.copied().collect()
}

/// The rules that applied to a choice.
#[derive(Debug, Default)]
struct Reached {
    whole: bool,
    fallen_back: bool,
    spread: bool,
    away: bool,
}

fn promises(want: &CpuRequest<'_>, cpus: &CpuSet) -> Result<Reached, TestCaseError> {
    let (topology, needed, exclusive) = (want.topology, want.needed, want.exclusive);
    let promise = Promise {
        topology,
        free: want.available,
        strategy: want.strategy,
    };
    let mut reached = Reached::default();
    let chosen: Vec<Cpu> = topology.members(cpus).copied().collect();
    let free = promise.cpus(|_| true);
    let whole = promise.whole();
    let threads = topology.per_core();
    if want.bind == FULL {
        let other_node = |cpu: &Cpu| {
            exclusive != ExclusivePolicy::NumaNodeLevel || !want.owned.nodes.contains(&cpu.node)
        };
        let elsewhere: Vec<Cpu> = whole.iter().copied().filter(other_node).collect();
        let around: Vec<Cpu> = free.iter().copied().filter(other_node).collect();
        let allowed = promise.node(&elsewhere, &around, needed);
        if let Some(node) = allowed.or_else(|| promise.node(&whole, &free, needed)) {
            prop_assert_eq!(promise.single_node(cpus), Some(node));
            reached.away = allowed.is_some() && exclusive != ExclusivePolicy::None;
        }
        if whole.len() >= needed && needed.is_multiple_of(threads) {
            prop_assert_eq!(topology.cores_of(cpus) * threads, needed, "broken cores");
            reached.whole = true;
        } else {
            reached.fallen_back = true;
        }
        return Ok(reached);
    }
    let avoided = |cpu: &Cpu| match exclusive {
        ExclusivePolicy::None => false,
        ExclusivePolicy::PCpuLevel => want.owned.cores.contains(&cpu.core),
        ExclusivePolicy::NumaNodeLevel => want.owned.nodes.contains(&cpu.node),
    };
    // One machine of single threads has only whole cores.
    if threads > 1 {
        let allowed: Vec<Cpu> = free.iter().copied().filter(|cpu| !avoided(cpu)).collect();
        let apart = firsts(&allowed);
        let count_on = |node| apart.iter().filter(|cpu| cpu.node == node).count();
        if apart.iter().any(|cpu| count_on(cpu.node) >= needed) {
            prop_assert_eq!(topology.cores_of(cpus), needed, "one thread of each core");
            prop_assert!(promise.single_node(cpus).is_some(), "over NUMA nodes");
            prop_assert!(
                !chosen.iter().any(avoided),
                "shares a core or NUMA node with an exclusive pod"
            );
            reached.away = exclusive != ExclusivePolicy::None;
            reached.spread = true;
        } else if promise.node(&free, &free, needed).is_some() {
            prop_assert!(promise.single_node(cpus).is_some(), "over NUMA nodes");
            reached.fallen_back = true;
        }
    }
    Ok(reached)
}

type Drawn = ([u32; 4], Vec<u8>, usize, bool, bool, u8);

/// Generates a machine whose CPUs are free, held, or held by an exclusive pod; and a request.
fn drawn() -> impl proptest::strategy::Strategy<Value = Drawn> {
    let shape = [1..3_u32, 1..3, 2..6, 1..3];
    let cpus = proptest::collection::vec(0..12_u8, 48);
    (
        shape,
        cpus,
        1..9_usize,
        any::<bool>(),
        any::<bool>(),
        0..3_u8,
    )
}

#[test]
fn every_choice_follows_the_rules() {
    let mut runner = TestRunner::deterministic();
    let mut reached = [0; 4];
    for _ in 0..4000 {
        let case = drawn().new_tree(&mut runner).unwrap().current();
        let (shape, cpus, needed, full, most, exclusive) = &case;
        let topology = machine(*shape);
        let is = |cpu: u32| cpus[usize::try_from(cpu).unwrap()];
        let available: CpuSet = topology.all().iter().filter(|cpu| is(*cpu) > 2).collect();
        let alone: CpuSet = topology.all().iter().filter(|cpu| is(*cpu) == 0).collect();
        let mut owned = Owned::default();
        let exclusive = match exclusive {
            0 => ExclusivePolicy::None,
            1 => ExclusivePolicy::PCpuLevel,
            _ => ExclusivePolicy::NumaNodeLevel,
        };
        for cpu in topology.members(&alone) {
            owned.cores.insert(cpu.core);
            owned.nodes.insert(cpu.node);
        }
        let want = CpuRequest {
            topology: &topology,
            available: &available,
            preferred: &CpuSet::new(),
            owned: &owned,
            needed: *needed,
            bind: if *full { FULL } else { SPREAD },
            exclusive,
            strategy: if *most { MOST } else { LEAST },
        };
        if let Ok(cpus) = take(&want) {
            let touched = promises(&want, &cpus);
            let touched = touched.unwrap_or_else(|error| panic!("{case:?}: {cpus}: {error}"));
            let all = [
                touched.whole,
                touched.fallen_back,
                touched.spread,
                touched.away,
            ];
            for (count, touched) in reached.iter_mut().zip(all) {
                *count += u32::from(touched);
            }
        }
    }
    assert!(reached.iter().all(|count| *count >= 100), "{reached:?}");
}
