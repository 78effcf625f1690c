//! Updates of objects.

use super::admission::{self, AdmissionAttributes, Operation, Options};
use super::check::store_error;
use super::check::{
    check_fields, check_identity, check_update_identity, invalid, keep_identity, namespace_held,
    new_finalizers_while_deleting, pending_grace,
};
use super::managers::is_plain;
use super::options::WriteOptions;
use super::write::{WriteInput, WriteResult};
use super::{Api, meta};
use crate::store::{Entry, Key, Revision, StoreError};
use koord_kinds::status::ApiError;
use koord_kinds::{Resource, patch};
use serde_json::Value;
use std::sync::Arc;

/// Number of attempts of a write that conflicts with others.
const ATTEMPTS: usize = 64;

/// A subresource with its own representation of the object: a Scale.
pub(super) trait Projection: Send + Sync {
    /// Returns the representation of `object`.
    fn show(&self, object: &Value) -> Value;
    /// Writes a changed representation back into `object`.
    ///
    /// # Errors
    /// If it is invalid, or its values are out of range.
    fn put(&self, object: &mut Value, shown: &Value) -> Result<(), ApiError>;
}

/// The object, and the part of it, that a write changes.
#[derive(Clone, Copy)]
pub(super) struct UpdateTarget<'a> {
    pub(super) resource: &'a Arc<Resource>,
    pub(super) subresource: Option<&'a str>,
    pub(super) key: &'a Key,
    /// Representation of the subresource, if it is an object of its own kind.
    pub(super) projection: Option<&'a dyn Projection>,
}

impl UpdateTarget<'_> {
    /// Returns the subresource whose rules apply; behind a projection, `None`: those of the whole object.
    fn effective_subresource(&self) -> Option<&str> {
        self.subresource.filter(|_| self.projection.is_none())
    }
}

impl Api {
    /// Updates an object. `change` receives the current state in the version of `resource` and returns the
    /// new one. It runs again after a conflict with another writer, unless its result has a `resourceVersion`
    /// that is not the current one.
    pub(crate) async fn modify(
        &self,
        resource: &Arc<Resource>,
        subresource: Option<&str>,
        key: &Key,
        options: &WriteOptions,
        mut change: impl FnMut(&Value) -> Result<WriteInput, ApiError>,
    ) -> Result<WriteResult, ApiError> {
        let target = UpdateTarget {
            resource,
            subresource,
            key,
            projection: None,
        };
        self.modify_target(target, options, |old| change(old).map(Some))
            .await
    }

    /// Updates an object for a controller of this process; `None` leaves the object as it is, without
    /// admission.
    pub(crate) async fn edit(
        &self,
        resource: &Arc<Resource>,
        subresource: Option<&str>,
        key: &Key,
        mut change: impl FnMut(&Value) -> Result<Option<Value>, ApiError>,
    ) -> Result<WriteResult, ApiError> {
        let target = UpdateTarget {
            resource,
            subresource,
            key,
            projection: None,
        };
        self.modify_target(target, &WriteOptions::default(), |old| {
            Ok(change(old)?.map(WriteInput::from))
        })
        .await
    }

