//! Which volume a claim can have on a node: pure functions of objects.

use super::seen::{SeenClaim, SeenVolume};
use crate::common::node_selector::any_term;
use k8s_openapi::api::storage::v1::StorageClass;
use koord_scheduler::framework::Signature;
use koord_scheduler::state::NodeInfo;
use std::collections::BTreeMap;

/// A claim as a volume refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimId {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) uid: Box<str>,
}

impl ClaimId {
    pub(super) fn of(claim: &SeenClaim) -> Self {
        Self {
            namespace: claim.names.namespace.clone(),
            name: claim.names.name.clone(),
            uid: claim.names.uid.clone().unwrap_or_default(),
        }
    }
}

/// Whether the node is one on which the volume can be reached.
pub(super) fn reachable(volume: &SeenVolume, node: &NodeInfo) -> bool {
    let terms = volume.reachable.as_deref();
    terms.is_none_or(|terms| any_term(terms, node))
}

/// Whether the volume is meant for this claim; `assumed` stands in for what the object says.
pub(super) fn meant_for(
    volume: &SeenVolume,
    assumed: Option<&ClaimId>,
    claim: &ClaimId,
) -> Option<bool> {
    if let Some(assumed) = assumed {
        return Some(assumed == claim);
    }
    let of = volume.claim.as_ref()?;
    Some(
        of.namespace == claim.namespace
            && of.name == claim.name
            && (of.uid.is_empty() || of.uid == claim.uid),
    )
}

/// Whether the volume offers what the claim asks for, apart from where it is.
pub(super) fn suits(volume: &SeenVolume, claim: &SeenClaim) -> bool {
    volume.capacity >= claim.request.unwrap_or(0)
        && volume.mode == claim.mode
        && volume.attributes_class == claim.attributes_class
        && !volume.leaving
}

/// Whether a volume that is nobody's yet may become the claim's.
fn available(volume: &SeenVolume, claim: &SeenClaim) -> bool {
    let selects =
        |selector| koord_api::selector::matches(selector, &volume.labels).unwrap_or(false);
    let mut asked = claim.access_modes.iter();
    volume.available
        && claim.selector.as_ref().is_none_or(selects)
        && volume.class == claim.class
        && asked.all(|mode| volume.access_modes.contains(mode))
}

/// Whether the volume, which is nobody's, is one for `claim` on `node`.
pub(super) fn serves(volume: &SeenVolume, claim: &SeenClaim, node: &NodeInfo) -> bool {
    suits(volume, claim) && reachable(volume, node) && available(volume, claim)
}

/// Writes what [`serves`] reads of a claim, its class and request apart.
pub(super) fn sign(claim: &SeenClaim, signature: &mut Signature) {
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

/// Whether the class makes volumes that are reachable from the node.
pub(super) fn topology_allows(class: &StorageClass, node: &NodeInfo) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let labels = term.match_label_expressions.as_deref().unwrap_or_default();
            let met = |key: &str, values: &[String]| {
                node.label(key)
                    .is_some_and(|value| values.iter().any(|listed| listed == value))
            };
            !labels.is_empty() && labels.iter().all(|label| met(&label.key, &label.values))
        })
}
