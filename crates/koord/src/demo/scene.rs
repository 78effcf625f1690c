//! The cluster the demo plays on: starting it, changing the phase, measuring one window.

use super::pods::{self, NAMESPACE, SERVICE};
use super::result::{Phase, Run, Setup, Write, median};
use super::sampler::{Sampler, Targets};
use crate::cluster::{self, Cluster};
use crate::workload::{self, load, monotonic_ns};
use crate::{console, workload::counter};
use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use koord_api::slo::RawNodeSLO;
use koord_kube::Api;
use koord_kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// Load that is not counted before each window, in seconds. Upstream raises its cap by a tenth of the
/// machine per second, so this is how long `suppressed` takes to reach its steady state.
const WARMUP_S: f64 = 6.0;
/// What receiving and answering a request costs besides its work, in microseconds.
const OVERHEAD_US: f64 = 25.0;
/// Noise rules: a window is measured again when others used more than this part of the machine. A
/// quiet machine shows 3 to 5 %: the kernel charges the network's soft interrupts to nobody.
const STRANGERS: f64 = 0.06;
/// When the hypervisor took more than this part: from here on p99 shows the host, not the service.
const STEAL: f64 = 0.005;
/// When the generator woke later than this, in microseconds (99th percentile).
const SEND_LAG_US: f64 = 150.0;

/// A running demo cluster with its service.
pub(super) struct Scene {
    cluster: Cluster,
    setup: Setup,
    executable: PathBuf,
    directory: tempfile::TempDir,
    root: koord_host::Root,
    generation: usize,
    configured: u64,
    elsewhere: Vec<f64>,
    address: std::net::SocketAddr,
    progress: indicatif::ProgressBar,
}

