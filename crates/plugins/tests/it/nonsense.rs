//! Absurd amounts in every kind of object that other components write: no computation overflows, and once
//! they are corrected, the scheduler's accounting is as before.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::scheduling::{Device, ElasticQuota, Reservation};
use koord_api::slo::NodeMetric;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_model::resources::{CPU, MEMORY};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions, Output};
use koord_scheduler::framework::{Action, BuildContext, ObjectChange, Profiles};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

const METRICS: &str = "nodemetrics.v1alpha1.slo.koordinator.sh";
const TOPOLOGIES: &str = "noderesourcetopologies.v1alpha2.topology.node.k8s.io";
const DEVICES: &str = "devices.v1alpha1.scheduling.koordinator.sh";
const RESERVATIONS: &str = "reservations.v1alpha1.scheduling.koordinator.sh";
const QUOTAS: &str = "elasticquotas.v1alpha1.scheduling.sigs.k8s.io";

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn read<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Engine with all plugins, and nodes `n` and `other`, which differ only in objects about `n`.
struct TwoNodeEngine(Engine);

impl TwoNodeEngine {
    fn new(strategy: &str) -> Self {
        let scoring = json!({"scoringStrategy": {"type": strategy}});
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": "koord-scheduler",
                "plugins": {"multiPoint": {"enabled": [{"name": "NodeResourceTopologyMatch"}]}},
                "pluginConfig": [
                    {"name": "NodeNUMAResource", "args": scoring},
                    {"name": "NodeResourceTopologyMatch", "args": scoring},
                    {"name": "LoadAwareScheduling", "args": {
                        "aggregated": {"usageThresholds": {"memory": 95}, "usageAggregationType": "p95"},
                        "allowCustomizeEstimation": true}}]}]
        });
        let config = Configuration::parse(&config.to_string()).unwrap();
        let context = BuildContext::default();
        let registry = koord_plugins::registry();
        let profiles = Profiles::build(&config, &registry, &context, true).unwrap();
        let mut scene = Self(Engine::new(&config, profiles, EngineOptions::default()));
        for name in ["n", "other"] {
            scene.node(name, "8", "64Gi", json!({}));
        }
        scene
    }

    fn node(&mut self, name: &str, cpu: &str, memory: &str, annotations: Value) {
        let node: Node = read(json!({
            "metadata": {"name": name, "uid": name, "annotations": annotations,
                "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110",
                    "koordinator.sh/gpu": "200", "koordinator.sh/gpu-core": "200",
                    "koordinator.sh/gpu-memory": "160Gi", "koordinator.sh/gpu-memory-ratio": "200"},
                "images": [{"names": ["i:latest"], "sizeBytes": i64::MAX},
                    {"names": ["j:latest"], "sizeBytes": i64::MAX}]}
        }));
        self.0.node_applied(Arc::new(node), now());
    }

    fn object<K: DeserializeOwned + Send + Sync + 'static>(
        &mut self,
        kind: &'static str,
        value: Value,
    ) {
        let change = ObjectChange {
            kind,
            action: Action::ADD,
            old: None,
            new: Arc::new(read::<K>(value)),
        };
        let change = self.0.plugins().as_delivered(change);
        self.0.object_changed(&change, now());
    }

    /// Schedules pods of every kind. Returns the results.
    fn all_kinds(&mut self, from: usize) -> Vec<String> {
        let annotated = |key: &str, value: &str| json!({"annotations": {key: value}});
        let aligned = |policy: &str| {
            let spec = json!({"numaTopologyPolicy": policy}).to_string();
            annotated("scheduling.koordinator.sh/numa-topology-spec", &spec)
        };
        let plain = json!({"cpu": "1", "memory": "1Gi"});
        let gpu = json!({"cpu": "1", "memory": "1Gi", "koordinator.sh/gpu": "100"});
        let huge = json!({"cpu": "1E", "memory": "8Ei", "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "8Ei", "example.com/x": "8E"});
        let factor = r#"{"cpu":9223372036854775807,"memory":9223372036854775807}"#;
        let pods = [
            (plain.clone(), json!({})),
            (
                plain.clone(),
                json!({"labels": {"koordinator.sh/qosClass": "LSR"}}),
            ),
            (plain.clone(), aligned("BestEffort")),
            (json!({"cpu": "6", "memory": "1Gi"}), aligned("Restricted")),
            (plain.clone(), aligned("SingleNUMANode")),
            (gpu, json!({})),
            (plain.clone(), json!({"labels": {"app": "web"}})),
            (
                plain.clone(),
                json!({"labels": {"quota.scheduling.koordinator.sh/name": "q"}}),
            ),
            (
                plain,
                annotated(
                    "scheduling.koordinator.sh/load-estimated-scaling-factors",
                    factor,
                ),
            ),
            (huge.clone(), json!({})),
            (huge.clone(), aligned("Restricted")),
            (huge, json!({"labels": {"app": "web"}})),
        ];
        let mut results = Vec::new();
        for (at, (requests, meta)) in pods.into_iter().enumerate() {
            let name = format!("p{}", from + at);
            self.pod(&name, None, &requests, meta);
            while self.0.schedule_one(now()).is_some() {}
            let outputs = self.0.take_outputs();
            results.extend(outputs.iter().filter_map(|output| match output {
                Output::Bind(bind) => Some(format!("{} on {}", bind.pod.name, bind.node)),
                Output::Failed(failure) => {
                    Some(format!("{}: {}", failure.pod.name, failure.message))
                }
                _ => None,
            }));
            self.0.pod_left(&name, now());
        }
        results
    }

    fn pod(&mut self, name: &str, node: Option<&str>, requests: &Value, meta: Value) {
        let resources = json!({"requests": requests, "limits": requests});
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"schedulerName": "koord-scheduler", "nodeName": node, "priority": 9500, "containers": [
                {"name": "c", "image": "i", "resources": resources}, {"name": "d", "image": "j"}]}
        });
        for (field, value) in meta.as_object().unwrap() {
            pod["metadata"][field] = value.clone();
        }
        self.0.pod_applied(Arc::new(read::<Pod>(pod)), now());
    }
}

