//! State of a `koord up` cluster on this machine: `koord status`, `koord down`.

use crate::cluster_files::{self, Holder, token_file};
use anyhow::{Context as _, Result, bail};
use koord_api::simulation::HOST_LABEL;
use koord_app::console;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// State of a running cluster, a file in the data directory while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningCluster {
    /// Process id.
    pub pid: u32,
    /// URL of the API server.
    pub server: String,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The name of this machine's node.
    pub node: String,
    /// Number of simulated nodes.
    pub simulated_nodes: u32,
    /// True if the node only accepts pods that tolerate the taint of [`HOST_LABEL`].
    #[serde(default)]
    pub host_taint: bool,
    /// True if objects are stored in memory only.
    pub memory: bool,
    /// Reason why pods run without cgroups; `None` if they have some.
    pub unconfined: Option<String>,
    /// Notice that another cluster ran on this machine at the start.
    pub beside: Option<String>,
    /// The container runtime of the pods; `None` if they run without one.
    #[serde(default)]
    pub runtime: Option<String>,
    /// Address of the manager's dashboard.
    #[serde(default)]
    pub manager: Option<SocketAddr>,
    /// Address of the scheduler's explanations.
    pub scheduler: Option<SocketAddr>,
    /// Address of the descheduler's explanations.
    #[serde(default)]
    pub descheduler: Option<SocketAddr>,
    /// Address of koordlet's state.
    pub koordlet: Option<SocketAddr>,
    /// Sentence on the rights of pods.
    #[serde(default)]
    pub rights: Option<String>,
    /// Further messages about unexpected conditions.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Way to stop the cluster, for the message after the start.
#[derive(Debug, Clone, Copy)]
pub enum Stopping<'a> {
    /// Ctrl-C in the cluster's terminal.
    CtrlC,
    /// `koord down`; true if the data directory must be passed.
    Down(&'a Path, bool),
}

impl RunningCluster {
    fn path(dir: &Path) -> PathBuf {
        dir.join("cluster.json")
    }

    /// Reads the state that the cluster in `dir` wrote; `None` if there is none.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = Self::path(dir);
        match std::fs::read(&path) {
            // A file that is incomplete or of another version counts as missing.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display())),
        }
    }

    /// Writes the state of the cluster in `dir`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = Self::path(dir);
        let write = |text: Vec<u8>| {
            let mut options = std::fs::File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&path)?.write_all(&text)
        };
        write(serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("failed to write {}", path.display()))
    }

    /// Removes the state of the cluster in `dir`.
    pub fn remove(dir: &Path) {
        // A failure has no consequence: `status` relies on the lock.
        let _ = std::fs::remove_file(Self::path(dir));
    }

    /// Returns the text shown to the user after the start.
    #[must_use]
    pub fn welcome(&self, stopping: Stopping<'_>) -> String {
        let mut text = format!("\nkoord is up: {} with {}. ", self.server, self.nodes());
        let _ = match stopping {
            Stopping::CtrlC => writeln!(text, "Ctrl-C stops it."),
            Stopping::Down(dir, true) => {
                writeln!(text, "koord down --data-dir {} stops it.", dir.display())
            }
            Stopping::Down(_, false) => {
                let memory = if self.memory { " --memory" } else { "" };
                writeln!(text, "koord down{memory} stops it.")
            }
        };
        text += &self.notices();
        let (kubeconfig, node) = (self.kubeconfig.display(), &self.node);
        let _ = write!(
            text,
            "\n  export KUBECONFIG={kubeconfig}\n  kubectl get nodes -o wide\n  \
             kubectl describe node {node} | grep -A9 Allocatable\n  \
             kubectl get nodemetrics -o yaml\n"
        );
        text
    }

    fn nodes(&self) -> String {
        match self.simulated_nodes {
            0 => format!("node {}", self.node),
            n => format!(
                "node {} and {n} simulated nodes, on which nothing runs",
                self.node
            ),
        }
    }

    /// Returns the messages about unexpected conditions.
    fn notices(&self) -> String {
        let mut text = String::new();
        if let Some(why) = &self.unconfined {
            let _ = writeln!(
                text,
                "\n  NOTHING IS ENFORCED: pods run without cgroups, so batch pods are neither \
                 limited nor measured.\n  {why}"
            );
        }
        if self.host_taint {
            let _ = writeln!(
                text,
                "\n  Pods go to the simulated nodes. {} takes those that tolerate its taint {} (docs/examples/batch-pod.yaml).",
                self.node, HOST_LABEL
            );
        }
        if let Some(rights) = &self.rights {
            let _ = writeln!(text, "\n  Rights: {rights}.");
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n  NOTE: {note}.");
        }
        if let Some(runtime) = &self.runtime {
            let _ = writeln!(text, "\n  Pods run in {runtime}.");
        }
        if let Some(beside) = &self.beside {
            let _ = writeln!(text, "\n  NOT ALONE: {beside}.");
        }
        text
    }
}

