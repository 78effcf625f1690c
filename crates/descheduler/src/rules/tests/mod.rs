use super::*;
use crate::rules::SkipReason;
use crate::testing::{TestCluster, merged};
use serde_json::{Value, json};

mod budget;
mod fit;
mod order;

/// Returns a pod without an owner, like in upstream's tests.
fn bare(over: Value) -> Value {
    merged(json!({"metadata": {"ownerReferences": []}}), over)
}

fn owned_by(kind: &str, over: Value) -> Value {
    let owners = json!([{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "o"}]);
    merged(json!({"metadata": {"ownerReferences": owners}}), over)
}

fn annotated(annotations: Value) -> Value {
    json!({"metadata": {"annotations": annotations}})
}

fn rule(rules: &Evictable, pod: Value) -> &'static str {
    let pod = TestCluster::default().pod("p", "n", pod);
    match rules.check(&pod) {
        Ok(()) => "",
        Err(SkipReason { rule, .. }) => rule,
    }
}

/// Upstream's `TestIsEvictable`, except for its cases of node fit, which are in `fit.rs`.
#[test]
fn rules_keep_the_pods_that_upstream_keeps() {
    let evict = || annotated(json!({"descheduler.alpha.kubernetes.io/evict": "true"}));
    let failed = || bare(json!({"status": {"phase": "Failed"}}));
    let local = || {
        owned_by(
            "Pod",
            json!({"spec": {"volumes": [
                {"name": "sample", "hostPath": {"path": "somePath"}, "emptyDir": {"sizeLimit": "10"}},
            ]}}),
        )
    };
    let claim = || {
        owned_by(
            "Pod",
            json!({"spec": {"volumes": [
                {"name": "test-pvc", "persistentVolumeClaim": {"claimName": "test-pvc"}},
            ]}}),
        )
    };
    let mirror = || {
        let annotations =
            json!({"kubernetes.io/config.source": "api", "kubernetes.io/config.mirror": "mirror"});
        owned_by("Pod", annotated(annotations))
    };
    let priority = |value: i32| owned_by("Pod", json!({"spec": {"priority": value}}));
    let labelled = || owned_by("Pod", json!({"metadata": {"labels": {"test": "value"}}}));
    let strict = Evictable::default;
    let below = || Evictable {
        priority_threshold: Some(800),
        ..strict()
    };
    let critical = || Evictable {
        evict_system_critical_pods: true,
        ..below()
    };
    let selecting = |value: &str| Evictable {
        label_selector: Some(
            serde_json::from_value(json!({"matchLabels": {"test": value}})).unwrap(),
        ),
        ..strict()
    };
    let failed_ones = || Evictable {
        evict_failed_bare_pods: true,
        ..strict()
    };
    let all_bare = || Evictable {
        evict_all_bare_pods: true,
        ..strict()
    };
    let cases = [
        (failed(), strict(), "BarePods"),
        (bare(json!({})), failed_ones(), "BarePods"),
        (failed(), failed_ones(), ""),
        (bare(json!({})), all_bare(), ""),
        (failed(), all_bare(), ""),
        (owned_by("Pod", json!({})), strict(), ""),
        (owned_by("Pod", evict()), strict(), ""),
        (owned_by("Pod", json!({})), strict(), ""),
        (owned_by("ReplicaSet", evict()), strict(), ""),
        (owned_by("Pod", json!({})), strict(), ""),
        (owned_by("StatefulSet", evict()), strict(), ""),
        (local(), strict(), "LocalStorage"),
        (
            local(),
            Evictable {
                evict_local_storage_pods: true,
                ..strict()
            },
            "",
        ),
        (merged(local(), evict()), strict(), ""),
        (
            owned_by("DaemonSet", json!({})),
            strict(),
            "OwnedByDaemonSet",
        ),
        (owned_by("DaemonSet", evict()), strict(), ""),
        (mirror(), strict(), "Mirror"),
        // Upstream evicts this pod, although it would come back to the same node.
        (merged(mirror(), evict()), strict(), "Mirror"),
        (priority(2_000_000_000), strict(), "SystemCritical"),
        (merged(priority(2_000_000_000), evict()), strict(), ""),
        (priority(900), below(), "PriorityThreshold"),
        (merged(priority(900), evict()), below(), ""),
        (priority(2_000_000_000), critical(), ""),
        (merged(priority(2_000_000_000), evict()), critical(), ""),
        (priority(900), critical(), ""),
        (merged(priority(900), evict()), critical(), ""),
        (labelled(), selecting("value"), ""),
        (labelled(), selecting("xxx"), "LabelSelector"),
        (
            claim(),
            Evictable {
                ignore_pvc_pods: true,
                ..strict()
            },
            "PVC",
        ),
        (claim(), strict(), ""),
    ];
    for (at, (pod, rules, expected)) in cases.into_iter().enumerate() {
        assert_eq!(rule(&rules, pod.clone()), expected, "case {at}: {pod}");
    }
}

