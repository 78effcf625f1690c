//! The kubelet's lists as shares of a machine.

use koord_api::quantity::Quantity;
use koord_model::cpuset::CpuSet;
use koord_model::export::{Block, Devices, Share};
use koord_model::numa::NumaMask;
use koord_rpc::podresources::{
    AllocatableResourcesResponse, ContainerDevices, ContainerMemory, ContainerResources,
    TopologyInfo,
};

/// The resource of huge pages of so many bytes each: `hugepages-2Mi`.
pub(super) fn huge_pages(size: u64) -> String {
    let size = Quantity::from_bytes(i64::try_from(size).unwrap_or(i64::MAX));
    format!("hugepages-{size}")
}

pub(super) fn allocatable(
    answer: &AllocatableResourcesResponse,
    problems: &mut Vec<String>,
) -> Share {
    share(&answer.cpu_ids, &answer.memory, &answer.devices, problems)
}

pub(super) fn taken(container: &ContainerResources, problems: &mut Vec<String>) -> Share {
    let container = (&container.cpu_ids, &container.memory, &container.devices);
    share(container.0, container.1, container.2, problems)
}

fn share(
    cpus: &[i64],
    memory: &[ContainerMemory],
    devices: &[ContainerDevices],
    problems: &mut Vec<String>,
) -> Share {
    let mut all = Share::default();
    for id in cpus {
        match u32::try_from(*id) {
            Ok(id) if id <= CpuSet::MAX => all.cpus.insert(id),
            _ => problems.push(format!("CPU {id} is listed, which no machine has")),
        }
    }
    for block in memory {
        all.memory.push(Block {
            kind: block.memory_type.clone(),
            size: block.size,
            nodes: mask(block.topology.as_ref(), &block.memory_type, problems),
        });
    }
    for group in devices {
        let resource = &group.resource_name;
        all.devices.push(Devices {
            resource: resource.clone(),
            ids: group.device_ids.clone(),
            nodes: mask(group.topology.as_ref(), resource, problems),
        });
    }
    all
}

fn mask(topology: Option<&TopologyInfo>, of: &str, problems: &mut Vec<String>) -> NumaMask {
    let nodes = topology.into_iter().flat_map(|topology| &topology.nodes);
    let known = nodes.filter_map(|node| match u8::try_from(node.id) {
        Ok(id) if id < 64 => Some(id),
        _ => {
            let id = node.id;
            problems.push(format!("{of} is listed in NUMA node {id}: not 0 to 63"));
            None
        }
    });
    known.collect()
}
