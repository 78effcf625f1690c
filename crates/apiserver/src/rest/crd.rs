//! Custom resource definitions: serves the stored ones and reports it in their status.

use super::check::terminating;
use super::core::Core;
use super::{Api, meta};
use crate::store::{Entry, Key, StoreError};
use koord_kinds::Resource;
use koord_kinds::status::{ApiError, FieldError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;

/// Group and plural of custom resource definitions.
pub(crate) const CRDS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");

/// Returns true if a definition is being deleted and its objects are gone: no new ones may be created.
fn is_emptied(definition: &Value) -> bool {
    meta::deleting(definition)
        && !meta::finalizers(definition)
            .iter()
            .any(|f| f == super::CRD_FINALIZER)
}

/// Registers the stored custom resource definitions.
pub(super) struct DefinitionInstaller {
    core: Core,
    /// Serializes updates of the registry from stored definitions.
    in_turn: Mutex<()>,
}

impl DefinitionInstaller {
    /// Returns an installer from the store of `core` to its registry.
    pub(super) fn new(core: Core) -> Self {
        Self {
            core,
            in_turn: Mutex::default(),
        }
    }

    /// Deletes a new object again if its definition is being deleted: the controller that empties the
    /// definition may not have seen it. Called after the object was stored.
    async fn withdraw(&self, resource: &Arc<Resource>, entry: &Entry) -> Result<(), ApiError> {
        let current =
            self.core
                .registry()
                .find(&resource.group, &resource.version, &resource.plural);
        let Some(error) = current.map_or_else(
            || Some(ApiError::unknown_path()),
            |current| terminating(&current, &entry.key.name).err(),
        ) else {
            return Ok(());
        };
        let removed =
            self.core
                .store()
                .delete(resource.table.clone(), entry.key.clone(), None, None);
        match removed.await {
            Ok(_) | Err(StoreError::NotFound { .. }) => Err(error),
            Err(e) => Err(super::check::store_error(resource, &entry.key, e)),
        }
    }

    /// Registers or removes a definition as the store has it now. Takes a lock: the effects of two writes may
    /// arrive in another order than the writes.
    fn serve_definition(&self, resource: &Resource, key: &Key) -> Result<(), Vec<FieldError>> {
        let _in_turn = self.in_turn.lock();
        match self.core.store().get(&resource.table, key) {
            Some(entry) if !is_emptied(&entry.value()) => {
                self.core.registry().install_crd(&entry.value())
            }
            _ => {
                self.core.registry().remove_crd(&key.name);
                Ok(())
            }
        }
    }

    /// Registers a stored definition, then sets its condition Established, never in the other order.
    async fn establish(
        &self,
        resource: &Arc<Resource>,
        mut entry: Arc<Entry>,
    ) -> Result<(), ApiError> {
        let name = entry.key.name.clone();
        if let Err(errors) = self.serve_definition(resource, &entry.key) {
            return Err(super::check::invalid(resource, &name, &errors));
        }
        loop {
            let mut object = entry.value();
            if !self.mark_established(&mut object) {
                return Ok(());
            }
            let index = resource.index(&object);
            let result = self
                .core
                .store()
                .update(
                    resource.table.clone(),
                    entry.key.clone(),
                    Some(entry.revision),
                    object,
                    index,
                )
                .await;
            match result {
                Ok(_) | Err(StoreError::NotFound { .. }) => return Ok(()),
                Err(StoreError::Conflict { current }) => entry = current,
                Err(e) => return Err(super::check::store_error(resource, &entry.key, e)),
            }
        }
    }

    /// Writes the status of an established definition; returns false if it is unchanged.
    fn mark_established(&self, object: &mut Value) -> bool {
        let now = self.core.clock().now();
        let before = object.get("status").cloned();
        let names = meta::at(object, &["spec", "names"])
            .cloned()
            .unwrap_or_else(|| json!({}));
        let storage: Vec<String> = meta::list_at(object, &["spec", "versions"])
            .iter()
            .filter(|v| v.get("storage").and_then(Value::as_bool) == Some(true))
            .map(|v| meta::text(v, &["name"]).to_owned())
            .collect();
        let status = meta::section(object, "status");
        status.insert("acceptedNames".to_owned(), names);
        let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
        if !stored.is_array() {
            *stored = json!([]);
        }
        if let Some(list) = stored.as_array_mut() {
            for version in storage {
                if !list.iter().any(|v| v.as_str() == Some(version.as_str())) {
                    list.push(version.into());
                }
            }
        }
        meta::set_condition(
            status,
            "NamesAccepted",
            "True",
            "NoConflicts",
            "no conflicts found",
            now,
        );
        meta::set_condition(
            status,
            "Established",
            "True",
            "InitialNamesAccepted",
            "the initial names have been accepted",
            now,
        );
        before.as_ref() != object.get("status")
    }

    /// Registers the definitions in the store. Logs and skips those that are no longer valid.
    pub(super) fn load(&self) {
        let Some(resource) = self.core.registry().find(CRDS.0, "v1", CRDS.1) else {
            return;
        };
        for entry in self.core.entries(&resource, None) {
            let definition = entry.value();
            if is_emptied(&definition) {
                continue;
            }
            if let Err(errors) = self.core.registry().install_crd(&definition) {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                tracing::warn!(
                    definition = %entry.key.name,
                    errors = errors.join("; "),
                    "skipping invalid stored custom resource definition"
                );
            }
        }
    }
}

impl Api {
    /// Runs the effects of storing an object: reloads webhooks, registers a definition.
    pub(crate) async fn stored(
        &self,
        resource: &Arc<Resource>,
        entry: &Arc<Entry>,
    ) -> Result<(), ApiError> {
        let webhooks = self.admission().webhooks();
        webhooks.configuration_changed(self.store(), resource);
        if resource.is(CRDS.0, CRDS.1) {
            self.inner
                .definitions
                .establish(resource, entry.clone())
                .await?;
        }
        Ok(())
    }

    /// Runs the effects of storing a new object.
    pub(super) async fn created(
        &self,
        resource: &Arc<Resource>,
        entry: &Arc<Entry>,
    ) -> Result<(), ApiError> {
        if resource.is_custom() {
            self.inner.definitions.withdraw(resource, entry).await?;
        }
        self.stored(resource, entry).await
    }

    /// Runs the effects of removing an object.
    pub(crate) fn removed(&self, resource: &Resource, entry: &Entry) {
        let webhooks = self.admission().webhooks();
        webhooks.configuration_changed(self.store(), resource);
        if resource.is(CRDS.0, CRDS.1)
            && let Err(errors) = self
                .inner
                .definitions
                .serve_definition(resource, &entry.key)
        {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            tracing::warn!(
                definition = %entry.key.name,
                errors = errors.join("; "),
                "failed to serve recreated custom resource definition"
            );
        }
    }
}
