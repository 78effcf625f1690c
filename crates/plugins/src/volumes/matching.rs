//! Which volume a claim can have on a node: pure functions of objects.

use super::storage::{bytes, claim_class, claim_ref, request, volume_class};
use crate::node_affinity::any_term;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use koord_scheduler::framework::Signature;
use koord_scheduler::state::NodeInfo;
use std::collections::BTreeMap;

/// A claim as a volume refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimId {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl ClaimId {
    pub(super) fn of(claim: &PersistentVolumeClaim) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            namespace: text(&claim.metadata.namespace),
            name: text(&claim.metadata.name),
            uid: text(&claim.metadata.uid),
        }
    }
}

/// Whether the node is one on which the volume can be reached.
pub(super) fn reachable(volume: &PersistentVolume, node: &NodeInfo) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    match affinity.and_then(|affinity| affinity.required.as_ref()) {
        Some(required) => any_term(&required.node_selector_terms, node),
        None => true,
    }
}

/// Whether the volume is meant for this claim; `assumed` stands in for what the object says.
pub(super) fn meant_for(
    volume: &PersistentVolume,
    assumed: Option<&ClaimId>,
    claim: &ClaimId,
) -> Option<bool> {
    if let Some(assumed) = assumed {
        return Some(assumed == claim);
    }
    let of = claim_ref(volume)?;
    let same = |field: &Option<String>, text: &str| field.as_deref().unwrap_or_default() == text;
    let uid = of.uid.as_deref().unwrap_or_default();
    Some(
        same(&of.namespace, &claim.namespace)
            && same(&of.name, &claim.name)
            && (uid.is_empty() || uid == claim.uid),
    )
}

fn mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

/// Whether the volume offers what the claim asks for, apart from where it is.
pub(super) fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(has), Some(wants)) = (&volume.spec, &claim.spec) else {
        return false;
    };
    let capacity = has.capacity.as_ref().and_then(|all| all.get("storage"));
    let attributes = |class: &Option<String>| class.clone().unwrap_or_default();
    bytes(capacity) >= request(claim).unwrap_or(0)
        && mode(has.volume_mode.as_ref()) == mode(wants.volume_mode.as_ref())
        && attributes(&has.volume_attributes_class_name)
            == attributes(&wants.volume_attributes_class_name)
        && volume.metadata.deletion_timestamp.is_none()
}

/// Whether a volume that is nobody's yet may become the claim's.
fn available(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    let spec = claim.spec.as_ref();
    let nothing = BTreeMap::new();
    let labels = volume.metadata.labels.as_ref().unwrap_or(&nothing);
    let selector = spec.and_then(|spec| spec.selector.as_ref());
    let selected = selector
        .is_none_or(|selector| koord_api::selector::matches(selector, labels).unwrap_or(false));
    let modes = |list: Option<&Vec<String>>| list.cloned().unwrap_or_default();
    let offered = modes(volume.spec.as_ref().and_then(|s| s.access_modes.as_ref()));
    let asked = modes(spec.and_then(|spec| spec.access_modes.as_ref()));
    phase == Some("Available")
        && selected
        && volume_class(volume) == claim_class(claim)
        && asked.iter().all(|mode| offered.contains(mode))
}

/// Whether the volume, which is nobody's, is one for `claim` on `node`.
pub(super) fn serves(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
) -> bool {
    suits(volume, claim) && reachable(volume, node) && available(volume, claim)
}

/// Writes what [`serves`] reads of a claim, its class and request apart.
pub(super) fn sign(claim: &PersistentVolumeClaim, signature: &mut Signature) {
    let Some(spec) = &claim.spec else {
        return signature.flag(false);
    };
    signature.flag(true);
    signature.text(mode(spec.volume_mode.as_ref()));
    let attributes = spec.volume_attributes_class_name.as_deref();
    signature.text(attributes.unwrap_or_default());
    signature.texts(spec.access_modes.as_deref().unwrap_or_default());
    let selector = spec.selector.as_ref();
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
