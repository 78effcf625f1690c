//! Evictions without effect, whatever the API server responds.

use super::cluster::{MigrationCluster, name_of};
use super::wire::Fuse;
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::PodMigrationJob;
use koord_kube::patch;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

fn quick() -> Value {
    json!({"objectLimiters": {"workload": {"duration": "0s"}}, "evictQPS": 100, "evictBurst": 10,
        "maxMigratingPerWorkload": 1})
}

/// Checks that job `name` of the cluster's first pod fails by its time to live of a minute because of `why`,
/// that the pod is unchanged, that the eviction was retried at a limited rate, and that it was never reported
/// as done.
async fn fails(cluster: &MigrationCluster, name: &str, spec: Value, cause: &str) {
    let pod = cluster.pods().await.remove(0);
    let before = cluster.log.eviction_requests.load(Ordering::SeqCst);
    let mut spec = spec;
    spec["ttl"] = "1m".into();
    cluster.create_job(name, &name_of(&pod), spec).await;
    let (phase, reason, message) = cluster.end_of(name).await;
    let end = (phase.as_str(), reason.as_str());
    assert_eq!(end, ("Failed", "Timeout"), "{name}: {message}");
    assert!(message.contains(cause), "{name}: {message}");
    let now = cluster
        .namespaced::<Pod>()
        .get(&name_of(&pod))
        .await
        .unwrap();
    assert_eq!(now.metadata.uid, pod.metadata.uid, "{name}");
    assert_eq!(now.metadata.deletion_timestamp, None, "{name}");
    assert!(cluster.reservations().await.is_empty(), "{name}");
    let attempts = cluster.log.eviction_requests.load(Ordering::SeqCst) - before;
    assert!(attempts <= 10, "{name}: asked {attempts} times");
    let reasons = cluster.events().await;
    assert!(
        !reasons.iter().any(|reason| reason == "Descheduled"),
        "{name}: {reasons:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn webhook_denial_worded_as_not_found_is_a_refusal() {
    let cluster = MigrationCluster::start(1).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    cluster.log.denies.store(true, Ordering::SeqCst);
    for code in [404, 409] {
        cluster.log.code.store(code, Ordering::SeqCst);
        for mode in ["ReservationFirst", "EvictDirectly"] {
            let name = format!("{code}-{}", mode.to_lowercase());
            fails(&cluster, &name, json!({"mode": mode}), "not today").await;
        }
    }
    cluster.log.denies.store(false, Ordering::SeqCst);
    let (is_counted, metrics) = running.evicted("success");
    assert!(!is_counted, "{metrics}");
    running.stop().await;
}

/// The earlier reason no longer holds when the job times out.
#[tokio::test(start_paused = true)]
async fn timeout_names_the_current_reason() {
    let cluster = MigrationCluster::start(0).await;
    cluster.hot.store(true, Ordering::SeqCst);
    let args = json!({"skipCheckExpectedReplicas": true, "maxMigratingPerWorkload": 1, "defaultJobTTL": "3m"});
    let running = cluster.deschedule("one", &args, false, Fuse::endless());
    let spec = json!({"schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "i"}]});
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": spec});
    let set = json!({"kind": "StatefulSet", "metadata": {"name": "x"}, "spec": {"replicas": 2, "serviceName": "s",
        "selector": {"matchLabels": {"app": "x"}}, "template": template}});
    let path = "/apis/apps/v1/namespaces/default/statefulsets";
    cluster.post(path, &set).await;
    let are_ready = async || {
        let pods = cluster.pods().await;
        pods.len() == 2 && pods.iter().all(super::cluster::is_ready)
    };
    cluster.until("the pods run", are_ready).await;
    // A webhook that does not support dry runs.
    cluster.log.code.store(500, Ordering::SeqCst);
    cluster.log.denies.store(true, Ordering::SeqCst);
    cluster.create_job("j", "x-1", json!({})).await;
    let reason = async || {
        let job = cluster.all::<PodMigrationJob>().get("j").await.unwrap();
        job.status.unwrap_or_default().reason
    };
    cluster
        .until("it is refused", async || reason().await == "FailedEvict")
        .await;
    cluster.closed.store(true, Ordering::SeqCst);
    cluster.log.denies.store(false, Ordering::SeqCst);
    let (phase, cause, message) = cluster.end_of("j").await;
    assert_eq!((phase.as_str(), cause.as_str()), ("Failed", "Timeout"));
    assert_eq!(
        message, "Abort job caused by timeout: WaitForPodBindReservation",
        "the new x-1 has no node"
    );
    let metrics = koord_app::metrics::encode(&running.metrics).unwrap();
    assert!(!metrics.contains("WorkloadLimiter"), "{metrics}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn delete_options_with_which_nothing_goes_are_a_refusal() {
    let cluster = MigrationCluster::start(1).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let stale = json!({"preconditions": {"resourceVersion": "1"}});
    let dry = json!({"dryRun": ["All"]});
    for policy in ["Eviction", "Delete"] {
        for pod in cluster.pods().await {
            let label = json!({"metadata": {"labels": {"koordinator.sh/evict-policy": policy}}});
            patch::merge(&cluster.namespaced::<Pod>(), &name_of(&pod), &label)
                .await
                .unwrap();
        }
        for (what, options, reason) in [("stale", &stale, "recondition"), ("dry", &dry, "dryRun")] {
            let name = format!("{what}-{}", policy.to_lowercase());
            let spec = json!({"mode": "EvictDirectly", "deleteOptions": options});
            fails(&cluster, &name, spec, reason).await;
        }
        let name = format!("held-{}", policy.to_lowercase());
        fails(&cluster, &name, json!({"deleteOptions": dry}), "dryRun").await;
    }
    let (is_counted, metrics) = running.evicted("success");
    assert!(!is_counted, "{metrics}");
    running.stop().await;
}
