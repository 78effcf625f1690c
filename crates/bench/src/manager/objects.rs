//! The manager's cluster.

use crate::koordlet::fixture::Shape;
use crate::koordlet::objects as node;
use crate::local_server::LocalServer;
use anyhow::Result;
use futures::StreamExt as _;
use koord_api::configmap::NAMESPACE as CONFIG_NAMESPACE;
use koord_kube::webhook::configuration::Service;
use serde_json::{Value, json};
use std::path::Path;

/// Writes in progress at a time while the cluster is made.
const WRITERS: usize = 32;
/// Number of quotas with children.
const PARENTS: u32 = 20;

/// A cluster; its server ends with it.
pub(super) struct ManagerCluster {
    pub(super) local: LocalServer,
}

impl ManagerCluster {
    /// Starts a cluster with the definitions, the priority classes and a namespace for pods.
    ///
    /// # Errors
    /// The server does not start.
    pub(super) async fn start(work: &Path) -> Result<Self> {
        let local = LocalServer::start(work).await?;
        koord_cluster::objects::first_objects(&local.client, &settings(65, 65)).await?;
        let namespace = json!({"metadata": {"name": node::NAMESPACE, "labels": {"team": "shop"}}});
        local.create("/api/v1/namespaces", namespace).await?;
        Ok(Self { local })
    }

    /// Registers every webhook at the API server, as the manager's manifests do. Comes last: no webhook
    /// answers before the manager runs.
    ///
    /// # Errors
    /// They are refused.
    pub(super) async fn install_webhooks(&self) -> Result<()> {
        let service = Service {
            namespace: CONFIG_NAMESPACE.to_owned(),
            name: "koordinator-webhook-service".to_owned(),
        };
        for configuration in koord_manager::webhook::manifests(&service) {
            let plural = match configuration["kind"].as_str() {
                Some("MutatingWebhookConfiguration") => "mutatingwebhookconfigurations",
                _ => "validatingwebhookconfigurations",
            };
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
            self.local.create(&path, configuration).await?;
        }
        Ok(())
    }

    /// Creates profiles that each select the pods of one application.
    ///
    /// # Errors
    /// One is refused.
    pub(super) async fn add_profiles(&self, count: u32) -> Result<()> {
        let path = "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles";
        self.create_all(path, (0..count).map(profile)).await
    }

    /// Creates quotas in two levels.
    ///
    /// # Errors
    /// One is refused.
    pub(super) async fn add_quotas(&self, count: u32) -> Result<()> {
        let path = format!(
            "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{}/elasticquotas",
            node::NAMESPACE
        );
        self.create_all(&path, (0..count).map(|index| quota(index, count)))
            .await
    }

    /// Creates many objects of one kind.
    ///
    /// # Errors
    /// One is refused.
    pub(super) async fn create_all(
        &self,
        path: &str,
        objects: impl Iterator<Item = Value>,
    ) -> Result<()> {
        each(objects.map(|object| self.local.create(path, object))).await
    }
}

/// Runs all futures, [`WRITERS`] at a time.
///
/// # Errors
/// The error of the first future that fails.
pub(super) async fn each<F: Future<Output = Result<()>>>(
    work: impl Iterator<Item = F>,
) -> Result<()> {
    let mut running = futures::stream::iter(work).buffer_unordered(WRITERS);
    while let Some(done) = running.next().await {
        done?;
    }
    Ok(())
}

/// Returns settings with these shares of a node: the CPU that batch work may reclaim, and the threshold of
/// CPU suppression, both in percent.
pub(super) fn settings(reclaim: u32, suppress: u32) -> Value {
    let colocation = json!({"enable": true, "cpuReclaimThresholdPercent": reclaim});
    let threshold =
        json!({"clusterStrategy": {"enable": true, "cpuSuppressThresholdPercent": suppress}});
    json!({"colocation-config": colocation, "resource-threshold-config": threshold})
}

/// Returns ClusterColocationProfile `index`, which matches the pods of one application.
fn profile(index: u32) -> Value {
    let app = format!("service-{index}");
    let selector = if index.is_multiple_of(2) {
        json!({"matchLabels": {"app": app}})
    } else {
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": [app, "none"]}]})
    };
    let namespaces = (index.is_multiple_of(5)).then(|| json!({"matchLabels": {"team": "shop"}}));
    let patch =
        (index.is_multiple_of(10)).then(|| json!({"spec": {"terminationGracePeriodSeconds": 60}}));
    let mut profile = json!({
        "apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile",
        "metadata": {"name": format!("profile-{index}")},
        "spec": {
            "selector": selector, "qosClass": "BE", "priorityClassName": "koord-batch",
            "koordinatorPriority": 1000, "schedulerName": "koord-scheduler",
            "labels": {"koordinator.sh/mutated": "true"},
            "annotations": {"koordinator.sh/intercepted": "true"},
        },
    });
    for (key, value) in [("namespaceSelector", namespaces), ("patch", patch)] {
        if let Some(value) = value {
            profile["spec"][key] = value;
        }
    }
    profile
}

