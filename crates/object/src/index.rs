//! Identification and lookup of objects without parsing them.

use std::fmt;
use std::sync::Arc;

/// Identifies one table: `"group/plural"`, with an empty group for the core API (`"/pods"`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(Arc<str>);

impl TableId {
    /// Creates the id of the table of `plural` in API group `group` (`""` for core).
    #[must_use]
    pub fn new(group: &str, plural: &str) -> Self {
        Self(format!("{group}/{plural}").into())
    }

    /// Returns the id as text, `"group/plural"`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the API group, `""` for core.
    #[must_use]
    pub fn group(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the plural resource name.
    #[must_use]
    pub fn plural(&self) -> &str {
        self.0
            .rsplit_once('/')
            .map_or(&self.0, |(_, plural)| plural)
    }
}

impl From<&str> for TableId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fields of an object that selectors and garbage collection use without parsing it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.labels`.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// The selectable fields of the kind, such as `spec.nodeName`, with their values.
    /// `metadata.name` and `metadata.namespace` need not be repeated here.
    pub fields: Vec<(Arc<str>, Arc<str>)>,
    /// `metadata.ownerReferences[*].uid`.
    pub owners: Vec<Arc<str>>,
}

impl Index {
    /// Returns the value of label `key`.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(k, _)| &**k == key)
            .map(|(_, v)| &**v)
    }

    /// Returns the value of selectable field `path`.
    #[must_use]
    pub fn field(&self, path: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(k, _)| &**k == path)
            .map(|(_, v)| &**v)
    }
}
