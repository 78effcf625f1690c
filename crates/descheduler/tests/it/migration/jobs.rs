//! Outcomes of jobs, step by step.

use super::cluster::{MigrationCluster, name_of, node_of};
use super::wire::Fuse;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::scheduling::{PodMigrationJob, Reservation};
use koord_kube::api::{DeleteParams, PostParams};
use koord_kube::patch;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Returns arguments without delays.
fn quick() -> Value {
    json!({"objectLimiters": {"workload": {"duration": "0s"}}, "evictQPS": 100, "evictBurst": 10,
        "maxMigratingPerWorkload": 1})
}

#[tokio::test(start_paused = true)]
pub(crate) async fn pods_leave_a_hot_node_for_reservations() {
    let cluster = MigrationCluster::start(2).await;
    let before = cluster.pods_on("hot").await.len();
    assert_eq!(before, 8);
    let running = cluster.deschedule("one", &quick(), true, Fuse::endless());
    cluster
        .until("the node is left", async || {
            let jobs = cluster.jobs().await;
            let has_succeeded = |job: &PodMigrationJob| {
                let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
                phase.is_some_and(|phase| phase.as_str() == "Succeeded")
            };
            cluster.pods_on("hot").await.is_empty() && jobs.iter().all(has_succeeded)
        })
        .await;
    let jobs = cluster.jobs().await;
    assert_eq!(jobs.len(), 8);
    for job in &jobs {
        let status = job.status.clone().unwrap();
        let new = status.pod_ref.unwrap();
        let pod = cluster
            .namespaced::<Pod>()
            .get(new.name.as_deref().unwrap())
            .await
            .unwrap();
        assert_eq!(pod.metadata.uid, new.uid);
        assert_eq!(
            node_of(&pod),
            Some(status.node_name),
            "it is where room was reserved"
        );
    }
    let evictions = cluster.log.evictions.lock().clone();
    let real: Vec<_> = evictions.iter().filter(|eviction| !eviction.dry).collect();
    assert_eq!(real.len(), 8, "{evictions:?}");
    assert!(
        real.iter().all(|eviction| eviction.reserved),
        "{evictions:?}"
    );
    // The dry run of the eviction is done before the reservation is created.
    assert!(evictions.len() >= 16, "{evictions:?}");
    let events = cluster.events().await;
    for reason in [
        "ReservationCreated",
        "ReservationScheduled",
        "Evicting",
        "EvictComplete",
        "PodBoundReservation",
        "BoundPodReady",
        "Complete",
        "Descheduled",
    ] {
        assert!(
            events.iter().any(|event| event == reason),
            "{reason}: {events:?}"
        );
    }
    let metrics = koord_app::metrics::encode(&running.metrics).unwrap();
    let counted = r#"descheduler_pods_evicted{namespace="default",node="hot",result="success",strategy="Cooling"} 8"#;
    assert!(metrics.contains(counted), "{metrics}");
    // The next round counts the phases.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let metrics = koord_app::metrics::encode(&running.metrics).unwrap();
    assert!(
        metrics.contains(r#"koord_descheduler_migration_jobs{phase="Succeeded"} 8"#),
        "{metrics}"
    );
    // Nothing is written any more.
    let versions = async || {
        let jobs = cluster.jobs().await.into_iter();
        jobs.map(|job| job.metadata.resource_version)
            .collect::<Vec<_>>()
    };
    let now = versions().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(versions().await, now);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
pub(crate) async fn users_ask_for_jobs_of_every_kind() {
    let cluster = MigrationCluster::start(1).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let pods = cluster.pods().await;
    let [first, second, third, ..] = &pods[..] else {
        panic!("{pods:?}");
    };
    cluster
        .create_job("direct", &name_of(first), json!({"mode": "EvictDirectly"}))
        .await;
    let end = cluster.end_of("direct").await;
    assert_eq!(end.0, "Succeeded", "{end:?}");
    assert!(cluster.reservations().await.is_empty());
    assert!(
        cluster
            .namespaced::<Pod>()
            .get_opt(&name_of(first))
            .await
            .unwrap()
            .is_none()
    );
    // Policy Delete, which ignores budgets.
    budget(&cluster).await;
    let label = json!({"metadata": {"labels": {"koordinator.sh/evict-policy": "Delete"}}});
    patch::merge(&cluster.namespaced::<Pod>(), &name_of(second), &label)
        .await
        .unwrap();
    cluster
        .create_job("delete", &name_of(second), json!({"mode": "EvictDirectly"}))
        .await;
    assert_eq!(cluster.end_of("delete").await.0, "Succeeded");
    // Policy SoftEviction, which requests the eviction from another component.
    let label = json!({"metadata": {"labels": {"koordinator.sh/evict-policy": "SoftEviction"}}});
    let name = name_of(third);
    patch::merge(&cluster.namespaced::<Pod>(), &name, &label)
        .await
        .unwrap();
    cluster.create_job("soft", &name, json!({})).await;
    let key = "scheduling.koordinator.sh/soft-eviction";
    let request = async || {
        let pod = cluster.namespaced::<Pod>().get(&name).await.unwrap();
        pod.metadata
            .annotations
            .unwrap_or_default()
            .get(key)
            .cloned()
    };
    cluster
        .until("it is asked", async || request().await.is_some())
        .await;
    let spec: Value = serde_json::from_str(&request().await.unwrap()).unwrap();
    assert_eq!(spec["reason"], "NotSet", "{spec}");
    tokio::time::sleep(Duration::from_secs(30)).await;
    cluster.delete_pod(&name).await;
    assert_eq!(cluster.end_of("soft").await.0, "Succeeded");
    // No component evicts this pod.
    let last_pods = cluster.pods_on("hot").await;
    let name = name_of(&last_pods[0]);
    patch::merge(&cluster.namespaced::<Pod>(), &name, &label)
        .await
        .unwrap();
    cluster
        .create_job("late", &name, json!({"ttl": "1m"}))
        .await;
    let (phase, reason, _) = cluster.end_of("late").await;
    assert_eq!((phase.as_str(), reason.as_str()), ("Failed", "Timeout"));
    let pod = cluster.namespaced::<Pod>().get(&name).await.unwrap();
    assert!(
        !pod.metadata
            .annotations
            .unwrap_or_default()
            .contains_key(key)
    );
    running.stop().await;
}

/// Forbids evictions of pods of `set0`.
async fn budget(cluster: &MigrationCluster) {
    let budget = json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "set0"}}}});
    let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
    cluster
        .namespaced()
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    let api = cluster.namespaced::<PodDisruptionBudget>();
    cluster
        .until("the budget counts", async || {
            let budget = api.get("b").await.unwrap();
            let generation = budget.status.and_then(|status| status.observed_generation);
            generation.is_some()
        })
        .await;
}

