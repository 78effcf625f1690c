use super::*;
use crate::framework::{Filter, Framework, Intent};
use crate::migration::args::MigrationControllerArgs;
use crate::state::Snapshot;
use crate::testing::{
    AllBut, AllowAll, TestCluster, balancing, configured, merged, moved, requests,
};
use jiff::SignedDuration;
use serde_json::{Value, json};

fn args(over: Value) -> FragmentationAwareArgs {
    let args = serde_json::from_value(over).unwrap();
    check(&args).unwrap();
    args
}

fn framework(over: Value) -> Framework {
    balancing(
        Box::new(FragmentationAware::new(args(over))),
        vec![Box::new(AllowAll)],
    )
}

/// Returns two nodes of 4 CPUs, 4,000 bytes and 10 pods.
fn world() -> TestCluster {
    let mut world = TestCluster::default();
    let allocatable =
        json!({"status": {"allocatable": {"cpu": "4", "memory": "4000", "pods": "10"}}});
    world.node(
        "node1",
        merged(
            allocatable.clone(),
            json!({"metadata": {"labels": {"pool": "test"}}}),
        ),
    );
    world.node("node2", allocatable);
    world
}

/// Returns which of `pods` (name, node, milli-CPUs, bytes, namespace, labels) are evicted with these
/// arguments, whose defaults are a threshold of 0.1, an improvement of 0.01 and no `nodeFit`.
fn evicted(over: Value, pods: &[(&str, &str, u32, u32, &str, Value)]) -> Vec<String> {
    let mut world = world();
    for (name, node, cpu, memory, namespace, labels) in pods {
        let meta = json!({"metadata": {"namespace": namespace, "labels": labels}});
        world.pod(
            name,
            node,
            merged(requests(&format!("{cpu}m"), &memory.to_string()), meta),
        );
    }
    let common =
        json!({"nodeFit": false, "imbalanceThreshold": 0.1, "minImprovementThreshold": 0.01});
    moved(&framework(merged(common, over)).run(&world.snapshot()))
}

fn pod<'a>(
    name: &'a str,
    node: &'a str,
    cpu: u32,
    memory: u32,
) -> (&'a str, &'a str, u32, u32, &'a str, Value) {
    (name, node, cpu, memory, "default", json!({}))
}

#[test]
fn arguments_have_upstreams_defaults() {
    let all = |over: Value| serde_json::to_value(args(over)).unwrap();
    let by_default = json!({
        "paused": false, "dryRun": false, "podSelectors": [], "nodeFit": true, "resources": ["cpu", "memory"],
        "imbalanceThreshold": 0.15, "minImprovementThreshold": 0.02,
    });
    assert_eq!(all(json!({})), by_default);
    assert_eq!(all(json!({"resources": []})), by_default);
    let other = json!({
        "paused": true, "dryRun": true, "podSelectors": [], "nodeFit": false, "resources": ["memory"],
        "imbalanceThreshold": 0.20, "minImprovementThreshold": 0.05,
    });
    assert_eq!(all(other.clone()), other);
}

