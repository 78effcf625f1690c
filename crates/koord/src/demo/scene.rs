//! The cluster the demo plays on: starting it, setting a scenario up, changing the phase.

use super::pods::{self, NAMESPACE, SERVICE, UNLIMITED};
use super::result::{Phase, Setup, median};
use super::sampler::Targets;
use super::scenario::{self, Scenario};
use crate::cluster::{self, Cluster};
use crate::console;
use crate::workload::{self, counter, monotonic_ns};
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use koord_api::slo::RawNodeSLO;
use koord_kube::Api;
use koord_kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// What receiving and answering a request costs besides its work, in microseconds.
const OVERHEAD_US: f64 = 25.0;
/// What requests that a bystander gets cost, and how many it gets per second.
const BYSTANDER: (u64, f64) = (100, 20.0);

/// A running demo cluster.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) setup: Setup,
    pub(super) executable: PathBuf,
    directory: tempfile::TempDir,
    root: koord_host::Root,
    steps_per_us: f64,
    begun_ns: u64,
    /// Whether the last wait for room for batch was in vain.
    crowded: bool,
    generation: usize,
    configured: u64,
    elsewhere: Vec<f64>,
    pub(super) progress: indicatif::ProgressBar,
    stage: Option<Stage>,
}

/// The scenario that is set up.
pub(super) struct Stage {
    pub(super) scenario: &'static Scenario,
    /// Mean arrivals per second.
    pub(super) rate: f64,
    /// The service.
    address: SocketAddr,
    /// The service without a limit, where there is one with a limit.
    unlimited: Option<SocketAddr>,
    services: usize,
    /// Phases that were measured already.
    pub(super) seen: Vec<Phase>,
    /// Load of the bystanders; it ends with the stage.
    _bystanders: Vec<tokio::process::Child>,
}

impl Stage {
    /// The pod that is measured in `phase`, and its address.
    pub(super) fn measured(&self, phase: Phase) -> (&'static str, SocketAddr) {
        match self.unlimited {
            Some(address) if phase == Phase::Alone => (UNLIMITED, address),
            _ => (SERVICE, self.address),
        }
    }
}