/// Selects a cluster on this machine.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Data directory of the cluster, as passed to `koord up`.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Select the cluster of `koord up --memory`.
    #[arg(long, conflicts_with = "data_dir")]
    pub memory: bool,
}

impl Args {
    fn dir(&self) -> PathBuf {
        let data_dir = self.data_dir.clone();
        data_dir.unwrap_or_else(|| cluster_files::default_data_dir(self.memory))
    }

    /// Returns the cluster that the flags select, or without flags all clusters of this user that run.
    ///
    /// # Errors
    /// There is none.
    fn running(&self) -> Result<Vec<(PathBuf, Holder)>> {
        if self.memory || self.data_dir.is_some() {
            let dir = self.dir();
            let Some(holder) = cluster_files::holder(&dir)? else {
                bail!("no cluster runs in {}", dir.display());
            };
            return Ok(vec![(dir, holder)]);
        }
        let running = cluster_files::running();
        if running.is_empty() {
            bail!("no cluster of koord up runs on this machine as this user");
        }
        Ok(running)
    }
}

/// Returns the flags that select the cluster in `dir`, with a leading blank.
fn flags(dir: &Path) -> String {
    let [durable, memory] = [false, true].map(cluster_files::default_data_dir);
    match dir {
        dir if dir == durable => String::new(),
        dir if dir == memory => " --memory".to_owned(),
        dir => format!(" --data-dir {}", dir.display()),
    }
}

/// Returns the address of koordlet on this machine: `address` if it is set, otherwise that of a `koord up` cluster in a
/// default directory, otherwise koordlet's default port.
pub(crate) fn koordlet(address: Option<&str>) -> String {
    if let Some(address) = address {
        return address.to_owned();
    }
    let address = [false, true].into_iter().find_map(|memory| {
        let dir = cluster_files::default_data_dir(memory);
        let holder = cluster_files::holder(&dir).ok()??;
        let running = RunningCluster::read(&dir).ok()??;
        running.koordlet.filter(|_| running.pid == holder.pid)
    });
    address.map_or_else(
        || cluster_files::KOORDLET.to_owned(),
        |address| address.to_string(),
    )
}

/// Returns the address of the manager of a `koord up` cluster in a default directory.
pub(crate) fn manager() -> Option<SocketAddr> {
    [false, true].into_iter().find_map(|memory| {
        let dir = cluster_files::default_data_dir(memory);
        let holder = cluster_files::holder(&dir).ok()??;
        let running = RunningCluster::read(&dir).ok()??;
        running.manager.filter(|_| running.pid == holder.pid)
    })
}

/// Returns the token of the cluster on this machine that has a component at `authority`, if this user may
/// read it.
pub(crate) fn token_of(authority: &str) -> Option<String> {
    let mut dirs = cluster_files::directories();
    dirs.extend([false, true].map(cluster_files::default_data_dir));
    token_in(&dirs, authority)
}

fn token_in(dirs: &[PathBuf], authority: &str) -> Option<String> {
    let authority: SocketAddr = authority.replace("localhost", "127.0.0.1").parse().ok()?;
    dirs.iter().find_map(|dir| {
        // A stopped cluster no longer owns the port, and another program may.
        let holder = cluster_files::holder(dir).ok()??;
        let running = RunningCluster::read(dir).ok()??;
        let its = [
            running.manager,
            running.scheduler,
            running.descheduler,
            running.koordlet,
        ];
        if running.pid != holder.pid || !its.contains(&Some(authority)) {
            return None;
        }
        std::fs::read_to_string(token_file(dir)).ok()
    })
}

/// Timeout of `koord down`: twice that of the components of a cluster.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// Prints which clusters run, and how to use them.
///
/// # Errors
/// No cluster runs, or not the selected one.
pub fn status(args: &Args) -> Result<()> {
    for (dir, holder) in args.running()? {
        print_status(&dir, &holder)?;
    }
    Ok(())
}

/// Prints the status of the cluster in `dir`, which `holder` runs.
fn print_status(dir: &Path, holder: &Holder) -> Result<()> {
    match RunningCluster::read(dir)?.filter(|running| running.pid == holder.pid) {
        Some(running) => {
            console::print_line(format_args!(
                "up: {} with {}, process {}{}",
                running.server,
                running.nodes(),
                running.pid,
                if running.memory { ", in memory" } else { "" },
            ));
            console::print_line(format_args!(
                "  export KUBECONFIG={}",
                running.kubeconfig.display()
            ));
            let notices = running.notices();
            if !notices.is_empty() {
                console::print_line(notices.trim_end());
            }
        }
        None => console::print_line(format_args!(
            "process {} is starting or stopping a cluster in {}, or runs a demo there",
            holder.pid,
            dir.display()
        )),
    }
    Ok(())
}

