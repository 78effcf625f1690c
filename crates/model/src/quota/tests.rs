use super::*;
use crate::resources::{CPU, MEMORY, PODS};

mod forest;
mod reference;
mod revoke;

fn claim(weight: i64, request: i64, min: i64, guaranteed: i64) -> ShareClaim {
    ShareClaim {
        request,
        min,
        guaranteed,
        weight,
        lendable: true,
    }
}

/// Amounts that validation rejects, but that another program may have stored.
#[test]
fn absurd_claims_do_not_overflow() {
    let absurd = || claim(i64::MAX, i64::MAX, i64::MIN, i64::MIN);
    for total in [i64::MIN, 0, i64::MAX] {
        assert_eq!(divide(total, &[absurd(), absurd(), absurd()]).len(), 3);
    }
}

#[test]
fn unguaranteed_amounts_are_divided_by_weight() {
    let four = |last: ShareClaim| {
        [
            claim(40, 5, 10, 0),
            claim(60, 20, 15, 0),
            claim(50, 40, 20, 0),
            last,
        ]
    };
    let all_hungry = |total| divide(total, &[claim(1, 9, 0, 0), claim(1, 9, 0, 0)]);
    let rows: [(&str, Vec<i64>, &[i64]); 8] = [
        (
            "surplus is divided again",
            divide(100, &four(claim(80, 70, 15, 0))),
            &[5, 20, 35, 40],
        ),
        (
            "no weight, nothing beyond the minimum",
            divide(100, &four(claim(0, 70, 15, 0))),
            &[5, 20, 40, 15],
        ),
        (
            "use that is guaranteed is a minimum",
            divide(100, &four(claim(0, 70, 15, 45))),
            &[5, 20, 30, 45],
        ),
        (
            "a quota that does not lend keeps its minimum",
            divide(
                10,
                &[
                    ShareClaim {
                        lendable: false,
                        ..claim(1, 0, 4, 0)
                    },
                    claim(1, 9, 0, 0),
                ],
            ),
            &[4, 6],
        ),
        ("a lost unit goes to the first name", all_hungry(7), &[4, 3]),
        ("nothing to divide", all_hungry(0), &[0, 0]),
        ("less than nothing", all_hungry(-5), &[0, 0]),
        (
            "minimums are given even beyond the total",
            divide(3, &[claim(1, 9, 4, 0), claim(1, 9, 4, 0)]),
            &[4, 4],
        ),
    ];
    for (name, is, expected) in rows {
        assert_eq!(is, expected, "{name}");
    }
}

#[test]
fn few_units_among_many_are_not_lost() {
    let mut claims = vec![claim(1, 0, 3, 0)];
    for min in [8, 8, 8, 8, 8, 8, 8, 8, 7, 7] {
        claims.push(claim(1, 100, min, 0));
    }
    let shares = divide(81, &claims);
    assert_eq!(shares.iter().sum::<i64>(), 81);
    assert_eq!(shares[..5], [0, 9, 9, 9, 8]);
}

#[test]
fn huge_numbers_do_not_overflow() {
    let huge = i64::MAX / 5;
    let shares = divide(i64::MAX, &[claim(huge, i64::MAX, huge, 0); 4]);
    let sum: i128 = shares.iter().map(|n| i128::from(*n)).sum();
    assert_eq!(sum, i128::from(i64::MAX));
}

#[test]
fn minimums_shrink_in_proportion() {
    assert_eq!(scale_min(200_000, 100_000, 300_000), 66_666);
    assert_eq!(scale_min(50, 50, 100), 25);
    assert_eq!(scale_min(0, 50, 100), 0);
    assert_eq!(scale_min(-1, 50, 100), 0);
}

const MIB: i64 = 1 << 20;

/// Returns the amounts of these cores and MiB.
fn list(cpu: i64, memory: i64) -> Amounts {
    [(CPU, cpu * 1000), (MEMORY, memory * MIB)]
        .into_iter()
        .collect()
}

fn spec(parent: &str, max: (i64, i64), min: (i64, i64)) -> QuotaSpec {
    QuotaSpec {
        parent: parent.to_owned(),
        is_parent: false,
        lendable: true,
        min: list(min.0, min.1),
        max: list(max.0, max.1),
        weight: list(max.0, max.1),
    }
}

fn tree(total: (i64, i64), scale_min: bool) -> QuotaTree {
    let mut tree = QuotaTree::new(Options {
        scale_min,
        guarantee_used: false,
    });
    tree.set_total(list(total.0, total.1));
    tree
}

fn ask(tree: &mut QuotaTree, name: &str, cpu: i64, memory: i64) {
    tree.charge(name, ChargeKind::Request, &list(cpu, memory), false, false);
}

