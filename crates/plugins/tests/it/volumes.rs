//! Volume plugins: the nodes that they allow, and the volumes of claims.

mod nodes;
mod scores;
mod sharing;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use koord_scheduler::engine::{Engine, Output};
use koord_scheduler::framework::{Action, ObjectChange, Verb};
use serde_json::{Value, json};
use std::any::Any;
use std::sync::Arc;

const ALL: [&str; 4] = [
    "VolumeBinding",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeZone",
];

/// Kind and content of objects.
type Objects = Vec<(&'static str, Value)>;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn typed(kind: &str, value: Value) -> (&'static str, Arc<dyn Any + Send + Sync>) {
    fn read<T: serde::de::DeserializeOwned + Send + Sync + 'static>(
        value: Value,
    ) -> Arc<dyn Any + Send + Sync> {
        Arc::new(serde_json::from_value::<T>(value).unwrap())
    }
    match kind {
        "pvc" => (
            "persistentvolumeclaims.v1.",
            read::<PersistentVolumeClaim>(value),
        ),
        "pv" => ("persistentvolumes.v1.", read::<PersistentVolume>(value)),
        "sc" => (
            "storageclasses.v1.storage.k8s.io",
            read::<StorageClass>(value),
        ),
        "csinode" => ("csinodes.v1.storage.k8s.io", read::<CSINode>(value)),
        "driver" => ("csidrivers.v1.storage.k8s.io", read::<CSIDriver>(value)),
        "capacity" => (
            "csistoragecapacities.v1.storage.k8s.io",
            read::<CSIStorageCapacity>(value),
        ),
        "attachment" => (
            "volumeattachments.v1.storage.k8s.io",
            read::<VolumeAttachment>(value),
        ),
        other => panic!("{other}"),
    }
}

fn set(engine: &mut Engine, kind: &str, value: Value) {
    let (kind, new) = typed(kind, value);
    let change = ObjectChange {
        kind,
        action: Action::ADD,
        old: None,
        new,
    };
    let change = engine.plugins().as_delivered(change);
    engine.object_changed(&change, at(0));
}

fn merge(mut base: Value, change: &Value) -> Value {
    for (key, value) in change.as_object().into_iter().flatten() {
        base[key] = if value.is_object() && base[key].is_object() {
            merge(base[key].clone(), value)
        } else {
            value.clone()
        };
    }
    base
}

/// Builds a claim of 1Gi; `change` is merged in.
fn claim(name: &str, class: &str, change: Value) -> Value {
    let base = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("claim-{name}")},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}
    });
    merge(base, &change)
}

/// Builds a claim that is bound to `volume`.
fn bound(name: &str, volume: &str) -> Value {
    let change = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": volume}, "status": {"phase": "Bound"}
    });
    claim(name, "made", change)
}

fn volume(name: &str, class: &str, change: Value) -> Value {
    let base = json!({
        "metadata": {"name": name, "uid": format!("volume-{name}"), "resourceVersion": "7"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "capacity": {"storage": "1Gi"}},
        "status": {"phase": "Available"}
    });
    merge(base, &change)
}

/// Returns node affinity for nodes of this zone.
fn zone_affinity(zone: &str) -> Value {
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
    ]}]}}}})
}

fn class(name: &str, provisioner: &str, mode: &str, change: Value) -> Value {
    let base = json!({"metadata": {"name": name}, "provisioner": provisioner,
        "volumeBindingMode": mode});
    merge(base, &change)
}

fn uses(claims: &[&str]) -> Value {
    let volume = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    claims.iter().map(volume).collect()
}

fn pod(name: &str, volumes: Value, node: Option<&str>) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("pod-{name}")},
            "spec": {"nodeName": node, "containers": [{"name": "c"}], "volumes": volumes}
        }))
        .unwrap(),
    )
}

