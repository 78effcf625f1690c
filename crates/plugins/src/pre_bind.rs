//! `DefaultPreBind`: sends what the other pre-bind plugins collected.
//!
//! The patch is part of every binding request, so there is nothing to do here; the name must be
//! known because configurations list it.

use koord_scheduler::framework::{Plugin, PodPatch, Points};
use koord_scheduler::state::PodInfo;

pub(crate) const NAME: &str = "DefaultPreBind";

/// What an annotation says that says nothing; a key cannot be taken back with a binding.
const NOTHING: &str = "{}";

/// Takes back annotation `key` of a pod that is given nothing. It is left from an attempt that failed,
/// or was copied, and would count as given.
pub(crate) fn take_back(pod: &PodInfo, key: &str, patch: &mut PodPatch) {
    if pod.annotation(key).is_some_and(|text| text != NOTHING) {
        patch.annotations.insert(key.to_owned(), NOTHING.to_owned());
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct DefaultPreBind;

impl Plugin for DefaultPreBind {
    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_BIND
    }
}
