//! Invariants of the API's objects, whichever scheduler wrote them.

use super::world::{name_of, node_of};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::{ElasticQuota, Reservation};
use koord_model::cpuset::CpuSet;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const GROUP: &str = "pod-group.scheduling.sigs.k8s.io";
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

/// Returns the owner pods of a reservation, by its uid.
fn owners<'a>(pods: &'a [&'a Pod], uid: &'a str) -> impl Iterator<Item = &'a Pod> {
    let owns = move |pod: &&&Pod| {
        annotation(pod, ALLOCATED).is_some_and(|allocated| allocated["uid"] == *uid)
    };
    pods.iter().filter(owns).copied()
}

fn as_json<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).unwrap()
}

/// Amount of each counted resource on a node, in thousandths.
const CAPACITY: [(&str, i64); 6] = [
    ("cpu", 16_000),
    ("memory", 64 << 30),
    ("kubernetes.io/batch-cpu", 4_000),
    ("kubernetes.io/batch-memory", 4 << 30),
    ("koordinator.sh/gpu-core", 200),
    ("koordinator.sh/gpu-memory-ratio", 200),
];

/// Checks that pods, and what reservations hold in addition to their owners, fit their nodes.
pub(super) fn capacity(bound: &[&Pod], reservations: &[Reservation], case: &str) {
    for (resource, capacity) in CAPACITY {
        let capacity = if resource == "cpu" {
            capacity
        } else {
            capacity * 1000
        };
        let used = used(bound, reservations, resource, case);
        for (node, used) in used {
            assert!(
                used <= capacity,
                "{case}: {node} has {used}m of {capacity}m {resource}"
            );
        }
    }
}

fn used(
    bound: &[&Pod],
    reservations: &[Reservation],
    resource: &str,
    case: &str,
) -> BTreeMap<String, i64> {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for pod in bound {
        *used.entry(node_of(pod).unwrap()).or_default() += milli(pod, resource);
    }
    for reservation in reservations {
        let object = as_json(reservation);
        if object["status"]["phase"] != "Available" {
            continue;
        }
        let uid = reservation.metadata.uid.clone().unwrap();
        let used_milli: i64 = owners(bound, &uid).map(|pod| milli(pod, resource)).sum();
        // The size is the one in the spec; nothing resizes reservations here.
        let expected = size(&object, resource);
        let reported = &object["status"]["allocatable"][resource];
        let reported = if reported.is_null() {
            0
        } else {
            quantity(reported)
        };
        assert_eq!(reported, expected, "{case}: {resource} of {object}");
        // With other policies, owners get the remainder from the node.
        let closed = object["spec"]["allocatePolicy"] == "Restricted";
        assert!(
            !closed || expected == 0 || used_milli <= expected,
            "{case}: owners take {used_milli} {resource} of {expected}: {object}"
        );
        let node = object["status"]["nodeName"].as_str().unwrap().to_owned();
        for pod in owners(bound, &uid) {
            assert_eq!(node_of(pod).unwrap(), node, "{case}: {}", name_of(pod));
        }
        *used.entry(node).or_default() += (expected - used_milli).max(0);
    }
    used
}

/// Returns the requests in a reservation's template.
fn size(reservation: &Value, resource: &str) -> i64 {
    let containers = reservation["spec"]["template"]["spec"]["containers"].as_array();
    let requests = containers
        .unwrap()
        .iter()
        .map(|container| &container["resources"]["requests"][resource]);
    requests
        .filter(|request| !request.is_null())
        .map(quantity)
        .sum()
}

/// Checks invariants that must hold at any time, on pods from an informer.
pub(super) fn always(bound: &[&Pod], case: &str) {
    cpus(bound, case);
    gpus(bound, case);
    let group = |pod: &Pod| pod.metadata.labels.as_ref()?.get(GROUP).cloned();
    let begun: BTreeSet<String> = bound.iter().filter_map(|pod| group(pod)).collect();
    assert!(!begun.contains("hopeless"), "{case}: a member of no gang");
    // Only one of the two gangs fits, and the beginning of the other.
    let rivals = ["rivala", "rivalb"].map(|gang| begun.contains(gang));
    assert!(rivals != [true; 2], "{case}: one gang in another's room");
    for (resource, max) in [("cpu", 4_000), ("memory", (8 << 30) * 1000)] {
        let used: i64 = quota_pods(bound).map(|pod| milli(pod, resource)).sum();
        assert!(
            used <= max,
            "{case}: quota q uses {used}m of {max}m {resource}"
        );
    }
}

