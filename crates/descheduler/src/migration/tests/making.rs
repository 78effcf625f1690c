use super::*;
use crate::migration::evict::{self, Policy};
use crate::migration::reservation;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;

fn pod(over: Value) -> Pod {
    let pod = json!({
        "metadata": {"namespace": "default", "name": "p", "uid": "uid-p", "managedFields": [], "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true}]},
        "spec": {"nodeName": "test-node", "containers": []},
    });
    serde_json::from_value(merged(pod, over)).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn build_reservation(job: &PodMigrationJob, pod: &Pod, without_claims: bool) -> Value {
    let options = reservation::options(job, pod, without_claims, now());
    let value = serde_json::to_value(reservation::object(&options)).unwrap();
    // The reservation is built from the job's options.
    let options = serde_json::to_value(options).unwrap();
    assert_eq!(options["template"]["spec"], value["spec"]);
    value
}

/// Upstream's four cases.
#[test]
fn a_reservation_is_made_from_the_pod_and_avoids_its_node() {
    let elsewhere = json!({"key": "metadata.name", "operator": "NotIn", "values": ["test-node"]});
    let job = job("uid-of-job", "p", json!({"spec": {"ttl": "5m"}}));
    let value = build_reservation(&job, &pod(json!({})), false);
    assert_eq!(value["metadata"]["name"], "uid-of-job");
    let labels = json!({"app.kubernetes.io/created-by": "koord-descheduler",
        "scheduling.koordinator.sh/reservation-order": now().as_millisecond().to_string()});
    assert_eq!(value["metadata"]["labels"], labels);
    let spec = &value["spec"];
    assert_eq!(spec["allocateOnce"], true);
    assert_eq!(spec["ttl"], "5m0s");
    let controller = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true,
        "namespace": "default"});
    assert_eq!(spec["owners"], json!([{"controller": controller}]));
    let template = &spec["template"];
    assert!(template["spec"].get("nodeName").is_none(), "{template}");
    let affinity = |template: &Value| {
        template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"]
            .clone()
    };
    assert_eq!(affinity(template), json!([{"matchFields": [elsewhere]}]));
    assert_eq!(template["metadata"]["namespace"], "default");
    assert!(template["metadata"].get("resourceVersion").is_none());
    // Terms are alternatives, so each of them gets the requirement.
    let expression = |key: &str| json!([{"key": key, "operator": "In", "values": ["xxxx"]}]);
    let terms =
        json!([{"matchExpressions": expression("a")}, {"matchExpressions": expression("b")}]);
    let required =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}},
        {"name": "m", "configMap": {"name": "c"}}]);
    let full = pod(json!({"spec": {"affinity": {"nodeAffinity": required}, "volumes": volumes}}));
    let value = build_reservation(&job, &full, false);
    let template = &value["spec"]["template"];
    let expected: Vec<_> = ["a", "b"]
        .map(|key| json!({"matchExpressions": expression(key), "matchFields": [elsewhere]}))
        .into();
    assert_eq!(affinity(template), json!(expected));
    assert_eq!(template["spec"]["volumes"].as_array().unwrap().len(), 3);
    let value = build_reservation(&job, &full, true);
    let template_volumes = &value["spec"]["template"]["spec"]["volumes"];
    assert_eq!(
        template_volumes.as_array().unwrap().len(),
        1,
        "{template_volumes}"
    );
}

#[test]
fn user_reservation_options_are_kept() {
    let template = json!({"metadata": {"name": "mine", "labels": {"a": "b"}},
        "spec": {"ttl": "1h", "allocateOnce": false, "owners": [{"labelSelector": {}}],
            "template": {"spec": {"containers": [{"name": "c"}]}}}});
    let options = json!({"spec": {"ttl": "5m", "reservationOptions": {"template": template}}});
    let job = job("j", "p", options);
    assert_eq!(reservation::name(&job), "mine");
    let value = build_reservation(&job, &pod(json!({})), false);
    assert_eq!(value["metadata"]["name"], "mine");
    assert_eq!(value["metadata"]["labels"]["a"], "b");
    assert_eq!(value["spec"]["ttl"], "1h0m0s");
    assert_eq!(value["spec"]["owners"], json!([{"labelSelector": {}}]));
    assert_eq!(value["spec"]["allocateOnce"], true);
    let containers = &value["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["name"], "c");
}

#[test]
fn owner_of_an_unscheduled_pod_is_matched_by_itself() {
    let status =
        json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]});
    let waits = pod(json!({"spec": {"nodeName": null}, "status": status}));
    let value = build_reservation(&job("j", "p", json!({})), &waits, false);
    let object = json!({"kind": "Pod", "namespace": "default", "name": "p", "uid": "uid-p"});
    assert_eq!(value["spec"]["owners"], json!([{"object": object}]));
    let spec = serde_json::from_value(value["spec"].clone()).unwrap();
    assert!(reservation::is_for_pending(&spec));
    assert!(value["spec"]["template"]["spec"].get("affinity").is_none());
    assert!(value["spec"].get("ttl").is_none());
    let bound = build_reservation(&job("j", "p", json!({})), &pod(json!({})), false);
    let spec = serde_json::from_value(bound["spec"].clone()).unwrap();
    assert!(!reservation::is_for_pending(&spec));
}

#[test]
fn labels_choose_how_a_pod_is_evicted() {
    let labels = |policy: &str| {
        BTreeMap::from([("koordinator.sh/evict-policy".to_owned(), policy.to_owned())])
    };
    for (pod, job, expected) in [
        (None, None, Policy::Eviction),
        (Some("Delete"), Some("SoftEviction"), Policy::Delete),
        (None, Some("SoftEviction"), Policy::SoftEviction),
        (Some(""), Some("Delete"), Policy::Delete),
        (Some("Nothing"), Some("Delete"), Policy::Eviction),
    ] {
        let (pod_labels, job_labels) = (pod.map(labels), job.map(labels));
        let policy = Policy::resolve(pod_labels.as_ref(), job_labels.as_ref(), Policy::Eviction);
        assert_eq!(policy, expected, "{pod:?} {job:?}");
    }
}

#[test]
fn soft_eviction_has_initiator_time_and_reason() {
    let annotations = json!({"koordinator.sh/evict-reason": "test-reason", "koordinator.sh/evict-trigger": "test-initiator"});
    let over = json!({"metadata": {"annotations": annotations}, "spec": {"deleteOptions": {"gracePeriodSeconds": 7}}});
    let text = evict::soft(&job("j", "p", over), now()).unwrap();
    let parsed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(parsed["initiator"], "test-initiator");
    assert_eq!(parsed["reason"], "test-reason");
    assert_eq!(parsed["timestamp"], "2026-01-01T12:00:00Z");
    assert_eq!(parsed["deleteOptions"]["gracePeriodSeconds"], 7);
    assert_eq!(evict::reason(&job("j", "p", json!({}))), "NotSet");
    let trigger = json!({"metadata": {"annotations": {"koordinator.sh/evict-trigger": "T"}}});
    assert_eq!(evict::reason(&job("j", "p", trigger)), "T");
}