#[test]
fn arguments_that_cannot_be_meant_are_refused_by_field() {
    let bad = json!({"matchExpressions": [{"key": "a", "operator": "invalid-op"}]});
    for (args, wanted) in [
        (
            json!({"resources": ["cpu", "memory"], "imbalanceThreshold": 0.15, "minImprovementThreshold": 0.02}),
            None,
        ),
        (
            json!({"resources": ["cpu", "cpu"]}),
            Some("resources[1]: \"cpu\" is listed twice"),
        ),
        (
            json!({"imbalanceThreshold": -0.1}),
            Some("imbalanceThreshold: -0.1 is not a number from 0 up"),
        ),
        (
            json!({"minImprovementThreshold": -0.05}),
            Some("minImprovementThreshold: -0.05"),
        ),
        (json!({"nodeSelector": bad}), Some("args.nodeSelector")),
        (
            json!({"podSelectors": [{"selector": bad}]}),
            Some("args.podSelectors[0].selector"),
        ),
        (
            json!({"evictableNamespaces": {"include": ["default"], "exclude": ["default"]}}),
            Some("evictableNamespaces: only one of"),
        ),
        (
            json!({"imbalanceTreshold": 0.1}),
            Some("args.imbalanceTreshold: unknown field"),
        ),
    ] {
        let error = configured(NAME, args.clone()).err();
        match wanted {
            None => assert_eq!(error, None, "{args}"),
            Some(wanted) => assert!(
                error.as_ref().is_some_and(|error| error.contains(wanted)),
                "{args}: {error:?}"
            ),
        }
    }
    for value in [f64::NAN, f64::INFINITY] {
        let args = FragmentationAwareArgs {
            imbalance_threshold: value,
            ..FragmentationAwareArgs::default()
        };
        assert!(check(&args).unwrap_err().contains("imbalanceThreshold"));
    }
}

#[test]
fn best_balancing_pod_is_evicted() {
    // Each node has requests of 3,000 milli-CPUs and 1,000 bytes: shares of 0.75 and 0.25.
    let two = [
        pod("pod1", "node1", 3000, 1000),
        pod("pod2", "node2", 3000, 1000),
    ];
    assert_eq!(evicted(json!({}), &two), ["pod1", "pod2"]);
    assert_eq!(
        evicted(
            json!({"nodeSelector": {"matchLabels": {"pool": "test"}}}),
            &two
        ),
        ["pod1"]
    );
    assert!(evicted(json!({"paused": true}), &two).is_empty());
    // Without pod1 the node is empty; without pod2 the deviation is 0.25 as before.
    let best = [
        pod("pod1", "node1", 2500, 500),
        pod("pod2", "node1", 500, 500),
    ];
    assert_eq!(evicted(json!({}), &best), ["pod1"]);
    let balanced = [pod("pod1", "node1", 2000, 2000)];
    assert!(evicted(json!({"imbalanceThreshold": 0.5}), &balanced).is_empty());
    let pods = [pod("pod1", "node1", 2500, 500)];
    assert_eq!(evicted(json!({}), &pods), ["pod1"]);
    assert!(evicted(json!({"minImprovementThreshold": 0.5}), &pods).is_empty());
    // The first of two equal pods.
    let alike = [
        pod("pod2", "node1", 1500, 100),
        pod("pod1", "node1", 1500, 100),
    ];
    assert_eq!(evicted(json!({}), &alike), ["pod1"]);
}

#[test]
fn thresholds_have_to_be_exceeded() {
    // Shares of 0.5 and 0: a deviation of exactly 0.25, all of which is gained.
    let pods = [pod("pod1", "node1", 2000, 0)];
    for (over, goes_) in [
        (json!({"imbalanceThreshold": 0.25}), false),
        (json!({"imbalanceThreshold": 0.2499}), true),
        (json!({"minImprovementThreshold": 0.25}), false),
        (json!({"minImprovementThreshold": 0.2499}), true),
    ] {
        assert_eq!(
            evicted(over.clone(), &pods).len(),
            usize::from(goes_),
            "{over}"
        );
    }
}

#[test]
fn filtered_pods_count_but_stay() {
    let selectors = json!([{"selector": {"matchLabels": {"foo": "bar"}}}, {}]);
    let labelled = [
        ("pod1", "node1", 2000, 500, "default", json!({"foo": "bar"})),
        pod("pod2", "node1", 1000, 500),
    ];
    assert_eq!(
        evicted(json!({"podSelectors": selectors}), &labelled),
        ["pod1"]
    );
    let other = [
        pod("pod1", "node1", 2000, 500),
        ("pod2", "node1", 1000, 500, "default", json!({"foo": "bar"})),
    ];
    assert_eq!(
        evicted(json!({"podSelectors": selectors}), &other),
        ["pod2"]
    );
    let namespaces = json!({"evictableNamespaces": {"exclude": ["kube-system"]}});
    for (system, mine) in [((2500, 500), (2000, 200)), ((2000, 100), (1000, 100))] {
        let pods = [
            (
                "pod1",
                "node1",
                system.0,
                system.1,
                "kube-system",
                json!({}),
            ),
            pod("pod2", "node1", mine.0, mine.1),
        ];
        assert_eq!(evicted(namespaces.clone(), &pods), ["pod2"]);
    }
}

