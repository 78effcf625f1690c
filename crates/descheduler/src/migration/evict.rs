//! How a pod is evicted.

use super::{EVICT_REASON, EVICT_TRIGGER, Stage, annotation, stage, status};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::extension::SoftEvictionSpec;
use koord_api::scheduling::PodMigrationJob;
use koord_api::scheduling::pod_migration_job_conditions as conditions;
use koord_api::scheduling::pod_migration_job_reasons as reasons;
use std::collections::BTreeMap;

/// Label of a pod or job that chooses the [`Policy`].
pub const EVICT_POLICY: &str = "koordinator.sh/evict-policy";

/// How a pod is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Through the `eviction` sub-resource, which disruption budgets may refuse.
    Eviction,
    /// By deletion, whatever budgets say.
    Delete,
    /// By an annotation that asks somebody else to do it.
    SoftEviction,
}

impl Policy {
    /// By its name in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "Eviction" => Some(Self::Eviction),
            "Delete" => Some(Self::Delete),
            "SoftEviction" => Some(Self::SoftEviction),
            _ => None,
        }
    }

    /// What the labels of the pod say, else those of the job, else `by_default`; a name that nobody knows says nothing.
    #[must_use]
    pub fn resolve(
        pod: Option<&BTreeMap<String, String>>,
        job: Option<&BTreeMap<String, String>>,
        by_default: Self,
    ) -> Self {
        let mut said = [pod, job].into_iter().flatten();
        let named =
            said.find_map(|labels| labels.get(EVICT_POLICY).filter(|name| !name.is_empty()));
        named
            .and_then(|name| Self::named(name))
            .unwrap_or(by_default)
    }
}

/// When the pod of `job` went, of which it is known whether it `stands` as it was, if it did. Nothing says so to the
/// second: never too early, unless a leader with a wrong clock wrote it.
#[must_use]
pub fn evicted_at(job: &PodMigrationJob, stands: bool, now: Timestamp) -> Option<Timestamp> {
    let eviction = status::condition(job.status.as_ref()?, conditions::EVICTION)?;
    match eviction.status.as_str() {
        "True" => {
            let time = eviction.last_transition_time.as_ref()?;
            Some(status::bounded(job, time.0, now))
        }
        // The pod of a job that was refused to the end went, if it did, without it.
        _ if stage(job) == Stage::Ended && eviction.reason != reasons::EVICTING => None,
        _ => (!stands).then_some(now),
    }
}

/// Which strategy wants the pod to go; empty when nobody says so.
#[must_use]
pub fn trigger(job: &PodMigrationJob) -> &str {
    annotation(job, EVICT_TRIGGER).unwrap_or_default()
}

/// Why the pod goes, for people.
#[must_use]
pub fn reason(job: &PodMigrationJob) -> &str {
    let said = [EVICT_REASON, EVICT_TRIGGER].into_iter();
    let mut said = said.filter_map(|key| annotation(job, key));
    said.find(|text| !text.is_empty()).unwrap_or("NotSet")
}

/// The value of annotation `scheduling.koordinator.sh/soft-eviction` for `job`, made at `now`.
///
/// # Errors
/// It cannot be written as JSON.
pub fn soft(job: &PodMigrationJob, now: Timestamp) -> Result<String, serde_json::Error> {
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    serde_json::to_string(&SoftEvictionSpec {
        timestamp: Some(Time(seconds)),
        delete_options: job.spec.delete_options.clone(),
        initiator: trigger(job).to_owned(),
        reason: reason(job).to_owned(),
    })
}
