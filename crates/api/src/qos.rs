//! QoS classes: how a pod shares its node with other pods.
//!
//! Source: Koordinator `apis/extension/qos.go`; the Kubernetes classes follow
//! `k8s.io/kubernetes/pkg/apis/core/v1/helper/qos`.

use crate::quantity::{self, Quantity, ResourceList};
use crate::texts::Lookup;
use crate::{labels, resources};
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use std::collections::BTreeMap;
use std::fmt;

/// QoS class of a pod or host application. The wire text is upper case; `None` is the empty text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum QosClass {
    /// Latency sensitive, exclusive CPUs that no other pod may use.
    Lse,
    /// Latency sensitive, reserved CPUs whose idle time batch pods may use.
    Lsr,
    /// Latency sensitive, shared CPU pool.
    Ls,
    /// Best effort: runs on reclaimed resources.
    Be,
    /// System daemons; has the priority class prod, but is managed separately.
    System,
    /// No class is set.
    #[default]
    None,
}

impl QosClass {
    /// Returns the wire text: `LSE`, `LSR`, `LS`, `BE`, `SYSTEM`, or empty.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lse => "LSE",
            Self::Lsr => "LSR",
            Self::Ls => "LS",
            Self::Be => "BE",
            Self::System => "SYSTEM",
            Self::None => "",
        }
    }

    /// Parses the wire text. Case matters; an unknown text is [`QosClass::None`].
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "LSE" => Self::Lse,
            "LSR" => Self::Lsr,
            "LS" => Self::Ls,
            "BE" => Self::Be,
            "SYSTEM" => Self::System,
            _ => Self::None,
        }
    }

    /// Returns true if no class is set. Serialization omits the field then.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        *self == Self::None
    }
}

crate::serde_util::serde_by_name!(QosClass);

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The three Kubernetes QoS classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KubeQos {
    /// Every container limits cpu and memory, and requests equal limits.
    Guaranteed,
    /// Some cpu or memory is requested or limited, but the rule for Guaranteed is not met.
    Burstable,
    /// No cpu or memory is requested or limited.
    BestEffort,
}

impl KubeQos {
    /// Returns the text of `status.qosClass`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for KubeQos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns the class of the label `koordinator.sh/qosClass`; [`QosClass::None`] without it.
#[must_use]
pub fn qos_class_from_labels(labels: &impl Lookup) -> QosClass {
    labels
        .text(labels::POD_QOS)
        .map_or(QosClass::None, QosClass::from_name)
}

/// Returns the QoS class in the pod's label, without applying a default.
#[must_use]
pub fn pod_qos_class(pod: &Pod) -> QosClass {
    pod.metadata
        .labels
        .as_ref()
        .map_or(QosClass::None, qos_class_from_labels)
}

/// Returns the QoS class in the pod's label. Without one, the class follows from the Kubernetes QoS class:
/// Guaranteed → LSR, Burstable → LS, BestEffort → BE.
#[must_use]
pub fn pod_qos_class_or_default(pod: &Pod) -> QosClass {
    match pod_qos_class(pod) {
        QosClass::None => default_for_kube_qos(pod_kube_qos(pod)),
        class => class,
    }
}

/// Returns the class of a pod without a label, from its Kubernetes class.
#[must_use]
pub const fn default_for_kube_qos(class: KubeQos) -> QosClass {
    match class {
        KubeQos::Guaranteed => QosClass::Lsr,
        KubeQos::Burstable => QosClass::Ls,
        KubeQos::BestEffort => QosClass::Be,
    }
}

/// Returns the Kubernetes class of a pod: that of `status.qosClass`, otherwise computed from the spec.
#[must_use]
pub fn pod_kube_qos(pod: &Pod) -> KubeQos {
    match pod
        .status
        .as_ref()
        .and_then(|status| status.qos_class.as_deref())
    {
        Some("Guaranteed") => KubeQos::Guaranteed,
        Some("Burstable") => KubeQos::Burstable,
        Some("BestEffort") => KubeQos::BestEffort,
        _ => compute_kube_qos(pod),
    }
}

/// Computes the Kubernetes class by the standard algorithm, from cpu and memory of all containers, or from
/// the pod-level resources if they are set. Zero and invalid amounts count as unset.
#[must_use]
pub fn compute_kube_qos(pod: &Pod) -> KubeQos {
    let Some(spec) = &pod.spec else {
        return KubeQos::BestEffort;
    };
    let mut requests = ResourceList::new();
    let mut limits = ResourceList::new();
    let mut guaranteed = true;
    let pod_level = spec
        .resources
        .as_ref()
        .filter(|resources| resources.requests.is_some() || resources.limits.is_some());
    if let Some(resources) = pod_level {
        guaranteed = add_resources(Some(resources), &mut requests, &mut limits);
    } else {
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten());
        for container in containers {
            guaranteed &= add_resources(container.resources.as_ref(), &mut requests, &mut limits);
        }
    }
    if requests.is_empty() && limits.is_empty() {
        KubeQos::BestEffort
    } else if guaranteed && requests == limits {
        KubeQos::Guaranteed
    } else {
        KubeQos::Burstable
    }
}

