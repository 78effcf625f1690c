use super::*;
use serde_json::{Value, json};

const PARENT: &str = labels::QUOTA_PARENT;
const IS_PARENT: &str = labels::QUOTA_IS_PARENT;

fn quota(name: &str, labels: Value, annotations: Value, spec: Value) -> Arc<ElasticQuota> {
    let metadata =
        json!({"namespace": "q", "name": name, "labels": labels, "annotations": annotations});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

fn below(name: &str, parent: &str) -> Arc<ElasticQuota> {
    let labels = json!({PARENT: parent, IS_PARENT: "true"});
    quota(name, labels, json!({}), json!({}))
}

/// Returns the problems of `quotas`, each after the name of its quota.
fn shown(quotas: &[Arc<ElasticQuota>]) -> Vec<String> {
    let problems = problems(quotas).into_iter();
    let named =
        problems.flat_map(|(key, all)| all.into_iter().map(move |p| format!("{}: {p}", key.name)));
    named.collect()
}

#[test]
fn valid_tree_has_no_problems() {
    let leaf = quota(
        "leaf",
        json!({PARENT: "team"}),
        json!({
            annotations::QUOTA_SHARED_WEIGHT: "{\"cpu\": 1}",
            annotations::QUOTA_NAMESPACES: "[\"a\"]",
        }),
        json!({"min": {"cpu": 1}, "max": {"cpu": 2, "memory": "1Gi"}}),
    );
    assert_eq!(shown(&[below("team", ROOT_QUOTA), leaf]), [""; 0]);
}

#[test]
fn circles_and_missing_parents_are_reported() {
    for (quotas, want) in [
        (vec![below("a", "a")], vec![r#"a: invalid value "a""#]),
        (
            vec![below("a", "b"), below("b", "a")],
            vec![r#"a: invalid value "b""#, r#"b: invalid value "a""#],
        ),
        (
            vec![
                below("a", "b"),
                below("b", "c"),
                below("c", "a"),
                below("d", "c"),
            ],
            vec![
                r#"a: invalid value "b""#,
                r#"b: invalid value "c""#,
                r#"c: invalid value "a""#,
            ],
        ),
        (vec![below("a", "gone")], vec![r#"a: invalid value "gone""#]),
    ] {
        let shown = shown(&quotas);
        assert_eq!(shown.len(), want.len(), "{shown:?}");
        for (shown, want) in shown.iter().zip(want) {
            assert!(shown.starts_with(want), "{shown}");
            assert!(
                shown.contains(PARENT) && shown.contains("expected"),
                "{shown}"
            );
        }
    }
}

#[test]
fn values_out_of_range_are_reported_with_field_and_range() {
    let bad = quota(
        "bad",
        json!({IS_PARENT: "maybe"}),
        json!({
            annotations::QUOTA_SHARED_WEIGHT: "{\"cpu\": -1}",
            annotations::QUOTA_TOTAL_RESOURCE: "lots",
            annotations::QUOTA_NAMESPACES: "team-a",
        }),
        json!({"min": {"cpu": 4, "gpu": 1}, "max": {"cpu": 2, "memory": -1}}),
    );
    let shown = shown(&[bad]);
    let want = [
        ["\"maybe\"", IS_PARENT, "true or false"],
        ["\"-1\"", "spec.max.memory", "at least 0"],
        ["\"4\"", "spec.min.cpu", "at most spec.max.cpu, 2"],
        ["\"1\"", "spec.min.gpu", "a resource that spec.max limits"],
        ["\"-1\"", "shared-weight].cpu", "at least 0"],
        ["\"lots\"", "total-resource", "a resource list as JSON"],
        ["\"team-a\"", "namespaces", "a list of names as JSON"],
    ];
    assert_eq!(shown.len(), want.len(), "{shown:?}");
    for (shown, parts) in shown.iter().zip(want) {
        assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
    }
}

#[test]
fn parent_without_the_label_and_other_trees_are_reported() {
    let leaf = quota("leaf", json!({}), json!({}), json!({}));
    let shown_leaf = shown(&[leaf, below("a", "leaf")]);
    assert_eq!(shown_leaf.len(), 1);
    assert!(shown_leaf[0].contains("is-parent=true"), "{shown_leaf:?}");
    let labels = json!({PARENT: "team", labels::QUOTA_TREE_ID: "t"});
    let shown_tree = shown(&[
        below("team", ROOT_QUOTA),
        quota("a", labels, json!({}), json!({})),
    ]);
    assert_eq!(shown_tree.len(), 1);
    assert!(shown_tree[0].contains("tree-id"), "{shown_tree:?}");
}

/// Verifies that a chain is walked once, not once per quota.
#[test]
fn deep_tree_is_checked_in_linear_time() {
    let mut quotas: Vec<_> = (1..50_000)
        .map(|n| below(&format!("q{n}"), &format!("q{}", n - 1)))
        .collect();
    quotas.push(below("q0", "q49999"));
    assert_eq!(problems(&quotas).len(), 50_000);
}
