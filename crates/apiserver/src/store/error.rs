//! Why the store refused.

use super::{Entry, Key, Revision, TableId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of the store. Cheap to clone: one failed fsync fails every write of its batch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Update or delete of an object that is not there.
    #[error("{table} {key} not found")]
    NotFound {
        /// The table asked.
        table: TableId,
        /// The key asked for.
        key: Key,
    },
    /// Create of an object that is there.
    #[error("{} {} already exists", .current.table, .current.key)]
    Exists {
        /// The version that is there.
        current: Arc<Entry>,
    },
    /// The expected revision, or the expected uid, is not the current one.
    #[error("{} {} is at revision {}, uid {}: precondition failed", .current.table, .current.key, .current.revision, .current.index.uid)]
    Conflict {
        /// The version that is there.
        current: Arc<Entry>,
    },
    /// The revision is older than the history that is kept.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired {
        /// The revision asked for.
        requested: Revision,
        /// The oldest revision that can be served.
        oldest: Revision,
    },
    /// A list at an exact revision that has not been reached yet.
    #[error("revision {requested} is in the future, the newest is {current}")]
    Future {
        /// The revision asked for.
        requested: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// Only JSON objects can be stored.
    #[error("{table} {key}: value is not a JSON object")]
    NotAnObject {
        /// The table written to.
        table: TableId,
        /// The key written to.
        key: Key,
    },
    /// The object has more bytes than are stored.
    #[error("{table} {key}: object of {size} bytes is too large, the limit is {limit}")]
    TooLarge {
        /// The table written to.
        table: TableId,
        /// The key written to.
        key: Key,
        /// Bytes of the object.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Reading or writing a file failed. The write that reports it did not happen.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// A file that was written completely does not read back.
    #[error(
        "{path} is corrupt at byte {offset}: {reason}; restore it from a backup, or move the directory away to start empty"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// Another process has the data directory open.
    #[error("data directory {dir} is in use by {holder}")]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Who holds it.
        holder: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// An [`StoreError::Io`] for `action` on `path`.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}
