//! Waiting for processes.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;

/// Waits until the process behind `pidfd` has ended.
///
/// # Errors
/// When the descriptor cannot be watched.
#[expect(
    deprecated,
    reason = "sound for an OwnedFd; its replacement is for koord-host only"
)]
pub(crate) async fn ended(pidfd: OwnedFd) -> io::Result<()> {
    // A pidfd stays readable once its process has ended, so readiness is never cleared.
    AsyncFd::new(pidfd)?.readable().await.map(|_| ())
}
