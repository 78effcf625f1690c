//! The topology manager's own tables: `policy_test.go` of Kubernetes, with its case names.

use super::super::hint::{Hint, Offer, Order, admits, merge, width};
use super::super::{Machine, Memory, Settings};
use koord_model::alignment::Policy;
use koord_model::numa::NumaMask;
use std::collections::BTreeMap;

fn mask(nodes: &[u8]) -> NumaMask {
    nodes.iter().copied().collect()
}

fn yes(nodes: &[u8]) -> Hint {
    Hint {
        mask: Some(mask(nodes)),
        preferred: true,
    }
}

fn no(nodes: &[u8]) -> Hint {
    Hint {
        preferred: false,
        ..yes(nodes)
    }
}

fn machine(nodes: u8) -> Machine {
    let bank = || BTreeMap::from([("memory".to_owned(), Memory::default())]);
    Machine {
        memory: (0..nodes).map(|node| (node, bank())).collect(),
        ..Machine::default()
    }
}

fn settings(policy: Policy) -> Settings {
    Settings {
        policy,
        ..Settings::default()
    }
}

/// Returns eight NUMA nodes in two boards of two sockets, like upstream Kubernetes'
/// `commonNUMAInfoEightNodes`.
fn boards() -> Machine {
    let rows = [
        [10, 11, 12, 12, 30, 30, 30, 30],
        [11, 10, 12, 12, 30, 30, 30, 30],
        [12, 12, 10, 11, 30, 30, 30, 30],
        [12, 12, 11, 10, 30, 30, 30, 30],
        [30, 30, 30, 30, 10, 11, 12, 12],
        [30, 30, 30, 30, 11, 10, 12, 12],
        [30, 30, 30, 30, 12, 12, 10, 11],
        [30, 30, 30, 30, 12, 12, 13, 10],
    ];
    let mut out = machine(8);
    for (a, row) in (0..).zip(rows) {
        for (b, distance) in (0..).zip(row) {
            out.distances.insert((a, b), distance);
        }
    }
    out
}

fn offers(lists: &[&[Hint]]) -> Vec<Offer> {
    lists.iter().map(|hints| Some(hints.to_vec())).collect()
}

/// Runs the cases in which all policies that align agree.
#[test]
fn common_cases() {
    let two: &[Hint] = &[yes(&[0]), yes(&[1])];
    let two_and_both: &[Hint] = &[yes(&[0]), yes(&[1]), no(&[0, 1])];
    let cases: &[(&str, Vec<Offer>, Hint)] = &[
        (
            "Two providers, 1 hint each, same mask, both preferred 1/2",
            offers(&[&[yes(&[0])], &[yes(&[0])]]),
            yes(&[0]),
        ),
        (
            "Two providers, 1 hint each, same mask, both preferred 2/2",
            offers(&[&[yes(&[1])], &[yes(&[1])]]),
            yes(&[1]),
        ),
        (
            "Two providers, 1 no hints, 1 single hint preferred 1/2",
            vec![None, Some(vec![yes(&[0])])],
            yes(&[0]),
        ),
        (
            "Two providers, 1 with 2 hints, 1 with single hint matching 1/2",
            offers(&[two, &[yes(&[0])]]),
            yes(&[0]),
        ),
        (
            "Two providers, 1 with 2 hints, 1 with single hint matching 2/2",
            offers(&[two, &[yes(&[1])]]),
            yes(&[1]),
        ),
        (
            "Two providers, both with 2 hints, matching narrower preferred hint from both",
            offers(&[two, &[yes(&[0]), no(&[0, 1])]]),
            yes(&[0]),
        ),
        (
            "Ensure less narrow preferred hints are chosen over narrower non-preferred hints",
            offers(&[&[yes(&[1]), no(&[0, 1])], two_and_both]),
            yes(&[1]),
        ),
    ];
    for policy in [
        Policy::BestEffort,
        Policy::Restricted,
        Policy::SingleNumaNode,
    ] {
        for (name, offers, want) in cases {
            let best = merge(&machine(4), &settings(policy), offers);
            assert_eq!(best, *want, "{policy:?}: {name}");
            assert!(admits(policy, best), "{policy:?}: {name}");
        }
    }
}

