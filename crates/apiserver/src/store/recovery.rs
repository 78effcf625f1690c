//! Opening of a data directory: locks it, loads the newest snapshot, replays the log after it.

use super::codec::{Decoder, Record};
use super::files::{FileKind, HEADER, Header};
use super::frame::{self, FrameRead, Head};
use super::sequencer::tombstone;
use super::{
    Event, EventKind, FIRST_REVISION, Revision, StoreError, StoreOptions, StoreState, snapshot,
};
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Revisions skipped after a torn tail, in case a reader has seen a revision in it.
const TORN_TAIL_GAP: Revision = 1000;

/// Result of [`open`].
#[derive(Debug)]
pub(super) struct RecoveredState {
    pub(super) inner: StoreState,
    /// Revisions up to this one must not be assigned again.
    pub(super) used: Revision,
    /// Base and length of the last segment of the log.
    pub(super) last: Option<(Revision, u64)>,
    /// Number of replayed bytes.
    pub(super) replayed: u64,
    /// Keeps the directory locked while it is open.
    pub(super) lock: File,
}

/// Locks `dir` and loads it.
pub(super) fn open(dir: &Path, options: &StoreOptions) -> Result<RecoveredState, StoreError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| StoreError::io("create", dir, source))?;
    let lock = lock(dir)?;
    let matches = DirectoryContents::scan(dir)?;

    let mut decoder = Decoder::default();
    let base = matches.snapshots.last().copied();
    let inner = StoreState::new(options, base.unwrap_or(FIRST_REVISION));
    if let Some(base) = base {
        let path = FileKind::Snapshot.path(dir, base);
        snapshot::load(&path, &mut decoder, |entry| {
            inner
                .table(&entry.table)
                .state
                .write()
                .load(Arc::new(entry));
        })?;
    }

    let chain = chain(dir, &matches.segments, base)?;
    let mut used = inner.base;
    let mut replayed = 0;
    let mut last = None;
    let mut torn = false;
    for (position, segment) in chain.iter().enumerate() {
        let end = chain
            .get(position + 1)
            .map(|next| next.header.previous_length);
        let outcome = replay(segment, end, &inner, &mut decoder)?;
        used = used.max(segment.header.revision).max(outcome.revision);
        torn |= outcome.torn;
        replayed += outcome.length;
        last = Some((segment.header.revision, outcome.length));
    }
    matches.remove_obsolete(dir, base, &chain);
    // At least one is skipped, so that the next segment has a new base.
    used += if torn { TORN_TAIL_GAP } else { 1 };
    Ok(RecoveredState {
        inner,
        used,
        last,
        replayed,
        lock,
    })
}

/// Locks `dir` for this process. The error contains the process that holds the lock.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|source| StoreError::io("open", &path, source))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = pid.trim();
            let holder = if pid.is_empty() {
                "another process".into()
            } else {
                format!("process {pid}")
            };
            return Err(StoreError::Locked {
                dir: dir.to_owned(),
                holder,
            });
        }
        Err(errno) => return Err(StoreError::io("lock", &path, errno.into())),
    }
    // For information only; a full disk must not keep the store from opening.
    let _ = file
        .set_len(0)
        .and_then(|()| write!(file, "{}", std::process::id()));
    Ok(file)
}

/// Files in a data directory, by revision.
#[derive(Debug, Default)]
struct DirectoryContents {
    snapshots: Vec<Revision>,
    segments: Vec<Revision>,
    unfinished: Vec<PathBuf>,
}

