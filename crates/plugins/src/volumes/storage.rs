//! Claims, volumes and what describes them, as the informers show them.

use super::{
    ATTACHMENTS, BETA_CLASS, CAPACITIES, CLAIMS, CLASSES, CSI_DRIVERS, CSI_NODES, Key, VOLUMES,
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_scheduler::framework::{Action, Effects, Index, ObjectChange};
use koord_scheduler::{Watch, event_names};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The objects that the volume plugins watch, by name, or by `namespace/name`.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) claims: FxHashMap<Key, Arc<PersistentVolumeClaim>>,
    pub(super) volumes: FxHashMap<String, Arc<PersistentVolume>>,
    pub(super) classes: FxHashMap<String, Arc<StorageClass>>,
    pub(super) csi_nodes: FxHashMap<String, Arc<CSINode>>,
    pub(super) csi_drivers: FxHashMap<String, Arc<CSIDriver>>,
    pub(super) capacities: BTreeMap<Key, Arc<CSIStorageCapacity>>,
    pub(super) attachments: FxHashMap<String, Arc<VolumeAttachment>>,
    /// Volumes by class.
    by_class: FxHashMap<String, BTreeSet<String>>,
    /// Attachments by node.
    by_node: FxHashMap<String, BTreeSet<String>>,
}

/// `namespace/name`, or the name of what has no namespace.
pub(super) fn key(meta: &ObjectMeta) -> Key {
    let name = meta.name.as_deref().unwrap_or_default();
    match meta.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    }
}

fn class_of(meta: &ObjectMeta, field: Option<&String>) -> String {
    let annotations = meta.annotations.as_ref();
    let beta = annotations.and_then(|annotations| annotations.get(BETA_CLASS));
    beta.or(field).cloned().unwrap_or_default()
}

/// The class of a claim; empty when it names none.
pub(super) fn claim_class(claim: &PersistentVolumeClaim) -> String {
    let field = claim
        .spec
        .as_ref()
        .and_then(|s| s.storage_class_name.as_ref());
    class_of(&claim.metadata, field)
}

/// The class of a volume; empty when it names none.
pub(super) fn volume_class(volume: &PersistentVolume) -> String {
    let field = volume
        .spec
        .as_ref()
        .and_then(|s| s.storage_class_name.as_ref());
    class_of(&volume.metadata, field)
}

/// The volume that a claim names; empty when it names none.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.volume_name.as_deref())
        .unwrap_or_default()
}

/// Bytes; 0 for what cannot be read.
pub(super) fn bytes(quantity: Option<&Quantity>) -> i64 {
    quantity
        .and_then(|quantity| koord_api::quantity::parse(quantity).ok())
        .map_or(0, |quantity| quantity.value())
}

/// The storage that a claim asks for, if it says.
pub(super) fn request(claim: &PersistentVolumeClaim) -> Option<i64> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    let storage = resources.requests.as_ref()?.get("storage")?;
    Some(bytes(Some(storage)))
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the controller has finished binding the claim.
pub(super) fn fully_bound(claim: &PersistentVolumeClaim) -> bool {
    !volume_name(claim).is_empty()
        && annotation(&claim.metadata, "pv.kubernetes.io/bind-completed").is_some()
}

pub(super) fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

fn apply<T: Send + Sync + 'static>(change: &ObjectChange, store: impl FnOnce(Option<Arc<T>>, &T)) {
    if let Ok(object) = Arc::downcast::<T>(change.new.clone()) {
        let kept = (change.action != Action::DELETE).then(|| object.clone());
        store(kept, &object);
    }
}

impl Index for Storage {
    fn on_object(&mut self, change: &ObjectChange, _fx: &mut Effects) {
        self.apply(change);
    }
}

