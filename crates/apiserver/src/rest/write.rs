//! Create and update: the pipeline every write goes through.

use super::check::{
    check_fields, check_identity, check_update_identity, invalid, keep_identity, namespace_held,
    namespace_mismatch, new_finalizers_while_deleting, pending_grace,
};
use super::{Api, admission, meta};
use crate::kinds::Resource;
use crate::kinds::status::ApiError;
use crate::store::{Entry, Key, Revision, StoreError};
use bytes::Bytes;
use serde_json::Value;
use std::sync::Arc;

/// What to do with unknown and duplicate fields in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    #[default]
    Ignore,
    /// Drop them and warn.
    Warn,
    /// Refuse the request.
    Strict,
}

/// Options of creates, updates and patches.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Do everything but store.
    pub dry_run: bool,
    /// What happens to unknown fields.
    pub field_validation: FieldValidation,
    /// Who writes, for server-side apply.
    pub field_manager: String,
    /// Take fields over from other managers (apply only).
    pub force: bool,
}

/// An object as the result of a verb: stored, or only computed (dry run, other version).
#[derive(Debug, Clone)]
pub(crate) enum Object {
    /// In its storage version.
    Stored(Arc<Entry>),
    /// In the version of the request.
    Computed(Value),
}

/// What a write did.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) object: Object,
    /// A new object was made.
    pub(crate) created: bool,
    pub(crate) warnings: Vec<String>,
}

impl Outcome {
    fn stored(entry: Arc<Entry>) -> Self {
        Self {
            object: Object::Stored(entry),
            created: false,
            warnings: Vec::new(),
        }
    }

    fn computed(value: Value) -> Self {
        Self {
            object: Object::Computed(value),
            ..Self::empty()
        }
    }

    fn empty() -> Self {
        Self {
            object: Object::Computed(Value::Null),
            created: false,
            warnings: Vec::new(),
        }
    }
}

impl Object {
    /// The object in the version of `resource`.
    pub(crate) fn value(&self, resource: &Resource) -> Value {
        match self {
            Self::Stored(entry) => resource.from_storage(entry.value()),
            Self::Computed(value) => value.clone(),
        }
    }

    /// The JSON of the object in the version of `resource`.
    pub(crate) fn bytes(&self, resource: &Resource) -> Bytes {
        match self {
            Self::Stored(entry) if resource.storage_version => entry.bytes.clone(),
            other => Bytes::from(other.value(resource).to_string()),
        }
    }
}

/// A decoded body of a write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Input {
    pub(crate) value: Value,
    /// Problems the decoder noticed, in the words of strict decoding.
    pub(crate) problems: Vec<String>,
    /// The object is the result of a patch: what is wrong with it is wrong with the patch.
    pub(crate) patched: bool,
}

impl From<Value> for Input {
    fn from(value: Value) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }
}

/// Suffix alphabet of generated names.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest prefix that leaves room for the suffix.
const NAME_PREFIX: usize = 58;
/// How often a write is tried again after losing a race.
const ATTEMPTS: usize = 64;

