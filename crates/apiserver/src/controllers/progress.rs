//! Progress of a Deployment's rollout: its condition Progressing, and the deadline of
//! `spec.progressDeadlineSeconds`.

use crate::rest::meta;
use jiff::Timestamp;
use serde_json::{Map, Value};

const KIND: &str = "Progressing";
/// Reason of the condition when the rollout is complete.
const AVAILABLE: &str = "NewReplicaSetAvailable";

/// State of a rollout.
#[derive(Debug, Clone, Copy)]
pub(super) struct RolloutState {
    /// True if all pods exist, have the current version and are available.
    pub(super) complete: bool,
    /// True if there are more new, fewer old, or more ready or available pods than before.
    pub(super) moved: bool,
    /// True if there are pods of other versions.
    pub(super) rolling: bool,
}

fn find<'a>(status: &'a Map<String, Value>, kind: &str) -> Option<&'a Value> {
    let list = status.get("conditions").and_then(Value::as_array)?;
    list.iter().find(|c| meta::text(c, &["type"]) == kind)
}

/// Sets the last update time of a condition.
pub(super) fn stamp(status: &mut Map<String, Value>, kind: &str, now: Timestamp) {
    let list = status.get_mut("conditions").and_then(Value::as_array_mut);
    let mut all = list.into_iter().flatten();
    if let Some(c) = all.find(|c| meta::text(c, &["type"]) == kind) {
        meta::as_object(c).insert("lastUpdateTime".to_owned(), meta::time(now).into());
    }
}

/// Returns the seconds until the rollout exceeds its deadline.
fn seconds_left(status: &Map<String, Value>, deadline: Option<i64>, now: Timestamp) -> Option<u64> {
    let since = meta::text(find(status, KIND)?, &["lastUpdateTime"]);
    let since: Timestamp = since.parse().ok()?;
    let remaining = deadline?.saturating_sub(now.duration_since(since).as_secs());
    Some(remaining.max(0).unsigned_abs())
}

/// Writes the condition Progressing about the ReplicaSet `name`. Returns in how many seconds the rollout will
/// exceed its deadline if it makes no progress.
pub(super) fn write(
    status: &mut Map<String, Value>,
    name: &str,
    state: RolloutState,
    deadline: Option<i64>,
    now: Timestamp,
) -> Option<u64> {
    let reason = find(status, KIND).map(|c| meta::text(c, &["reason"]).to_owned());
    let settled = reason.as_deref() == Some(AVAILABLE);
    let (value, reason, message) = if state.complete {
        let message = format!("ReplicaSet {name:?} has successfully progressed.");
        ("True", AVAILABLE, message)
    } else if settled && !state.rolling {
        // A pod was replaced outside a rollout.
        return None;
    } else if settled || state.moved || reason.is_none() {
        let message = format!("ReplicaSet {name:?} is progressing.");
        ("True", "ReplicaSetUpdated", message)
    } else {
        match seconds_left(status, deadline, now) {
            Some(0) => {
                let message = format!("ReplicaSet {name:?} has timed out progressing.");
                ("False", "ProgressDeadlineExceeded", message)
            }
            seconds => return seconds,
        }
    };
    let moves = state.moved && !state.complete;
    if meta::set_condition(status, KIND, value, reason, &message, now) || moves {
        stamp(status, KIND, now);
    }
    let waits = value == "True" && reason != AVAILABLE;
    waits.then(|| seconds_left(status, deadline, now)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(complete: bool, moved: bool, rolling: bool) -> RolloutState {
        RolloutState {
            complete,
            moved,
            rolling,
        }
    }

    #[test]
    fn rollout_times_out_and_may_still_complete() {
        let mut status = Map::new();
        let mut at = |seconds: i64, state: RolloutState| {
            let now = Timestamp::from_second(seconds).unwrap();
            let remaining = write(&mut status, "v", state, Some(60), now);
            let condition = find(&status, KIND).unwrap();
            (meta::text(condition, &["reason"]).to_owned(), remaining)
        };
        let updated = "ReplicaSetUpdated".to_owned();
        let stuck = state(false, false, true);
        assert_eq!(at(0, state(false, true, true)), (updated.clone(), Some(60)));
        assert_eq!(at(50, stuck), (updated.clone(), Some(10)));
        assert_eq!(
            at(55, state(false, true, true)),
            (updated.clone(), Some(60))
        );
        let overdue = "ProgressDeadlineExceeded".to_owned();
        assert_eq!(at(115, stuck), (overdue.clone(), None));
        assert_eq!(at(200, stuck).0, overdue);
        let complete = (AVAILABLE.to_owned(), None);
        assert_eq!(at(300, state(true, true, false)), complete);
        // A pod is lost, but nothing is rolled out.
        assert_eq!(at(900, state(false, false, false)), complete);
        assert_eq!(at(901, stuck), (updated, Some(60)));
    }
}
