//! The facts of upstream's tables, one row per case.

use super::*;
use crate::alignment::least::{drain, nearest, total_distance};

#[test]
fn containers_are_aligned_one_by_one() {
    let fixture = Fixture::default();
    let zones = [
        "cpu 30, memory 60Gi, hugepages-2Mi 384Mi, vendor/nic 16",
        "cpu 32, memory 64Gi, hugepages-2Mi 512Mi, vendor/nic 32",
    ];
    let c = |cpu: u32, memory: u32| format!("cpu {cpu}, memory {memory}G");
    let i = |cpu: u32, memory: u32| format!("init cpu {cpu}, memory {memory}G");
    let d = |huge: u32, nics: u32| {
        format!("cpu 2, memory 6G, hugepages-2Mi {huge}Mi, vendor/nic {nics}")
    };
    let main = Err("cannot align container");
    let init = Err("cannot align init container");
    // Upstream lets these pass. But CPUs that the init container had on the first NUMA node are, or may
    // be, left when the second container asks, which then has to use them and finds too few other ones.
    let bound = main;
    let rows = [
        (vec![c(2, 4)], Ok(())),
        (vec![c(40, 4)], main),
        (vec![c(2, 100)], main),
        (vec![c(40, 100)], main),
        (vec![c(20, 40), c(20, 40)], Ok(())),
        (vec![d(500, 16), d(50, 8)], Ok(())),
        (vec![i(40, 40), c(1, 4), c(1, 4)], init),
        (vec![i(4, 70), c(1, 4), c(1, 4)], init),
        (vec![i(4, 10), c(20, 40), c(20, 40)], bound),
        (
            vec![i(4, 10), i(4, 10), i(4, 10), c(20, 40), c(20, 40), c(6, 10)],
            bound,
        ),
        (
            vec![i(30, 10), i(30, 10), c(20, 40), c(20, 40), c(20, 6)],
            main,
        ),
        (vec![i(30, 10), i(30, 10), c(35, 40)], main),
        (vec![i(30, 10), i(30, 10), c(20, 40), c(20, 40)], bound),
        (
            vec![
                i(30, 10),
                i(30, 10),
                i(30, 10),
                c(20, 40),
                c(20, 40),
                c(2, 6),
            ],
            bound,
        ),
        (
            vec![i(3, 50), i(3, 50), i(3, 50), c(20, 40), c(20, 40), c(2, 6)],
            bound,
        ),
        (
            vec![i(40, 50), i(3, 50), i(3, 50), c(20, 40), c(2, 6)],
            init,
        ),
        (
            vec![i(20, 50), i(40, 50), i(3, 50), c(20, 40), c(2, 6)],
            init,
        ),
    ];
    for (containers, want) in rows {
        let containers: Vec<&str> = containers.iter().map(String::as_str).collect();
        let pod = fixture.ask(true, &containers);
        let result = fixture.fits(&zones, Scope::Container, &pod);
        assert_eq!(result, want, "{containers:?}");
    }
}

#[test]
fn resources_of_init_containers_are_reused() {
    let fixture = Fixture::default();
    let zones = ["cpu 10, x.com/a 2"; 2];
    let refused = Err("cannot align container");
    for (containers, want) in [
        // The number of CPUs that the init container had is reused, but it is not known which ones.
        (&["init cpu 4", "cpu 4", "cpu 10"][..], refused),
        (&["init cpu 4", "cpu 10", "cpu 10"], Ok(())),
        // Devices of init containers are reused first; the last init container had two.
        (
            &["init x.com/a 1", "init x.com/a 2", "x.com/a 1", "x.com/a 2"],
            refused,
        ),
        (
            &["init x.com/a 2", "init x.com/a 1", "x.com/a 1", "x.com/a 2"],
            refused,
        ),
        (
            &["init x.com/a 1", "init x.com/a 1", "x.com/a 1", "x.com/a 2"],
            Ok(()),
        ),
    ] {
        let pod = fixture.ask(true, containers);
        assert_eq!(
            fixture.fits(&zones, Scope::Container, &pod),
            want,
            "{containers:?}"
        );
    }
}

