//! Conditions of a job, and the status summary that follows them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobCondition, PodMigrationJobStatus};
use koord_model::report_time;

/// New state of a condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State<'a> {
    /// `type`.
    pub kind: &'a str,
    /// True if `status` is `True`.
    pub holds: bool,
    /// `reason`.
    pub reason: &'a str,
    /// `message`.
    pub message: &'a str,
}

/// Returns the condition of type `kind`.
#[must_use]
pub fn condition<'a>(
    status: &'a PodMigrationJobStatus,
    kind: &str,
) -> Option<&'a PodMigrationJobCondition> {
    status
        .conditions
        .iter()
        .find(|existing| existing.type_ == kind)
}

/// Returns when `job` was created, at most `now`.
#[must_use]
pub fn created(job: &PodMigrationJob, now: Timestamp) -> Option<Timestamp> {
    let created = job.metadata.creation_timestamp.as_ref()?;
    Some(created.0.min(now))
}

/// Returns `time`, which a leader wrote into `job`. If it lies too far ahead of `now` because that leader's
/// clock was wrong, returns the job's creation time instead: otherwise the time would not pass for as long as
/// that clock was ahead.
#[must_use]
pub fn bounded(job: &PodMigrationJob, time: Timestamp, now: Timestamp) -> Timestamp {
    match report_time::excess(time, now, SignedDuration::MAX) {
        Some(_) => created(job, now).unwrap_or(now),
        None => time,
    }
}

/// Sets the condition `state` and returns true if anything changed. The transition time is updated only when
/// the condition's status changes.
pub fn set_condition(
    status: &mut PodMigrationJobStatus,
    state: &State<'_>,
    now: Timestamp,
) -> bool {
    let status_text = if state.holds { "True" } else { "False" };
    let mut new = PodMigrationJobCondition {
        type_: state.kind.to_owned(),
        status: status_text.to_owned(),
        reason: state.reason.to_owned(),
        message: state.message.to_owned(),
        last_probe_time: None,
        // The API has a resolution of whole seconds.
        last_transition_time: Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
    };
    let conditions = status.conditions.iter_mut();
    let Some(old) = conditions
        .into_iter()
        .find(|condition| condition.type_ == state.kind)
    else {
        status.conditions.push(new);
        return true;
    };
    if old.status == new.status {
        new.last_transition_time
            .clone_from(&old.last_transition_time);
    }
    if *old == new {
        return false;
    }
    *old = new;
    true
}

/// Sets the condition like [`set_condition`]; if it changed, also updates the summary: `status`, `reason` and
/// `message`.
pub fn report(status: &mut PodMigrationJobStatus, state: &State<'_>, now: Timestamp) -> bool {
    let changed = set_condition(status, state, now);
    if changed {
        state.kind.clone_into(&mut status.status);
        state.reason.clone_into(&mut status.reason);
        state.message.clone_into(&mut status.message);
    }
    changed
}
