//! Index of claims, volumes and related objects from the informers.

use super::capacity::StorageCapacities;
use super::limits::identity;
use super::pool::{VolumePool, hosts_of};
use super::trimmed::{TrimmedAttachment, TrimmedClaim, TrimmedVolume};
use super::{
    ATTACHMENTS, BETA_CLASS, CAPACITIES, CLAIMS, CLASSES, CSI_DRIVERS, CSI_NODES, Key, VOLUMES,
    annotation, claims, uses_claims,
};
use crate::common::trim::Trimmer;
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
    pub(super) claims: FxHashMap<Key, Arc<TrimmedClaim>>,
    pub(super) volumes: FxHashMap<String, Arc<TrimmedVolume>>,
    pub(super) classes: FxHashMap<String, Arc<StorageClass>>,
    pub(super) csi_nodes: FxHashMap<String, Arc<CSINode>>,
    pub(super) csi_drivers: FxHashMap<String, Arc<CSIDriver>>,
    pub(super) storage_capacities: StorageCapacities,
    pub(super) attachments: FxHashMap<String, Arc<TrimmedAttachment>>,
    /// Free volumes by class.
    pools: FxHashMap<String, VolumePool>,
    /// Hosts at which the last change added or removed free volumes.
    changed_hosts: Vec<String>,
    /// Names of volumes by the claim that they name.
    reserved: FxHashMap<Key, BTreeSet<String>>,
    /// Names of volumes by identity.
    by_identity: FxHashMap<Identity, BTreeSet<String>>,
    /// Keys of claims by the volume that they name.
    claims_by_volume: FxHashMap<String, BTreeSet<Key>>,
    /// Names of attachments by node, and by volume.
    attachments_by_node: FxHashMap<String, BTreeSet<String>>,
    attachments_by_volume: FxHashMap<String, BTreeSet<String>>,
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

fn insert_value<K: std::hash::Hash + Eq, V: Ord>(
    map: &mut FxHashMap<K, BTreeSet<V>>,
    key: K,
    value: V,
) {
    map.entry(key).or_default().insert(value);
}

