//! Writes.

use super::super::{regarding, stands};
use super::Controller;
use crate::migration::evict::{self, Policy};
use crate::migration::step::{self, Act, Settings};
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

/// The job that a write is for, and what it is about.
pub(super) struct About<'a> {
    pub(super) job: &'a PodMigrationJob,
    pub(super) pod: Option<&'a PodInfo>,
    pub(super) reservation: Option<&'a Reservation>,
    pub(super) migrations: &'a Migrations,
    pub(super) settings: &'a Settings,
}

/// What came of a write.
pub(super) enum Done {
    /// It is done.
    Yes,
    /// Somebody else was faster: everything is looked at anew.
    Again,
    /// It is not its turn before this time has passed.
    Later(Duration),
    /// It failed, and why.
    No(String),
}

impl Done {
    fn of<T>(result: Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Yes,
            Err(error) if is_conflict(&error) || is_not_found(&error) => Self::Again,
            Err(error) => Self::No(error.to_string()),
        }
    }
}

impl Controller {
    pub(super) async fn act(&self, act: Act, about: &About<'_>) -> Done {
        match act {
            Act::Job(job) => {
                let name = job.metadata.name.clone().unwrap_or_default();
                let jobs = self.jobs();
                let written = jobs.replace(&name, &PostParams::default(), &job).await;
                if let Ok(job) = &written {
                    self.view.jobs.newer().learn(job);
                }
                Done::of(written)
            }
            Act::Status(status) => Done::of(self.status(about.job, *status).await),
            Act::Reserve(reservation) => self.reserve(&reservation, about).await,
            Act::Order { value } => {
                let Some(name) = about.reservation.and_then(|one| one.metadata.name.clone()) else {
                    return Done::Again;
                };
                let uid = about.reservation.and_then(|one| one.metadata.uid.clone());
                let change = json!({"metadata": {
                    "uid": uid, "labels": {labels::RESERVATION_ORDER: value},
                }});
                Done::of(patch::merge(&self.reservations(), &name, &change).await)
            }
            Act::Unreserve => {
                let meta = about.reservation.map(|one| &one.metadata);
                let name = meta.and_then(|meta| meta.name.clone());
                let uid = meta.and_then(|meta| meta.uid.clone());
                match self.unreserve(&name.unwrap_or_default(), uid).await {
                    Ok(()) => Done::Yes,
                    Err(error) => Done::No(error.to_string()),
                }
            }
            Act::Evict(policy) => self.evict(policy, about).await,
            Act::Spare => {
                let Some(pod) = about.pod else {
                    return Done::Again;
                };
                Done::of(self.mark(pod, None).await)
            }
        }
    }