fn use_(tree: &mut QuotaTree, name: &str, cpu: i64, memory: i64) {
    tree.charge(name, ChargeKind::Used, &list(cpu, memory), false, false);
}

/// Returns the runtime quota: cores (with three digits) and MiB.
fn runtime(tree: &mut QuotaTree, name: &str) -> (f64, i64) {
    let runtime = &tree.fresh(name).unwrap().runtime;
    #[allow(clippy::cast_precision_loss, reason = "small numbers of a test")]
    let cores = runtime.get(CPU) as f64 / 1000.0;
    (cores, runtime.get(MEMORY) / MIB)
}

fn requested(tree: &mut QuotaTree, name: &str) -> Amounts {
    tree.fresh(name).unwrap().sums.request.clone()
}

#[test]
fn siblings_borrow_and_reclaim() {
    let mut tree = tree((96, 160), true);
    tree.set("test1", spec("", (96, 160), (50, 80)));
    tree.set("test2", spec("", (96, 160), (40, 80)));
    ask(&mut tree, "test1", 60, 100);
    assert_eq!(
        runtime(&mut tree, "test1"),
        (60.0, 100),
        "its request, beyond its minimum"
    );
    ask(&mut tree, "test1", 60, 100);
    assert_eq!(
        runtime(&mut tree, "test1"),
        (96.0, 160),
        "at most its maximum"
    );
    ask(&mut tree, "test2", 150, 210);
    assert_eq!(
        runtime(&mut tree, "test1"),
        (53.0, 80),
        "the lender has it back"
    );
    assert_eq!(runtime(&mut tree, "test2"), (43.0, 80));
}

#[test]
fn non_lending_quota_requests_its_minimum() {
    let nested = |parent: bool, first: bool, second: bool| {
        let mut tree = tree((100, 0), true);
        let add = |tree: &mut QuotaTree, name: &str, of: &str, min, lendable| {
            let spec = QuotaSpec {
                lendable,
                ..spec(of, (96, 0), (min, 0))
            };
            tree.set(name, spec);
        };
        add(&mut tree, "p", "", 60, parent);
        add(&mut tree, "c1", "p", 20, first);
        add(&mut tree, "c2", "p", 20, second);
        let mut out = Vec::new();
        for more in [0, 40, 20] {
            ask(&mut tree, "c1", more, 0);
            out.push(["p", "c1", "c2"].map(|name| runtime(&mut tree, name).0 as i64));
        }
        out
    };
    // Runtime quotas of parent and children if the first child requests 0, 40, 60.
    assert_eq!(
        nested(false, false, false),
        [[60, 20, 20], [60, 40, 20], [80, 60, 20]]
    );
    assert_eq!(
        nested(true, false, true),
        [[20, 20, 0], [40, 40, 0], [60, 60, 0]]
    );
    assert_eq!(
        nested(true, false, false),
        [[40, 20, 20], [60, 40, 20], [80, 60, 20]]
    );
}

#[test]
fn parent_sums_limited_requests_and_whole_usage() {
    let mut tree = tree((96, 160), true);
    tree.set("a", spec("", (96, 160), (50, 80)));
    tree.set("a-b", spec("a", (96, 160), (50, 80)));
    tree.set("a-b-c", spec("a-b", (96, 160), (50, 80)));
    let [all, firm] = [list(120, 290), list(50, 100)];
    tree.charge("a-b-c", ChargeKind::Request, &all, false, false);
    tree.charge("a-b-c", ChargeKind::Used, &all, false, false);
    tree.charge("a-b-c", ChargeKind::Request, &firm, true, false);
    tree.charge("a-b-c", ChargeKind::Used, &firm, true, false);
    for (name, request) in [
        ("a-b-c", list(170, 390)),
        ("a-b", list(96, 160)),
        ("a", list(96, 160)),
        (ROOT_QUOTA, list(96, 160)),
    ] {
        let sums = tree.fresh(name).unwrap().sums.clone();
        assert_eq!(sums.request, request, "{name}");
        assert_eq!(sums.non_preemptible_request, firm, "{name}");
        assert_eq!(sums.used, list(170, 390), "{name}");
        assert_eq!(sums.non_preemptible_used, firm, "{name}");
    }
    tree.set("a-b-c", spec("a-b", (64, 128), (50, 80)));
    assert_eq!(requested(&mut tree, "a-b"), list(64, 128));
    assert_eq!(runtime(&mut tree, "a-b-c"), (64.0, 128));
}

