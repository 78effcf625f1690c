//! Dry runs: the values that would have been written, so that later decisions follow from earlier ones as if
//! the kernel had them.
//!
//! An intended value counts as the current one until the content of its file changes: then another program has
//! written the file, and a real run would have found that program's value. What the kernel would refuse is not
//! known, but for values that [`Target::validate`] refuses.

use super::{Attribute, CookieOperation, ResctrlFile, Target, TargetKind};
use crate::cgroup::{FileWrite, Resource};
use crate::error::{HostError, Result};
use crate::overlay::Overlay;
use crate::resctrl::ResctrlGroup;
use crate::root::{KernelWriter, Root};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The weight that a group has after it has left the idle policy, in shares.
const DEFAULT_SHARES: &str = "1024";

/// A writer that refuses every change as a read-only file system does, and reads cookies through another one.
#[derive(Debug)]
struct ReadOnlyWriter(Arc<dyn KernelWriter>);

impl ReadOnlyWriter {
    fn refusal() -> io::Error {
        io::Error::from_raw_os_error(libc::EROFS)
    }
}

impl KernelWriter for ReadOnlyWriter {
    fn write(&self, _: &Path, _: &str) -> io::Result<()> {
        Err(Self::refusal())
    }

    fn make_dir(&self, _: &Path) -> io::Result<()> {
        Err(Self::refusal())
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        Err(Self::refusal())
    }

    fn core_sched(&self, proc: &Path, pid: u32, cookie: CookieOperation) -> io::Result<u64> {
        match cookie {
            CookieOperation::Get => self.0.core_sched(proc, pid, cookie),
            _ => Err(Self::refusal()),
        }
    }
}

