use super::*;
use crate::predict::Reclaimable;
use prometheus::proto::MetricType;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Koordinator's metrics of koordlet: name, type (gauge, counter, histogram), audience (internal, external),
/// labels. From the lists of its `pkg/koordlet/metrics`.
const UPSTREAM: &str = "
start_time g i node
collect_node_cpu_info_status c i node,status
collect_node_numa_info_status c i node,status
collect_node_local_storage_info_status c i node,status
pod_eviction c i node,reason
pod_eviction_detail c i node,pod_namespace,pod_name,reason
node_used_cpu_cores g i node
node_used_memory_bytes g i node
be_suppress_cpu_cores g i node,type
be_suppress_ls_used_cpu_cores g i node
be_suppress_be_used_cpu_cores g i node
container_scaled_cfs_burst_us g i node,pod_namespace,pod_name,container_id,container_name
container_scaled_cfs_quota_us g i node,pod_namespace,pod_name,container_id,container_name
cpuset_share_pool_cpu_cores g i node
cpuset_be_share_pool_cpu_cores g i node
cpuset_share_pool_info g i node,cpu
cpuset_be_share_pool_info g i node,cpu
node_predicted_resource_reclaimable g i node,predictor,resource,unit
node_predicted_resource_peak g i node,predictor,resource,unit
container_core_sched_cookie g i node,pod_name,pod_namespace,pod_uid,container_name,container_id,core_sched_group,core_sched_cookie
core_sched_cookie_manage_status c i node,core_sched_group,status
node_metric_node_usage g i node,resource,unit
node_metric_system_usage g i node,resource,unit
node_metric_numa_node_usage g i node,numa_node_id,resource,unit
node_metric_numa_system_usage g i node,numa_node_id,resource,unit
container_oom_score_adj g i node,pod_name,pod_namespace,pod_uid,container_name
resource_update_duration_milliseconds h i type,status
kubelet_request_duration_seconds h i verb,path,code
runtime_hook_invoked_duration_milliseconds h i node,hook,stage,status
runtime_hook_reconciler_invoked_duration_milliseconds h i node,level,resource_type,status
host_application_resource_usage g i node,host_application_name,resource,priority_class,qos
node_resource_allocatable g e node,resource,unit
node_priority_resource_reclaimable g e node,priority,resource,unit
node_resource_priority_reclaimable_status g e node,priority
container_resource_requests g e node,resource,unit,pod_uid,pod_name,pod_namespace,container_id,container_name
container_resource_limits g e node,resource,unit,pod_uid,pod_name,pod_namespace,container_id,container_name
container_cpi g e node,container_id,container_name,pod_uid,pod_name,pod_namespace,cpi_field
container_psi g e node,container_id,container_name,pod_uid,pod_name,pod_namespace,psi_resource_type,psi_precision,psi_degree,cpu_full_supported
pod_psi g e node,pod_uid,pod_name,pod_namespace,psi_resource_type,psi_precision,psi_degree,cpu_full_supported
resctrl_llc_occupancy g e node,cache_id,qos
resctrl_memory_bandwidth g e node,cache_id,qos,mb_type
";

/// Metrics that upstream does not have.
const OURS: [&str; 7] = [
    "pressure_guard_events_total",
    "be_suppress_cap_percent",
    "tick_seconds",
    "bad_input_total",
    "collect_errors_total",
    "failures_total",
    "dry_run_withheld_total",
];

