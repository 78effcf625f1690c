//! One served resource of one group version and the operations on its objects.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::crd::CustomVersion;
use super::status::FieldError;
use super::table::Include;
use super::{facts, meta, strategy, table};
use crate::store::{Index, TableId};

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

/// What distinguishes the kinds behind a resource.
#[derive(Debug, Clone)]
pub enum Behavior {
    /// A kind of Kubernetes itself; the string names its type in the fact table.
    Builtin {
        /// Type name such as `core/v1.Pod`.
        type_name: &'static str,
        /// The server keeps `metadata.generation`.
        generation: bool,
    },
    /// One version of a custom resource definition.
    Custom(Arc<CustomVersion>),
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
    /// Kind-specific behaviour.
    pub behavior: Behavior,
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
        matches!(self.behavior, Behavior::Custom(_))
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

    /// The object type in the fact table.
    pub(super) fn shape(&self) -> Option<facts::StructId> {
        match &self.behavior {
            Behavior::Builtin { type_name, .. } => facts::find(type_name),
            Behavior::Custom(_) => None,
        }
    }

    /// Checks the JSON types of all known fields. Errors are the text of a 400 answer: a typed
    /// server cannot even decode such a body. Custom resources are checked by validation instead.
    ///
    /// # Errors
    /// A description that names field and value.
    pub fn check_types(&self, object: &Value) -> Result<(), String> {
        if !object.is_object() {
            return Err("the object provided is not a JSON object".to_owned());
        }
        match self.shape() {
            Some(shape) => facts::check_types(shape, object).map_err(|e| {
                format!(
                    "{} in version {} cannot be handled as a {}: {e}",
                    self.kind,
                    super::status::quoted(&self.version),
                    self.kind
                )
            }),
            None => meta::check_types(object),
        }
    }

    /// Fields that the kind does not have, as `unknown field "spec.foo"`: of a built-in kind in the
    /// order of the object; of a custom one by path, those of the metadata first.
    #[must_use]
    pub fn unknown_fields(&self, object: &Value) -> Vec<String> {
        let mut paths = Vec::new();
        match (&self.behavior, self.shape()) {
            (Behavior::Custom(c), _) => {
                c.unknown_fields(object, &mut paths);
                paths.sort_by_cached_key(|p| (!p.starts_with("metadata."), p.clone()));
            }
            (_, Some(shape)) => facts::unknown_fields(shape, object, &mut paths),
            _ => {}
        }
        paths
            .iter()
            .map(|p| format!("unknown field {}", super::status::quoted(p)))
            .collect()
    }

    /// Drops unknown fields (and, for built-in kinds, nulls), as decoding into a type would.
    pub fn prune(&self, object: &mut Value) {
        match (&self.behavior, self.shape()) {
            (Behavior::Custom(c), _) => c.prune(object),
            (_, Some(shape)) => facts::prune(shape, object),
            _ => {}
        }
    }

    /// Brings quantities and timestamps of a built-in kind to their canonical form.
    pub(super) fn canonicalize(&self, object: &mut Value) {
        if let Some(shape) = self.shape() {
            facts::canonicalize(shape, object);
        }
    }

    /// Metadata that a write of `/status` leaves as it is.
    pub(super) fn keeps_in_status(&self, key: &str) -> bool {
        self.is_custom() || strategy::kept_by_status(self).contains(&key)
    }

    /// API defaulting; also brings quantities and timestamps to their canonical form.
    pub fn default_object(&self, object: &mut Value) {
        match &self.behavior {
            Behavior::Custom(c) => c.default_object(object),
            Behavior::Builtin { .. } => {
                self.canonicalize(object);
                strategy::default_object(self, object);
            }
        }
    }

    /// What the server does to an object before it is created: fields clients may not set are
    /// cleared, `metadata.generation` starts at 1. Identity (name, uid, creationTimestamp) is the
    /// caller's.
    pub fn prepare_create(&self, object: &mut Value) {
        strategy::prepare_create(self, object);
    }

    /// What the server does to `new` before it replaces `old`: with `sub` `None` the status is kept
    /// from `old`, with `Some("status")` everything else is, and the generation follows the spec.
    pub fn prepare_update(&self, sub: Option<&str>, old: &Value, new: &mut Value) {
        strategy::prepare_update(self, sub, old, new);
    }

    /// Validates a new object.
    #[must_use]
    pub fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        strategy::validate_create(self, object)
    }

    /// Validates a change.
    #[must_use]
    pub fn validate_update(&self, sub: Option<&str>, new: &Value, old: &Value) -> Vec<FieldError> {
        strategy::validate_update(self, sub, new, old)
    }

    /// What selectors and the garbage collector need to know of an object.
    #[must_use]
    pub fn index(&self, object: &Value) -> Index {
        super::selector::index(self, object)
    }

    /// Whether a field selector may use `field`.
    #[must_use]
    pub fn supports_field(&self, field: &str) -> bool {
        super::selector::supports_field(self, field)
    }

    /// A `meta.k8s.io/v1 Table` of `items`; `now` is what ages count from. List metadata
    /// (resourceVersion, continue) is the caller's.
    #[must_use]
    pub fn to_table(&self, items: &[Value], include: Include, now: jiff::Timestamp) -> Value {
        table::render(self, items, include, now)
    }

    /// Rewrites an object of this resource into `target`'s version. Both must share a table.
    #[must_use]
    pub fn convert(&self, object: Value, target: &Resource) -> Value {
        strategy::convert(self, object, target)
    }

    /// What is stored is what clients of this version read, byte for byte.
    #[must_use]
    pub fn reads_stored(&self) -> bool {
        let rewritten = matches!(&self.behavior, Behavior::Custom(c) if c.rewritten);
        self.storage_version && !rewritten
    }

    /// From the stored form to this version, with the defaults of its schema.
    #[must_use]
    pub fn from_storage(&self, mut object: Value) -> Value {
        if self.reads_stored() {
            return object;
        }
        strategy::from_storage(self, &mut object);
        if let Behavior::Custom(c) = &self.behavior {
            c.default_object(&mut object);
        }
        object
    }

    /// From this version to the stored form.
    #[must_use]
    pub fn to_storage(&self, mut object: Value) -> Value {
        if !self.storage_version {
            strategy::to_storage(self, &mut object);
        }
        object
    }
}
