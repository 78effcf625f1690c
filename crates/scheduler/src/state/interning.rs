//! Interning of parts that pods of a workload have in common.
//!
//! Pods of one workload are equal except for what [`PodInfo`](super::PodInfo) holds itself. Most pods that
//! differ, because each has a label or a claim of its own, are still equal in parts. A hundred thousand
//! running pods need only a few thousand objects.

use super::PodObject;
use super::object::ContainerInfo;
use hashbrown::HashTable;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use koord_api::texts::Texts;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::io;
use std::sync::{Arc, Weak};

/// The minimum number of new entries before unused ones are removed.
const FEW: usize = 64;

/// An intern pool for parts of pods. Clones share one pool.
#[derive(Debug, Clone, Default)]
pub struct PodInterner {
    pools: Arc<Mutex<InternPools>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct InternPools {
    objects: InternPool<PodObject>,
    pods: InternPool<Pod>,
    annotations: InternPool<Texts>,
    owners: InternPool<[OwnerReference]>,
    containers: InternPool<[ContainerInfo]>,
    names: FxHashSet<Arc<str>>,
    /// The number of entries added since unused ones were last removed.
    new: usize,
}

/// An intern pool for values of one type, each stored once.
#[derive(Debug)]
struct InternPool<T: ?Sized>(HashTable<(u64, Weak<T>)>);

impl PodInterner {
    /// Returns an object equal to `object`: an existing one if there is one, else `object` with its parts
    /// replaced by existing equal ones.
    pub(super) fn object(&self, mut object: Arc<PodObject>) -> Arc<PodObject> {
        let Some(own) = Arc::get_mut(&mut object) else {
            return object;
        };
        let mut written = HashWriter(self.hasher.build_hasher());
        if serde_json::to_writer(&mut written, &*own.pod).is_err() {
            return object;
        }
        let pod = written.0.finish();
        let mut owners = self.hasher.build_hasher();
        for owner in &*own.owners {
            (&owner.uid, &owner.name).hash(&mut owners);
        }
        let owners = owners.finish();
        let mut table = self.pools.lock();
        table.remove_unused_entries();
        let table = &mut *table;
        own.share_keys(&mut |key| {
            let (name, is_new) = name(&mut table.names, key);
            table.new += usize::from(is_new);
            name
        });
        let annotations = self.hasher.hash_one(&own.annotations);
        let containers = self.hasher.hash_one(&own.containers);
        let new = &mut table.new;
        table.pods.share(pod, &mut own.pod, new);
        table.owners.share(owners, &mut own.owners, new);
        table
            .annotations
            .share(annotations, &mut own.annotations, new);
        table.containers.share(containers, &mut own.containers, new);
        let hash = self.hasher.hash_one(&*own);
        table.objects.share(hash, &mut object, new);
        object
    }

    /// Returns the shared string equal to `name`.
    pub(super) fn name(&self, own: Arc<str>) -> Arc<str> {
        let mut table = self.pools.lock();
        table.remove_unused_entries();
        let (name, is_new) = name(&mut table.names, own);
        table.new += usize::from(is_new);
        name
    }

    /// Returns the number of entries, including unused ones.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pools.lock().len()
    }
}

/// Returns the shared string equal to `own`, and whether it was added.
fn name(names: &mut FxHashSet<Arc<str>>, own: Arc<str>) -> (Arc<str>, bool) {
    match names.get(&own) {
        Some(name) => (name.clone(), false),
        None => {
            names.insert(own.clone());
            (own, true)
        }
    }
}

impl InternPools {
    fn len(&self) -> usize {
        self.objects.0.len()
            + self.pods.0.len()
            + self.annotations.0.len()
            + self.owners.0.len()
            + self.containers.0.len()
            + self.names.len()
    }

    /// Removes unused entries now and then: a value that was dropped keeps its allocation as long as it has
    /// an entry.
    fn remove_unused_entries(&mut self) {
        if self.new <= FEW.max(self.len() / 4) {
            return;
        }
        self.new = 0;
        self.objects.remove_unused();
        self.pods.remove_unused();
        self.annotations.remove_unused();
        self.owners.remove_unused();
        self.containers.remove_unused();
        self.names.retain(|name| Arc::strong_count(name) > 1);
    }
}

impl<T: PartialEq + ?Sized> InternPool<T> {
    /// Replaces `own` by an existing equal value, or adds it. Counts added values in `new`.
    fn share(&mut self, hash: u64, own: &mut Arc<T>, new: &mut usize) {
        let entries = self.0.iter_hash(hash);
        let entries = entries.filter(|(other, _)| *other == hash);
        let mut entries = entries.filter_map(|(_, value)| value.upgrade());
        if let Some(shared) = entries.find(|value| **value == **own) {
            *own = shared;
            return;
        }
        drop(entries);
        *new += 1;
        let entry = (hash, Arc::downgrade(own));
        self.0.insert_unique(hash, entry, |(hash, _)| *hash);
    }

    fn remove_unused(&mut self) {
        self.0.retain(|(_, entry)| entry.strong_count() > 0);
    }
}

impl<T: ?Sized> Default for InternPool<T> {
    fn default() -> Self {
        Self(HashTable::new())
    }
}

/// A writer that hashes what is written.
struct HashWriter<H>(H);

impl<H: Hasher> io::Write for HashWriter<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(app: &str, notes: &str) -> Arc<PodObject> {
        let pod = json!({
            "metadata": {"labels": {"app": app}, "annotations": {"a": notes}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}]},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
        });
        let pod = serde_json::from_value(pod).unwrap();
        let mut object = PodObject::new(Arc::new(pod));
        object.trim();
        Arc::new(object)
    }

    #[test]
    fn equal_objects_are_stored_once() {
        let interner = PodInterner::default();
        let [a, b, c] = ["x", "x", "y"].map(|app| interner.object(object(app, "n")));
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(c, object("y", "n"));
        assert!(!Arc::ptr_eq(&a, &c));
        let [a, b] = [(); 2].map(|()| interner.name("n".into()));
        assert!(Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn equal_parts_of_different_objects_are_shared() {
        let interner = PodInterner::default();
        let [a, b] = ["x", "y"].map(|app| interner.object(object(app, "n")));
        assert!(Arc::ptr_eq(&a.pod, &b.pod));
        assert!(Arc::ptr_eq(&a.owners, &b.owners));
        assert!(Arc::ptr_eq(&a.containers, &b.containers));
        assert!(Arc::ptr_eq(&a.annotations, &b.annotations));
        assert_eq!(
            (a.labels.get("app"), b.labels.get("app")),
            (Some("x"), Some("y"))
        );
        let c = interner.object(object("x", "m"));
        assert!(!Arc::ptr_eq(&a.annotations, &c.annotations));
        assert_eq!(c.annotations.get("a"), Some("m"));
        assert!(Arc::ptr_eq(&a.containers, &c.containers));
    }

    #[test]
    fn unused_entries_are_removed() {
        let interner = PodInterner::default();
        let shared = interner.object(object("shared", "shared"));
        for at in 0..10 * FEW {
            let at = format!("{at}");
            drop(interner.object(object(&at, &at)));
            drop(interner.name(at.into()));
        }
        assert!(interner.len() <= 2 * FEW, "{}", interner.len());
        assert!(Arc::ptr_eq(
            &shared,
            &interner.object(object("shared", "shared"))
        ));
    }
}
