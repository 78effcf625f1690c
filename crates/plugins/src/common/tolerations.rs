//! How tolerations are signed.

use k8s_openapi::api::core::v1::Toleration;
use koord_scheduler::framework::Signature;

/// Writes everything that is read of `tolerations`.
pub(crate) fn sign(tolerations: &[Toleration], signature: &mut Signature) {
    signature.count(tolerations.len());
    for toleration in tolerations {
        let Toleration {
            effect,
            key,
            operator,
            value,
            // How long it holds matters to who evicts.
            toleration_seconds: _,
        } = toleration;
        for text in [effect, key, operator, value] {
            signature.text(text.as_deref().unwrap_or_default());
        }
    }
}
