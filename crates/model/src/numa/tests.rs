use super::*;
use crate::resources::{Amounts, CPU, MEMORY, ResourceId};
use proptest::prelude::*;
use std::sync::Arc;

/// Parses a hint: `0`, `0+1`, `-` (any); a leading `!`: not preferred; a trailing `@n`: score.
fn hint(text: &str) -> Hint {
    let (text, preferred) = match text.strip_prefix('!') {
        Some(rest) => (rest, false),
        None => (text, true),
    };
    let (text, score) = text.split_once('@').unwrap_or((text, "0"));
    let ids = || text.split('+').map(|id| id.parse::<u8>().unwrap());
    Hint {
        mask: (text != "-").then(|| ids().collect()),
        preferred,
        score: score.parse().unwrap(),
    }
}

/// Parses offers: providers are separated by `|`, resources of one by `;`, hints by spaces. `r: hints`, `r:`
/// (none possible), `r` (any NUMA node suits); empty: a provider without hints.
fn offers(text: &str) -> Vec<Offers> {
    let resource = |part: &str| -> (Arc<str>, Option<Vec<Hint>>) {
        match part.split_once(':') {
            Some((name, hints)) => {
                let hints = hints.split_whitespace().map(hint).collect();
                (name.trim().into(), Some(hints))
            }
            None => (part.trim().into(), None),
        }
    };
    let provider = |part: &str| -> Offers {
        let parts = part.split(';').filter(|part| !part.trim().is_empty());
        parts.map(resource).collect()
    };
    text.split('|').map(provider).collect()
}

fn merge(kind: NumaPolicyKind, nodes: u64, offered: &str) -> String {
    let policy = NumaPolicy {
        kind,
        exclusive: NumaExclusive::Preferred,
        nodes: NumaMask(nodes),
        states: Vec::new(),
    };
    match admit(&policy, &offers(offered)) {
        Ok(Some(mask)) => mask.to_string(),
        Ok(None) => "any".to_owned(),
        Err(reasons) => reasons.join(", "),
    }
}

const ALL: &str = "1111";
const BEST: NumaPolicyKind = NumaPolicyKind::BestEffort;
const RESTRICTED: NumaPolicyKind = NumaPolicyKind::Restricted;
const SINGLE: NumaPolicyKind = NumaPolicyKind::SingleNumaNode;

#[test]
fn hints_that_agree_are_merged_alike_by_every_policy() {
    for (offered, expected) in [
        ("a: 0 | b: 0", "01"),
        ("a: 1 | b: 1", "10"),
        (" | b: 0", "01"),
        (" | b: 1", "10"),
        ("a: 0 1 | b: 0", "01"),
        ("a: 0 1 | b: 1", "10"),
        ("a: 0 1 | b: 0 !0+1", "01"),
        ("a: 1 !0+1 | b: 0 1 !0+1", "10"),
        ("a: 1 !0+1; b: 0 1 !0+1", "10"),
    ] {
        assert_eq!(merge(BEST, 0b1111, offered), expected, "{offered}");
        assert_eq!(merge(RESTRICTED, 0b1111, offered), expected, "{offered}");
        assert_eq!(merge(SINGLE, 0b11, offered), expected, "{offered}");
    }
}