#[test]
fn cases_of_best_effort_and_restricted() {
    let all = [0, 1, 2, 3];
    let pairs: &[Hint] = &[yes(&[0, 1]), yes(&[0, 2])];
    let wide: &[Hint] = &[no(&[0, 1, 2, 3]), no(&[0, 1])];
    let nowhere = Hint {
        mask: None,
        preferred: false,
    };
    let cases: &[(&str, Vec<Offer>, Hint)] = &[
        (
            "Two providers, 2 hints each, same mask (some with different bits), same preferred",
            offers(&[pairs, pairs]),
            yes(&[0, 1]),
        ),
        ("TopologyHint not set", vec![], yes(&all)),
        (
            "HintProvider returns -nil from provider",
            vec![None],
            yes(&all),
        ),
        (
            "HintProvider returns empty non-nil from provider",
            offers(&[&[]]),
            no(&all),
        ),
        (
            "Single TopologyHint with Preferred as true and NUMANodeAffinity as nil",
            offers(&[&[Hint::ANY]]),
            yes(&all),
        ),
        (
            "Single TopologyHint with Preferred as false and NUMANodeAffinity as nil",
            offers(&[&[nowhere]]),
            no(&all),
        ),
        (
            "Two providers, 1 hint each, no common mask",
            offers(&[&[yes(&[0])], &[yes(&[1])]]),
            no(&all),
        ),
        (
            "Two providers, 1 hint each, same mask, 1 preferred, 1 not 1/2",
            offers(&[&[yes(&[0])], &[no(&[0])]]),
            no(&[0]),
        ),
        (
            "Two providers, 1 hint each, 1 wider mask, both preferred 1/2",
            offers(&[&[yes(&[0])], &[yes(&[0, 1])]]),
            no(&[0]),
        ),
        (
            "Two providers, 1 with 2 hints, 1 with single non-preferred hint matching",
            offers(&[&[yes(&[0]), yes(&[1])], &[no(&[0, 1])]]),
            no(&[0]),
        ),
        (
            "bestNonPreferredAffinityCount (1)",
            offers(&[wide, &[no(&[0, 1])]]),
            no(&[0, 1]),
        ),
        (
            "bestNonPreferredAffinityCount (2)",
            offers(&[wide, &[no(&[0, 3])]]),
            no(&[0, 3]),
        ),
        (
            "bestNonPreferredAffinityCount (3)",
            offers(&[wide, &[no(&[1, 2])]]),
            no(&[1, 2]),
        ),
        (
            "bestNonPreferredAffinityCount (4)",
            offers(&[wide, &[no(&[2, 3])]]),
            no(&[2, 3]),
        ),
        (
            "bestNonPreferredAffinityCount (5)",
            offers(&[wide, &[no(&[1, 2]), no(&[2, 3])]]),
            no(&[1, 2]),
        ),
        (
            "bestNonPreferredAffinityCount (6)",
            offers(&[
                wide,
                &[no(&[1, 2, 3]), no(&[1, 2]), no(&[1, 3]), no(&[2, 3])],
            ]),
            no(&[1, 2]),
        ),
    ];
    for policy in [Policy::BestEffort, Policy::Restricted] {
        for (name, offers, want) in cases {
            let best = merge(&machine(4), &settings(policy), offers);
            assert_eq!(best, *want, "{policy:?}: {name}");
            let admitted = policy == Policy::BestEffort || want.preferred;
            assert_eq!(admits(policy, best), admitted, "{policy:?}: {name}");
        }
    }
}

