use super::*;
use k8s_openapi::api::core::v1::Node;
use koord_api::scheduling::{ClusterNetworkTopology, ElasticQuota, PodGroup};
use koord_api::slo::NodeMetric;
use koord_descheduler::state::{NodeInfo, Shapes};
use koord_scheduler::engine::{EngineOptions, Output};
use koord_scheduler::framework::{Action, ObjectChange, Profiles};
use koord_scheduler::state::ParsedPod;
use std::any::Any;

/// Objects as an API server stores them.
#[derive(Clone, Default)]
struct TestCluster {
    nodes: Vec<Value>,
    pods: Vec<Value>,
    metrics: Vec<Value>,
    others: Vec<(&'static str, Arc<dyn Any + Send + Sync>)>,
}

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn merge(into: &mut Value, over: &Value) {
    match (into, over) {
        (Value::Object(into), Value::Object(over)) => {
            for (key, over) in over {
                merge(into.entry(key.clone()).or_insert(Value::Null), over);
            }
        }
        (into, over) => *into = over.clone(),
    }
}

impl TestCluster {
    /// Creates `nodes` nodes of 4 CPUs, in three zones.
    fn with_nodes(nodes: usize) -> Self {
        let mut world = Self::default();
        for index in 0..nodes {
            let name = format!("n{index}");
            world.nodes.push(json!({
                "metadata": {"name": name, "uid": name, "labels": {
                    "kubernetes.io/hostname": name, "zone": format!("z{}", index % 3),
                }},
                "spec": {},
                "status": {
                    "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }));
        }
        world
    }

    fn pod(&mut self, name: &str, node: &str, cpu: &str, over: &Value) {
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "nodeName": node, "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": cpu}}}],
            },
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True"},
            ]},
        });
        merge(&mut pod, over);
        self.pods.push(pod);
    }

    fn usage(&mut self, node: &str, cpu: &str) {
        self.metrics.push(json!({
            "metadata": {"name": node, "uid": node},
            "spec": {},
            "status": {
                "updateTime": "2026-01-01T11:59:30Z",
                "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}},
            },
        }));
    }

    fn engine(&self) -> Engine {
        self.engine_with(&Options::new(registry()))
    }

    fn engine_with(&self, options: &Options) -> Engine {
        let config = Configuration::koord(&options.profile_names);
        let profiles = Profiles::build(&config, &options.registry, &options.build, true).unwrap();
        let mut engine = Engine::new(&config, profiles, EngineOptions::default());
        for node in &self.nodes {
            let node: Node = serde_json::from_value(node.clone()).unwrap();
            engine.node_applied(Arc::new(node), now());
        }
        for metric in &self.metrics {
            let metric: NodeMetric = serde_json::from_value(metric.clone()).unwrap();
            add(
                &mut engine,
                "nodemetrics.v1alpha1.slo.koordinator.sh",
                Arc::new(metric),
            );
        }
        for (kind, object) in &self.others {
            add(&mut engine, kind, object.clone());
        }
        for pod in &self.pods {
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            let pod = ParsedPod::new(pod, engine.cluster().resources());
            engine.apply_parsed_pod(&pod, now());
        }
        engine
    }

    fn snapshot(&self) -> Snapshot {
        let shapes = Shapes::default();
        let node = |node: &Value| {
            let node = serde_json::from_value(node.clone()).unwrap();
            Arc::new(NodeInfo::new(node, shapes.table()))
        };
        let pod = |pod: &Value| {
            let pod = serde_json::from_value(pod.clone()).unwrap();
            Arc::new(PodInfo::new(pod, &shapes).unwrap())
        };
        Snapshot::empty(now(), shapes.table().clone()).with(
            self.nodes.iter().map(node).collect(),
            self.pods.iter().map(pod).collect(),
        )
    }

    fn targets(&self) -> Targets {
        Targets::new(Follower::new(self.engine()))
    }
}

fn add(engine: &mut Engine, kind: &'static str, new: Arc<dyn Any + Send + Sync>) {
    let change = ObjectChange {
        kind,
        action: Action::ADD,
        old: None,
        new,
    };
    let change = engine.plugins().as_delivered(change);
    engine.object_changed(&change, now());
}

/// Returns the targets of these pods in one cycle.
fn cycle(targets: &mut Targets, world: &TestCluster, pods: &[&str]) -> Vec<Result<String, String>> {
    let snapshot = world.snapshot();
    targets.begin(&snapshot);
    let results = pods.iter().map(|name| {
        let pod = snapshot.pod("default", name).unwrap();
        match targets.place_tentatively(&snapshot, pod) {
            Ok(node) => Ok(node.to_string()),
            Err(why) => Err(why.to_string()),
        }
    });
    let results = results.collect();
    targets.end();
    results
}