/// Stops the cluster as Ctrl-C does, and waits until it has stopped.
///
/// # Errors
/// No cluster runs, it belongs to another user, or it does not stop in time.
pub fn down(args: &Args) -> Result<()> {
    let dir = args.dir();
    let Some(holder) = cluster_files::holder(&dir)? else {
        // Others are stopped only if the user selects them.
        let others = args.running().unwrap_or_default().into_iter();
        let others: String = others
            .map(|(other, _)| {
                let (shown, flags) = (other.display(), flags(&other));
                format!("; one runs in {shown}, koord down{flags} stops it")
            })
            .collect();
        bail!("no cluster runs in {}{others}", dir.display());
    };
    let pid = i32::try_from(holder.pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .context("the cluster's process is unknown so far")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        .with_context(|| format!("failed to stop process {}", holder.pid))?;
    let start = Instant::now();
    while cluster_files::holder(&dir)?.is_some_and(|now| now.pid == holder.pid) {
        if start.elapsed() > STOP_TIMEOUT {
            bail!(
                "process {} did not stop within {STOP_TIMEOUT:?}",
                holder.pid
            );
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    console::print_line(format_args!(
        "stopped; its files in {} are kept",
        dir.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> RunningCluster {
        RunningCluster {
            pid: 1,
            server: "https://127.0.0.1:6443".to_owned(),
            kubeconfig: "/d/kubeconfig".into(),
            node: "vm".to_owned(),
            simulated_nodes: 3,
            host_taint: false,
            memory: false,
            unconfined: None,
            beside: None,
            runtime: None,
            manager: None,
            scheduler: None,
            descheduler: None,
            koordlet: None,
            rights: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn welcome_lists_notices() {
        let text = running().welcome(Stopping::CtrlC);
        assert!(
            text.starts_with(
                "\nkoord is up: https://127.0.0.1:6443 with node vm and 3 simulated nodes, on \
                 which nothing runs. Ctrl-C stops it.\n\n  export KUBECONFIG=/d/kubeconfig\n"
            ),
            "{text}"
        );
        let odd = RunningCluster {
            unconfined: Some("kubepods: denied (are you root?)".to_owned()),
            beside: Some("another cluster".to_owned()),
            runtime: Some("containerd at x".to_owned()),
            rights: Some("pods may little".to_owned()),
            host_taint: true,
            notes: vec!["port 1 is used".to_owned()],
            ..running()
        };
        let text = odd.welcome(Stopping::Down(Path::new("/d"), true));
        for part in [
            "koord down --data-dir /d stops it",
            "NOTHING IS ENFORCED",
            "are you root?",
            "Pods run in containerd at x.",
            "\n  Rights: pods may little.\n",
            "vm takes those that tolerate its taint node.koordinator.sh/host",
            "NOTE: port 1 is used.",
            "NOT ALONE: another cluster.",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn token_goes_to_the_ports_of_its_cluster_only() {
        let dir = tempfile::tempdir().unwrap();
        let koordlet: SocketAddr = "127.0.0.1:9316".parse().unwrap();
        let cluster = RunningCluster {
            pid: std::process::id(),
            koordlet: Some(koordlet),
            ..running()
        };
        cluster.write(dir.path()).unwrap();
        std::fs::write(token_file(dir.path()), "t").unwrap();
        let dirs = [dir.path().join("none"), dir.path().to_owned()];
        // It does not run.
        assert_eq!(token_in(&dirs, "127.0.0.1:9316"), None);
        let claim = cluster_files::open(&cluster_files::lock_of(dir.path())).unwrap();
        claim.try_lock().unwrap();
        let pid = format!("{{\"pid\": {}}}", std::process::id());
        (&claim).write_all(pid.as_bytes()).unwrap();
        for (authority, token) in [
            ("127.0.0.1:9316", Some("t")),
            ("localhost:9316", Some("t")),
            ("127.0.0.1:9317", None),
            ("10.0.0.1:9316", None),
            ("example.com:9316", None),
        ] {
            assert_eq!(token_in(&dirs, authority).as_deref(), token, "{authority}");
        }
        drop(claim);
    }

    #[test]
    fn state_file_exists_while_the_cluster_runs() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(RunningCluster::read(dir.path()).unwrap(), None);
        running().write(dir.path()).unwrap();
        assert_eq!(RunningCluster::read(dir.path()).unwrap(), Some(running()));
        RunningCluster::remove(dir.path());
        assert_eq!(RunningCluster::read(dir.path()).unwrap(), None);
    }
}
