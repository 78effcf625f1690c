//! Plugins of kubernetes-sigs/descheduler, with its arguments and its semantics of v0.35.1.
//!
//! Like in upstream, unknown fields in arguments are ignored. Each strategy calls the filters when it
//! considers a pod, and once more with `pre_evict` before the pod is evicted.

mod default_evictor;
mod free_capacity;
mod node_utilization;
mod pod_life_time;
mod remove_duplicates;
mod remove_failed_pods;
mod too_many_restarts;
mod violating_anti_affinity;
mod violating_node_affinity;
mod violating_node_taints;
mod violating_spread;

use crate::framework::{Cycle, PluginHandles, SkipReason};
use crate::registry::Registry;
use crate::rules::Namespaces;
use crate::state::{ContainerInfo, ContainerKind, ContainerState, PodInfo};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::qos::KubeQos;
use koord_api::selector;
use std::sync::Arc;

/// Adds all of these plugins to `registry`.
pub(crate) fn register(registry: Registry) -> Registry {
    let registry = deschedule(registry)
        .with(
            remove_duplicates::NAME,
            false,
            remove_duplicates::check,
            |args, _| {
                Ok(PluginHandles::balancing(
                    remove_duplicates::RemoveDuplicates(args),
                ))
            },
        )
        .with(
            violating_spread::NAME,
            false,
            violating_spread::check,
            |args, _| {
                Ok(PluginHandles::balancing(violating_spread::ViolatingSpread(
                    args,
                )))
            },
        )
        .with(
            node_utilization::LOW,
            false,
            node_utilization::check_low,
            |args, _| {
                Ok(PluginHandles::balancing(
                    node_utilization::LowNodeUtilization(args),
                ))
            },
        )
        .with(
            node_utilization::HIGH,
            false,
            node_utilization::check_high,
            |args, _| {
                Ok(PluginHandles::balancing(
                    node_utilization::HighNodeUtilization(args),
                ))
            },
        );
    registry.with(
        default_evictor::NAME,
        false,
        default_evictor::check,
        |args, _| {
            Ok(PluginHandles {
                evict: Some(Box::<default_evictor::DefaultEvictor>::default()),
                filter: Some(Box::new(default_evictor::DefaultEvictorFilter::new(args)?)),
                ..PluginHandles::default()
            })
        },
    )
}

/// Registers upstream's plugins for the extension point `deschedule`.
fn deschedule(registry: Registry) -> Registry {
    registry
        .with(
            pod_life_time::NAME,
            false,
            pod_life_time::check,
            |args, _| {
                Ok(PluginHandles::descheduling(pod_life_time::PodLifeTime(
                    args,
                )))
            },
        )
        .with(
            remove_failed_pods::NAME,
            false,
            remove_failed_pods::check,
            |args, _| {
                Ok(PluginHandles::descheduling(
                    remove_failed_pods::RemoveFailedPods(args),
                ))
            },
        )
        .with(
            too_many_restarts::NAME,
            false,
            too_many_restarts::check,
            |args, _| {
                Ok(PluginHandles::descheduling(
                    too_many_restarts::TooManyRestarts(args),
                ))
            },
        )
        .with(
            violating_anti_affinity::NAME,
            false,
            violating_anti_affinity::check,
            |args, _| {
                Ok(PluginHandles::descheduling(
                    violating_anti_affinity::ViolatingAntiAffinity(args),
                ))
            },
        )
        .with(
            violating_node_affinity::NAME,
            false,
            violating_node_affinity::check,
            |args, _| {
                Ok(PluginHandles::descheduling(
                    violating_node_affinity::ViolatingNodeAffinity(args),
                ))
            },
        )
        .with(
            violating_node_taints::NAME,
            false,
            violating_node_taints::check,
            |args, _| {
                Ok(PluginHandles::descheduling(
                    violating_node_taints::NodeTaints(args),
                ))
            },
        )
}

/// Returns an error if both lists of `namespaces` are set.
fn check_namespaces(namespaces: Option<&Namespaces>) -> Result<(), String> {
    namespaces.map_or(Ok(()), |namespaces| namespaces.check("namespaces"))
}

/// Checks that `pod` is in `namespaces` and matches `labels`.
fn check_selected(
    namespaces: Option<&Namespaces>,
    labels: Option<&LabelSelector>,
    pod: &PodInfo,
) -> Result<(), SkipReason> {
    if namespaces.is_some_and(|namespaces| !namespaces.allow(&pod.namespace)) {
        let detail = format!("namespaces leave {} out", pod.namespace);
        return Err(SkipReason::new("Namespaces", detail));
    }
    match labels {
        // Selectors were validated when the configuration was parsed.
        Some(labels) if !selector::matches(labels, &pod.shape.labels).unwrap_or(false) => Err(
            SkipReason::new("LabelSelector", "labelSelector does not select it"),
        ),
        _ => Ok(()),
    }
}

/// Evicts `pod` if all filters and the evictor agree; otherwise records it as skipped. Returns true if it is
/// evicted.
fn try_evict(cycle: &mut Cycle<'_>, pod: &Arc<PodInfo>, reason: String) -> bool {
    cycle.filter(pod) && cycle.pre_evict(pod) && cycle.evict(pod, reason).is_ok()
}

/// Sorts `pods` by importance, least important first: by priority, those without one first, then by
/// Kubernetes' QoS class; among equals, pods that prefer no eviction are last.
fn by_importance(pods: &mut [Arc<PodInfo>]) {
    pods.sort_by_cached_key(|pod| {
        let qos = match pod.shape.kube_qos {
            KubeQos::BestEffort => 0,
            KubeQos::Burstable => 1,
            KubeQos::Guaranteed => 2,
        };
        let asks = pod
            .annotation(default_evictor::PREFER_NO_EVICTION)
            .is_some();
        (pod.shape.priority, qos, asks)
    });
}

/// Returns the whole seconds since `then`; `None` if it lies in the future.
fn seconds_since(then: Timestamp, now: Timestamp) -> Option<u64> {
    u64::try_from(now.duration_since(then).as_secs()).ok()
}

/// Returns the statuses of main containers, and of init and ephemeral ones if requested.
fn statuses(
    pod: &PodInfo,
    init: bool,
    ephemeral: bool,
) -> impl Iterator<Item = &ContainerInfo> + Clone {
    pod.containers
        .iter()
        .filter(move |status| match status.kind {
            ContainerKind::Main => true,
            ContainerKind::Init => init,
            ContainerKind::Ephemeral => ephemeral,
        })
}

/// Returns why a container waits or has ended.
fn state_reason(status: &ContainerInfo) -> Option<&str> {
    match &status.state {
        ContainerState::Waiting(reason) | ContainerState::Terminated(reason, _) => Some(reason),
        ContainerState::Running | ContainerState::Unknown => None,
    }
}

/// Returns the exit code of a container that has ended.
fn exit_code(status: &ContainerInfo) -> Option<i32> {
    match status.state {
        ContainerState::Terminated(_, code) => Some(code),
        _ => None,
    }
}

/// Returns an error for the first of `values` that `allowed` does not contain, naming `field`.
fn check_listed(field: &str, values: &[String], allowed: &[&str]) -> Result<(), String> {
    let unknown = |value: &&String| !allowed.contains(&value.as_str());
    match values.iter().find(unknown) {
        Some(value) => Err(format!(
            "{field}: {value:?} is none of {}",
            allowed.join(", ")
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
