//! Signature of tolerations.

use k8s_openapi::api::core::v1::Toleration;
use koord_scheduler::framework::Signature;

/// Writes the fields of `tolerations` that the scheduler reads to `signature`.
pub(crate) fn sign(tolerations: &[Toleration], signature: &mut Signature) {
    signature.count(tolerations.len());
    for toleration in tolerations {
        let Toleration {
            effect,
            key,
            operator,
            value,
            // Only the taint eviction controller reads the duration.
            toleration_seconds: _,
        } = toleration;
        for text in [effect, key, operator, value] {
            signature.text(text.as_deref().unwrap_or_default());
        }
    }
}