impl Scene {
    /// Starts the cluster and waits until this machine offers batch resources.
    pub(super) async fn open(phase_seconds: f64, stop: &mut super::Stop) -> Result<Self> {
        let progress = progress_bar();
        progress.set_message("calibrating a request");
        let begun_ns = monotonic_ns();
        let cpus = workload::serve::allowed_cpus().len();
        let steps_per_us = tokio::task::spawn_blocking(workload::steps_per_us)
            .await
            .context("calibration")?;
        let executable = std::env::current_exe().context("path of this program")?;
        let directory = tempfile::Builder::new()
            .prefix("koord-demo-")
            .tempdir()
            .context("cannot create a temporary directory")?;
        let root = koord_host::Root::system().context("the kernel's file systems")?;

        progress.set_message("starting the cluster");
        let cluster = Cluster::start(cluster::Options {
            data_dir: directory.path().join("cluster"),
            memory: true,
            port: Some(0),
            trusted_pods: false,
            controllers: koord_app::flags::Selection::all(),
            // Nothing shall move.
            components: koord_app::flags::selection("*,-descheduler")?,
            descheduler: cluster::descheduler_config()?,
            device_files: None,
            terminated_pod_gc_threshold: 0,
            simulated_nodes: 0,
            host_taint: false,
            topology: None,
            runtime: None,
            slo_config: cluster::quick_config(),
            report_interval: Some(cluster::QUICK_REPORT),
            limits: koord_apiserver::Limits::default(),
        })
        .await?;
        if let Some(other) = cluster.beside() {
            progress
                .suspend(|| console::warn(format_args!("koord: {other}; it disturbs the demo")));
        }
        let mut scene = Self {
            setup: Setup {
                cpus,
                kernel: kernel_release(&root),
                cgroup: root.version().as_str().to_owned(),
                phase_seconds,
                ..Setup::default()
            },
            cluster,
            executable,
            directory,
            root,
            steps_per_us,
            begun_ns,
            crowded: false,
            generation: 0,
            configured: 0,
            elsewhere: Vec::new(),
            progress,
            stage: None,
        };
        let prepared = tokio::select! {
            prepared = scene.prepare() => prepared,
            () = stop.wait() => Err(anyhow::anyhow!("interrupted before anything was measured")),
        };
        match prepared {
            Ok(()) => Ok(scene),
            Err(error) => {
                scene.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&mut self) -> Result<()> {
        self.step("waiting for this machine to become a node");
        let nodes: Api<Node> = Api::all(self.cluster.client.clone());
        let name = self.cluster.node_name.clone();
        let ready = |node: &Node| {
            let conditions = node
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref());
            conditions
                .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
        };
        let node = poll("node Ready", 30, async || {
            Ok(nodes.get_opt(&name).await?.filter(ready))
        })
        .await?;
        self.setup.unenforced = unconfined(&node);
        self.setup.enforced = self.setup.unenforced.is_none();
        let pods = self.pod_parent()?;
        let pressure = pods.pressure(koord_host::cgroup::PressureKind::Cpu);
        self.setup.psi = pressure.ok().flatten().is_some();

        self.step("waiting until koordlet has measured and the manager has published");
        // On a busy machine the phases that do without are measured all the same.
        let _ = self.room_for_batch(15).await;
        Ok(())
    }

    /// The group of all pods.
    fn pod_parent(&self) -> Result<koord_host::Cgroup> {
        Ok(self.root.cgroup(&self.cluster.pods_group()?))
    }

    /// Why `scenario` cannot be played here, where it cannot.
    pub(super) fn obstacle(&self, scenario: &Scenario) -> Option<String> {
        if let Some(why) = &self.setup.unenforced
            && scenario.name != "cpu"
        {
            return Some(format!(
                "needs root and control groups that can be written: {why}"
            ));
        }
        let missing = |name: &&&str| scenario::program(name).is_none();
        let missing: Vec<&str> = scenario
            .programs()
            .iter()
            .filter(missing)
            .copied()
            .collect();
        if !missing.is_empty() {
            let names = missing.join(" and ");
            return Some(format!(
                "{names} not found in PATH (Debian: apt install {names})"
            ));
        }
        let pods = self.pod_parent().ok()?;
        if scenario.service.limit.is_some() && pods.cfs_burst().ok().flatten().is_none() {
            return Some(
                "this kernel has no CFS burst (cpu.cfs_burst_us, cpu.max.burst)".to_owned(),
            );
        }
        if scenario.pod_memory_mib.is_some() && pods.memory_limit().is_err() {
            return Some("memory is not limited on this machine: no memory controller".to_owned());
        }
        None
    }

    /// Sets `scenario` up: its services and their surroundings.
    pub(super) async fn enter(
        &mut self,
        scenario: &'static Scenario,
        rate: Option<f64>,
    ) -> Result<()> {
        self.step(&format!("{}: starting the service", scenario.name));
        let cpus = self.setup.cpus;
        let us = scenario.service.us;
        #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
        let rate = rate.unwrap_or(scenario.load.share * cpus as f64 * 1e6 / us);
        if let Some(mib) = scenario.pod_memory_mib {
            self.limit_pods(i64::from(mib) << 20)?;
        }
        let (mib, pages) = scenario.service.file;
        let file = self.directory.path().join("service.data");
        let mut command = vec![
            self.executable.display().to_string(),
            "workload".to_owned(),
            "serve".to_owned(),
        ];
        let mut option = |name: &str, value: String| command.extend([name.to_owned(), value]);
        option("--steps", self.steps(us - OVERHEAD_US).to_string());
        option("--workers", cpus.to_string());
        if pages > 0 {
            let path = file.clone();
            tokio::task::spawn_blocking(move || cold_file(&path, mib))
                .await
                .context("service file")??;
            option("--file", file.display().to_string());
            option("--pages", pages.to_string());
        }
        let (table, walk) = scenario.service.table;
        option("--table-mib", table.to_string());
        option("--walk", walk.to_string());
        let mut listening = None;
        if scenario.service.nginx {
            let (nginx, address) = self.nginx()?;
            (command, listening) = (nginx, Some(address));
        }

        let request = 450 * cpus as u64;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "milli-CPUs"
        )]
        let limit = scenario
            .service
            .limit
            .map(|times| (times * rate * us / 1000.0) as u64);
        let address = self
            .serve(
                SERVICE,
                &command,
                listening,
                limit.unwrap_or(request),
                limit,
            )
            .await?;
        let unlimited = match limit {
            Some(limit) => Some(self.serve(UNLIMITED, &command, None, limit, None).await?),
            None => None,
        };
        let mut stage = Stage {
            scenario,
            rate,
            address,
            unlimited,
            services: 1 + usize::from(unlimited.is_some()),
            seen: Vec::new(),
            _bystanders: Vec::new(),
        };
        for number in 0..scenario.bystanders {
            #[allow(clippy::cast_precision_loss, reason = "microseconds of a request")]
            let steps = self.steps(BYSTANDER.0 as f64).to_string();
            let command = [
                &self.executable.display().to_string(),
                "workload",
                "serve",
                "--workers",
                "1",
                "--steps",
                &steps,
            ];
            let command: Vec<String> = command.map(str::to_owned).into();
            let name = format!("bystander-{number}");
            let address = self.serve(&name, &command, None, 20, None).await?;
            stage.services += 1;
            let load = tokio::process::Command::new(&self.executable)
                .args([
                    "workload",
                    "load",
                    "--seconds",
                    "86400",
                    "--connections",
                    "1",
                ])
                .args(["--connect", &address.to_string()])
                .args(["--rate", &BYSTANDER.1.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .kill_on_drop(true)
                .spawn();
            stage
                ._bystanders
                .push(load.context("cannot start a bystander's load")?);
        }
        self.setup.rate = if self.setup.rate > 0.0 {
            self.setup.rate
        } else {
            rate
        };
        self.setup.service_us = if self.setup.service_us > 0.0 {
            self.setup.service_us
        } else {
            us
        };
        self.stage = Some(stage);
        Ok(())
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a step count"
    )]
    fn steps(&self, us: f64) -> u64 {
        (self.steps_per_us * us.max(1.0)) as u64
    }

