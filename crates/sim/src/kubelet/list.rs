//! Content of the kubelet's PodResources service: allocatable resources, and the resources of containers.
//!
//! Source: `kubernetes/kubernetes` v1.35, `pkg/kubelet/apis/podresources`: init containers that ended are not
//! listed, though resources that no later container took over from them stay allocated until the pod ends.

use super::{ContainerAllocation, CpuManager, Kubelet};
use koord_model::cpuset::CpuSet;
use koord_model::export::{Block, Devices, MachineTopology, Node, Share};
use koord_model::numa::NumaMask;

impl Kubelet {
    /// Returns the machine as the kernel describes it.
    #[must_use]
    pub fn exported(&self) -> MachineTopology {
        let nodes = self.machine.nodes();
        let node = |number: u8| {
            let cpus = self.machine.topology.on_node(number);
            let memory = self.machine.memory.get(&number).into_iter().flatten();
            let distance = |other: u8| (other, self.machine.distance(number, other));
            let node = Node {
                cpus: cpus.cloned().unwrap_or_default(),
                memory: memory
                    .map(|(kind, memory)| (kind.clone(), memory.capacity))
                    .collect(),
                distances: nodes.ids().map(distance).collect(),
            };
            (number, node)
        };
        nodes.ids().map(node).collect()
    }

    /// Returns `GetAllocatableResources`: CPUs and memory only if their managers have the static policy,
    /// because otherwise no container has them exclusively.
    #[must_use]
    pub fn allocatable(&self) -> Share {
        let mut share = Share {
            cpus: match self.settings.cpu {
                CpuManager::None => CpuSet::new(),
                CpuManager::Static { .. } => self.allocatable_cpus(),
            },
            ..Share::default()
        };
        if self.settings.memory {
            for (number, memory) in &self.machine.memory {
                share
                    .memory
                    .extend(memory.iter().map(|(kind, memory)| Block {
                        kind: kind.clone(),
                        size: memory.allocatable,
                        nodes: NumaMask::from_iter([*number]),
                    }));
            }
        }
        for (resource, all) in &self.machine.devices {
            let healthy = all.iter().filter(|device| device.healthy);
            share.devices.extend(entries_by_numa_node(
                resource,
                healthy.map(|device| (device.id.clone(), device.nodes)),
            ));
        }
        share
    }

    /// Returns `List` for a pod: the resources of each container, by name; empty for an unknown pod.
    #[must_use]
    pub fn listed(&self, uid: &str) -> Vec<(String, Share)> {
        let allocations = self.allocations(uid).unwrap_or_default().iter();
        let lasting = allocations.filter(|allocation| !allocation.ended);
        lasting
            .map(|allocation| (allocation.container.clone(), self.share(allocation)))
            .collect()
    }

    fn share(&self, allocation: &ContainerAllocation) -> Share {
        let near = |resource: &str, id: &String| {
            let all = self.machine.devices.get(resource).into_iter().flatten();
            let mut of_id = all.filter(|device| device.id == *id);
            of_id.next().and_then(|device| device.nodes)
        };
        let devices = allocation.devices.iter().flat_map(|(resource, ids)| {
            let ids = ids.iter().map(|id| (id.clone(), near(resource, id)));
            entries_by_numa_node(resource, ids)
        });
        Share {
            cpus: allocation.cpus.clone(),
            memory: allocation
                .memory
                .iter()
                .map(|block| Block {
                    kind: block.kind.clone(),
                    size: block.size,
                    nodes: block.nodes,
                })
                .collect(),
            devices: devices.collect(),
        }
    }
}

/// Returns one entry for each pair of a device and a NUMA node near it; an entry without nodes if its plugin
/// does not report any.
fn entries_by_numa_node(
    resource: &str,
    devices: impl Iterator<Item = (String, Option<NumaMask>)>,
) -> impl Iterator<Item = Devices> {
    devices.flat_map(move |(id, nodes)| {
        let near = match nodes {
            None => vec![NumaMask::default()],
            Some(nodes) => nodes
                .ids()
                .map(|node| NumaMask::from_iter([node]))
                .collect(),
        };
        near.into_iter().map(move |nodes| Devices {
            resource: resource.to_owned(),
            ids: vec![id.clone()],
            nodes,
        })
    })
}