#[test]
fn pods_that_ended_do_not_count() {
    let mut world = world();
    world.pod("running", "node1", requests("2", "2000"));
    world.pod(
        "ended",
        "node1",
        merged(requests("2", "0"), json!({"status": {"phase": "Failed"}})),
    );
    assert!(moved(&framework(json!({})).run(&world.snapshot())).is_empty());
}

#[test]
fn a_pod_that_fits_no_other_node_stays() {
    let pods = [pod("pod1", "node1", 5000, 500)];
    assert!(evicted(json!({"nodeFit": true}), &pods).is_empty());
    assert_eq!(evicted(json!({"nodeFit": false}), &pods), ["pod1"]);
    let fits = [
        pod("pod1", "node1", 3000, 500),
        pod("full", "node2", 1000, 1000),
    ];
    assert_eq!(evicted(json!({"nodeFit": true}), &fits), ["pod1"]);
    // Other nodes are those that the plugin considers.
    let pool = json!({"nodeFit": true, "nodeSelector": {"matchLabels": {"pool": "test"}}});
    assert!(evicted(pool, &fits).is_empty());
    let mut world = world();
    world.pod("pod1", "node1", requests("5", "500"));
    let plan = framework(json!({})).run(&world.snapshot());
    let skipped: Vec<_> = plan
        .skipped
        .iter()
        .map(|skipped| (skipped.reason.rule, &*skipped.reason.detail))
        .collect();
    assert_eq!(skipped, [("NodeFit", "1 insufficient cpu")]);
}

/// A filter that refuses pods only in `pre_evict`.
#[derive(Debug)]
struct NotAtLast;

impl Filter for NotAtLast {
    fn name(&self) -> &'static str {
        "NotAtLast"
    }
    fn filter(&self, _: &Snapshot, _: &PodInfo) -> Result<(), SkipReason> {
        Ok(())
    }
    fn pre_evict(&self, _: &Snapshot, _: &[Arc<NodeInfo>], _: &PodInfo) -> Result<(), SkipReason> {
        Err(SkipReason::new("NotAtLast", "not this one"))
    }
}

#[test]
fn pre_evict_is_checked_and_gain_is_in_the_reason() {
    let mut world = world();
    world.pod("pod1", "node1", requests("2500m", "500"));
    let plan = framework(json!({})).run(&world.snapshot());
    let reasons: Vec<_> = plan
        .moves()
        .map(|planned| planned.reason.as_str())
        .collect();
    assert_eq!(
        reasons,
        ["fragmentation reduction: stdBefore=0.2500 stdAfter=0.0000 gain=0.2500"]
    );
    assert_eq!(plan.notes[0].text, "imbalance 0.2500 > threshold 0.1500");
    let strategy = || Box::new(FragmentationAware::new(args(json!({}))));
    let plan = balancing(strategy(), vec![Box::new(NotAtLast)]).run(&world.snapshot());
    assert!(moved(&plan).is_empty());
    assert_eq!(plan.skipped[0].reason.rule, "NotAtLast");
    let plan = balancing(strategy(), vec![Box::new(AllBut(&["pod1"]))]).run(&world.snapshot());
    assert!(moved(&plan).is_empty());
}

#[test]
fn dry_run_plans_without_intents() {
    let mut world = world();
    world.pod("pod1", "node1", requests("2500m", "500"));
    let plan = framework(json!({"dryRun": true})).run(&world.snapshot());
    assert_eq!(moved(&plan), ["pod1"]);
    assert!(plan.moves().all(|planned| planned.intent.is_none()));
}

