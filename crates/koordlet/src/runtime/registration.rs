//! The registration file of the hook server, which koord-runtime-proxy reads.

use koord_api::hookserver::{HookServer, KOORDLET};
use std::io;
use std::path::Path;

/// Writes the registration atomically: a reader sees the old file or the new one.
pub(super) fn write(directory: &Path, server: &HookServer) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    // The temporary name must not have the suffix of a registration.
    let new = directory.join(format!(".{KOORDLET}.new"));
    std::fs::write(&new, server.to_json()?)?;
    std::fs::rename(&new, directory.join(KOORDLET))
}

/// Returns whether a hook server of koordlet's name is registered in `directory`.
pub(super) fn is_there(directory: &Path) -> bool {
    directory.join(KOORDLET).exists()
}

/// Removes the registration of an earlier run: the proxy must not call hooks that the runtime calls now.
pub(super) fn remove(directory: &Path) {
    let path = directory.join(KOORDLET);
    match std::fs::remove_file(&path) {
        Ok(()) => tracing::info!(path = %path.display(), "removed registration of the hook server"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "failed to remove registration of the hook server");
        }
    }
}
