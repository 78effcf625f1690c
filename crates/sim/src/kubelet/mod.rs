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
pub struct Held {
    /// Its name.
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
    pods: BTreeMap<String, Vec<Held>>,
}

/// Resources that init containers of the pod under admission leave to later containers.
#[derive(Debug, Clone, Default)]
struct Reuse {
    cpus: CpuSet,
    memory: memory::Reuse,
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
        match self.place(pod) {
            Ok(held) => {
                self.pods.insert(pod.uid.clone(), held);
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
        let Some(held) = self.pods.remove(uid) else {
            return false;
        };
        for held in &held {
            self.cpus.give_back(&held.cpus);
            self.memory.give_back(&held.memory);
            self.devices.give_back(&held.devices);
        }
        true
    }

    /// Returns the resources of the pod's containers, in the order in which they start; `None` for a pod that
    /// was not admitted.
    #[must_use]
    pub fn held(&self, uid: &str) -> Option<&[Held]> {
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
        for held in self.pods.values().flatten() {
            shared.subtract(&held.cpus);
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

    fn place(&mut self, pod: &Pod) -> Result<Vec<Held>, Refusal> {
        let mut reuse = Reuse::default();
        let whole = match (self.settings.policy, self.settings.scope) {
            (Policy::None, _) => Some(None),
            (_, Scope::Pod) => Some(self.merge(&self.pod_offers(pod))?),
            (_, Scope::Container) => None,
        };
        let mut held = Vec::new();
        for container in &pod.containers {
            let hint = match whole {
                Some(hint) => hint,
                None => self.merge(&self.container_offers(pod, container, &reuse))?,
            };
            held.push(self.take(pod, container, hint, &mut reuse)?);
        }
        Ok(held)
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

    fn container_offers(&self, pod: &Pod, container: &Container, reuse: &Reuse) -> Vec<Offer> {
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
        let none = Reuse::default();
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
    fn take(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: Option<Hint>,
        reuse: &mut Reuse,
    ) -> Result<Held, Refusal> {
        let init = container.role == Role::Init;
        let mask = hint.and_then(|hint| hint.mask);
        let machine = &self.machine;
        let mut held = Held {
            container: container.name.clone(),
            ended: init,
            ..Held::default()
        };
        for (resource, count) in &container.devices {
            let left = reuse.devices.entry(resource.clone()).or_default();
            let ids = self.devices.take(machine, resource, *count, mask, left)?;
            left.retain(|id| !ids.contains(id));
            if init {
                left.extend(ids.iter().cloned());
            }
            held.devices.insert(resource.clone(), ids);
        }
        held.devices.retain(|_, ids| !ids.is_empty());
        let cpus = pod.whole_cpus(container);
        if cpus > 0 && self.settings.cpu != CpuManager::None {
            let (settings, left) = (&self.settings, &reuse.cpus);
            held.cpus = self.cpus.take(machine, settings, cpus, mask, left)?;
            if init {
                reuse.cpus.add(&held.cpus);
            } else {
                reuse.cpus.subtract(&held.cpus);
            }
        }
        if self.settings.memory && pod.guaranteed && !container.memory.is_empty() {
            // Without a policy there is no preferred hint.
            let hint = hint.unwrap_or(Hint {
                mask: None,
                preferred: false,
            });
            let (memory, left) = (&container.memory, &mut reuse.memory);
            held.memory = self.memory.take(machine, memory, hint, left, init)?;
        }
        Ok(held)
    }
}
