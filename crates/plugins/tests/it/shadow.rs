//! Shadow mode next to a scheduler that a test plays, in paused time.

use crate::api::{Scheduler, TestCluster, allocatable};
use crate::preemption::{page, send_request, serve};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::scheduling::{PodGroup, Reservation};
use koord_host::testing::eventually_within;
use koord_kube::Api;
use koord_kube::api::{ListParams, Patch, PatchParams, PostParams};
use koord_scheduler::{Options, ShadowReport};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn shadow(options: &mut Options) {
    options.shadow = Some(PATIENCE);
    // Would wait for a lease that it must not write.
    options.leader_elect = true;
}

impl TestCluster {
    /// Binds a pod as the cluster's scheduler does.
    async fn bind(&self, pod: &str, node: &str) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let params = PostParams::default();
        let sent = self
            .pods()
            .create_subresource("binding", pod, &params, &binding)
            .await;
        let _: Value = sent.unwrap();
    }

    async fn create_pod(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "i",
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}]}
        });
        change(&mut pod);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.unwrap();
    }
}

/// Waits until the report satisfies `is`.
async fn report(
    scheduler: &Scheduler,
    what: &str,
    is: impl Fn(&ShadowReport) -> bool,
) -> ShadowReport {
    eventually_within(Duration::from_secs(600), what, async || {
        scheduler.debug.shadow().filter(&is)
    })
    .await
}

fn count(report: &ShadowReport, result: &str) -> u64 {
    report.results.get(result).copied().unwrap_or(0)
}

/// Waits until the scheduler has `placed` pods that are not bound.
async fn placed(scheduler: &Scheduler, placed: usize) {
    report(scheduler, "placed pods", |it| it.placed == placed).await;
}

/// Returns the number of objects that only a scheduler writes.
async fn written(cluster: &TestCluster) -> usize {
    let all = ListParams::default();
    let events: Api<Event> = Api::all(cluster.client.clone());
    let leases: Api<Lease> = Api::all(cluster.client.clone());
    let pods = cluster.pods().list(&all).await.unwrap().items;
    let has_condition = |pod: &Pod| {
        let status = pod.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|it| it.type_ == "PodScheduled" && it.status == "False")
            || status.is_some_and(|status| status.nominated_node_name.is_some())
    };
    events.list(&all).await.unwrap().items.len()
        + leases.list(&all).await.unwrap().items.len()
        + pods.iter().filter(|pod| has_condition(pod)).count()
}

