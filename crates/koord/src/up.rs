//! `koord up`: a cluster on this machine until Ctrl-C, or in the background until `koord down`.

use crate::cluster::{self, Cluster};
use crate::console;
use anyhow::{Context as _, Result, bail};
use koord_app::flags::{FlagValueError, Selection, selection};
use koord_model::alignment::{Policy, Scope};
use koord_sim::Layout;
use koordctl::running::{self, RunningCluster};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Flags of `koord up`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Number of simulated nodes, in addition to this machine.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20_000))]
    pub nodes: u32,
    /// Do not taint this machine's node. By default, if there are simulated nodes, it has the taint
    /// node.koordinator.sh/host=true:NoSchedule, so that only pods that tolerate it run here.
    #[arg(long)]
    pub no_host_taint: bool,
    /// NUMA nodes of each simulated node and CPUs per NUMA node, such as 2x8. The simulated kubelet rejects
    /// pods that it cannot align. Nodes of an earlier start do not change.
    #[arg(long, value_name = "NODESxCPUS")]
    pub topology: Option<Layout>,
    /// topologyManagerPolicy of the simulated kubelets: none, best-effort, restricted or single-numa-node. Only
    /// with single-numa-node does the scheduler avoid every placement that a kubelet would reject.
    #[arg(
        long,
        value_name = "POLICY",
        requires = "topology",
        default_value = "single-numa-node"
    )]
    pub topology_policy: Policy,
    /// topologyManagerScope of the simulated kubelets: container or pod.
    #[arg(
        long,
        value_name = "SCOPE",
        requires = "topology",
        default_value = "container"
    )]
    pub topology_scope: Scope,
    /// Report the accelerators described by the files in DIR, in the format of vendors' tools, and this
    /// machine's RDMA adapters and NVIDIA GPUs. Pods can then request koordinator.sh/gpu-core and other device
    /// resources. The files may describe accelerators that the machine does not have.
    #[arg(long, value_name = "DIR")]
    pub device_files: Option<PathBuf>,
    /// Directory of the cluster's state. Starting again with the same directory resumes the cluster.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Port of the API server on 127.0.0.1; 0 selects any free port [default: 6443, or any if it is in use]
    #[arg(long)]
    pub port: Option<u16>,
    /// Run pods with all permissions of this process, root and the data directory included, unless a pod's
    /// security context drops them.
    #[arg(long)]
    pub trusted_pods: bool,
    /// Keep objects in memory only: they are lost when the cluster stops. Without --data-dir, the cluster uses
    /// a directory of its own.
    #[arg(long)]
    pub memory: bool,
    /// Controllers of the control plane to run: *, name or -name, comma-separated, with the names of
    /// kube-controller-manager.
    #[arg(long, default_value = "*", value_name = "NAMES", value_parser = controllers)]
    pub controllers: Selection,
    /// Components to run: *, name or -name, comma-separated, of manager, scheduler, descheduler and koordlet.
    /// Koordinator's own program can replace a component that is left out.
    #[arg(long, default_value = "*", value_name = "NAMES", value_parser = components)]
    pub components: Selection,
    /// Path of a DeschedulerConfiguration file for the descheduler. The default is the configuration in
    /// Koordinator's manifests, which only moves pods for PodMigrationJobs.
    #[arg(long, value_name = "FILE")]
    pub descheduler_config: Option<PathBuf>,
    /// The container runtime, if one runs the pods.
    #[command(flatten)]
    pub runtime: crate::runtime::Args,
    /// Number of ended pods to keep, the newest ones; 0 keeps all.
    #[arg(long, default_value_t = 12_500, value_name = "N")]
    pub terminated_pod_gc_threshold: usize,
    /// Maximum number of read requests that the API server handles at once, watches excluded; 0 is unlimited.
    /// Further requests are rejected with 429.
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub max_requests_inflight: usize,
    /// Maximum number of write requests that the API server handles at once; 0 is unlimited.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub max_mutating_requests_inflight: usize,
    /// Log warnings only. This is the default in the foreground; in the background the default is more detail.
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log what the components find and decide; repeat the flag to log everything.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Continue in the background when the cluster is up; `koord down` stops it.
    #[arg(short, long)]
    pub detach: bool,
    /// Set in the background process of `--detach`.
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
}

/// Parses a selection of the optional components.
fn components(value: &str) -> Result<Selection, FlagValueError> {
    let selected = selection(value)?;
    selected.check(&cluster::COMPONENTS)?;
    Ok(selected)
}

/// Parses a selection of the existing controllers.
fn controllers(value: &str) -> Result<Selection, FlagValueError> {
    let selected = selection(value)?;
    selected.check(&koord_apiserver::controllers::names())?;
    Ok(selected)
}

impl Args {
    fn data_dir(&self) -> PathBuf {
        let data_dir = self.data_dir.clone();
        data_dir.unwrap_or_else(|| cluster::default_data_dir(self.memory))
    }

