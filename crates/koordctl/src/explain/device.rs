//! Explains the devices of a node: what is free on each, and which pods use them.

use super::outline::Outline;
use super::{full_name, is_terminal, node_name};
use crate::check::outcome::join_names;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::annotations;
use koord_api::extension::{self, DeviceAllocation, DeviceAllocations, ReservationAllocated};
use koord_api::scheduling::{Device, DeviceInfo, DeviceType, Reservation, ReservationPhase};
use koord_model::device::{Inventory, Units};
use std::collections::BTreeMap;

/// Identity of a device: its type and its minor number.
type DeviceKey = (String, i32);

/// Use of a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct DeviceUse {
    used: Units,
    virtual_functions: usize,
    pods: Vec<String>,
}

/// Returns what the annotation of an object allocates. An invalid one is a problem, and counts as missing.
fn allocations(
    metadata: &ObjectMeta,
    holder: &str,
    outline: &mut Outline,
) -> Vec<(DeviceKey, DeviceAllocation)> {
    let key = annotations::DEVICE_ALLOCATED;
    match extension::read::<DeviceAllocations>(metadata.annotations.as_ref(), key) {
        Ok(allocations) => {
            let by_type = allocations.into_iter().flatten();
            let keyed = by_type.flat_map(|(kind, devices)| {
                devices
                    .into_iter()
                    .map(move |device| ((kind.clone(), device.minor), device))
            });
            keyed.collect()
        }
        Err(error) => {
            outline.add_problem(format!("{holder}: {error}"));
            Vec::new()
        }
    }
}

/// Sums up what pods of the node use, and what its reservations hold for pods to come.
fn allocated(
    pods: &[&Pod],
    reservations: &[&Reservation],
    outline: &mut Outline,
) -> BTreeMap<DeviceKey, DeviceUse> {
    let mut uses: BTreeMap<DeviceKey, DeviceUse> = BTreeMap::new();
    // What pods use of each reservation, by name.
    let mut reserved: BTreeMap<String, BTreeMap<DeviceKey, Units>> = BTreeMap::new();
    for pod in pods {
        let name = full_name(&pod.metadata);
        let key = annotations::RESERVATION_ALLOCATED;
        let annotations = pod.metadata.annotations.as_ref();
        let reservation = extension::read::<ReservationAllocated>(annotations, key);
        let reservation = reservation.ok().flatten().map(|it| it.name);
        for (key, device) in allocations(&pod.metadata, &format!("pod {name}"), outline) {
            let units = Units::from_list(&device.resources);
            if let Some(reservation) = &reservation {
                let of_reservation = reserved.entry(reservation.clone()).or_default();
                let sum = of_reservation.entry(key.clone()).or_default();
                *sum = sum.plus(&units);
            }
            let entry = uses.entry(key).or_default();
            entry.used = entry.used.plus(&units);
            entry.virtual_functions += device.extension.map_or(0, |it| it.vfs.len());
            entry.pods.push(format!("{name} ({})", amounts(&units)));
        }
    }
    for reservation in reservations {
        let name = full_name(&reservation.metadata);
        let used = reserved.remove(&name).unwrap_or_default();
        let holder = format!("reservation {name}");
        for (key, device) in allocations(&reservation.metadata, &holder, outline) {
            let held = Units::from_list(&device.resources);
            let held = held.minus(&used.get(&key).copied().unwrap_or_default());
            if !held.is_zero() {
                let entry = uses.entry(key).or_default();
                entry.used = entry.used.plus(&held);
                entry.pods.push(format!("{holder} ({})", amounts(&held)));
            }
        }
    }
    uses
}

/// Returns the resource's name without the group `koordinator.sh`.
fn short(resource: &str) -> &str {
    resource.trim_start_matches("koordinator.sh/")
}

/// Formats amounts as `gpu-core 50, gpu-memory 8Gi`.
fn amounts(units: &Units) -> String {
    let list = units.to_list();
    let amounts = list.iter().filter(|(_, amount)| !amount.is_zero());
    let amounts = amounts.map(|(resource, amount)| format!("{} {amount}", short(resource)));
    amounts.collect::<Vec<_>>().join(", ")
}

/// Formats the free part of a device as `gpu-core 50 of 100`.
fn free_amounts(info: &DeviceInfo, device: &DeviceUse) -> String {
    let total = Units::from_list(&info.resources);
    let (total_list, free) = (total.to_list(), total.minus(&device.used).to_list());
    let mut parts: Vec<String> = total_list
        .iter()
        .filter_map(|(resource, total)| {
            Some(format!(
                "{} {} of {total}",
                short(resource),
                free.get(resource)?
            ))
        })
        .collect();
    let functions: usize = info.vf_groups.iter().map(|group| group.vfs.len()).sum();
    if functions > 0 {
        let free = functions.saturating_sub(device.virtual_functions);
        parts.push(format!("virtual functions {free} of {functions}"));
    }
    parts.join(", ")
}

