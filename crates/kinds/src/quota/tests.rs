use super::*;
use crate::Registry;
use serde_json::json;
use std::sync::Arc;

fn resource(group: &str, plural: &str) -> Arc<Resource> {
    Registry::builtin().find(group, "v1", plural).unwrap()
}

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn quota(spec: Value, hard: Value, used: Value) -> Quota {
    Quota::from_status(&json!({"metadata": {"name": "q"}, "spec": spec,
        "status": {"hard": hard, "used": used}}))
}

fn pod(resources: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": resources}]},
        "status": {"qosClass": "Burstable"}})
}

fn amounts(list: &ResourceList) -> Value {
    let shown = list.iter().map(|(k, v)| (k.clone(), v.to_string().into()));
    Value::Object(shown.collect())
}

#[test]
fn a_pod_asks_for_the_most_it_has_at_once() {
    let cpu = |n: &str| json!({"requests": {"cpu": n}});
    let pod = json!({"spec": {
        "containers": [{"resources": cpu("1")}, {"resources": cpu("2")}],
        "initContainers": [
            {"resources": cpu("3")},
            {"resources": cpu("500m"), "restartPolicy": "Always"},
            {"resources": cpu("5")}],
        "overhead": {"cpu": "100m", "memory": "1Mi"}}});
    // The last init container together with the sidecar started before it: 5.5, more than 1 + 2 + 0.5.
    assert_eq!(amounts(&total(&pod, "requests")), json!({"cpu": "5500m"}));
    let used = usage(&resource("", "pods"), &pod, now());
    assert_eq!(
        amounts(&used),
        json!({"count/pods": "1", "pods": "1", "cpu": "5600m", "requests.cpu": "5600m",
            "memory": "1Mi", "requests.memory": "1Mi"})
    );
    let entire = json!({"spec": {"containers": [{"resources": cpu("1")}],
        "resources": {"requests": {"cpu": "4", "x/y": "1"}}}});
    assert_eq!(amounts(&total(&entire, "requests")), json!({"cpu": "4"}));
}

#[test]
fn pods_that_ended_are_only_counted() {
    let pods = resource("", "pods");
    let mut ended = pod(json!({"requests": {"cpu": "1"}}));
    ended["status"]["phase"] = "Failed".into();
    assert_eq!(
        amounts(&usage(&pods, &ended, now())),
        json!({"count/pods": "1"})
    );
    let mut dying = pod(json!({"requests": {"cpu": "1"}}));
    dying["metadata"] = json!({"deletionTimestamp": "2026-03-01T11:59:31Z",
        "deletionGracePeriodSeconds": 30});
    assert!(usage(&pods, &dying, now()).contains_key("pods"));
    dying["metadata"]["deletionTimestamp"] = "2026-03-01T11:59:29Z".into();
    assert!(!usage(&pods, &dying, now()).contains_key("pods"));
}

#[test]
fn quota_violations_have_upstream_texts() {
    let pods = resource("", "pods");
    let q = quota(
        json!({}),
        json!({"requests.example.com/gpu": "2", "pods": "2", "requests.cpu": "1", "requests.memory": "1Gi"}),
        json!({"requests.example.com/gpu": "0", "pods": "1", "requests.cpu": "600m", "requests.memory": "1Mi"}),
    );
    let charge = |resources| q.charge(&pods, &pod(resources), None, now());
    // Responses of kube-apiserver 1.35.
    assert_eq!(
        charge(json!({})).unwrap_err(),
        "failed quota: q: must specify requests.cpu for: c; requests.memory for: c"
    );
    let gpu =
        |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Mi", "example.com/gpu": "3"}});
    assert_eq!(
        charge(gpu("600m")).unwrap_err(),
        "exceeded quota: q, requested: requests.cpu=600m,requests.example.com/gpu=3, used: \
         requests.cpu=600m,requests.example.com/gpu=0, limited: \
         requests.cpu=1,requests.example.com/gpu=2"
    );
    let used = charge(json!({"requests": {"cpu": "400m", "memory": "1Mi"}}));
    assert_eq!(
        amounts(&used.unwrap().unwrap()),
        json!({"requests.example.com/gpu": "0", "pods": "2", "requests.cpu": "1",
            "requests.memory": "2Mi"})
    );
    let unknown = quota(json!({}), json!({"pods": "1"}), json!({}));
    assert_eq!(
        unknown
            .charge(&pods, &pod(json!({})), None, now())
            .unwrap_err(),
        "status unknown for quota: q, resources: pods"
    );
    let negative = quota(
        json!({}),
        json!({"requests.x/y": "1"}),
        json!({"requests.x/y": "0"}),
    );
    let below = pod(json!({"requests": {"x/y": "-1"}}));
    assert_eq!(
        negative.charge(&pods, &below, None, now()).unwrap_err(),
        "quota usage is negative for resource(s): requests.x/y"
    );
}

