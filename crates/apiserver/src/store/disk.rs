//! File operations of the log, behind a trait so that tests can make them fail.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Creates files.
pub(super) trait Disk: Debug + Send + Sync {
    /// Creates an empty file at `path`, replacing an existing one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn LogFile>>;
}

/// A file that is written sequentially.
pub(super) trait LogFile: Debug + Send {
    /// Appends `bytes`; after an error, a part of them may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Syncs everything written to the disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Truncates the file to `length` bytes.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

/// The files of the operating system.
#[derive(Debug)]
pub(super) struct OsDisk;

impl Disk for OsDisk {
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

/// Syncs the names in directory `dir` to the disk.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
