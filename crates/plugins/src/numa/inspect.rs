//! JSON views of the plugin's state for the inspection API and `explain`.

use super::node_allocations::NodeAllocations;
use super::node_topology::NodeTopology;
use super::pod::{Allocation, NumaPod};
use super::{Numa, allocate, quantity_of};
use koord_model::cpuset::{Cpu, CpuSet, ExclusivePolicy};
use koord_model::numa::NumaPolicyKind;
use koord_model::resources::{Amounts, ResourceTable};
use koord_scheduler::framework::{NotShown, View};
use koord_scheduler::state::PodInfo;
use serde_json::{Map, Value, json};

/// Returns one node's topology, allocations and free resources, in the form of upstream's API.
pub(super) fn node(plugin: &Numa, name: &str, view: View<'_>) -> Result<Value, NotShown> {
    let node = view.nodes.find(name).and_then(|node| plugin.node(node));
    let (node_allocations, node_topology) =
        node.ok_or_else(|| NotShown::Failed(format!("node {name:?} not found")))?;
    if node_topology.topology().all().is_empty() {
        let text = "invalid topology, please check the NodeResourceTopology object";
        return Err(NotShown::Failed(text.to_owned()));
    }
    let table = view.resources;
    let free = allocate::free_resources(node_allocations, node_topology);
    let [sockets, nodes, cores] = node_topology.topology().counts();
    let all = node_topology.topology().all();
    let mut pods: Vec<_> = node_allocations.pods.iter().collect();
    pods.sort_by(|a, b| a.0.cmp(b.0));
    let pods: Vec<Value> = pods
        .into_iter()
        .map(|(uid, allocation)| {
            let mut value = allocation_value(allocation, table);
            value["uid"] = json!(uid);
            value["namespace"] = json!(allocation.namespace);
            value["name"] = json!(allocation.name);
            value
        })
        .collect();
    let allocated: Vec<(u8, Amounts)> = node_topology
        .zones
        .iter()
        .map(|(id, _)| {
            (
                *id,
                node_allocations.allocated.zone_amounts(node_topology, *id),
            )
        })
        .filter(|(_, amounts)| !amounts.is_empty())
        .collect();
    let mut value = json!({
        "name": name,
        "cpuTopology": {
            "numCPUs": all.len(),
            "numCores": cores,
            "numNodes": nodes,
            "numSockets": sockets,
            "cpuDetails": details(node_topology, node_allocations, all, false),
        },
        "reservedCPUs": node_topology.report.annotations.reserved.to_string(),
        "maxRefCount": 1,
        "numaTopologyPolicy": node_topology.policy.map_or("", policy_name),
        "numaNodeResources": zones(&node_topology.zones, table),
        "remainingNUMANodeResources": zones(free.zones(), table),
        "allocatedNUMANodeResources": zones(&allocated, table),
        "availableCPUs": free.cpus().to_string(),
        "allocatedCPUs": details(node_topology, node_allocations, &node_allocations.allocated.cpus, true),
        "allocatedPods": pods,
    });
    if let Some(kubelet) = &node_topology.report.annotations.kubelet {
        value["policy"] = json!(kubelet);
    }
    if node_topology.ratio > 1.0 {
        value["amplificationRatios"] = json!({"cpu": node_topology.ratio});
    }
    Ok(value)
}

/// Returns a pod's parsed requests and its allocation; `None` if it has neither.
pub(super) fn explain(plugin: &Numa, pod: &PodInfo, view: View<'_>) -> Option<Value> {
    let mut value = Map::new();
    match NumaPod::new(pod, plugin.settings.for_pod(pod), view.resources) {
        Ok(Some(incoming)) => {
            if let Some(cpu_request) = incoming.cpu_request {
                value.insert(
                    "cpuBindPolicy".to_owned(),
                    json!(cpu_request.preferred.as_str()),
                );
                value.insert("required".to_owned(), json!(cpu_request.required.is_some()));
                value.insert("cpus".to_owned(), json!(incoming.cpus()));
            }
            if let Some(policy) = incoming.policy {
                value.insert("numaTopologyPolicy".to_owned(), json!(policy_name(policy)));
            }
        }
        Ok(None) => {}
        Err(message) => {
            value.insert("error".to_owned(), json!(message));
        }
    }
    let allocation = plugin
        .allocations
        .iter()
        .find_map(|node_allocations| node_allocations.pods.get(&pod.uid));
    if let Some(allocation) = allocation {
        value.insert(
            "allocated".to_owned(),
            allocation_value(allocation, view.resources),
        );
    }
    (!value.is_empty()).then_some(Value::Object(value))
}

fn allocation_value(allocation: &Allocation, table: &ResourceTable) -> Value {
    let mut value = json!({});
    if !allocation.cpus.is_empty() {
        value["cpuset"] = json!(allocation.cpus.to_string());
    }
    if allocation.exclusive != ExclusivePolicy::None {
        value["cpuExclusivePolicy"] = json!(exclusive_name(allocation.exclusive));
    }
    if !allocation.zones.is_empty() {
        value["numaNodeResources"] = zones(&allocation.zones, table);
    }
    if let Some(reservation) = &allocation.reservation {
        value["reservation"] = json!(reservation);
    }
    value
}

fn zones(zones: &[(u8, Amounts)], table: &ResourceTable) -> Value {
    let list = zones.iter().map(|(id, amounts)| {
        let resources: Map<String, Value> = amounts
            .iter()
            .map(|(id, amount)| {
                let name = table.name(id);
                let quantity = quantity_of(id, amount, &name, None);
                (name.to_string(), json!(quantity))
            })
            .collect();
        json!({"node": id, "resources": resources})
    });
    list.collect()
}

/// Returns the details of `cpus` by id; with reference counts if `taken`.
fn details(
    node_topology: &NodeTopology,
    node_allocations: &NodeAllocations,
    cpus: &CpuSet,
    taken: bool,
) -> Value {
    let entry = |cpu: &Cpu| {
        let holders = node_allocations
            .pods
            .values()
            .filter(|pod| pod.cpus.contains(cpu.id));
        let mut value = json!({
            "cpuID": cpu.id,
            "coreID": (cpu.core >> 32 << 16) | (cpu.core & 0xffff_ffff),
            "nodeID": cpu.node,
            "socketID": cpu.socket,
            "refCount": 0,
            "exclusivePolicy": "",
        });
        if taken {
            let exclusive = holders.clone().map(|pod| exclusive_name(pod.exclusive));
            value["refCount"] = json!(holders.count());
            value["exclusivePolicy"] = json!(exclusive.last().unwrap_or_default());
        }
        (cpu.id.to_string(), value)
    };
    let cpus = node_topology.topology().members(cpus);
    Value::Object(cpus.map(entry).collect())
}

fn policy_name(policy: NumaPolicyKind) -> &'static str {
    match policy {
        NumaPolicyKind::BestEffort => "BestEffort",
        NumaPolicyKind::Restricted => "Restricted",
        NumaPolicyKind::SingleNumaNode => "SingleNUMANode",
    }
}

fn exclusive_name(policy: ExclusivePolicy) -> &'static str {
    match policy {
        ExclusivePolicy::None => "None",
        ExclusivePolicy::PCpuLevel => "PCPULevel",
        ExclusivePolicy::NumaNodeLevel => "NUMANodeLevel",
    }
}
