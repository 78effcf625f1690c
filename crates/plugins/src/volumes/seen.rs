//! Claims, volumes and attachments as informers keep them: what the rules read of them. Most of what
//! such objects are, the sources of thirty kinds of storage before all, is read by nobody here, and
//! there are as many of them as there are pods with data.

use super::limits::in_tree;
use super::storage::{bytes, class_of};
use super::{Key, annotation};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use koord_scheduler::Mirrored;
use std::collections::BTreeMap;

/// Names the node for which a claim's volume is to be made.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Says that the controller has finished binding the claim.
const COMPLETE: &str = "pv.kubernetes.io/bind-completed";

fn text(text: Option<String>) -> Box<str> {
    text.unwrap_or_default().into()
}

fn texts(texts: Option<Vec<String>>) -> Box<[Box<str>]> {
    let texts = texts.into_iter().flatten();
    texts.map(Box::from).collect()
}

/// `None` for `Filesystem`, which is what is meant when nothing is said.
fn mode(mode: Option<String>) -> Option<Box<str>> {
    mode.filter(|mode| mode != "Filesystem").map(Box::from)
}

/// What an object is called, and which state of it this is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Names {
    /// Empty of what has no namespace.
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) uid: Option<Box<str>>,
    pub(super) resource_version: Option<Box<str>>,
}

impl Names {
    fn of(meta: &mut ObjectMeta) -> Self {
        Self {
            namespace: text(meta.namespace.take()),
            name: text(meta.name.take()),
            uid: meta.uid.take().map(Box::from),
            resource_version: meta.resource_version.take().map(Box::from),
        }
    }

    /// `namespace/name`, or the name of what has no namespace.
    pub(super) fn key(&self) -> Key {
        if self.namespace.is_empty() {
            return self.name.to_string();
        }
        format!("{}/{}", self.namespace, self.name)
    }
}

macro_rules! mirrored {
    ($($kept:ty),*) => {$(
        impl Mirrored for $kept {
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

mirrored!(SeenClaim, SeenVolume, SeenAttachment);

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SeenClaim {
    pub(super) names: Names,
    /// It is being deleted.
    pub(super) leaving: bool,
    /// The uids of those that control it.
    pub(super) controllers: Box<[Box<str>]>,
    /// Empty when it names none.
    pub(super) class: Box<str>,
    /// The volume that it names; empty when it names none.
    pub(super) volume: Box<str>,
    /// The storage that it asks for in bytes, if it says.
    pub(super) request: Option<i64>,
    pub(super) access_modes: Box<[Box<str>]>,
    /// `None` for `Filesystem`.
    pub(super) mode: Option<Box<str>>,
    /// Of its attributes; empty when it names none.
    pub(super) attributes_class: Box<str>,
    pub(super) selector: Option<LabelSelector>,
    /// The node for which its volume is to be made.
    pub(super) selected_node: Option<Box<str>>,
    /// The controller has finished binding it.
    pub(super) complete: bool,
    /// Its volume is gone.
    pub(super) lost: bool,
}

impl From<PersistentVolumeClaim> for SeenClaim {
    fn from(claim: PersistentVolumeClaim) -> Self {
        let (mut meta, status) = (claim.metadata, claim.status);
        let spec = claim.spec.unwrap_or_default();
        let owners = meta.owner_references.iter().flatten();
        let controllers = owners.filter(|owner| owner.controller == Some(true));
        let requests = spec.resources.and_then(|resources| resources.requests);
        let storage = requests.and_then(|mut all| all.remove("storage"));
        Self {
            leaving: meta.deletion_timestamp.is_some(),
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
            names: Names::of(&mut meta),
        }
    }
}

impl SeenClaim {
    /// Whether the controller has finished binding it.
    pub(super) fn is_fully_bound(&self) -> bool {
        !self.volume.is_empty() && self.complete
    }
}

/// The claim that a volume names.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ClaimRef {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    /// Empty when it does not say.
    pub(super) uid: Box<str>,
}

/// Where the data of a volume is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Disk {
    /// With a CSI driver.
    Csi { driver: Box<str>, handle: Box<str> },
    /// With a plugin in the tree of Kubernetes, of those that moved to drivers.
    InTree {
        plugin: &'static str,
        handle: Box<str>,
    },
}

/// A PersistentVolume.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SeenVolume {
    pub(super) names: Names,
    /// It is being deleted.
    pub(super) leaving: bool,
    pub(super) labels: BTreeMap<String, String>,
    /// Empty when it names none.
    pub(super) class: Box<str>,
    /// In bytes.
    pub(super) capacity: i64,
    pub(super) access_modes: Box<[Box<str>]>,
    /// `None` for `Filesystem`.
    pub(super) mode: Option<Box<str>>,
    /// Of its attributes; empty when it names none.
    pub(super) attributes_class: Box<str>,
    /// Which nodes can reach it; all, when it does not say.
    pub(super) reachable: Option<Box<[NodeSelectorTerm]>>,
    pub(super) claim: Option<Box<ClaimRef>>,
    /// Its phase is `Available`.
    pub(super) available: bool,
    pub(super) disk: Option<Disk>,
}

impl From<PersistentVolume> for SeenVolume {
    fn from(volume: PersistentVolume) -> Self {
        let (mut meta, status) = (volume.metadata, volume.status);
        let spec = volume.spec.unwrap_or_default();
        let disk = match &spec.csi {
            Some(csi) => Some(Disk::Csi {
                driver: csi.driver.as_str().into(),
                handle: csi.volume_handle.as_str().into(),
            }),
            None => in_tree(&spec),
        };
        let required = spec.node_affinity.and_then(|affinity| affinity.required);
        let storage = spec.capacity.as_ref().and_then(|all| all.get("storage"));
        let claim = |claim: k8s_openapi::api::core::v1::ObjectReference| ClaimRef {
            namespace: text(claim.namespace),
            name: text(claim.name),
            uid: text(claim.uid),
        };
        Self {
            leaving: meta.deletion_timestamp.is_some(),
            class: class_of(&meta, spec.storage_class_name),
            labels: meta.labels.take().unwrap_or_default(),
            capacity: bytes(storage),
            access_modes: texts(spec.access_modes),
            mode: mode(spec.volume_mode),
            attributes_class: text(spec.volume_attributes_class_name),
            reachable: required.map(|required| required.node_selector_terms.into()),
            claim: spec.claim_ref.map(|of| Box::new(claim(of))),
            available: status.is_some_and(|status| status.phase.as_deref() == Some("Available")),
            disk,
            names: Names::of(&mut meta),
        }
    }
}

impl SeenVolume {
    /// Whether it is nobody's, and can become somebody's.
    pub(super) fn is_free(&self) -> bool {
        self.claim.is_none() && self.available
    }

    /// The claim that it names, if it names one.
    pub(super) fn claim_key(&self) -> Option<Key> {
        let claim = self.claim.as_ref()?;
        Some(format!("{}/{}", claim.namespace, claim.name))
    }
}

/// A VolumeAttachment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SeenAttachment {
    pub(super) names: Names,
    pub(super) node: Box<str>,
    /// The PersistentVolume, where it is one.
    pub(super) volume: Option<Box<str>>,
}

impl From<VolumeAttachment> for SeenAttachment {
    fn from(attachment: VolumeAttachment) -> Self {
        let (mut meta, spec) = (attachment.metadata, attachment.spec);
        Self {
            names: Names::of(&mut meta),
            node: spec.node_name.into(),
            volume: spec.source.persistent_volume_name.map(Box::from),
        }
    }
}