#[test]
fn policies_differ_where_hints_do_not_agree() {
    let rows = [
        // offers, best effort (4 nodes), restricted (4 nodes), single (2 nodes)
        ("", ALL, ALL, "any"),
        ("r", ALL, ALL, "any"),
        ("r: -", ALL, ALL, "any"),
        ("r:", ALL, "Unsatisfied NUMA r", "Unsatisfied NUMA r"),
        (
            "r: !-",
            ALL,
            "r prefer [] among [<nil>]",
            "r prefer [] among [<nil>]",
        ),
        (
            "a: 0 | b: 1",
            ALL,
            "a prefer [01] among [01] & b prefer [10] among [10]",
            "a prefer [01] among [01],b prefer [10] among [10]",
        ),
        (
            "a: 0 | b: !0",
            "01",
            "a prefer [01] among [01] & b prefer [] among [01]",
            "a prefer [01] among [01],b prefer [] among [01]",
        ),
        (
            "a: 1 | b: !1",
            "10",
            "a prefer [10] among [10] & b prefer [] among [10]",
            "a prefer [10] among [10],b prefer [] among [10]",
        ),
        (
            "a: 0 | b: 0+1",
            ALL,
            "a prefer [01] among [01] & b prefer [11] among [11]",
            "a prefer [01] among [01],b prefer [11] among [11]",
        ),
        (
            "a: 1 | b: 0+1",
            ALL,
            "a prefer [10] among [10] & b prefer [11] among [11]",
            "a prefer [10] among [10],b prefer [11] among [11]",
        ),
        (
            "a: 0 1 | b: !0+1",
            ALL,
            "a prefer [01 10] among [01 10] & b prefer [] among [11]",
            "a prefer [01 10] among [01 10],b prefer [] among [11]",
        ),
    ];
    let cause = |text: &str| {
        if text.contains("prefer") {
            format!("Unaligned NUMA Hint cause {text}")
        } else {
            text.to_owned()
        }
    };
    for (offered, best, restricted, single) in rows {
        assert_eq!(merge(BEST, 0b1111, offered), best, "{offered}");
        assert_eq!(
            merge(RESTRICTED, 0b1111, offered),
            cause(restricted),
            "{offered}"
        );
        assert_eq!(merge(SINGLE, 0b11, offered), cause(single), "{offered}");
    }
    for kind in [BEST, RESTRICTED] {
        assert_eq!(merge(kind, 0b1111, "a: 0+1 0+2 | b: 0+1 0+2"), "11");
    }
    assert_eq!(merge(SINGLE, 0b11, "a: 0 1 !0+1 | "), "01");
    assert_eq!(
        merge(SINGLE, 0b11, "a: 0+1; b: 0 1 !0+1"),
        "Unaligned NUMA Hint cause a prefer [11] among [11],b prefer [01 10] among [01 10 11]"
    );
}

#[test]
fn equal_hints_are_ordered_by_score_then_id() {
    for (offered, expected) in [
        ("a: 0@10 1@20", "10"),
        ("a: 0@20 1@20", "01"),
        ("a: 0@10 1@20; b: 0@30 1@10", "01"),
        ("a: 0@10 1@20; b: 0 1; c", "10"),
        ("a: 1@10 0@5 0+1@100", "10"),
    ] {
        for kind in [BEST, RESTRICTED, SINGLE] {
            assert_eq!(merge(kind, 0b11, offered), expected, "{offered}");
        }
    }
    assert_eq!(merge(RESTRICTED, 0b1111, "a: 0+1@5 2+3@9 1+2@9"), "0110");
}

#[test]
fn exclusive_policy_separates_single_and_multi_node_pods() {
    use NumaState::{Idle, Shared, Single};
    let allowed = |mask: u64, exclusive, states: [NumaState; 2]| {
        let policy = NumaPolicy {
            kind: RESTRICTED,
            exclusive,
            nodes: NumaMask(0b11),
            states: vec![(0, states[0]), (1, states[1])],
        };
        let hint = Hint {
            mask: Some(NumaMask(mask)),
            preferred: true,
            score: 0,
        };
        let offers = vec![vec![("cpu".into(), Some(vec![hint]))]];
        admit(&policy, &offers).is_ok()
    };
    let (preferred, required) = (NumaExclusive::Preferred, NumaExclusive::Required);
    for (mask, exclusive, states, expected) in [
        (0b01, preferred, [Shared, Shared], true),
        (0b11, preferred, [Shared, Shared], true),
        (0b01, preferred, [Idle, Single], true),
        (0b11, preferred, [Idle, Single], true),
        (0b01, required, [Idle, Single], true),
        (0b01, required, [Shared, Single], false),
        (0b01, required, [Shared, Shared], false),
        (0b01, required, [Single, Shared], true),
        (0b11, required, [Shared, Single], false),
        (0b11, required, [Shared, Idle], true),
        (0b11, required, [Shared, Shared], true),
    ] {
        let got = allowed(mask, exclusive, states);
        assert_eq!(got, expected, "{mask:b} {exclusive:?} {states:?}");
    }
}