#[test]
fn cases_of_best_effort_with_the_closest() {
    let wide: &[Hint] = &[no(&[0, 1, 2, 3]), no(&[0, 1])];
    let far: &[Hint] = &[yes(&[0, 4]), yes(&[0, 2])];
    let one_or_two: &[Hint] = &[yes(&[4]), yes(&[0, 2])];
    let cases: &[(&str, Vec<Offer>, Hint)] = &[
        (
            "Two providers, 2 hints each, same mask (some with different bits), same preferred",
            offers(&[far, far]),
            yes(&[0, 2]),
        ),
        (
            "Two providers, 2 hints each, different mask",
            offers(&[one_or_two, one_or_two]),
            yes(&[4]),
        ),
        (
            "bestNonPreferredAffinityCount (5)",
            offers(&[wide, &[no(&[1, 2]), no(&[2, 3])]]),
            no(&[2, 3]),
        ),
        (
            "bestNonPreferredAffinityCount (6)",
            offers(&[
                wide,
                &[no(&[1, 2, 3]), no(&[1, 2]), no(&[1, 3]), no(&[2, 3])],
            ]),
            no(&[2, 3]),
        ),
    ];
    for (name, offers, want) in cases {
        let settings = Settings {
            closest: true,
            ..settings(Policy::BestEffort)
        };
        assert_eq!(merge(&boards(), &settings, offers), *want, "{name}");
    }
}

#[test]
fn cases_of_single_numa_node() {
    let nowhere = Hint {
        mask: None,
        preferred: false,
    };
    let both: &[Hint] = &[yes(&[0]), yes(&[1]), no(&[0, 1])];
    let cases: &[(&str, Vec<Offer>, Hint)] = &[
        ("TopologyHint not set", vec![], Hint::ANY),
        (
            "HintProvider returns -nil from provider",
            vec![None],
            Hint::ANY,
        ),
        (
            "HintProvider returns empty non-nil from provider",
            offers(&[&[]]),
            nowhere,
        ),
        (
            "Single TopologyHint with Preferred as false and NUMANodeAffinity as nil",
            offers(&[&[nowhere]]),
            nowhere,
        ),
        (
            "Two providers, 1 hint each, no common mask",
            offers(&[&[yes(&[0])], &[yes(&[1])]]),
            nowhere,
        ),
        (
            "Two providers, 1 hint each, same mask, 1 preferred, 1 not 1/2",
            offers(&[&[yes(&[0])], &[no(&[0])]]),
            nowhere,
        ),
        (
            "Two providers, 1 with 2 hints, 1 with single non-preferred hint matching",
            offers(&[&[yes(&[0]), yes(&[1])], &[no(&[0, 1])]]),
            nowhere,
        ),
        (
            "Single NUMA hint generation",
            offers(&[&[yes(&[0, 1])], both]),
            nowhere,
        ),
        (
            "One no-preference provider",
            vec![Some(both.to_vec()), None],
            yes(&[0]),
        ),
    ];
    for (name, offers, want) in cases {
        let settings = settings(Policy::SingleNumaNode);
        let best = merge(&machine(4), &settings, offers);
        assert_eq!(best, *want, "{name}");
        assert_eq!(admits(settings.policy, best), want.preferred, "{name}");
    }
}

/// `TestMaxOfMinAffinityCounts`.
#[test]
fn the_width_is_the_most_that_any_resource_needs() {
    let three = [0, 1, 2];
    for (lists, want) in [
        (vec![], 0),
        (vec![vec![yes(&[])]], 0),
        (vec![vec![yes(&[0])]], 1),
        (vec![vec![yes(&[0, 1])]], 2),
        (vec![vec![yes(&[0, 1]), yes(&three)]], 2),
        (vec![vec![yes(&[0, 1]), yes(&three)], vec![yes(&three)]], 3),
    ] {
        assert_eq!(width(&lists), want, "{lists:?}");
    }
}

