//! Caches never change a placement, with everything that Koordinator adds: gangs, quotas, reservations,
//! hints, devices and CPUs, in the built-in profile and in one that packs pods.

use super::metric;
use super::preemption::{
    PreemptionWorld, QUOTA, RESERVATIONS, at, change, change_pod, drain, object, parsed, quota,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use koord_api::scheduling::{Device, Reservation};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, Engine, EngineOptions};
use koord_scheduler::framework::{BuildContext, ObjectChange, Profiles};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

const DEVICES: &str = "devices.v1alpha1.scheduling.koordinator.sh";
const TOPOLOGIES: &str = "noderesourcetopologies.v1alpha2.topology.node.k8s.io";
const GPU: &str = "koordinator.sh/gpu";
const HINT: &str = "internal.scheduling.koordinator.sh/scheduling-hint";
const OWNERS: [&str; 3] = ["x", "y", "z"];
const PRIORITIES: [i32; 4] = [5500, 5500, 9100, 9500];

/// Builds an engine with profile `koord-scheduler` as without a file, and `packer` with its own args.
fn engine(cached: bool, ratio: bool) -> Engine {
    let mut strategy = json!({"type": "MostAllocated",
        "resources": [{"name": "cpu", "weight": 2}, {"name": "memory", "weight": 1}]});
    if ratio {
        strategy["type"] = json!("RequestedToCapacityRatio");
        strategy["requestedToCapacityRatio"] = json!({"shape": [
            {"utilization": 0, "score": 2}, {"utilization": 60, "score": 10},
            {"utilization": 100, "score": 0}]});
    }
    let plus = json!({"resources": {
        "cpu": {"type": "LeastAllocated", "weight": 1},
        "koordinator.sh/gpu-core": {"type": "MostAllocated", "weight": 2}}});
    let scarce = json!({"resources": ["koordinator.sh/gpu-core"]});
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "koord-scheduler"}, {
            "schedulerName": "packer",
            "plugins": {"multiPoint": {"enabled": [
                {"name": "NodeResourcesFitPlus", "weight": 3},
                {"name": "ScarceResourceAvoidance", "weight": 2}]}},
            "pluginConfig": [
                {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}},
                {"name": "NodeResourcesFitPlus", "args": plus},
                {"name": "ScarceResourceAvoidance", "args": scarce},
                {"name": "SchedulingHint", "args": {"maxHintNodes": 2}}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let registry = koord_plugins::registry();
    let profiles = Profiles::build(&config, &registry, &BuildContext::default(), true).unwrap();
    let options = EngineOptions {
        seed: 11,
        max_classes: 4,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&config, profiles, options);
    engine.set_caching(cached);
    engine
}

#[derive(Debug, Clone)]
enum ProfileStep {
    Node {
        name: u8,
        cpu: u8,
        gpus: u8,
        cordoned: bool,
    },
    NodeGone(u8),
    Metric(u8, u8),
    /// `count` equal pods; more than one form a gang.
    Pods {
        shape: u8,
        priority: u8,
        count: u8,
        quota: u8,
        owner: u8,
        hint: u8,
        packed: bool,
    },
    /// Deletes a placed pod.
    Gone(u8),
    /// Deletes a pending pod.
    Withdrawn(u8),
    Confirmed(u8),
    BindFails(u8),
    Quota {
        name: u8,
        max: u8,
    },
    /// Pending reservation; once placed, it is available there.
    Reservation {
        name: u8,
        cpu: u8,
        once: bool,
        policy: u8,
    },
    ReservationGone(u8),
    Wait(u8),
}

