//! Pods as a cluster's workloads make them: with an owner, labels of a Service, the tolerations and the
//! token volume that admission adds.

use super::objects::{NAMESPACE, added, node_name, parse};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Service;
use koord_scheduler::framework::ObjectChange;
use serde_json::{Value, json};

/// Deployments of the scenario of that name.
pub(crate) const DEPLOYMENTS: usize = 1000;

/// Returns the template hash of a Deployment's only revision.
fn hash(deployment: usize) -> String {
    format!(
        "{:08x}",
        deployment.wrapping_mul(2_654_435_761) & 0xffff_ffff
    )
}

fn labels(deployment: usize) -> Value {
    json!({"app": format!("web-{deployment:04}"), "pod-template-hash": hash(deployment)})
}

/// Returns the ReplicaSet of a Deployment.
pub(crate) fn replica_set(deployment: usize) -> ObjectChange {
    let set: ReplicaSet = parse(json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": set_name(deployment), "namespace": NAMESPACE, "uid": set_name(deployment)},
        "spec": {"selector": {"matchLabels": labels(deployment)},
            "template": {"metadata": {"labels": labels(deployment)}, "spec": {"containers": [
                {"name": "c", "image": "registry.k8s.io/pause:3.10"}]}}},
    }));
    added("replicasets.v1.apps", set)
}

/// Returns the Service of a Deployment.
pub(crate) fn service(deployment: usize) -> ObjectChange {
    let name = format!("web-{deployment:04}");
    let service: Service = parse(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    }));
    added("services.v1.", service)
}

fn set_name(deployment: usize) -> String {
    format!("web-{deployment:04}-{}", hash(deployment))
}

/// Returns the fields that admission adds to each pod: two tolerations, and a volume with a token.
fn admission_fields() -> Value {
    let tolerated = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    json!({
        "tolerations": [
            tolerated("node.kubernetes.io/not-ready"), tolerated("node.kubernetes.io/unreachable"),
        ],
        "volumes": [
            {"name": "kube-api-access", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt"}},
            ]}},
            {"name": "settings", "configMap": {"name": "settings"}},
        ],
        "serviceAccountName": "default",
    })
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true,
        "blockOwnerDeletion": true}])
}

/// Returns how a pod of a Deployment differs from a basic one.
pub(crate) fn replica(deployment: usize) -> Value {
    json!({
        "metadata": {"labels": labels(deployment),
            "ownerReferences": owner("ReplicaSet", &set_name(deployment))},
        "spec": admission_fields(),
    })
}

/// Returns how the pod of DaemonSet `set` on node `number` differs from a basic one.
pub(crate) fn daemon(set: usize, number: usize) -> Value {
    let name = format!("agent-{set}");
    let mut spec = admission_fields();
    let everywhere =
        |key: &str, effect: &str| json!({"key": key, "operator": "Exists", "effect": effect});
    spec["tolerations"] = json!([
        everywhere("node.kubernetes.io/not-ready", "NoExecute"),
        everywhere("node.kubernetes.io/unreachable", "NoExecute"),
        everywhere("node.kubernetes.io/disk-pressure", "NoSchedule"),
        everywhere("node.kubernetes.io/memory-pressure", "NoSchedule"),
        everywhere("node.kubernetes.io/pid-pressure", "NoSchedule"),
        everywhere("node.kubernetes.io/unschedulable", "NoSchedule"),
    ]);
    spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node_name(number)]},
        ]}],
    }}});
    json!({
        "metadata": {"labels": {"app": name}, "ownerReferences": owner("DaemonSet", &name)},
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_set_has_matching_labels_and_named_containers() {
        let change = replica_set(7);
        let set = change.new_as::<ReplicaSet>().unwrap();
        let spec = set.spec.as_ref().unwrap();
        // The API server requires that the selector matches the template's labels, and that it has a named
        // container.
        let template = spec.template.as_ref().unwrap();
        let labels = template.metadata.as_ref().unwrap().labels.as_ref();
        assert_eq!(spec.selector.match_labels.as_ref(), labels);
        let containers = &template.spec.as_ref().unwrap().containers;
        let named = |name: &Option<String>| name.as_deref().is_some_and(|name| !name.is_empty());
        assert!(!containers.is_empty());
        assert!(
            containers
                .iter()
                .all(|c| !c.name.is_empty() && named(&c.image))
        );
    }
}
