//! Leaders that die during migrations: with a write in flight that is lost, is done without a response, or
//! arrives late, after the next leader has done the same.
//!
//! `KOORD_MIGRATION_DEATHS` is the number of deaths, 12 by default.

use super::cluster::{MigrationCluster, node_of};
use super::wire::{Fuse, Last};
use axum::http::StatusCode;
use koord_api::scheduling::PodMigrationJob;
use koord_descheduler::migration::{JobStage, stage};
use koord_kube::{Change, Informer, Scope};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio_util::sync::CancellationToken;

const GLOBALLY: usize = 3;
const PER_NODE: usize = 2;

fn args() -> Value {
    json!({"objectLimiters": {"workload": {"duration": "0s"}}, "evictQPS": 100, "evictBurst": 10,
        "maxMigratingGlobally": GLOBALLY, "maxMigratingPerNode": PER_NODE, "maxConcurrentReconciles": 2,
        "maxMigratingPerWorkload": 1})
}

/// Checks every state of the jobs against limits as it arrives.
struct Watch {
    problems: Arc<Mutex<Vec<String>>>,
    most: Arc<Mutex<usize>>,
    _stop: tokio_util::sync::DropGuard,
}

impl Watch {
    fn start(cluster: &MigrationCluster) -> Self {
        let stop = CancellationToken::new();
        let mut changes = Informer::<PodMigrationJob>::start(
            cluster.client.clone(),
            Scope::default(),
            stop.clone(),
        )
        .changes;
        let (problems, most) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
        let (recorded, reached) = (problems.clone(), most.clone());
        tokio::spawn(async move {
            let mut jobs = BTreeMap::new();
            while let Some(change) = changes.recv().await {
                match change {
                    Change::Applied { new, .. } => {
                        jobs.insert(new.metadata.name.clone(), new);
                    }
                    Change::Deleted(job) => {
                        jobs.remove(&job.metadata.name);
                    }
                    Change::Synced => {}
                }
                let live = |job: &&Arc<PodMigrationJob>| stage(job) != JobStage::Ended;
                let begun = jobs
                    .values()
                    .filter(|job| stage(job) == JobStage::Begun)
                    .count();
                // All moving pods are on one node.
                if begun > PER_NODE.min(GLOBALLY) {
                    recorded.lock().push(format!("{begun} jobs have begun"));
                }
                let mut reached = reached.lock();
                *reached = (*reached).max(begun);
                let mut pods = BTreeSet::new();
                for job in jobs.values().filter(live) {
                    if !pods.insert(job.spec.pod_ref.uid.clone()) {
                        recorded
                            .lock()
                            .push(format!("{:?} has two jobs", job.spec.pod_ref.name));
                    }
                }
            }
        });
        Self {
            problems,
            most,
            _stop: stop.drop_guard(),
        }
    }
}

/// A death of a leader.
struct Death {
    writes: usize,
    last: String,
    /// Late writes that arrived, and their responses.
    came: Vec<(String, StatusCode)>,
}