#[test]
fn evict_annotation_spares_static_and_leaving_pods() {
    let evict = annotated(json!({"descheduler.alpha.kubernetes.io/evict": ""}));
    let cases = [
        (json!({}), true),
        (
            annotated(json!({"kubernetes.io/config.mirror": "x"})),
            false,
        ),
        (
            annotated(json!({"kubernetes.io/config.source": "file"})),
            false,
        ),
        (
            annotated(json!({"kubernetes.io/config.source": "api"})),
            true,
        ),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            false,
        ),
    ];
    for (pod, expected) in cases {
        let plain = TestCluster::default().pod("p", "n", pod.clone());
        let annotated_pod = TestCluster::default().pod("p", "n", merged(pod, evict.clone()));
        assert!(!overrides(&plain));
        assert_eq!(overrides(&annotated_pod), expected, "{annotated_pod:?}");
        assert_eq!(Evictable::default().check(&plain).is_ok(), expected);
    }
}

#[test]
fn priority_threshold_is_inclusive() {
    let below = Evictable {
        priority_threshold: Some(800),
        ..Evictable::default()
    };
    for (priority, kept) in [
        (json!(799), ""),
        (json!(800), "PriorityThreshold"),
        (json!(null), ""),
    ] {
        let pod = json!({"spec": {"priority": priority}});
        assert_eq!(rule(&below, pod), kept);
    }
}

#[test]
fn selection_names_the_excluding_argument() {
    let selection = |namespaces: Value, selectors: Value| PodSelection {
        namespaces: serde_json::from_value(namespaces).unwrap(),
        selectors: serde_json::from_value(selectors).unwrap(),
    };
    let pod = TestCluster::default().pod("p", "n", json!({"metadata": {"labels": {"app": "web"}}}));
    let web = json!({"name": "web", "selector": {"matchLabels": {"app": "web"}}});
    let db = json!({"name": "db", "selector": {"matchLabels": {"app": "db"}}});
    let cases = [
        (json!(null), json!([]), ""),
        (json!({"include": ["default"]}), json!([]), ""),
        (json!({"include": ["other"]}), json!([]), "Namespaces"),
        (json!({"exclude": ["default"]}), json!([]), "Namespaces"),
        (json!({"exclude": ["other"]}), json!([db, web]), ""),
        (json!(null), json!([db]), "PodSelectors"),
        (json!(null), json!([{"name": "all"}]), ""),
        (json!(null), json!([db, {"name": "all"}]), "PodSelectors"),
    ];
    for (namespaces, selectors, expected) in cases {
        let selection = selection(namespaces, selectors);
        assert_eq!(selection.check(), Ok(()));
        let rule = selection
            .admits(&pod)
            .err()
            .map_or("", |reason| reason.rule);
        assert_eq!(rule, expected, "{selection:?}");
    }
    let both_lists = selection(json!({"include": ["a"], "exclude": ["b", "c"]}), json!([]));
    let error = both_lists.check().unwrap_err();
    assert_eq!(
        error,
        "evictableNamespaces: only one of include (a) and exclude (b, c) can be given"
    );
    let unknown =
        json!([web, {"selector": {"matchExpressions": [{"key": "k", "operator": "Is"}]}}]);
    let error = selection(json!(null), unknown).check().unwrap_err();
    assert!(
        error.starts_with("podSelectors[1].selector: ") && error.contains("\"Is\""),
        "{error}"
    );
}
