//! The thread that makes writes durable.
//!
//! It takes all queued writes, decides them in order, writes them to the log as one frame, syncs once, and
//! only then publishes them and replies. While the disk works, further writes queue up and share the next
//! sync.

use super::disk::Disk;
use super::files::FileKind;
use super::metrics::StoreMetrics;
use super::sequencer::{Sequencer, Write, WriteOutcome};
use super::wal::Wal;
use super::{Entry, Event, Revision, StoreError, StoreState, snapshot};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// Most writes in one frame.
const BATCH_WRITES: usize = 2048;
/// Approximate limit of object bytes in one frame.
const BATCH_BYTES: usize = 8 << 20;

/// A job of the thread.
#[derive(Debug)]
pub(super) enum Job {
    Write(Write, oneshot::Sender<Result<Arc<Entry>, StoreError>>),
    /// Write a snapshot now.
    Snapshot(oneshot::Sender<Result<(), StoreError>>),
    /// Finish and release the directory.
    Close(oneshot::Sender<()>),
}

/// State of the thread.
#[derive(Debug)]
pub(super) struct Committer {
    pub(super) inner: Arc<StoreState>,
    pub(super) sequencer: Sequencer,
    pub(super) wal: Wal,
    pub(super) dir: PathBuf,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) metrics: StoreMetrics,
    /// Log bytes after which a snapshot is written, unless the data is larger.
    pub(super) snapshot_after: u64,
    pub(super) lock: File,
    pub(super) snapshot: Option<RunningSnapshot>,
}

/// A snapshot that its own thread is writing.
#[derive(Debug)]
pub(super) struct RunningSnapshot {
    thread: JoinHandle<Result<(), StoreError>>,
    /// Log bytes that it will make obsolete.
    covered_bytes: u64,
}

