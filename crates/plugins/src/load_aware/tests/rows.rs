//! Rows of upstream's tables for filter, score and estimator. Nodes have 96 cores and 512 GiB.

use super::*;

/// Cores and GiB.
type Load = (i64, i64);

fn usage((cpu, memory): Load) -> Value {
    json!({"resources": {"cpu": cpu.to_string(), "memory": format!("{memory}Gi")}})
}

/// Builds a pod with these requests; priority 0 means none.
fn pod_with(name: &str, priority: i32, requests: Value, limits: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"schedulerName": "koord-scheduler", "containers":
            [{"name": "c", "resources": {"requests": requests, "limits": limits}}]}
    });
    if priority > 0 {
        pod["spec"]["priority"] = json!(priority);
    }
    pod
}

fn plain(cpu: i64, memory: i64) -> Value {
    json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")})
}

fn mid(cpu: i64, memory: i64) -> Value {
    json!({"kubernetes.io/mid-cpu": (cpu * 1000).to_string(),
        "kubernetes.io/mid-memory": format!("{memory}Gi")})
}

/// Puts `pod` on the node, assigned at `seconds`.
fn on_node(mut pod: Value, seconds: i64) -> Arc<Pod> {
    pod["spec"]["nodeName"] = json!("n");
    pod["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "True",
        "lastTransitionTime": at(seconds).to_string()}]});
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// A node and its report.
struct NodeWorld {
    args: Value,
    own: Value,
    used: Option<Load>,
    /// 95th percentile over five minutes.
    p95: Option<Load>,
    updated: Option<i64>,
    /// Reported usage of pods.
    pods: Vec<(&'static str, &'static str, Load)>,
    /// Pods on the node.
    pods_on_node: Vec<Arc<Pod>>,
}

impl NodeWorld {
    fn with_usage(used: Load) -> Self {
        Self {
            args: json!({}),
            own: Value::Null,
            used: Some(used),
            p95: None,
            updated: Some(0),
            pods: Vec::new(),
            pods_on_node: Vec::new(),
        }
    }

    fn with(self, args: Value) -> Self {
        Self { args, ..self }
    }

    fn own(self, own: Value) -> Self {
        Self { own, ..self }
    }

    fn p95(self, load: Load) -> Self {
        let p95 = Some(load);
        Self { p95, ..self }
    }

    fn updated(self, updated: Option<i64>) -> Self {
        Self { updated, ..self }
    }

    fn reported(self, pods: &[(&'static str, &'static str, Load)]) -> Self {
        let pods = pods.to_vec();
        Self { pods, ..self }
    }

    fn holds(mut self, pod: Value, seconds: i64) -> Self {
        self.pods_on_node.push(on_node(pod, seconds));
        self
    }

    fn engine(self) -> Engine {
        let mut engine = engine(self.args);
        let mut annotations = json!({});
        if !self.own.is_null() {
            let key = "scheduling.koordinator.sh/usage-thresholds";
            annotations[key] = json!(self.own.to_string());
        }
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "n", "annotations": annotations},
            "status": {"allocatable": {"cpu": "96", "memory": "512Gi", "pods": "110"}}
        }))
        .unwrap();
        engine.node_applied(Arc::new(node), at(-1000));
        for pod in self.pods_on_node {
            engine.pod_applied(pod, at(-1000));
        }
        let Some(used) = self.used else { return engine };
        let mut status = json!({"nodeMetric": {"nodeUsage": usage(used)}});
        if let Some(load) = self.p95 {
            status["nodeMetric"]["aggregatedNodeUsages"] =
                json!([{"duration": "5m0s", "usage": {"p95": usage(load)}}]);
        }
        if let Some(seconds) = self.updated {
            status["updateTime"] = json!(at(seconds).to_string());
        }
        let pods = self.pods.iter().map(|(name, class, load)| {
            json!({"name": name, "namespace": "ns", "priority": class, "podUsage": usage(*load)})
        });
        status["podsMetric"] = pods.collect();
        let metric: NodeMetric = serde_json::from_value(json!({
            "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
            "metadata": {"name": "n"}, "status": status,
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}
        }))
        .unwrap();
        let change = ObjectChange {
            kind: NODE_METRICS,
            action: Action::ADD,
            old: None,
            new: Arc::new(metric),
        };
        engine.object_changed(&change, at(0));
        engine
    }

    fn place(self, pod: Value) -> String {
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        let text = place(&mut self.engine(), pod, 0);
        let text = text.trim_start_matches("0/1 nodes are available: 1 ");
        text.trim_end_matches('.').to_owned()
    }

    fn score(self, pod: Value) -> i64 {
        let mut engine = self.engine();
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        let outcome = place(&mut engine, pod, 0);
        let decision = engine.telemetry.decision("p");
        let Some(table) = decision.and_then(|decision| decision.table.clone()) else {
            panic!("{outcome}");
        };
        table.ranking[0].scores[0].raw
    }
}

