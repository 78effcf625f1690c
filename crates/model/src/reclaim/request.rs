//! CPU and memory requests of a pod.

use super::Amount;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use koord_api::quantity::{self, Quantity};
use koord_api::requests::{self, Total};
use koord_api::resources;
use std::convert::Infallible;

impl Total for Amount {
    fn add(&mut self, other: &Self) {
        *self += *other;
    }

    fn raise(&mut self, other: &Self) {
        *self = self.max(*other);
    }
}

/// Returns the largest amount of CPU and memory that a pod needs at the same time: containers and sidecars
/// together, or one init container with the sidecars started before it. Pod-level requests take precedence;
/// the overhead is added. Invalid amounts count as zero.
#[must_use]
pub fn pod_request(pod: &Pod) -> Amount {
    let Some(spec) = &pod.spec else {
        return Amount::ZERO;
    };
    let own = |_, container: &Container| {
        Ok::<_, Infallible>(container_request(container.resources.as_ref()))
    };
    let Ok(mut total) = requests::peak(spec, own);
    if let Some(level) = &spec.resources {
        total.cpu = get(Some(level), resources::CPU).unwrap_or(total.cpu);
        total.memory = get(Some(level), resources::MEMORY).unwrap_or(total.memory);
    }
    if let Some(overhead) = &spec.overhead {
        let read = |name| {
            overhead
                .get(name)
                .and_then(|amount| quantity::parse(amount).ok())
        };
        total.cpu += read(resources::CPU).unwrap_or_default();
        total.memory += read(resources::MEMORY).unwrap_or_default();
    }
    total
}

fn container_request(resources: Option<&ResourceRequirements>) -> Amount {
    Amount {
        cpu: get(resources, resources::CPU).unwrap_or_default(),
        memory: get(resources, resources::MEMORY).unwrap_or_default(),
    }
}

fn get(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    let requests = resources?.requests.as_ref()?;
    quantity::parse(requests.get(name)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(spec: serde_json::Value, cpu: &str, memory: &str) {
        let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let want = Amount::new(cpu.parse().unwrap(), memory.parse().unwrap());
        assert_eq!(pod_request(&pod), want, "{spec}");
    }

    fn asks(cpu: &str, memory: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn requests_follow_the_life_of_a_pod() {
        let two = json!([asks("1", "1Gi"), asks("500m", "1Gi")]);
        check(json!({"containers": two}), "1500m", "2Gi");
        let init = asks("3", "1Gi");
        check(
            json!({"containers": two, "initContainers": [init]}),
            "3",
            "2Gi",
        );
        let mut sidecar = asks("1", "1Gi");
        sidecar["restartPolicy"] = json!("Always");
        check(
            json!({"containers": two, "initContainers": [init, sidecar]}),
            "3",
            "3Gi",
        );
        check(
            json!({"containers": two, "initContainers": [sidecar, init]}),
            "4",
            "3Gi",
        );
        let level = json!({"requests": {"cpu": "2"}});
        check(json!({"containers": two, "resources": level}), "2", "2Gi");
        let overhead = json!({"cpu": "100m", "memory": "1Mi"});
        check(
            json!({"containers": two, "overhead": overhead}),
            "1600m",
            "2049Mi",
        );
        check(json!({"containers": [{"name": "c"}]}), "0", "0");
    }
}
