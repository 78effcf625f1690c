//! The writer of the fake: directories, processes, and the dispatch of writes to the rules.

use super::resctrl::{FakeResctrl, ResctrlHardware};
use super::{Attempt, files, knobs, processes, rules};
use koord_host::CpuSet;
use koord_host::core_sched::CookieOperation;
use koord_host::root::KernelWriter;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

#[derive(Debug, Default)]
struct State {
    attempts: Vec<Attempt>,
    refusals: Vec<(String, i32)>,
    /// Number of core-scheduling cookies created.
    cookies: u64,
}

/// The fake kernel. All state of the groups is in the files themselves.
#[derive(Debug)]
pub(super) struct FakeKernel {
    dir: PathBuf,
    cgroup: PathBuf,
    resctrl: OnceLock<FakeResctrl>,
    trees: Vec<(String, PathBuf)>,
    online: CpuSet,
    state: Mutex<State>,
}

/// A directory and its tree.
pub(super) struct FakeDir<'k> {
    pub(super) tree: &'k str,
    pub(super) mount: &'k Path,
    pub(super) dir: &'k Path,
    pub(super) online: &'k CpuSet,
}

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl FakeDir<'_> {
    pub(super) fn is_root(&self) -> bool {
        self.dir == self.mount
    }

    pub(super) fn read(&self, name: &str) -> String {
        read(self.dir, name)
    }

    pub(super) fn set(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.dir.join(name), format!("{value}\n"))
    }
}

pub(super) fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns the directories in `dir`, sorted; empty if it cannot be read.
pub(super) fn child_dirs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    dirs.sort();
    dirs
}

impl FakeKernel {
    /// Creates the root groups of `trees` (names and mount points) on a machine with the CPUs `online`.
    pub(super) fn new(
        dir: PathBuf,
        cgroup: PathBuf,
        trees: Vec<(String, PathBuf)>,
        online: CpuSet,
    ) -> io::Result<Self> {
        let list = format!("{online}\n");
        for (tree, mount) in &trees {
            fs::create_dir_all(mount)?;
            for (name, content) in files::group_files(tree, true, &list) {
                fs::write(mount.join(name), content)?;
            }
        }
        Ok(Self {
            dir,
            cgroup,
            resctrl: OnceLock::new(),
            trees,
            online,
            state: Mutex::default(),
        })
    }

    pub(super) fn mount_resctrl(&self, dir: &Path, hardware: ResctrlHardware) -> io::Result<()> {
        let place = dir.join("sys/fs/resctrl");
        fs::create_dir_all(&place)?;
        let mounted = FakeResctrl::new(place, dir.join("proc"), hardware)?;
        self.resctrl.set(mounted).map_err(|_| errno(libc::EBUSY))
    }

    fn resctrl(&self, path: &Path) -> Option<&FakeResctrl> {
        self.resctrl.get().filter(|mounted| mounted.holds(path))
    }

    pub(super) fn take_attempts(&self) -> Vec<Attempt> {
        std::mem::take(&mut self.lock().attempts)
    }

