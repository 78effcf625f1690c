//! Container logs: files in the CRI format, written with size rotation, read with kubectl's options.
//!
//! `<data dir>/logs/<namespace>_<pod>_<uid>/<container>/<restart>.log`, rotated to `....log.000000` and so
//! on. A line is `TIME STREAM TAG CONTENT`; TAG is F for a full line and P for a piece of a longer one.

mod read;
mod write;

pub use read::{LogOptions, LogStream};
pub(crate) use write::{LogWriter, pump};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// Progress of a log that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// Bytes written in total.
    bytes: u64,
    /// Number of rotations of the file.
    rotations: u32,
    /// True once the container has ended.
    closed: bool,
}

/// The logs of this node. Clones share the content.
#[derive(Debug, Clone)]
pub struct Logs(Arc<LogStore>);

#[derive(Debug)]
struct LogStore {
    dir: PathBuf,
    /// Logs that are being written, by the path of their current file.
    live: Mutex<HashMap<PathBuf, watch::Receiver<Progress>>>,
}

/// Identifies a container of a pod.
#[derive(Debug, Clone)]
pub(crate) struct LogKey {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) container: String,
}

impl Logs {
    /// Returns the logs below `<data_dir>/logs`.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self(Arc::new(LogStore {
            dir: data_dir.into().join("logs"),
            live: Mutex::default(),
        }))
    }

    /// Opens the log of a container. The error is a sentence for the user.
    #[must_use]
    pub fn open<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        options: LogOptions,
    ) -> BoxFuture<'a, Result<LogStream, String>> {
        Box::pin(read::open(self, namespace, pod, container, options))
    }

    /// Starts the log of the `attempt`-th start of a container.
    pub(crate) fn create(
        &self,
        key: &LogKey,
        attempt: u32,
        limit: u64,
        files: u32,
    ) -> io::Result<LogWriter> {
        let dir = self
            .pod_dir(&key.namespace, &key.pod, &key.uid)
            .join(&key.container);
        fs::create_dir_all(&dir)?;
        let path = dir.join(format!("{attempt}.log"));
        let (sender, receiver) = watch::channel(Progress::default());
        let writer = LogWriter::create(self.clone(), path.clone(), limit, files, sender)?;
        self.0.live.lock().insert(path, receiver);
        Ok(writer)
    }

    /// Follows the log of the `attempt`-th start of a container that another process writes to
    /// [`Tail::path`].
    pub(crate) fn adopt(&self, key: &LogKey, attempt: u32) -> io::Result<Tail> {
        let dir = self
            .pod_dir(&key.namespace, &key.pod, &key.uid)
            .join(&key.container);
        fs::create_dir_all(&dir)?;
        let path = std::path::absolute(dir.join(format!("{attempt}.log")))?;
        let (progress, receiver) = watch::channel(Progress::default());
        let shown = dir.join(format!("{attempt}.log"));
        self.0.live.lock().insert(shown.clone(), receiver);
        Ok(Tail {
            logs: self.clone(),
            shown,
            path,
            progress,
        })
    }

    /// Removes the logs of a pod.
    pub(crate) fn remove(&self, namespace: &str, pod: &str, uid: &str) {
        let dir = self.pod_dir(namespace, pod, uid);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(dir = %dir.display(), %error, "failed to remove the logs of a pod");
            }
            _ => {}
        }
    }

    /// Removes the logs of pods that are not among `uids`: pods removed while the node was down.
    pub(crate) fn keep_only(&self, uids: &std::collections::BTreeSet<String>) {
        for entry in fs::read_dir(&self.0.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let uid = name
                .to_str()
                .and_then(|name| name.rsplit_once('_'))
                .map(|(_, uid)| uid);
            if uid.is_some_and(|uid| !uids.contains(uid))
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                tracing::warn!(dir = %entry.path().display(), %error, "failed to remove the logs of a pod");
            }
        }
    }

    /// Removes the logs of one start of a container, except the `keep` youngest starts.
    pub(crate) fn prune(&self, key: &LogKey, attempt: u32, keep: u32) {
        let dir = self
            .pod_dir(&key.namespace, &key.pod, &key.uid)
            .join(&key.container);
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.split_once(".log")?.0.parse().ok());
            if number.is_some_and(|number: u32| number.saturating_add(keep) <= attempt) {
                // The log of an old start, which no request can select.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn pod_dir(&self, namespace: &str, pod: &str, uid: &str) -> PathBuf {
        self.0.dir.join(format!("{namespace}_{pod}_{uid}"))
    }

    fn close(&self, path: &Path) {
        self.0.live.lock().remove(path);
    }

    fn progress(&self, path: &Path) -> Option<watch::Receiver<Progress>> {
        self.0.live.lock().get(path).cloned()
    }

    /// Returns the directory of the youngest pod with this name. Several exist for a moment when a pod is
    /// deleted and created again.
    fn newest_pod_dir(&self, namespace: &str, pod: &str) -> Option<PathBuf> {
        let prefix = format!("{namespace}_{pod}_");
        let entries = fs::read_dir(&self.0.dir).ok()?.flatten();
        let of_pod = entries.filter(|entry| {
            // Names cannot hold an underscore, so the rest is the uid.
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(&prefix))
        });
        of_pod
            .max_by_key(|entry| entry.metadata().and_then(|meta| meta.modified()).ok())
            .map(|entry| entry.path())
    }
}

/// A log that another process writes.
#[derive(Debug)]
pub(crate) struct Tail {
    logs: Logs,
    /// Key of the log in [`LogStore::live`].
    shown: PathBuf,
    path: PathBuf,
    progress: watch::Sender<Progress>,
}

impl Tail {
    /// Returns the path of the log file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes new output visible to readers and returns the size of the file in bytes.
    pub(crate) fn publish_size(&self) -> u64 {
        let size = fs::metadata(&self.path).map_or(0, |file| file.len());
        self.progress.send_if_modified(|progress| {
            let new = progress.bytes != size;
            progress.bytes = size;
            new
        });
        size
    }

    /// Renames the file so that its writer begins another, and renames it back if it does not.
    pub(crate) async fn rotate<E>(
        &self,
        files: u32,
        begin: impl Future<Output = Result<(), E>>,
    ) -> io::Result<Result<(), E>> {
        let rotations = self.progress.borrow().rotations;
        let old = rotated(&self.path, rotations);
        fs::rename(&self.path, &old)?;
        if let Err(error) = begin.await {
            fs::rename(&old, &self.path)?;
            return Ok(Err(error));
        }
        let rotations = rotations.saturating_add(1);
        self.progress
            .send_modify(|progress| progress.rotations = rotations);
        if let Some(oldest) = rotations.checked_sub(files.max(1)) {
            // A surplus file does no harm.
            let _ = fs::remove_file(rotated(&self.path, oldest));
        }
        Ok(Ok(()))
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.progress.send_modify(|progress| progress.closed = true);
        self.logs.close(&self.shown);
    }
}

/// Returns the file of a log after `rotation` rotations, of `rotations` in all.
fn file_of(path: &Path, rotation: u32, rotations: u32) -> PathBuf {
    if rotation >= rotations {
        path.to_owned()
    } else {
        rotated(path, rotation)
    }
}

fn rotated(path: &Path, rotation: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{rotation:06}"));
    PathBuf::from(name)
}
