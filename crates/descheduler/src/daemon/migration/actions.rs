//! Writes of the migration controller.

use super::super::{pod_reference, still_exists};
use super::JobController;
use crate::migration::evict::{self, Policy};
use crate::migration::step::{self, Operation, Settings};
use crate::migration::{Migrations, annotation};
use crate::state::PodInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobStatus, Reservation};
use koord_api::{annotations, labels};
use koord_kube::Error;
use koord_kube::api::{DeleteParams, PostParams, Preconditions, PropagationPolicy};
use koord_kube::events::{Severity, reference};
use koord_kube::evict::{EvictOptions, EvictOutcome, evict_pod};
use koord_kube::patch::{self, is_conflict, is_not_found, is_status};
use serde_json::json;
use std::time::Duration;

/// The job that a write is for, and its related objects.
pub(super) struct JobContext<'a> {
    pub(super) job: &'a PodMigrationJob,
    pub(super) pod: Option<&'a PodInfo>,
    pub(super) reservation: Option<&'a Reservation>,
    pub(super) migrations: &'a Migrations,
    pub(super) settings: &'a Settings,
}

/// Result of a write.
pub(super) enum WriteOutcome {
    /// The write is done.
    Written,
    /// The object was changed or deleted concurrently: it must be read again.
    Conflict,
    /// The write must not be tried before this time has passed.
    Delayed(Duration),
    /// The write failed with this error.
    Failed(String),
}

impl WriteOutcome {
    fn from_result<T>(result: Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Written,
            Err(error) if is_conflict(&error) || is_not_found(&error) => Self::Conflict,
            Err(error) => Self::Failed(error.to_string()),
        }
    }
}

impl JobController {
    /// Carries out the API write of a job's step.
    pub(super) async fn act(&self, act: Operation, ctx: &JobContext<'_>) -> WriteOutcome {
        match act {
            Operation::Job(job) => {
                let name = job.metadata.name.clone().unwrap_or_default();
                let jobs = self.jobs();
                let written = jobs.replace(&name, &PostParams::default(), &job).await;
                if let Ok(job) = &written {
                    self.view.jobs.write_cache().update(job);
                }
                WriteOutcome::from_result(written)
            }
            Operation::Status(status) => {
                WriteOutcome::from_result(self.status(ctx.job, *status).await)
            }
            Operation::Reserve(reservation) => self.reserve(&reservation, ctx).await,
            Operation::Order { value } => {
                let Some(name) = ctx
                    .reservation
                    .and_then(|reservation_object| reservation_object.metadata.name.clone())
                else {
                    return WriteOutcome::Conflict;
                };
                let uid = ctx
                    .reservation
                    .and_then(|reservation_object| reservation_object.metadata.uid.clone());
                let change = json!({"metadata": {
                    "uid": uid, "labels": {labels::RESERVATION_ORDER: value},
                }});
                WriteOutcome::from_result(patch::merge(&self.reservations(), &name, &change).await)
            }
            Operation::Unreserve => {
                let meta = ctx
                    .reservation
                    .map(|reservation_object| &reservation_object.metadata);
                let name = meta.and_then(|meta| meta.name.clone());
                let uid = meta.and_then(|meta| meta.uid.clone());
                match self.unreserve(&name.unwrap_or_default(), uid).await {
                    Ok(()) => WriteOutcome::Written,
                    Err(error) => WriteOutcome::Failed(error.to_string()),
                }
            }
            Operation::Evict(policy) => self.evict(policy, ctx).await,
            Operation::Spare => {
                let Some(pod) = ctx.pod else {
                    return WriteOutcome::Conflict;
                };
                WriteOutcome::from_result(self.mark(pod, None).await)
            }
        }
    }

    /// Writes the status of `job`, unless the job was changed concurrently.
    pub(super) async fn status(
        &self,
        job: &PodMigrationJob,
        status: PodMigrationJobStatus,
    ) -> Result<(), Error> {
        let name = job.metadata.name.clone().unwrap_or_default();
        let mut job = job.clone();
        job.status = Some(status);
        let jobs = self.jobs();
        let written = jobs
            .replace_status(&name, &PostParams::default(), &job)
            .await?;
        self.view.jobs.write_cache().update(&written);
        Ok(())
    }

    pub(super) fn record_event(
        &self,
        job: &PodMigrationJob,
        warning: bool,
        reason: &str,
        message: impl Into<String>,
    ) {
        let severity = if warning {
            Severity::Warning
        } else {
            Severity::Normal
        };
        let regarding = reference(job);
        let message = message.into();
        self.events
            .event_with_action(regarding, severity, reason, "Migrating", message);
    }

