//! Tests of what informers keep of each kind: every field that rules read and nothing else. The expected
//! fields are listed here independently of the trimming code.

use crate::common::topologies::TrimmedTopology;
use crate::device_share::DeviceObject;
use crate::volumes::{TrimmedAttachment, TrimmedClaim, TrimmedVolume};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use koord_api::scheduling::{ElasticQuota, PodGroup, Reservation};
use koord_scheduler::Watch;
use koord_scheduler::framework::{Action, BuildContext, ObjectChange};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Returns `base` with `patch` merged in: objects are merged, other values replaced.
fn merged(base: &Value, patch: &Value) -> Value {
    let (Value::Object(base), Value::Object(patch)) = (base, patch) else {
        return patch.clone();
    };
    let mut out = base.clone();
    for (key, value) in patch {
        let old = out.get(key).unwrap_or(&Value::Null);
        let value = merged(old, value);
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}

/// Returns the watch of `kind`.
fn watch(kind: &str) -> Watch {
    let plugins = crate::registry().factories;
    let watches = plugins.into_iter().filter_map(|factory| {
        let plugin = (factory.build)(None, &BuildContext::default());
        let plugin = plugin.ok()?;
        Some(plugin.inputs()?.watches())
    });
    let mut watches = watches.flatten();
    watches.find(|watch| watch.kind() == kind).unwrap()
}

fn trimmed<K, V>(kind: &'static str, value: &Value) -> Arc<V>
where
    K: DeserializeOwned + Any + Send + Sync,
    V: Any + Send + Sync,
{
    let object: K = serde_json::from_value(value.clone()).unwrap();
    let change = ObjectChange {
        kind,
        action: Action::ADD,
        old: None,
        new: Arc::new(object),
    };
    watch(kind).as_delivered(change).new.downcast().unwrap()
}

/// Checks that the trimmed form of `base` changes with each patch in `read`, and with none in `unread` nor
/// with metadata that tools add to every object.
fn check<K, V>(kind: &'static str, base: &Value, unread: &[Value], read: &[Value])
where
    K: DeserializeOwned + Any + Send + Sync,
    V: Any + Send + Sync + Debug + PartialEq,
{
    let names = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let base = merged(&names, base);
    let first = trimmed::<K, V>(kind, &base);
    let everywhere = json!({"metadata": {
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "finalizers": ["kubernetes.io/protection"], "generateName": "n-", "generation": 3,
    }});
    for patch in unread.iter().chain([&everywhere]) {
        let other = trimmed::<K, V>(kind, &merged(&base, patch));
        assert_eq!(
            other, first,
            "{kind}: kept, although no rule reads it: {patch}"
        );
    }
    let named = [
        json!({"metadata": {"name": "other"}}),
        json!({"metadata": {"uid": "other"}}),
        json!({"metadata": {"resourceVersion": "2"}}),
    ];
    for patch in read.iter().chain(&named) {
        let other = trimmed::<K, V>(kind, &merged(&base, patch));
        assert!(
            other != first,
            "{kind}: lost, though a rule reads it: {patch}"
        );
    }
}

#[test]
fn claims_are_trimmed_to_read_fields() {
    let owner = |controller: bool| {
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": controller}]}})
    };
    check::<k8s_openapi::api::core::v1::PersistentVolumeClaim, TrimmedClaim>(
        "persistentvolumeclaims.v1.",
        &json!({"metadata": {"namespace": "ns"}, "spec": {"storageClassName": "fast"}}),
        &[
            json!({"metadata": {"labels": {"app": "db"}}}),
            json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "x"}}}),
            json!({"spec": {"volumeMode": "Filesystem"}}),
            json!({"spec": {"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}}),
            json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}),
            owner(false),
        ],
        &[
            json!({"metadata": {"namespace": "other"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}}),
            json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "a"}}}),
            json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}),
            owner(true),
            json!({"spec": {"storageClassName": "slow"}}),
            json!({"spec": {"volumeName": "v"}}),
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}),
            json!({"spec": {"volumeMode": "Block"}}),
            json!({"spec": {"volumeAttributesClassName": "gold"}}),
            json!({"spec": {"selector": {"matchLabels": {"tier": "a"}}}}),
            json!({"status": {"phase": "Lost"}}),
        ],
    );
}

