//! Tests of the rules over snapshots.

use super::*;
use crate::check::outcome::Status;
use crate::fetch::Fetched;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T01:00:00Z";
const LONG_AGO: &str = "2026-01-01T00:00:00Z";

/// Returns a cluster without objects.
fn empty() -> Snapshot {
    let none = || Fetched::Read(Vec::new());
    Snapshot {
        now: NOW.parse().unwrap(),
        namespace: "koordinator-system".to_owned(),
        server_version: "v1.35.0".to_owned(),
        group_versions: none_groups(),
        namespace_object: Fetched::Read(None),
        nodes: none(),
        pods: none(),
        deployments: none(),
        daemon_sets: none(),
        leases: none(),
        budgets: none(),
        mutating: none(),
        validating: none(),
        endpoint_slices: none(),
        webhook_secret: Fetched::Read(None),
        definitions: none(),
        access: Vec::new(),
        priority_classes: none(),
        node_metrics: none(),
        node_slos: none(),
        quotas: none(),
        pod_groups: none(),
        reservations: none(),
        migration_jobs: none(),
        profiles: none(),
        devices: none(),
        topologies: none(),
        slo_config: Fetched::Read(None),
        up_addresses: Fetched::Read(None),
        kubelets: Vec::new(),
    }
}

fn none_groups() -> Fetched<Vec<String>> {
    let groups = [
        "admissionregistration.k8s.io/v1",
        "apiextensions.k8s.io/v1",
        "apps/v1",
        "coordination.k8s.io/v1",
        "policy/v1",
        "resource.k8s.io/v1",
        "discovery.k8s.io/v1",
    ];
    Fetched::Read(groups.map(str::to_owned).to_vec())
}

fn some(object: Value) -> Fetched<Vec<Value>> {
    Fetched::Read(vec![object])
}

/// Applies the rule of `id`.
fn outcome(id: &str, snapshot: &Snapshot) -> Outcome {
    let check = CHECKS.iter().find(|check| check.id == id).unwrap();
    (check.rule)(snapshot)
}

fn deployment(ready: i64) -> Value {
    json!({"metadata": {"name": "koord-manager", "generation": 1, "labels": {"koord-app": "koord-manager"}},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "x/koord-manager:1"}]}}},
        "status": {"observedGeneration": 1, "readyReplicas": ready, "updatedReplicas": 2}})
}

fn lease(renewed: &str) -> Value {
    json!({"metadata": {"name": "koordinator-manager"}, "spec": {"holderIdentity": "koord-manager-1_a",
        "leaseDurationSeconds": 15, "renewTime": renewed}})
}

/// Returns `object` with the time of its creation.
fn created(mut object: Value, time: &str) -> Value {
    object["metadata"]["creationTimestamp"] = time.into();
    object
}

fn webhooks(policy: &str, bundle: &str) -> Value {
    json!({"metadata": {"name": "koordinator-mutating-webhook-configuration"}, "webhooks": [
        {"name": "mpod-create.koordinator.sh", "failurePolicy": policy, "timeoutSeconds": 5,
            "clientConfig": {"caBundle": bundle, "service": {"name": "koordinator-webhook-service"}}}]})
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": "v1.34.1"},
        "allocatable": {"cpu": "4"}}})
}

fn koordlet(name: &str, image: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "koordinator-system", "labels": {"koord-app": "koordlet"}},
        "spec": {"nodeName": "a", "containers": [{"image": image}]}, "status": {"phase": "Running"}})
}

fn report(updated: &str) -> Value {
    json!({"metadata": {"name": "a"}, "status": {"updateTime": updated}})
}

fn quota(name: &str, parent: &str, min: &str, used: &str) -> Value {
    let labels = json!({"quota.scheduling.koordinator.sh/parent": parent,
        "quota.scheduling.koordinator.sh/is-parent": if parent.is_empty() { "true" } else { "false" }});
    json!({"metadata": {"name": name, "namespace": "d", "labels": labels},
        "spec": {"min": {"cpu": min}, "max": {"cpu": "10"}}, "status": {"used": {"cpu": used}}})
}

fn gang(needed: i64) -> Value {
    json!({"metadata": {"name": "g", "namespace": "d", "creationTimestamp": LONG_AGO},
        "spec": {"minMember": needed}})
}