    /// nginx's command line, and where it will listen.
    fn nginx(&self) -> Result<(Vec<String>, SocketAddr)> {
        let directory = self.directory.path().join("nginx");
        std::fs::create_dir_all(&directory).context("nginx's directory")?;
        let shown = directory.display().to_string();
        // Free now; whoever takes it meanwhile makes nginx fail, which is said.
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).context("a free port")?;
        let address = free.local_addr().context("a free port")?;
        let user = if rustix::process::geteuid().is_root() {
            "user root root;"
        } else {
            ""
        };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {shown}/{kind};\n"))
            .concat();
        let config = format!(
            "{user}\nworker_processes {};\ndaemon off;\npid {shown}/pid;\nerror_log stderr;\n\
             events {{ worker_connections 512; }}\nhttp {{\naccess_log off;\n\
             keepalive_requests 1000000000;\nkeepalive_timeout 1h;\n{temporary}\
             server {{ listen {address}; root {shown}; }}\n}}\n",
            self.setup.cpus
        );
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        write("nginx.conf", config.as_bytes())?;
        write("file", &[b'x'; 4096])?;
        let program = scenario::program("nginx").context("nginx is not installed")?;
        let command = [
            program.display().to_string(),
            "-p".into(),
            shown.clone(),
            "-c".into(),
            format!("{shown}/nginx.conf"),
            "-e".into(),
            "stderr".into(),
        ];
        Ok((command.into(), address))
    }

    /// Starts a service and waits until it listens: at an address that is known, or at the one it
    /// tells.
    async fn serve(
        &self,
        name: &str,
        command: &[String],
        listening: Option<SocketAddr>,
        request: u64,
        limit: Option<u64>,
    ) -> Result<SocketAddr> {
        let ready_file = self.directory.path().join(format!("{name}.address"));
        let _ = std::fs::remove_file(&ready_file);
        let pod = pods::service(&pods::Service {
            name: name.to_owned(),
            command: command.to_vec(),
            request,
            limit,
            ready_file: listening.is_none().then_some(&*ready_file),
        });
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.with_context(|| format!("pod {name}"))?;
        let listens = poll("the service's address", 60, async || {
            if let Some(address) = listening {
                let open = tokio::net::TcpStream::connect(address).await;
                return Ok(open.is_ok().then_some(address));
            }
            Ok(std::fs::read_to_string(&ready_file)
                .ok()
                .and_then(|text| text.parse().ok()))
        })
        .await;
        match listens {
            Ok(address) => Ok(address),
            Err(error) => Err(self.stuck().await.unwrap_or(error)),
        }
    }

    /// Clears the scenario away.
    pub(super) async fn leave(&mut self) -> Result<()> {
        let Some(stage) = self.stage.take() else {
            return Ok(());
        };
        self.delete(pods::BATCH_LABEL).await?;
        self.delete(pods::SERVICE_LABEL).await?;
        if stage.scenario.pod_memory_mib.is_some() {
            self.limit_pods(-1)?;
        }
        Ok(())
    }

    /// Limits the memory of all pods together; -1 for no limit.
    fn limit_pods(&self, bytes: i64) -> Result<()> {
        self.pod_parent()?
            .set_memory_limit(bytes)
            .context("memory limit of all pods")?;
        Ok(())
    }

    /// The scenario that is set up.
    pub(super) fn stage(&self) -> Result<&Stage> {
        self.stage.as_ref().context("no scenario is set up")
    }

    /// Notes that a window of `phase` was measured.
    pub(super) fn saw(&mut self, phase: Phase) {
        if let Some(stage) = &mut self.stage {
            stage.seen.push(phase);
        }
    }

    /// Batch work of the machine when nothing else runs: the divisor of EMU. Measured once per repeat.
    pub(super) async fn reference(&mut self, repeat: usize) -> Result<()> {
        self.step(&format!(
            "reference {repeat}: batch work of the idle machine"
        ));
        self.configure(Phase::BestEffort).await?;
        let counters = self.start_batch(Phase::BestEffort).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let seconds = (self.setup.phase_seconds / 2.0).max(1.0);
        let (before, from) = (counter::total(&counters), monotonic_ns());
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        let (after, to) = (counter::total(&counters), monotonic_ns());
        self.delete(pods::BATCH_LABEL).await?;
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let per_second = after.saturating_sub(before) as f64 * 1e9 / (to - from).max(1) as f64;
        self.setup.be_alone_runs.push(per_second);
        self.setup.be_alone_ops_per_s = median(self.setup.be_alone_runs.iter().copied());
        Ok(())
    }

    /// Notes how much of the machine generator and control plane used, in percent.
    pub(super) fn note_elsewhere(&mut self, percent: f64) {
        self.elsewhere.push(percent);
        self.setup.elsewhere_percent = median(self.elsewhere.iter().copied());
    }

    /// Removes everything the demo made.
    pub(super) async fn close(mut self) {
        self.progress.set_message("stopping");
        if let Err(error) = self.leave().await {
            tracing::warn!("the scenario is not cleared away: {error:#}");
        }
        // The node stops its pods and removes its cgroups when it is told to stop.
        self.cluster.stop().await;
        self.progress.finish_and_clear();
    }

    pub(super) fn step(&self, what: &str) {
        if console::interactive() {
            self.progress.set_message(what.to_owned());
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    /// Chooses koordlet's strategy through the ConfigMap, as a user would, and waits until this node's
    /// NodeSLO carries it.
    pub(super) async fn configure(&mut self, phase: Phase) -> Result<()> {
        self.configured += 1;
        let limited = self.stage()?.scenario.service.limit.is_some();
        let config = config_of(
            phase,
            limited,
            self.setup.elsewhere_percent,
            self.configured,
        );
        let maps: Api<ConfigMap> =
            Api::namespaced(self.cluster.client.clone(), cluster::CONFIG_NAMESPACE);
        let patch = Patch::Merge(json!({"data": cluster::config_data(&config)}));
        maps.patch(cluster::CONFIG_NAME, &PatchParams::default(), &patch)
            .await
            .context("ConfigMap slo-controller-config")?;
        let slos: Api<RawNodeSLO> = Api::all(self.cluster.client.clone());
        let name = self.cluster.node_name.clone();
        let wanted = &config["cpu-suppress-config"]["clusterStrategy"];
        poll(
            "the NodeSLO to carry the phase's settings",
            30,
            async || {
                let slo = slos.get_opt(&name).await?;
                let carried = slo
                    .is_some_and(|slo| slo.spec["extensions"]["Object"]["cpuSuppress"] == *wanted);
                Ok(carried.then_some(()))
            },
        )
        .await
    }

    /// Waits until the node offers what the batch pods ask for.
    async fn room_for_batch(&mut self, seconds: u64) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.cluster.client.clone());
        let needed = i64::try_from(100 * self.setup.cpus).unwrap_or(i64::MAX);
        poll("batch-cpu on the node", seconds, async || {
            let offered = nodes.list(&ListParams::default()).await?.into_iter();
            let offered = offered.filter_map(|node| {
                let allocatable = node.status?.allocatable?;
                let batch = allocatable.get(koord_api::resources::BATCH_CPU)?;
                batch.0.parse::<i64>().ok()
            });
            Ok(offered.max().filter(|milli_cores| *milli_cores >= needed))
        })
        .await
        .context("nothing is left over for batch: do other processes use this machine?")?;
        if self.setup.batch_resources_after_s == 0.0 {
            #[allow(clippy::cast_precision_loss, reason = "seconds of a start")]
            let after = monotonic_ns().saturating_sub(self.begun_ns) as f64 / 1e9;
            self.setup.batch_resources_after_s = after;
        }
        Ok(())
    }

    /// Creates one batch pod per CPU and waits until all work. Returns the counter directory.
    pub(super) async fn start_batch(&mut self, phase: Phase) -> Result<PathBuf> {
        if matches!(phase, Phase::Suppressed | Phase::Managed) {
            // Without cgroups the last phase's batch counts as use until it has left the window. Who
            // waited for that in vain does not wait so long again.
            let patience = if self.crowded { 30 } else { 180 };
            let room = self.room_for_batch(patience).await;
            self.crowded = room.is_err();
            room?;
        }
        self.generation += 1;
        let generation = self.generation;
        let made = |name: &str| -> Result<PathBuf> {
            let path = self.directory.path().join(format!("{name}-{generation}"));
            std::fs::create_dir_all(&path)
                .with_context(|| format!("cannot create {}", path.display()))?;
            Ok(path)
        };
        let batch = pods::Batch {
            executable: &self.executable,
            counters: made("count")?,
            scratch: made("scratch")?,
            generation,
        };
        let stage = self.stage()?;
        for number in 0..self.setup.cpus {
            let pod = pods::batch(stage.scenario, phase, number, &batch);
            self.pods()
                .create(&PostParams::default(), &pod)
                .await
                .context("batch pod")?;
        }
        self.running(stage.services + self.setup.cpus).await?;
        poll("batch work", 30, async || {
            Ok((counter::total(&batch.counters) > 0).then_some(()))
        })
        .await?;
        Ok(batch.counters)
    }

    /// Ends the batch pods and removes their files.
    pub(super) async fn stop_batch(&self, counters: &Path) -> Result<()> {
        self.delete(pods::BATCH_LABEL).await?;
        let scratch = self
            .directory
            .path()
            .join(format!("scratch-{}", self.generation));
        for path in [counters, &scratch] {
            // A file left behind goes with the directory at the end.
            let _ = std::fs::remove_dir_all(path);
        }
        Ok(())
    }

    /// Deletes the pods with a label and waits until they are gone.
    async fn delete(&self, label: &str) -> Result<()> {
        let labelled = ListParams::default().labels(label);
        for pod in self.pods().list(&labelled).await.context("pods")? {
            let name = pod.metadata.name.unwrap_or_default();
            self.pods()
                .delete(&name, &DeleteParams::default())
                .await
                .with_context(|| format!("pod {name}"))?;
        }
        poll("the end of the pods", 60, async || {
            let left = self.pods().list(&labelled).await?;
            Ok(left.items.is_empty().then_some(()))
        })
        .await
    }

    /// Waits until `count` pods run; names the laggard and its condition when they do not.
    async fn running(&self, count: usize) -> Result<()> {
        let all = ListParams::default();
        let waited = poll("the pods to run", 60, async || {
            let pods = self.pods().list(&all).await?;
            let running = pods.iter().filter(|pod| phase_of(pod) == "Running").count();
            Ok((running >= count).then_some(()))
        })
        .await;
        match waited {
            Ok(()) => Ok(()),
            Err(error) => Err(self.stuck().await.unwrap_or(error)),
        }
    }

    /// The first pod that does not run, and why.
    async fn stuck(&self) -> Option<anyhow::Error> {
        let pods = self.pods().list(&ListParams::default()).await.ok()?;
        let stuck = pods.iter().find(|pod| phase_of(pod) != "Running")?;
        let status = stuck.status.clone().unwrap_or_default();
        let why = status
            .conditions
            .unwrap_or_default()
            .into_iter()
            .find_map(|condition| condition.message)
            .or(status.message)
            .unwrap_or_default();
        Some(anyhow::anyhow!(
            "pod {} is {} and not Running: {why}",
            stuck.metadata.name.as_deref().unwrap_or(""),
            phase_of(stuck)
        ))
    }

    fn pod_cgroup(&self, pod: &Pod) -> Option<koord_host::Cgroup> {
        let path = koord_node::pod_cgroup_path(self.cluster.groups_parent(), pod)?;
        Some(self.root.cgroup(&path))
    }

    /// What the sampler looks at in `phase`.
    pub(super) async fn targets(&self, phase: Phase, counters: PathBuf) -> Result<Targets> {
        let pods = self.pods().list(&ListParams::default()).await?;
        let (measured, _) = self.stage()?.measured(phase);
        let labelled = |pod: &Pod, value: &str| {
            let labels = pod.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get("app"))
                .is_some_and(|app| app == value)
        };
        let mut targets = Targets {
            root: self.root.clone(),
            service: None,
            others: Vec::new(),
            batch: Vec::new(),
            best_effort: Some(
                self.root
                    .cgroup(&self.cluster.pods_group()?.join("besteffort")?),
            ),
            counters,
        };
        for pod in &pods {
            let Some(group) = self.pod_cgroup(pod) else {
                continue;
            };
            if pod.metadata.name.as_deref() == Some(measured) {
                targets.service = Some(group);
            } else if labelled(pod, "batch") {
                targets.batch.push(group);
            } else {
                targets.others.push(group);
            }
        }
        Ok(targets)
    }
}

