//! Several quota trees: their quotas, their totals, and the effect on pods.

use super::*;

const GATE: &str = "MultiQuotaTree";

/// Builds three nodes of 100 cores and 1000 GiB.
fn cluster(gates: &[&str]) -> Engine {
    let mut engine = engine_with(&json!({}), gates);
    for name in ["n", "n1", "n2"] {
        engine.node_applied(node(name, 100, 1000), at(0));
    }
    engine
}

fn planted(mut quota: Value, tree: &str) -> Value {
    quota["metadata"]["labels"][labels::QUOTA_TREE_ID] = json!(tree);
    quota
}

/// Builds a root quota like the quota profile controller.
fn root(name: &str, tree: &str, total: (i64, i64)) -> Value {
    let mut root = planted(quota(name, "", (9000, 90_000), total), tree);
    root["metadata"]["labels"][labels::QUOTA_IS_ROOT] = json!("true");
    root["metadata"]["labels"][labels::QUOTA_IS_PARENT] = json!("true");
    let total = list(total.0, total.1).to_string();
    root["metadata"]["annotations"][annotations::QUOTA_TOTAL_RESOURCE] = json!(total);
    root
}

/// Adds a quota that requests everything: its runtime is what its tree can provide.
fn probe(engine: &mut Engine, name: &str, tree: &str, parent: &str) {
    let probe = planted(quota(name, parent, (5000, 50_000), (0, 0)), tree);
    apply(engine, &probe, 0);
    add(engine, &pod(&format!("of-{name}"), name, 5000, 50_000), 0);
}

fn runtime(engine: &mut Engine, name: &str) -> Value {
    summary(engine, name)["runtime"].clone()
}

fn used(engine: &mut Engine, name: &str) -> Value {
    summary(engine, name)["used"].clone()
}

#[test]
fn root_quota_total_is_subtracted_from_others() {
    let mut engine = cluster(&[GATE]);
    probe(&mut engine, "main", "", "");
    assert_eq!(runtime(&mut engine, "main"), list(300, 3000));
    apply(&mut engine, &root("a", "tree-a", (200, 2000)), 0);
    probe(&mut engine, "a-1", "tree-a", "a");
    assert_eq!(runtime(&mut engine, "a-1"), list(200, 2000));
    assert_eq!(runtime(&mut engine, "main"), list(100, 1000));
    apply(&mut engine, &root("a", "tree-a", (250, 2500)), 0);
    assert_eq!(runtime(&mut engine, "a-1"), list(250, 2500));
    assert_eq!(runtime(&mut engine, "main"), list(50, 500));
    // Nodes that change do not affect it.
    engine.node_deleted("n2", at(1));
    engine.node_applied(node("n3", 200, 1500), at(1));
    assert_eq!(runtime(&mut engine, "main"), list(150, 1000));
    assert_eq!(runtime(&mut engine, "a-1"), list(250, 2500));
    // The total may be independent of the other trees.
    let mut apart = root("a", "tree-a", (250, 2500));
    apart["metadata"]["labels"][labels::QUOTA_IGNORE_DEFAULT_TREE] = json!("true");
    apply(&mut engine, &apart, 2);
    assert_eq!(runtime(&mut engine, "main"), list(400, 3500));
    apply(&mut engine, &root("a", "tree-a", (250, 2500)), 2);
    // The nodes of a second profile of the same tree add to it.
    apply(&mut engine, &root("b", "tree-a", (20, 100)), 2);
    probe(&mut engine, "b-1", "tree-a", "b");
    assert_eq!(runtime(&mut engine, "a-1"), list(250, 2500));
    assert_eq!(runtime(&mut engine, "b-1"), list(20, 100));
    assert_eq!(runtime(&mut engine, "main"), list(130, 900));
    for object in [
        root("b", "tree-a", (20, 100)),
        root("a", "tree-a", (250, 2500)),
    ] {
        engine.object_changed(&change(&object, Action::DELETE), at(3));
    }
    assert_eq!(runtime(&mut engine, "main"), list(400, 3500));
}