fn to(node: &str) -> Result<String, String> {
    Ok(node.to_owned())
}

#[test]
fn pod_without_target_reports_scheduler_reasons() {
    let mut world = TestCluster::with_nodes(3);
    world.nodes[1]["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    world.pod("p", "n0", "3", &json!({}));
    world.pod("big", "n2", "2", &json!({}));
    let mut targets = world.targets();
    let refusal = cycle(&mut targets, &world, &["p"]).remove(0).unwrap_err();
    assert!(
        refusal.starts_with("NoTarget: 0/3 nodes are available: "),
        "{refusal}"
    );
    for part in [
        "1 Insufficient cpu",
        "1 node(s) had untolerated taint",
        "1 node(s) were what the pod is to leave",
    ] {
        assert!(refusal.contains(part), "{refusal}");
    }
    // The scheduler does not store tolerations and node selectors of running pods.
    let tolerates = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
    world.pod("q", "n0", "1", &tolerates);
    let selects = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n0"}}});
    world.pod("r", "n0", "0", &selects);
    let mut targets = world.targets();
    let targets_found = cycle(&mut targets, &world, &["q", "r"]);
    assert_eq!(targets_found[0], to("n1"));
    assert!(
        targets_found[1]
            .as_ref()
            .unwrap_err()
            .contains("didn't match Pod's node affinity/selector")
    );
}

#[test]
fn targets_add_up_within_a_cycle() {
    let mut world = TestCluster::with_nodes(2);
    world.pod("p", "n0", "1500m", &json!({}));
    world.pod("q", "n0", "1500m", &json!({}));
    world.pod("r", "n1", "2", &json!({}));
    let mut targets = world.targets();
    for _ in 0..3 {
        let targets_found = cycle(&mut targets, &world, &["p", "q"]);
        assert_eq!(targets_found[0], to("n1"));
        assert!(
            targets_found[1]
                .as_ref()
                .unwrap_err()
                .contains("1 Insufficient cpu")
        );
        // A pod with a target elsewhere keeps its room until it has gone.
        let targets_found = cycle(&mut targets, &world, &["p", "r"]);
        assert_eq!(targets_found[0], to("n1"));
        assert!(
            targets_found[1]
                .as_ref()
                .unwrap_err()
                .contains("1 Insufficient cpu")
        );
    }
    // A cycle that was not ended leaves nothing behind, either.
    let snapshot = world.snapshot();
    targets.begin(&snapshot);
    let q = snapshot.pod("default", "q").unwrap();
    assert_eq!(&*targets.place_tentatively(&snapshot, q).unwrap(), "n1");
    assert_eq!(cycle(&mut targets, &world, &["p"])[0], to("n1"));
}

#[test]
fn hot_node_is_no_target_and_targets_count_as_load() {
    let mut world = TestCluster::with_nodes(3);
    // The threshold for CPU is 65 percent of 4 CPUs.
    world.usage("n1", "2700m");
    world.usage("n2", "1500m");
    world.pod("p", "n0", "1", &json!({}));
    world.pod("q", "n0", "1", &json!({}));
    let mut targets = world.targets();
    let targets_found = cycle(&mut targets, &world, &["p", "q"]);
    assert_eq!(targets_found[0], to("n2"));
    let refusal = targets_found[1].as_ref().unwrap_err();
    assert!(
        refusal.contains("2 node(s) cpu usage exceed threshold"),
        "{refusal}"
    );
}

#[test]
fn full_quota_does_not_block_its_own_pods() {
    let mut world = TestCluster::with_nodes(2);
    let quota = json!({
        "metadata": {"name": "full", "namespace": "default", "uid": "quota",
            "labels": {"quota.scheduling.koordinator.sh/is-parent": "false"}},
        "spec": {"min": {"cpu": "2"}, "max": {"cpu": "2"}},
    });
    let quota: ElasticQuota = serde_json::from_value(quota).unwrap();
    world.others.push((
        "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        Arc::new(quota),
    ));
    let member = json!({"metadata": {"labels": {"quota.scheduling.koordinator.sh/name": "full"}}});
    world.pod("p", "n0", "2", &member);
    let mut targets = world.targets();
    assert_eq!(cycle(&mut targets, &world, &["p"])[0], to("n1"));
    // The scheduler refuses one more pod.
    let mut another_pod = world.pods[0].clone();
    merge(
        &mut another_pod,
        &json!({"metadata": {"name": "more", "uid": "more"}}),
    );
    another_pod["spec"]
        .as_object_mut()
        .unwrap()
        .remove("nodeName");
    let mut engine = world.engine();
    engine.pod_applied(
        Arc::new(serde_json::from_value(another_pod).unwrap()),
        now(),
    );
    assert_eq!(engine.schedule_one(now()).unwrap().node, None);
}

/// Returns the options of the Helm chart's scheduler, as a follower has them.
fn chart_options() -> Options {
    let mut registry = registry();
    koord_plugins::apply_chart_defaults(&mut registry);
    follower_options(Options::new(registry))
}

#[test]
fn gang_member_stays_in_its_network_topology_domain() {
    let mut world = TestCluster::with_nodes(4);
    for (index, rack) in ["r1", "r1", "r2", "r2"].iter().enumerate() {
        world.nodes[index]["metadata"]["labels"]["rack"] = json!(rack);
    }
    let topology: ClusterNetworkTopology = serde_json::from_value(json!({
        "metadata": {"name": "default", "uid": "topology"},
        "spec": {"networkTopologySpec": [
            {"topologyLayer": "Rack", "labelKey": ["rack"]},
            {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "Rack"},
        ]}
    }))
    .unwrap();
    let gather = json!({"gatherStrategy": [{"layer": "Rack", "strategy": "MustGather"}]});
    let group: PodGroup = serde_json::from_value(json!({
        "metadata": {"name": "gang", "namespace": "default", "uid": "gang", "annotations": {
            "gang.scheduling.koordinator.sh/network-topology-spec": gather.to_string(),
        }},
        "spec": {"minMember": 2}
    }))
    .unwrap();
    world.others = vec![
        (
            "clusternetworktopologies.v1alpha1.scheduling.koordinator.sh",
            Arc::new(topology),
        ),
        ("podgroups.v1alpha1.scheduling.sigs.k8s.io", Arc::new(group)),
    ];
    let member = json!({"metadata": {"labels": {"pod-group.scheduling.sigs.k8s.io": "gang"}}});
    world.pod("p", "n0", "2", &member);
    world.pod("q", "n1", "2", &member);
    // Scores prefer the empty nodes of the other rack, and the last pod leaves no other node.
    let options = chart_options();
    let mut targets = Targets::new(Follower::new(world.engine_with(&options)));
    assert_eq!(cycle(&mut targets, &world, &["p"])[0], to("n1"));
    world.pod("big", "n1", "1", &json!({}));
    let mut targets = Targets::new(Follower::new(world.engine_with(&options)));
    let refusal = cycle(&mut targets, &world, &["p"]).remove(0).unwrap_err();
    assert!(refusal.starts_with("NoTarget: "), "{refusal}");
}

#[test]
fn follower_has_network_topology_if_a_profile_uses_it() {
    let config = |args: Value| {
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "profiles": [
                {"schedulerName": "other"},
                {"schedulerName": "koord-scheduler",
                    "pluginConfig": [{"name": "Coscheduling", "args": args}]},
            ],
        });
        let config = Some(Configuration::parse(&config.to_string()).unwrap());
        Options {
            config,
            ..Options::new(registry())
        }
    };
    for (options, expected) in [
        (Options::new(registry()), false),
        (config(json!({"awareNetworkTopology": true})), true),
        (config(json!({"awareNetworkTopology": false})), false),
        (config(json!({})), false),
    ] {
        let follower = follower_options(options);
        assert_eq!(follower.build.network_topology, expected);
        assert!(!follower.leader_elect);
    }
    assert!(chart_options().build.network_topology);
}

