//! Scheduler plugins of koord: one module per plugin, and the registry that lists them.
//!
//! Invariant: no plugin imports another plugin (checked by `cargo xtask tidy`); shared code is in `common`.
//! [`registry`] is the only place that lists plugins.

mod balanced;
mod basic;
mod common;
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
mod scarce_resource_avoidance;
mod scheduling_hint;
mod taints;
mod topology_match;
mod topology_spread;
mod volumes;

use koord_scheduler::framework::{BoxedPlugin, Factory, Order, Registry};
use serde_json::json;
use std::collections::BTreeMap;

/// Returns the registry of all plugins in this build, in their default order, with the weights of
/// kube-scheduler and those of the built-in profile, which is used when there is no configuration file.
#[must_use]
pub fn registry() -> Registry {
    let in_both = |name, weight, build| Factory {
        name,
        default_weight: Some(weight),
        koord_weight: Some(weight),
        build,
    };
    // Enabled only in the built-in profile.
    let koord = |name, build| Factory {
        name,
        default_weight: None,
        koord_weight: Some(1),
        build,
    };
    // Enabled only by a configuration.
    let named = |name, build| Factory {
        name,
        default_weight: None,
        koord_weight: None,
        build,
    };
    let factories = vec![
        in_both("SchedulingGates", 1, |_, _| {
            Ok(Box::new(basic::SchedulingGates) as BoxedPlugin)
        }),
        in_both("PrioritySort", 1, |_, _| Ok(Box::new(basic::PrioritySort))),
        in_both("GangScheduling", 1, |_, _| {
            Ok(Box::new(basic::GangScheduling))
        }),
        in_both("NodeUnschedulable", 1, |_, _| {
            Ok(Box::new(basic::NodeUnschedulable))
        }),
        in_both("NodeName", 1, |_, _| Ok(Box::new(basic::NodeName))),
        in_both("TaintToleration", 3, taints::build),
        in_both("NodeAffinity", 2, node_affinity::build),
        in_both("NodePorts", 1, node_ports::build),
        in_both("NodeResourcesFit", 1, fit::build),
        in_both("VolumeRestrictions", 1, |_, _| {
            Ok(Box::new(volumes::VolumeRestrictions::default()))
        }),
        in_both("NodeVolumeLimits", 1, |_, _| {
            Ok(Box::new(volumes::NodeVolumeLimits::default()))
        }),
        in_both("VolumeBinding", 1, volumes::build_binding),
        in_both("VolumeZone", 1, |_, _| Ok(Box::new(volumes::VolumeZone))),
        in_both("PodTopologySpread", 2, topology_spread::build),
        in_both("InterPodAffinity", 2, inter_pod_affinity::build),
        in_both("DynamicResources", 1, |_, _| {
            Ok(Box::new(basic::DynamicResources))
        }),
        in_both("NodeResourcesBalancedAllocation", 1, balanced::build),
        in_both("ImageLocality", 1, image_locality::build),
        koord("SchedulingHint", scheduling_hint::build),
        Factory {
            name: "LoadAwareScheduling",
            default_weight: None,
            koord_weight: Some(1),
            build: load_aware::build,
        },
        koord("NodeNUMAResource", numa::build),
        Factory {
            name: reservation::NAME,
            default_weight: None,
            koord_weight: Some(5000),
            build: reservation::build,
        },
        koord("Coscheduling", coscheduling::build),
        koord(device_share::NAME, device_share::build),
        koord("ElasticQuota", elastic_quota::build),
        named("NodeResourcesFitPlus", fit_plus::build),
        named("NodeResourceTopologyMatch", topology_match::build),
        named("ScarceResourceAvoidance", scarce_resource_avoidance::build),
        koord(pre_bind::NAME, |_, _| {
            Ok(Box::new(pre_bind::DefaultPreBind))
        }),
        // Last in PostFilter: the other plugins choose victims with more specific knowledge.
        in_both("DefaultPreemption", 1, preemption::build),
        in_both("DefaultBinder", 1, |_, _| {
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
        (
            "ElasticQuota",
            json!({"quotaGroupNamespace": "koordinator-system"}),
        ),
    ];
    Registry {
        factories,
        accepted: Vec::new(),
        before_binding: vec![pre_bind::NAME],
        koord_order: koord_order(),
        koord_args: koord_args.into(),
    }
}

/// Returns [`registry`] with NodeResourceTopologyMatch enabled in the built-in profile, so that pods stay off
/// nodes whose kubelet would reject them. Its cache is on: it accounts for pods that node reports do not
/// include yet.
#[must_use]
pub fn registry_with_topology_match() -> Registry {
    let mut all = registry();
    let name = "NodeResourceTopologyMatch";
    for factory in all.factories.iter_mut().filter(|it| it.name == name) {
        factory.koord_weight = Some(1);
    }
    // At all other extension points, every plugin that implements the point runs.
    for order in all.koord_order.values_mut().filter(|order| !order.alone) {
        order.plugins.push(name);
    }
    let args = json!({"cacheResyncPeriodSeconds": 5});
    all.koord_args.insert(name, args);
    all
}

/// Changes the built-in profile to that of the Helm chart: gangs preempt pods in place of DefaultPreemption, and
/// are placed by the network topology, which needs [`BuildContext::network_topology`]. Load thresholds stay off:
/// they fit machines that do nothing else.
///
/// [`BuildContext::network_topology`]: koord_scheduler::framework::BuildContext::network_topology
pub fn apply_chart_defaults(registry: &mut Registry) {
    let moved = [
        ("preFilter", "Coscheduling", 1),
        ("filter", reservation::NAME, 0),
        ("reserve", reservation::NAME, 0),
    ];
    for (point, plugin, position) in moved {
        if let Some(order) = registry.koord_order.get_mut(point) {
            order.plugins.retain(|name| *name != plugin);
            order.plugins.insert(position, plugin);
        }
    }
    if let Some(order) = registry.koord_order.get_mut("postFilter") {
        order.plugins.retain(|name| *name != "DefaultPreemption");
    }
    let gangs = json!({"enablePreemption": true, "awareNetworkTopology": true});
    registry.koord_args.insert("Coscheduling", gangs);
    let unsupported = json!([{"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"}]);
    let devices = json!({"gpuShareUnsupportedModels": unsupported});
    registry.koord_args.insert(device_share::NAME, devices);
}

/// Returns the order of Koordinator's plugins at each extension point in the built-in profile. It matches the
/// configuration that upstream installs.
fn koord_order() -> BTreeMap<&'static str, Order> {
    let after = |plugins: &[&'static str]| Order {
        plugins: plugins.to_vec(),
        alone: false,
    };
    let alone = |plugins: &[&'static str]| Order {
        plugins: plugins.to_vec(),
        alone: true,
    };
    [
        ("preEnqueue", after(&["Coscheduling"])),
        (
            "preFilter",
            after(&[
                "SchedulingHint",
                "Reservation",
                "NodeNUMAResource",
                "DeviceShare",
                "Coscheduling",
                "ElasticQuota",
            ]),
        ),
        (
            "filter",
            after(&[
                "LoadAwareScheduling",
                "NodeNUMAResource",
                "DeviceShare",
                "Reservation",
            ]),
        ),
        (
            "postFilter",
            alone(&[
                "Reservation",
                "Coscheduling",
                "ElasticQuota",
                "DefaultPreemption",
            ]),
        ),
        ("preScore", after(&["Reservation", "Coscheduling"])),
        (
            "score",
            after(&[
                "LoadAwareScheduling",
                "NodeNUMAResource",
                "DeviceShare",
                "Reservation",
                "Coscheduling",
            ]),
        ),
        (
            "reserve",
            after(&[
                "LoadAwareScheduling",
                "NodeNUMAResource",
                "DeviceShare",
                "Reservation",
                "Coscheduling",
                "ElasticQuota",
            ]),
        ),
        ("permit", after(&["Coscheduling"])),
        (
            "preBind",
            after(&[
                "NodeNUMAResource",
                "DeviceShare",
                "Reservation",
                "Coscheduling",
                "DefaultPreBind",
            ]),
        ),
        ("bind", alone(&["Reservation", "DefaultBinder"])),
        ("postBind", after(&["Coscheduling"])),
    ]
    .into()
}
