//! `koord demo topology`: a Deployment on nodes whose kubelets refuse pods that do not fit into one NUMA
//! node, under three schedulers.
//!
//! A scheduler that adds up a node's CPUs binds a pod that the kubelet then fails with TopologyAffinityError,
//! the ReplicaSet creates another, and so on for ever. The API server, its controllers and the scheduler are
//! real; the nodes are simulated: no container images are pulled, so that pods fail as fast as the control
//! plane creates them.

mod page;

use super::simulated::SimulatedCluster;
use super::{output, simulated};
use crate::{cluster, console};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, Change, Client, Informer, Scope};
use koord_scheduler::config::Configuration;
use koord_sim::{Layout, NodeTemplate};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// CPUs of each of the two NUMA nodes, and of a pod: one fits into each, three into both together.
const CPUS: (u32, u32) = (8, 5);
const NUMA_NODES: u8 = 2;
/// Pods that find no NUMA node.
const SURPLUS: u32 = 2;
/// Time limit for all nodes to appear.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flags of `koord demo topology`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Time for which each scheduler is measured, in seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Number of simulated nodes, with two NUMA nodes of eight CPUs each.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub nodes: u32,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the HTML report with a chart to this file.
    #[arg(long, value_name = "FILE.html", default_value = "koord-topology.html")]
    pub report: PathBuf,
    /// Show the logs of the components.
    #[arg(long)]
    pub verbose: bool,
}

/// Set of scheduler plugins that places the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Chain {
    /// The plugins that kube-scheduler has without a configuration.
    Default,
    /// NodeNUMAResource, by the kubelet's policy and the NUMA nodes that koordlet reports.
    Koordinator,
    /// NodeResourceTopologyMatch, by the free resources that an exporter reports.
    Community,
}

impl Chain {
    const ALL: [Self; 3] = [Self::Default, Self::Koordinator, Self::Community];

    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Koordinator => "koordinator",
            Self::Community => "community",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Default => "the plugins of kube-scheduler",
            Self::Koordinator => "NodeNUMAResource in addition",
            Self::Community => "NodeResourceTopologyMatch in addition",
        }
    }

    fn config(self) -> Result<Configuration> {
        let (enabled, args) = match self {
            Self::Default => (json!([]), json!([])),
            Self::Koordinator => (json!([{"name": "NodeNUMAResource"}]), json!([])),
            Self::Community => {
                let name = "NodeResourceTopologyMatch";
                let args = json!({"cacheResyncPeriodSeconds": 5});
                (
                    json!([{"name": name}]),
                    json!([{"name": name, "args": args}]),
                )
            }
        };
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"plugins": {"multiPoint": {"enabled": enabled}}, "pluginConfig": args}],
        });
        Configuration::parse(&config.to_string()).context("scheduler's configuration")
    }
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologyOutcome {
    /// Conditions of the run.
    pub setup: TopologySetup,
    /// Pods per minute that failed with TopologyAffinityError, by [`Chain`].
    pub failed_pods_per_minute: BTreeMap<Chain, f64>,
    /// Results of each chain.
    pub chains: Vec<ChainResult>,
}

/// Conditions of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologySetup {
    /// Simulated nodes.
    pub nodes: u32,
    /// Hardware layout of each of them.
    pub layout: Layout,
    /// Replicas of the Deployment.
    pub replicas: u32,
    /// Exclusive CPUs of each pod.
    pub cpus_of_pod: u32,
    /// Time for which each chain was watched, in seconds.
    pub seconds: u32,
}

/// Counts of the pods under one chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainResult {
    /// The chain.
    pub chain: Chain,
    /// Pods that failed with TopologyAffinityError.
    pub failed: u64,
    /// Pods that failed with TopologyAffinityError in each second.
    pub failed_by_second: Vec<u64>,
    /// Pods that run at the end.
    pub running: usize,
    /// Pods that wait for a node at the end.
    pub waiting: usize,
    /// Scheduling message of the first waiting pod.
    pub why: Option<String>,
}

