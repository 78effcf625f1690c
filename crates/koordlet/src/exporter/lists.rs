//! Conversion of the kubelet's resource lists to shares of a machine.

use koord_api::quantity::Quantity;
use koord_model::cpuset::CpuSet;
use koord_model::export::{Block, Devices, Share};
use koord_model::numa::NumaMask;
use koord_rpc::podresources::{
    AllocatableResourcesResponse, ContainerDevices, ContainerMemory, ContainerResources,
    TopologyInfo,
};

/// Invalid entries of the kubelet's lists.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) messages: Vec<String>,
    /// True if the free resources of a zone cannot be determined.
    pub(super) is_contradictory: bool,
}

impl Problems {
    fn add_contradiction(&mut self, problem: String) {
        self.is_contradictory = true;
        self.messages.push(problem);
    }
}

/// Returns the name of the resource for huge pages of `size` bytes, such as `hugepages-2Mi`.
pub(super) fn huge_pages(size: u64) -> String {
    let size = Quantity::from_bytes(i64::try_from(size).unwrap_or(i64::MAX));
    format!("hugepages-{size}")
}

pub(super) fn allocatable(answer: &AllocatableResourcesResponse, problems: &mut Problems) -> Share {
    share(&answer.cpu_ids, &answer.memory, &answer.devices, problems)
}

pub(super) fn container_share(container: &ContainerResources, problems: &mut Problems) -> Share {
    let container = (&container.cpu_ids, &container.memory, &container.devices);
    share(container.0, container.1, container.2, problems)
}

/// Returns the resources of a list's entry; invalid entries are added to `problems`.
fn share(
    cpus: &[i64],
    memory: &[ContainerMemory],
    devices: &[ContainerDevices],
    problems: &mut Problems,
) -> Share {
    let mut all = Share::default();
    for id in cpus {
        match u32::try_from(*id) {
            Ok(id) if id <= CpuSet::MAX => all.cpus.insert(id),
            _ => problems.add_contradiction(format!("CPU {id} is listed, which no machine has")),
        }
    }
    for block in memory {
        let (nodes, invalid) = mask(block.topology.as_ref(), &block.memory_type);
        invalid
            .into_iter()
            .for_each(|it| problems.add_contradiction(it));
        all.memory.push(Block {
            kind: block.memory_type.clone(),
            size: block.size,
            nodes,
        });
    }
    for group in devices {
        let resource = &group.resource_name;
        // Reported by the device plugin. Such devices are not assigned, so this is no contradiction.
        let (nodes, invalid) = mask(group.topology.as_ref(), resource);
        problems.messages.extend(invalid);
        all.devices.push(Devices {
            resource: resource.clone(),
            ids: group.device_ids.clone(),
            nodes,
        });
    }
    all
}

/// Returns the NUMA nodes of `topology`, and a message for each invalid one.
fn mask(topology: Option<&TopologyInfo>, item: &str) -> (NumaMask, Vec<String>) {
    let nodes = topology.into_iter().flat_map(|topology| &topology.nodes);
    let mut invalid = Vec::new();
    let valid = nodes.filter_map(|node| match u8::try_from(node.id) {
        Ok(id) if id < 64 => Some(id),
        _ => {
            let id = node.id;
            invalid.push(format!("{item} is listed in NUMA node {id}: not 0 to 63"));
            None
        }
    });
    (valid.collect(), invalid)
}
