//! Types of the store: tables of entries, each the JSON bytes of one object plus an index.

use bytes::Bytes;
use koord_kinds::{Index, TableId};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// Version counter of the store. Every committed write takes the next one; none is reused, not even after a
/// crash. 0 is never assigned.
pub type Revision = u64;

/// Identifies an object in its table. Ordered by namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
}

impl Key {
    /// Creates a key; `namespace` is empty for cluster-scoped objects.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Creates the key of a cluster-scoped object.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: Arc::from(""),
            name: name.into(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// One version of one object.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Table of the object.
    pub table: TableId,
    /// Key in that table.
    pub key: Key,
    /// Revision that wrote this version; also in `metadata.resourceVersion` of [`Self::bytes`].
    pub revision: Revision,
    /// Revision that created the object.
    pub created: Revision,
    /// JSON of the object in its storage version.
    pub bytes: Bytes,
    /// Fields for selectors.
    pub index: Index,
    /// Offset in `bytes` of the digits of `metadata.resourceVersion`.
    pub(super) version_at: u32,
}

impl Entry {
    /// Parses the object.
    #[must_use]
    pub fn value(&self) -> Value {
        // The bytes were serialized by this store from a `Value`, and checked by CRC when read back.
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    /// Returns the object's bytes with `metadata.resourceVersion` replaced by `revision`, as a watcher
    /// receives them when the object leaves its selection at `revision`.
    #[must_use]
    pub fn bytes_at(&self, revision: Revision) -> Bytes {
        let (before, after) = self.around_version();
        super::stamp::join(before, revision, after).0
    }

    /// Returns the bytes before and after the digits of `metadata.resourceVersion`.
    pub(super) fn around_version(&self) -> (&[u8], &[u8]) {
        let start = self.version_at as usize;
        let end = start + super::stamp::digits(self.revision);
        (&self.bytes[..start], &self.bytes[end..])
    }

    /// Estimates the memory of this version in bytes.
    pub(super) fn weight(&self) -> usize {
        let pairs = self.index.labels.len() + self.index.fields.len();
        self.bytes.len() + 256 + pairs * 64 + self.index.owners.len() * 56
    }
}

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The object was created or updated.
    Put,
    /// The object was removed.
    Delete,
}

/// One committed change.
#[derive(Debug, Clone)]
pub struct Event {
    /// Kind of the change.
    pub kind: EventKind,
    /// Revision of the change.
    pub revision: Revision,
    /// Version before the change; `None` if the object was created.
    pub old: Option<Arc<Entry>>,
    /// Version after the change. For a removal: the last state, with the revision of the removal.
    pub new: Arc<Entry>,
}

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Page {
    /// Matching entries, ordered by key.
    pub items: Vec<Arc<Entry>>,
    /// Revision at which the page is exact.
    pub revision: Revision,
    /// Key to pass as `after` for the next page; `None` on the last page.
    pub next: Option<Key>,
    /// Number of entries after this page, *not counting the filter*. Only on the first page, and `None` if
    /// there is no further one: later pages can be computed from it.
    pub remaining: Option<u64>,
}
