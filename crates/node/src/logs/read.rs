//! Reading logs: from the beginning or the end, and following them.

use super::{Logs, Progress, file_of, rotated};
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use koord_app::Clock;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};

/// Options of a log request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Continues with later output, until the container ends.
    pub follow: bool,
    /// Number of lines from the end of the log; all when `None`.
    pub tail_lines: Option<u64>,
    /// Maximum age of a line to return, in seconds before `now`; `None` for no limit.
    pub since_seconds: Option<i64>,
    /// Current time, for `since_seconds`; the system's time when `None`.
    pub now: Option<Timestamp>,
    /// Time of the oldest line to return; `None` for no limit.
    pub since_time: Option<Timestamp>,
    /// Maximum number of bytes to return; `None` for no limit.
    pub limit_bytes: Option<u64>,
    /// Adds the time before each line.
    pub timestamps: bool,
    /// Reads the log of the start before the current one.
    pub previous: bool,
}

/// The content of a log as a stream.
pub type LogStream = BoxStream<'static, Result<Bytes, io::Error>>;

/// Opens the log of the container's latest start, or of the one before it.
pub(super) async fn open(
    logs: &Logs,
    namespace: &str,
    pod: &str,
    container: &str,
    options: LogOptions,
) -> Result<LogStream, String> {
    let Some(dir) = logs.newest_pod_dir(namespace, pod) else {
        return Err(format!("pod {namespace}/{pod} has no logs on this node"));
    };
    let attempts = attempts(&dir.join(container));
    let attempt = if options.previous {
        attempts.iter().rev().nth(1)
    } else {
        attempts.last()
    };
    let Some(attempt) = attempt else {
        return Err(if options.previous && !attempts.is_empty() {
            format!("previous terminated container {container:?} in pod {pod:?} not found")
        } else {
            format!("container {container:?} in pod {pod:?} has not started on this node")
        });
    };
    let path = dir.join(container).join(format!("{attempt}.log"));
    let follow = if options.follow {
        logs.progress(&path)
    } else {
        None
    };
    let since = options.since_time.or_else(|| {
        let ago = SignedDuration::from_secs(options.since_seconds?);
        let now = options.now.unwrap_or_else(|| Clock::system().now());
        now.checked_sub(ago).ok()
    });
    let filter = Filter {
        since,
        timestamps: options.timestamps,
        remaining: options.limit_bytes.unwrap_or(u64::MAX),
        at_line_start: true,
    };
    let (sender, receiver) = mpsc::channel(16);
    let mut reading = Reading {
        path,
        filter,
        sender,
    };
    // Existing content is read before this returns, so that "from now on" is exact.
    let existing = reading.load_existing(options.tail_lines, follow).await;
    let existing = existing.map_err(|error| format!("log of container {container:?}: {error}"))?;
    tokio::spawn(async move {
        if let Err(error) = reading.stream_lines(existing).await {
            // The reader gets the error unless it is gone already.
            let _ = reading.sender.send(Err(error)).await;
        }
    });
    Ok(Box::pin(futures::stream::unfold(
        receiver,
        |mut receiver| async move { receiver.recv().await.map(|chunk| (chunk, receiver)) },
    )))
}

