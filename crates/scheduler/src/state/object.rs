//! Content of a pod object, split into what is specific to a pod and what pods share.
//!
//! Kubernetes' own types are large even if most of their fields are empty (in bytes: a container 2,144, a
//! volume 3,208, a map of one label 544), and what is specific to one pod cannot be shared.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, PersistentVolumeClaimVolumeSource, Pod, PodSpec, PodStatus,
    ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use koord_api::texts::Texts;
use std::collections::BTreeMap;
use std::convert::identity;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The content of a pod object, in parts that can be shared.
#[derive(Debug, Clone, Default)]
pub struct PodObject {
    /// The pod as received; for a bound pod, only what the other fields do not hold and what is not specific
    /// to the pod.
    pub pod: Arc<Pod>,
    /// `metadata.labels`.
    pub labels: Texts,
    /// `metadata.annotations`.
    pub annotations: Arc<Texts>,
    /// `metadata.ownerReferences`.
    pub owners: Arc<[OwnerReference]>,
    /// The containers, init containers first.
    pub containers: Arc<[ContainerInfo]>,
    /// The volumes of a bound pod that refer to PersistentVolumeClaims by name.
    claims: Box<[Claim]>,
    /// True if the pod was trimmed.
    trimmed: bool,
}

/// The parts of a container that matter to other pods: its resources and host ports.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerInfo {
    /// The container's name.
    pub name: Box<str>,
    /// True if it is one of the `initContainers`.
    pub init: bool,
    /// `restartPolicy`.
    restart: Option<Box<str>>,
    /// `resources.requests`, as written.
    pub requests: Texts,
    /// `resources.limits`.
    pub limits: Texts,
    /// The container's ports with a host port.
    pub ports: Box<[ContainerPort]>,
}

/// A volume that refers to a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Claim {
    /// The volume's index in the pod.
    at: u32,
    name: Box<str>,
    claim: Box<str>,
    read_only: Option<bool>,
}

impl PodObject {
    /// Splits `pod` into its parts.
    #[must_use]
    pub fn new(pod: Arc<Pod>) -> Self {
        let meta = &pod.metadata;
        let containers = pod.spec.as_ref().map(|spec| {
            let init = spec.init_containers.iter().flatten();
            let init = init.map(|container| ContainerInfo::from_container(container, true));
            let main = spec.containers.iter();
            init.chain(main.map(|container| ContainerInfo::from_container(container, false)))
                .collect()
        });
        Self {
            labels: Texts::from_map(meta.labels.as_ref(), String::as_str),
            annotations: Arc::new(Texts::from_map(meta.annotations.as_ref(), String::as_str)),
            owners: meta.owner_references.as_deref().unwrap_or_default().into(),
            containers: containers.unwrap_or_default(),
            claims: Box::default(),
            trimmed: false,
            pod,
        }
    }

