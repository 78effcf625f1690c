//! The machine of a kubelet, and the kubelet's settings.

use koord_model::alignment::{Policy, Scope};
use koord_model::cpuset::{CpuSet, Topology};
use koord_model::numa::NumaMask;
use std::collections::BTreeMap;

/// Memory of one kind on a NUMA node, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Total memory.
    pub capacity: u64,
    /// Memory available to containers.
    pub allocatable: u64,
}

/// A device of a device plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Id of the device, unique in its resource.
    pub id: String,
    /// NUMA nodes near the device; `None` if its plugin does not report them.
    pub nodes: Option<NumaMask>,
    /// True if its plugin reports it as healthy.
    pub healthy: bool,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// CPUs of the machine.
    pub topology: Topology,
    /// Memory by NUMA node and kind: `memory`, `hugepages-2Mi`. NUMA nodes without CPUs have some, too.
    pub memory: BTreeMap<u8, BTreeMap<String, Memory>>,
    /// Distance from one NUMA node to another, as in the ACPI SLIT. A missing entry means 10 to itself and 20
    /// to the others.
    pub distances: BTreeMap<(u8, u8), u32>,
    /// Devices by resource name.
    pub devices: BTreeMap<String, Vec<Device>>,
}

impl Machine {
    /// Returns its NUMA nodes.
    #[must_use]
    pub fn nodes(&self) -> NumaMask {
        let memory = self.memory.keys().copied();
        self.topology.nodes().chain(memory).collect()
    }

    /// Returns the distance from `a` to `b`.
    #[must_use]
    pub fn distance(&self, a: u8, b: u8) -> u32 {
        let distance = self.distances.get(&(a, b)).copied();
        distance.unwrap_or(if a == b { 10 } else { 20 })
    }
}

/// `cpuManagerPolicy` of the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CpuManager {
    /// `none`: no container has exclusive CPUs.
    #[default]
    None,
    /// `static`
    Static {
        /// CPUs that no container gets exclusively.
        reserved: CpuSet,
        /// The option `full-pcpus-only`: only whole physical cores.
        full_cores: bool,
    },
}

/// Settings of a kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `topologyManagerPolicy`
    pub policy: Policy,
    /// `topologyManagerScope`
    pub scope: Scope,
    /// The option `prefer-closest-numa-nodes`.
    pub closest: bool,
    /// The option `max-allowable-numa-nodes`.
    pub max_nodes: usize,
    /// `cpuManagerPolicy`
    pub cpu: CpuManager,
    /// True if `memoryManagerPolicy` is `Static`.
    pub memory: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::None,
            scope: Scope::Container,
            closest: false,
            max_nodes: 8,
            cpu: CpuManager::None,
            memory: false,
        }
    }
}

/// An error that prevents a kubelet from starting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Aligning costs exponentially more with each NUMA node.
    #[error(
        "a topology manager with a policy other than none deals with at most {most} NUMA nodes \
         (max-allowable-numa-nodes), and the machine has {nodes}"
    )]
    Nodes {
        /// Number of NUMA nodes of the machine.
        nodes: usize,
        /// Maximum number.
        most: usize,
    },
    /// A reserved CPU does not exist.
    #[error("reserved CPUs {reserved}: the machine has {all}")]
    Reserved {
        /// Reserved CPUs.
        reserved: CpuSet,
        /// CPUs of the machine.
        all: CpuSet,
    },
}

impl Settings {
    pub(super) fn check(&self, machine: &Machine) -> Result<(), SettingsError> {
        let nodes = machine.nodes().count() as usize;
        if self.policy != Policy::None && nodes > self.max_nodes {
            let most = self.max_nodes;
            return Err(SettingsError::Nodes { nodes, most });
        }
        match &self.cpu {
            CpuManager::Static { reserved, .. } if !reserved.is_subset(machine.topology.all()) => {
                Err(SettingsError::Reserved {
                    reserved: reserved.clone(),
                    all: machine.topology.all().clone(),
                })
            }
            _ => Ok(()),
        }
    }
}