#[test]
fn masks_print_in_hex_and_list_subsets_by_size() {
    for (mask, text) in [
        (0, "00"),
        (1, "01"),
        (2, "10"),
        (4, "0100"),
        (0b10_0000, "100000"),
    ] {
        assert_eq!(NumaMask(mask).to_string(), text);
    }
    assert_eq!(NumaMask(1 << 63).to_string().len(), 64);
    let subsets: Vec<u64> = NumaMask(0b1011).subsets().iter().map(|m| m.0).collect();
    assert_eq!(subsets, [0b1, 0b10, 0b1000, 0b11, 0b1001, 0b1010, 0b1011]);
}

fn cpu(amount: i64) -> Amounts {
    Amounts::from_iter([(CPU, amount)])
}

#[test]
fn requests_are_laid_evenly_over_the_numa_nodes() {
    // request, available on 0 and 1, unit, parts
    type SplitRow = (i64, [i64; 2], Unit, Option<[i64; 2]>);
    let rows: [SplitRow; 8] = [
        (4000, [52_000, 52_000], Unit::Milli, Some([2000, 2000])),
        (108_000, [52_000, 52_000], Unit::Milli, None),
        (4000, [4000, 2000], Unit::Core(2), Some([2000, 2000])),
        (4000, [3000, 1000], Unit::Cpu, Some([3000, 1000])),
        (4000, [2000, 2000], Unit::Cpu, Some([2000, 2000])),
        (5000, [3000, 3000], Unit::Cpu, Some([2000, 3000])),
        (5000, [3000, 2000], Unit::Cpu, Some([3000, 2000])),
        (3500, [3000, 3000], Unit::Milli, Some([1750, 1750])),
    ];
    for (request, [a, b], unit, expected) in rows {
        let zones = [(0, cpu(a)), (1, cpu(b))];
        let got = split(&cpu(request), &zones, NumaMask(0b11), unit);
        let expected = expected
            .map(|[a, b]| vec![(0, cpu(a)), (1, cpu(b))])
            .ok_or(vec![CPU]);
        assert_eq!(got, expected, "{request} over {a} and {b}");
    }
    // Ids that do not start at 0, and a resource that no NUMA node has.
    let gpu = ResourceId(99);
    let request = Amounts::from_iter([(CPU, 3000), (MEMORY, 11), (gpu, 1)]);
    let zone = |c, m| Amounts::from_iter([(CPU, c), (MEMORY, m)]);
    let zones = [
        (1, zone(1000, 100)),
        (3, zone(9000, 3)),
        (4, zone(9000, 100)),
    ];
    let got = split(&request, &zones, NumaMask(0b1010), Unit::Milli).unwrap();
    assert_eq!(got, [(1, zone(1000, 8)), (3, zone(2000, 3))]);
}

#[test]
fn scores_average_shares_by_weight() {
    let usage = |allocatable, requested, weight| Usage {
        allocatable,
        requested,
        weight,
    };
    let both = || [usage(100, 40, 1), usage(10, 1, 2), usage(0, 5, 9)];
    assert_eq!(least_allocated(both()), (60 + 2 * 90) / 3);
    assert_eq!(most_allocated(both()), (40 + 2 * 10) / 3);
    assert_eq!(least_allocated([usage(10, 11, 1)]), 0);
    assert_eq!(most_allocated([usage(10, 11, 1)]), 100);
    assert_eq!(least_allocated([]), 0);
    assert_eq!(
        (amplify(4000, 1.5), amplify(3, 1.5), amplify(3, 0.5)),
        (6000, 5, 3)
    );
}

