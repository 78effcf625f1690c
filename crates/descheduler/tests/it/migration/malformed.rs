//! Objects that pass the validation of their definitions but cannot be decoded.

use super::cluster::{MigrationCluster, name_of};
use super::wire::Fuse;
use k8s_openapi::api::core::v1::{Event, Pod};
use koord_api::scheduling::{PodMigrationJob, Reservation};
use koord_kube::api::DeleteParams;
use koord_kube::patch;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const JOBS: &str = "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs";
const RESERVATIONS: &str = "/apis/scheduling.koordinator.sh/v1alpha1/reservations";
const METRICS: &str = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics";

fn quick() -> Value {
    json!({"objectLimiters": {"workload": {"duration": "0s"}}, "evictQPS": 100, "evictBurst": 10,
        "maxMigratingPerWorkload": 1})
}

fn job(name: &str, pod: &Pod, over: Value) -> Value {
    let mut spec =
        json!({"podRef": {"namespace": "default", "name": name_of(pod)}, "mode": "EvictDirectly"});
    spec.as_object_mut()
        .unwrap()
        .extend(over.as_object().unwrap().clone());
    json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "PodMigrationJob",
        "metadata": {"name": name}, "spec": spec})
}

/// Returns a pod other than `pod`: replacements have any name.
async fn another(cluster: &MigrationCluster, pod: &Pod) -> Pod {
    let all = cluster.pods().await.into_iter();
    let mut other_pods = all.filter(|candidate| name_of(candidate) != name_of(pod));
    other_pods.next().unwrap()
}

#[tokio::test(start_paused = true)]
async fn undecodable_objects_are_skipped_and_reported() {
    let cluster = MigrationCluster::start(1).await;
    let pods = cluster.pods().await;
    let bad = job("bad", &pods[0], json!({"ttl": "5 minutes"}));
    cluster.post(JOBS, &bad).await;
    let template = json!({"reservationOptions": {"template": {"spec": 7}}});
    cluster.post(JOBS, &job("odd", &pods[0], template)).await;
    let odd = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "odd"}, "spec": {"template": {"spec": "none"}, "owners": [{"object": {"name": "x"}}], "ttl": "a day"}});
    cluster.post(RESERVATIONS, &odd).await;
    let odd = json!({"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": "hot"}, "spec": {"metricCollectPolicy": {"aggregateDurationSeconds": 1}},
        "status": {"nodeMetric": {"aggregatedNodeUsages": [{"duration": "soon"}]}}});
    cluster.post(METRICS, &odd).await;
    // A leader that sees them first, and one that was running before.
    for name in ["first", "second"] {
        let running = cluster.deschedule(name, &quick(), false, Fuse::endless());
        cluster.leader(name).await;
        let pod = another(&cluster, &pods[0]).await;
        let good = format!("good-{name}");
        cluster.post(JOBS, &job(&good, &pod, json!({}))).await;
        assert_eq!(cluster.end_of(&good).await.0, "Succeeded");
        let late_job = job(&format!("late-{name}"), &pods[0], json!({"ttl": "no"}));
        cluster.post(JOBS, &late_job).await;
        let pod = another(&cluster, &pods[0]).await;
        let good = format!("better-{name}");
        cluster.post(JOBS, &job(&good, &pod, json!({}))).await;
        assert_eq!(cluster.end_of(&good).await.0, "Succeeded");
        running.stop().await;
    }
    let events = cluster
        .namespaced::<Event>()
        .list(&Default::default())
        .await;
    let events = events.unwrap().items;
    let message_of = |name: &str| {
        let matching = events.iter().filter(|event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some("Unreadable")
        });
        matching
            .filter_map(|event| event.message.clone())
            .collect::<Vec<_>>()
            .join("\n")
    };
    for (name, field, value) in [
        ("bad", "spec.ttl: ", "\"5 minutes\""),
        ("late-second", "spec.ttl: ", "\"no\""),
        ("odd", "spec.reservationOptions.template.spec: ", "7"),
    ] {
        let message_of = message_of(name);
        assert!(
            message_of.contains(field) && message_of.contains(value),
            "{message_of}"
        );
    }
    // They are unchanged, and can be repaired.
    cluster
        .namespaced::<Pod>()
        .get(&name_of(&pods[0]))
        .await
        .unwrap();
    let mended = json!({"spec": {"ttl": "5m"}});
    let running = cluster.deschedule("third", &quick(), false, Fuse::endless());
    patch::merge(&cluster.all::<PodMigrationJob>(), "bad", &mended)
        .await
        .unwrap();
    assert_eq!(cluster.end_of("bad").await.0, "Succeeded");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn job_with_undecodable_reservation_times_out() {
    let cluster = MigrationCluster::start(1).await;
    cluster.closed.store(true, Ordering::SeqCst);
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let pod = cluster.pods().await.remove(0);
    cluster
        .create_job("j", &name_of(&pod), json!({"ttl": "2m"}))
        .await;
    cluster
        .until("it is reserved", async || {
            !cluster.reservations().await.is_empty()
        })
        .await;
    let all = cluster.all::<Reservation>();
    let reservation = cluster.reservations().await.remove(0);
    let name = reservation.metadata.name.unwrap();
    let _ = patch::merge(&all, &name, &json!({"spec": {"ttl": "a day"}})).await;
    let (phase, reason, message) = cluster.end_of("j").await;
    assert_eq!((phase.as_str(), reason.as_str()), ("Failed", "Timeout"));
    assert!(message.contains("spec.ttl: "), "{message}");
    let _ = all.delete(&name, &DeleteParams::default()).await;
    cluster
        .namespaced::<Pod>()
        .get(&name_of(&pod))
        .await
        .unwrap();
    running.stop().await;
}
