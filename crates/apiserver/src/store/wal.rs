//! Appends batches to the log.

use super::disk::{Disk, LogFile, sync_dir};
use super::files::{HEADER, Header, Kind};
use super::{Durability, Event, Revision, StoreError, codec, frame};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The writing end of the log.
#[derive(Debug)]
pub(super) struct Wal {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    durability: Durability,
    /// The segment that is written to. `None` after opening and after a failed write: the next
    /// write starts a new one, so nothing is ever appended behind a doubtful tail.
    current: Option<Segment>,
    /// The last segment that is part of the log: base and length.
    last: Option<(Revision, u64)>,
    /// Bytes in segments since the last snapshot was begun.
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
    /// A log that goes on after segment `last` (base and length), with `grown` bytes to replay.
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

    /// Bytes that would have to be replayed.
    pub(super) fn grown(&self) -> u64 {
        self.grown
    }

    /// Makes `events` durable as one unit; returns how long the disk took to confirm. `base` is the
    /// revision before the first of them. After an error none of them is part of the log.
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
        // One huge batch must not pin its memory for ever.
        buffer.shrink_to(1 << 20);
        self.buffer = buffer;
        result
    }

    /// Writes an empty frame: the log was closed in order, so that later damage to the frame
    /// before it cannot look like a torn tail.
    pub(super) fn close(&mut self, revision: Revision) {
        if self.current.is_some() {
            let mut buffer = Vec::new();
            frame::begin(&mut buffer);
            frame::finish(&mut buffer, revision);
            if let Err(error) = self.write(revision, &buffer) {
                tracing::warn!(%error, "the log could not be closed in order; nothing is lost");
            }
        }
    }

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
                // What was written of it must not come back after a restart. If even this fails,
                // the next segment's header says where this one ends.
                if let Err(error) = segment.file.truncate(segment.length) {
                    tracing::warn!(path = %segment.path.display(), %error, "truncate after failed write");
                }
                self.current = None;
                Err(error)
            }
        }
    }

    /// Starts a new segment: everything after `base` goes there.
    pub(super) fn rotate(&mut self, base: Revision) -> Result<(), StoreError> {
        if self
            .current
            .as_ref()
            .is_some_and(|segment| segment.base == base)
        {
            return Ok(());
        }
        let path = Kind::Segment.path(&self.dir, base);
        let (previous, previous_length) = self.last.unwrap_or_default();
        let header = Header {
            revision: base,
            previous,
            previous_length,
        };
        let create = || {
            let mut file = self.disk.create(&path)?;
            file.append(&header.encode(Kind::Segment))?;
            file.sync()?;
            sync_dir(&self.dir)?;
            Ok(file)
        };
        let file = create().map_err(|source| {
            // Best effort: an unfinished segment is recognised by its header.
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

    /// A snapshot at the current position was begun: growth counts from here.
    pub(super) fn reset_growth(&mut self) -> u64 {
        std::mem::take(&mut self.grown)
    }

    /// The snapshot failed: the bytes it would have covered count again.
    pub(super) fn add_growth(&mut self, bytes: u64) {
        self.grown += bytes;
    }
}
