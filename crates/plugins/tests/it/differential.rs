//! Compares the engine with caches to the exhaustive one: both decide the same after any sequence of events.

pub(crate) mod preemption;
mod profiles;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use koord_api::slo::NodeMetric;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, Engine, EngineOptions, Output, Point};
use koord_scheduler::framework::{Action, BuildContext, ObjectChange, Profiles};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

const KIND: &str = "nodemetrics.v1alpha1.slo.koordinator.sh";

/// Builds an engine with every plugin enabled, low thresholds, node preferences and aggregation.
fn engine(cached: bool, aggregated: bool) -> Engine {
    let mut load = json!({
        "usageThresholds": {"cpu": 60, "memory": 80},
        "prodUsageThresholds": {"cpu": 40},
        "nodeMetricExpirationSeconds": 100,
        "dominantResourceWeight": 1,
        "resourceWeights": {"cpu": 1, "memory": 2}
    });
    if aggregated {
        load["aggregated"] = json!({"usageThresholds": {"cpu": 50},
            "usageAggregationType": "p95", "scoreAggregationType": "p95"});
    }
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling", "weight": 2}]}},
            "pluginConfig": [{"name": "LoadAwareScheduling", "args": load}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let registry = koord_plugins::registry();
    let profiles = Profiles::build(&config, &registry, &BuildContext::default(), false).unwrap();
    let mut engine = Engine::new(
        &config,
        profiles,
        EngineOptions {
            seed: 7,
            max_classes: 3,
            class_bytes: 4000,
            // One of the two engines filters in several threads.
            parallel_rows: if cached { 2 } else { usize::MAX },
        },
    );
    engine.set_caching(cached);
    // Pods of these shapes have no own constraints, so the default spread constraints apply.
    for shape in [25, 26] {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": format!("s{shape}"), "namespace": "ns"},
            "spec": {"selector": {"app": format!("{shape}")}}
        }))
        .unwrap();
        let change = ObjectChange {
            kind: "services.v1.",
            action: Action::ADD,
            old: None,
            new: Arc::new(service),
        };
        let change = engine.plugins().as_delivered(change);
        engine.object_changed(&change, Timestamp::UNIX_EPOCH);
    }
    engine
}

#[derive(Debug, Clone)]
enum DifferentialStep {
    Node {
        name: u8,
        cpu: u8,
        zone: u8,
        taint: u8,
        cordoned: bool,
    },
    NodeGone(u8),
    Metric {
        node: u8,
        cpu: u8,
        age: u8,
    },
    Pod {
        shape: u8,
        priority: u8,
    },
    PodGone(u8),
    BindFails(u8),
    Confirm(u8),
    Wait(u8),
}

fn step() -> impl Strategy<Value = DifferentialStep> {
    prop_oneof![
        3 => (0..9_u8, 1..6_u8, 0..4_u8, 0..6_u8, prop::bool::weighted(0.1)).prop_map(
            |(name, cpu, zone, taint, cordoned)| DifferentialStep::Node { name, cpu, zone, taint, cordoned }
        ),
        1 => (0..9_u8).prop_map(DifferentialStep::NodeGone),
        3 => (0..9_u8, 0..40_u8, 0..120_u8)
            .prop_map(|(node, cpu, age)| DifferentialStep::Metric { node, cpu, age }),
        18 => (0..29_u8, 0..3_u8).prop_map(|(shape, priority)| DifferentialStep::Pod { shape, priority }),
        2 => any::<u8>().prop_map(DifferentialStep::PodGone),
        1 => any::<u8>().prop_map(DifferentialStep::BindFails),
        2 => any::<u8>().prop_map(DifferentialStep::Confirm),
        1 => (0..90_u8).prop_map(DifferentialStep::Wait),
    ]
}

