//! Trimmed forms of claims, volumes and attachments for informers. The plugins read only a small part of
//! these objects, for example not the sources of about thirty storage types, and there are as many objects as
//! pods with data.

use super::limits::in_tree_disk;
use super::storage::{bytes, class_of};
use super::{Key, annotation};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use koord_scheduler::Cacheable;
use std::collections::BTreeMap;

/// Annotation with the node for which a claim's volume is to be provisioned.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation that marks a claim as bound completely by the controller.
const COMPLETE: &str = "pv.kubernetes.io/bind-completed";

fn text(text: Option<String>) -> Box<str> {
    text.unwrap_or_default().into()
}

fn texts(texts: Option<Vec<String>>) -> Box<[Box<str>]> {
    let texts = texts.into_iter().flatten();
    texts.map(Box::from).collect()
}

/// Returns the volume mode; `None` for the default, `Filesystem`.
fn mode(mode: Option<String>) -> Option<Box<str>> {
    mode.filter(|mode| mode != "Filesystem").map(Box::from)
}

/// Name, uid and version of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ObjectNames {
    /// Empty for cluster-scoped objects.
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) uid: Option<Box<str>>,
    pub(super) resource_version: Option<Box<str>>,
}

impl ObjectNames {
    fn take_from(meta: &mut ObjectMeta) -> Self {
        Self {
            namespace: text(meta.namespace.take()),
            name: text(meta.name.take()),
            uid: meta.uid.take().map(Box::from),
            resource_version: meta.resource_version.take().map(Box::from),
        }
    }

    /// Returns `namespace/name`, or the name of a cluster-scoped object.
    pub(super) fn key(&self) -> Key {
        if self.namespace.is_empty() {
            return self.name.to_string();
        }
        format!("{}/{}", self.namespace, self.name)
    }
}

macro_rules! mirrored {
    ($($trimmed:ty),*) => {$(
        impl Cacheable for $trimmed {
            fn names(&self) -> (&str, &str) {
                (&self.names.namespace, &self.names.name)
            }
            fn is_same(&self, other: &Self) -> bool {
                self.names.uid == other.names.uid
            }
            fn resource_version(&self) -> Option<&str> {
                self.names.resource_version.as_deref()
            }
        }
    )*};
}

mirrored!(TrimmedClaim, TrimmedVolume, TrimmedAttachment);

/// Trimmed PersistentVolumeClaim.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TrimmedClaim {
    pub(super) names: ObjectNames,
    /// True if it is being deleted.
    pub(super) deleting: bool,
    /// Uids of its controllers.
    pub(super) controllers: Box<[Box<str>]>,
    /// Storage class; empty if it names none.
    pub(super) class: Box<str>,
    /// Name of its volume; empty if it names none.
    pub(super) volume: Box<str>,
    /// Requested storage in bytes, if set.
    pub(super) request: Option<i64>,
    pub(super) access_modes: Box<[Box<str>]>,
    /// Volume mode; `None` for `Filesystem`.
    pub(super) mode: Option<Box<str>>,
    /// Volume attributes class; empty if it names none.
    pub(super) attributes_class: Box<str>,
    pub(super) selector: Option<LabelSelector>,
    /// Node for which its volume is to be provisioned.
    pub(super) selected_node: Option<Box<str>>,
    /// True if the controller has finished binding it.
    pub(super) complete: bool,
    /// True if its volume was lost.
    pub(super) lost: bool,
}

impl From<PersistentVolumeClaim> for TrimmedClaim {
    fn from(claim: PersistentVolumeClaim) -> Self {
        let (mut meta, status) = (claim.metadata, claim.status);
        let spec = claim.spec.unwrap_or_default();
        let owners = meta.owner_references.iter().flatten();
        let controllers = owners.filter(|owner| owner.controller == Some(true));
        let requests = spec.resources.and_then(|resources| resources.requests);
        let storage = requests.and_then(|mut all| all.remove("storage"));
        Self {
            deleting: meta.deletion_timestamp.is_some(),
            controllers: controllers.map(|owner| owner.uid.as_str().into()).collect(),
            class: class_of(&meta, spec.storage_class_name),
            volume: text(spec.volume_name),
            request: storage.map(|storage| bytes(Some(&storage))),
            access_modes: texts(spec.access_modes),
            mode: mode(spec.volume_mode),
            attributes_class: text(spec.volume_attributes_class_name),
            selector: spec.selector,
            selected_node: annotation(&meta, SELECTED_NODE).map(Box::from),
            complete: annotation(&meta, COMPLETE).is_some(),
            lost: status.is_some_and(|status| status.phase.as_deref() == Some("Lost")),
            names: ObjectNames::take_from(&mut meta),
        }
    }
}

