//! Notifications about files of certain names that are written, replaced or removed (inotify).

use super::inotify::Inotify;
use crate::error::Result;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use std::collections::HashMap;
use std::path::Path;

/// Watched names in directories. A file descriptor that becomes readable when something changed.
#[derive(Debug)]
pub struct Files {
    inotify: Inotify,
    /// Watched names in each directory; an empty list means all.
    dirs: HashMap<i32, Vec<String>>,
}

impl Files {
    /// Creates an instance without watches.
    ///
    /// # Errors
    /// When the kernel has no inotify or no more instances for this user.
    pub fn new() -> Result<Self> {
        Ok(Self {
            inotify: Inotify::new()?,
            dirs: HashMap::new(),
        })
    }

    /// Watches `dir` for files and directories of these `names`, or of any name if the list is empty, that
    /// are written, created and removed. Returns whether it exists. A second call for the same directory
    /// replaces the names.
    ///
    /// # Errors
    /// Any other failure, such as too many watches.
    pub fn add(&mut self, dir: &Path, names: &[&str]) -> Result<bool> {
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::ONLYDIR;
        let id = self.inotify.add(dir, flags)?;
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.dirs.extend(id.map(|id| (id, names)));
        Ok(id.is_some())
    }

    /// Returns whether something changed since the last call; does not wait. Removal of a watched directory
    /// is a change, and ends its watch.
    ///
    /// # Errors
    /// When the kernel's queue cannot be read.
    pub fn changed(&mut self) -> Result<bool> {
        let mut changed = false;
        let mut removed_ids = Vec::new();
        self.inotify.read(|event| {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changed = true;
                return;
            }
            let Some(names) = self.dirs.get(&event.wd()) else {
                return;
            };
            if flags.contains(ReadFlags::IGNORED) {
                removed_ids.push(event.wd());
                changed = true;
                return;
            }
            let name = event.file_name().map(|name| name.to_string_lossy());
            changed |=
                name.is_some_and(|name| names.is_empty() || names.iter().any(|it| *it == name));
        })?;
        for id in removed_ids {
            self.dirs.remove(&id);
        }
        Ok(changed)
    }
}

impl AsFd for Files {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl AsRawFd for Files {
    fn as_raw_fd(&self) -> RawFd {
        self.inotify.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn change_of_other_name_is_ignored() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("kubelet");
        let mut files = Files::new().unwrap();
        assert!(!files.add(&dir, &["state"]).unwrap(), "is not there yet");
        fs::create_dir(&dir).unwrap();
        assert!(files.add(&dir, &["state"]).unwrap());
        assert!(!files.changed().unwrap());
        fs::write(dir.join("other"), "1").unwrap();
        assert!(!files.changed().unwrap());
        // Like the kubelet writes its checkpoints: a temporary file, then a rename.
        fs::write(dir.join(".tmp"), "1").unwrap();
        assert!(!files.changed().unwrap());
        fs::rename(dir.join(".tmp"), dir.join("state")).unwrap();
        assert!(files.changed().unwrap() && !files.changed().unwrap());
        fs::write(dir.join("state"), "2").unwrap();
        assert!(files.changed().unwrap());
        fs::remove_file(dir.join("state")).unwrap();
        assert!(files.changed().unwrap());
    }

    #[test]
    fn watch_without_names_reports_any_change_and_removal() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("pods");
        fs::create_dir(&dir).unwrap();
        let mut files = Files::new().unwrap();
        assert!(files.add(&dir, &[]).unwrap());
        fs::create_dir(dir.join("uid")).unwrap();
        assert!(files.changed().unwrap());
        fs::remove_dir_all(&dir).unwrap();
        assert!(files.changed().unwrap());
        assert!(!files.changed().unwrap() && files.dirs.is_empty());
        assert!(!files.add(&dir, &[]).unwrap());
    }
}
