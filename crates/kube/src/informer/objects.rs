//! The content of a store.

use super::Cacheable;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// A hash table of objects. The keys are read from the objects: a separate key for each of them would need a
/// tenth of the memory of a pod.
#[derive(Debug)]
pub(super) struct Objects<K> {
    table: HashTable<Arc<K>>,
    hasher: RandomState,
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self {
            table: HashTable::new(),
            hasher: RandomState::new(),
        }
    }
}

impl<K: Cacheable> Objects<K> {
    pub(super) fn get(&self, names: (&str, &str)) -> Option<&Arc<K>> {
        let hash = self.hasher.hash_one(names);
        self.table.find(hash, |object| object.names() == names)
    }

    /// Inserts `new`, and returns the object with the same key that it replaces.
    pub(super) fn insert(&mut self, new: Arc<K>) -> Option<Arc<K>> {
        let Self { table, hasher } = self;
        let hash = hasher.hash_one(new.names());
        let has_same_key = |object: &Arc<K>| object.names() == new.names();
        match table.find_mut(hash, has_same_key) {
            Some(old) => Some(std::mem::replace(old, new)),
            None => {
                table.insert_unique(hash, new, |object| hasher.hash_one(object.names()));
                None
            }
        }
    }

    pub(super) fn remove(&mut self, names: (&str, &str)) -> Option<Arc<K>> {
        let hash = self.hasher.hash_one(names);
        let entry = self
            .table
            .find_entry(hash, |object| object.names() == names);
        Some(entry.ok()?.remove().0)
    }
}

impl<K> Objects<K> {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.table.iter()
    }

    /// Removes the objects for which `is_meant` is true, and returns them in no particular order.
    pub(super) fn take_if(
        &mut self,
        is_meant: impl FnMut(&mut Arc<K>) -> bool,
    ) -> impl Iterator<Item = Arc<K>> {
        self.table.extract_if(is_meant)
    }
}
