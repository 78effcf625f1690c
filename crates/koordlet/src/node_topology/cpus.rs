//! Exclusive and reserved CPUs, and the shared pools that remain.

use crate::collect::machine::MachineInfo;
use crate::states::kubelet::Config;
use crate::states::{Malformed, NodeInfo, PodInfo};
use koord_api::extension::{CpuSharedPool, NodeReservation, PodCpuAlloc};
use koord_api::qos::QosClass;
use koord_api::resources;
use koord_host::CpuSet;
use koord_model::cpuset::{Cpu, Topology, packed};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Returns the machine's CPU topology in the form that the kubelet's CPU assignment rules use.
pub(super) fn topology(machine: &MachineInfo) -> Topology {
    Topology::new(machine.cpus.iter().map(|cpu| {
        let socket = i32::try_from(cpu.socket).unwrap_or(i32::MAX);
        Cpu::new(
            cpu.cpu,
            cpu.core,
            socket,
            cpu.node.try_into().unwrap_or(u8::MAX),
        )
    }))
}

/// Returns the CPUs that cover `milli` milli-cores, in the kubelet's order of choice. `None` if the machine
/// has too few CPUs.
fn choose_cpus(topology: &Topology, milli: i64) -> Option<CpuSet> {
    let count =
        usize::try_from(milli.max(0).div_euclid(1000) + i64::from(milli % 1000 > 0)).ok()?;
    packed(topology, topology.all(), count)
}

/// Returns the CPUs that a kubelet with a static CPU manager assigns to no container.
///
/// # Errors
/// Fails if such a kubelet would not start with this configuration, or if it does not fit the machine.
pub(super) fn kubelet_reserved(topology: &Topology, config: &Config) -> Result<CpuSet, Malformed> {
    let listed = &config.reserved_cpus;
    let malformed = |field: &str, value: String, why: &str| {
        Malformed::new(format!("kubeletconfig.{field}"), value, why)
    };
    if !listed.is_empty() {
        if listed.iter().all(|cpu| topology.all().contains(cpu)) {
            return Ok(listed.clone());
        }
        let why = "names CPUs that are not online";
        return Err(malformed("reservedSystemCPUs", listed.to_string(), why));
    }
    let milli = config.reserved_milli;
    let value = || format!("{milli}m");
    if milli <= 0 {
        let why = "cpu of kubeReserved and systemReserved is nothing, which a static CPU manager \
                   does not start with";
        return Err(malformed("kubeReserved", value(), why));
    }
    let why = "cpu of kubeReserved and systemReserved is more than the machine has";
    choose_cpus(topology, milli).ok_or_else(|| malformed("kubeReserved", value(), why))
}

/// Returns the Node's reservation annotation with explicit CPUs, and these CPUs.
pub(super) fn reservation(topology: &Topology, node: &NodeInfo) -> (NodeReservation, CpuSet) {
    let mut annotation = node.reservation.annotation.clone();
    let cpus = if annotation.reserved_cpus.is_empty() {
        let cpu = annotation.resources.get(resources::CPU);
        let milli = cpu.map_or(0, koord_api::Quantity::milli_value);
        choose_cpus(topology, milli).unwrap_or_default()
    } else {
        node.reservation.cpus.clone()
    };
    annotation.reserved_cpus = cpus.to_string();
    (annotation, cpus)
}

