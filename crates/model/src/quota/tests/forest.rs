//! Tests several quota trees.

use super::*;

fn forest() -> QuotaForest {
    QuotaForest::new(Options {
        scale_min: true,
        guarantee_used: false,
    })
}

fn charge(forest: &mut QuotaForest, name: &str, cpu: i64) {
    for side in [ChargeKind::Request, ChargeKind::Used] {
        forest.charge(name, side, &list(cpu, 0), false, false);
    }
}

/// Returns the runtime quota and the use of quota `name`, in cores.
fn cores(forest: &mut QuotaForest, name: &str) -> (i64, i64) {
    let quota = forest.fresh(name).unwrap();
    let cores = |amounts: &Amounts| amounts.get(CPU) / 1000;
    (cores(&quota.runtime), cores(&quota.sums.used))
}

#[test]
fn each_tree_divides_its_total_among_its_quotas() {
    let mut forest = forest();
    forest.set_total("", list(10, 0));
    for (name, tree, parent) in [
        ("a", "", ""),
        ("b", "t", ""),
        ("b-1", "t", "b"),
        ("b-2", "t", "b"),
        ("c", "u", ""),
    ] {
        forest.set(name, tree, spec(parent, (1000, 0), (0, 0)));
        charge(&mut forest, name, 50);
    }
    forest.set_total("t", list(60, 0));
    forest.set_total("u", list(70, 0));
    assert_eq!(cores(&mut forest, "a"), (10, 50));
    assert_eq!(
        cores(&mut forest, "b"),
        (60, 150),
        "with its children's use"
    );
    assert_eq!(cores(&mut forest, "b-1"), (30, 50));
    assert_eq!(cores(&mut forest, "c"), (50, 50));
    let trees = ["a", "b-2", "c", "missing"].map(|name| forest.tree_of(name).to_owned());
    assert_eq!(trees, ["", "t", "u", ""]);
    let names = forest.names();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let built_in = [DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA];
    assert_eq!(
        names,
        [&["a", "b", "b-1", "b-2", "c"][..], &built_in].concat()
    );
    forest.rebuild();
    assert_eq!(
        forest.parent("b-1").map(|quota| quota.name.to_string()),
        Some("b".to_owned())
    );

    // Default and system quotas reduce only the tree without an id.
    charge(&mut forest, DEFAULT_QUOTA, 4);
    forest.set(DEFAULT_QUOTA, "t", spec("", (100, 0), (0, 0)));
    assert_eq!(forest.tree_of(DEFAULT_QUOTA), "");
    charge(&mut forest, DEFAULT_QUOTA, 4);
    assert_eq!(cores(&mut forest, "a").0, 2);
    assert_eq!(cores(&mut forest, "b").0, 60);
}

#[test]
fn moved_quota_takes_its_pods_and_leaves_its_children() {
    let mut forest = forest();
    forest.set_total("", list(100, 0));
    for (name, tree, parent) in [("p", "t", ""), ("p-a", "t", "p"), ("q", "u", "")] {
        forest.set(name, tree, spec(parent, (1000, 0), (20, 0)));
        charge(&mut forest, name, 30);
    }
    forest.set_total("t", list(50, 0));
    forest.set_total("u", list(40, 0));
    assert_eq!(cores(&mut forest, "p"), (50, 60));
    for (tree, expected) in [("u", (20, 30)), ("", (30, 30)), ("u", (20, 30))] {
        forest.set("p", tree, spec("", (1000, 0), (20, 0)));
        assert_eq!(forest.tree_of("p"), tree);
        assert_eq!(cores(&mut forest, "p"), expected, "{tree:?}");
    }
    // A parent in another tree does not count: the quota has only its guaranteed amount.
    assert_eq!(cores(&mut forest, "p-a"), (20, 30));
    assert!(forest.parent("p-a").is_none());
    // The parent returns.
    forest.set("p", "t", spec("", (1000, 0), (20, 0)));
    assert_eq!(cores(&mut forest, "p"), (50, 60));
    assert_eq!(cores(&mut forest, "q"), (30, 30));
}

#[test]
fn tree_without_quotas_is_removed() {
    let mut forest = forest();
    forest.set_total("t", list(50, 0));
    forest.set("a", "t", spec("", (1000, 0), (0, 0)));
    charge(&mut forest, "a", 30);
    assert_eq!(
        cores(&mut forest, "a"),
        (0, 30),
        "set when there was no tree"
    );
    forest.set_total("t", list(50, 0));
    assert_eq!(cores(&mut forest, "a"), (30, 30));
    forest.remove("a");
    assert!(forest.fresh("a").is_none());
    assert!(forest.interned("a").is_none());
    charge(&mut forest, "a", 30);
    forest.set("a", "t", spec("", (1000, 0), (0, 0)));
    assert_eq!(cores(&mut forest, "a"), (0, 0), "nothing stays of it");
    forest.remove(ROOT_QUOTA);
    assert!(forest.fresh(ROOT_QUOTA).is_some());
}
