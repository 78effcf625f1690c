//! Common part of all inotify watches.

use crate::error::{HostError, Result, is_gone};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::inotify::{self, CreateFlags, Event, Reader, WatchFlags};
use std::mem::MaybeUninit;
use std::path::Path;

/// Buffer size for the events of one read: some 100 short names.
const BUFFER: usize = 4096;

/// An inotify instance. A file descriptor that becomes readable when something changed.
#[derive(Debug)]
pub(super) struct Inotify(OwnedFd);

impl Inotify {
    /// Returns an instance that watches nothing.
    ///
    /// # Errors
    /// When the kernel has no inotify or no more instances for this user.
    pub(super) fn new() -> Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(|error| HostError::io("inotify_init", Path::new("inotify"), error.into()))?;
        Ok(Self(fd))
    }

    /// Watches `dir`; returns the watch's number, or `None` if the directory does not exist.
    ///
    /// # Errors
    /// Any other failure, such as too many watches.
    pub(super) fn add(&self, dir: &Path, flags: WatchFlags) -> Result<Option<i32>> {
        match inotify::add_watch(&self.0, dir, flags) {
            Ok(id) => Ok(Some(id)),
            Err(error) if is_gone(&error.into()) => Ok(None),
            Err(error) => Err(HostError::io("inotify_add_watch", dir, error.into())),
        }
    }

    /// Ends a watch, unless the kernel has ended it already.
    pub(super) fn remove(&self, id: i32) {
        let _ = inotify::remove_watch(&self.0, id);
    }

    /// Calls `handle` for each event since the last call, in order; never waits.
    ///
    /// # Errors
    /// When the kernel's queue cannot be read.
    pub(super) fn read(&self, mut handle: impl FnMut(&Event<'_>)) -> Result<()> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER];
        let mut reader = Reader::new(&self.0, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => handle(&event),
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    let path = Path::new("inotify");
                    return Err(HostError::io("read", path, error.into()));
                }
            }
        }
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Inotify {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