/// What `slo-controller-config` says in `phase`; `limited` where the service has a CPU limit.
/// `elsewhere` is the percentage of the machine that load generator and control plane use; `number`
/// tells one configuration from the last.
fn config_of(phase: Phase, limited: bool, elsewhere: f64, number: u64) -> Value {
    let mut config = cluster::quick_config();
    // A name says nothing to node agents: the mark.
    let mut suppress = json!({"name": format!("demo {number}")});
    let threshold = &mut config["resource-threshold-config"]["clusterStrategy"];
    match phase {
        Phase::BestEffort | Phase::Unmanaged => threshold["enable"] = json!(false),
        Phase::Suppressed => {
            suppress["mode"] = json!("upstream");
            #[allow(clippy::cast_possible_truncation, reason = "a percentage")]
            let percent = 65 + elsewhere.clamp(0.0, 30.0).round() as i64;
            threshold["cpuSuppressThresholdPercent"] = json!(percent);
        }
        // The defaults, whatever they are.
        Phase::Alone | Phase::Managed => {}
    }
    config["cpu-suppress-config"] = json!({"clusterStrategy": suppress});
    // Both Koordinator and koord have it, and have it off by default.
    let burst = limited && matches!(phase, Phase::Suppressed | Phase::Managed);
    let policy = if burst { "cpuBurstOnly" } else { "none" };
    config["cpu-burst-config"] = json!({"clusterStrategy": {"policy": policy}});
    config
}