fn step() -> impl Strategy<Value = ProfileStep> {
    let byte = any::<u8>;
    let pods = (
        0..12_u8,
        0..4_u8,
        prop::sample::select(vec![1_u8, 1, 1, 2, 3]),
        0..4_u8,
        0..5_u8,
        0..8_u8,
        any::<bool>(),
    );
    prop_oneof![
        3 => (0..6_u8, 2..9_u8, 0..3_u8, prop::bool::weighted(0.1)).prop_map(
            |(name, cpu, gpus, cordoned)| ProfileStep::Node { name, cpu, gpus, cordoned }),
        1 => (0..6_u8).prop_map(ProfileStep::NodeGone),
        1 => (0..6_u8, 0..60_u8).prop_map(|(node, cpu)| ProfileStep::Metric(node, cpu)),
        16 => pods.prop_map(|(shape, priority, count, quota, owner, hint, packed)|
            ProfileStep::Pods { shape, priority, count, quota, owner, hint, packed }),
        4 => byte().prop_map(ProfileStep::Gone),
        1 => byte().prop_map(ProfileStep::Withdrawn),
        6 => byte().prop_map(ProfileStep::Confirmed),
        1 => byte().prop_map(ProfileStep::BindFails),
        1 => (0..2_u8, 2..12_u8).prop_map(|(name, max)| ProfileStep::Quota { name, max }),
        5 => (0..4_u8, 1..4_u8, any::<bool>(), 0..3_u8).prop_map(
            |(name, cpu, once, policy)| ProfileStep::Reservation { name, cpu, once, policy }),
        1 => (0..4_u8).prop_map(ProfileStep::ReservationGone),
        2 => (0..40_u8).prop_map(ProfileStep::Wait),
    ]
}

fn node(name: u8, cpu: u8, gpus: u8, cordoned: bool) -> Arc<Node> {
    let zone = format!("z{}", name % 2);
    let name = format!("n{name}");
    let mut node = json!({
        "metadata": {"name": name, "uid": name, "labels": {
            "zone": zone, "kubernetes.io/hostname": name}},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "12",
            "kubernetes.io/batch-cpu": "3000", "kubernetes.io/batch-memory": "4Gi"}}
    });
    if gpus > 0 {
        let all = (100 * u32::from(gpus)).to_string();
        for kind in ["gpu", "gpu-core", "gpu-memory-ratio"] {
            node["status"]["allocatable"][format!("koordinator.sh/{kind}")] = json!(all);
        }
        let memory = format!("{}Gi", 80 * u32::from(gpus));
        node["status"]["allocatable"]["koordinator.sh/gpu-memory"] = json!(memory);
    }
    Arc::new(parsed(node))
}

fn devices(node: u8, gpus: u8) -> ObjectChange {
    let gpu = |minor: u8| {
        json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": true,
            "resources": {"koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "80Gi"},
            "topology": {"socketID": 0, "nodeID": 0, "pcieID": "pci0"}})
    };
    let all: Value = (0..gpus).map(gpu).collect();
    let device: Device = parsed(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": format!("n{node}")}, "spec": {"devices": all}
    }));
    change(DEVICES, device, false)
}

/// Builds a topology of two NUMA nodes with two threads per core.
fn topology(node: u8, cpus: u8) -> ObjectChange {
    let half = cpus.div_ceil(2).max(1);
    let cpu = |id: u8| {
        let zone = id / half;
        json!({"id": id, "core": id / 2, "socket": zone, "node": zone})
    };
    let detail: Value = (0..cpus).map(cpu).collect();
    let zone = |id: u8| {
        let own_cpus = if id == 0 { half } else { cpus - half };
        let resource = |name: &str, amount: String| {
            json!({"name": name, "capacity": amount,
            "allocatable": amount, "available": amount})
        };
        json!({"name": format!("node-{id}"), "type": "Node", "resources": [
            resource("cpu", own_cpus.to_string()), resource("memory", "8Gi".to_owned())]})
    };
    let object: NodeResourceTopology = parsed(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": format!("n{node}"), "annotations": {
            "node.koordinator.sh/cpu-topology": json!({"detail": detail}).to_string()}},
        "topologyPolicies": [], "zones": [zone(0), zone(1)]
    }));
    change(TOPOLOGIES, object, false)
}

fn hint(number: u8) -> Option<Value> {
    Some(match number {
        0 => json!({"preferredNodeNames": ["n1", "gone", "n2"]}),
        1 => json!({"preferredNodeNames": ["n5", "n4", "n3"]}),
        2 => json!({"nodeNames": ["n0", "n2", "n4"], "preferredNodeNames": ["n4"]}),
        _ => return None,
    })
}

