//! A pod's CPU and NUMA requests, and the allocation in its annotations.

use super::args::NumaSettings;
use super::node_topology::parse_policy;
use crate::common::allocate_policy;
use koord_api::extension::{
    self, CpuBindPolicy, CpuExclusivePolicy, NumaTopologySpec, ReservationAffinity, ResourceSpec,
    ResourceStatus, SchedulingHint,
};
use koord_api::priority::PriorityClass;
use koord_api::qos::{self, KubeQos, QosClass};
use koord_api::quantity::Quantity;
use koord_api::{annotations, labels, resources};
use koord_model::cpuset::{BindPolicy, CpuSet, ExclusivePolicy};
use koord_model::numa::{NumaExclusive, NumaPolicyKind};
use koord_model::resources::{Amounts, CPU, ResourceId, ResourceTable, amount};
use koord_scheduler::framework::Signature;
use koord_scheduler::state::{ContainerInfo, PodInfo};
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// The CPU bind policies that a pod requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuRequest {
    pub(super) required: Option<BindPolicy>,
    pub(super) preferred: BindPolicy,
    pub(super) exclusive: ExclusivePolicy,
}

/// A pod's requests as this plugin uses them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NumaPod {
    /// The pod's requests without zeros.
    pub(super) requests: Amounts,
    /// The scored resources, with their weights.
    pub(super) scored_resources: Vec<(ResourceId, i64)>,
    /// CPU binding that the pod requests on every node; `None` if it requests none.
    pub(super) cpu_request: Option<CpuRequest>,
    pub(super) policy: Option<NumaPolicyKind>,
    exclusive: Option<NumaExclusive>,
    /// True if a kubelet with the static CPU manager gives each container of the pod exclusive CPUs.
    pub(super) whole_cpus: bool,
    /// True if the pod runs only in a reservation.
    pub(super) reserved_only: bool,
    /// True if the pod may use what reservations hold.
    pub(super) ignores_reservations: bool,
    /// An allocation that another component chose; the pod gets exactly this or is rejected.
    pub(super) preassigned: Option<PreassignedCpus>,
}

/// CPUs, and amounts by NUMA node, that were chosen beforehand.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PreassignedCpus {
    pub(super) cpus: CpuSet,
    pub(super) zones: Vec<(u8, Amounts)>,
}

impl NumaPod {
    /// Parses the requests of `pod`; `None` if it requests nothing.
    ///
    /// # Errors
    /// Returns a message if an annotation is invalid, or if a pod with bound CPUs requests a fraction of a CPU.
    pub(super) fn new(
        pod: &PodInfo,
        settings: &NumaSettings,
        table: &ResourceTable,
    ) -> Result<Option<Self>, String> {
        let requests: Amounts = pod.requests.iter().filter(|(_, n)| *n > 0).collect();
        if requests.is_empty() {
            return Ok(None);
        }
        let parsed = NumaAnnotations::from_pod(pod, table);
        let numa = parsed.numa.as_ref().map_err(Clone::clone)?;
        let reserved_only = *parsed.reserved_only.as_ref().map_err(Clone::clone)?;
        let policy = numa.numa_topology_policy.as_ref();
        let policy = match policy.map_or("", |policy| policy.as_str()) {
            "" => None,
            name => Some(parse_policy(name).ok_or_else(|| {
                let key = annotations::NUMA_TOPOLOGY_SPEC;
                format!("annotation {key}: numaTopologyPolicy {name:?} is not known")
            })?),
        };
        let exclusive = match numa.single_numa_node_exclusive.as_deref() {
            Some("Required") => Some(NumaExclusive::Required),
            Some("Preferred") => Some(NumaExclusive::Preferred),
            None | Some("") => None,
            Some(_) => Some(NumaExclusive::None),
        };
        let cpu_request = cpu_request(pod, parsed.cpus.as_ref().map_err(Clone::clone)?, settings)
            .filter(|_| requests.get(CPU) > 0);
        if cpu_request.is_some() && requests.get(CPU) % 1000 != 0 {
            return Err("the requested CPUs must be integer".to_owned());
        }
        Ok(Some(Self {
            cpu_request,
            policy,
            exclusive,
            whole_cpus: parsed.whole_cpus,
            reserved_only,
            ignores_reservations: pod.label(labels::RESERVATION_IGNORED) == Some("true"),
            scored_resources: settings.scored_resources(&requests, table),
            preassigned: parsed.preassigned.clone()?,
            requests,
        }))
    }

    /// Returns true if the pod requests neither CPU binding nor NUMA alignment.
    pub(super) fn is_plain(&self) -> bool {
        self.cpu_request.is_none() && self.policy.is_none()
    }

    /// Returns the requested CPU in milli-cores.
    pub(super) fn cpu(&self) -> i64 {
        self.requests.get(CPU)
    }

    /// Returns the requested CPU in whole CPUs, rounded down.
    pub(super) fn cpus(&self) -> usize {
        usize::try_from(self.cpu() / 1000).unwrap_or(0)
    }

