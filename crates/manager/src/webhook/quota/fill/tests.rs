//! Upstream's `TestQuotaTopology_fillQuotaDefaultInformation`.

use super::*;
use crate::webhook::quota::testing::{quota, topology};
use serde_json::{Value, json};

fn filled(quotas: &[ElasticQuota], words: Value) -> (String, String, String) {
    let mut quota = quota("new", words);
    let set = defaults(&topology(quotas), &quota).unwrap();
    let mut all = std::mem::take(&mut quota.metadata.labels).unwrap();
    all.extend(
        set.labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone())),
    );
    quota.metadata.labels = Some(all);
    let weight = set.annotations.get(annotations::QUOTA_SHARED_WEIGHT);
    let weight = weight.map_or(
        quota.annotation(annotations::QUOTA_SHARED_WEIGHT),
        String::as_str,
    );
    (
        quota.label(labels::QUOTA_PARENT).to_owned(),
        quota.label(labels::QUOTA_TREE_ID).to_owned(),
        weight.to_owned(),
    )
}

#[test]
fn parent_tree_and_weight_are_filled_in() {
    let max = json!([120, 1048576]);
    let (cpu, memory) = (json!({"cpu": 0}), json!({"memory": 1048576}));
    let plain = quota("temp2", json!({"max": max}));
    let in_tree = quota("temp2", json!({"max": max, "tree": "tree-1"}));
    let weight = r#"{"cpu":"120","memory":"1048576"}"#;
    let rows = [
        (None, json!({"max": max}), (ROOT_QUOTA, "", weight)),
        (
            Some(&plain),
            json!({"max": max, "parent": "temp2"}),
            ("temp2", "", weight),
        ),
        (
            Some(&in_tree),
            json!({"max": max, "parent": "temp2"}),
            ("temp2", "tree-1", weight),
        ),
        (
            None,
            json!({"max": max, "tree": "tree-1"}),
            (ROOT_QUOTA, "tree-1", weight),
        ),
        (
            None,
            json!({"max": max, "weight": {"cpu": "0", "memory": "0"}}),
            (ROOT_QUOTA, "", r#"{"cpu":"0","memory":"0"}"#),
        ),
        (
            None,
            json!({"max": memory, "weight": {"cpu": "0", "memory": "0"}}),
            (ROOT_QUOTA, "", r#"{"memory":"0"}"#),
        ),
        (
            None,
            json!({"max": max, "weight": cpu}),
            (ROOT_QUOTA, "", r#"{"cpu":"0","memory":"1048576"}"#),
        ),
        (
            None,
            json!({"max": memory, "weight": cpu}),
            (ROOT_QUOTA, "", r#"{"memory":"1048576"}"#),
        ),
        // Of nothing there is no weight; upstream writes "null".
        (None, json!({}), (ROOT_QUOTA, "", "")),
    ];
    for (parent, words, (label, tree, weight)) in rows {
        let parents: Vec<_> = parent.into_iter().cloned().collect();
        let want = (label.to_owned(), tree.to_owned(), weight.to_owned());
        assert_eq!(filled(&parents, words.clone()), want, "{words}");
    }
}

#[test]
fn impossible_defaults_are_refused() {
    let refusal = |fields| {
        defaults(&topology([]), &quota("new", fields))
            .unwrap_err()
            .0
    };
    assert_eq!(
        refusal(json!({"parent": "none"})),
        "fill quota new failed, parent not exist: none"
    );
    let refusal = refusal(json!({"annotations": {annotations::QUOTA_SHARED_WEIGHT: "heavy"}}));
    assert!(
        refusal.contains("/shared-weight") && refusal.contains("heavy"),
        "{refusal}"
    );
    let root = quota(ROOT_QUOTA, json!({"max": [1, 1]}));
    assert_eq!(defaults(&topology([]), &root), Ok(Defaults::default()));
}
