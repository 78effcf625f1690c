//! What the server knows of one resource of one group version. `strategy`, `selector`, `table` and
//! `patch` say what is done with its objects.

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
    /// From its parts.
    #[must_use]
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        }
    }
    /// `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        meta::api_version(&self.group, &self.version)
    }
}

/// A sub-resource such as `status` or `scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    /// Last path segment.
    pub name: Cow<'static, str>,
    /// What its body and answer are.
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
    /// What it means.
    pub description: String,
    /// Columns above 0 are shown with `-o wide`.
    pub priority: i64,
    /// Where the value is.
    pub path: Path,
}

/// Where the scale sub-resource finds its values: object keys from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    /// Desired replicas.
    pub spec: Vec<String>,
    /// Observed replicas.
    pub status: Vec<String>,
    /// Serialized label selector; without it `spec.selector` is shown.
    pub selector: Option<Vec<String>>,
}

/// What one served version of a definition says about its objects.
#[derive(Debug, Clone, Default)]
pub struct CustomVersion {
    /// The schema as written, for OpenAPI.
    pub raw_schema: Value,
    /// Printer columns.
    pub columns: Vec<Column>,
    /// Field selectors besides name and namespace.
    pub selectable_fields: Vec<(Arc<str>, Path)>,
    /// What is stored may be another version, or from before a default: it is not what is read.
    pub rewritten: bool,
    /// The definition is being deleted: nothing new can be made.
    pub terminating: bool,
    /// What whoever uses this version is warned of.
    pub deprecation: Option<String>,
}

/// One resource of one group version.
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
    /// Names kubectl accepts instead of the plural.
    pub short_names: Vec<Arc<str>>,
    /// `all` and the like.
    pub categories: Vec<Arc<str>>,
    /// Objects live in namespaces.
    pub namespaced: bool,
    /// Verbs in discovery.
    pub verbs: &'static [&'static str],
    /// Sub-resources.
    pub subresources: Vec<Subresource>,
    /// Objects are stored in this version.
    pub storage_version: bool,
    /// The version objects are stored in.
    pub storage: GroupVersionKind,
    /// Where objects are stored. Resources with the same table are views of the same objects.
    pub table: TableId,
    /// Objects are stored at all (false: reviews and other create-only kinds).
    pub stored: bool,
    /// What the objects are made of.
    pub schema: Arc<Schema>,
    /// The server keeps `metadata.generation`.
    pub generation: bool,
    /// The scale sub-resource.
    pub scale: Option<ScalePaths>,
    /// What else its definition says of a custom resource.
    pub custom: Option<Arc<CustomVersion>>,
}

impl Resource {
    /// Group, version and kind.
    #[must_use]
    pub fn gvk(&self) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: self.kind.clone(),
        }
    }

    /// `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        meta::api_version(&self.group, &self.version)
    }

    /// `pods` or `deployments.apps`, as error messages name it.
    #[must_use]
    pub fn qualified(&self) -> String {
        super::status::qualified(&self.plural, &self.group)
    }

    /// The sub-resource of that name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// `status` is separate from the rest of the object.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// The kind comes from a CustomResourceDefinition.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    /// True for a built-in kind with this group and plural.
    #[must_use]
    pub fn is(&self, group: &str, plural: &str) -> bool {
        !self.is_custom() && &*self.group == group && &*self.plural == plural
    }

    /// A PUT without `metadata.resourceVersion` overwrites whatever is there.
    #[must_use]
    pub fn allows_unconditional_update(&self) -> bool {
        !self.is_custom()
            && !self.is("apiextensions.k8s.io", "customresourcedefinitions")
            && !self.is("policy", "poddisruptionbudgets")
            && &*self.group != "resource.k8s.io"
    }

    /// A PUT to a missing object creates it.
    #[must_use]
    pub fn allows_create_on_update(&self) -> bool {
        self.is("coordination.k8s.io", "leases")
            || &*self.plural == "events"
            || self.is("", "limitranges")
            || self.is("", "endpoints")
    }

    /// Strategic merge patches are possible.
    #[must_use]
    pub fn supports_strategic_merge(&self) -> bool {
        !self.is_custom()
    }

    /// Checks the JSON types of all known fields. Errors are the text of a 400 answer: a typed
    /// server cannot even decode such a body. Of custom resources only the metadata is checked,
    /// the rest by validation.
    ///
    /// # Errors
    /// A description that names field and value.
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

    /// Fields that the kind does not have, as `unknown field "spec.foo"`: of a built-in kind in the
    /// order of the object; of a custom one by path, those of the metadata first.
    #[must_use]
    pub fn unknown_fields(&self, object: &Value) -> Vec<String> {
        let mut paths = self.undeclared(object);
        if self.is_custom() {
            paths.sort_by_cached_key(|p| (!p.starts_with("metadata."), p.clone()));
        }
        paths
            .iter()
            .map(|p| format!("unknown field {}", super::status::quoted(p)))
            .collect()
    }

    /// The paths of the first 100 fields that the schema does not know.
    #[must_use]
    pub fn undeclared(&self, object: &Value) -> Vec<String> {
        let mut paths = Vec::new();
        self.schema.unknown_fields(object, &mut paths);
        paths
    }

    /// Drops unknown fields (and, for built-in kinds, nulls), as decoding into a type would.
    pub fn prune(&self, object: &mut Value) {
        self.schema.prune(object);
    }

    /// What is stored is what clients of this version read, byte for byte.
    #[must_use]
    pub fn reads_stored(&self) -> bool {
        self.storage_version && !self.custom.as_ref().is_some_and(|c| c.rewritten)
    }
}
