//! PodMigrationJobs in the simulated cluster: arbitration, the limits of the migration controller, one
//! eviction each, and the end. A job's reservation is a query to the scheduler right before the eviction:
//! without a target the job waits, with one the pod is moved at once.

use super::cluster::{EvictionCounts, SimulatedCluster};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase as Phase};
use koord_descheduler::framework::{Intent, Placement as _, Plan};
use koord_descheduler::migration::arbitrate::{Verdict, arbitrate};
use koord_descheduler::migration::filter::Rules;
use koord_descheduler::migration::{JobStage, Migrations, PASSED, stage};
use koord_placement::Targets;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Time for which a job that has ended is kept, like the controller's sweeper does.
const KEPT: SignedDuration = SignedDuration::from_mins(30);
/// Pause between evictions for the configuration's `evictQPS`: evictions of one minute are spread over it.
const PAUSE: SignedDuration = SignedDuration::from_millis(100);
const PER_MINUTE: i32 = 600;

/// PodMigrationJobs of the simulated cluster, with counts.
#[derive(Debug)]
pub(super) struct Jobs {
    migrations: Arc<Migrations>,
    all: BTreeMap<String, Arc<PodMigrationJob>>,
    /// Evicted pods, by the name of their job.
    gone: BTreeMap<String, usize>,
    pub(super) made: u64,
    pub(super) failed: u64,
}

impl Jobs {
    pub(super) fn new(migrations: Arc<Migrations>) -> Self {
        Self {
            migrations,
            all: BTreeMap::new(),
            gone: BTreeMap::new(),
            made: 0,
            failed: 0,
        }
    }

    /// Returns all jobs, ordered by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<PodMigrationJob>> {
        self.all.values()
    }

    /// Creates the jobs of `plan`.
    pub(super) fn create(&mut self, plan: &Plan, now: Timestamp) {
        for planned in plan.moves() {
            let Some(Intent::Job(job)) = &planned.intent else {
                continue;
            };
            let name = job.metadata.name.clone().unwrap_or_default();
            let mut job = PodMigrationJob::clone(job);
            self.made += 1;
            job.metadata.uid = Some(format!("{name}-{}", self.made));
            job.metadata.creation_timestamp = Some(Time(now));
            self.all.insert(name, Arc::new(job));
        }
    }

    /// Processes the jobs for a minute.
    pub(super) fn process(&mut self, cluster: &mut SimulatedCluster) -> EvictionCounts {
        let now = cluster.now;
        let mut out = EvictionCounts::default();
        let snapshot = cluster.snapshot(Some(self));
        let rules = Rules::new(self.migrations.args.clone(), &snapshot.priority_classes);
        for (job, verdict) in arbitrate(&snapshot, |_| &rules) {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            match verdict {
                Verdict::Pass => self.update_job(name, |job| {
                    let annotations = job.metadata.annotations.get_or_insert_default();
                    annotations.insert(PASSED.to_owned(), "true".to_owned());
                }),
                Verdict::Wait(_) => {}
                Verdict::Missing | Verdict::Fail(_) => self.end_job(name, Phase::Failed),
            }
        }
        let begun = self.all.iter().filter(|(name, job)| {
            stage(job) == JobStage::Begun && !self.gone.contains_key(name.as_str())
        });
        let begun: Vec<_> = begun
            .map(|(name, job)| (name.clone(), job.spec.pod_ref.uid.clone()))
            .collect();
        let mut turns = 0;
        let mut targets = Targets::new(cluster.follower.clone());
        for (name, uid) in begun {
            let slot = uid.and_then(|uid| cluster.slot(&uid));
            let Some((slot, pod)) =
                slot.and_then(|slot| Some((slot, cluster.pod_info(slot)?.clone())))
            else {
                self.end_job(&name, Phase::Failed);
                continue;
            };
            let at = now.saturating_add(PAUSE * turns).unwrap_or(now);
            if turns >= PER_MINUTE {
                break;
            }
            let workload = pod.controller();
            let workload = workload.and_then(|owner| snapshot.workloads.get(&owner.uid));
            let migrations = &self.migrations;
            if migrations.claim(workload, &pod, false, at).is_err() {
                continue;
            }
            targets.begin(&snapshot);
            let target = targets.place_tentatively(&snapshot, &pod);
            targets.end();
            if target.is_err() {
                migrations.return_tokens(&pod);
                continue;
            }
            if !migrations.take(at) {
                migrations.return_tokens(&pod);
                break;
            }
            turns += 1;
            let before = out.moves;
            cluster.evict_one(slot, &mut out);
            if out.moves == before {
                self.migrations.return_tokens(&pod);
            } else {
                self.update_job(&name, |job| {
                    job.status.get_or_insert_default().phase = Some(Phase::Running);
                });
                self.gone.insert(name, slot);
            }
        }
        self.end_finished_jobs(cluster);
        out
    }

    /// Ends jobs that are done or timed out, and deletes old ended jobs.
    fn end_finished_jobs(&mut self, cluster: &SimulatedCluster) {
        let now = cluster.now;
        let age = |job: &PodMigrationJob| {
            let created = job.metadata.creation_timestamp.as_ref();
            created.map_or(SignedDuration::ZERO, |at| now.duration_since(at.0))
        };
        let placed = self
            .gone
            .iter()
            .filter(|(_, slot)| cluster.is_placed(**slot));
        let placed: Vec<_> = placed.map(|(name, _)| name.clone()).collect();
        for name in placed {
            self.gone.remove(&name);
            self.end_job(&name, Phase::Succeeded);
        }
        let ttl = self.migrations.args.default_job_ttl.as_nanos();
        let ttl = SignedDuration::from_nanos(ttl);
        let late = self
            .all
            .iter()
            .filter(|(_, job)| stage(job) != JobStage::Ended && age(job) > ttl);
        let late: Vec<_> = late.map(|(name, _)| name.clone()).collect();
        for name in late {
            self.gone.remove(&name);
            self.end_job(&name, Phase::Failed);
        }
        self.all
            .retain(|_, job| stage(job) != JobStage::Ended || age(job) <= KEPT);
    }

    /// Sets the phase of an ended job.
    fn end_job(&mut self, name: &str, phase: Phase) {
        if phase == Phase::Failed {
            self.failed += 1;
        }
        self.update_job(name, |job| {
            job.status.get_or_insert_default().phase = Some(phase);
        });
    }

    fn update_job(&mut self, name: &str, change: impl FnOnce(&mut PodMigrationJob)) {
        if let Some(job) = self.all.get_mut(name) {
            change(Arc::make_mut(job));
        }
    }
}
