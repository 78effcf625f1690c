//! A lock that lets only one agent of a machine adjust containers. Two agents that do, through the runtime or
//! its proxy, would have every creation refused, or values set twice.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval of checks whether the other agent has ended.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// State of the lock of this agent. The lock is on the directory of registrations, which is the same for
/// agents of every mode; the kernel releases it when the process ends.
#[derive(Debug)]
pub(super) enum HookLock {
    /// This agent holds the lock.
    Held(#[expect(dead_code, reason = "held open, and so locked")] File),
    /// The directory cannot be locked; this agent adjusts containers regardless of others.
    Unknown,
    /// Another agent holds the lock.
    HeldByOther,
}

impl HookLock {
    /// Acquires the lock of the machine whose registrations are in `directory`, which is created if `make`.
    pub(super) fn acquire(directory: &Path, make: bool) -> Self {
        match Self::try_acquire(directory, make) {
            Ok(lock) => lock,
            Err(error) => {
                if make || error.kind() != io::ErrorKind::NotFound {
                    let directory = directory.display();
                    tracing::warn!(%directory, %error, "failed to lock directory against other agents, continuing without lock");
                }
                Self::Unknown
            }
        }
    }

    fn try_acquire(directory: &Path, make: bool) -> io::Result<Self> {
        if make {
            std::fs::create_dir_all(directory)?;
        }
        let file = File::open(directory)?;
        match file.try_lock() {
            Ok(()) => Ok(Self::Held(file)),
            Err(TryLockError::WouldBlock) => Ok(Self::HeldByOther),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Returns whether another agent holds the lock.
    pub(super) fn is_held_by_other(&self) -> bool {
        matches!(self, Self::HeldByOther)
    }

    /// Waits until the lock is acquired; `None` on shutdown.
    pub(super) async fn wait(self, directory: &Path, shutdown: &CancellationToken) -> Option<Self> {
        let mut lock = self;
        while lock.is_held_by_other() {
            tokio::select! {
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            lock = Self::acquire(directory, true);
        }
        Some(lock)
    }
}
