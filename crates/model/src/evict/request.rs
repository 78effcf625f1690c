//! What a pod requests, in the resources of its priority class.

use super::plan::{Dimension, resource_of};
use crate::reclaim;
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_api::priority::{self, PriorityClass};
use koord_api::{quantity, resources};

/// The resource that counts for `pod` and how much of it is requested: milli-cores or bytes.
///
/// Batch and mid pods: containers and sidecars together, amounts below zero as nothing. Every other
/// pod: the native request as the scheduler counts it.
#[must_use]
pub fn of_pod(pod: &Pod, dimension: Dimension) -> (&'static str, i64) {
    let class = priority::of_pod_with_default(pod);
    let resource = resource_of(class, dimension);
    let amount = match class {
        PriorityClass::Batch | PriorityClass::Mid => extended(pod, resource),
        _ => {
            let native = reclaim::pod_request(pod);
            match dimension {
                Dimension::Cpu => native.cpu.milli_value(),
                Dimension::Memory => native.memory.value(),
            }
        }
    };
    (resource, amount)
}

/// Batch CPU that `pod` requests, in milli-cores, whatever its priority class.
#[must_use]
pub fn batch_cpu(pod: &Pod) -> i64 {
    extended(pod, resources::BATCH_CPU)
}

fn extended(pod: &Pod, resource: &str) -> i64 {
    let Some(spec) = &pod.spec else { return 0 };
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let amounts = spec
        .containers
        .iter()
        .chain(sidecars)
        .map(|container| amount(container, resource));
    amounts.fold(0, i64::saturating_add)
}

fn amount(container: &Container, resource: &str) -> i64 {
    let requests = container
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    requests
        .and_then(|requests| requests.get(resource))
        .and_then(|amount| quantity::parse(amount).ok())
        .map_or(0, |amount| amount.value().max(0))
}