impl Storage {
    /// How to watch these kinds.
    pub(super) fn watches(kinds: &[&str]) -> Vec<Watch> {
        let all = [
            Watch::of::<PersistentVolumeClaim>(CLAIMS)
                .counted_as(event_names!("PersistentVolumeClaim")),
            Watch::of::<PersistentVolume>(VOLUMES).counted_as(event_names!("PersistentVolume")),
            Watch::of::<StorageClass>(CLASSES)
                .counted_as(event_names!("storage.k8s.io/StorageClass")),
            Watch::of::<CSINode>(CSI_NODES).counted_as(event_names!("storage.k8s.io/CSINode")),
            Watch::of::<CSIDriver>(CSI_DRIVERS)
                .counted_as(event_names!("storage.k8s.io/CSIDriver")),
            Watch::of::<CSIStorageCapacity>(CAPACITIES)
                .counted_as(event_names!("storage.k8s.io/CSIStorageCapacity")),
            Watch::of::<VolumeAttachment>(ATTACHMENTS)
                .counted_as(event_names!("storage.k8s.io/VolumeAttachment")),
        ];
        all.into_iter()
            .filter(|watch| kinds.contains(&watch.kind()))
            .collect()
    }

    fn apply(&mut self, change: &ObjectChange) {
        fn put<T>(map: &mut FxHashMap<Key, Arc<T>>, meta: &ObjectMeta, kept: Option<Arc<T>>) {
            match kept {
                Some(object) => map.insert(key(meta), object),
                None => map.remove(&key(meta)),
            };
        }
        match change.kind {
            CLAIMS => apply(change, |kept, object: &PersistentVolumeClaim| {
                put(&mut self.claims, &object.metadata, kept);
            }),
            VOLUMES => apply(change, |kept, object: &PersistentVolume| {
                self.volume(kept, object);
            }),
            CLASSES => apply(change, |kept, object: &StorageClass| {
                put(&mut self.classes, &object.metadata, kept);
            }),
            CSI_NODES => apply(change, |kept, object: &CSINode| {
                put(&mut self.csi_nodes, &object.metadata, kept);
            }),
            CSI_DRIVERS => apply(change, |kept, object: &CSIDriver| {
                put(&mut self.csi_drivers, &object.metadata, kept);
            }),
            CAPACITIES => apply(change, |kept, object: &CSIStorageCapacity| {
                match kept {
                    Some(kept) => self.capacities.insert(key(&object.metadata), kept),
                    None => self.capacities.remove(&key(&object.metadata)),
                };
            }),
            ATTACHMENTS => apply(change, |kept, object: &VolumeAttachment| {
                let node = self
                    .by_node
                    .entry(object.spec.node_name.clone())
                    .or_default();
                match &kept {
                    Some(_) => node.insert(key(&object.metadata)),
                    None => node.remove(&key(&object.metadata)),
                };
                put(&mut self.attachments, &object.metadata, kept);
            }),
            _ => {}
        }
    }

    fn volume(&mut self, kept: Option<Arc<PersistentVolume>>, object: &PersistentVolume) {
        let name = key(&object.metadata);
        if let Some(old) = self.volumes.remove(&name)
            && let Some(names) = self.by_class.get_mut(&volume_class(&old))
        {
            names.remove(&name);
        }
        if let Some(volume) = kept {
            let class = self.by_class.entry(volume_class(&volume)).or_default();
            class.insert(name.clone());
            self.volumes.insert(name, volume);
        }
    }

    /// The volumes of a class, by name.
    pub(super) fn of_class(&self, class: &str) -> impl Iterator<Item = &Arc<PersistentVolume>> {
        let names = self.by_class.get(class).into_iter().flatten();
        names.filter_map(|name| self.volumes.get(name))
    }

    /// The volume attachments of a node.
    pub(super) fn attached(&self, node: &str) -> impl Iterator<Item = &Arc<VolumeAttachment>> {
        let names = self.by_node.get(node).into_iter().flatten();
        names.filter_map(|name| self.attachments.get(name))
    }

    /// Whether a claim's volume is chosen only when a pod that uses it is placed.
    ///
    /// # Errors
    /// Its class does not say.
    pub(super) fn delayed(&self, claim: &PersistentVolumeClaim) -> Result<bool, String> {
        let name = claim_class(claim);
        let Some(class) = self.classes.get(&name).filter(|_| !name.is_empty()) else {
            return Ok(false);
        };
        match class.volume_binding_mode.as_deref() {
            Some(mode) => Ok(mode == "WaitForFirstConsumer"),
            None => Err(format!(
                "VolumeBindingMode not set for StorageClass {name:?}"
            )),
        }
    }
}
