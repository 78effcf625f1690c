//! Eviction order of pods.
//!
//! Source: Koordinator `pkg/descheduler/utils/sorter`.

use crate::state::PodInfo;
use koord_api::annotations;
use koord_api::extension::parse_eviction_cost;
use koord_api::priority::PriorityClass;
use koord_api::qos::{self, KubeQos, QosClass};
use std::cmp::Ordering;
use std::sync::Arc;

/// Annotation by which a controller chooses the pod to delete when it scales down: the lowest cost first.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Importance of a pod: less important pods are evicted first. Fields are compared in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency {
    /// Rank of Koordinator's priority class after defaulting: free, batch, mid, prod, none.
    pub class: u8,
    /// `spec.priority`, 0 without one.
    pub priority: i32,
    /// Rank of Kubernetes' QoS class: BestEffort, Burstable, Guaranteed.
    pub kube_qos: u8,
    /// Rank of Koordinator's QoS class after defaulting: BE, LS, LSR, LSE and SYSTEM with the same rank, none.
    pub qos: u8,
    /// Annotation `controller.kubernetes.io/pod-deletion-cost`; an invalid number counts as 0.
    pub deletion_cost: i32,
    /// Annotation `scheduling.koordinator.sh/eviction-cost`; an invalid number counts as 0.
    pub eviction_cost: i32,
}

impl Urgency {
    /// Returns the urgency of `pod`.
    #[must_use]
    pub fn from_pod(pod: &PodInfo) -> Self {
        let shape = &*pod.shape;
        let cost = |key| {
            let cost = pod
                .annotation(key)
                .and_then(|cost| parse_eviction_cost(cost).ok());
            cost.unwrap_or(0)
        };
        let qos = match shape.qos {
            QosClass::None => qos::default_for_kube_qos(shape.kube_qos),
            labelled => labelled,
        };
        Self {
            class: match shape.class {
                PriorityClass::Free => 1,
                PriorityClass::Batch => 2,
                PriorityClass::Mid => 3,
                PriorityClass::Prod => 4,
                PriorityClass::None => 5,
            },
            priority: shape.priority.unwrap_or(0),
            kube_qos: match shape.kube_qos {
                KubeQos::BestEffort => 1,
                KubeQos::Burstable => 2,
                KubeQos::Guaranteed => 3,
            },
            qos: match qos {
                QosClass::Be => 1,
                QosClass::Ls => 2,
                QosClass::Lsr => 3,
                QosClass::Lse | QosClass::System => 4,
                QosClass::None => 5,
            },
            deletion_cost: cost(DELETION_COST),
            eviction_cost: cost(annotations::EVICTION_COST),
        }
    }
}

/// Sorts `pods` into eviction order: by [`Urgency`], then newest first, then by name in descending order,
/// which for a StatefulSet is the pod that a scale-down would remove first.
pub fn sort(pods: &mut [Arc<PodInfo>]) {
    sort_by(pods, |_, _| Ordering::Equal);
}

/// Sorts like [`sort`], but `extra` decides first among pods of equal urgency.
pub fn sort_by(
    pods: &mut [Arc<PodInfo>],
    extra: impl Fn(&Arc<PodInfo>, &Arc<PodInfo>) -> Ordering,
) {
    let mut keyed: Vec<_> = pods
        .iter()
        .map(|pod| (Urgency::from_pod(pod), pod.clone()))
        .collect();
    keyed.sort_by(|(a_urgency, a), (b_urgency, b)| {
        let names = || (&b.namespace, &b.name, &b.uid).cmp(&(&a.namespace, &a.name, &a.uid));
        a_urgency
            .cmp(b_urgency)
            .then_with(|| extra(a, b))
            .then_with(|| b.created.cmp(&a.created))
            .then_with(names)
    });
    for (place, (_, pod)) in pods.iter_mut().zip(keyed) {
        *place = pod;
    }
}
