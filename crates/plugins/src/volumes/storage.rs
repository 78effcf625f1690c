//! Index of claims, volumes and related objects from the informers.

use super::limits::identity;
use super::pool::{Pool, hosts_of};
use super::rooms::Rooms;
use super::seen::{SeenAttachment, SeenClaim, SeenVolume};
use super::{
    ATTACHMENTS, BETA_CLASS, CAPACITIES, CLAIMS, CLASSES, CSI_DRIVERS, CSI_NODES, Key, VOLUMES,
    annotation, claims, uses_claims,
};
use crate::common::slim::Slim;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_scheduler::framework::{Action, Effects, Index, ObjectChange};
use koord_scheduler::state::PodInfo;
use koord_scheduler::{Watch, event_names};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Identity of a volume: its CSI driver (whether or not the node migrated to it) and its handle there.
pub(super) type Identity = (String, String);

/// Objects that the volume plugins watch, by name or by `namespace/name`.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) claims: FxHashMap<Key, Arc<SeenClaim>>,
    pub(super) volumes: FxHashMap<String, Arc<SeenVolume>>,
    pub(super) classes: FxHashMap<String, Arc<StorageClass>>,
    pub(super) csi_nodes: FxHashMap<String, Arc<CSINode>>,
    pub(super) csi_drivers: FxHashMap<String, Arc<CSIDriver>>,
    pub(super) rooms: Rooms,
    pub(super) attachments: FxHashMap<String, Arc<SeenAttachment>>,
    /// Free volumes by class.
    pools: FxHashMap<String, Pool>,
    /// Hosts at which the last change added or removed free volumes.
    moved: Vec<String>,
    /// Names of volumes by the claim that they name.
    meant: FxHashMap<Key, BTreeSet<String>>,
    /// Names of volumes by identity.
    by_identity: FxHashMap<Identity, BTreeSet<String>>,
    /// Keys of claims by the volume that they name.
    of_volume: FxHashMap<String, BTreeSet<Key>>,
    /// Names of attachments by node, and by volume.
    by_node: FxHashMap<String, BTreeSet<String>>,
    by_volume: FxHashMap<String, BTreeSet<String>>,
    /// Version of the last change of each class, from a counter that never repeats.
    class_versions: FxHashMap<String, u64>,
    versions: u64,
    /// Uids of all pods that use a claim, on nodes or not; and the claims of each pod.
    users: FxHashMap<Key, Vec<Arc<str>>>,
    claims_of: FxHashMap<Arc<str>, Vec<Key>>,
}

fn list<'a>(
    map: &'a FxHashMap<String, BTreeSet<String>>,
    key: &str,
) -> impl Iterator<Item = &'a String> + use<'a> {
    map.get(key).into_iter().flatten()
}

fn enter<K: std::hash::Hash + Eq, V: Ord>(map: &mut FxHashMap<K, BTreeSet<V>>, key: K, value: V) {
    map.entry(key).or_default().insert(value);
}

fn leave<K: std::hash::Hash + Eq, V: Ord>(map: &mut FxHashMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

/// Returns `namespace/name`, or the name of a cluster-scoped object.
pub(super) fn key(meta: &ObjectMeta) -> Key {
    let name = meta.name.as_deref().unwrap_or_default();
    match meta.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    }
}

/// Returns the storage class of a claim or volume with spec field `field`; empty if it names none.
pub(super) fn class_of(meta: &ObjectMeta, field: Option<String>) -> Box<str> {
    let beta = annotation(meta, BETA_CLASS).map(Box::from);
    beta.or(field.map(Box::from)).unwrap_or_default()
}

/// Converts a quantity to bytes; 0 if missing or invalid.
pub(super) fn bytes(quantity: Option<&Quantity>) -> i64 {
    quantity
        .and_then(|quantity| koord_api::quantity::parse(quantity).ok())
        .map_or(0, |quantity| quantity.value())
}

fn apply<T: Send + Sync + 'static>(change: &ObjectChange, store: impl FnOnce(Option<Arc<T>>, &T)) {
    let object = Arc::downcast::<T>(change.new.clone());
    debug_assert!(object.is_ok(), "{}: not what informers keep", change.kind);
    if let Ok(object) = object {
        let kept = (change.action != Action::DELETE).then(|| object.clone());
        store(kept, &object);
    }
}

