//! The files of the clusters that `koord up` runs on this machine: where they are, and which process has them.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

/// Name of the ConfigMap, in [`NAMESPACE`](koord_api::configmap::NAMESPACE), that says where the parts of a local cluster are
/// to be asked: `node` (a name), `scheduler`, `descheduler` and `koordlet` (URLs, empty when not served).
pub const ADDRESSES_NAME: &str = "koord-up";

/// Where koordlet of a local cluster serves its health, metrics, state and audit events.
pub const KOORDLET: &str = "127.0.0.1:9316";
/// Where the claims on control groups are kept: they end with the boot, as the groups do.
pub const GROUP_CLAIMS: &str = "/run/koord";
/// As many clusters can share a machine.
pub const MOST_CLUSTERS: u32 = 64;

/// The holder of a lock, as the lock's file names it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// The directory of its cluster.
    pub dir: PathBuf,
}

/// The directories of the clusters of this machine, as far as this user may see them.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let claims = Path::new(GROUP_CLAIMS);
    let claims = (1..=MOST_CLUSTERS).map(|number| claim_of(claims, number));
    let dirs = claims.filter_map(|path| {
        let holder: Holder = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(holder.dir)
    });
    dirs.collect()
}

/// Returns the lock of the control groups of the cluster with this number.
#[must_use]
pub fn claim_of(claims: &Path, number: u32) -> PathBuf {
    claims.join(format!("cluster-{number}.lock"))
}

/// The process that has `dir`, if one has.
///
/// # Errors
/// When the lock cannot be looked at.
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

/// Returns the lock of the cluster in `dir`.
#[must_use]
pub fn lock_of(dir: &Path) -> PathBuf {
    dir.join("lock")
}

/// Opens a lock's file, made when missing.
///
/// # Errors
/// When it cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(|error| failed(path, error))
}

/// Returns the error of a lock at `path`.
#[must_use]
pub fn failed(path: &Path, error: std::io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("cannot lock {}", path.display()))
}

/// Returns what the holder wrote; nothing while it has not.
#[must_use]
pub fn read(file: &mut File) -> Holder {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    read.ok()
        .and_then(|_| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

/// The directory of `koord up` when none is given. A cluster in memory has another, so that it
/// leaves the files of a durable one alone.
#[must_use]
pub fn default_data_dir(memory: bool) -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    std::env::var_os("XDG_STATE_HOME")
        .map_or_else(|| home.join(".local/state"), PathBuf::from)
        .join(if memory { "koord-memory" } else { "koord" })
}

/// Where the token of a cluster is.
#[must_use]
pub fn token_file(dir: &Path) -> PathBuf {
    dir.join("token")
}