/// Zones with these numbers, in the order in which they are listed, and distances by number.
fn numbered(
    fixture: &Fixture,
    zones: &[(u32, String)],
    costs: &[(u32, Vec<(u32, u32)>)],
) -> Vec<Zone> {
    let mut zones: Vec<Zone> = zones
        .iter()
        .map(|(id, text)| Zone {
            id: *id,
            available: fixture.amounts(text),
            costs: costs
                .iter()
                .find(|(from, _)| from == id)
                .map(|(_, row)| row.clone())
                .unwrap_or_default(),
        })
        .collect();
    zones.sort_by_key(|zone| zone.id);
    zones
}

/// Distances of four zones `by` apart in number; the last two rows of the first of upstream's matrices
/// are the same, which leaves zone 3 nearer to zone 2 than to itself.
fn four(by: u32, odd: bool) -> Vec<(u32, Vec<(u32, u32)>)> {
    let last: [u32; 4] = if odd {
        [20, 20, 10, 12]
    } else {
        [20, 20, 12, 10]
    };
    let rows = [[10, 12, 20, 20], [12, 10, 20, 20], [20, 20, 10, 12], last];
    let row = |row: [u32; 4]| (0..4).map(|at| at * by).zip(row).collect();
    (0..4).map(|at| at * by).zip(rows.map(row)).collect()
}

fn eight() -> Vec<(u32, Vec<(u32, u32)>)> {
    let rows: [[u32; 8]; 8] = [
        [10, 20, 40, 30, 20, 30, 50, 40],
        [20, 10, 30, 40, 50, 20, 40, 50],
        [40, 30, 10, 20, 40, 50, 20, 30],
        [30, 40, 20, 10, 30, 20, 40, 50],
        [20, 50, 40, 30, 10, 50, 30, 20],
        [30, 20, 50, 20, 50, 10, 50, 40],
        [50, 40, 20, 40, 30, 50, 10, 30],
        [40, 50, 30, 50, 20, 40, 30, 10],
    ];
    let row = |row: [u32; 8]| (0..8).zip(row).collect();
    (0..8).zip(rows.map(row)).collect()
}