/// Returns the imbalance of a node with `allocatable` that runs `pods`.
fn imbalance_of(allocatable: Value, pods: &[Value], resources: &[&str]) -> f64 {
    let mut world = TestCluster::default();
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}});
    let node = NodeInfo::new(serde_json::from_value(node).unwrap(), world.shapes.table());
    let mut requested = NodeRequests::default();
    for (at, requests) in pods.iter().enumerate() {
        let spec =
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}});
        requested.add(&world.pod(&at.to_string(), "n", spec));
    }
    let ids: Vec<_> = resources
        .iter()
        .map(|name| world.shapes.table().intern(name))
        .collect();
    imbalance(&node, &requested, &ids)
}

#[test]
fn imbalance_is_the_deviation_of_shares() {
    let allocatable = || json!({"cpu": "1", "memory": "1024"});
    let names = ["cpu", "memory"];
    assert_eq!(imbalance_of(allocatable(), &[], &[]), 0.0);
    assert_eq!(
        imbalance_of(
            allocatable(),
            &[json!({"cpu": "500m", "memory": "512"})],
            &names
        ),
        0.0
    );
    assert!(
        imbalance_of(
            allocatable(),
            &[json!({"cpu": "900m", "memory": "100"})],
            &names
        ) > 0.1
    );
    // A resource that the node lacks does not count, and a single one does not deviate.
    let pod = [json!({"cpu": "500m", "memory": "512"})];
    assert_eq!(
        imbalance_of(json!({"cpu": "1", "memory": "0"}), &pod, &names),
        0.0
    );
    let gpu = json!({"cpu": "1", "memory": "1024", "example.com/gpu": "2"});
    let resources = ["example.com/gpu", "cpu"];
    assert_eq!(
        imbalance_of(gpu, &[json!({"example.com/gpu": "1"})], &resources),
        0.25
    );
    // Pods count as a resource without being requested.
    let allocatable = json!({"cpu": "1", "pods": "4"});
    assert_eq!(
        imbalance_of(allocatable, &[json!({}), json!({})], &["cpu", "pods"]),
        0.25
    );
}

#[test]
fn removal_can_raise_or_lower_imbalance() {
    let allocatable = || json!({"cpu": "1", "memory": "1024"});
    let resources = ["cpu", "memory"];
    let imbalance = |pods: &[Value]| imbalance_of(allocatable(), pods, &resources);
    let (heavy, light) = (
        json!({"cpu": "800m", "memory": "100"}),
        json!({"cpu": "100m", "memory": "100"}),
    );
    assert!(imbalance(&[heavy, light.clone()]) > imbalance(&[light]));
    let (a, b) = (
        json!({"cpu": "200m", "memory": "800"}),
        json!({"cpu": "600m", "memory": "100"}),
    );
    assert!(imbalance(&[a.clone(), b]) < imbalance(&[a]));
}

#[test]
fn next_best_pod_replaces_a_refused_one() {
    let mut world = world();
    for (name, cpu) in [("best", "2"), ("next", "1500m"), ("last", "500m")] {
        world.pod(name, "node1", requests(cpu, "10"));
    }
    world.pod(
        "other",
        "node1",
        merged(
            requests("10m", "10"),
            json!({"metadata": {"namespace": "other"}}),
        ),
    );
    let args = json!({"nodeFit": false, "evictableNamespaces": {"exclude": ["other"]}});
    let run = |evictor: Option<Box<dyn crate::framework::Evictor>>| {
        let mut framework = framework(args.clone());
        if let Some(evictor) = evictor {
            framework.profiles[0].evictor = evictor;
        }
        let plan = framework.run(&world.snapshot());
        let skipped = plan.skipped.iter();
        let mut skipped: Vec<_> = skipped
            .map(|skipped| format!("{} {}", skipped.pod.name, skipped.reason.rule))
            .collect();
        skipped.sort();
        (moved(&plan), skipped)
    };
    let (evicted_pods, skipped) = run(None);
    assert_eq!(evicted_pods, ["best"]);
    assert_eq!(
        skipped,
        ["last OnePerNode", "next OnePerNode", "other Namespaces"]
    );
    let (evicted_pods, skipped) = run(Some(Box::new(crate::testing::Refuses(&["best"]))));
    assert_eq!(evicted_pods, ["next"]);
    assert_eq!(
        skipped,
        ["best Refuses", "last OnePerNode", "other Namespaces"]
    );
}