const PROD: &str = "koord-prod";
const CPU: &str = "node(s) cpu usage exceed threshold";
const MEMORY: &str = "node(s) memory usage exceed threshold";

fn both(mut base: Value, more: Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        base[key] = value.clone();
    }
    base
}

#[test]
fn usage_is_compared_with_thresholds() {
    let empty = || pod_with("p", 0, json!({}), json!({}));
    let prod = |requests: Value| pod_with("p", 9999, requests, json!({}));
    let stale = |more: Value| both(json!({"filterExpiredNodeMetrics": false}), more);
    let node = |used: Load| NodeWorld::with_usage(used).with(stale(json!({})));
    let p95 = || {
        json!({"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95",
        "usageAggregatedDuration": "5m"})
    };
    let limits = |cpu: i64, memory: i64| json!({"cpu": cpu, "memory": memory});
    let limited = |all: Value, prod: Value| {
        stale(json!({"usageThresholds": all, "prodUsageThresholds": prod}))
    };
    let pods = |world: NodeWorld, one: Load, class: &'static str, two: Load| {
        let quiet = |name: &str| pod_with(name, 9999, json!({}), json!({}));
        let reported = world.reported(&[("one", PROD, one), ("two", class, two)]);
        reported.holds(quiet("one"), -10).holds(quiet("two"), -10)
    };
    let busy = |args: Value| {
        pods(
            NodeWorld::with_usage((63, 500)).with(args),
            (30, 200),
            PROD,
            (33, 300),
        )
    };
    let half = |args: Value, memory: i64, class| {
        pods(
            NodeWorld::with_usage((53, memory)).with(args),
            (30, 100),
            class,
            (23, 200),
        )
    };
    let first = |used: Load| {
        let small_pod = pod_with("one", 9999, json!({}), json!({}));
        let world = NodeWorld::with_usage(used).with(limited(limits(65, 85), limits(60, 70)));
        world
            .reported(&[("one", PROD, (30, 100))])
            .holds(small_pod, -10)
    };
    let mut daemon = pod_with("p", 9999, json!({}), json!({}));
    daemon["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet",
        "name": "d", "uid": "d", "controller": true}]);
    let mut silent = node((0, 0));
    silent.used = None;
    let aggregated = "node(s) cpu aggregated usage exceed threshold";
    let all = || limits(100, 100);
    let (cpu_limits, limits_of_both) = (
        || limited(limits(65, 100), limits(60, 100)),
        || limited(limits(65, 85), limits(60, 80)),
    );
    #[rustfmt::skip]
    let rows: Vec<(&str, NodeWorld, Value, &str)> = vec![
        ("below", node((60, 256)), empty(), "n"),
        ("no report", silent, empty(), "n"),
        ("cpu", node((70, 256)), empty(), CPU),
        ("p95 of cpu", node((30, 100)).p95((70, 256)).with(stale(json!({"aggregated": p95()}))), empty(),
            aggregated),
        ("memory", node((30, 500)), empty(), MEMORY),
        ("memory, the node's own", node((30, 316)).own(json!({"usageThresholds": {"memory": 60}})), empty(),
            MEMORY),
        ("p95 of cpu, the node's own", node((30, 100)).p95((70, 256)).own(json!({"aggregatedUsage": p95()})),
            empty(), aggregated),
        ("memory, switched off", node((30, 500)).with(stale(json!({"usageThresholds": {"memory": 0}}))),
            empty(), "n"),
        ("production is not looked at by default", busy(stale(json!({"usageThresholds": all()}))), empty(), "n"),
        ("production cpu", busy(limited(all(), limits(50, 100))), prod(json!({})), CPU),
        ("production memory", busy(limited(all(), limits(100, 50))), prod(json!({})), MEMORY),
        ("production memory, the node's own",
            busy(limited(all(), all())).own(json!({"prodUsageThresholds": limits(100, 50)})), prod(json!({})),
            MEMORY),
        ("daemons go everywhere", node((70, 256)), daemon, "n"),
        ("production cpu with what comes", half(cpu_limits(), 500, PROD), prod(plain(20, 100)), CPU),
        ("cpu with a mid pod that comes", half(cpu_limits(), 300, ""), pod_with("p", 7999, mid(12, 100), json!({})),
            CPU),
        ("production memory with what comes", half(limits_of_both(), 300, PROD), prod(plain(1, 165)), MEMORY),
        ("memory with a mid pod that comes", half(limits_of_both(), 300, ""),
            pod_with("p", 7999, mid(1, 200), json!({})), MEMORY),
        ("production memory with a pod just assigned",
            first((53, 300)).holds(pod_with("two", 9999, plain(1, 200), json!({})), -10), prod(plain(1, 200)),
            MEMORY),
        ("cpu with a mid pod that has just come",
            first((33, 110)).holds(pod_with("two", 7999, mid(20, 200), json!({})), -10),
            pod_with("p", 7999, mid(20, 200), json!({})), CPU),
    ];
    for (name, world, pod, expected) in rows {
        assert_eq!(world.place(pod), expected, "{name}");
    }
}