#[test]
fn smallest_and_nearest_set_of_zones_is_found() {
    let fixture = Fixture::default();
    let z = |gpus: u32, memory: bool| {
        let memory = if memory { ", memory 5Gi" } else { "" };
        format!("cpu 4, x.com/gpu {gpus}{memory}")
    };
    let plain = || "cpu 8, memory 10Gi".to_owned();
    let all = |ids: [u32; 4], gpus: [u32; 4]| -> Vec<(u32, String)> {
        ids.into_iter()
            .zip(gpus.map(|gpus| z(gpus, true)))
            .collect()
    };
    let [first, second] = [[0, 1, 2, 3], [0, 2, 4, 6]];
    let listed = [0, 3, 5, 7, 1, 6, 2, 4];
    let without: Vec<(u32, String)> = [(0, true), (2, false), (4, true), (6, false)]
        .map(|(id, memory)| (id, z(1, memory)))
        .into();
    let rows = [
        (
            vec![(0, plain())],
            vec![],
            "cpu 2, memory 2Gi",
            Some((vec![0], true)),
        ),
        (
            vec![(0, plain()), (1, plain())],
            vec![],
            "cpu 12, memory 2Gi",
            Some((vec![0, 1], true)),
        ),
        (
            vec![(0, plain()), (1, plain())],
            vec![],
            "cpu 22, memory 2Gi",
            None,
        ),
        (
            all(first, [1, 1, 0, 0]),
            four(1, true),
            "cpu 2, memory 2Gi, x.com/gpu 2",
            Some((vec![0, 1], true)),
        ),
        (
            all(first, [1, 0, 1, 0]),
            four(1, false),
            "cpu 2, memory 2Gi, x.com/gpu 2",
            Some((vec![0, 2], false)),
        ),
        (
            listed.map(|id| (id, z(1, true))).into(),
            eight(),
            "cpu 3, memory 2Gi, x.com/gpu 3",
            Some((vec![0, 1, 5], true)),
        ),
        (
            listed.map(|id| (id, z(1, id % 2 == 0))).into(),
            eight(),
            "cpu 3, memory 2Gi, x.com/gpu 3",
            Some((vec![2, 4, 6], false)),
        ),
        (
            all(second, [1, 1, 0, 0]),
            four(2, false),
            "cpu 2, memory 2Gi, x.com/gpu 2",
            Some((vec![0, 2], true)),
        ),
        (
            all(second, [1, 0, 0, 1]),
            four(2, false),
            "cpu 2, memory 2Gi, x.com/gpu 2",
            Some((vec![0, 6], false)),
        ),
        (
            without,
            four(2, false),
            "cpu 2, memory 2Gi, x.com/gpu 2",
            Some((vec![0, 4], false)),
        ),
    ];
    for (zones, costs, wants, want) in rows {
        let (zones, none) = (numbered(&fixture, &zones, &costs), Amounts::new());
        let nearest_set = nearest(
            true,
            &fixture.demands(wants),
            &FreeZones::new(&zones, &none),
        );
        let ids = |at: &Vec<usize>| at.iter().map(|at| zones[*at].id).collect::<Vec<_>>();
        let nearest_set =
            nearest_set.map(|nearest_set| (ids(&nearest_set.zones), nearest_set.near));
        assert_eq!(nearest_set, want, "{wants} of {zones:?}");
    }
}

#[test]
fn sums_of_distances() {
    let fixture = Fixture::default();
    let bare: Vec<(u32, String)> = (0..4).map(|id| (id, String::new())).collect();
    let single_zone = |at: usize| vec![at];
    let pairs = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
    let threes = [[0, 1, 2], [1, 2, 3], [0, 2, 3]];
    // Upstream returns the mean of the smallest: 10, 11, 134 / 9, and 255 if distances are unknown.
    for (costs, sets, least) in [
        (
            four(1, false),
            (0..4).map(single_zone).collect::<Vec<_>>(),
            10,
        ),
        (four(1, false), pairs.map(Vec::from).into(), 4 * 11),
        (four(1, false), threes.map(Vec::from).into(), 134),
        (vec![], pairs.map(Vec::from).into(), 4 * 255),
    ] {
        let (zones, none) = (numbered(&fixture, &bare, &costs), Amounts::new());
        let free = FreeZones::new(&zones, &none);
        let least_distance = sets.iter().map(|set| total_distance(&free, set)).min();
        assert_eq!(least_distance, Some(least), "{sets:?}");
    }
}

#[test]
fn fewer_and_nearer_zones_score_higher() {
    let (fixture, none) = (Fixture::default(), Amounts::new());
    // Zones with one CPU each, and an empty zone that is near to some of them, or not.
    let score = |count: u32, near: bool| {
        let zones: Vec<(u32, String)> = (0..=count)
            .map(|id| (id, format!("cpu {}", u32::from(id < count))))
            .collect();
        let to = |from: u32, to: u32| {
            (
                to,
                if from.max(to) == count && !near {
                    5
                } else {
                    20
                },
            )
        };
        let row = |from: u32| (from, (0..=count).map(|id| to(from, id)).collect());
        let costs: Vec<(u32, Vec<(u32, u32)>)> = (0..=count).map(row).collect();
        let zones = numbered(&fixture, &zones, &costs);
        let pod = fixture.ask(true, &[&format!("cpu {count}")]);
        least_zones_score(&pod, Scope::Pod, FreeZones::new(&zones, &none), 8)
    };
    for (count, far, near) in [(1, 88, 94), (2, 76, 82), (8, 4, 10)] {
        assert_eq!((score(count, false), score(count, true)), (far, near));
    }
}