impl DirectoryContents {
    fn scan(dir: &Path) -> Result<Self, StoreError> {
        let unreadable = |source| StoreError::io("read", dir, source);
        let mut matches = Self::default();
        for entry in std::fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if let Some(revision) = FileKind::Snapshot.revision_of(name) {
                matches.snapshots.push(revision);
            } else if let Some(base) = FileKind::Segment.revision_of(name) {
                matches.segments.push(base);
            } else if name.starts_with("snapshot-") && name.ends_with(".tmp") {
                matches.unfinished.push(path);
            }
        }
        matches.snapshots.sort_unstable();
        matches.segments.sort_unstable();
        Ok(matches)
    }

    /// Removes files that a crash or a failed write left behind and that are not in use.
    fn remove_obsolete(&self, dir: &Path, base: Option<Revision>, chain: &[LogSegment]) {
        let snapshots = self
            .snapshots
            .iter()
            .filter(|snapshot| Some(**snapshot) != base);
        let segments = self.segments.iter().filter(|segment| {
            chain
                .iter()
                .all(|in_use| in_use.header.revision != **segment)
        });
        let obsolete = snapshots
            .map(|revision| FileKind::Snapshot.path(dir, *revision))
            .chain(segments.map(|base| FileKind::Segment.path(dir, *base)))
            .chain(self.unfinished.iter().cloned());
        for path in obsolete {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "failed to remove obsolete file");
            }
        }
    }
}

#[derive(Debug)]
struct LogSegment {
    path: PathBuf,
    header: Header,
}

/// Returns the segments of the log after snapshot `base`, oldest first.
fn chain(
    dir: &Path,
    segments: &[Revision],
    base: Option<Revision>,
) -> Result<Vec<LogSegment>, StoreError> {
    let mut chain: Vec<LogSegment> = Vec::new();
    let mut newest = segments.iter().rev().copied();
    let mut next = loop {
        let Some(candidate) = newest.next() else {
            break 0;
        };
        match read_header(dir, candidate)? {
            Some(segment) => {
                chain.push(segment);
                break chain[0].header.previous;
            }
            // The creation of this segment was interrupted: nothing was ever written to it.
            None => continue,
        }
    };
    let complete = |chain: &[LogSegment], next: Revision| match (base, chain.last()) {
        (Some(base), Some(oldest)) => oldest.header.revision <= base,
        (Some(_), None) => true,
        (None, _) => next == 0,
    };
    while !complete(&chain, next) {
        let path = FileKind::Segment.path(dir, next);
        let missing = || StoreError::Corrupt {
            path: path.clone(),
            offset: 0,
            reason: "this segment of the log is missing or has no valid header".to_owned(),
        };
        if next == 0 || !segments.contains(&next) {
            return Err(missing());
        }
        let segment = read_header(dir, next)?.ok_or_else(missing)?;
        next = segment.header.previous;
        chain.push(segment);
    }
    chain.reverse();
    if let Some(base) = base
        && chain
            .first()
            .is_none_or(|first| first.header.revision != base)
    {
        return Err(StoreError::Corrupt {
            path: FileKind::Segment.path(dir, base),
            offset: 0,
            reason: "the segment of the log that follows the snapshot is missing".to_owned(),
        });
    }
    Ok(chain)
}

/// Opens the segment `base`; `None` if its header was never completely written.
fn read_header(dir: &Path, base: Revision) -> Result<Option<LogSegment>, StoreError> {
    let path = FileKind::Segment.path(dir, base);
    let unreadable = |source| StoreError::io("read", &path, source);
    let mut file = File::open(&path).map_err(unreadable)?;
    let mut bytes = Vec::with_capacity(HEADER);
    (&mut file)
        .take(HEADER as u64)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    let corrupt = |reason: &str| {
        Err(StoreError::Corrupt {
            path: path.clone(),
            offset: 0,
            reason: reason.to_owned(),
        })
    };
    match Header::decode(FileKind::Segment, &bytes) {
        Ok(header) if header.revision == base => Ok(Some(LogSegment { path, header })),
        Ok(_) => corrupt("file name and header have different revisions"),
        Err(reason) => {
            let mut tail = Vec::new();
            file.read_to_end(&mut tail).map_err(unreadable)?;
            if frame::find(&tail, 0).is_some() {
                // It was in use, so its header had been complete.
                return corrupt(reason);
            }
            Ok(None)
        }
    }
}

struct ReplayResult {
    /// Last revision in the segment, 0 for none.
    revision: Revision,
    /// Length of its data in bytes.
    length: u64,
    /// True if incomplete data followed.
    torn: bool,
}