#[test]
fn minimums_scale_where_the_siblings_exceed_the_total() {
    let build = |total, scale| {
        let mut tree = tree(total, scale);
        tree.set("p", spec("", (1000, 1000), (300, 300)));
        for name in ["a", "b", "c"] {
            tree.set(name, spec("p", (1000, 1000), (100, 100)));
        }
        tree
    };
    let mut small = build((200, 200), true);
    for name in ["a", "b", "c"] {
        ask(&mut small, name, 200, 200);
    }
    assert_eq!(runtime(&mut small, "p"), (200.0, 200));
    assert_eq!(runtime(&mut small, "a").0, 66.667);
    assert_eq!(runtime(&mut small, "b").0, 66.667);
    assert_eq!(
        runtime(&mut small, "c").0,
        66.666,
        "the last name goes short"
    );
    assert_eq!(small.fresh("p").unwrap().scaled_min, list(200, 200));
    assert_eq!(small.fresh("a").unwrap().scaled_min.get(CPU), 66_666);
    small.set_total(list(400, 400));
    assert_eq!(runtime(&mut small, "a").0, 133.334);
    assert_eq!(small.fresh("a").unwrap().scaled_min, list(100, 100));

    let mut idle = build((200, 200), true);
    ask(&mut idle, "a", 200, 200);
    ask(&mut idle, "c", 200, 200);
    assert_eq!(runtime(&mut idle, "a"), (100.0, 100));
    assert_eq!(runtime(&mut idle, "b"), (0.0, 0));

    let mut fixed = build((200, 200), false);
    for name in ["a", "b", "c"] {
        ask(&mut fixed, name, 200, 200);
    }
    for name in ["a", "b", "c"] {
        assert_eq!(runtime(&mut fixed, name), (100.0, 100), "{name}");
    }
    assert_eq!(runtime(&mut fixed, "p"), (300.0, 300));
}

#[test]
fn quota_moves_with_its_pods() {
    let mut tree = tree((96, 160), true);
    for (name, parent, min) in [
        ("t1", "", (100, 160)),
        ("t1-a", "t1", (50, 80)),
        ("x", "t1-a", (50, 80)),
        ("t2", "", (100, 160)),
        ("t2-a", "t2", (50, 80)),
    ] {
        tree.set(name, spec(parent, (96, 160), min));
    }
    for (name, cpu, memory) in [("x", 60, 100), ("t2-a", 20, 40)] {
        ask(&mut tree, name, cpu, memory);
        use_(&mut tree, name, cpu, memory);
    }
    assert_eq!(requested(&mut tree, "t1"), list(60, 100));
    tree.set("x", spec("t2", (96, 160), (50, 80)));
    for (name, cpu, memory) in [
        ("t1", 0, 0),
        ("t1-a", 0, 0),
        ("x", 60, 100),
        ("t2-a", 20, 40),
        ("t2", 80, 140),
    ] {
        let quota = tree.fresh(name).unwrap().clone();
        for amounts in [&quota.runtime, &quota.sums.request, &quota.sums.used] {
            assert_eq!(amounts.get(CPU), cpu * 1000, "{name}");
            assert_eq!(amounts.get(MEMORY), memory * MIB, "{name}");
        }
    }
}

#[test]
fn use_of_the_default_quota_is_not_divided() {
    let mut tree = tree((100, 100), true);
    tree.set("a", spec("", (100, 100), (0, 0)));
    tree.set(DEFAULT_QUOTA, spec("", (1000, 1000), (0, 0)));
    ask(&mut tree, "a", 100, 100);
    ask(&mut tree, DEFAULT_QUOTA, 70, 70);
    assert_eq!(
        runtime(&mut tree, "a"),
        (100.0, 100),
        "asking alone takes nothing"
    );
    use_(&mut tree, DEFAULT_QUOTA, 30, 30);
    use_(&mut tree, SYSTEM_QUOTA, 10, 10);
    assert_eq!(
        runtime(&mut tree, "a"),
        (70.0, 70),
        "the system quota has no maximum: not accounted"
    );
    assert!(
        tree.fresh(DEFAULT_QUOTA).unwrap().runtime.is_empty(),
        "not limited by a runtime"
    );
    assert_eq!(tree.fresh(ROOT_QUOTA).unwrap().sums.used, list(30, 30));
}

#[test]
fn used_resources_can_be_guaranteed() {
    let mut tree = QuotaTree::new(Options {
        scale_min: true,
        guarantee_used: true,
    });
    tree.set_total(list(100, 100));
    tree.set("p", spec("", (100, 100), (50, 50)));
    tree.set("p-a", spec("p", (100, 100), (20, 20)));
    tree.set("q", spec("", (100, 100), (50, 50)));
    ask(&mut tree, "p-a", 80, 80);
    assert_eq!(
        runtime(&mut tree, "p-a").0,
        50.0,
        "nothing is lent under this option"
    );
    use_(&mut tree, "p-a", 40, 40);
    let quota = tree.fresh("p-a").unwrap();
    assert_eq!(
        (&quota.allocated, &quota.guaranteed),
        (&list(40, 40), &list(40, 40))
    );
    let parent = tree.fresh("p").unwrap();
    assert_eq!(
        (&parent.allocated, &parent.guaranteed),
        (&list(40, 40), &list(50, 50))
    );
    use_(&mut tree, "p-a", 30, 30);
    ask(&mut tree, "q", 90, 90);
    assert_eq!(runtime(&mut tree, "p").0, 70.0, "its use");
    assert_eq!(runtime(&mut tree, "q").0, 50.0, "its guaranteed amount");
}