#[test]
fn container_with_most_zones_determines_score() {
    let (fixture, none) = (Fixture::default(), Amounts::new());
    let nodes = [[1, 1, 0, 0], [1, 0, 1, 0]];
    let gpus = |count: u32| format!("cpu 2, memory 50Mi, x.com/gpu {count}");
    for (containers, scores) in [
        (vec![gpus(1)], [94, 94]),
        (vec![gpus(2)], [82, 76]),
        (vec![gpus(2), "cpu 2, memory 50Mi".to_owned()], [82, 76]),
    ] {
        let containers: Vec<&str> = containers.iter().map(String::as_str).collect();
        let pod = fixture.ask(true, &containers);
        let node_scores = nodes.map(|gpus| {
            let zone = |(id, gpus)| (id, format!("cpu 2, memory 50Mi, x.com/gpu {gpus}"));
            let zones: Vec<(u32, String)> = (0..4).zip(gpus).map(zone).collect();
            let zones = numbered(&fixture, &zones, &four(1, false));
            least_zones_score(&pod, Scope::Container, FreeZones::new(&zones, &none), 8)
        });
        assert_eq!(node_scores, scores, "{containers:?}");
    }
}

#[test]
fn allocated_amounts_are_subtracted_for_the_next_container() {
    let (fixture, none) = (Fixture::default(), Amounts::new());
    let remaining = |zones: &[&str], wants: &str, from: &[usize]| {
        let zones = fixture.zones(zones, &[]);
        let mut free = FreeZones::new(&zones, &none);
        drain(&fixture.demands(wants), &mut free, from);
        let of = |at: usize, name: &str| free.get(at, fixture.table.intern(name));
        let amounts = |at: usize| (of(at, "cpu"), of(at, "memory"));
        (0..zones.len()).map(amounts).collect::<Vec<_>>()
    };
    let gi = |count: i64| Some(count << 30);
    let single_zone = ["cpu 8, memory 10Gi"];
    assert_eq!(
        remaining(&single_zone, "cpu 2, memory 2Gi", &[0]),
        [(Some(6000), gi(8))]
    );
    let two = ["cpu 8, memory 10Gi"; 2];
    assert_eq!(
        remaining(&two, "cpu 12, memory 2Gi", &[0, 1]),
        [(Some(0), gi(8)), (Some(4000), gi(10))]
    );
    // A resource that no zone lists is subtracted from none; amounts of other zones do not change.
    assert_eq!(
        remaining(&two, "cpu 1, x.com/gpu 2, hugepages-1Gi 2Gi", &[1]),
        [(Some(8000), gi(10)), (Some(7000), gi(10))]
    );
    // The next container of the same pod gets the rest: CPUs are subtracted for Guaranteed pods only.
    let zones = ["cpu 8, memory 16Gi, x.com/gpu 4"];
    let first = "cpu 6, memory 12Gi, x.com/gpu 2, ephemeral-storage 1Gi";
    for (guaranteed, next, fits) in [
        (true, "cpu 2, memory 4Gi, x.com/gpu 2", true),
        (true, "cpu 3, memory 4Gi", false),
        (true, "cpu 2, memory 5Gi", false),
        (true, "cpu 2, x.com/gpu 3", false),
        (false, "cpu 8, memory 16Gi, x.com/gpu 2", true),
        (false, "cpu 1, x.com/gpu 3", false),
    ] {
        let pod = fixture.ask(guaranteed, &[first, next]);
        let result = fixture.fits(&zones, Scope::Container, &pod);
        assert_eq!(result.is_ok(), fits, "{guaranteed} {next}");
    }
}

