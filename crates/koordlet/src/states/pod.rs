//! A pod, reduced to what the agent needs.

use super::Layout;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use koord_api::priority::{self, PriorityClass};
use koord_api::qos::{self, KubeQos, QosClass};
use koord_api::{annotations, quantity, resources};
use koord_host::{CgroupPath, CpuSet};
use koord_model::reclaim::pod_request;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A pod's phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the API's own names")]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

/// Batch resources of a container; `None` when the resource is not named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batch {
    /// Requested CPU in milli-cores.
    pub cpu_request: Option<i64>,
    /// CPU limit in milli-cores.
    pub cpu_limit: Option<i64>,
    /// Memory limit in bytes.
    pub memory_limit: Option<i64>,
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInfo {
    /// Its name.
    pub name: String,
    /// Its group, once the runtime has reported an id.
    pub cgroup: Option<CgroupPath>,
    /// What it asked for in batch resources, when it did.
    pub batch: Option<Batch>,
}

/// One pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodInfo {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The label, as it is.
    pub qos: QosClass,
    /// The label, or what follows from the kubelet's class.
    pub qos_default: QosClass,
    /// The kubelet's class.
    pub kube_qos: KubeQos,
    /// With default.
    pub priority_class: PriorityClass,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether deletion has begun.
    pub deleting: bool,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Requested CPU in milli-cores.
    pub cpu_request: i64,
    /// Requested memory in bytes.
    pub memory_request: i64,
    /// The features that may evict the pod: `None` is all, an unreadable list is none.
    pub evictable_by: Option<Vec<String>>,
    /// CPUs the scheduler gave the pod for itself.
    pub cpus: Option<CpuSet>,
    /// The pod's group.
    pub cgroup: CgroupPath,
    /// Its containers, init containers left out.
    pub containers: Vec<ContainerInfo>,
}

#[derive(Deserialize, Default)]
struct ExtendedSpec {
    #[serde(default)]
    containers: BTreeMap<String, ExtendedContainer>,
}

#[derive(Deserialize, Default)]
struct ExtendedContainer {
    #[serde(default)]
    requests: BTreeMap<String, quantity::Quantity>,
    #[serde(default)]
    limits: BTreeMap<String, quantity::Quantity>,
}

impl PodInfo {
    /// Reads a Pod object; `None` when it has no UID or its UID cannot name a group.
    #[must_use]
    pub fn of(pod: &Pod, layout: &Layout) -> Option<Self> {
        let meta = &pod.metadata;
        let uid = meta.uid.clone()?;
        let kube_qos = qos::kube_of_pod(pod);
        // The uid names files, too.
        let cgroup = layout.pod(kube_qos, &uid).ok()?;
        // Static pods live under the hash the kubelet gave them. Anybody can write the annotation,
        // so what could be the uid of another pod is not believed.
        let hash = meta
            .annotations
            .as_ref()
            .and_then(|notes| notes.get("kubernetes.io/config.hash"))
            .filter(|hash| is_config_hash(hash));
        let cgroup = match hash {
            Some(hash) => layout.pod(kube_qos, hash).ok()?,
            None => cgroup,
        };
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let empty = BTreeMap::new();
        let notes = meta.annotations.as_ref().unwrap_or(&empty);
        let extended: ExtendedSpec = notes
            .get(annotations::POD_EXTENDED_RESOURCE_SPEC)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let statuses = status
            .and_then(|s| s.container_statuses.as_deref())
            .unwrap_or_default();
        let containers = spec.map_or(&[][..], |s| &s.containers[..]);
        let containers = containers
            .iter()
            .map(|container| ContainerInfo {
                name: container.name.clone(),
                cgroup: statuses
                    .iter()
                    .find(|s| s.name == container.name)
                    .and_then(|s| s.container_id.as_deref())
                    .and_then(|id| layout.container(&cgroup, id).ok()),
                batch: batch_of(container, extended.containers.get(&container.name)),
            })
            .collect();
        let request = pod_request(pod);
        Some(Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            qos: qos::of_pod(pod),
            qos_default: qos::of_pod_with_default(pod),
            kube_qos,
            priority_class: priority::of_pod_with_default(pod),
            priority: spec.and_then(|s| s.priority),
            phase: match status.and_then(|s| s.phase.as_deref()) {
                Some("Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                _ => Phase::Unknown,
            },
            deleting: meta.deletion_timestamp.is_some(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            cpu_request: request.cpu.milli_value(),
            memory_request: request.memory.value(),
            evictable_by: notes
                .get(annotations::POD_EVICTION_POLICY)
                .map(|text| serde_json::from_str(text).unwrap_or_default()),
            cpus: notes
                .get(annotations::RESOURCE_STATUS)
                .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
                .and_then(|value| value.get("cpuset")?.as_str()?.parse().ok())
                .filter(|cpus: &CpuSet| !cpus.is_empty()),
            uid,
            cgroup,
            containers,
        })
    }

    /// Whether the pod counts as best-effort when CPU is shared out: labelled BE, or of the
    /// kubelet's BestEffort class.
    #[must_use]
    pub fn is_best_effort(&self) -> bool {
        self.qos == QosClass::Be || self.kube_qos == KubeQos::BestEffort
    }

    /// Whether the pod has not ended.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Pending | Phase::Running)
    }