    /// Creates the reservation of a job, unless the eviction would be refused.
    async fn reserve(&self, reservation: &Reservation, ctx: &JobContext<'_>) -> WriteOutcome {
        // Nothing is reserved for a pod that a budget protects.
        let cause = match (ctx.pod, self.policy(ctx)) {
            (Some(pod), Policy::Eviction) => self.would_refuse(pod, ctx).await,
            (Some(pod), Policy::Delete) => Self::options(ctx, pod).err(),
            (Some(_), Policy::SoftEviction) | (None, _) => None,
        };
        if let Some((pod, cause)) = ctx.pod.zip(cause) {
            let message = format!("Pod \"{pod}\" would not be evicted: {cause}");
            self.record_event(ctx.job, true, reasons::FAILED_EVICT, message.clone());
            return WriteOutcome::Failed(message);
        }
        let created = self.reservations();
        let created = created.create(&PostParams::default(), reservation).await;
        let error = match created {
            Ok(_) => return WriteOutcome::Written,
            // The reservation was created before, but the job could not be updated.
            Err(error) if is_conflict(&error) => return WriteOutcome::Conflict,
            Err(error) => error.to_string(),
        };
        if let Some(status) = step::unreserved(ctx.job, &error, self.clock.now()) {
            let message = status.message.clone();
            let reason = reasons::FAILED_CREATE_RESERVATION;
            match self.status(ctx.job, status).await {
                Ok(()) => self.record_event(ctx.job, true, reason, message),
                Err(error) => return WriteOutcome::from_result::<()>(Err(error)),
            }
        }
        WriteOutcome::Failed(format!("Reservation: {error}"))
    }

    fn policy(&self, ctx: &JobContext<'_>) -> Policy {
        let pod = ctx.pod.map(|pod| &pod.shape.labels);
        let job = ctx.job.metadata.labels.as_ref();
        Policy::resolve(pod, job, ctx.settings.policy)
    }

    /// Returns the options of the eviction of `pod`. A dry run is an error: the API server would report
    /// success each time although the pod stays.
    fn options(ctx: &JobContext<'_>, pod: &PodInfo) -> Result<EvictOptions, String> {
        let by_default = ctx.migrations.args.default_delete_options.as_ref();
        let requested_options = ctx.job.spec.delete_options.as_ref().or(by_default);
        let dry_run = requested_options.and_then(|options| options.dry_run.as_ref());
        if let Some(parts) = dry_run.filter(|parts| !parts.is_empty()) {
            return Err(format!(
                "deleteOptions.dryRun {parts:?}: nothing would be evicted"
            ));
        }
        Ok(EvictOptions {
            uid: Some(pod.uid.to_string()),
            delete_options: requested_options.cloned(),
            ..EvictOptions::default()
        })
    }

    /// Returns why the eviction of `pod` would be refused now, as far as a dry run shows.
    async fn would_refuse(&self, pod: &PodInfo, ctx: &JobContext<'_>) -> Option<String> {
        let options = match Self::options(ctx, pod) {
            Ok(options) => EvictOptions {
                dry_run: true,
                ..options
            },
            Err(reason) => return Some(reason),
        };
        match evict_pod(&self.client, &pod.namespace, &pod.name, &options).await {
            Ok(EvictOutcome::Blocked { message, .. }) => Some(message),
            Ok(EvictOutcome::Evicted) => None,
            Ok(EvictOutcome::Gone { message }) => match still_exists(&self.client, pod).await {
                Ok(true) => Some(message),
                Ok(false) | Err(_) => None,
            },
            Err(error) if is_status(&error, 403) => Some(error.to_string()),
            // Some webhooks do not support dry runs.
            Err(error) => {
                tracing::debug!(%pod, %error, "failed to dry-run the eviction");
                None
            }
        }
    }

    /// Evicts the pod of a job by `policy`, within the limits and the eviction rate.
    async fn evict(&self, policy: Policy, ctx: &JobContext<'_>) -> WriteOutcome {
        let Some(pod) = ctx.pod else {
            return WriteOutcome::Conflict;
        };
        let now = self.clock.now();
        let snapshot = self.view.about_jobs(now).await;
        let workload = pod
            .controller()
            .and_then(|owner| snapshot.workloads.get(&owner.uid));
        let free = annotation(ctx.job, crate::rules::EVICT).is_some();
        if let Err(cause) = ctx.migrations.claim(workload, pod, free, now) {
            self.counts.limited.with_label_values(&[cause.rule]).inc();
            let name = ctx.job.metadata.name.clone().unwrap_or_default();
            self.errors.lock().insert(name, cause.to_string());
            return WriteOutcome::Delayed(step::POLL);
        }
        let claim = EvictionClaim {
            migrations: ctx.migrations,
            pod,
        };
        // Not `now`: others may have taken a token during the wait for the snapshot, and a bucket assumes at
        // an earlier time that the clock was set back.
        if !ctx.migrations.take(self.clock.now()) {
            self.counts.limited.with_label_values(&["EvictQPS"]).inc();
            let pause = 1.0 / ctx.migrations.args.evict_qps.value().clamp(0.1, 100.0);
            return WriteOutcome::Delayed(Duration::from_secs_f64(pause));
        }
        let outcome = match policy {
            Policy::Eviction => self.evict_by_api(pod, ctx).await,
            Policy::Delete => self.delete(pod, ctx).await,
            Policy::SoftEviction => self.request_soft_eviction(pod, ctx).await,
        };
        let result = if outcome.is_ok() { "success" } else { "error" };
        let node = pod.node.as_deref().unwrap_or_default();
        let values = [result, evict::trigger(ctx.job), &pod.namespace, node];
        self.counts.evicted.with_label_values(&values).inc();
        match outcome {
            Ok(()) => {
                std::mem::forget(claim);
                let reason = evict::reason(ctx.job);
                let event_message =
                    format!("Pod evicted from node \"{node}\" by the reason \"{reason}\"");
                self.events.event_with_action(
                    pod_reference(&pod.namespace, &pod.name, &pod.uid),
                    Severity::Normal,
                    "Descheduled",
                    "Migrating",
                    event_message,
                );
                WriteOutcome::Written
            }
            Err(cause) => {
                drop(claim);
                let message = format!("Failed evict Pod \"{pod}\" caused by {cause}");
                self.record_event(ctx.job, true, reasons::EVICTING, message.clone());
                match step::refused(ctx.job, &message, now) {
                    Some(status) => match self.status(ctx.job, status).await {
                        Ok(()) => WriteOutcome::Failed(message),
                        Err(error) => WriteOutcome::from_result::<()>(Err(error)),
                    },
                    None => WriteOutcome::Failed(message),
                }
            }
        }
    }