fn container() -> Container {
    Container {
        namespace: "shop".to_owned(),
        pod: "cart".to_owned(),
        uid: "u1".to_owned(),
        id: "containerd://c1".to_owned(),
        name: "web".to_owned(),
    }
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// Records every metric of the agent once.
fn record(metrics: &Metrics) {
    for fact in [NodeFact::Cpu, NodeFact::Numa, NodeFact::LocalStorage] {
        metrics.collected(fact, true);
    }
    metrics.evicted("shop", "cart", "evicted");
    metrics.node_used(Some(1500.0), Some(1024.0));
    metrics.suppression(SuppressPolicy::CfsQuota, Some(700), None, 400, 300);
    metrics.guard_event("CPU cap", "Tried");
    metrics.bursts(vec![Burst {
        container: container(),
        burst_us: Some(100_000),
        quota_us: Some(240_000),
    }]);
    metrics.share_pools(&cpus("0-2"), &cpus("3"), true);
    metrics.reclaimable(Some(&Reclaimable::default()));
    metrics.cookie(&container(), "g", 7);
    metrics.cookie_managed("g", true);
    metrics.node_metric(
        [None, Some(1)]
            .into_iter()
            .map(|numa| Usage {
                numa,
                node: (1.5, 2048.0),
                system: Some((0.5, 1024.0)),
            })
            .collect(),
    );
    metrics.oom_score_adj(&container(), -100);
    metrics.record_write("cgroup", true, 0.02);
    metrics.kubelet().record("get", "/pods/", 200, 0.01);
    metrics.hook_invoked("BatchResource", "PreCreateContainer", true, 0.1);
    metrics.reconciled("pod", "cpu.shares", true, 0.1);
    metrics.host_applications(vec![HostApplication {
        name: "nginx".to_owned(),
        priority: "koord-prod".to_owned(),
        qos: "LS".to_owned(),
        cpu: 0.5,
        memory: 4096.0,
    }]);
    metrics.record_tick(0.01);
    metrics
        .bad_input()
        .count("NodeSLO", "cpuSuppressThresholdPercent");
    metrics.collect_errors("pods", 2);
    metrics.failed(AgentPart::Collector, "Psi");
    metrics.record_withheld("pod", "CPUBurst");
    metrics.allocatable(&NodeInfo {
        extended: BTreeMap::from([
            ("kubernetes.io/batch-cpu".to_owned(), 1500),
            ("kubernetes.io/batch-memory".to_owned(), 2048),
        ]),
        ..NodeInfo::default()
    });
    metrics.resources(vec![ReclaimedResources {
        container: container(),
        resource: "kubernetes.io/batch-cpu",
        request: Some(500),
        limit: Some(1000),
    }]);
    metrics.cpi(vec![Cpi {
        container: container(),
        cycles: 3.0,
        instructions: 2.0,
    }]);
    let pod = Container {
        id: String::new(),
        name: String::new(),
        ..container()
    };
    metrics.psi(
        [container(), pod]
            .into_iter()
            .map(|container| Psi {
                container: container.into(),
                resource: "cpu",
                some: [1.0, 2.0, 3.0],
                full: Some([0.1, 0.2, 0.3]),
            })
            .collect(),
    );
    metrics.resctrl(vec![Resctrl {
        qos: "LS".to_owned(),
        cache: 0,
        llc: Some(64),
        traffic: vec![("mbm_total_bytes", 128)],
    }]);
}

#[test]
fn names_types_and_labels_are_upstreams() {
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    metrics.record_start("n1", 1);
    record(&metrics);
    let families = registry.gather();
    let mut recorded = BTreeMap::new();
    for family in &families {
        let kind = match family.get_field_type() {
            MetricType::GAUGE => "g",
            MetricType::COUNTER => "c",
            MetricType::HISTOGRAM => "h",
            other => panic!("{other:?}"),
        };
        let audience = if is_external(family.name()) { "e" } else { "i" };
        let labels = family.get_metric()[0].get_label();
        let labels: BTreeSet<_> = labels.iter().map(|l| l.name().to_owned()).collect();
        let name = family.name().strip_prefix("koordlet_").unwrap().to_owned();
        recorded.insert(name, (kind, audience, labels));
    }
    for line in UPSTREAM.lines().filter(|line| !line.is_empty()) {
        let mut columns = line.split(' ');
        let name = columns.next().unwrap();
        let (kind, audience, labels) = recorded.remove(name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(columns.next(), Some(kind), "{name}");
        assert_eq!(columns.next(), Some(audience), "{name}");
        let want = columns.next().unwrap().split(',').map(str::to_owned);
        assert_eq!(labels, want.collect(), "{name}");
    }
    let remaining: BTreeSet<_> = recorded.keys().map(String::as_str).collect();
    assert_eq!(remaining, BTreeSet::from(OURS));
}

#[test]
fn values_carry_upstreams_units() {
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    metrics.record_start("n1", 1);
    record(&metrics);
    let text = koord_app::metrics::encode(&registry).unwrap();
    for line in [
        r#"node_used_cpu_cores{node="n1"} 1.5"#,
        r#"be_suppress_cpu_cores{node="n1",type="cfsQuota"} 0.7"#,
        r#"be_suppress_cap_percent{node="n1"} 100"#,
        r#"node_resource_priority_reclaimable_status{node="n1",priority="koord-prod"} 0"#,
        r#"node_resource_allocatable{node="n1",resource="kubernetes.io/batch-cpu",unit="integer"} 1500"#,
        r#"node_resource_allocatable{node="n1",resource="kubernetes.io/batch-memory",unit="byte"} 2048"#,
        r#"node_metric_numa_system_usage{node="n1",numa_node_id="1",resource="memory",unit="byte"} 1024"#,
        r#"cpuset_share_pool_cpu_cores{node="n1"} 3"#,
        r#"cpuset_share_pool_info{cpu="2",node="n1"} 1"#,
        r#"cpuset_be_share_pool_info{cpu="3",node="n1"} 1"#,
        r#"pod_eviction{node="n1",reason="evicted"} 1"#,
        r#"resource_update_duration_milliseconds_bucket{status="success",type="cgroup",le="0.04"} 1"#,
        r#"kubelet_request_duration_seconds_bucket{code="200",path="/pods/",verb="get",le="4.096"} 1"#,
    ] {
        assert!(
            text.contains(&format!("koordlet_{line}\n")),
            "{line}: {text}"
        );
    }
    let full = r#"psi_degree="full",psi_precision="avg60""#;
    assert_eq!(text.matches(full).count(), 2, "a pod's and a container's");
    // A kernel without that line, and no forecast.
    metrics.psi(vec![Psi {
        container: container().into(),
        resource: "cpu",
        some: [1.0, 2.0, 3.0],
        full: None,
    }]);
    metrics.reclaimable(None);
    let text = koord_app::metrics::encode(&registry).unwrap();
    assert_eq!(text.matches(r#"cpu_full_supported="false""#).count(), 3);
    assert!(!text.contains(r#"cpu_full_supported="true""#), "{text}");
    let status = r#"reclaimable_status{node="n1",priority="koord-prod"} 1"#;
    assert!(text.contains(status), "{text}");
}

#[test]
fn metrics_are_empty_before_the_node_is_known() {
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    record(&metrics);
    let families: Vec<_> = registry.gather();
    let names: Vec<_> = families.iter().map(|family| family.name()).collect();
    assert_eq!(
        names,
        [
            "koordlet_kubelet_request_duration_seconds",
            "koordlet_resource_update_duration_milliseconds"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn metrics_of_removed_objects_are_removed() {
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    metrics.record_start("n1", 1);
    let text = || koord_app::metrics::encode(&registry).unwrap();
    record(&metrics);
    assert!(text().contains("container_cpi{"), "shown once");
    let other = Container {
        id: "containerd://c2".to_owned(),
        ..container()
    };
    metrics.cpi(vec![Cpi {
        container: other.clone(),
        cycles: 1.0,
        instructions: 1.0,
    }]);
    let cpi = |text: &str| {
        let lines = text
            .lines()
            .filter(|l| l.starts_with("koordlet_container_cpi{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = cpi(&text());
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("c2")), "{lines:?}");
    tokio::time::advance(Duration::from_secs(299)).await;
    assert_eq!(cpi(&text()).len(), 2);
    metrics.oom_score_adj(&other, 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    let later = text();
    for absent in [
        "container_cpi{",
        "pod_psi{",
        "pod_eviction_detail{",
        "container_core_sched_cookie{",
    ] {
        assert!(!later.contains(absent), "{absent}: {later}");
    }
    // Counters, specifications and newly recorded values stay.
    for present in [
        "pod_eviction{",
        "container_resource_requests{",
        "oom_score_adj{",
    ] {
        assert!(later.contains(present), "{present}: {later}");
    }
    metrics.cookie(&other, "g", 7);
    assert!(text().contains("container_core_sched_cookie{"));
    metrics.remove_cookie(&other, "g", 7);
    assert!(!text().contains("container_core_sched_cookie{"));
}