/// Returns the name of the quota of pod `index`: one without children.
fn quota_of(index: u32, quotas: u32) -> String {
    let parents = parents(quotas);
    format!("quota-{}", parents + index % (quotas - parents).max(1))
}

fn parents(quotas: u32) -> u32 {
    PARENTS.min(quotas / 2)
}

/// Returns ElasticQuota `index` of `count`.
fn quota(index: u32, count: u32) -> Value {
    let parents = parents(count);
    let is_parent = index < parents;
    let parent = match index.checked_rem(parents) {
        Some(parent) if !is_parent => format!("quota-{parent}"),
        _ => "koordinator-root-quota".to_owned(),
    };
    let size = if is_parent { 10_000 } else { 100 };
    let amount = json!({"cpu": size.to_string(), "memory": format!("{size}Gi")});
    json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {
            "name": format!("quota-{index}"), "namespace": node::NAMESPACE,
            "labels": {
                "quota.scheduling.koordinator.sh/is-parent": is_parent.to_string(),
                "quota.scheduling.koordinator.sh/parent": parent,
            },
        },
        "spec": {"min": amount, "max": amount},
    })
}

/// Returns pod `index` as a ReplicaSet creates it, before admission.
fn new_pod(index: u32, args: &super::Args) -> Value {
    let app = index % args.profiles;
    let mut pod = node::pod(app, 2);
    let name = format!("service-{app}-7d9c6bd5f-{index:05}");
    if let Some(pod) = pod.as_object_mut() {
        pod.insert("status".to_owned(), json!({}));
    }
    let metadata = &mut pod["metadata"];
    metadata["name"] = name.into();
    metadata["creationTimestamp"] = Value::Null;
    metadata["labels"] = json!({
        "app": format!("service-{app}"), "pod-template-hash": "7d9c6bd5f", "version": "v1",
        "quota.scheduling.koordinator.sh/name": quota_of(index, args.quotas),
    });
    metadata["annotations"] = json!({"prometheus.io/scrape": "true", "prometheus.io/port": "9090"});
    let fields = [
        "f:name",
        "f:image",
        "f:env",
        "f:ports",
        "f:resources",
        "f:volumeMounts",
    ];
    let fields: serde_json::Map<String, Value> = fields
        .into_iter()
        .map(|field| (field.to_owned(), json!({".": {}})))
        .collect();
    metadata["managedFields"] = json!([{
        "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c0\"}": fields, "k:{\"name\":\"c1\"}": fields}}},
    }]);
    for (part, name) in [
        ("metadata", "resourceVersion"),
        ("spec", "nodeName"),
        ("spec", "priority"),
        ("spec", "priorityClassName"),
        ("spec", "preemptionPolicy"),
    ] {
        if let Some(object) = pod[part].as_object_mut() {
            object.remove(name);
        }
    }
    pod["spec"]["schedulerName"] = "default-scheduler".into();
    let containers = pod["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        container["resources"] = json!({
            "requests": {"cpu": "500m", "memory": "256Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        });
    }
    pod
}

/// Returns the AdmissionReview of the creation of `pod`, as API servers send it.
pub(super) fn review(uid: &str, pod: &Value) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid, "kind": kind, "resource": resource,
            "requestKind": kind, "requestResource": resource,
            "name": pod["metadata"]["name"], "namespace": node::NAMESPACE, "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "5f0c1c6e-0c0e-4a6a-9b8e-000000000003",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system",
                    "system:authenticated"],
            },
            "object": pod, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}

/// Returns pods, each with the next profile and quota in turn.
pub(super) fn new_pods(count: u32, args: &super::Args) -> Vec<Value> {
    (0..count).map(|index| new_pod(index, args)).collect()
}

/// Returns the name of node `index`.
pub(super) fn node_name(index: u32) -> String {
    format!("node-{index:05}")
}

const NODE_CPUS: u32 = 32;
const SINCE: &str = "2026-01-01T00:00:00Z";