#[test]
fn expired_report_rejects_unless_configured() {
    const OLD: &str = "node(s) nodeMetric expired";
    let when = |enabled: bool| json!({"enableScheduleWhenNodeMetricsExpired": enabled});
    for (name, args, updated, expected) in [
        ("fresh", json!({}), Some(0), "n"),
        ("never updated", json!({}), None, OLD),
        ("old", json!({}), Some(-180), OLD),
        ("never updated, enabled", when(true), None, "n"),
        ("old, enabled", when(true), Some(-180), "n"),
        ("never updated, disabled", when(false), None, OLD),
        ("old, disabled", when(false), Some(-180), OLD),
    ] {
        let world = NodeWorld::with_usage((0, 0)).with(args).updated(updated);
        let got = world.place(pod_with("p", 0, json!({}), json!({})));
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn nodes_score_by_estimated_use() {
    let large_pod = |name: &str| pod_with(name, 0, plain(16, 32), plain(16, 32));
    let own_pod = || large_pod("p");
    let p95 =
        || json!({"aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "5m"}});
    let batch =
        || json!({"kubernetes.io/batch-cpu": "16000", "kubernetes.io/batch-memory": "32Gi"});
    let prod = |name: &str, cpu: i64| pod_with(name, 9999, plain(cpu, 32), plain(cpu, 32));
    let idle = || NodeWorld::with_usage((0, 0));
    let busy = || NodeWorld::with_usage((32, 10));
    let mut silent = idle();
    silent.used = None;
    let pass = json!({"enableScheduleWhenNodeMetricsExpired": true});
    let according =
        json!({"usageThresholds": {"cpu": 0, "memory": 0}, "scoreAccordingProdUsage": true});
    #[rustfmt::skip]
    let rows: Vec<(&str, NodeWorld, Value, i64)> = vec![
        ("old report", idle().with(pass).updated(Some(-180)), own_pod(), 0),
        ("idle", idle(), own_pod(), 90),
        ("no report", silent, own_pod(), 0),
        ("busy", busy(), own_pod(), 72),
        ("p95", idle().p95((32, 10)).with(p95()), own_pod(), 72),
        ("p95 is not reported", idle().with(p95()), own_pod(), 90),
        ("p95 is not reported, a pod is there",
            idle().with(p95()).reported(&[("a", "", (1, 1))]).holds(large_pod("a"), -600), own_pod(), 81),
        ("a pod has just come", busy().holds(large_pod("a"), 0), own_pod(), 63),
        ("a pod came after the report", busy().updated(Some(-10)).holds(large_pod("a"), 0), own_pod(), 63),
        ("a pod came shortly before the report", busy().holds(large_pod("a"), -10), own_pod(), 63),
        ("batch", idle(), pod_with("p", 5000, batch(), batch()), 90),
        ("production use", idle().with(according).reported(&[("a", PROD, (30, 100))]).holds(prod("a", 16), 0),
            prod("p", 16_000), 38),
        ("limits count", idle(), pod_with("p", 0, plain(8, 16), plain(16, 32)), 90),
        ("the dominant resource", idle().with(json!({"dominantResourceWeight": 10})), own_pod(), 85),
        ("asks for nothing", idle(), pod_with("p", 0, json!({}), json!({})), 99),
    ];
    for (name, world, pod, expected) in rows {
        assert_eq!(world.score(pod), expected, "{name}");
    }
}

#[test]
fn pods_and_nodes_are_estimated() {
    let estimate = |args: Value, pod: Value, allowed: bool| {
        let table = ResourceTable::new();
        let args: Args = serde_json::from_value(args).unwrap();
        let dimensions = Dimensions::from_args(&args.complete());
        let pod = Arc::new(serde_json::from_value::<Pod>(pod).unwrap());
        dimensions
            .estimate(&PodInfo::new(pod, &table).unwrap(), &table, allowed)
            .to_vec()
    };
    let pod_with_load = |priority: i32, load: Value| pod_with("p", priority, load.clone(), load);
    let batch = json!({"kubernetes.io/batch-cpu": "4000", "kubernetes.io/batch-memory": "8Gi"});
    let factors = |value: Value| json!({"estimatedScalingFactors": value});
    let only = || pod_with("p", 9999, plain(4, 8), json!({}));
    let mut own = only();
    own["metadata"]["annotations"] =
        json!({annotations::LOAD_ESTIMATED_SCALING_FACTORS: r#"{"cpu":100}"#});
    let eighty = || factors(json!({"cpu": 80, "memory": 80}));
    const SEVENTY: i64 = 6_012_954_214;
    #[rustfmt::skip]
    let rows = [
        ("nothing", json!({}), pod_with_load(0, json!({})), false, [250, 200 << 20]),
        ("guaranteed", json!({}), pod_with_load(0, plain(4, 8)), false, [3400, SEVENTY]),
        ("burstable", json!({}), pod_with("p", 0, plain(4, 8), plain(8, 8)), false, [6800, SEVENTY]),
        ("more cpu than asked", factors(json!({"cpu": 110})), pod_with_load(0, plain(4, 8)), false, [4000, SEVENTY]),
        ("more memory than asked", factors(json!({"memory": 110})), pod_with_load(0, plain(4, 8)), false,
            [3400, 8 << 30]),
        ("batch", json!({}), pod_with_load(5000, batch), false, [3400, SEVENTY]),
        ("requests only", eighty(), only(), false, [3200, 6_871_947_674]),
        ("its own factors", eighty(), own, true, [4000, 6_871_947_674]),
    ];
    for (name, args, pod, allowed, expected) in rows {
        assert_eq!(estimate(args, pod, allowed), expected, "{name}");
    }

    // The node's capacity is the one before amplification.
    let raw = r#"{"cpu":28,"memory":"32Gi"}"#;
    for (raw, allocatable, cpu, expected) in [
        (None, 32, 20, "n"),
        (None, 32, 21, CPU),
        (Some(raw), 32, 18, "n"),
        (Some(raw), 32, 19, CPU),
        (Some(r#"{"cpu":32,"memory":"42Gi"}"#), 32, 20, "n"),
        (Some(r#"{"cpu":32,"memory":"42Gi"}"#), 32, 21, CPU),
    ] {
        let mut engine = engine(json!({}));
        let note = raw.map(|raw| json!({"node.koordinator.sh/raw-allocatable": raw}));
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "n", "annotations": note},
            "status": {"allocatable": {"cpu": allocatable.to_string(), "memory": "42Gi", "pods": "9"}}
        }))
        .unwrap();
        engine.node_applied(Arc::new(node), at(0));
        let report = metric("n", &cpu.to_string(), json!({}));
        engine.object_changed(&report, at(0));
        let pod = serde_json::from_value(pod_with("p", 0, json!({}), json!({}))).unwrap();
        let text = place(&mut engine, Arc::new(pod), 0);
        assert!(text.contains(expected), "{raw:?} {cpu}: {text}");
    }
}

#[test]
fn estimates_hold_until_a_deadline() {
    use annotations::LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED as INITIALIZED;
    use annotations::LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED as SCHEDULED;
    let plain = json!({});
    let both_deadlines = json!({"estimatedSecondsAfterPodScheduled": 180,
        "estimatedSecondsAfterInitialized": 10});
    let initialized = json!({"estimatedSecondsAfterInitialized": 180});
    let own = json!({"allowCustomizeEstimation": true});
    // Arguments, the pod's annotation, its initialization time; it was assigned a minute ago.
    let rows = [
        ("disabled", &plain, None, None, None),
        (
            "scheduled",
            &json!({"estimatedSecondsAfterPodScheduled": 180}),
            None,
            None,
            Some(120),
        ),
        (
            "both",
            &both_deadlines,
            None,
            Some(("True", -30)),
            Some(-20),
        ),
        (
            "initialized",
            &initialized,
            None,
            Some(("True", -60)),
            Some(120),
        ),
        (
            "not initialized",
            &initialized,
            None,
            Some(("False", -60)),
            None,
        ),
        ("its own, scheduled", &own, Some(SCHEDULED), None, Some(120)),
        (
            "its own, initialized",
            &own,
            Some(INITIALIZED),
            Some(("True", -60)),
            Some(120),
        ),
        ("its own, not allowed", &plain, Some(SCHEDULED), None, None),
    ];
    for (name, args, annotation, since, expected) in rows {
        let mut pod = pod_with("p", 0, json!({}), json!({}));
        if let Some(key) = annotation {
            pod["metadata"]["annotations"] = json!({key: "180"});
        }
        if let Some((status, since)) = since {
            pod["status"] = json!({"conditions": [{"type": "Initialized", "status": status,
                "lastTransitionTime": at(since).to_string()}]});
        }
        let args: Args = serde_json::from_value(args.clone()).unwrap();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pod = PodInfo::new(Arc::new(pod), &ResourceTable::new()).unwrap();
        let expected = expected.map(|seconds| at(seconds).as_millisecond());
        assert_eq!(
            load::deadline(&pod, at(-60), pod.initialized_at, &args.complete()),
            expected,
            "{name}"
        );
    }
}
