//! CPUs that are kept back or given away, and the pools that are left.

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

/// Returns the machine as the kubelet's rules for choosing CPUs take it.
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

/// As many CPUs as `milli` milli-cores touch, chosen as the kubelet chooses. `None` if the machine has
/// not as many.
fn choose_cpus(topology: &Topology, milli: i64) -> Option<CpuSet> {
    let count =
        usize::try_from(milli.max(0).div_euclid(1000) + i64::from(milli % 1000 > 0)).ok()?;
    packed(topology, topology.all(), count)
}

/// Returns the CPUs that a kubelet with a static CPU manager gives to no container.
///
/// # Errors
/// Why such a kubelet would not start, or that what it says does not fit the machine.
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

/// Returns the reservation of the Node, with the CPUs that it comes to.
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

/// The file `cpu_manager_state` of the kubelet.
#[derive(Debug, Deserialize)]
struct CpuManagerState {
    /// CPUs by container by UID of the pod.
    #[serde(default)]
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

/// What the kubelet's CPU manager gave away.
#[derive(Debug, Default)]
pub(super) struct ExclusiveCpus {
    /// By pod, sorted by UID.
    pub(super) pods: Vec<PodCpuAlloc>,
    /// Together.
    pub(super) cpus: CpuSet,
    /// What was not understood.
    pub(super) malformed: Vec<Malformed>,
}

/// The file's name below the kubelet's directory.
pub(super) const STATE_FILE: &str = "cpu_manager_state";

impl ExclusiveCpus {
    /// Reads the kubelet's file. Pods whose CPUs are the scheduler's, or who share CPUs whatever the
    /// kubelet thinks, are left out: koordlet sets the CPUs of these.
    ///
    /// # Errors
    /// It is not the kubelet's JSON.
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

/// Returns the pools of services and of batch work: the former without the CPUs of all pods that have some of
/// their own, the latter only without those of LSE pods.
pub(super) fn pools(
    machine: &MachineInfo,
    exclusive: &CpuSet,
    pods: &[PodInfo],
    reserved: &CpuSet,
) -> [Vec<CpuSharedPool>; 2] {
    let mut services = exclusive.clone();
    let mut batch = exclusive.clone();
    // What ended runs nowhere.
    for pod in pods.iter().filter(|pod| pod.is_active()) {
        let Some(cpus) = &pod.cpus else { continue };
        services = services.union(cpus);
        if pod.qos == QosClass::Lse {
            batch = batch.union(cpus);
        }
    }
    [services, batch].map(|taken| pool(machine, &taken, reserved))
}

/// Returns a NUMA node without any CPU left by pods has no pool; one that the rest is kept back from has an
/// empty one.
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
