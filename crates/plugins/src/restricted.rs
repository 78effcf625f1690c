//! Which reservations give what they reserve alone: known once, for all plugins that hand out what is
//! reserved.

use koord_api::scheduling::{Reservation, ReservationAllocatePolicy};
use koord_scheduler::framework::{Action, Effects, Index, IndexKind, ObjectChange, View};
use koord_scheduler::{Watch, event_names};
use rustc_hash::FxHashMap;

pub(crate) const RESERVATIONS: &str = "reservations.v1alpha1.scheduling.koordinator.sh";

/// The kind, for all that watch it.
pub(crate) fn watch() -> Watch {
    Watch::of::<Reservation>(RESERVATIONS).counted_as(event_names!(
        "reservations.v1alpha1.scheduling.koordinator.sh"
    ))
}

/// The index, for those that ask [`is_restricted`].
pub(crate) fn index() -> IndexKind {
    IndexKind::of::<Policies>()
}

/// Whether the owners of the reservation with this uid get what it reserves from it alone. One that is
/// not known is not restricted.
pub(crate) fn is_restricted(view: View<'_>, uid: &str) -> bool {
    let policies = view.index::<Policies>();
    policies.is_some_and(|policies| policies.restricted.get(uid) == Some(&true))
}

/// By uid, whether a reservation is restricted.
#[derive(Debug, Default)]
struct Policies {
    restricted: FxHashMap<String, bool>,
}

impl Index for Policies {
    fn on_object(&mut self, change: &ObjectChange, fx: &mut Effects) {
        let Some(object) = change.new_as::<Reservation>() else {
            return;
        };
        let Some(uid) = object.metadata.uid.as_deref() else {
            return;
        };
        if change.action == Action::DELETE {
            // What it held goes with it, which touches its node.
            self.restricted.remove(uid);
            return;
        }
        let policy = object.spec.allocate_policy.as_ref();
        let restricted = policy == Some(&ReservationAllocatePolicy::Restricted);
        let before = self.restricted.insert(uid.to_owned(), restricted);
        // It may be on any node, with pods of the same shape asking for it.
        fx.touch_all |= before.is_some_and(|before| before != restricted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn a_policy_that_changes_touches_what_was_found_with_the_other() {
        let mut policies = Policies::default();
        let mut say = |action, policy: &str| {
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
            (policies.restricted.get("u").copied(), fx.touch_all)
        };
        for (action, policy, known, touches) in [
            (Action::ADD, "Aligned", Some(false), false),
            (Action::UPDATE, "Restricted", Some(true), true),
            (Action::UPDATE, "Restricted", Some(true), false),
            (Action::UPDATE, "Aligned", Some(false), true),
            (Action::DELETE, "Aligned", None, false),
            (Action::ADD, "Restricted", Some(true), false),
        ] {
            assert_eq!(say(action, policy), (known, touches), "{action:?} {policy}");
        }
    }
}