/// Builds a cluster with node `a` in zone a and node `b` in zone b; classes `late` and `static` wait for
/// their first consumer, `made` binds immediately.
fn cluster() -> Engine {
    let mut engine = crate::small::engine(&ALL, json!({}));
    for name in ["a", "b"] {
        node(
            &mut engine,
            name,
            json!({"topology.kubernetes.io/zone": name}),
        );
    }
    let wait = "WaitForFirstConsumer";
    set(
        &mut engine,
        "sc",
        class("late", "csi.example", wait, json!({})),
    );
    let by_hand = "kubernetes.io/no-provisioner";
    set(&mut engine, "sc", class("static", by_hand, wait, json!({})));
    set(
        &mut engine,
        "sc",
        class("made", "csi.example", "Immediate", json!({})),
    );
    engine
}

fn node(engine: &mut Engine, name: &str, labels: Value) {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name, "labels": labels},
        "status": {"allocatable": {"pods": "100"}}
    }))
    .unwrap();
    engine.node_applied(Arc::new(node), at(0));
}

/// Returns the outputs of the engine: a node to bind to, a message, or a write.
fn outputs(engine: &mut Engine) -> Vec<String> {
    let text = |output| match output {
        Output::Bind(bind) => format!("bind {}", bind.node),
        Output::Failed(failure) => failure.message.to_string(),
        Output::Write(write) => match write.verb {
            Verb::Patch(body) => format!("{}/{} {body}", write.plural, write.name),
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    };
    let mut out = engine.take_outputs();
    out.retain(|output| !matches!(output, Output::Expect { .. }));
    out.into_iter().map(text).collect()
}

fn place(engine: &mut Engine, pod: Arc<Pod>) -> Vec<String> {
    engine.take_outputs();
    engine.pod_applied(pod, at(0));
    engine.schedule_one(at(0)).unwrap();
    outputs(engine)
}

/// Returns `0/2 nodes are available: …` for a reason that applies to all nodes.
fn both(reason: &str) -> String {
    format!("0/2 nodes are available: 2 {reason}.")
}

fn no(reason: &str) -> String {
    format!("0/2 nodes are available: {reason}.")
}

const CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
const NONE: &str = "node(s) didn't find available persistent volumes to bind";
const NO_ROOM: &str = "node(s) did not have enough free storage";
const GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

#[test]
fn claims_restrict_nodes() {
    let big = json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}});
    let capacity = |zone: &str, size: &str| {
        json!({"metadata": {"name": format!("c{zone}"), "namespace": "x"},
            "storageClassName": "late", "capacity": size,
            "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": zone}}})
    };
    let asks = json!({"metadata": {"name": "csi.example"}, "spec": {"storageCapacity": true}});
    let silent = json!({"metadata": {"name": "csi.example"}, "spec": {"storageCapacity": false}});
    let ephemeral = json!([{"name": "scratch", "ephemeral": {}}]);
    let owned = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod",
        "name": "p", "uid": "pod-p", "controller": true}],
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "v"}});
    let topologies = json!({"allowedTopologies": [{"matchLabelExpressions": [
        {"key": "topology.kubernetes.io/zone", "values": ["b"]}]}]});
    let wait = "WaitForFirstConsumer";
    let selected = |node: &str| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
    // Columns: case, objects, the pod's volumes, the message or the start of the first output.
    let rows: Vec<(&str, Objects, Value, String)> = vec![
        ("no volumes", vec![], json!([]), "bind".into()),
        ("volumes without claims", vec![], json!([{"name": "x", "emptyDir": {}}]), "bind".into()),
        ("bound, reachable from b",
            vec![("pvc", bound("c", "v")), ("pv", volume("v", "made", zone_affinity("b")))],
            uses(&["c"]), "bind b".into()),
        ("bound, reachable from nowhere",
            vec![("pvc", bound("c", "v")), ("pv", volume("v", "made", zone_affinity("z")))],
            uses(&["c"]), both(CONFLICT)),
        ("bound twice, in different zones",
            vec![("pvc", bound("c", "v")), ("pv", volume("v", "made", zone_affinity("a"))),
                ("pvc", bound("d", "w")), ("pv", volume("w", "made", zone_affinity("b")))],
            uses(&["c", "d"]), both(CONFLICT)),
        ("no such claim", vec![], uses(&["c"]), no("persistentvolumeclaim \"c\" not found")),
        ("immediate and unbound", vec![("pvc", claim("c", "made", json!({})))], uses(&["c"]),
            no("pod has unbound immediate PersistentVolumeClaims")),
        ("prebound and not complete",
            vec![("pvc", claim("c", "late", json!({"spec": {"volumeName": "v"}})))], uses(&["c"]),
            no("pod has unbound immediate PersistentVolumeClaims")),
        ("lost", vec![("pvc", claim("c", "late",
            json!({"spec": {"volumeName": "v"}, "status": {"phase": "Lost"}})))], uses(&["c"]),
            no("persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"")),
        ("deleting", vec![("pvc", claim("c", "late",
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})))], uses(&["c"]),
            no("persistentvolumeclaim \"c\" is being deleted")),
        ("ephemeral, not made yet", vec![], ephemeral.clone(),
            no("waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-scratch\"")),
        ("ephemeral, of another pod", vec![("pvc", bound("p-scratch", "v"))], ephemeral.clone(),
            no("PVC \"ns/p-scratch\" was not created for pod \"ns/p\" (pod is not owner)")),
        ("ephemeral, own",
            vec![("pvc", claim("p-scratch", "made", owned)), ("pv", volume("v", "made", zone_affinity("b")))],
            ephemeral, "bind b".into()),
        ("late, by hand, no volume", vec![("pvc", claim("c", "static", json!({})))], uses(&["c"]),
            both(NONE)),
        ("late, by hand, a volume in b",
            vec![("pvc", claim("c", "static", json!({}))), ("pv", volume("v", "static", zone_affinity("b")))],
            uses(&["c"]), "persistentvolumes/v".into()),
        ("late, by hand, too small",
            vec![("pvc", claim("c", "static", big.clone())), ("pv", volume("v", "static", json!({})))],
            uses(&["c"]), both(NONE)),
        ("late, by hand, other mode",
            vec![("pvc", claim("c", "static", json!({"spec": {"volumeMode": "Block"}}))),
                ("pv", volume("v", "static", json!({})))],
            uses(&["c"]), both(NONE)),
        ("late, by hand, other access",
            vec![("pvc", claim("c", "static", json!({"spec": {"accessModes": ["ReadWriteMany"]}}))),
                ("pv", volume("v", "static", json!({})))],
            uses(&["c"]), both(NONE)),
        ("late, by hand, released",
            vec![("pvc", claim("c", "static", json!({}))),
                ("pv", volume("v", "static", json!({"status": {"phase": "Released"}})))],
            uses(&["c"]), both(NONE)),
        ("late, by hand, another's",
            vec![("pvc", claim("c", "static", json!({}))),
                ("pv", volume("v", "static", json!({"spec": {"claimRef": {"namespace": "ns", "name": "d"}}})))],
            uses(&["c"]), both(NONE)),
        ("late, by hand, labels",
            vec![("pvc", claim("c", "static", json!({"spec": {"selector": {"matchLabels": {"k": "x"}}}}))),
                ("pv", volume("v", "static", json!({})))],
            uses(&["c"]), both(NONE)),
        ("late, by hand, two claims and one volume",
            vec![("pvc", claim("c", "static", json!({}))), ("pvc", claim("d", "static", json!({}))),
                ("pv", volume("v", "static", json!({})))],
            uses(&["c", "d"]), both(NONE)),
        ("late, the smallest that suits",
            vec![("pvc", claim("c", "static", json!({}))),
                ("pv", volume("large", "static", json!({"spec": {"capacity": {"storage": "9Gi"}}}))),
                ("pv", volume("small", "static", json!({"spec": {"capacity": {"storage": "2Gi"}}})))],
            uses(&["c"]), "persistentvolumes/small".into()),
        ("late, the one that names the claim",
            vec![("pvc", claim("c", "static", json!({}))),
                ("pv", volume("large", "static",
                    json!({"spec": {"capacity": {"storage": "9Gi"}, "claimRef": {"namespace": "ns", "name": "c"}}}))),
                ("pv", volume("small", "static", json!({})))],
            uses(&["c"]), "persistentvolumes/large".into()),
        ("late, to be made", vec![("pvc", claim("c", "late", json!({})))], uses(&["c"]),
            "persistentvolumeclaims/c".into()),
        ("late, made in b only",
            vec![("sc", class("late", "csi.example", wait, topologies)), ("pvc", claim("c", "late", json!({}))),
                ("pvc", bound("d", "w")), ("pv", volume("w", "made", zone_affinity("a")))],
            uses(&["c", "d"]),
            "0/2 nodes are available: 1 node(s) didn't find available persistent volumes to bind, \
             1 node(s) didn't match PersistentVolume's node affinity.".into()),
        ("late, room in b",
            vec![("driver", asks.clone()), ("capacity", capacity("a", "1Gi")),
                ("capacity", capacity("b", "9Gi")), ("pvc", claim("c", "late", big.clone()))],
            uses(&["c"]), "persistentvolumeclaims/c {\"metadata\":{\"annotations\":{\"volume.kubernetes.io/selected-node\":\"b\"}".into()),
        ("late, room nowhere",
            vec![("driver", asks), ("capacity", capacity("a", "1Gi")), ("pvc", claim("c", "late", big.clone()))],
            uses(&["c"]), both(NO_ROOM)),
        ("late, the driver does not care",
            vec![("driver", silent), ("capacity", capacity("a", "1Gi")), ("pvc", claim("c", "late", big))],
            uses(&["c"]), "persistentvolumeclaims/c".into()),
        ("late, chosen for b", vec![("pvc", claim("c", "late", selected("b")))], uses(&["c"]),
            "persistentvolumeclaims/c {\"metadata\":{\"annotations\":{\"volume.kubernetes.io/selected-node\":\"b\"}".into()),
        ("late, chosen for a node that is gone", vec![("pvc", claim("c", "late", selected("z")))],
            uses(&["c"]), both(NONE)),
    ];
    for (case, objects, volumes, expected) in rows {
        let mut engine = cluster();
        for (kind, value) in objects {
            set(&mut engine, kind, value);
        }
        let out = place(&mut engine, pod("p", volumes, None));
        assert!(out[0].starts_with(&expected), "{case}: {out:?}");
    }
    // Without VolumeZone, VolumeBinding reports a volume that does not exist.
    let mut engine = crate::small::engine(&["VolumeBinding"], json!({}));
    node(&mut engine, "a", json!({}));
    set(&mut engine, "pvc", bound("c", "v"));
    let out = place(&mut engine, pod("p", uses(&["c"]), None));
    assert_eq!(out, [format!("0/1 nodes are available: 1 {GONE}.")]);
}

