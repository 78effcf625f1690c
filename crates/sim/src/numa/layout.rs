//! NUMA layout of a simulated node and its kubelet's topology settings.

use crate::TOPOLOGY_ANNOTATION;
use crate::kubelet::{CpuManager, Device, Kubelet, Machine, Memory, Settings};
use k8s_openapi::api::core::v1::Node;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::resources;
use koord_model::alignment::{Policy, Scope};
use koord_model::cpuset::{Cpu, CpuSet, Topology};
use koord_model::numa::NumaMask;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

/// Maximum number of NUMA nodes: a kubelet that aligns would not start with more.
const MOST_NODES: u8 = 8;
/// Maximum number of CPUs of a NUMA node.
const MOST_CPUS: u32 = 1024;
/// Default memory of a NUMA node for each of its CPUs: 4 Gi.
const MEMORY_PER_CPU: i64 = 4 << 30;

/// The NUMA nodes of a machine and its kubelet's settings: JSON of the annotation
/// [`TOPOLOGY_ANNOTATION`]. NUMA node `i` of `n` CPUs has those from `i * n`, two threads to a core; the
/// CPU manager's policy is `static`, with nothing reserved, and the memory manager's `Static`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Layout {
    /// Number of NUMA nodes, 1 to 8.
    pub numa_nodes: u8,
    /// Number of CPUs of each NUMA node, 1 to 1024.
    pub cpus_per_node: u32,
    /// Memory of each NUMA node; 4 Gi for each of its CPUs when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_per_node: Option<Quantity>,
    /// `topologyManagerPolicy`; `single-numa-node` when not given.
    #[serde(default = "single")]
    pub policy: String,
    /// `topologyManagerScope`; `container` when not given.
    #[serde(default = "container")]
    pub scope: String,
    /// The NUMA nodes of devices, by extended resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, Vec<u8>>,
}

fn single() -> String {
    Policy::SingleNumaNode.as_str().to_owned()
}

fn container() -> String {
    Scope::Container.as_str().to_owned()
}

/// An invalid layout: there is no such machine, or no kubelet would start on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LayoutError(String);

impl LayoutError {
    fn field(field: &str, value: impl Display, why: impl Display) -> Self {
        Self(format!("{field}: {value}: {why}"))
    }
}

impl Layout {
    /// Creates the layout of a machine with `numa_nodes` NUMA nodes of `cpus_per_node` CPUs each.
    ///
    /// # Errors
    /// When there is no such machine.
    pub fn new(numa_nodes: u8, cpus_per_node: u32) -> Result<Self, LayoutError> {
        let layout = Self {
            numa_nodes,
            cpus_per_node,
            memory_per_node: None,
            policy: single(),
            scope: container(),
            devices: BTreeMap::new(),
        };
        layout.check()?;
        Ok(layout)
    }

    /// Parses the annotation of `node`; `None` without one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn from_node(node: &Node) -> Result<Option<Self>, LayoutError> {
        let annotations = node.metadata.annotations.as_ref();
        let Some(text) = annotations.and_then(|all| all.get(TOPOLOGY_ANNOTATION)) else {
            return Ok(None);
        };
        let malformed =
            |error: &dyn Display| LayoutError(format!("annotation {TOPOLOGY_ANNOTATION}: {error}"));
        let layout: Self = serde_json::from_str(text).map_err(|error| malformed(&error))?;
        layout.check().map_err(|error| malformed(&error))?;
        Ok(Some(layout))
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first invalid field, and its value.
    pub fn check(&self) -> Result<(), LayoutError> {
        self.settings().map(drop)?;
        if !(1..=MOST_NODES).contains(&self.numa_nodes) {
            let reason = format!("not 1 to {MOST_NODES}");
            return Err(LayoutError::field("numaNodes", self.numa_nodes, reason));
        }
        if !(1..=MOST_CPUS).contains(&self.cpus_per_node) {
            let reason = format!("not 1 to {MOST_CPUS}");
            return Err(LayoutError::field(
                "cpusPerNode",
                self.cpus_per_node,
                reason,
            ));
        }
        if let Some(memory) = self.memory_per_node.filter(|memory| memory.signum() < 0) {
            return Err(LayoutError::field("memoryPerNode", memory, "below 0"));
        }
        for (resource, nodes) in &self.devices {
            if !resources::is_extended(resource) {
                let reason = "not the name of an extended resource, as example.com/gpu";
                return Err(LayoutError::field("devices", resource, reason));
            }
            if let Some(node) = nodes.iter().find(|node| **node >= self.numa_nodes) {
                let reason = format!("there are {} NUMA nodes", self.numa_nodes);
                return Err(LayoutError::field(
                    &format!("devices[{resource}]"),
                    node,
                    reason,
                ));
            }
        }
        Ok(())
    }

    fn settings(&self) -> Result<Settings, LayoutError> {
        let (policy, scope) = (self.policy.parse::<Policy>(), self.scope.parse::<Scope>());
        Ok(Settings {
            policy: policy.map_err(|error| LayoutError(format!("policy: {error}")))?,
            scope: scope.map_err(|error| LayoutError(format!("scope: {error}")))?,
            cpu: CpuManager::Static {
                reserved: CpuSet::new(),
                full_cores: false,
            },
            memory: true,
            ..Settings::default()
        })
    }

    fn cpus(&self) -> u32 {
        u32::from(self.numa_nodes).saturating_mul(self.cpus_per_node)
    }