/// Adds the cpu and memory of one container. Returns true if the container limits both.
fn add_resources(
    resources: Option<&ResourceRequirements>,
    requests: &mut ResourceList,
    limits: &mut ResourceList,
) -> bool {
    let Some(resources) = resources else {
        return false;
    };
    let mut limited = 0;
    for name in [resources::CPU, resources::MEMORY] {
        if let Some(amount) = positive(resources.requests.as_ref(), name) {
            *requests.entry(name.to_owned()).or_insert(Quantity::ZERO) += amount;
        }
        if let Some(amount) = positive(resources.limits.as_ref(), name) {
            *limits.entry(name.to_owned()).or_insert(Quantity::ZERO) += amount;
            limited += 1;
        }
    }
    limited == 2
}

fn positive(
    list: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
    name: &str,
) -> Option<Quantity> {
    let amount = quantity::parse(list?.get(name)?).ok()?;
    (amount > Quantity::ZERO).then_some(amount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(labels: &serde_json::Value, resources: &[serde_json::Value]) -> Pod {
        let containers: Vec<_> = resources
            .iter()
            .map(|r| json!({ "name": "c", "resources": r }))
            .collect();
        serde_json::from_value(json!({
            "metadata": { "labels": labels },
            "spec": { "containers": containers },
        }))
        .unwrap()
    }

    #[test]
    fn label_decides_then_kubernetes_class() {
        let guaranteed = json!({ "requests": {"cpu": "1000m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1024Mi"} });
        let burstable = json!({ "requests": {"cpu": "1"} });
        let none = json!({});
        for (labels, resources, raw, defaulted) in [
            (
                json!({"koordinator.sh/qosClass": "BE"}),
                &guaranteed,
                QosClass::Be,
                QosClass::Be,
            ),
            (
                json!({"koordinator.sh/qosClass": "be"}),
                &none,
                QosClass::None,
                QosClass::Be,
            ),
            (json!({}), &guaranteed, QosClass::None, QosClass::Lsr),
            (json!({}), &burstable, QosClass::None, QosClass::Ls),
            (json!({}), &none, QosClass::None, QosClass::Be),
        ] {
            let pod = pod(&labels, std::slice::from_ref(resources));
            assert_eq!(pod_qos_class(&pod), raw, "{labels}");
            assert_eq!(
                pod_qos_class_or_default(&pod),
                defaulted,
                "{labels} {resources}"
            );
        }
    }

    #[test]
    fn every_container_must_be_limited_for_guaranteed() {
        let full = json!({ "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"} });
        let half = json!({ "limits": {"cpu": "1"}, "requests": {"cpu": "1"} });
        assert_eq!(
            compute_kube_qos(&pod(&json!({}), &[full.clone(), full.clone()])),
            KubeQos::Guaranteed
        );
        assert_eq!(
            compute_kube_qos(&pod(&json!({}), &[full.clone(), half])),
            KubeQos::Burstable
        );
        assert_eq!(
            compute_kube_qos(&pod(&json!({}), &[full, json!({})])),
            KubeQos::Burstable
        );
        let batch = json!({ "requests": {"kubernetes.io/batch-cpu": "1000"} });
        assert_eq!(
            compute_kube_qos(&pod(&json!({}), &[batch])),
            KubeQos::BestEffort
        );
    }

    #[test]
    fn status_wins_over_the_spec() {
        let mut pod = pod(&json!({}), &[json!({})]);
        pod.status = serde_json::from_value(json!({ "qosClass": "Guaranteed" })).unwrap();
        assert_eq!(pod_qos_class_or_default(&pod), QosClass::Lsr);
    }
}
