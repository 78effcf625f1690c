//! Locations of the kernel's pseudo-filesystems, and the mounted cgroup hierarchies.

pub use crate::controller::Controller;

use crate::core_sched::{self, CookieOperation};
use crate::error::{HostError, Malformed, Result, is_gone};
use crate::mounts::{Mounts, distinct_trees, mounts_by_layout, parse_mountinfo, relevant_mounts};
use crate::overlay::Overlay;
use crate::reader;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Directories of the kernel's pseudo-filesystems. In a container they are often bind mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// Mount point of procfs, usually `/proc`.
    pub proc: PathBuf,
    /// Mount point of sysfs, usually `/sys`.
    pub sys: PathBuf,
    /// The directory `fs` of sysfs, with resctrl: in a container often a mount of its own.
    pub sys_fs: PathBuf,
    /// The directory that holds (v1, hybrid) or is (v2) the cgroup tree, usually `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
}

impl Dirs {
    /// Returns the usual directories below `prefix` (`/` for the running machine).
    #[must_use]
    pub fn below(prefix: &Path) -> Self {
        Self {
            proc: prefix.join("proc"),
            sys: prefix.join("sys"),
            sys_fs: prefix.join("sys/fs"),
            cgroup: prefix.join("sys/fs/cgroup"),
        }
    }
}

/// The cgroup version that carries the resource controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// A hierarchy per controller; a unified tree may be mounted, too (hybrid).
    V1,
    /// A unified tree with all controllers.
    V2,
}

impl Version {
    /// Returns `cgroup v1` or `cgroup v2`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Writer of all changes to the kernel's files, so that a fake can reject what the kernel rejects and a dry
/// run can record instead of write.
pub trait KernelWriter: Send + Sync + fmt::Debug {
    /// Writes `value` into the existing file `path` in one call.
    ///
    /// # Errors
    /// The kernel's error.
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;
    /// Creates the cgroup directory `path`, whose parent exists.
    ///
    /// # Errors
    /// The kernel's error.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes the cgroup directory `path`, which must have no processes and no children.
    ///
    /// # Errors
    /// The kernel's error.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Reads or changes the core-scheduling cookie of the process `pid`, whose directory in procfs is below
    /// `proc`; returns its cookie afterwards.
    ///
    /// # Errors
    /// The kernel's error.
    fn core_sched(&self, proc: &Path, pid: u32, cookie: CookieOperation) -> io::Result<u64> {
        let _ = proc;
        core_sched::call(pid, cookie)
    }
}

/// The writer for a real kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealWriter;

impl KernelWriter for RealWriter {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        // No create, no truncate: a missing file must stay missing and be reported.
        let mut file = OpenOptions::new().write(true).open(path)?;
        // An empty write would not reach the kernel.
        let value = if value.is_empty() { "\n" } else { value };
        file.write_all(value.as_bytes())
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }
}

/// A handle to one machine's kernel. Clones are cheap and share the content.
#[derive(Clone)]
pub struct Root(Arc<RootData>);

struct RootData {
    dirs: Dirs,
    version: Version,
    v1: Vec<(Controller, PathBuf)>,
    unified: Option<PathBuf>,
    /// Mounted trees, each once, by their real path, with the v1 controllers that they carry.
    trees: Vec<(PathBuf, Vec<Controller>)>,
    writer: Arc<dyn KernelWriter>,
    /// True if the runtime was seen to use the quadratic formula of weights.
    quadratic_weights: AtomicBool,
    /// The values of a dry run; `None` if changes are made.
    overlay: Option<Overlay>,
}

impl Root {
    /// Opens the running machine.
    ///
    /// # Errors
    /// When `/proc/self/mountinfo` is there but cannot be read or parsed.
    pub fn system() -> Result<Self> {
        Self::below(Path::new("/"))
    }

    /// Opens a machine whose `/proc` and `/sys` are below `prefix`. Mount points in
    /// `<prefix>/proc/self/mountinfo` are relative to the prefix.
    ///
    /// # Errors
    /// As [`Root::system`].
    pub fn below(prefix: &Path) -> Result<Self> {
        Self::build(Dirs::below(prefix), prefix, Arc::new(RealWriter))
    }

    /// Opens a machine with explicit directories of the pseudo-filesystems.
    ///
    /// # Errors
    /// As [`Root::system`].
    pub fn with_dirs(dirs: Dirs) -> Result<Self> {
        Self::build(dirs, Path::new("/"), Arc::new(RealWriter))
    }

    /// Opens a machine like [`Root::below`], with every change going through `writer`.
    ///
    /// # Errors
    /// As [`Root::system`].
    pub fn with_writer(prefix: &Path, writer: Arc<dyn KernelWriter>) -> Result<Self> {
        Self::build(Dirs::below(prefix), prefix, writer)
    }

