//! A pod, reduced to what the agent needs.

mod containers;
mod contested;
mod exclusive;
mod notes;

pub use contested::AdjustmentConflict;
pub(crate) use exclusive::{check_new_pod, resolve_cpu_conflicts};
pub use notes::{CoreSchedPolicy, Notes, VolumeSource};

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
use notes::ParsedAnnotations;

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

/// Amounts of an extended tier (batch, mid) that a container names; `None` when it does not.
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

/// What a container asks for in plain CPU (milli-cores) and memory (bytes); `None` when it does not.
pub type Native = Batch;

/// When a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// As long as the pod.
    #[default]
    Main,
    /// Before the others, to its end.
    Init,
    /// Started before the others, as long as the pod.
    Sidecar,
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerInfo {
    /// Its name.
    pub name: String,
    /// When it runs.
    pub role: Role,
    /// Its id as in the pod's status (`runtime://hash`), once the runtime has reported one.
    pub id: Option<Box<str>>,
    /// True if it runs now, as far as the kubelet said.
    pub running: bool,
    /// Its group, once the runtime has reported an id.
    pub cgroup: Option<CgroupPath>,
    /// What it asked for in plain resources.
    pub native: Native,
    /// What it asked for in batch resources, when it did.
    pub batch: Option<Batch>,
    /// What it asked for in mid resources, when it did.
    pub mid: Option<Box<Batch>>,
}

impl ContainerInfo {
    /// Returns the id without the runtime's name.
    #[must_use]
    pub fn hash(&self) -> Option<&str> {
        self.id.as_deref()?.split_once("://").map(|(_, hash)| hash)
    }
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
    /// `spec.priority` where it is set and not zero, else the middle of the class's band.
    pub priority_value: i32,
    /// Label `koordinator.sh/priority`: the order within a class.
    pub sub_priority: Option<i32>,
    /// `status.phase`.
    pub phase: Phase,
    /// True if deletion has begun.
    pub deleting: bool,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Requested CPU in milli-cores.
    pub cpu_request: i64,
    /// Requested memory in bytes.
    pub memory_request: i64,
    /// The features that may evict the pod: `None` is all, an unreadable list is none.
    pub evictable_by: Option<Vec<String>>,
    /// Label `koordinator.sh/eviction-enabled` is `true`.
    pub eviction_enabled: bool,
    /// Annotation `koordinator.sh/eviction-priority`; lower goes first.
    pub eviction_priority: i32,
    /// CPUs the scheduler gave the pod for itself.
    pub cpus: Option<CpuSet>,
    /// CPUs that the annotation names and that another pod has exclusively.
    pub refused_cpus: Option<Box<CpuSet>>,
    /// True if it lives in the node's network namespace.
    pub host_network: bool,
    /// `spec.runtimeClassName`.
    pub runtime_class: Option<Box<str>>,
    /// The pod's group.
    pub cgroup: CgroupPath,
    /// Its containers, init containers and sidecars left out.
    pub containers: Vec<ContainerInfo>,
    /// Its init containers and sidecars.
    pub init_containers: Vec<ContainerInfo>,
    /// Why one of them is not created, where that is another plugin of the runtime.
    pub conflict: Option<Box<AdjustmentConflict>>,
    /// What annotations ask for, when they do; [`Self::notes`] reads it.
    pub notes: Option<Box<Notes>>,
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
            notes: None,
        }
    }
}

impl PodInfo {
    /// Reads a Pod object, as [`Self::read`] does without an earlier state.
    #[must_use]
    pub fn from_pod(pod: &Pod, layout: &Layout) -> Option<Self> {
        Self::read(pod, layout, None).map(|(info, _)| info)
    }

