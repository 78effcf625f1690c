//! Validation rules of pods: reserved annotations, invalid combinations of QoS class and priority, immutable
//! fields.
//!
//! Source: Koordinator `pkg/webhook/pod/validating/{verify_annotations,cluster_colocation_profile}.go`.

use super::field::{self, REQUESTS};
use k8s_openapi::api::core::v1::Pod;
use koord_api::extension::DeviceAllocations;
use koord_api::priority::{self, PriorityClass};
use koord_api::qos::{self, QosClass};
use koord_api::quantity;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, RDMA};
use koord_api::{annotations, labels};
use koord_model::rdma_devices;
use koord_model::reclaim::pod_request;

/// Returns a problem if the device annotation of a new pod, or a changed one, contains RDMA devices that no
/// container requests: koordlet would mount their device files although no scheduler accounted for them.
/// Annotations of the scheduler, and of restored pods, come with requests. An annotation that cannot be
/// parsed is ignored here, since koordlet mounts nothing for it.
pub(super) fn device_problems(pod: &Pod, old: Option<&Pod>) -> Vec<String> {
    let key = annotations::DEVICE_ALLOCATED;
    let text = |pod: &Pod| {
        let all = pod.metadata.annotations.as_ref();
        all.and_then(|all| all.get(key)).cloned()
    };
    let Some(now) = text(pod).filter(|now| Some(now) != old.and_then(text).as_ref()) else {
        return Vec::new();
    };
    let read = serde_json::from_str::<DeviceAllocations>(&now);
    let is_unrequested = read.is_ok_and(|devices| rdma_devices::are_unrequested(pod, &devices));
    let reason = format!("it names RDMA devices, and no container requests {RDMA}");
    let problem = || field::forbidden(&format!("annotations.{key}"), &reason);
    is_unrequested.then(problem).into_iter().collect()
}

/// Returns a problem if a pod has an annotation that is reserved for the scheduler's reserve pods.
pub(super) fn annotation_problems(pod: &Pod) -> Vec<String> {
    let key = annotations::RESERVE_POD;
    let is_reserved = pod
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|all| all.contains_key(key));
    let problem = || field::forbidden(&format!("annotations.{key}"), "it is the scheduler's own");
    is_reserved.then(problem).into_iter().collect()
}

/// Returns all violations of the co-location rules by `pod`, which replaces `old` if that is set.
/// `priority_may_change` permits a change of the sub-priority.
pub(super) fn colocation_problems(
    pod: &Pod,
    old: Option<&Pod>,
    priority_may_change: bool,
) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(old) = old {
        let mut require_equal = |path: &str, old: &str, new: &str| {
            if old != new {
                problems.push(field::invalid(path, new, "field is immutable"));
            }
        };
        let qos = |pod| qos::pod_qos_class(pod).as_str();
        require_equal(&format!("labels.{}", labels::POD_QOS), qos(old), qos(pod));
        let class = |pod| priority::pod_priority_class(pod).as_str();
        require_equal("spec.priority", class(old), class(pod));
        if !priority_may_change {
            let path = format!("labels.{}", labels::POD_PRIORITY);
            require_equal(&path, sub_priority(old), sub_priority(pod));
        }
    }
    let qos = qos::pod_qos_class(pod);
    if qos != QosClass::Be && requests_batch(pod) {
        let reason = format!("pods with {BATCH_CPU} or {BATCH_MEMORY} must be BE");
        problems.push(field::required(
            &format!("labels.{}", labels::POD_QOS),
            &reason,
        ));
    }
    let class = priority::pod_priority_class(pod);
    if !is_allowed_combination(qos, class) {
        let qos_key = labels::POD_QOS;
        let reason = format!("{qos_key}={qos} does not go with priorityClass={class}");
        problems.push(field::forbidden("Pod", &reason));
    }
    problems.extend(cpu_problem(pod, qos));
    problems
}

fn sub_priority(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|all| all.get(labels::POD_PRIORITY))
        .map_or("", String::as_str)
}

/// Returns false for the explicitly forbidden combinations; all others are allowed, recommended or not.
fn is_allowed_combination(qos: QosClass, class: PriorityClass) -> bool {
    match qos {
        QosClass::Be => !matches!(class, PriorityClass::None | PriorityClass::Prod),
        QosClass::Lsr => class == PriorityClass::Prod,
        _ => true,
    }
}

/// Returns a problem if a pod with exclusive CPUs does not request whole CPUs.
fn cpu_problem(pod: &Pod, qos: QosClass) -> Option<String> {
    if !matches!(qos, QosClass::Lsr | QosClass::Lse) {
        return None;
    }
    let cpu = pod_request(pod).cpu;
    if cpu.is_zero() {
        return Some(field::required(
            REQUESTS,
            &format!("{qos} pods must request CPUs"),
        ));
    }
    let is_whole = cpu.value().saturating_mul(1000) == cpu.milli_value();
    (!is_whole).then(|| {
        field::invalid(
            REQUESTS,
            cpu,
            &format!("{qos} pods must request whole CPUs"),
        )
    })
}

/// Returns true if any part of the pod requests batch resources.
fn requests_batch(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let requests = containers.filter_map(|c| c.resources.as_ref()?.requests.as_ref());
    requests.chain(spec.overhead.as_ref()).any(|list| {
        [BATCH_CPU, BATCH_MEMORY].iter().any(|name| {
            let amount = list
                .get(*name)
                .and_then(|amount| quantity::parse(amount).ok());
            amount.is_some_and(|amount| !amount.is_zero())
        })
    })
}
