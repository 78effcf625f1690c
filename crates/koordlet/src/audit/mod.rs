//! The audit log: one record for each action of the agent on the machine or a pod.
//!
//! Records are appended to rotating files (one JSON object per line) and served from them at `/events`,
//! newest first; the newest also stay in memory. Without a directory, or while its disk is full or read-only,
//! records are in memory only. Handles share one log, so that other parts of the process can read what was
//! recorded and when.

mod files;
mod pages;
#[cfg(test)]
mod tests;

use crate::metrics::{AgentPart, Metrics};
use files::{AuditFile, ReverseReader};
use jiff::{SignedDuration, Timestamp};
use pages::{Cursor, Readers};
pub use pages::{Page, UnknownToken};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Time after a failure until the file is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(60);

/// Kind of object that a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// The node.
    Node,
    /// A pod or one of its containers.
    Pod,
    /// A cgroup that belongs to neither.
    Group,
}

impl Subject {
    /// Returns the name in records and metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pod => "pod",
            Self::Group => "group",
        }
    }
}

/// A change of one kernel file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// The cgroup, e.g. `kubepods/besteffort`.
    pub cgroup: String,
    /// The file, by its cgroup v1 name.
    pub file: &'static str,
    /// The previous value, if it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The written value.
    pub new: String,
}

/// A record of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Position in the log, from 1.
    pub sequence: u64,
    /// Time of the record.
    pub created_at: Timestamp,
    /// Kind of object that the record is about.
    #[serde(rename = "type")]
    pub subject: Subject,
    /// Verbosity: 0 is most important.
    pub level: u8,
    /// Namespace of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the pod or node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Name of the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Reason as one word.
    pub reason: String,
    /// Action and reason as a sentence.
    pub message: String,
    /// True if the action was not done, because the agent runs with `--dry-run`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The changed file, if any.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub change: Option<FileChange>,
}

impl Entry {
    /// Creates a record without object names; the log fills in time and sequence.
    #[must_use]
    pub fn new(subject: Subject, level: u8, reason: &str, message: String) -> Self {
        Self {
            sequence: 0,
            created_at: Timestamp::UNIX_EPOCH,
            subject,
            level,
            namespace: String::new(),
            name: String::new(),
            container: String::new(),
            reason: reason.to_owned(),
            message,
            dry_run: false,
            change: None,
        }
    }
}

/// Settings of the audit log.
#[derive(Debug, Clone)]
pub struct Config {
    /// Maximum level of records; 0 keeps all.
    pub verbose: u8,
    /// Maximum number of records in memory.
    pub capacity: usize,
    /// Directory of `audit.log`; `None` keeps records in memory only.
    pub dir: Option<PathBuf>,
    /// Maximum size of all files, in MiB.
    pub max_disk_mib: u64,
    /// Maximum number of records per page.
    pub max_page: usize,
    /// Maximum number of concurrent readers; a further one ends the oldest.
    pub max_readers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            verbose: 3,
            capacity: 2048,
            dir: None,
            max_disk_mib: 16,
            max_page: 2048,
            max_readers: 4,
        }
    }
}

/// The shared audit log. Clones are handles of the same log.
#[derive(Debug, Clone)]
pub struct Log(Arc<SharedLog>);

#[derive(Debug)]
struct SharedLog {
    config: Config,
    inner: Mutex<AuditState>,
    readers: Readers,
}

/// A record, and whether it is or will be in a file.
#[derive(Debug)]
struct BufferedRecord {
    entry: Arc<Entry>,
    in_file: bool,
}

#[derive(Debug)]
struct AuditState {
    ring: VecDeque<BufferedRecord>,
    next: u64,
    file: Option<AuditFile>,
    failed: Option<WriteFailure>,
    metrics: Option<Metrics>,
    dry_run: bool,
}

/// A failure to write the file.
#[derive(Debug)]
struct WriteFailure {
    /// Time of the last attempt; `None` if it was at start.
    tried: Option<Timestamp>,
}

impl Default for Log {
    fn default() -> Self {
        Self::open(Config::default())
    }
}

impl Log {
    /// Creates a log that writes files if `config.dir` is set. A failure to write is logged once and retried
    /// every minute: auditing must not stop what it audits.
    #[must_use]
    pub fn open(config: Config) -> Self {
        let mut inner = AuditState {
            ring: VecDeque::with_capacity(config.capacity.min(256)),
            next: 1,
            file: None,
            failed: None,
            metrics: None,
            dry_run: false,
        };
        if let Some(dir) = &config.dir {
            match AuditFile::open(dir, config.max_disk_mib, 0) {
                Ok(sink) => inner.file = Some(sink),
                Err(error) => inner.fail(dir, None, &error),
            }
        }
        Self(Arc::new(SharedLog {
            config,
            inner: Mutex::new(inner),
            readers: Readers::default(),
        }))
    }

    /// Sets the metrics that count failures, including those before the call.
    pub fn set_metrics(&self, metrics: Metrics) {
        let mut inner = self.0.inner.lock();
        if inner.failed.is_some() {
            metrics.failed(AgentPart::Audit, "write");
        }
        inner.metrics = Some(metrics);
    }