#[test]
fn requests_and_use_add_up_within_their_tree() {
    let mut engine = cluster(&[GATE]);
    apply(&mut engine, &root("t1", "tree-a", (100, 200)), 0);
    apply(&mut engine, &root("t2", "tree-b", (100, 200)), 0);
    let quotas = [
        ("t1-a", "t1", "tree-a"),
        ("a-123", "t1-a", "tree-a"),
        ("t1-b", "t1", "tree-a"),
        ("b-123", "t1-b", "tree-a"),
        ("t2-a", "t2", "tree-b"),
    ];
    for (name, parent, tree) in quotas {
        apply(
            &mut engine,
            &planted(quota(name, parent, (100, 200), (50, 80)), tree),
            0,
        );
    }
    let pods = [("a-123", 40, 100), ("b-123", 40, 100), ("t2-a", 20, 40)];
    for (quota, cpu, memory) in pods {
        add(
            &mut engine,
            &bound(pod(&format!("of-{quota}"), quota, cpu, memory)),
            0,
        );
    }
    let shows = |engine: &mut Engine, rows: &[(&str, i64, i64)]| {
        for (name, cpu, memory) in rows {
            let is = summary(engine, name);
            for field in ["request", "used", "runtime"] {
                assert_eq!(is[field], list(*cpu, *memory), "{field} of {name}");
            }
        }
    };
    let moved_sums = [("t2-a", 20, 40), ("t2", 20, 40)];
    shows(
        &mut engine,
        &[("a-123", 40, 100), ("t1-a", 40, 100), ("t1", 80, 200)],
    );
    shows(&mut engine, &moved_sums);
    // Upstream's scenario: a quota gets another parent, and is deleted.
    let moved = planted(quota("b-123", "t1-a", (100, 200), (50, 80)), "tree-a");
    apply(&mut engine, &moved, 0);
    shows(
        &mut engine,
        &[
            ("a-123", 40, 100),
            ("b-123", 40, 100),
            ("t1-a", 80, 200),
            ("t1", 80, 200),
        ],
    );
    assert_eq!(used(&mut engine, "t1-b"), json!({}));
    engine.object_changed(&change(&moved, Action::DELETE), at(0));
    shows(&mut engine, &[("t1-a", 40, 100), ("t1", 40, 100)]);
    shows(&mut engine, &moved_sums);
    assert_eq!(
        used(&mut engine, DEFAULT_QUOTA),
        list(40, 100),
        "no other quota gets its pod"
    );

    let mut names = |tree: &str| -> Vec<String> {
        let all = engine
            .inspector()
            .inspect(NAME, &["quotas"], &query(&[("tree", tree)]), at(0));
        all.unwrap().as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(names("tree-b"), ["t2", "t2-a"]);
    assert_eq!(names("").len(), 8, "all of them, and two built-in ones");
    assert_eq!(names("tree-c"), [""; 0]);
    assert_eq!(summary(&mut engine, "t2-a")["tree"], "tree-b");
    assert_eq!(summary(&mut engine, DEFAULT_QUOTA)["tree"], "");
}

#[test]
fn pod_is_admitted_within_its_tree_total() {
    let mut engine = cluster(&[GATE]);
    // Unlike in practice, its guarantee is less than the tree's total: otherwise the total would have no
    // effect.
    let sized = |cpu| {
        let mut root = root("a", "tree-a", (cpu, 100));
        root["spec"]["min"] = list(0, 0);
        root
    };
    apply(&mut engine, &sized(50), 0);
    apply(
        &mut engine,
        &planted(quota("a-1", "a", (200, 200), (0, 0)), "tree-a"),
        0,
    );
    add(&mut engine, &bound(pod("x", "a-1", 40, 10)), 0);
    // The use of the default quota does not count in this tree.
    add(&mut engine, &bound(pod("y", "", 30, 10)), 0);
    assert_eq!(
        place(&mut engine, &pod("p", "a-1", 20, 10), 0),
        "0/3 nodes are available: Insufficient quotas, quotaName: a-1, runtime: cpu:50,memory:20Gi, \
         used: cpu:40,memory:10Gi, pod's request: cpu:20,memory:10Gi, exceedDimensions: [cpu]."
    );
    // More nodes do not help: the root sets the total of the tree.
    engine.node_applied(node("n3", 100, 1000), at(10));
    assert_eq!(schedule(&mut engine, 10), []);
    apply(&mut engine, &sized(60), 20);
    let placed = schedule(&mut engine, 20);
    assert_eq!(placed.len(), 1);
    assert_eq!(placed[0].0, "p");
    // Until its root sets a total, a tree has only its guarantees.
    for (name, min, expected) in [("b", 0, "runtime: cpu:0,"), ("c", 5, "runtime: cpu:5,")] {
        let quota = planted(quota(name, "", (200, 200), (min, 200)), name);
        apply(&mut engine, &quota, 30);
        let is = place(&mut engine, &pod(&format!("of-{name}"), name, 20, 10), 30);
        assert!(is.contains(expected), "{is}");
    }
}

#[test]
fn tree_labels_move_pods_and_quotas() {
    let mut engine = cluster(&[GATE, "DisableDefaultQuota"]);
    for (name, tree) in [("t1", "tree-1"), ("t2", "tree-2")] {
        apply(&mut engine, &root(name, tree, (10, 40)), 0);
    }
    let (one, none) = (list(1, 2), json!({}));
    let zero = json!({"cpu": "0", "memory": "0"});
    let use_of = |engine: &mut Engine| [used(engine, "t1"), used(engine, "t2")];
    for (quota, expected) in [
        ("", [none.clone(), none.clone()]),
        ("t1", [one.clone(), none.clone()]),
        ("t2", [zero.clone(), one.clone()]),
        ("", [zero.clone(), zero.clone()]),
    ] {
        add(&mut engine, &bound(pod("p", quota, 1, 2)), 0);
        assert_eq!(use_of(&mut engine), expected, "{quota:?}");
    }
    add(&mut engine, &bound(pod("p", "t1", 1, 2)), 0);
    let other = planted(quota("t1", "", (10, 40), (1, 1)), "tree-2");
    apply(&mut engine, &other, 0);
    assert_eq!(summary(&mut engine, "t1")["tree"], "tree-2");
    assert_eq!(use_of(&mut engine)[0], one, "with its pods");
    delete(&mut engine, &pod("p", "t1", 1, 2), 0);
    assert_eq!(use_of(&mut engine)[0], zero);
}

#[test]
fn tree_labels_are_ignored_without_the_gate() {
    let mut engine = cluster(&[]);
    let mut bent = root("a", "tree-a", (200, 2000));
    bent["metadata"]["annotations"][annotations::QUOTA_TOTAL_RESOURCE] = json!("{nope");
    apply(&mut engine, &bent, 0);
    let complaints = engine.take_outputs().into_iter();
    let complaints = complaints.filter(|output| matches!(output, Output::Problem(_)));
    assert_eq!(complaints.count(), 0, "it is not read");
    apply(&mut engine, &root("a", "tree-a", (200, 2000)), 0);
    probe(&mut engine, "main", "", "");
    probe(&mut engine, "x", "tree-x", "main");
    assert_eq!(summary(&mut engine, "a")["tree"], "");
    assert_eq!(runtime(&mut engine, "x"), runtime(&mut engine, "main"));
    assert_eq!(runtime(&mut engine, "main"), list(300, 3000));
}

#[test]
fn invalid_total_is_reported_last_value_stays() {
    let mut engine = cluster(&[GATE]);
    probe(&mut engine, "main", "", "");
    apply(&mut engine, &root("a", "tree-a", (200, 2000)), 0);
    engine.take_outputs();
    let mut bent = root("a", "tree-a", (1, 1));
    bent["metadata"]["annotations"][annotations::QUOTA_TOTAL_RESOURCE] = json!("{\"cpu\":\"3x\"}");
    apply(&mut engine, &bent, 1);
    let reported = engine.take_outputs().into_iter().any(|output| {
        matches!(output, Output::Problem(problem) if problem.name == "a"
            && problem.message.contains(annotations::QUOTA_TOTAL_RESOURCE)
            && problem.message.contains("3x"))
    });
    assert!(reported);
    assert_eq!(runtime(&mut engine, "main"), list(100, 1000));
    // A negative total counts as zero.
    let mut less = root("a", "tree-a", (1, 1));
    less["metadata"]["annotations"][annotations::QUOTA_TOTAL_RESOURCE] =
        json!("{\"cpu\":\"-50\",\"memory\":\"2000Gi\"}");
    apply(&mut engine, &less, 2);
    assert_eq!(runtime(&mut engine, "main"), list(300, 1000));
    apply(&mut engine, &root("a", "tree-a", (200, 2000)), 2);
    // Built-in quotas have a tree whatever their labels.
    for name in [DEFAULT_QUOTA, SYSTEM_QUOTA, ROOT_QUOTA] {
        apply(&mut engine, &root(name, "tree-a", (7, 7)), 2);
        assert_eq!(summary(&mut engine, name)["tree"], "", "{name}");
    }
    assert_eq!(runtime(&mut engine, "main"), list(100, 1000));
}
