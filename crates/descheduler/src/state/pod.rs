//! The descheduler's representation of a pod. As there may be a hundred thousand of them, what the pods of a
//! workload have in common is stored once.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerStatus, Pod, PodSpec, PodStatus, Toleration,
    TopologySpreadConstraint,
};
use koord_api::priority::PriorityClass;
use koord_api::qos::{self, KubeQos, QosClass};
use koord_api::{annotations, priority, requests};
use koord_model::resources::{Amounts, ResourceTable};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHasher};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

/// A pod that cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// A field is missing that every pod of an API server has.
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    #[default]
    Unknown,
}

impl Phase {
    /// Returns the phase as in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition of a pod: one of `status.conditions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: Box<str>,
    /// `status`: `True`, `False` or `Unknown`.
    pub status: Box<str>,
    /// `reason`, empty without one.
    pub reason: Box<str>,
    /// `lastTransitionTime`.
    pub since: Option<Timestamp>,
}

/// List of the pod spec that a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub enum ContainerKind {
    Main,
    Init,
    Ephemeral,
}

/// `state` of a container's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// The container waits, with `reason`.
    Waiting(Box<str>),
    /// The container runs.
    Running,
    /// The container ended, with `reason` and exit code.
    Terminated(Box<str>, i32),
    /// The status has no state.
    Unknown,
}

/// Status of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInfo {
    /// List that the container is in.
    pub kind: ContainerKind,
    /// `restartCount`.
    pub restarts: i32,
    /// `state`.
    pub state: ContainerState,
}

/// An owner of a pod: one of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// API version of the owner, such as `apps/v1`.
    pub api_version: Box<str>,
    /// Kind of the owner.
    pub kind: Box<str>,
    /// Name of the owner.
    pub name: Box<str>,
    /// UID of the owner.
    pub uid: Arc<str>,
    /// True if it is the controller of the pod.
    pub controller: bool,
}

/// The properties of `spec.volumes` that matter to moving the pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// True if there is a `hostPath` or `emptyDir` volume, whose data does not move.
    pub local: bool,
    /// Names of PersistentVolumeClaims.
    pub claims: Vec<Box<str>>,
    /// True if there is a generic ephemeral volume.
    pub ephemeral: bool,
}

/// Properties that the pods of one workload have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Requests of the pod, including init containers and overhead: CPU in milli-cores, all others in units.
    pub requests: Amounts,
    /// Requests of the main containers only.
    pub main_requests: Amounts,
    /// An invalid quantity, with its field; the pod then counts as requesting nothing.
    pub malformed: Option<String>,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// `spec.priorityClassName`.
    pub priority_class_name: Option<String>,
    /// Koordinator's priority class, with default.
    pub class: PriorityClass,
    /// Koordinator's QoS class as labelled.
    pub qos: QosClass,
    /// Kubernetes' QoS class.
    pub kube_qos: KubeQos,
    /// `spec.schedulerName`, `default-scheduler` without one.
    pub scheduler_name: String,
    /// `spec.nodeSelector`.
    pub node_selector: BTreeMap<String, String>,
    /// `spec.affinity`.
    pub affinity: Option<Affinity>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// `spec.topologySpreadConstraints`.
    pub spread: Vec<TopologySpreadConstraint>,
    /// `spec.volumes`.
    pub volumes: Claims,
    /// Images of main and init containers, sorted.
    pub images: Vec<String>,
    /// Host ports, sorted.
    pub host_ports: Vec<(Box<str>, i32)>,
    /// True if there are `spec.resourceClaims`.
    pub resource_claims: bool,
}

/// The fields of a pod that the descheduler uses.
#[derive(Debug, Clone, PartialEq)]
pub struct PodInfo {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// True if the pod is being deleted.
    pub deleting: bool,
    /// `metadata.ownerReferences`.
    pub owners: Vec<Owner>,
    /// The `metadata.annotations` for which [`is_read_annotation`] returns true.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// `spec.nodeName`.
    pub node: Option<Arc<str>>,
    /// `status.phase`.
    pub phase: Phase,
    /// `status.reason`, empty without one.
    pub reason: Box<str>,
    /// `status.startTime`.
    pub started: Option<Timestamp>,
    /// `status.conditions`.
    pub conditions: Vec<Condition>,
    /// Statuses of all containers.
    pub containers: Vec<ContainerInfo>,
    /// Properties shared with the other pods of its workload.
    pub shape: Arc<Shape>,
}