/// Applies the records in `segment`, up to `end` if it is not the last one.
fn replay(
    segment: &LogSegment,
    end: Option<u64>,
    inner: &StoreState,
    decoder: &mut Decoder,
) -> Result<ReplayResult, StoreError> {
    let path = &segment.path;
    let unreadable = |source| StoreError::io("read", path, source);
    let corrupt = |offset, reason: &str| StoreError::Corrupt {
        path: path.clone(),
        offset,
        reason: reason.to_owned(),
    };
    let mut file = File::open(path).map_err(unreadable)?;
    file.seek(SeekFrom::Start(HEADER as u64))
        .map_err(unreadable)?;
    let data = end.unwrap_or(u64::MAX).saturating_sub(HEADER as u64);
    let mut input = BufReader::with_capacity(1 << 18, file.take(data));
    let mut payload = Vec::new();
    let mut at = HEADER as u64;
    let mut revision = 0;
    loop {
        match frame::read(&mut input, &mut payload).map_err(unreadable)? {
            FrameRead::Frame(frame) => {
                apply(&payload, inner, decoder).map_err(|reason| corrupt(at, reason))?;
                revision = revision.max(frame);
                at += (frame::HEAD + payload.len()) as u64;
            }
            FrameRead::End if end.is_none_or(|end| end == at) => {
                return Ok(ReplayResult {
                    revision,
                    length: at,
                    torn: false,
                });
            }
            FrameRead::End => return Err(corrupt(at, "the segment is shorter than it had been")),
            FrameRead::Damaged(reason) if end.is_some() => return Err(corrupt(at, reason)),
            FrameRead::Damaged(reason) => {
                cut_torn_tail(path, at, revision, reason)?;
                return Ok(ReplayResult {
                    revision,
                    length: at,
                    torn: true,
                });
            }
        }
    }
}

/// Truncates the file at `at` if the damaged end was not written completely, and so never acknowledged.
fn cut_torn_tail(path: &Path, at: u64, after: Revision, reason: &str) -> Result<(), StoreError> {
    let unreadable = |source| StoreError::io("read", path, source);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(unreadable)?;
    file.seek(SeekFrom::Start(at)).map_err(unreadable)?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).map_err(unreadable)?;
    let total = Head::parse(&tail).map_or(usize::MAX, |head| frame::HEAD + head.length);
    if tail.len() > total || frame::find(tail.get(1..).unwrap_or_default(), after).is_some() {
        // The next frame is written only when this one is complete, so this is not a torn write.
        return Err(StoreError::Corrupt {
            path: path.to_owned(),
            offset: at,
            reason: format!("{reason}, with later writes behind it"),
        });
    }
    let is_short = tail.len() < frame::HEAD
        || Head::parse(&tail).is_some_and(|head| tail.len() < frame::HEAD + head.length);
    if !is_short && !frame::is_partly_unwritten(&tail, at) {
        return Err(StoreError::Corrupt {
            path: path.to_owned(),
            offset: at,
            reason: format!(
                "{reason} in the last write, which is there in full and may have been acknowledged; \
                 cut to {at} bytes, the file opens without it"
            ),
        });
    }
    tracing::warn!(
        path = %path.display(), offset = at, bytes = tail.len(), reason,
        "truncating an unacknowledged write at the end of the log"
    );
    // A failure is harmless: the next segment records where this one ends.
    if let Err(error) = file.set_len(at).and_then(|()| file.sync_all()) {
        tracing::warn!(path = %path.display(), %error, "failed to truncate unfinished write");
    }
    Ok(())
}

/// Applies the records of one frame.
fn apply(payload: &[u8], inner: &StoreState, decoder: &mut Decoder) -> Result<(), &'static str> {
    decoder.decode(payload, |record| {
        let event = match record {
            Record::Put(entry) => {
                let old = inner.get(&entry.table, &entry.key);
                let revision = entry.revision;
                Event {
                    kind: EventKind::Put,
                    revision,
                    old,
                    new: Arc::new(entry),
                }
            }
            Record::Delete {
                table,
                key,
                revision,
            } => {
                let current = inner
                    .get(&table, &key)
                    .ok_or("removal of an object that is not there")?;
                tombstone(current, revision)
            }
        };
        if event.revision <= inner.published().load(std::sync::atomic::Ordering::Relaxed) {
            return Err("revisions are not in order");
        }
        inner.publish([event]);
        Ok(())
    })
}
