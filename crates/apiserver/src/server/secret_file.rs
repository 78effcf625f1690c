//! Files with secrets.

use super::ServeError;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Returns true if only the owner may access the file.
pub(super) fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 == 0)
}

/// Writes `contents` to `path` atomically, readable only by the owner.
pub(super) fn write(path: &Path, contents: &[u8]) -> Result<(), ServeError> {
    let failed = |source| ServeError::file("write", path, source);
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(failed)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let unfinished = path.with_file_name(name);
    // A stale one may have other permissions.
    let _ = std::fs::remove_file(&unfinished);
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(contents)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        // Syncing the directory makes the new name survive a power failure. Some directories cannot be
        // synced, which is not an error.
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let _ =
            std::fs::File::open(parent.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all());
        Ok::<(), std::io::Error>(())
    };
    write().map_err(|source| {
        let _ = std::fs::remove_file(&unfinished);
        failed(source)
    })
}