    /// Returns the hardware layout of simulated nodes, if the flags set one.
    fn layout(&self) -> Result<Option<Layout>> {
        let Some(layout) = &self.topology else {
            return Ok(None);
        };
        if self.nodes == 0 {
            bail!("--topology applies to simulated nodes, and there are none: set --nodes");
        }
        let mut layout = layout.clone();
        self.topology_policy.as_str().clone_into(&mut layout.policy);
        self.topology_scope.as_str().clone_into(&mut layout.scope);
        Ok(Some(layout))
    }

    /// Returns the descheduler's configuration, and checks plugins and their arguments.
    fn descheduler(&self) -> Result<koord_descheduler::config::Configuration> {
        let Some(path) = &self.descheduler_config else {
            return cluster::descheduler_config();
        };
        let flag = || format!("--descheduler-config: {}", path.display());
        let text = std::fs::read_to_string(path).with_context(flag)?;
        let config = koord_descheduler::config::Configuration::parse(&text).with_context(flag)?;
        let registry = koord_descheduler::registry::Registry::in_tree();
        let completed = registry.complete(config.clone()).with_context(flag)?;
        completed.build().with_context(flag)?;
        Ok(config)
    }

    fn log_filter(&self) -> String {
        match (self.quiet, self.verbose) {
            (true, _) => "warn".to_owned(),
            // In a terminal, log lines would interrupt the output for users.
            (false, 0) if !self.detached => "warn".to_owned(),
            (false, 0) => "info,koord_scheduler=warn".to_owned(),
            // HTTP and Kubernetes client libraries log warnings or errors only.
            (false, 1) => koord_app::logging::filter(4),
            (false, _) => koord_app::logging::filter(6),
        }
    }
}

/// Runs the cluster until Ctrl-C, SIGTERM or SIGHUP, or starts it in the background.
///
/// # Errors
/// When it cannot start, or when a component ends by itself.
pub fn main(args: &Args) -> Result<()> {
    args.layout()?;
    args.descheduler()?;
    crate::instance_dir::keep_files_private();
    if args.detach {
        return detach(args);
    }
    if args.detached {
        rustix::process::setsid().context("a session of its own")?;
    }
    cluster::init_logging(&args.log_filter());
    koord_app::daemon::runtime()?.block_on(run(args))
}

/// Starts the cluster, and stops it after a signal or a failure. A second signal kills the pods, a third ends at once.
async fn run(args: &Args) -> Result<()> {
    let data_dir = args.data_dir();
    let mut stop = ShutdownSignal::new().context("signal handlers")?;
    let runtime = tokio::select! {
        runtime = args.runtime.choose(&data_dir) => runtime?,
        signal = stop.next() => bail!("{signal} before the cluster was up"),
    };
    let runtime_text = runtime
        .as_ref()
        .map(crate::runtime::ChosenRuntime::description);
    let start = Cluster::start(cluster::Options {
        runtime,
        data_dir: data_dir.clone(),
        memory: args.memory,
        port: args.port,
        trusted_pods: args.trusted_pods,
        controllers: args.controllers.clone(),
        components: args.components.clone(),
        terminated_pod_gc_threshold: args.terminated_pod_gc_threshold,
        simulated_nodes: args.nodes as usize,
        host_taint: !args.no_host_taint,
        topology: args.layout()?,
        device_files: args.device_files.clone(),
        descheduler: args.descheduler()?,
        slo_config: cluster::quick_config(),
        report_interval: Some(cluster::QUICK_REPORT),
        limits: koord_apiserver::Limits {
            max_requests_inflight: args.max_requests_inflight,
            max_mutating_requests_inflight: args.max_mutating_requests_inflight,
            ..koord_apiserver::Limits::default()
        },
    });
    let mut cluster = tokio::select! {
        cluster = start => cluster?,
        signal = stop.next() => bail!("{signal} before the cluster was up"),
    };
    let failure = tokio::select! {
        failure = serve(&mut cluster, args, &data_dir, runtime_text) => match failure {
            Ok(never) => match never {},
            Err(error) => Some(error),
        },
        signal = stop.next() => {
            console::print_line(format_args!("{signal}: stopping: pods first, then the components"));
            None
        }
    };
    RunningCluster::remove(&data_dir);
    let ended = failure.map_or(Ok(()), Err);
    let hurry = cluster.hurry.clone();
    let mut stopping = pin!(cluster.stop());
    tokio::select! {
        () = &mut stopping => return ended,
        signal = stop.next() => console::print_line(format_args!("{signal} again: pods are killed")),
    }
    hurry.cancel();
    tokio::select! {
        () = stopping => ended,
        signal = stop.next() => bail!("{signal} once more: stopped before everything had ended"),
    }
}