    /// Returns how the pod shares NUMA nodes with other aligned pods. A pod with its own NUMA policy defaults
    /// to Required, so that it avoids their NUMA nodes; a pod under a node's policy defaults to None.
    pub(super) fn exclusive(&self) -> NumaExclusive {
        let default = match self.policy {
            Some(_) => NumaExclusive::Required,
            None => NumaExclusive::None,
        };
        self.exclusive.unwrap_or(default)
    }

    /// Adds all fields to the pod's signature.
    pub(super) fn sign(&self, signature: &mut Signature) {
        signature.amounts(&self.requests);
        let cpu_request = self.cpu_request.map_or(0, |cpu_request| {
            let bind = |policy| match policy {
                BindPolicy::FullPCpus => 1,
                BindPolicy::SpreadByPCpus => 2,
            };
            let exclusive = cpu_request.exclusive as i64;
            1 + 100 * cpu_request.required.map_or(0, bind)
                + 10 * bind(cpu_request.preferred)
                + exclusive
        });
        signature.number(cpu_request);
        let policy = self.policy.map_or(0, |policy| policy as i64 + 1);
        let exclusive = self.exclusive.map_or(0, |exclusive| exclusive as i64 + 1);
        let flags = i64::from(self.reserved_only)
            + 2 * i64::from(self.ignores_reservations)
            + 4 * i64::from(self.whole_cpus);
        signature.number(policy * 100 + exclusive * 10 + flags);
        if let Some(PreassignedCpus { cpus, zones }) = &self.preassigned {
            signature.count(cpus.len());
            for cpu in cpus.iter() {
                signature.number(cpu.into());
            }
            for (zone, amounts) in zones {
                signature.number(i64::from(*zone));
                signature.amounts(amounts);
            }
        }
    }
}

/// Returns true if the pod is Guaranteed and all its containers request whole CPUs.
fn is_whole(pod: &PodInfo) -> bool {
    let whole_cpus = |container: &ContainerInfo| {
        let cpu: Quantity = container.requests.get(resources::CPU)?.parse().ok()?;
        Some(cpu.milli_value() % 1000 == 0)
    };
    let mut all = pod.object.containers.iter();
    pod.qos == KubeQos::Guaranteed && all.all(|it| whole_cpus(it) == Some(true))
}

/// The pod's annotations, parsed once; errors describe what is invalid.
struct NumaAnnotations {
    numa: Result<NumaTopologySpec, String>,
    /// True if the pod names or selects reservations.
    reserved_only: Result<bool, String>,
    cpus: Result<ResourceSpec, String>,
    /// The value of [`NumaPod::whole_cpus`].
    whole_cpus: bool,
    /// The pod's earlier allocation, if a scheduling hint makes it binding.
    preassigned: Result<Option<PreassignedCpus>, String>,
}

impl NumaAnnotations {
    /// Returns the pod's parsed annotations. `table` must be the process-wide table, since the parsed ids are
    /// cached.
    fn from_pod<'p>(pod: &'p PodInfo, table: &ResourceTable) -> &'p Self {
        pod.facet(|pod| {
            let affinity = read::<ReservationAffinity>(pod, annotations::RESERVATION_AFFINITY);
            Self {
                numa: read(pod, annotations::NUMA_TOPOLOGY_SPEC),
                reserved_only: affinity.map(|affinity| {
                    !affinity.name.is_empty()
                        || !affinity.reservation_selector.is_empty()
                        || affinity
                            .required_during_scheduling_ignored_during_execution
                            .is_some()
                }),
                cpus: read(pod, annotations::RESOURCE_SPEC),
                whole_cpus: is_whole(pod),
                preassigned: has_preassignment_hint(pod).and_then(|it| match it {
                    true => preassigned_cpus(pod, table),
                    false => Ok(None),
                }),
            }
        })
    }
}

/// Returns true if the pod's scheduling hint has an entry for this plugin, so that the CPUs in the pod's own
/// annotation are preassigned.
fn has_preassignment_hint(pod: &PodInfo) -> Result<bool, String> {
    let keys = [
        annotations::SCHEDULING_HINT,
        annotations::SCHEDULING_HINT_DEPRECATED,
    ];
    let Some(key) = keys.into_iter().find(|key| pod.annotation(key).is_some()) else {
        return Ok(false);
    };
    let hint: SchedulingHint = read(pod, key)?;
    let has_entry = |all: &koord_api::slo::ExtensionsMap| all.contains_key(super::NAME);
    Ok(hint.extensions.as_ref().is_some_and(has_entry))
}

/// Returns the allocation in the pod's own annotation.
fn preassigned_cpus(
    pod: &PodInfo,
    table: &ResourceTable,
) -> Result<Option<PreassignedCpus>, String> {
    let chosen = Allocation::read(pod, table)?;
    Ok(chosen.map(|Allocation { cpus, zones, .. }| PreassignedCpus { cpus, zones }))
}

