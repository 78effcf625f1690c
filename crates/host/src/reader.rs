//! Readers that keep the file open: one `pread` per sample, no re-open, no allocation.

use crate::error::{HostError, Malformed, Result, is_gone};
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A reusable buffer for [`Reader::read`]. One per thread is enough; it grows to the largest file.
#[derive(Debug)]
pub struct Scratch(Vec<u8>);

impl Scratch {
    /// Creates a buffer that holds the usual files without growing.
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

/// Reads the file of a group at `path` once and passes its content to `each`; `None` when it or its group is
/// gone.
///
/// The kernel returns as many of a file's records as fit. Records of groups' files are short, so a read that
/// leaves half of a page free was the last one: the end is not requested, nor the size, which the kernel does
/// not report. That saves two of five system calls.
///
/// # Errors
/// Any other failure.
pub(crate) fn read_once<T>(path: &Path, each: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
    let mut first = [0; 4096];
    let mut read = || {
        let mut file = File::open(path)?;
        let count = loop {
            match file.read(&mut first) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if count < first.len() / 2 {
            return Ok((count, None));
        }
        let mut all = first.to_vec();
        all.truncate(count);
        file.read_to_end(&mut all)?;
        Ok((count, Some(all)))
    };
    match read() {
        Ok((_, Some(all))) => Ok(Some(each(&all))),
        Ok((count, None)) => Ok(Some(each(first.get(..count).unwrap_or_default()))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(HostError::io("read", path, error)),
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

    /// Reads and parses the current content; `None` when the group or process vanished since the file was
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

    /// Reads the current content; `None` when the group or process vanished or the file is empty (no file
    /// that is worth a reader is ever empty).
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
                    // Statistics files are one record, which the kernel returns whole if it fits: a short
                    // read is the end, and another one would cost a second system call. (Lists such as
                    // cgroup.procs come in pieces: not for a reader.)
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

    /// Returns the path of the file.
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
    fn a_file_is_read_whole_at_once_or_in_pieces() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        for length in [0, 1, 2047, 2048, 4095, 4096, 4097, 20_000] {
            let content: String = ('a'..='z').cycle().take(length).collect();
            std::fs::write(&path, &content).unwrap();
            let read_bytes = read_once(&path, |bytes| bytes.to_vec()).unwrap().unwrap();
            assert_eq!(read_bytes, content.as_bytes(), "{length}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_once(&path, <[u8]>::len).unwrap(), None);
        assert!(read_once(temp.path(), <[u8]>::len).is_err());
    }

    /// The kernel returns a long list in pieces.
    #[test]
    fn a_long_list_of_the_kernel_is_read_whole() {
        let root = crate::Root::system().unwrap();
        let maps = std::path::Path::new("/proc/self/maps");
        let whole = std::fs::read_to_string(maps).unwrap();
        let line_count = root.read_short(maps, |text| Ok(text.lines().count()));
        let line_count = line_count.unwrap().unwrap();
        assert!(
            line_count.abs_diff(whole.lines().count()) < 20,
            "{line_count}"
        );
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
