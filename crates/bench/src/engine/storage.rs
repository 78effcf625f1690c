//! Claims and volumes of the scenario `volumes`, and a controller that provisions and binds volumes.

use super::objects::{NAMESPACE, added, node_name, parse};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use koord_scheduler::framework::{Action, ObjectChange, Verb, Write};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::sync::Arc;

const CLAIMS: &str = "persistentvolumeclaims.v1.";
const VOLUMES: &str = "persistentvolumes.v1.";
const DRIVER: &str = "disk.csi.example.com";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Zones of the bench's nodes.
const ZONES: usize = 10;

/// State of the claim of pod `number`: bound to a disk in a zone, waiting for its pod, or bound to a disk of
/// one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimKind {
    Zonal,
    Delayed,
    Local,
}

fn kind(number: usize) -> ClaimKind {
    [ClaimKind::Zonal, ClaimKind::Delayed, ClaimKind::Local][number % 3]
}

fn class_name(number: usize) -> &'static str {
    match kind(number) {
        ClaimKind::Zonal => "zonal",
        ClaimKind::Delayed => "delayed",
        ClaimKind::Local => "local",
    }
}

fn claim_name(number: usize) -> String {
    format!("data-db-{number}")
}

/// Returns how pod `number`, of a StatefulSet, differs from a basic one.
pub(crate) fn pod(number: usize) -> Value {
    json!({
        "metadata": {"labels": {"app": "db"}, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db", "controller": true}
        ]},
        "spec": {"volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": claim_name(number)}},
        ]},
    })
}

/// Returns all objects that exist before the pods.
pub(crate) fn objects(nodes: usize, pods: usize) -> Vec<ObjectChange> {
    let class = |name: &str, provisioner: &str, mode: &str| {
        let class: StorageClass = parse(json!({
            "metadata": {"name": name, "uid": name},
            "provisioner": provisioner, "volumeBindingMode": mode,
        }));
        added("storageclasses.v1.storage.k8s.io", class)
    };
    let driver: CSIDriver = parse(json!({
        "metadata": {"name": DRIVER, "uid": DRIVER}, "spec": {"storageCapacity": true},
    }));
    let mut out = vec![
        class("zonal", DRIVER, "Immediate"),
        class("delayed", DRIVER, "WaitForFirstConsumer"),
        class(
            "local",
            "kubernetes.io/no-provisioner",
            "WaitForFirstConsumer",
        ),
        added("csidrivers.v1.storage.k8s.io", driver),
    ];
    for zone in 0..ZONES {
        let name = format!("capacity-{zone}");
        let capacity: CSIStorageCapacity = parse(json!({
            "metadata": {"name": name, "namespace": "kube-system", "uid": name},
            "storageClassName": "delayed", "capacity": "100Ti",
            "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": format!("zone-{zone}")}},
        }));
        out.push(added("csistoragecapacities.v1.storage.k8s.io", capacity));
    }
    for node in (0..nodes).map(node_name) {
        let csi: CSINode = parse(json!({
            "metadata": {"name": node, "uid": node},
            "spec": {"drivers": [
                {"name": DRIVER, "nodeID": node, "allocatable": {"count": 25}, "topologyKeys": []},
            ]},
        }));
        out.push(added("csinodes.v1.storage.k8s.io", csi));
    }
    for number in 0..pods {
        let kind = kind(number);
        if kind != ClaimKind::Delayed {
            let volume = volume(number, number % nodes.max(1), kind == ClaimKind::Local);
            out.push(added(VOLUMES, volume));
        }
        out.push(added(
            CLAIMS,
            claim(number, kind != ClaimKind::Delayed, None),
        ));
    }
    out
}

fn claim(number: usize, is_bound: bool, node: Option<&str>) -> PersistentVolumeClaim {
    let name = claim_name(number);
    let mut claim = json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "annotations": {}},
        "spec": {"storageClassName": class_name(number), "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}}},
        "status": {"phase": "Pending"},
    });
    if let Some(node) = node {
        claim["metadata"]["annotations"][SELECTED_NODE] = json!(node);
    }
    if is_bound {
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        claim["spec"]["volumeName"] = json!(format!("pv-{number}"));
        claim["status"]["phase"] = json!("Bound");
    }
    parse(claim)
}

/// Returns the volume of a claim: on one node, or in its zone.
fn volume(number: usize, node: usize, is_local: bool) -> PersistentVolume {
    let zone = format!("zone-{}", node % ZONES);
    let (key, value) = match is_local {
        true => ("kubernetes.io/hostname", node_name(node)),
        false => ("topology.kubernetes.io/zone", zone.clone()),
    };
    let name = format!("pv-{number}");
    let mut volume = json!({
        "metadata": {"name": name, "uid": name, "labels": {}},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": NAMESPACE, "name": claim_name(number), "uid": claim_name(number)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": key, "operator": "In", "values": [value]},
            ]}]}},
        },
        "status": {"phase": "Bound"},
    });
    if is_local {
        volume["spec"]["local"] = json!({"path": "/mnt/disk"});
        volume["spec"]["storageClassName"] = json!("local");
    } else {
        volume["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(zone);
        volume["spec"]["csi"] = json!({"driver": DRIVER, "volumeHandle": name});
        volume["spec"]["storageClassName"] = json!(class_name(number));
    }
    parse(volume)
}

/// Makes and binds the volume for a claim for which the scheduler chose a node, and returns the informers'
/// changes.
pub(crate) fn provision(write: &Write, nodes: &FxHashMap<String, usize>) -> Vec<ObjectChange> {
    let (Verb::Patch(patch), "persistentvolumeclaims") = (&write.verb, write.plural) else {
        return Vec::new();
    };
    let node = patch["metadata"]["annotations"][SELECTED_NODE].as_str();
    let number = write
        .name
        .strip_prefix("data-db-")
        .and_then(|n| n.parse().ok());
    let (Some(node), Some(number)) = (node, number) else {
        return Vec::new();
    };
    let Some(at) = nodes.get(node) else {
        return Vec::new();
    };
    let volume = added(VOLUMES, volume(number, *at, false));
    let claim = ObjectChange {
        action: Action::UPDATE,
        old: Some(Arc::new(claim(number, false, None))),
        ..added(CLAIMS, claim(number, true, Some(node)))
    };
    vec![volume, claim]
}
