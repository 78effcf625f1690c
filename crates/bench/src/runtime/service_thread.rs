//! Threads for agents and proxies, which are separate processes on a node: each thread has the same kind of
//! runtime as its process.

use anyhow::{Context as _, Result, anyhow};
use koord_app::daemon;
use std::thread::JoinHandle;

/// A future that runs on its own thread.
pub(super) struct ServiceThread<T>(JoinHandle<T>);

impl<T: Send + 'static> ServiceThread<T> {
    /// Runs `run` on a thread with this name.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(name: &str, run: impl Future<Output = T> + Send + 'static) -> Result<Self> {
        let runtime = daemon::one_thread()?;
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || runtime.block_on(run));
        Ok(Self(thread.context(name.to_owned())?))
    }

    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the future and returns its output.
    ///
    /// # Errors
    /// When it panicked.
    pub(super) async fn end(self) -> Result<T> {
        let joined = tokio::task::spawn_blocking(move || self.0.join()).await?;
        joined.map_err(|_| anyhow!("thread panicked"))
    }
}
