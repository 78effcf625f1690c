//! Annotations of an attempt that failed.

use koord_scheduler::framework::PodPatch;
use koord_scheduler::state::PodInfo;

/// What an annotation says that says nothing; a key cannot be taken back with a binding.
const NOTHING: &str = "{}";

/// Takes back annotation `key` of a pod that is given nothing. It is left from an attempt that failed,
/// or was copied, and would count as given.
pub(crate) fn take_back(pod: &PodInfo, key: &str, patch: &mut PodPatch) {
    if pod.annotation(key).is_some_and(|text| text != NOTHING) {
        patch.annotations.insert(key.to_owned(), NOTHING.to_owned());
    }
}
