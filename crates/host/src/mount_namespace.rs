//! A restricted view of this machine's files for untrusted processes.
//!
//! Everything is read-only except the named directories, some directories are hidden, `/dev` has the devices
//! that every program may use, and `/run`, with the sockets of system services, is empty.

use crate::error::{HostError, Result};
use crate::mounts::unescape;
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Harmless devices.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Directories with the sockets of system services, which user 0 can control.
const SOCKETS: [&str; 2] = ["/run", "/var/run"];
/// Mount options of a hidden directory: empty, and without permissions.
const HIDDEN: &str = "mode=0000,size=4k";

/// A mount namespace that started processes enter; see [`MountNamespace::new`].
#[derive(Debug)]
pub struct MountNamespace {
    pub(crate) namespace: OwnedFd,
    /// Root directory as seen by this process, which may run in another one.
    pub(crate) root: OwnedFd,
    /// The devpts instance of the namespace, which no other namespace shares.
    pub(crate) terminals: OwnedFd,
}

impl MountNamespace {
    /// Creates a namespace in which the directories `hidden` are empty and only those in `writable` are
    /// writable. Directories that do not exist are left out.
    ///
    /// # Errors
    /// When this process may not mount, or the kernel does not support one of the mounts.
    pub fn new(hidden: &[PathBuf], writable: &[PathBuf]) -> Result<Self> {
        let (hidden, writable) = (outermost(hidden), outermost(writable));
        // Only a thread of its own changes its namespace.
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("mount-namespace".to_owned())
                .spawn_scoped(scope, || build(&hidden, &writable))
                .map_err(|error| HostError::call("start a thread", error))?
                .join()
                .unwrap_or_else(|_| {
                    let lost = io::Error::other("the thread panicked");
                    Err(HostError::call("make a mount namespace", lost))
                })
        })
    }
}

/// Returns the existing directories by their real paths, without those inside another.
fn outermost(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut real: Vec<PathBuf> = paths
        .iter()
        .filter_map(|path| fs::canonicalize(path).ok())
        .filter(|path| path.is_dir())
        .collect();
    real.sort();
    // In sorted order a directory precedes its content.
    real.dedup_by(|later, earlier| later.starts_with(&*earlier));
    real
}

/// Moves the calling thread to a new mount namespace with these hidden and writable directories.
#[allow(unsafe_code, reason = "unshare can take file descriptors away")]
fn build(hidden: &[PathBuf], writable: &[PathBuf]) -> Result<MountNamespace> {
    // SAFETY: with NEWNS alone the table of file descriptors stays shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(|error| HostError::call("unshare the mount namespace", error))?;
    // Mounts from here on do not propagate to the machine; its unmounts propagate here.
    let root = Path::new("/");
    change(None, root, None, libc::MS_SLAVE | libc::MS_REC, "")?;
    for dir in writable {
        change(Some(dir), dir, None, libc::MS_BIND | libc::MS_REC, "")?;
    }
    let terminals = replace_devices()?;
    hide_sockets()?;
    for dir in hidden.iter().filter(|dir| dir.is_dir()) {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RDONLY;
        change(None, dir, Some("tmpfs"), flags, HIDDEN)?;
    }
    protect(hidden, writable)?;
    let namespace = Path::new("/proc/thread-self/ns/mnt");
    let namespace =
        File::open(namespace).map_err(|error| HostError::io("open", namespace, error))?;
    Ok(MountNamespace {
        namespace: namespace.into(),
        root: directory(root)?,
        terminals,
    })
}

/// Mounts a small `/dev` and returns its directory of terminals.
fn replace_devices() -> Result<OwnedFd> {
    let dev = Path::new("/dev");
    // Opened before they are covered.
    let sources: Vec<(&str, OwnedFd)> = DEVICES
        .into_iter()
        .filter_map(|name| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let source = open(dev.join(name), flags, Mode::empty()).ok()?;
            Some((name, source))
        })
        .collect();
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
    change(None, dev, Some("tmpfs"), flags, "mode=0755,size=64k")?;
    for (name, source) in &sources {
        let target = dev.join(name);
        File::create(&target).map_err(|error| HostError::io("create", &target, error))?;
        let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
        change(Some(&source), &target, None, libc::MS_BIND, "")?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        let link = dev.join(name);
        std::os::unix::fs::symlink(target, &link)
            .map_err(|error| HostError::io("create", &link, error))?;
    }
    let memory = dev.join("shm");
    fs::create_dir(&memory).map_err(|error| HostError::io("create", &memory, error))?;
    let data = "mode=1777,size=64m";
    change(None, &memory, Some("tmpfs"), flags | libc::MS_NODEV, data)?;
    let terminals = dev.join("pts");
    fs::create_dir(&terminals).map_err(|error| HostError::io("create", &terminals, error))?;
    let data = "newinstance,ptmxmode=0666,mode=0620";
    change(None, &terminals, Some("devpts"), flags, data)?;
    directory(&terminals)
}