#[test]
fn unknown_pod_has_no_target() {
    let mut world = TestCluster::with_nodes(2);
    let mut targets = world.targets();
    world.pod("p", "n0", "1", &json!({}));
    let refusal = cycle(&mut targets, &world, &["p"]).remove(0).unwrap_err();
    assert!(refusal.starts_with("TargetUnknown: "), "{refusal}");
}

#[test]
fn pods_of_other_schedulers_use_first_profile() {
    let mut world = TestCluster::with_nodes(2);
    let other = json!({"spec": {"schedulerName": "default-scheduler"}});
    world.pod("p", "n0", "1", &other);
    let mut targets = world.targets();
    assert_eq!(cycle(&mut targets, &world, &["p"])[0], to("n1"));
}

/// Creates six nodes with all kinds of pods.
fn random(rng: &mut fastrand::Rng) -> TestCluster {
    let mut world = TestCluster::with_nodes(6);
    for index in 0..6 {
        if rng.u8(..8) == 0 {
            world.nodes[index]["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
        }
        if rng.bool() {
            let used = 200 * rng.usize(0..15);
            world.usage(&format!("n{index}"), &format!("{used}m"));
        }
    }
    for index in 0..24 {
        let app = ["a", "b", "c"][rng.usize(..3)];
        let mut over = json!({"metadata": {"labels": {"app": app}}});
        let selector = json!({"matchLabels": {"app": app}});
        let key = ["zone", "kubernetes.io/hostname"][rng.usize(..2)];
        let spec = match rng.u8(..10) {
            0 => json!({"tolerations": [{"key": "k", "operator": "Exists"}]}),
            1 => json!({"nodeSelector": {"zone": format!("z{}", rng.u8(..3))}}),
            2 => {
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": key, "labelSelector": selector},
                ]}}})
            }
            3 => {
                json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "zone", "labelSelector": selector},
                ]}}})
            }
            4 => json!({"topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector},
            ]}),
            5 => {
                json!({"containers": [{"name": "c", "image": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]})
            }
            _ => json!({}),
        };
        over["spec"] = spec;
        let (node, cpu) = (rng.usize(..6), 100 * rng.usize(1..12));
        world.pod(
            &format!("p{index}"),
            &format!("n{node}"),
            &format!("{cpu}m"),
            &over,
        );
    }
    world
}

