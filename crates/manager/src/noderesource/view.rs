//! From API objects to the [`NodeView`] that the formulas take.

use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::extension::Reserved;
use koord_api::priority::{self, PriorityClass};
use koord_api::qos::{self, QosClass};
use koord_api::quantity::{self, Quantity, ResourceList};
use koord_api::slo::{NodeMetricStatus, ResourceMap};
use koord_api::{annotations, resources};
use koord_kube::ObjectKey;
use koord_model::reclaim::{Amount, Measured, NodeView, PodView, pod_request};
use serde::Deserialize;
use std::collections::HashMap;

/// What the manager keeps of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodFacts {
    pub(crate) key: ObjectKey,
    /// The node it is bound to; empty if none.
    pub(crate) node: String,
    /// Whether it is running or pending.
    pub(crate) active: bool,
    priority: PriorityClass,
    qos: QosClass,
    request: Amount,
    numa_nodes: Vec<usize>,
}

impl PodFacts {
    pub(crate) fn of(pod: &Pod) -> Self {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        Self {
            key: ObjectKey::of(pod),
            node: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default(),
            active: matches!(phase, Some("Running" | "Pending")),
            priority: priority::of_pod_with_default(pod),
            qos: qos::of_pod_with_default(pod),
            request: pod_request(pod),
            numa_nodes: numa_nodes(pod),
        }
    }
}

/// The NUMA nodes in the scheduler's annotation.
fn numa_nodes(pod: &Pod) -> Vec<usize> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        #[serde(default)]
        numa_node_resources: Vec<NumaNode>,
    }
    #[derive(Deserialize)]
    struct NumaNode {
        node: usize,
    }
    let text = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(annotations::RESOURCE_STATUS));
    let status = text.and_then(|text| serde_json::from_str::<Status>(text).ok());
    status
        .into_iter()
        .flat_map(|s| s.numa_node_resources)
        .map(|numa| numa.node)
        .collect()
}

/// The view of a node with the pods bound to it and its newest report.
pub(crate) fn node_view<'a>(
    node: &Node,
    metric: &NodeMetricStatus,
    pods: impl IntoIterator<Item = &'a PodFacts>,
) -> NodeView {
    let mut measured: HashMap<(&str, &str), _> = metric
        .pods_metric
        .iter()
        .map(|metric| ((metric.namespace.as_str(), metric.name.as_str()), metric))
        .collect();
    let mut views = Vec::new();
    for pod in pods.into_iter().filter(|pod| pod.active) {
        let metric = measured.remove(&(pod.key.namespace.as_str(), pod.key.name.as_str()));
        views.push(PodView {
            priority: pod.priority,
            qos: pod.qos,
            request: pod.request,
            usage: metric
                .and_then(|metric| metric.pod_usage.as_ref())
                .map(usage),
            numa_nodes: pod.numa_nodes.clone(),
        });
    }
    let dangling = measured.into_values().map(|metric| Measured {
        priority: metric.priority,
        usage: metric.pod_usage.as_ref().map(usage).unwrap_or_default(),
    });
    let host_apps = metric.host_application_metric.iter().map(|app| Measured {
        priority: app.priority,
        usage: app.usage.as_ref().map(usage).unwrap_or_default(),
    });
    let info = metric.node_metric.as_ref();
    let whole = info.and_then(|info| info.node_usage.as_ref());
    let complete = |list: &ResourceList| {
        list.contains_key(resources::CPU) && list.contains_key(resources::MEMORY)
    };
    NodeView {
        capacity: status_amount(node, |status| status.capacity.as_ref()),
        allocatable: status_amount(node, |status| status.allocatable.as_ref()),
        reserved_by_annotation: reserved(node),
        system_usage: info
            .and_then(|info| info.system_usage.as_ref())
            .map(usage)
            .unwrap_or_default(),
        node_usage: whole.filter(|map| complete(&map.resources)).map(usage),
        prod_reclaimable: metric
            .prod_reclaimable_metric
            .as_ref()
            .and_then(|metric| metric.resource.as_ref())
            .map(usage)
            .unwrap_or_default(),
        pods: views,
        dangling: dangling.collect(),
        host_apps: host_apps.collect(),
    }
}

fn usage(map: &ResourceMap) -> Amount {
    let get = |name| map.resources.get(name).copied().unwrap_or_default();
    Amount::new(get(resources::CPU), get(resources::MEMORY))
}

type K8sList =
    std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

fn status_amount(
    node: &Node,
    list: impl Fn(&k8s_openapi::api::core::v1::NodeStatus) -> Option<&K8sList>,
) -> Amount {
    let list = node.status.as_ref().and_then(list);
    let get = |name| read(list, name).unwrap_or_default();
    Amount::new(get(resources::CPU), get(resources::MEMORY))
}