/// Hides the sockets of system services: mounts empty file systems over `/run` and `/var/run`. If the file behind
/// `/etc/resolv.conf` is in one of them, it is copied there.
fn hide_sockets() -> Result<()> {
    let names = Path::new("/etc/resolv.conf");
    let saved = fs::canonicalize(names)
        .ok()
        .and_then(|real| Some((fs::read(&real).ok()?, real)));
    for dir in SOCKETS.map(Path::new) {
        if fs::canonicalize(dir).ok().as_deref() == Some(dir) {
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            change(None, dir, Some("tmpfs"), flags, "mode=0755,size=1m")?;
        }
    }
    let Some((content, real)) = saved.filter(|(_, real)| !real.exists()) else {
        return Ok(());
    };
    let write = || {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        let parent = real.parent().unwrap_or(Path::new("/"));
        // Regardless of this process's umask, every user may resolve names.
        for dir in parent.ancestors().collect::<Vec<_>>().into_iter().rev() {
            if !dir.exists() {
                fs::DirBuilder::new().mode(0o755).create(dir)?;
                fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
            }
        }
        fs::write(&real, &content)?;
        fs::set_permissions(&real, fs::Permissions::from_mode(0o644))
    };
    write().map_err(|error| HostError::io("write", &real, error))
}

/// Makes every mount read-only, except those in `writable` and those that `/dev` needs.
fn protect(hidden: &[PathBuf], writable: &[PathBuf]) -> Result<()> {
    let path = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read_to_string(path).map_err(|error| HostError::io("read", path, error))?;
    for line in text.lines() {
        let mut fields = line.split(' ').skip(4);
        let (Some(point), Some(options)) = (fields.next(), fields.next()) else {
            continue;
        };
        let point = PathBuf::from(unescape(point));
        let inside = |dirs: &[PathBuf]| dirs.iter().any(|dir| point.starts_with(dir));
        if ["/dev/shm", "/dev/pts"]
            .iter()
            .any(|dir| point.starts_with(dir))
            || inside(writable) && !inside(hidden)
        {
            continue;
        }
        let mut flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | flags_of(options);
        if !point.starts_with("/dev") {
            flags |= libc::MS_NODEV;
        }
        match change(None, &point, None, flags, "") {
            // Covered by another mount, and so unreachable inside the namespace.
            Err(error) if matches!(error.os_error(), Some(libc::EINVAL | libc::ENOENT)) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Returns the flags that a remount must repeat, from the mount's options in mountinfo.
fn flags_of(options: &str) -> libc::c_ulong {
    options.split(',').fold(0, |flags, option| {
        flags
            | match option {
                "nosuid" => libc::MS_NOSUID,
                "nodev" => libc::MS_NODEV,
                "noexec" => libc::MS_NOEXEC,
                "noatime" => libc::MS_NOATIME,
                "nodiratime" => libc::MS_NODIRATIME,
                "relatime" => libc::MS_RELATIME,
                "nosymfollow" => libc::MS_NOSYMFOLLOW,
                _ => 0,
            }
    })
}

fn directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|error| HostError::io("open", path, error.into()))
}

/// Calls mount(2). Without a source, the name of the file system is used.
#[allow(unsafe_code, reason = "rustix is built without mounts")]
fn change(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: libc::c_ulong,
    data: &str,
) -> Result<()> {
    let text = |bytes: &[u8]| {
        CString::new(bytes)
            .map_err(|_| HostError::io("mount", target, io::ErrorKind::InvalidInput.into()))
    };
    let source = text(source.map_or_else(
        || kind.unwrap_or("none").as_bytes(),
        |path| path.as_os_str().as_bytes(),
    ))?;
    let place = text(target.as_os_str().as_bytes())?;
    let kind = text(kind.unwrap_or("none").as_bytes())?;
    let data = text(data.as_bytes())?;
    // SAFETY: the pointers are to strings that end with 0 and outlive the call.
    let code = unsafe {
        libc::mount(
            source.as_ptr(),
            place.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast(),
        )
    };
    if code == -1 {
        return Err(HostError::io("mount", target, io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_directories_are_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let (inner, other) = (real.join("a/b"), real.join("ab"));
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir(&other).unwrap();
        let paths = [
            inner.clone(),
            real.join("none"),
            other.clone(),
            real.join("a"),
        ];
        assert_eq!(outermost(&paths), [real.join("a"), other]);
        assert_eq!(outermost(&[real.clone(), inner]), [real]);
    }

    #[test]
    fn flags_of_a_mount_are_repeated() {
        let flags = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_RELATIME;
        assert_eq!(flags_of("rw,nosuid,noexec,relatime"), flags);
        assert_eq!(flags_of("ro"), 0);
    }
}