/// Returns the numbers of the starts that have logs, ascending.
fn attempts(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_suffix(".log")?
                .parse()
                .ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the numbers of the rotated files that exist, oldest first.
fn rotations_on_disk(path: &Path) -> Vec<u32> {
    let Some((dir, name)) = path
        .parent()
        .zip(path.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let prefix = format!("{name}.");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_prefix(&prefix)?
                .parse()
                .ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

struct Reading {
    path: PathBuf,
    filter: Filter,
    sender: mpsc::Sender<Result<Bytes, io::Error>>,
}

/// The content of a log when a read begins.
struct ExistingLog {
    /// Rotated files, newest first.
    before: Vec<Vec<u8>>,
    /// Content of the current file at the beginning of the read.
    text: Vec<u8>,
    /// Number of lines to skip.
    skip: u64,
    current: File,
    rotation: u32,
    follow: Option<watch::Receiver<Progress>>,
}

impl Reading {
    /// Reads the current file and as many rotated ones as `tail` lines need.
    async fn load_existing(
        &mut self,
        tail: Option<u64>,
        mut follow: Option<watch::Receiver<Progress>>,
    ) -> io::Result<ExistingLog> {
        let (rotation, mut current) = match &mut follow {
            Some(follow) => {
                let rotation = follow.borrow_and_update().rotations;
                (rotation, self.open_rotation(rotation, follow).await?)
            }
            None => (u32::MAX, File::open(&self.path).await?),
        };
        let mut text = Vec::new();
        current.read_to_end(&mut text).await?;
        let mut lines = full_lines(&text);
        // Newest first until there are enough lines; each file is at most one rotation size.
        let mut before: Vec<Vec<u8>> = Vec::new();
        let old = rotations_on_disk(&self.path);
        for number in old.iter().rev().filter(|number| **number < rotation) {
            if tail.is_some_and(|tail| lines >= tail) {
                break;
            }
            match tokio::fs::read(rotated(&self.path, *number)).await {
                Ok(text) => {
                    lines += full_lines(&text);
                    before.push(text);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        let skip = tail.map_or(0, |tail| lines.saturating_sub(tail));
        Ok(ExistingLog {
            before,
            text,
            skip,
            current,
            rotation,
            follow,
        })
    }

    /// Sends the lines that exist, then follows the log until it is closed.
    async fn stream_lines(&mut self, existing: ExistingLog) -> io::Result<()> {
        let ExistingLog {
            before,
            mut text,
            mut skip,
            mut current,
            mut rotation,
            follow,
        } = existing;
        for text in before.iter().rev() {
            if !self.emit(text, &mut skip).await? {
                return Ok(());
            }
        }
        drop(before);
        let Some(mut follow) = follow else {
            self.emit(&text, &mut skip).await?;
            return Ok(());
        };
        loop {
            // Taken before reading: everything written by then is read now.
            let progress = *follow.borrow_and_update();
            current.read_to_end(&mut text).await?;
            // An incomplete last line is kept until its end arrives.
            let complete = text
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
            if !self.emit(&text[..complete], &mut skip).await? {
                return Ok(());
            }
            // Only the content at the beginning has lines to skip.
            skip = 0;
            text.drain(..complete);
            if rotation < progress.rotations {
                // A file is complete when it is rotated, so all of it has been read.
                rotation += 1;
                current = self.open_rotation(rotation, &follow).await?;
                continue;
            }
            if progress.closed {
                return Ok(());
            }
            tokio::select! {
                // An error means that the writer is gone; its last value is marked as closed.
                _ = follow.changed() => {}
                () = self.sender.closed() => return Ok(()),
            }
        }
    }

    /// Opens a file by its rotation number, although it may be renamed meanwhile.
    async fn open_rotation(
        &self,
        rotation: u32,
        follow: &watch::Receiver<Progress>,
    ) -> io::Result<File> {
        loop {
            let rotations = follow.borrow().rotations;
            let file = File::open(file_of(&self.path, rotation, rotations)).await;
            if follow.borrow().rotations == rotations || rotation < rotations {
                return file;
            }
        }
    }

    /// Sends the lines of `text`, skipping the first `skip`. Returns whether to go on.
    async fn emit(&mut self, text: &[u8], skip: &mut u64) -> io::Result<bool> {
        let mut out = Vec::new();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let Some(entry) = Entry::parse(line) else {
                continue;
            };
            if *skip > 0 {
                *skip -= u64::from(entry.full);
                continue;
            }
            self.filter.render(&entry, &mut out);
            if self.filter.remaining == 0 {
                break;
            }
        }
        if !out.is_empty() && self.sender.send(Ok(Bytes::from(out))).await.is_err() {
            return Ok(false);
        }
        Ok(self.filter.remaining > 0)
    }
}

fn full_lines(text: &[u8]) -> u64 {
    let lines = text.split(|byte| *byte == b'\n');
    lines
        .filter_map(Entry::parse)
        .map(|entry| u64::from(entry.full))
        .sum()
}

/// A line of a log file.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'l> {
    time: &'l str,
    full: bool,
    content: &'l [u8],
}

impl<'l> Entry<'l> {
    fn parse(line: &'l [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let _stream = parts.next()?;
        let full = parts.next()? == b"F";
        Some(Self {
            time,
            full,
            content: parts.next()?,
        })
    }
}

struct Filter {
    since: Option<Timestamp>,
    timestamps: bool,
    /// Bytes that may still be sent.
    remaining: u64,
    at_line_start: bool,
}

impl Filter {
    /// Appends an entry to `out`, as far as the options and the byte limit allow.
    fn render(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        if let Some(since) = self.since
            && entry
                .time
                .parse::<Timestamp>()
                .is_ok_and(|time| time < since)
        {
            return;
        }
        let mut put = |bytes: &[u8]| {
            let take = usize::try_from(self.remaining)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            out.extend_from_slice(&bytes[..take]);
            self.remaining -= take as u64;
        };
        if self.timestamps && self.at_line_start {
            put(entry.time.as_bytes());
            put(b" ");
        }
        put(entry.content);
        if entry.full {
            put(b"\n");
        }
        self.at_line_start = entry.full;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        let entry = Entry::parse(b"2024-01-01T00:00:00Z stdout F a b\n").unwrap();
        assert_eq!(
            (entry.time, entry.full, entry.content),
            ("2024-01-01T00:00:00Z", true, &b"a b"[..])
        );
        assert!(!Entry::parse(b"t s P x").unwrap().full);
        assert!(Entry::parse(b"nonsense").is_none());
        assert!(Entry::parse(b"\xff s F x").is_none());
    }
}
