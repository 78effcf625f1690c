//! Which resources count in scores.

use koord_model::resources::{self, CPU, MEMORY, PODS, ResourceId};

/// Whether a resource is a scalar one, which counts for scoring only when the pod asks for it:
/// everything but the four native resources.
pub(crate) fn is_scalar(id: ResourceId) -> bool {
    !matches!(id, CPU | MEMORY | PODS | resources::EPHEMERAL_STORAGE)
}
