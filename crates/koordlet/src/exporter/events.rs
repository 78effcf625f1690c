//! Detects when the kubelet's resource lists may have changed: the kubelet has rewritten a checkpoint file,
//! or pods were added or removed.

use koord_host::watch::Files;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Directories below the kubelet's directory, with the files to watch in each: they change with assignments
/// of CPUs, memory and devices and with pods. nfd-topology-updater watches the first three files.
const WATCHED_FILES: [(&str, &[&str]); 3] = [
    ("", &["cpu_manager_state", "memory_manager_state"]),
    ("device-plugins", &["kubelet_internal_checkpoint"]),
    // Pods without exclusive resources count in the fingerprint, too.
    ("pods", &[]),
];

/// Watch of the kubelet's directory.
pub(super) struct Events {
    dir: PathBuf,
    /// `None` if inotify is not available or the watch has failed.
    files: Option<AsyncFd<Files>>,
}

impl Events {
    /// Watches the kubelet's directory `dir`. Without one, there are no events.
    pub(super) fn new(dir: Option<&Path>) -> Self {
        let files = dir.and_then(|_| match open_watch() {
            Ok(files) => Some(files),
            Err(error) => {
                tracing::warn!(
                    error,
                    "failed to watch kubelet files, scanning periodically only"
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

    /// Watches directories that did not exist before. Already watched ones are unchanged.
    pub(super) fn extend(&mut self) {
        let Some(files) = &mut self.files else { return };
        for (place, names) in WATCHED_FILES {
            let dir = self.dir.join(place);
            if let Err(error) = files.get_mut().add(&dir, names) {
                tracing::debug!(%error, "failed to watch directory");
            }
        }
    }

    /// Waits for a change of a watched file.
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
                    tracing::warn!(%error, "watch of kubelet files failed, scanning periodically only");
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
