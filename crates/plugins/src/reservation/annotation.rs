//! Annotations of pods that use or stand for a reservation.

use super::table::ReservationRecord;
use koord_api::annotations;
use koord_api::extension::ReservationAllocated;
use koord_scheduler::framework::{Verb, Write};
use koord_scheduler::state::PodInfo;
use serde_json::json;

/// Returns the write that sets the pod's reservation annotation to `text`, or removes it.
pub(super) fn annotation_write(pod: &PodInfo, text: Option<&str>) -> Write {
    Write {
        group: "",
        version: "v1",
        plural: "pods",
        namespace: pod.namespace.to_string(),
        name: pod.name.to_string(),
        verb: Verb::Patch(json!({"metadata": {
            "uid": &*pod.uid,
            "annotations": {annotations::RESERVATION_ALLOCATED: text},
        }})),
        timed: None,
    }
}

/// Returns the node that the reservation's template names.
pub(super) fn fixed_node(holder: &PodInfo) -> Option<String> {
    holder
        .annotation(annotations::RESERVATION_NODE)
        .map(str::to_owned)
}

/// Returns the value of the annotation of a pod that uses `record`.
pub(super) fn allocated_text(record: &ReservationRecord) -> Result<String, serde_json::Error> {
    serde_json::to_string(&ReservationAllocated {
        name: record.name.to_string(),
        uid: record.uid.to_string(),
    })
}
