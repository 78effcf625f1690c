//! What must hold of the API's objects, whoever wrote them.

use super::world::{name_of, node_of};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::{ElasticQuota, Reservation};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const QUOTA: &str = "quota.scheduling.koordinator.sh/name";
const CPUS: &str = "scheduling.koordinator.sh/resource-status";
const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
const ALLOCATED: &str = "scheduling.koordinator.sh/reservation-allocated";

fn milli(pod: &Pod, resource: &str) -> i64 {
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    containers
        .filter_map(|c| c.resources.as_ref()?.requests.as_ref()?.get(resource))
        .map(|quantity| koord_api::quantity::parse(quantity).unwrap().milli_value())
        .sum()
}

fn annotation(pod: &Pod, key: &str) -> Option<Value> {
    let text = pod.metadata.annotations.as_ref()?.get(key)?;
    Some(serde_json::from_str(text).unwrap())
}

fn quantity(value: &Value) -> i64 {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    let parsed: koord_api::quantity::Quantity = text.parse().unwrap();
    parsed.milli_value()
}

/// The owners of a reservation, by its uid.
fn owners<'a>(pods: &'a [&'a Pod], uid: &'a str) -> impl Iterator<Item = &'a Pod> {
    let owns = move |pod: &&&Pod| {
        annotation(pod, ALLOCATED).is_some_and(|allocated| allocated["uid"] == *uid)
    };
    pods.iter().filter(owns).copied()
}

fn as_json<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).unwrap()
}

/// What a node has of the resources that are counted, in thousandths.
const ROOM: [(&str, i64); 6] = [
    ("cpu", 16_000),
    ("memory", 64 << 30),
    ("kubernetes.io/batch-cpu", 4_000),
    ("kubernetes.io/batch-memory", 4 << 30),
    ("koordinator.sh/gpu-core", 200),
    ("koordinator.sh/gpu-memory-ratio", 200),
];

/// Pods and what reservations hold beside their owners fit their nodes.
pub(super) fn capacity(bound: &[&Pod], reservations: &[Reservation], what: &str) {
    for (resource, room) in ROOM {
        let room = if resource == "cpu" { room } else { room * 1000 };
        let used = used(bound, reservations, resource, what);
        for (node, used) in used {
            assert!(
                used <= room,
                "{what}: {node} has {used}m of {room}m {resource}"
            );
        }
    }
}

fn used(
    bound: &[&Pod],
    reservations: &[Reservation],
    resource: &str,
    what: &str,
) -> BTreeMap<String, i64> {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for pod in bound {
        *used.entry(node_of(pod).unwrap()).or_default() += milli(pod, resource);
    }
    for reservation in reservations {
        let object = as_json(reservation);
        let held = &object["status"]["allocatable"][resource];
        if object["status"]["phase"] != "Available" || held.is_null() {
            continue;
        }
        let uid = reservation.metadata.uid.clone().unwrap();
        let taken: i64 = owners(bound, &uid).map(|pod| milli(pod, resource)).sum();
        let held = quantity(held);
        // Other policies let owners take the rest of what they need from the node.
        let closed = object["spec"]["allocatePolicy"] == "Restricted";
        assert!(
            !closed || taken <= held,
            "{what}: owners take {taken} {resource} of {held}: {object}"
        );
        let node = object["status"]["nodeName"].as_str().unwrap().to_owned();
        for pod in owners(bound, &uid) {
            assert_eq!(node_of(pod).unwrap(), node, "{what}: {}", name_of(pod));
        }
        *used.entry(node).or_default() += (held - taken).max(0);
    }
    used
}

pub(super) fn cpus(bound: &[&Pod], what: &str) {
    let mut owned: BTreeMap<(String, u32), String> = BTreeMap::new();
    for pod in bound.iter().filter(|pod| milli(pod, "cpu") == 4000) {
        let name = name_of(pod);
        let status = annotation(pod, CPUS).unwrap_or_else(|| panic!("{what}: {name} has no CPUs"));
        let list = status["cpuset"].as_str().unwrap();
        let ids = koord_api::extension::parse_cpu_list(list).unwrap();
        assert_eq!(ids.len(), 4, "{what}: {name}: {list}");
        for id in ids {
            let before = owned.insert((node_of(pod).unwrap(), id), name.clone());
            assert_eq!(before, None, "{what}: CPU {id} is also {name}'s");
        }
    }
}

pub(super) fn gpus(bound: &[&Pod], what: &str) {
    let mut used: BTreeMap<(String, i64, &str), i64> = BTreeMap::new();
    for pod in bound {
        if milli(pod, "koordinator.sh/gpu-core") == 0 {
            continue;
        }
        let name = name_of(pod);
        let devices = annotation(pod, DEVICES);
        let devices = devices.unwrap_or_else(|| panic!("{what}: {name} has no GPU"));
        for gpu in devices["gpu"].as_array().unwrap() {
            for share in ["koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"] {
                let at = (node_of(pod).unwrap(), gpu["minor"].as_i64().unwrap(), share);
                *used.entry(at).or_default() += quantity(&gpu["resources"][share]);
            }
        }
    }
    for (gpu, used) in used {
        assert!(used <= 100_000, "{what}: {gpu:?} is used to {used}");
    }
}

pub(super) fn gangs(bound: &[&Pod], what: &str) {
    for (gang, members) in [("ganga", 4), ("gangb", 4), ("hopeless", 5)] {
        let of = |pod: &&&Pod| name_of(pod).split('-').next() == Some(gang);
        let there = bound.iter().filter(of).count();
        assert!(there == 0 || there == members, "{what}: {there} of {gang}");
    }
}

/// What a quota or a reservation counts wrong.
pub(super) fn counted(
    pods: &[Pod],
    quotas: &[ElasticQuota],
    reservations: &[Reservation],
) -> Option<String> {
    let bound: Vec<&Pod> = pods.iter().filter(|pod| node_of(pod).is_some()).collect();
    let quota = quotas
        .iter()
        .find(|quota| quota.metadata.name.as_deref() == Some("q"))?;
    let of = |pod: &&&Pod| {
        let labels = pod.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.get(QUOTA).is_some_and(|name| name == "q"))
    };
    let status = as_json(quota);
    for resource in ["cpu", "memory"] {
        let of_quota = bound.iter().filter(of);
        let expected: i64 = of_quota.map(|pod| milli(pod, resource)).sum();
        let used = &status["status"]["used"][resource];
        if used.is_null() || quantity(used) != expected {
            return Some(format!(
                "quota q uses {used} {resource}, its pods {expected}m"
            ));
        }
    }
    for reservation in reservations {
        let status = as_json(reservation);
        let uid = reservation.metadata.uid.clone().unwrap_or_default();
        let expected: BTreeSet<String> = owners(&bound, &uid).map(name_of).collect();
        let listed = status["status"]["currentOwners"].as_array();
        let listed: BTreeSet<String> = listed
            .into_iter()
            .flatten()
            .filter_map(|owner| Some(owner["name"].as_str()?.to_owned()))
            .collect();
        if status["status"]["phase"] != "Available" || listed != expected {
            return Some(format!("{expected:?} own {status}"));
        }
        for resource in ["cpu", "memory"] {
            let taken: i64 = owners(&bound, &uid).map(|pod| milli(pod, resource)).sum();
            let held = quantity(&status["status"]["allocatable"][resource]);
            let told = &status["status"]["allocated"][resource];
            let told = if told.is_null() { 0 } else { quantity(told) };
            if told != taken.min(held) && told != taken {
                return Some(format!("owners take {taken} {resource} of {status}"));
            }
        }
    }
    None
}