/// An amount of a resource list; `None` if it is absent or cannot be read.
pub(crate) fn read(list: Option<&K8sList>, name: &str) -> Option<Quantity> {
    quantity::parse(list?.get(name)?).ok()
}

/// What the reservation annotation takes away; nothing where it is malformed, with a line in the log.
fn reserved(node: &Node) -> Amount {
    let reserved = Reserved::of(node.metadata.annotations.as_ref()).unwrap_or_else(|error| {
        tracing::warn!(node = node.metadata.name, %error, "ignored");
        None
    });
    reserved.map_or(Amount::ZERO, |reserved| {
        Amount::new(
            reserved.amount(resources::CPU),
            reserved.amount(resources::MEMORY),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn amount(cpu: &str, memory: &str) -> Amount {
        Amount::new(cpu.parse().unwrap(), memory.parse().unwrap())
    }

    #[test]
    fn objects_become_a_view() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {"node.koordinator.sh/reservation":
                "{\"resources\":{\"cpu\":\"8\",\"memory\":\"1Gi\"},\"reservedCPUs\":\"0-1,4,1\"}"}},
            "status": {"capacity": {"cpu": "16", "memory": "32Gi"},
                       "allocatable": {"cpu": "15", "memory": "30Gi"}},
        }))
        .unwrap();
        let used = |cpu: &str, memory: &str| json!({"resources": {"cpu": cpu, "memory": memory}});
        let metric: NodeMetricStatus = serde_json::from_value(json!({
            "nodeMetric": {"nodeUsage": used("5", "6Gi"), "systemUsage": used("1", "2Gi")},
            "podsMetric": [
                {"namespace": "a", "name": "run", "podUsage": used("2", "1Gi"), "priority": "koord-prod"},
                {"namespace": "a", "name": "done", "podUsage": used("1", "1Gi"), "priority": "koord-prod"},
                {"namespace": "a", "name": "lost", "podUsage": used("3", "1Gi"), "priority": "koord-batch"},
            ],
            "hostApplicationMetric": [{"name": "h", "usage": used("1", "1Gi"), "priority": "koord-mid"}],
            "prodReclaimableMetric": {"resource": used("4", "4Gi")},
        }))
        .unwrap();
        let pod = |name: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"namespace": "a", "name": name,
                    "labels": {"koordinator.sh/qosClass": "LSE"},
                    "annotations": {"scheduling.koordinator.sh/resource-status":
                        "{\"numaNodeResources\":[{\"node\":1,\"resources\":{}}]}"}},
                "spec": {"nodeName": "n", "containers": [
                    {"name": "c", "resources": {"requests": {"cpu": "3", "memory": "2Gi"}}}]},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let pods = [
            pod("run", "Running"),
            pod("done", "Succeeded"),
            pod("new", "Pending"),
        ];
        let facts: Vec<_> = pods.iter().map(PodFacts::of).collect();
        assert_eq!(facts[0].node, "n");
        let view = node_view(&node, &metric, &facts);
        assert_eq!(view.capacity, amount("16", "32Gi"));
        assert_eq!(view.allocatable, amount("15", "30Gi"));
        assert_eq!(view.reserved_by_annotation, amount("3", "1Gi"));
        assert_eq!(view.system_usage, amount("1", "2Gi"));
        assert_eq!(view.node_usage, Some(amount("5", "6Gi")));
        assert_eq!(view.prod_reclaimable, amount("4", "4Gi"));
        assert_eq!(view.pods.len(), 2);
        let run = PodView {
            priority: PriorityClass::Prod,
            qos: QosClass::Lse,
            request: amount("3", "2Gi"),
            usage: Some(amount("2", "1Gi")),
            numa_nodes: vec![1],
        };
        assert_eq!(
            view.pods[1],
            PodView {
                usage: None,
                ..run.clone()
            }
        );
        assert_eq!(view.pods[0], run);
        let mut dangling: Vec<_> = view.dangling.iter().map(|m| m.priority).collect();
        dangling.sort();
        assert_eq!(dangling, [PriorityClass::Prod, PriorityClass::Batch]);
        assert_eq!(view.host_apps.len(), 1);
    }

    #[test]
    fn bad_annotations_reserve_nothing() {
        for text in [
            "{",
            "{\"reservedCPUs\":\"3-1\"}",
            "{\"reservedCPUs\":\"x\"}",
            "{}",
        ] {
            let mut node = Node::default();
            let annotation = (annotations::NODE_RESERVATION.to_owned(), text.to_owned());
            node.metadata.annotations = Some([annotation].into());
            assert_eq!(reserved(&node), Amount::ZERO, "{text}");
        }
    }

    #[test]
    fn an_incomplete_node_usage_is_none() {
        let metric: NodeMetricStatus = serde_json::from_value(json!({
            "nodeMetric": {"nodeUsage": {"resources": {"cpu": "5"}}}}))
        .unwrap();
        assert_eq!(node_view(&Node::default(), &metric, []).node_usage, None);
    }
}
