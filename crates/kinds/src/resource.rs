//! Description of one resource of one group version. `strategy`, `selector`, `table` and `patch` implement
//! the operations on its objects.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::jsonpath::Path;
use super::meta;
use super::schema::{Schema, types::object_meta};
use crate::TableId;

/// Group, version and kind of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GroupVersionKind {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// API version.
    pub version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
}

impl GroupVersionKind {
    /// Creates it from its parts.
    #[must_use]
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        }
    }
    /// Returns `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        meta::api_version(&self.group, &self.version)
    }
}

/// A subresource such as `status` or `scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    /// Last path segment.
    pub name: Cow<'static, str>,
    /// Kind of its request and response bodies.
    pub response: GroupVersionKind,
    /// Verbs in discovery.
    pub verbs: &'static [&'static str],
}

/// A column of `kubectl get`.
#[derive(Debug, Clone)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `integer`, `number`, `string`, `boolean` or `date`.
    pub kind: String,
    /// OpenAPI format.
    pub format: String,
    /// Description of the column.
    pub description: String,
    /// Priority; columns above 0 are shown with `-o wide`.
    pub priority: i64,
    /// Path of the value.
    pub path: Path,
}

/// Paths of the scale subresource's values: object keys from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    /// Path of the desired replicas.
    pub spec: Vec<String>,
    /// Path of the observed replicas.
    pub status: Vec<String>,
    /// Path of the serialized label selector; `None`: `spec.selector` is shown.
    pub selector: Option<Vec<String>>,
}

/// Properties of one served version of a custom resource definition.
#[derive(Debug, Clone, Default)]
pub struct CustomVersion {
    /// The schema as written, for OpenAPI.
    pub raw_schema: Value,
    /// Printer columns.
    pub columns: Vec<Column>,
    /// Selectable fields in addition to name and namespace.
    pub selectable_fields: Vec<(Arc<str>, Path)>,
    /// True if stored objects may have another version or lack defaults, so that they are converted when
    /// read.
    pub rewritten: bool,
    /// True if the definition is being deleted: no new objects can be created.
    pub terminating: bool,
    /// Deprecation warning for users of this version.
    pub deprecation: Option<String>,
}

/// A resource of a group version.
#[derive(Debug, Clone)]
pub struct Resource {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// API version.
    pub version: Arc<str>,
    /// Kind of the objects.
    pub kind: Arc<str>,
    /// Path segment.
    pub plural: Arc<str>,
    /// Singular name.
    pub singular: Arc<str>,
    /// Kind of a list.
    pub list_kind: Arc<str>,
    /// Names that kubectl accepts instead of the plural.
    pub short_names: Vec<Arc<str>>,
    /// Categories, such as `all`.
    pub categories: Vec<Arc<str>>,
    /// True if objects have a namespace.
    pub namespaced: bool,
    /// Verbs in discovery.
    pub verbs: &'static [&'static str],
    /// Subresources.
    pub subresources: Vec<Subresource>,
    /// True if objects are stored in this version.
    pub storage_version: bool,
    /// Version and kind in which objects are stored.
    pub storage: GroupVersionKind,
    /// Table in which objects are stored. Resources with the same table are views of the same objects.
    pub table: TableId,
    /// True if objects are stored at all (false: reviews and other create-only kinds).
    pub stored: bool,
    /// Schema of the objects.
    pub schema: Arc<Schema>,
    /// True if the server maintains `metadata.generation`.
    pub generation: bool,
    /// Paths of the scale subresource; `None` without one.
    pub scale: Option<ScalePaths>,
    /// Further properties of a custom resource; `None` for a built-in kind.
    pub custom: Option<Arc<CustomVersion>>,
}

impl Resource {
    /// Returns group, version and kind.
    #[must_use]
    pub fn gvk(&self) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: self.kind.clone(),
        }
    }

    /// Returns `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        meta::api_version(&self.group, &self.version)
    }

    /// Returns the name in error messages: `pods` or `deployments.apps`.
    #[must_use]
    pub fn qualified(&self) -> String {
        super::status::qualified(&self.plural, &self.group)
    }

    /// Returns the subresource with this name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Returns true if `status` is a separate subresource.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// Returns true if the kind comes from a CustomResourceDefinition.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// Returns true for a built-in kind with this group and plural.
    #[must_use]
    pub fn is(&self, group: &str, plural: &str) -> bool {
        !self.is_custom() && &*self.group == group && &*self.plural == plural
    }

    /// Returns true if a PUT without `metadata.resourceVersion` overwrites the current object.
    #[must_use]
    pub fn allows_unconditional_update(&self) -> bool {
        !self.is_custom()
            && !self.is("apiextensions.k8s.io", "customresourcedefinitions")
            && !self.is("policy", "poddisruptionbudgets")
            && &*self.group != "resource.k8s.io"
    }

    /// Returns true if a PUT of a missing object creates it.
    #[must_use]
    pub fn allows_create_on_update(&self) -> bool {
        self.is("coordination.k8s.io", "leases")
            || &*self.plural == "events"
            || self.is("", "limitranges")
            || self.is("", "endpoints")
    }

    /// Returns true if strategic merge patches are possible.
    #[must_use]
    pub fn supports_strategic_merge(&self) -> bool {
        !self.is_custom()
    }

    /// Checks the JSON types of all declared fields. Errors are the text of a 400 response: a typed server
    /// could not decode such a body. For custom resources only the metadata is checked here, the rest by
    /// validation.
    ///
    /// # Errors
    /// A description with field and value.
    pub fn check_types(&self, object: &Value) -> Result<(), String> {
        if !object.is_object() {
            return Err("the object provided is not a JSON object".to_owned());
        }
        if self.is_custom() {
            let metadata = object.get("metadata").unwrap_or(&Value::Null);
            return object_meta()
                .check_types(metadata)
                .map_err(|e| e.replace("field ", "field metadata."));
        }
        self.schema.check_types(object).map_err(|e| {
            format!(
                "{} in version {} cannot be handled as a {}: {e}",
                self.kind,
                super::status::quoted(&self.version),
                self.kind
            )
        })
    }

    /// Returns the undeclared fields as `unknown field "spec.foo"`: of a built-in kind in the order of the
    /// object; of a custom one by path, those of the metadata first.
    #[must_use]
    pub fn unknown_fields(&self, object: &Value) -> Vec<String> {
        let mut paths = self.undeclared_fields(object);
        if self.is_custom() {
            paths.sort_by_cached_key(|p| (!p.starts_with("metadata."), p.clone()));
        }
        paths
            .iter()
            .map(|p| format!("unknown field {}", super::status::quoted(p)))
            .collect()
    }

    /// Returns the paths of the first 100 fields that the schema does not declare.
    #[must_use]
    pub fn undeclared_fields(&self, object: &Value) -> Vec<String> {
        let mut paths = Vec::new();
        self.schema.unknown_fields(object, &mut paths);
        paths
    }

    /// Removes undeclared fields (and, for built-in kinds, nulls), as decoding into a type would.
    pub fn prune(&self, object: &mut Value) {
        self.schema.prune(object);
    }

    /// Returns true if the stored bytes are exactly what clients of this version read.
    #[must_use]
    pub fn reads_stored(&self) -> bool {
        self.storage_version && !self.custom.as_ref().is_some_and(|c| c.rewritten)
    }
}
