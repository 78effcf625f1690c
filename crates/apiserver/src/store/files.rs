//! Names and headers of the files in a data directory.
//!
//! - `wal-<base>.log`: a segment of the log, with revisions above its base. It records the base and length of
//!   the previous segment. A missing or truncated segment is detected, and bytes beyond that length, which
//!   a failed write left, are not read as data.
//! - `snapshot-<revision>.db`: all entries at a revision. Segments with an older base are obsolete.
//! - `lock`: locked by the process that has the directory open.

use super::Revision;
use std::path::{Path, PathBuf};

/// Size of a file header in bytes.
pub(super) const HEADER: usize = 48;
const VERSION: u32 = 1;

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    Segment,
    Snapshot,
}

impl FileKind {
    fn magic(self) -> [u8; 8] {
        match self {
            Self::Segment => *b"KOORDWAL",
            Self::Snapshot => *b"KOORDSNP",
        }
    }

    fn affixes(self) -> (&'static str, &'static str) {
        match self {
            Self::Segment => ("wal-", ".log"),
            Self::Snapshot => ("snapshot-", ".db"),
        }
    }

    /// Returns the path of the file of this kind for `revision` in `dir`.
    pub(super) fn path(self, dir: &Path, revision: Revision) -> PathBuf {
        let (prefix, suffix) = self.affixes();
        dir.join(format!("{prefix}{revision:020}{suffix}"))
    }

    /// Parses the revision in the name of a file of this kind; `None` for other names.
    pub(super) fn revision_of(self, name: &str) -> Option<Revision> {
        let (prefix, suffix) = self.affixes();
        name.strip_prefix(prefix)?
            .strip_suffix(suffix)?
            .parse()
            .ok()
    }
}

/// Header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Base of a segment, or revision of a snapshot.
    pub(super) revision: Revision,
    /// Base of the previous segment; 0: none.
    pub(super) previous: Revision,
    /// Length of the data of the previous segment, in bytes.
    pub(super) previous_length: u64,
}

impl Header {
    pub(super) fn encode(&self, kind: FileKind) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&kind.magic());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.revision.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.previous.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.previous_length.to_le_bytes());
        let check = crc32fast::hash(&bytes[..40]).to_le_bytes();
        bytes[40..44].copy_from_slice(&check);
        bytes
    }

    /// Parses a header. Errors are the reason why it is invalid.
    pub(super) fn decode(kind: FileKind, bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: &[u8; HEADER] = bytes
            .get(..HEADER)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or("incomplete file header")?;
        let u64_at = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        if bytes[..8] != kind.magic() {
            return Err("not a file of this store");
        }
        if u64_at(40) as u32 != crc32fast::hash(&bytes[..40]) {
            return Err("file header checksum mismatch");
        }
        if u64_at(8) as u32 != VERSION {
            return Err("written by another version of the store");
        }
        Ok(Self {
            revision: u64_at(16),
            previous: u64_at(24),
            previous_length: u64_at(32),
        })
    }
}