#[test]
fn configurations() {
    use Policy::*;
    type ScoreRow = (
        &'static [&'static str],
        &'static [(&'static str, &'static str)],
        (Policy, Scope, i64),
    );
    const POLICY: &str = "topologyManagerPolicy";
    const SCOPE: &str = "topologyManagerScope";
    const MOST: &str = "topologyManagerMaxNUMANodes";
    let plain = (None, Scope::Container, 8);
    let rows: [ScoreRow; 24] = [
        (&[], &[], plain),
        (&[], &[(SCOPE, "pod")], (None, Scope::Pod, 8)),
        (
            &[],
            &[(POLICY, "restricted")],
            (Restricted, Scope::Container, 8),
        ),
        (
            &[],
            &[(POLICY, "restricted"), (SCOPE, "container")],
            (Restricted, Scope::Container, 8),
        ),
        (
            &[],
            &[(SCOPE, "pod"), (POLICY, "single-numa-node")],
            (SingleNumaNode, Scope::Pod, 8),
        ),
        (
            &[],
            &[(SCOPE, "Pod"), (POLICY, "single-numa-node")],
            (SingleNumaNode, Scope::Container, 8),
        ),
        (
            &[],
            &[(SCOPE, "Container"), (POLICY, "restricted")],
            (Restricted, Scope::Container, 8),
        ),
        (&[], &[(MOST, "A")], plain),
        (&[], &[(MOST, "0")], plain),
        (&[], &[(MOST, "-2")], plain),
        (&[], &[(MOST, "16")], (None, Scope::Container, 16)),
        (&[], &[(MOST, "65535")], (None, Scope::Container, 1024)),
        // One NUMA node leaves no choice; two do.
        (&[], &[(MOST, "1")], plain),
        (&[], &[(MOST, "2")], (None, Scope::Container, 2)),
        (
            &[],
            &[(POLICY, "none"), (POLICY, "best-effort")],
            (BestEffort, Scope::Container, 8),
        ),
        (
            &["BestEffortPodLevel"],
            &[(POLICY, "none")],
            (None, Scope::Pod, 8),
        ),
        (
            &["SingleNUMANodePodLevel"],
            &[],
            (SingleNumaNode, Scope::Pod, 8),
        ),
        (
            &["SingleNUMANodeContainerLevel"],
            &[],
            (SingleNumaNode, Scope::Container, 8),
        ),
        (
            &["RestrictedContainerLevel"],
            &[],
            (Restricted, Scope::Container, 8),
        ),
        (
            &["RestrictedContainerLevel", "SingleNUMANodePodLevel"],
            &[],
            (Restricted, Scope::Container, 8),
        ),
        (&["foobar"], &[], plain),
        (&["BestEffortPodLevel"], &[], (BestEffort, Scope::Pod, 8)),
        (
            &["BestEffortPodLevel"],
            &[(SCOPE, "container")],
            (BestEffort, Scope::Container, 8),
        ),
        (
            &["BestEffortPodLevel"],
            &[(SCOPE, "container"), (POLICY, "restricted")],
            (Restricted, Scope::Container, 8),
        ),
    ];
    for (policies, attributes, want) in rows {
        let policies = policies.iter().copied();
        let (config, _) = Config::read(policies.clone(), attributes.iter().copied());
        let parsed = (config.policy, config.scope, config.max_zones);
        assert_eq!(parsed, want, "{policies:?} {attributes:?}");
    }
}