/// Returns the rank of the best merged hint, found by trying every combination of hints: whether it is
/// not preferred, its number of NUMA nodes, the negated score, and its mask.
fn exhaustive(policy: &NumaPolicy, offers: &[Offers]) -> Option<(bool, u32, i64, u64)> {
    let lists: Vec<&Vec<Hint>> = offers
        .iter()
        .flatten()
        .filter_map(|(_, h)| h.as_ref())
        .collect();
    let mut combinations: Vec<Vec<Hint>> = vec![Vec::new()];
    for list in lists {
        let longer = combinations
            .iter()
            .flat_map(|chosen| list.iter().map(|hint| [&chosen[..], &[*hint]].concat()));
        combinations = longer.collect();
    }
    let ranked = combinations.iter().filter_map(|chosen| {
        let masks: Vec<u64> = chosen
            .iter()
            .filter_map(|hint| hint.mask.map(|m| m.0))
            .collect();
        let merged = masks.iter().fold(policy.nodes.0, |all, mask| all & mask);
        let exact = chosen
            .iter()
            .filter(|hint| hint.mask == Some(NumaMask(merged)));
        let score: i64 = exact.map(|hint| hint.score).sum();
        let equal = masks.iter().all(|mask| *mask == masks[0]);
        let preferred = equal && chosen.iter().all(|hint| hint.preferred);
        (merged != 0).then(|| (!preferred, merged.count_ones(), -score, merged))
    });
    ranked.min()
}

proptest! {
    #[test]
    fn merging_step_by_step_equals_trying_every_combination(
        lists in prop::collection::vec(
            prop::collection::vec((0u64..8, any::<bool>(), 0i64..4), 1..6), 1..5),
    ) {
        let policy = NumaPolicy {
            kind: RESTRICTED,
            exclusive: NumaExclusive::None,
            nodes: NumaMask(0b111),
            states: Vec::new(),
        };
        let offers: Vec<Offers> = lists
            .iter()
            .map(|list| {
                let hints = list.iter().map(|(mask, preferred, score)| Hint {
                    mask: (*mask > 0).then_some(NumaMask(*mask)),
                    preferred: *preferred,
                    score: if *mask > 0 { *score } else { 0 },
                });
                vec![("r".into(), Some(hints.collect()))]
            })
            .collect();
        let expected = exhaustive(&policy, &offers);
        match admit(&policy, &offers) {
            Ok(mask) => {
                let (worse, _, _, best) = expected.unwrap();
                prop_assert!(!worse);
                prop_assert_eq!(mask.map(|mask| mask.0), Some(best));
            }
            Err(_) => prop_assert!(expected.is_none_or(|(worse, ..)| worse)),
        }
    }

    #[test]
    fn split_adds_up_and_stays_within_available(
        zones in prop::collection::vec(0i64..20, 1..5), request in 0i64..40, unit in 0u8..3,
    ) {
        let available: Vec<(u8, Amounts)> =
            (0..).zip(&zones).map(|(id, cpus)| (id, cpu(cpus * 1000))).collect();
        let unit = match unit { 0 => Unit::Milli, 1 => Unit::Cpu, _ => Unit::Core(2) };
        let mask = NumaMask((1 << zones.len()) - 1);
        if let Ok(parts) = split(&cpu(request * 1000), &available, mask, unit) {
            let total: i64 = parts.iter().map(|(_, part)| part.get(CPU)).sum();
            prop_assert_eq!(total, request * 1000);
            for (id, part) in &parts {
                prop_assert!(part.get(CPU) <= zones[usize::from(*id)] * 1000);
            }
        } else if unit == Unit::Milli {
            prop_assert!(request > zones.iter().sum());
        }
    }
}
