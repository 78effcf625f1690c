//! The objects of the node under test, with the fields that a kubelet and Koordinator's manager set. A pod
//! also has fields that an agent does not need, as real ones do: the agent parses them, too.

use super::fixture::{MachineSize, Shape};
use serde_json::{Value, json};

/// The node's name.
pub(crate) const NODE: &str = "bench";
/// Namespace of the pods.
pub(crate) const NAMESPACE: &str = "bench";

/// Returns the priority classes of the pods.
pub(super) fn priority_classes() -> [Value; 2] {
    [("koord-prod", 9500), ("koord-batch", 5500)].map(
        |(name, value)| json!({"metadata": {"name": name}, "value": value, "globalDefault": false}),
    )
}

/// Returns the node, whose kubelet listens on `port`.
pub(super) fn node(pods: usize, machine: MachineSize, port: u16) -> Value {
    let resources = json!({
        "cpu": machine.cpus.to_string(),
        "memory": machine.memory.to_string(),
        "pods": pods.max(110).to_string(),
        "kubernetes.io/batch-cpu": (machine.cpus * 500).to_string(),
        "kubernetes.io/batch-memory": (machine.memory / 2).to_string(),
    });
    json!({
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": NODE},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "kubelet is posting ready status"}],
            "nodeInfo": {"machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "",
                "osImage": "", "containerRuntimeVersion": "containerd://2.0.0",
                "kubeletVersion": "v1.35.0", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": "amd64"},
        },
    })
}

/// Returns the kubelet's configuration.
pub(super) fn configz() -> Value {
    json!({"kubeletconfig": {
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "cgroupDriver": "cgroupfs", "cgroupRoot": "", "cgroupsPerQOS": true,
        "cpuManagerPolicy": "none", "cpuManagerReconcilePeriod": "10s",
        "cpuCFSQuota": true, "cpuCFSQuotaPeriod": "100ms",
        "memoryManagerPolicy": "None", "topologyManagerPolicy": "none",
        "topologyManagerScope": "container", "maxPods": 250,
        "evictionHard": {"memory.available": "100Mi"},
        "enforceNodeAllocatable": ["pods"],
    }})
}

/// Returns a NodeSLO with every strategy that has a switch on. Nothing is evicted: the thresholds of memory
/// are out of reach, those of CPU are not set.
pub(super) fn node_slo() -> Value {
    let class = |identity: i64| {
        json!({
            "cpuQOS": {"enable": true, "groupIdentity": identity},
            "memoryQOS": {"enable": true, "minLimitPercent": 10, "lowLimitPercent": 20,
                "throttlingPercent": 90, "wmarkRatio": 95, "wmarkScalePermill": 20},
            "resctrlQOS": {"enable": true},
            "blkioQOS": {"enable": true, "blocks": []},
        })
    };
    json!({
        "metadata": {"name": NODE},
        "spec": {
            "resourceUsedThresholdWithBE": {
                "enable": true,
                "cpuSuppressThresholdPercent": 65,
                "cpuSuppressPolicy": "cfsQuota",
                "memoryEvictThresholdPercent": 99,
            },
            "resourceQOSStrategy": {
                "lsrClass": class(2), "lsClass": class(2), "beClass": class(-1),
            },
            "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 100,
                "cfsQuotaBurstPercent": 300, "cfsQuotaBurstPeriodSeconds": -1,
                "sharePoolThresholdPercent": 50},
        },
    })
}

/// Returns the NodeMetric that the manager creates.
pub(super) fn node_metric() -> Value {
    json!({
        "metadata": {"name": NODE},
        "spec": {"metricCollectPolicy": {
            "aggregateDurationSeconds": 300,
            "reportIntervalSeconds": 60,
            "nodeAggregatePolicy": {"durations": ["5m", "10m", "30m"]},
            "nodeMemoryCollectPolicy": "usageWithoutPageCache",
        }},
    })
}

/// Returns the pods that the kubelet lists.
pub(super) fn pods(count: u32, containers: u32) -> Vec<Value> {
    (0..count).map(|index| pod(index, containers)).collect()
}

/// Returns the name of pod `index`.
pub(crate) fn pod_name(index: u32) -> String {
    format!("service-{index}-7d9c6bd5f-x{index:04}")
}

