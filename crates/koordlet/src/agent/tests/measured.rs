//! Measured and published values, end to end.

use super::*;
use crate::collect::cpi::CpiCounts;
use crate::store::{Metric, SeriesSubject};
use koord_api::slo::NodeMetricStatus;

impl Rig {
    fn report(&mut self, policy: serde_json::Value) -> NodeMetricStatus {
        let spec = serde_json::from_value(json!({"metricCollectPolicy": policy})).unwrap();
        let now = self.now();
        let policy = MetricPolicy::from_spec(&spec);
        self.agent.report(&policy, now.ms(), now.wall).unwrap()
    }
}

fn memory_of_pods(status: &NodeMetricStatus) -> Vec<String> {
    let value = serde_json::to_value(&status.pods_metric).unwrap();
    let pods = value.as_array().unwrap().iter();
    pods.map(|pod| {
        let memory = &pod["podUsage"]["resources"]["memory"];
        memory.as_str().unwrap().to_owned()
    })
    .collect()
}

#[test]
fn memory_policy_applies_to_node_and_pods_not_to_system() {
    let mut rig = Rig::new();
    for _ in 0..10 {
        rig.step(BUSY);
    }
    let with = json!({"nodeMemoryCollectPolicy": "usageWithPageCache"});
    // Only requested values are kept: the first report of another policy has no pods.
    assert!(rig.report(with.clone()).pods_metric.is_empty());
    for _ in 0..10 {
        rig.step(BUSY);
    }
    let status = rig.report(with);
    // 8 MiB of active and 8 MiB of inactive page cache each.
    assert_eq!(memory_of_pods(&status), ["2064Mi", "1040Mi"]);
    let info = serde_json::to_value(status.node_metric.unwrap()).unwrap();
    assert_eq!(
        info["nodeUsage"]["resources"]["memory"], "15Gi",
        "total - free"
    );
    assert_eq!(info["systemUsage"]["resources"]["memory"], "1Gi");
    for policy in ["usageWithoutPageCache", "usageWithHotPageCache"] {
        // Without kidled, hot pages are unknown.
        let status = rig.report(json!({"nodeMemoryCollectPolicy": policy}));
        assert_eq!(memory_of_pods(&status), ["2Gi", "1Gi"], "{policy}");
    }
}

#[test]
fn numa_nodes_are_reported() {
    let mut rig = Rig::new();
    let node = "sys/devices/system/node/node0/meminfo";
    let text = "Node 0 MemTotal: 16777216 kB\nNode 0 MemFree: 8388608 kB\n\
                Node 0 Active(file): 1048576 kB\nNode 0 Inactive(file): 0 kB\n\
                Node 0 SReclaimable: 0 kB\n";
    rig.tree.put(node, text).unwrap();
    for (group, pages) in [(&rig.service, 262_144), (&rig.batch, 524_288)] {
        let text = format!("hierarchical_total={pages} N0={pages}\n");
        rig.tree
            .feed(group, Resource::MemoryNumaStat, &text)
            .unwrap();
    }
    for _ in 0..70 {
        rig.step(BUSY);
    }
    let status = rig.report(json!({}));
    let info = serde_json::to_value(status.node_metric.unwrap()).unwrap();
    assert_eq!(info["numaUsages"].as_array().unwrap().len(), 1, "{info}");
    let numa = &info["numaUsages"][0];
    assert_eq!(numa["numaNodeID"], 0);
    assert_eq!(numa["nodeUsage"]["resources"]["memory"], "7Gi");
    // Less the pods' 3 GiB.
    assert_eq!(numa["systemUsage"]["resources"]["memory"], "4Gi");
}

#[test]
fn perf_counts_are_kept_per_container() {
    let mut rig = Rig::new();
    rig.step(BUSY);
    let group = rig.service.join("c1").unwrap();
    let ended = rig.service.join("c0").unwrap();
    let counts = |cycles| CpiCounts {
        cycles,
        instructions: 2 * cycles,
        newest: true,
    };
    let measured = [(group, counts(500)), (ended, counts(7))];
    let measured = Arc::new((1, measured.into_iter().collect()));
    rig.agent.measure.facts.cpi.store(Some(measured));
    rig.step(BUSY);
    let counted = rig.now().ms();
    rig.step(BUSY);
    let measure = &rig.agent.measure;
    let cpi_of = |uid: &str| {
        let (_, pod) = measure.pods.iter().find(|(pod, _)| pod.uid == uid).unwrap();
        let container = SeriesSubject::Container(pod.containers[0].id);
        let last = |metric| measure.store.last((container, metric), counted, 0);
        (last(Metric::Cycles), last(Metric::Instructions))
    };
    assert_eq!(cpi_of("ls"), (Some(500.0), Some(1000.0)), "pushed once");
    assert_eq!(cpi_of("be"), (None, None));
}

