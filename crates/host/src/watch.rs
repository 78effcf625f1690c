//! Notifications about directories created and removed below watched ones, and about changes of files
//! (inotify).

mod files;
mod inotify;

pub use files::Files;

use crate::error::Result;
use inotify::Inotify;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A change below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A directory was created.
    Created {
        /// The watched directory.
        dir: PathBuf,
        /// The new one's name.
        name: String,
    },
    /// A directory was removed.
    Removed {
        /// The watched directory.
        dir: PathBuf,
        /// The old one's name.
        name: String,
    },
    /// A watched directory was removed, and its watch with it.
    WatchEnded(PathBuf),
    /// Events were lost because the kernel's queue was full: list all directories again.
    Overflow,
}

/// Watched directories. A file descriptor that becomes readable when something changed.
#[derive(Debug)]
pub struct Watch {
    inotify: Inotify,
    dirs: HashMap<i32, PathBuf>,
}

impl Watch {
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

    /// Watches `dir` for directories that are created and removed. Returns whether it exists. A second call
    /// for the same directory has no effect.
    ///
    /// # Errors
    /// Any other failure, such as too many watches.
    pub fn add(&mut self, dir: &Path) -> Result<bool> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        let id = self.inotify.add(dir, flags)?;
        self.dirs.extend(id.map(|id| (id, dir.to_owned())));
        Ok(id.is_some())
    }

    /// Returns the directories under watch, in no order.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.dirs.values().map(PathBuf::as_path)
    }

    /// Returns the changes since the last call, in order; does not wait.
    ///
    /// # Errors
    /// When the kernel's queue cannot be read.
    pub fn changes(&mut self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut removed_ids = Vec::new();
        self.inotify.read(|event| {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(Change::Overflow);
                return;
            }
            let Some(dir) = self.dirs.get(&event.wd()) else {
                return;
            };
            if flags.contains(ReadFlags::IGNORED) {
                removed_ids.push(event.wd());
                changes.push(Change::WatchEnded(dir.clone()));
            }
            let Some(name) = event
                .file_name()
                .filter(|_| flags.contains(ReadFlags::ISDIR))
            else {
                return;
            };
            let (dir, name) = (dir.clone(), name.to_string_lossy().into_owned());
            if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                changes.push(Change::Created { dir, name });
            } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                // Cgroupfs does not end the watch of a removed directory: it would stay, and hold memory, for
                // the life of this process.
                let path = dir.join(&name);
                let watched = self.dirs.iter().find(|(_, known)| **known == path);
                if let Some(id) = watched.map(|(id, _)| *id) {
                    self.inotify.remove(id);
                    self.dirs.remove(&id);
                    changes.push(Change::WatchEnded(path));
                }
                changes.push(Change::Removed { dir, name });
            }
        })?;
        for id in removed_ids {
            self.dirs.remove(&id);
        }
        Ok(changes)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.inotify.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Controller;
    use crate::real_group::RealGroup;
    use std::fs;

    #[test]
    fn directory_changes_are_reported_in_order() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("kubepods");
        let mut watch = Watch::new().unwrap();
        assert!(!watch.add(&dir).unwrap(), "is not there yet");
        fs::create_dir(&dir).unwrap();
        assert!(watch.add(&dir).unwrap() && watch.add(&dir).unwrap());
        assert_eq!(watch.changes().unwrap(), []);
        fs::create_dir(dir.join("pod1")).unwrap();
        fs::write(dir.join("cgroup.procs"), "").unwrap();
        fs::create_dir(dir.join("pod2")).unwrap();
        fs::remove_dir(dir.join("pod1")).unwrap();
        let created = |name: &str| Change::Created {
            dir: dir.clone(),
            name: name.to_owned(),
        };
        let removed = Change::Removed {
            dir: dir.clone(),
            name: "pod1".to_owned(),
        };
        assert_eq!(
            watch.changes().unwrap(),
            [created("pod1"), created("pod2"), removed]
        );
        fs::remove_dir_all(&dir).unwrap();
        let last = watch.changes().unwrap();
        assert_eq!(
            last.last(),
            Some(&Change::WatchEnded(dir.clone())),
            "{last:?}"
        );
        assert_eq!(watch.dirs().count(), 0);
        assert!(!watch.add(&dir).unwrap());
    }

    #[test]
    fn a_removed_group_is_not_watched_any_more() {
        let controllers = [Controller::Cpu];
        let Some(group) = RealGroup::new("watch", &controllers).unwrap() else {
            return;
        };
        let pod = group.0.root().cgroup(&group.0.path().join("pod1").unwrap());
        let dirs = [&group.0, &pod].map(|group| group.dir(Controller::Cpu).unwrap());
        let mut watch = Watch::new().unwrap();
        assert!(watch.add(&dirs[0]).unwrap());
        for _ in 0..3 {
            pod.create(&controllers).unwrap();
            assert!(watch.add(&dirs[1]).unwrap());
            pod.remove().unwrap();
            let changes = watch.changes().unwrap();
            assert!(
                changes.contains(&Change::WatchEnded(dirs[1].clone())),
                "{changes:?}"
            );
            assert_eq!(watch.dirs().collect::<Vec<_>>(), [dirs[0].as_path()]);
        }
        assert_eq!(watches(&watch), 1, "the kernel keeps no other");
    }

    /// Returns the number of the kernel's watches behind a descriptor.
    fn watches(watch: &Watch) -> usize {
        let info = format!("/proc/self/fdinfo/{}", watch.as_raw_fd());
        let info = fs::read_to_string(info).unwrap();
        info.lines()
            .filter(|line| line.starts_with("inotify "))
            .count()
    }

    #[test]
    fn queue_overflow_is_reported_as_lost() {
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        let temp = tempfile::tempdir().unwrap();
        let mut watch = Watch::new().unwrap();
        assert!(watch.add(temp.path()).unwrap());
        let dir = temp.path().join("d");
        for _ in 0..=limit / 2 {
            fs::create_dir(&dir).unwrap();
            fs::remove_dir(&dir).unwrap();
        }
        assert_eq!(watch.changes().unwrap().last(), Some(&Change::Overflow));
    }
}
