//! One agent of a machine gives containers their values: two that do, through the runtime or its
//! proxy, would have every creation refused, or values set twice.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often is looked whether the other agent has gone.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Whether this agent gives them. The directory of registrations is locked meanwhile, which agents of
/// every mode know; the kernel unlocks it when the process ends, however it does.
#[derive(Debug)]
pub(super) enum HookLock {
    /// It does.
    Held(#[expect(dead_code, reason = "held open, and so locked")] File),
    /// The directory cannot be locked: it does, whoever else may.
    Unknown,
    /// Another one does.
    HeldByOther,
}

impl HookLock {
    /// Of the machine whose registrations are in `directory`, which is made where that shall be.
    pub(super) fn acquire(directory: &Path, make: bool) -> Self {
        match Self::try_acquire(directory, make) {
            Ok(lock) => lock,
            Err(error) => {
                if make || error.kind() != io::ErrorKind::NotFound {
                    let directory = directory.display();
                    tracing::warn!(%directory, %error, "cannot be locked against other agents");
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

    /// Returns whether another agent has it.
    pub(super) fn is_held_by_other(&self) -> bool {
        matches!(self, Self::HeldByOther)
    }

    /// Waits for its turn; `None` when it does not come any more.
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
