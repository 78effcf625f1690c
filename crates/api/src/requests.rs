//! How the amounts of a pod's containers add up over its life. One rule, used by everybody who sums
//! requests or limits.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use std::fmt;

/// Where a container stands in the spec; prints as its field path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `spec.containers[…]`.
    Main(usize),
    /// `spec.initContainers[…]`.
    Init(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main(at) => write!(f, "spec.containers[{at}]"),
            Self::Init(at) => write!(f, "spec.initContainers[{at}]"),
        }
    }
}

/// Amounts that can be summed and compared resource by resource. The default is nothing.
pub trait Total: Clone + Default {
    /// Adds every amount of `other`.
    fn add(&mut self, other: &Self);
    /// Raises every amount to at least that of `other`.
    fn raise(&mut self, other: &Self);
}

/// One amount; sums saturate.
impl Total for i64 {
    fn add(&mut self, other: &Self) {
        *self = self.saturating_add(*other);
    }

    fn raise(&mut self, other: &Self) {
        *self = (*self).max(*other);
    }
}

/// Whether an init container goes on running beside the main ones (`restartPolicy: Always`).
#[must_use]
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What the containers of a pod need at most at once, where `of` tells what one needs: main
/// containers and sidecars together, or one init container with the sidecars started before it,
/// whichever is more. Pod-level resources and overhead are the caller's.
///
/// # Errors
/// The first error of `of`.
pub fn peak<A: Total, E>(
    spec: &PodSpec,
    mut of: impl FnMut(Place, &Container) -> Result<A, E>,
) -> Result<A, E> {
    let mut running = A::default();
    for (at, container) in spec.containers.iter().enumerate() {
        running.add(&of(Place::Main(at), container)?);
    }
    let (mut sidecars, mut starting) = (A::default(), A::default());
    for (at, container) in spec.init_containers.iter().flatten().enumerate() {
        let own = of(Place::Init(at), container)?;
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

    /// Containers are named by their amount; a sidecar has an `s` in front.
    fn cpu(main: &[&str], init: &[&str]) -> Result<i64, String> {
        let container = |name: &&str| match name.strip_prefix('s') {
            Some(amount) => json!({"name": amount, "restartPolicy": "Always"}),
            None => json!({"name": name}),
        };
        let list = |names: &[&str]| names.iter().map(container).collect::<Vec<_>>();
        let spec = json!({"containers": list(main), "initContainers": list(init)});
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let read = |place: Place, container: &Container| {
            let amount = container.name.parse::<i64>();
            amount.map_err(|_| format!("{place}"))
        };
        peak(&spec, read)
    }

    #[test]
    fn sidecars_count_for_what_starts_after_them() {
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
}