    /// Iterates over the names of the claims that the pod uses, without those of ephemeral volumes.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        let volumes = self.volumes().iter();
        let whole = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
        let whole = whole.map(|claim| &*claim.claim_name);
        self.claims_apart().chain(whole)
    }

    /// Iterates over the names of those claims that are not among [`Self::volumes`], as the pod is bound.
    pub fn claims_apart(&self) -> impl Iterator<Item = &str> {
        self.claims.iter().map(|claim| &*claim.claim)
    }

    /// Returns the volumes; for a bound pod, without named claims.
    #[must_use]
    pub fn volumes(&self) -> &[Volume] {
        let spec = self.pod.spec.as_ref();
        spec.and_then(|spec| spec.volumes.as_deref())
            .unwrap_or_default()
    }

    /// Removes what matters only until the pod is bound, and what [`PodInfo`](super::PodInfo) holds itself:
    /// names and node, what its containers run, how it selects a node, and the progress of its status. What
    /// matters to other pods stays: labels, annotations, affinity, volumes, resources of containers, and
    /// whether it is being deleted.
    pub(super) fn trim(&mut self) {
        if std::mem::replace(&mut self.trimmed, true) {
            return;
        }
        let pod = Arc::make_mut(&mut self.pod);
        let meta = std::mem::take(&mut pod.metadata);
        pod.metadata = ObjectMeta {
            generation: meta.generation,
            deletion_timestamp: meta.deletion_timestamp,
            deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
            ..ObjectMeta::default()
        };
        let network = |key: &str| NETWORKS.iter().any(|network| key.starts_with(network));
        Arc::make_mut(&mut self.annotations).retain(|key| !network(key));
        if let Some(spec) = &mut pod.spec {
            self.claims = take_claims(spec);
            let all = std::mem::take(spec);
            *spec = PodSpec {
                scheduler_name: all.scheduler_name,
                priority: all.priority,
                priority_class_name: all.priority_class_name,
                preemption_policy: all.preemption_policy,
                overhead: all.overhead,
                resources: all.resources,
                resource_claims: all.resource_claims,
                volumes: all.volumes,
                affinity: all.affinity,
                ..PodSpec::default()
            };
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

    /// Returns true if something that scheduling reads differs, the status excepted.
    pub(super) fn differs_for_scheduling(&self, other: &Self) -> bool {
        self.pod.spec != other.pod.spec
            || self.labels != other.labels
            || self.annotations != other.annotations
            || self.owners != other.owners
            || self.containers != other.containers
            || self.claims != other.claims
    }

    /// Replaces the keys of all maps by shared ones.
    pub(super) fn share_keys(&mut self, shared: &mut impl FnMut(Arc<str>) -> Arc<str>) {
        self.labels.share_keys(&mut *shared);
        if let Some(annotations) = Arc::get_mut(&mut self.annotations) {
            annotations.share_keys(&mut *shared);
        }
        for container in Arc::get_mut(&mut self.containers).into_iter().flatten() {
            container.requests.share_keys(&mut *shared);
            container.limits.share_keys(&mut *shared);
        }
    }

    /// Assembles the pod from its parts.
    #[must_use]
    pub fn to_pod(&self) -> Pod {
        let mut pod = (*self.pod).clone();
        if !self.trimmed {
            return pod;
        }
        let meta = &mut pod.metadata;
        meta.labels = self.labels.to_map(identity);
        meta.annotations = self.annotations.to_map(identity);
        meta.owner_references = Some(self.owners.to_vec()).filter(|owners| !owners.is_empty());
        if let Some(spec) = &mut pod.spec {
            let [init, main] = [true, false].map(|init| {
                let containers = self.containers.iter().filter(|it| it.init == init);
                containers
                    .map(ContainerInfo::to_container)
                    .collect::<Vec<_>>()
            });
            spec.containers = main;
            spec.init_containers = Some(init).filter(|init| !init.is_empty());
            for claim in &self.claims {
                let volumes = spec.volumes.get_or_insert_default();
                let index = usize::try_from(claim.at).unwrap_or(usize::MAX);
                volumes.insert(index.min(volumes.len()), claim.to_volume());
            }
        }
        pod
    }
}

impl PartialEq for PodObject {
    fn eq(&self, other: &Self) -> bool {
        fn same<T: PartialEq + ?Sized>(a: &Arc<T>, b: &Arc<T>) -> bool {
            Arc::ptr_eq(a, b) || **a == **b
        }
        self.trimmed == other.trimmed
            && self.labels == other.labels
            && self.claims == other.claims
            && same(&self.annotations, &other.annotations)
            && same(&self.owners, &other.owners)
            && same(&self.containers, &other.containers)
            && same(&self.pod, &other.pod)
    }
}

/// Shared parts are hashed by address: this is for objects whose parts were interned.
impl Hash for PodObject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.labels.hash(state);
        self.claims.hash(state);
        Arc::as_ptr(&self.annotations).hash(state);
        Arc::as_ptr(&self.owners).hash(state);
        Arc::as_ptr(&self.containers).hash(state);
        Arc::as_ptr(&self.pod).hash(state);
    }
}

