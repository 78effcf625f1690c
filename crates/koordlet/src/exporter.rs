//! Keeps the NodeResourceTopology of this node. The NUMA nodes come from sysfs, the allocatable and the
//! assigned resources from the kubelet's PodResources service. [`koord_model::export`] builds zones from
//! both, and [`Exporter`] writes them to the NodeResourceTopology object.
//!
//! ```text
//! /sys ────────────► machine ─┐
//! PodResources ────► list ────┼─► Report ──► merged with other writers' content ──► written if it differs
//! configz or file ─► Config ──┘
//! ```
//!
//! The counterpart of the community is `nfd-topology-updater` of kubernetes-sigs/node-feature-discovery.

pub mod args;
mod config;
mod events;
mod owner;
mod publish;
mod run;

mod lists;

pub use config::ConfigSource;
pub use owner::{FIELD_MANAGER, TakeOver};
pub use publish::PublishOutcome;
pub use run::{Exporter, ExporterError, ExporterSettings, Metrics};

use koord_host::procfs::MemInfo;
use koord_host::{Root, numa, topology};
use koord_model::alignment::fingerprint;
use koord_model::export::{self, MachineTopology, Node, Zones};
use koord_rpc::grpc::{self, MESSAGE_LIMIT};
use koord_rpc::podresources::pod_resources_lister_client::PodResourcesListerClient;
use koord_rpc::podresources::{AllocatableResourcesRequest, ListPodResourcesRequest};
use std::path::Path;
use std::time::Duration;

/// Default socket of the kubelet's PodResources service.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// Maximum time for a response of the kubelet.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(10);

/// The kubelet's resource lists, and the zones and the fingerprint computed from them.
#[derive(Debug, Clone, PartialEq)]
pub struct PodResourcesSnapshot {
    /// A zone for each NUMA node, and the problems found in the lists.
    pub zones: Zones,
    /// Number of listed pods.
    pub pods: usize,
    /// Fingerprint of the set of listed pods.
    pub fingerprint: String,
}

/// Failure to read the kubelet's resource lists.
#[derive(Debug, thiserror::Error)]
#[error("{call} at {socket}: {why}")]
pub struct ListError {
    call: &'static str,
    socket: String,
    why: String,
}

/// Returns the machine's NUMA nodes. On a kernel without NUMA support, node 0 has all CPUs and all memory.
///
/// # Errors
/// Fails if a file of the kernel cannot be read or parsed.
pub fn machine(root: &Root) -> koord_host::Result<MachineTopology> {
    let nodes_found = numa::nodes(root)?;
    if nodes_found.is_empty() {
        let memory = MemInfo::read(root)?.map_or(0, |memory| memory.total);
        let node = Node {
            cpus: topology::online(root)?,
            memory: [("memory".to_owned(), memory)].into(),
            distances: [(0, 10)].into(),
        };
        return Ok([(0, node)].into());
    }
    let nodes = nodes_found.into_iter().filter_map(|node| {
        // NUMA masks hold 64 bits.
        let id = u8::try_from(node.id).ok().filter(|id| *id < 64)?;
        let pages = node.huge_pages.iter().map(|(size, count)| {
            let name = lists::huge_pages(*size);
            (name, size.saturating_mul(*count))
        });
        let node_distance =
            |(to, distance): (&u32, &u32)| Some((u8::try_from(*to).ok()?, *distance));
        let memory = [("memory".to_owned(), node.memory)];
        let node = Node {
            cpus: node.cpus,
            memory: memory.into_iter().chain(pages).collect(),
            distances: node.distances.iter().filter_map(node_distance).collect(),
        };
        Some((id, node))
    });
    Ok(nodes.collect())
}

/// Lists the allocatable resources of `machine` and the resources assigned to containers, from the kubelet
/// at `socket`.
///
/// # Errors
/// Fails if the kubelet returns an error or does not respond within ten seconds.
pub async fn list(
    machine: &MachineTopology,
    socket: &Path,
) -> Result<PodResourcesSnapshot, ListError> {
    let failed = |call: &'static str| {
        let socket = socket.display().to_string();
        move |why: String| ListError { call, socket, why }
    };
    let mut kubelet = PodResourcesListerClient::new(grpc::connect(socket))
        .max_decoding_message_size(MESSAGE_LIMIT);
    let call = "GetAllocatableResources";
    let request = kubelet.get_allocatable_resources(AllocatableResourcesRequest {});
    let allocatable = response(request).await.map_err(failed(call))?;
    let request = kubelet.list(ListPodResourcesRequest {});
    let listed = response(request).await.map_err(failed("List"))?;

    let mut problems = lists::Problems::default();
    let allocatable = lists::allocatable(&allocatable, &mut problems);
    let containers = listed.pod_resources.iter().flat_map(|pod| &pod.containers);
    let shares: Vec<export::Share> = containers
        .map(|container| lists::container_share(container, &mut problems))
        .collect();
    let mut zones = export::zones(machine, &allocatable, &shares);
    zones.problems.extend(problems.messages);
    zones.is_contradictory |= problems.is_contradictory;
    let pods = listed.pod_resources.iter();
    let prints = pods.map(|pod| fingerprint::pod(&pod.namespace, &pod.name));
    Ok(PodResourcesSnapshot {
        zones,
        pods: listed.pod_resources.len(),
        fingerprint: fingerprint::from_hashes(prints),
    })
}

async fn response<T>(
    request: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, String> {
    match tokio::time::timeout(KUBELET_TIMEOUT, request).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(format!("{:?}: {}", status.code(), status.message())),
        Err(_) => Err(format!("no answer within {KUBELET_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests;
