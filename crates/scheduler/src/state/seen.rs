//! A pod as an informer delivers it: parsed, and without what nobody reads any more.
//!
//! A cluster has many more pods that run than pods that wait, and the object of a pod is several
//! kilobytes even when most of it is empty.

use super::{PodError, PodInfo};
use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use koord_kube::Mirrored;
use koord_model::resources::ResourceTable;
use std::sync::Arc;

/// See the module documentation.
#[derive(Debug)]
pub enum SeenPod {
    /// It can be understood.
    Pod(Arc<PodInfo>),
    /// It cannot, and why.
    Broken(Box<Pod>, PodError),
}

impl SeenPod {
    /// Reads `pod`, numbering the resources it names in `table`.
    #[must_use]
    pub fn new(pod: Pod, table: &ResourceTable) -> Self {
        let pod = Arc::new(pod);
        match PodInfo::new(pod.clone(), table) {
            Ok(mut info) => {
                drop(pod);
                if info.node.is_some()
                    && let Some(object) = Arc::get_mut(&mut info.object)
                {
                    slim(object);
                }
                Self::Pod(Arc::new(info))
            }
            Err(error) => Self::Broken(Box::new(Arc::unwrap_or_clone(pod)), error),
        }
    }

    /// The same, a bound pod's object being kept as it is.
    #[must_use]
    pub fn whole(pod: Pod, table: &ResourceTable) -> Self {
        let pod = Arc::new(pod);
        match PodInfo::new(pod.clone(), table) {
            Ok(info) => Self::Pod(Arc::new(info)),
            Err(error) => Self::Broken(Box::new(Arc::unwrap_or_clone(pod)), error),
        }
    }

    /// The object; of a bound pod, what is left of it.
    #[must_use]
    pub fn object(&self) -> &Pod {
        match self {
            Self::Pod(info) => &info.object,
            Self::Broken(pod, _) => pod,
        }
    }
}

impl Mirrored for SeenPod {
    fn names(&self) -> (&str, &str) {
        self.object().names()
    }
    fn is_same(&self, other: &Self) -> bool {
        self.object().is_same(other.object())
    }
    fn resource_version(&self) -> Option<&str> {
        self.object().metadata.resource_version.as_deref()
    }
}

/// Takes away what concerns a pod only until it is bound, and what [`PodInfo`] holds by itself:
/// its containers (but for the ports they take of the host), how it chooses a node, and how far
/// its status has come. What it means to other pods stays: labels, annotations, affinity, volumes,
/// whether it is on its way out.
fn slim(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        spec.containers.retain(takes_host_ports);
        spec.containers.shrink_to_fit();
        if let Some(init) = &mut spec.init_containers {
            init.retain(takes_host_ports);
        }
        spec.init_containers = spec.init_containers.take().filter(|list| !list.is_empty());
        spec.tolerations = None;
        spec.topology_spread_constraints = None;
        spec.node_selector = None;
        if let Some(affinity) = &mut spec.affinity {
            affinity.node_affinity = None;
        }
    }
    if let Some(status) = &mut pod.status {
        status.container_statuses = None;
        status.init_container_statuses = None;
    }
    if let Some(status) = &mut pod.status
        && let Some(conditions) = &mut status.conditions
    {
        conditions.retain(|condition| condition.type_ == "DisruptionTarget");
        conditions.shrink_to_fit();
    }
}

fn takes_host_ports(container: &Container) -> bool {
    let mut ports = container.ports.iter().flatten();
    ports.any(|port| port.host_port.is_some_and(|port| port > 0))
}

/// Whether a rule may concern the volume: those that need nothing but the node concern none.
pub(crate) fn volume_matters(volume: &Volume) -> bool {
    volume.config_map.is_none()
        && volume.downward_api.is_none()
        && volume.empty_dir.is_none()
        && volume.host_path.is_none()
        && volume.projected.is_none()
        && volume.secret.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::resources::CPU;
    use serde_json::{Value, json};

    fn seen(spec: Value) -> SeenPod {
        let pod = json!({"metadata": {"name": "p", "uid": "u", "labels": {"a": "b"}}, "spec": spec,
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "DisruptionTarget", "status": "True"}
        ]}});
        SeenPod::new(serde_json::from_value(pod).unwrap(), &ResourceTable::new())
    }

    fn spec() -> Value {
        json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "2"}}},
                {"name": "b", "ports": [{"containerPort": 80, "hostPort": 8080}]}
            ],
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}, "podAntiAffinity": {}}
        })
    }

    #[test]
    fn a_bound_pod_keeps_what_it_means_to_others() {
        let mut bound = spec();
        bound["nodeName"] = json!("n");
        let seen = seen(bound);
        let SeenPod::Pod(info) = &seen else {
            panic!("{seen:?}")
        };
        assert_eq!(info.requests.get(CPU), 2000);
        assert_eq!(info.scoring[0], 2100);
        let spec = info.spec().unwrap();
        let names: Vec<&str> = spec.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["b"]);
        assert_eq!(spec.tolerations, None);
        let affinity = spec.affinity.as_ref().unwrap();
        assert!(affinity.node_affinity.is_none() && affinity.pod_anti_affinity.is_some());
        let status = seen.object().status.as_ref().unwrap();
        let conditions = status.conditions.as_ref().unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].type_, "DisruptionTarget");
        assert!(seen.object().metadata.labels.is_some());
    }

    #[test]
    fn a_waiting_pod_keeps_everything() {
        let seen = seen(spec());
        let SeenPod::Pod(info) = &seen else {
            panic!("{seen:?}")
        };
        let spec = info.spec().unwrap();
        assert_eq!(spec.containers.len(), 2);
        assert!(spec.tolerations.is_some());
    }

    #[test]
    fn a_broken_pod_is_kept_with_the_reason() {
        let seen = seen(json!({"nodeName": "n", "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "x"}}}
        ]}));
        let SeenPod::Broken(pod, error) = &seen else {
            panic!("{seen:?}")
        };
        assert!(error.to_string().contains("\"x\""), "{error}");
        assert_eq!(pod.spec.as_ref().unwrap().containers.len(), 1);
        assert_eq!(seen.object().metadata.uid.as_deref(), Some("u"));
    }
}
