mod promises;

use super::CpuStrategy;
use super::*;
use proptest::prelude::*;

/// Sockets, NUMA nodes per socket, cores per node, threads per core; numbered in that order.
fn machine(shape: [u32; 4]) -> Topology {
    let [sockets, nodes, cores, threads] = shape;
    let count = sockets * nodes * cores * threads;
    Topology::new((0..count).map(|id| {
        let core = id / threads;
        let node = core / cores;
        let socket = i32::try_from(node / nodes).unwrap();
        Cpu::new(id, core, socket, u8::try_from(node).unwrap())
    }))
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

const FULL: BindPolicy = BindPolicy::FullPCpus;
const SPREAD: BindPolicy = BindPolicy::SpreadByPCpus;
const MOST: CpuStrategy = CpuStrategy::MostAllocated;
const LEAST: CpuStrategy = CpuStrategy::LeastAllocated;

struct TakeCase {
    shape: [u32; 4],
    taken: &'static str,
    owner: ExclusivePolicy,
    needed: usize,
    bind: BindPolicy,
    exclusive: ExclusivePolicy,
    strategy: CpuStrategy,
}

impl TakeCase {
    fn run(&self) -> String {
        let topology = machine(self.shape);
        let allocated = set(self.taken);
        let mut owned = Owned::default();
        for cpu in topology.members(&allocated) {
            match self.owner {
                ExclusivePolicy::None => {}
                ExclusivePolicy::PCpuLevel => drop(owned.cores.insert(cpu.core)),
                ExclusivePolicy::NumaNodeLevel => drop(owned.nodes.insert(cpu.node)),
            }
        }
        let chosen = take(&CpuRequest {
            topology: &topology,
            available: &topology.all().difference(&allocated),
            preferred: &CpuSet::new(),
            owned: &owned,
            needed: self.needed,
            bind: self.bind,
            exclusive: self.exclusive,
            strategy: self.strategy,
        });
        chosen.map_or_else(|error| error.to_string(), |cpus| cpus.to_string())
    }
}

#[test]
fn strategy_determines_where_whole_cores_come_from() {
    // shape, taken, needed, most allocated, least allocated
    let small = [1, 1, 4, 2];
    let two = [2, 1, 4, 2];
    let four = [2, 2, 4, 2];
    let tiny = [2, 2, 2, 2];
    #[rustfmt::skip]
    let rows = [
        ("one place", small, "", 2, "0-1", "0-1"),
        ("next core", small, "0-1", 2, "2-3", "2-3"),
        ("a whole socket", two, "", 8, "0-7", "0-7"),
        ("a socket and a half", two, "", 12, "0-11", "0-11"),
        ("a whole socket, the other is broken", two, "0-1", 8, "8-15", "8-15"),
        ("one socket has it", four, "0-5,16-23", 6, "24-29", "8-13"),
        ("most from one socket", four, "0-5,16-23", 12, "6-15,24-25", "6-15,24-25"),
        ("first socket or second", four, "0-3,8-11", 4, "4-7", "16-19"),
        ("only whole cores left", tiny, "0,2,4,8,12", 4, "10-11,14-15", "10-11,14-15"),
        ("broken cores fill up", tiny, "0,2,4,8,10,12", 6, "5-7,13-15", "1,3,6-7,14-15"),
    ];
    let run = |shape, taken, needed, strategy| {
        let (owner, exclusive) = (ExclusivePolicy::None, ExclusivePolicy::None);
        let bind = FULL;
        TakeCase {
            shape,
            taken,
            owner,
            needed,
            bind,
            exclusive,
            strategy,
        }
        .run()
    };
    for (name, shape, taken, needed, most, least) in rows {
        assert_eq!(run(shape, taken, needed, MOST), most, "{name}, most");
        assert_eq!(run(shape, taken, needed, LEAST), least, "{name}, least");
    }
    let broken = "0,2,4,8-10,12";
    assert_eq!(run(tiny, broken, 6, MOST), "6-7,11,13-15");
    assert_eq!(run(four, broken, 6, LEAST), "16-21");
    assert_eq!(run(small, "0-5", 3, MOST), NotEnough.to_string());
}

#[test]
fn single_threads_are_spread_over_cores() {
    let two = [2, 1, 4, 2];
    #[rustfmt::skip]
    let rows = [
        ("one place", [1, 1, 4, 2], "", 4, "0,2,4,6", "0,2,4,6"),
        ("a broken socket will do", two, "0,2", 4, "1,3-4,6", "8,10,12,14"),
        ("not enough cores there", two, "0-3", 4, "8,10,12,14", "8,10,12,14"),
        ("second threads too", two, "0,2", 6, "1,3-7", "8-12,14"),
    ];
    for (name, shape, taken, needed, most, least) in rows {
        for (strategy, expected) in [(MOST, most), (LEAST, least)] {
            let (owner, exclusive) = (ExclusivePolicy::None, ExclusivePolicy::None);
            let bind = SPREAD;
            let case = TakeCase {
                shape,
                taken,
                owner,
                needed,
                bind,
                exclusive,
                strategy,
            };
            assert_eq!(case.run(), expected, "{name}");
        }
    }
}

#[test]
fn exclusive_pods_keep_away_from_each_other_if_they_can() {
    use ExclusivePolicy::{None, NumaNodeLevel as Numa, PCpuLevel as Core};
    let (two, wide) = ([2, 1, 4, 2], [2, 1, 8, 2]);
    #[rustfmt::skip]
    let rows = [
        ("the free socket", two, "0,2", Core, 4, SPREAD, Core, "8,10,12,14"),
        ("with itself, if it must", two, "", Core, 10, SPREAD, Core, "0-4,6,8,10,12,14"),
        ("cores other than the owner's", wide, "0,2", Core, 4, SPREAD, Core, "4,6,8,10"),
        ("no wish", wide, "0,2", Core, 4, SPREAD, None, "1,3-4,6"),
        ("the free NUMA node", two, "0,2", Numa, 4, SPREAD, Numa, "8,10,12,14"),
        ("no wish about NUMA nodes", two, "0,2", Numa, 4, SPREAD, None, "1,3-4,6"),
        ("whole cores of the free node", two, "0,2", Numa, 4, FULL, Numa, "8-11"),
        ("whole cores, no wish", two, "0,2", Numa, 4, FULL, None, "4-7"),
    ];
    for (name, shape, taken, owner, needed, bind, exclusive, expected) in rows {
        let strategy = MOST;
        let case = TakeCase {
            shape,
            taken,
            owner,
            needed,
            bind,
            exclusive,
            strategy,
        };
        assert_eq!(case.run(), expected, "{name}");
    }
}

#[test]
fn shared_cpus_go_to_the_least_shared_first() {
    // Each row: threads per core fixed at 2, cores, then pods in turn: needed, policy, result.
    type Pods = &'static [(usize, BindPolicy, &'static str)];
    let rows: [(u32, Pods); 2] = [
        (4, &[(4, FULL, "0-3"), (5, FULL, "0,4-7"), (4, FULL, "2-5")]),
        (
            16,
            &[
                (16, SPREAD, "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30"),
                (16, FULL, "0-15"),
                (16, SPREAD, "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31"),
                (16, FULL, "16-31"),
            ],
        ),
    ];
    for (cores, pods) in rows {
        let topology = machine([1, 1, cores, 2]);
        let mut owned = Owned::default();
        for (needed, bind, expected) in pods {
            let full = |cpu: &u32| owned.shares.get(cpu).copied().unwrap_or(0) < 2;
            let available: CpuSet = topology.all().iter().filter(full).collect();
            let cpus = take(&CpuRequest {
                topology: &topology,
                available: &available,
                preferred: &CpuSet::new(),
                owned: &owned,
                needed: *needed,
                bind: *bind,
                exclusive: ExclusivePolicy::None,
                strategy: MOST,
            })
            .unwrap();
            assert_eq!(cpus.to_string(), *expected, "{cores} cores");
            for cpu in cpus.iter() {
                *owned.shares.entry(cpu).or_default() += 1;
            }
        }
    }
}

