//! Leaders that stop during preemption.

use super::contender::Contender;
use super::draw;
use super::wire::{Fuse, Which, any_write, eviction};
use super::world::{FailoverWorld, Pods, name_of, node_of, pod};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_host::testing::{eventually, eventually_within};
use koord_kube::Api;
use koord_kube::api::DeleteParams;
use serde_json::{Value, json};
use std::time::Duration;

const MACHINES: usize = 4;

/// Creates machines that are full with two pods of low priority each.
async fn full(machines: usize, grace: i64) -> FailoverWorld {
    let world = FailoverWorld::bare(machines).await;
    for (name, value) in [("low", 1), ("middle", 500), ("high", 1000)] {
        let class: PriorityClass =
            serde_json::from_value(json!({"metadata": {"name": name}, "value": value})).unwrap();
        world.all(&class).await;
    }
    for number in 0..2 * machines {
        let mut low = classed(&format!("low-{number}"), "low", "8");
        low["spec"]["nodeName"] = json!(format!("n{}", number / 2));
        low["spec"]["terminationGracePeriodSeconds"] = json!(grace);
        world.put::<Pod>(low).await;
    }
    world
}

fn classed(name: &str, class: &str, cpu: &str) -> Value {
    let mut pod = pod(name, json!({}), json!({"cpu": cpu}));
    pod["spec"]["priorityClassName"] = json!(class);
    pod
}

/// Runs once with four pods that preempt one pod each.
async fn run(at: i64, counted: Which, arrives: bool) -> i64 {
    let case = format!("dead at write {at} while room is made, which arrives: {arrives}");
    let world = full(MACHINES, 0).await;
    let fuse = Fuse::new(at, counted, arrives);
    let (first, second) = world.pair(&fuse).await;
    let mut pods = world.pods().await;
    for number in 0..MACHINES {
        let name = format!("high-{number}");
        world.put::<Pod>(classed(&name, "high", "8")).await;
    }
    let placed = [("high", 0, MACHINES)];
    tokio::select! {
        () = fuse.blown() => {}
        () = pods.until(&case, &placed) => {}
    }
    let used = fuse.used();
    first.kill(&fuse).await;
    pods.until(&case, &placed).await;
    world.fits(&case).await;
    let remaining = world.list::<Pod>().await;
    assert_eq!(
        remaining.len(),
        2 * MACHINES,
        "{case}: one victim per preemptor"
    );
    second.stop().await;
    used
}

#[tokio::test(start_paused = true)]
async fn preemption_happens_once_across_failover() {
    let write_count = run(i64::MAX, any_write, true).await;
    assert!(write_count >= 12, "{write_count} writes");
    for at in 1..=write_count {
        run(at, any_write, draw(at.unsigned_abs()) & 1 == 0).await;
    }
    for at in 1..=4 {
        run(at, eviction, true).await;
    }
}

async fn nominated(world: &FailoverWorld, name: &str) -> Option<String> {
    let api: Api<Pod> = Api::namespaced(world.client(), "default");
    api.get(name).await.unwrap().status?.nominated_node_name
}

/// Waits, in virtual time, until the pod's nomination satisfies `wanted`.
async fn until(world: &FailoverWorld, name: &str, wanted: impl Fn(Option<&str>) -> bool) {
    let case = format!("nomination of {name}");
    eventually_within(Duration::from_secs(1000), &case, async || {
        let node = nominated(world, name).await;
        wanted(node.as_deref()).then_some(())
    })
    .await;
}

async fn delete<K>(api: &Api<K>, name: &str)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    api.delete(name, &params).await.unwrap();
}

/// Stops the leader during a preemption, while the victim is terminating. Returns the pod that was nominated.
async fn promised() -> (FailoverWorld, Pods, Contender, String) {
    let world = full(2, 3600).await;
    let fuse = Fuse::endless();
    let (first, second) = world.pair(&fuse).await;
    let pods = world.pods().await;
    world.put::<Pod>(classed("high-0", "high", "8")).await;
    until(&world, "high-0", |node| node.is_some()).await;
    let node = nominated(&world, "high-0").await.unwrap();
    eventually("victim", async || {
        let pods = world.list::<Pod>().await;
        let is_going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        pods.into_iter().find(is_going)
    })
    .await;
    first.kill(&fuse).await;
    world.leader("two").await;
    (world, pods, second, node)
}

#[tokio::test(start_paused = true)]
async fn nomination_survives_failover() {
    let (world, mut pods, second, node) = promised().await;
    // It would fit on the node with the nomination, but must not use it.
    world.put::<Pod>(classed("middle-0", "low", "4")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let going = |pod: &&Pod| pod.metadata.deletion_timestamp.is_some();
    let all = world.list::<Pod>().await;
    let victims: Vec<String> = all.iter().filter(going).map(name_of).collect();
    assert_eq!(victims.len(), 1, "no other pod is evicted: {victims:?}");
    assert_eq!(nominated(&world, "high-0").await.as_ref(), Some(&node));
    let api: Api<Pod> = Api::namespaced(world.client(), "default");
    delete(&api, &victims[0]).await;
    pods.until("promised", &[("high", 0, 1)]).await;
    let all = world.list::<Pod>().await;
    let placed = |name: &str| {
        let pod = all.iter().find(|pod| name_of(pod) == name);
        pod.and_then(node_of)
    };
    assert_eq!(placed("high-0"), Some(node));
    assert_eq!(placed("middle-0"), None);
    world.fits("promised").await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn impossible_nomination_is_cleared_after_failover() {
    let (world, _pods, second, _) = promised().await;
    // No machine remains on which preemption is possible.
    let nodes: Api<Node> = Api::all(world.client());
    for machine in ["n0", "n1"] {
        delete(&nodes, machine).await;
    }
    until(&world, "high-0", |node| node.is_none()).await;
    second.stop().await;
}