/// Covers mutations of the arithmetic that the other tests do not detect.
#[test]
fn bounds_and_roundings() {
    let (fixture, none) = (Fixture::default(), Amounts::new());
    let scored = |kind, zone: &str, wants: &str| {
        let (zones, pod) = (fixture.zones(&[zone], &[]), fixture.ask(true, &[wants]));
        strategy(
            kind,
            &pod,
            Scope::Pod,
            &FreeZones::new(&zones, &none),
            |_| 1,
        )
    };
    use ZoneStrategy::*;
    for (kind, zone, wants, score) in [
        // All of the amount fits; one unit more does not.
        (MostAllocated, "cpu 4", "cpu 4", 100),
        (MostAllocated, "cpu 4", "cpu 5", 0),
        (LeastAllocated, "cpu 4", "cpu 4", 0),
        (LeastAllocated, "cpu 4", "cpu 5", 0),
        // A fraction of a core is rounded up, in the request and in the available amount.
        (MostAllocated, "cpu 4", "cpu 1500m", 50),
        (MostAllocated, "cpu 3500m", "cpu 1", 25),
        (LeastAllocated, "cpu 4", "cpu 1001m", 50),
        (LeastAllocated, "cpu 4", "cpu 1", 75),
        // No amount: the score is 0, and the zone counts as fully used.
        (MostAllocated, "cpu 0, memory 4", "cpu 1, memory 4", 50),
        (
            BalancedAllocation,
            "cpu 0, memory 4",
            "cpu 1, memory 4",
            100,
        ),
        (BalancedAllocation, "cpu 4, memory 4", "cpu 4, memory 2", 87),
        (BalancedAllocation, "cpu 4, memory 4", "cpu 5, memory 2", 0),
    ] {
        assert_eq!(scored(kind, zone, wants), score, "{kind:?} {zone}: {wants}");
    }
    // The lowest score of zones that score above 0 is used; for containers, the mean.
    let zones = fixture.zones(&["cpu 4", "cpu 8", "cpu 1"], &[]);
    let pod = fixture.ask(true, &["cpu 2", "cpu 4"]);
    let free = FreeZones::new(&zones, &none);
    let of = |scope| strategy(MostAllocated, &pod, scope, &free, |_| 1);
    assert_eq!((of(Scope::Container), of(Scope::Pod)), ((25 + 50) / 2, 75));
    // A set may contain all zones, and each zone must list the resource.
    let required = |zones: &[&str], guaranteed, wants: &str| {
        let zones = fixture.zones(zones, &[]);
        let nearest_set = nearest(
            guaranteed,
            &fixture.demands(wants),
            &FreeZones::new(&zones, &none),
        );
        nearest_set.map(|nearest_set| nearest_set.zones)
    };
    let three = ["cpu 1, x.com/gpu 1", "cpu 1, x.com/gpu 1", "cpu 1"];
    assert_eq!(required(&three, true, "cpu 3"), Some(vec![0, 1, 2]));
    assert_eq!(required(&three, true, "cpu 3, x.com/gpu 0"), Option::None);
    assert_eq!(
        required(&three, true, "cpu 2, x.com/gpu 2"),
        Some(vec![0, 1])
    );
    assert_eq!(required(&three, false, "cpu 9, x.com/gpu 1"), Some(vec![0]));
    assert_eq!(required(&three, true, "cpu 0"), Some(vec![0]));
    assert_eq!(required(&[], true, "cpu 1"), Option::None);
    // A score is never below 0.
    let nine_zones = fixture.zones(&["cpu 1"; 9], &[]);
    let pod = fixture.ask(true, &["cpu 9"]);
    assert_eq!(
        least_zones_score(&pod, Scope::Pod, FreeZones::new(&nine_zones, &none), 8),
        0
    );
    // Whether a container gets exclusive resources.
    for (wants, own) in [
        ("", false),
        ("cpu 4, memory 2Gi", true),
        ("cpu 4", true),
        ("cpu 4500m", false),
        ("cpu 500m, memory 1Gi", true),
        ("hugepages-2Mi 2Mi", true),
        ("cpu 0, memory 0", false),
        ("veryfast.io/fpga 1", false),
        ("ephemeral-storage 1Gi", false),
    ] {
        assert_eq!(has_own(&fixture.demands(wants)), own, "{wants}");
    }
    // An unknown distance counts as the maximum; the others are used as reported.
    let zones = fixture.zones(&["cpu 1", "cpu 1"], &[&[10]]);
    let costs = [(0, 0), (0, 1), (1, 1)].map(|(a, b)| zones[a].cost(&zones[b]));
    assert_eq!(costs, [10, UNKNOWN_COST, UNKNOWN_COST]);
}