fn pod(name: &str, shape: u8, priority: u8, quota: u8, owner: u8, packed: bool) -> Value {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let app = format!("a{}", shape % 3);
    let term =
        |key: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    let mut requests = json!({"cpu": "1", "memory": "1Gi"});
    let mut labels = json!({"app": app});
    let mut spec = json!({
        "schedulerName": if packed { "packer" } else { "koord-scheduler" },
        "priority": PRIORITIES[usize::from(priority)],
        "containers": [{"name": "c"}]
    });
    match shape {
        0 => requests["cpu"] = json!("2"),
        1 => requests["cpu"] = json!("3500m"),
        2 => requests[GPU] = json!("50"),
        3 => requests[GPU] = json!("100"),
        4 => spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]),
        5 => spec["nodeSelector"] = json!({"zone": "z1"}),
        6 => {
            spec["affinity"] = json!({"podAntiAffinity":
            {required: [term("kubernetes.io/hostname")]}})
        }
        7 => {
            spec["affinity"] = json!({"podAffinity":
            {preferred: [{"weight": 10, "podAffinityTerm": term("zone")}]}})
        }
        8 => {
            requests = json!({"kubernetes.io/batch-cpu": "700",
                "kubernetes.io/batch-memory": "512Mi"});
        }
        9 => {
            // It gets exclusive CPUs.
            requests["cpu"] = json!("2");
            spec["priority"] = json!(9100);
            labels["koordinator.sh/qosClass"] = json!("LSR");
        }
        _ => {}
    }
    spec["containers"][0]["resources"] = json!({"requests": requests, "limits": requests});
    if quota < 2 {
        labels[QUOTA] = json!(format!("q{quota}"));
    }
    if let Some(owner) = OWNERS.get(usize::from(owner)) {
        labels["owner"] = json!(owner);
    }
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels,
            "annotations": {}},
        "spec": spec,
        "status": {"startTime": at(0)}
    })
}

/// Builds a reservation for two of the owners.
fn reservation(
    name: u8,
    cpu: u8,
    once: bool,
    policy: u8,
    node: Option<&String>,
    gone: bool,
) -> ObjectChange {
    let first = usize::from(name) % 3;
    let owner = |at: usize| json!({"labelSelector": {"matchLabels": {"owner": OWNERS[at % 3]}}});
    let name = format!("r{name}");
    let amounts = json!({"cpu": cpu, "memory": "4Gi"});
    let time = at(0);
    let condition = |kind: &str, reason: &str| {
        json!({"type": kind, "status": "True", "reason": reason,
            "lastProbeTime": time, "lastTransitionTime": time})
    };
    let mut value = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name, "creationTimestamp": time},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "priority": 9100,
                "containers": [{"name": "c", "image": "i", "resources": {"requests": amounts}}]}},
            "ttl": "0s", "allocateOnce": once, "owners": [owner(first), owner(first + 1)]
        }
    });
    if policy > 0 {
        value["spec"]["allocatePolicy"] = json!(["Aligned", "Restricted"][usize::from(policy) - 1]);
    }
    if let Some(node) = node {
        value["status"] = json!({"phase": "Available", "nodeName": node, "allocatable": amounts,
            "conditions": [condition("Scheduled", "Scheduled"), condition("Ready", "Available")]});
    }
    change(RESERVATIONS, parsed::<Reservation>(value), gone)
}

fn notify(engines: &mut [Engine; 2], change: &ObjectChange, now: Timestamp) {
    for engine in engines {
        engine.object_changed(change, now);
    }
}