    /// Detects the cgroup hierarchies of a machine.
    fn build(dirs: Dirs, prefix: &Path, writer: Arc<dyn KernelWriter>) -> Result<Self> {
        let mountinfo = dirs.proc.join("self/mountinfo");
        let mut mounts = match fs::read_to_string(&mountinfo) {
            Ok(text) => {
                let all = parse_mountinfo(&text)
                    .map_err(|malformed| HostError::malformed(&mountinfo, malformed))?;
                relevant_mounts(all, prefix, &dirs.cgroup)
            }
            Err(error) if is_gone(&error) => Mounts::default(),
            Err(error) => return Err(HostError::io("read", &mountinfo, error)),
        };
        if mounts.v1.is_empty() && mounts.unified.is_none() {
            // A bind mount or a copy of another machine's tree: the layout decides.
            mounts = mounts_by_layout(&dirs.cgroup);
        }
        let version = if mounts.v1.is_empty() && mounts.unified.is_some() {
            Version::V2
        } else {
            Version::V1
        };
        let Mounts { v1, unified } = mounts;
        let trees = distinct_trees(&v1, unified.as_deref());
        Ok(Self(Arc::new(RootData {
            dirs,
            version,
            v1,
            unified,
            trees,
            writer,
            quadratic_weights: AtomicBool::new(false),
            overlay: None,
        })))
    }

    /// Returns this machine with `writer` and an empty overlay of intended values.
    pub(crate) fn with_overlay(&self, writer: Arc<dyn KernelWriter>) -> Self {
        let RootData {
            dirs,
            version,
            v1,
            unified,
            trees,
            quadratic_weights,
            ..
        } = &*self.0;
        Self(Arc::new(RootData {
            dirs: dirs.clone(),
            version: *version,
            v1: v1.clone(),
            unified: unified.clone(),
            trees: trees.clone(),
            writer,
            quadratic_weights: AtomicBool::new(quadratic_weights.load(Ordering::Relaxed)),
            overlay: Some(Overlay::default()),
        }))
    }

    /// Returns the values of a dry run; `None` if changes are made.
    pub(crate) fn overlay(&self) -> Option<&Overlay> {
        self.0.overlay.as_ref()
    }

    pub(crate) fn shared_writer(&self) -> Arc<dyn KernelWriter> {
        self.0.writer.clone()
    }

    /// Returns the flag that is set once the runtime was seen to use the quadratic formula of weights.
    pub(crate) fn quadratic_weights(&self) -> &AtomicBool {
        &self.0.quadratic_weights
    }

    /// Returns the directories this root was made with.
    #[must_use]
    pub fn dirs(&self) -> &Dirs {
        &self.0.dirs
    }

    /// Returns `<proc>/relative`.
    #[must_use]
    pub fn proc(&self, relative: &str) -> PathBuf {
        self.0.dirs.proc.join(relative)
    }

    /// Returns `<sys>/relative`.
    #[must_use]
    pub fn sys(&self, relative: &str) -> PathBuf {
        match relative.strip_prefix("fs/") {
            Some(below) => self.0.dirs.sys_fs.join(below),
            None => self.0.dirs.sys.join(relative),
        }
    }

    /// Returns the version that carries the controllers. Hybrid set-ups are [`Version::V1`].
    #[must_use]
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Returns the mount point of a v1 hierarchy.
    #[must_use]
    pub fn v1_mount(&self, controller: Controller) -> Option<&Path> {
        self.0
            .v1
            .iter()
            .find(|(known, _)| *known == controller)
            .map(|(_, path)| path.as_path())
    }

