//! Starts `koord up` as a separate process and connects to it.

use koord_kube::Client;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// Excludes clusters of other tests: for a test that measures the machine, counts what a cluster leaves on
/// it, or has more than one cluster.
pub(crate) fn exclusive() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Excludes tests that need the machine for themselves. A cluster that is not the machine's first has
/// separate ports and cgroups.
pub(crate) fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A running `koord up`; stopped cleanly when dropped, because a killed one leaves its cgroups.
pub(crate) struct Up {
    child: Child,
    pub(crate) kubeconfig: PathBuf,
    /// Output before the line with the kubeconfig.
    pub(crate) welcome: String,
}

impl Up {
    /// Starts on a free port and waits for the welcome text.
    pub(crate) fn start(data_dir: &Path, extra: &[&str]) -> Self {
        Self::start_logging(data_dir, extra, Stdio::inherit())
    }

    /// Starts like [`Self::start`], with its log (warnings and worse) in `log`.
    pub(crate) fn start_logging(data_dir: &Path, extra: &[&str], log: Stdio) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_koord"))
            .args(["up", "--port", "0", "--data-dir"])
            .arg(data_dir)
            .args(extra)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("koord starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut welcome = String::new();
        let kubeconfig = loop {
            let line = lines
                .next()
                .expect("koord up ended before it was up")
                .expect("utf-8");
            if let Some(path) = line.trim().strip_prefix("export KUBECONFIG=") {
                break PathBuf::from(path);
            }
            welcome += &line;
        };
        // The rest of its output is drained so that it never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            kubeconfig,
            welcome,
        }
    }

    /// Kills the process with SIGKILL, as a crash of the machine's out-of-memory killer would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGINT, as Ctrl-C does, and returns the exit code.
    pub(crate) fn interrupt(&mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::INT)
    }

    /// Sends a signal and returns the exit code.
    pub(crate) fn signal(&mut self, signal: rustix::process::Signal) -> Option<i32> {
        self.send(signal);
        self.child.wait().expect("exit status").code()
    }

    /// Sends a signal and does not wait.
    pub(crate) fn send(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal");
    }

    pub(crate) async fn client(&self) -> Client {
        koord_kube::tls::install_crypto_provider();
        let options = koord_kube::client::ClientOptions::default();
        koord_kube::client::from_kubeconfig(Some(&self.kubeconfig), &options)
            .await
            .expect("the written kubeconfig works")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.interrupt();
        }
        self.kill();
    }
}

/// A data directory in which a cluster may run in the background. When this is dropped, also by a panic, the
/// cluster is stopped, and killed if it does not stop.
pub(crate) struct BackgroundCluster<'a>(pub(crate) &'a Path);

impl Drop for BackgroundCluster<'_> {
    fn drop(&mut self) {
        let holder = || koordctl::cluster_files::holder(self.0).ok().flatten();
        if holder().is_none() {
            return;
        }
        let _ = Command::new(env!("CARGO_BIN_EXE_koord"))
            .args([Path::new("down"), Path::new("--data-dir"), self.0])
            .stdin(Stdio::null())
            .output();
        let left = holder().and_then(|holder| i32::try_from(holder.pid).ok());
        if let Some(pid) = left.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
