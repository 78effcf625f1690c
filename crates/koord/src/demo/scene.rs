//! The demo's cluster: its start, the setup of a scenario, and the change of phases.

use super::result::{DemoSetup, Phase, median};
use super::stage::ScenarioStage;
use crate::cluster::{self, Cluster};
use crate::console;
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use koord_api::slo::RawNodeSLO;
use koord_kube::Api;
use koord_kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use koord_workload::pods::{self, NAMESPACE};
use koord_workload::sampler::Targets;
use koord_workload::{self as workload, counter, monotonic_ns};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A running demo cluster.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) setup: DemoSetup,
    pub(super) executable: PathBuf,
    pub(super) directory: tempfile::TempDir,
    root: koord_host::Root,
    pub(super) steps_per_us: f64,
    begun_ns: u64,
    /// True if the last wait for batch resources timed out.
    crowded: bool,
    generation: usize,
    configured: u64,
    elsewhere: Vec<f64>,
    /// End of the demo, if there is a time budget.
    pub(super) deadline: Option<tokio::time::Instant>,
    pub(super) progress: indicatif::ProgressBar,
    pub(super) stage: Option<ScenarioStage>,
}

impl Scene {
    /// Starts the cluster and waits until this machine offers batch resources.
    pub(super) async fn open(
        phase_seconds: f64,
        deadline: Option<tokio::time::Instant>,
        stop: &mut super::DemoSignals,
    ) -> Result<Self> {
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
            // No pod is to move.
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
        if let Some(other) = cluster.other_cluster_note() {
            progress
                .suspend(|| console::warn(format_args!("koord: {other}; it disturbs the demo")));
        }
        let mut scene = Self {
            setup: DemoSetup {
                cpus,
                kernel: kernel_release(&root),
                cgroup: root.version().as_str().to_owned(),
                phase_seconds,
                ..DemoSetup::default()
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
            deadline,
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

    /// Waits until the node is ready and offers batch resources.
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
        // On a busy machine the phases that need no batch resources are measured all the same.
        let _ = self.wait_for_batch_resources(15).await;
        Ok(())
    }

    /// Returns the cgroup of all pods.
    pub(super) fn pod_parent(&self) -> Result<koord_host::Cgroup> {
        Ok(self.root.cgroup(&self.cluster.pods_group()?))
    }

    /// Returns the scenario that is set up.
    pub(super) fn stage(&self) -> Result<&ScenarioStage> {
        self.stage.as_ref().context("no scenario is set up")
    }

    /// Measures the batch work of the machine when nothing else runs: the divisor of EMU. Called once per
    /// repeat.
    pub(super) async fn measure_reference(&mut self, repeat: usize) -> Result<()> {
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

    /// Records the share of the machine that generator and control plane used, in percent.
    pub(super) fn note_elsewhere(&mut self, percent: f64) {
        self.elsewhere.push(percent);
        self.setup.elsewhere_percent = median(self.elsewhere.iter().copied());
    }

    /// Removes all objects of the demo.
    pub(super) async fn close(mut self) {
        self.progress.set_message("stopping");
        if let Err(error) = self.leave().await {
            tracing::warn!(error = %format!("{error:#}"), "failed to clear away the scenario");
        }
        // The node agent stops its pods and removes its cgroups on shutdown.
        self.cluster.stop().await;
        self.progress.finish_and_clear();
    }

    pub(super) fn step(&self, what: &str) {
        if console::interactive() {
            let time_left = self.deadline.map(|deadline| {
                let time_left = deadline.saturating_duration_since(tokio::time::Instant::now());
                format!("; at most {} s left", time_left.as_secs())
            });
            let time_left = time_left.unwrap_or_default();
            self.progress.set_message(format!("{what}{time_left}"));
        }
    }

    pub(super) fn pods(&self) -> Api<Pod> {
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
        let expected = &config["cpu-suppress-config"]["clusterStrategy"];
        poll(
            "the NodeSLO to carry the phase's settings",
            30,
            async || {
                let slo = slos.get_opt(&name).await?;
                let carried = slo.is_some_and(|slo| {
                    slo.spec["extensions"]["Object"]["cpuSuppress"] == *expected
                });
                Ok(carried.then_some(()))
            },
        )
        .await
    }

    /// Waits until the node has the resources that the batch pods request.
    async fn wait_for_batch_resources(&mut self, seconds: u64) -> Result<()> {
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
            // Without cgroups the last phase's batch counts as use until it has left the window. After a wait
            // that timed out, the next one is shorter.
            let patience = if self.crowded { 30 } else { 180 };
            let outcome = self.wait_for_batch_resources(patience).await;
            self.crowded = outcome.is_err();
            outcome?;
        }
        self.generation += 1;
        let generation = self.generation;
        let create_dir = |name: &str| -> Result<PathBuf> {
            let path = self.directory.path().join(format!("{name}-{generation}"));
            std::fs::create_dir_all(&path)
                .with_context(|| format!("cannot create {}", path.display()))?;
            Ok(path)
        };
        let batch = pods::Batch {
            executable: &self.executable,
            counters: create_dir("count")?,
            scratch: create_dir("scratch")?,
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
            // A remaining file is removed with the directory at the end.
            let _ = std::fs::remove_dir_all(path);
        }
        Ok(())
    }

    /// Deletes the pods with a label and waits until they no longer exist.
    pub(super) async fn delete(&self, label: &str) -> Result<()> {
        let labelled = ListParams::default().labels(label);
        for pod in self.pods().list(&labelled).await.context("pods")? {
            let name = pod.metadata.name.unwrap_or_default();
            self.pods()
                .delete(&name, &DeleteParams::default())
                .await
                .with_context(|| format!("pod {name}"))?;
        }
        poll("the end of the pods", 60, async || {
            let remaining = self.pods().list(&labelled).await?;
            Ok(remaining.items.is_empty().then_some(()))
        })
        .await
    }

    /// Waits until `count` pods run; an error names the first pod that does not, with its condition.
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

    /// Returns an error with the name and cause of the first pod that does not run.
    pub(super) async fn stuck(&self) -> Option<anyhow::Error> {
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

    /// Returns the cgroups and counters that the sampler reads in `phase`.
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

/// Returns the content of `slo-controller-config` in `phase`; `limited` if the service has a CPU limit.
/// `elsewhere` is the percentage of the machine that load generator and control plane use; `number`
/// distinguishes one configuration from the last.
fn config_of(phase: Phase, limited: bool, elsewhere: f64, number: u64) -> Value {
    let mut config = cluster::quick_config();
    // Node agents ignore the name, so it marks the configuration.
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
        // The defaults of the cluster.
        Phase::Alone | Phase::Managed => {}
    }
    config["cpu-suppress-config"] = json!({"clusterStrategy": suppress});
    // Both Koordinator and koord have it, and have it off by default.
    let burst = limited && matches!(phase, Phase::Suppressed | Phase::Managed);
    let policy = if burst { "cpuBurstOnly" } else { "none" };
    config["cpu-burst-config"] = json!({"clusterStrategy": {"policy": policy}});
    config
}

/// Returns the reason why the node does not confine its pods, if so.
fn unconfined(node: &Node) -> Option<String> {
    let annotations = node.metadata.annotations.as_ref();
    match annotations.and_then(|all| all.get(koord_node::CONFINEMENT_ANNOTATION)) {
        Some(confinement) => confinement.strip_prefix("unconfined: ").map(str::to_owned),
        None => Some("the node has no annotation about the confinement of its pods".to_owned()),
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
    // The template is a constant; a fault in it would only change the colors.
    if let Ok(style) = indicatif::ProgressStyle::with_template("{spinner:.green} {msg} [{elapsed}]")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Polls every 100 ms until there is an answer.
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
            bail!("waited {seconds} s without success for {what}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_per_phase_disables_or_keeps_strategies() {
        let threshold = |phase| {
            config_of(phase, false, 4.6, 7)["resource-threshold-config"]["clusterStrategy"].clone()
        };
        let config = cluster::quick_config();
        let defaults = config["resource-threshold-config"]["clusterStrategy"].clone();
        assert_eq!(threshold(Phase::BestEffort)["enable"], false);
        assert_eq!(threshold(Phase::Managed), defaults);
        // The usage of programs that would run elsewhere does not reduce batch work.
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
