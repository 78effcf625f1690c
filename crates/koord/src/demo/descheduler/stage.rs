//! The cluster of `koord demo descheduler`.

use super::super::simulated::SimulatedCluster;
use super::{CPUS, DeschedulerOutcome, DeschedulerSetup, LoadSpread, Sample, THRESHOLDS};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase};
use koord_api::slo::NodeMetric;
use koord_api::{Quantity, resources};
use koord_descheduler::config::Configuration;
use koord_descheduler::{daemon, registry};
use koord_kube::api::PostParams;
use koord_kube::{Api, Informer, ObjectKey, Scope, patch};
use koord_placement::Targets;
use koord_sim::NodeTemplate;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Workloads: name, pods for each of the first nodes, and milli-CPUs that a pod uses; it requests 500.
const WORKLOADS: [(&str, usize, u32); 4] = [
    ("search", 2, 2400),
    ("api", 3, 1500),
    ("cart", 2, 1200),
    ("mail", 2, 700),
];
/// Time limit for nodes and pods to appear.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between two samples of the loads.
const SAMPLE: Duration = Duration::from_millis(500);

/// The demo's cluster of simulated nodes.
pub(super) struct DeschedulerStage {
    pub(super) setup: DeschedulerSetup,
    pub(super) cluster: SimulatedCluster,
    pods: Informer<Pod>,
    metrics: Informer<NodeMetric>,
    jobs: Informer<PodMigrationJob>,
    /// Start of the descheduler; `None` before.
    begun: Option<Instant>,
    fewest_running: usize,
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("an object of the demo")
}

/// Returns the descheduler's configuration, parsed like a file.
fn configuration() -> Result<Configuration> {
    let (low, high) = THRESHOLDS;
    let config = json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "deschedulingInterval": "1s",
        "profiles": [{
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {"name": "MigrationController", "args": {
                    "defaultJobMode": "ReservationFirst",
                    "evictBurst": 5,
                    "maxMigratingPerWorkload": "20%",
                    "maxUnavailablePerWorkload": "20%",
                    // What a real cluster does in minutes is shown in seconds.
                    "objectLimiters": {"workload": {"duration": "2s"}},
                    "arbitrationArgs": {"interval": "100ms"},
                }},
                {"name": "LowNodeLoad", "args": {
                    "lowThresholds": {"cpu": low, "memory": 80},
                    "highThresholds": {"cpu": high, "memory": 90},
                    "anomalyCondition": {"timeout": "1m", "consecutiveAbnormalities": 2, "consecutiveNormalities": 1},
                }},
            ],
        }],
    });
    Ok(Configuration::parse(&config.to_string())?)
}

impl DeschedulerStage {
    /// Starts API server, nodes and a scheduler.
    pub(super) async fn set_up(nodes: usize) -> Result<Self> {
        let cluster = SimulatedCluster::start().await?;
        let first = nodes.div_ceil(3);
        let (client, stop) = (&cluster.client, || cluster.context.shutdown.clone());
        let mut stage = Self {
            setup: DeschedulerSetup {
                nodes: (0..nodes).map(koord_sim::node_name).collect(),
                first,
                cpus: CPUS,
                pods: WORKLOADS.iter().map(|(_, pods, _)| pods * first).sum(),
                low: THRESHOLDS.0,
                high: THRESHOLDS.1,
            },
            pods: Informer::start(client.clone(), Scope::default(), stop()),
            metrics: Informer::start(client.clone(), Scope::default(), stop()),
            jobs: Informer::start(client.clone(), Scope::default(), stop()),
            cluster,
            begun: None,
            fewest_running: usize::MAX,
        };
        let mut template = NodeTemplate::default();
        let cpus = Quantity::from_value(i64::from(CPUS));
        template.capacity.insert(resources::CPU.to_owned(), cpus);
        let options = koord_sim::Options {
            nodes,
            template,
            sample_interval: Duration::from_millis(500),
            least_report_interval: Duration::from_secs(1),
            ..koord_sim::Options::default()
        };
        stage
            .cluster
            .spawn("simulation of nodes", |client, context| {
                koord_sim::run(options, client, context)
            });
        stage.create_metrics().await?;
        let options = koord_scheduler::Options {
            leader_elect: false,
            ..koord_scheduler::Options::new(koord_plugins::registry())
        };
        stage.cluster.spawn("scheduler", |client, context| {
            koord_scheduler::run(options, client, context)
        });
        Ok(stage)
    }