fn remove_value<K: std::hash::Hash + Eq, V: Ord>(
    map: &mut FxHashMap<K, BTreeSet<V>>,
    key: &K,
    value: &V,
) {
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

/// Passes the object of a change to `store`, with `None` as current object if it was deleted.
fn apply<T: Send + Sync + 'static>(change: &ObjectChange, store: impl FnOnce(Option<Arc<T>>, &T)) {
    let object = Arc::downcast::<T>(change.new.clone());
    debug_assert!(object.is_ok(), "{}: not what informers keep", change.kind);
    if let Ok(object) = object {
        let current = (change.action != Action::DELETE).then(|| object.clone());
        store(current, &object);
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
            Watch::mapped::<PersistentVolumeClaim, TrimmedClaim>(CLAIMS)
                .counted_as(event_names!("PersistentVolumeClaim")),
            Watch::mapped::<PersistentVolume, TrimmedVolume>(VOLUMES)
                .counted_as(event_names!("PersistentVolume")),
            Watch::trimmed::<StorageClass, Trimmer>(CLASSES)
                .counted_as(event_names!("storage.k8s.io/StorageClass")),
            Watch::trimmed::<CSINode, Trimmer>(CSI_NODES)
                .counted_as(event_names!("storage.k8s.io/CSINode")),
            Watch::trimmed::<CSIDriver, Trimmer>(CSI_DRIVERS)
                .counted_as(event_names!("storage.k8s.io/CSIDriver")),
            Watch::trimmed::<CSIStorageCapacity, Trimmer>(CAPACITIES)
                .counted_as(event_names!("storage.k8s.io/CSIStorageCapacity")),
            Watch::mapped::<VolumeAttachment, TrimmedAttachment>(ATTACHMENTS)
                .counted_as(event_names!("storage.k8s.io/VolumeAttachment")),
        ];
        all.into_iter()
            .filter(|watch| kinds.contains(&watch.kind()))
            .collect()
    }

    /// Applies a change of a watched object.
    fn apply(&mut self, change: &ObjectChange) {
        fn put<T>(map: &mut FxHashMap<Key, Arc<T>>, meta: &ObjectMeta, current: Option<Arc<T>>) {
            match current {
                Some(object) => map.insert(key(meta), object),
                None => map.remove(&key(meta)),
            };
        }
        self.changed_hosts.clear();
        match change.kind {
            CLAIMS => apply(change, |current, object: &TrimmedClaim| {
                self.claim(current, object);
            }),
            VOLUMES => apply(change, |current, object: &TrimmedVolume| {
                self.volume(current, object);
            }),
            CLASSES => apply(change, |current, object: &StorageClass| {
                let version = self.next_version();
                self.class_versions.insert(key(&object.metadata), version);
                put(&mut self.classes, &object.metadata, current);
            }),
            CSI_NODES => apply(change, |current, object: &CSINode| {
                put(&mut self.csi_nodes, &object.metadata, current);
            }),
            CSI_DRIVERS => apply(change, |current, object: &CSIDriver| {
                put(&mut self.csi_drivers, &object.metadata, current);
            }),
            CAPACITIES => apply(
                change,
                |current, object: &CSIStorageCapacity| match current {
                    Some(current) => self.storage_capacities.put(current),
                    None => self.storage_capacities.remove_object(object),
                },
            ),
            ATTACHMENTS => apply(change, |current, object: &TrimmedAttachment| {
                self.attachment(current, object);
            }),
            _ => {}
        }
    }

    fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    fn claim(&mut self, current: Option<Arc<TrimmedClaim>>, object: &TrimmedClaim) {
        let name = object.names.key();
        if let Some(old) = self.claims.remove(&name) {
            remove_value(&mut self.claims_by_volume, &old.volume.to_string(), &name);
        }
        if let Some(claim) = current {
            if !claim.volume.is_empty() {
                insert_value(
                    &mut self.claims_by_volume,
                    claim.volume.to_string(),
                    name.clone(),
                );
            }
            self.claims.insert(name, claim);
        }
    }

    /// Replaces an attachment and its index entries; `None` removes it.
    fn attachment(&mut self, current: Option<Arc<TrimmedAttachment>>, object: &TrimmedAttachment) {
        let name = object.names.key();
        if let Some(old) = self.attachments.remove(&name) {
            remove_value(&mut self.attachments_by_node, &old.node.to_string(), &name);
            if let Some(volume) = &old.volume {
                remove_value(&mut self.attachments_by_volume, &volume.to_string(), &name);
            }
        }
        if let Some(new) = current {
            insert_value(
                &mut self.attachments_by_node,
                new.node.to_string(),
                name.clone(),
            );
            if let Some(volume) = &new.volume {
                insert_value(
                    &mut self.attachments_by_volume,
                    volume.to_string(),
                    name.clone(),
                );
            }
            self.attachments.insert(name, new);
        }
    }

    /// Replaces a volume and its index entries; `None` removes it.
    fn volume(&mut self, current: Option<Arc<TrimmedVolume>>, object: &TrimmedVolume) {
        let name = object.names.key();
        if let Some(old) = self.volumes.remove(&name) {
            if old.is_free() {
                let version = self.next_version();
                let hosts = hosts_of(&old);
                if let Some(pool) = self.pools.get_mut(&*old.class) {
                    pool.take(&name, hosts.as_deref(), version);
                }
                self.changed_hosts
                    .extend(hosts.into_iter().flatten().map(str::to_owned));
            }
            if let Some(claim) = old.claim_key() {
                remove_value(&mut self.reserved, &claim, &name);
            }
            if let Some(identity) = identity(&old) {
                remove_value(&mut self.by_identity, &identity, &name);
            }
        }
        let Some(volume) = current else { return };
        if volume.is_free() {
            let version = self.next_version();
            let hosts = hosts_of(&volume);
            let pool = self.pools.entry(volume.class.to_string()).or_default();
            pool.put(&name, hosts.as_deref(), version);
            self.changed_hosts
                .extend(hosts.into_iter().flatten().map(str::to_owned));
        }
        if let Some(claim) = volume.claim_key() {
            insert_value(&mut self.reserved, claim, name.clone());
        }
        if let Some(identity) = identity(&volume) {
            insert_value(&mut self.by_identity, identity, name.clone());
        }
        self.volumes.insert(name, volume);
    }

    /// Returns the free volumes of a class, if there are any.
    pub(super) fn pool(&self, class: &str) -> Option<&VolumePool> {
        self.pools.get(class).filter(|pool| !pool.is_empty())
    }

    /// Returns the hosts at which the last change added or removed free volumes.
    pub(super) fn changed_hosts(&self) -> &[String] {
        &self.changed_hosts
    }

    /// Returns the names of the volumes that name the claim, sorted.
    pub(super) fn volumes_reserved_for(&self, claim: &str) -> impl Iterator<Item = &String> {
        list(&self.reserved, claim)
    }

    /// Returns the keys of the claims that name the volume.
    pub(super) fn claims_on(&self, volume: &str) -> impl Iterator<Item = &Key> {
        list(&self.claims_by_volume, volume)
    }

    /// Returns the names of the attachments on a node.
    pub(super) fn attached(&self, node: &str) -> impl Iterator<Item = &String> {
        list(&self.attachments_by_node, node)
    }

    /// Returns the names of the attachments of a volume.
    pub(super) fn attachments_of(&self, volume: &str) -> impl Iterator<Item = &String> {
        list(&self.attachments_by_volume, volume)
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
    pub(super) fn may_be_attached(&self, volume: &TrimmedVolume) -> bool {
        let name = &*volume.names.name;
        let sharing = identity(volume);
        let sharing = sharing.and_then(|identity| self.by_identity.get(&identity));
        sharing.is_some_and(|sharing| sharing.len() > 1)
            || self.attachments_by_volume.contains_key(name)
            || self.claims_on(name).nth(1).is_some()
    }

    /// Returns true if a claim's volume is chosen only when a pod that uses it is placed.
    ///
    /// # Errors
    /// The volume binding mode of its class is not set.
    pub(super) fn is_delayed(&self, claim: &TrimmedClaim) -> Result<bool, String> {
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