/// Returns the node on which the scheduler places `pod` again, with all nodes cordoned but those that `open`
/// accepts.
fn scheduled(
    engine: &mut Engine,
    world: &TestCluster,
    pod: &Value,
    open: impl Fn(&str) -> bool,
) -> Option<String> {
    for node in &world.nodes {
        let mut node = node.clone();
        let name = node["metadata"]["name"].as_str().unwrap().to_owned();
        node["spec"]["unschedulable"] = json!(!open(&name));
        engine.node_applied(Arc::new(serde_json::from_value(node).unwrap()), now());
    }
    let mut next = pod.clone();
    engine.pod_deleted(&serde_json::from_value(pod.clone()).unwrap(), now());
    let name = pod["metadata"]["name"].as_str().unwrap();
    merge(
        &mut next,
        &json!({"metadata": {"name": format!("{name}-next"), "uid": format!("{name}-next")}}),
    );
    next["spec"].as_object_mut().unwrap().remove("nodeName");
    next.as_object_mut().unwrap().remove("status");
    engine.pod_applied(Arc::new(serde_json::from_value(next).unwrap()), now());
    engine.schedule_one(now()).unwrap();
    let bound = engine
        .take_outputs()
        .into_iter()
        .find_map(|output| match output {
            Output::Bind(request) => Some(request),
            _ => None,
        });
    let node = bound.map(|request| request.node.to_string());
    if node.is_none() {
        let mut uid: Pod = Pod::default();
        uid.metadata.uid = Some(format!("{name}-next"));
        engine.pod_deleted(&uid, now());
    }
    node
}

#[test]
fn targets_equal_scheduler_decisions() {
    let mut rng = fastrand::Rng::with_seed(15);
    let (mut targets_total, mut refused, mut several) = (0, 0, 0);
    for _ in 0..60 {
        let world = random(&mut rng);
        let mut targets = world.targets();
        let name = |index: usize| world.pods[index]["metadata"]["name"].as_str().unwrap();
        // One pod at a time: the result equals that of the scheduler once the pod has gone.
        for index in 0..6 {
            let home = world.pods[index]["spec"]["nodeName"].as_str().unwrap();
            let targets_found = cycle(&mut targets, &world, &[name(index)]).remove(0);
            let by_scheduler = scheduled(&mut world.engine(), &world, &world.pods[index], |node| {
                node != home
            });
            assert_eq!(
                targets_found.is_ok(),
                by_scheduler.is_some(),
                "{targets_found:?} {by_scheduler:?} {}",
                world.pods[index]
            );
            let Ok(node) = targets_found else {
                refused += 1;
                continue;
            };
            let chosen = scheduled(&mut world.engine(), &world, &world.pods[index], |open| {
                open == node
            });
            assert_eq!(chosen, Some(node));
        }
        // Several pods in one cycle: each still fits its target once those before have moved.
        let mut order: Vec<usize> = (0..world.pods.len()).collect();
        rng.shuffle(&mut order);
        let order = &order[..8];
        let names: Vec<&str> = order.iter().map(|index| name(*index)).collect();
        let targets_found = cycle(&mut targets, &world, &names);
        let mut engine = world.engine();
        let mut moved = 0;
        for (index, targets_found) in order.iter().zip(targets_found) {
            let Ok(node) = targets_found else { continue };
            let chosen = scheduled(&mut engine, &world, &world.pods[*index], |open| {
                open == node
            });
            assert_eq!(chosen, Some(node), "{}", world.pods[*index]);
            moved += 1;
        }
        targets_total += moved;
        several += usize::from(moved > 2);
        // The targets equal those of a new instance: earlier cycles leave nothing behind.
        let fresh = cycle(&mut world.targets(), &world, &names);
        let fresh: Vec<bool> = fresh.iter().map(Result::is_ok).collect();
        let repeated = cycle(&mut targets, &world, &names);
        let repeated: Vec<bool> = repeated.iter().map(Result::is_ok).collect();
        assert_eq!(fresh[0], repeated[0]);
    }
    assert!(
        targets_total > 150 && refused > 20 && several > 20,
        "{targets_total} {refused} {several}"
    );
}
