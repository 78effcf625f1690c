//! Eviction policies, and when and why a pod was evicted.

use super::{EVICT_REASON, EVICT_TRIGGER, JobStage, annotation, stage, status};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::extension::SoftEvictionSpec;
use koord_api::scheduling::PodMigrationJob;
use koord_api::scheduling::pod_migration_job_conditions as conditions;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use std::collections::BTreeMap;

/// Label of a pod or job that selects the [`Policy`].
pub const EVICT_POLICY: &str = "koordinator.sh/evict-policy";

/// Eviction policy of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Eviction through the `eviction` subresource, which PodDisruptionBudgets may block.
    Eviction,
    /// Deletion, regardless of budgets.
    Delete,
    /// Annotation that requests the eviction from another component.
    SoftEviction,
}

impl Policy {
    /// Parses the name used in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "Eviction" => Some(Self::Eviction),
            "Delete" => Some(Self::Delete),
            "SoftEviction" => Some(Self::SoftEviction),
            _ => None,
        }
    }

    /// Returns the policy in the labels of the pod, else in those of the job, else `by_default`. An unknown
    /// name is ignored.
    #[must_use]
    pub fn resolve(
        pod: Option<&BTreeMap<String, String>>,
        job: Option<&BTreeMap<String, String>>,
        by_default: Self,
    ) -> Self {
        let mut label_sets = [pod, job].into_iter().flatten();
        let named =
            label_sets.find_map(|labels| labels.get(EVICT_POLICY).filter(|name| !name.is_empty()));
        named
            .and_then(|name| Self::named(name))
            .unwrap_or(by_default)
    }
}

/// Returns when the pod of `job` was evicted; `None` if it was not. `stands` is true if the pod still exists
/// unchanged. The time is approximate, but never too early unless a leader with a wrong clock wrote it.
#[must_use]
pub fn evicted_at(job: &PodMigrationJob, stands: bool, now: Timestamp) -> Option<Timestamp> {
    let eviction = status::condition(job.status.as_ref()?, conditions::EVICTION)?;
    match eviction.status.as_str() {
        "True" => {
            let time = eviction.last_transition_time.as_ref()?;
            Some(status::bounded(job, time.0, now))
        }
        // A pod whose job failed after refused evictions left for another reason, if at all.
        _ if stage(job) == JobStage::Ended && eviction.reason != reasons::EVICTING => None,
        _ => (!stands).then_some(now),
    }
}

/// Returns the name of the strategy that requested the eviction; empty if unknown.
#[must_use]
pub fn trigger(job: &PodMigrationJob) -> &str {
    annotation(job, EVICT_TRIGGER).unwrap_or_default()
}

/// Returns the reason of the eviction for users.
#[must_use]
pub fn reason(job: &PodMigrationJob) -> &str {
    let reasons = [EVICT_REASON, EVICT_TRIGGER].into_iter();
    let mut reasons = reasons.filter_map(|key| annotation(job, key));
    reasons.find(|text| !text.is_empty()).unwrap_or("NotSet")
}

/// Returns the value of annotation `scheduling.koordinator.sh/soft-eviction` for `job`, created at `now`.
///
/// # Errors
/// Returns an error if it cannot be serialized to JSON.
pub fn soft(job: &PodMigrationJob, now: Timestamp) -> Result<String, serde_json::Error> {
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    serde_json::to_string(&SoftEvictionSpec {
        timestamp: Some(Time(seconds)),
        delete_options: job.spec.delete_options.clone(),
        initiator: trigger(job).to_owned(),
        reason: reason(job).to_owned(),
    })
}