#[test]
fn preferred_cpus_go_first() {
    let topology = machine([2, 1, 16, 2]);
    let run = |available: &CpuSet, preferred: &str| {
        let want = CpuRequest {
            topology: &topology,
            available,
            preferred: &set(preferred),
            owned: &Owned::default(),
            needed: 2,
            bind: SPREAD,
            exclusive: ExclusivePolicy::None,
            strategy: MOST,
        };
        take(&want).unwrap().to_string()
    };
    assert_eq!(run(topology.all(), ""), "0,2");
    assert_eq!(run(topology.all(), "0,2"), "0,2");
    assert_eq!(run(&topology.all().difference(&set("0,2")), ""), "1,3");
    assert_eq!(run(topology.all(), "11,13,15,17"), "11,13");
    assert_eq!(run(topology.all(), "21"), "0,21");
}

#[test]
fn required_policy_restricts_usable_cpus() {
    let topology = machine([1, 1, 4, 2]);
    assert_eq!(usable(&topology, &set("1-5"), FULL), set("2-5"));
    assert_eq!(usable(&topology, &set("1-5"), SPREAD), set("1-2,4"));
    assert_eq!(topology.cores_of(&set("1-5")), 3);
}

proptest! {
    #[test]
    fn exactly_the_needed_number_of_available_cpus_is_taken(
        sockets in 1u32..3, nodes in 1u32..3, cores in 1u32..6, threads in 1u32..3,
        bits in prop::collection::vec(any::<bool>(), 48),
        wished in prop::collection::vec(any::<bool>(), 48),
        needed in 0usize..50, full in any::<bool>(), most in any::<bool>(), exclusive in 0u8..3,
    ) {
        let topology = machine([sockets, nodes, cores, threads]);
        let pick = |bits: &[bool]| -> CpuSet {
            topology.all().iter().filter(|cpu| bits[*cpu as usize]).collect()
        };
        let (available, preferred) = (pick(&bits), pick(&wished));
        let mut owned = Owned::default();
        for cpu in topology.members(&topology.all().difference(&available)) {
            owned.cores.insert(cpu.core);
            owned.nodes.insert(cpu.node);
        }
        let want = CpuRequest {
            topology: &topology,
            available: &available,
            preferred: &preferred,
            owned: &owned,
            needed,
            bind: if full { FULL } else { SPREAD },
            exclusive: match exclusive {
                0 => ExclusivePolicy::None,
                1 => ExclusivePolicy::PCpuLevel,
                _ => ExclusivePolicy::NumaNodeLevel,
            },
            strategy: if most { MOST } else { LEAST },
        };
        match take(&want) {
            Ok(cpus) => {
                prop_assert_eq!(cpus.len(), needed);
                prop_assert!(cpus.is_subset(&available));
                let first = available.intersection(&preferred);
                prop_assert_eq!(cpus.intersection(&first).len(), needed.min(first.len()));
            }
            Err(NotEnough) => prop_assert!(needed > available.len()),
        }
    }
}