/// Explains the devices of a node. `node` is the node if it can be read; pods and reservations of others are
/// ignored.
pub(super) fn explain(
    device: &Device,
    node: Option<&Node>,
    pods: &[Pod],
    reservations: &[Reservation],
) -> Outline {
    let name = device.metadata.name.as_deref().unwrap_or_default();
    let devices = &device.spec.devices;
    let mut by_type: BTreeMap<&str, usize> = BTreeMap::new();
    for info in devices {
        *by_type.entry(kind(info)).or_default() += 1;
    }
    let counts: Vec<String> = by_type
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let counts = match counts.as_slice() {
        [] => "none".to_owned(),
        counts => counts.join(", "),
    };
    let mut outline = Outline {
        title: format!("devices of node {name}: {counts}"),
        ..Outline::default()
    };
    let is_here = |pod: &&Pod| node_name(pod) == name && !is_terminal(pod);
    let pods: Vec<&Pod> = pods.iter().filter(is_here).collect();
    let holds = |reservation: &&Reservation| {
        let status = reservation.status.as_ref();
        status.is_some_and(|status| {
            status.node_name == name && status.phase == Some(ReservationPhase::Available)
        })
    };
    let reservations: Vec<&Reservation> = reservations.iter().filter(holds).collect();
    let mut uses = allocated(&pods, &reservations, &mut outline);
    let (_, problems) = Inventory::new(device);
    outline.problems.extend(problems);
    let mut rows = Vec::new();
    for info in devices {
        let minor = info.minor.unwrap_or_default();
        let used = uses
            .remove(&(kind(info).to_owned(), minor))
            .unwrap_or_default();
        let health = if info.health { "healthy" } else { "unhealthy" };
        let numa = info
            .topology
            .as_ref()
            .map_or(-1, |topology| topology.node_id);
        rows.push(vec![
            kind(info).to_owned(),
            minor.to_string(),
            health.to_owned(),
            if numa < 0 {
                "-".to_owned()
            } else {
                numa.to_string()
            },
            free_amounts(info, &used),
            if used.pods.is_empty() {
                "-".to_owned()
            } else {
                join_names(&used.pods)
            },
        ]);
        add_device_problems(info, &used, &mut outline);
    }
    outline.add_table(
        "devices",
        &["type", "minor", "health", "NUMA", "free", "used by"],
        rows,
    );
    for ((kind, minor), used) in uses {
        outline.add_problem(format!(
            "{kind} {minor} is allocated and not in the Device: {}",
            join_names(&used.pods)
        ));
    }
    if let Some(node) = node {
        add_node_problems(devices, node, &mut outline);
    }
    outline
}

fn kind(info: &DeviceInfo) -> &str {
    info.type_.as_ref().map_or("", DeviceType::as_str)
}

fn add_device_problems(info: &DeviceInfo, used: &DeviceUse, outline: &mut Outline) {
    let minor = info.minor.unwrap_or_default();
    if !info.health {
        let reasons = info.conditions.iter().filter(|it| it.status != "True");
        let reasons: Vec<&str> = reasons.map(|it| it.message.as_str()).collect();
        let reason = match reasons.as_slice() {
            [] => "koordlet reports no reason".to_owned(),
            reasons => reasons.join("; "),
        };
        outline.add_problem(format!(
            "{} {minor} is not allocated, it is unhealthy: {reason}",
            kind(info)
        ));
    }
    if !used.used.fits(&Units::from_list(&info.resources)) {
        outline.add_problem(format!(
            "{} {minor} is allocated more than once: {}",
            kind(info),
            join_names(&used.pods)
        ));
    }
}

