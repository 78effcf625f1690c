//! The audit log: one record for everything the agent does to the machine or to a pod.
//!
//! Records are kept in a ring in memory, optionally appended to a rotating file (one JSON object
//! per line), and served newest first at `/events`. Handles share one log, so that another part of
//! the process can read what was written and when.

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file is rotated when it reaches this size.
const ROTATE_BYTES: u64 = 1 << 21;
/// How long after a failure the file is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(60);
/// How many rotated files one second may produce.
const MAX_PER_SECOND: u32 = 8;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// The node.
    Node,
    /// A pod or one of its containers.
    Pod,
    /// A cgroup that is neither.
    Group,
}

/// A change of one kernel file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// The cgroup, e.g. `kubepods/besteffort`.
    pub cgroup: String,
    /// The file, by its cgroup v1 name.
    pub file: &'static str,
    /// The value before, when it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The value written.
    pub new: String,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Position in the log, from 1.
    pub sequence: u64,
    /// When it happened.
    pub created_at: Timestamp,
    /// What it is about.
    #[serde(rename = "type")]
    pub subject: Subject,
    /// Verbosity: 0 is most important.
    pub level: u8,
    /// The pod's namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The pod's or node's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The container's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Why, as one word.
    pub reason: String,
    /// What and why, as a sentence.
    pub message: String,
    /// The changed file, if any.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub change: Option<FileChange>,
}

impl Entry {
    /// A record without subject name; the log fills in time and sequence.
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
            change: None,
        }
    }
}

/// How the log keeps its records.
#[derive(Debug, Clone)]
pub struct Config {
    /// Records above this level are dropped; 0 keeps all.
    pub verbose: u8,
    /// How many records stay in memory.
    pub capacity: usize,
    /// Where to write `audit.log`; `None` keeps records in memory only.
    pub dir: Option<PathBuf>,
    /// How much the files may take, in MiB.
    pub max_disk_mib: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            verbose: 3,
            capacity: 2048,
            dir: None,
            max_disk_mib: 16,
        }
    }
}

/// The shared log. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Log(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    config: Config,
    ring: VecDeque<Entry>,
    next: u64,
    file: Option<Sink>,
    /// When the file could not be written.
    failed: Option<Timestamp>,
    /// Whether the last flush failed.
    stuck: bool,
}

#[derive(Debug)]
struct Sink {
    dir: PathBuf,
    writer: BufWriter<File>,
    size: u64,
    keep: usize,
}

/// A page token that names no record any more, or never did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pageToken {0} is unknown or expired")]
pub struct UnknownToken(pub u64);

impl Default for Log {
    fn default() -> Self {
        Self::memory(Config::default())
    }
}

impl Log {
    /// A log in memory; `config.dir` is ignored.
    #[must_use]
    pub fn memory(config: Config) -> Self {
        let ring = VecDeque::with_capacity(config.capacity.min(256));
        Self(Arc::new(Mutex::new(Inner {
            config,
            ring,
            next: 1,
            file: None,
            failed: None,
            stuck: false,
        })))
    }

    /// A log that also writes files when `config.dir` is set.
    ///
    /// # Errors
    /// When the directory or the file cannot be made.
    pub fn open(config: Config) -> io::Result<Self> {
        let sink = match &config.dir {
            Some(dir) => Some(Sink::open(dir, config.max_disk_mib)?),
            None => None,
        };
        let log = Self::memory(config);
        log.0.lock().file = sink;
        Ok(log)
    }

    /// Adds a record at `now`.
    pub fn record(&self, now: Timestamp, mut entry: Entry) {
        let mut inner = self.0.lock();
        if inner.config.verbose > 0 && entry.level > inner.config.verbose {
            return;
        }
        entry.sequence = inner.next;
        entry.created_at = now;
        inner.next += 1;
        inner.reopen(now);
        if let Some(sink) = &mut inner.file
            && let Err(error) = sink.append(&entry)
        {
            tracing::warn!(%error, "audit file cannot be written; records stay in memory only");
            inner.file = None;
            inner.failed = Some(now);
        }
        if inner.ring.len() >= inner.config.capacity.max(1) {
            inner.ring.pop_front();
        }
        inner.ring.push_back(entry);
    }

    /// Writes buffered records to the file.
    pub fn flush(&self) {
        let mut inner = self.0.lock();
        let flushed = inner
            .file
            .as_mut()
            .map_or(Ok(()), |sink| sink.writer.flush());
        match flushed {
            Ok(()) => inner.stuck = false,
            // Kept and tried again; said once.
            Err(error) => {
                if !std::mem::replace(&mut inner.stuck, true) {
                    tracing::warn!(%error, "audit file cannot be flushed");
                }
            }
        }
    }

    /// The records in memory, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().ring.iter().cloned().collect()
    }

    /// The records after `sequence`, oldest first.
    #[must_use]
    pub fn since(&self, sequence: u64) -> Vec<Entry> {
        self.0
            .lock()
            .ring
            .iter()
            .filter(|entry| entry.sequence > sequence)
            .cloned()
            .collect()
    }

    /// A page of at most `size` records, newest first, before the record `token`; and the token of
    /// the next page, if there is one.
    ///
    /// # Errors
    /// When `token` names a record that is not there.
    pub fn page(
        &self,
        token: Option<u64>,
        size: usize,
    ) -> Result<(Vec<Entry>, Option<u64>), UnknownToken> {
        let inner = self.0.lock();
        let oldest = inner
            .ring
            .front()
            .map_or(inner.next, |entry| entry.sequence);
        if let Some(token) = token
            && !(oldest..inner.next).contains(&token)
        {
            return Err(UnknownToken(token));
        }
        let before = token.unwrap_or(inner.next);
        let page: Vec<Entry> = inner
            .ring
            .iter()
            .rev()
            .filter(|entry| entry.sequence < before)
            .take(size)
            .cloned()
            .collect();
        let next = page
            .last()
            .map(|entry| entry.sequence)
            .filter(|last| *last > oldest);
        Ok((page, next))
    }
}