#[tokio::test(start_paused = true)]
pub(crate) async fn permanent_refusal_fails_the_job_with_the_reason() {
    let cluster = MigrationCluster::start(1).await;
    budget(&cluster).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let pods = cluster.pods().await;
    let uids = |pods: &[Pod]| {
        pods.iter()
            .map(|pod| pod.metadata.uid.clone())
            .collect::<Vec<_>>()
    };
    for (name, pod, mode) in [
        ("first", &pods[0], "ReservationFirst"),
        ("direct", &pods[1], "EvictDirectly"),
    ] {
        cluster
            .create_job(name, &name_of(pod), json!({"mode": mode}))
            .await;
        // The default time to live.
        let (phase, reason, message) = cluster.end_of(name).await;
        assert_eq!(
            (phase.as_str(), reason.as_str()),
            ("Failed", "Timeout"),
            "{message}"
        );
        assert!(message.contains("disruption budget"), "{message}");
        assert_eq!(uids(&cluster.pods().await), uids(&pods));
        // Nothing was reserved for a pod that could not be evicted.
        assert!(cluster.reservations().await.is_empty());
    }
    let (is_counted, metrics) = running.evicted("error");
    assert!(is_counted, "{metrics}");
    // The controller has metrics.
    for line in [
        r#"controller_runtime_max_concurrent_reconciles{controller="MigrationController"} "#,
        r#"controller_runtime_reconcile_panics_total{controller="MigrationController"} 0"#,
        r#"workqueue_adds_total{controller="MigrationController",name="MigrationController"} "#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
pub(crate) async fn webhook_denial_is_retried_until_the_timeout() {
    let cluster = MigrationCluster::start(1).await;
    cluster.log.denies.store(true, Ordering::SeqCst);
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let pods = cluster.pods().await;
    for (name, pod, mode) in [
        ("first", &pods[0], "ReservationFirst"),
        ("direct", &pods[1], "EvictDirectly"),
    ] {
        cluster
            .create_job(name, &name_of(pod), json!({"mode": mode, "ttl": "1m"}))
            .await;
        let (phase, reason, message) = cluster.end_of(name).await;
        assert_eq!(
            (phase.as_str(), reason.as_str()),
            ("Failed", "Timeout"),
            "{message}"
        );
        assert!(message.contains("not today"), "{message}");
        let pod = cluster
            .namespaced::<Pod>()
            .get(&name_of(pod))
            .await
            .unwrap();
        assert!(pod.metadata.deletion_timestamp.is_none());
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
pub(crate) async fn deleted_target_ends_its_job_and_frees_capacity() {
    let cluster = MigrationCluster::start(1).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let pods = cluster.pods().await;
    cluster.create_job("never", "missing", json!({})).await;
    let end = cluster.end_of("never").await;
    assert_eq!((end.0.as_str(), end.1.as_str()), ("Failed", "MissingPod"));
    // The reservation waits for a node.
    cluster.closed.store(true, Ordering::SeqCst);
    cluster
        .create_job("gone", &name_of(&pods[0]), json!({"ttl": "5m"}))
        .await;
    cluster
        .until("it is reserved", async || {
            !cluster.reservations().await.is_empty()
        })
        .await;
    cluster.delete_pod(&name_of(&pods[0])).await;
    cluster.closed.store(false, Ordering::SeqCst);
    let end = cluster.end_of("gone").await;
    assert_eq!((end.0.as_str(), end.1.as_str()), ("Failed", "MissingPod"));
    let spent = |one: &Reservation| {
        !one.status
            .clone()
            .unwrap_or_default()
            .current_owners
            .is_empty()
    };
    cluster
        .until("its room is free", async || {
            cluster.reservations().await.iter().all(spent)
        })
        .await;
    // A user deletes the reservation.
    cluster.closed.store(true, Ordering::SeqCst);
    cluster
        .create_job("bare", &name_of(&pods[1]), json!({"ttl": "5m"}))
        .await;
    let open_reservation = async || {
        let all = cluster.reservations().await;
        all.into_iter()
            .find(|reservation| !spent(reservation))
            .and_then(|reservation| reservation.metadata.name)
    };
    cluster
        .until("it is reserved", async || {
            open_reservation().await.is_some()
        })
        .await;
    let name = open_reservation().await.unwrap();
    let named = async || {
        let job = cluster.all::<PodMigrationJob>().get("bare").await.unwrap();
        job.spec
            .reservation_options
            .is_some_and(|options| options.reservation_ref.is_some())
    };
    cluster.until("the job knows it", named).await;
    cluster
        .all::<Reservation>()
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    let end = cluster.end_of("bare").await;
    assert_eq!(
        (end.0.as_str(), end.1.as_str()),
        ("Failed", "MissingReservation")
    );
    assert!(
        cluster
            .namespaced::<Pod>()
            .get_opt(&name_of(&pods[1]))
            .await
            .unwrap()
            .is_some()
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
pub(crate) async fn reservation_is_deleted_with_its_job() {
    let cluster = MigrationCluster::start(1).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    cluster.closed.store(true, Ordering::SeqCst);
    let pods = cluster.pods().await;
    for (name, pod) in [("deleted", &pods[0]), ("forgotten", &pods[1])] {
        let job = cluster.create_job(name, &name_of(pod), json!({})).await;
        let uid = job.metadata.uid.unwrap();
        let named = async || {
            let job = cluster.all::<PodMigrationJob>().get(name).await.unwrap();
            job.spec
                .reservation_options
                .is_some_and(|options| options.reservation_ref.is_some())
        };
        cluster.until("it is reserved", named).await;
        if name == "deleted" {
            cluster
                .all::<PodMigrationJob>()
                .delete(name, &DeleteParams::default())
                .await
                .unwrap();
        }
        // Without a time to live the job is swept after half an hour.
        let reservation_exists = async || {
            cluster
                .all::<Reservation>()
                .get_opt(&uid)
                .await
                .unwrap()
                .is_some()
        };
        cluster
            .until("its room is free", async || !reservation_exists().await)
            .await;
        cluster
            .until("it is gone", async || cluster.jobs().await.is_empty())
            .await;
    }
    let passed = cluster.clock.now().as_second()
        - "2026-01-01T00:00:00Z"
            .parse::<jiff::Timestamp>()
            .unwrap()
            .as_second();
    assert!(passed >= 1800, "{passed}");
    assert!(
        cluster
            .namespaced::<Pod>()
            .get_opt(&name_of(&pods[1]))
            .await
            .unwrap()
            .is_some()
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
pub(crate) async fn waiting_jobs_record_the_reason() {
    let cluster = MigrationCluster::start(1).await;
    cluster.closed.store(true, Ordering::SeqCst);
    let args =
        json!({"maxMigratingGlobally": 1, "objectLimiters": {"workload": {"duration": "0s"}}});
    let running = cluster.deschedule("one", &args, false, Fuse::endless());
    let pods = cluster.pods().await;
    for (at, pod) in pods.iter().take(3).enumerate() {
        cluster
            .create_job(&format!("j{at}"), &name_of(pod), json!({"ttl": "2m"}))
            .await;
    }
    let never = json!({"metadata": {"annotations": {"scheduling.koordinator.sh/eviction-cost": "2147483647"}}});
    patch::merge(&cluster.namespaced::<Pod>(), &name_of(&pods[3]), &never)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster
        .create_job("never", &name_of(&pods[3]), json!({}))
        .await;
    let (phase, reason, message) = cluster.end_of("never").await;
    assert_eq!(
        (phase.as_str(), reason.as_str()),
        ("Failed", "ForbiddenMigratePod")
    );
    assert!(message.contains("MaxEvictionCost"), "{message}");
    tokio::time::sleep(Duration::from_secs(30)).await;
    let begun = |job: &&PodMigrationJob| {
        koord_descheduler::migration::stage(job) == koord_descheduler::migration::JobStage::Begun
    };
    assert_eq!(cluster.jobs().await.iter().filter(begun).count(), 1);
    assert!(
        cluster
            .events()
            .await
            .iter()
            .any(|reason| reason == "WaitForArbitration")
    );
    let metrics = koord_app::metrics::encode(&running.metrics).unwrap();
    assert!(
        metrics.contains(r#"koord_descheduler_limited_total{rule="MaxMigratingGlobally"}"#),
        "{metrics}"
    );
    // Jobs that waited until their timeout report the reason.
    let mut waited = 0;
    for i in 0..3 {
        let (phase, reason, message) = cluster.end_of(&format!("j{i}")).await;
        assert_eq!((phase.as_str(), reason.as_str()), ("Failed", "Timeout"));
        waited += usize::from(message.contains("MaxMigratingGlobally"));
    }
    assert_eq!(waited, 2);
    running.stop().await;
}

/// Returns a CustomResourceDefinition of a kind with replicas.
fn definition(group: &str, version: &str, kind: &str, plural: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let scale =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let version = json!({
        "name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"scale": scale},
    });
    let names = json!({
        "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List"),
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [version], "names": names},
    })
}

#[tokio::test(start_paused = true)]
pub(crate) async fn pods_of_any_controller_move() {
    let cluster = MigrationCluster::start(0).await;
    let template = |restart: &str| {
        json!({"metadata": {"labels": {"app": "x"}}, "spec": {"schedulerName": "koord-scheduler",
            "restartPolicy": restart, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i"}]}})
    };
    let four = |extra: Value| {
        let mut spec = json!({"replicas": 4, "template": template("Always")});
        spec.as_object_mut()
            .unwrap()
            .extend(extra.as_object().cloned().unwrap_or_default());
        spec
    };
    let selector = json!({"serviceName": "s", "selector": {"matchLabels": {"app": "x"}}});
    let once = json!({"parallelism": 4, "completions": 4, "template": template("Never")});
    let built_in = [
        (
            "/api/v1",
            "ReplicationController",
            "replicationcontrollers",
            four(json!({"selector": {"app": "x"}})),
        ),
        (
            "/apis/apps/v1",
            "StatefulSet",
            "statefulsets",
            four(selector),
        ),
        ("/apis/batch/v1", "Job", "jobs", once),
    ];
    let custom = [
        ("apps.kruise.io", "v1alpha1", "CloneSet", "clonesets"),
        ("apps.kruise.io", "v1beta1", "StatefulSet", "statefulsets"),
        ("x.io", "v1", "Rollout", "rollouts"),
    ];
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    for (prefix, kind, plural, spec) in built_in {
        let path = format!("{prefix}/namespaces/default/{plural}");
        cluster
            .post(
                &path,
                &json!({"kind": kind, "metadata": {"name": "x"}, "spec": spec}),
            )
            .await;
        let all_exist = async || cluster.pods().await.len() == 4;
        cluster.until(kind, all_exist).await;
        moves(&cluster, kind).await;
        // It and its pods free capacity for the next one.
        let deleted = cluster.delete(&format!("{path}/x")).await;
        assert!(deleted, "{kind}");
        cluster
            .until(kind, async || cluster.pods().await.is_empty())
            .await;
    }
    for (group, version, kind, plural) in custom {
        let crd = definition(group, version, kind, plural);
        cluster.install(crd).await;
        let path = format!("/apis/{group}/{version}/namespaces/default/{plural}");
        let api_version = format!("{group}/{version}");
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": {"replicas": 4}});
        let uid = cluster.post(&path, &object).await;
        let owner = json!([{"apiVersion": api_version, "kind": kind, "name": "x", "uid": uid, "controller": true}]);
        let mut pod = template("Always");
        pod["metadata"] = json!({"name": format!("{plural}-0"), "ownerReferences": owner});
        cluster.post("/api/v1/namespaces/default/pods", &pod).await;
        moves(&cluster, &format!("{group}-{kind}")).await;
    }
    running.stop().await;
}

/// Checks that a user's job moves an existing pod.
async fn moves(cluster: &MigrationCluster, what: &str) {
    let is_ready = async || {
        let pods = cluster.pods().await;
        pods.iter().all(super::cluster::is_ready) && !pods.is_empty()
    };
    cluster.until(what, is_ready).await;
    let pods = cluster.pods().await;
    let name = what.to_lowercase();
    cluster
        .create_job(
            &name,
            &name_of(&pods[0]),
            json!({"mode": "EvictDirectly", "ttl": "2m"}),
        )
        .await;
    let end = cluster.end_of(&name).await;
    assert_eq!(end.0, "Succeeded", "{what}: {end:?}");
}

#[tokio::test(start_paused = true)]
pub(crate) async fn a_users_own_reservation_is_used() {
    let cluster = MigrationCluster::start(1).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let pods = cluster.pods().await;
    let owners = pods[0].metadata.owner_references.clone().unwrap();
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owners[0].name, "uid": owners[0].uid});
    let spec = json!({"owners": [{"controller": owner}], "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let reservation = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "mine"}, "spec": spec});
    cluster
        .post(
            "/apis/scheduling.koordinator.sh/v1alpha1/reservations",
            &reservation,
        )
        .await;
    let options = json!({"reservationOptions": {"reservationRef": {"name": "mine"}}, "ttl": "5m"});
    cluster.create_job("job", &name_of(&pods[0]), options).await;
    let end = cluster.end_of("job").await;
    assert_eq!(end.0, "Succeeded", "{end:?}");
    let used = cluster.reservations().await;
    assert_eq!(used.len(), 1, "{used:?}");
    let labels = used[0].metadata.labels.clone().unwrap_or_default();
    assert!(
        labels.contains_key("scheduling.koordinator.sh/reservation-order"),
        "{labels:?}"
    );
    running.stop().await;
}

/// A job whose move is recorded outlives others, but its reservation does not.
#[tokio::test(start_paused = true)]
pub(crate) async fn job_needed_by_next_leader_is_not_swept() {
    let cluster = MigrationCluster::start(1).await;
    let running = cluster.deschedule("one", &quick(), false, Fuse::endless());
    let pods = cluster.pods().await;
    let begun = cluster.clock.now();
    let ttl = json!({"ttl": "5m"});
    for (name, pod) in [("plain", &pods[0]), ("kept", &pods[1])] {
        cluster.create_job(name, &name_of(pod), ttl.clone()).await;
    }
    let memo = json!({"workload": "w", "node": "hot", "usage": {"cpu": "1"}}).to_string();
    let memo = json!({"metadata": {"annotations": {"descheduler.koordinator.sh/load-move": memo}}});
    let jobs = cluster.all::<PodMigrationJob>();
    koord_kube::patch::merge(&jobs, "kept", &memo)
        .await
        .unwrap();
    for name in ["plain", "kept"] {
        assert_eq!(cluster.end_of(name).await.0, "Succeeded");
    }
    let minutes = || cluster.clock.now().duration_since(begun).as_mins();
    let names = async || -> Vec<_> {
        let jobs = cluster.jobs().await.into_iter();
        jobs.filter_map(|job| job.metadata.name).collect()
    };
    let is_gone = async || names().await == ["kept"] && cluster.reservations().await.is_empty();
    cluster.until("the plain one is gone", is_gone).await;
    assert!((10..=12).contains(&minutes()), "{}", minutes());
    running.stop().await;
}