fn assigned(name: &str, claim: &str) -> Value {
    volume(
        name,
        "static",
        json!({"spec": {"claimRef": {"kind": "PersistentVolumeClaim",
        "namespace": "ns", "name": claim, "uid": format!("claim-{claim}")}}, "status": {"phase": "Bound"}}),
    )
}

#[test]
fn pod_is_bound_after_its_claim() {
    let mut engine = cluster();
    set(&mut engine, "pvc", claim("c", "static", json!({})));
    set(&mut engine, "pv", volume("v", "static", zone_affinity("b")));
    let out = place(&mut engine, pod("p", uses(&["c"]), None));
    assert_eq!(out.len(), 1, "{out:?}");
    for part in [
        "persistentvolumes/v",
        "\"uid\":\"claim-c\"",
        "\"pv.kubernetes.io/bound-by-controller\":\"yes\"",
        "\"resourceVersion\":\"7\"",
    ] {
        assert!(out[0].contains(part), "{part}: {out:?}");
    }
    // In the meantime, no other claim gets the volume.
    set(&mut engine, "pvc", claim("d", "static", json!({})));
    let other = place(&mut engine, pod("q", uses(&["d"]), None));
    assert_eq!(other, [both(NONE)]);

    set(
        &mut engine,
        "pv",
        merge(assigned("v", "c"), &zone_affinity("b")),
    );
    assert_eq!(outputs(&mut engine), [""; 0]);
    let mut finished = bound("c", "v");
    finished["spec"]["storageClassName"] = json!("static");
    set(&mut engine, "pvc", finished);
    assert_eq!(outputs(&mut engine), ["bind b"]);
}

