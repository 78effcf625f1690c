//! When the kubelet may list something else than before: it has written what it gave away, or pods came
//! and went.

use koord_host::watch::Files;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Below the kubelet's directory: where what is kept of CPUs, memory, devices and pods changes. The
/// first three are those that nfd-topology-updater looks at.
const WATCHED_FILES: [(&str, &[&str]); 3] = [
    ("", &["cpu_manager_state", "memory_manager_state"]),
    ("device-plugins", &["kubelet_internal_checkpoint"]),
    // A pod without anything for itself is in the fingerprint, too.
    ("pods", &[]),
];

/// The kubelet's directory under watch.
pub(super) struct Events {
    dir: PathBuf,
    /// `None` where the kernel tells nothing.
    files: Option<AsyncFd<Files>>,
}

impl Events {
    /// Watches the kubelet's directory `dir`; without one, nothing ever happens.
    pub(super) fn new(dir: Option<&Path>) -> Self {
        let files = dir.and_then(|_| match open_watch() {
            Ok(files) => Some(files),
            Err(error) => {
                tracing::warn!(
                    error,
                    "the kubelet's files are not watched: the interval remains"
                );
                None
            }
        });
        let mut events = Self {
            dir: dir.unwrap_or(Path::new("")).to_owned(),
            files,
        };
        events.extend();
        events
    }

    /// Watches what was not there before. Twice is once.
    pub(super) fn extend(&mut self) {
        let Some(files) = &mut self.files else { return };
        for (place, names) in WATCHED_FILES {
            let dir = self.dir.join(place);
            if let Err(error) = files.get_mut().add(&dir, names) {
                tracing::debug!(%error, "a directory is not watched");
            }
        }
    }

    /// Waits until something has happened.
    pub(super) async fn changed(&mut self) {
        let Some(files) = &mut self.files else {
            return std::future::pending().await;
        };
        loop {
            let changed = {
                let Ok(mut ready) = files.readable_mut().await else {
                    return std::future::pending().await;
                };
                let changed = ready.get_inner_mut().changed();
                ready.clear_ready();
                changed
            };
            match changed {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the kubelet's files are not watched any more");
                    self.files = None;
                    return;
                }
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "sound for what owns its descriptor; its replacement is for koord-host only"
)]
fn open_watch() -> Result<AsyncFd<Files>, String> {
    let files = Files::new().map_err(|error| error.to_string())?;
    AsyncFd::new(files).map_err(|error| error.to_string())
}