/// `TestCompareHintsNarrowest`: the width, the current hint, the candidate, and whether that wins.
#[test]
fn the_better_of_two() {
    let cases: &[(u32, Hint, Hint, bool)] = &[
        (9, no(&[0]), yes(&[0]), true),
        (9, yes(&[0]), no(&[0]), false),
        (9, yes(&[0, 1]), yes(&[0]), true),
        (9, yes(&[0]), yes(&[0, 1]), false),
        (1, no(&[1, 2]), no(&[0, 1]), true),
        (1, no(&[0, 1]), no(&[1, 2]), false),
        (2, no(&[0, 1]), no(&[0]), false),
        (2, no(&[1, 2]), no(&[0, 1]), true),
        (2, no(&[0, 1]), no(&[1, 2]), false),
        (2, no(&[0]), no(&[0, 1, 2]), false),
        (2, no(&[0]), no(&[0, 1]), true),
        (3, no(&[0]), no(&[0, 1]), true),
        (3, no(&[0]), no(&[1, 2]), true),
        (4, no(&[0, 1]), no(&[1, 2, 3]), true),
        (4, no(&[1, 2, 3]), no(&[0, 1]), false),
        (4, no(&[0, 1, 2]), no(&[1, 2, 3]), false),
        (4, no(&[1, 2, 3]), no(&[0, 1, 2]), true),
    ];
    for (width, has, offered, wins) in cases {
        let order = Order {
            machine: &machine(4),
            closest: false,
            width: *width,
        };
        let pair = |hint: &Hint| (hint.mask.unwrap(), hint.preferred);
        let best = order.better(pair(has), pair(offered));
        let want = if *wins { pair(offered) } else { pair(has) };
        assert_eq!(best, want, "{width}: {has:?} {offered:?}");
    }
}

/// `prefer-closest-numa-nodes` chooses among sets of equally many NUMA nodes: fewer ones come first, however
/// far from each other they are.
#[test]
fn the_closest_of_as_many() {
    let mut machine = machine(5);
    let near = |a: u8, b: u8| (a < 2) == (b < 2) && a >= 2;
    for (a, b) in (0..5).flat_map(|a| (0..5).map(move |b| (a, b))) {
        let distance = if a == b {
            10
        } else if near(a, b) {
            11
        } else {
            40
        };
        machine.distances.insert((a, b), distance);
    }
    let closest = |closest: bool| Order {
        machine: &machine,
        closest,
        width: 1,
    };
    let mask = |nodes: &[u8]| nodes.iter().copied().collect::<NumaMask>();
    for (one, other, best) in [
        (&[0, 1][..], &[2, 3, 4][..], &[0, 1][..]),
        (&[0, 1], &[3, 4], &[3, 4]),
        (&[2, 3], &[3, 4], &[2, 3]),
        (&[1, 2, 3], &[2, 3, 4], &[2, 3, 4]),
    ] {
        for preferred in [true, false] {
            let (one, other) = ((mask(one), preferred), (mask(other), preferred));
            let want = (mask(best), preferred);
            assert_eq!(closest(true).better(one, other), want);
            assert_eq!(closest(true).better(other, one), want);
        }
    }
    let (far, near) = ((mask(&[0, 1]), true), (mask(&[3, 4]), true));
    assert_eq!(closest(false).better(near, far), far);
}

/// Acceptance case 10 of topology-aware scheduling.
#[test]
fn ac_10_cpu_and_device_meet() {
    let cpu: &[Hint] = &[yes(&[0]), yes(&[1]), no(&[0, 1])];
    let near = offers(&[cpu, &[yes(&[1]), no(&[0, 1])]]);
    let spread = offers(&[cpu, &[yes(&[0, 1])]]);
    for policy in [Policy::Restricted, Policy::SingleNumaNode] {
        let settings = settings(policy);
        assert_eq!(merge(&machine(2), &settings, &near), yes(&[1]));
        assert!(!admits(policy, merge(&machine(2), &settings, &spread)));
    }
    let loose = settings(Policy::BestEffort);
    let best = merge(&machine(2), &loose, &spread);
    assert_eq!(best, no(&[0, 1]), "as wide as the device needs");
    assert!(admits(loose.policy, best));
}
