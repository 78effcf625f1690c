//! Store, registry and clock, which every verb and every service of the REST layer uses.

use super::check::store_error;
use crate::store::{Entry, Key, Store, StoreError};
use koord_app::Clock;
use koord_kinds::status::ApiError;
use koord_kinds::{Registry, Resource};
use serde_json::Value;
use std::sync::Arc;

/// Store, registry and clock: what services get instead of the whole [`Api`](super::Api). Clones share
/// everything.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    store: Store,
    registry: Registry,
    clock: Clock,
}

/// Returns the key of an object of `resource`.
pub(crate) fn key(resource: &Resource, namespace: &str, name: &str) -> Key {
    if resource.namespaced {
        Key::new(namespace, name)
    } else {
        Key::cluster(name)
    }
}

impl Core {
    /// Returns a core over these parts.
    pub(super) const fn new(store: Store, registry: Registry, clock: Clock) -> Self {
        Self {
            store,
            registry,
            clock,
        }
    }

    /// Returns the store.
    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the registry of served resources.
    pub(crate) const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the clock that stamps objects.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the built-in resource `group/version/plural`.
    pub(crate) fn builtin(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Result<Arc<Resource>, ApiError> {
        self.registry
            .find(group, version, plural)
            .ok_or_else(ApiError::unknown_path)
    }

    /// Returns the stored entry, or 404.
    pub(crate) fn entry(&self, resource: &Resource, key: &Key) -> Result<Arc<Entry>, ApiError> {
        self.store
            .get(&resource.table, key)
            .ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, &key.name))
    }

    /// Returns the resource in whose version the objects of `resource` are stored.
    pub(crate) fn storage_of(&self, resource: &Arc<Resource>) -> Arc<Resource> {
        if resource.storage_version {
            return resource.clone();
        }
        self.registry
            .storage(&resource.table)
            .unwrap_or_else(|| resource.clone())
    }

    /// Returns the current entries of a collection.
    pub(crate) fn entries(&self, resource: &Resource, namespace: Option<&str>) -> Vec<Arc<Entry>> {
        self.store.all(&resource.table, namespace, &|_| true)
    }

    /// Writes a change that was admitted as another request (a Binding, an Eviction), without the checks of
    /// client writes. `change` returns `None` to leave the object as it is.
    pub(super) async fn modify_admitted(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        dry_run: bool,
        mut change: impl FnMut(Value) -> Result<Option<Value>, ApiError>,
    ) -> Result<(), ApiError> {
        let storage = self.storage_of(resource);
        loop {
            let entry = self.entry(resource, key)?;
            let Some(new) = change(entry.value())?.filter(|_| !dry_run) else {
                return Ok(());
            };
            if self
                .replace(resource, &storage, &entry, new)
                .await?
                .is_some()
            {
                return Ok(());
            }
        }
    }

    /// Stores the new state of `entry`; `None` if another writer has changed it in the meantime.
    pub(super) async fn replace(
        &self,
        resource: &Resource,
        storage: &Resource,
        entry: &Entry,
        stored: Value,
    ) -> Result<Option<Arc<Entry>>, ApiError> {
        let key = &entry.key;
        let index = storage.index(&stored);
        let (table, expected) = (resource.table.clone(), Some(entry.revision));
        match self
            .store
            .update(table, key.clone(), expected, stored, index)
            .await
        {
            Ok(entry) => Ok(Some(entry)),
            Err(StoreError::Conflict { .. }) => Ok(None),
            Err(error) => Err(store_error(resource, key, error)),
        }
    }
}
