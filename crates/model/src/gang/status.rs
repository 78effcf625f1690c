//! Transitions of a PodGroup's status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use koord_api::scheduling::{PodGroupPhase, PodGroupStatus};
use serde_json::{Map, Value, json};

/// Age of a PodGroup at the start of scheduling from which its members may have been garbage-collected.
const TOO_OLD: SignedDuration = SignedDuration::from_hours(48);

/// Member counts of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemberCounts<'a> {
    /// Number of existing members.
    pub total: usize,
    /// Number of members with a node.
    pub bound: usize,
    /// Number of running members.
    pub running: usize,
    /// Number of succeeded members.
    pub succeeded: usize,
    /// Number of failed members.
    pub failed: usize,
    /// Owners of the first one: sorted `namespace/name`, joined by commas; may be empty.
    pub owners: &'a str,
}

/// Returns the next status; `None` if nothing is to be written. Each call makes one transition.
#[must_use]
pub fn advance(
    min: i32,
    created: Option<&Time>,
    status: &PodGroupStatus,
    members: &MemberCounts<'_>,
    now: &Time,
) -> Option<PodGroupStatus> {
    let old = status
        .phase
        .clone()
        .unwrap_or(PodGroupPhase::Other(String::new()));
    if matches!(old, PodGroupPhase::Finished | PodGroupPhase::Failed) {
        return None;
    }
    let began = status.schedule_start_time.as_ref();
    let late = began
        .zip(created)
        .is_some_and(|(began, created)| began.0.duration_since(created.0) > TOO_OLD);
    if late && status.scheduled.unwrap_or(0) == min && status.running.unwrap_or(0) == 0 {
        return None;
    }
    let mut new = status.clone();
    let enough = |count: usize| i64::try_from(count).unwrap_or(i64::MAX) >= i64::from(min);
    match &old {
        PodGroupPhase::Other(text) if text.is_empty() => new.phase = Some(PodGroupPhase::Pending),
        PodGroupPhase::Pending => {
            if min > 0 && enough(members.total) {
                new.phase = Some(PodGroupPhase::PreScheduling);
                if !members.owners.is_empty() {
                    members.owners.clone_into(&mut new.occupied_by);
                }
            }
        }
        _ if members.total == 0 => new.phase = Some(PodGroupPhase::Pending),
        _ => {
            let count = |count: usize| Some(i32::try_from(count).unwrap_or(i32::MAX));
            let MemberCounts {
                running,
                succeeded,
                failed,
                bound,
                ..
            } = *members;
            new.failed = count(failed);
            new.succeeded = count(succeeded);
            new.running = count(running);
            new.scheduled = count(bound);
            let mut phase = PodGroupPhase::Scheduled;
            if !enough(bound) {
                phase = PodGroupPhase::Scheduling;
                new.schedule_start_time.get_or_insert_with(|| now.clone());
            } else if enough(succeeded + running) {
                phase = PodGroupPhase::Running;
            }
            if failed != 0 && enough(failed + running + succeeded) {
                phase = PodGroupPhase::Failed;
            }
            if enough(succeeded) {
                phase = PodGroupPhase::Finished;
            }
            new.phase = Some(phase);
        }
    }
    (!same(status, &new)).then_some(new)
}

/// Returns true if both are equal; an unset number counts as 0.
#[must_use]
pub fn same(a: &PodGroupStatus, b: &PodGroupStatus) -> bool {
    numbers(a) == numbers(b)
        && a.phase == b.phase
        && a.occupied_by == b.occupied_by
        && a.schedule_start_time == b.schedule_start_time
}

fn numbers(status: &PodGroupStatus) -> [(&'static str, i32); 4] {
    [
        ("scheduled", status.scheduled.unwrap_or(0)),
        ("running", status.running.unwrap_or(0)),
        ("succeeded", status.succeeded.unwrap_or(0)),
        ("failed", status.failed.unwrap_or(0)),
    ]
}

/// Returns the JSON merge patch that changes the status from `old` to `new`.
#[must_use]
pub fn patch(old: &PodGroupStatus, new: &PodGroupStatus) -> Value {
    let mut fields = Map::new();
    if old.phase != new.phase {
        fields.insert("phase".to_owned(), json!(new.phase));
    }
    if old.occupied_by != new.occupied_by {
        fields.insert("occupiedBy".to_owned(), json!(new.occupied_by));
    }
    for ((name, before), (_, after)) in numbers(old).into_iter().zip(numbers(new)) {
        if before != after {
            // Zero is omitted, as in upstream's type.
            let value = if after == 0 {
                Value::Null
            } else {
                json!(after)
            };
            fields.insert(name.to_owned(), value);
        }
    }
    if old.schedule_start_time != new.schedule_start_time {
        let time = new.schedule_start_time.as_ref();
        let text = time.map(|time| time.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        fields.insert("scheduleStartTime".to_owned(), json!(text));
    }
    json!({"status": fields})
}