/// The kubelet's file `cpu_manager_state`.
#[derive(Debug, Deserialize)]
struct CpuManagerState {
    /// CPU lists by pod UID and container name.
    #[serde(default)]
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

/// CPUs that the kubelet's CPU manager has assigned exclusively.
#[derive(Debug, Default)]
pub(super) struct ExclusiveCpus {
    /// Assignments by pod, sorted by UID.
    pub(super) pods: Vec<PodCpuAlloc>,
    /// Union of all assigned CPUs.
    pub(super) cpus: CpuSet,
    /// Malformed entries, which are skipped.
    pub(super) malformed: Vec<Malformed>,
}

/// Name of the file below the kubelet's directory.
pub(super) const STATE_FILE: &str = "cpu_manager_state";

impl ExclusiveCpus {
    /// Reads the kubelet's file. Pods with CPUs assigned by the scheduler and pods that always use shared
    /// CPUs are skipped, because koordlet sets their CPUs.
    ///
    /// # Errors
    /// Fails if the text is not the kubelet's JSON.
    pub(super) fn read(text: &str, pods: &[PodInfo]) -> Result<Self, serde_json::Error> {
        let mut exclusive = Self::default();
        if text.trim().is_empty() {
            return Ok(exclusive);
        }
        let state: CpuManagerState = serde_json::from_str(text)?;
        let pods: BTreeMap<&str, &PodInfo> =
            pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
        for (uid, containers) in state.entries.unwrap_or_default() {
            let pod = pods.get(uid.as_str());
            if pod.is_some_and(|pod| is_set_by_koordlet(pod)) {
                continue;
            }
            let mut cpus = CpuSet::new();
            for (container, list) in &containers {
                match list.parse() {
                    Ok(more) => cpus = cpus.union(&more),
                    Err(error) => exclusive.malformed.push(Malformed::new(
                        format!("{STATE_FILE}: entries.{uid}.{container}"),
                        list,
                        &koord_host::Malformed::from(error),
                    )),
                }
            }
            if cpus.is_empty() {
                continue;
            }
            exclusive.cpus = exclusive.cpus.union(&cpus);
            exclusive.pods.push(PodCpuAlloc {
                namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
                name: pod.map(|pod| pod.name.clone()).unwrap_or_default(),
                uid,
                cpuset: cpus.to_string(),
                managed_by_kubelet: true,
            });
        }
        Ok(exclusive)
    }
}

fn is_set_by_koordlet(pod: &PodInfo) -> bool {
    matches!(pod.qos, QosClass::Ls | QosClass::Be)
        || pod.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty())
}

/// Returns the shared pools of services and of batch work. The former lack the exclusive CPUs of all pods,
/// the latter only those of LSE pods.
pub(super) fn pools(
    machine: &MachineInfo,
    exclusive: &CpuSet,
    pods: &[PodInfo],
    reserved: &CpuSet,
) -> [Vec<CpuSharedPool>; 2] {
    let mut services = exclusive.clone();
    let mut batch = exclusive.clone();
    // Terminated pods use no CPUs.
    for pod in pods.iter().filter(|pod| pod.is_active()) {
        let Some(cpus) = &pod.cpus else { continue };
        services = services.union(cpus);
        if pod.qos == QosClass::Lse {
            batch = batch.union(cpus);
        }
    }
    [services, batch].map(|pod_cpus| pool(machine, &pod_cpus, reserved))
}

/// Returns the pool of each NUMA node. A node whose CPUs are all taken by pods has no pool; one whose
/// remaining CPUs are reserved has an empty pool.
fn pool(machine: &MachineInfo, taken: &CpuSet, reserved: &CpuSet) -> Vec<CpuSharedPool> {
    let mut by_node: BTreeMap<u32, (u32, CpuSet)> = BTreeMap::new();
    for cpu in machine.cpus.iter().filter(|cpu| !taken.contains(cpu.cpu)) {
        let pool = by_node.entry(cpu.node);
        let (_, cpus) = pool.or_insert_with(|| (cpu.socket, CpuSet::new()));
        cpus.insert(cpu.cpu);
    }
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let mut pools: Vec<_> = by_node
        .into_iter()
        .map(|(node, (socket, cpus))| CpuSharedPool {
            socket: number(socket),
            node: number(node),
            cpuset: cpus.difference(reserved).to_string(),
        })
        .collect();
    pools.sort_by_key(|pool| (pool.socket, pool.node));
    pools
}
