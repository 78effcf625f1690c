//! The rate at which pods of a workload are evicted, by different jobs and leaders.

use super::cluster::{MigrationCluster, name_of};
use super::wire::Fuse;
use koord_api::scheduling::PodMigrationJob;
use koord_descheduler::migration::{JobStage, stage};
use serde_json::{Value, json};

/// Returns arguments that allow to evict one of four replicas in five minutes.
fn args() -> Value {
    json!({"maxMigratingPerWorkload": 1, "evictQPS": 100, "evictBurst": 10})
}

/// Waits until `count` pods were evicted; returns the second of the last eviction.
async fn evicted(cluster: &MigrationCluster, count: usize) -> i64 {
    let context = format!("{count} evictions");
    let is_reached = async || {
        let evictions = cluster.log.evictions.lock();
        evictions.iter().filter(|eviction| !eviction.dry).count() >= count
    };
    cluster.until(&context, is_reached).await;
    cluster.clock.now().as_second()
}

/// The next leader waits as long as the last one would have, whether the last one recorded the eviction or
/// not.
#[tokio::test(start_paused = true)]
async fn leader_change_does_not_hasten_evictions() {
    for is_done in [false, true] {
        let cluster = MigrationCluster::start(1).await;
        let fuse = Fuse::endless();
        let first = cluster.deschedule("one", &args(), true, fuse.clone());
        let then = evicted(&cluster, 1).await;
        if is_done {
            let ended = async || {
                let jobs = cluster.jobs().await;
                jobs.iter().all(|job| stage(job) == JobStage::Ended)
            };
            cluster.until("the job ends", ended).await;
        }
        first.kill(&fuse).await;
        let second = cluster.deschedule("two", &args(), true, Fuse::endless());
        let passed = evicted(&cluster, 2).await - then;
        assert!(passed >= 299, "{is_done}: after {passed} s");
        second.stop().await;
    }
}

/// A user's job without a reservation has no record of the workload by itself.
#[tokio::test(start_paused = true)]
async fn user_jobs_count_for_the_next_leader() {
    let cluster = MigrationCluster::start(1).await;
    let fuse = Fuse::endless();
    let first = cluster.deschedule("one", &args(), false, fuse.clone());
    let pods = cluster.pods().await;
    let spec = json!({"mode": "EvictDirectly", "podRef": {"namespace": "default",
        "name": name_of(&pods[0]), "uid": pods[0].metadata.uid}});
    cluster.create_job("first", &name_of(&pods[0]), spec).await;
    assert_eq!(cluster.end_of("first").await.0, "Succeeded");
    let then = cluster.clock.now().as_second();
    first.kill(&fuse).await;
    let second = cluster.deschedule("two", &args(), false, Fuse::endless());
    let spec = json!({"mode": "EvictDirectly", "ttl": "20m"});
    cluster.create_job("second", &name_of(&pods[1]), spec).await;
    assert_eq!(cluster.end_of("second").await.0, "Succeeded");
    let passed = cluster.clock.now().as_second() - then;
    assert!(passed >= 299, "{passed}");
    second.stop().await;
}

/// Two pods that may migrate at the same time are still not evicted at the same time.
#[tokio::test(start_paused = true)]
async fn jobs_that_run_side_by_side_evict_one_after_the_other() {
    let cluster = MigrationCluster::start(1).await;
    let args = json!({"maxMigratingPerWorkload": 2, "maxUnavailablePerWorkload": 2, "maxConcurrentReconciles": 2, "evictQPS": 100, "evictBurst": 10});
    let running = cluster.deschedule("one", &args, false, Fuse::endless());
    let pods = cluster.pods().await;
    for (at, pod) in pods.iter().take(2).enumerate() {
        let spec = json!({"mode": "EvictDirectly"});
        cluster
            .create_job(&format!("j{at}"), &name_of(pod), spec)
            .await;
    }
    let first = evicted(&cluster, 1).await;
    let second = evicted(&cluster, 2).await;
    assert!(second - first >= 149, "{}", second - first);
    let ended = async || {
        let jobs: Vec<PodMigrationJob> = cluster.jobs().await;
        jobs.iter().all(|job| stage(job) == JobStage::Ended)
    };
    cluster.until("both end", ended).await;
    running.stop().await;
}
