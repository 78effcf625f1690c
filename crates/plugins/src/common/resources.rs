//! Classification of resources for scoring.

use koord_model::resources::{self, CPU, MEMORY, PODS, ResourceId};

/// Returns true for scalar resources, which count for scoring only when the pod requests them: all but the
/// four native resources.
pub(crate) fn is_scalar(id: ResourceId) -> bool {
    !matches!(id, CPU | MEMORY | PODS | resources::EPHEMERAL_STORAGE)
}