impl ContainerInfo {
    fn from_container(container: &Container, init: bool) -> Self {
        let amounts = |of: fn(&ResourceRequirements) -> &Option<BTreeMap<String, Quantity>>| {
            let amounts = container.resources.as_ref();
            let amounts = amounts.and_then(|resources| of(resources).as_ref());
            Texts::from_map(amounts, |amount: &Quantity| &amount.0)
        };
        let ports = container.ports.iter().flatten();
        let of_host = |port: &&ContainerPort| port.host_port.is_some_and(|port| port > 0);
        Self {
            name: container.name.as_str().into(),
            init,
            restart: container.restart_policy.as_deref().map(Box::from),
            requests: amounts(|resources| &resources.requests),
            limits: amounts(|resources| &resources.limits),
            ports: ports.filter(of_host).cloned().collect(),
        }
    }

    /// Returns true if this is an init container that keeps running next to the main ones.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.init && self.restart.as_deref() == Some("Always")
    }

    fn to_container(&self) -> Container {
        let resources = ResourceRequirements {
            requests: self.requests.to_map(Quantity),
            limits: self.limits.to_map(Quantity),
            ..ResourceRequirements::default()
        };
        Container {
            name: self.name.to_string(),
            restart_policy: self.restart.as_deref().map(str::to_owned),
            resources: Some(resources).filter(|all| *all != ResourceRequirements::default()),
            ports: Some(self.ports.to_vec()).filter(|ports| !ports.is_empty()),
            ..Container::default()
        }
    }
}

/// Containers that agree in these fields almost always agree in the others.
impl Hash for ContainerInfo {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.requests.hash(state);
        self.limits.hash(state);
    }
}

impl Claim {
    fn to_volume(&self) -> Volume {
        Volume {
            name: self.name.to_string(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: self.claim.to_string(),
                read_only: self.read_only,
            }),
            ..Volume::default()
        }
    }
}

/// Removes the named claims from the volumes and returns them.
fn take_claims(spec: &mut PodSpec) -> Box<[Claim]> {
    let mut claims = Vec::new();
    let mut volumes = Vec::new();
    let all = spec.volumes.take().into_iter().flatten();
    for (at, volume) in all.enumerate() {
        let Some(claim) = volume.persistent_volume_claim else {
            volumes.push(volume);
            continue;
        };
        claims.push(Claim {
            at: u32::try_from(at).unwrap_or(u32::MAX),
            name: volume.name.into(),
            claim: claim.claim_name.into(),
            read_only: claim.read_only,
        });
    }
    volumes.shrink_to_fit();
    spec.volumes = Some(volumes).filter(|volumes| !volumes.is_empty());
    claims.into()
}

