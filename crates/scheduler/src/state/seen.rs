//! A pod as an informer delivers it: parsed, and without what nobody reads any more.
//!
//! A cluster has many more pods that run than pods that wait, and the object of a pod is several
//! kilobytes even when most of it is empty: those that are bound and say the same share one.

use super::{Alike, PodError, PodInfo};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_kube::Mirrored;
use koord_model::resources::ResourceTable;
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module documentation.
#[derive(Debug)]
pub enum SeenPod {
    /// It can be understood.
    Pod(Arc<PodInfo>),
    /// It cannot, and why.
    Broken(Box<(Pod, PodError)>),
}

impl SeenPod {
    /// Reads `pod`, numbering the resources it names in `table`.
    #[must_use]
    pub fn new(pod: Pod, table: &ResourceTable) -> Self {
        read(pod, table, |info| {
            if let Some(object) = Arc::get_mut(&mut info.object) {
                slim(object);
            }
        })
    }

    /// The same, a bound pod's object being kept as it is.
    #[must_use]
    pub fn whole(pod: Pod, table: &ResourceTable) -> Self {
        read(pod, table, |_| ())
    }

    /// `metadata.uid`.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Pod(info) => &info.uid,
            Self::Broken(broken) => broken.0.metadata.uid.as_deref().unwrap_or_default(),
        }
    }

    /// `spec.nodeName`.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Pod(info) => info.node.as_deref(),
            Self::Broken(broken) => broken.0.spec.as_ref()?.node_name.as_deref(),
        }
    }
}

impl Alike {
    /// As [`SeenPod::new`]; of what bound pods have in common there is one for all that are read here.
    #[must_use]
    pub fn read(&self, pod: Pod, table: &ResourceTable) -> SeenPod {
        read(pod, table, |info| {
            if let Some(object) = Arc::get_mut(&mut info.object) {
                slim(object);
            }
            info.requests.shrink_to_fit();
            info.limits.shrink_to_fit();
            info.object = self.object(std::mem::take(&mut info.object));
            info.namespace = self.name(std::mem::take(&mut info.namespace));
            info.node = info.node.take().map(|node| self.name(node));
        })
    }
}

/// Reads `pod`; of a bound one, `keep` takes away what is not kept.
fn read(pod: Pod, table: &ResourceTable, keep: impl FnOnce(&mut PodInfo)) -> SeenPod {
    let pod = Arc::new(pod);
    match PodInfo::new(pod.clone(), table) {
        Ok(mut info) => {
            drop(pod);
            if info.node.is_some() {
                keep(&mut info);
            }
            SeenPod::Pod(Arc::new(info))
        }
        Err(error) => SeenPod::Broken(Box::new((Arc::unwrap_or_clone(pod), error))),
    }
}

impl Mirrored for SeenPod {
    fn names(&self) -> (&str, &str) {
        match self {
            Self::Pod(info) => (&info.namespace, &info.name),
            Self::Broken(broken) => broken.0.names(),
        }
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid() == other.uid()
    }
    fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Pod(info) => info.resource_version.as_deref(),
            Self::Broken(broken) => broken.0.metadata.resource_version.as_deref(),
        }
    }
}

/// Takes away what concerns a pod only until it is bound, and what [`PodInfo`] holds by itself:
/// its names and where it is, what its containers run, how it chooses a node, and how far its status has come.
/// What it means to other pods stays: labels, annotations, affinity, volumes, what its containers take, whether
/// it is on its way out.
fn slim(pod: &mut Pod) {
    let meta = std::mem::take(&mut pod.metadata);
    pod.metadata = ObjectMeta {
        namespace: meta.namespace,
        labels: meta.labels,
        annotations: meta
            .annotations
            .map(without_network)
            .filter(|all| !all.is_empty()),
        owner_references: meta.owner_references,
        generation: meta.generation,
        deletion_timestamp: meta.deletion_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    };
    if let Some(spec) = &mut pod.spec {
        spec.node_name = None;
        spec.hostname = None;
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            *container = of_container(std::mem::take(container));
        }
        spec.tolerations = None;
        spec.topology_spread_constraints = None;
        spec.node_selector = None;
        if let Some(affinity) = &mut spec.affinity {
            affinity.node_affinity = None;
        }
    }
    if let Some(status) = &mut pod.status {
        let conditions = status.conditions.take().into_iter().flatten();
        let lost: Vec<_> = conditions
            .filter(|condition| condition.type_ == "DisruptionTarget")
            .collect();
        *status = PodStatus {
            phase: status.phase.take(),
            qos_class: status.qos_class.take(),
            conditions: Some(lost).filter(|lost| !lost.is_empty()),
            ..PodStatus::default()
        };
    }
}

/// What of a container others go by: what it takes for itself alone, and ports of the host.
fn of_container(container: Container) -> Container {
    let mut ports = container.ports.unwrap_or_default();
    ports.retain(|port| port.host_port.is_some_and(|port| port > 0));
    ports.shrink_to_fit();
    Container {
        name: container.name,
        resources: container.resources,
        restart_policy: container.restart_policy,
        ports: Some(ports).filter(|ports| !ports.is_empty()),
        ..Container::default()
    }
}

/// What network plugins write on each pod differs from pod to pod, and concerns no scheduler.
const NETWORKS: [&str; 5] = [
    "cni.projectcalico.org/",
    "k8s.ovn.org/",
    "k8s.v1.cni.cncf.io/",
    "ovn.kubernetes.io/",
    "vpc.amazonaws.com/",
];

