//! Readers that keep the file open: one `pread` per sample, no re-open, no allocation.

use crate::error::{HostError, Malformed, Result, is_gone};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A reusable buffer for [`Reader::read`]. One per thread is enough; it grows to the largest file.
#[derive(Debug)]
pub struct Scratch(Vec<u8>);

impl Scratch {
    /// A buffer that holds the usual files without growing.
    #[must_use]
    pub fn new() -> Self {
        Self(vec![0; 4096])
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// An open kernel file with the parser of its content.
pub struct Reader<T> {
    file: File,
    path: PathBuf,
    parse: fn(&str) -> std::result::Result<T, Malformed>,
}

impl<T> Reader<T> {
    /// Opens `path`; `None` when it does not exist.
    ///
    /// # Errors
    /// Any other failure to open.
    pub fn open(
        path: PathBuf,
        parse: fn(&str) -> std::result::Result<T, Malformed>,
    ) -> Result<Option<Self>> {
        match File::open(&path) {
            Ok(file) => Ok(Some(Self { file, path, parse })),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(HostError::io("open", &path, error)),
        }
    }

    /// The current content, parsed; `None` when the group or process vanished since the file was
    /// opened.
    ///
    /// # Errors
    /// When the kernel refuses to read or the content is malformed.
    pub fn read(&self, scratch: &mut Scratch) -> Result<Option<T>> {
        let Some(text) = self.read_text(scratch)? else {
            return Ok(None);
        };
        match (self.parse)(text) {
            Ok(value) => Ok(Some(value)),
            Err(malformed) => Err(HostError::malformed(&self.path, malformed)),
        }
    }

    /// The current content; `None` when the group or process vanished or the file is empty
    /// (no file that is worth a reader is ever empty).
    ///
    /// # Errors
    /// When the kernel refuses to read or the content is not UTF-8.
    pub fn read_text<'s>(&self, scratch: &'s mut Scratch) -> Result<Option<&'s str>> {
        let buffer = &mut scratch.0;
        let mut filled = 0;
        loop {
            if filled == buffer.len() {
                let len = buffer.len().max(2048) * 2;
                buffer.resize(len, 0);
            }
            match self.file.read_at(&mut buffer[filled..], filled as u64) {
                Ok(0) => break,
                Ok(count) => {
                    filled += count;
                    // Statistics files are one record, which the kernel hands out whole when there
                    // is room: a short read is the end, and asking again would cost a second
                    // system call. (Lists such as cgroup.procs come in pieces: not for a reader.)
                    if filled < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => return Ok(None),
                Err(error) => return Err(HostError::io("read", &self.path, error)),
            }
        }
        if filled == 0 {
            return Ok(None);
        }
        match std::str::from_utf8(&buffer[..filled]) {
            Ok(text) => Ok(Some(text)),
            Err(_) => {
                let shown = String::from_utf8_lossy(&buffer[..filled]);
                Err(HostError::malformed(
                    &self.path,
                    Malformed::new("text", &shown),
                ))
            }
        }
    }

    /// The file this reads.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Parses a single unsigned number.
///
/// # Errors
/// When `text` is anything else.
pub fn number(text: &str) -> std::result::Result<u64, Malformed> {
    text.trim()
        .parse()
        .map_err(|_| Malformed::new("an unsigned number", text))
}

/// Parses a single signed number.
///
/// # Errors
/// When `text` is anything else.
pub fn signed(text: &str) -> std::result::Result<i64, Malformed> {
    text.trim()
        .parse()
        .map_err(|_| Malformed::new("a number", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_again_from_the_same_descriptor() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("n");
        std::fs::write(&path, "1\n").unwrap();
        let reader = Reader::open(path.clone(), number).unwrap().unwrap();
        let mut scratch = Scratch::new();
        assert_eq!(reader.read(&mut scratch).unwrap(), Some(1));
        std::fs::write(&path, "23\n").unwrap();
        assert_eq!(reader.read(&mut scratch).unwrap(), Some(23));
        std::fs::write(&path, "x\n").unwrap();
        let error = reader.read(&mut scratch).unwrap_err().to_string();
        assert!(
            error.contains("/n: expected an unsigned number, found \"x\\n\""),
            "{error}"
        );
        std::fs::write(&path, "").unwrap();
        assert_eq!(reader.read(&mut scratch).unwrap(), None);
    }

    #[test]
    fn content_larger_than_the_buffer() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("big");
        let long = "a".repeat(20_000);
        std::fs::write(&path, &long).unwrap();
        let reader = Reader::open(path, |text| Ok(text.len())).unwrap().unwrap();
        assert_eq!(reader.read(&mut Scratch::new()).unwrap(), Some(20_000));
    }

    #[test]
    fn missing_is_none() {
        assert!(
            Reader::open("/nonexistent/file".into(), number)
                .unwrap()
                .is_none()
        );
    }
}
