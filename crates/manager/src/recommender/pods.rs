//! Pods in the compact form of the recommender.

use crate::facts::Interner;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use koord_api::{Uid, quantity, requests, resources};
use koord_kube::owners::Owner;
use koord_kube::{Cacheable, ObjectKey};
use koord_model::histogram::UnixMillis;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The fields of a pod that the recommender reads.
#[derive(Debug, Clone)]
pub(crate) struct RecommenderPod {
    pub(crate) key: ObjectKey,
    pub(crate) uid: Uid,
    resource_version: Option<Box<str>>,
    /// Labels as JSON; empty if there are none.
    labels: Arc<str>,
    pub(crate) owner: Option<Arc<Owner>>,
    /// Containers that run as long as the pod: main containers and sidecars.
    pub(crate) containers: Arc<[RecommenderContainer]>,
}

/// Interners of the values that pods of a workload share.
#[derive(Debug, Default)]
pub(crate) struct PodInterners {
    labels: Interner<str>,
    owners: Interner<Owner>,
    containers: Interner<[RecommenderContainer]>,
}

/// The fields of a container that the recommender reads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecommenderContainer {
    pub(crate) name: Box<str>,
    /// Requested cores: CPU, or batch or mid CPU if that is requested instead.
    pub(crate) cpu: Option<f64>,
    /// Requested bytes: memory, or batch or mid memory.
    pub(crate) memory: Option<f64>,
    /// Time of the last OOM kill, in Unix milliseconds.
    pub(crate) oom_killed: Option<UnixMillis>,
}

// Amounts come from quantities and are never NaN.
impl Eq for RecommenderContainer {}

impl Hash for RecommenderContainer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let amounts = [self.cpu, self.memory].map(|amount| amount.map(f64::to_bits));
        (&self.name, amounts, self.oom_killed).hash(state);
    }
}

impl RecommenderPod {
    /// Creates the compact form of a single pod.
    pub(crate) fn from_pod(pod: &Pod) -> Self {
        Self::with_interners(pod, &PodInterners::default())
    }

    /// Creates the compact form of one of many pods, with interned values.
    pub(crate) fn with_interners(pod: &Pod, interners: &PodInterners) -> Self {
        let status = pod.status.as_ref();
        let spec = pod.spec.as_ref();
        let sidecars = spec.and_then(|spec| spec.init_containers.as_ref());
        let sidecars = sidecars
            .into_iter()
            .flatten()
            .filter(|c| requests::is_sidecar(c));
        let main = spec
            .map(|spec| spec.containers.iter())
            .into_iter()
            .flatten();
        let statuses = || {
            let lists = status.map(|s| [&s.container_statuses, &s.init_container_statuses]);
            lists.into_iter().flatten().flatten().flatten()
        };
        let facts = |container: &Container| RecommenderContainer {
            name: container.name.as_str().into(),
            cpu: request(
                container,
                [resources::CPU, resources::BATCH_CPU, resources::MID_CPU],
            ),
            memory: request(
                container,
                [
                    resources::MEMORY,
                    resources::BATCH_MEMORY,
                    resources::MID_MEMORY,
                ],
            ),
            oom_killed: statuses()
                .filter(|status| status.name == container.name)
                .filter_map(oom_killed)
                .max(),
        };
        let labels = pod.metadata.labels.as_ref();
        let labels = labels.and_then(|labels| serde_json::to_string(labels).ok());
        Self {
            key: ObjectKey::from_object(pod),
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            resource_version: pod.metadata.resource_version.as_deref().map(Box::from),
            labels: interners.labels.share(labels.unwrap_or_default()),
            owner: Owner::controller_of(&pod.metadata).map(|owner| interners.owners.share(owner)),
            containers: interners
                .containers
                .share(main.chain(sidecars).map(facts).collect::<Vec<_>>()),
        }
    }
}

impl RecommenderPod {
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        // The text was encoded in `with_interners`.
        serde_json::from_str(&self.labels).unwrap_or_default()
    }
}

impl Cacheable for RecommenderPod {
    fn names(&self) -> (&str, &str) {
        (&self.key.namespace, &self.key.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

/// Returns a container's request of the first resource in `names` that it requests. Batch and mid CPU are
/// counted in milli-cores.
fn request(container: &Container, names: [&str; 3]) -> Option<f64> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    names.into_iter().find_map(|name| {
        let amount = quantity::parse(requests.get(name)?).ok()?.to_f64();
        let milli = matches!(name, resources::BATCH_CPU | resources::MID_CPU);
        Some(if milli { amount / 1000.0 } else { amount })
    })
}

/// Returns when the container was last OOM-killed, in Unix milliseconds.
fn oom_killed(status: &ContainerStatus) -> Option<UnixMillis> {
    let states = [status.last_state.as_ref(), status.state.as_ref()];
    let ended = states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref())
        .filter(|ended| ended.reason.as_deref() == Some("OOMKilled"));
    ended
        .filter_map(|ended| ended.finished_at.as_ref())
        .map(|time| time.0.as_millisecond())
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sidecars_count_and_init_containers_do_not() {
        let ended = |reason: &str, at: &str| json!({"terminated": {"exitCode": 137, "reason": reason, "finishedAt": at}});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "1"},
            "spec": {
                "containers": [
                    {"name": "main", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
                    {"name": "batch", "resources": {"requests": {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "2Gi"}}},
                ],
                "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
            },
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 2,
                 "lastState": ended("OOMKilled", "2026-01-01T00:00:10Z")},
                {"name": "batch", "image": "", "imageID": "", "ready": true, "restartCount": 1,
                 "lastState": ended("Error", "2026-01-01T00:00:10Z")},
            ]},
        }))
        .unwrap();
        let facts = RecommenderPod::from_pod(&pod);
        let amounts = |at: usize| {
            let container = &facts.containers[at];
            (
                &*container.name,
                container.cpu,
                container.memory,
                container.oom_killed,
            )
        };
        assert_eq!(facts.containers.len(), 3);
        let gib = 1024.0 * 1024.0 * 1024.0;
        assert_eq!(
            amounts(0),
            ("main", Some(0.5), Some(gib), Some(1_767_225_610_000))
        );
        assert_eq!(amounts(1), ("batch", Some(1.5), Some(2.0 * gib), None));
        assert_eq!(amounts(2), ("proxy", None, None, None));
    }

    #[test]
    fn pods_of_a_workload_share_interned_parts() {
        let interners = PodInterners::default();
        let facts = |name: &str, cpu: &str| {
            let pod = serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"},
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                        "name": "web-1", "uid": "u", "controller": true}]},
                "spec": {"containers": [
                    {"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
            }));
            RecommenderPod::with_interners(&pod.unwrap(), &interners)
        };
        let [a, b, c] = [("a", "1"), ("b", "1"), ("c", "2")].map(|(name, cpu)| facts(name, cpu));
        let owner = |pod: &RecommenderPod| pod.owner.clone().unwrap();
        assert!(Arc::ptr_eq(&owner(&a), &owner(&c)));
        assert!(Arc::ptr_eq(&a.labels, &b.labels));
        assert!(Arc::ptr_eq(&a.containers, &b.containers));
        assert_eq!(c.containers[0].cpu, Some(2.0));
    }
}