#[test]
fn batch_resources_count() {
    let hard = json!({"requests.kubernetes.io/batch-cpu": "2k",
        "requests.kubernetes.io/batch-memory": "1Gi"});
    let used = json!({"requests.kubernetes.io/batch-cpu": "1500",
        "requests.kubernetes.io/batch-memory": "0"});
    let q = quota(json!({}), hard, used);
    let batch = |cpu: &str| pod(json!({"requests": {"kubernetes.io/batch-cpu": cpu}}));
    let pods = resource("", "pods");
    assert!(
        q.charge(&pods, &batch("500"), None, now())
            .unwrap()
            .is_some()
    );
    assert_eq!(
        q.charge(&pods, &batch("501"), None, now()).unwrap_err(),
        "exceeded quota: q, requested: requests.kubernetes.io/batch-cpu=501, used: \
         requests.kubernetes.io/batch-cpu=1500, limited: requests.kubernetes.io/batch-cpu=2k"
    );
}

#[test]
fn scopes_choose_pods() {
    let pods = resource("", "pods");
    let class = |operator: &str, values: Value| {
        json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass",
            "operator": operator, "values": values}]}})
    };
    let mut batch = pod(json!({}));
    batch["spec"]["priorityClassName"] = "koord-batch".into();
    batch["status"]["qosClass"] = "BestEffort".into();
    let mut plain = pod(json!({}));
    plain["spec"]["activeDeadlineSeconds"] = 5.into();
    let distant =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["x"]}]});
    plain["spec"]["affinity"] = json!({"podAntiAffinity": distant});
    for (spec, in_batch, in_plain) in [
        (json!({}), true, true),
        (json!({"scopes": ["BestEffort"]}), true, false),
        (json!({"scopes": ["NotBestEffort"]}), false, true),
        (json!({"scopes": ["Terminating"]}), false, true),
        (
            json!({"scopes": ["NotTerminating", "BestEffort"]}),
            true,
            false,
        ),
        (
            json!({"scopes": ["CrossNamespacePodAffinity"]}),
            false,
            true,
        ),
        (class("In", json!(["koord-batch", "x"])), true, false),
        (class("NotIn", json!(["koord-batch"])), false, true),
        (class("Exists", json!([])), true, false),
        (class("DoesNotExist", json!([])), false, true),
    ] {
        let q = quota(spec.clone(), json!({"pods": "9"}), json!({"pods": "0"}));
        assert_eq!(q.matches(&pods, &batch), in_batch, "{spec}");
        assert_eq!(q.matches(&pods, &plain), in_plain, "{spec}");
    }
    // Only pods have scopes.
    let scoped = quota(
        json!({"scopes": ["BestEffort"]}),
        json!({"services": "1"}),
        json!({}),
    );
    assert!(!scoped.matches(&resource("", "services"), &json!({})));
}

#[test]
fn objects_count_under_their_names() {
    let used = |group: &str, plural: &str, object: Value| {
        amounts(&usage(&resource(group, plural), &object, now()))
    };
    assert_eq!(
        used("apps", "deployments", json!({})),
        json!({"count/deployments.apps": "1"})
    );
    assert_eq!(
        used("", "configmaps", json!({})),
        json!({"count/configmaps": "1", "configmaps": "1"})
    );
    let balanced = json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}});
    assert_eq!(
        used("", "services", balanced),
        json!({"count/services": "1", "services": "1", "services.nodeports": "2",
            "services.loadbalancers": "1"})
    );
    let claim = json!({"spec": {"storageClassName": "gold",
        "resources": {"requests": {"storage": "5Gi"}}}});
    assert_eq!(
        used("", "persistentvolumeclaims", claim),
        json!({"count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1",
            "requests.storage": "5Gi",
            "gold.storageclass.storage.k8s.io/requests.storage": "5Gi",
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1"})
    );
}

#[test]
fn an_update_pays_for_the_difference() {
    let services = resource("", "services");
    let hard = json!({"services": "1", "services.nodeports": "1"});
    let used = json!({"services": "1", "services.nodeports": "0"});
    let q = quota(json!({}), hard, used);
    let service = |kind: &str, ports: usize| json!({"spec": {"type": kind, "ports": vec![json!({"port": 1}); ports]}});
    let old = service("ClusterIP", 2);
    assert_eq!(q.charge(&services, &old, Some(&old), now()), Ok(None));
    let one_port = service("NodePort", 1);
    let used = q
        .charge(&services, &one_port, Some(&old), now())
        .unwrap()
        .unwrap();
    assert_eq!(
        amounts(&used),
        json!({"services": "1", "services.nodeports": "1"})
    );
    let two_ports = service("NodePort", 2);
    let error = q
        .charge(&services, &two_ports, Some(&old), now())
        .unwrap_err();
    assert_eq!(
        error,
        "exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=0, limited: \
         services.nodeports=1"
    );
}
