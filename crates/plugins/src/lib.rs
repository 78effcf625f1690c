//! koord-plugins: every scheduling rule, one module each, and the explicit list of them.
//!
//! Invariant: no plugin knows another plugin; [`registry`] is the only place that lists them.

mod args;
mod balanced;
mod basic;
mod coscheduling;
mod device_share;
mod elastic_quota;
mod fit;
mod fit_plus;
mod image_locality;
mod inter_pod_affinity;
mod load_aware;
mod node_affinity;
mod node_ports;
mod numa;
mod pre_bind;
mod preemption;
mod reservation;
mod scarce;
mod scheduling_hint;
mod taints;
mod topology;
mod topology_spread;
mod volumes;

use koord_scheduler::framework::{Factory, Plugin, Registry};
use serde_json::json;

/// Plugins of Kubernetes and Koordinator that configurations may name and that are not here yet.
const ACCEPTED: [&str; 16] = [
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "DynamicResources",
    "DefaultPreemption",
    "GangScheduling",
    "Coscheduling",
    "ElasticQuota",
    "Reservation",
    "NodeNUMAResource",
    "DeviceShare",
    "DefaultPreBind",
    "NodeResourcesFitPlus",
    "ScarceResourceAvoidance",
    "SchedulingHint",
];

/// All plugins of this build, in the order in which they run by default, with kube-scheduler's
/// weights and the weights of the profile that is used without a configuration file.
#[must_use]
pub fn registry() -> Registry {
    let both = |name, weight, build| Factory {
        name,
        default_weight: Some(weight),
        koord_weight: Some(weight),
        build,
    };
    let factories = vec![
        both("SchedulingGates", 1, |_, _| {
            Ok(Box::new(basic::SchedulingGates) as Box<dyn Plugin>)
        }),
        both("PrioritySort", 1, |_, _| Ok(Box::new(basic::PrioritySort))),
        both("NodeUnschedulable", 1, |_, _| {
            Ok(Box::new(basic::NodeUnschedulable))
        }),
        both("NodeName", 1, |_, _| Ok(Box::new(basic::NodeName))),
        both("TaintToleration", 3, |_, _| {
            Ok(Box::new(taints::TaintToleration))
        }),
        both("NodeAffinity", 2, node_affinity::build),
        both("NodePorts", 1, node_ports::build),
        both("NodeResourcesFit", 1, fit::build),
        both("PodTopologySpread", 2, topology_spread::build),
        both("InterPodAffinity", 2, inter_pod_affinity::build),
        both("NodeResourcesBalancedAllocation", 1, balanced::build),
        both("ImageLocality", 1, image_locality::build),
        Factory {
            name: "LoadAwareScheduling",
            default_weight: None,
            koord_weight: Some(1),
            build: load_aware::build,
        },
        both("DefaultBinder", 1, |_, _| {
            Ok(Box::new(basic::DefaultBinder))
        }),
    ];
    let resource = |name: &str| json!({"name": name, "weight": 1});
    let koord_args = [
        (
            "NodeResourcesFit",
            json!({"scoringStrategy": {"type": "LeastAllocated", "resources": [
                resource("cpu"),
                resource("memory"),
                resource(koord_api::resources::BATCH_CPU),
                resource(koord_api::resources::BATCH_MEMORY),
            ]}}),
        ),
        (
            "LoadAwareScheduling",
            json!({
                "filterExpiredNodeMetrics": false,
                "nodeMetricExpirationSeconds": 300,
                "resourceWeights": {"cpu": 1, "memory": 1},
                "usageThresholds": {"cpu": 0, "memory": 0},
                "estimatedScalingFactors": {"cpu": 85, "memory": 70},
            }),
        ),
    ];
    Registry {
        factories,
        accepted: ACCEPTED.to_vec(),
        koord_args: koord_args.into(),
    }
}
