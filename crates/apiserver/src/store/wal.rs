//! The write-ahead log: appends batches of changes.

use super::disk::{Disk, LogFile, sync_dir};
use super::files::{FileKind, HEADER, Header};
use super::{Durability, Event, Revision, StoreError, codec, frame};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Writer of the log.
#[derive(Debug)]
pub(super) struct Wal {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    durability: Durability,
    /// Segment being written. `None` after opening and after a failed write: the next write starts a new one,
    /// so that nothing is ever appended after an uncertain tail.
    current: Option<Segment>,
    /// Base and length of the last segment of the log.
    last: Option<(Revision, u64)>,
    /// Bytes written since the last snapshot was begun.
    grown: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Segment {
    file: Box<dyn LogFile>,
    path: PathBuf,
    base: Revision,
    length: u64,
}

impl Wal {
    /// Creates a log that continues after segment `last` (base and length), with `grown` bytes to replay.
    pub(super) fn new(
        dir: &Path,
        disk: Arc<dyn Disk>,
        durability: Durability,
        last: Option<(Revision, u64)>,
        grown: u64,
    ) -> Self {
        let dir = dir.to_owned();
        Self {
            dir,
            disk,
            durability,
            current: None,
            last,
            grown,
            buffer: Vec::new(),
        }
    }

    /// Returns the number of bytes that would have to be replayed.
    pub(super) fn replay_bytes(&self) -> u64 {
        self.grown
    }

    /// Makes `events` durable as one unit and returns how long the sync took. `base` is the revision before
    /// the first of them. After an error none of them is part of the log.
    pub(super) fn append(
        &mut self,
        base: Revision,
        events: &[Event],
    ) -> Result<Duration, StoreError> {
        let Some(last) = events.last() else {
            return Ok(Duration::ZERO);
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        frame::begin(&mut buffer);
        for event in events {
            codec::encode(&mut buffer, event);
        }
        frame::finish(&mut buffer, last.revision);
        let result = self.write(base, &buffer);
        // One huge batch must not hold its memory forever.
        buffer.shrink_to(1 << 20);
        self.buffer = buffer;
        result
    }

    /// Writes an empty frame, which marks an orderly close: later damage to the frame before it cannot look
    /// like a torn tail.
    pub(super) fn close(&mut self, revision: Revision) {
        if self.current.is_some() {
            let mut buffer = Vec::new();
            frame::begin(&mut buffer);
            frame::finish(&mut buffer, revision);
            if let Err(error) = self.write(revision, &buffer) {
                tracing::warn!(%error, "failed to write the closing frame of the log, no data is lost");
            }
        }
    }

    /// Appends frames to the current segment, syncs it, and returns the duration of the sync.
    fn write(&mut self, base: Revision, bytes: &[u8]) -> Result<Duration, StoreError> {
        if self.current.is_none() {
            self.rotate(base)?;
        }
        let Some(segment) = &mut self.current else {
            return Err(StoreError::Closed);
        };
        let (action, result) = match segment.file.append(bytes) {
            Err(error) => ("write", Err(error)),
            Ok(()) => {
                let before = Instant::now();
                let result = match self.durability {
                    Durability::Fsync => segment.file.sync(),
                    Durability::Os => Ok(()),
                };
                ("sync", result.map(|()| before.elapsed()))
            }
        };
        match result {
            Ok(took) => {
                segment.length += bytes.len() as u64;
                self.grown += bytes.len() as u64;
                self.last = Some((segment.base, segment.length));
                Ok(took)
            }
            Err(source) => {
                let error = StoreError::io(action, &segment.path, source);
                // A partial write must not reappear after a restart. If truncating fails, too, the next
                // segment's header records where this one ends.
                if let Err(error) = segment.file.truncate(segment.length) {
                    tracing::warn!(path = %segment.path.display(), %error, "failed to truncate after a failed write");
                }
                self.current = None;
                Err(error)
            }
        }
    }

    /// Starts a new segment for everything after `base`.
    pub(super) fn rotate(&mut self, base: Revision) -> Result<(), StoreError> {
        if self
            .current
            .as_ref()
            .is_some_and(|segment| segment.base == base)
        {
            return Ok(());
        }
        let path = FileKind::Segment.path(&self.dir, base);
        let (previous, previous_length) = self.last.unwrap_or_default();
        let header = Header {
            revision: base,
            previous,
            previous_length,
        };
        let create = || {
            let mut file = self.disk.create(&path)?;
            file.append(&header.encode(FileKind::Segment))?;
            file.sync()?;
            sync_dir(&self.dir)?;
            Ok(file)
        };
        let file = create().map_err(|source| {
            // Best effort: an unfinished segment is recognized by its header.
            let _ = std::fs::remove_file(&path);
            StoreError::io("create", &path, source)
        })?;
        self.last = Some((base, HEADER as u64));
        self.current = Some(Segment {
            file,
            path,
            base,
            length: HEADER as u64,
        });
        Ok(())
    }

    /// Resets the growth when a snapshot at the current position begins, and returns the previous value.
    pub(super) fn reset_growth(&mut self) -> u64 {
        std::mem::take(&mut self.grown)
    }

    /// Adds the bytes that a failed snapshot would have covered.
    pub(super) fn add_growth(&mut self, bytes: u64) {
        self.grown += bytes;
    }
}
