//! GPU resources of pods: expands the short form and validates requests.
//!
//! Source: Koordinator `pkg/webhook/pod/mutating/device_resource_spec.go`,
//! `pkg/webhook/pod/validating/verify_device_resource.go`.

use super::field::{self, REQUESTS};
use crate::webhook::json::{self, TypeMismatch};
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_api::quantity::{self, Quantity};
use koord_api::resources::{
    GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, HUAWEI_NPU_CORE,
};
use serde_json::{Value, json};

const GPUS: [&str; 5] = [GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED];

/// Expands the GPU requests of the containers: `gpu: n` becomes `gpu-core: n` and `gpu-memory-ratio: n`, and
/// a container without a number of shares gets one. Requests and limits are equal afterwards, as for every
/// resource that cannot be overcommitted; a container with limits only requests its limits.
///
/// # Errors
/// A resource list is not an object, or an amount is not a quantity.
pub(super) fn pod(pod: &mut Value) -> Result<(), TypeMismatch> {
    for (path, container) in json::containers_mut(pod, "containers") {
        let below = |error: TypeMismatch| TypeMismatch {
            path: format!("{path}.{}", error.path),
            ..error
        };
        let requested = |container: &Value, name: &str| -> Option<Value> {
            let resources = container.get("resources")?;
            let side = |side| resources.get(side).and_then(|list| list.get(name));
            side("requests").or_else(|| side("limits")).cloned()
        };
        if !GPUS.iter().any(|name| requested(container, name).is_some()) {
            continue;
        }
        let read = |container: &Value, name: &str| -> Result<Option<i64>, TypeMismatch> {
            let Some(amount) = requested(container, name) else {
                return Ok(None);
            };
            let path = format!("resources.requests.{name}");
            Ok(Some(json::quantity(&amount, &path).map_err(below)?.value()))
        };
        let gpus = read(container, GPU)?;
        let (core, ratio) = match gpus {
            Some(gpus) => (Some(gpus), Some(gpus)),
            None => (
                read(container, GPU_CORE)?,
                read(container, GPU_MEMORY_RATIO)?,
            ),
        };
        let shares = requested(container, GPU_SHARED)
            .is_none()
            .then(|| shares(core, ratio));
        for side in ["requests", "limits"] {
            if gpus.is_none() && shares.is_none() {
                break;
            }
            let list = json::object_at(container, &["resources", side]).map_err(below)?;
            if let Some(gpus) = gpus {
                list.remove(GPU);
                list.insert(GPU_CORE.to_owned(), amount(gpus));
                list.insert(GPU_MEMORY_RATIO.to_owned(), amount(gpus));
            }
            if let Some(shares) = shares {
                list.insert(GPU_SHARED.to_owned(), amount(shares));
            }
        }
    }
    Ok(())
}

fn amount(value: i64) -> Value {
    json!(Quantity::from_value(value))
}

/// Returns the number of shares: one per whole GPU, otherwise one.
fn shares(core: Option<i64>, ratio: Option<i64>) -> i64 {
    match ratio.or(core) {
        Some(percent) if percent > 100 && percent % 100 == 0 => percent / 100,
        _ => 1,
    }
}

/// Returns the problems of a pod's GPU requests.
pub(super) fn problems(pod: &Pod) -> Vec<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(container_problems).collect()
}

/// Returns the problems of the GPU requests of a container.
fn container_problems(container: &Container) -> Vec<String> {
    let requests = container
        .resources
        .as_ref()
        .and_then(|own| own.requests.as_ref());
    let requested = |name: &str| requests.and_then(|list| quantity::parse(list.get(name)?).ok());
    let value = |name: &str| requested(name).map_or(0, |amount| amount.value());
    match (requested(GPU), requested(GPU_SHARED)) {
        (Some(_), Some(_)) => {
            let reason = format!("{GPU} and {GPU_SHARED} exclude each other");
            vec![field::forbidden(REQUESTS, &reason)]
        }
        (Some(gpu), None) => {
            let mut problems = Vec::new();
            if gpu.value() == 0 {
                problems.push(field::invalid(
                    REQUESTS,
                    gpu,
                    &format!("{GPU} must be more than 0"),
                ));
            }
            if gpu.value() > 100 && gpu.value() % 100 != 0 {
                let reason = format!("{GPU} above 100 must be a multiple of 100");
                problems.push(field::invalid(REQUESTS, gpu, &reason));
            }
            problems
        }
        (None, Some(shared)) => share_problems(shared, value),
        (None, None) => Vec::new(),
    }
}

/// Returns the problems of a request for shared GPUs.
fn share_problems(shared: Quantity, value: impl Fn(&str) -> i64) -> Vec<String> {
    let mut problems = Vec::new();
    if shared.value() == 0 {
        let reason = format!("{GPU_SHARED} must be more than 0");
        problems.push(field::invalid(REQUESTS, shared, &reason));
    }
    if value(HUAWEI_NPU_CORE) != 0 {
        return problems;
    }
    match (value(GPU_MEMORY), value(GPU_MEMORY_RATIO)) {
        (0, 0) => {
            let reason = format!("{GPU_SHARED} needs {GPU_MEMORY} or {GPU_MEMORY_RATIO}");
            problems.push(field::forbidden(REQUESTS, &reason));
        }
        (0, _) | (_, 0) => {}
        _ => {
            let reason = format!("{GPU_MEMORY} and {GPU_MEMORY_RATIO} exclude each other");
            problems.push(field::forbidden(REQUESTS, &reason));
        }
    }
    for name in [GPU_CORE, GPU_MEMORY_RATIO] {
        // A share of zero, which is reported above, has no multiples.
        if shared.value() != 0 && value(name) % shared.value() != 0 {
            let reason = format!("{name} must be a multiple of {GPU_SHARED}, which is {shared}");
            problems.push(field::invalid(REQUESTS, value(name), &reason));
        }
    }
    problems
}