    /// Writes the status of `job`, unless it has changed.
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
        self.view.jobs.newer().learn(&written);
        Ok(())
    }

    pub(super) fn tell(
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

    async fn reserve(&self, reservation: &Reservation, about: &About<'_>) -> Done {
        // Room is not held for a pod that a budget keeps where it is.
        let why = match (about.pod, self.policy(about)) {
            (Some(pod), Policy::Eviction) => self.would_refuse(pod, about).await,
            (Some(pod), Policy::Delete) => Self::options(about, pod).err(),
            (Some(_), Policy::SoftEviction) | (None, _) => None,
        };
        if let Some((pod, why)) = about.pod.zip(why) {
            let message = format!("Pod \"{pod}\" would not be evicted: {why}");
            self.tell(about.job, true, reasons::FAILED_EVICT, message.clone());
            return Done::No(message);
        }
        let created = self.reservations();
        let created = created.create(&PostParams::default(), reservation).await;
        let error = match created {
            Ok(_) => return Done::Yes,
            // It was made before, and the job could not say so.
            Err(error) if is_conflict(&error) => return Done::Again,
            Err(error) => error.to_string(),
        };
        if let Some(status) = step::unreserved(about.job, &error, self.clock.now()) {
            let message = status.message.clone();
            let reason = reasons::FAILED_CREATE_RESERVATION;
            match self.status(about.job, status).await {
                Ok(()) => self.tell(about.job, true, reason, message),
                Err(error) => return Done::of::<()>(Err(error)),
            }
        }
        Done::No(format!("Reservation: {error}"))
    }

    fn policy(&self, about: &About<'_>) -> Policy {
        let pod = about.pod.map(|pod| &pod.shape.labels);
        let job = about.job.metadata.labels.as_ref();
        Policy::of(pod, job, about.settings.policy)
    }

    /// How `pod` is evicted. Options with which nothing would be are refused: the API server would say again and again
    /// that all went well.
    fn options(about: &About<'_>, pod: &PodInfo) -> Result<EvictOptions, String> {
        let by_default = about.migrations.args.default_delete_options.as_ref();
        let asked = about.job.spec.delete_options.as_ref().or(by_default);
        let dry_run = asked.and_then(|options| options.dry_run.as_ref());
        if let Some(parts) = dry_run.filter(|parts| !parts.is_empty()) {
            return Err(format!(
                "deleteOptions.dryRun {parts:?}: nothing would be evicted"
            ));
        }
        Ok(EvictOptions {
            uid: Some(pod.uid.to_string()),
            delete_options: asked.cloned(),
            ..EvictOptions::default()
        })
    }

    /// Why the eviction of `pod` would be refused now, as far as one can ask.
    async fn would_refuse(&self, pod: &PodInfo, about: &About<'_>) -> Option<String> {
        let options = match Self::options(about, pod) {
            Ok(options) => EvictOptions {
                dry_run: true,
                ..options
            },
            Err(why) => return Some(why),
        };
        match evict_pod(&self.client, &pod.namespace, &pod.name, &options).await {
            Ok(EvictOutcome::Blocked { message, .. }) => Some(message),
            Ok(EvictOutcome::Evicted) => None,
            Ok(EvictOutcome::Gone { message }) => match stands(&self.client, pod).await {
                Ok(true) => Some(message),
                Ok(false) | Err(_) => None,
            },
            Err(error) if is_status(&error, 403) => Some(error.to_string()),
            // Some webhooks cannot be asked this way.
            Err(error) => {
                tracing::debug!(%pod, %error, "cannot ask whether it would be evicted");
                None
            }
        }
    }

    async fn evict(&self, policy: Policy, about: &About<'_>) -> Done {
        let Some(pod) = about.pod else {
            return Done::Again;
        };
        let now = self.clock.now();
        let snapshot = self.view.about_jobs(now).await;
        let workload = pod
            .controller()
            .and_then(|owner| snapshot.workloads.get(&owner.uid));
        let free = annotation(about.job, crate::rules::EVICT).is_some();
        if let Err(why) = about.migrations.claim(workload, pod, free, now) {
            self.counts.limited.with_label_values(&[why.rule]).inc();
            let name = about.job.metadata.name.clone().unwrap_or_default();
            self.troubles.lock().insert(name, why.to_string());
            return Done::Later(step::POLL);
        }
        let claim = EvictionClaim {
            migrations: about.migrations,
            pod,
        };
        // Not `now`: others may have taken a token during the wait for the snapshot, and a bucket that sees an earlier time
        // takes it for a clock that was set back.
        if !about.migrations.take(self.clock.now()) {
            self.counts.limited.with_label_values(&["EvictQPS"]).inc();
            let pause = 1.0 / about.migrations.args.evict_qps.value().clamp(0.1, 100.0);
            return Done::Later(Duration::from_secs_f64(pause));
        }
        let outcome = match policy {
            Policy::Eviction => self.evict_politely(pod, about).await,
            Policy::Delete => self.delete(pod, about).await,
            Policy::SoftEviction => self.ask(pod, about).await,
        };
        let result = if outcome.is_ok() { "success" } else { "error" };
        let node = pod.node.as_deref().unwrap_or_default();
        let values = [result, evict::trigger(about.job), &pod.namespace, node];
        self.counts.evicted.with_label_values(&values).inc();
        match outcome {
            Ok(()) => {
                std::mem::forget(claim);
                let reason = evict::reason(about.job);
                let said = format!("Pod evicted from node \"{node}\" by the reason \"{reason}\"");
                self.events.event_with_action(
                    regarding(&pod.namespace, &pod.name, &pod.uid),
                    Severity::Normal,
                    "Descheduled",
                    "Migrating",
                    said,
                );
                Done::Yes
            }
            Err(why) => {
                drop(claim);
                let message = format!("Failed evict Pod \"{pod}\" caused by {why}");
                self.tell(about.job, true, reasons::EVICTING, message.clone());
                match step::refused(about.job, &message, now) {
                    Some(status) => match self.status(about.job, status).await {
                        Ok(()) => Done::No(message),
                        Err(error) => Done::of::<()>(Err(error)),
                    },
                    None => Done::No(message),
                }
            }
        }
    }

    async fn evict_politely(&self, pod: &PodInfo, about: &About<'_>) -> Result<(), String> {
        let options = Self::options(about, pod)?;
        let why = match evict_pod(&self.client, &pod.namespace, &pod.name, &options).await {
            Ok(EvictOutcome::Evicted) => "the API server agreed, and the pod stays".to_owned(),
            Ok(EvictOutcome::Gone { message } | EvictOutcome::Blocked { message, .. }) => message,
            Err(error) => error.to_string(),
        };
        self.goes(pod, why).await
    }

    /// Whether `pod` goes, or is gone, whatever the answer to its eviction was: a webhook may deny it in the words for a
    /// pod that is not there, and an answer may be lost.
    async fn goes(&self, pod: &PodInfo, why: String) -> Result<(), String> {
        match stands(&self.client, pod).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(why),
            Err(error) => Err(format!("{why}; {error}")),
        }
    }

    async fn delete(&self, pod: &PodInfo, about: &About<'_>) -> Result<(), String> {
        let options = Self::options(about, pod)?.delete_options;
        let params = delete_params(options.unwrap_or_default(), pod)?;
        let why = match self.pods(&pod.namespace).delete(&pod.name, &params).await {
            Ok(_) => "the API server agreed, and the pod stays".to_owned(),
            Err(error) => error.to_string(),
        };
        self.goes(pod, why).await
    }

    async fn ask(&self, pod: &PodInfo, about: &About<'_>) -> Result<(), String> {
        let text = evict::soft(about.job, self.clock.now()).map_err(|error| error.to_string())?;
        let marked = self.mark(pod, Some(text)).await;
        marked.map_err(|error| error.to_string())
    }

    /// Sets the annotation that asks somebody to evict `pod`, or takes it away.
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
    let asked = options
        .preconditions
        .and_then(|asked| asked.resource_version);
    Ok(DeleteParams {
        dry_run: false,
        grace_period_seconds: grace,
        propagation_policy: policy,
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.to_string()),
            resource_version: asked,
        }),
    })
}

/// An eviction that counts against the limits of the pod's node, namespace and workload. Dropped, a panic included, it
/// no longer does.
struct EvictionClaim<'a> {
    migrations: &'a Migrations,
    pod: &'a PodInfo,
}

impl Drop for EvictionClaim<'_> {
    fn drop(&mut self) {
        self.migrations.give_back(self.pod);
    }
}