/// Returns the CPU binding that the pod requests; `None` if it is not bound.
fn cpu_request(pod: &PodInfo, spec: &ResourceSpec, settings: &NumaSettings) -> Option<CpuRequest> {
    let class = qos::qos_class_from_labels(pod.labels());
    let bound = matches!(class, QosClass::Lse | QosClass::Lsr);
    if !bound || pod.priority_class != PriorityClass::Prod {
        return None;
    }
    // The outer option is `None` if the policy is unset; the inner one if the pod is not to be bound.
    let read = |policy: Option<&CpuBindPolicy>| match policy {
        None => None,
        Some(CpuBindPolicy::Default) => Some(settings.bind),
        Some(CpuBindPolicy::FullPCPUs) => Some(Some(BindPolicy::FullPCpus)),
        Some(CpuBindPolicy::SpreadByPCPUs) => Some(Some(BindPolicy::SpreadByPCpus)),
        Some(other) if other.as_str().is_empty() => None,
        Some(_) => Some(None),
    };
    let required = read(spec.required_cpu_bind_policy.as_ref());
    let preferred = read(spec.preferred_cpu_bind_policy.as_ref()).unwrap_or(settings.bind);
    // A default that does not bind is no requirement.
    let asked_default = spec.required_cpu_bind_policy == Some(CpuBindPolicy::Default);
    let required = required.filter(|policy| !(asked_default && policy.is_none()));
    Some(CpuRequest {
        required: required.flatten(),
        preferred: required.unwrap_or(preferred)?,
        exclusive: exclusive(spec),
    })
}

fn exclusive(spec: &ResourceSpec) -> ExclusivePolicy {
    match spec.preferred_cpu_exclusive_policy {
        Some(CpuExclusivePolicy::PcpuLevel) => ExclusivePolicy::PCpuLevel,
        Some(CpuExclusivePolicy::NumaNodeLevel) => ExclusivePolicy::NumaNodeLevel,
        _ => ExclusivePolicy::None,
    }
}

fn read<T: DeserializeOwned + Default>(pod: &PodInfo, key: &str) -> Result<T, String> {
    extension::parse(key, pod.annotation(key))
        .map(Option::unwrap_or_default)
        .map_err(|error| error.to_string())
}

/// A pod's CPUs and NUMA resources on its node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Allocation {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) cpus: CpuSet,
    pub(super) exclusive: ExclusivePolicy,
    /// Amounts by NUMA node, ascending.
    pub(super) zones: Vec<(u8, Amounts)>,
    /// Uid of the reservation that the allocation was taken from.
    pub(super) reservation: Option<Arc<str>>,
    /// True if this is the allocation of a reservation, held for its owners.
    pub(super) is_reservation: bool,
}

impl Allocation {
    /// Returns an empty allocation for `pod`.
    pub(super) fn empty(pod: &PodInfo) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            is_reservation: pod.is_holder(),
            ..Self::default()
        }
    }

    /// Parses the allocation in the annotations of `pod`; `None` if it has none.
    ///
    /// # Errors
    /// Returns a message if an annotation is invalid.
    pub(super) fn read(pod: &PodInfo, table: &ResourceTable) -> Result<Option<Self>, String> {
        let key = annotations::RESOURCE_STATUS;
        if pod.annotation(key).is_none() {
            return Ok(None);
        }
        let status: ResourceStatus = read(pod, key)?;
        let spec: ResourceSpec = read(pod, annotations::RESOURCE_SPEC)?;
        let parsed = status.cpuset.parse::<CpuSet>();
        let cpus = parsed.map_err(|error| format!("annotation {key}: cpuset: {error}"))?;
        if cpus.is_empty() && status.numa_node_resources.is_empty() {
            return Ok(None);
        }
        let mut zones: Vec<(u8, Amounts)> = Vec::new();
        for entry in &status.numa_node_resources {
            let node = u8::try_from(entry.node).ok().filter(|node| *node < 64);
            let node = node.ok_or_else(|| {
                format!(
                    "annotation {key}: numaNodeResources: node {} is impossible",
                    entry.node
                )
            })?;
            let mut amounts = Amounts::new();
            for (name, quantity) in &entry.resources {
                let id = table.intern(name);
                amounts.add(id, amount(id, quantity).max(0));
            }
            match zones.iter_mut().find(|(id, _)| *id == node) {
                Some((_, existing)) => existing.add_all(&amounts),
                None => zones.push((node, amounts)),
            }
        }
        zones.sort_by_key(|(id, _)| *id);
        Ok(Some(Self {
            cpus,
            zones,
            exclusive: exclusive(&spec),
            reservation: reservation_of(pod)?,
            ..Self::empty(pod)
        }))
    }
}

/// Returns the uid of the reservation that `pod` uses according to its annotation.
///
/// # Errors
/// Returns a message if the annotation is invalid.
pub(super) fn reservation_of(pod: &PodInfo) -> Result<Option<Arc<str>>, String> {
    let reservation = allocate_policy::allocated(pod).map_err(ToString::to_string)?;
    Ok(reservation.map(|reservation| reservation.uid.as_str().into()))
}