/// `prefix` with five random characters.
pub(crate) fn generated_name(prefix: &str) -> String {
    let mut end = prefix.len().min(NAME_PREFIX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = prefix[..end].to_owned();
    for _ in 0..5 {
        name.push(char::from(
            NAME_ALPHABET[fastrand::usize(..NAME_ALPHABET.len())],
        ));
    }
    name
}

/// Translates what the store says into what a client is told.
pub(crate) fn store_error(resource: &Resource, key: &Key, error: StoreError) -> ApiError {
    let (group, plural) = (&*resource.group, &*resource.plural);
    match error {
        StoreError::NotFound { .. } => ApiError::not_found(group, plural, &key.name),
        StoreError::Exists { current } => {
            if meta::deleting(&current.value()) {
                ApiError::already_exists_terminating(group, plural, &key.name)
            } else {
                ApiError::already_exists(group, plural, &key.name)
            }
        }
        StoreError::Conflict { .. } => ApiError::stale(group, plural, &key.name),
        StoreError::Expired { requested, oldest } => ApiError::too_old(requested, oldest),
        StoreError::Future { requested, current } => {
            ApiError::too_large_resource_version(requested, current)
        }
        StoreError::TooLarge { limit, .. } => ApiError::too_large(limit),
        StoreError::Closed => {
            ApiError::new(503, "ServiceUnavailable", "the server is shutting down")
        }
        other => ApiError::internal(other.to_string()),
    }
}

impl Api {
    /// The key of an object of `resource`.
    pub(crate) fn key(resource: &Resource, namespace: &str, name: &str) -> Key {
        if resource.namespaced {
            Key::new(namespace, name)
        } else {
            Key::cluster(name)
        }
    }

    /// The stored entry, or 404.
    pub(crate) fn entry(&self, resource: &Resource, key: &Key) -> Result<Arc<Entry>, ApiError> {
        self.store()
            .get(&resource.table, key)
            .ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, &key.name))
    }

    /// The resource whose version the objects of `resource` are stored in.
    pub(crate) fn storage_of(&self, resource: &Arc<Resource>) -> Arc<Resource> {
        if resource.storage_version {
            return resource.clone();
        }
        self.registry()
            .storage(&resource.table)
            .unwrap_or_else(|| resource.clone())
    }

    /// Creates an object.
    pub(crate) async fn create_object(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        input: Input,
        options: &WriteOptions,
    ) -> Result<Outcome, ApiError> {
        let Input {
            value: mut object,
            problems,
            patched,
        } = input;
        check_identity(resource, &mut object, patched)?;
        let mut warnings = Vec::new();
        check_fields(resource, &object, problems, options, &mut warnings, patched)?;
        resource.prune(&mut object);
        self.claim_namespace(resource, namespace, &mut object)?;
        if !meta::resource_version(&object).is_empty() {
            return Err(ApiError::new(
                500,
                "InternalError",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let generate = meta::text(&object, &["metadata", "generateName"]).to_owned();
        let generated = meta::name(&object).is_empty() && !generate.is_empty();
        if generated {
            meta::set(&mut object, "name", generated_name(&generate));
        }
        admission::namespace_exists(self, resource, namespace, meta::name(&object))?;
        let now = self.clock().now();
        {
            let metadata = meta::section(&mut object, "metadata");
            for key in [
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "selfLink",
                "resourceVersion",
            ] {
                metadata.remove(key);
            }
            metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
            metadata.insert("creationTimestamp".to_owned(), meta::time(now).into());
        }
        resource.default_object(&mut object);
        resource.prepare_create(&mut object);
        admission::on_create(self, resource, namespace, &mut object)?;
        let errors = resource.validate_create(&object);
        if !errors.is_empty() {
            return Err(invalid(resource, meta::name(&object), &errors));
        }
        let storage = self.storage_of(resource);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let name = meta::name(&object).to_owned();
            let key = Self::key(resource, namespace, &name);
            if options.dry_run {
                if let Some(current) = self.store().get(&resource.table, &key) {
                    return Err(store_error(resource, &key, StoreError::Exists { current }));
                }
                return Ok(Outcome {
                    created: true,
                    warnings,
                    ..Outcome::computed(object)
                });
            }
            // Only a generated name can be tried again, which needs the object once more.
            let again = generated.then(|| object.clone());
            let stored = resource.to_storage(object);
            let index = storage.index(&stored);
            match self
                .store()
                .create(resource.table.clone(), key.clone(), stored, index)
                .await
            {
                Ok(entry) => {
                    self.stored(resource, &entry).await?;
                    return Ok(Outcome {
                        created: true,
                        warnings,
                        ..Outcome::stored(entry)
                    });
                }
                Err(error) => match (error, again) {
                    (StoreError::Exists { .. }, Some(mut same)) if attempt < 8 => {
                        meta::set(&mut same, "name", generated_name(&generate));
                        object = same;
                    }
                    (error, _) => return Err(store_error(resource, &key, error)),
                },
            }
        }
    }

    /// Changes an object: `change` gets it as it is now, in the version of `resource`, and returns
    /// what it shall be. A race with another writer is run again, unless the result of `change`
    /// names a `resourceVersion` that is not the current one.
    pub(crate) async fn modify(
        &self,
        resource: &Arc<Resource>,
        subresource: Option<&str>,
        key: &Key,
        options: &WriteOptions,
        mut change: impl FnMut(&Value) -> Result<Input, ApiError>,
    ) -> Result<Outcome, ApiError> {
        let storage = self.storage_of(resource);
        for _ in 0..ATTEMPTS {
            let entry = self.entry(resource, key)?;
            let old = resource.from_storage(entry.value());
            let Input {
                value: mut new,
                problems,
                patched,
            } = change(&old)?;
            let mut warnings = Vec::new();
            check_identity(resource, &mut new, patched)?;
            check_fields(resource, &new, problems, options, &mut warnings, patched)?;
            resource.prune(&mut new);
            check_update_identity(resource, key, &old, &mut new, subresource)?;
            resource.default_object(&mut new);
            resource.prepare_update(subresource, &old, &mut new);
            keep_identity(&old, &mut new);
            admission::on_update(self, resource, subresource, &old, &mut new)?;
            let mut errors = new_finalizers_while_deleting(&old, &new);
            errors.extend(resource.validate_update(subresource, &new, &old));
            if !errors.is_empty() {
                return Err(invalid(resource, &key.name, &errors));
            }
            meta::set(&mut new, "resourceVersion", entry.revision.to_string());
            if new == old {
                return Ok(Outcome {
                    warnings,
                    ..Outcome::stored(entry)
                });
            }
            let leaves = meta::deleting(&new)
                && meta::finalizers(&new).is_empty()
                && !pending_grace(&new)
                && !(resource.is("", "namespaces") && namespace_held(&new));
            if options.dry_run {
                return Ok(Outcome {
                    warnings,
                    ..Outcome::computed(new)
                });
            }
            if leaves {
                match self.remove(resource, key, Some(entry.revision)).await {
                    Ok(_) => {
                        return Ok(Outcome {
                            warnings,
                            ..Outcome::computed(new)
                        });
                    }
                    Err(StoreError::Conflict { .. }) => continue,
                    Err(e) => return Err(store_error(resource, key, e)),
                }
            }
            let stored = resource.to_storage(new);
            let index = storage.index(&stored);
            let done = self
                .store()
                .update(
                    resource.table.clone(),
                    key.clone(),
                    Some(entry.revision),
                    stored,
                    index,
                )
                .await;
            match done {
                Ok(entry) => {
                    self.stored(resource, &entry).await?;
                    return Ok(Outcome {
                        warnings,
                        ..Outcome::stored(entry)
                    });
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(store_error(resource, key, e)),
            }
        }
        Err(ApiError::stale(
            &resource.group,
            &resource.plural,
            &key.name,
        ))
    }

    /// Removes an entry for good, with what that entails.
    pub(crate) async fn remove(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        expected: Option<Revision>,
    ) -> Result<Arc<Entry>, StoreError> {
        let gone = self
            .store()
            .delete(resource.table.clone(), key.clone(), expected, None)
            .await?;
        self.removed(resource, &gone);
        Ok(gone)
    }

    /// Sets `metadata.namespace` from the URL and refuses a body that says otherwise.
    fn claim_namespace(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &mut Value,
    ) -> Result<(), ApiError> {
        let given = meta::namespace(object);
        if resource.namespaced {
            if !given.is_empty() && given != namespace {
                return Err(namespace_mismatch());
            }
            meta::set(object, "namespace", namespace);
        } else {
            if !given.is_empty() {
                return Err(namespace_mismatch());
            }
            meta::section(object, "metadata").remove("namespace");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_keep_their_prefix_and_fit() {
        let name = generated_name("web-");
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_eq!(generated_name(&"x".repeat(200)).len(), 63);
        assert!(generated_name(&"é".repeat(60)).len() <= 63);
    }
}