#[test]
fn unsupported_collector_is_reported_and_stops() {
    let mut settings = Settings::default();
    settings.gates.set(Gate::CPICollector, true);
    // perf_event_open cannot use the groups of the fake tree.
    let rig = Rig::with(settings);
    let row = || {
        let mut rows = rig.agent.collectors().into_iter();
        rows.find(|row| row.name == "cpi").unwrap()
    };
    while row().state == State::Active {
        std::thread::yield_now();
    }
    let row = row();
    assert_eq!((row.state, row.every_ms), (State::Unavailable, 60_000));
    assert!(row.why.contains("perf event"), "{}", row.why);
}

#[test]
fn a_clock_that_is_set_does_not_disturb_windows() {
    for jump in [-86_400 * 400, 86_400 * 400] {
        let mut rig = Rig::new();
        for _ in 0..100 {
            rig.step(BUSY);
        }
        // A day later by the wall, a second later by any other clock.
        rig.jumped = jump;
        for _ in 0..100 {
            rig.step(BUSY);
        }
        let status = rig.report(json!({}));
        let value = serde_json::to_value(&status).unwrap();
        let wall = Timestamp::from_second(START + 200 + jump).unwrap();
        assert_eq!(value["updateTime"], wall.to_string());
        let info = &value["nodeMetric"];
        assert_eq!(info["nodeUsage"]["resources"]["cpu"], "3900m");
        let five = &info["aggregatedNodeUsages"][0]["usage"];
        assert_eq!(five["p99"]["resources"]["cpu"], "3900m", "{jump}");
    }
}

#[test]
fn a_pod_that_a_partial_list_lacks_is_not_new_when_it_is_back() {
    let mut rig = Rig::new();
    for _ in 0..100 {
        rig.step(BUSY);
    }
    rig.pods(vec![batch_pod()]);
    for _ in 0..20 {
        rig.step(BUSY);
    }
    let service = pod(
        "ls",
        "LS",
        json!({"requests": {"cpu": "1", "memory": "1Gi"}}),
    );
    rig.pods(vec![service, batch_pod()]);
    rig.step(BUSY);
    let status = rig.report(json!({}));
    assert_eq!(status.pods_metric.len(), 2, "its samples are still there");
}

#[test]
fn windows_go_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        snapshot: Some(dir.path().join("samples")),
        ..Settings::default()
    };
    let mut first = Rig::with(settings.clone());
    for _ in 0..200 {
        first.step(BUSY);
    }
    first.agent.save(first.now());
    // The next process runs on the same machine, ten seconds later by the wall clock.
    let mut second = Rig::with(settings.clone());
    second.jumped = 210;
    second.step(BUSY);
    let status = second.report(json!({}));
    assert_eq!(status.pods_metric.len(), 2);
    let info = serde_json::to_value(status.node_metric.unwrap()).unwrap();
    let five = &info["aggregatedNodeUsages"][0]["usage"];
    assert_eq!(five["p95"]["resources"]["cpu"], "3900m", "{info}");

    // A broken file costs the samples only.
    std::fs::write(dir.path().join("samples"), "KOORDTS1 and then nonsense").unwrap();
    let mut third = Rig::with(settings);
    for _ in 0..2 {
        third.step(BUSY);
    }
    assert_eq!(third.report(json!({})).pods_metric.len(), 2);
}

#[test]
fn host_applications_are_reported_and_are_no_part_of_the_system() {
    let mut rig = Rig::new();
    let group = rig.tree.group("host-latency-sensitive/web").unwrap();
    rig.slo(json!({"hostApplications": [
        {"name": "web", "qos": "LS", "priority": "koord-prod"},
        {"name": "gone", "qos": "BE"},
        {"name": "../x", "qos": "LS"}]}));
    for second in 1..10_u64 {
        let usage = format!("{}\n", second * 50_000_000);
        rig.tree
            .feed(&group, Resource::CpuacctUsage, &usage)
            .unwrap();
        let stat = "total_inactive_anon 0\ntotal_active_anon 268435456\n\
                    total_inactive_file 0\ntotal_active_file 0\ntotal_unevictable 0\n";
        rig.tree.feed(&group, Resource::MemoryStat, stat).unwrap();
        rig.step(BUSY);
    }
    let status = rig.report(json!({}));
    let value = serde_json::to_value(&status).unwrap();
    assert_eq!(
        value["hostApplicationMetric"],
        json!([{"name": "web", "priority": "koord-prod", "qos": "LS",
            "usage": {"resources": {"cpu": "50m", "memory": "256Mi"}}}])
    );
    let system = &value["nodeMetric"]["systemUsage"]["resources"];
    // 3900m less the pods' 3800m and the application's 50m, but for the first sample.
    assert_eq!(system["memory"], "768Mi");
    assert_eq!(status.pods_metric.len(), 2);
}

