//! Controller of PodMigrationJobs, active while this replica leads.
//!
//! Required rights:
//!
//! | group | resource | verbs |
//! |---|---|---|
//! | scheduling.koordinator.sh | podmigrationjobs | get, list, watch, create, update, delete |
//! | scheduling.koordinator.sh | podmigrationjobs/status | update |
//! | scheduling.koordinator.sh | reservations | get, list, watch, create, patch, delete |
//! | (core) | pods | get, list, watch, patch (`SoftEviction`), delete (`Delete`) |
//! | (core) | pods/eviction | create |
//! | (core) | events | create, patch |
//! | (core) | replicationcontrollers | list, watch |
//! | apps | deployments, replicasets, statefulsets | list, watch |
//! | batch | jobs | list, watch |
//! | apps.kruise.io | clonesets, statefulsets | list, watch |
//! | scheduling.k8s.io | priorityclasses | list, watch |
//! | any | the `scale` of every other kind that controls pods | get |
//!
//! A kind of workload is watched once a pod has a controller of that kind. Without the right to watch it, its pods
//! stay, and the reason is reported.

mod actions;
mod arbiter;

use super::job_queue::{JobQueue, Task};
use super::view::ClusterView;
use crate::migration::args::MigrationControllerArgs;
use crate::migration::limits::{self, Group};
use crate::migration::step::{self, Requeue, Settings, step};
use crate::migration::{
    CREATED_BY, JobStage, Migrations, PROFILE, annotation, evict, reservation, stage,
};
use crate::move_history::retained_until;
use crate::plugins::migration_controller::NAME;
use crate::state::PodInfo;
use futures::future;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use koord_api::duration::GoDuration;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase, Reservation};
use koord_app::Clock;
use koord_kube::api::{DeleteParams, ListParams};
use koord_kube::controller::{self, Action, ControllerMetrics};
use koord_kube::events::Recorder;
use koord_kube::patch::{is_conflict, is_not_found};
use koord_kube::{Api, Client, Error, Readable};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Most steps of one job in one reconciliation.
const STEPS: usize = 32;
/// First and longest backoff of a failing job; it doubles with each failure.
const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];
/// Interval between two sweeps.
const SWEEP: Duration = Duration::from_secs(60);
/// Age at which a job without a time to live is swept, and the time after its time to live for a job with
/// one.
const SWEEP_AFTER: [Duration; 2] = [Duration::from_secs(30 * 60), Duration::from_secs(5 * 60)];

/// Metrics of the controller of PodMigrationJobs.
#[derive(Debug, Clone)]
pub(super) struct JobMetrics {
    /// Number of pods evicted or not: `descheduler_pods_evicted`.
    pub(super) evicted: IntCounterVec,
    /// Number of jobs by phase.
    pub(super) phases: IntGaugeVec,
    /// Number of times that a rule delayed a job, by rule.
    pub(super) limited: IntCounterVec,
    /// Metrics of the work queue and the workers.
    pub(super) controllers: ControllerMetrics,
}

/// Controller of PodMigrationJobs.
pub(super) struct JobController {
    client: Client,
    view: Arc<ClusterView>,
    job_queue: Arc<JobQueue>,
    migrations: Vec<Arc<Migrations>>,
    without_claims: bool,
    events: Recorder,
    clock: Clock,
    counts: JobMetrics,
    /// Error or waiting reason by job name.
    errors: Mutex<FxHashMap<String, String>>,
    /// Reported version of each job that cannot be decoded, by name.
    unread: Mutex<FxHashMap<String, String>>,
}

impl JobController {
    pub(super) fn new(
        client: Client,
        view: Arc<ClusterView>,
        migrations: Vec<Arc<Migrations>>,
        without_claims: bool,
        (events, clock, counts): (Recorder, Clock, JobMetrics),
    ) -> Self {
        Self {
            client,
            view,
            job_queue: Arc::new(JobQueue::new(BACKOFF)),
            migrations,
            without_claims,
            events,
            clock,
            counts,
            errors: Mutex::default(),
            unread: Mutex::default(),
        }
    }

    fn jobs(&self) -> Api<PodMigrationJob> {
        Api::all(self.client.clone())
    }

