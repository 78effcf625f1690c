//! The few file operations the log needs, behind a trait so that tests can make them fail.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Makes files.
pub(super) trait Disk: Debug + Send + Sync {
    /// An empty file at `path`, replacing what is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn LogFile>>;
}

/// A file that is written from front to back.
pub(super) trait LogFile: Debug + Send {
    /// Writes `bytes` at the end; after an error, a part of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything written is on the disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file to `length` bytes.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Debug)]
pub(super) struct Os;

impl Disk for Os {
    fn create(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Box::new(options.open(path)?))
    }
}

impl LogFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        io::Seek::seek(self, io::SeekFrom::Start(length))?;
        self.sync_data()
    }
}

/// Makes the names in directory `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
