//! Converts API objects to the [`NodeView`] that the formulas take.

use crate::facts::{MetricReport, PackedAmount, PodFacts, PodUsage};
use k8s_openapi::api::core::v1::Node;
use koord_api::extension::ReservedResources;
use koord_api::quantity::{self, Quantity};
use koord_api::resources;
use koord_model::reclaim::{Amount, ClassUsage, NodeView, PodView};
use std::collections::HashMap;

/// Returns the view of a node with the pods bound to it and its newest report.
pub(crate) fn node_view<'a>(
    node: &Node,
    report: &MetricReport,
    pods: impl IntoIterator<Item = &'a PodFacts>,
) -> NodeView {
    let mut measured: HashMap<(&str, &str), &PodUsage> = report
        .pods
        .iter()
        .map(|pod| ((&*pod.namespace, &*pod.name), pod))
        .collect();
    let mut views = Vec::new();
    for pod in pods.into_iter().filter(|pod| pod.active) {
        let metric = measured.remove(&(pod.key.namespace.as_str(), pod.key.name.as_str()));
        views.push(PodView {
            priority: pod.priority,
            qos: pod.qos,
            request: pod.request.amount(),
            usage: metric.and_then(|metric| Some(metric.usage?.amount())),
            numa_nodes: pod.numa_nodes().to_vec(),
        });
    }
    let dangling = measured.into_values().map(|metric| ClassUsage {
        priority: metric.priority,
        usage: metric.usage.map(PackedAmount::amount).unwrap_or_default(),
    });
    NodeView {
        capacity: status_amount(node, |status| status.capacity.as_ref()),
        allocatable: status_amount(node, |status| status.allocatable.as_ref()),
        reserved_by_annotation: reserved(node),
        system_usage: report.system_usage,
        node_usage: report.node_usage,
        prod_reclaimable: report.prod_reclaimable,
        pods: views,
        dangling: dangling.collect(),
        host_apps: report.host_apps.to_vec(),
    }
}

type K8sList =
    std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

fn status_amount(
    node: &Node,
    list: impl Fn(&k8s_openapi::api::core::v1::NodeStatus) -> Option<&K8sList>,
) -> Amount {
    let list = node.status.as_ref().and_then(list);
    let amount = |name| read_amount(list, name).unwrap_or_default();
    Amount::new(amount(resources::CPU), amount(resources::MEMORY))
}

/// Returns an amount in a resource list; `None` if it is absent or invalid.
pub(crate) fn read_amount(list: Option<&K8sList>, name: &str) -> Option<Quantity> {
    quantity::parse(list?.get(name)?).ok()
}

/// Returns the amounts in the reservation annotation; zero, with a log line, if it is invalid.
fn reserved(node: &Node) -> Amount {
    let reserved = ReservedResources::from_annotations(node.metadata.annotations.as_ref()).unwrap_or_else(|error| {
        tracing::warn!(node = node.metadata.name, %error, "ignoring invalid node reservation annotation");
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
    use crate::facts::FieldMask;
    use k8s_openapi::api::core::v1::Pod;
    use koord_api::annotations;
    use koord_api::priority::PriorityClass;
    use koord_api::qos::QosClass;
    use koord_api::slo::NodeMetricStatus;
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
        let facts: Vec<_> = pods
            .iter()
            .map(|pod| PodFacts::from_pod(pod, FieldMask::default()))
            .collect();
        assert_eq!(&*facts[0].node, "n");
        let view = node_view(&node, &MetricReport::from_status(&metric), &facts);
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
            // The whole annotation is ignored, as upstream does.
            "{\"resources\":{\"cpu\":\"2\",\"memory\":\"1Gi\"},\"reservedCPUs\":\"a-b\"}",
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
        assert_eq!(
            node_view(&Node::default(), &MetricReport::from_status(&metric), []).node_usage,
            None
        );
    }
}