    fn memory(&self) -> i64 {
        let by_cpu = MEMORY_PER_CPU.saturating_mul(i64::from(self.cpus_per_node));
        self.memory_per_node.map_or(by_cpu, |memory| memory.value())
    }

    /// Returns CPU, memory and devices of the whole machine.
    #[must_use]
    pub fn capacity(&self) -> ResourceList {
        let memory = self.memory().saturating_mul(i64::from(self.numa_nodes));
        let devices = self.devices.iter().map(|(resource, nodes)| {
            let count = i64::try_from(nodes.len()).unwrap_or(i64::MAX);
            (resource.clone(), Quantity::from_value(count))
        });
        [
            (resources::CPU, Quantity::from_value(i64::from(self.cpus()))),
            (resources::MEMORY, Quantity::from_bytes(memory)),
        ]
        .map(|(name, amount)| (name.to_owned(), amount))
        .into_iter()
        .chain(devices)
        .collect()
    }

    /// Creates a kubelet on such a machine.
    ///
    /// # Errors
    /// When it would not start.
    pub fn kubelet(&self) -> Result<Kubelet, LayoutError> {
        self.check()?;
        let cpu = |id: u32| {
            let node = u8::try_from(id / self.cpus_per_node).unwrap_or(u8::MAX);
            let core = id % self.cpus_per_node / 2;
            Cpu::new(id, core, i32::from(node), node)
        };
        let bytes = u64::try_from(self.memory()).unwrap_or(0);
        let bank = |node: u8| {
            let memory = Memory {
                capacity: bytes,
                allocatable: bytes,
            };
            let all = BTreeMap::from([(resources::MEMORY.to_owned(), memory)]);
            (node, all)
        };
        let devices = |(resource, nodes): (&String, &Vec<u8>)| {
            let device = |(at, node): (usize, &u8)| Device {
                id: format!("{resource}-{at}"),
                nodes: Some(NumaMask::from_iter([*node])),
                healthy: true,
            };
            let all = nodes.iter().enumerate().map(device).collect();
            (resource.clone(), all)
        };
        let machine = Machine {
            topology: Topology::new((0..self.cpus()).map(cpu)),
            memory: (0..self.numa_nodes).map(bank).collect(),
            devices: self.devices.iter().map(devices).collect(),
            ..Machine::default()
        };
        Kubelet::new(machine, self.settings()?).map_err(|error| LayoutError(error.to_string()))
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    /// Reads `2x8`: two NUMA nodes of eight CPUs.
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let wrong = || {
            let reason = "not as 2x8: NUMA nodes, and CPUs of each";
            LayoutError::field("topology", format_args!("{text:?}"), reason)
        };
        let (nodes, cpus) = text.split_once('x').ok_or_else(wrong)?;
        match (nodes.parse(), cpus.parse()) {
            (Ok(nodes), Ok(cpus)) => Self::new(nodes, cpus),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machine_has_what_its_numa_nodes_have() {
        let layout: Layout = "2x8".parse().unwrap();
        let amount = |name: &str| layout.capacity()[name].to_string();
        assert_eq!(
            (amount("cpu"), amount("memory")),
            ("16".into(), "64Gi".into())
        );
        let kubelet = layout.kubelet().unwrap();
        assert_eq!(kubelet.settings().policy, Policy::SingleNumaNode);
        let second = kubelet.machine().topology.on_node(1).unwrap();
        assert_eq!(*second, "8-15".parse().unwrap());
        assert_eq!(kubelet.machine().topology.counts(), [2, 2, 8]);
    }

    #[test]
    fn invalid_layout_error_names_field_and_value() {
        for (text, message) in [
            ("2", "topology: \"2\""),
            ("2x", "topology: \"2x\""),
            ("300x1", "topology: \"300x1\""),
            ("9x2", "numaNodes: 9: not 1 to 8"),
            ("0x2", "numaNodes: 0"),
            ("2x0", "cpusPerNode: 0"),
            ("2x4000000000", "cpusPerNode: 4000000000"),
        ] {
            let error = text.parse::<Layout>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
        for (value, message) in [
            (json!({"numaNodes": 2}), "cpusPerNode"),
            (
                json!({"numaNodes": 2, "cpusPerNode": 1, "zones": 1}),
                "`zones`",
            ),
            (
                json!({"numaNodes": 2, "cpusPerNode": 1, "policy": "strict"}),
                "policy: \"strict\"",
            ),
            (
                json!({"numaNodes": 2, "cpusPerNode": 1, "scope": "node"}),
                "scope: \"node\"",
            ),
            (
                json!({"numaNodes": 2, "cpusPerNode": 1, "devices": {"a/b": [2]}}),
                "devices[a/b]: 2",
            ),
            (
                json!({"numaNodes": 2, "cpusPerNode": 1, "devices": {"memory": [0]}}),
                "devices: memory: not the name",
            ),
            (
                json!({"numaNodes": 2, "cpusPerNode": 1, "devices": {"hugepages-2Mi": [0]}}),
                "devices: hugepages-2Mi: not",
            ),
            (
                json!({"numaNodes": 2, "cpusPerNode": 1, "memoryPerNode": "-1"}),
                "memoryPerNode: -1",
            ),
        ] {
            let node =
                json!({"metadata": {"annotations": {TOPOLOGY_ANNOTATION: value.to_string()}}});
            let node: Node = serde_json::from_value(node).unwrap();
            let error = Layout::from_node(&node).unwrap_err().to_string();
            assert!(
                error.contains(message) && error.contains(TOPOLOGY_ANNOTATION),
                "{error}"
            );
        }
    }
}