fn quota_pods<'a>(bound: &'a [&'a Pod]) -> impl Iterator<Item = &'a Pod> {
    let is_member = |pod: &&&Pod| {
        let labels = pod.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.get(QUOTA).is_some_and(|name| name == "q"))
    };
    bound.iter().filter(is_member).copied()
}

/// Checks that no CPU is allocated twice in pod annotations.
pub(super) fn cpus(bound: &[&Pod], case: &str) {
    let mut owned: BTreeMap<(String, u32), String> = BTreeMap::new();
    for pod in bound {
        let name = name_of(pod);
        let labels = pod.metadata.labels.as_ref();
        let qos = labels.and_then(|labels| labels.get("koordinator.sh/qosClass"));
        let expected = if qos.is_some_and(|qos| qos == "LSR") {
            milli(pod, "cpu") / 1000
        } else {
            0
        };
        let status = annotation(pod, CPUS).unwrap_or_default();
        let list = status["cpuset"].as_str().unwrap_or_default();
        let ids: CpuSet = list.parse().unwrap();
        let count = i64::try_from(ids.len()).unwrap();
        assert_eq!(count, expected, "{case}: {name} has {list:?}");
        for id in ids.iter() {
            assert!(id < 16, "{case}: there is no CPU {id}");
            let before = owned.insert((node_of(pod).unwrap(), id), name.clone());
            assert_eq!(before, None, "{case}: CPU {id} is also {name}'s");
        }
    }
}

/// Checks that no GPU is over-allocated in pod annotations.
pub(super) fn gpus(bound: &[&Pod], case: &str) {
    let mut used: BTreeMap<(String, i64, &str), i64> = BTreeMap::new();
    for pod in bound {
        let name = name_of(pod);
        let devices = annotation(pod, DEVICES).unwrap_or_default();
        for share in ["koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"] {
            let mut got = 0;
            for gpu in devices["gpu"].as_array().into_iter().flatten() {
                let minor = gpu["minor"].as_i64().unwrap();
                assert!((0..2).contains(&minor), "{case}: {name} has no GPU {minor}");
                let part = quantity(&gpu["resources"][share]);
                got += part;
                *used
                    .entry((node_of(pod).unwrap(), minor, share))
                    .or_default() += part;
            }
            assert_eq!(got, milli(pod, share), "{case}: {share} of {name}");
        }
    }
    for (gpu, used) in used {
        assert!(used <= 100_000, "{case}: {gpu:?} is used to {used}");
    }
}

pub(super) fn gangs(bound: &[&Pod], case: &str) {
    for (gang, members) in [
        ("ganga", 4),
        ("gangb", 4),
        ("hopeless", 5),
        ("rivala", 3),
        ("rivalb", 3),
    ] {
        let is_member = |pod: &&&Pod| {
            let labels = pod.metadata.labels.as_ref();
            labels.is_some_and(|labels| labels.get(GROUP).is_some_and(|name| name == gang))
        };
        let count = bound.iter().filter(is_member).count();
        assert!(count == 0 || count == members, "{case}: {count} of {gang}");
    }
}

/// Returns the statuses of quotas and reservations that do not match the bound pods.
pub(super) fn counted(
    pods: &[Pod],
    quotas: &[ElasticQuota],
    reservations: &[Reservation],
) -> Option<String> {
    let bound: Vec<&Pod> = pods.iter().filter(|pod| node_of(pod).is_some()).collect();
    let quota = quotas
        .iter()
        .find(|quota| quota.metadata.name.as_deref() == Some("q"))?;
    let status = as_json(quota);
    for resource in ["cpu", "memory"] {
        let expected: i64 = quota_pods(&bound).map(|pod| milli(pod, resource)).sum();
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
            let used_milli: i64 = owners(&bound, &uid).map(|pod| milli(pod, resource)).sum();
            let reported = &status["status"]["allocated"][resource];
            let reported = if reported.is_null() {
                0
            } else {
                quantity(reported)
            };
            if reported != used_milli {
                return Some(format!("owners take {used_milli} {resource} of {status}"));
            }
        }
    }
    None
}
