//! Sums the requests or limits of a pod's containers over its lifetime. Every component that needs such a sum
//! uses this rule.

use crate::quantity::{self, ParseQuantityError, Quantity, ResourceList};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use std::collections::BTreeMap;
use std::convert::identity;
use std::fmt;

/// Position of a container in the pod spec; formatted as its field path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerPosition {
    /// Index in `spec.containers`.
    Main(usize),
    /// Index in `spec.initContainers`.
    Init(usize),
}

impl fmt::Display for ContainerPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main(at) => write!(f, "spec.containers[{at}]"),
            Self::Init(at) => write!(f, "spec.initContainers[{at}]"),
        }
    }
}

/// Amounts that can be summed and compared resource by resource. The default is zero.
pub trait Total: Clone + Default {
    /// Adds every amount of `other`.
    fn add(&mut self, other: &Self);
    /// Raises every amount to at least that of `other`.
    fn raise(&mut self, other: &Self);
}

/// A single amount; sums saturate.
impl Total for i64 {
    fn add(&mut self, other: &Self) {
        *self = self.saturating_add(*other);
    }

    fn raise(&mut self, other: &Self) {
        *self = (*self).max(*other);
    }
}

/// Operates on every resource that either side lists.
impl Total for ResourceList {
    fn add(&mut self, other: &Self) {
        for (name, amount) in other {
            *self.entry(name.clone()).or_insert(Quantity::ZERO) += *amount;
        }
    }

    fn raise(&mut self, other: &Self) {
        for (name, amount) in other {
            let own = self.entry(name.clone()).or_insert(*amount);
            *own = (*own).max(*amount);
        }
    }
}

/// Error for an amount in a pod that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct RequestError {
    /// Path of the amount, such as `spec.containers[0].resources.requests.cpu`.
    pub field: String,
    /// Reason, with the value.
    pub problem: ParseQuantityError,
}

/// Returns the total requests of a pod: the [`peak`] of its containers' requests, with pod-level requests in
/// place of cpu, memory and huge pages, plus the overhead. The status is ignored.
///
/// # Errors
/// The first amount that is not a quantity.
pub fn pod_requests(spec: &PodSpec) -> Result<ResourceList, RequestError> {
    let read = |list: Option<&BTreeMap<String, Written>>, place: &dyn fmt::Display| {
        let parsed = list.map(quantity::parse_list).transpose();
        let parsed = parsed.map_err(|(name, problem)| RequestError {
            field: format!("{place}.{name}"),
            problem,
        });
        parsed.map(Option::unwrap_or_default)
    };
    let mut total = peak(spec, |place, container| {
        let requests = container
            .resources
            .as_ref()
            .map(|all| all.requests.as_ref());
        read(
            requests.and_then(identity),
            &format_args!("{place}.resources.requests"),
        )
    })?;
    let level = spec.resources.as_ref().map(|all| all.requests.as_ref());
    let mut level = read(level.and_then(identity), &"spec.resources.requests")?;
    level.retain(|name, _| {
        matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-")
    });
    total.append(&mut level);
    total.add(&read(spec.overhead.as_ref(), &"spec.overhead")?);
    Ok(total)
}

/// Returns true if an init container keeps running next to the main ones (`restartPolicy: Always`).
#[must_use]
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Returns the largest amount that the containers of a pod need at the same time, where `of` returns the
/// amount of one container. This is the larger of two sums: the main containers and sidecars together, or one
/// init container with the sidecars started before it. Pod-level resources and overhead are not included.
///
/// # Errors
/// The first error that `of` returns.
pub fn peak<A: Total, E>(
    spec: &PodSpec,
    mut of: impl FnMut(ContainerPosition, &Container) -> Result<A, E>,
) -> Result<A, E> {
    let mut running = A::default();
    for (at, container) in spec.containers.iter().enumerate() {
        running.add(&of(ContainerPosition::Main(at), container)?);
    }
    let (mut sidecars, mut starting) = (A::default(), A::default());
    for (at, container) in spec.init_containers.iter().flatten().enumerate() {
        let own = of(ContainerPosition::Init(at), container)?;
        if is_sidecar(container) {
            running.add(&own);
            sidecars.add(&own);
            starting.raise(&sidecars);
        } else {
            let mut during = sidecars.clone();
            during.add(&own);
            starting.raise(&during);
        }
    }
    running.raise(&starting);
    Ok(running)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Test containers are named by their amount; a leading `s` marks a sidecar.
    fn cpu(main: &[&str], init: &[&str]) -> Result<i64, String> {
        let container = |name: &&str| match name.strip_prefix('s') {
            Some(amount) => json!({"name": amount, "restartPolicy": "Always"}),
            None => json!({"name": name}),
        };
        let list = |names: &[&str]| names.iter().map(container).collect::<Vec<_>>();
        let spec = json!({"containers": list(main), "initContainers": list(init)});
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let read = |place: ContainerPosition, container: &Container| {
            let amount = container.name.parse::<i64>();
            amount.map_err(|_| format!("{place}"))
        };
        peak(&spec, read)
    }

    #[test]
    fn peak_adds_sidecars_to_later_containers() {
        for (main, init, want) in [
            (&["500", "1000"][..], &[][..], 1500),
            (&["500"], &["3000"], 3000),
            (&["500"], &["s1000", "3000"], 4000),
            (&["500"], &["3000", "s1000"], 3000),
            (&["500", "1000"], &["100", "s300", "2000"], 2300),
            (&["2000"], &["s300", "500", "s200"], 2500),
            (&[], &[], 0),
        ] {
            assert_eq!(cpu(main, init), Ok(want), "{main:?} {init:?}");
        }
        assert_eq!(cpu(&["1"], &["x"]), Err("spec.initContainers[0]".into()));
    }

    #[test]
    fn pod_requests_include_every_resource() {
        let container =
            |requests: serde_json::Value| json!({"name": "c", "resources": {"requests": requests}});
        let total = |spec| pod_requests(&serde_json::from_value(spec).unwrap());
        let list = |text: serde_json::Value| Ok(serde_json::from_value(text).unwrap());
        let two = json!([
            container(json!({"cpu": "1", "memory": "1Gi"})),
            container(json!({"cpu": "500m", "x.io/gpu": "2"}))
        ]);
        assert_eq!(
            total(json!({"containers": two, "initContainers": [container(json!({"cpu": "3"}))]})),
            list(json!({"cpu": "3", "memory": "1Gi", "x.io/gpu": "2"}))
        );
        assert_eq!(
            total(json!({"containers": two, "overhead": {"cpu": "100m"},
                "resources": {"requests": {"memory": "4Gi", "x.io/gpu": "9"}}})),
            list(json!({"cpu": "1600m", "memory": "4Gi", "x.io/gpu": "2"}))
        );
        let error = total(json!({"containers": [container(json!({"cpu": "lots"}))]})).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("spec.containers[0].resources.requests.cpu: "),
            "{error}"
        );
        assert!(error.to_string().contains("lots"), "{error}");
    }
}