fn node(name: u8, cpu: u8, zone: u8, taint: u8, cordoned: bool) -> Arc<Node> {
    let taints = match taint {
        0 => json!([{"key": "dedicated", "value": "a", "effect": "NoSchedule"}]),
        1 => json!([{"key": "slow", "effect": "PreferNoSchedule"}]),
        2 => json!([{"key": "slow", "effect": "PreferNoSchedule"},
            {"key": "old", "effect": "PreferNoSchedule"}]),
        _ => json!([]),
    };
    let name = format!("n{name}");
    let mut labels = json!({"kubernetes.io/hostname": name});
    // Some nodes have no zone.
    if zone < 3 {
        labels["zone"] = json!(format!("z{zone}"));
        labels["topology.kubernetes.io/zone"] = json!(format!("z{zone}"));
    }
    let value = json!({
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": cordoned},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "12",
            "kubernetes.io/batch-cpu": "3000", "kubernetes.io/batch-memory": "4Gi"},
            "images": [{"names": [format!("big:{}", cpu % 2)], "sizeBytes": 900_000_000}]}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn metric(node: u8, cpu: u8, updated: Timestamp) -> ObjectChange {
    let usage =
        json!({"resources": {"cpu": format!("{}m", u32::from(cpu) * 100), "memory": "1Gi"}});
    let metric: NodeMetric = serde_json::from_value(json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": format!("n{node}")}, "spec": {},
        "status": {"updateTime": updated.to_string(), "nodeMetric": {
            "nodeUsage": usage,
            "aggregatedNodeUsages": [{"usage": {"p95": usage}, "duration": "5m0s"}]
        }}
    }))
    .unwrap();
    ObjectChange {
        kind: KIND,
        action: Action::UPDATE,
        old: None,
        new: Arc::new(metric),
    }
}

fn pod(number: usize, shape: u8, priority: u8) -> Pod {
    let priority = [9100, 7100, 5100][usize::from(priority)];
    let mut spec = json!({
        "schedulerName": "koord-scheduler",
        "priority": priority,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "300m", "memory": "256Mi"}}}]
    });
    let term = |key: &str, app: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    let spread = |key: &str, when: &str| {
        json!([{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
            "labelSelector": {"matchExpressions": [
                {"key": "app", "operator": "In", "values": ["12", "13", "14", "19", "23", "24", "27"]}]}}])
    };
    let preferred = |weight: u8, zone: &str| {
        json!({"weight": weight, "preference": {"matchExpressions": [
            {"key": "zone", "operator": "In", "values": [zone]}]}})
    };
    match shape {
        0 => spec["containers"][0]["resources"]["requests"]["cpu"] = json!("1300m"),
        1 => spec["nodeSelector"] = json!({"zone": "z1"}),
        2 => spec["tolerations"] = json!([{"key": "dedicated", "operator": "Exists"}]),
        3 => spec["tolerations"] = json!([{"key": "slow", "operator": "Exists"}]),
        4 => {
            let terms = [preferred(10, "z0"), preferred(3, "z2")];
            spec["affinity"] = json!({"nodeAffinity":
                {"preferredDuringSchedulingIgnoredDuringExecution": terms}});
        }
        5 => {
            spec["priority"] = json!(5500);
            spec["containers"][0]["resources"]["requests"] =
                json!({"kubernetes.io/batch-cpu": "700", "kubernetes.io/batch-memory": "512Mi"});
        }
        6 => spec["containers"][0]["resources"] = Value::Null,
        10 => spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]),
        11 => spec["containers"][0]["image"] = json!("big:1"),
        12 => spec["topologySpreadConstraints"] = spread("zone", "DoNotSchedule"),
        13 => spec["topologySpreadConstraints"] = spread("kubernetes.io/hostname", "DoNotSchedule"),
        14 => {
            spec["topologySpreadConstraints"] = spread("zone", "ScheduleAnyway");
            spec["nodeSelector"] = json!({"zone": "z2"});
        }
        15 => {
            let terms = [preferred(10, "z0"), preferred(3, "z2")];
            spec["affinity"] = json!({
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    [term("kubernetes.io/hostname", "15")]}
            });
        }
        16 => {
            spec["affinity"] = json!({"podAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": [term("zone", "12")]}});
        }
        17 => {
            let weighted = |weight: u8, app: &str| json!({"weight": weight, "podAffinityTerm": term("zone", app)});
            spec["affinity"] = json!({
                "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
                    [weighted(10, "17"), weighted(3, "12")]},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
                    [weighted(30, "13")]}
            });
        }
        21 => spec["nodeSelector"] = json!({"kubernetes.io/hostname": format!("n{}", number % 10)}),
        22 => {
            let hosts: Vec<String> = (0..2)
                .map(|at| format!("n{}", (number + at) % 10))
                .collect();
            let host = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": hosts});
            spec["affinity"] = json!({"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchExpressions": [host]}]},
            }});
        }
        23 => {
            let (zones, hosts) = (
                spread("zone", "ScheduleAnyway"),
                spread("kubernetes.io/hostname", "ScheduleAnyway"),
            );
            spec["topologySpreadConstraints"] = json!([zones[0], hosts[0]]);
        }
        24 => {
            spec["topologySpreadConstraints"] = spread("kubernetes.io/hostname", "ScheduleAnyway");
            spec["affinity"] = json!({"nodeAffinity":
                {"preferredDuringSchedulingIgnoredDuringExecution": [preferred(10, "z0")]}});
        }
        27 => {
            let (zones, hosts) = (
                spread("zone", "DoNotSchedule"),
                spread("kubernetes.io/hostname", "ScheduleAnyway"),
            );
            spec["topologySpreadConstraints"] = json!([zones[0], hosts[0]]);
        }
        28 => {
            spec["affinity"] = json!({"podAntiAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution":
                    [term("zone", "28"), term("kubernetes.io/hostname", "27")]}});
        }
        18..=20 => {
            // Like DaemonSet pods; some of the nodes do not exist.
            let count = [1, 3, 10][usize::from(shape) - 18];
            let names: Vec<String> = (0..count)
                .map(|at| format!("n{}", (number + at) % 10))
                .collect();
            let field = json!({"key": "metadata.name", "operator": "In", "values": names});
            spec["affinity"] = json!({"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchFields": [field]}]},
                "preferredDuringSchedulingIgnoredDuringExecution":
                    [preferred(10, "z0"), preferred(3, "z2")],
            }});
            if number.is_multiple_of(3) {
                spec["topologySpreadConstraints"] = spread("zone", "DoNotSchedule");
                spec["affinity"]["podAffinity"] = json!({
                    "preferredDuringSchedulingIgnoredDuringExecution":
                        [{"weight": 5, "podAffinityTerm": term("zone", "17")}]
                });
            }
        }
        _ => {}
    }
    let name = format!("p{number}");
    let value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name,
            "labels": {"app": format!("{shape}")}},
        "spec": spec
    });
    serde_json::from_value(value).unwrap()
}