    fn reservations(&self) -> Api<Reservation> {
        Api::all(self.client.clone())
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Lists the jobs, to see writes of the previous leader that the informer has not delivered yet.
    pub(super) async fn catch_up(&self) {
        if self.migrations.is_empty() {
            return;
        }
        while let Err(error) = self.refresh().await {
            tracing::warn!(%error, "failed to list PodMigrationJobs, retrying");
            tokio::time::sleep(BACKOFF[0]).await;
        }
        self.record_past_evictions().await;
    }

    /// Counts evictions by earlier leaders against the rate limits.
    async fn record_past_evictions(&self) {
        let now = self.clock.now();
        let mut went = Vec::new();
        for job in self.view.jobs.all() {
            let Some(migrations) = self.migrations_for(&job) else {
                continue;
            };
            if !step::has_begun_to_evict(&job) || !counts(&job, &migrations.args, now) {
                continue;
            }
            // No request is needed if the job records the time.
            let recorded = evict::evicted_at(&job, true, now);
            let time = match recorded {
                None if !self.still_exists(&job).await => evict::evicted_at(&job, false, now),
                recorded => recorded,
            };
            if let Some(time) = time {
                went.push((time, Group::from_job(&job), migrations));
            }
        }
        went.sort_by_key(|(time, ..)| *time);
        let controllers = went
            .iter()
            .filter_map(|(_, group, _)| group.controller.clone());
        let workloads = self.view.workloads(&controllers.collect()).await;
        for (time, group, migrations) in went {
            let workload = group.controller.as_ref().and_then(|uid| workloads.get(uid));
            migrations.record_eviction(&group, workload, time);
        }
    }

    /// Returns true if the pod of `job` still exists as before the eviction, as far as can be determined.
    async fn still_exists(&self, job: &PodMigrationJob) -> bool {
        let Ok(pod) = self.pod(Some(&job.spec.pod_ref)).await else {
            return false;
        };
        pod.is_some_and(|pod| {
            pod.metadata.uid == job.spec.pod_ref.uid
                && pod.metadata.deletion_timestamp.is_none()
                && !step::is_eviction_requested(&pod)
        })
    }

    /// Processes jobs until the future is dropped, once [`Self::catch_up`] has completed.
    pub(super) async fn run(&self) {
        if self.migrations.is_empty() {
            return future::pending().await;
        }
        self.view.queue_handle.attach(Some(self.job_queue.clone()));
        for job in self.view.jobs.all() {
            self.job_queue.job_changed(&job);
        }
        let workers = self.migrations.iter();
        let workers = workers
            .map(|migrations| migrations.args.max_concurrent_reconciles)
            .max();
        let workers = workers.and_then(|workers| usize::try_from(workers).ok());
        let controller = controller::Controller::new(
            NAME,
            self.job_queue.queue.clone(),
            workers.unwrap_or(1),
            &self.counts.controllers,
            koord_kube::log_reconcile_failures!(),
            |task| self.reconcile(task),
        );
        let work = Box::pin(controller.run());
        let ((), (), ()) = tokio::join!(work, Box::pin(self.arbitrate()), self.sweep());
    }

    /// Lists all jobs from the API server. Jobs that cannot be decoded are reported elsewhere.
    async fn refresh(&self) -> Result<(), Error> {
        let jobs = Api::<Readable<PodMigrationJob>>::all(self.client.clone());
        let jobs = match jobs.list(&ListParams::default()).await {
            Ok(list) => list.items,
            // No such kind.
            Err(error) if is_not_found(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        for job in jobs.iter().filter_map(|job| job.0.as_ref().ok()) {
            self.view.jobs.write_cache().update(job);
        }
        Ok(())
    }

    /// Returns the [`Migrations`] of the profile or process that created `job`, or else the first.
    fn migrations_for(&self, job: &PodMigrationJob) -> Option<&Arc<Migrations>> {
        let profile = annotation(job, PROFILE);
        let process = annotation(job, CREATED_BY);
        let mut all = self.migrations.iter();
        let by_profile = all
            .clone()
            .find(|candidate| Some(candidate.profile.as_str()) == profile);
        let by_process = all
            .clone()
            .find(|candidate| Some(candidate.process.as_str()) == process);
        by_profile.or(by_process).or_else(|| all.next())
    }

    /// Advances a job, or deletes the reservation of a deleted one.
    async fn reconcile(&self, task: Task) -> Result<Action, String> {
        match task {
            Task::Job(name) => {
                let result = Box::pin(self.job(&name)).await;
                match &result {
                    Ok(Action::Done) => drop(self.errors.lock().remove(&name)),
                    Ok(Action::RequeueAfter(_)) => {}
                    Err(text) => drop(self.errors.lock().insert(name, text.clone())),
                }
                result
            }
            Task::Orphan(name, uid) => match self.unreserve(&name, uid).await {
                Ok(()) => Ok(Action::Done),
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!(
                        reservation = name,
                        error,
                        "failed to delete reservation, retrying"
                    );
                    Ok(Action::RequeueAfter(BACKOFF[1]))
                }
            },
        }
    }

    /// Clears the last error of a job and its backoff.
    fn clear_error(&self, name: &str) {
        self.errors.lock().remove(name);
        self.job_queue.queue.forget(&Task::Job(name.to_owned()));
    }

    fn last_error(&self, name: &str) -> Option<String> {
        let errors = self.errors.lock();
        errors.get(name).filter(|text| !text.is_empty()).cloned()
    }

    /// Advances a job as far as possible.
    async fn job(&self, name: &str) -> Result<Action, String> {
        // A job that has ended for good needs no request.
        if let Some(cached) = self.view.jobs.get(name)
            && stage(&cached) == JobStage::Ended
            && !self.may_hold_reservation(&cached)
        {
            return Ok(Action::Done);
        }
        for _ in 0..STEPS {
            let job = match self.jobs().get_opt(name).await {
                Ok(Some(job)) => job,
                Ok(None) => return Ok(Action::Done),
                Err(error) => return Err(error.to_string()),
            };
            self.view.jobs.write_cache().update(&job);
            if let Some(action) = Box::pin(self.step(&job)).await? {
                return Ok(action);
            }
        }
        Err(format!("{STEPS} steps did not bring it on"))
    }

    /// Returns true if `job` has failed and its reservation still exists.
    fn may_hold_reservation(&self, job: &PodMigrationJob) -> bool {
        let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
        phase == Some(&PodMigrationJobPhase::Failed)
            && self.view.reservation(&reservation::name(job)).is_some()
    }

    /// Does one step of the job. Returns `None` if the next step can follow immediately.
    async fn step(&self, job: &PodMigrationJob) -> Result<Option<Action>, String> {
        let Some(migrations) = self.migrations_for(job).cloned() else {
            return Ok(Some(Action::Done));
        };
        let to_text = |error: Error| error.to_string();
        let ended = stage(job) == JobStage::Ended;
        let pod = match ended {
            true => None,
            false => self.pod(Some(&job.spec.pod_ref)).await.map_err(to_text)?,
        };
        let is_waiting = stage(job) == JobStage::Waiting;
        let settings = self.settings(&migrations.args);
        let is_due =
            step::deadline(job, settings.ttl).is_some_and(|deadline| self.clock.now() >= deadline);
        let reservation = match is_waiting || (ended && !self.may_hold_reservation(job)) {
            true => None,
            false => match self.reservation(job).await {
                Ok(reservation) => reservation,
                // The job ends with or without its reservation.
                Err(reason) if is_due => {
                    tracing::warn!(
                        job = job.metadata.name,
                        error = reason,
                        "failed to read the reservation of a timed-out job, ending the job"
                    );
                    None
                }
                Err(reason) => return Err(reason),
            },
        };
        let bound_pod = step::bound(job, reservation.as_ref());
        let bound_pod = self.pod(bound_pod).await.map_err(to_text)?;
        let now = self.clock.now();
        let info = pod
            .clone()
            .and_then(|pod| PodInfo::new(pod, self.view.shapes()).ok());
        let has_annotation = annotation(job, crate::rules::EVICT).is_some();
        // The limits already count a job whose eviction has begun, so they must not stop it.
        let is_exempt = has_annotation || ended || step::has_begun_to_evict(job);
        let limited = info.as_ref().filter(|_| !is_exempt);
        let limited = limited.and_then(|pod| migrations.allows(pod, now).err());
        let name = job.metadata.name.as_deref().unwrap_or_default();
        if let Some(reason) = &limited {
            self.counts.limited.with_label_values(&[reason.rule]).inc();
        }
        let problem = limited.as_ref().map(ToString::to_string);
        let problem = problem.or_else(|| self.last_error(name));
        let next = step(&step::JobView {
            now,
            job,
            pod: pod.as_ref(),
            reservation: reservation.as_ref(),
            bound: bound_pod.as_ref(),
            limited: limited.as_ref(),
            problem: problem.as_deref(),
            settings: &settings,
        });
        if let Some(act) = next.act {
            let ctx = actions::JobContext {
                job,
                pod: info.as_ref(),
                reservation: reservation.as_ref(),
                migrations: &migrations,
                settings: &settings,
            };
            match self.act(act, &ctx).await {
                // The job made progress, so its last error is obsolete.
                actions::WriteOutcome::Written => self.clear_error(name),
                actions::WriteOutcome::Conflict => return Ok(None),
                actions::WriteOutcome::Delayed(delay) => {
                    return Ok(Some(Action::RequeueAfter(delay)));
                }
                actions::WriteOutcome::Failed(reason) => return Err(reason),
            }
        }
        if let Some(event) = next.event {
            self.record_event(job, event.warning, event.reason, event.message);
        }
        Ok(match next.next {
            Requeue::Now => None,
            Requeue::Wait(delay) => Some(Action::RequeueAfter(delay)),
            Requeue::Done => Some(Action::Done),
        })
    }

    fn settings(&self, args: &MigrationControllerArgs) -> Settings {
        Settings::new(args, self.without_claims)
    }

    async fn pod(&self, named: Option<&ObjectReference>) -> Result<Option<Pod>, Error> {
        let names = named.and_then(|named| named.namespace.as_deref().zip(named.name.as_deref()));
        match names {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                self.pods(namespace).get_opt(name).await
            }
            _ => Ok(None),
        }
    }

    async fn reservation(&self, job: &PodMigrationJob) -> Result<Option<Reservation>, String> {
        let name = reservation::name(job);
        if name.is_empty() {
            return Ok(None);
        }
        let all = Api::<Readable<Reservation>>::all(self.client.clone());
        let found_reservation = all.get_opt(&name).await;
        let found_reservation = found_reservation.map_err(|error| error.to_string())?;
        let found_reservation = found_reservation.map(|read| read.0).transpose();
        found_reservation.map_err(|unread| format!("Reservation {name} cannot be read: {unread}"))
    }

    /// Deletes the reservation of a deleted job.
    async fn unreserve(&self, name: &str, uid: Option<String>) -> Result<(), Error> {
        let params = only(uid);
        match self.reservations().delete(name, &params).await {
            Ok(_) => Ok(()),
            // Another reservation of this name must not be deleted.
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn sweep(&self) {
        loop {
            if let Err(error) = self.sweep_once().await {
                tracing::warn!(%error, "failed to sweep old PodMigrationJobs, retrying");
            }
            tokio::time::sleep(SWEEP).await;
        }
    }

    /// Deletes old jobs in any phase, and their reservations. A job that the next leader needs stays, but its
    /// reservation is deleted.
    async fn sweep_once(&self) -> Result<(), Error> {
        let now = self.clock.now();
        for job in self.view.jobs.all() {
            let after = |ttl: GoDuration| {
                let ttl = ttl.to_std().filter(|ttl| !ttl.is_zero());
                ttl.map(|ttl| ttl.saturating_add(SWEEP_AFTER[1]))
            };
            let life = match (job.spec.ttl, self.migrations_for(&job)) {
                (Some(ttl), _) => after(ttl).unwrap_or(SWEEP_AFTER[0]),
                // A failed job stays visible for a while.
                (None, Some(migrations)) => after(migrations.args.default_job_ttl)
                    .unwrap_or_default()
                    .max(SWEEP_AFTER[0]),
                (None, None) => SWEEP_AFTER[0],
            };
            let Some(created) = &job.metadata.creation_timestamp else {
                continue;
            };
            let age = Duration::try_from(now.duration_since(created.0)).unwrap_or_default();
            if age < life {
                continue;
            }
            let is_kept = retained_until(&job, now).is_some_and(|until| now < until)
                || self.migrations_for(&job).is_some_and(|migrations| {
                    evict::evicted_at(&job, true, now).is_some()
                        && counts(&job, &migrations.args, now)
                });
            let options = job.spec.reservation_options.as_ref();
            if let Some(named) = options.and_then(|options| options.reservation_ref.as_ref())
                && let Some(name) = &named.name
                // Jobs that stay are visited by each sweep.
                && (!is_kept || self.view.reservation(name).is_some())
            {
                let uid = named.uid.clone().filter(|uid| !uid.is_empty());
                self.unreserve(name, uid).await?;
            }
            if is_kept {
                continue;
            }
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let params = only(job.metadata.uid.clone());
            match self.jobs().delete(name, &params).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) || is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns true if an eviction that `job` records may still count against limits.
fn counts(job: &PodMigrationJob, args: &MigrationControllerArgs, now: Timestamp) -> bool {
    let Some(then) = evict::evicted_at(job, false, now) else {
        return false;
    };
    let passed = Duration::try_from(now.duration_since(then)).unwrap_or_default();
    passed < limits::max_limiter_duration(args)
}

/// Returns parameters that delete only the object with this UID.
fn only(uid: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: uid.map(|uid| koord_kube::api::Preconditions {
            uid: Some(uid),
            resource_version: None,
        }),
        ..DeleteParams::default()
    }
}