impl Root {
    /// Returns the machine for a dry run: reads are real, and each write is stored in memory instead. Reads of a
    /// [`Target`] return the stored value while its file keeps its content. Everything else that would change
    /// the machine fails with EROFS.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        self.with_overlay(Arc::new(ReadOnlyWriter(self.shared_writer())))
    }

    /// Returns whether changes are only stored.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.overlay().is_some()
    }

    /// Reads the file of `target`, or that which it would have after its group was created.
    fn intended_content(
        &self,
        overlay: &Overlay,
        target: &Target,
        path: &Path,
    ) -> Result<Option<String>> {
        let read = |path: &Path| self.read_short(path, |content| Ok(content.to_owned()));
        let Target::Resctrl { group, .. } = target else {
            return read(path);
        };
        let dir = group.dir(self);
        if !overlay.has_dir(&dir) {
            Ok(None)
        } else if overlay.is_new_dir(&dir) {
            // A new group has no limits, as the root group has none unless another program limits it.
            read(&ResctrlGroup::root().dir(self).join("schemata"))
        } else {
            read(path)
        }
    }

    /// Reads the intended value of `target`, or the real one.
    pub(super) fn read_intended(
        &self,
        overlay: &Overlay,
        target: &Target,
    ) -> Result<Option<String>> {
        let path = target.path(self)?;
        match target {
            Target::Resctrl {
                file: ResctrlFile::Directory,
                ..
            } => {
                let exists = overlay.has_dir(&path);
                return Ok(Some(if exists { "1" } else { "0" }.to_owned()));
            }
            Target::Process {
                pid,
                attribute: Attribute::CoreSchedCookie,
            } => {
                return match self.intended_cookie(overlay, *pid) {
                    Ok(cookie) => Ok(Some(cookie.to_string())),
                    Err(error) if error.is_gone() => Ok(None),
                    Err(error) => Err(error),
                };
            }
            _ => {}
        }
        let Some(content) = self.intended_content(overlay, target, &path)? else {
            return Ok(None);
        };
        if let Some(value) = overlay.value(&target.to_string(), &content) {
            return Ok(Some(value));
        }
        let decoded = target.decode(self, &content);
        decoded
            .map(Some)
            .map_err(|malformed| HostError::malformed(&path, malformed))
    }

    /// Returns true if `target` would hold `value` after the writes recorded in `overlay`; `None` if it does
    /// not exist.
    pub(super) fn intended_holds(
        &self,
        overlay: &Overlay,
        target: &Target,
        value: &str,
    ) -> Result<Option<bool>> {
        if let Some(pid) = target.core_sched_pid() {
            return match self.intended_cookie(overlay, pid) {
                Ok(now) => Ok(Some(self.intended_cookie_holds(overlay, now, value)?)),
                Err(error) if error.is_gone() => Ok(None),
                Err(error) => Err(error),
            };
        }
        if matches!(target.kind(), TargetKind::Resctrl(ResctrlFile::Directory)) {
            let now = self.read_intended(overlay, target)?;
            return Ok(now.map(|now| now == value));
        }
        let content = self.intended_content(overlay, target, &target.path(self)?)?;
        Ok(content.map(|content| self.content_holds(overlay, target, &content, value)))
    }

    fn content_holds(
        &self,
        overlay: &Overlay,
        target: &Target,
        content: &str,
        value: &str,
    ) -> bool {
        match overlay.value(&target.to_string(), content) {
            Some(intended) => {
                let encoded = |value: &str| target.encode(self, value, content);
                intended == value || encoded(&intended) == encoded(value)
            }
            None => target.holds(self, content, value),
        }
    }

    /// Stores `value`, which is valid, as the intended value of `target`.
    pub(super) fn put_intended(
        &self,
        overlay: &Overlay,
        target: &Target,
        value: &str,
    ) -> Result<FileWrite> {
        let path = target.path(self)?;
        overlay.sweep(&self.dirs().proc);
        let write = |path: PathBuf, old: String, changed: bool| FileWrite {
            path,
            old,
            new: value.to_owned(),
            changed,
        };
        let gone = |code: i32| {
            let error = io::Error::from_raw_os_error(code);
            HostError::io("write", &path, error)
        };
        match target {
            Target::Resctrl {
                file: ResctrlFile::Directory,
                ..
            } => {
                let exists = overlay.has_dir(&path);
                let changed = exists != (value == "1");
                if changed {
                    overlay.set_dir(&path, value == "1");
                }
                let old = if exists { "1" } else { "0" }.to_owned();
                return Ok(write(path, old, changed));
            }
            Target::Resctrl {
                group,
                file: ResctrlFile::Tasks,
            } => {
                let dir = group.dir(self);
                let thread = value.parse().ok();
                let thread: Option<u32> = thread.filter(|_| self.proc(value).is_dir());
                let Some(thread) = thread.filter(|_| overlay.has_dir(&dir)) else {
                    return Err(gone(libc::ESRCH));
                };
                let changed = overlay.move_task(thread, &dir);
                return Ok(write(path, String::new(), changed));
            }
            Target::Cgroup {
                resource: Resource::MemoryReclaim,
                ..
            } => {
                return match path.exists() {
                    true => Ok(write(path, String::new(), true)),
                    false => Err(gone(libc::ENOENT)),
                };
            }
            _ => {}
        }
        if let (Some(pid), Some(wanted)) = (target.core_sched_pid(), CookieOperation::parse(value))
        {
            return self.put_intended_cookie(overlay, pid, wanted, path);
        }
        let content = self.intended_content(overlay, target, &path)?;
        let content = content.ok_or_else(|| gone(libc::ENOENT))?;
        if let Target::SchedFeature(feature) = target
            && feature.state(&content).is_none()
        {
            return Err(HostError::Unsupported {
                resource: target.kind().name(),
                version: "this kernel",
            });
        }
        let old = overlay
            .value(&target.to_string(), &content)
            .unwrap_or_else(|| {
                let decoded = target.decode(self, &content);
                decoded.unwrap_or_else(|_| content.trim().to_owned())
            });
        let changed = !self.content_holds(overlay, target, &content, value);
        if changed {
            self.store_intended(overlay, target, value, (&path, content));
        }
        Ok(write(path, old, changed))
    }

    /// Stores a change of a file with its content, and what the kernel changes with it.
    fn store_intended(
        &self,
        overlay: &Overlay,
        target: &Target,
        value: &str,
        (path, content): (&Path, String),
    ) {
        overlay.set_value(target.to_string(), path, value, content);
        if let Target::Cgroup {
            group,
            resource: Resource::CpuIdle,
        } = target
            && value == "0"
        {
            let weight = Target::cgroup(group, Resource::CpuShares);
            if let Ok(path) = weight.path(self)
                && let Ok(Some(content)) = self.read(&path)
            {
                overlay.set_value(weight.to_string(), &path, DEFAULT_SHARES, content);
            }
        }
    }

    /// Returns the cookie that the process would have.
    fn intended_cookie(&self, overlay: &Overlay, pid: u32) -> Result<u64> {
        let real = self.cookie(pid, CookieOperation::Get)?;
        Ok(overlay.cookie(pid, real))
    }

    fn intended_cookie_holds(&self, overlay: &Overlay, now: u64, value: &str) -> Result<bool> {
        Ok(match CookieOperation::parse(value) {
            Some(CookieOperation::Clear) => now == 0,
            Some(CookieOperation::From(from)) => {
                now != 0 && now == self.intended_cookie(overlay, from)?
            }
            Some(CookieOperation::Get) => true,
            Some(CookieOperation::New) | None => false,
        })
    }

    fn put_intended_cookie(
        &self,
        overlay: &Overlay,
        pid: u32,
        wanted: CookieOperation,
        path: PathBuf,
    ) -> Result<FileWrite> {
        let real = self.cookie(pid, CookieOperation::Get)?;
        let old = self.intended_cookie(overlay, pid)?;
        let new = match wanted {
            CookieOperation::Get => old,
            CookieOperation::Clear => 0,
            CookieOperation::From(from) => self.intended_cookie(overlay, from)?,
            CookieOperation::New => overlay.new_cookie(),
        };
        let changed = new != old || wanted == CookieOperation::New;
        if changed {
            overlay.set_cookie(pid, real, new);
        }
        Ok(FileWrite {
            path,
            old: old.to_string(),
            new: new.to_string(),
            changed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{ResctrlHardware, Tree};
    use crate::resctrl::{self, Schema};

    /// Returns whether a write through `root` would have changed the file, and the value before.
    fn put(root: &Root, target: &Target, value: &str) -> (bool, String) {
        let written = root.write_target(target, value).unwrap();
        (written.changed, written.old)
    }

    #[test]
    fn intended_value_is_current_until_its_file_changes() {
        for tree in [Tree::hybrid("0-3").unwrap(), Tree::v2("0-3").unwrap()] {
            let group = tree.group("kubepods/a").unwrap();
            // Those of the group itself.
            drop(tree.writes());
            let quota = Target::cgroup(&group, Resource::CfsQuota);
            let root = tree.root().dry_run();
            assert_eq!(put(&root, &quota, "50000"), (true, "-1".to_owned()));
            assert_eq!(put(&root, &quota, "50000"), (false, "50000".to_owned()));
            assert_eq!(root.cgroup(&group).cfs_quota().unwrap(), Some(50_000));
            assert_eq!(root.target_holds(&quota, "50000").unwrap(), Some(true));
            assert_eq!(root.target_holds(&quota, "-1").unwrap(), Some(false));
            assert_eq!(tree.root().cgroup(&group).cfs_quota().unwrap(), Some(-1));
            assert_eq!(tree.writes(), []);
            // Another program writes the file.
            tree.root().write_target(&quota, "70000").unwrap();
            assert_eq!(root.read_target(&quota).unwrap().as_deref(), Some("70000"));
            assert_eq!(put(&root, &quota, "50000"), (true, "70000".to_owned()));
            let removed = Target::cgroup(&"kubepods/b".parse().unwrap(), Resource::CfsQuota);
            assert!(root.write_target(&removed, "1000").unwrap_err().is_gone());
            assert!(root.write_target(&quota, "much").is_err());
        }
    }

    #[test]
    fn leaving_idle_resets_the_intended_weight() {
        let tree = Tree::v2("0-3").unwrap();
        let group = tree.group("kubepods/a").unwrap();
        let root = tree.root().dry_run();
        let shares = Target::cgroup(&group, Resource::CpuShares);
        let idle = Target::cgroup(&group, Resource::CpuIdle);
        put(&root, &shares, "2");
        put(&root, &idle, "1");
        put(&root, &idle, "0");
        assert_eq!(put(&root, &shares, "2"), (true, "1024".to_owned()));
    }

    #[test]
    fn intended_resctrl_group_takes_limits_and_threads() {
        let tree = Tree::hybrid("0-3").unwrap();
        tree.mount_resctrl(ResctrlHardware::intel()).unwrap();
        tree.put("proc/71/stat", "").unwrap();
        let root = tree.root().dry_run();
        let group: ResctrlGroup = "BE".parse().unwrap();
        let target = |file| Target::Resctrl {
            group: group.clone(),
            file,
        };
        let limit = target(ResctrlFile::Schemata(Schema::L3));
        assert!(root.write_target(&limit, "0=f;1=f").unwrap_err().is_gone());
        let directory = target(ResctrlFile::Directory);
        assert_eq!(put(&root, &directory, "1"), (true, "0".to_owned()));
        assert_eq!(put(&root, &directory, "1"), (false, "1".to_owned()));
        assert!(put(&root, &limit, "0=f;1=f").0);
        assert!(!put(&root, &limit, "0=f;1=f").0);
        let tasks = target(ResctrlFile::Tasks);
        assert!(put(&root, &tasks, "71").0);
        assert!(!put(&root, &tasks, "71").0);
        assert!(root.write_target(&tasks, "72").unwrap_err().is_gone());
        assert_eq!(
            resctrl::groups(&root).unwrap(),
            std::slice::from_ref(&group)
        );
        assert_eq!(resctrl::tasks(&root, &group).unwrap(), Some(vec![71]));
        assert_eq!(resctrl::groups(tree.root()).unwrap(), []);
        assert!(put(&root, &directory, "0").0);
        assert_eq!(resctrl::tasks(&root, &group).unwrap(), None);
    }

    #[test]
    fn cookies_are_shared_without_the_kernel() {
        let tree = Tree::hybrid("0-3").unwrap();
        for pid in [7, 8] {
            tree.put(&format!("proc/{pid}/core_sched_cookie"), "0\n")
                .unwrap();
        }
        let root = tree.root().dry_run();
        let cookie = |pid| Target::Process {
            pid,
            attribute: Attribute::CoreSchedCookie,
        };
        assert!(put(&root, &cookie(7), "new").0);
        assert!(put(&root, &cookie(8), "from 7").0);
        assert!(!put(&root, &cookie(8), "from 7").0);
        let read = |root: &Root, pid| root.read_target(&cookie(pid)).unwrap();
        assert_eq!(read(&root, 7), read(&root, 8));
        assert_eq!(read(tree.root(), 8).as_deref(), Some("0"));
        assert!(put(&root, &cookie(8), "0").0);
        assert_eq!(read(&root, 8).as_deref(), Some("0"));
    }

    #[test]
    fn other_changes_are_refused() {
        let tree = Tree::v2("0-3").unwrap();
        let group = tree.group("kubepods/a").unwrap();
        let root = tree.root().dry_run();
        let created = root
            .cgroup(&"kubepods/new".parse().unwrap())
            .create(&crate::Controller::ALL);
        assert!(created.unwrap_err().is_denied());
        let file = root.cgroup(&group).file(Resource::CfsQuota).unwrap();
        assert!(root.write(&file, "max 100000").unwrap_err().is_denied());
    }
}