fn topology(cpu: &str, memory: &str, annotations: Value) -> Value {
    let zone = |id: u32| {
        let amount = |name: &str, text: &str| json!({"name": name, "capacity": text, "allocatable": text, "available": text});
        json!({"name": format!("node-{id}"), "type": "Node",
            "resources": [amount("cpu", cpu), amount("memory", memory)]})
    };
    let cpu = |id: u32| json!({"id": id, "core": id / 2, "socket": 0, "node": id / 4});
    let detail: Vec<Value> = (0..8).map(cpu).collect();
    let mut all = annotations;
    all["node.koordinator.sh/cpu-topology"] = json!(json!({"detail": detail}).to_string());
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": "n", "annotations": all},
        "attributes": [{"name": "topologyManagerPolicy", "value": "restricted"},
            {"name": "topologyManagerScope", "value": "pod"}],
        "zones": [zone(0), zone(1)]
    })
}

fn metric(cpu: &str, memory: &str) -> Value {
    let used = json!({"resources": {"cpu": cpu, "memory": memory}});
    let pod = |name: &str| json!({"name": name, "namespace": "default", "priority": "koord-prod", "podUsage": used});
    json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": "n"}, "spec": {},
        "status": {"updateTime": now().to_string(),
            "nodeMetric": {"nodeUsage": used, "systemUsage": used,
                "aggregatedNodeUsages": [{"duration": "5m", "usage": {"p95": used}}]},
            "podsMetric": [pod("there"), pod("many0"), pod("many1")]}
    })
}

fn device(amount: &str) -> Value {
    let gpu = |minor: u8| {
        json!({"type": "gpu", "id": format!("g{minor}"), "minor": minor, "health": true, "resources":
            {"koordinator.sh/gpu-core": amount, "koordinator.sh/gpu-memory-ratio": amount,
                "koordinator.sh/gpu-memory": amount}})
    };
    json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": "n"}, "spec": {"devices": [gpu(0), gpu(1)]}
    })
}

