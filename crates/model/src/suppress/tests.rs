use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const C16: i64 = 16_000;

fn usage(node: i64, pods: i64, pods_not_be: i64) -> NodeUsage {
    NodeUsage {
        node,
        pods,
        pods_not_be,
        ..NodeUsage::default()
    }
}

fn percent(percent: i64) -> Threshold {
    Threshold {
        percent,
        min_percent: None,
    }
}

#[test]
fn budget_table() {
    let cases = [
        (
            "ls 8, be 2, system 2",
            usage(12_000, 10_000, 8_000),
            0,
            percent(70),
            1_200,
        ),
        (
            "a pod without metadata counts as a service",
            usage(12_000, 12_000, 8_000),
            0,
            percent(70),
            3_200,
        ),
        (
            "reserved above system use",
            usage(12_000, 10_000, 8_000),
            3_000,
            percent(70),
            200,
        ),
        (
            "reserved below system use",
            usage(12_000, 10_000, 8_000),
            1_000,
            percent(70),
            1_200,
        ),
        (
            "over-used node",
            usage(15_000, 12_000, 11_000),
            0,
            percent(65),
            -3_600,
        ),
        (
            "floor",
            usage(15_000, 12_000, 11_000),
            0,
            Threshold {
                percent: 65,
                min_percent: Some(10),
            },
            1_600,
        ),
        (
            "pods above the node's sample",
            usage(9_000, 10_000, 8_000),
            0,
            percent(70),
            3_200,
        ),
    ];
    for (name, usage, reserved, threshold, want) in cases {
        assert_eq!(budget(C16, reserved, &usage, threshold), want, "{name}");
    }
    let hosts = NodeUsage {
        hosts: 1_000,
        hosts_not_be: 500,
        ..usage(12_000, 10_000, 8_000)
    };
    assert_eq!(
        budget(C16, 0, &hosts, percent(70)),
        11_200 - 8_000 - 500 - 1_000
    );
    // An absurd reservation leaves nothing; it does not wrap around.
    let full = budget(C16, i64::MAX, &usage(15_000, 12_000, 11_900), percent(65));
    assert!(full < 0);
}

#[test]
fn quota_table() {
    let cases = [
        ("first write is direct", 1_200, UNLIMITED, Some(120_000)),
        ("shrinks at once", 1_200, 1_500_000, Some(120_000)),
        (
            "grows by at most a tenth of the node",
            8_000,
            320_000,
            Some(480_000),
        ),
        ("grows to the target", 4_000, 320_000, Some(400_000)),
        ("inside the dead band", 3_300, 320_000, None),
        (
            "at the edge of the dead band",
            3_360,
            320_000,
            Some(336_000),
        ),
        ("never below the minimum", -500, 320_000, Some(MIN_QUOTA_US)),
        (
            "the minimum ignores the dead band",
            0,
            10_000,
            Some(MIN_QUOTA_US),
        ),
        ("already at the minimum", 0, MIN_QUOTA_US, None),
    ];
    for (name, budget, current, want) in cases {
        assert_eq!(next_quota(C16, budget, current), want, "{name}");
    }
    // A small first limit on a large node is written although it is "near" -1.
    assert_eq!(next_quota(64_000, 300, UNLIMITED), Some(30_000));
}

#[test]
fn cpu_count_table() {
    assert_eq!(next_cpu_count(16, 1_200, 10), 2);
    assert_eq!(next_cpu_count(16, 9_100, 4), 6);
    assert_eq!(next_cpu_count(16, 5_000, 4), 5);
    assert_eq!(next_cpu_count(16, -3_000, 4), 2);
    assert_eq!(next_cpu_count(2, 1_000, 2), 2);
}

fn sixteen() -> Vec<Processor> {
    (0..16)
        .map(|cpu| Processor {
            cpu,
            core: cpu / 2,
            socket: cpu / 4,
            node: cpu / 8,
        })
        .collect()
}

fn ids(picked: &BTreeSet<u32>) -> Vec<u32> {
    picked.iter().copied().collect()
}