    /// Waits for the nodes, and creates their NodeMetrics so that all report usage; in a cluster the manager
    /// does that.
    async fn create_metrics(&mut self) -> Result<()> {
        let stop = self.cluster.context.shutdown.clone();
        let mut nodes =
            Informer::<Node>::start(self.cluster.client.clone(), Scope::default(), stop);
        let metrics: Api<NodeMetric> = Api::all(self.cluster.client.clone());
        let names = self.setup.nodes.clone();
        let make = async {
            for name in &names {
                let key = ObjectKey::new("", name.as_str());
                while nodes.store.get(&key).is_none() {
                    nodes
                        .changes
                        .recv()
                        .await
                        .context("the watch of nodes ended")?;
                }
                let metric = json!({"metadata": {"name": name}, "spec": {"metricCollectPolicy": {
                    "aggregateDurationSeconds": 2, "reportIntervalSeconds": 1}}});
                let metric = typed(metric)?;
                metrics.create(&PostParams::default(), &metric).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        within(&mut self.cluster, "the nodes", PATIENCE, make).await
    }

    /// Places all pods on the first nodes, and waits until they run; the others are cordoned.
    pub(super) async fn fill(&mut self) -> Result<()> {
        let (_, late) = self.setup.nodes.split_at(self.setup.first);
        for name in late {
            self.close(name, true).await?;
        }
        let deployments: Api<Deployment> = Api::namespaced(self.cluster.client.clone(), "default");
        for (name, pods, uses) in WORKLOADS {
            let labels = json!({"app": name});
            let deployment = typed(json!({
                "metadata": {"name": name},
                "spec": {"replicas": pods * self.setup.first, "selector": {"matchLabels": labels}, "template": {
                    "metadata": {"labels": labels, "annotations": {
                        koord_sim::usage::KWOK_CPU_ANNOTATION: format!("{uses}m"),
                        koord_sim::usage::KWOK_MEMORY_ANNOTATION: "1Gi"}},
                    "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": name, "image": name,
                        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
                }},
            }))?;
            let params = PostParams::default();
            deployments
                .create(&params, &deployment)
                .await
                .context(name)?;
        }
        let expected = self.setup.pods;
        let pods = &mut self.pods;
        let all_run = async {
            while running(&pods.store.list()) < expected {
                pods.changes
                    .recv()
                    .await
                    .context("the watch of pods ended")?;
            }
            Ok(())
        };
        within(&mut self.cluster, "the pods", PATIENCE, all_run).await?;
        self.fewest_running = expected;
        Ok(())
    }

    /// Makes the other nodes schedulable.
    pub(super) async fn open(&self) -> Result<()> {
        let (_, late) = self.setup.nodes.split_at(self.setup.first);
        for name in late {
            self.close(name, false).await?;
        }
        Ok(())
    }

    /// Cordons or uncordons a node.
    async fn close(&self, node: &str, closed: bool) -> Result<()> {
        let change = json!({"spec": {"unschedulable": closed}});
        let changed = patch::merge_node(&self.cluster.client, node, &change).await;
        changed.map(drop).with_context(|| format!("node {node}"))
    }

    /// Starts the descheduler.
    pub(super) fn start_descheduler(&mut self) -> Result<()> {
        let completed = registry::Registry::in_tree().complete(configuration()?)?;
        let options = daemon::Options::new(&completed.config);
        let mut framework = completed.build()?;
        let scheduler = koord_scheduler::Options::new(koord_placement::registry());
        let targets = Targets::follow(scheduler, &self.cluster.client, &self.cluster.context)?;
        framework.placement = Some(Box::new(targets));
        self.cluster.spawn("descheduler", |client, context| {
            daemon::run(options, framework, client, context)
        });
        self.begun = Some(Instant::now());
        Ok(())
    }

    /// Samples the loads for `seconds`, or until `is_enough` of the last sample.
    pub(super) async fn watch(
        &mut self,
        seconds: u32,
        is_enough: impl Fn(&Sample) -> bool,
    ) -> Result<Vec<Sample>> {
        let seconds = Duration::from_secs(u64::from(seconds));
        let (begin, started) = (Instant::now(), self.begun);
        let (nodes, cpus) = (&self.setup.nodes, self.setup.cpus);
        let (pods, jobs, metrics) = (&self.pods.store, &self.jobs.store, &self.metrics.store);
        let fewest = &mut self.fewest_running;
        let mut ticks = interval(SAMPLE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let look = async {
            let mut samples = Vec::new();
            loop {
                ticks.tick().await;
                *fewest = (*fewest).min(running(&pods.list()));
                let second = match started {
                    Some(started) => started.elapsed().as_secs_f64(),
                    // Up to when it will start.
                    None => begin.elapsed().as_secs_f64() - seconds.as_secs_f64(),
                };
                let sample = Sample {
                    second,
                    moves: jobs_in_phase(&jobs.list(), PodMigrationJobPhase::Succeeded).count(),
                    loads: loads(&metrics.list(), nodes, cpus),
                };
                let enough = is_enough(&sample);
                samples.push(sample);
                if enough || begin.elapsed() >= seconds {
                    return Ok(samples);
                }
            }
        };
        within(&mut self.cluster, "the loads", seconds + PATIENCE, look).await
    }

    /// Returns the results of the run.
    pub(super) fn outcome(
        &self,
        samples: Vec<Sample>,
        seconds_to_cool: Option<f64>,
    ) -> Result<DeschedulerOutcome> {
        let high = f64::from(self.setup.high);
        let before = samples.iter().rfind(|sample| sample.second <= 0.0);
        let before = before.context("nothing was measured before the descheduler started")?;
        let after = samples.last().unwrap_or(before);
        let jobs = self.jobs.store.list();
        let failed = jobs_in_phase(&jobs, PodMigrationJobPhase::Failed)
            .chain(jobs_in_phase(&jobs, PodMigrationJobPhase::Aborted));
        let failed: Vec<_> = failed.collect();
        let (before, after) = (
            LoadSpread::from_loads(&before.loads, high),
            LoadSpread::from_loads(&after.loads, high),
        );
        if before.hot == 0 {
            bail!("no node was hot before the descheduler started: there is nothing to show");
        }
        Ok(DeschedulerOutcome {
            setup: self.setup.clone(),
            before,
            after,
            moves: jobs_in_phase(&jobs, PodMigrationJobPhase::Succeeded).count(),
            failures: failed.len(),
            failure: failed.first().and_then(|job| {
                let status = job.status.as_ref()?;
                Some(format!("{}: {}", status.reason, status.message))
            }),
            max_moves_per_pod: most_moves(&jobs),
            fewest_running: self.fewest_running,
            seconds_to_cool,
            samples,
        })
    }
}

/// Runs `work`, and fails if a component ends or `patience` is over before; errors name it `what`.
async fn within<T>(
    cluster: &mut SimulatedCluster,
    what: &str,
    patience: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limited = async {
        match tokio::time::timeout(patience, work).await {
            Ok(done) => done,
            Err(_) => bail!("timed out after {patience:?} waiting for {what}"),
        }
    };
    cluster.during(limited).await
}

fn running(pods: &[Arc<Pod>]) -> usize {
    let phase = |pod: &&Arc<Pod>| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Running")
            && pod.metadata.deletion_timestamp.is_none()
    };
    pods.iter().filter(phase).count()
}

fn jobs_in_phase(
    jobs: &[Arc<PodMigrationJob>],
    phase: PodMigrationJobPhase,
) -> impl Iterator<Item = &Arc<PodMigrationJob>> {
    jobs.iter().filter(move |job| {
        let status = job.status.as_ref();
        status.and_then(|status| status.phase.as_ref()) == Some(&phase)
    })
}

/// Returns the used CPUs in percent by node; 0 where nothing is reported.
#[allow(clippy::cast_precision_loss, reason = "milli-CPUs of a machine")]
fn loads(metrics: &[Arc<NodeMetric>], nodes: &[String], cpus: u32) -> Vec<f64> {
    let used = metrics.iter().filter_map(|metric| {
        let info = metric.status.as_ref()?.node_metric.as_ref()?;
        let used = info.node_usage.as_ref()?.resources.get(resources::CPU)?;
        Some((
            metric.metadata.name.as_deref()?,
            used.milli_value() as f64 / 10.0 / f64::from(cpus),
        ))
    });
    let used: BTreeMap<_, _> = used.collect();
    let load = |name: &String| used.get(name.as_str()).copied().unwrap_or_default();
    nodes.iter().map(load).collect()
}

/// Returns the moves of the pod that was moved most often. A moved pod continues as the one that took its
/// reservation.
fn most_moves(jobs: &[Arc<PodMigrationJob>]) -> usize {
    let mut succeeded: Vec<_> = jobs_in_phase(jobs, PodMigrationJobPhase::Succeeded).collect();
    succeeded.sort_by_key(|job| job.metadata.creation_timestamp.clone());
    let mut moves = BTreeMap::<String, usize>::new();
    for job in succeeded {
        let key = |reference: &k8s_openapi::api::core::v1::ObjectReference| {
            format!(
                "{}/{}",
                reference.namespace.as_deref().unwrap_or_default(),
                reference.name.as_deref().unwrap_or_default()
            )
        };
        let old = key(&job.spec.pod_ref);
        let status = job.status.as_ref();
        let new = status.and_then(|status| status.pod_ref.as_ref());
        let count = moves.get(&old).copied().unwrap_or_default() + 1;
        moves.insert(new.map(key).unwrap_or(old), count);
    }
    moves.into_values().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descheduler_configuration_builds() {
        let completed = registry::Registry::in_tree().complete(configuration().unwrap());
        let completed = completed.unwrap();
        assert_eq!(completed.notes, [""; 0]);
        completed.build().unwrap();
    }

    #[test]
    fn a_pod_that_is_moved_again_is_counted_again() {
        let job = |at: &str, phase: &str, from: &str, to: &str| {
            let job = json!({
                "metadata": {"name": from, "creationTimestamp": at},
                "spec": {"podRef": {"namespace": "d", "name": from}},
                "status": {"phase": phase, "podRef": {"namespace": "d", "name": to}},
            });
            Arc::new(serde_json::from_value::<PodMigrationJob>(job).unwrap())
        };
        let jobs = [
            job("2026-01-01T00:00:02Z", "Succeeded", "b", "c"),
            job("2026-01-01T00:00:01Z", "Succeeded", "a", "b"),
            job("2026-01-01T00:00:03Z", "Failed", "c", "e"),
            job("2026-01-01T00:00:03Z", "Succeeded", "x", "y"),
        ];
        assert_eq!(most_moves(&jobs), 2);
        assert_eq!(most_moves(&[]), 0);
    }

    #[test]
    fn loads_are_by_node() {
        let metric = json!({
            "metadata": {"name": "b"}, "spec": {},
            "status": {"nodeMetric": {"nodeUsage": {"resources": {"cpu": "8"}}}},
        });
        let metric = Arc::new(serde_json::from_value(metric).unwrap());
        let nodes = ["a", "b"].map(str::to_owned);
        assert_eq!(loads(&[metric], &nodes, 16), [0.0, 50.0]);
    }
}
