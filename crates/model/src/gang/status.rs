//! The life of a PodGroup, as its status tells it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use koord_api::scheduling::{PodGroupPhase, PodGroupStatus};
use serde_json::{Map, Value, json};

/// Members may have been collected as garbage when scheduling began this long after the creation.
const TOO_OLD: SignedDuration = SignedDuration::from_hours(48);

/// The members of a group, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Members<'a> {
    /// All that exist.
    pub total: usize,
    /// With a node.
    pub bound: usize,
    /// That run.
    pub running: usize,
    /// That finished well.
    pub succeeded: usize,
    /// That failed.
    pub failed: usize,
    /// Owners of the first one: sorted `namespace/name`, joined by commas; may be empty.
    pub owners: &'a str,
}

/// The next status; `None` when nothing is to be written. Each call takes one step.
#[must_use]
pub fn advance(
    min: i32,
    created: Option<&Time>,
    status: &PodGroupStatus,
    members: &Members<'_>,
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
            let Members {
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

/// Whether both say the same; an absent number is none.
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

/// The JSON merge patch of the object that turns status `old` into `new`.
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
            // Zero is written as absent, as upstream's type does.
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
