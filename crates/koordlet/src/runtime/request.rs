//! Pod and container of a runtime request, converted to the types that hooks use.

use crate::states::pod::check_new_pod;
use crate::states::{ContainerInfo, Layout, PodInfo};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use koord_api::annotations;
use koord_api::extension::ExtendedResourceSpec;
use koord_api::qos::{self, KubeQos, QosClass};
use koord_host::CgroupPath;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A pod in a request.
#[derive(Debug, Clone, Default)]
pub(super) struct PodRequest {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    /// The pod's cgroup, as the kubelet passed it to the runtime.
    pub(super) cgroup_parent: String,
}

/// A container in a request.
#[derive(Debug, Clone, Default)]
pub(super) struct ContainerRequest {
    pub(super) name: String,
    /// The requested CFS quota and its period, in microseconds; 0 is unset, −1 is unlimited.
    pub(super) quota: i64,
    pub(super) period: i64,
}

/// Error of an invalid request.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("request has no pod")]
    NoPod,
    #[error("request has no container")]
    NoContainer,
    #[error("invalid pod UID {0:?}")]
    Uid(String),
    #[error("invalid container name {0:?}")]
    Name(String),
}

/// A pod that hooks can run for.
#[derive(Debug, Clone)]
pub(super) enum ResolvedPod {
    /// A pod of the pod list, with its index.
    Listed(Arc<Vec<PodInfo>>, usize),
    /// A pod that is known only from a request.
    FromRequest(Box<PodInfo>),
}

impl ResolvedPod {
    pub(super) fn pod(&self) -> Option<&PodInfo> {
        match self {
            Self::Listed(pods, at) => pods.get(*at),
            Self::FromRequest(pod) => Some(pod),
        }
    }
}

/// Returns the listed pod, or else one made from the request.
pub(super) fn resolve_pod(
    request: &PodRequest,
    listed: Option<Arc<Vec<PodInfo>>>,
    layout: &Layout,
) -> Result<ResolvedPod, RequestError> {
    if let Some(pods) = listed.clone()
        && let Some(at) = pods.iter().position(|pod| pod.uid == request.uid)
    {
        return Ok(ResolvedPod::Listed(pods, at));
    }
    // Batch resources of the spec are also in this annotation.
    let extended = request
        .annotations
        .get(annotations::POD_EXTENDED_RESOURCE_SPEC);
    let extended =
        extended.and_then(|text| serde_json::from_str::<ExtendedResourceSpec>(text).ok());
    let names: BTreeSet<String> = extended
        .unwrap_or_default()
        .containers
        .into_keys()
        .collect();
    let container = |name| Container {
        name,
        ..Container::default()
    };
    let mut object = Pod::default();
    object.metadata.uid = Some(request.uid.clone());
    object.metadata.namespace = Some(request.namespace.clone());
    object.metadata.name = Some(request.name.clone());
    object.metadata.labels = Some(request.labels.clone());
    object.metadata.annotations = Some(request.annotations.clone());
    object.spec = Some(PodSpec {
        containers: names.into_iter().map(container).collect(),
        ..PodSpec::default()
    });
    let read = PodInfo::read(&object, layout, None);
    let (mut pod, malformed) = read.ok_or_else(|| RequestError::Uid(request.uid.clone()))?;
    for malformed in malformed {
        tracing::debug!(
            pod = request.name,
            ?malformed,
            "ignoring invalid value of a request"
        );
    }
    let listed = listed.as_deref().map_or(&[][..], Vec::as_slice);
    if let Some(reason) = check_new_pod(&mut pod, listed) {
        tracing::warn!(pod = request.name, reason, "ignoring CPUs of an annotation");
    }
    if let Some((group, class)) = pod_cgroup(&request.cgroup_parent, layout) {
        (pod.cgroup, pod.kube_qos) = (group, class);
        if pod.qos == QosClass::None {
            pod.qos_default = qos::default_for_kube_qos(class);
        }
    }
    Ok(ResolvedPod::FromRequest(Box::new(pod)))
}

/// Returns the pod's container with the name of the request, and with the CPU limit of the request. If the
/// pod has no such container, all other values are unset. Rejects names that are not safe in paths.
pub(super) fn resolve_container(
    request: &ContainerRequest,
    pod: &PodInfo,
) -> Result<ContainerInfo, RequestError> {
    if request.name.is_empty() || request.name.contains(['/', '\0']) {
        return Err(RequestError::Name(request.name.clone()));
    }
    let container = pod
        .all_containers()
        .find(|container| container.name == request.name);
    let mut container = container.cloned().unwrap_or_else(|| ContainerInfo {
        name: request.name.clone(),
        ..ContainerInfo::default()
    });
    // A resize is requested here before the pod's new spec is listed.
    if request.quota > 0 {
        let period = if request.period > 0 {
            request.period
        } else {
            100_000
        };
        container.native.cpu_limit = Some(request.quota.saturating_mul(1000) / period);
    }
    Ok(container)
}

/// Returns the cgroup path that a runtime specifies for a pod, and its kubelet QoS class. With the systemd
/// driver the kubelet passes only the slice's name to the runtime.
pub(super) fn pod_cgroup(parent: &str, layout: &Layout) -> Option<(CgroupPath, KubeQos)> {
    let path = parent.trim_matches('/');
    let path = match path.strip_suffix(".slice") {
        Some(name) if !path.contains('/') => slices(name),
        _ => path.to_owned(),
    };
    let group = CgroupPath::new(&path)
        .ok()
        .filter(|group| !group.is_root())?;
    let within = |class| {
        let class = layout.qos(class).ok();
        class.is_some_and(|class| group.is_within(&class))
    };
    let class = [KubeQos::Burstable, KubeQos::BestEffort];
    let class = class.into_iter().find(|class| within(*class));
    let class = class.unwrap_or_else(|| {
        // If the layout is not detected yet, the class follows from names.
        let has = |name: &str| path.split(['/', '-', '.']).any(|part| part == name);
        match (has("burstable"), has("besteffort")) {
            (true, _) => KubeQos::Burstable,
            (_, true) => KubeQos::BestEffort,
            _ => KubeQos::Guaranteed,
        }
    });
    Some((group, class))
}

/// Converts a slice name to a path: `a-b` is the cgroup `a.slice/a-b.slice`.
fn slices(name: &str) -> String {
    let ends = name.match_indices('-').map(|(at, _)| at);
    let prefixes = ends.filter_map(|at| name.get(..at)).chain([name]);
    let groups: Vec<String> = prefixes.map(|name| format!("{name}.slice")).collect();
    groups.join("/")
}

/// Returns the cgroup path that a runtime specifies for a container. With the systemd driver the format is
/// `slice:prefix:id`.
pub(super) fn container_cgroup(path: &str, layout: &Layout) -> Option<CgroupPath> {
    let parts: Vec<&str> = path.split(':').collect();
    let path = match parts.as_slice() {
        [slice, prefix, id] => {
            let (slice, _) = pod_cgroup(slice, layout)?;
            return slice.join(&format!("{prefix}-{id}.scope")).ok();
        }
        _ => path.trim_matches('/'),
    };
    CgroupPath::new(path).ok().filter(|group| !group.is_root())
}