/// Returns pod `index` with all fields that an API server and a kubelet set.
pub(crate) fn pod(index: u32, containers: u32) -> Value {
    let shape = Shape::from_index(index);
    let batch = shape.is_batch();
    let name = pod_name(index);
    let since = "2026-01-01T00:00:00Z";
    let (class, priority, qos) = if batch {
        ("koord-batch", 5500, "BE")
    } else {
        ("koord-prod", 9500, "LS")
    };
    let numbers = 0..containers;
    let tolerations = ["not-ready", "unreachable"].map(|what| {
        json!({"key": format!("node.kubernetes.io/{what}"), "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 300})
    });
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|what| {
        json!({"type": what, "status": "True", "lastProbeTime": null, "lastTransitionTime": since})
    });
    let statuses: Vec<Value> = numbers.clone().map(|n| status(index, n, since)).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "generateName": format!("service-{index}-7d9c6bd5f-"),
            "namespace": NAMESPACE, "uid": Shape::uid(index),
            "resourceVersion": "1000", "creationTimestamp": since,
            "labels": {"app": format!("service-{index}"), "pod-template-hash": "7d9c6bd5f",
                "koordinator.sh/qosClass": qos},
            "annotations": {"kubernetes.io/config.seen": since, "kubernetes.io/config.source": "api",
                "prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                "name": format!("service-{index}-7d9c6bd5f"), "uid": Shape::uid(index),
                "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "nodeName": NODE, "schedulerName": "koord-scheduler", "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst", "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30, "enableServiceLinks": true,
            "priority": priority, "priorityClassName": class,
            "preemptionPolicy": "PreemptLowerPriority", "securityContext": {},
            "volumes": [
                {"name": "config", "configMap": {"name": "config", "defaultMode": 420}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "token", "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}},
            ],
            "tolerations": tolerations,
            "containers": numbers.map(|n| container(shape, n)).collect::<Vec<_>>(),
        },
        "status": {
            "phase": "Running", "qosClass": shape.kube_qos(), "hostIP": "127.0.0.1",
            "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "startTime": since,
            "conditions": conditions,
            "containerStatuses": statuses,
        },
    })
}

fn status(index: u32, number: u32, since: &str) -> Value {
    let id = Shape::container(index, number);
    json!({
        "name": format!("c{number}"), "containerID": format!("containerd://{id}"),
        "image": "registry.example.com/team/service:1.2.3",
        "imageID": format!("registry.example.com/team/service@sha256:{}", Shape::container(0, 0)),
        "ready": true, "started": true, "restartCount": 0, "lastState": {},
        "state": {"running": {"startedAt": since}},
    })
}

/// Returns container `number` of a pod.
fn container(shape: Shape, number: u32) -> Value {
    let resources = match shape {
        Shape::Batch => json!({
            "requests": {"kubernetes.io/batch-cpu": "10", "kubernetes.io/batch-memory": "64Mi"},
            "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "256Mi"}}),
        Shape::Limited => json!({
            "requests": {"cpu": "5m", "memory": "16Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"}}),
        Shape::Open => json!({"requests": {"cpu": "5m", "memory": "16Mi"}}),
    };
    let probe = |path: &str| {
        json!({"httpGet": {"path": path, "port": 8080, "scheme": "HTTP"}, "initialDelaySeconds": 5,
            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
    };
    json!({
        "name": format!("c{number}"),
        "image": "registry.example.com/team/service:1.2.3",
        "imagePullPolicy": "IfNotPresent",
        "args": ["--config=/etc/service/config.yaml", "--listen=:8080"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            {"name": "LOG_LEVEL", "value": "info"},
            {"name": "DATABASE_URL", "value": "postgres://database.example.com:5432/service"},
        ],
        "resources": resources,
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/service", "readOnly": true},
            {"name": "scratch", "mountPath": "/tmp"},
            {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
        ],
        "livenessProbe": probe("/livez"), "readinessProbe": probe("/readyz"),
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    })
}

/// Returns a pod without the fields that the API server sets itself.
pub(crate) fn without_server_fields(mut pod: Value) -> Value {
    for (part, name) in [
        ("spec", "priority"),
        ("spec", "preemptionPolicy"),
        ("metadata", "uid"),
        ("metadata", "resourceVersion"),
        ("metadata", "creationTimestamp"),
    ] {
        if let Some(object) = pod[part].as_object_mut() {
            object.remove(name);
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_have_every_shape_and_parse_as_api_pods() {
        let pods = pods(6, 3);
        let qos: Vec<&str> = pods
            .iter()
            .filter_map(|pod| pod["status"]["qosClass"].as_str())
            .collect();
        assert_eq!(qos.iter().filter(|qos| **qos == "BestEffort").count(), 2);
        for pod in &pods {
            assert_eq!(pod["spec"]["containers"].as_array().map(Vec::len), Some(3));
            let typed: k8s_openapi::api::core::v1::Pod =
                serde_json::from_value(pod.clone()).unwrap();
            assert!(typed.metadata.uid.is_some());
        }
    }

    #[test]
    fn node_slo_has_only_fields_of_the_type() {
        let slo = node_slo();
        let typed: koord_api::slo::NodeSLOSpec =
            serde_json::from_value(slo["spec"].clone()).unwrap();
        let mut back = serde_json::to_value(&typed).unwrap();
        // An empty list is left out.
        for class in ["lsrClass", "lsClass", "beClass"] {
            back["resourceQOSStrategy"][class]["blkioQOS"]["blocks"] = json!([]);
        }
        assert_eq!(back, slo["spec"]);
    }
}