#[test]
fn whole_cores_are_spread_over_sockets() {
    let none = BTreeSet::new();
    assert_eq!(ids(&pick_cpus(&sixteen(), &none, 2)), [0, 1]);
    assert_eq!(ids(&pick_cpus(&sixteen(), &none, 4)), [0, 1, 4, 5]);
    assert_eq!(ids(&pick_cpus(&sixteen(), &none, 5)), [0, 1, 4, 5, 8]);
    assert_eq!(ids(&pick_cpus(&sixteen(), &none, 16)).len(), 16);
    assert!(pick_cpus(&sixteen(), &none, 17).is_empty());
    assert!(pick_cpus(&[], &none, 2).is_empty());
}

#[test]
fn pools_contribute_in_proportion() {
    let lsr: BTreeSet<u32> = (0..8).collect();
    let picked = pick_cpus(&sixteen(), &lsr, 4);
    assert_eq!(ids(&picked), [0, 1, 8, 9]);
}

/// Upstream: `Test_cpuSuppress_calculateBESuppressCPU`; a node of 20 cores, threshold 70 %.
#[test]
fn upstream_budgets() {
    let hosts = |hosts, hosts_not_be| NodeUsage {
        hosts,
        hosts_not_be,
        ..usage(12_000, 10_000, 8_000)
    };
    for (name, capacity, usage, min_percent, want) in [
        (
            "does not panic on empty (non-nil) input",
            0,
            NodeUsage::default(),
            None,
            0,
        ),
        (
            "calculate correctly for missing podMeta or transient metrics",
            20_000,
            usage(11_000, 12_000, 8_000),
            None,
            6_000,
        ),
        (
            "calculate be suppress cpus correctly",
            20_000,
            usage(12_000, 10_000, 8_000),
            None,
            4_000,
        ),
        (
            "calculate be suppress cpus correctly with ls host app",
            20_000,
            hosts(1_000, 1_000),
            None,
            4_000,
        ),
        (
            "the same name, BE host app",
            20_000,
            hosts(1_000, 0),
            None,
            5_000,
        ),
        (
            "calculate be suppress cpus with min",
            20_000,
            usage(12_000, 10_000, 8_000),
            Some(60),
            12_000,
        ),
    ] {
        let threshold = Threshold {
            percent: 70,
            min_percent,
        };
        assert_eq!(budget(capacity, 0, &usage, threshold), want, "{name}");
    }
}

/// Upstream: `TestCalculateFilterPodsUsed`: use of neither pods nor host applications.
#[test]
fn upstream_system_use() {
    for (name, node, pods, hosts, want) in [
        ("no pod to calculate", 10_000, 0, 0, 10_000),
        ("calculate for non-BE", 80_000, 52_000, 12_000, 16_000),
        ("calculate for non-Batch", 80_000, 52_000, 0, 28_000),
    ] {
        let usage = NodeUsage {
            node,
            pods,
            hosts,
            ..NodeUsage::default()
        };
        assert_eq!(usage.system(), want, "{name}");
    }
}

/// Upstream: `Test_cpuSuppress_adjustByCfsQuota`; a node of 80 cores, a budget of 20.
#[test]
fn upstream_quotas() {
    for (name, budget, current, want) in [
        (
            "increase CFSQuota: cpuQuantity > preBECPU + maxIncreaseCPU",
            20_000,
            1_000_000,
            Some(1_800_000),
        ),
        (
            "increase CFSQuota: preBECPU < cpuQuantity < preBECPU + maxIncreaseCPU",
            20_000,
            1_900_000,
            Some(2_000_000),
        ),
        (
            "suppress beCPU: preBECPU > cpuQuantity",
            20_000,
            2_400_000,
            Some(2_000_000),
        ),
        ("bypass minDeltaQuota!", 20_000, 1_980_000, None),
        ("minQuota 2000 not bypass!", 1, 80_000, Some(2_000)),
        (
            "increase CFSQuota: first time set quota with beUnsetQuota, scale without step limit",
            20_000,
            UNLIMITED,
            Some(2_000_000),
        ),
    ] {
        assert_eq!(next_quota(80_000, budget, current), want, "{name}");
    }
}