    /// Marks all further records as those of a dry run.
    pub fn mark_dry_run(&self) {
        self.0.inner.lock().dry_run = true;
    }

    /// Adds a record with the time `now`.
    pub fn record(&self, now: Timestamp, mut entry: Entry) {
        let config = &self.0.config;
        let mut inner = self.0.inner.lock();
        entry.dry_run |= inner.dry_run;
        if let Some(metrics) = inner.metrics.as_ref().filter(|_| entry.dry_run) {
            metrics.record_withheld(entry.subject.name(), &entry.reason);
        }
        if config.verbose > 0 && entry.level > config.verbose {
            return;
        }
        entry.sequence = inner.next;
        entry.created_at = now;
        inner.next += 1;
        let written = match &mut inner.file {
            Some(sink) => Some(sink.append(&entry)),
            None => inner.retry(&entry, config).then_some(Ok(())),
        };
        let in_file = matches!(written, Some(Ok(())));
        if inner.ring.len() >= config.capacity.max(1) {
            inner.ring.pop_front();
        }
        let entry = Arc::new(entry);
        inner.ring.push_back(BufferedRecord { entry, in_file });
        if let (Some(Err(error)), Some(dir)) = (written, &config.dir) {
            inner.fail(dir, Some(now), &error);
        }
    }

    /// Writes buffered records to the file, and drops expired readers.
    pub fn flush(&self) {
        self.0.readers.expire();
        self.0.inner.lock().flush(&self.0.config);
    }

    /// Returns the records in memory, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.since(0)
    }

    /// Returns the records after `sequence` that are in memory, oldest first.
    #[must_use]
    pub fn since(&self, sequence: u64) -> Vec<Entry> {
        let inner = self.0.inner.lock();
        let newer = inner.ring.iter().map(|record| &record.entry);
        let newer = newer.filter(|entry| entry.sequence > sequence);
        newer.map(|entry| Entry::clone(entry)).collect()
    }

    /// Returns the number of the newest record; 0 before the first.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.0.inner.lock().next - 1
    }

    /// Returns the maximum number of records per page.
    #[must_use]
    pub fn max_page(&self) -> usize {
        self.0.config.max_page
    }

    /// Returns a page of at most `size` records, newest first: the first page, or the next one of `token`.
    /// All pages of a token show the log as of the first one. Reads files, so do not call it in an async
    /// task.
    ///
    /// # Errors
    /// When `token` is unknown or expired.
    pub fn page(&self, token: Option<&str>, size: usize) -> Result<Page, UnknownToken> {
        if let Some(token) = token {
            return self.0.readers.next_page(token, size);
        }
        let config = &self.0.config;
        let cursor = {
            // No record may be written between the two: it would be in both or in none.
            let mut inner = self.0.inner.lock();
            inner.flush(config);
            let files = match &config.dir {
                Some(dir) => ReverseReader::open(dir).unwrap_or_default(),
                None => ReverseReader::default(),
            };
            Cursor::new(inner.not_in_file(), files)
        };
        Ok(self.0.readers.first_page(cursor, size, config.max_readers))
    }
}

impl AuditState {
    /// Stops using the file for now. Records that were not passed to the kernel are in memory only.
    fn fail(&mut self, dir: &Path, now: Option<Timestamp>, error: &io::Error) {
        let dir = dir.display();
        tracing::warn!(%dir, %error, "failed to write audit log, keeping records in memory only");
        if let Some(metrics) = &self.metrics {
            metrics.failed(AgentPart::Audit, "write");
        }
        let flushed = self.file.take().map_or(0, |sink| sink.flushed);
        for record in &mut self.ring {
            record.in_file &= record.entry.sequence <= flushed;
        }
        self.failed = Some(WriteFailure { tried: now });
    }

    /// Tries to write `entry` some time after a failure: a full disk may have space again. Success requires a
    /// flush, because a full disk still opens files.
    fn retry(&mut self, entry: &Entry, config: &Config) -> bool {
        let (Some(failure), Some(dir)) = (&mut self.failed, &config.dir) else {
            return false;
        };
        let now = entry.created_at;
        let tried = *failure.tried.get_or_insert(now);
        if now.duration_since(tried).abs() < RETRY {
            return false;
        }
        failure.tried = Some(now);
        let opened = AuditFile::open(dir, config.max_disk_mib, entry.sequence - 1);
        let written = opened.and_then(|mut sink| {
            sink.append(entry)?;
            sink.flush()?;
            Ok(sink)
        });
        let Ok(sink) = written else { return false };
        tracing::info!("audit log recovered");
        (self.file, self.failed) = (Some(sink), None);
        true
    }

    fn flush(&mut self, config: &Config) {
        let (Some(sink), Some(dir)) = (&mut self.file, &config.dir) else {
            return;
        };
        if let Err(error) = sink.flush() {
            // Retried like a failed write.
            let newest = self.ring.back().map(|record| record.entry.created_at);
            self.fail(dir, newest, &error);
        }
    }

    /// Returns the records that are in memory only, oldest first.
    fn not_in_file(&self) -> VecDeque<Arc<Entry>> {
        let record = self.ring.iter().filter(|record| !record.in_file);
        record.map(|record| record.entry.clone()).collect()
    }
}