impl Index for Storage {
    fn on_object(&mut self, change: &ObjectChange, _fx: &mut Effects) {
        self.apply(change);
    }

    fn on_pod(&mut self, pod: &Arc<PodInfo>) {
        if pod.is_holder() || !uses_claims(pod) {
            return;
        }
        if pod.terminal {
            return self.on_pod_gone(&pod.uid);
        }
        // The volumes of a pod are immutable.
        if self.claims_of.contains_key(&pod.uid) {
            return;
        }
        let mut keys: Vec<Key> = claims(pod).iter().map(|used| used.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in &keys {
            let users = self.users.entry(key.clone()).or_default();
            users.push(pod.uid.clone());
        }
        self.claims_of.insert(pod.uid.clone(), keys);
    }

    fn on_pod_gone(&mut self, uid: &str) {
        for key in self.claims_of.remove(uid).into_iter().flatten() {
            if let Some(users) = self.users.get_mut(&key) {
                users.retain(|user| **user != *uid);
                if users.is_empty() {
                    self.users.remove(&key);
                }
            }
        }
    }
}

impl Storage {
    /// Returns the watches of these kinds.
    pub(super) fn watches(kinds: &[&str]) -> Vec<Watch> {
        let all = [
            Watch::of_kept::<PersistentVolumeClaim, SeenClaim>(CLAIMS)
                .counted_as(event_names!("PersistentVolumeClaim")),
            Watch::of_kept::<PersistentVolume, SeenVolume>(VOLUMES)
                .counted_as(event_names!("PersistentVolume")),
            Watch::of_trimmed::<StorageClass, Slim>(CLASSES)
                .counted_as(event_names!("storage.k8s.io/StorageClass")),
            Watch::of_trimmed::<CSINode, Slim>(CSI_NODES)
                .counted_as(event_names!("storage.k8s.io/CSINode")),
            Watch::of_trimmed::<CSIDriver, Slim>(CSI_DRIVERS)
                .counted_as(event_names!("storage.k8s.io/CSIDriver")),
            Watch::of_trimmed::<CSIStorageCapacity, Slim>(CAPACITIES)
                .counted_as(event_names!("storage.k8s.io/CSIStorageCapacity")),
            Watch::of_kept::<VolumeAttachment, SeenAttachment>(ATTACHMENTS)
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
        self.moved.clear();
        match change.kind {
            CLAIMS => apply(change, |kept, object: &SeenClaim| {
                self.claim(kept, object);
            }),
            VOLUMES => apply(change, |kept, object: &SeenVolume| {
                self.volume(kept, object);
            }),
            CLASSES => apply(change, |kept, object: &StorageClass| {
                let version = self.next();
                self.class_versions.insert(key(&object.metadata), version);
                put(&mut self.classes, &object.metadata, kept);
            }),
            CSI_NODES => apply(change, |kept, object: &CSINode| {
                put(&mut self.csi_nodes, &object.metadata, kept);
            }),
            CSI_DRIVERS => apply(change, |kept, object: &CSIDriver| {
                put(&mut self.csi_drivers, &object.metadata, kept);
            }),
            CAPACITIES => apply(change, |kept, object: &CSIStorageCapacity| match kept {
                Some(kept) => self.rooms.put(kept),
                None => self.rooms.remove_object(object),
            }),
            ATTACHMENTS => apply(change, |kept, object: &SeenAttachment| {
                self.attachment(kept, object);
            }),
            _ => {}
        }
    }

    fn next(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    fn claim(&mut self, kept: Option<Arc<SeenClaim>>, object: &SeenClaim) {
        let name = object.names.key();
        if let Some(old) = self.claims.remove(&name) {
            leave(&mut self.of_volume, &old.volume.to_string(), &name);
        }
        if let Some(claim) = kept {
            if !claim.volume.is_empty() {
                enter(&mut self.of_volume, claim.volume.to_string(), name.clone());
            }
            self.claims.insert(name, claim);
        }
    }

    fn attachment(&mut self, kept: Option<Arc<SeenAttachment>>, object: &SeenAttachment) {
        let name = object.names.key();
        if let Some(old) = self.attachments.remove(&name) {
            leave(&mut self.by_node, &old.node.to_string(), &name);
            if let Some(volume) = &old.volume {
                leave(&mut self.by_volume, &volume.to_string(), &name);
            }
        }
        if let Some(new) = kept {
            enter(&mut self.by_node, new.node.to_string(), name.clone());
            if let Some(volume) = &new.volume {
                enter(&mut self.by_volume, volume.to_string(), name.clone());
            }
            self.attachments.insert(name, new);
        }
    }

    fn volume(&mut self, kept: Option<Arc<SeenVolume>>, object: &SeenVolume) {
        let name = object.names.key();
        if let Some(old) = self.volumes.remove(&name) {
            if old.is_free() {
                let version = self.next();
                let hosts = hosts_of(&old);
                if let Some(pool) = self.pools.get_mut(&*old.class) {
                    pool.take(&name, hosts.as_deref(), version);
                }
                self.moved
                    .extend(hosts.into_iter().flatten().map(str::to_owned));
            }
            if let Some(claim) = old.claim_key() {
                leave(&mut self.meant, &claim, &name);
            }
            if let Some(identity) = identity(&old) {
                leave(&mut self.by_identity, &identity, &name);
            }
        }
        let Some(volume) = kept else { return };
        if volume.is_free() {
            let version = self.next();
            let hosts = hosts_of(&volume);
            let pool = self.pools.entry(volume.class.to_string()).or_default();
            pool.put(&name, hosts.as_deref(), version);
            self.moved
                .extend(hosts.into_iter().flatten().map(str::to_owned));
        }
        if let Some(claim) = volume.claim_key() {
            enter(&mut self.meant, claim, name.clone());
        }
        if let Some(identity) = identity(&volume) {
            enter(&mut self.by_identity, identity, name.clone());
        }
        self.volumes.insert(name, volume);
    }

    /// Returns the free volumes of a class, if there are any.
    pub(super) fn pool(&self, class: &str) -> Option<&Pool> {
        self.pools.get(class).filter(|pool| !pool.is_empty())
    }

    /// Returns the hosts at which the last change added or removed free volumes.
    pub(super) fn moved(&self) -> &[String] {
        &self.moved
    }

    /// Returns the names of the volumes that name the claim, sorted.
    pub(super) fn naming(&self, claim: &str) -> impl Iterator<Item = &String> {
        list(&self.meant, claim)
    }

    /// Returns the keys of the claims that name the volume.
    pub(super) fn claims_on(&self, volume: &str) -> impl Iterator<Item = &Key> {
        list(&self.of_volume, volume)
    }

    /// Returns the names of the attachments on a node.
    pub(super) fn attached(&self, node: &str) -> impl Iterator<Item = &String> {
        list(&self.by_node, node)
    }

    /// Returns the names of the attachments of a volume.
    pub(super) fn attachments_of(&self, volume: &str) -> impl Iterator<Item = &String> {
        list(&self.by_volume, volume)
    }

    /// Returns the version of a class; 0 if it never existed.
    pub(super) fn class_version(&self, class: &str) -> u64 {
        self.class_versions.get(class).copied().unwrap_or(0)
    }

    /// Returns the uids of all pods that use a claim, on nodes or not.
    pub(super) fn users(&self, claim: &str) -> &[Arc<str>] {
        self.users.get(claim).map_or(&[], Vec::as_slice)
    }

    /// Returns the uids of all pods that use claims, on nodes or not.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<str>> {
        self.claims_of.keys()
    }

    /// Returns true if a pod other than `uid` uses the claim.
    pub(super) fn is_shared(&self, claim: &str, uid: &str) -> bool {
        self.users(claim).iter().any(|user| **user != *uid)
    }

    /// Returns true if the volume is attached somewhere, or is the same volume as another object's or another
    /// claim's.
    pub(super) fn is_elsewhere(&self, volume: &SeenVolume) -> bool {
        let name = &*volume.names.name;
        let same = identity(volume);
        let same = same.and_then(|identity| self.by_identity.get(&identity));
        same.is_some_and(|same| same.len() > 1)
            || self.by_volume.contains_key(name)
            || self.claims_on(name).nth(1).is_some()
    }

    /// Returns true if a claim's volume is chosen only when a pod that uses it is placed.
    ///
    /// # Errors
    /// The volume binding mode of its class is not set.
    pub(super) fn delayed(&self, claim: &SeenClaim) -> Result<bool, String> {
        let name = &*claim.class;
        let Some(class) = self.classes.get(name).filter(|_| !name.is_empty()) else {
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