/// Runs the demo.
///
/// # Errors
/// When it is interrupted, a component does not start, or a file cannot be written.
pub fn main(args: &Args) -> Result<()> {
    cluster::init_logging(if args.verbose { "info" } else { "error" });
    output::check_files(&args.report, args.json.as_deref())?;
    let outcome = simulated::measure(run(args))?;
    let html = page::html(&outcome);
    output::publish(
        &outcome,
        &page::table(&outcome),
        args.json.as_deref(),
        (&html, &args.report),
        "picture",
    )
}

/// Runs the same Deployment with each set of scheduler plugins, in a separate cluster each, and counts failed
/// pods.
async fn run(args: &Args) -> Result<TopologyOutcome> {
    let mut layout = Layout::new(NUMA_NODES, CPUS.0)?;
    // NodeNUMAResource aligns pods as a whole; these have one container.
    "pod".clone_into(&mut layout.scope);
    let setup = TopologySetup {
        nodes: args.nodes,
        replicas: args.nodes * u32::from(NUMA_NODES) + SURPLUS,
        cpus_of_pod: CPUS.1,
        seconds: args.seconds,
        layout,
    };
    let mut chains = Vec::new();
    for chain in Chain::ALL {
        let (name, about) = (chain.name(), chain.about());
        console::warn(format_args!("{name}: {about}, {} s", setup.seconds));
        let mut stage = TopologyStage::set_up(chain, &setup).await.context(name)?;
        let watched = stage.watch(chain, &setup).await;
        stage.0.stop().await;
        chains.push(watched.context(name)?);
    }
    let minutes = f64::from(setup.seconds) / 60.0;
    #[allow(clippy::cast_precision_loss, reason = "a count of pods")]
    let rate = |watched: &ChainResult| (watched.chain, watched.failed as f64 / minutes);
    Ok(TopologyOutcome {
        failed_pods_per_minute: chains.iter().map(rate).collect(),
        setup,
        chains,
    })
}

/// A cluster of simulated nodes with one scheduler.
struct TopologyStage(SimulatedCluster);

impl TopologyStage {
    /// Starts API server, nodes and the scheduler of `chain`.
    async fn set_up(chain: Chain, setup: &TopologySetup) -> Result<Self> {
        let mut cluster = SimulatedCluster::start().await?;
        let options = koord_sim::Options {
            nodes: setup.nodes as usize,
            template: NodeTemplate::with_numa(setup.layout.clone()),
            ..koord_sim::Options::default()
        };
        cluster.spawn("simulation of nodes", |client, context| {
            koord_sim::run(options, client, context)
        });
        let reports = wait_for_reports(cluster.client.clone(), setup.nodes as usize);
        cluster.during(reports).await?;
        let options = koord_scheduler::Options {
            leader_elect: false,
            config: Some(chain.config()?),
            ..koord_scheduler::Options::new(koord_plugins::registry())
        };
        cluster.spawn("scheduler", |client, context| {
            koord_scheduler::run(options, client, context)
        });
        Ok(Self(cluster))
    }

    /// Creates the Deployment, and counts its pods until the time ends.
    async fn watch(&mut self, chain: Chain, setup: &TopologySetup) -> Result<ChainResult> {
        let stop = self.0.context.shutdown.clone();
        let pods = Informer::<Pod>::start(self.0.client.clone(), Scope::default(), stop);
        let deployments: Api<Deployment> = Api::namespaced(self.0.client.clone(), "default");
        deployments
            .create(&PostParams::default(), &deployment(setup)?)
            .await
            .context("Deployment")?;
        let failed_by_second = self.0.during(count(pods, setup.seconds)).await?;
        let all: Api<Pod> = Api::namespaced(self.0.client.clone(), "default");
        let live = ListParams::default().fields("status.phase!=Failed");
        let live = all.list(&live).await.context("pods")?.items;
        watched(chain, failed_by_second, &live)
    }
}

