//! What informers keep of an object, against the object: `cargo run --release -p koord-bench --example
//! kept`. Each line is of a kind: an object as clusters have it, and the bytes that each of many takes,
//! whole (without managedFields) and as it is kept.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use koord_api::scheduling::{Device, Reservation};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_model::resources::ResourceTable;
use koord_scheduler::Watch;
use koord_scheduler::framework::{Action, BuildContext, ObjectChange};
use koord_scheduler::state::Alike;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::any::Any;
use std::process::Command;
use std::sync::Arc;

// As in the daemons.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Twenty of each workload, all on nodes.
const PODS: &str = "pods.v1.";
/// Each of a StatefulSet of its own, with a claim.
const ALONE: &str = "pods.v1. (alone)";

const KINDS: [&str; 9] = [
    PODS,
    ALONE,
    "persistentvolumeclaims.v1.",
    "persistentvolumes.v1.",
    "volumeattachments.v1.storage.k8s.io",
    "csinodes.v1.storage.k8s.io",
    "reservations.v1alpha1.scheduling.koordinator.sh",
    "devices.v1alpha1.scheduling.koordinator.sh",
    "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
];

fn text(of: &Value) -> String {
    of.to_string()
}

fn meta(number: usize, annotations: Value) -> Value {
    json!({"name": format!("object-{number:06}"), "namespace": "default",
        "uid": format!("00000000-0000-4000-8000-{number:012}"), "resourceVersion": format!("{number}"),
        "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations,
        "labels": {"app.kubernetes.io/name": "database", "app.kubernetes.io/instance": "main"}})
}

/// An object of the kind, as provisioners, the kubelet and koordlet make them.
fn object(kind: &str, number: usize) -> Value {
    let claim = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default",
        "name": format!("data-{number}"), "uid": format!("00000000-0000-4000-8000-{number:012}"),
        "resourceVersion": format!("{number}")});
    match kind {
        PODS => pod(number),
        ALONE => alone(number),
        "persistentvolumeclaims.v1." => json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": meta(number, json!({"pv.kubernetes.io/bind-completed": "yes",
                "pv.kubernetes.io/bound-by-controller": "yes",
                "volume.kubernetes.io/storage-provisioner": "ebs.csi.aws.com"})),
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "gp3",
                "resources": {"requests": {"storage": "100Gi"}}, "volumeMode": "Filesystem",
                "volumeName": format!("pvc-{number:032}")},
            "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "100Gi"}}}),
        "persistentvolumes.v1." => json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": meta(number, json!({"pv.kubernetes.io/provisioned-by": "ebs.csi.aws.com",
                "volume.kubernetes.io/provisioner-deletion-secret-name": ""})),
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "100Gi"},
                "claimRef": claim, "storageClassName": "gp3", "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": "ebs.csi.aws.com", "fsType": "ext4",
                    "volumeHandle": format!("vol-{number:017}"),
                    "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1-ebs"}},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}]}}},
            "status": {"phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"}}),
        "volumeattachments.v1.storage.k8s.io" => json!({"metadata": meta(number, json!({})),
            "spec": {"attacher": "ebs.csi.aws.com", "nodeName": format!("node-{number}"),
                "source": {"persistentVolumeName": format!("pvc-{number:032}")}},
            "status": {"attached": true, "attachmentMetadata": {"devicePath": "/dev/xvdaa"}}}),
        "csinodes.v1.storage.k8s.io" => json!({"metadata": meta(number, json!({
                "storage.alpha.kubernetes.io/migrated-plugins":
                    "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/gce-pd"})),
            "spec": {"drivers": [{"name": "ebs.csi.aws.com", "nodeID": format!("i-{number:017}"),
                "topologyKeys": ["kubernetes.io/os", "topology.ebs.csi.aws.com/zone",
                    "topology.kubernetes.io/zone"], "allocatable": {"count": 25}}]}}),
        // As the descheduler makes them: the template is the pod that moves.
        "reservations.v1alpha1.scheduling.koordinator.sh" => json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": meta(number, json!({})),
            "spec": {"ttl": "1h", "owners": [{"object": {"name": "p", "namespace": "default"}}],
                "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{
                    "name": "c", "image": "registry.example/team/program:1.2.3",
                    "command": ["/program"], "args": ["--verbose", "--port=80"],
                    "env": (0..20).map(|at| json!({"name": format!("SETTING_{at}"),
                        "value": "something of some length"})).collect::<Vec<_>>(),
                    "livenessProbe": {"httpGet": {"path": "/healthz", "port": 80}},
                    "readinessProbe": {"httpGet": {"path": "/readyz", "port": 80}},
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
                    "volumes": [{"name": "token", "projected": {"sources": [
                        {"serviceAccountToken": {"path": "token"}}]}}]}}},
            "status": {"phase": "Available", "nodeName": format!("node-{number}"),
                "allocatable": {"cpu": "1", "memory": "1Gi"}}}),
        "devices.v1alpha1.scheduling.koordinator.sh" => json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": meta(number, json!({})),
            "spec": {"devices": (0..8).map(|minor| json!({"type": "gpu", "minor": minor,
                "health": true, "id": format!("GPU-00000000-0000-4000-8000-{minor:012}"),
                "labels": {"node.koordinator.sh/gpu-model": "A100"},
                "resources": {"koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "80Gi", "koordinator.sh/gpu-memory-ratio": "100"},
                "topology": {"socketID": minor / 4, "nodeID": minor / 4,
                    "pcieID": format!("pci{minor}"), "busID": format!("0000:0{minor}:00.0")},
                "conditions": [{"type": "Healthy", "status": "True", "reason": "Healthy",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
                .collect::<Vec<_>>()}}),
        _ => {
            let cpus = (0..128)
                .map(|id| json!({"id": id, "core": id / 2, "socket": id / 64, "node": id / 64}));
            let detail: Vec<Value> = cpus.collect();
            let amount = |name: &str, amount: &str| {
                json!({"name": name, "capacity": amount,
                "allocatable": amount, "available": amount})
            };
            let zone = |zone: usize| {
                json!({"name": format!("node-{zone}"), "type": "Node",
                "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 20}],
                "resources": [amount("cpu", "64"), amount("memory", "256Gi")]})
            };
            json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
                "metadata": meta(number, json!({
                    "node.koordinator.sh/cpu-topology": text(&json!({"detail": detail})),
                    "node.koordinator.sh/cpu-shared-pools": text(&json!([
                        {"socket": 0, "node": 0, "cpuset": "0-63"},
                        {"socket": 1, "node": 1, "cpuset": "64-127"}])),
                    "kubelet.koordinator.sh/cpu-manager-policy": text(&json!({"policy": "none"})),
                    "node.koordinator.sh/pod-cpu-allocs": text(&json!([]))})),
                "topologyPolicies": ["None"], "zones": [zone(0), zone(1)]})
        }
    }
}

