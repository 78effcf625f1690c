//! Conversion of a run's model to API objects.

use super::super::START;
use super::super::rules::{Node, PODS, Pod, Reservation};
use crate::differential::preemption::{RESERVATIONS, change, parsed};
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use koord_api::scheduling;
use koord_api::slo::NodeMetric;
use koord_scheduler::framework::ObjectChange;
use serde_json::{Value, json};
use std::sync::Arc;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(crate) fn pod(pod: &Pod) -> Value {
    let mut requests = json!({});
    if pod.cpu > 0 {
        requests["cpu"] = json!(format!("{}m", pod.cpu));
    }
    if pod.memory > 0 {
        requests["memory"] = json!(format!("{}Mi", pod.memory));
    }
    let mut container =
        json!({"name": "c", "image": "i", "resources": {"requests": requests, "limits": requests}});
    if pod.port {
        container["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
    }
    let tolerations = pod.tolerates.iter();
    let tolerations: Vec<Value> = tolerations
        .map(|key| json!({"key": key, "operator": "Exists"}))
        .collect();
    let mut spec = json!({
        "schedulerName": "koord-scheduler", "priority": pod.priority,
        "containers": [container], "tolerations": tolerations
    });
    if let Some(zone) = pod.selects_zone {
        spec["nodeSelector"] = json!({"zone": zone});
    }
    if let Some(zone) = pod.shuns_zone {
        spec["affinity"]["nodeAffinity"][REQUIRED] = json!({"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": [zone]}]}]});
    }
    for (weight, zone) in &pod.prefers {
        let list = &mut spec["affinity"]["nodeAffinity"][PREFERRED];
        if list.is_null() {
            *list = json!([]);
        }
        let term = json!({"weight": weight, "preference": {"matchExpressions": [
            {"key": "zone", "operator": "In", "values": [zone]}]}});
        list.as_array_mut().unwrap().push(term);
    }
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    if let Some((key, skew)) = pod.spread {
        spec["topologySpreadConstraints"] = json!([{"maxSkew": skew, "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector(pod.app)}]);
    }
    let term = |key: &str, app: &str| json!([{"topologyKey": key, "labelSelector": selector(app)}]);
    if let Some((key, app)) = pod.near {
        spec["affinity"]["podAffinity"][REQUIRED] = term(key, app);
    }
    if let Some((key, app)) = pod.apart {
        spec["affinity"]["podAntiAffinity"][REQUIRED] = term(key, app);
    }
    let mut labels = json!({"app": pod.app});
    if let Some(quota) = pod.quota {
        labels["quota.scheduling.koordinator.sh/name"] = json!(quota);
    }
    if let Some(owner) = pod.owner {
        labels["owner"] = json!(owner);
    }
    let mut annotations = json!({});
    if let Some((gang, least)) = &pod.gang {
        annotations["gang.scheduling.koordinator.sh/name"] = json!(gang);
        annotations["gang.scheduling.koordinator.sh/min-available"] = json!(least.to_string());
    }
    if pod.insists {
        annotations["scheduling.koordinator.sh/reservation-affinity"] = json!("{}");
    }
    json!({
        "metadata": {"name": pod.name, "namespace": "ns", "uid": pod.name, "labels": labels,
            "annotations": annotations},
        "spec": spec
    })
}

pub(crate) fn node(name: &str, node: &Node) -> Arc<v1::Node> {
    let taint = node.taint.iter();
    let taints: Vec<Value> = taint
        .map(|(key, effect)| json!({"key": key, "effect": effect}))
        .collect();
    Arc::new(parsed(json!({
        "metadata": {"name": name, "uid": name,
            "labels": {"zone": node.zone, "kubernetes.io/hostname": name}},
        "spec": {"taints": taints, "unschedulable": node.cordoned},
        "status": {"allocatable": {"cpu": format!("{}m", node.cpu),
            "memory": format!("{}Mi", node.memory), "pods": PODS.to_string()}}
    })))
}

pub(crate) fn metric(node: &str, cpu: i64, memory: i64, at: i64) -> ObjectChange {
    let updated = Timestamp::from_second(START + at).unwrap();
    let object: NodeMetric = parsed(json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": node}, "spec": {},
        "status": {"updateTime": updated.to_string(), "nodeMetric": {"nodeUsage":
            {"resources": {"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")}}}}
    }));
    change("nodemetrics.v1alpha1.slo.koordinator.sh", object, false)
}

pub(crate) fn quota(name: &str, max: i64) -> ObjectChange {
    let object: scheduling::ElasticQuota = parsed(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "ns", "labels": {
            "quota.scheduling.koordinator.sh/parent": "koordinator-root-quota"}},
        "spec": {"min": {"cpu": "0"}, "max": {"cpu": format!("{max}m")}}
    }));
    change(
        "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        object,
        false,
    )
}

pub(crate) fn reservation(name: &str, reservation: &Reservation, gone: bool) -> ObjectChange {
    let amounts = json!({"cpu": format!("{}m", reservation.cpu), "memory": format!("{}Mi", reservation.memory)});
    let time = Timestamp::from_second(START).unwrap().to_string();
    let condition = |kind: &str, reason: &str| {
        json!({"type": kind, "status": "True", "reason": reason,
            "lastProbeTime": time, "lastTransitionTime": time})
    };
    let policy = if reservation.restricted {
        "Restricted"
    } else {
        "Aligned"
    };
    let object: scheduling::Reservation = parsed(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name, "creationTimestamp": time},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers":
                [{"name": "c", "image": "i", "resources": {"requests": amounts}}]}},
            "ttl": "0s", "allocateOnce": false, "allocatePolicy": policy,
            "owners": [{"labelSelector": {"matchLabels": {"owner": reservation.owner}}}]
        },
        "status": {"phase": "Available", "nodeName": reservation.node, "allocatable": amounts,
            "conditions": [condition("Scheduled", "Scheduled"), condition("Ready", "Available")]}
    }));
    change(RESERVATIONS, object, gone)
}