impl Committer {
    /// Runs `jobs` until a close job, or until all senders are dropped.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut closed = None;
        while let Some(job) = jobs.blocking_recv() {
            match job {
                Job::Write(write, reply) => {
                    if let Some(job) = self.commit(write, reply, &mut jobs) {
                        closed = self.control(job);
                    }
                }
                job => closed = self.control(job),
            }
            if closed.is_some() {
                break;
            }
            self.tend_snapshot();
        }
        jobs.close();
        self.wal.close(self.sequencer.revision());
        self.join_snapshot();
        // Unlocked before the reply, after which the directory may be opened again. Unlocked explicitly,
        // because a process being spawned has a copy of the file descriptor until it executes its program.
        if let Err(error) = rustix::fs::flock(&self.lock, FlockOperation::Unlock) {
            tracing::debug!(%error, "failed to unlock the data directory, closing its lock file");
        }
        drop(self.lock);
        if let Some(closed) = closed {
            let _ = closed.send(());
        }
    }

    fn control(&mut self, job: Job) -> Option<oneshot::Sender<()>> {
        match job {
            Job::Close(reply) => return Some(reply),
            Job::Snapshot(reply) => {
                self.join_snapshot();
                let result = self.begin_snapshot().and_then(|()| self.finish_snapshot());
                let _ = reply.send(result);
            }
            Job::Write(_, reply) => {
                let _ = reply.send(Err(StoreError::Closed));
            }
        }
        None
    }

    /// Commits `write` and the writes queued behind it. Returns the job that ended the batch, if it was not a
    /// write.
    fn commit(
        &mut self,
        write: Write,
        reply: oneshot::Sender<Result<Arc<Entry>, StoreError>>,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Option<Job> {
        let base = self.sequencer.revision();
        let mut events: Vec<Event> = Vec::new();
        let mut replies = Vec::new();
        let mut bytes = 0;
        let mut next = Some(Job::Write(write, reply));
        let other = loop {
            match next {
                Some(Job::Write(write, reply)) => {
                    let result = match self.sequencer.prepare(write) {
                        Ok(WriteOutcome::Same(entry)) => Ok(entry),
                        Ok(WriteOutcome::Changed(event)) => {
                            let entry = Arc::clone(&event.new);
                            bytes += entry.bytes.len();
                            self.sequencer.hold(&event);
                            events.push(event);
                            Ok(entry)
                        }
                        Err(error) => Err(error),
                    };
                    replies.push((reply, result));
                }
                other => break other,
            }
            if replies.len() >= BATCH_WRITES || bytes >= BATCH_BYTES {
                break None;
            }
            next = jobs.try_recv().ok();
        };
        let result = self.wal.append(base, &events);
        self.sequencer.release();
        match result {
            Ok(took) => {
                if !events.is_empty() {
                    *self.inner.failure.lock() = None;
                    self.metrics.sync_seconds.observe(took.as_secs_f64());
                    self.metrics.batch_writes.observe(events.len() as f64);
                    self.sequencer.publish(events);
                }
                for (reply, result) in replies {
                    let _ = reply.send(result);
                }
            }
            Err(error) => {
                self.metrics.errors.inc();
                *self.inner.failure.lock() = Some(error.to_string());
                tracing::error!(%error, writes = replies.len(), "failed to write to the log, refusing the writes");
                // Writes that changed nothing fail, too: their result may be based on a write that is now
                // void.
                for (reply, _) in replies {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
        other
    }

    /// Completes a finished snapshot, and begins one when the log has grown enough.
    fn tend_snapshot(&mut self) {
        if self
            .snapshot
            .as_ref()
            .is_some_and(|running| running.thread.is_finished())
        {
            self.join_snapshot();
        }
        if self.snapshot.is_none() && self.wal.replay_bytes() > self.snapshot_after {
            // Not before the log is as large as the data: each object is then rewritten about once per write
            // at most.
            if self.wal.replay_bytes() > self.inner.live_bytes()
                && let Err(error) = self.begin_snapshot()
            {
                self.snapshot_failed(&error, 0);
            }
        }
    }

    /// Starts a new log file and a thread that writes a snapshot of all entries up to here, which makes the older
    /// log files obsolete.
    fn begin_snapshot(&mut self) -> Result<(), StoreError> {
        let revision = self.sequencer.revision();
        self.wal.rotate(revision)?;
        let covered_bytes = self.wal.reset_growth();
        let entries = self.inner.all_entries();
        let (dir, disk) = (self.dir.clone(), Arc::clone(&self.disk));
        let write = move || write_snapshot(&dir, &*disk, revision, &entries);
        match std::thread::Builder::new()
            .name("koord-snapshot".into())
            .spawn(write)
        {
            Ok(thread) => {
                self.snapshot = Some(RunningSnapshot {
                    thread,
                    covered_bytes,
                });
                Ok(())
            }
            Err(source) => {
                self.wal.add_growth(covered_bytes);
                Err(StoreError::io("start a thread for", &self.dir, source))
            }
        }
    }

    fn finish_snapshot(&mut self) -> Result<(), StoreError> {
        let Some(RunningSnapshot {
            thread,
            covered_bytes,
        }) = self.snapshot.take()
        else {
            return Ok(());
        };
        let result = thread.join().unwrap_or_else(|_| {
            let reason = std::io::Error::other("the snapshot thread panicked");
            Err(StoreError::io("write snapshot in", &self.dir, reason))
        });
        match &result {
            Ok(()) => self.metrics.snapshots.inc(),
            Err(error) => self.snapshot_failed(error, covered_bytes),
        }
        result
    }

    fn join_snapshot(&mut self) {
        // A failure was logged and counted; the log still has everything.
        let _ = self.finish_snapshot();
    }

    fn snapshot_failed(&mut self, error: &StoreError, covered_bytes: u64) {
        self.metrics.errors.inc();
        // The log keeps everything; retry when it has grown by another half.
        self.wal.add_growth(covered_bytes);
        self.snapshot_after = self
            .wal
            .replay_bytes()
            .saturating_add(self.wal.replay_bytes() / 2);
        tracing::warn!(%error, "failed to write snapshot, keeping the log");
    }
}

/// Writes a snapshot and removes the files that it makes obsolete.
fn write_snapshot(
    dir: &Path,
    disk: &dyn Disk,
    revision: Revision,
    entries: &[Arc<Entry>],
) -> Result<(), StoreError> {
    let bytes = snapshot::write(dir, disk, revision, entries)?;
    let files = std::fs::read_dir(dir).map_err(|source| StoreError::io("read", dir, source))?;
    let mut obsolete: Vec<PathBuf> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            [FileKind::Snapshot, FileKind::Segment]
                .iter()
                .any(|kind| kind.revision_of(name).is_some_and(|other| other < revision))
        })
        .collect();
    // Oldest first: a crash in between must not leave a gap in the log.
    obsolete.sort();
    for path in obsolete {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "failed to remove obsolete file");
        }
    }
    tracing::debug!(revision, entries = entries.len(), bytes, "snapshot written");
    Ok(())
}