#[test]
fn failed_claim_binding_requeues_the_pod() {
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "a"}}});
    let start = |engine: &mut Engine, class: &str| {
        set(engine, "pvc", claim("c", class, json!({})));
        // The pod is placed where its other claim is.
        set(engine, "pvc", bound("here", "w"));
        set(engine, "pv", volume("w", "made", zone_affinity("a")));
        if class == "static" {
            set(engine, "pv", volume("v", "static", json!({})));
        }
        let out = place(engine, pod("p", uses(&["c", "here"]), None));
        assert!(
            out.len() == 1 && out[0].starts_with("persistentvolume"),
            "{out:?}"
        );
    };
    let failed = |out: &[String], text: &str| {
        assert!(out.len() == 1 && out[0].contains(text), "{text}: {out:?}");
    };

    let mut engine = cluster();
    start(&mut engine, "late");
    set(&mut engine, "pvc", claim("c", "late", selected));
    assert_eq!(outputs(&mut engine), [""; 0]);
    set(&mut engine, "pvc", claim("c", "late", json!({})));
    failed(
        &outputs(&mut engine),
        "binding volumes: provisioning failed for PVC \"c\"",
    );

    let mut engine = cluster();
    start(&mut engine, "static");
    set(&mut engine, "pv", assigned("v", "stranger"));
    failed(
        &outputs(&mut engine),
        "binding volumes: pv \"v\" went to another claim",
    );

    let mut engine = cluster();
    start(&mut engine, "static");
    set(&mut engine, "pv", assigned("v", "c"));
    set(&mut engine, "pv", volume("v", "static", json!({})));
    failed(
        &outputs(&mut engine),
        "binding volumes: ClaimRef got reset for pv \"v\"",
    );

    // Writes that are not observed are sent again; after ten minutes, the pod is retried.
    let mut engine = cluster();
    start(&mut engine, "late");
    assert_eq!(engine.next_deadline(), Some(at(10)));
    assert!(engine.schedule_one(at(10)).is_none());
    failed(&outputs(&mut engine), "persistentvolumeclaims/c");
    while engine.next_deadline().is_some_and(|next| next < at(600)) {
        let next = engine.next_deadline().unwrap();
        assert!(engine.schedule_one(next).is_none());
    }
    outputs(&mut engine);
    engine.schedule_one(at(600));
    let out = outputs(&mut engine);
    let timeout = "rejected due to timeout after waiting 10m0s at plugin VolumeBinding";
    assert!(out.iter().any(|text| text.contains(timeout)), "{out:?}");
    assert_eq!(errors(&mut engine), [("bind".to_owned(), 1.0)]);
    assert_eq!(errors(&mut engine), []);
}

