//! What the recommender keeps of a pod.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use koord_api::{quantity, requests, resources};
use koord_kube::owners::Owner;
use koord_kube::{Mirrored, ObjectKey};
use koord_model::histogram::UnixMillis;
use std::collections::BTreeMap;

/// A pod, without what is of no use here.
#[derive(Debug, Clone)]
pub(crate) struct PodFacts {
    pub(crate) key: ObjectKey,
    pub(crate) uid: Box<str>,
    resource_version: Option<Box<str>>,
    /// As JSON; empty without any.
    labels: Box<str>,
    pub(crate) owner: Option<Owner>,
    /// The containers that run as long as the pod: main ones and sidecars.
    pub(crate) containers: Vec<ContainerFacts>,
}

/// One container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContainerFacts {
    pub(crate) name: String,
    /// Requested cores; the batch or mid resource where the pod asks for that.
    pub(crate) cpu: Option<f64>,
    /// Requested bytes, likewise.
    pub(crate) memory: Option<f64>,
    /// When it was last killed for want of memory.
    pub(crate) killed: Option<UnixMillis>,
}

impl PodFacts {
    pub(crate) fn of(pod: &Pod) -> Self {
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
        let facts = |container: &Container| ContainerFacts {
            name: container.name.clone(),
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
            killed: statuses()
                .filter(|status| status.name == container.name)
                .filter_map(killed)
                .max(),
        };
        let labels = pod.metadata.labels.as_ref();
        let labels = labels.and_then(|labels| serde_json::to_string(labels).ok());
        Self {
            key: ObjectKey::of(pod),
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            resource_version: pod.metadata.resource_version.as_deref().map(Box::from),
            labels: labels.unwrap_or_default().into(),
            owner: Owner::of(&pod.metadata),
            containers: main.chain(sidecars).map(facts).collect(),
        }
    }
}

impl PodFacts {
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        // They were written by `of`.
        serde_json::from_str(&self.labels).unwrap_or_default()
    }
}

impl Mirrored for PodFacts {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }
    fn uid(&self) -> Option<&str> {
        Some(&self.uid)
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

/// What a container requests of the first resource that it requests. Batch and mid CPU are counted
/// in milli-cores.
fn request(container: &Container, names: [&str; 3]) -> Option<f64> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    names.into_iter().find_map(|name| {
        let amount = quantity::parse(requests.get(name)?).ok()?.to_f64();
        let milli = matches!(name, resources::BATCH_CPU | resources::MID_CPU);
        Some(if milli { amount / 1000.0 } else { amount })
    })
}

/// When the container was killed for want of memory, the last time that is known.
fn killed(status: &ContainerStatus) -> Option<UnixMillis> {
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
        let facts = PodFacts::of(&pod);
        let of = |at: usize| {
            let one = &facts.containers[at];
            (one.name.as_str(), one.cpu, one.memory, one.killed)
        };
        assert_eq!(facts.containers.len(), 3);
        let gib = 1024.0 * 1024.0 * 1024.0;
        assert_eq!(
            of(0),
            ("main", Some(0.5), Some(gib), Some(1_767_225_610_000))
        );
        assert_eq!(of(1), ("batch", Some(1.5), Some(2.0 * gib), None));
        assert_eq!(of(2), ("proxy", None, None, None));
    }
}
