//! Annotation of a PodMigrationJob that records a move for the next leader.

use super::Entry;
use super::outcome::MoveOutcome;
use crate::migration::{annotation, status};
use crate::state::amounts;
use jiff::Timestamp;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::scheduling::PodMigrationJob;
use koord_model::resources::{CPU, ResourceTable};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Annotation on jobs of strategies that have a move history.
const LOAD_MOVE: &str = "descheduler.koordinator.sh/load-move";

/// Value of the annotation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MoveRecord {
    /// UID of the pod's controller, or the pod's own name without one.
    workload: Arc<str>,
    /// Node that the pod is moved from.
    node: Arc<str>,
    /// Node on which the replacement is expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Arc<str>>,
    usage: ResourceList,
    #[serde(default)]
    prod: bool,
    #[serde(default)]
    attempt: u32,
}

/// Writes `entry` into the annotations of the job that moves its pod.
pub(super) fn write(entry: &Entry, job: &mut PodMigrationJob, table: &ResourceTable) {
    let quantity = |id, amount| match id {
        CPU => Quantity::from_milli(amount),
        _ => Quantity::from_bytes(amount),
    };
    let usage = entry.usage.iter();
    let usage = usage.map(|(id, amount)| (table.name(id).to_string(), quantity(id, amount)));
    let record = MoveRecord {
        workload: entry.key.clone(),
        node: entry.from.clone(),
        target: entry.to.clone(),
        usage: usage.collect(),
        prod: entry.prod,
        attempt: entry.attempt,
    };
    if let Ok(text) = serde_json::to_string(&record) {
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(LOAD_MOVE.to_owned(), text);
    }
}

/// Returns true if `job` belongs to a strategy that has a move history.
pub(super) fn has_move_history(job: &PodMigrationJob) -> bool {
    annotation(job, LOAD_MOVE).is_some()
}

/// Reads the move recorded in `job`. Returns `None` if there is none, or if the annotation is invalid, as
/// users can edit it.
pub(super) fn read(job: &PodMigrationJob, table: &ResourceTable, now: Timestamp) -> Option<Entry> {
    let text = annotation(job, LOAD_MOVE)?;
    let record: MoveRecord = match serde_json::from_str(text) {
        Ok(record) => record,
        Err(error) => {
            let job = job.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(
                job,
                annotation = LOAD_MOVE,
                %error,
                value = text,
                "ignoring invalid annotation, the pod may be moved again"
            );
            return None;
        }
    };
    let created_at = status::created(job, now)?;
    let mut usage = amounts(&record.usage, table);
    for (id, amount) in usage.clone().iter() {
        usage.set(id, amount.max(0));
    }
    Some(Entry {
        uid: job.spec.pod_ref.uid.as_deref()?.into(),
        key: record.workload,
        at: created_at,
        job: Some(job.metadata.name.as_deref()?.into()),
        outcome: MoveOutcome::Pending,
        moved: created_at,
        attempt: record.attempt,
        from: record.node,
        to: record.target,
        replacement: None,
        usage,
        prod: record.prod,
        on_source: false,
        deleting: false,
    })
}