    /// Whether `feature` may evict the pod.
    #[must_use]
    pub fn may_be_evicted_by(&self, feature: &str) -> bool {
        self.evictable_by
            .as_ref()
            .is_none_or(|list| list.iter().any(|name| name == feature))
    }

    /// Milli-cores of batch CPU the pod requests.
    #[must_use]
    pub fn batch_cpu_request(&self) -> i64 {
        let requests = self
            .containers
            .iter()
            .filter_map(|c| c.batch.and_then(|b| b.cpu_request));
        requests.filter(|milli| *milli > 0).sum()
    }
}

/// The kubelet's hash of a static pod: 32 hex digits. Uids from the API server have dashes.
fn is_config_hash(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn batch_of(container: &Container, extended: Option<&ExtendedContainer>) -> Option<Batch> {
    let native = container.resources.as_ref();
    let read = |limits: bool, name: &str| -> Option<i64> {
        let list = native.and_then(|r: &ResourceRequirements| {
            if limits {
                r.limits.as_ref()
            } else {
                r.requests.as_ref()
            }
        });
        let native = list
            .and_then(|l| l.get(name))
            .and_then(|q| quantity::parse(q).ok());
        native
            .or_else(|| {
                let extended = extended?;
                let list = if limits {
                    &extended.limits
                } else {
                    &extended.requests
                };
                list.get(name).copied()
            })
            .map(|q| q.value())
    };
    let batch = Batch {
        cpu_request: read(false, resources::BATCH_CPU),
        cpu_limit: read(true, resources::BATCH_CPU),
        memory_limit: read(true, resources::BATCH_MEMORY),
    };
    let memory_request = read(false, resources::BATCH_MEMORY);
    (batch != Batch::default() || memory_request.is_some()).then_some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::Driver;
    use serde_json::json;

    fn info(value: serde_json::Value) -> PodInfo {
        let pod: Pod = serde_json::from_value(value).unwrap();
        PodInfo::of(&pod, &Layout::new(Driver::Cgroupfs, CgroupPath::root())).unwrap()
    }

    #[test]
    fn a_batch_pod() {
        let pod = info(json!({
            "metadata": {"uid": "u1", "name": "be", "namespace": "default",
                "labels": {"koordinator.sh/qosClass": "BE"},
                "annotations": {"koordinator.sh/eviction-policy": "[\"MemoryEvict\"]"}},
            "spec": {"priority": 5500, "containers": [
                {"name": "a", "resources": {
                    "requests": {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}}},
                {"name": "b"}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "a", "containerID": "koord://c1", "image": "", "imageID": "", "ready": true, "restartCount": 0}]}
        }));
        assert_eq!(pod.qos, QosClass::Be);
        assert_eq!(pod.priority_class, PriorityClass::Batch);
        assert_eq!(pod.cgroup.as_str(), "kubepods/besteffort/podu1");
        assert_eq!(pod.containers[0].cgroup.as_ref().unwrap().name(), "c1");
        assert_eq!(pod.containers[0].batch.unwrap().cpu_request, Some(1500));
        assert_eq!(pod.containers[0].batch.unwrap().cpu_limit, None);
        assert_eq!(pod.containers[1].batch, None);
        assert_eq!(pod.batch_cpu_request(), 1500);
        assert!(!pod.may_be_evicted_by("BEMemoryEvict"));
        assert!(pod.is_best_effort() && pod.is_active());
    }

    #[test]
    fn requests_count_init_containers_and_overhead() {
        let pod = info(json!({
            "metadata": {"uid": "u1"},
            "spec": {
                "overhead": {"cpu": "100m"},
                "initContainers": [
                    {"name": "i", "resources": {"requests": {"cpu": "3"}}},
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
                "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}
        }));
        assert_eq!((pod.cpu_request, pod.memory_request), (3100, 1 << 30));
        assert_eq!(pod.kube_qos, KubeQos::Burstable);
        assert_eq!(pod.qos_default, QosClass::Ls);
    }

    #[test]
    fn pod_level_requests_replace_the_sum() {
        let pod = info(json!({
            "metadata": {"uid": "u1"},
            "spec": {
                "resources": {"requests": {"cpu": "2"}},
                "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}
        }));
        assert_eq!((pod.cpu_request, pod.memory_request), (2000, 1 << 30));
    }

    #[test]
    fn only_a_hash_of_the_kubelet_moves_the_group() {
        let group = |hash: &str| {
            let pod = info(json!({
                "metadata": {"uid": "u1", "annotations": {"kubernetes.io/config.hash": hash}},
                "spec": {"containers": [{"name": "a"}]}
            }));
            pod.cgroup.as_str().to_owned()
        };
        let hash = "0123456789abcdef0123456789abcdef";
        assert_eq!(group(hash), format!("kubepods/besteffort/pod{hash}"));
        for foreign in ["6f1c2a5e-0d6b-4a51-9a55-0d3b8f0e7a11", "../x", ""] {
            assert_eq!(group(foreign), "kubepods/besteffort/podu1");
        }
    }

    #[test]
    fn malformed_annotations_do_not_lose_the_pod() {
        let pod = info(json!({
            "metadata": {"uid": "u1", "annotations": {
                "koordinator.sh/eviction-policy": "nonsense",
                "node.koordinator.sh/extended-resource-spec": "{"}},
            "spec": {"containers": [{"name": "a"}]}
        }));
        assert!(!pod.may_be_evicted_by("BEMemoryEvict"));
        assert_eq!(pod.phase, Phase::Unknown);
    }
}