/// Returns the outputs of an engine as text.
fn drain(engine: &mut Engine, now: Timestamp, placed: &mut Vec<(Pod, String)>) -> Vec<String> {
    let mut out = Vec::new();
    for _ in 0..200 {
        if engine.schedule_one(now).is_none() {
            break;
        }
        for output in engine.take_outputs() {
            out.push(match output {
                Output::Bind(bind) => {
                    placed.push(((*bind.pod.object.pod).clone(), bind.node.to_string()));
                    format!("{} -> {}", bind.pod.name, bind.node)
                }
                Output::Failed(failure) => format!("{}: {}", failure.pod.name, failure.message),
                Output::Problem(problem) => problem.message,
                other => format!("{other:?}"),
            });
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn cached_equals_exhaustive(
        steps in prop::collection::vec(step(), 1..120),
        aggregated in any::<bool>(),
    ) {
        let mut engines = [engine(true, aggregated), engine(false, aggregated)];
        let mut now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut pods = 0;
        let mut placed: [Vec<(Pod, String)>; 2] = Default::default();
        for step in steps {
            now += jiff::SignedDuration::from_millis(400);
            let pick = |n: u8, from: &[(Pod, String)]| {
                (!from.is_empty()).then(|| usize::from(n) % from.len())
            };
            if let DifferentialStep::Wait(seconds) = step {
                now += jiff::SignedDuration::from_secs(seconds.into());
            }
            pods += usize::from(matches!(step, DifferentialStep::Pod { .. }));
            for (engine, placed) in engines.iter_mut().zip(&mut placed) {
                match step {
                    DifferentialStep::Node { name, cpu, zone, taint, cordoned } => {
                        engine.node_applied(node(name, cpu, zone, taint, cordoned), now);
                    }
                    DifferentialStep::NodeGone(name) => engine.node_deleted(&format!("n{name}"), now),
                    DifferentialStep::Metric { node, cpu, age } => {
                        let updated = now - jiff::SignedDuration::from_secs(age.into());
                        engine.object_changed(&metric(node, cpu, updated), now);
                    }
                    DifferentialStep::Pod { shape, priority } => {
                        engine.pod_applied(Arc::new(pod(pods, shape, priority)), now);
                    }
                    DifferentialStep::PodGone(n) => if let Some(at) = pick(n, placed) {
                        engine.pod_deleted(&placed.swap_remove(at).0, now);
                    },
                    DifferentialStep::BindFails(n) => if let Some(at) = pick(n, placed) {
                        let (pod, _) = placed[at].clone();
                        let uid = pod.metadata.uid.unwrap_or_default();
                        if engine.cluster().placement(&uid).is_some_and(|(_, assumed)| assumed) {
                            let message = "conflict".to_owned();
                            engine.bind_finished(&uid, Err(BindError { message, gone: false }), now);
                            placed.swap_remove(at);
                        }
                    },
                    DifferentialStep::Confirm(n) => if let Some(at) = pick(n, placed) {
                        let (mut pod, node) = placed[at].clone();
                        if let Some(spec) = &mut pod.spec {
                            spec.node_name = Some(node);
                        }
                        engine.pod_applied(Arc::new(pod), now);
                    },
                    DifferentialStep::Wait(_) => {}
                }
            }
            let [a, b] = &mut engines;
            let [pa, pb] = &mut placed;
            prop_assert_eq!(drain(a, now, pa), drain(b, now, pb));
            prop_assert!(a.cluster().nodes().books_balance() && b.cluster().nodes().books_balance());
            prop_assert!(a.classes().memory_balances());
        }
        prop_assert_eq!(engines[0].classes().mismatches(), 0, "every signature is complete");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Many pods with only spread or affinity constraints, on nodes of which some have no zone.
    #[test]
    fn zone_candidates_decide_like_all_nodes(
        zones in prop::collection::vec(0..4_u8, 4..9),
        shapes in prop::collection::vec(prop_oneof![12..18_u8, 23..29_u8], 10..60),
        leaving in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut engines = [engine(true, false), engine(false, false)];
        let mut placed: [Vec<(Pod, String)>; 2] = Default::default();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut outputs: [Vec<String>; 2] = Default::default();
        for ((engine, placed), outputs) in engines.iter_mut().zip(&mut placed).zip(&mut outputs) {
            for (name, zone) in (0..9).zip(&zones) {
                engine.node_applied(node(name, 30, *zone, 6, false), now);
            }
            for (number, shape) in shapes.iter().enumerate() {
                engine.pod_applied(Arc::new(pod(number, *shape, 0)), now);
                outputs.extend(drain(engine, now, placed));
                if let Some(gone) = leaving.get(number) && !placed.is_empty() {
                    let at = usize::from(*gone) % placed.len();
                    engine.pod_deleted(&placed.swap_remove(at).0, now);
                }
            }
        }
        let [a, b] = placed.map(|placed| {
            placed.into_iter().map(|(pod, node)| (pod.metadata.name, node)).collect::<Vec<_>>()
        });
        prop_assert_eq!(a, b);
        prop_assert_eq!(&outputs[0], &outputs[1]);
    }
}

#[test]
fn named_hosts_are_filtered_alone() {
    let mut engines = [engine(true, false), engine(false, false)];
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    let mut placed: [Vec<(Pod, String)>; 2] = Default::default();
    let mut judged = Vec::new();
    for (engine, placed) in engines.iter_mut().zip(&mut placed) {
        for name in 0..9 {
            engine.node_applied(node(name, 30, name % 3, 6, false), now);
        }
        let _ = engine.telemetry.take_measures();
        for number in 0..40 {
            engine.pod_applied(Arc::new(pod(number, 22, 0)), now);
            let _ = drain(engine, now, placed);
        }
        let measures = engine.telemetry.take_measures();
        let fit = measures.evaluations.iter().find(|((plugin, point, _), _)| {
            *plugin == "NodeResourcesFit" && *point == Point::Filter
        });
        judged.push(fit.map(|(_, count)| *count));
    }
    let [a, b] = placed.map(|placed| {
        placed
            .into_iter()
            .map(|(pod, node)| (pod.metadata.name, node))
            .collect::<Vec<_>>()
    });
    assert_eq!(a.len(), 40);
    assert_eq!(a, b);
    // Two hosts each; one of the ten names has no node.
    assert_eq!(judged[0], Some(72));
}