fn owned_by(owner: &str, created: &str) -> Value {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true}]);
    json!({"metadata": {"creationTimestamp": created, "ownerReferences": owner}})
}

#[test]
fn replacement_is_not_moved_for_an_hour() {
    let mut world = world();
    world.pod("p1", "node1", requests("2", "10"));
    let mut framework = framework(json!({"nodeFit": false}));
    assert_eq!(moved(&framework.run(&world.snapshot())), ["p1"]);
    world.pods.clear();
    world.now += SignedDuration::from_mins(10);
    let created = world.now.to_string();
    world.pod(
        "p2",
        "node2",
        merged(requests("2", "10"), owned_by("rs", &created)),
    );
    let plan = framework.run(&world.snapshot());
    assert!(moved(&plan).is_empty());
    assert_eq!(plan.skipped[0].reason.rule, "MovedLately");
    world.pod(
        "q",
        "node1",
        merged(requests("2", "10"), owned_by("other", &created)),
    );
    assert_eq!(moved(&framework.run(&world.snapshot())), ["q"]);
    world.pods.pop();
    world.now += SignedDuration::from_mins(50);
    assert_eq!(moved(&framework.run(&world.snapshot())), ["p2"]);
}

#[test]
fn moves_of_other_strategies_are_respected() {
    let mut world = world();
    let created = "2026-01-01T11:55:00Z";
    world.pod(
        "p2",
        "node1",
        merged(requests("2", "10"), owned_by("rs", created)),
    );
    let args = MigrationControllerArgs::default().completed();
    let mut built = crate::plugins::migration_controller::build(args, "test");
    let mut framework = framework(json!({"nodeFit": false}));
    framework.profiles[0].evictor = built.evict.take().unwrap();
    let workload = crate::state::Workload::Known {
        replicas: 10,
        controllers: Vec::new(),
        deleting: false,
    };
    let snapshot = |world: &TestCluster| {
        let mut snapshot = world.snapshot();
        snapshot.workloads.insert("rs".into(), workload.clone());
        snapshot
    };
    let memo = json!({"workload": "rs", "node": "node2", "usage": {"cpu": "1"}}).to_string();
    let job = json!({
        "metadata": {"name": "j", "uid": "j", "creationTimestamp": "2026-01-01T11:50:00Z",
            "annotations": {"descheduler.koordinator.sh/load-move": memo}},
        "spec": {"podRef": {"namespace": "default", "name": "p1", "uid": "uid-p1"}},
        "status": {"phase": "Succeeded"},
    });
    world
        .jobs
        .push(std::sync::Arc::new(serde_json::from_value(job).unwrap()));
    let plan = framework.run(&snapshot(&world));
    assert!(moved(&plan).is_empty());
    assert_eq!(plan.skipped[0].reason.rule, "MovedLately");
    // The plugin records its own moves for other strategies.
    world.now += SignedDuration::from_mins(50);
    let plan = framework.run(&snapshot(&world));
    let planned = plan.moves().next().unwrap();
    let Some(Intent::Job(job)) = &planned.intent else {
        panic!("no job: {planned:?}");
    };
    let memo = &job.metadata.annotations.as_ref().unwrap()["descheduler.koordinator.sh/load-move"];
    let memo: Value = serde_json::from_str(memo).unwrap();
    assert_eq!(
        (&memo["workload"], &memo["node"]),
        (&json!("rs"), &json!("node1"))
    );
}
