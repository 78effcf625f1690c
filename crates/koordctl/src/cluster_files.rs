//! Files of the `koord up` clusters on this machine: their paths, and the processes that hold their locks.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

/// Name of the ConfigMap in [`NAMESPACE`](koord_api::configmap::NAMESPACE) with the addresses of a local
/// cluster's components: `node` (a name), `manager`, `scheduler`, `descheduler` and `koordlet` (URLs, empty if
/// not served).
pub const ADDRESSES_NAME: &str = "koord-up";

/// Address at which koordlet of a local cluster serves health, metrics, state and audit events.
pub const KOORDLET: &str = "127.0.0.1:9316";
/// Directory of the claims on cgroups, which like the cgroups last until the next boot.
pub const GROUP_CLAIMS: &str = "/run/koord";
/// Maximum number of clusters that share a machine.
pub const MAX_CLUSTERS: u32 = 64;

/// The holder of a lock, as written in the lock file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Data directory of its cluster.
    pub dir: PathBuf,
}

/// Returns the data directories of the clusters on this machine that this user may read.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let claims = Path::new(GROUP_CLAIMS);
    let claims = (1..=MAX_CLUSTERS).map(|number| claim_of(claims, number));
    let dirs = claims.filter_map(|path| {
        let holder: Holder = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(holder.dir)
    });
    dirs.collect()
}

/// Returns the data directories in which a cluster runs, with its process: first the default ones, then those
/// of claims on cgroups. Clusters of other users are missing, as their directories are private.
#[must_use]
pub fn running() -> Vec<(PathBuf, Holder)> {
    let defaults = [false, true].map(default_data_dir);
    running_in(defaults.into_iter().chain(directories()))
}

/// Returns those of `dirs` in which a cluster runs, each once, with its process.
fn running_in(dirs: impl Iterator<Item = PathBuf>) -> Vec<(PathBuf, Holder)> {
    let mut seen = Vec::new();
    let mut running = Vec::new();
    for dir in dirs {
        let Ok(path) = std::fs::canonicalize(&dir) else {
            continue;
        };
        if seen.contains(&path) {
            continue;
        }
        seen.push(path);
        if let Ok(Some(holder)) = holder(&dir) {
            running.push((dir, holder));
        }
    }
    running
}

/// Returns the lock file for the cgroups of the cluster with this number.
#[must_use]
pub fn claim_of(claims: &Path, number: u32) -> PathBuf {
    claims.join(format!("cluster-{number}.lock"))
}

/// Returns the process that holds the lock of `dir`; `None` if none does.
///
/// # Errors
/// The lock cannot be checked.
pub fn holder(dir: &Path) -> Result<Option<Holder>> {
    let path = lock_of(dir);
    if !path.exists() {
        return Ok(None);
    }
    let mut file = open(&path)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(read(&mut file))),
        Err(TryLockError::Error(error)) => Err(failed(&path, error)),
    }
}

/// Returns the lock file of the cluster in `dir`.
#[must_use]
pub fn lock_of(dir: &Path) -> PathBuf {
    dir.join("lock")
}

/// Opens a lock file, creating it if it is missing.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(|error| failed(path, error))
}

/// Returns the error for a lock file at `path`.
#[must_use]
pub fn failed(path: &Path, error: std::io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("failed to lock {}", path.display()))
}

/// Returns the holder in a lock file; the default if it has not written the file yet.
#[must_use]
pub fn read(file: &mut File) -> Holder {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    read.ok()
        .and_then(|_| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

/// Returns the default data directory of `koord up`. Clusters in memory have another one, so that they leave
/// the files of a durable cluster alone.
#[must_use]
pub fn default_data_dir(memory: bool) -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    std::env::var_os("XDG_STATE_HOME")
        .map_or_else(|| home.join(".local/state"), PathBuf::from)
        .join(if memory { "koord-memory" } else { "koord" })
}

/// Returns the file with the token of a cluster.
#[must_use]
pub fn token_file(dir: &Path) -> PathBuf {
    dir.join("token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_clusters_are_found_once_each() {
        let all = tempfile::tempdir().unwrap();
        let [durable, memory, stopped] = ["koord", "koord-memory", "stopped"].map(|name| {
            let dir = all.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            dir
        });
        let lock = |dir: &Path| {
            let file = open(&lock_of(dir)).unwrap();
            file.try_lock().unwrap();
            file
        };
        drop(lock(&stopped));
        let link = all.path().join("link");
        std::os::unix::fs::symlink(&memory, &link).unwrap();
        let missing = all.path().join("missing");
        let dirs = || [&durable, &memory, &stopped, &link, &missing].map(PathBuf::clone);
        let found = || {
            let running = running_in(dirs().into_iter()).into_iter();
            running.map(|(dir, _)| dir).collect::<Vec<_>>()
        };
        assert_eq!(found(), Vec::<PathBuf>::new());
        let in_memory = lock(&memory);
        assert_eq!(found(), std::slice::from_ref(&memory));
        let in_files = lock(&durable);
        assert_eq!(found(), [durable.clone(), memory.clone()]);
        drop((in_memory, in_files));
    }
}
