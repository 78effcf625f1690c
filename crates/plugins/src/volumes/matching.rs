//! Matching of volumes and claims, as pure functions of the objects.

use super::trimmed::{TrimmedClaim, TrimmedVolume};
use crate::common::node_selector::any_term;
use k8s_openapi::api::storage::v1::StorageClass;
use koord_scheduler::framework::Signature;
use koord_scheduler::state::NodeInfo;
use std::collections::BTreeMap;

/// Claim in the form in which a volume refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimId {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) uid: Box<str>,
}

impl ClaimId {
    pub(super) fn from_claim(claim: &TrimmedClaim) -> Self {
        Self {
            namespace: claim.names.namespace.clone(),
            name: claim.names.name.clone(),
            uid: claim.names.uid.clone().unwrap_or_default(),
        }
    }
}

/// Returns true if `node` can reach the volume.
pub(super) fn is_reachable(volume: &TrimmedVolume, node: &NodeInfo) -> bool {
    let terms = volume.reachable.as_deref();
    terms.is_none_or(|terms| any_term(terms, node))
}

/// Returns whether the volume is reserved for `claim`, or `None` if it is not reserved. An `assumed` claim
/// overrides the one in the object.
pub(super) fn is_reserved_for(
    volume: &TrimmedVolume,
    assumed: Option<&ClaimId>,
    claim: &ClaimId,
) -> Option<bool> {
    if let Some(assumed) = assumed {
        return Some(assumed == claim);
    }
    let reference = volume.claim.as_ref()?;
    Some(
        reference.namespace == claim.namespace
            && reference.name == claim.name
            && (reference.uid.is_empty() || reference.uid == claim.uid),
    )
}

/// Returns true if the volume meets the claim's requirements, regardless of where it is.
pub(super) fn meets_claim(volume: &TrimmedVolume, claim: &TrimmedClaim) -> bool {
    volume.capacity >= claim.request.unwrap_or(0)
        && volume.mode == claim.mode
        && volume.attributes_class == claim.attributes_class
        && !volume.deleting
}

/// Returns true if a free volume may be bound to the claim.
fn can_bind(volume: &TrimmedVolume, claim: &TrimmedClaim) -> bool {
    let selects =
        |selector| koord_api::selector::matches(selector, &volume.labels).unwrap_or(false);
    let mut modes = claim.access_modes.iter();
    volume.available
        && claim.selector.as_ref().is_none_or(selects)
        && volume.class == claim.class
        && modes.all(|mode| volume.access_modes.contains(mode))
}

/// Returns true if a free volume can serve `claim` on `node`.
pub(super) fn can_serve(volume: &TrimmedVolume, claim: &TrimmedClaim, node: &NodeInfo) -> bool {
    meets_claim(volume, claim) && is_reachable(volume, node) && can_bind(volume, claim)
}

/// Writes the fields of a claim that [`can_serve`] reads to `signature`, except for class and request.
pub(super) fn sign(claim: &TrimmedClaim, signature: &mut Signature) {
    signature.text(claim.mode.as_deref().unwrap_or_default());
    signature.text(&claim.attributes_class);
    signature.texts(&claim.access_modes);
    let selector = claim.selector.as_ref();
    let labels = selector.and_then(|selector| selector.match_labels.as_ref());
    signature.count(labels.map_or(0, BTreeMap::len));
    for (label, value) in labels.into_iter().flatten() {
        signature.text(label);
        signature.text(value);
    }
    let rules = selector.and_then(|selector| selector.match_expressions.as_deref());
    let rules = rules.unwrap_or_default();
    signature.count(rules.len());
    for rule in rules {
        signature.text(&rule.key);
        signature.text(&rule.operator);
        signature.texts(rule.values.as_deref().unwrap_or_default());
    }
}

/// Returns true if volumes that the class provisions can be reached from `node`.
pub(super) fn topology_allows(class: &StorageClass, node: &NodeInfo) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let labels = term.match_label_expressions.as_deref().unwrap_or_default();
            let matches = |key: &str, values: &[String]| {
                node.label(key)
                    .is_some_and(|value| values.iter().any(|listed| listed == value))
            };
            !labels.is_empty()
                && labels
                    .iter()
                    .all(|label| matches(&label.key, &label.values))
        })
}