#[test]
fn volumes_are_trimmed_to_read_fields() {
    let in_tree = |source: &str, field: &str, id: &str| json!({"spec": {source: {field: id}}});
    let mut read = vec![
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}),
        json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}}),
        json!({"spec": {"storageClassName": "slow"}}),
        json!({"spec": {"capacity": {"storage": "1Gi"}}}),
        json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        json!({"spec": {"volumeMode": "Block"}}),
        json!({"spec": {"volumeAttributesClassName": "gold"}}),
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}]}}}}),
        json!({"spec": {"claimRef": {"namespace": "ns"}}}),
        json!({"spec": {"claimRef": {"name": "c"}}}),
        json!({"spec": {"claimRef": {"uid": "u"}}}),
        json!({"spec": {"csi": {"driver": "d", "volumeHandle": "h"}}}),
        json!({"spec": {"csi": {"driver": "d", "volumeHandle": "other"}}}),
        json!({"status": {"phase": "Available"}}),
        in_tree("gcePersistentDisk", "pdName", "d"),
        in_tree("cinder", "volumeID", "d"),
        in_tree("vsphereVolume", "volumePath", "d"),
        in_tree("portworxVolume", "volumeID", "d"),
        in_tree("awsElasticBlockStore", "volumeID", "d"),
    ];
    read.push(json!({"spec": {"azureDisk": {"diskName": "d", "diskURI": "d"}}}));
    check::<k8s_openapi::api::core::v1::PersistentVolume, TrimmedVolume>(
        "persistentvolumes.v1.",
        &json!({"spec": {"storageClassName": "fast"}}),
        &[
            json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}),
            json!({"spec": {"mountOptions": ["ro"]}}),
            json!({"spec": {"local": {"path": "/mnt"}}}),
            json!({"spec": {"capacity": {"iops": "100"}}}),
            json!({"status": {"phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"}}),
        ],
        &read,
    );
}

