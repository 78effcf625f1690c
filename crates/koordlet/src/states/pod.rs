//! The Pod object, reduced to what the agent needs.

mod conflict;
mod containers;
mod exclusive;
mod settings;

pub use conflict::AdjustmentConflict;
pub(crate) use exclusive::{check_new_pod, resolve_cpu_conflicts};
pub use settings::{CoreSchedPolicy, PodSettings, VolumeSource};

use super::Layout;
use super::malformed::Malformed;
use super::reader::Reader;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use koord_api::priority::{self, PriorityClass};
use koord_api::qos::{self, KubeQos, QosClass};
use koord_api::scheduling::DeviceType;
use koord_api::{annotations, labels};
use koord_host::{CgroupPath, CpuSet};
use koord_model::rdma_devices;
use koord_model::reclaim::pod_request;
use settings::ParsedAnnotations;

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

/// Amounts of an extended tier (batch, mid) of a container; `None` if not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Batch {
    /// Requested CPU in milli-cores.
    pub cpu_request: Option<i64>,
    /// CPU limit in milli-cores.
    pub cpu_limit: Option<i64>,
    /// Requested memory in bytes.
    pub memory_request: Option<i64>,
    /// Memory limit in bytes.
    pub memory_limit: Option<i64>,
}

/// Plain CPU (milli-cores) and memory (bytes) of a container; `None` if not set.
pub type NativeResources = Batch;

/// Kind of a container, by when it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Runs as long as the pod.
    #[default]
    Main,
    /// Runs before the main containers, to completion.
    Init,
    /// Started before the main containers, and runs as long as the pod.
    Sidecar,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerInfo {
    /// Name.
    pub name: String,
    /// Kind of the container.
    pub role: Role,
    /// Id as in the pod's status (`runtime://hash`); `None` until the runtime reports one.
    pub id: Option<Box<str>>,
    /// True if it runs, according to the pod's status.
    pub running: bool,
    /// Cgroup; `None` until the runtime reports an id.
    pub cgroup: Option<CgroupPath>,
    /// Plain CPU and memory.
    pub native: NativeResources,
    /// Batch resources; `None` without any.
    pub batch: Option<Batch>,
    /// Mid resources; `None` without any.
    pub mid: Option<Box<Batch>>,
}

impl ContainerInfo {
    /// Returns the id without the runtime's name.
    #[must_use]
    pub fn hash(&self) -> Option<&str> {
        self.id.as_deref()?.split_once("://").map(|(_, hash)| hash)
    }
}

/// A pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodInfo {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// QoS class of the label, without default.
    pub qos: QosClass,
    /// QoS class of the label, or the default that follows from the kubelet's class.
    pub qos_default: QosClass,
    /// QoS class of the kubelet.
    pub kube_qos: KubeQos,
    /// Priority class, with default.
    pub priority_class: PriorityClass,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// `spec.priority` if it is set and not zero, else the middle of the class's band.
    pub priority_value: i32,
    /// Label `koordinator.sh/priority`: the order within a class.
    pub sub_priority: Option<i32>,
    /// `status.phase`.
    pub phase: Phase,
    /// True if the pod is being deleted.
    pub deleting: bool,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Requested CPU in milli-cores.
    pub cpu_request: i64,
    /// Requested memory in bytes.
    pub memory_request: i64,
    /// Features that may evict the pod: `None` allows all, an invalid list none.
    pub evictable_by: Option<Vec<String>>,
    /// True if label `koordinator.sh/eviction-enabled` is `true`.
    pub eviction_enabled: bool,
    /// Annotation `koordinator.sh/eviction-priority`; pods with lower values are evicted first.
    pub eviction_priority: i32,
    /// Exclusive CPUs that the scheduler assigned.
    pub cpus: Option<CpuSet>,
    /// CPUs of the annotation that another pod has exclusively.
    pub refused_cpus: Option<Box<CpuSet>>,
    /// True if the pod uses the node's network namespace.
    pub host_network: bool,
    /// `spec.runtimeClassName`.
    pub runtime_class: Option<Box<str>>,
    /// Cgroup of the pod.
    pub cgroup: CgroupPath,
    /// Main containers, without init containers and sidecars.
    pub containers: Vec<ContainerInfo>,
    /// Init containers and sidecars.
    pub init_containers: Vec<ContainerInfo>,
    /// The conflict of runtime plugins that keeps a container from being created; `None` without one.
    pub conflict: Option<Box<AdjustmentConflict>>,
    /// Settings of annotations; [`Self::settings`] returns them with defaults.
    pub settings: Option<Box<PodSettings>>,
}

