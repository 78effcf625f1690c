//! Upstream's tables of `pkg/webhook/elasticquota` about pods.

use super::*;
use crate::webhook::quota::testing::{quota, topology};
use serde_json::{Value, json};

fn pod(namespace: &str, labels: Value) -> Pod {
    serde_json::from_value(
        json!({"metadata": {"name": "pod", "namespace": namespace, "labels": labels}}),
    )
    .unwrap()
}

fn pod_of(name: &str) -> Pod {
    pod("default", json!({ labels::POD_QUOTA_NAME: name }))
}

#[test]
fn quota_comes_from_label_or_namespace() {
    let all = topology([
        &quota(
            "parent-quota",
            json!({"namespace": "test-ns", "isParent": true}),
        ),
        &quota("test-ns", json!({"namespace": "test-ns"})),
        &quota("elsewhere", json!({"namespace": "test-ns"})),
        &quota("claims", json!({"namespaces": ["claimed", "test-ns"]})),
        &quota("claims-too", json!({"namespaces": ["claimed"]})),
    ]);
    let belongs = |pod: &Pod, no_default| {
        quota_of(
            &all,
            pod,
            PodRules {
                no_default,
                ..PodRules::default()
            },
        )
        .to_owned()
    };
    for (namespace, label, want, want_without_default) in [
        ("", "", DEFAULT_QUOTA, ""),
        ("default", "test-quota", "test-quota", "test-quota"),
        ("test-ns", "", "test-ns", ""),
        ("elsewhere", "", DEFAULT_QUOTA, ""),
        ("claimed", "", "claims", ""),
    ] {
        let pod = pod(namespace, json!({ labels::POD_QUOTA_NAME: label }));
        assert_eq!(belongs(&pod, false), want, "{namespace} {label}");
        assert_eq!(
            belongs(&pod, true),
            want_without_default,
            "{namespace} {label}"
        );
    }
}

#[test]
fn quota_with_children_refuses_pods() {
    let all = topology([
        &quota("temp", json!({"isParent": true})),
        &quota("sub-1", json!({"parent": "temp"})),
        &quota("sub-2", json!({"parent": "temp"})),
    ]);
    let strict = PodRules::default();
    let lax = PodRules {
        parents_accept_pods: true,
        ..strict
    };
    assert_eq!(check(&all, None, &pod_of("sub-1"), strict), Ok(()));
    assert_eq!(
        check(&all, Some(&pod_of("sub-1")), &pod_of("sub-2"), strict),
        Ok(())
    );
    let refusal = check(&all, None, &pod_of("temp"), strict).unwrap_err();
    assert_eq!(
        refusal.0,
        "pod can not be linked to a parentQuotaGroup,quota:temp, pod:pod"
    );
    assert_eq!(
        check(&all, Some(&pod_of("temp")), &pod_of("sub-2"), strict),
        Ok(())
    );
    assert!(check(&all, Some(&pod_of("sub-2")), &pod_of("temp"), strict).is_err());
    assert_eq!(
        check(&all, Some(&pod_of("sub-2")), &pod_of("temp"), lax),
        Ok(())
    );
    assert_eq!(
        check(&all, Some(&pod_of("temp")), &pod_of("default"), strict),
        Ok(()),
        "unknown quotas are the default's"
    );
    let mut leaving = pod_of("temp");
    leaving.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(
        check(&all, Some(&pod_of("temp")), &leaving, strict),
        Ok(()),
        "its finalizers must go"
    );
}

#[test]
fn whether_a_pod_is_preemptible_stays() {
    let labelled = |value: &str| pod("default", json!({ labels::POD_PREEMPTIBLE: value }));
    let all = topology([]);
    let lax = PodRules {
        parents_accept_pods: true,
        ..PodRules::default()
    };
    assert_eq!(
        check(&all, Some(&labelled("false")), &labelled("false"), lax),
        Ok(())
    );
    let refusal = check(&all, Some(&labelled("false")), &pod_of("a"), lax)
        .unwrap_err()
        .0;
    assert!(
        refusal.starts_with("Preemptible label is forbidden modify now"),
        "{refusal}"
    );
    assert!(
        refusal.contains(labels::POD_PREEMPTIBLE) && refusal.contains("\"false\" to \"\""),
        "{refusal}"
    );
}

#[test]
fn only_relevant_quotas_are_charged() {
    let mut all = topology([
        &quota("quota1", json!({})),
        &quota("quota2", json!({})),
        &quota("twice", json!({})),
        &quota(DEFAULT_QUOTA, json!({})),
        &quota(koord_api::quota::SYSTEM_QUOTA, json!({})),
    ]);
    all.observe(super::super::info::QuotaInfo::from_quota(&quota(
        "twice",
        json!({"namespace": "other"}),
    )));
    let on = PodRules {
        admission: true,
        ..PodRules::default()
    };
    let on_update = PodRules {
        admission_on_update: true,
        ..on
    };
    let ns = |name: &str| Ok(Some(ObjectKey::new("ns", name)));
    let refusal = |text: &str| Err(Refusal(text.to_owned()));
    let rows = [
        (None, "quota1", PodRules::default(), Ok(None)),
        (None, "quota1", on, ns("quota1")),
        (
            None,
            "quota3",
            on,
            refusal("elastic quota quota3 not found"),
        ),
        (
            None,
            "twice",
            on,
            refusal("more than one elastic quota twice found"),
        ),
        (None, "", on, Ok(None)),
        // Built-in ones are not checked, whether they exist or not.
        (None, DEFAULT_QUOTA, on, Ok(None)),
        (None, koord_api::quota::ROOT_QUOTA, on, Ok(None)),
        (None, koord_api::quota::SYSTEM_QUOTA, on, Ok(None)),
        (Some("quota1"), "quota2", on, Ok(None)),
        (Some("quota1"), "quota1", on_update, Ok(None)),
        (Some("quota1"), "quota2", on_update, ns("quota2")),
    ];
    for (old, new, rules, want) in rows {
        let old = old.map(pod_of);
        assert_eq!(
            to_charge(&all, old.as_ref(), &pod_of(new), rules),
            want,
            "{new} {rules:?}"
        );
    }
}

#[test]
fn resources_are_replaced_where_both_gates_are_on() {
    let replaced = |text: &str| {
        let gates = Gates::parse(crate::GATES, text).unwrap();
        PodRules::from_gates(&gates).replace_resources
    };
    assert!(!replaced("ElasticQuotaEvaluationTransformPod=true"));
    assert!(!replaced("ReplaceResourcesTransformer=true"));
    assert!(replaced(
        "ElasticQuotaEvaluationTransformPod=true,ReplaceResourcesTransformer=true"
    ));
}