impl TrimmedClaim {
    /// Returns true if the controller has finished binding it.
    pub(super) fn is_fully_bound(&self) -> bool {
        !self.volume.is_empty() && self.complete
    }
}

/// Claim that a volume names.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ClaimRef {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    /// Empty if the volume does not set it.
    pub(super) uid: Box<str>,
}

/// Location of a volume's data.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Disk {
    /// Managed by a CSI driver.
    Csi { driver: Box<str>, handle: Box<str> },
    /// Managed by one of the in-tree plugins that CSI drivers replaced.
    InTree {
        plugin: &'static str,
        handle: Box<str>,
    },
}

/// Trimmed PersistentVolume.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TrimmedVolume {
    pub(super) names: ObjectNames,
    /// True if it is being deleted.
    pub(super) deleting: bool,
    pub(super) labels: BTreeMap<String, String>,
    /// Storage class; empty if it names none.
    pub(super) class: Box<str>,
    /// Capacity in bytes.
    pub(super) capacity: i64,
    pub(super) access_modes: Box<[Box<str>]>,
    /// Volume mode; `None` for `Filesystem`.
    pub(super) mode: Option<Box<str>>,
    /// Volume attributes class; empty if it names none.
    pub(super) attributes_class: Box<str>,
    /// Terms that match the nodes that can reach it; `None` if all can.
    pub(super) reachable: Option<Box<[NodeSelectorTerm]>>,
    pub(super) claim: Option<Box<ClaimRef>>,
    /// True if its phase is `Available`.
    pub(super) available: bool,
    pub(super) disk: Option<Disk>,
}

impl From<PersistentVolume> for TrimmedVolume {
    fn from(volume: PersistentVolume) -> Self {
        let (mut meta, status) = (volume.metadata, volume.status);
        let spec = volume.spec.unwrap_or_default();
        let disk = match &spec.csi {
            Some(csi) => Some(Disk::Csi {
                driver: csi.driver.as_str().into(),
                handle: csi.volume_handle.as_str().into(),
            }),
            None => in_tree_disk(&spec),
        };
        let required = spec.node_affinity.and_then(|affinity| affinity.required);
        let storage = spec.capacity.as_ref().and_then(|all| all.get("storage"));
        let claim = |claim: k8s_openapi::api::core::v1::ObjectReference| ClaimRef {
            namespace: text(claim.namespace),
            name: text(claim.name),
            uid: text(claim.uid),
        };
        Self {
            deleting: meta.deletion_timestamp.is_some(),
            class: class_of(&meta, spec.storage_class_name),
            labels: meta.labels.take().unwrap_or_default(),
            capacity: bytes(storage),
            access_modes: texts(spec.access_modes),
            mode: mode(spec.volume_mode),
            attributes_class: text(spec.volume_attributes_class_name),
            reachable: required.map(|required| required.node_selector_terms.into()),
            claim: spec.claim_ref.map(|reference| Box::new(claim(reference))),
            available: status.is_some_and(|status| status.phase.as_deref() == Some("Available")),
            disk,
            names: ObjectNames::take_from(&mut meta),
        }
    }
}

impl TrimmedVolume {
    /// Returns true if no claim is set and the volume can be bound to one.
    pub(super) fn is_free(&self) -> bool {
        self.claim.is_none() && self.available
    }

    /// Returns the key of the claim that it names, if any.
    pub(super) fn claim_key(&self) -> Option<Key> {
        let claim = self.claim.as_ref()?;
        Some(format!("{}/{}", claim.namespace, claim.name))
    }
}

/// Trimmed VolumeAttachment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TrimmedAttachment {
    pub(super) names: ObjectNames,
    pub(super) node: Box<str>,
    /// Name of the PersistentVolume; `None` for an inline volume.
    pub(super) volume: Option<Box<str>>,
}

impl From<VolumeAttachment> for TrimmedAttachment {
    fn from(attachment: VolumeAttachment) -> Self {
        let (mut meta, spec) = (attachment.metadata, attachment.spec);
        Self {
            names: ObjectNames::take_from(&mut meta),
            node: spec.node_name.into(),
            volume: spec.source.persistent_volume_name.map(Box::from),
        }
    }
}