fn reservation(name: &str, cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name},
        "spec": {"ttl": "0s", "allocateOnce": false, "allocatePolicy": "Restricted",
            "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
            "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": amounts}}]}}},
        "status": {"phase": "Available", "nodeName": "n", "allocatable": amounts, "allocated": amounts}
    })
}

fn quota(name: &str, parent: &str, amount: &str) -> Value {
    let amounts = json!({"cpu": amount, "memory": amount});
    json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "default",
            "labels": {"quota.scheduling.koordinator.sh/parent": parent,
                "quota.scheduling.koordinator.sh/is-parent": if name == "q" { "false" } else { "true" }},
            "annotations": {"quota.scheduling.koordinator.sh/shared-weight": amounts.to_string()}},
        "spec": {"min": amounts, "max": amounts}
    })
}

/// Name of an object kind, and a function that writes it.
type Writer = (&'static str, fn(&mut TwoNodeEngine));

/// Returns functions that write absurd amounts, by name.
fn writers() -> Vec<Writer> {
    vec![
        ("a NodeMetric", |s| {
            s.object::<NodeMetric>(METRICS, metric("1E", "8Ei"))
        }),
        ("a NodeMetric below zero", |s| {
            s.object::<NodeMetric>(METRICS, metric("-1E", "-8Ei"))
        }),
        ("an NRT", |s| {
            s.object::<NodeResourceTopology>(TOPOLOGIES, topology("1E", "8Ei", json!({})))
        }),
        ("an NRT below zero", |s| {
            s.object::<NodeResourceTopology>(TOPOLOGIES, topology("-1E", "-8Ei", json!({})))
        }),
        ("an amplified NRT", |s| {
            let ratio =
                json!({"node.koordinator.sh/resource-amplification-ratio": r#"{"cpu":1e300}"#});
            s.node("n", "8", "64Gi", ratio.clone());
            s.object::<NodeResourceTopology>(TOPOLOGIES, topology("1E", "8Ei", ratio));
        }),
        ("a Device", |s| s.object::<Device>(DEVICES, device("8E"))),
        ("a Device below zero", |s| {
            s.object::<Device>(DEVICES, device("-8E"))
        }),
        ("a Node", |s| s.node("n", "1E", "8Ei", json!({}))),
        ("a Node below zero", |s| {
            s.node("n", "-1E", "-8Ei", json!({}))
        }),
        ("a Node's reservation", |s| {
            let aside = r#"{"resources":{"cpu":"-1E","memory":"-8Ei"}}"#;
            s.node(
                "n",
                "1E",
                "8Ei",
                json!({"node.koordinator.sh/reservation": aside}),
            );
        }),
        ("Node annotations", |s| {
            let raw = r#"{"cpu":"-1E","memory":"8Ei"}"#;
            let thresholds = format!(
                r#"{{"usageThresholds":{{"cpu":{0},"memory":{0}}}}}"#,
                i64::MAX
            );
            s.object::<NodeMetric>(METRICS, metric("1E", "8Ei"));
            s.node(
                "n",
                "8",
                "64Gi",
                json!({"node.koordinator.sh/raw-allocatable": raw,
                "scheduling.koordinator.sh/usage-thresholds": thresholds}),
            );
        }),
        ("Reservations", |s| {
            for name in ["r0", "r1", "r2"] {
                s.object::<Reservation>(RESERVATIONS, reservation(name, "1E", "8Ei"));
            }
        }),
        ("Reservations below zero", |s| {
            for name in ["r0", "r1"] {
                s.object::<Reservation>(RESERVATIONS, reservation(name, "-1E", "-8Ei"));
            }
        }),
        ("quotas", |s| {
            s.object::<ElasticQuota>(QUOTAS, quota("up", "koordinator-root-quota", "8E"));
            s.object::<ElasticQuota>(QUOTAS, quota("q", "up", "8E"));
        }),
        ("quotas below zero", |s| {
            s.object::<ElasticQuota>(QUOTAS, quota("up", "koordinator-root-quota", "-8E"));
            s.object::<ElasticQuota>(QUOTAS, quota("q", "up", "-8E"));
        }),
        ("pods", |s| {
            let zones = json!({"cpuset": "0-1", "numaNodeResources": [
                {"node": 0, "resources": {"cpu": "1E", "memory": "8Ei"}},
                {"node": 0, "resources": {"cpu": "1E", "memory": "8Ei"}}]});
            let units =
                json!({"koordinator.sh/gpu-core": "8E", "koordinator.sh/gpu-memory": "8Ei"});
            let devices = json!({"gpu": [{"minor": 0, "resources": units}, {"minor": 1, "resources": units}]});
            let meta = json!({"labels": {"quota.scheduling.koordinator.sh/name": "q", "app": "web"}, "annotations": {
                "scheduling.koordinator.sh/resource-status": zones.to_string(),
                "scheduling.koordinator.sh/device-allocated": devices.to_string()}});
            for name in ["many0", "many1"] {
                s.pod(
                    name,
                    Some("n"),
                    &json!({"cpu": "1E", "memory": "8Ei"}),
                    meta.clone(),
                );
            }
        }),
        ("pods below zero", |s| {
            for name in ["many0", "many1"] {
                s.pod(
                    name,
                    Some("n"),
                    &json!({"cpu": "-1E", "memory": "-8Ei"}),
                    json!({}),
                );
            }
        }),
    ]
}

/// Writes all objects with normal amounts.
fn furnish(scene: &mut TwoNodeEngine) {
    scene.object::<NodeMetric>(METRICS, metric("1", "1Gi"));
    scene.object::<NodeResourceTopology>(TOPOLOGIES, topology("4", "32Gi", json!({})));
    scene.object::<Device>(DEVICES, device("100"));
    scene.object::<Reservation>(RESERVATIONS, reservation("r0", "1", "1Gi"));
    scene.object::<ElasticQuota>(QUOTAS, quota("up", "koordinator-root-quota", "100G"));
    scene.object::<ElasticQuota>(QUOTAS, quota("q", "up", "100G"));
    scene.pod(
        "there",
        Some("n"),
        &json!({"cpu": "1", "memory": "2Gi"}),
        json!({}),
    );
}

#[test]
fn absurd_amounts_do_not_overflow() {
    let all = writers();
    let one_by_one = all.iter().map(|writer| vec![*writer]);
    let cases: Vec<Vec<_>> = one_by_one.chain([all.clone()]).collect();
    for strategy in ["LeastAllocated", "MostAllocated"] {
        for writers in &cases {
            let mut scene = TwoNodeEngine::new(strategy);
            furnish(&mut scene);
            let n = scene.0.cluster().nodes().find("n").unwrap();
            let booked = |scene: &TwoNodeEngine| {
                [CPU, MEMORY].map(|id| scene.0.cluster().nodes().requested(n, id))
            };
            let before = booked(&scene);
            let named: Vec<&str> = writers.iter().map(|(name, _)| *name).collect();
            for (_, write) in writers {
                write(&mut scene);
            }
            let results = scene.all_kinds(0);
            assert!(
                !results.iter().any(|text| text.contains("panicked")),
                "{named:?}: {results:#?}"
            );
            let on = |at: usize| {
                results
                    .iter()
                    .any(|text| text.starts_with(&format!("p{at} on ")))
            };
            assert!(on(0), "{named:?}: {results:#?}");
            // The amounts are corrected, and everything is as before.
            for name in ["many0", "many1"] {
                scene.0.pod_left(name, now());
            }
            scene.node("n", "8", "64Gi", json!({}));
            furnish(&mut scene);
            let deleted = |name: &str| {
                let mut value = reservation(name, "1", "1Gi");
                value["status"]["phase"] = json!("Failed");
                value
            };
            for name in ["r1", "r2"] {
                scene.object::<Reservation>(RESERVATIONS, deleted(name));
            }
            assert_eq!(booked(&scene), before, "{named:?}");
            assert!(scene.0.cluster().nodes().books_balance(), "{named:?}");
            let results = scene.all_kinds(100);
            assert!(
                !results.iter().any(|text| text.contains("panicked")),
                "{named:?}: {results:#?}"
            );
            assert!(
                results.iter().any(|text| text.starts_with("p103 on ")),
                "{named:?}: {results:#?}"
            );
        }
    }
}
