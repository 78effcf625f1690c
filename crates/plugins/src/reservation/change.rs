//! What a change of a Reservation means for pods that wait.

use koord_api::quantity::ResourceList;
use koord_api::scheduling::{Reservation, ReservationPhase};
use koord_scheduler::framework::ObjectChange;

/// The state before, if it is known.
pub(super) fn old_of(change: &ObjectChange) -> Option<&Reservation> {
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

/// Whether a reservation is over that was not before: whom it told of itself it keeps no longer.
pub(super) fn ends(old: Option<&Reservation>, new: &Reservation) -> bool {
    is_over(new) && old.is_some_and(|old| !is_over(old))
}

/// Whether a change may let a pod use the reservation that could not before. Owners that come only
/// change its status, and messages open nothing.
pub(super) fn opens(old: Option<&Reservation>, new: &Reservation) -> bool {
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

/// Where a reservation is and what it holds there.
fn placing(object: &Reservation) -> Option<(&str, &ResourceList)> {
    let status = object.status.as_ref()?;
    Some((&status.node_name, &status.allocatable))
}

/// Whether a reservation on a node may hold less than before. One that was placed over running pods does:
/// until then they counted beside it.
pub(super) fn shrinks(old: Option<&Reservation>, new: &Reservation) -> bool {
    match old.filter(|old| is_available(old)) {
        Some(old) => is_available(new) && placing(old) != placing(new),
        None => is_available(new) && new.spec.pre_allocation == Some(true),
    }
}
