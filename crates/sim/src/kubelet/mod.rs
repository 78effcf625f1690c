//! Admission of pods by a kubelet: the decision of its topology manager, and the CPUs, memory and devices
//! that its containers hold from then on.
//!
//! This is the reference for [`koord_model::alignment`], which predicts the same decision from less
//! information, and shares no rule with it. [`Kubelet`] is one kubelet: providers (`cpus`, `memory`,
//! `devices`) return the NUMA nodes that could serve a request, [`hint`] merges these and decides, then each
//! provider allocates.
//!
//! Source of rules and terms: `kubernetes/kubernetes` v1.35, `pkg/kubelet/cm/topologymanager`, `cpumanager`
//! (policy `static`), `memorymanager` (policy `Static`) and `devicemanager`. Not simulated: a kubelet's
//! restart (it allocates again what its containers hold already), pod-level resources, and options that
//! change which CPUs of a NUMA node are taken, but not of which NUMA node.

mod cpus;
mod devices;
pub mod hint;
mod list;
mod machine;
mod memory;
mod pod;
#[cfg(test)]
mod tests;

pub use machine::{CpuManager, Device, Machine, Memory, Settings, SettingsError};
pub use memory::Block;
pub use pod::{Container, Pod};

use hint::{Hint, Offer};
use koord_model::alignment::{Policy, Role, Scope};
use koord_model::cpuset::CpuSet;
use std::collections::BTreeMap;

/// The rejection of a pod: `reason` and `message` of the kubelet in the pod's status, the message after "Pod
/// was rejected: ".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Reason: `TopologyAffinityError`, `SMTAlignmentError` or `UnexpectedAdmissionError`.
    pub reason: &'static str,
    /// The kubelet's message.
    pub message: String,
}

impl Refusal {
    /// Returns the rejection by the topology manager's policy.
    fn affinity() -> Self {
        Self {
            reason: "TopologyAffinityError",
            message: "Resources cannot be allocated with Topology locality".to_owned(),
        }
    }

    /// Returns the rejection after a provider failed to allocate what it had offered.
    fn unexpected(error: &str) -> Self {
        Self {
            reason: "UnexpectedAdmissionError",
            message: format!("Allocate failed due to {error}, which is unexpected"),
        }
    }
}

/// Exclusive resources of a container of an admitted pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerAllocation {
    /// Name of the container.
    pub container: String,
    /// True if it ended before the main containers started. Its resources stay allocated to its pod.
    pub ended: bool,
    /// CPUs; none if it runs on the shared ones.
    pub cpus: CpuSet,
    /// Memory and huge pages.
    pub memory: Vec<Block>,
    /// Ids of devices, by resource, ascending.
    pub devices: BTreeMap<String, Vec<String>>,
}

/// A kubelet and the resources of its pods.
#[derive(Debug, Clone)]
pub struct Kubelet {
    machine: Machine,
    settings: Settings,
    cpus: cpus::Cpus,
    memory: memory::Banks,
    devices: devices::Devices,
    pods: BTreeMap<String, Vec<ContainerAllocation>>,
}

/// Resources that init containers of the pod under admission leave to later containers.
#[derive(Debug, Clone, Default)]
struct ReusableResources {
    cpus: CpuSet,
    memory: memory::ReusableMemory,
    devices: BTreeMap<String, Vec<String>>,
}

impl Kubelet {
    /// Creates a kubelet without pods.
    ///
    /// # Errors
    /// When a kubelet with these settings would not start on the machine.
    pub fn new(machine: Machine, settings: Settings) -> Result<Self, SettingsError> {
        settings.check(&machine)?;
        Ok(Self {
            cpus: cpus::Cpus::new(&machine, &settings),
            memory: memory::Banks::new(&machine),
            devices: devices::Devices::default(),
            machine,
            settings,
            pods: BTreeMap::new(),
        })
    }

    /// Returns the machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the kubelet's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Admits `pod` and allocates the resources of its containers; a pod that was admitted before stays so.
    ///
    /// # Errors
    /// The rejection. Nothing is allocated then.
    pub fn admit(&mut self, pod: &Pod) -> Result<(), Refusal> {
        if self.pods.contains_key(&pod.uid) {
            return Ok(());
        }
        let before = (self.cpus.clone(), self.memory.clone(), self.devices.clone());
        match self.allocate(pod) {
            Ok(allocations) => {
                self.pods.insert(pod.uid.clone(), allocations);
                Ok(())
            }
            Err(refusal) => {
                (self.cpus, self.memory, self.devices) = before;
                Err(refusal)
            }
        }
    }