impl Scene {
    /// Starts the cluster and the service, and waits until this machine offers batch resources.
    pub(super) async fn open(rate: f64, service_us: f64, phase_seconds: f64) -> Result<Self> {
        let progress = progress_bar();
        progress.set_message("calibrating a request");
        let begun = monotonic_ns();
        let cpus = workload::serve::allowed_cpus().len();
        let steps_per_us = tokio::task::spawn_blocking(workload::steps_per_us)
            .await
            .context("calibration")?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a step count"
        )]
        let steps = (steps_per_us * (service_us - OVERHEAD_US)) as u64;
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
            listen: ([127, 0, 0, 1], 0).into(),
            simulated_nodes: 0,
            slo_config: cluster::quick_config(),
            report_interval: Some(cluster::QUICK_REPORT),
        })
        .await?;
        let mut scene = Self {
            setup: Setup {
                cpus,
                kernel: kernel_release(&root),
                cgroup: root.version().as_str().to_owned(),
                enforced: false,
                rate,
                service_us,
                phase_seconds,
                ..Setup::default()
            },
            cluster,
            executable,
            directory,
            root,
            generation: 0,
            configured: 0,
            elsewhere: Vec::new(),
            address: ([127, 0, 0, 1], 0).into(),
            progress,
        };
        match scene.prepare(steps, begun).await {
            Ok(()) => Ok(scene),
            Err(error) => {
                scene.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&mut self, steps: u64, begun: u64) -> Result<()> {
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
        poll("node Ready", 30, async || {
            Ok(nodes.get_opt(&name).await?.filter(ready))
        })
        .await?;

        self.step("starting the service");
        let ready_file = self.directory.path().join("service.address");
        let service = pods::service(&self.executable, steps, &ready_file, self.setup.cpus);
        self.pods()
            .create(&PostParams::default(), &service)
            .await
            .context("service pod")?;
        self.running(1).await?;
        self.address = poll("the service's address", 30, async || {
            Ok(std::fs::read_to_string(&ready_file)
                .ok()
                .and_then(|text| text.parse().ok()))
        })
        .await?;
        let service = self.pod_cgroup(&self.pods().get(SERVICE).await?);
        self.setup.enforced = service.as_ref().is_some_and(koord_host::Cgroup::exists);

        self.step("waiting until koordlet has measured and the manager has published");
        self.room_for_batch(60).await?;
        #[allow(clippy::cast_precision_loss, reason = "seconds of a start")]
        let after = monotonic_ns().saturating_sub(begun) as f64 / 1e9;
        self.setup.batch_resources_after_s = after;
        Ok(())
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
        self.stop_batch().await?;
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let per_second = after.saturating_sub(before) as f64 * 1e9 / (to - from).max(1) as f64;
        self.setup.be_alone_runs.push(per_second);
        self.setup.be_alone_ops_per_s = median(self.setup.be_alone_runs.iter().copied());
        Ok(())
    }

    /// Sets the phase up, measures one window, and clears the batch pods away.
    pub(super) async fn measure(&mut self, phase: Phase, repeat: usize) -> Result<Run> {
        self.step(&format!(
            "{} {repeat}: waiting for a quiet machine",
            phase.name()
        ));
        wait_for_quiet().await;
        self.step(&format!("{} {repeat}: preparing", phase.name()));
        self.configure(phase).await?;
        let counters = if phase == Phase::Alone {
            self.directory.path().join("none")
        } else {
            self.start_batch(phase).await?
        };
        let targets = self.targets(counters).await?;
        let sampler = Sampler::start(targets).context("sampler")?;
        let ls = self.generate(phase, repeat, &sampler).await;
        let series = sampler.finish(self.setup.cpus);
        if phase != Phase::Alone {
            self.stop_batch().await?;
        }
        let ls = ls?;
        let window = series.window(ls.window_ns);
        let writes = self.writes(ls.window_ns.0);
        let rejected = rejection(&window, &ls, self.setup.enforced);
        if phase == Phase::Alone && rejected.is_none() {
            self.elsewhere.push(window.elsewhere * 100.0);
            self.setup.elsewhere_percent = median(self.elsewhere.iter().copied());
        }
        self.progress.suspend(|| {
            console::warn(format_args!(
                "{:<11} {repeat}  p99 {:>7.0} µs   CPU {:>4.0} %   batch {:>6.0} ops/s   {}",
                phase.name(),
                ls.p99_us,
                window.cpu_utilization * 100.0,
                window.be_ops_per_s,
                rejected
                    .as_deref()
                    .map_or_else(String::new, |why| format!("noisy: {why}")),
            ));
        });
        Ok(Run {
            repeat,
            cpu_utilization: window.cpu_utilization,
            strangers: window.strangers,
            steal: window.steal,
            be_ops_per_s: window.be_ops_per_s,
            ls_psi_some: window.ls_psi_some,
            rejected,
            cpu: series.cpu(ls.window_ns.0),
            writes,
            ls,
        })
    }

    /// Removes everything the demo made.
    pub(super) async fn close(self) {
        self.progress.set_message("stopping");
        // The node stops its pods and removes its cgroups when it is told to stop.
        self.cluster.stop().await;
        self.progress.finish_and_clear();
    }

    pub(super) fn setup(&self) -> Setup {
        self.setup.clone()
    }

    fn step(&self, what: &str) {
        if console::interactive() {
            self.progress.set_message(what.to_owned());
        } else {
            console::warn(format_args!("… {what}"));
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    /// Chooses koordlet's strategy through the ConfigMap, as a user would, and waits until this node's
    /// NodeSLO carries it.
    async fn configure(&mut self, phase: Phase) -> Result<()> {
        self.configured += 1;
        let config = config_of(phase, self.setup.elsewhere_percent, self.configured);
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
                let carried =
                    slo.is_some_and(|slo| slo.spec["extensions"]["cpuSuppress"] == *wanted);
                Ok(carried.then_some(()))
            },
        )
        .await
    }

    /// Waits until the node offers what the batch pods ask for.
    async fn room_for_batch(&self, seconds: u64) -> Result<()> {
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
        Ok(())
    }

    /// Creates one batch pod per CPU and waits until all compute. Returns the counter directory.
    async fn start_batch(&mut self, phase: Phase) -> Result<PathBuf> {
        self.generation += 1;
        let counters = self
            .directory
            .path()
            .join(format!("batch-{}", self.generation));
        std::fs::create_dir_all(&counters)
            .with_context(|| format!("cannot create {}", counters.display()))?;
        if matches!(phase, Phase::Suppressed | Phase::Managed) {
            // Without cgroups the last phase's batch counts as use until it has left the window.
            self.room_for_batch(180).await?;
        }
        for number in 0..self.setup.cpus {
            let pod = pods::batch(phase, number, self.generation, &self.executable, &counters);
            self.pods()
                .create(&PostParams::default(), &pod)
                .await
                .context("batch pod")?;
        }
        self.running(1 + self.setup.cpus).await?;
        poll("batch work", 30, async || {
            Ok((counter::total(&counters) > 0).then_some(()))
        })
        .await?;
        Ok(counters)
    }

    async fn stop_batch(&self) -> Result<()> {
        let batch = ListParams::default().labels(pods::BATCH_LABEL);
        for pod in self.pods().list(&batch).await.context("batch pods")? {
            let name = pod.metadata.name.unwrap_or_default();
            self.pods()
                .delete(&name, &DeleteParams::default())
                .await
                .context("batch pod")?;
        }
        poll("the end of the batch pods", 60, async || {
            Ok(self
                .pods()
                .list(&batch)
                .await?
                .items
                .is_empty()
                .then_some(()))
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
        if waited.is_ok() {
            return Ok(());
        }
        let pods = self.pods().list(&all).await?;
        let Some(stuck) = pods.iter().find(|pod| phase_of(pod) != "Running") else {
            return waited;
        };
        let status = stuck.status.clone().unwrap_or_default();
        let why = status
            .conditions
            .unwrap_or_default()
            .into_iter()
            .find_map(|condition| condition.message)
            .or(status.message)
            .unwrap_or_default();
        bail!(
            "pod {} is {} and not Running: {why}",
            stuck.metadata.name.as_deref().unwrap_or(""),
            phase_of(stuck)
        )
    }

    fn pod_cgroup(&self, pod: &Pod) -> Option<koord_host::Cgroup> {
        let path = koord_node::pod_cgroup_path(pod)?;
        Some(self.root.cgroup(&path))
    }

    async fn targets(&self, counters: PathBuf) -> Result<Targets> {
        let pods = self.pods().list(&ListParams::default()).await?;
        let is_service = |pod: &&Pod| pod.metadata.name.as_deref() == Some(SERVICE);
        let best_effort = koord_host::CgroupPath::new("kubepods/besteffort").ok();
        Ok(Targets {
            root: self.root.clone(),
            service: pods
                .iter()
                .find(is_service)
                .and_then(|pod| self.pod_cgroup(pod)),
            batch: pods
                .iter()
                .filter(|pod| !is_service(pod))
                .filter_map(|pod| self.pod_cgroup(pod))
                .collect(),
            best_effort: best_effort.map(|path| self.root.cgroup(&path)),
            counters,
        })
    }

    async fn generate(
        &self,
        phase: Phase,
        repeat: usize,
        sampler: &Sampler,
    ) -> Result<load::Outcome> {
        let seconds = self.setup.phase_seconds;
        let child = tokio::process::Command::new(&self.executable)
            .args(["workload", "load"])
            .arg("--connect")
            .arg(self.address.to_string())
            .arg("--rate")
            .arg(self.setup.rate.to_string())
            .arg("--seconds")
            .arg(seconds.to_string())
            .arg("--warmup")
            .arg(WARMUP_S.to_string())
            .arg("--seed")
            .arg(repeat.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the load generator")?;
        if let Some(pid) = child.id() {
            sampler.load_is(pid);
        }
        self.step(&format!(
            "{} {repeat}: measuring for {seconds:.0} s",
            phase.name()
        ));
        let output = child.wait_with_output().await.context("load generator")?;
        if !output.status.success() {
            return Err(anyhow!("the load generator failed: {}", output.status));
        }
        serde_json::from_slice(&output.stdout).context("the load generator's outcome")
    }

    /// koordlet's writes since the warm-up of the window that began at `window_ns`.
    fn writes(&self, window_ns: u64) -> Vec<Write> {
        let now_ns = monotonic_ns();
        let now = self.cluster.context.clock.now();
        #[allow(clippy::cast_precision_loss, reason = "seconds of a run")]
        let window_age = now_ns.saturating_sub(window_ns) as f64 / 1e9;
        self.cluster
            .audit
            .entries()
            .into_iter()
            .filter_map(|entry| {
                let at_s = window_age - now.duration_since(entry.created_at).as_secs_f64();
                let change = entry.change.filter(|_| at_s >= -WARMUP_S - 1.0)?;
                Some(Write {
                    at_s,
                    file: format!("{}/{}", change.cgroup, change.file),
                    old: change.old.unwrap_or_default(),
                    new: change.new,
                    // The record's first half repeats file and value.
                    reason: entry
                        .message
                        .split_once(": ")
                        .map_or_else(String::new, |(_, why)| why.to_owned()),
                })
            })
            .collect()
    }
}

/// What `slo-controller-config` says in `phase`. `elsewhere` is the percentage of the machine that
/// load generator and control plane use; `number` tells one configuration from the last.
fn config_of(phase: Phase, elsewhere: f64, number: u64) -> serde_json::Value {
    let mut config = cluster::quick_config();
    // Koordinator's node agent ignores what it does not know, and ours does: a mark may stand here.
    let mut suppress = json!({"demo": number});
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
    config
}

/// Waits, at most 20 s, for a second in which the machine wakes sleepers in time. What disturbs it
/// (a compiler, the neighbours of a virtual machine) comes and goes in bursts.
async fn wait_for_quiet() {
    for _ in 0..20 {
        let probe = tokio::task::spawn_blocking(|| load::wake_lag_us(250));
        if probe.await.is_ok_and(|lag| lag < SEND_LAG_US) {
            return;
        }
    }
}

fn rejection(
    window: &super::sampler::Window,
    ls: &load::Outcome,
    enforced: bool,
) -> Option<String> {
    // Without cgroups nobody can tell the service's CPU time from a stranger's.
    if enforced && window.strangers > STRANGERS {
        return Some(format!(
            "other processes used {:.1} %",
            window.strangers * 100.0
        ));
    }
    if window.steal > STEAL {
        return Some(format!("the hypervisor took {:.1} %", window.steal * 100.0));
    }
    (ls.realtime && ls.send_lag_p99_us > SEND_LAG_US)
        .then(|| format!("the generator woke {:.0} µs late", ls.send_lag_p99_us))
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
async fn poll<T>(
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
            config_of(phase, 4.6, 7)["resource-threshold-config"]["clusterStrategy"].clone()
        };
        let defaults =
            cluster::quick_config()["resource-threshold-config"]["clusterStrategy"].clone();
        assert_eq!(threshold(Phase::BestEffort)["enable"], false);
        assert_eq!(threshold(Phase::Managed), defaults);
        // What would run elsewhere is not taken from batch work.
        assert_eq!(
            threshold(Phase::Suppressed)["cpuSuppressThresholdPercent"],
            70
        );
        let mode =
            |phase| config_of(phase, 0.0, 7)["cpu-suppress-config"]["clusterStrategy"].clone();
        assert_eq!(
            mode(Phase::Suppressed),
            json!({"mode": "upstream", "demo": 7})
        );
        assert_eq!(mode(Phase::Managed), json!({"demo": 7}));
    }
}
