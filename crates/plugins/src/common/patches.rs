//! Removal of annotations that an earlier, failed attempt left on a pod.

use koord_scheduler::framework::PodPatch;
use koord_scheduler::state::PodInfo;

/// Empty annotation value: a key cannot be removed together with a binding.
const NOTHING: &str = "{}";

/// Clears annotation `key` of a pod that gets no allocation. Otherwise a value that was copied, or left by a
/// failed attempt, would count as allocated.
pub(crate) fn clear_annotation(pod: &PodInfo, key: &str, patch: &mut PodPatch) {
    if pod.annotation(key).is_some_and(|text| text != NOTHING) {
        patch.annotations.insert(key.to_owned(), NOTHING.to_owned());
    }
}
