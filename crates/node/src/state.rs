//! Record on disk of everything that this node created on the machine, so that the next start can clean up
//! after a crash without touching anything else.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A process that this node started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Process id, which is also the id of its process group.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
}

/// A pod that this node started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEntry {
    /// Name of the pod as `namespace/name`, for logs.
    pub name: String,
    /// Container processes of the pod, by container id.
    pub processes: BTreeMap<String, Process>,
}

/// Content of the state file: what this node created on the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Version of the file's format.
    pub version: u32,
    /// Id of the boot in which this was written: process ids of another boot are meaningless.
    pub boot_id: String,
    /// Control groups that this node created, and so may remove.
    pub groups: BTreeSet<String>,
    /// Pods by uid.
    pub pods: BTreeMap<String, PodEntry>,
    /// The container runtime that has sandboxes of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
}

/// An error that prevents the use of the state file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file operation failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory is in use by another process.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
}

const VERSION: u32 = 1;

/// The state and its file. Every change is on disk when the call returns; a crash of the process
/// loses nothing, and a crash of the machine leaves nothing to clean up.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    state: Mutex<State>,
    /// Held open: its lock prevents a second node in the directory.
    _lock: fs::File,
}

impl StateFile {
    /// Opens `<dir>/state.json` and returns the state that the last process left. An invalid file is set
    /// aside with a warning: the node can start, but leftovers stay.
    ///
    /// # Errors
    /// When the directory cannot be used or another process uses it.
    pub fn open(dir: &Path, boot_id: &str) -> Result<(Self, State), StateError> {
        let io = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| StateError::Io {
                operation,
                path,
                source,
            }
        };
        fs::create_dir_all(dir).map_err(io("create", dir))?;
        let lock_path = dir.join("lock");
        let lock = fs::File::create(&lock_path).map_err(io("create", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(StateError::Locked { path: lock_path });
            }
            Err(fs::TryLockError::Error(source)) => return Err(io("lock", &lock_path)(source)),
        }
        let path = dir.join("state.json");
        let mut previous = match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<State>(&bytes) {
                Ok(state) if state.version == VERSION => state,
                other => {
                    let aside = dir.join("state.json.unreadable");
                    let error = other.err().map(|error| error.to_string());
                    let error = error.unwrap_or_else(|| "unknown version".to_owned());
                    tracing::warn!(path = %path.display(), kept = %aside.display(), error,
                        "failed to parse the state file; control groups and processes of an earlier run stay");
                    fs::rename(&path, &aside).map_err(io("rename", &path))?;
                    State::default()
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(io("read", &path)(error)),
        };
        if previous.boot_id != boot_id {
            // Another boot: the groups and processes no longer exist.
            previous = State::default();
        }
        let state = State {
            version: VERSION,
            boot_id: boot_id.to_owned(),
            ..previous.clone()
        };
        let file = Self {
            path,
            state: Mutex::new(state),
            _lock: lock,
        };
        file.change(|_| ())?;
        Ok((file, previous))
    }

    /// Changes the state and writes it.
    ///
    /// # Errors
    /// When the file cannot be written; the change is kept in memory.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, StateError> {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let text = serde_json::to_vec(&*state).unwrap_or_default();
        let temp = self.path.with_extension("json.new");
        let io = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| StateError::Io {
                operation,
                path,
                source,
            }
        };
        fs::write(&temp, text).map_err(io("write", &temp))?;
        fs::rename(&temp, &self.path).map_err(io("rename", &temp))?;
        Ok(result)
    }

    /// Applies a change like [`StateFile::change`], but only logs a failure.
    pub fn note(&self, change: impl FnOnce(&mut State)) {
        if let Err(error) = self.change(change) {
            tracing::warn!(%error, "failed to save the state; a crash would leave processes or control groups");
        }
    }

    /// Returns a copy of the state.
    #[must_use]
    pub fn snapshot(&self) -> State {
        self.state.lock().clone()
    }

    /// Returns whether this node created the group at `path`.
    #[must_use]
    pub fn owns(&self, path: &str) -> bool {
        self.state.lock().groups.contains(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_restart_of_the_process_but_not_of_the_machine() {
        let temp = tempfile::tempdir().unwrap();
        let (file, left) = StateFile::open(temp.path(), "boot1").unwrap();
        assert_eq!(left, State::default());
        file.change(|state| {
            state.groups.insert("kubepods".into());
            let entry = state.pods.entry("uid".into()).or_default();
            entry.processes.insert(
                "c".into(),
                Process {
                    pid: 5,
                    start_ticks: 6,
                },
            );
        })
        .unwrap();
        assert!(matches!(
            StateFile::open(temp.path(), "boot1"),
            Err(StateError::Locked { .. })
        ));
        drop(file);
        let (file, left) = StateFile::open(temp.path(), "boot1").unwrap();
        assert!(left.groups.contains("kubepods") && file.owns("kubepods"));
        assert_eq!(left.pods["uid"].processes["c"].pid, 5);
        drop(file);
        let (file, left) = StateFile::open(temp.path(), "boot2").unwrap();
        assert_eq!(left, State::default());
        assert!(!file.owns("kubepods"));
    }

    #[test]
    fn a_broken_file_is_set_aside() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("state.json"), "{").unwrap();
        let (_file, left) = StateFile::open(temp.path(), "boot").unwrap();
        assert_eq!(left, State::default());
        assert!(temp.path().join("state.json.unreadable").exists());
    }
}
