//! Errors of the store.

use super::{Entry, Key, Revision, TableId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of the store. Cheap to clone: one failed fsync fails every write of its batch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The object to update or delete does not exist.
    #[error("{table} {key} not found")]
    NotFound {
        /// Table of the object.
        table: TableId,
        /// Key of the object.
        key: Key,
    },
    /// The object to create exists already.
    #[error("{} {} already exists", .current.table, .current.key)]
    Exists {
        /// Current version of the object.
        current: Arc<Entry>,
    },
    /// The expected revision, or the expected uid, is not the current one.
    #[error("{} {} is at revision {}, uid {}: precondition failed", .current.table, .current.key, .current.revision, .current.index.uid)]
    Conflict {
        /// The current version.
        current: Arc<Entry>,
    },
    /// The revision is older than the history that is kept.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired {
        /// The requested revision.
        requested: Revision,
        /// The oldest revision that can be served.
        oldest: Revision,
    },
    /// The revision of a list has not been reached yet.
    #[error("revision {requested} is in the future, the newest is {current}")]
    Future {
        /// The requested revision.
        requested: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The value to store is not a JSON object.
    #[error("{table} {key}: value is not a JSON object")]
    NotAnObject {
        /// Table of the object.
        table: TableId,
        /// Key of the object.
        key: Key,
    },
    /// The object exceeds the size limit.
    #[error("{table} {key}: object of {size} bytes is too large, the limit is {limit}")]
    TooLarge {
        /// Table of the object.
        table: TableId,
        /// Key of the object.
        key: Key,
        /// Size of the object in bytes.
        size: usize,
        /// Size limit in bytes.
        limit: usize,
    },
    /// A file could not be read or written. The write that reports it did not happen.
    #[error("failed to {action} {path}: {source}")]
    Io {
        /// Failed operation.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: Arc<io::Error>,
    },
    /// A file that was written completely cannot be read back.
    #[error(
        "{path} is corrupt at byte {offset}: {reason}; restore it from a backup, or move the directory away to start empty"
    )]
    Corrupt {
        /// Path of the file.
        path: PathBuf,
        /// Offset in the file.
        offset: u64,
        /// Description of the defect.
        reason: String,
    },
    /// Another process has the data directory open.
    #[error("data directory {dir} is in use by {holder}")]
    Locked {
        /// Path of the directory.
        dir: PathBuf,
        /// Process that has it open.
        holder: String,
    },
    /// The store is closed.
    #[error("store is closed")]
    Closed,
}

impl StoreError {
    /// Returns an [`StoreError::Io`] for `action` on `path`.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}