/// Returns true if the descheduler reads this annotation.
#[must_use]
pub fn is_read_annotation(key: &str) -> bool {
    key.starts_with("descheduler.alpha.kubernetes.io/")
        || key.starts_with("descheduler.koordinator.sh/")
        || matches!(
            key,
            "kubernetes.io/config.mirror"
                | "kubernetes.io/config.source"
                | "controller.kubernetes.io/pod-deletion-cost"
                | annotations::EVICTION_COST
                | annotations::SOFT_EVICTION
                | annotations::RESERVATION_ALLOCATED
        )
}

impl PodInfo {
    /// Converts `pod`, interning its shape in `shapes`.
    ///
    /// # Errors
    /// Returns an error if a field is missing that every pod of an API server has.
    pub fn new(pod: Pod, shapes: &Shapes) -> Result<Self, PodError> {
        let shape = shapes.intern(&pod);
        let meta = pod.metadata;
        let spec = pod.spec.ok_or(PodError::Missing("spec"))?;
        let status = pod.status.unwrap_or_default();
        let containers = containers(&status);
        let text = |text: Option<String>| text.unwrap_or_default().into_boxed_str();
        let owner = |owner: k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| Owner {
            api_version: owner.api_version.into(),
            kind: owner.kind.into(),
            name: owner.name.into(),
            uid: owner.uid.into(),
            controller: owner.controller == Some(true),
        };
        let condition = |condition: k8s_openapi::api::core::v1::PodCondition| Condition {
            kind: condition.type_.into(),
            status: condition.status.into(),
            reason: text(condition.reason),
            since: condition.last_transition_time.map(|time| time.0),
        };
        let annotations = meta.annotations.unwrap_or_default().into_iter();
        let annotations = annotations.filter(|(key, _)| is_read_annotation(key));
        Ok(Self {
            namespace: meta.namespace.unwrap_or_default().into(),
            name: meta.name.ok_or(PodError::Missing("metadata.name"))?.into(),
            uid: meta.uid.ok_or(PodError::Missing("metadata.uid"))?.into(),
            resource_version: meta.resource_version,
            created: meta
                .creation_timestamp
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: meta.deletion_timestamp.is_some(),
            owners: meta
                .owner_references
                .into_iter()
                .flatten()
                .map(owner)
                .collect(),
            annotations: annotations
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
            node: spec
                .node_name
                .filter(|name| !name.is_empty())
                .map(Arc::from),
            phase: match status.phase.as_deref() {
                Some("Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                _ => Phase::Unknown,
            },
            reason: text(status.reason),
            started: status.start_time.map(|time| time.0),
            conditions: status
                .conditions
                .into_iter()
                .flatten()
                .map(condition)
                .collect(),
            containers,
            shape,
        })
    }

    /// Returns true if the pod is of priority class prod.
    #[must_use]
    pub fn is_prod(&self) -> bool {
        self.shape.class == PriorityClass::Prod
    }

    /// Returns true if the pod has not ended.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Returns true if condition `Ready` is `True`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|condition| &*condition.kind == "Ready" && &*condition.status == "True")
    }

    /// Returns the controller among its owners.
    #[must_use]
    pub fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
    }

    /// Returns the value of an annotation that is stored.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(|value| &**value)
    }

    /// Returns the value of label `key`.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.shape.labels.get(key).map(String::as_str)
    }
}

impl std::fmt::Display for PodInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the states of all containers in `status`.
fn containers(status: &PodStatus) -> Vec<ContainerInfo> {
    let lists = [
        (ContainerKind::Init, &status.init_container_statuses),
        (ContainerKind::Main, &status.container_statuses),
        (
            ContainerKind::Ephemeral,
            &status.ephemeral_container_statuses,
        ),
    ];
    let infos = |(kind, list): (ContainerKind, &Option<Vec<ContainerStatus>>)| {
        let read = |status: &ContainerStatus| {
            let state = status.state.as_ref();
            let text = |text: &Option<String>| text.clone().unwrap_or_default().into_boxed_str();
            let state = if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
                ContainerState::Waiting(text(&waiting.reason))
            } else if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
                ContainerState::Terminated(text(&ended.reason), ended.exit_code)
            } else if state.is_some_and(|state| state.running.is_some()) {
                ContainerState::Running
            } else {
                ContainerState::Unknown
            };
            ContainerInfo {
                kind,
                restarts: status.restart_count,
                state,
            }
        };
        list.iter().flatten().map(read).collect::<Vec<_>>()
    };
    lists.into_iter().flat_map(infos).collect()
}

