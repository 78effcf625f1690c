//! Periodic arbitration of waiting jobs.

use super::JobController;
use crate::framework::SkipReason;
use crate::migration::arbitrate::{Verdict, arbitrate};
use crate::migration::filter::Rules;
use crate::migration::{JobStage, PASSED, stage, step};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::PodMigrationJob;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use koord_kube::Error;
use koord_kube::api::PostParams;
use koord_kube::patch::is_conflict;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// `reason` of the event that records what a job waits for.
const WAITING: &str = "WaitForArbitration";
/// `reason` of the event for a job that cannot be decoded.
const UNREADABLE: &str = "Unreadable";

impl JobController {
    pub(super) async fn arbitrate(&self) {
        let on = self
            .migrations
            .iter()
            .map(|migrations| &migrations.args.arbitration_args);
        let every = on.filter_map(|args| args.interval.to_std()).min();
        let every = every.unwrap_or_default().max(Duration::from_millis(10));
        loop {
            self.count_phases();
            self.report_undecodable();
            let jobs = self.view.jobs.all();
            if jobs.iter().any(|job| stage(job) == JobStage::Waiting) {
                self.run_round().await;
            }
            tokio::time::sleep(every).await;
        }
    }

    fn count_phases(&self) {
        let mut counts = BTreeMap::from(
            ["Pending", "Running", "Succeeded", "Failed", "Aborted"].map(|phase| (phase, 0)),
        );
        for job in self.view.jobs.all() {
            let phase = job.status.as_ref().and_then(|status| status.phase.as_ref());
            let phase = phase.map_or("Pending", |phase| phase.as_str());
            if let Some(count) = counts.get_mut(phase) {
                *count += 1;
            }
        }
        for (phase, count) in counts {
            self.counts.phases.with_label_values(&[phase]).set(count);
        }
    }

    /// Records an event for every job that cannot be decoded, once per version.
    fn report_undecodable(&self) {
        let unread = self.view.jobs.unread();
        let mut reported = self.unread.lock();
        let mut now = FxHashMap::default();
        for unread_job in unread {
            let meta = &unread_job.metadata;
            let name = meta.name.clone().unwrap_or_default();
            let version = meta.resource_version.clone().unwrap_or_default();
            if reported.get(&name) != Some(&version) {
                let job = PodMigrationJob {
                    metadata: meta.clone(),
                    ..PodMigrationJob::default()
                };
                let text = format!("it cannot be read, and nothing is done for it: {unread_job}");
                self.record_event(&job, true, UNREADABLE, text);
            }
            now.insert(name, version);
        }
        *reported = now;
    }

    /// Arbitrates all waiting jobs once.
    async fn run_round(&self) {
        let snapshot = self.view.about_jobs(self.clock.now()).await;
        let rules = self.migrations.iter();
        let rules: Vec<_> = rules
            .map(|migrations| Rules::new(migrations.args.clone(), &snapshot.priority_classes))
            .collect();
        let none = Rules::new(Arc::default(), &snapshot.priority_classes);
        let rules_for = |job: &PodMigrationJob| {
            let mut all = self.migrations.iter().zip(&rules);
            let own = self.migrations_for(job);
            let matching =
                all.find(|(migrations, _)| own.is_some_and(|own| Arc::ptr_eq(migrations, own)));
            matching.map_or(&none, |(_, rules)| rules)
        };
        for (job, verdict) in arbitrate(&snapshot, rules_for) {
            let args = self
                .migrations_for(&job)
                .map(|migrations| &migrations.args.arbitration_args);
            if !args.is_some_and(|args| args.enabled) {
                continue;
            }
            let written = match verdict {
                Verdict::Pass => self.pass(&job).await,
                Verdict::Missing => self.fail_if_pod_missing(&job).await,
                Verdict::Fail(reason) => self.forbid(&job, &reason).await,
                Verdict::Wait(reason) => {
                    self.report_waiting(&job, &reason);
                    Ok(())
                }
            };
            match written {
                Ok(()) => {}
                // The next round retries the job.
                Err(error @ Error::Api(_)) => {
                    if !is_conflict(&error) {
                        tracing::warn!(job = job.metadata.name, %error, "failed to write arbitration result, retrying");
                    }
                }
                Err(error) => {
                    // The write may have been done all the same, and then counts.
                    tracing::warn!(job = job.metadata.name, %error, "arbitration result may be lost, relisting jobs");
                    while self.refresh().await.is_err() {
                        tokio::time::sleep(super::BACKOFF[0]).await;
                    }
                    return;
                }
            }
        }
    }

    async fn pass(&self, job: &PodMigrationJob) -> Result<(), Error> {
        let mut job = job.clone();
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(PASSED.to_owned(), "true".to_owned());
        let name = job.metadata.name.clone().unwrap_or_default();
        let jobs = self.jobs();
        let written = jobs.replace(&name, &PostParams::default(), &job).await?;
        self.view.jobs.write_cache().update(&written);
        self.clear_error(&name);
        Ok(())
    }

    /// Fails `job` if its pod does not exist. A pod that the informer has not delivered yet is judged in a
    /// later round.
    async fn fail_if_pod_missing(&self, job: &PodMigrationJob) -> Result<(), Error> {
        let pod = self.pod(Some(&job.spec.pod_ref)).await?;
        let uid = job.spec.pod_ref.uid.as_deref().unwrap_or_default();
        let meant = |pod: Pod| uid.is_empty() || pod.metadata.uid.as_deref() == Some(uid);
        if pod.is_some_and(meant) {
            return Ok(());
        }
        let status = step::missing(job);
        let message = status.message.clone();
        self.status(job, status).await?;
        self.record_event(job, true, reasons::MISSING_POD, message);
        Ok(())
    }

    async fn forbid(&self, job: &PodMigrationJob, reason: &SkipReason) -> Result<(), Error> {
        let status = step::forbidden(job, reason);
        let message = status.message.clone();
        self.status(job, status).await?;
        self.record_event(job, true, reasons::FORBIDDEN_MIGRATE_POD, message);
        Ok(())
    }

    /// Records what `job` waits for, and an event whenever the rule changes.
    fn report_waiting(&self, job: &PodMigrationJob, reason: &SkipReason) {
        self.counts.limited.with_label_values(&[reason.rule]).inc();
        let name = job.metadata.name.clone().unwrap_or_default();
        let text = reason.to_string();
        let before = self.errors.lock().insert(name, text.clone());
        let is_same = before.is_some_and(|text| text.split(':').next() == Some(reason.rule));
        if !is_same {
            self.record_event(job, false, WAITING, text);
        }
    }
}
