//! Creation of objects, and types shared by all writes.

use super::admission::{self, AdmissionAttributes, Operation, Options};
use super::body::Problems;
use super::check::{check_fields, check_identity, invalid, namespace_mismatch, store_error};
use super::options::WriteOptions;
use super::{Api, meta};
use crate::store::{Entry, StoreError};
use bytes::Bytes;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::Value;
use std::sync::Arc;

/// Resulting object of a verb: stored, or only computed (dry run, other version).
#[derive(Debug, Clone)]
pub(crate) enum Object {
    /// A stored object, in its storage version.
    Stored(Arc<Entry>),
    /// An object that was only computed, in the version of the request.
    Computed(Value),
}

/// Outcome of a write.
#[derive(Debug)]
pub(crate) struct WriteResult {
    pub(crate) object: Object,
    /// True if a new object was created.
    pub(crate) created: bool,
    pub(crate) warnings: Vec<String>,
}

impl WriteResult {
    pub(super) fn stored(entry: Arc<Entry>) -> Self {
        Self {
            object: Object::Stored(entry),
            created: false,
            warnings: Vec::new(),
        }
    }

    pub(super) fn computed(value: Value) -> Self {
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
    /// Returns the object in the version of `resource`.
    pub(crate) fn value(&self, resource: &Resource) -> Value {
        match self {
            Self::Stored(entry) => resource.from_storage(entry.value()),
            Self::Computed(value) => value.clone(),
        }
    }

    /// Returns the JSON of the object in the version of `resource`.
    pub(crate) fn bytes(&self, resource: &Resource) -> Bytes {
        match self {
            Self::Stored(entry) if resource.reads_stored() => entry.bytes.clone(),
            other => Bytes::from(other.value(resource).to_string()),
        }
    }
}

/// A decoded body of a write.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteInput {
    pub(crate) value: Value,
    /// Problems found by the decoder, in the format of strict decoding.
    pub(crate) problems: Problems,
    /// True if the object is the result of a patch: its problems are then reported as those of the patch.
    pub(crate) patched: bool,
    /// True if the object is the result of server-side apply, which sets the managed fields itself.
    pub(crate) applied: bool,
}

impl From<Value> for WriteInput {
    fn from(value: Value) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }
}

/// Suffix alphabet of generated names.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest prefix of a generated name, in bytes; leaves space for the suffix.
const NAME_PREFIX: usize = 58;

/// Returns `prefix` with five random characters.
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

impl Api {
    /// Creates an object.
    pub(crate) async fn create_object(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        input: WriteInput,
        options: &WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        let WriteInput {
            value: mut object,
            problems,
            patched,
            applied,
        } = input;
        check_identity(resource, &mut object, patched)?;
        let mut warnings = Vec::new();
        check_fields(resource, &object, problems, options, &mut warnings, patched)?;
        resource.prune(&mut object);
        self.claim_namespace(resource, namespace, &mut object)?;
        if !meta::resource_version(&object).is_empty() && !options.dry_run {
            return Err(ApiError::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        {
            let metadata = meta::section(&mut object, "metadata");
            for key in [
                "uid",
                "creationTimestamp",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "selfLink",
                "resourceVersion",
            ] {
                metadata.remove(key);
            }
        }
        resource.default_object(&mut object);
        if !applied {
            self.track_created(resource, &mut object, options);
        }
        let provided = meta::name(&object).to_owned();
        let attributes = AdmissionAttributes::new(
            Operation::Create,
            resource,
            "",
            (namespace, &provided),
            Options::Write(options),
        );
        let _charged = self
            .admission()
            .admit(&attributes, &mut object, None, &mut warnings, |object| {
                self.finish_create(resource, namespace, object)
            })
            .await?;
        let generate = meta::text(&object, &["metadata", "generateName"]).to_owned();
        let generated = provided.is_empty() && !generate.is_empty();
        let storage = self.core().storage_of(resource);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let name = meta::name(&object).to_owned();
            let key = Self::key(resource, namespace, &name);
            if options.dry_run {
                if let Some(current) = self.store().get(&resource.table, &key) {
                    return Err(store_error(resource, &key, StoreError::Exists { current }));
                }
                return Ok(WriteResult {
                    created: true,
                    warnings,
                    ..WriteResult::computed(object)
                });
            }
            // Only a generated name can be retried, for which the object is needed again.
            let requeue = generated.then(|| object.clone());
            let stored = resource.to_storage(object);
            let index = storage.index(&stored);
            match self
                .store()
                .create(resource.table.clone(), key.clone(), stored, index)
                .await
            {
                Ok(entry) => {
                    self.created(resource, &entry).await?;
                    return Ok(WriteResult {
                        created: true,
                        warnings,
                        ..WriteResult::stored(entry)
                    });
                }
                Err(error) => match (error, requeue) {
                    (StoreError::Exists { .. }, Some(mut same)) if attempt < 8 => {
                        meta::set(&mut same, "name", generated_name(&generate));
                        object = same;
                    }
                    (error, _) => return Err(store_error(resource, &key, error)),
                },
            }
        }
    }

    /// Completes an admitted new object with the server's own fields and validates it.
    fn finish_create(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &mut Value,
    ) -> Result<(), ApiError> {
        self.claim_namespace(resource, namespace, object)?;
        let generate = meta::text(object, &["metadata", "generateName"]);
        if meta::name(object).is_empty() && !generate.is_empty() {
            let name = generated_name(generate);
            meta::set(object, "name", name);
        }
        meta::set(object, "uid", uuid::Uuid::new_v4().to_string());
        meta::set(object, "creationTimestamp", meta::time(self.clock().now()));
        resource.prepare_create(object);
        admission::on_create(self.core(), resource, object)?;
        let errors = resource.validate_create(object);
        if errors.is_empty() {
            return Ok(());
        }
        Err(invalid(resource, meta::name(object), &errors))
    }

    /// Sets `metadata.namespace` from the URL and refuses a body with another one.
    fn claim_namespace(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &mut Value,
    ) -> Result<(), ApiError> {
        let provided = meta::namespace(object);
        if resource.namespaced {
            if !provided.is_empty() && provided != namespace {
                return Err(namespace_mismatch());
            }
            meta::set(object, "namespace", namespace);
        } else {
            if !provided.is_empty() {
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