/// Returns the failures that were counted since the last call.
fn errors(engine: &mut Engine) -> Vec<(String, f64)> {
    let (_, values) = engine.inspector().read(at(0)).into_parts();
    let errors = values
        .into_iter()
        .filter(|reading| reading.family.name == "scheduler_volume_scheduling_stage_error_total");
    errors
        .map(|reading| (reading.labels.join(","), reading.value))
        .collect()
}

#[test]
fn pod_deleted_while_binding_volumes_holds_no_volumes() {
    let leaving: [fn(&mut Pod); 2] = [
        |pod| {
            pod.metadata.deletion_timestamp =
                Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap())
        },
        |pod| pod.spec.as_mut().unwrap().scheduler_name = Some("another".to_owned()),
    ];
    for leave in leaving {
        let mut engine = cluster();
        set(&mut engine, "pvc", claim("c", "static", json!({})));
        set(&mut engine, "pvc", claim("d", "static", json!({})));
        set(&mut engine, "pv", volume("v", "static", json!({})));
        let waiting = pod("p", uses(&["c"]), None);
        assert!(place(&mut engine, waiting.clone())[0].starts_with("persistentvolumes/v"));
        let mut leaving = (*waiting).clone();
        leave(&mut leaving);
        engine.pod_applied(Arc::new(leaving), at(1));
        assert_eq!(engine.cluster().booked(), (0, 0));
        let other = place(&mut engine, pod("q", uses(&["d"]), None));
        assert!(other[0].starts_with("persistentvolumes/v"), "{other:?}");
    }
}
