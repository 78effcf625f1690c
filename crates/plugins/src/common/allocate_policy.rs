//! Allocate policies of reservations, indexed once for all plugins that allocate reserved resources.

use crate::common::trim::Trimmer;
use koord_api::annotations;
use koord_api::extension::{self, AnnotationError, ReservationAllocated};
use koord_api::scheduling::{Reservation, ReservationAllocatePolicy};
use koord_scheduler::framework::{Action, Effects, Index, IndexKind, ObjectChange, View};
use koord_scheduler::state::PodInfo;
use koord_scheduler::{Watch, event_names};
use rustc_hash::FxHashMap;

/// Kind of Reservation.
pub(crate) const RESERVATIONS: &str = "reservations.v1alpha1.scheduling.koordinator.sh";

/// Returns the watch of reservations, shared by all plugins that need them.
pub(crate) fn watch() -> Watch {
    Watch::trimmed::<Reservation, Trimmer>(RESERVATIONS).counted_as(event_names!(
        "reservations.v1alpha1.scheduling.koordinator.sh"
    ))
}

/// Returns the index that [`policy`] reads.
pub(crate) fn index() -> IndexKind {
    IndexKind::new::<AllocatePolicies>()
}

/// Allocate policy of a reservation: where its owner pods get their resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocatePolicy {
    /// Resources come from the reservation and the node. Cannot be combined with reservations of another policy.
    Default,
    /// Resources come from the reservation and the node.
    Aligned,
    /// Restricted resources come from the reservation only.
    Restricted,
}

impl AllocatePolicy {
    /// Returns the allocate policy of `object`.
    pub(crate) fn from_reservation(object: &Reservation) -> Self {
        match &object.spec.allocate_policy {
            Some(ReservationAllocatePolicy::Aligned) => Self::Aligned,
            Some(ReservationAllocatePolicy::Restricted) => Self::Restricted,
            _ => Self::Default,
        }
    }
}

/// Returns the allocate policy of the reservation with this uid; `Default` if the reservation is unknown.
pub(crate) fn policy(view: View<'_>, uid: &str) -> AllocatePolicy {
    let policies = view.index::<AllocatePolicies>();
    let policy = policies.and_then(|policies| policies.by_uid.get(uid));
    policy.copied().unwrap_or(AllocatePolicy::Default)
}

/// Returns true if owners of the reservation with this uid get the resources it reserves only from it.
pub(crate) fn is_restricted(view: View<'_>, uid: &str) -> bool {
    policy(view, uid) == AllocatePolicy::Restricted
}

/// Parsed annotation that names the reservation a pod uses. Cached per pod.
struct AllocatedReservation(Result<Option<ReservationAllocated>, AnnotationError>);

/// Returns the reservation that `pod` uses according to its annotation; an entry without a uid counts as
/// none.
///
/// # Errors
/// The annotation is invalid.
pub(crate) fn allocated(pod: &PodInfo) -> Result<Option<&ReservationAllocated>, &AnnotationError> {
    let key = annotations::RESERVATION_ALLOCATED;
    if pod.annotation(key).is_none_or(str::is_empty) {
        return Ok(None);
    }
    let allocated = pod.facet(|pod| {
        let parsed = extension::parse(key, pod.annotation(key));
        AllocatedReservation(parsed.map(|allocated: Option<ReservationAllocated>| {
            allocated.filter(|it| !it.uid.is_empty())
        }))
    });
    allocated.0.as_ref().map(Option::as_ref)
}

/// Allocate policies by reservation uid.
#[derive(Debug, Default)]
struct AllocatePolicies {
    by_uid: FxHashMap<String, AllocatePolicy>,
}

impl Index for AllocatePolicies {
    fn on_object(&mut self, change: &ObjectChange, fx: &mut Effects) {
        let Some(object) = change.new_as::<Reservation>() else {
            return;
        };
        let before = change
            .old
            .as_ref()
            .and_then(|old| old.downcast_ref::<Reservation>());
        let before = before.and_then(|old| old.metadata.uid.as_deref());
        if let Some(before) = before.filter(|before| object.metadata.uid.as_deref() != Some(before))
        {
            // Deleted and recreated under the same name between two updates.
            self.by_uid.remove(before);
        }
        let Some(uid) = object.metadata.uid.as_deref() else {
            return;
        };
        if change.action == Action::DELETE {
            // The pods it holds go with it, and their removal touches its node.
            self.by_uid.remove(uid);
            return;
        }
        let policy = AllocatePolicy::from_reservation(object);
        let before = self.by_uid.insert(uid.to_owned(), policy);
        // The reservation may be on any node, and pods of one equivalence class may request it there.
        fx.touch_all |= before.is_some_and(|before| before != policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn recreated_reservation_replaces_the_old_uid() {
        let mut policies = AllocatePolicies::default();
        let object = |uid: &str| {
            let object = json!({"metadata": {"name": "r", "uid": uid},
                "spec": {"allocatePolicy": "Restricted", "owners": [], "template": {}}});
            Arc::new(serde_json::from_value::<Reservation>(object).unwrap())
        };
        let mut apply = |action, old: Option<&str>, new: &str| {
            let change = ObjectChange {
                kind: RESERVATIONS,
                action,
                old: old.map(|uid| object(uid) as _),
                new: object(new),
            };
            policies.on_object(&change, &mut Effects::default());
            let mut uids: Vec<_> = policies.by_uid.keys().cloned().collect();
            uids.sort_unstable();
            uids
        };
        assert_eq!(apply(Action::ADD, None, "u"), ["u"]);
        assert_eq!(apply(Action::UPDATE, Some("u"), "u"), ["u"]);
        assert_eq!(apply(Action::UPDATE, Some("u"), "v"), ["v"]);
    }

    #[test]
    fn changed_policy_touches_all_nodes() {
        let mut policies = AllocatePolicies::default();
        let mut apply = |action, policy: &str| {
            let object: Reservation = serde_json::from_value(json!({
                "metadata": {"name": "r", "uid": "u"},
                "spec": {"allocatePolicy": policy, "owners": [], "template": {}}
            }))
            .unwrap();
            let change = ObjectChange {
                kind: RESERVATIONS,
                action,
                old: None,
                new: Arc::new(object),
            };
            let mut fx = Effects::default();
            policies.on_object(&change, &mut fx);
            (policies.by_uid.get("u").copied(), fx.touch_all)
        };
        use AllocatePolicy::{Aligned, Default as Plain, Restricted};
        for (action, policy, stored, touches) in [
            (Action::ADD, "Aligned", Some(Aligned), false),
            (Action::UPDATE, "Restricted", Some(Restricted), true),
            (Action::UPDATE, "Restricted", Some(Restricted), false),
            (Action::UPDATE, "Aligned", Some(Aligned), true),
            (Action::DELETE, "Aligned", None, false),
            (Action::ADD, "Restricted", Some(Restricted), false),
            (Action::UPDATE, "", Some(Plain), true),
        ] {
            assert_eq!(
                apply(action, policy),
                (stored, touches),
                "{action:?} {policy}"
            );
        }
    }
}