    /// Releases all resources of the pod. Returns whether the pod was admitted.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(allocations) = self.pods.remove(uid) else {
            return false;
        };
        for allocation in &allocations {
            self.cpus.release(&allocation.cpus);
            self.memory.release(&allocation.memory);
            self.devices.release(&allocation.devices);
        }
        true
    }

    /// Returns the resources of the pod's containers, in the order in which they start; `None` for a pod that
    /// was not admitted.
    #[must_use]
    pub fn allocations(&self, uid: &str) -> Option<&[ContainerAllocation]> {
        self.pods.get(uid).map(Vec::as_slice)
    }

    /// Returns the uids of the admitted pods, ascending.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    /// Returns the CPUs that are not exclusive to a container, reserved ones included.
    #[must_use]
    pub fn shared_cpus(&self) -> CpuSet {
        let mut shared = self.machine.topology.all().clone();
        for allocation in self.pods.values().flatten() {
            shared.subtract(&allocation.cpus);
        }
        shared
    }

    /// Returns the CPUs that containers can have exclusively; none without the static policy.
    #[must_use]
    pub fn allocatable_cpus(&self) -> CpuSet {
        let reserved = match &self.settings.cpu {
            CpuManager::None => return CpuSet::new(),
            CpuManager::Static { reserved, .. } => reserved,
        };
        self.machine.topology.all().difference(reserved)
    }

    /// Returns the free memory of `kind` on NUMA node `node`, in bytes; without the static policy all of it.
    #[must_use]
    pub fn free_memory(&self, node: u8, kind: &str) -> u64 {
        self.memory.free(node, kind)
    }

    /// Returns the number of healthy, unallocated devices of `resource` near NUMA node `node`.
    #[must_use]
    pub fn free_devices(&self, node: u8, resource: &str) -> usize {
        let free = self.devices.free(&self.machine, resource);
        free.filter(|device| device.nodes.is_some_and(|nodes| nodes.has(node)))
            .count()
    }

    /// Admits the containers one after the other and allocates their resources.
    fn allocate(&mut self, pod: &Pod) -> Result<Vec<ContainerAllocation>, Refusal> {
        let mut reuse = ReusableResources::default();
        let whole = match (self.settings.policy, self.settings.scope) {
            (Policy::None, _) => Some(None),
            (_, Scope::Pod) => Some(self.merge(&self.pod_offers(pod))?),
            (_, Scope::Container) => None,
        };
        let mut allocations = Vec::new();
        for container in &pod.containers {
            let hint = match whole {
                Some(hint) => hint,
                None => self.merge(&self.container_offers(pod, container, &reuse))?,
            };
            allocations.push(self.allocate_container(pod, container, hint, &mut reuse)?);
        }
        Ok(allocations)
    }

    /// Returns the merged hint if the policy admits it.
    fn merge(&self, offers: &[Offer]) -> Result<Option<Hint>, Refusal> {
        let best = hint::merge(&self.machine, &self.settings, offers);
        if hint::admits(self.settings.policy, best) {
            Ok(Some(best))
        } else {
            Err(Refusal::affinity())
        }
    }

    fn container_offers(
        &self,
        pod: &Pod,
        container: &Container,
        reuse: &ReusableResources,
    ) -> Vec<Offer> {
        let mut offers = self
            .devices
            .offers(&self.machine, &container.devices, &reuse.devices);
        let whole = pod.whole_cpus(container);
        offers.push(self.cpus.offer(&self.machine, whole, &reuse.cpus));
        if self.settings.memory && pod.guaranteed {
            let (banks, memory) = (&self.memory, &container.memory);
            offers.extend(banks.offers(&self.machine, memory, &reuse.memory));
        }
        offers
    }

    fn pod_offers(&self, pod: &Pod) -> Vec<Offer> {
        let none = ReusableResources::default();
        let devices = pod.peak(|container| container.devices.clone());
        let mut offers = self.devices.offers(&self.machine, &devices, &none.devices);
        let cpus = pod
            .peak(|container| BTreeMap::from([(String::new(), pod.whole_cpus(container) as u64)]));
        let cpus = cpus.get("").map_or(0, |cpus| *cpus as usize);
        offers.push(self.cpus.offer(&self.machine, cpus, &none.cpus));
        if self.settings.memory && pod.guaranteed {
            let mut memory = pod.peak(|container| container.memory.clone());
            // The memory manager skips kinds that no main container requests.
            let main = |container: &&Container| container.role == Role::Main;
            let main = || pod.containers.iter().filter(main);
            memory.retain(|kind, _| main().any(|it| it.memory.contains_key(kind)));
            offers.extend(self.memory.offers(&self.machine, &memory, &none.memory));
        }
        offers
    }

    /// Allocates from each provider for the container, in the kubelet's order of providers.
    fn allocate_container(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: Option<Hint>,
        reuse: &mut ReusableResources,
    ) -> Result<ContainerAllocation, Refusal> {
        let init = container.role == Role::Init;
        let mask = hint.and_then(|hint| hint.mask);
        let machine = &self.machine;
        let mut allocation = ContainerAllocation {
            container: container.name.clone(),
            ended: init,
            ..ContainerAllocation::default()
        };
        for (resource, count) in &container.devices {
            let reusable = reuse.devices.entry(resource.clone()).or_default();
            let ids = self
                .devices
                .take(machine, resource, *count, mask, reusable)?;
            reusable.retain(|id| !ids.contains(id));
            if init {
                reusable.extend(ids.iter().cloned());
            }
            allocation.devices.insert(resource.clone(), ids);
        }
        allocation.devices.retain(|_, ids| !ids.is_empty());
        let cpus = pod.whole_cpus(container);
        if cpus > 0 && self.settings.cpu != CpuManager::None {
            let (settings, reusable) = (&self.settings, &reuse.cpus);
            allocation.cpus = self.cpus.take(machine, settings, cpus, mask, reusable)?;
            if init {
                reuse.cpus.add(&allocation.cpus);
            } else {
                reuse.cpus.subtract(&allocation.cpus);
            }
        }
        if self.settings.memory && pod.guaranteed && !container.memory.is_empty() {
            // Without a policy there is no preferred hint.
            let hint = hint.unwrap_or(Hint {
                mask: None,
                preferred: false,
            });
            let (memory, reusable) = (&container.memory, &mut reuse.memory);
            allocation.memory = self.memory.take(machine, memory, hint, reusable, init)?;
        }
        Ok(allocation)
    }
}