    pub(super) fn refuse(&self, suffix: &str, errno: Option<i32>) {
        let mut state = self.lock();
        state.refusals.retain(|(refused, _)| refused != suffix);
        state
            .refusals
            .extend(errno.map(|errno| (suffix.to_owned(), errno)));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is two lists, which a panic elsewhere does not leave half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place<'k>(&'k self, dir: &'k Path) -> Option<FakeDir<'k>> {
        let (tree, mount) = self
            .trees
            .iter()
            .find(|(_, mount)| dir.starts_with(mount))?;
        Some(FakeDir {
            tree,
            mount,
            dir,
            online: &self.online,
        })
    }

    /// Applies a write to a file with the checks and effects that the kernel has for it; `ENOENT` if it does not exist.
    fn apply(&self, path: &Path, value: &str) -> io::Result<()> {
        if !path.is_file() {
            return Err(errno(libc::ENOENT));
        }
        if let Some(resctrl) = self.resctrl(path) {
            return resctrl.write(path, value);
        }
        let value = value.trim();
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
        else {
            return Err(errno(libc::ENOENT));
        };
        let Some(place) = self.place(dir) else {
            return knobs::write(path, value);
        };
        match name {
            "cgroup.procs" | "tasks" | "cgroup.threads" => processes::enter(&place, value),
            "cgroup.subtree_control" => processes::delegate(&place, value),
            "cgroup.kill" => {
                if rules::number::<i32>(value)? != 1 {
                    return Err(errno(libc::ERANGE));
                }
                processes::kill(dir)
            }
            _ => rules::write(&place, name, value),
        }
    }
}

impl KernelWriter for FakeKernel {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let mut state = self.lock();
        let file = path
            .strip_prefix(&self.cgroup)
            .or_else(|_| path.strip_prefix(&self.dir))
            .unwrap_or(path)
            .to_string_lossy()
            .into_owned();
        let refused = state
            .refusals
            .iter()
            .find(|(suffix, _)| file.ends_with(suffix.as_str()));
        let result = match refused {
            Some((_, code)) => Err(errno(*code)),
            None => self.apply(path, value),
        };
        let refused = result
            .as_ref()
            .err()
            .map(|error| error.raw_os_error().unwrap_or(libc::EIO));
        state.attempts.push(Attempt {
            file,
            value: value.to_owned(),
            refused,
        });
        result
    }

    /// Applies `cookie` to a process. A process with a file `core_sched_cookie` in procfs runs on a kernel
    /// with core scheduling; the file holds its cookie.
    fn core_sched(&self, proc: &Path, pid: u32, cookie: CookieOperation) -> io::Result<u64> {
        let mut state = self.lock();
        let file = |pid: u32| proc.join(format!("{pid}/core_sched_cookie"));
        let read = |pid: u32| match fs::read_to_string(file(pid)) {
            Ok(text) => text.trim().parse().map_err(io::Error::other),
            Err(_) if proc.join(pid.to_string()).is_dir() => Err(errno(libc::EINVAL)),
            Err(_) => Err(errno(libc::ESRCH)),
        };
        let old: u64 = read(pid)?;
        let new = match cookie {
            CookieOperation::Get => return Ok(old),
            CookieOperation::New => {
                state.cookies += 1;
                state.cookies
            }
            CookieOperation::From(from) => read(from)?,
            CookieOperation::Clear => 0,
        };
        fs::write(file(pid), format!("{new}\n"))?;
        Ok(new)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let _state = self.lock();
        if let Some(resctrl) = self.resctrl(path) {
            return resctrl.make_dir(path);
        }
        let Some(parent) = path.parent().filter(|parent| parent.is_dir()) else {
            return Err(errno(libc::ENOENT));
        };
        let Some(place) = self.place(path) else {
            return Err(errno(libc::EPERM));
        };
        fs::create_dir(path)?;
        let cpus = match place.tree {
            "cpuset" => read(parent, "cpuset.effective_cpus"),
            _ => read(parent, "cpuset.cpus.effective"),
        };
        // A v1 group starts with no configured and no effective CPUs.
        let cpus = if place.tree == "cpuset" {
            String::from("\n")
        } else {
            format!("{cpus}\n")
        };
        for (name, content) in files::group_files(place.tree, false, &cpus) {
            fs::write(path.join(name), content)?;
        }
        if place.tree == "v2" {
            let enabled = read(parent, "cgroup.subtree_control");
            fs::write(path.join("cgroup.controllers"), format!("{enabled}\n"))?;
            for controller in enabled.split_ascii_whitespace() {
                for (name, content) in files::v2_controller_files(controller, &cpus) {
                    fs::write(path.join(name), content)?;
                }
            }
        }
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let _state = self.lock();
        if let Some(resctrl) = self.resctrl(path) {
            return resctrl.remove_dir(path);
        }
        if !path.is_dir() {
            return Err(errno(libc::ENOENT));
        }
        let Some(place) = self.place(path) else {
            return Err(errno(libc::EPERM));
        };
        if place.is_root() || !read(path, "cgroup.procs").is_empty() || !child_dirs(path).is_empty()
        {
            return Err(errno(libc::EBUSY));
        }
        files::clear(path)?;
        fs::remove_dir(path)
    }
}
