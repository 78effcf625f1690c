//! Registrations of hook servers, from the files that they write.
//!
//! An invalid file keeps its previous registration; a deleted one is removed immediately. The directory is
//! scanned after inotify events and once a minute.

use arc_swap::ArcSwap;
use koord_api::hookserver::{self, HookServer, Policy};
use koord_api::lenient::ReadError;
use prometheus::IntGauge;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

/// Interval of the scans without events.
const RESCAN: Duration = Duration::from_secs(60);

/// Maximum size of a registration file in bytes.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// The registration of one hook server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registration {
    /// Path of its socket.
    pub(crate) endpoint: PathBuf,
    pub(crate) policy: Policy,
    /// Names of hooks, as in the file; some may not exist.
    pub(crate) hooks: Vec<String>,
}

/// Registrations, sorted by file name.
pub(crate) type Registrations = Arc<ArcSwap<Vec<Arc<Registration>>>>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistrationError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Json(#[from] ReadError),
    #[error("file is larger than {MAX_FILE_SIZE} bytes")]
    Large,
    #[error("remote-endpoint: {0:?} is not the absolute path of a socket")]
    Endpoint(String),
}

fn parse(text: &[u8]) -> Result<Registration, RegistrationError> {
    let server = HookServer::from_json(text)?;
    let Some(endpoint) = server.socket() else {
        return Err(RegistrationError::Endpoint(server.remote_endpoint));
    };
    let (endpoint, policy) = (endpoint.to_owned(), server.policy());
    if !["", policy.name()].contains(&server.failure_policy.as_str()) {
        tracing::warn!(
            policy = server.failure_policy,
            "unknown failure-policy, using Ignore"
        );
    }
    Ok(Registration {
        endpoint,
        policy,
        hooks: server.runtime_hooks,
    })
}

/// Reads and parses a registration file of at most [`MAX_FILE_SIZE`] bytes.
fn read(path: &Path) -> Result<Registration, RegistrationError> {
    let mut text = Vec::new();
    fs::File::open(path)?
        .take(MAX_FILE_SIZE + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_SIZE {
        return Err(RegistrationError::Large);
    }
    parse(&text)
}

/// Identity of a file, which shows whether it changed: a restored file with an old modification time has
/// another inode or size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

impl Identity {
    fn from_metadata(file: &Metadata) -> Self {
        Self {
            inode: file.ino(),
            modified: (file.mtime(), file.mtime_nsec()),
            size: file.size(),
        }
    }
}

/// State of the registration directory as of its last scan.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// Files with their last valid registration.
    files: BTreeMap<OsString, (Identity, Option<Arc<Registration>>)>,
}

impl Directory {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            files: BTreeMap::new(),
        }
    }

    fn make(&self) -> std::io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.path)
    }

    /// Checks all files, and reads those that changed.
    fn scan(&mut self) -> std::io::Result<()> {
        let mut before = std::mem::take(&mut self.files);
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            if !name
                .as_encoded_bytes()
                .ends_with(hookserver::SUFFIX.as_bytes())
            {
                continue;
            }
            let path = self.path.join(&name);
            // Follows symbolic links.
            let Ok(metadata) = fs::metadata(&path) else {
                continue;
            };
            if !metadata.is_file() {
                continue;
            }
            let identity = Identity::from_metadata(&metadata);
            let registration = match before.remove(&name) {
                Some((as_it_was, registration)) if as_it_was == identity => registration,
                other => match read(&path) {
                    Ok(registration) => {
                        tracing::info!(file = %path.display(), ?registration, "hook server registered");
                        Some(Arc::new(registration))
                    }
                    Err(error) => {
                        let registration = other.and_then(|(_, registration)| registration);
                        let stays = if registration.is_some() {
                            "keeping the previous one"
                        } else {
                            "ignoring it"
                        };
                        tracing::warn!(file = %path.display(), %error, "failed to read hook server registration, {stays}");
                        registration
                    }
                },
            };
            self.files.insert(name, (identity, registration));
        }
        for name in before.keys() {
            let file = self.path.join(name);
            tracing::info!(file = %file.display(), "hook server registration removed");
        }
        Ok(())
    }

    fn publish(&mut self, to: &Registrations, count: &IntGauge) {
        if let Err(error) = self.scan() {
            let dir = self.path.display();
            tracing::warn!(%dir, %error, "failed to read the registration directory");
        }
        let registrations = self
            .files
            .values()
            .filter_map(|(_, registration)| registration.clone());
        let registrations: Vec<_> = registrations.collect();
        count.set(i64::try_from(registrations.len()).unwrap_or(i64::MAX));
        to.store(Arc::new(registrations));
    }
}

/// Watches for changes of files and their names; a change of permissions alone is ignored.
fn watch(dir: &Path) -> std::io::Result<AsyncFd<OwnedFd>> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let flags = WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&fd, dir, flags)?;
    registered(fd)
}

#[expect(
    deprecated,
    reason = "sound for what owns its descriptor; its replacement is for koord-host only"
)]
fn registered(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

/// Waits for events; returns false if the directory itself was moved or deleted.
async fn event(watched: &AsyncFd<OwnedFd>) -> std::io::Result<bool> {
    let mut ready = watched.readable().await?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut reader = Reader::new(watched.get_ref(), &mut buffer);
    let removed = ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
    let mut stands = true;
    loop {
        match reader.next() {
            Ok(event) => stands &= !event.events().intersects(removed),
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    ready.clear_ready();
    Ok(stands)
}

/// Reads all registrations in `dir`, which is created if it is missing, and follows changes until `stop`. Their
/// number is set in `count`.
pub(crate) fn follow(
    dir: PathBuf,
    count: IntGauge,
    stop: CancellationToken,
) -> (Registrations, impl Future<Output = ()> + Send + 'static) {
    let registrations = Registrations::default();
    let published = registrations.clone();
    let mut directory = Directory::new(dir);
    let mut watched = start_watch(&directory);
    directory.publish(&published, &count);
    let following = async move {
        let mut rescan = tokio::time::interval(RESCAN);
        rescan.tick().await;
        loop {
            let changed = async {
                match &watched {
                    Some(watched) => event(watched).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changed => match changed {
                    Ok(true) => {}
                    Ok(false) => watched = None,
                    Err(error) => {
                        tracing::warn!(%error, "failed to watch registrations, scanning once a minute");
                        watched = None;
                    }
                },
                _ = rescan.tick() => {}
            }
            if watched.is_none() {
                watched = start_watch(&directory);
            }
            directory.publish(&published, &count);
        }
    };
    (registrations, following)
}

fn start_watch(directory: &Directory) -> Option<AsyncFd<OwnedFd>> {
    let watched = directory.make().and_then(|()| watch(&directory.path));
    watched
        .inspect_err(|error| {
            let dir = directory.path.display();
            tracing::warn!(%dir, %error, "failed to watch registrations, scanning once a minute");
        })
        .ok()
}

/// Parses a file's text and returns endpoint, policy and hooks. It is the entry point of the fuzz target.
#[cfg(fuzzing)]
pub fn fuzzed(text: &[u8]) -> Option<(PathBuf, Policy, Vec<String>)> {
    let read = parse(text).ok()?;
    Some((read.endpoint, read.policy, read.hooks))
}

#[cfg(test)]
mod tests;
