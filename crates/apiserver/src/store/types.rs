//! What the store holds: tables of entries, each the canonical bytes of one object plus an index.

use bytes::Bytes;
use koord_kinds::{Index, TableId};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// The store-wide version counter. Every committed write takes the next one; never reused, also
/// not after a crash. 0 is never assigned.
pub type Revision = u64;

/// Identifies an object inside its table. Ordered by namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl Key {
    /// A key; `namespace` is empty for cluster-scoped objects.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of a cluster-scoped object.
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
    /// The table it lives in.
    pub table: TableId,
    /// Its key in that table.
    pub key: Key,
    /// The revision that wrote this version; also in `metadata.resourceVersion` of [`Self::bytes`].
    pub revision: Revision,
    /// The revision that created the object.
    pub created: Revision,
    /// The object as JSON in its storage version.
    pub bytes: Bytes,
    /// What selectors need.
    pub index: Index,
    /// Offset in `bytes` of the digits of `metadata.resourceVersion`.
    pub(super) version_at: u32,
}

impl Entry {
    /// The object as a JSON tree.
    #[must_use]
    pub fn value(&self) -> Value {
        // The bytes were serialised by this store from a `Value`, and checked by CRC when read back.
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    /// The object's bytes with `metadata.resourceVersion` replaced by `revision`: what a watcher is
    /// sent when an object leaves its selection at `revision`.
    #[must_use]
    pub fn bytes_at(&self, revision: Revision) -> Bytes {
        let (before, after) = self.around_version();
        super::stamp::join(before, revision, after).0
    }

    /// Bytes before and after the digits of `metadata.resourceVersion`.
    pub(super) fn around_version(&self) -> (&[u8], &[u8]) {
        let start = self.version_at as usize;
        let end = start + super::stamp::digits(self.revision);
        (&self.bytes[..start], &self.bytes[end..])
    }

    /// A rough count of the memory this version holds, in bytes.
    pub(super) fn weight(&self) -> usize {
        let pairs = self.index.labels.len() + self.index.fields.len();
        self.bytes.len() + 256 + pairs * 64 + self.index.owners.len() * 56
    }
}

/// Whether a change wrote or removed an object.
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
    /// Written or removed.
    pub kind: EventKind,
    /// The revision of the change.
    pub revision: Revision,
    /// The version before the change; `None` when the object was created.
    pub old: Option<Arc<Entry>>,
    /// The version after the change. For a removal: the last state, with the revision of the
    /// removal stamped into it.
    pub new: Arc<Entry>,
}

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Page {
    /// The matching entries, ordered by key.
    pub items: Vec<Arc<Entry>>,
    /// The revision at which the page is exact.
    pub revision: Revision,
    /// Where to go on: pass it as `after`. `None` on the last page.
    pub next: Option<Key>,
    /// How many entries follow this page, *not counting the filter*. `None` on the last page and on
    /// all but the first: who goes on knows what was left.
    pub remaining: Option<u64>,
}
