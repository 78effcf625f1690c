//! Tests of observed and admitted changes in any order.

use super::*;
use crate::webhook::quota::testing::{quota, topology};
use serde_json::{Value, json};

fn info(name: &str, words: Value) -> QuotaInfo {
    QuotaInfo::from_quota(&quota(name, words))
}

fn children(topology: &QuotaTopology, name: &str) -> Vec<String> {
    let children = topology.children(name);
    children.map(|child| child.name.clone()).collect()
}

/// Upstream's `TestNewQuotaTopology_QuotaHandler`, whose update moves a quota below an unknown one: there it
/// panics.
#[test]
fn a_watch_may_show_children_before_their_parents() {
    let mut all = topology([&quota("sub-1", json!({"parent": "temp"}))]);
    assert_eq!(children(&all, "temp"), ["sub-1"]);
    all.observe(info("temp", json!({"parent": "xxx", "isParent": true})));
    all.observe(info("sub-2", json!({"parent": "temp"})));
    assert_eq!((all.len(), children(&all, "temp").len()), (3, 2));
    all.observe(info("sub-2", json!({"parent": "yyy"})));
    assert_eq!(children(&all, "temp"), ["sub-1"]);
    assert_eq!(children(&all, "yyy"), ["sub-2"]);
    all.observe_deleted(&info("sub-2", json!({"parent": "yyy"})));
    assert_eq!((all.len(), children(&all, "yyy").len()), (2, 0));
}

#[test]
fn admission_counts_until_watch_includes_it() {
    let version_of = |version: &str, parent: &str| {
        info(
            "a",
            json!({"version": version, "parent": parent, "uid": "1"}),
        )
    };
    let mut all = QuotaTopology::default();
    all.observe(version_of("5", "old"));
    // The update of version 5 is admitted; a status write that was made before comes late.
    all.admit(QuotaWrite::Update(version_of("6", "new")));
    all.observe(version_of("6", "old"));
    assert_eq!(all.get("a").unwrap().parent, "new");
    all.observe(version_of("7", "new"));
    all.observe(version_of("8", "newer"));
    assert_eq!(all.get("a").unwrap().parent, "newer");
    // The quota is deleted and created again, before the watch shows either.
    all.admit(QuotaWrite::Delete(version_of("8", "newer")));
    assert!(all.get("a").is_none());
    all.observe(version_of("8", "newer"));
    assert!(all.get("a").is_none(), "the watch repeats what was there");
    all.admit(QuotaWrite::Create(info("a", json!({"parent": "next"}))));
    all.observe_deleted(&version_of("8", "newer"));
    assert_eq!(all.get("a").unwrap().parent, "next");
    all.observe(info(
        "a",
        json!({"version": "9", "parent": "next", "uid": "2"}),
    ));
    all.observe_deleted(&info(
        "a",
        json!({"version": "10", "parent": "next", "uid": "2"}),
    ));
    assert!(all.get("a").is_none());
}

#[test]
fn abandoned_admission_is_dropped() {
    let present = || {
        [
            info("kept", json!({"version": "1", "uid": "k"})),
            info("moved", json!({"version": "2", "parent": "p"})),
        ]
    };
    let mut all = QuotaTopology::default();
    all.resync(present());
    all.admit(QuotaWrite::Create(info("denied-elsewhere", json!({}))));
    all.admit(QuotaWrite::Update(info(
        "moved",
        json!({"version": "2", "parent": "q"}),
    )));
    all.admit(QuotaWrite::Delete(info(
        "kept",
        json!({"version": "1", "uid": "k"}),
    )));
    let shown = |all: &QuotaTopology| {
        let parent = all.get("moved").unwrap().parent.clone();
        (
            all.get("denied-elsewhere").is_some(),
            parent,
            all.get("kept").is_some(),
        )
    };
    // It may still be on its way at the next resync.
    all.resync(present());
    assert_eq!(shown(&all), (true, "q".to_owned(), false));
    assert_eq!(children(&all, "q"), ["moved"]);
    all.resync(present());
    assert_eq!(shown(&all), (false, "p".to_owned(), true));
    assert_eq!(children(&all, "q"), [""; 0]);
}

#[test]
fn older_quota_with_equal_name_counts_until_deleted() {
    let quota_at = |namespace: &str, created: i64| QuotaInfo {
        created,
        ..info("same", json!({"namespace": namespace}))
    };
    let mut all = QuotaTopology::default();
    all.observe(quota_at("young", 20));
    all.observe(quota_at("old", 10));
    assert_eq!(all.get("same").unwrap().namespace, "old");
    assert_eq!(all.observed_namespaces("same"), ["old", "young"]);
    all.observe(quota_at("young", 20));
    assert_eq!(all.get("same").unwrap().namespace, "old");
    all.observe_deleted(&quota_at("young", 20));
    assert_eq!(
        (all.get("same").is_some(), all.observed_namespaces("same")),
        (true, vec!["old"])
    );
    all.observe(quota_at("young", 20));
    all.observe_deleted(&quota_at("old", 10));
    all.resync([quota_at("young", 20)]);
    assert_eq!(all.get("same").unwrap().namespace, "young");
}

#[test]
fn quota_dump_matches_upstream() {
    let all = topology([
        &quota(
            "temp",
            json!({"isParent": true, "max": [4, "8Gi"], "min": [1, "1Gi"]}),
        ),
        &quota("sub", json!({"parent": "temp"})),
    ]);
    assert_eq!(
        serde_json::to_value(all.summary()).unwrap(),
        json!({
            "quotaInfoMap": {
                "sub": {"name": "sub", "parentName": "temp", "isParent": false, "allowLentResource": true, "max": {}, "min": {}},
                "temp": {"name": "temp", "parentName": "koordinator-root-quota", "isParent": true, "allowLentResource": true,
                    "max": {"cpu": "4", "memory": "8Gi"}, "min": {"cpu": "1", "memory": "1Gi"}},
            },
            "quotaHierarchyInfo": {"koordinator-root-quota": ["temp"], "temp": ["sub"], "sub": []},
        })
    );
}