/// As a Deployment's controller, the scheduler and a kubelet make it.
fn pod(number: usize) -> Value {
    let workload = number / 20;
    let owner = format!("web-{workload}-6d4cf56db6");
    let mut meta = meta(
        number,
        json!({"cni.projectcalico.org/podIP": format!("10.0.{}.{}/32", number / 200, number % 200),
            "prometheus.io/scrape": "true", "prometheus.io/port": "8080"}),
    );
    meta["generateName"] = json!(format!("{owner}-"));
    meta["labels"] = json!({"app.kubernetes.io/name": format!("web-{workload}"),
        "app.kubernetes.io/instance": "main", "pod-template-hash": "6d4cf56db6",
        "koordinator.sh/qosClass": "LS"});
    meta["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner,
        "uid": format!("00000000-0000-4000-9000-{workload:012}"), "controller": true,
        "blockOwnerDeletion": true}]);
    let time = "2026-01-01T00:00:00Z";
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time});
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let lost = |kind: &str| {
        json!({"key": format!("node.kubernetes.io/{kind}"), "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 300})
    };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta,
        "spec": {"schedulerName": "koord-scheduler", "priority": 9000, "priorityClassName": "koord-prod",
            "nodeName": format!("node-{:05}", number % 5000), "serviceAccountName": "default",
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "enableServiceLinks": true,
            "preemptionPolicy": "PreemptLowerPriority", "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "registry.example/team/program:1.2.3",
                "imagePullPolicy": "IfNotPresent", "args": ["--verbose", "--port=80"],
                "env": (0..20).map(|at| json!({"name": format!("SETTING_{at}"),
                    "value": "something of some length"})).collect::<Vec<_>>(),
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": 80}},
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}}],
            "tolerations": [lost("not-ready"), lost("unreachable")],
            "volumes": [{"name": "token", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}}]}}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "startTime": time,
            "podIP": format!("10.0.{}.{}", number / 200, number % 200), "hostIP": "192.168.0.1",
            "conditions": conditions,
            "containerStatuses": [{"name": "c", "image": "registry.example/team/program:1.2.3",
                "imageID": format!("registry.example/team/program@sha256:{:064}", 1), "ready": true,
                "containerID": format!("containerd://{number:064}"), "restartCount": 0,
                "state": {"running": {"startedAt": time}}}]}})
}