    async fn evict_by_api(&self, pod: &PodInfo, ctx: &JobContext<'_>) -> Result<(), String> {
        let options = Self::options(ctx, pod)?;
        let reason = match evict_pod(&self.client, &pod.namespace, &pod.name, &options).await {
            Ok(EvictOutcome::Evicted) => "the API server agreed, and the pod stays".to_owned(),
            Ok(EvictOutcome::Gone { message } | EvictOutcome::Blocked { message, .. }) => message,
            Err(error) => error.to_string(),
        };
        self.verify_evicted(pod, reason).await
    }

    /// Checks that `pod` is gone or being deleted, whatever the response to its eviction: a webhook may deny
    /// it with the response for a missing pod, and a response may be lost.
    async fn verify_evicted(&self, pod: &PodInfo, reason: String) -> Result<(), String> {
        match still_exists(&self.client, pod).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(reason),
            Err(error) => Err(format!("{reason}; {error}")),
        }
    }

    async fn delete(&self, pod: &PodInfo, ctx: &JobContext<'_>) -> Result<(), String> {
        let options = Self::options(ctx, pod)?.delete_options;
        let params = delete_params(options.unwrap_or_default(), pod)?;
        let reason = match self.pods(&pod.namespace).delete(&pod.name, &params).await {
            Ok(_) => "the API server agreed, and the pod stays".to_owned(),
            Err(error) => error.to_string(),
        };
        self.verify_evicted(pod, reason).await
    }

    async fn request_soft_eviction(
        &self,
        pod: &PodInfo,
        ctx: &JobContext<'_>,
    ) -> Result<(), String> {
        let text = evict::soft(ctx.job, self.clock.now()).map_err(|error| error.to_string())?;
        let marked = self.mark(pod, Some(text)).await;
        marked.map_err(|error| error.to_string())
    }

    /// Sets or removes the annotation that requests the eviction of `pod`.
    async fn mark(&self, pod: &PodInfo, text: Option<String>) -> Result<(), Error> {
        let change = json!({"metadata": {
            "uid": pod.uid, "annotations": {annotations::SOFT_EVICTION: text},
        }});
        let pods = self.pods(&pod.namespace);
        let write = || patch::merge(&pods, &pod.name, &change);
        patch::retry_on_conflict(write).await.map(|_| ())
    }
}

fn delete_params(options: DeleteOptions, pod: &PodInfo) -> Result<DeleteParams, String> {
    let grace = options.grace_period_seconds;
    let grace = grace.map(u32::try_from).transpose();
    let grace = grace.map_err(|_| "deleteOptions.gracePeriodSeconds is out of range".to_owned())?;
    let policy = match options.propagation_policy.as_deref() {
        None | Some("") => None,
        Some("Orphan") => Some(PropagationPolicy::Orphan),
        Some("Background") => Some(PropagationPolicy::Background),
        Some("Foreground") => Some(PropagationPolicy::Foreground),
        Some(other) => return Err(format!("deleteOptions.propagationPolicy: {other:?}")),
    };
    let version = options
        .preconditions
        .and_then(|version| version.resource_version);
    Ok(DeleteParams {
        dry_run: false,
        grace_period_seconds: grace,
        propagation_policy: policy,
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.to_string()),
            resource_version: version,
        }),
    })
}

/// An eviction that counts against the limits of the pod's node, namespace and workload. Dropping it, also on
/// a panic, releases the claim.
struct EvictionClaim<'a> {
    migrations: &'a Migrations,
    pod: &'a PodInfo,
}

impl Drop for EvictionClaim<'_> {
    fn drop(&mut self) {
        self.migrations.return_tokens(self.pod);
    }
}