/// Intern pool of the shapes of all pods. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Shapes {
    table: Arc<ResourceTable>,
    interned: Arc<Mutex<FxHashMap<u64, Vec<Weak<Shape>>>>>,
}

impl Shapes {
    /// Returns an empty pool; resource ids come from `table`.
    #[must_use]
    pub fn new(table: Arc<ResourceTable>) -> Self {
        Self {
            table,
            interned: Arc::default(),
        }
    }

    /// Returns the resource table of all shapes.
    #[must_use]
    pub fn table(&self) -> &Arc<ResourceTable> {
        &self.table
    }

    /// Returns the number of distinct shapes in use.
    #[must_use]
    pub fn len(&self) -> usize {
        let interned = self.interned.lock();
        let alive = |shapes: &Vec<Weak<Shape>>| {
            shapes
                .iter()
                .filter(|shape| shape.strong_count() > 0)
                .count()
        };
        interned.values().map(alive).sum()
    }

    /// Returns true if no shape is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn intern(&self, pod: &Pod) -> Arc<Shape> {
        let shape = self.read(pod);
        let mut hasher = FxHasher::default();
        (
            &shape.labels,
            &shape.requests,
            &shape.images,
            shape.priority,
        )
            .hash(&mut hasher);
        let mut interned = self.interned.lock();
        let alike = interned.entry(hasher.finish()).or_default();
        if let Some(found) = alike
            .iter()
            .filter_map(Weak::upgrade)
            .find(|other| **other == shape)
        {
            return found;
        }
        alike.retain(|shape| shape.strong_count() > 0);
        let shape = Arc::new(shape);
        alike.push(Arc::downgrade(&shape));
        shape
    }

    /// Removes shapes that no pod uses any more.
    pub fn tidy(&self) {
        self.interned.lock().retain(|_, shapes| {
            shapes.retain(|shape| shape.strong_count() > 0);
            !shapes.is_empty()
        });
    }

    /// Parses the properties of `pod` that it shares with the other pods of its workload.
    fn read(&self, pod: &Pod) -> Shape {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let (requests, malformed) = match requests::pod_requests(spec) {
            Ok(list) => (super::node::amounts(&list, &self.table), None),
            Err(error) => (Amounts::new(), Some(error.to_string())),
        };
        let main = PodSpec {
            containers: spec.containers.clone(),
            ..PodSpec::default()
        };
        let main = requests::pod_requests(&main).unwrap_or_default();
        let all = || {
            spec.containers
                .iter()
                .chain(spec.init_containers.iter().flatten())
        };
        let mut images: Vec<String> = all()
            .filter_map(|container| container.image.clone())
            .collect();
        images.sort();
        let ports = |container: &Container| {
            let ports = container.ports.clone().unwrap_or_default().into_iter();
            let host = ports.filter_map(|port| {
                Some((
                    port.protocol.unwrap_or("TCP".to_owned()).into(),
                    port.host_port?,
                ))
            });
            host.collect::<Vec<(Box<str>, i32)>>()
        };
        let mut host_ports: Vec<_> = all().flat_map(ports).collect();
        host_ports.sort();
        Shape {
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            requests,
            main_requests: super::node::amounts(&main, &self.table),
            malformed,
            priority: spec.priority,
            priority_class_name: spec.priority_class_name.clone(),
            class: priority::pod_priority_class_or_default(pod),
            qos: qos::pod_qos_class(pod),
            kube_qos: qos::pod_kube_qos(pod),
            scheduler_name: spec
                .scheduler_name
                .clone()
                .unwrap_or("default-scheduler".to_owned()),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: spec.affinity.clone(),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            spread: spec.topology_spread_constraints.clone().unwrap_or_default(),
            volumes: volumes(spec),
            images,
            host_ports,
            resource_claims: spec.resource_claims.iter().flatten().next().is_some(),
        }
    }
}

fn volumes(spec: &PodSpec) -> Claims {
    let mut out = Claims::default();
    for volume in spec.volumes.iter().flatten() {
        out.local |= volume.host_path.is_some() || volume.empty_dir.is_some();
        out.ephemeral |= volume.ephemeral.is_some();
        if let Some(claim) = &volume.persistent_volume_claim {
            out.claims.push(claim.claim_name.as_str().into());
        }
    }
    out
}

impl koord_kube::informer::Cacheable for PodInfo {
    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}