/// Creates `count` CPUs of two threads a core, `per_socket` of them on a socket and `per_node` on a node.
fn machine(count: u32, per_socket: u32, per_node: u32) -> Vec<Processor> {
    (0..count)
        .map(|cpu| Processor {
            cpu,
            core: cpu / 2,
            socket: cpu / per_socket,
            node: cpu / per_node,
        })
        .collect()
}

/// Upstream: `Test_calculateBESuppressCPUSetPolicy`.
#[test]
fn upstream_picks() {
    let scattered: Vec<Processor> = (0..8)
        .map(|cpu| Processor {
            cpu,
            core: cpu % 4,
            socket: cpu % 4 / 2,
            node: cpu % 4 / 2,
        })
        .collect();
    let sixteen = machine(16, 4, 8);
    let mut shuffled = sixteen.clone();
    shuffled.sort_by_key(|p| p.cpu * 7 % 16);
    for (name, processors, count, want) in [
        (
            "do not panic but return empty cpuset for insufficient cpus",
            vec![],
            0,
            vec![],
        ),
        (
            "scattering on numa nodes and stacking on HTs 0.",
            scattered,
            3,
            vec![0, 2, 4],
        ),
        (
            "scattering on numa nodes and stacking on HTs 1.",
            machine(8, 4, 4),
            3,
            vec![0, 1, 4],
        ),
        (
            "2. (also scattering on sockets)",
            sixteen,
            5,
            vec![0, 1, 4, 5, 8],
        ),
        (
            "3. (regardless of the initial order)",
            shuffled,
            5,
            vec![0, 1, 4, 5, 8],
        ),
    ] {
        let picked = pick_cpus(&processors, &BTreeSet::new(), count);
        assert_eq!(ids(&picked), want, "{name}");
    }
    // Ours, by upstream's code: after a round without a pair, single CPUs start at the first bucket.
    let few_pairs: Vec<Processor> = [
        (0, 0, 0),
        (1, 0, 0),
        (2, 1, 0),
        (3, 2, 0),
        (4, 3, 1),
        (5, 4, 1),
    ]
    .into_iter()
    .map(|(cpu, core, node)| Processor {
        cpu,
        core,
        socket: node,
        node,
    })
    .collect();
    let picked = pick_cpus(&few_pairs, &BTreeSet::new(), 5);
    assert_eq!(ids(&picked), [0, 1, 2, 3, 4]);
}

/// Upstream: `Test_cpuSuppress_adjustByCPUSet`, `…withCPUsReservedFromNodeAnno` and
/// `…withSystemQOSResourceFromNodeAnno`. Eight CPUs: LSR has 0 and 6, LSE has 7; a budget of 3.
#[test]
fn upstream_cpu_sets() {
    let processors = machine(8, 4, 4);
    let lsr = BTreeSet::from([0, 6]);
    let cpus = |list: &[u32]| list.iter().copied().collect::<BTreeSet<u32>>();
    for (name, current, taken, want) in [
        ("test scale lower by cpuset.", 4, vec![], vec![2, 3, 4]),
        ("test scale up by cpuset.", 2, vec![], vec![2, 3, 4]),
        (
            "test scale by cpuset and ensure there is enough cpu available for bepod.",
            4,
            vec![3],
            vec![0, 4, 5],
        ),
        (
            "test scale by cpuset and cpus that bepod can used less than bepod needed.",
            4,
            vec![1, 2, 3, 4, 5, 6],
            vec![],
        ),
        (
            "test scale by cpuset and just enough cpu allocated to bepod.",
            4,
            vec![0, 1, 5, 6],
            vec![2, 3, 4],
        ),
    ] {
        let lse = BTreeSet::from([7]);
        let reserved = ExcludedCpus {
            reserved: cpus(&taken),
            lse: lse.clone(),
            ..ExcludedCpus::default()
        };
        // The system's CPUs are kept where they are exclusive; else the caller leaves them out, which
        // is the row "system qos cpu is not exclusive".
        let system = ExcludedCpus {
            system: cpus(&taken),
            lse,
            ..ExcludedCpus::default()
        };
        for kept in [reserved, system] {
            let count = next_cpu_count(processors.len(), 3_000, current);
            let picked = pick_cpus(&kept.candidates(&processors), &lsr, count);
            assert_eq!(ids(&picked), want, "{name}");
        }
    }
}

