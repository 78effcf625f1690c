//! The whole agent in a dry run, next to the objects of another koordlet.

use crate::agent::{NODE, add_pod, cluster, typed};
use k8s_openapi::api::core::v1::{Event, Pod};
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_app::{Clock, Context};
use koord_host::Resource;
use koord_host::fake::Tree;
use koord_host::testing::eventually_within;
use koord_kube::Api;
use koord_kube::api::{ListParams, PostParams};
use koordlet::gates::Gate;
use koordlet::node_topology::{Reporting, TopologyMode};
use koordlet::{Options, Settings, Thread, audit};
use serde_json::json;
use std::time::Duration;

/// Returns every file of the machine but those of this test, with its content.
fn files(tree: &Tree) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut dirs = vec![tree.dir().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files.push((path.clone(), std::fs::read(path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[tokio::test(start_paused = true)]
async fn dry_run_audits_values_and_evictions_and_changes_nothing() {
    let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
    let (server, client) = cluster(&clock).await;
    let tree = Tree::hybrid("0-1").unwrap();
    tree.group("kubepods/besteffort").unwrap();
    let uid = add_pod(
        &client,
        "be",
        json!({"koordinator.sh/qosClass": "BE"}),
        json!({"requests": {"kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}}),
    )
    .await;
    let pod = tree
        .group(&format!("kubepods/besteffort/pod{uid}"))
        .unwrap();
    let stat = format!(
        "total_inactive_anon 0\ntotal_active_anon {}\ntotal_inactive_file 0\n\
         total_active_file 0\ntotal_unevictable 0\n",
        3_u64 << 30
    );
    tree.feed(&pod, Resource::MemoryStat, &stat).unwrap();
    let meminfo = "MemTotal: 8388608 kB\nMemFree: 524288 kB\nMemAvailable: 1048576 kB\n\
                   Buffers: 0 kB\nCached: 0 kB\nActive(file): 0 kB\nInactive(file): 0 kB\n\
                   SReclaimable: 0 kB\n";
    tree.put("proc/meminfo", meminfo).unwrap();
    let slos: Api<NodeSLO> = Api::all(client.clone());
    let slo = json!({"metadata": {"name": NODE}, "spec": {"resourceUsedThresholdWithBE":
        {"enable": true, "memoryEvictThresholdPercent": 70}}});
    slos.create(&PostParams::default(), &typed(slo))
        .await
        .unwrap();
    let metrics: Api<NodeMetric> = Api::all(client.clone());
    let metric = json!({"metadata": {"name": NODE}, "spec": {"metricCollectPolicy": {
        "aggregateDurationSeconds": 60, "reportIntervalSeconds": 30}}});
    metrics
        .create(&PostParams::default(), &typed(metric))
        .await
        .unwrap();

    let before = files(&tree);
    let ctx = Context::with_clock(clock);
    let mut settings = Settings::default();
    settings.gates.set(Gate::BEMemoryEvict, true);
    let log = audit::Log::default();
    let options = Options {
        node_name: NODE.to_owned(),
        root: Some(tree.root().clone()),
        settings,
        audit: log.clone(),
        topology: Some(Reporting {
            interval: Duration::from_secs(3),
            mode: TopologyMode::Auto,
        }),
        report: false,
        dry_run: true,
        thread: Thread::Shared,
        ..Options::default()
    };
    let run = koordlet::run(options, client.clone(), ctx.clone());
    let running = tokio::spawn(async move { run.await.unwrap() });
    let found = |entries: &[audit::Entry], wanted: &dyn Fn(&audit::Entry) -> bool| {
        entries.iter().any(wanted)
    };
    let entries = eventually_within(Duration::from_secs(1000), "both records", async || {
        let entries = log.entries();
        let evicts = found(&entries, &|it| {
            it.message.ends_with("; not evicted: dry run")
        });
        let writes = found(&entries, &|it| {
            it.change
                .as_ref()
                .is_some_and(|change| change.new == "1536")
        });
        (evicts && writes).then_some(entries)
    })
    .await;
    assert!(entries.iter().all(|entry| entry.dry_run));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(files(&tree), before);
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let present = pods.get("be").await.unwrap();
    assert!(present.metadata.deletion_timestamp.is_none());
    assert!(metrics.get(NODE).await.unwrap().status.is_none());
    let all = ListParams::default();
    let events: Api<Event> = Api::all(client.clone());
    assert_eq!(events.list(&all).await.unwrap().items.len(), 0);
    let topologies: Api<NodeResourceTopology> = Api::all(client.clone());
    assert_eq!(topologies.list(&all).await.unwrap().items.len(), 0);
    ctx.shutdown.cancel();
    running.await.unwrap();
    drop(server);
}
