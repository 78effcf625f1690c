//! Tests of `LoadAwareScheduling`: thresholds, expiry, aggregation, estimates and queueing hints.

mod cache;
mod rows;
mod skew;
mod trimmed;

use super::trimmed::TrimmedNodeMetric;
use super::*;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_model::resources::ResourceTable;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions, Output};
use koord_scheduler::framework::Profiles;
use serde_json::json;

const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

/// Builds an engine with this plugin as the only filter and score.
fn engine(args: Value) -> Engine {
    engine_with_plugins(&[], args)
}

/// Builds an engine like [`engine`], with other plugins.
fn engine_with_plugins(others: &[&str], args: Value) -> Engine {
    let all = [NAME, "DefaultBinder"].iter().chain(others);
    let all: Vec<Value> = all.map(|name| json!({"name": name})).collect();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": all
            }},
            "pluginConfig": [{"name": NAME, "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let context = BuildContext::default();
    let profiles = Profiles::build(&config, &crate::registry(), &context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

fn node(name: &str, annotations: Value) -> Arc<Node> {
    let value = json!({
        "metadata": {"name": name, "uid": name, "annotations": annotations},
        "status": {"allocatable": {"cpu": "100", "memory": "500Gi", "pods": "110"}}
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn metric(node: &str, cpu: &str, rest: Value) -> ObjectChange {
    let mut status = json!({
        "updateTime": at(0).to_string(),
        "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu, "memory": "10Gi"}}}
    });
    for (key, value) in rest.as_object().into_iter().flatten() {
        if key == "nodeMetric" {
            for (key, value) in value.as_object().into_iter().flatten() {
                status["nodeMetric"][key] = value.clone();
            }
        } else {
            status[key] = value.clone();
        }
    }
    let metric: NodeMetric = serde_json::from_value(json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": node},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
        "status": status
    }))
    .unwrap();
    ObjectChange {
        kind: NODE_METRICS,
        action: Action::ADD,
        old: None,
        new: Arc::new(metric),
    }
}

fn pod(name: &str, change: Value) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": 9500,
            "containers": [{"name": "c", "resources": {
                "requests": {"cpu": "10", "memory": "1Gi"}
            }}]
        }
    });
    for (key, part) in change.as_object().into_iter().flatten() {
        for (field, content) in part.as_object().into_iter().flatten() {
            value[key][field] = content.clone();
        }
    }
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Schedules a pod. Returns its node or the message of its condition.
fn place(engine: &mut Engine, pod: Arc<Pod>, seconds: i64) -> String {
    engine.take_outputs();
    engine.pod_applied(pod, at(seconds));
    engine.schedule_one(at(seconds)).unwrap();
    match engine.take_outputs().remove(0) {
        Output::Bind(bind) => bind.node.to_string(),
        Output::Failed(failure) => failure.message.to_string(),
        Output::Problem(problem) => problem.message,
        other => format!("{other:?}"),
    }
}

const HOT: &str = "0/1 nodes are available: 1 node(s) cpu usage exceed threshold.";
const HOT_AGGREGATED: &str =
    "0/1 nodes are available: 1 node(s) cpu aggregated usage exceed threshold.";

/// Returns the result for one pod, estimated at 8.5 cores, on one node with this report.
fn answer(args: Value, annotations: Value, report: ObjectChange, seconds: i64) -> String {
    let mut engine = engine(args);
    engine.node_applied(node("n", annotations), at(0));
    engine.object_changed(&report, at(0));
    place(&mut engine, pod("p", json!({})), seconds)
}

#[test]
fn usage_plus_estimate_is_compared_with_threshold() {
    // 56.9 + 8.5 = 65.4 % rounds to 65; 57.0 + 8.5 = 65.5 % rounds to 66.
    assert_eq!(
        answer(json!({}), json!({}), metric("n", "56900m", json!({})), 10),
        "n"
    );
    assert_eq!(
        answer(json!({}), json!({}), metric("n", "57", json!({})), 10),
        HOT
    );
    let off = json!({"usageThresholds": {"cpu": 0, "memory": 0}});
    assert_eq!(
        answer(off, json!({}), metric("n", "99", json!({})), 10),
        "n"
    );
}

#[test]
fn absurd_report_counts_as_full_node() {
    for (cpu, rest, expected) in [
        ("1E", json!({}), HOT),
        ("9223372036854775807", json!({}), HOT),
        (
            "1",
            json!({"nodeMetric": {"nodeUsage": {"resources": {"memory": "8Ei"}}}}),
            "0/1 nodes are available: 1 node(s) memory usage exceed threshold.",
        ),
    ] {
        let report = metric("n", cpu, rest);
        assert_eq!(answer(json!({}), json!({}), report, 10), expected);
    }
    let aggregated =
        json!({"aggregated": {"usageThresholds": {"cpu": 65}, "usageAggregationType": "p95"}});
    let window = json!([{"duration": "5m", "usage": {"p95": {"resources": {"cpu": "1E"}}}}]);
    let report = metric(
        "n",
        "1",
        json!({"nodeMetric": {"aggregatedNodeUsages": window}}),
    );
    assert_eq!(answer(aggregated, json!({}), report, 10), HOT_AGGREGATED);
    // The pod's own scaling factor makes it use the whole node.
    let mut engine = engine(json!({"allowCustomizeEstimation": true}));
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&metric("n", "1", json!({})), at(0));
    let own = json!({"metadata": {"annotations": {
        "scheduling.koordinator.sh/load-estimated-scaling-factors": r#"{"cpu":9223372036854775807}"#}}});
    assert_eq!(place(&mut engine, pod("p", own), 10), HOT);
}

#[test]
fn expired_report_is_handled_as_configured() {
    let report = || metric("n", "90", json!({}));
    let expired = "0/1 nodes are available: 1 node(s) nodeMetric expired.";
    assert_eq!(answer(json!({}), json!({}), report(), 179), HOT);
    assert_eq!(answer(json!({}), json!({}), report(), 180), expired);
    let pass = json!({"enableScheduleWhenNodeMetricsExpired": true});
    assert_eq!(answer(pass, json!({}), report(), 180), "n");
    let stale = json!({"filterExpiredNodeMetrics": false});
    assert_eq!(answer(stale, json!({}), report(), 10_000), HOT);
    let mut bare = engine(json!({}));
    bare.node_applied(node("n", json!({})), at(0));
    assert_eq!(
        place(&mut bare, pod("p", json!({})), 0),
        "n",
        "no report, no opinion"
    );
}

#[test]
fn node_thresholds_override_arguments() {
    let own = json!({"scheduling.koordinator.sh/usage-thresholds":
        r#"{"usageThresholds":{"cpu":50}}"#});
    assert_eq!(answer(json!({}), own, metric("n", "45", json!({})), 1), HOT);
    let bad = json!({"scheduling.koordinator.sh/usage-thresholds": "{"});
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", bad), at(0));
    match engine.take_outputs().remove(0) {
        Output::Problem(problem) => assert!(problem.message.contains("usage-thresholds")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn prod_pods_are_compared_with_prod_usage() {
    let args = json!({"prodUsageThresholds": {"cpu": 20}});
    let usage = json!({"podsMetric": [
        {"name": "prod", "namespace": "ns", "priority": "koord-prod",
         "podUsage": {"resources": {"cpu": "12"}}},
        {"name": "gone", "namespace": "ns", "priority": "koord-prod",
         "podUsage": {"resources": {"cpu": "50"}}}
    ]});
    let mut engine = engine(args);
    engine.node_applied(node("n", json!({})), at(-1000));
    let scheduled = json!({"spec": {"nodeName": "n"}, "status": {"conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(-1000).to_string()}
    ]}});
    engine.pod_applied(pod("prod", scheduled), at(-1000));
    engine.object_changed(&metric("n", "90", usage), at(0));
    // 12 + 8.5 = 20.5 % rounds to 21: only production pods on the node count.
    assert_eq!(place(&mut engine, pod("p", json!({})), 1), HOT);
    let small = json!({"spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "9", "memory": "1Gi"}}}
    ]}});
    assert_eq!(place(&mut engine, pod("q", small), 1), "n");
}

/// System usage counts as production usage only if configured; upstream's row has 2 of both.
#[test]
fn system_usage_counts_as_prod_if_configured() {
    let answer_with = |args: Value, cpu: &str| {
        let system =
            json!({"nodeMetric": {"systemUsage": {"resources": {"cpu": "2", "memory": "4Gi"}}}});
        let mut engine = engine(args);
        engine.node_applied(node("n", json!({})), at(0));
        engine.object_changed(&metric("n", "2", system), at(0));
        let asks = json!({"spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
        ]}});
        place(&mut engine, pod("p", asks), 1)
    };
    let args = |with: bool| {
        json!({"prodUsageThresholds": {"cpu": 20}, "prodUsageIncludeSys": with,
            "estimatedScalingFactors": {"cpu": 100, "memory": 70}})
    };
    // In cores of 100, including the estimate of the pod.
    for (with, fits, exceeds) in [(false, "20", "21"), (true, "18", "19")] {
        assert_eq!(
            (
                answer_with(args(with), fits),
                answer_with(args(with), exceeds)
            ),
            ("n".to_owned(), HOT.to_owned())
        );
    }
    let plain = json!({"prodUsageThresholds": {"cpu": 20},
        "estimatedScalingFactors": {"cpu": 100, "memory": 70}});
    assert_eq!(answer_with(plain, "20"), "n", "by default it does not");
}

#[test]
fn aggregated_usage_replaces_the_mean() {
    let args = |duration: &str| {
        json!({"aggregated": {"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95",
            "usageAggregatedDuration": duration}})
    };
    let report = || {
        let window = |cpu: &str, duration: &str| json!({"usage": {"p95": {"resources": {"cpu": cpu}}}, "duration": duration});
        let windows = json!([window("80", "5m0s"), window("20", "30m0s")]);
        metric(
            "n",
            "90",
            json!({"nodeMetric": {"aggregatedNodeUsages": windows}}),
        )
    };
    assert_eq!(answer(args("5m"), json!({}), report(), 1), HOT_AGGREGATED);
    assert_eq!(
        answer(args("0s"), json!({}), report(), 1),
        "n",
        "the longest window counts"
    );
    assert_eq!(
        answer(args("1h"), json!({}), report(), 1),
        "n",
        "estimates alone"
    );
    let plain = metric("n", "90", json!({}));
    assert_eq!(
        answer(args("0s"), json!({}), plain, 1),
        HOT_AGGREGATED,
        "the mean, else"
    );
}

#[test]
fn placements_between_reports_count_as_estimates() {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&metric("n", "40", json!({})), at(0));
    assert_eq!(place(&mut engine, pod("a", json!({})), 1), "n"); // 48.5
    assert_eq!(place(&mut engine, pod("b", json!({})), 2), "n"); // 57
    assert_eq!(place(&mut engine, pod("c", json!({})), 3), HOT); // 65.5
    // A report that lists the pods, but was taken within one interval of their assignment, covers only the
    // usage that it shows for them.
    let listed = |updated: i64| {
        json!({"updateTime": at(updated).to_string(), "podsMetric": [
            {"name": "a", "namespace": "ns", "podUsage": {"resources": {"cpu": "3"}}},
            {"name": "b", "namespace": "ns", "podUsage": {"resources": {"cpu": "3"}}}
        ]})
    };
    engine.object_changed(&metric("n", "46", listed(30)), at(30));
    assert_eq!(place(&mut engine, pod("d", json!({})), 31), HOT); // 46 + 11 + 8.5
    engine.object_changed(&metric("n", "46", listed(100)), at(100));
    assert_eq!(place(&mut engine, pod("e", json!({})), 101), "n"); // 46 + 8.5
}

#[test]
fn batch_pod_is_estimated_by_batch_resources() {
    let table = ResourceTable::new();
    let dimensions = Dimensions::from_args(&Args::default().complete());
    let estimate = |table: &ResourceTable, priority: i32, resources: Value| {
        let change = json!({"spec": {"priority": priority,
            "containers": [{"name": "c", "resources": resources}]}});
        let info = PodInfo::new(pod("p", change), table).unwrap();
        dimensions.estimate(&info, table, false).to_vec()
    };
    let batch = json!({"requests": {
        "kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1000"
    }});
    assert_eq!(dimensions.names, ["cpu", "memory"]);
    assert_eq!(estimate(&table, 5500, batch.clone()), [1700, 700]);
    assert_eq!(
        estimate(&table, 9500, batch),
        [250, 200 << 20],
        "not its kind: the default"
    );
    assert_eq!(
        estimate(&table, 7500, json!({})),
        [0, 0],
        "mid has no default"
    );
    let capped = json!({"requests": {"cpu": "4"}, "limits": {"cpu": "2"}});
    assert_eq!(estimate(&table, 9500, capped)[0], 2000);
}

#[test]
fn less_used_node_wins_and_unreported_scores_zero() {
    let mut engine = engine(json!({}));
    for name in ["busy", "calm", "silent"] {
        engine.node_applied(node(name, json!({})), at(0));
    }
    engine.object_changed(&metric("busy", "40", json!({})), at(0));
    engine.object_changed(&metric("calm", "10", json!({})), at(0));
    assert_eq!(place(&mut engine, pod("p", json!({})), 1), "calm");
}

#[test]
fn amplified_allocatable_is_compared_raw() {
    let raw = json!({"node.koordinator.sh/raw-allocatable": r#"{"cpu":"50"}"#});
    assert_eq!(answer(json!({}), raw, metric("n", "30", json!({})), 1), HOT);
}

#[test]
fn invalid_arguments_are_reported() {
    for (args, expected) in [
        (
            json!({"usageThresholds": {"cpu": 101}}),
            "usageThresholds[cpu]: 101",
        ),
        (
            json!({"resourceWeights": {"cpu": 0}}),
            "resourceWeights[cpu]: 0",
        ),
        (
            json!({"resourceWeights": {"gpu": 1}}),
            "estimatedScalingFactors[gpu]",
        ),
        (
            json!({"aggregated": {"usageAggregationType": "p42"}}),
            "p42",
        ),
        (json!({"estimator": "oracle"}), "oracle"),
        (
            json!({"nodeMetricExpirationSecond": 1}),
            "nodeMetricExpirationSecond",
        ),
        (json!({"kind": "OtherArgs"}), "OtherArgs"),
    ] {
        let error = build(Some(&args), &BuildContext::default())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn report_queues_pods_that_its_node_now_admits() {
    let mut engine = engine_with_plugins(&["NodeUnschedulable"], json!({}));
    let mut cordoned = Arc::unwrap_or_clone(node("cordoned", json!({})));
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    engine.node_applied(Arc::new(cordoned), at(0));
    for name in ["hot", "warm"] {
        engine.node_applied(node(name, json!({})), at(0));
    }
    for (name, cpu) in [("hot", "90"), ("warm", "60"), ("cordoned", "10")] {
        engine.object_changed(&metric(name, cpu, json!({})), at(0));
    }
    let refused = place(&mut engine, pod("p", json!({})), 1);
    let reasons = "1 node(s) were unschedulable, 2 node(s) cpu usage exceed threshold";
    assert!(refused.contains(reasons), "{refused}");
    for (name, cpu) in [
        ("hot", "70"),
        ("warm", "58"),
        // The node admitted the pod before, as far as its load is concerned.
        ("cordoned", "20"),
        ("absent", "0"),
    ] {
        engine.object_changed(&metric(name, cpu, json!({})), at(2));
        assert!(engine.schedule_one(at(2)).is_none(), "{name} at {cpu}");
    }
    engine.object_changed(&metric("warm", "50", json!({})), at(3));
    let outcome = engine.schedule_one(at(3)).unwrap();
    assert_eq!(outcome.node.as_deref(), Some("warm"));
}

#[test]
fn report_after_expiry_queues_pods() {
    let mut engine = engine(json!({"nodeMetricExpirationSeconds": 30}));
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&metric("n", "10", json!({})), at(0));
    let refused = place(&mut engine, pod("p", json!({})), 40);
    assert!(refused.contains("nodeMetric expired"), "{refused}");
    let fresh = json!({"updateTime": at(41).to_string()});
    engine.object_changed(&metric("n", "10", fresh), at(41));
    assert!(engine.schedule_one(at(41)).unwrap().node.is_some());
    // The pod is retried when the report itself expires, whatever happened to the one before.
    let refused = place(&mut engine, pod("q", json!({})), 72);
    assert!(refused.contains("nodeMetric expired"), "{refused}");
}

/// When members do not fit together, their places are released without an event.
#[test]
fn report_queues_gang_with_members_fitting_singly() {
    let mut engine = engine_with_plugins(&["Coscheduling"], json!({}));
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&metric("n", "30", json!({})), at(0));
    let member = |name: &str| {
        let gang = json!({
            "gang.scheduling.koordinator.sh/name": "g",
            "gang.scheduling.koordinator.sh/min-available": "2",
        });
        let requests = json!({"requests": {"cpu": "30", "memory": "1Gi"}});
        let containers = json!([{"name": "c", "resources": requests}]);
        pod(
            name,
            json!({"metadata": {"annotations": gang}, "spec": {"containers": containers}}),
        )
    };
    for name in ["m1", "m2"] {
        engine.pod_applied(member(name), at(1));
    }
    let bound = |engine: &mut Engine, seconds: i64| {
        while engine.schedule_one(at(seconds)).is_some() {}
        let outputs = engine.take_outputs();
        let bound = outputs.iter().filter(|out| matches!(out, Output::Bind(_)));
        bound.count()
    };
    // One pod of 25.5 in addition to 30 is within 65, two are not.
    assert_eq!(bound(&mut engine, 1), 0);
    engine.object_changed(&metric("n", "10", json!({})), at(30));
    assert_eq!(bound(&mut engine, 60), 2);
}

#[test]
fn report_queues_pods_after_smaller_requests() {
    let mut engine = engine(json!({}));
    engine.node_applied(node("n", json!({})), at(0));
    engine.object_changed(&metric("n", "30", json!({})), at(0));
    let with = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu, "memory": "1Gi"}});
        let containers = json!([{"name": "c", "resources": resources}]);
        pod(
            "big",
            json!({"spec": {"nodeName": "n", "containers": containers}}),
        )
    };
    engine.pod_applied(with("40"), at(0));
    let refused = place(&mut engine, pod("p", json!({})), 1);
    assert!(refused.contains("cpu usage exceed threshold"), "{refused}");
    engine.pod_applied(with("10"), at(2));
    engine.object_changed(&metric("n", "30", json!({})), at(3));
    assert!(engine.schedule_one(at(60)).unwrap().node.is_some());
}