/// Runs a migration in which the first leader dies with its `at`th write.
async fn run(at: usize, end: Last) -> Death {
    let context = format!("dead at write {at}, {end:?}");
    let cluster = MigrationCluster::start(2).await;
    let before: BTreeSet<_> = cluster
        .pods_on("hot")
        .await
        .iter()
        .map(|pod| pod.metadata.uid.clone())
        .collect();
    assert_eq!(before.len(), 8);
    let watch = Watch::start(&cluster);
    let fuse = Fuse::new(at, end);
    let first = cluster.deschedule("one", &args(), true, fuse.clone());
    cluster.leader("one").await;
    let second = cluster.deschedule("two", &args(), true, Fuse::endless());
    let finished = async || {
        let jobs = cluster.jobs().await;
        cluster.pods_on("hot").await.is_empty()
            && jobs.iter().all(|job| stage(job) == JobStage::Ended)
    };
    tokio::select! {
        () = fuse.blown() => {}
        () = cluster.until(&context, finished) => {}
    }
    let mut death = Death {
        writes: fuse.used(),
        last: fuse.last(),
        came: Vec::new(),
    };
    if at < usize::MAX {
        // The leader died where it was meant to, before the end.
        assert_eq!(death.writes, at, "{context}");
        assert!(
            !death.last.is_empty() && !finished().await,
            "{context}: {}",
            death.last
        );
    }
    first.kill(&fuse).await;
    cluster.leader("two").await;
    cluster.until(&context, finished).await;
    let context = format!("{context} ({})", death.last);
    // No job is lost or duplicated: each pod has moved once.
    let jobs = cluster.jobs().await;
    let moved: BTreeSet<_> = jobs
        .iter()
        .map(|job| job.spec.pod_ref.uid.clone())
        .collect();
    let ends: Vec<_> = jobs
        .iter()
        .map(|job| job.status.clone().unwrap_or_default())
        .map(|status| (status.phase.map(|phase| phase.to_string()), status.message))
        .collect();
    assert!(
        ends.iter().all(|end| end.0.as_deref() == Some("Succeeded")),
        "{context}: {ends:?}"
    );
    assert_eq!((jobs.len(), &moved), (8, &before), "{context}");
    let pods = cluster.pods().await;
    assert_eq!(pods.len(), 8, "{context}");
    assert!(
        pods.iter().all(|pod| !before.contains(&pod.metadata.uid)),
        "{context}"
    );
    assert!(
        pods.iter()
            .all(|pod| node_of(pod).as_deref() != Some("hot")),
        "{context}"
    );
    // Every reservation was used or is gone.
    for item in cluster.reservations().await {
        let owners = item.status.clone().unwrap_or_default().current_owners;
        assert_eq!(owners.len(), 1, "{context}: {:?}", item.metadata.name);
    }
    let evictions = cluster.log.evictions.lock().clone();
    let real: Vec<_> = evictions.iter().filter(|item| !item.dry).collect();
    assert!(real.iter().all(|item| item.reserved), "{context}: {real:?}");
    let names: BTreeSet<_> = real.iter().map(|item| &item.pod).collect();
    assert_eq!((real.len(), names.len()), (8, 8), "{context}: {real:?}");
    let problems = watch.problems.lock().clone();
    assert!(problems.is_empty(), "{context}: {problems:?}");
    assert_eq!(
        *watch.most.lock(),
        PER_NODE,
        "{context}: the limit was reached"
    );
    second.stop().await;
    // A late write is done already. A dry run of an eviction is always possible.
    death.came.clone_from(&cluster.log.came.lock());
    assert_eq!(
        death.came.len(),
        usize::from(end == Last::Late),
        "{context}"
    );
    let refused = |(about, said): &(String, StatusCode)| {
        said.is_client_error() || about.contains("/eviction")
    };
    assert!(
        death.came.iter().all(refused),
        "{context}: {:?}",
        death.came
    );
    death
}

/// The new leader may not have seen the last writes of the previous one.
#[tokio::test(start_paused = true)]
async fn new_leader_lists_jobs_before_its_first_cycle() {
    let cluster = MigrationCluster::start(1).await;
    let first = cluster.deschedule("one", &args(), false, Fuse::endless());
    cluster.leader("one").await;
    let fuse = Fuse::endless();
    let second = cluster.deschedule("two", &args(), true, fuse.clone());
    cluster
        .until("its view is complete", async || fuse.lists() > 0)
        .await;
    fuse.hides.store(true, Ordering::SeqCst);
    let before = fuse.lists();
    first.stop().await;
    cluster.leader("two").await;
    cluster
        .until("it asks again and again", async || {
            fuse.lists() >= before + 10
        })
        .await;
    assert!(second.last.readiness().is_err());
    assert!(second.last.get().is_none() && cluster.jobs().await.is_empty());
    fuse.hides.store(false, Ordering::SeqCst);
    cluster
        .until("a cycle", async || second.last.get().is_some())
        .await;
    assert!(second.last.readiness().is_ok() && !cluster.jobs().await.is_empty());
    second.stop().await;
}

/// Returns method, resource and subresource of a write, which begins with its method and path.
fn kind(write: &str) -> String {
    let mut path_parts = write.split(' ');
    let (method, path) = path_parts.next().zip(path_parts.next()).unwrap();
    let mut kinds = ["podmigrationjobs", "reservations", "pods"].into_iter();
    let kind = kinds.rfind(|kind| path.contains(kind)).unwrap_or("?");
    let mut parts = ["status", "eviction"].into_iter();
    let part = parts.find(|part| path.ends_with(part)).unwrap_or_default();
    format!("{method} {kind} {part}").trim_end().to_owned()
}

#[tokio::test(start_paused = true)]
async fn migrations_outlive_their_leaders() {
    let deaths = std::env::var("KOORD_MIGRATION_DEATHS");
    let deaths: usize = deaths.map_or(12, |text| text.parse().expect("a number"));
    let writes = run(usize::MAX, Last::Arrives).await.writes;
    assert!(writes >= 60, "{writes} writes");
    let mut fell = BTreeMap::<String, usize>::new();
    let mut results = BTreeMap::<String, usize>::new();
    for number in 0..deaths {
        // Deaths are spread over the run, except for the last few writes, after which nothing is left to do.
        let write_index = 1 + number * (writes - 12) / deaths.max(1);
        let end = [Last::Late, Last::Arrives, Last::Vanishes][number % 3];
        let death = run(write_index, end).await;
        *fell.entry(kind(&death.last)).or_default() += 1;
        for (about, answer) in death.came {
            let answer = format!("{}: {answer}", kind(&about));
            *results.entry(answer).or_default() += 1;
        }
    }
    println!("{deaths} deaths in runs of {writes} writes: {fell:?}; late: {results:?}");
    assert!(fell.len() >= 3, "{fell:?}");
}