/// Annotation prefixes of network plugins. Their values differ from pod to pod, and no scheduler reads them.
const NETWORKS: [&str; 5] = [
    "cni.projectcalico.org/",
    "k8s.ovn.org/",
    "k8s.v1.cni.cncf.io/",
    "ovn.kubernetes.io/",
    "vpc.amazonaws.com/",
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(pod: Value) -> PodObject {
        PodObject::new(Arc::new(serde_json::from_value(pod).unwrap()))
    }

    fn trimmed(pod: Value) -> PodObject {
        let mut object = object(pod);
        object.trim();
        object
    }

    /// Returns the content of a bound pod that is kept.
    fn retained_pod() -> Value {
        let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": format!("c-{name}")}});
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"labels": {"a": "1", "b/c": ""}, "annotations": {"x": "{}"},
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30, "generation": 2,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "u",
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"schedulerName": "s", "priority": 1, "priorityClassName": "p",
                "preemptionPolicy": "Never", "overhead": {"cpu": "1m"},
                "resources": {"requests": {"cpu": "4"}},
                "resourceClaims": [{"name": "r", "resourceClaimName": "n"}],
                "affinity": {"podAffinity": {}, "podAntiAffinity": {}},
                "initContainers": [
                    {"name": "i", "resources": {"limits": {"memory": "1Gi"}}},
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "0.5"}}}],
                "containers": [
                    {"name": "m", "resources": {"requests": {"cpu": "1500m", "a.com/x": "1"},
                        "limits": {"a.com/x": "1"}}},
                    {"name": "n", "ports": [{"name": "p", "containerPort": 80, "hostPort": 8080,
                        "hostIP": "1.2.3.4", "protocol": "UDP"}]}],
                "volumes": [claim("a"), {"name": "e", "ephemeral": {}},
                    {"name": "b", "persistentVolumeClaim": {"claimName": "c-b", "readOnly": true}},
                    {"name": "d", "gcePersistentDisk": {"pdName": "disk"}}, claim("f")]},
            "status": {"phase": "Running", "qosClass": "Burstable",
                "conditions": [{"type": "DisruptionTarget", "status": "True"}]}})
    }

    #[test]
    fn trimmed_bound_pod_is_restored() {
        let trimmed = trimmed(retained_pod());
        assert_eq!(
            serde_json::to_value(trimmed.to_pod()).unwrap(),
            retained_pod()
        );
        let spec = trimmed.pod.spec.as_ref().unwrap();
        assert!(spec.containers.is_empty() && spec.init_containers.is_none());
        assert_eq!(trimmed.pod.metadata.labels, None);
        assert_eq!(trimmed.pod.metadata.owner_references, None);
        assert_eq!(trimmed.volumes().len(), 2, "without claims");
    }

    #[test]
    fn own_and_unread_fields_are_removed() {
        let mut pod = retained_pod();
        for (part, fields) in [
            (
                "metadata",
                json!({"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "1"}),
            ),
            (
                "spec",
                json!({"nodeName": "n", "hostname": "h", "subdomain": "s", "tolerations": [{"operator": "Exists"}],
                "serviceAccountName": "a", "nodeSelector": {"a": "b"}}),
            ),
            (
                "status",
                json!({"podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z"}),
            ),
        ] {
            let fields = fields.as_object().unwrap().clone();
            pod[part].as_object_mut().unwrap().extend(fields);
        }
        pod["metadata"]["annotations"]["k8s.ovn.org/pod-networks"] = json!("{}");
        pod["spec"]["affinity"]["nodeAffinity"] = json!({});
        pod["spec"]["containers"][0]["image"] = json!("i");
        let ports = &mut pod["spec"]["containers"][1]["ports"];
        ports
            .as_array_mut()
            .unwrap()
            .push(json!({"containerPort": 81}));
        assert_eq!(trimmed(pod), trimmed(retained_pod()));
    }

    #[test]
    fn waiting_pod_reads_equal_in_parts_and_whole() {
        let (whole, trimmed) = (object(retained_pod()), trimmed(retained_pod()));
        assert_eq!(
            serde_json::to_value(whole.to_pod()).unwrap(),
            retained_pod()
        );
        for object in [&whole, &trimmed] {
            assert_eq!(object.claims().collect::<Vec<_>>(), ["c-a", "c-b", "c-f"]);
            assert_eq!(object.labels.get("b/c"), Some(""));
            let containers = object.containers.iter();
            let containers = containers.map(|it| (&*it.name, it.init, it.is_sidecar()));
            let expected = [
                ("i", true, false),
                ("s", true, true),
                ("m", false, false),
                ("n", false, false),
            ];
            assert_eq!(containers.collect::<Vec<_>>(), expected);
            assert_eq!(object.containers[2].requests.get("cpu"), Some("1500m"));
            assert_eq!(object.containers[3].ports.len(), 1);
        }
        assert!(!whole.differs_for_scheduling(&object(retained_pod())));
        assert!(!trimmed.differs_for_scheduling(&self::trimmed(retained_pod())));
    }

    #[test]
    fn every_relevant_change_makes_objects_differ() {
        let changes: [fn(&mut Value); 7] = [
            |pod| pod["metadata"]["labels"]["a"] = json!("2"),
            |pod| pod["metadata"]["annotations"]["x"] = json!("[]"),
            |pod| pod["metadata"]["ownerReferences"][0]["controller"] = json!(false),
            |pod| pod["spec"]["containers"][0]["resources"]["limits"]["a.com/x"] = json!("2"),
            |pod| pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always"),
            |pod| pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = json!("other"),
            |pod| pod["spec"]["priority"] = json!(2),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut pod = retained_pod();
            change(&mut pod);
            let (before, after) = (trimmed(retained_pod()), trimmed(pod));
            assert_ne!(before, after, "{at}");
            assert!(before.differs_for_scheduling(&after), "{at}");
        }
    }
}
