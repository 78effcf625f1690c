//! JSON views of the plugin's state for the inspection API and `explain`.

use super::book::Book;
use super::node::NodeSide;
use super::pod::{Allocation, Incoming};
use super::{Numa, allocate, quantity_of};
use koord_model::cpuset::{Cpu, CpuSet, ExclusivePolicy};
use koord_model::numa::NumaPolicyKind;
use koord_model::resources::{Amounts, ResourceTable};
use koord_scheduler::framework::{NotShown, View};
use koord_scheduler::state::PodInfo;
use serde_json::{Map, Value, json};

/// Returns one node's topology, allocations and free resources, in the form of upstream's API.
pub(super) fn node(plugin: &Numa, name: &str, view: View<'_>) -> Result<Value, NotShown> {
    let known = view.nodes.find(name).and_then(|node| plugin.known(node));
    let (book, side) = known.ok_or_else(|| NotShown::Failed(format!("node {name:?} not found")))?;
    if side.topology().all().is_empty() {
        let text = "invalid topology, please check the NodeResourceTopology object";
        return Err(NotShown::Failed(text.to_owned()));
    }
    let table = view.resources;
    let room = allocate::room(book, side);
    let [sockets, nodes, cores] = side.topology().counts();
    let all = side.topology().all();
    let mut pods: Vec<_> = book.pods.iter().collect();
    pods.sort_by(|a, b| a.0.cmp(b.0));
    let pods: Vec<Value> = pods
        .into_iter()
        .map(|(uid, given)| {
            let mut value = allocation(given, table);
            value["uid"] = json!(uid);
            value["namespace"] = json!(given.namespace);
            value["name"] = json!(given.name);
            value
        })
        .collect();
    let taken: Vec<(u8, Amounts)> = side
        .zones
        .iter()
        .map(|(id, _)| (*id, book.held.on_zone(side, *id)))
        .filter(|(_, amounts)| !amounts.is_empty())
        .collect();
    let mut value = json!({
        "name": name,
        "cpuTopology": {
            "numCPUs": all.len(),
            "numCores": cores,
            "numNodes": nodes,
            "numSockets": sockets,
            "cpuDetails": details(side, book, all, false),
        },
        "reservedCPUs": side.report.said.reserved.to_string(),
        "maxRefCount": 1,
        "numaTopologyPolicy": side.policy.map_or("", policy_name),
        "numaNodeResources": zones(&side.zones, table),
        "remainingNUMANodeResources": zones(room.zones(), table),
        "allocatedNUMANodeResources": zones(&taken, table),
        "availableCPUs": room.cpus().to_string(),
        "allocatedCPUs": details(side, book, &book.held.cpus, true),
        "allocatedPods": pods,
    });
    if let Some(kubelet) = &side.report.said.kubelet {
        value["policy"] = json!(kubelet);
    }
    if side.ratio > 1.0 {
        value["amplificationRatios"] = json!({"cpu": side.ratio});
    }
    Ok(value)
}

/// Returns a pod's parsed requests and its allocation; `None` if it has neither.
pub(super) fn explain(plugin: &Numa, pod: &PodInfo, view: View<'_>) -> Option<Value> {
    let mut value = Map::new();
    match Incoming::new(pod, plugin.settings.of(pod), view.resources) {
        Ok(Some(incoming)) => {
            if let Some(wish) = incoming.wish {
                value.insert("cpuBindPolicy".to_owned(), json!(wish.preferred.as_str()));
                value.insert("required".to_owned(), json!(wish.required.is_some()));
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
    let given = plugin.books.iter().find_map(|book| book.pods.get(&pod.uid));
    if let Some(given) = given {
        value.insert("allocated".to_owned(), allocation(given, view.resources));
    }
    (!value.is_empty()).then_some(Value::Object(value))
}

fn allocation(given: &Allocation, table: &ResourceTable) -> Value {
    let mut value = json!({});
    if !given.cpus.is_empty() {
        value["cpuset"] = json!(given.cpus.to_string());
    }
    if given.exclusive != ExclusivePolicy::None {
        value["cpuExclusivePolicy"] = json!(exclusive_name(given.exclusive));
    }
    if !given.zones.is_empty() {
        value["numaNodeResources"] = zones(&given.zones, table);
    }
    if let Some(reservation) = &given.reservation {
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

fn details(side: &NodeSide, book: &Book, cpus: &CpuSet, taken: bool) -> Value {
    let entry = |cpu: &Cpu| {
        let holders = book.pods.values().filter(|pod| pod.cpus.contains(cpu.id));
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
    let cpus = side.topology().members(cpus);
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
