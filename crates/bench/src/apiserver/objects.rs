//! Objects of the size and shape that real clusters hold.

use serde_json::{Value, json};

/// Returns a node with the fields that a kubelet reports, about 2.3 KB.
pub(super) fn node(name: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "ecs.g7.16xlarge",
                "topology.kubernetes.io/region": "region-1",
                "topology.kubernetes.io/zone": "region-1a",
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": {"podCIDR": "10.1.2.0/24", "podCIDRs": ["10.1.2.0/24"], "providerID": format!("cloud://{name}")},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "Hostname", "address": name},
            ],
            "capacity": {"cpu": "64", "memory": "263856564Ki", "pods": "110", "ephemeral-storage": "123723328Ki",
                "hugepages-1Gi": "0", "hugepages-2Mi": "0"},
            "allocatable": {"cpu": "63500m", "memory": "257564084Ki", "pods": "110", "ephemeral-storage": "114023418984",
                "hugepages-1Gi": "0", "hugepages-2Mi": "0",
                "kubernetes.io/batch-cpu": "32000", "kubernetes.io/batch-memory": "137438953472"},
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "architecture": "amd64", "bootID": "6b1f4d5e-3e54-4c3b-9c4e-2f7f3f9d8e11",
                "containerRuntimeVersion": "containerd://2.1.4", "kernelVersion": "6.8.0-45-generic",
                "kubeProxyVersion": "", "kubeletVersion": "v1.35.0", "machineID": "ec2b7d3c8a1f4e6f9b0a7c5d3e1f2a4b",
                "operatingSystem": "linux", "osImage": "Debian GNU/Linux 12 (bookworm)",
                "systemUUID": "ec2b7d3c-8a1f-4e6f-9b0a-7c5d3e1f2a4b",
            },
        },
    })
}

/// Returns the owner of the pods: of a kind whose pods no controller counts.
pub(super) fn owner() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OWNER}})
}

const OWNER: &str = "web-5d9c7b8f6c";

/// Returns a pod, about 2.3 KB once defaults are set, of the [`owner`] with this uid.
pub(super) fn pod(name: &str, node: &str, stamp: &str, owner: &str) -> Value {
    let env: Vec<Value> = (0..6)
        .map(|number| json!({"name": format!("SETTING_{number}"), "value": format!("value-of-setting-{number}")}))
        .collect();
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {
                "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web-prod",
                "pod-template-hash": "5d9c7b8f6c", "koordinator.sh/qosClass": "LS",
            },
            "annotations": {"bench/stamp": stamp, "prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": OWNER,
                "uid": owner, "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "containers": [{
                "name": "main",
                "image": "registry.example.com/team/web:v1.42.0",
                "args": ["--listen=:8080", "--metrics=:9090", "--log-level=info"],
                "env": env,
                "ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],
                "resources": {
                    "requests": {"cpu": "500m", "memory": "1Gi"},
                    "limits": {"cpu": "2", "memory": "2Gi"},
                },
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 5},
                "livenessProbe": {"httpGet": {"path": "/live", "port": 8080}, "initialDelaySeconds": 10},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "web-config"}}],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
        },
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}
