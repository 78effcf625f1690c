//! Agents and proxies, which are processes of their own on a node: here each is a thread, on what its
//! process runs on.

use anyhow::{Context as _, Result, anyhow};
use koord_app::daemon;
use std::thread::JoinHandle;

/// One that runs.
pub(super) struct Party<T>(JoinHandle<T>);

impl<T: Send + 'static> Party<T> {
    /// # Errors
    /// When there is no thread to be had.
    pub(super) fn start(name: &str, run: impl Future<Output = T> + Send + 'static) -> Result<Self> {
        let runtime = daemon::one_thread()?;
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || runtime.block_on(run));
        Ok(Self(thread.context(name.to_owned())?))
    }

    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// What it ends with.
    ///
    /// # Errors
    /// When it panicked.
    pub(super) async fn end(self) -> Result<T> {
        let joined = tokio::task::spawn_blocking(move || self.0.join()).await?;
        joined.map_err(|_| anyhow!("it panicked"))
    }
}