/// A container without a limit cannot be throttled, so CPU burst ignores it.
#[test]
fn burst_ignores_containers_without_limits() {
    let mut rig = Rig::new();
    let container =
        |name: &str, resources: serde_json::Value| json!({"name": name, "resources": resources});
    let status = |name: &str| {
        json!({"name": name, "containerID": format!("koord://{name}"), "image": "", "imageID": "",
            "ready": true, "restartCount": 0, "state": {"running": {}}})
    };
    let pod = json!({
        "metadata": {"uid": "ls", "name": "ls", "namespace": "d",
            "labels": {"koordinator.sh/qosClass": "LS"}},
        "spec": {"containers": [container("c1", json!({"limits": {"cpu": "2"}})),
            container("c2", json!({"requests": {"cpu": "1"}}))]},
        "status": {"phase": "Running", "qosClass": "Burstable",
            "containerStatuses": [status("c1"), status("c2")]}
    });
    rig.pods(vec![serde_json::from_value(pod).unwrap()]);
    let groups = ["c1", "c2"].map(|name| {
        let path = format!("kubepods/burstable/podls/{name}");
        rig.tree.group(&path).unwrap()
    });
    rig.slo(json!({"cpuBurstStrategy": {"policy": "auto"}}));
    for second in 1..=3_u64 {
        for group in &groups {
            let used = (second * 500_000_000).to_string();
            rig.tree.feed(group, Resource::CpuacctUsage, &used).unwrap();
            let stat = format!("nr_periods {}\nnr_throttled {second}\n", second * 10);
            rig.tree.feed(group, Resource::CpuStat, &stat).unwrap();
        }
        rig.step(BUSY);
    }
    let ids: Vec<(u64, bool)> = (rig.agent.measure.pods.iter())
        .flat_map(|(_, pod)| &pod.containers)
        .map(|container| (container.id, container.limited))
        .collect();
    assert_eq!(
        ids.iter().map(|(_, limited)| *limited).collect::<Vec<_>>(),
        [true, false]
    );
    let now = rig.now().ms();
    for (id, limited) in ids {
        let last = |metric| {
            let key = (SeriesSubject::Container(id), metric);
            rig.agent.measure.store.last(key, now, 1000)
        };
        let burst = [
            last(Metric::CpuUsage),
            last(Metric::CpuThrottled),
            last(Metric::MemoryUsage),
        ];
        let want = if limited {
            [Some(500.0), Some(0.1), None]
        } else {
            [None; 3]
        };
        assert_eq!(burst, want, "{limited}");
    }
}

/// The system's usage is the node's minus that of pods and host applications.
#[test]
fn system_usage_excludes_host_applications() {
    let mut rig = Rig::new();
    let group = rig.tree.group("host-latency-sensitive/nginx").unwrap();
    rig.slo(json!({"hostApplications": [{"name": "nginx", "qos": "LS"}]}));
    for second in 1..=70_u64 {
        // A tenth of a core, the remainder after the pods' usage.
        let usage = format!("{}\n", second * 100_000_000);
        rig.tree
            .feed(&group, Resource::CpuacctUsage, &usage)
            .unwrap();
        rig.step(BUSY);
    }
    let status = rig.report(json!({"aggregateDurationSeconds": 60}));
    let value = serde_json::to_value(&status).unwrap();
    let cpu = &value["nodeMetric"]["systemUsage"]["resources"]["cpu"];
    assert_eq!(cpu, "0");
    let app = &value["hostApplicationMetric"][0];
    assert_eq!(app["name"], "nginx", "{value}");
}

#[test]
fn a_pod_that_ended_uses_nothing() {
    let mut rig = Rig::new();
    let mut ended = batch_pod();
    ended.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    let service = pod("ls", "LS", json!({"requests": {"cpu": "1"}}));
    rig.pods(vec![service, ended]);
    for _ in 0..70 {
        rig.step(BUSY);
    }
    let status = rig.report(json!({"aggregateDurationSeconds": 60}));
    let names: Vec<&str> = status
        .pods_metric
        .iter()
        .map(|pod| pod.name.as_str())
        .collect();
    assert_eq!(names, ["ls"]);
}