/// Prints that the cluster is up once it is, and waits until a component ends, which none should.
async fn serve(
    cluster: &mut Cluster,
    args: &Args,
    data_dir: &Path,
    runtime: Option<String>,
) -> Result<std::convert::Infallible> {
    let terms = cluster.ready().await?;
    let running = RunningCluster {
        pid: std::process::id(),
        server: format!("https://{}", cluster.address),
        kubeconfig: cluster.kubeconfig.clone(),
        node: cluster.node_name.clone(),
        simulated_nodes: args.nodes,
        host_taint: args.nodes > 0 && !args.no_host_taint,
        memory: args.memory,
        unconfined: koord_node::unconfined(&terms.confinement).map(str::to_owned),
        rights: terms.rights,
        notes: cluster.notes.clone(),
        beside: cluster.other_cluster_note(),
        runtime,
        manager: cluster.manager_address,
        scheduler: cluster.scheduler_address,
        descheduler: cluster.descheduler_address,
        koordlet: cluster.koordlet_address,
    };
    running.write(data_dir)?;
    console::print_line(running.welcome(running::Stopping::CtrlC));
    Err(cluster.failed().await)
}

/// The signals that stop a cluster.
struct ShutdownSignal([(Signal, &'static str); 3]);

impl ShutdownSignal {
    fn new() -> io::Result<Self> {
        Ok(Self([
            (signal(SignalKind::interrupt())?, "Ctrl-C"),
            (signal(SignalKind::terminate())?, "SIGTERM"),
            (signal(SignalKind::hangup())?, "SIGHUP"),
        ]))
    }

    /// Returns the name of the next signal.
    async fn next(&mut self) -> &'static str {
        let [a, b, c] = &mut self.0;
        tokio::select! {
            _ = a.0.recv() => a.1,
            _ = b.0.recv() => b.1,
            _ = c.0.recv() => c.1,
        }
    }
}

/// Starts the same command in a separate session, and waits until its cluster is up.
fn detach(args: &Args) -> Result<()> {
    let dir = args.data_dir();
    crate::instance_dir::make_private(&dir)?;
    if let Some(holder) = koordctl::cluster_files::holder(&dir)? {
        bail!(
            "a cluster runs in {} already, as process {}: koord down stops it",
            dir.display(),
            holder.pid
        );
    }
    let path = dir.join("koord.log");
    let cannot = || format!("cannot write {}", path.display());
    let log = std::fs::File::create(&path).with_context(cannot)?;
    let errors = log.try_clone().with_context(cannot)?;
    let program = std::env::current_exe().context("path of this program")?;
    let mut child = Command::new(program)
        .args(background(std::env::args_os().skip(1)))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .context("cannot start the background process")?;
    loop {
        if let Some(status) = child.try_wait().context("the background process")? {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let last = text.lines().last().unwrap_or_default();
            let last = last.strip_prefix("koord: ").unwrap_or(last);
            bail!(
                "{last} (the background process ended with {status}; its log is {})",
                path.display()
            );
        }
        if let Some(running) =
            RunningCluster::read(&dir)?.filter(|running| running.pid == child.id())
        {
            console::print_line(
                running.welcome(running::Stopping::Down(&dir, args.data_dir.is_some())),
            );
            console::print_line(format_args!("  its log: {}\n", path.display()));
            return Ok(());
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Returns the arguments of the background process: `original` with `--detach` replaced.
fn background(original: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = original
        .filter(|arg| arg != "--detach" && arg != "-d")
        .collect();
    args.push("--detached".into());
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_arguments_replace_detach_and_keep_others() {
        let original = ["up", "-d", "--nodes", "3", "--detach"].map(OsString::from);
        let args = background(original.into_iter());
        assert_eq!(args, ["up", "--nodes", "3", "--detached"]);
    }

    #[test]
    fn numa_nodes_are_those_of_simulated_nodes() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let read = |line: &str| <Line as clap::Parser>::try_parse_from(line.split(' '));
        let layout = |line: &str| read(line).unwrap().args.layout();
        let parsed = layout("up --nodes 3 --topology 2x8 --topology-scope pod").unwrap();
        let parsed = parsed.unwrap();
        assert_eq!((parsed.numa_nodes, parsed.cpus_per_node), (2, 8));
        assert_eq!(
            (&*parsed.policy, &*parsed.scope),
            ("single-numa-node", "pod")
        );
        assert_eq!(layout("up --nodes 3").unwrap(), None);
        let error = layout("up --topology 2x8").unwrap_err().to_string();
        assert!(error.contains("--nodes"), "{error}");
        for (line, why) in [
            ("up --nodes 1 --topology 2x", "not as 2x8"),
            (
                "up --nodes 1 --topology 2x8 --topology-policy strict",
                "\"strict\" is none of none, best",
            ),
            ("up --nodes 1 --topology-scope pod", "--topology"),
        ] {
            let error = read(line).unwrap_err().to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn unknown_controllers_and_components_are_rejected() {
        let selected = controllers("*,-job-controller").unwrap();
        assert!(!selected.enabled("job-controller") && selected.enabled("namespace-controller"));
        let selected = components("*,-manager").unwrap();
        assert!(!selected.enabled("manager") && selected.enabled("scheduler"));
        assert!(
            components("-node")
                .unwrap_err()
                .to_string()
                .contains("-node")
        );
        let error = controllers("*,-jobs").unwrap_err().to_string();
        assert!(error.contains("\"-jobs\""), "{error}");
    }
}