#[tokio::test(start_paused = true)]
async fn decisions_are_compared_and_nothing_is_written() {
    let cluster = TestCluster::start_virtual().await;
    let taint = json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]);
    cluster.node("n1", allocatable("4"), json!([])).await;
    cluster.node("n2", allocatable("2"), json!([])).await;
    cluster.node("db", allocatable("4"), taint).await;
    cluster.pod("big", json!({"cpu": "1500m"})).await;
    cluster.bind("big", "n2").await;
    let scheduler = cluster.schedule(shadow);

    // The same node.
    cluster.pod("same", json!({"cpu": "1"})).await;
    placed(&scheduler, 1).await;
    cluster.bind("same", "n1").await;
    report(&scheduler, "agreement", |it| count(it, "agree") == 1).await;

    // A node that fits, with less room, and one that a filter refuses.
    for (name, node) in [("other", "n2"), ("tainted", "db")] {
        cluster.pod(name, json!({"cpu": "250m"})).await;
        placed(&scheduler, 1).await;
        cluster.bind(name, node).await;
        placed(&scheduler, 0).await;
    }
    let found = report(&scheduler, "differences", |it| count(it, "other_node") == 2).await;
    let [tainted, other] = [&found.differences[0], &found.differences[1]];
    let nodes = |difference: &koord_scheduler::ShadowDifference| {
        (difference.node.clone(), difference.bound_to.clone())
    };
    let name = |node: &str| Some(node.to_owned());
    assert_eq!(nodes(tainted), (name("n1"), name("db")));
    assert_eq!(tainted.plugin, Some("TaintToleration"));
    assert!(tainted.reason.contains("untolerated taint"), "{tainted:?}");
    assert_eq!(nodes(other), (name("n1"), name("n2")));
    assert!(other.plugin.is_some() && !other.late, "{other:?}");
    assert_eq!(other.nodes.len(), 2);
    assert!(other.nodes[0].total > other.nodes[1].total, "{other:?}");
    assert!(other.nodes.iter().all(|node| !node.scores.is_empty()));

    // A pod that fits nowhere here.
    cluster.pod("huge", json!({"cpu": "16"})).await;
    report(&scheduler, "a refusal", |it| it.refused == 1).await;
    cluster.bind("huge", "db").await;
    let found = report(&scheduler, "the refused pod", |it| {
        count(it, "unschedulable") == 1
    })
    .await;
    let huge = &found.differences[0];
    assert_eq!(
        (huge.node.clone(), huge.bound_to.clone()),
        (None, name("db"))
    );
    assert!(huge.plugin.is_some(), "{huge:?}");
    assert!(huge.reason.contains("Insufficient cpu"), "{huge:?}");

    // A pod that the cluster's scheduler leaves waiting, and binds much later.
    cluster.pod("waits", json!({"cpu": "1"})).await;
    let status = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/3 nodes are available: 3 not today."}]}});
    let pods = cluster.pods();
    pods.patch_status("waits", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    let found = report(&scheduler, "a pod that waits", |it| {
        count(it, "not_bound") == 1
    })
    .await;
    let waits = &found.differences[0];
    assert_eq!(waits.pod, "default/waits");
    assert_eq!(waits.reason, "0/3 nodes are available: 3 not today.");
    tokio::time::sleep(PATIENCE * 5).await;
    cluster.bind("waits", "n1").await;
    let found = report(&scheduler, "agreement later", |it| count(it, "agree") == 2).await;
    assert_eq!(count(&found, "not_bound"), 1, "each pod once");

    let address = serve(&scheduler).await;
    let shown = page(address, "/debug/shadow").await;
    assert_eq!(shown["results"]["other_node"], 2);
    assert_eq!(shown["differences"][0]["pod"], "default/waits");
    assert!(shown["withheld"]["bind"].as_u64() >= Some(4));
    let (code, text) = send_request(address, "GET", "/debug/shadow?format=text", "").await;
    assert_eq!(code, "200");
    assert!(
        text.starts_with("5 pods compared, 40.0 % on the same node"),
        "{text}"
    );
    let (_, metrics) = send_request(address, "GET", "/metrics", "").await;
    let line =
        "koord_scheduler_shadow_results_total{profile=\"koord-scheduler\",result=\"agree\"} 2";
    assert!(metrics.contains(line), "{metrics}");

    // The binding has replaced the condition of "waits".
    assert_eq!(written(&cluster).await, 0);
    scheduler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn real_bindings_replace_tentative_ones() {
    let cluster = TestCluster::start_virtual().await;
    for node in ["n1", "n2"] {
        cluster.node(node, allocatable("2"), json!([])).await;
    }
    let scheduler = cluster.schedule(shadow);
    cluster.pod("a", json!({"cpu": "2"})).await;
    placed(&scheduler, 1).await;
    let ours = scheduler.debug.shadow().unwrap();
    assert_eq!(ours.withheld["bind"], 1);
    // The other node, so that the chosen one is free again.
    cluster.bind("a", "n1").await;
    placed(&scheduler, 0).await;
    cluster.pod("b", json!({"cpu": "2"})).await;
    placed(&scheduler, 1).await;
    // A change makes it too large for any node: the placement is withdrawn.
    let status = json!({"metadata": {"labels": {"changed": "yes"}}});
    let (pods, params) = (cluster.pods(), PatchParams::default());
    pods.patch("b", &params, &Patch::Merge(&status))
        .await
        .unwrap();
    report(&scheduler, "a second decision", |it| {
        it.withheld["bind"] == 3
    })
    .await;
    cluster.bind("b", "n2").await;
    let found = report(&scheduler, "two results", |it| {
        count(it, "agree") + count(it, "other_node") == 2
    })
    .await;
    assert!(count(&found, "agree") >= 1, "{found:?}");
    // A deleted pod frees its node, and one that is never bound is given back again and again.
    pods.delete(
        "a",
        &koord_kube::api::DeleteParams::default().grace_period(0),
    )
    .await
    .unwrap();
    cluster.pod("c", json!({"cpu": "2"})).await;
    report(&scheduler, "decisions about c", |it| {
        it.withheld["bind"] >= 6
    })
    .await;
    pods.delete(
        "c",
        &koord_kube::api::DeleteParams::default().grace_period(0),
    )
    .await
    .unwrap();
    let found = report(&scheduler, "no pod", |it| it.placed + it.refused == 0).await;
    assert_eq!(count(&found, "not_bound"), 1);
    assert_eq!(written(&cluster).await, 0);
    scheduler.stop().await;
}

#[tokio::test(start_paused = true)]
async fn gang_preemption_and_reservation_are_only_recorded() {
    let cluster = TestCluster::start_virtual().await;
    for node in ["n1", "n2"] {
        cluster.node(node, allocatable("2"), json!([])).await;
    }
    let groups: Api<PodGroup> = Api::namespaced(cluster.client.clone(), "default");
    let group = json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 3}});
    let group = serde_json::from_value(group).unwrap();
    groups.create(&PostParams::default(), &group).await.unwrap();
    let reservations: Api<Reservation> = Api::all(cluster.client.clone());
    let reservation = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation", "metadata": {"name": "r"}, "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": "x"}}}],
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}}});
    let reservation = serde_json::from_value(reservation).unwrap();
    let params = PostParams::default();
    let reservation = reservations.create(&params, &reservation).await.unwrap();
    let scheduler = cluster.schedule(shadow);
    report(&scheduler, "the reservation", |it| it.placed == 1).await;
    let found = report(&scheduler, "its end", |it| count(it, "not_bound") == 1).await;
    // A reservation's pod has its UID as name.
    let uid = reservation.metadata.uid.unwrap();
    assert!(found.differences[0].pod.ends_with(&uid), "{found:?}");

    // Two of three members wait for the third one, and are bound by a scheduler without gangs.
    let label = |pod: &mut Value| {
        pod["metadata"]["labels"] = json!({"pod-group.scheduling.sigs.k8s.io": "g"});
    };
    for name in ["g-0", "g-1"] {
        cluster.create_pod(name, label).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    for name in ["g-0", "g-1"] {
        cluster.bind(name, "n1").await;
    }
    let compared = |it: &ShadowReport| {
        ["agree", "other_node", "unschedulable"]
            .iter()
            .map(|result| count(it, result))
            .sum::<u64>()
    };
    report(&scheduler, "the members", |it| compared(it) == 2).await;

    // A pod that would evict others.
    for name in ["low-0", "low-1"] {
        cluster.create_pod(name, |_| {}).await;
        cluster.bind(name, "n2").await;
    }
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    let class: PriorityClass = serde_json::from_value(class).unwrap();
    let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
    classes.create(&params, &class).await.unwrap();
    cluster
        .create_pod("high", |pod| {
            pod["spec"]["priorityClassName"] = json!("high")
        })
        .await;
    let found = report(&scheduler, "a preemption", |it| {
        it.withheld.get("evict").is_some_and(|count| *count >= 2)
    })
    .await;
    assert!(found.withheld["evict"] < 100, "not in a loop");
    for name in ["low-0", "low-1", "g-0", "g-1"] {
        let pod = cluster.pods().get(name).await.unwrap();
        assert!(pod.metadata.deletion_timestamp.is_none(), "{name}");
    }
    let status = reservations.get("r").await.unwrap().status;
    assert!(status.is_none_or(|status| status.node_name.is_empty()));
    let group = groups.get("g").await.unwrap();
    assert!(group.status.is_none());
    assert_eq!(written(&cluster).await, 0);
    scheduler.stop().await;
}