impl Inner {
    /// Tries again a while after a failure: a full disk may have room again.
    fn reopen(&mut self, now: Timestamp) {
        let due = self
            .failed
            .is_some_and(|failed| now.duration_since(failed) >= RETRY);
        if let Some(dir) = self.config.dir.as_deref().filter(|_| due) {
            match Sink::open(dir, self.config.max_disk_mib) {
                Ok(sink) => (self.file, self.failed) = (Some(sink), None),
                Err(_) => self.failed = Some(now),
            }
        }
    }
}

impl Sink {
    fn open(dir: &Path, max_disk_mib: u64) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join("audit.log"))?;
        let size = file.metadata()?.len();
        let keep = ((max_disk_mib << 20) / ROTATE_BYTES) as usize;
        Ok(Self {
            dir: dir.to_owned(),
            writer: BufWriter::with_capacity(1 << 16, file),
            size,
            keep,
        })
    }

    fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if self.size + line.len() as u64 > ROTATE_BYTES && self.size > 0 {
            self.rotate(entry.created_at)?;
        }
        self.size += line.len() as u64;
        self.writer.write_all(&line)
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        self.writer.flush()?;
        let stamp = now.strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let free = (0..=MAX_PER_SECOND)
            .map(|n| self.dir.join(format!("audit-{stamp}-{n}.log")))
            .find(|path| !path.exists());
        if let Some(path) = free {
            fs::rename(self.dir.join("audit.log"), path)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(self.dir.join("audit.log"))?;
        self.writer = BufWriter::with_capacity(1 << 16, file);
        self.size = 0;
        let mut old: Vec<PathBuf> = fs::read_dir(&self.dir)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| {
                path.file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| name.starts_with("audit-") && name.ends_with(".log"))
            })
            .collect();
        old.sort();
        let excess = old.len().saturating_sub(self.keep.max(1));
        for path in old.into_iter().take(excess) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(reason: &str) -> Entry {
        Entry::new(Subject::Node, 1, reason, format!("update {reason} to 1"))
    }

    #[test]
    fn pages_go_back_in_time() {
        let log = Log::memory(Config {
            capacity: 4,
            ..Config::default()
        });
        for i in 0..6 {
            log.record(Timestamp::UNIX_EPOCH, entry(&i.to_string()));
        }
        let (page, token) = log.page(None, 3).unwrap();
        assert_eq!(
            page.iter().map(|e| e.sequence).collect::<Vec<_>>(),
            [6, 5, 4]
        );
        let (page, end) = log.page(token, 3).unwrap();
        assert_eq!(page.iter().map(|e| e.sequence).collect::<Vec<_>>(), [3]);
        assert_eq!(end, None);
        assert_eq!(
            log.page(Some(2), 3),
            Err(UnknownToken(2)),
            "fell out of the ring"
        );
        assert_eq!(log.page(Some(99), 3), Err(UnknownToken(99)));
        assert_eq!(log.since(5).len(), 1);
    }

    #[test]
    fn verbosity_drops_details() {
        let log = Log::memory(Config {
            verbose: 2,
            ..Config::default()
        });
        log.record(
            Timestamp::UNIX_EPOCH,
            Entry {
                level: 3,
                ..entry("detail")
            },
        );
        log.record(
            Timestamp::UNIX_EPOCH,
            Entry {
                level: 2,
                ..entry("kept")
            },
        );
        assert_eq!(log.entries().len(), 1);
    }

    #[test]
    fn a_full_disk_ends_the_file_for_a_while_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let log = Log::open(Config {
            dir: Some(dir.path().to_owned()),
            ..Config::default()
        })
        .unwrap();
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
        let long = Entry {
            message: "x".repeat(100_000),
            ..entry("full")
        };
        log.record(at(0), long);
        fs::remove_file(&path).unwrap();
        log.record(at(30), entry("early"));
        assert!(!path.exists());
        log.record(at(61), entry("later"));
        log.flush();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("later") && !text.contains("early"), "{text}");
        assert_eq!(log.entries().len(), 3, "nothing is missing in memory");
    }

    #[test]
    fn files_rotate_and_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            dir: Some(dir.path().join("audit")),
            max_disk_mib: 4,
            capacity: 10,
            ..Config::default()
        };
        let log = Log::open(config).unwrap();
        let long = "x".repeat(300_000);
        for i in 0..40 {
            let now = Timestamp::from_second(1_700_000_000 + i).unwrap();
            log.record(
                now,
                Entry {
                    message: long.clone(),
                    ..entry("r")
                },
            );
        }
        log.flush();
        let files: Vec<_> = fs::read_dir(dir.path().join("audit")).unwrap().collect();
        assert_eq!(files.len(), 3, "two rotated and the present one");
        let text = fs::read_to_string(dir.path().join("audit/audit.log")).unwrap();
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["type"], "node");
        }
    }
}