#[test]
fn missing_parent_leaves_the_guaranteed_amount() {
    let mut tree = tree((100, 100), true);
    tree.set("lost", spec("nowhere", (100, 100), (10, 10)));
    tree.set("lost-a", spec("lost", (100, 100), (4, 4)));
    for (name, parent) in [("a", "b"), ("b", "c"), ("c", "a"), ("self", "self")] {
        tree.set(name, spec(parent, (100, 100), (1, 1)));
    }
    tree.set("under", spec(DEFAULT_QUOTA, (100, 100), (2, 2)));
    for name in ["lost-a", "a", "self", "under"] {
        ask(&mut tree, name, 50, 50);
    }
    for (name, cpu) in [
        ("lost", 10.0),
        ("lost-a", 10.0),
        ("a", 1.0),
        ("b", 0.0),
        ("self", 1.0),
        ("under", 2.0),
    ] {
        assert_eq!(runtime(&mut tree, name).0, cpu, "{name}");
    }
    assert!(is_zero(&requested(&mut tree, ROOT_QUOTA)));
    tree.set("nowhere", spec("", (100, 100), (0, 0)));
    assert_eq!(
        runtime(&mut tree, "lost-a").0,
        50.0,
        "the parent has come back"
    );
    tree.remove("nowhere");
    tree.remove(DEFAULT_QUOTA);
    assert!(tree.contains(DEFAULT_QUOTA) && !tree.contains("nowhere"));
    assert_eq!(runtime(&mut tree, "lost-a").0, 10.0);
}

#[test]
fn only_resources_of_maximum_count() {
    let mut tree = tree((100, 100), true);
    tree.set("a", spec("", (100, 100), (0, 0)));
    let pod: Amounts = [(CPU, 1000), (MEMORY, MIB), (PODS, 1)]
        .into_iter()
        .collect();
    tree.charge("a", ChargeKind::Request, &pod, false, false);
    assert_eq!(requested(&mut tree, "a"), list(1, 1));
    let cpu_only = QuotaSpec {
        max: [(CPU, 5000)].into_iter().collect(),
        ..spec("", (0, 0), (0, 0))
    };
    tree.set("a", cpu_only);
    assert_eq!(
        requested(&mut tree, "a"),
        [(CPU, 1000)].into_iter().collect()
    );
    tree.charge("a", ChargeKind::Request, &pod, false, true);
    assert!(is_zero(&requested(&mut tree, "a")));
    assert!(is_zero(&requested(&mut tree, ROOT_QUOTA)));
}

#[test]
fn limit_applies_only_to_listed_resources() {
    let limit: Amounts = [(CPU, 5), (PODS, 1)].into_iter().collect();
    let used: Amounts = [(CPU, 6), (MEMORY, 9)].into_iter().collect();
    assert_eq!(exceeded(&used, &limit), [CPU]);
    assert_eq!(exceeded(&used, &Amounts::new()), []);
}

#[test]
fn siblings_are_divided_again_only_after_a_change() {
    let mut tree = tree((10_000, 10_000), true);
    let names: Vec<String> = (0..1000).map(|at| format!("q{at:04}")).collect();
    for name in &names {
        tree.set(name, spec("", (100, 100), (5, 5)));
        ask(&mut tree, name, 20, 20);
    }
    assert_eq!(runtime(&mut tree, "q0000"), (10.0, 10));
    let divided = |tree: &mut QuotaTree| tree.fresh(ROOT_QUOTA).unwrap().version;
    let once = divided(&mut tree);
    for name in &names {
        runtime(&mut tree, name);
        use_(&mut tree, name, 10, 10);
    }
    assert_eq!(divided(&mut tree), once, "use moves no shares");
    ask(&mut tree, "q0500", 100, 100);
    ask(&mut tree, "q0500", 100, 100);
    runtime(&mut tree, "q0000");
    runtime(&mut tree, "q0001");
    assert_eq!(divided(&mut tree), once + 1);
    ask(&mut tree, "q0500", 100, 100);
    runtime(&mut tree, "q0500");
    assert_eq!(
        divided(&mut tree),
        once + 1,
        "beyond the maximum nothing changes"
    );
}