    /// Like [`Api::modify`], for any target; a `change` that returns `None` ends it without a write.
    pub(super) async fn modify_target(
        &self,
        target: UpdateTarget<'_>,
        options: &WriteOptions,
        mut change: impl FnMut(&Value) -> Result<Option<WriteInput>, ApiError>,
    ) -> Result<WriteResult, ApiError> {
        let UpdateTarget {
            resource,
            key,
            projection,
            ..
        } = target;
        let attributes = AdmissionAttributes::new(
            Operation::Update,
            resource,
            target.subresource.unwrap_or(""),
            (&key.namespace, &key.name),
            Options::Write(options),
        );
        let storage = self.core().storage_of(resource);
        for _ in 0..ATTEMPTS {
            let entry = self.entry(resource, key)?;
            let old = resource.from_storage(entry.value());
            let shown = projection.map(|p| p.show(&old));
            let Some(input) = change(shown.as_ref().unwrap_or(&old))? else {
                return Ok(WriteResult::stored(entry));
            };
            let mut warnings = Vec::new();
            let (mut body, problems, patched) = (input.value, input.problems, input.patched);
            let tracks_managers = !input.applied;
            if projection.is_none() {
                check_identity(resource, &mut body, patched)?;
                check_fields(resource, &body, problems, options, &mut warnings, patched)?;
                patch::preserve_reset(&mut body);
                resource.prune(&mut body);
                check_update_identity(
                    resource,
                    key,
                    &old,
                    &mut body,
                    target.effective_subresource(),
                )?;
                resource.default_object(&mut body);
                if tracks_managers && is_plain(target.subresource) {
                    self.track(resource, Some(&old), &mut body, target.subresource, options);
                }
            }
            let mut new = Value::Null;
            let finish = |body: &mut Value| {
                match projection {
                    Some(projection) => {
                        new = old.clone();
                        projection.put(&mut new, body)?;
                        if tracks_managers {
                            self.track(resource, Some(&old), &mut new, target.subresource, options);
                        }
                        self.finish_update(&target, &entry, &old, &mut new)?;
                        *body = projection.show(&new);
                    }
                    None => {
                        self.finish_update(&target, &entry, &old, body)?;
                        // Before `finish_update` the object has changes that such a request cannot make.
                        if tracks_managers && !is_plain(target.subresource) {
                            self.track(resource, Some(&old), body, target.subresource, options);
                        }
                    }
                }
                Ok(())
            };
            let before = shown.as_ref().unwrap_or(&old);
            let _charged = self
                .admission()
                .admit(&attributes, &mut body, Some(before), &mut warnings, finish)
                .await?;
            if projection.is_none() {
                new = body;
            }
            if patch::equal_except_times(&new, &old) {
                return Ok(WriteResult {
                    warnings,
                    ..WriteResult::stored(entry)
                });
            }
            let completes_deletion = meta::deleting(&new)
                && meta::finalizers(&new).is_empty()
                && !pending_grace(&new)
                && !(resource.is("", "namespaces") && namespace_held(&new));
            if options.dry_run {
                return Ok(WriteResult {
                    warnings,
                    ..WriteResult::computed(new)
                });
            }
            if completes_deletion {
                match self.remove(resource, key, Some(entry.revision)).await {
                    Ok(_) => {
                        return Ok(WriteResult {
                            warnings,
                            ..WriteResult::computed(new)
                        });
                    }
                    Err(StoreError::Conflict { .. }) => continue,
                    Err(e) => return Err(store_error(resource, key, e)),
                }
            }
            let stored = resource.to_storage(new);
            if let Some(entry) = self
                .core()
                .replace(resource, &storage, &entry, stored)
                .await?
            {
                self.stored(resource, &entry).await?;
                return Ok(WriteResult {
                    warnings,
                    ..WriteResult::stored(entry)
                });
            }
        }
        Err(ApiError::stale(
            &resource.group,
            &resource.plural,
            &key.name,
        ))
    }

    /// Completes an admitted change with the server's own fields and validates it.
    fn finish_update(
        &self,
        target: &UpdateTarget<'_>,
        entry: &Entry,
        old: &Value,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        let UpdateTarget { resource, key, .. } = *target;
        let part = target.effective_subresource();
        check_update_identity(resource, key, old, new, part)?;
        resource.prepare_update(part, old, new);
        keep_identity(old, new);
        admission::on_update(self.core(), resource, part, old, new);
        let mut errors = new_finalizers_while_deleting(old, new);
        errors.extend(resource.validate_update(part, new, old));
        if !errors.is_empty() {
            return Err(invalid(resource, &key.name, &errors));
        }
        meta::set(new, "resourceVersion", entry.revision.to_string());
        Ok(())
    }

    /// Removes an entry for good and runs the effects of its removal.
    pub(crate) async fn remove(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        expected: Option<Revision>,
    ) -> Result<Arc<Entry>, StoreError> {
        let deleted = self
            .store()
            .delete(resource.table.clone(), key.clone(), expected, None)
            .await?;
        self.removed(resource, &deleted);
        Ok(deleted)
    }
}
