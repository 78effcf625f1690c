//! Behavior at the change of leaders.

use super::wire::{Fuse, Lost, Which, any_write};
use super::world::{FailoverWorld, name_of, node_of, pod};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::scheduling::PodGroup;
use koord_host::testing::eventually;
use koord_kube::Api;
use koord_kube::api::DeleteParams;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

const GROUP: &str = "pod-group.scheduling.sigs.k8s.io";
const MODE: &str = "gang.scheduling.koordinator.sh/mode";

#[tokio::test(start_paused = true)]
async fn leader_without_lease_stops_writing() {
    let case = "lease lost";
    let world = FailoverWorld::start().await;
    // Four writes at a time take two seconds each, so writes are queued when the lease is lost.
    let fuse = Fuse::slow(vec![(any_write, Duration::from_secs(2))]);
    let (first, second) = world.pair(&fuse).await;
    let mut pods = world.pods().await;
    world.create().await;
    fuse.leaseless.store(true, Ordering::SeqCst);
    first.loses().await;
    let lost = Instant::now();
    world.leader("two").await;
    assert!(lost < Instant::now(), "it stopped before another one led");
    pods.wait_bound(case).await;
    world.check(case).await;
    let [begun, ended] = fuse.written().unwrap();
    assert!(
        begun < ended && ended <= lost,
        "it wrote {:?} later",
        ended - lost
    );
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_finishes_writes_and_releases_lease() {
    let case = "handed over";
    let world = FailoverWorld::start().await;
    let fuse = Fuse::slow(vec![(any_write, Duration::from_secs(1))]);
    let (first, second) = world.pair(&fuse).await;
    let mut pods = world.pods().await;
    world.create().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let requested = Instant::now();
    first.stop().await;
    let stopped = Instant::now();
    assert!(
        stopped - requested < Duration::from_secs(5),
        "{:?}",
        stopped - requested
    );
    world.leader("two").await;
    // No lease had to expire.
    assert!(
        stopped.elapsed() < Duration::from_secs(5),
        "{:?}",
        stopped.elapsed()
    );
    pods.wait_bound(case).await;
    world.check(case).await;
    let [_, ended] = fuse.written().unwrap();
    assert!(ended <= stopped);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_decision_before_all_informers_sync() {
    let delay = Duration::from_secs(20);
    let rows: [(&str, Which); 7] = [
        ("nodes", |method, path| {
            method == Method::GET && path.ends_with("/nodes")
        }),
        ("pods", |method, path| {
            method == Method::GET && path.ends_with("/pods")
        }),
        ("devices", |method, path| {
            method == Method::GET && path.ends_with("/devices")
        }),
        ("quotas", |method, path| {
            method == Method::GET && path.ends_with("/elasticquotas")
        }),
        ("groups", |method, path| {
            method == Method::GET && path.ends_with("/podgroups")
        }),
        ("reservations", |method, path| {
            method == Method::GET && path.ends_with("/reservations")
        }),
        ("topologies", |method, path| {
            method == Method::GET && path.ends_with("/noderesourcetopologies")
        }),
    ];
    for (kind, which) in rows {
        let world = FailoverWorld::bare(1).await;
        let plain = pod("web-0", json!({}), json!({"cpu": "1"}));
        world.put::<Pod>(plain).await;
        let mut pods = world.pods().await;
        let fuse = Fuse::slow(vec![(which, delay)]);
        let started = Instant::now();
        let only = world.schedule("one", fuse.clone());
        pods.until(kind, &[("web", 0, 1)]).await;
        let [begun, _] = fuse.written().unwrap();
        assert!(begun - started >= delay, "{kind}: {:?}", begun - started);
        only.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn new_leader_restarts_gang_wait_timeout() {
    let case = "a gang that cannot be whole";
    let wait = Duration::from_secs(40);
    let world = FailoverWorld::bare(1).await;
    world
        .put::<PodGroup>(json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": "loose", "namespace": "default", "annotations": {MODE: "NonStrict"}},
            "spec": {"minMember": 3, "scheduleTimeoutSeconds": wait.as_secs()}
        }))
        .await;
    let fuse = Fuse::endless();
    let (first, second) = world.pair(&fuse).await;
    let mut pods = world.pods().await;
    // Two members hold 12 of 16 CPUs, and the third fits on no node.
    for (number, cpu) in ["6", "6", "12"].into_iter().enumerate() {
        let labels = json!({"labels": {GROUP: "loose"}});
        let member = pod(&format!("loose-{number}"), labels, json!({"cpu": cpu}));
        world.put::<Pod>(member).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    first.kill(&fuse).await;
    world.leader("two").await;
    let took_over = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // This pod is the first to use what they release, and must not use it before.
    let class: PriorityClass = serde_json::from_value(json!({
        "metadata": {"name": "patient"}, "value": 1000, "preemptionPolicy": "Never"
    }))
    .unwrap();
    world.all(&class).await;
    let mut other = pod("other-0", json!({}), json!({"cpu": "8"}));
    other["spec"]["priorityClassName"] = json!("patient");
    world.put::<Pod>(other).await;
    pods.until(case, &[("other", 0, 1)]).await;
    let waited = took_over.elapsed();
    assert!(
        wait <= waited && waited < wait + Duration::from_secs(10),
        "{waited:?}: their timeout restarted, and ended"
    );
    world.fits(case).await;
    let bound = world.list::<Pod>().await;
    let member = |pod: &&Pod| name_of(pod).starts_with("loose");
    let count = bound
        .iter()
        .filter(member)
        .filter(|pod| node_of(pod).is_some());
    assert_eq!(count.count(), 0, "half a gang");
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn standby_with_stalled_watch_relists_before_deciding() {
    // Failures of the lists by which the standby checks the age of its view.
    let rows: [(&str, &[Lost]); 3] = [
        ("answered", &[]),
        ("reset", &[Lost::Reset; 3]),
        ("unanswered", &[Lost::Silence]),
    ];
    for (case, lists) in rows {
        let world = FailoverWorld::bare(1).await;
        // The leader's bindings are slow, so that the standby sees both pods pending.
        let leaders = Fuse::slow(vec![(
            |_, path| path.ends_with("/binding"),
            Duration::from_secs(3),
        )]);
        let first = world.schedule("one", leaders.clone());
        world.leader("one").await;
        let mut pods = world.pods().await;
        for name in ["first-0", "second-0"] {
            let big = pod(name, json!({}), json!({"cpu": "10"}));
            world.put::<Pod>(big).await;
        }
        let standbys = Fuse::stalled("/pods", lists);
        let second = world.schedule("two", standbys.clone());
        let stalls = async || standbys.has_stalled().then_some(());
        eventually("stall of the watch", stalls).await;
        let bound = |pods: &[Pod]| pods.iter().filter(|pod| node_of(pod).is_some()).count();
        assert_eq!(
            bound(&world.list::<Pod>().await),
            0,
            "{case}: it saw a binding"
        );
        pods.until(case, &[("first", 0, 1)]).await;
        first.kill(&leaders).await;
        world.leader("two").await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        world.fits(case).await;
        assert!(standbys.has_lost_all(), "{case}");
        // The watch works again.
        let api: Api<Pod> = Api::namespaced(world.client(), "default");
        api.delete("first-0", &DeleteParams::default().grace_period(0))
            .await
            .unwrap();
        pods.until(case, &[("second", 0, 1)]).await;
        second.stop().await;
    }
}
