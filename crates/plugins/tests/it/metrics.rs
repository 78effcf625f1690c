//! Content of `/metrics` of a scheduler that has handled every kind of object.

use crate::api::{Scheduler, TestCluster, allocatable};
use crate::preemption::send_request;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::labels;
use koord_api::scheduling::{Device, ElasticQuota, PodGroup, Reservation};
use koord_app::admin::{Admin, Exposure};
use koord_kube::Api;
use koord_kube::api::PostParams;
use koord_kube::client::{ClientOptions, RestMetrics, from_kubeconfig};
use koord_kube::kube_core::{NamespaceResourceScope, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";

/// Name, type and labels of each metric, and a sample that some series has. Includes all metrics of upstream
/// that make sense here.
#[rustfmt::skip]
const SHOWN: &[(&str, &str, &str, &str)] = &[
    // kube-scheduler 1.35.
    ("scheduler_schedule_attempts_total", COUNTER, "profile result", r#"profile="koord-scheduler",result="scheduled""#),
    ("scheduler_schedule_attempts_total", COUNTER, "profile result", r#"result="unschedulable""#),
    ("scheduler_scheduling_attempt_duration_seconds", HISTOGRAM, "profile result", r#"result="scheduled""#),
    ("scheduler_scheduling_algorithm_duration_seconds", HISTOGRAM, "", ""),
    ("scheduler_event_handling_duration_seconds", HISTOGRAM, "event", r#"event="NodeAdd""#),
    ("scheduler_event_handling_duration_seconds", HISTOGRAM, "event", r#"event="UnschedulablePodAdd""#),
    ("scheduler_event_handling_duration_seconds", HISTOGRAM, "event", r#"event="AssignedPodUpdate""#),
    ("scheduler_preemption_victims", HISTOGRAM, "", ""),
    ("scheduler_preemption_attempts_total", COUNTER, "", ""),
    ("scheduler_pending_pods", GAUGE, "queue", r#"queue="active""#),
    ("scheduler_pending_pods", GAUGE, "queue", r#"queue="backoff""#),
    ("scheduler_pending_pods", GAUGE, "queue", r#"queue="unschedulable""#),
    ("scheduler_pending_pods", GAUGE, "queue", r#"queue="gated"} 1"#),
    ("scheduler_inflight_events", GAUGE, "event", r#"event="PodPopped""#),
    ("scheduler_goroutines", GAUGE, "operation", r#"operation="binding"} 0"#),
    ("scheduler_batch_attempts_total", COUNTER, "profile result", r#"result="no_hint""#),
    ("scheduler_batch_attempts_total", COUNTER, "profile result", r#"result="hint_used""#),
    ("scheduler_pod_scheduling_sli_duration_seconds", HISTOGRAM, "attempts", r#"attempts="1""#),
    ("scheduler_pod_scheduling_attempts", HISTOGRAM, "", ""),
    ("scheduler_pod_scheduled_after_flush_total", COUNTER, "", "0"),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="PreFilter",profile="koord-scheduler",status="Success""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="Filter""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="PostFilter",profile="koord-scheduler",status="Success""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="PreScore""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="Score""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="Reserve""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="Permit",profile="koord-scheduler",status="Wait""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="PreBind""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="Bind",profile="koord-scheduler",status="Success""#),
    ("scheduler_framework_extension_point_duration_seconds", HISTOGRAM, "extension_point profile status", r#"extension_point="PostBind""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="PreFilter",plugin="NodeResourcesFit",status="Success""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="PreFilter",plugin="NodePorts",status="Skip""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="Filter",plugin="NodeResourcesFit",status="Success""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="Score",plugin="NodeResourcesBalancedAllocation",status="Success""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="Permit",plugin="Coscheduling",status="Wait""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="Bind",plugin="DefaultBinder",status="Success""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="BeforePreFilter",plugin="ElasticQuota",status="Success""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="AfterPreFilter",plugin="Reservation",status="Success""#),
    ("scheduler_plugin_execution_duration_seconds", HISTOGRAM, "extension_point plugin status", r#"extension_point="BeforeFilter",plugin="Reservation",status="Success""#),
    ("scheduler_plugin_evaluation_total", COUNTER, "extension_point plugin profile", r#"extension_point="PreFilter",plugin="NodeResourcesFit""#),
    ("scheduler_plugin_evaluation_total", COUNTER, "extension_point plugin profile", r#"extension_point="Filter",plugin="NodeResourcesFit""#),
    ("scheduler_plugin_evaluation_total", COUNTER, "extension_point plugin profile", r#"extension_point="PreScore""#),
    ("scheduler_plugin_evaluation_total", COUNTER, "extension_point plugin profile", r#"extension_point="Score",plugin="NodeResourcesBalancedAllocation""#),
    ("scheduler_queueing_hint_execution_duration_seconds", HISTOGRAM, "event hint plugin", r#"plugin="NodeResourcesFit""#),
    ("scheduler_queue_incoming_pods_total", COUNTER, "event queue", r#"event="UnschedulablePodAdd",queue="active""#),
    ("scheduler_queue_incoming_pods_total", COUNTER, "event queue", r#"event="ScheduleAttemptFailure",queue="unschedulable""#),
    ("scheduler_permit_wait_duration_seconds", HISTOGRAM, "result", r#"result="Success""#),
    ("scheduler_cache_size", GAUGE, "type", r#"type="nodes"} 1"#),
    ("scheduler_cache_size", GAUGE, "type", r#"type="pods""#),
    ("scheduler_cache_size", GAUGE, "type", r#"type="assumed_pods""#),
    ("scheduler_unschedulable_pods", GAUGE, "plugin profile", r#"plugin="NodeResourcesFit",profile="koord-scheduler"} 1"#),
    ("scheduler_preemption_goroutines_duration_seconds", HISTOGRAM, "result", r#"result="success""#),
    ("scheduler_preemption_goroutines_execution_total", COUNTER, "result", r#"result="success"} 1"#),
    ("scheduler_async_api_call_execution_total", COUNTER, "call_type result", r#"call_type="pod_binding",result="success""#),
    ("scheduler_async_api_call_execution_total", COUNTER, "call_type result", r#"call_type="pod_status_patch",result="success""#),
    ("scheduler_async_api_call_execution_duration_seconds", HISTOGRAM, "call_type result", r#"call_type="pod_binding""#),
    ("scheduler_pending_async_api_calls", GAUGE, "call_type", r#"call_type="pod_binding"} 0"#),
    // Every component of Kubernetes has these.
    ("leader_election_master_status", GAUGE, "name", r#"name="koord-scheduler"} 1"#),
    ("kubernetes_build_info", GAUGE, "build_date compiler git_commit git_tree_state git_version go_version major minor platform", r#"compiler="rustc""#),
    ("kubernetes_feature_enabled", GAUGE, "name stage", r#"name="GangPendingPodsConditionPatch",stage="BETA"} 1"#),
    ("process_cpu_seconds_total", COUNTER, "", ""),
    ("process_resident_memory_bytes", GAUGE, "", ""),
    ("process_start_time_seconds", GAUGE, "", ""),
    // These are Koordinator's.
    ("scheduler_reservation_status_phase", GAUGE, "name phase", r#"name="r",phase="Available"} 1"#),
    ("scheduler_reservation_status_phase", GAUGE, "name phase", r#"name="r",phase="Pending"} 0"#),
    ("scheduler_reservation_resource", GAUGE, "name resource type unit", r#"name="r",resource="cpu",type="allocatable",unit="core"} 1"#),
    ("scheduler_pod_scheduling_evaluated_nodes", HISTOGRAM, "", ""),
    ("scheduler_pod_scheduling_feasible_nodes", HISTOGRAM, "", ""),
    ("scheduler_elastic_quota_process_latency", HISTOGRAM, "operation", r#"operation="UpdateQuota""#),
    ("scheduler_elastic_quota_process_latency", HISTOGRAM, "operation", r#"operation="RefreshRuntime""#),
    ("scheduler_elastic_quota_spec", GAUGE, "field is_parent name parent resource tree", r#"field="max",is_parent="false",name="q",parent="koordinator-root-quota",resource="cpu",tree=""} 6000"#),
    ("scheduler_elastic_quota_status", GAUGE, "field is_parent name parent resource tree", r#"field="max",is_parent="false",name="q",parent="koordinator-root-quota",resource="cpu",tree=""} 6000"#),
    ("scheduler_elastic_quota_status", GAUGE, "field is_parent name parent resource tree", r#"field="used",is_parent="false",name="q",parent="koordinator-root-quota",resource="cpu",tree=""} 1000"#),
    ("scheduler_elastic_quota_status", GAUGE, "field is_parent name parent resource tree", r#"field="non-preemptible-used",is_parent="false",name="q",parent="koordinator-root-quota",resource="cpu",tree=""} 0"#),
    ("scheduler_update_elastic_quota_status_duration_seconds", HISTOGRAM, "", ""),
    ("scheduler_secondary_device_not_well_planned", GAUGE, "node_name", r#"node_name="n"} 1"#),
    ("scheduler_waiting_gang_group_number", GAUGE, "", "0"),
    ("scheduler_next_pod_delete_from_queue_latency", HISTOGRAM, "", ""),
    ("scheduler_gang_schedule_cycle_duration_seconds", HISTOGRAM, "job_size reason", r#"job_size="1-100",reason="gang is already succeed""#),
];

/// Returns what is missing in the text of `/metrics` for a row.
fn missing(text: &str, row: &(&str, &str, &str, &str)) -> Option<String> {
    let (name, kind, labels, says) = row;
    if !text.contains(&format!("\n# TYPE {name} {kind}\n")) {
        return Some(format!("no {kind} {name}"));
    }
    let series = if *kind == HISTOGRAM {
        format!("{name}_count")
    } else {
        (*name).to_owned()
    };
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(&series))
        .filter(|rest| rest.starts_with(['{', ' ']));
    let Some(line) = lines.find(|line| line.contains(says)) else {
        return Some(format!("no {name} that says {says}"));
    };
    let shown = line.rsplit_once(' ').map_or("", |(labels, _)| labels);
    let shown = shown.trim_matches(['{', '}']);
    // No value in this test contains a comma.
    let shown: Vec<&str> = shown
        .split(',')
        .filter_map(|label| Some(label.split_once('=')?.0))
        .collect();
    let empty = *kind == HISTOGRAM && line.ends_with(" 0");
    (shown.join(" ") != *labels || empty).then(|| format!("{name} shows {line}"))
}

impl TestCluster {
    async fn put<K>(&self, namespace: Option<&str>, object: Value)
    where
        K: Resource<DynamicType = ()> + koord_kube::Decode + DeserializeOwned + Serialize,
        K: Scoped,
    {
        let object: K = serde_json::from_value(object).unwrap();
        let api = K::api(self, namespace.unwrap_or_default());
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Creates a pod with labels and a priority class, which may be empty.
    async fn work(&self, name: &str, cpu: &str, labels: Value, class: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {
                "schedulerName": "koord-scheduler",
                "priorityClassName": class,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
            }
        });
        self.put::<Pod>(Some("default"), pod).await;
    }
}

/// API access to objects of a kind.
trait Scoped: Sized {
    fn api(cluster: &TestCluster, namespace: &str) -> Api<Self>;
}

macro_rules! scoped {
    (cluster: $($kind:ty),*; namespace: $($inside:ty),*) => {
        $(impl Scoped for $kind {
            fn api(cluster: &TestCluster, _namespace: &str) -> Api<Self> {
                Api::all(cluster.client.clone())
            }
        })*
        $(impl Scoped for $inside {
            fn api(cluster: &TestCluster, namespace: &str) -> Api<Self> {
                namespaced_api(cluster, namespace)
            }
        })*
    };
}

fn namespaced_api<K>(cluster: &TestCluster, namespace: &str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(cluster.client.clone(), namespace)
}

scoped!(cluster: PriorityClass, Device, Reservation; namespace: Pod, PodGroup, ElasticQuota);

/// Waits until `wanted` finds nothing missing in the text of `/metrics`, and returns the text.
async fn shows(scheduler: &Scheduler, wanted: impl Fn(&str) -> Vec<String>) -> String {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let mut lacks = Vec::new();
    let look = async {
        loop {
            ticks.tick().await;
            let text = koord_app::metrics::encode(&scheduler.metrics).unwrap();
            lacks = wanted(&text);
            if lacks.is_empty() {
                return text;
            }
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(30), look).await;
    outcome.unwrap_or_else(|_| panic!("{lacks:#?}"))
}

async fn busy() -> (TestCluster, Scheduler) {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("8"), json!([])).await;
    for (name, value) in [("low", 1), ("high", 100)] {
        let class = json!({"metadata": {"name": name}, "value": value});
        cluster.put::<PriorityClass>(None, class).await;
    }
    let device = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": "n", "labels": {labels::SECONDARY_DEVICE_WELL_PLANNED: "false"}},
        "spec": {"devices": []}
    });
    cluster.put::<Device>(None, device).await;
    let quota = json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"max": {"cpu": "6"}, "min": {"cpu": "2"}}
    });
    cluster.put::<ElasticQuota>(Some("default"), quota).await;
    let group = json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default"}, "spec": {"minMember": 30}
    });
    cluster.put::<PodGroup>(Some("default"), group).await;
    let scheduler = cluster.schedule(|options| {
        options.leader_elect = true;
        options.gauge_period = Duration::from_millis(20);
    });
    // A bound pod of a quota.
    let of_quota = json!({labels::POD_QUOTA_NAME: "q"});
    cluster.work("a", "1", of_quota, "").await;
    assert_eq!(cluster.bound("a").await, "n");
    // Pods of a gang.
    let of_gang = json!({"pod-group.scheduling.sigs.k8s.io": "gang"});
    for member in 0..30 {
        let name = format!("member-{member}");
        cluster.work(&name, "10m", of_gang.clone(), "").await;
    }
    cluster.bound("member-29").await;
    // A reservation.
    let reservation = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "r"},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers":
                [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}
        }
    });
    cluster.put::<Reservation>(None, reservation).await;
    cluster
        .until("reserved", |object: &Reservation| {
            let status = object.status.as_ref()?;
            (!status.node_name.is_empty()).then_some(())
        })
        .await;
    // A pod that preempts another.
    cluster.work("low", "4", json!({}), "low").await;
    assert_eq!(cluster.bound("low").await, "n");
    cluster.work("high", "4", json!({}), "high").await;
    assert_eq!(cluster.bound("high").await, "n");
    // A pod that is rejected and retried because of an event, and one with a scheduling gate.
    cluster.work("big", "100", json!({}), "").await;
    cluster.refused("big", |_| true).await;
    let grace = koord_kube::api::DeleteParams {
        grace_period_seconds: Some(0),
        ..Default::default()
    };
    cluster.pods().delete("high", &grace).await.unwrap();
    let gated = json!({
        "metadata": {"name": "gated", "namespace": "default"},
        "spec": {
            "schedulerName": "koord-scheduler", "schedulingGates": [{"name": "later"}],
            "containers": [{"name": "c", "image": "i"}]
        }
    });
    cluster.put::<Pod>(Some("default"), gated).await;
    (cluster, scheduler)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_metrics_exist_and_reset_clears_labelled() {
    let (_cluster, scheduler) = busy().await;
    let text = shows(&scheduler, |text| {
        SHOWN.iter().filter_map(|row| missing(text, row)).collect()
    })
    .await;
    // There are no other metrics: a new one needs a row above.
    let expected: BTreeMap<&str, ()> = SHOWN.iter().map(|row| (row.0, ())).collect();
    let own = [
        "koord_scheduler_class_mismatches_total",
        "process_max_fds",
        "process_open_fds",
        "process_virtual_memory_bytes",
        "process_virtual_memory_max_bytes",
    ];
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for name in types.filter_map(|rest| rest.split(' ').next()) {
        assert!(expected.contains_key(name) || own.contains(&name), "{name}");
    }
    // The stability level matches upstream's.
    for (name, level) in [
        ("scheduler_pending_pods", "STABLE"),
        ("scheduler_pod_scheduling_sli_duration_seconds", "BETA"),
        ("scheduler_goroutines", "ALPHA"),
    ] {
        let help = format!("# HELP {name} [{level}] ");
        assert!(text.contains(&help), "{help}");
    }

    let stop = CancellationToken::new();
    let admin = Admin::new(scheduler.metrics.clone()).with_routes(scheduler.debug.router());
    let any = "127.0.0.1:0".parse().unwrap();
    let address = admin
        .serve(any, Exposure::Loopback, stop.clone())
        .await
        .unwrap();
    let (code, body) = send_request(address, "DELETE", "/metrics", "").await;
    assert_eq!((code.as_str(), body.as_str()), ("200", "metrics reset\n"));
    let (_, text) = send_request(address, "GET", "/metrics", "").await;
    for name in [
        "scheduler_schedule_attempts_total{",
        "scheduler_event_handling_duration_seconds_count{event=\"NodeAdd\"",
        "scheduler_permit_wait_duration_seconds_count{",
        "scheduler_plugin_evaluation_total{",
    ] {
        assert!(!text.contains(name), "{name} in {text}");
    }
    // Like upstream, metrics without labels stay, and values that are set once.
    for series in [
        "scheduler_preemption_victims_count 1\n",
        "kubernetes_build_info{",
    ] {
        assert!(text.contains(series), "no {series} in {text}");
    }
    assert!(!text.contains("scheduler_preemption_attempts_total 0\n"));
    // Gauges of the current state are set again.
    shows(&scheduler, |text| {
        let rows = SHOWN.iter().filter(|row| {
            let now = ["scheduler_cache_size", "scheduler_elastic_quota_status"];
            now.contains(&row.0)
        });
        rows.filter_map(|row| missing(text, row)).collect()
    })
    .await;
    let (_, slis) = {
        send_request(address, "GET", "/healthz", "").await;
        send_request(address, "GET", "/metrics/slis", "").await
    };
    let line = "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1";
    assert!(slis.contains(line), "{slis}");
    stop.cancel();
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_the_network_are_counted_by_client_gos_names() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = koord_apiserver::Config::memory(koord_app::Clock::system());
    config.controllers = koord_app::flags::Selection::none();
    config.bind = ([127, 0, 0, 1], 0).into();
    let server = koord_apiserver::ApiServer::open(config).await.unwrap();
    let listener = server.listen().await.unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    let kubeconfig = directory.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig).unwrap();
    let registry = prometheus::Registry::new();
    let options = ClientOptions {
        qps: 50.0,
        burst: 100,
        metrics: Some(RestMetrics::register(&registry).unwrap()),
        ..ClientOptions::default()
    };
    let client = from_kubeconfig(Some(&kubeconfig), &options).await.unwrap();
    let nodes: Api<Node> = Api::all(client);
    nodes.list(&Default::default()).await.unwrap();
    assert!(nodes.get_opt("absent").await.unwrap().is_none());
    let text = koord_app::metrics::encode(&registry).unwrap();
    let host = text
        .split_once("host=\"127.0.0.1:")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(port, _)| format!("127.0.0.1:{port}"))
        .unwrap();
    for line in [
        format!("rest_client_requests_total{{code=\"200\",host=\"{host}\",method=\"GET\"}} 1\n"),
        format!("rest_client_requests_total{{code=\"404\",host=\"{host}\",method=\"GET\"}} 1\n"),
        format!("rest_client_request_duration_seconds_count{{host=\"{host}\",verb=\"GET\"}} 2\n"),
        format!(
            "rest_client_rate_limiter_duration_seconds_count{{host=\"{host}\",verb=\"GET\"}} 2\n"
        ),
    ] {
        assert!(text.contains(&line), "{line}: {text}");
    }
    stop.cancel();
    let _ = serving.await;
}