/// Counts the pods at the end; `live` are those that have not failed.
fn watched(chain: Chain, failed_by_second: Vec<u64>, live: &[Pod]) -> Result<ChainResult> {
    let running = live.iter().filter(|pod| phase(pod) == "Running").count();
    if running == 0 {
        bail!("no pod runs at the end: nothing was shown");
    }
    let waiting: Vec<String> = live.iter().filter_map(waits).collect();
    Ok(ChainResult {
        chain,
        failed: failed_by_second.iter().sum(),
        failed_by_second,
        running,
        waiting: waiting.len(),
        why: waiting.into_iter().next(),
    })
}

/// Waits until every node has a report.
async fn wait_for_reports(client: Client, nodes: usize) -> Result<()> {
    let reports: Api<NodeResourceTopology> = Api::all(client);
    let all = async {
        while reports
            .list_metadata(&ListParams::default())
            .await?
            .items
            .len()
            < nodes
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, koord_kube::Error>(())
    };
    match tokio::time::timeout(PATIENCE, all).await {
        Ok(done) => Ok(done?),
        Err(_) => bail!("not all of {nodes} simulated nodes appeared within {PATIENCE:?}"),
    }
}

/// Counts the pods that fail in each of `seconds` seconds.
async fn count(mut pods: Informer<Pod>, seconds: u32) -> Result<Vec<u64>> {
    let begun = Instant::now();
    let mut by_second = vec![0; seconds as usize];
    let end = begun + Duration::from_secs(u64::from(seconds));
    loop {
        let Ok(next) = tokio::time::timeout_at(end, pods.changes.recv()).await else {
            return Ok(by_second);
        };
        let change = next.context("the watch of pods ended")?;
        let Change::Applied { old, new } = change else {
            continue;
        };
        if refused(&new) && !old.is_some_and(|old| refused(&old)) {
            let second = usize::try_from(begun.elapsed().as_secs()).unwrap_or(usize::MAX);
            if let Some(count) = by_second.get_mut(second) {
                *count += 1;
            }
        }
    }
}

fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn refused(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.as_deref());
    phase(pod) == "Failed" && reason == Some("TopologyAffinityError")
}

/// Returns the reason why the pod is pending, if it is.
fn waits(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|it| it.type_ == "PodScheduled")?;
    (condition.status == "False").then(|| condition.message.clone().unwrap_or_default())
}

/// Returns a Deployment of pods with one container that has exclusive CPUs.
fn deployment(setup: &TopologySetup) -> Result<Deployment> {
    let amounts = json!({"cpu": setup.cpus_of_pod.to_string(), "memory": "1Gi"});
    let labels = json!({"app": "web"});
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": setup.replicas, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "web", "image": "web",
                "resources": {"requests": amounts, "limits": amounts}}]},
        }},
    }))
    .context("Deployment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chain_is_a_valid_configuration() {
        for chain in Chain::ALL {
            let config = chain.config().unwrap();
            let context = koord_scheduler::framework::BuildContext::default();
            let registry = koord_plugins::registry();
            let built =
                koord_scheduler::framework::Profiles::build(&config, &registry, &context, false);
            assert!(built.unwrap().find("default-scheduler").is_some());
        }
    }

    #[test]
    fn the_figures_have_the_names_that_readers_expect() {
        let text = serde_json::to_value(page::tests::outcome()).unwrap();
        let rates = &text["failedPodsPerMinute"];
        assert_eq!(
            *rates,
            json!({"default": 1200.0, "koordinator": 0.0, "community": 0.0})
        );
        let read: TopologyOutcome = serde_json::from_value(text).unwrap();
        assert_eq!(read, page::tests::outcome());
    }

    #[test]
    fn a_cluster_on_which_nothing_runs_shows_nothing() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({"status": {"phase": phase}})).unwrap()
        };
        let result = watched(Chain::Community, vec![0, 0], &[pod("Pending")]);
        assert!(result.unwrap_err().to_string().contains("no pod runs"));
        let live = [pod("Pending"), pod("Running")];
        let result = watched(Chain::Community, vec![2, 1], &live).unwrap();
        assert_eq!((result.failed, result.running, result.waiting), (3, 1, 0));
    }
}