    /// Reads a Pod object; `None` when it has no UID or its UID cannot name a group. Where an
    /// annotation does not fit its format, `last` speaks for it, and the second value tells what was
    /// wrong.
    #[must_use]
    pub fn read(pod: &Pod, layout: &Layout, last: Option<&Self>) -> Option<(Self, Vec<Malformed>)> {
        let meta = &pod.metadata;
        let uid = meta.uid.clone()?;
        let kube_qos = qos::kube_of_pod(pod);
        // The uid names files, too.
        let cgroup = layout.pod(kube_qos, &uid).ok()?;
        // Static pods live under the hash the kubelet gave them. Anybody can write the annotation,
        // so what could be the uid of another pod is not believed.
        let notes = meta.annotations.as_ref();
        let hash = notes
            .and_then(|notes| notes.get("kubernetes.io/config.hash"))
            .filter(|hash| is_config_hash(hash));
        let cgroup = match hash {
            Some(hash) => layout.pod(kube_qos, hash).ok()?,
            None => cgroup,
        };
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let mut reader = Reader::new(notes);
        let read = ParsedAnnotations::parse(&mut reader, pod, last);
        let (containers, init_containers) =
            containers::read(&mut reader, pod, layout, &cgroup, last);
        let sub_priority = priority::sub_priority_of_pod(pod).map(|value| {
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
            qos: qos::of_pod(pod),
            qos_default: qos::of_pod_with_default(pod),
            kube_qos,
            priority_class: priority::of_pod_with_default(pod),
            priority: spec.and_then(|s| s.priority),
            priority_value: priority::value_of_pod(pod),
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
            notes: read.notes,
        };
        Some((info, reader.malformed))
    }

    /// Takes away RDMA devices that an annotation names and `pod`, which this was read from, does not
    /// ask for: whoever makes a pod can write it, and a container would get their files. Pods of files
    /// on the node, whose UID is no API server's, may have what they like.
    pub(super) fn remove_unrequested_devices(&mut self, pod: &Pod) -> Option<Malformed> {
        let devices = &self.notes().devices;
        if is_config_hash(&self.uid) || !rdma_devices::are_unasked(pod, devices) {
            return None;
        }
        if let Some(notes) = &mut self.notes {
            notes.devices.remove(DeviceType::Rdma.as_str());
            if **notes == notes::NONE {
                self.notes = None;
            }
        }
        let key = annotations::DEVICE_ALLOCATED;
        let all = pod.metadata.annotations.as_ref();
        let text = all.and_then(|all| all.get(key)).cloned();
        let why = "names RDMA devices, and no container requests koordinator.sh/rdma";
        Some(Malformed::new(key, text.unwrap_or_default(), why))
    }

    /// Returns whether the pod runs on CPUs of its own and no more of them than it asks for, so that they bound
    /// it and no quota has to. The scheduler gives as many as are asked for; whoever may change a pod can
    /// write more into the annotation. Of a pod that is not listed nothing is known that it asks for.
    #[must_use]
    pub fn is_bound_by_its_cpus(&self) -> bool {
        let cpus = self.cpus.as_ref().map(|cpus| i64::try_from(cpus.len()));
        let milli = cpus.and_then(|count| count.ok()?.checked_mul(1000));
        milli.is_some_and(|milli| milli <= self.cpu_request)
    }

    /// What annotations and labels ask for.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        self.notes.as_deref().unwrap_or(&notes::NONE)
    }

    /// Main containers, then init containers and sidecars.
    pub fn all_containers(&self) -> impl Iterator<Item = &ContainerInfo> {
        self.containers.iter().chain(&self.init_containers)
    }

    /// Main containers, then sidecars: those that run as long as the pod does.
    pub fn resident_containers(&self) -> impl Iterator<Item = &ContainerInfo> {
        self.all_containers()
            .filter(|container| container.role != Role::Init)
    }

    /// Returns whether the pod counts as best-effort when CPU is shared out: labelled BE, or of the
    /// kubelet's BestEffort class.
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

    /// Milli-cores of batch CPU the pod requests.
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

/// Returns the kubelet's hash of a static pod: 32 hex digits. Uids from the API server have dashes.
pub(crate) fn is_config_hash(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests;
