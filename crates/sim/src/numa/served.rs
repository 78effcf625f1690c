//! Input of an exporter on a simulated node: its kubelet's PodResources service and files, and `/sys` as the
//! kernel of such a machine would show it.

use super::{NodeKubelet, NodeKubelets};
use koord_model::alignment::{Policy, Scope};
use koord_model::cpuset::CpuSet;
use koord_model::export::{MachineTopology, Share};
use koord_model::numa::NumaMask;
use koord_rpc::lister::{self, PodResourcesSource};
use koord_rpc::podresources as api;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tonic::Status;

/// Simulated nodes whose kubelets serve PodResources. Each has a directory of its name below `dir`, with the
/// content of `/var/lib/kubelet`: `pod-resources/kubelet.sock`, `config.yaml` and `cpu_manager_state`; and
/// `sys`. Their allocated resources are reported by the exporter that reads the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kubelets {
    /// Parent of the directories.
    pub dir: PathBuf,
    /// The nodes.
    pub nodes: BTreeSet<String>,
}

impl Kubelets {
    /// Returns the directory of `node`'s kubelet, if it serves PodResources.
    #[must_use]
    pub fn dir_of(&self, node: &str) -> Option<PathBuf> {
        self.nodes.contains(node).then(|| self.dir.join(node))
    }

    /// Returns the PodResources socket of the kubelet whose directory is `dir`.
    #[must_use]
    pub fn socket(dir: &Path) -> PathBuf {
        lister::socket(dir)
    }
}

/// Starts to serve `node`, whose directory is `dir`, until `stop`.
///
/// # Errors
/// When a file cannot be written, or the socket cannot be opened.
pub(crate) fn serve(
    kubelets: &Arc<NodeKubelets>,
    node: &str,
    dir: &Path,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let facts = kubelets.with_kubelet(node, |kubelet_state| {
        let settings = kubelet_state.kubelet.settings();
        (
            kubelet_state.kubelet.exported(),
            settings.policy,
            settings.scope,
        )
    });
    let Some((machine, policy, scope)) = facts else {
        return Ok(());
    };
    sysfs(&machine, &dir.join("sys/devices/system/node"))?;
    fs::write(dir.join("config.yaml"), config(policy, scope))?;
    write_cpu_manager_state(kubelets, node, dir)?;
    let lister = Lister {
        kubelets: kubelets.clone(),
        node: node.to_owned(),
    };
    let server = lister::serve(lister, &Kubelets::socket(dir), stop)?;
    let node = node.to_owned();
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::warn!(node, %error, "PodResources server of a simulated kubelet failed");
        }
    });
    Ok(())
}

/// Writes `cpu_manager_state`, with the CPUs that are not exclusive to a container, into the kubelet's directory
/// `dir`. Nothing is written for a node without a simulated kubelet.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write_cpu_manager_state(
    kubelets: &NodeKubelets,
    node: &str,
    dir: &Path,
) -> io::Result<()> {
    let shared = kubelets.with_kubelet(node, |kubelet_state| kubelet_state.kubelet.shared_cpus());
    let Some(shared) = shared else { return Ok(()) };
    let text = json!({"policyName": "static", "defaultCpuSet": shared.to_string()});
    fs::create_dir_all(dir)?;
    let fresh = dir.join(".cpu_manager_state");
    fs::write(&fresh, text.to_string())?;
    fs::rename(fresh, dir.join("cpu_manager_state"))
}

fn config(policy: Policy, scope: Scope) -> String {
    let (policy, scope) = (policy.as_str(), scope.as_str());
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n\
         topologyManagerPolicy: {policy}\ntopologyManagerScope: {scope}\n"
    )
}

/// Writes the kernel's files of NUMA nodes.
fn sysfs(machine: &MachineTopology, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let online: CpuSet = machine.keys().map(|node| u32::from(*node)).collect();
    fs::write(dir.join("online"), format!("{online}\n"))?;
    for (number, node) in machine {
        let dir = dir.join(format!("node{number}"));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("cpulist"), format!("{}\n", node.cpus))?;
        let kib = node.memory.get("memory").copied().unwrap_or(0) >> 10;
        let memory = format!("Node {number} MemTotal: {kib} kB\nNode {number} MemFree: {kib} kB\n");
        fs::write(dir.join("meminfo"), memory)?;
        let distances: Vec<String> = node.distances.values().map(u32::to_string).collect();
        fs::write(dir.join("distance"), format!("{}\n", distances.join(" ")))?;
    }
    Ok(())
}

/// The PodResources service of one node's kubelet.
struct Lister {
    kubelets: Arc<NodeKubelets>,
    node: String,
}

impl Lister {
    fn read_kubelet<T>(&self, read: impl FnOnce(&NodeKubelet) -> T) -> Result<T, Status> {
        let answer = self.kubelets.with_kubelet(&self.node, read);
        answer.ok_or_else(|| Status::unavailable(format!("there is no kubelet of {}", self.node)))
    }
}

impl PodResourcesSource for Lister {
    fn pods(&self) -> Result<Vec<api::PodResources>, Status> {
        self.read_kubelet(|kubelet_state| {
            kubelet_state
                .pods
                .keys()
                .map(|uid| pod(kubelet_state, uid))
                .collect()
        })
    }

    fn allocatable(&self) -> Result<api::AllocatableResourcesResponse, Status> {
        let share = self.read_kubelet(|kubelet_state| kubelet_state.kubelet.allocatable())?;
        Ok(api::AllocatableResourcesResponse {
            cpu_ids: cpu_ids(&share),
            memory: memory(&share),
            devices: devices(&share),
        })
    }
}

fn pod(kubelet_state: &NodeKubelet, uid: &str) -> api::PodResources {
    let (namespace, name) = kubelet_state.pods.get(uid).cloned().unwrap_or_default();
    let containers = kubelet_state.kubelet.listed(uid).into_iter();
    let container = |(name, share): (String, Share)| api::ContainerResources {
        name,
        cpu_ids: cpu_ids(&share),
        memory: memory(&share),
        devices: devices(&share),
        ..api::ContainerResources::default()
    };
    api::PodResources {
        name,
        namespace,
        containers: containers.map(container).collect(),
        ..api::PodResources::default()
    }
}

fn cpu_ids(share: &Share) -> Vec<i64> {
    share.cpus.iter().map(i64::from).collect()
}

fn memory(share: &Share) -> Vec<api::ContainerMemory> {
    let block = |block: &koord_model::export::Block| api::ContainerMemory {
        memory_type: block.kind.clone(),
        size: block.size,
        topology: near(block.nodes),
    };
    share.memory.iter().map(block).collect()
}

fn devices(share: &Share) -> Vec<api::ContainerDevices> {
    let group = |group: &koord_model::export::Devices| api::ContainerDevices {
        resource_name: group.resource.clone(),
        device_ids: group.ids.clone(),
        topology: near(group.nodes),
    };
    share.devices.iter().map(group).collect()
}

fn near(nodes: NumaMask) -> Option<api::TopologyInfo> {
    let node = |id: u8| api::NumaNode { id: i64::from(id) };
    let nodes: Vec<_> = nodes.ids().map(node).collect();
    (!nodes.is_empty()).then_some(api::TopologyInfo { nodes })
}