/// Applies a step to both engines.
fn play(
    step: &ProfileStep,
    engines: &mut [Engine; 2],
    world: &mut PreemptionWorld,
    now: Timestamp,
) {
    let deleted = |engines: &mut [Engine; 2], world: &mut PreemptionWorld, name: Option<String>| {
        let Some(name) = name else { return };
        for engine in engines {
            engine.pod_deleted(&object(&world.pods[&name]), now);
        }
        world.remove(&name);
    };
    match *step {
        ProfileStep::Node {
            name,
            cpu,
            gpus,
            cordoned,
        } => {
            for engine in engines.iter_mut() {
                engine.node_applied(node(name, cpu, gpus, cordoned), now);
            }
            notify(engines, &devices(name, gpus), now);
            notify(engines, &topology(name, cpu), now);
        }
        ProfileStep::NodeGone(name) => {
            for engine in engines {
                engine.node_deleted(&format!("n{name}"), now);
            }
        }
        ProfileStep::Metric(node, cpu) => notify(engines, &metric(node, cpu, now), now),
        ProfileStep::Pods {
            shape,
            priority,
            count,
            quota,
            owner,
            hint: hinted,
            packed,
        } => {
            let first = world.pods.len();
            for number in first..first + usize::from(count) {
                let name = format!("p{number}");
                let mut pod = pod(&name, shape, priority, quota, owner, packed);
                let annotations = &mut pod["metadata"]["annotations"];
                if let Some(hint) = hint(hinted) {
                    annotations[HINT] = json!(hint.to_string());
                }
                if count > 1 {
                    // Some gangs are not strict.
                    let mode = if first.is_multiple_of(3) {
                        "NonStrict"
                    } else {
                        "Strict"
                    };
                    for (key, value) in [
                        ("name", format!("g{first}")),
                        ("min-available", count.to_string()),
                        ("waiting-time", "10s".to_owned()),
                        ("mode", mode.to_owned()),
                    ] {
                        annotations[format!("gang.scheduling.koordinator.sh/{key}")] = json!(value);
                    }
                }
                for engine in engines.iter_mut() {
                    engine.pod_applied(object(&pod), now);
                }
                world.waiting.push(name.clone());
                world.pods.insert(name, pod);
            }
        }
        ProfileStep::Gone(number) => {
            // Evicted pods first.
            let from = if world.evicting.is_empty() {
                &world.placed
            } else {
                &world.evicting
            };
            let name = PreemptionWorld::pick(from, number);
            deleted(engines, world, name);
        }
        ProfileStep::Withdrawn(number) => {
            let name = PreemptionWorld::pick(&world.waiting, number);
            deleted(engines, world, name);
        }
        ProfileStep::Confirmed(number) => {
            let placed = world.placed.clone();
            change_pod(engines, world, &placed, number, now, |pod| {
                if let Some(node) = pod["assumed"].as_str().map(str::to_owned) {
                    pod["spec"]["nodeName"] = json!(node);
                }
            });
        }
        ProfileStep::BindFails(number) => {
            let assumed = world.placed.iter();
            let assumed = assumed.filter(|name| !world.pods[*name]["spec"]["nodeName"].is_string());
            if let Some(name) = PreemptionWorld::pick(&assumed.cloned().collect::<Vec<_>>(), number)
            {
                for engine in engines {
                    let error = BindError {
                        message: "conflict".to_owned(),
                        gone: false,
                    };
                    engine.bind_finished(&name, Err(error), now);
                }
                world.remove(&name);
                world.waiting.push(name);
            }
        }
        ProfileStep::Quota { name, max } => notify(engines, &quota(name, max), now),
        ProfileStep::Reservation {
            name,
            cpu,
            once,
            policy,
        } => {
            let node = world.reserved.get(&format!("r{name}"));
            notify(
                engines,
                &reservation(name, cpu, once, policy, node, false),
                now,
            );
        }
        ProfileStep::ReservationGone(name) => {
            let node = world.reserved.remove(&format!("r{name}"));
            notify(
                engines,
                &reservation(name, 1, false, 0, node.as_ref(), true),
                now,
            );
        }
        ProfileStep::Wait(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn koordinator_profiles_place_equally_with_caches(
        steps in prop::collection::vec(step(), 40..140),
        ratio in any::<bool>(),
    ) {
        let mut engines = [engine(true, ratio), engine(false, ratio)];
        let mut world = PreemptionWorld::default();
        let mut now = Timestamp::from_second(1_700_000_000).unwrap();
        for name in 0..4 {
            let step = ProfileStep::Node { name, cpu: 4 + name, gpus: name % 3, cordoned: false };
            play(&step, &mut engines, &mut world, now);
        }
        for name in 0..2 {
            play(&ProfileStep::Quota { name, max: 6 }, &mut engines, &mut world, now);
        }
        for step in steps {
            now += SignedDuration::from_millis(400);
            if let ProfileStep::Wait(seconds) = step {
                now += SignedDuration::from_secs(seconds.into());
            }
            play(&step, &mut engines, &mut world, now);
            let [remembers, looks] = &mut engines;
            let a = drain(remembers, now, Some(&mut world));
            let b = drain(looks, now, None);
            prop_assert_eq!(a, b, "after {:?}", step);
            prop_assert!(remembers.cluster().nodes().books_balance() && looks.cluster().nodes().books_balance());
        }
        prop_assert_eq!(engines[0].classes().mismatches(), 0, "every signature is complete");
    }
}
