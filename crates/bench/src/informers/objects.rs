//! Objects as clusters have them, of which informers keep a part.

use super::{ALONE, PODS};
use serde_json::{Value, json};

fn text(of: &Value) -> String {
    of.to_string()
}

fn meta(number: usize, annotations: Value) -> Value {
    json!({"name": format!("object-{number:06}"), "namespace": "default",
        "uid": format!("00000000-0000-4000-8000-{number:012}"), "resourceVersion": format!("{number}"),
        "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations,
        "labels": {"app.kubernetes.io/name": "database", "app.kubernetes.io/instance": "main"}})
}

/// Returns an object of the kind, as provisioners, the kubelet and koordlet make them.
pub(super) fn object(kind: &str, number: usize) -> Value {
    let claim = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default",
        "name": format!("data-{number}"), "uid": format!("00000000-0000-4000-8000-{number:012}"),
        "resourceVersion": format!("{number}")});
    match kind {
        PODS => pod(number),
        ALONE => unique_pod(number),
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

/// Returns a pod as a Deployment's controller, the scheduler and a kubelet make it.
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

/// Returns a pod that shares no strings with others: like [`pod`], with a name, a claim and sizes of its own.
fn unique_pod(number: usize) -> Value {
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
