//! Files of the audit log: writing with rotation, and reading backwards.

use super::Entry;
use jiff::Timestamp;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Size at which a file is rotated.
const ROTATE_BYTES: u64 = 1 << 21;
/// Maximum number of rotated files per second.
const MAX_PER_SECOND: u32 = 8;
/// Bytes read at once, going backwards.
const CHUNK: u64 = 1 << 16;
/// Maximum line length; longer lines were not written by this log.
const MAX_LINE: usize = 1 << 22;

/// The current file.
#[derive(Debug)]
pub(super) struct AuditFile {
    dir: PathBuf,
    writer: BufWriter<File>,
    size: u64,
    /// Maximum number of files, including this one.
    keep: usize,
    /// Sequence number of the last record that was passed to the kernel.
    pub(super) flushed: u64,
    written: u64,
}

impl AuditFile {
    /// Opens `audit.log` in `dir`. `flushed` is the number of the last record that is in a file already, or
    /// lost.
    pub(super) fn open(dir: &Path, max_disk_mib: u64, flushed: u64) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let path = present(dir);
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let size = file.metadata()?.len();
        let mut sink = Self {
            dir: dir.to_owned(),
            writer: BufWriter::with_capacity(1 << 16, file),
            size,
            keep: ((max_disk_mib << 20) / ROTATE_BYTES).max(1) as usize,
            flushed,
            written: flushed,
        };
        // End a line that a crash cut off, so that it does not swallow the next one.
        let last = File::open(&path)
            .ok()
            .and_then(|file| read_at(&file, size.checked_sub(1)?, 1));
        if last.is_some_and(|last| last != b"\n") {
            sink.writer.write_all(b"\n")?;
            sink.size += 1;
        }
        Ok(sink)
    }

    pub(super) fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if self.size + line.len() as u64 > ROTATE_BYTES && self.size > 0 {
            self.rotate(entry.created_at)?;
        }
        self.size += line.len() as u64;
        self.writer.write_all(&line)?;
        self.written = entry.sequence;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.flushed = self.written;
        Ok(())
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        self.flush()?;
        let stamp = now.strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let free = (0..=MAX_PER_SECOND)
            .map(|n| self.dir.join(format!("audit-{stamp}-{n}.log")))
            .find(|path| !path.exists());
        // Exceeding the size is better than losing a file.
        let Some(free) = free else { return Ok(()) };
        fs::rename(present(&self.dir), free)?;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(present(&self.dir))?;
        self.writer = BufWriter::with_capacity(1 << 16, file);
        self.size = 0;
        let old = rotated(&self.dir)?;
        let excess = (old.len() + 1).saturating_sub(self.keep);
        for path in old.into_iter().take(excess) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

fn present(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}

/// Returns the rotated files, oldest first.
fn rotated(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut old: Vec<PathBuf> = fs::read_dir(dir)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with("audit-") && name.ends_with(".log"))
        })
        .collect();
    old.sort();
    Ok(old)
}

/// Reads the lines of the log as of its creation, newest first. All files are opened at the start, so that
/// rotation and removal meanwhile have no effect.
#[derive(Debug, Default)]
pub(super) struct ReverseReader {
    /// Files that were not begun yet, oldest first, with their sizes.
    files: Vec<(File, u64)>,
    current: Option<File>,
    /// Bytes of the current file before `tail`.
    before: u64,
    /// Bytes that were read and not returned yet.
    tail: Vec<u8>,
}

impl ReverseReader {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let mut paths = rotated(dir)?;
        paths.push(present(dir));
        let mut files = Vec::new();
        for path in paths {
            let file = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let size = file.metadata()?.len();
            files.push((file, size));
        }
        Ok(Self {
            files,
            ..Self::default()
        })
    }

    /// Returns the next line that is not empty. A read error ends its file.
    pub(super) fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.tail.iter().rposition(|byte| *byte == b'\n') {
                let line = self.tail.split_off(at + 1);
                self.tail.truncate(at);
                if !line.is_empty() {
                    return Some(line);
                }
                continue;
            }
            if self.read_more() {
                continue;
            }
            let first = std::mem::take(&mut self.tail);
            if !first.is_empty() {
                return Some(first);
            }
            let (file, size) = self.files.pop()?;
            (self.current, self.before) = (Some(file), size);
        }
    }

    /// Reads the previous chunk; `false` at the file's start.
    fn read_more(&mut self) -> bool {
        let Some(file) = self.current.as_ref().filter(|_| self.before > 0) else {
            return false;
        };
        let length = CHUNK.min(self.before);
        let Some(mut chunk) = read_at(file, self.before - length, length) else {
            (self.before, self.tail) = (0, Vec::new());
            return false;
        };
        self.before -= length;
        if self.tail.len() < MAX_LINE {
            chunk.append(&mut self.tail);
        }
        self.tail = chunk;
        true
    }
}

fn read_at(file: &File, offset: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}