/// The same, but for what no other pod says.
fn alone(number: usize) -> Value {
    let mut pod = pod(20 * number);
    let name = format!("object-{number:06}");
    let meta = &mut pod["metadata"];
    meta["name"] = json!(name);
    meta["labels"]["statefulset.kubernetes.io/pod-name"] = json!(name);
    meta["labels"]["apps.kubernetes.io/pod-index"] = json!("0");
    let spec = &mut pod["spec"];
    spec["hostname"] = json!(name);
    spec["nodeName"] = json!(format!("node-{:05}", number % 5000));
    spec["containers"][0]["name"] = json!(format!("app-{number}"));
    spec["containers"][0]["resources"]["requests"]["memory"] =
        json!(format!("{}Ki", 300_000 + number));
    let claim =
        json!({"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}});
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.push(claim);
    }
    pod
}

type Held = Vec<Arc<dyn Any + Send + Sync>>;

/// Reads `count` objects from their JSON, as informers do, and holds what of them is kept.
fn read<K: DeserializeOwned + Any + Send + Sync>(
    watch: &Watch,
    count: usize,
    whole: bool,
) -> Result<Held> {
    let one = |number: usize| -> Result<Arc<dyn Any + Send + Sync>> {
        let object: K = serde_json::from_str(&text(&object(watch.kind(), number)))?;
        let change = ObjectChange {
            kind: watch.kind(),
            action: Action::ADD,
            old: None,
            new: Arc::new(object),
        };
        Ok(if whole {
            change.new
        } else {
            watch.kept(change).new
        })
    };
    (0..count).map(one).collect()
}

/// The same of pods.
fn read_pods(kind: &str, count: usize, whole: bool, alike: &Alike) -> Result<Held> {
    let table = ResourceTable::new();
    let one = |number: usize| -> Result<Arc<dyn Any + Send + Sync>> {
        let mut object: Pod = serde_json::from_str(&text(&object(kind, number)))?;
        Ok(if whole {
            Arc::new(object)
        } else {
            object.spec.as_mut().map(koord_scheduler::trim_pod_spec);
            Arc::new(alike.read(object, &table))
        })
    };
    (0..count).map(one).collect()
}

/// The bytes that each of many objects takes.
fn measure(kind: &str, whole: bool) -> Result<f64> {
    let alike = Alike::default();
    if kind == PODS || kind == ALONE {
        return of_many(|count| read_pods(kind, count, whole, &alike));
    }
    let plugins = koord_plugins::registry().factories;
    let watches = plugins.into_iter().filter_map(|factory| {
        let plugin = (factory.build)(None, &BuildContext::default());
        let plugin = plugin.ok()?;
        Some(plugin.inputs()?.watches())
    });
    let mut watches = watches.flatten();
    let watch = watches.find(|watch| watch.kind() == kind);
    let watch = watch.with_context(|| format!("{kind} is not watched"))?;
    of_many(|count| match kind {
        "persistentvolumeclaims.v1." => read::<PersistentVolumeClaim>(&watch, count, whole),
        "persistentvolumes.v1." => read::<PersistentVolume>(&watch, count, whole),
        "volumeattachments.v1.storage.k8s.io" => read::<VolumeAttachment>(&watch, count, whole),
        "csinodes.v1.storage.k8s.io" => read::<CSINode>(&watch, count, whole),
        "reservations.v1alpha1.scheduling.koordinator.sh" => {
            read::<Reservation>(&watch, count, whole)
        }
        "devices.v1alpha1.scheduling.koordinator.sh" => read::<Device>(&watch, count, whole),
        _ => read::<NodeResourceTopology>(&watch, count, whole),
    })
}

fn of_many(hold: impl Fn(usize) -> Result<Held>) -> Result<f64> {
    // What a few take is what the program and the allocator take.
    let few = hold(100)?;
    let before = koord_bench::usage::rss_mib();
    let count = 20_000;
    let held = hold(count)?;
    let after = koord_bench::usage::rss_mib();
    anyhow::ensure!(few.len() + held.len() > count, "nothing was held");
    Ok((after - before) * 1024.0 * 1024.0 / 20_000.0)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, how] = &args[..] {
        println!("{:.0}", measure(kind, how == "whole")?);
        return Ok(());
    }
    let program = std::env::current_exe()?;
    println!("| kind | whole, bytes | kept | kept / whole |\n|---|---:|---:|---:|");
    for kind in KINDS {
        // In a process of its own, so that nothing freed is used again.
        let bytes = |how: &str| -> Result<f64> {
            let out = Command::new(&program).args([kind, how]).output()?;
            let text = String::from_utf8_lossy(&out.stdout);
            text.trim()
                .parse()
                .with_context(|| format!("{kind}: {text:?}"))
        };
        let (whole, kept) = (bytes("whole")?, bytes("kept")?);
        println!("| {kind} | {whole:.0} | {kept:.0} | {:.2} |", kept / whole);
    }
    Ok(())
}