/// Upstream: `Test_cpuSuppress_recoverCPUSetIfNeed`; 16 CPUs, LSE has 7.
#[test]
fn upstream_recovered_sets() {
    let processors = machine(16, 4, 8);
    let first = BTreeSet::from([0, 1]);
    let lse = BTreeSet::from([7]);
    let all: Vec<u32> = (0..16).filter(|cpu| *cpu != 7).collect();
    let rest = all[2..].to_vec();
    for (name, kept, want) in [
        (
            "test need recover.",
            ExcludedCpus {
                lse: lse.clone(),
                ..ExcludedCpus::default()
            },
            &all,
        ),
        (
            "test need recover, exclude node reserved",
            ExcludedCpus {
                lse: lse.clone(),
                reserved: first.clone(),
                ..ExcludedCpus::default()
            },
            &rest,
        ),
        (
            "test need recover, exclude system qos exclusive",
            ExcludedCpus {
                lse,
                system: first,
                ..ExcludedCpus::default()
            },
            &rest,
        ),
    ] {
        assert_eq!(ids(&kept.full_set(&processors)), *want, "{name}");
    }
}

/// Upstream: `TestCPUSuppress_applyBESuppressCPUSet` and `recoverCPUSetForBECPUManager`.
#[test]
fn cgroup_levels_follow_the_cpu_manager_policy() {
    let (picked, full) = (BTreeSet::from([2, 3]), BTreeSet::from([0, 1, 2, 3]));
    let by = |manager| levels(&picked, &full, CpuManager::from_name(manager)).unwrap();
    for manager in ["none", ""] {
        assert_eq!(by(manager).parents, picked);
        assert_eq!(by(manager).containers.as_ref(), Some(&picked));
    }
    assert_eq!(by("static").parents, full);
    assert_eq!(by("static").containers.as_ref(), Some(&picked));
    assert_eq!(levels(&BTreeSet::new(), &full, CpuManager::Static), None);

    for (be_cpu_manager, has_cpus, containers) in [
        (false, false, true),
        (false, true, true),
        (true, false, true),
        (true, true, false),
    ] {
        let levels = recovered_levels(&full, be_cpu_manager, has_cpus);
        assert_eq!(levels.parents, full);
        assert_eq!(levels.containers.is_some(), containers);
    }
}

proptest! {
    #[test]
    fn quota_steps_keep_their_rules(
        cores in 1_i64..256,
        budget in -50_000_i64..300_000,
        current in prop_oneof![Just(UNLIMITED), 2_000_i64..30_000_000],
    ) {
        if let Some(quota) = next_quota(cores * 1000, budget, current) {
            prop_assert!(quota >= MIN_QUOTA_US);
            prop_assert!(quota != current);
            if current >= 0 {
                prop_assert!(quota <= (current + cores * CFS_PERIOD_US / 10).max(MIN_QUOTA_US));
            }
            prop_assert!(quota <= (budget * 100).max(MIN_QUOTA_US));
        }
    }

    #[test]
    fn repeated_steps_reach_the_target(cores in 1_i64..64, percent in 1_i64..100) {
        let budget = cores * 10 * percent;
        let mut current = MIN_QUOTA_US;
        for _ in 0..40 {
            if let Some(quota) = next_quota(cores * 1000, budget, current) {
                current = quota;
            }
        }
        let target = (budget * 100).max(MIN_QUOTA_US);
        prop_assert!((target - current).abs() as f64 <= cores as f64 * 1000.0);
    }

    #[test]
    fn picked_cpus_are_candidates(count in 0_usize..17, owned in 0_u32..9) {
        let lsr: BTreeSet<u32> = (0..owned).collect();
        let picked = pick_cpus(&sixteen(), &lsr, count);
        prop_assert!(picked.len() <= count);
        prop_assert_eq!(picked.len(), count);
    }
}

#[test]
fn writes_are_spaced() {
    let mut gate = WriteGate::default();
    assert!(gate.allows(0, false));
    gate.wrote(0);
    assert!(!gate.allows(500, false));
    assert!(gate.allows(500, true));
    assert!(gate.allows(995, false));
}