    /// Returns the v1 controllers that are mounted.
    pub fn v1_controllers(&self) -> impl Iterator<Item = Controller> + '_ {
        self.0.v1.iter().map(|(controller, _)| *controller)
    }

    /// Returns the mount point of the unified tree: the only tree on v2; on a hybrid set-up, the one in
    /// addition to the v1 hierarchies.
    #[must_use]
    pub fn unified_mount(&self) -> Option<&Path> {
        self.0.unified.as_deref()
    }

    /// Returns whether v1 hierarchies and the unified tree are both mounted.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.0.version == Version::V1 && self.0.unified.is_some()
    }

    /// Returns whether any cgroup tree was found.
    #[must_use]
    pub fn has_cgroups(&self) -> bool {
        self.0.unified.is_some() || !self.0.v1.is_empty()
    }

    /// Returns the directory of `controller`'s files in the running version: its own v1 hierarchy, or the
    /// unified tree on v2.
    #[must_use]
    pub fn mount_of(&self, controller: Controller) -> Option<&Path> {
        match self.0.version {
            Version::V1 => self.v1_mount(controller),
            Version::V2 => self.unified_mount(),
        }
    }

    /// Returns every distinct mounted tree that carries one of `controllers`, and the unified tree.
    pub fn trees<'a>(&'a self, controllers: &'a [Controller]) -> impl Iterator<Item = &'a Path> {
        self.0
            .trees
            .iter()
            .filter(|(_, carried)| {
                carried.is_empty()
                    || carried
                        .iter()
                        .any(|controller| controllers.contains(controller))
            })
            .map(|(path, _)| path.as_path())
    }

    /// Reads a whole small file; `None` when it, its group or its process is gone.
    ///
    /// # Errors
    /// Any other failure.
    pub fn read(&self, path: &Path) -> Result<Option<String>> {
        match fs::read(path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(HostError::io("read", path, error)),
        }
    }

    /// Reads and parses a whole small file; `None` when it is gone.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn read_with<T>(
        &self,
        path: &Path,
        parse: impl FnOnce(&str) -> std::result::Result<T, Malformed>,
    ) -> Result<Option<T>> {
        self.read(path)?
            .map(|text| parse(&text).map_err(|malformed| HostError::malformed(path, malformed)))
            .transpose()
    }

    /// Reads a file like [`Root::read_with`], with fewer system calls for a file of short records, such as a group's.
    pub(crate) fn read_short<T>(
        &self,
        path: &Path,
        parse: impl FnOnce(&str) -> std::result::Result<T, Malformed>,
    ) -> Result<Option<T>> {
        reader::read_once(path, |bytes| parse(&String::from_utf8_lossy(bytes)))?
            .transpose()
            .map_err(|malformed| HostError::malformed(path, malformed))
    }

    /// Writes `value` to the existing file `path` in one call.
    ///
    /// # Errors
    /// [`HostError::Write`] with path and value.
    pub fn write(&self, path: &Path, value: &str) -> Result<()> {
        self.0
            .writer
            .write(path, value)
            .map_err(|source| HostError::Write {
                path: path.to_owned(),
                value: value.to_owned(),
                source,
            })
    }

    pub(crate) fn writer(&self) -> &dyn KernelWriter {
        &*self.0.writer
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root")
            .field("dirs", &self.0.dirs)
            .field("version", &self.0.version)
            .field("v1", &self.0.v1)
            .field("unified", &self.0.unified)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
37 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
39 31 0:39 / /elsewhere/memory rw - cgroup cgroup rw,memory
";

    fn tree(mountinfo: Option<&str>, dirs: &[&str], files: &[&str]) -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        for dir in dirs {
            fs::create_dir_all(temp.path().join(dir)).unwrap();
        }
        for file in files {
            fs::write(temp.path().join(file), "").unwrap();
        }
        if let Some(text) = mountinfo {
            fs::create_dir_all(temp.path().join("proc/self")).unwrap();
            fs::write(temp.path().join("proc/self/mountinfo"), text).unwrap();
        }
        temp
    }

    #[test]
    fn hybrid_mounts_are_found_by_mountinfo() {
        let temp = tree(
            Some(HYBRID),
            &[
                "sys/fs/cgroup/cpu,cpuacct",
                "sys/fs/cgroup/cpuset",
                "sys/fs/cgroup/unified",
                "elsewhere/memory",
            ],
            &[],
        );
        let root = Root::below(temp.path()).unwrap();
        assert_eq!(root.version(), Version::V1);
        assert!(root.is_hybrid());
        assert!(
            root.v1_mount(Controller::Cpuacct)
                .unwrap()
                .ends_with("cpu,cpuacct")
        );
        assert!(
            root.v1_mount(Controller::Memory).is_none(),
            "not below the cgroup directory"
        );
        assert!(root.unified_mount().unwrap().ends_with("unified"));
        assert_eq!(
            root.trees(&[Controller::Cpu, Controller::Cpuacct]).count(),
            2
        );
    }

    #[test]
    fn v2_by_mountinfo_and_layouts_without_it() {
        let line = "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let temp = tree(Some(line), &["sys/fs/cgroup"], &[]);
        assert_eq!(Root::below(temp.path()).unwrap().version(), Version::V2);

        let temp = tree(
            None,
            &["sys/fs/cgroup"],
            &["sys/fs/cgroup/cgroup.controllers"],
        );
        assert_eq!(Root::below(temp.path()).unwrap().version(), Version::V2);

        let temp = tree(
            None,
            &["sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/memory"],
            &[],
        );
        let root = Root::below(temp.path()).unwrap();
        assert_eq!((root.version(), root.is_hybrid()), (Version::V1, false));
        assert!(root.v1_mount(Controller::Cpu).is_some());

        let temp = tree(None, &[], &[]);
        assert!(!Root::below(temp.path()).unwrap().has_cgroups());
    }

    #[test]
    fn a_broken_mountinfo_is_reported() {
        let temp = tree(Some("nonsense\n"), &[], &[]);
        let error = Root::below(temp.path()).unwrap_err().to_string();
        assert!(
            error.contains("mountinfo") && error.contains("nonsense"),
            "{error}"
        );
    }
}
