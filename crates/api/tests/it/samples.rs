//! Objects as real clusters hold them.

use koord_api::scheduling::{PodMigrationJob, Reservation};
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_api::{PriorityClass, QosClass, Quantity};
use serde_json::{Value, json};

const NODE_METRIC: &str = include_str!("nodemetric.yaml");

fn round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(object: &Value) -> T {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(&serde_json::to_value(&typed).unwrap(), object);
    typed
}

#[test]
fn a_node_metric_with_every_part_survives_unchanged() {
    let object: Value = serde_saphyr::from_str(NODE_METRIC).unwrap();
    let metric: NodeMetric = round_trip(&object);
    let status = metric.status.unwrap();
    let node = status.node_metric.unwrap();
    assert_eq!(
        node.node_usage.unwrap().resources["cpu"],
        Quantity::from_milli(515)
    );
    assert_eq!(node.aggregated_node_usages.len(), 3);
    let ten = &node.aggregated_node_usages[1];
    assert_eq!(ten.duration.unwrap().as_secs(), 600);
    assert_eq!(
        ten.usage["p99"].resources["memory"].value(),
        5_934_088 << 10
    );
    assert_eq!(status.pods_metric[1].qos, QosClass::Be);
    assert_eq!(status.pods_metric[1].priority, PriorityClass::Batch);
}

#[test]
fn an_object_without_a_spec_can_be_read() {
    let bare = json!({ "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": { "name": "n" } });
    let metric: NodeMetric = serde_json::from_value(bare).unwrap();
    assert_eq!(metric.spec, koord_api::slo::NodeMetricSpec::default());
}

#[test]
fn unknown_values_of_open_enums_are_kept() {
    let object = json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": { "name": "n" },
        "spec": {
            "resourceUsedThresholdWithBE": { "enable": true, "cpuSuppressPolicy": "later" },
            "resourceQOSStrategy": { "beClass": { "networkQOS": { "egressLimit": "50M", "ingressLimit": 40 } } },
            "extensions": { "vendor": { "a": [1, 2] } },
        },
    });
    round_trip::<NodeSLO>(&object);
}

#[test]
fn reservations_and_jobs_keep_their_templates() {
    let reservation = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": { "name": "r" },
        "spec": {
            "template": { "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] } },
            "owners": [{ "labelSelector": { "matchLabels": { "app": "a" } } }],
            "ttl": "1h0m0s",
            "allocateOnce": false,
        },
        "status": { "phase": "Available", "nodeName": "n", "allocatable": { "cpu": "1" } },
    });
    round_trip::<Reservation>(&reservation);
    let job = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "PodMigrationJob",
        "metadata": { "name": "j" },
        "spec": {
            "podRef": { "namespace": "default", "name": "p" },
            "mode": "ReservationFirst",
            "reservationOptions": { "template": { "spec": reservation["spec"] } },
        },
    });
    round_trip::<PodMigrationJob>(&job);
}

#[test]
fn a_node_resource_topology_has_its_fields_at_the_top() {
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": { "name": "n" },
        "topologyPolicies": ["None"],
        "zones": [{
            "name": "node-0",
            "type": "Node",
            "resources": [{ "name": "cpu", "capacity": "4", "allocatable": "4", "available": "4" }],
        }],
    });
    let topology: NodeResourceTopology = round_trip(&object);
    assert_eq!(
        koord_api::topology::zone_id(&topology.spec.zones[0].name),
        Some(0)
    );
}