fn member() -> Value {
    json!({"metadata": {"name": "p", "namespace": "d", "creationTimestamp": LONG_AGO,
        "labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "message": "0/1 nodes"}]}})
}

/// For each check a cluster in which it is ok and one in which it is not.
#[test]
fn checks_fire_only_with_a_problem() {
    type Change = fn(&mut Snapshot);
    let table: &[(&str, Change, Status, Change)] = &[
        (
            "A-02",
            |_| (),
            Status::Failed,
            |s| "v1.27.3".clone_into(&mut s.server_version),
        ),
        (
            "A-02",
            |_| (),
            Status::Warning,
            |s| "v1.99.0-rc.1".clone_into(&mut s.server_version),
        ),
        (
            "A-03",
            |_| (),
            Status::Failed,
            |s| s.group_versions = Fetched::Read(Vec::new()),
        ),
        (
            "A-04",
            |_| (),
            Status::Warning,
            |s| {
                s.nodes = some(json!({"metadata": {"name": "a"}, "status": {"conditions": [
                {"lastHeartbeatTime": "2026-01-01T02:00:00Z"}]}}));
            },
        ),
        (
            "A-05",
            |s| s.nodes = some(node("a")),
            Status::Failed,
            |s| "v1.33.0".clone_into(&mut s.server_version),
        ),
        (
            "C-01",
            |s| s.deployments = some(deployment(2)),
            Status::Failed,
            |s| s.deployments = some(deployment(0)),
        ),
        (
            "C-01",
            |s| s.deployments = some(deployment(2)),
            Status::Warning,
            |s| s.deployments = some(deployment(1)),
        ),
        (
            "C-06",
            |s| s.leases = some(lease("2026-01-01T00:59:50Z")),
            Status::Failed,
            |s| s.leases = some(lease(LONG_AGO)),
        ),
        (
            "C-08",
            |s| s.pods = some(koordlet("k", "x/koordlet:1")),
            Status::Warning,
            |s| {
                s.pods = Fetched::Read(vec![
                    koordlet("k", "x/koordlet:1"),
                    koordlet("l", "r/koordinator-sh/koordlet:v1"),
                ]);
            },
        ),
        (
            "W-01",
            |s| {
                s.mutating = some(webhooks("Ignore", ""));
                let mut validating = webhooks("Ignore", "");
                validating["metadata"]["name"] =
                    "koordinator-validating-webhook-configuration".into();
                s.validating = some(validating);
            },
            Status::Warning,
            |s| s.mutating = Fetched::Read(Vec::new()),
        ),
        (
            "W-04",
            |s| {
                s.mutating = some(webhooks("Ignore", ""));
                s.endpoint_slices =
                    some(json!({"metadata": {"labels": {"kubernetes.io/service-name":
                "koordinator-webhook-service"}}, "endpoints": [{"conditions": {"ready": true}}]}));
            },
            Status::Failed,
            |s| s.endpoint_slices = Fetched::Read(Vec::new()),
        ),
        (
            "W-06",
            |s| s.mutating = some(webhooks("Ignore", "")),
            Status::Warning,
            |s| {
                s.mutating = some(webhooks("Fail", ""));
                s.namespace_object =
                    Fetched::Read(Some(json!({"metadata": {"name": "koordinator-system"}})));
            },
        ),
        (
            "W-07",
            |s| s.mutating = some(webhooks("Fail", "")),
            Status::Warning,
            |s| {
                let mut single = deployment(1);
                single["spec"]["replicas"] = 1.into();
                s.deployments = some(single);
            },
        ),
        (
            "D-04",
            |s| s.access = vec![("koordlet: get nodes".to_owned(), Fetched::Read(true))],
            Status::Failed,
            |s| s.access = vec![("koordlet: get nodes".to_owned(), Fetched::Read(false))],
        ),
        (
            "N-01",
            |s| {
                s.nodes = some(node("a"));
                s.pods = some(koordlet("k", "i"));
            },
            Status::Warning,
            |s| s.nodes = some(node("b")),
        ),
        (
            "N-02",
            |s| s.pods = some(koordlet("k", "i")),
            Status::Failed,
            |s| s.pods = Fetched::Read(vec![koordlet("k", "i"), koordlet("l", "i")]),
        ),
        (
            "N-03",
            |s| {
                s.nodes = some(node("a"));
                s.node_metrics = some(report("2026-01-01T00:59:00Z"));
            },
            Status::Failed,
            |s| s.node_metrics = some(report(LONG_AGO)),
        ),
        (
            "N-03",
            |s| s.nodes = some(created(node("a"), "2026-01-01T00:59:00Z")),
            Status::Failed,
            |s| s.nodes = some(created(node("a"), LONG_AGO)),
        ),
        (
            "N-03",
            |s| {
                s.nodes = some(node("a"));
                s.node_metrics = some(created(report(""), "2026-01-01T00:59:00Z"));
            },
            Status::Failed,
            |s| s.node_metrics = some(created(report(""), LONG_AGO)),
        ),
        (
            "N-10",
            |s| s.kubelets = vec![("a".to_owned(), Fetched::Read(json!({"kubeletconfig": {}})))],
            Status::Warning,
            |s| {
                s.kubelets = vec![(
                    "a".to_owned(),
                    Fetched::Read(json!({"kubeletconfig": {"cpuCFSQuota": false}})),
                )]
            },
        ),
        (
            "F-01",
            |s| {
                s.slo_config = Fetched::Read(Some(
                    json!({"data": {"colocation-config": "{\"enable\": true}"}}),
                ))
            },
            Status::Failed,
            |s| s.slo_config = Fetched::Read(Some(json!({"data": {"colocation-config": "{"}}))),
        ),
        (
            "F-03",
            |s| {
                s.nodes = some(node("a"));
                s.node_slos = some(node("a"));
            },
            Status::Warning,
            |s| s.node_slos = Fetched::Read(Vec::new()),
        ),
        (
            "F-04",
            |s| s.priority_classes = Fetched::Read(koord_api::priority_class_values().to_vec()),
            Status::Failed,
            |s| {
                s.profiles =
                    some(json!({"metadata": {"name": "p"}, "spec": {"priorityClassName": "none"}}))
            },
        ),
        ("S-01", |_| (), Status::Warning, |s| s.pods = some(member())),
        (
            "S-02",
            |s| s.quotas = Fetched::Read(vec![quota("a", "", "4", "0"), quota("b", "a", "4", "0")]),
            Status::Failed,
            |s| s.quotas = Fetched::Read(vec![quota("a", "", "4", "0"), quota("b", "a", "5", "0")]),
        ),
        (
            "S-02",
            |_| (),
            Status::Warning,
            |s| s.quotas = some(quota("a", "", "4", "11")),
        ),
        (
            "S-02",
            |_| (),
            Status::Failed,
            |s| s.quotas = some(quota("a", "none", "4", "0")),
        ),
        (
            "S-03",
            |s| {
                s.pod_groups = some(gang(1));
                s.pods = some(member());
            },
            Status::Failed,
            |s| s.pod_groups = some(gang(2)),
        ),
        (
            "S-04",
            |_| (),
            Status::Warning,
            |s| {
                s.reservations = some(json!({"metadata": {"name": "r",
            "creationTimestamp": LONG_AGO}, "status": {"phase": "Pending"}}))
            },
        ),
        (
            "S-05",
            |_| (),
            Status::Warning,
            |s| {
                s.migration_jobs = some(json!({"metadata": {"name": "j"},
            "status": {"phase": "Failed", "reason": "Timeout"}}))
            },
        ),
        (
            "S-05",
            |_| (),
            Status::Failed,
            |s| {
                s.migration_jobs = some(json!({"metadata": {"name": "j",
            "creationTimestamp": LONG_AGO}, "spec": {"ttl": "1m"}, "status": {"phase": "Running"}}))
            },
        ),
    ];
    for (id, fine, status, problem) in table {
        let mut snapshot = empty();
        fine(&mut snapshot);
        let found = outcome(id, &snapshot);
        assert_eq!(found.status, Status::Ok, "{id}: {found:?}");
        problem(&mut snapshot);
        let found = outcome(id, &snapshot);
        assert_eq!(found.status, *status, "{id}: {found:?}");
    }
}

#[test]
fn empty_ca_bundle_fails() {
    let mut snapshot = empty();
    snapshot.mutating = some(webhooks("Ignore", "Cg=="));
    assert_eq!(outcome("W-02", &snapshot).status, Status::Failed);
    assert_eq!(outcome("W-03", &snapshot).status, Status::Skipped);
}

#[test]
fn webhooks_in_the_process_of_koord_up_have_no_certificate() {
    let mut snapshot = empty();
    snapshot.mutating = some(webhooks("Fail", ""));
    snapshot.up_addresses = Fetched::Read(Some(json!({})));
    for id in ["W-02", "W-03", "W-04", "W-06", "W-07"] {
        let found = outcome(id, &snapshot);
        let why = "the webhooks run in the process of `koord up`";
        assert_eq!(found, Outcome::skipped(why), "{id}");
    }
}

#[test]
fn refused_read_is_skipped_never_ok() {
    let mut snapshot = empty();
    snapshot.pods = Fetched::Forbidden("list pods".to_owned());
    for id in ["S-01", "S-03", "N-01", "N-02", "C-07", "C-08", "C-09"] {
        let found = outcome(id, &snapshot);
        assert_eq!(found, Outcome::skipped("needs list pods"), "{id}");
    }
}

#[test]
fn ids_are_unique() {
    let ids: std::collections::BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
}