/// Adds resources that a healthy device has and the node does not offer.
fn add_node_problems(devices: &[DeviceInfo], node: &Node, outline: &mut Outline) {
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let healthy = devices.iter().filter(|info| info.health);
    let resources = healthy.flat_map(|info| Units::from_list(&info.resources).to_list());
    let mut missing: Vec<String> = resources
        .map(|(resource, _)| resource)
        .filter(|resource| allocatable.is_none_or(|all| !all.contains_key(resource)))
        .collect();
    missing.sort();
    missing.dedup();
    if !missing.is_empty() {
        outline.add_problem(format!(
            "the node does not offer {}: koord-manager writes them",
            join_names(&missing)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn gpu(minor: i32, more: Value) -> Value {
        let mut info = json!({"type": "gpu", "minor": minor, "health": true,
            "topology": {"socketID": 0, "nodeID": 1, "pcieID": "0"},
            "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi"}});
        for (key, value) in more.as_object().unwrap() {
            info[key] = value.clone();
        }
        info
    }

    fn device(devices: Value) -> Device {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"devices": devices}}))
            .unwrap()
    }

    fn pod(name: &str, node: &str, allocated: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "d",
                "annotations": {annotations::DEVICE_ALLOCATED: allocated}},
            "spec": {"containers": [], "nodeName": node}, "status": {"phase": "Running"}}))
        .unwrap()
    }

    fn grant(minor: i32, core: &str, memory: &str) -> String {
        json!({"gpu": [{"minor": minor, "resources":
            {"koordinator.sh/gpu-core": core, "koordinator.sh/gpu-memory": memory}}]})
        .to_string()
    }

    #[test]
    fn free_part_and_pods_of_each_device_are_listed() {
        let functions = json!([{"vfs": [{"minor": 0}, {"minor": 1}]}]);
        let rdma = json!({"type": "rdma", "minor": 0, "health": true, "vfGroups": functions,
            "resources": {"koordinator.sh/rdma": "100"}});
        let device = device(json!([gpu(0, json!({})), gpu(1, json!({})), rdma]));
        let virtual_function = json!({"rdma": [{"minor": 0, "resources": {"koordinator.sh/rdma": "1"},
            "extension": {"vfs": [{"minor": 1}]}}]});
        let pods = [
            pod("a", "n", &grant(0, "30", "4Gi")),
            pod("b", "n", &grant(0, "20", "4Gi")),
            pod("c", "n", &virtual_function.to_string()),
            pod("elsewhere", "m", &grant(1, "100", "16Gi")),
        ];
        assert_eq!(
            explain(&device, None, &pods, &[]).render(),
            "\
devices of node n: 2 gpu, 1 rdma
  devices:
    type  minor  health   NUMA  free                                          used by
    gpu   0      healthy  1     gpu-core 50 of 100, gpu-memory 8Gi of 16Gi    d/a (gpu-core 30, gpu-memory 4Gi), d/b (gpu-core 20, gpu-memory 4Gi)
    gpu   1      healthy  1     gpu-core 100 of 100, gpu-memory 16Gi of 16Gi  -
    rdma  0      healthy  -     rdma 99 of 100, virtual functions 1 of 2      d/c (rdma 1)
"
        );
    }

    #[test]
    fn reservation_holds_what_its_pods_do_not_use() {
        let device = device(json!([gpu(0, json!({}))]));
        let reservation: Reservation = serde_json::from_value(json!({
            "metadata": {"name": "r", "annotations":
                {annotations::DEVICE_ALLOCATED: grant(0, "60", "8Gi")}},
            "spec": {"template": {}, "owners": []},
            "status": {"phase": "Available", "nodeName": "n"}}))
        .unwrap();
        let mut owner = pod("a", "n", &grant(0, "20", "8Gi"));
        let annotations = owner.metadata.annotations.as_mut().unwrap();
        let allocated = json!({"name": "r"}).to_string();
        annotations.insert(annotations::RESERVATION_ALLOCATED.to_owned(), allocated);
        let row = |pods: &[Pod], reservation: &Reservation| {
            let outline = explain(&device, None, pods, std::slice::from_ref(reservation));
            outline.tables[0].rows[0][4..].to_vec()
        };
        assert_eq!(
            row(&[owner], &reservation),
            [
                "gpu-core 40 of 100, gpu-memory 8Gi of 16Gi",
                "d/a (gpu-core 20, gpu-memory 8Gi), reservation r (gpu-core 40)"
            ]
        );
        let mut elsewhere = reservation;
        elsewhere.status.as_mut().unwrap().node_name = "m".to_owned();
        assert_eq!(row(&[], &elsewhere)[1], "-");
    }

    #[test]
    fn problems_name_device_and_pods() {
        let condition = json!([{"type": "Healthy", "status": "False", "reason": "Xid", "message": "Xid 79",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"},
            "status": {"allocatable": {"koordinator.sh/gpu-core": "100"}}}))
        .unwrap();
        for (device, pod, expected) in [
            (
                device(json!([gpu(
                    0,
                    json!({"health": false, "conditions": condition})
                )])),
                pod("a", "n", ""),
                "gpu 0 is not allocated, it is unhealthy: Xid 79",
            ),
            (
                device(json!([gpu(
                    0,
                    json!({"resources": {"koordinator.sh/gpu-core": "100"}})
                )])),
                pod("a", "n", &grant(0, "101", "0")),
                "gpu 0 is allocated more than once: d/a (gpu-core 101)",
            ),
            (
                device(json!([])),
                pod("a", "n", &grant(3, "1", "0")),
                "gpu 3 is allocated and not in the Device: d/a (gpu-core 1)",
            ),
            (
                device(json!([gpu(0, json!({}))])),
                pod("a", "n", ""),
                "the node does not offer koordinator.sh/gpu-memory: koord-manager writes them",
            ),
        ] {
            let problems = explain(&device, Some(&node), &[pod], &[]).problems;
            assert_eq!(problems, [expected]);
        }
        let broken = explain(&device(json!([])), None, &[pod("a", "n", "{")], &[]).problems;
        assert!(broken[0].starts_with("pod d/a: annotation"), "{broken:?}");
    }
}