/// Writes a file and has the kernel forget its content, so that whoever reads it first is charged.
fn cold_file(path: &Path, mib: u32) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(path)?;
        let block = vec![0xa5_u8; 1 << 20];
        for _ in 0..mib {
            file.write_all(&block)?;
        }
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Why the node does not confine its pods, where it does not.
fn unconfined(node: &Node) -> Option<String> {
    let annotations = node.metadata.annotations.as_ref();
    match annotations.and_then(|all| all.get(koord_node::CONFINEMENT_ANNOTATION)) {
        Some(said) => said.strip_prefix("unconfined: ").map(str::to_owned),
        None => Some("the node does not say that it confines its pods".to_owned()),
    }
}

fn phase_of(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

fn kernel_release(root: &koord_host::Root) -> String {
    let path = root.proc("sys/kernel/osrelease");
    root.read(&path)
        .ok()
        .flatten()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn progress_bar() -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new_spinner();
    // The template is a constant; a fault in it only costs the colours.
    if let Ok(style) = indicatif::ProgressStyle::with_template("{spinner:.green} {msg} [{elapsed}]")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Asks every 100 ms until there is an answer.
pub(super) async fn poll<T>(
    what: &str,
    seconds: u64,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if tokio::time::Instant::now() >= deadline {
            bail!("waited {seconds} s in vain for {what}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_kubernetes_has_koordlet_at_rest_and_managed_has_the_defaults() {
        let threshold = |phase| {
            config_of(phase, false, 4.6, 7)["resource-threshold-config"]["clusterStrategy"].clone()
        };
        let config = cluster::quick_config();
        let defaults = config["resource-threshold-config"]["clusterStrategy"].clone();
        assert_eq!(threshold(Phase::BestEffort)["enable"], false);
        assert_eq!(threshold(Phase::Managed), defaults);
        // What would run elsewhere is not taken from batch work.
        assert_eq!(
            threshold(Phase::Suppressed)["cpuSuppressThresholdPercent"],
            70
        );
        let mode = |phase| {
            config_of(phase, false, 0.0, 7)["cpu-suppress-config"]["clusterStrategy"].clone()
        };
        assert_eq!(
            mode(Phase::Suppressed),
            json!({"mode": "upstream", "name": "demo 7"})
        );
        assert_eq!(mode(Phase::Managed), json!({"name": "demo 7"}));
    }

    #[test]
    fn burst_is_for_limited_services_and_not_plain_kubernetes() {
        let policy = |phase, limited| {
            config_of(phase, limited, 0.0, 1)["cpu-burst-config"]["clusterStrategy"]["policy"]
                .clone()
        };
        assert_eq!(policy(Phase::Managed, true), "cpuBurstOnly");
        assert_eq!(policy(Phase::Suppressed, true), "cpuBurstOnly");
        assert_eq!(policy(Phase::BestEffort, true), "none");
        assert_eq!(policy(Phase::Managed, false), "none");
    }
}