fn without_network(mut annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    annotations.retain(|key, _| !NETWORKS.iter().any(|network| key.starts_with(network)));
    annotations
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

    fn pod(number: usize, spec: Value) -> Pod {
        let name = format!("p-{number}");
        let pod = json!({
            "metadata": {"name": name, "uid": format!("u-{number}"), "namespace": "ns",
                "resourceVersion": format!("{number}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"a": "b"},
                "annotations": {"cni.projectcalico.org/podIP": format!("10.0.0.{number}"), "c": "d"}},
            "spec": spec,
            "status": {"phase": "Running", "podIP": format!("10.0.0.{number}"),
                "startTime": "2026-01-01T00:00:01Z",
                "conditions": [
                    {"type": "Ready", "status": "True"},
                    {"type": "DisruptionTarget", "status": "True"}
                ]}
        });
        serde_json::from_value(pod).unwrap()
    }

    fn info(seen: SeenPod) -> Arc<PodInfo> {
        match seen {
            SeenPod::Pod(info) => info,
            SeenPod::Broken(broken) => panic!("{broken:?}"),
        }
    }

    fn seen(spec: Value) -> SeenPod {
        SeenPod::new(pod(1, spec), &ResourceTable::new())
    }

    fn spec() -> Value {
        json!({
            "containers": [
                {"name": "a", "image": "i", "resources": {"requests": {"cpu": "2"}}},
                {"name": "b", "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}
            ],
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}, "podAntiAffinity": {}}
        })
    }

    fn bound(node: &str) -> Value {
        let mut bound = spec();
        bound["nodeName"] = json!(node);
        bound
    }

    #[test]
    fn a_bound_pod_keeps_what_it_means_to_others() {
        let info = info(seen(bound("n")));
        assert_eq!(info.requests.get(CPU), 2000);
        assert_eq!(info.scoring[0], 2100);
        let kept = serde_json::to_value(&*info.object).unwrap();
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "ns", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {
                "containers": [
                    {"name": "a", "resources": {"requests": {"cpu": "2"}}},
                    {"name": "b", "ports": [{"containerPort": 80, "hostPort": 8080}]}
                ],
                "affinity": {"podAntiAffinity": {}}
            },
            "status": {"phase": "Running",
                "conditions": [{"type": "DisruptionTarget", "status": "True"}]}
        });
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_bound_pod_is_still_known_by_its_name() {
        let seen = seen(bound("n"));
        assert_eq!(seen.names(), ("ns", "p-1"));
        assert_eq!((seen.uid(), seen.node()), ("u-1", Some("n")));
        assert_eq!(seen.resource_version(), Some("1"));
        let named = info(seen).named_object();
        let whole = pod(1, bound("n"));
        let (named_meta, meta) = (&named.metadata, &whole.metadata);
        assert_eq!((&named_meta.name, &named_meta.uid), (&meta.name, &meta.uid));
        assert_eq!(named_meta.resource_version, meta.resource_version);
        assert_eq!(named_meta.creation_timestamp, meta.creation_timestamp);
        assert_eq!(named.spec.unwrap().node_name.as_deref(), Some("n"));
        let started = |status: Option<PodStatus>| status.unwrap().start_time;
        assert_eq!(started(named.status), started(whole.status));
    }

    #[test]
    fn bound_pods_that_mean_the_same_share_what_they_keep() {
        let (alike, table) = (Alike::default(), ResourceTable::new());
        let read = |number, spec| info(alike.read(pod(number, spec), &table));
        let [a, b] = [1, 2].map(|number| read(number, bound("n")));
        assert!(Arc::ptr_eq(&a.object, &b.object));
        assert!(Arc::ptr_eq(&a.namespace, &b.namespace));
        assert!(Arc::ptr_eq(
            a.node.as_ref().unwrap(),
            b.node.as_ref().unwrap()
        ));
        assert_eq!((&*a.name, &*b.name), ("p-1", "p-2"));
        // On another node, too; what takes more is another thing.
        let mut more = bound("m");
        assert!(Arc::ptr_eq(&a.object, &read(3, more.clone()).object));
        more["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
        assert!(!Arc::ptr_eq(&a.object, &read(4, more).object));
        // A pod that waits is changed when it is bound, and has its own.
        let [a, b] = [5, 6].map(|number| read(number, spec()));
        assert_eq!(a.object.metadata.name.as_deref(), Some("p-5"));
        assert!(!Arc::ptr_eq(&a.object, &b.object));
    }

    #[test]
    fn a_waiting_pod_keeps_everything() {
        let info = info(seen(spec()));
        let spec = info.spec().unwrap();
        assert_eq!(spec.containers.len(), 2);
        assert!(spec.tolerations.is_some());
    }

    #[test]
    fn a_broken_pod_is_kept_with_the_reason() {
        let seen = seen(json!({"nodeName": "n", "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "x"}}}
        ]}));
        let SeenPod::Broken(broken) = &seen else {
            panic!("{seen:?}")
        };
        let (pod, error) = &**broken;
        assert!(error.to_string().contains("\"x\""), "{error}");
        assert_eq!(pod.spec.as_ref().unwrap().containers.len(), 1);
        assert_eq!((seen.uid(), seen.node()), ("u-1", Some("n")));
    }
}