/// Returns node `index` with the fields of its kubelet and a cloud, and with its images.
pub(super) fn node(index: u32) -> Value {
    let name = node_name(index);
    let amounts = |cpu: u32, memory: u32| {
        json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi"), "pods": "110",
            "ephemeral-storage": "200Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0"})
    };
    let images: Vec<Value> = (0..30)
        .map(|image| {
            let digest = format!("{image:064x}");
            json!({"sizeBytes": 100_000_000 + image, "names": [
                format!("registry.example.com/team/service-{image}@sha256:{digest}"),
                format!("registry.example.com/team/service-{image}:1.2.3")]})
        })
        .collect();
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": "m.8xlarge",
                "topology.kubernetes.io/region": "region-1",
                "topology.kubernetes.io/zone": format!("zone-{}", index % 3),
                "team.example.com/pool": format!("pool-{}", index % 10),
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": format!("cloud:///{name}")},
        "status": {
            "capacity": amounts(NODE_CPUS, 128), "allocatable": amounts(NODE_CPUS - 1, 124),
            "addresses": [
                {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "conditions": conditions(SINCE), "images": images,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"machineID": "0123456789abcdef0123456789abcdef",
                "systemUUID": "01234567-89ab-cdef-0123-456789abcdef",
                "bootID": "01234567-89ab-cdef-0123-456789abcdef",
                "kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux 12 (bookworm)",
                "containerRuntimeVersion": "containerd://2.0.0", "kubeletVersion": "v1.35.0",
                "kubeProxyVersion": "v1.35.0", "operatingSystem": "linux", "architecture": "amd64"},
        },
    })
}

fn conditions(now: &str) -> Value {
    let pressure = ["MemoryPressure", "DiskPressure", "PIDPressure"].map(|what| {
        json!({"type": what, "status": "False", "lastHeartbeatTime": now,
            "lastTransitionTime": SINCE, "reason": format!("KubeletHasNo{what}"),
            "message": "kubelet has enough of it"})
    });
    let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": now,
        "lastTransitionTime": SINCE, "reason": "KubeletReady",
        "message": "kubelet is posting ready status"});
    pressure.into_iter().chain([ready]).collect()
}

/// Returns the status that a kubelet writes when nothing has changed.
pub(super) fn heartbeat() -> Value {
    json!({"status": {"conditions": conditions(&now())}})
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns pod `index` of a cluster with so many pods on each node, one after the other. Every third is a
/// batch pod.
pub(super) fn running_pod(index: u32, per_node: u32) -> Value {
    let mut pod = bare_pod(index, 1);
    pod["spec"]["nodeName"] = node_name(index / per_node).into();
    pod
}

/// Returns a pod without the fields that the API server sets.
pub(super) fn bare_pod(index: u32, containers: u32) -> Value {
    node::without_server_fields(node::pod(index, containers))
}

/// Namespace and name of the pod of this number.
pub(super) type PodNameOf = fn(u32) -> (String, String);

/// Returns namespace and name of a pod of [`running_pod`].
pub(super) fn name_of_running(index: u32) -> (String, String) {
    (node::NAMESPACE.to_owned(), node::pod_name(index))
}

/// Returns koordlet's report of node `index` at this load.
pub(super) fn report(
    index: u32,
    per_node: u32,
    name_of: PodNameOf,
    load: f64,
    random: &mut fastrand::Rng,
) -> Value {
    let usage = |cpu_milli: f64, memory_mib: f64| json!({"resources": {"cpu": format!("{cpu_milli:.0}m"), "memory": format!("{memory_mib:.0}Mi")}});
    // Each pod varies by 10 % to either side.
    let mut noise = || 0.9 + 0.2 * random.f64();
    let mut sum = (0.0, 0.0);
    let first = index * per_node;
    let pods: Vec<Value> = (first..first + per_node)
        .map(|pod| {
            let used = (800.0 * load * noise(), 1500.0 * noise());
            sum = (sum.0 + used.0, sum.1 + used.1);
            let is_batch = Shape::from_index(pod).is_batch();
            let (namespace, name) = name_of(pod);
            json!({
                "name": name, "namespace": namespace,
                "priority": if is_batch { "koord-batch" } else { "koord-prod" },
                "qos": if is_batch { "BE" } else { "LS" },
                "podUsage": usage(used.0, used.1),
            })
        })
        .collect();
    let system = (600.0 * noise(), 2000.0 * noise());
    let whole = (sum.0 + system.0, sum.1 + system.1);
    let percentiles = |part: f64| {
        let all = ["avg", "p50", "p90", "p95", "p99"];
        let all = all.map(|name| (name.to_owned(), usage(whole.0 * part, whole.1 * part)));
        all.into_iter().collect::<serde_json::Map<_, _>>()
    };
    let aggregated = [("5m0s", 1.0), ("10m0s", 0.98), ("30m0s", 0.95)]
        .map(|(duration, part)| json!({"duration": duration, "usage": percentiles(part)}));
    json!({
        "updateTime": now(),
        "nodeMetric": {
            "nodeUsage": usage(whole.0, whole.1), "systemUsage": usage(system.0, system.1),
            "aggregatedNodeUsages": aggregated, "aggregatedSystemUsages": aggregated,
        },
        "podsMetric": pods,
        "prodReclaimableMetric": {"resource": usage(2000.0, 4000.0)},
    })
}
