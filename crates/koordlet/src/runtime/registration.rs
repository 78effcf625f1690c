//! The file by which koord-runtime-proxy knows this hook server.

use koord_api::hookserver::{HookServer, KOORDLET};
use std::io;
use std::path::Path;

/// Writes the registration at once: a reader sees the old file or the new one.
pub(super) fn write(directory: &Path, server: &HookServer) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    // Its name must not end like one that counts.
    let new = directory.join(format!(".{KOORDLET}.new"));
    std::fs::write(&new, server.to_json()?)?;
    std::fs::rename(&new, directory.join(KOORDLET))
}

/// Returns whether a hook server of koordlet's name is registered in `directory`.
pub(super) fn is_there(directory: &Path) -> bool {
    directory.join(KOORDLET).exists()
}

/// Removes what an earlier run left: the proxy must not ask for what the runtime does now.
pub(super) fn remove(directory: &Path) {
    let path = directory.join(KOORDLET);
    match std::fs::remove_file(&path) {
        Ok(()) => tracing::info!(path = %path.display(), "registration of the hook server removed"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the hook server stays registered");
        }
    }
}