/// A pod without name, class or containers, as a start for fixtures.
impl Default for PodInfo {
    fn default() -> Self {
        Self {
            uid: String::new(),
            namespace: String::new(),
            name: String::new(),
            qos: QosClass::None,
            qos_default: QosClass::Be,
            kube_qos: KubeQos::BestEffort,
            priority_class: PriorityClass::None,
            priority: None,
            priority_value: 0,
            sub_priority: None,
            phase: Phase::Unknown,
            deleting: false,
            created: None,
            cpu_request: 0,
            memory_request: 0,
            evictable_by: None,
            eviction_enabled: false,
            eviction_priority: 0,
            cpus: None,
            refused_cpus: None,
            host_network: false,
            runtime_class: None,
            cgroup: CgroupPath::root(),
            containers: Vec::new(),
            init_containers: Vec::new(),
            conflict: None,
            settings: None,
        }
    }
}

impl PodInfo {
    /// Parses a Pod object, like [`Self::read`] without an earlier state.
    #[must_use]
    pub fn from_pod(pod: &Pod, layout: &Layout) -> Option<Self> {
        Self::read(pod, layout, None).map(|(info, _)| info)
    }

    /// Parses a Pod object; `None` if it has no UID or its UID cannot name a cgroup. A malformed annotation
    /// has its value in `last`, and is reported in the second result.
    #[must_use]
    pub fn read(pod: &Pod, layout: &Layout, last: Option<&Self>) -> Option<(Self, Vec<Malformed>)> {
        let meta = &pod.metadata;
        let uid = meta.uid.clone()?;
        let kube_qos = qos::pod_kube_qos(pod);
        // The UID also names files.
        let cgroup = layout.pod(kube_qos, &uid).ok()?;
        // Cgroups of static pods are named after the kubelet's hash. Any user can write the annotation,
        // so a value that could be the UID of another pod is ignored.
        let annotations = meta.annotations.as_ref();
        let hash = annotations
            .and_then(|annotations| annotations.get("kubernetes.io/config.hash"))
            .filter(|hash| is_config_hash(hash));
        let cgroup = match hash {
            Some(hash) => layout.pod(kube_qos, hash).ok()?,
            None => cgroup,
        };
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let mut reader = Reader::new(annotations);
        let read = ParsedAnnotations::parse(&mut reader, pod, last);
        let (containers, init_containers) =
            containers::read(&mut reader, pod, layout, &cgroup, last);
        let sub_priority = priority::pod_sub_priority(pod).map(|value| {
            let label = label(pod, labels::POD_PRIORITY).filter(|text| !text.is_empty());
            label.map(|_| value)
        });
        let sub_priority = sub_priority.unwrap_or_else(|error| {
            let key = labels::POD_PRIORITY;
            let report = Malformed::new(key, error.value.clone(), &error);
            reader.malformed.push(report);
            last.and_then(|last| last.sub_priority)
        });
        let request = pod_request(pod);
        let info = Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            qos: qos::pod_qos_class(pod),
            qos_default: qos::pod_qos_class_or_default(pod),
            kube_qos,
            priority_class: priority::pod_priority_class_or_default(pod),
            priority: spec.and_then(|s| s.priority),
            priority_value: priority::pod_priority_value(pod),
            sub_priority,
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
            evictable_by: read.evictable_by,
            eviction_enabled: label(pod, labels::POD_EVICTION_ENABLED) == Some("true"),
            eviction_priority: read.eviction_priority,
            cpus: read.cpus,
            refused_cpus: None,
            host_network: spec.is_some_and(|s| s.host_network == Some(true)),
            runtime_class: spec.and_then(|s| s.runtime_class_name.as_deref().map(Into::into)),
            uid,
            cgroup,
            containers,
            init_containers,
            conflict: AdjustmentConflict::find(pod),
            settings: read.settings,
        };
        Some((info, reader.malformed))
    }

    /// Removes RDMA devices that an annotation names but `pod`, which this was parsed from, does not request:
    /// any creator of a pod can write the annotation, and a container would get their device files. Static
    /// pods, whose UID is not from an API server, may have any.
    pub(super) fn remove_unrequested_devices(&mut self, pod: &Pod) -> Option<Malformed> {
        let devices = &self.settings().devices;
        if is_config_hash(&self.uid) || !rdma_devices::are_unrequested(pod, devices) {
            return None;
        }
        if let Some(settings) = &mut self.settings {
            settings.devices.remove(DeviceType::Rdma.as_str());
            if **settings == settings::NONE {
                self.settings = None;
            }
        }
        let key = annotations::DEVICE_ALLOCATED;
        let all = pod.metadata.annotations.as_ref();
        let text = all.and_then(|all| all.get(key)).cloned();
        let why = "names RDMA devices, and no container requests koordinator.sh/rdma";
        Some(Malformed::new(key, text.unwrap_or_default(), why))
    }

    /// Returns whether the pod has exclusive CPUs and no more of them than it requests, so that they limit it
    /// and no quota is needed. The scheduler assigns as many as are requested, but any user that may change a
    /// pod can write more into the annotation. The requests of a pod that is not listed are unknown.
    #[must_use]
    pub fn is_bound_by_its_cpus(&self) -> bool {
        let cpus = self.cpus.as_ref().map(|cpus| i64::try_from(cpus.len()));
        let milli = cpus.and_then(|count| count.ok()?.checked_mul(1000));
        milli.is_some_and(|milli| milli <= self.cpu_request)
    }

    /// Returns the settings of annotations and labels.
    #[must_use]
    pub fn settings(&self) -> &PodSettings {
        self.settings.as_deref().unwrap_or(&settings::NONE)
    }

    /// Returns the main containers, then the init containers and sidecars.
    pub fn all_containers(&self) -> impl Iterator<Item = &ContainerInfo> {
        self.containers.iter().chain(&self.init_containers)
    }

    /// Returns the main containers, then the sidecars: those that run as long as the pod.
    pub fn resident_containers(&self) -> impl Iterator<Item = &ContainerInfo> {
        self.all_containers()
            .filter(|container| container.role != Role::Init)
    }

    /// Returns whether the pod counts as best-effort for CPU: labeled BE, or of the kubelet's BestEffort
    /// class.
    #[must_use]
    pub fn is_best_effort(&self) -> bool {
        self.qos == QosClass::Be || self.kube_qos == KubeQos::BestEffort
    }

    /// Returns whether the pod has not ended.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Pending | Phase::Running)
    }

    /// Returns whether `feature` may evict the pod.
    #[must_use]
    pub fn may_be_evicted_by(&self, feature: &str) -> bool {
        self.evictable_by
            .as_ref()
            .is_none_or(|list| list.iter().any(|name| name == feature))
    }

    /// Returns the batch CPU that the pod requests, in milli-cores.
    #[must_use]
    pub fn batch_cpu_request(&self) -> i64 {
        let requests = self
            .resident_containers()
            .filter_map(|c| c.batch.and_then(|b| b.cpu_request));
        requests
            .filter(|milli| *milli > 0)
            .fold(0, i64::saturating_add)
    }
}

/// Returns whether `text` can be the kubelet's hash of a static pod: 32 hex digits. UIDs from the API server
/// have dashes.
pub(crate) fn is_config_hash(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests;