#[test]
fn storage_kinds_are_trimmed_to_read_fields() {
    check::<k8s_openapi::api::storage::v1::VolumeAttachment, TrimmedAttachment>(
        "volumeattachments.v1.storage.k8s.io",
        &json!({"spec": {"attacher": "d", "nodeName": "a", "source": {"persistentVolumeName": "v"}}}),
        &[
            json!({"spec": {"attacher": "other"}}),
            json!({"status": {"attached": true, "attachmentMetadata": {"path": "/dev/x"}}}),
        ],
        &[
            json!({"spec": {"nodeName": "b"}}),
            json!({"spec": {"source": {"persistentVolumeName": "other"}}}),
        ],
    );
    check::<StorageClass, StorageClass>(
        "storageclasses.v1.storage.k8s.io",
        &json!({"provisioner": "d"}),
        &[
            json!({"parameters": {"type": "ssd"}}),
            json!({"mountOptions": ["ro"]}),
        ],
        &[
            json!({"provisioner": "other"}),
            json!({"volumeBindingMode": "WaitForFirstConsumer"}),
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}),
        ],
    );
    let driver = |change: &Value| {
        let base = json!({"name": "d", "nodeID": "i"});
        json!({"spec": {"drivers": [merged(&base, change)]}})
    };
    check::<CSINode, CSINode>(
        "csinodes.v1.storage.k8s.io",
        &driver(&json!({})),
        &[
            driver(&json!({"nodeID": "other"})),
            driver(&json!({"topologyKeys": ["zone"]})),
        ],
        &[
            driver(&json!({"name": "other"})),
            driver(&json!({"allocatable": {"count": 3}})),
            json!({"metadata": {"annotations": {
                "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}}}),
        ],
    );
    check::<CSIDriver, CSIDriver>(
        "csidrivers.v1.storage.k8s.io",
        &json!({"spec": {}}),
        &[json!({"spec": {"volumeLifecycleModes": ["Persistent"]}})],
        &[json!({"spec": {"storageCapacity": true}})],
    );
    check::<CSIStorageCapacity, CSIStorageCapacity>(
        "csistoragecapacities.v1.storage.k8s.io",
        &json!({"storageClassName": "fast"}),
        &[json!({"metadata": {"labels": {"csi.storage.k8s.io/drivername": "d"}}})],
        &[
            json!({"storageClassName": "slow"}),
            json!({"capacity": "1Gi"}),
            json!({"maximumVolumeSize": "1Gi"}),
            json!({"nodeTopology": {"matchLabels": {"zone": "a"}}}),
        ],
    );
}

#[test]
fn namespaces_and_budgets_are_trimmed_to_read_fields() {
    check::<Namespace, Namespace>(
        "namespaces.v1.",
        &json!({}),
        &[
            json!({"status": {"phase": "Active"}}),
            json!({"spec": {"finalizers": ["kubernetes"]}}),
        ],
        &[json!({"metadata": {"labels": {"team": "a"}}})],
    );
    check::<PodDisruptionBudget, PodDisruptionBudget>(
        "poddisruptionbudgets.v1.policy",
        &json!({"spec": {}, "status": {"disruptionsAllowed": 0, "currentHealthy": 0,
            "desiredHealthy": 0, "expectedPods": 0}}),
        &[
            json!({"spec": {"minAvailable": 1}}),
            json!({"status": {"currentHealthy": 3, "conditions": [{"type": "t", "status": "True",
                "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
        ],
        &[
            json!({"spec": {"selector": {"matchLabels": {"app": "a"}}}}),
            json!({"status": {"disruptionsAllowed": 1}}),
            json!({"status": {"disruptedPods": {"p": "2026-01-01T00:00:00Z"}}}),
        ],
    );
}

#[test]
fn quotas_and_groups_are_trimmed_to_read_fields() {
    check::<ElasticQuota, ElasticQuota>(
        "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        &json!({"spec": {}}),
        &[],
        &[
            json!({"metadata": {"labels": {"quota.scheduling.koordinator.sh/parent": "p"}}}),
            json!({"metadata": {"annotations": {"quota.scheduling.koordinator.sh/namespaces": "[]"}}}),
            json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"spec": {"min": {"cpu": "1"}}}),
            json!({"spec": {"max": {"cpu": "1"}}}),
            json!({"status": {"used": {"cpu": "1"}}}),
        ],
    );
    check::<PodGroup, PodGroup>(
        "podgroups.v1alpha1.scheduling.sigs.k8s.io",
        &json!({"spec": {"minMember": 2}}),
        &[],
        &[
            json!({"metadata": {"annotations": {"gang.scheduling.koordinator.sh/mode": "Strict"}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"spec": {"minMember": 3}}),
            json!({"spec": {"scheduleTimeoutSeconds": 3}}),
            json!({"status": {"phase": "Pending"}}),
        ],
    );
}

#[test]
fn reservations_are_trimmed_to_read_fields() {
    let container = |change: &Value| {
        let base = json!({"name": "c"});
        json!({"spec": {"template": {"spec": {"containers": [merged(&base, change)]}}}})
    };
    let base = merged(
        &json!({"spec": {"ttl": "1h", "owners": [{"object": {"name": "p"}}],
            "template": {"metadata": {}}}}),
        &container(&json!({})),
    );
    check::<Reservation, Reservation>(
        "reservations.v1alpha1.scheduling.koordinator.sh",
        &base,
        &[
            container(&json!({"env": [{"name": "A", "value": "b"}]})),
            container(&json!({"command": ["sh"], "args": ["-c", "x"]})),
            container(&json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
            json!({"spec": {"template": {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}}}),
            json!({"spec": {"template": {"metadata": {"finalizers": ["x"], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}"}}}}}),
        ],
        &[
            json!({"metadata": {"annotations": {"a": "b"}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            container(&json!({"resources": {"requests": {"cpu": "1"}}})),
            container(&json!({"ports": [{"containerPort": 80, "hostPort": 80}]})),
            json!({"spec": {"template": {"spec": {"nodeName": "a"}}}}),
            json!({"spec": {"template": {"spec": {"priority": 3}}}}),
            json!({"spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}}),
            json!({"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}),
            json!({"spec": {"template": {"spec": {"volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}}}),
            json!({"spec": {"template": {"metadata": {"namespace": "ns"}}}}),
            json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}),
            json!({"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}),
            json!({"spec": {"template": {"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "k", "name": "n", "uid": "u"}]}}}}),
            json!({"spec": {"owners": [{"object": {"name": "q"}}]}}),
            json!({"spec": {"ttl": "2h"}}),
            json!({"spec": {"expires": "2026-01-01T00:00:00Z"}}),
            json!({"spec": {"preAllocation": true}}),
            json!({"spec": {"preAllocationPolicy": {"mode": "Default"}}}),
            json!({"spec": {"allocateOnce": false}}),
            json!({"spec": {"allocatePolicy": "Restricted"}}),
            json!({"spec": {"unschedulable": true}}),
            json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
            json!({"status": {"phase": "Available"}}),
            json!({"status": {"nodeName": "a"}}),
            json!({"status": {"conditions": [{"type": "Ready"}]}}),
            json!({"status": {"currentOwners": [{"uid": "p"}]}}),
            json!({"status": {"allocatable": {"cpu": "1"}}}),
            json!({"status": {"allocated": {"cpu": "1"}}}),
        ],
    );
}

#[test]
fn devices_are_trimmed_to_read_fields() {
    let device = |change: &Value| {
        let base = json!({"type": "gpu", "minor": 0, "health": true, "id": "g",
            "resources": {"koordinator.sh/gpu-core": "100"}});
        json!({"spec": {"devices": [merged(&base, change)]}})
    };
    check::<koord_api::scheduling::Device, DeviceObject>(
        "devices.v1alpha1.scheduling.koordinator.sh",
        &device(&json!({})),
        &[
            device(
                &json!({"conditions": [{"type": "Healthy", "status": "True", "reason": "r",
                "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
            ),
            json!({"status": {"allocations": []}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
        ],
        &[
            device(&json!({"minor": 1})),
            device(&json!({"type": "rdma"})),
            device(&json!({"health": false})),
            device(&json!({"labels": {"a": "b"}})),
            device(&json!({"resources": {"koordinator.sh/gpu-core": "50"}})),
            device(&json!({"topology": {"socketID": 0, "nodeID": 1, "pcieID": "0", "busID": "x"}})),
            // An invalid device, which is reported.
            device(&json!({"minor": -1})),
            json!({"metadata": {"labels": {"node.koordinator.sh/gpu-partition-policy": "Honor"}}}),
            json!({"metadata": {"labels": {"node.koordinator.sh/secondary-device-well-planned": "true"}}}),
            json!({"metadata": {"labels": {"node.koordinator.sh/secondary-device-well-planned": "false"}}}),
            json!({"metadata": {"annotations": {"scheduling.koordinator.sh/gpu-partitions": "{x"}}}),
        ],
    );
}

#[test]
fn topologies_are_trimmed_to_read_fields() {
    let resources = |capacity: &str, allocatable: &str, available: &str| {
        json!({"resources": [{"name": "cpu", "capacity": capacity, "allocatable": allocatable,
            "available": available}]})
    };
    let zone = |change: &Value| {
        let base = json!({"name": "node-0", "type": "Node"});
        let base = merged(&base, &resources("8", "7", "6"));
        json!({"zones": [merged(&base, change)]})
    };
    let amounts =
        |capacity, allocatable, available| zone(&resources(capacity, allocatable, available));
    let noted = |key: &str, text: &str| json!({"metadata": {"annotations": {key: text}}});
    let base = merged(&zone(&json!({})), &json!({"topologyPolicies": []}));
    let cpus =
        |node: i32| format!(r#"{{"detail":[{{"id":0,"core":0,"socket":0,"node":{node}}}]}}"#);
    let topology = "node.koordinator.sh/cpu-topology";
    check::<koord_api::topology::v1alpha2::NodeResourceTopology, TrimmedTopology>(
        "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
        &merged(&base, &noted(topology, &cpus(0))),
        &[
            amounts("9", "7", "6"),
            zone(&json!({"attributes": [{"name": "a", "value": "b"}]})),
            json!({"metadata": {"labels": {"a": "b"}}}),
            noted("node.koordinator.sh/cpu-shared-pools", "[]"),
            // The same CPUs in another notation.
            noted(topology, &format!(" {} ", cpus(0))),
        ],
        &[
            amounts("8", "6", "6"),
            amounts("8", "7", "5"),
            zone(&json!({"name": "node-1"})),
            zone(&json!({"type": "Socket"})),
            zone(&json!({"costs": [{"name": "node-0", "value": 10}]})),
            json!({"topologyPolicies": ["Restricted"]}),
            json!({"attributes": [{"name": "topologyManagerPolicy", "value": "restricted"}]}),
            noted(topology, &cpus(1)),
            noted(topology, "{x"),
            noted("topology.node.k8s.io/fingerprint", "pfp0v0010"),
            noted(
                "kubelet.koordinator.sh/cpu-manager-policy",
                r#"{"policy":"static"}"#,
            ),
            noted(
                "node.koordinator.sh/pod-cpu-allocs",
                r#"[{"uid":"p","cpuset":"0","managedByKubelet":true}]"#,
            ),
            noted("node.koordinator.sh/reservation", r#"{"reservedCPUs":"0"}"#),
            noted(
                "node.koordinator.sh/system-qos-resource",
                r#"{"cpuset":"0"}"#,
            ),
            noted(
                "node.koordinator.sh/resource-amplification-ratio",
                r#"{"cpu":1.5}"#,
            ),
        ],
    );
}
