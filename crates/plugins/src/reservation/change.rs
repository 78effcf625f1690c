//! Effects of a Reservation change on waiting pods.

use koord_api::quantity::ResourceList;
use koord_api::scheduling::{Reservation, ReservationPhase};
use koord_scheduler::framework::ObjectChange;

/// Returns the state before the change, if known.
pub(super) fn old_state(change: &ObjectChange) -> Option<&Reservation> {
    change.old.as_ref()?.downcast_ref()
}

fn is_available(object: &Reservation) -> bool {
    let status = object.status.as_ref();
    status.is_some_and(|s| s.phase == Some(ReservationPhase::Available) && !s.node_name.is_empty())
}

fn is_over(object: &Reservation) -> bool {
    let phase = object.status.as_ref().and_then(|s| s.phase.as_ref());
    matches!(
        phase,
        Some(ReservationPhase::Succeeded | ReservationPhase::Failed)
    )
}

/// Returns true if the reservation is over now and was not before, so that pods it is named on are free
/// again.
pub(super) fn is_ended(old: Option<&Reservation>, new: &Reservation) -> bool {
    is_over(new) && old.is_some_and(|old| !is_over(old))
}

/// Returns true if the change may let a pod use the reservation that could not before. New owners change only
/// the status, and condition messages do not matter.
pub(super) fn is_opened(old: Option<&Reservation>, new: &Reservation) -> bool {
    if !is_available(new) || new.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(old) = old.filter(|old| is_available(old)) else {
        return true;
    };
    let (a, b) = (&old.metadata, &new.metadata);
    old.spec != new.spec
        || a.labels != b.labels
        || a.annotations != b.annotations
        || placing(old) != placing(new)
}

/// Returns the reservation's node and what it holds there.
fn placing(object: &Reservation) -> Option<(&str, &ResourceList)> {
    let status = object.status.as_ref()?;
    Some((&status.node_name, &status.allocatable))
}

/// Returns true if the reservation may hold less on its node than before. One that was placed over running
/// pods does: until then these counted in addition to it.
pub(super) fn is_shrunk(old: Option<&Reservation>, new: &Reservation) -> bool {
    match old.filter(|old| is_available(old)) {
        Some(old) => is_available(new) && placing(old) != placing(new),
        None => is_available(new) && new.spec.pre_allocation == Some(true),
    }
}
