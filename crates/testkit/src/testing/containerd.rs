//! A real containerd for tests and measurements, started by `bench/containerd`, and groups for its pods.

use super::skip;
use koord_host::Controller;
use koord_host::{Cgroup, CgroupPath, Result, Root};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Environment variable with the directory that `bench/containerd get` created.
pub const CONTAINERD: &str = "KOORD_CONTAINERD";

/// Name of the image that the containerd has for containers: busybox.
pub const IMAGE: &str = "koord.local/busybox:1";

/// Embedded in the program: a measurement may run far from the repository.
const SCRIPT: &str = include_str!("../../../../bench/containerd");

/// Runs the script `bench/containerd` with `verb`, the `directory` of the unpacked programs and the `run` directory
/// of an instance.
///
/// # Errors
/// The script failed; the text is its standard error.
fn script(verb: &str, directory: &Path, run: &Path) -> io::Result<()> {
    let output = Command::new("bash")
        .args(["-c", SCRIPT, "containerd", verb])
        .args([directory, run])
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(stderr.trim().to_owned()))
}

/// Returns the directory that [`CONTAINERD`] names. If it names none, reports the test as skipped and returns
/// `None`.
#[track_caller]
#[must_use]
pub fn containerd_for_test() -> Option<PathBuf> {
    let named = std::env::var_os(CONTAINERD).map(PathBuf::from);
    let unpacked = named.filter(|named| named.join("complete").exists());
    if unpacked.is_none() {
        let reason = format!("{CONTAINERD} names none that bench/containerd unpacked");
        skip("containerd", reason);
    }
    unpacked
}

/// A containerd with NRI and a state of its own. Dropping it also ends its containers.
#[derive(Debug)]
pub struct Containerd {
    directory: PathBuf,
    run: PathBuf,
    /// True if `run` is removed at the end.
    temporary: bool,
}

impl Containerd {
    /// Starts a containerd for a test. If [`CONTAINERD`] names no directory, reports the test as skipped and
    /// returns `None`.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn for_test() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let directory = containerd_for_test()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Paths of sockets must be short.
        let run = format!("/tmp/koord-containerd-{}-{count}", std::process::id());
        match Self::start(&directory, Path::new(&run)) {
            Ok(mut one) => {
                one.temporary = true;
                Some(one)
            }
            Err(error) => panic!("{}: {error}", directory.display()),
        }
    }

    /// Starts the containerd in `directory`, with its state and sockets in `run`.
    ///
    /// # Errors
    /// The script's error output.
    pub fn start(directory: &Path, run: &Path) -> io::Result<Self> {
        let containerd = Self {
            directory: directory.to_owned(),
            run: run.to_owned(),
            temporary: false,
        };
        script("start", directory, run)?;
        Ok(containerd)
    }

    /// Ends the daemon like a crash; its containers keep running.
    ///
    /// # Panics
    /// When no daemon runs.
    pub fn kill(&self) {
        self.script("kill");
    }

    /// Starts the daemon again after [`Self::kill`].
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_again(&self) {
        self.script("start");
    }

    fn script(&self, verb: &str) {
        if let Err(error) = script(verb, &self.directory, &self.run) {
            panic!("bench/containerd {verb}: {error}");
        }
    }

    /// Returns the path of a file of this name in the instance's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.run.join(name)
    }

    /// Returns the path of the CRI socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("containerd.sock")
    }

    /// Returns the path of the NRI socket, to which plugins connect.
    #[must_use]
    pub fn nri_socket(&self) -> PathBuf {
        self.path("nri.sock")
    }

    /// Returns the command `ctr` for the containers of the CRI.
    #[must_use]
    pub fn ctr(&self) -> Command {
        let mut ctr = Command::new(self.directory.join("bin/ctr"));
        ctr.arg("--address").arg(self.socket());
        ctr.args(["--namespace", "k8s.io"]);
        ctr
    }
}

impl Drop for Containerd {
    #[allow(clippy::print_stderr, reason = "processes are left behind")]
    fn drop(&mut self) {
        if let Err(error) = script("stop", &self.directory, &self.run) {
            eprintln!("failed to stop containerd: {error}");
        } else if self.temporary {
            let _ = std::fs::remove_dir_all(&self.run);
        }
    }
}

/// A parent cgroup for the cgroups of pods, in every hierarchy; removed on drop with all cgroups below it.
/// Its processes must end before: a [`Containerd`] is dropped first.
#[derive(Debug)]
pub struct Groups(Cgroup);

impl Groups {
    /// Creates the cgroup `name` below the hierarchies' roots.
    ///
    /// # Errors
    /// Fails if the cgroup cannot be created.
    pub fn new(name: &str) -> Result<Self> {
        let group = Root::system()?.cgroup(&CgroupPath::new(name)?);
        group.create(&Controller::ALL)?;
        Ok(Self(group))
    }
}

impl Deref for Groups {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.0
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = self.0.remove();
        // A runtime also makes groups in hierarchies that no test uses, such as devices.
        let (all, top) = (Path::new("/sys/fs/cgroup"), self.0.path().as_str());
        remove_empty(&all.join(top));
        for hierarchy in all.read_dir().into_iter().flatten().flatten() {
            remove_empty(&hierarchy.path().join(top));
        }
    }
}

/// Removes a group and those below it, except groups with processes.
fn remove_empty(group: &Path) {
    for below in group.read_dir().into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&below.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}
