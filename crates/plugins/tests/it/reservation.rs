//! Reservations against the embedded API server: placement, use, status, expiry, a restart.

use crate::api::{TestCluster, allocatable};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::{Reservation, ReservationPhase};
use koord_kube::Api;
use koord_kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use koord_kube::kube_core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

const ALLOCATED: &str = "scheduling.koordinator.sh/reservation-allocated";

impl TestCluster {
    async fn reservation(&self, name: &str, cpu: &str, spec: Value) {
        let mut value = json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": name},
            "spec": {
                "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
                "template": {"spec": {"schedulerName": "koord-scheduler", "containers":
                    [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}}
            }
        });
        for (key, part) in spec.as_object().into_iter().flatten() {
            value["spec"][key] = part.clone();
        }
        let object: Reservation = serde_json::from_value(value).unwrap();
        let api: Api<Reservation> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn app_pod(&self, name: &str, cpu: &str, app: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
            "spec": {"schedulerName": "koord-scheduler", "containers":
                [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
        }))
        .unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
    }

    async fn reserved(&self, name: &str, pick: impl Fn(&Reservation) -> bool) -> Reservation {
        self.until(name, |object: &Reservation| {
            let named = object.metadata.name.as_deref() == Some(name);
            (named && pick(object)).then(|| object.clone())
        })
        .await
    }
}

fn has_phase(wanted: ReservationPhase) -> impl Fn(&Reservation) -> bool {
    move |object| {
        object
            .status
            .as_ref()
            .is_some_and(|status| status.phase.as_ref() == Some(&wanted))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_is_placed_used_and_expires() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    cluster.reservation("once", "3", json!({})).await;
    let placed = cluster
        .reserved("once", has_phase(ReservationPhase::Available))
        .await;
    let status = placed.status.unwrap();
    assert_eq!(
        (status.node_name.as_str(), status.conditions.len()),
        ("n", 2)
    );
    assert_eq!(
        cluster.event("Scheduled", "once").await,
        "Successfully assigned once to n"
    );

    cluster.app_pod("other", "2", "db").await;
    let (_, message) = cluster
        .refused("other", |message| message.starts_with("0/1"))
        .await;
    assert!(
        message.starts_with("0/1 nodes are available: 1 Insufficient cpu."),
        "{message}"
    );
    cluster.app_pod("web", "2", "web").await;
    assert_eq!(cluster.bound("web").await, "n");
    let pod = cluster.pods().get("web").await.unwrap();
    let uid = placed.metadata.uid.unwrap();
    assert_eq!(
        pod.metadata.annotations.unwrap()[ALLOCATED],
        format!(r#"{{"name":"once","uid":"{uid}"}}"#)
    );
    let over = cluster
        .reserved("once", has_phase(ReservationPhase::Succeeded))
        .await;
    let status = over.status.unwrap();
    assert_eq!(status.current_owners[0].name.as_deref(), Some("web"));
    assert_eq!(status.allocated["cpu"].milli_value(), 2000);
    // What the reservation held beyond its owner is free.
    assert_eq!(cluster.bound("other").await, "n");
    scheduler.stop().await;
}

/// The CRD schema of Reservation accepts any text for `ttl`, and any object for `template`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecodable_reservation_blocks_no_other() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let kind = ApiResource::erase::<Reservation>(&());
    let any: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &kind);
    let odd = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation", "metadata": {"name": "odd"},
        "spec": {"owners": [{"object": {"name": "x"}}], "template": {"spec": "none"}, "ttl": "a day"}
    });
    let odd: DynamicObject = serde_json::from_value(odd).unwrap();
    any.create(&PostParams::default(), &odd).await.unwrap();
    let scheduler = cluster.schedule(|_| {});
    cluster.reservation("first", "2", json!({})).await;
    let available = has_phase(ReservationPhase::Available);
    cluster.reserved("first", &available).await;

    // An invalid update leaves the known version in force, and other reservations work.
    let change = Patch::Merge(json!({"spec": {"ttl": "5 minutes"}}));
    let params = PatchParams::default();
    any.patch("first", &params, &change).await.unwrap();
    cluster.reservation("second", "1", json!({})).await;
    cluster.reserved("second", &available).await;
    cluster.app_pod("large", "2", "db").await;
    let (_, message) = cluster
        .refused("large", |message| message.starts_with("0/1"))
        .await;
    assert!(message.contains("Insufficient cpu"), "{message}");
    scheduler.stop().await;

    let scheduler = cluster.schedule(|_| {});
    cluster.app_pod("small", "500m", "db").await;
    assert_eq!(cluster.bound("small").await, "n");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_scheduler_continues_after_the_first() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    let spec = json!({"allocateOnce": false, "allocatePolicy": "Restricted"});
    cluster.reservation("r", "3", spec).await;
    cluster
        .reserved("r", has_phase(ReservationPhase::Available))
        .await;
    cluster.app_pod("a", "2", "web").await;
    cluster.bound("a").await;
    scheduler.stop().await;

    let scheduler = cluster.schedule(|_| {});
    cluster.app_pod("b", "2", "web").await;
    let (_, message) = cluster
        .refused("b", |message| message.starts_with("0/1"))
        .await;
    assert!(message.contains("Insufficient cpu"), "{message}");
    cluster.app_pod("c", "1", "web").await;
    assert_eq!(cluster.bound("c").await, "n");
    let owners = |count: usize| {
        move |object: &Reservation| {
            let status = object.status.as_ref();
            status.is_some_and(|status| status.current_owners.len() == count)
        }
    };
    let full = cluster.reserved("r", owners(2)).await;
    assert_eq!(full.status.unwrap().allocated["cpu"].milli_value(), 3000);
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    cluster.pods().delete("a", &now).await.unwrap();
    assert_eq!(cluster.bound("b").await, "n");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_pod_becomes_reservation_owner() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    cluster.app_pod("web", "3", "web").await;
    cluster.bound("web").await;
    let spec =
        json!({"allocateOnce": false, "allocatePolicy": "Restricted", "preAllocation": true});
    cluster.reservation("r", "4", spec).await;
    let used = cluster
        .reserved("r", |object| {
            let status = object.status.as_ref();
            status.is_some_and(|status| !status.current_owners.is_empty())
        })
        .await;
    assert!(has_phase(ReservationPhase::Available)(&used));
    let (status, uid) = (used.status.unwrap(), used.metadata.uid.unwrap());
    assert_eq!(status.allocated["cpu"].milli_value(), 3000);
    let pod = cluster.pods().get("web").await.unwrap();
    assert_eq!(
        pod.metadata.annotations.unwrap()[ALLOCATED],
        format!(r#"{{"name":"r","uid":"{uid}"}}"#)
    );
    cluster.app_pod("other", "1", "db").await;
    let (_, message) = cluster
        .refused("other", |message| message.starts_with("0/1"))
        .await;
    assert!(message.contains("Insufficient cpu"), "{message}");
    scheduler.stop().await;
}
