//! `koord bench descheduler`: the cost of a cycle on a large cluster with hot spots, and the effect on the
//! cluster over simulated time. The runs: as shipped, with jobs that the migration controller's limits hold
//! back; without jobs, upstream's order of eviction and ours, each with and without a query for a target
//! first; and no moves at all.

mod cluster;
mod jobs;

use crate::meter::rss_mib;
use anyhow::{Context as _, Result};
use cluster::{EvictionCounts, SimulatedCluster};
use jobs::Jobs;
use koord_descheduler::config::Configuration;
use koord_descheduler::framework::{
    EvictionRequest, Evictor, Filter, Framework, Intent, PluginHandles, SkipReason,
};
use koord_descheduler::registry::Registry;
use koord_descheduler::state::{PodInfo, Snapshot};
use koord_placement::Targets;
use koord_workload::statistics::percentile;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Share of CPU usage above which a node is hot.
const HIGH: f64 = 0.65;
const EVICTOR: &str = "BenchEvictor";

/// Flags of `koord bench descheduler`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Number of nodes, each with 32 cores; one in ten is hot.
    #[arg(long, default_value_t = 1000)]
    pub nodes: usize,
    /// Number of pods on these nodes.
    #[arg(long, default_value_t = 20_000)]
    pub pods: usize,
    /// Length of the simulation, in minutes.
    #[arg(long, default_value_t = 60)]
    pub minutes: u64,
    /// Run the default settings only, without the comparisons.
    #[arg(long)]
    pub only_ours: bool,
}

/// Settings of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunSettings {
    name: &'static str,
    /// `victimSelection` of LowNodeLoad; `None`: nothing is moved.
    order: Option<&'static str>,
    /// True if a target is queried before a pod is evicted.
    targets: bool,
    /// True if pods are moved by PodMigrationJobs, false if selected pods are evicted at once.
    jobs: bool,
}

/// Settings of all runs; the first is that of `koord up`.
static RUNS: [RunSettings; 6] = [
    RunSettings {
        name: "as shipped",
        order: Some("Variance"),
        targets: true,
        jobs: true,
    },
    RunSettings {
        name: "variance with targets",
        order: Some("Variance"),
        targets: true,
        jobs: false,
    },
    RunSettings {
        name: "variance",
        order: Some("Variance"),
        targets: false,
        jobs: false,
    },
    RunSettings {
        name: "greedy with targets",
        order: Some("Greedy"),
        targets: true,
        jobs: false,
    },
    RunSettings {
        name: "greedy",
        order: Some("Greedy"),
        targets: false,
        jobs: false,
    },
    RunSettings {
        name: "no descheduler",
        order: None,
        targets: false,
        jobs: false,
    },
];

/// The figures; those at the top are of the first run.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "names and units say it")]
pub(super) struct DeschedulerFigures {
    pub nodes: usize,
    pub pods: usize,
    pub minutes: u64,
    /// Longest time from the informers' stores to the plan.
    pub cycle_ms: f64,
    /// Peak memory of the process, including the simulated cluster.
    #[serde(rename = "rssMiB")]
    pub rss_mib: f64,
    /// Part of the memory that the scheduler's engine took when it was filled.
    #[serde(rename = "targetsRssMiB")]
    pub targets_rss_mib: f64,
    /// Standard deviation of the nodes' CPU usage, in percentage points.
    pub stddev_before: f64,
    pub stddev_after: f64,
    pub moves: u64,
    pub max_moves_per_pod_per_hour: usize,
    /// Evictions after which fewer pods were ready than their budget requires.
    pub pdb_violations: u64,
    pub runs: Vec<DeschedulerRun>,
}

/// Figures of one run.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "names and units say it")]
pub(super) struct DeschedulerRun {
    pub name: &'static str,
    pub cycles: usize,
    pub cycle_ms: f64,
    pub cycle_ms_mean: f64,
    /// Time to make the snapshot, as part of the longest cycle.
    pub snapshot_ms: f64,
    pub stddev_before: f64,
    pub stddev_after: f64,
    /// 95th percentile of the nodes' CPU usage, in percent.
    pub p95_before: f64,
    pub p95_after: f64,
    pub hot_nodes_before: usize,
    pub hot_nodes_after: usize,
    /// Number of cycles until 95 of 100 nodes were at or below the threshold and stayed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cycles_to_balance: Option<usize>,
    pub moves: u64,
    pub max_moves_per_pod_per_hour: usize,
    /// Evictions that a budget did not allow.
    pub evictions_blocked: u64,
    /// Jobs that were created, and jobs that failed.
    pub jobs: u64,
    pub jobs_failed: u64,
    pub pdb_violations: u64,
    /// Pods that were evicted and have no node at the end, and the most at any time.
    pub pods_without_node_after: usize,
    pub pods_without_node_most: usize,
    /// Pods that stayed because no node would take them, summed over cycles.
    pub no_target: usize,
    /// Pods that were not moved, by the rule that prevented it, summed over cycles.
    pub kept: BTreeMap<&'static str, usize>,
    #[serde(rename = "rssMiB")]
    pub rss_mib: f64,
}

impl DeschedulerRun {
    fn count(&mut self, moved: EvictionCounts) {
        self.moves += moved.moves;
        self.evictions_blocked += moved.blocked;
        self.pdb_violations += moved.violations;
    }
}

/// Measures.
///
/// # Errors
/// A configuration of this file is refused.
pub(super) fn run(args: &Args) -> Result<DeschedulerFigures> {
    let settings = if args.only_ours {
        &RUNS[..1]
    } else {
        &RUNS[..]
    };
    let mut runs = Vec::new();
    let mut targets_rss_mib = 0.0;
    for (at, settings) in settings.iter().enumerate() {
        let cluster = SimulatedCluster::new(args.nodes, args.pods)?;
        if at == 0 {
            targets_rss_mib = cluster.engine_mib;
        }
        runs.push(measure_run(*settings, cluster, args.minutes)?);
    }
    let first = runs.first().cloned().unwrap_or_default();
    Ok(DeschedulerFigures {
        nodes: args.nodes,
        pods: args.pods,
        minutes: args.minutes,
        cycle_ms: first.cycle_ms,
        rss_mib: first.rss_mib,
        targets_rss_mib,
        stddev_before: first.stddev_before,
        stddev_after: first.stddev_after,
        moves: first.moves,
        max_moves_per_pod_per_hour: first.max_moves_per_pod_per_hour,
        pdb_violations: first.pdb_violations,
        runs,
    })
}

/// Simulates the cluster for `minutes` with a descheduling cycle each minute.
fn measure_run(
    settings: RunSettings,
    mut cluster: SimulatedCluster,
    minutes: u64,
) -> Result<DeschedulerRun> {
    let framework = settings.order.map(|order| framework(order, settings.jobs));
    let mut framework = framework.transpose()?;
    let migrations = framework.as_ref().map(Framework::migrations);
    let mut jobs = migrations.and_then(|all| all.into_iter().next().map(Jobs::new));
    if let Some(framework) = framework.as_mut().filter(|_| settings.targets) {
        framework.placement = Some(Box::new(Targets::new(cluster.follower.clone())));
    }
    let before = LoadSpread::from_cluster(&cluster);
    let mut run = DeschedulerRun {
        name: settings.name,
        stddev_before: before.stddev,
        p95_before: before.p95,
        hot_nodes_before: before.hot,
        ..DeschedulerRun::default()
    };
    let mut total = 0.0;
    // A cycle for each report.
    for _ in 0..minutes {
        if let Some(framework) = &mut framework {
            let started = Instant::now();
            let snapshot = cluster.snapshot(jobs.as_ref());
            let snapshot_ms = millis(started);
            let plan = framework.run(&snapshot);
            let took = millis(started);
            if let Some(problem) = &plan.error {
                anyhow::bail!("{}: {problem}", settings.name);
            }
            run.rss_mib = run.rss_mib.max(rss_mib());
            run.cycles += 1;
            total += took;
            if took > run.cycle_ms {
                (run.cycle_ms, run.snapshot_ms) = (took, snapshot_ms);
            }
            for skipped in &plan.skipped {
                *run.kept.entry(skipped.reason.rule).or_default() += 1;
            }
            match &mut jobs {
                Some(jobs) => jobs.create(&plan, cluster.now),
                None => run.count(cluster.apply(&plan)),
            }
        }
        if let Some(jobs) = &mut jobs {
            run.count(jobs.process(&mut cluster));
            (run.jobs, run.jobs_failed) = (jobs.made, jobs.failed);
        }
        run.pods_without_node_most = run.pods_without_node_most.max(cluster.pending_pods());
        cluster.tick();
        let now = LoadSpread::from_cluster(&cluster);
        if now.p95 > 100.0 * HIGH {
            run.cycles_to_balance = None;
        } else {
            run.cycles_to_balance.get_or_insert(run.cycles);
        }
    }
    let after = LoadSpread::from_cluster(&cluster);
    let no_target = run.kept.get(koord_placement::NO_TARGET).copied();
    #[allow(clippy::cast_precision_loss, reason = "cycles")]
    let mean = total / run.cycles.max(1) as f64;
    Ok(DeschedulerRun {
        cycle_ms_mean: mean,
        stddev_after: after.stddev,
        p95_after: after.p95,
        hot_nodes_after: after.hot,
        max_moves_per_pod_per_hour: cluster.max_moves_per_hour(),
        pods_without_node_after: cluster.pending_pods(),
        no_target: no_target.unwrap_or(0),
        ..run
    })
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// Distribution of load over nodes, in percent of their CPU.
#[derive(Debug, Clone, Copy)]
struct LoadSpread {
    stddev: f64,
    p95: f64,
    hot: usize,
}

impl LoadSpread {
    fn from_cluster(cluster: &SimulatedCluster) -> Self {
        let mut loads = cluster.loads();
        loads.sort_unstable_by(f64::total_cmp);
        #[allow(clippy::cast_precision_loss, reason = "nodes")]
        let count = loads.len().max(1) as f64;
        let mean = loads.iter().sum::<f64>() / count;
        let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / count;
        Self {
            stddev: 100.0 * variance.sqrt(),
            p95: 100.0 * percentile(&loads, 95).unwrap_or(0.0),
            hot: loads.iter().filter(|load| **load > HIGH).count(),
        }
    }
}

/// Builds LowNodeLoad with this `victimSelection`, and the migration controller with the settings of
/// the chart or, without jobs, an evictor that evicts every selected pod.
fn framework(order: &str, jobs: bool) -> Result<Framework> {
    let registry = Registry::in_tree().with::<Value>(
        EVICTOR,
        false,
        |_| Ok(()),
        |_, _| {
            Ok(PluginHandles {
                evict: Some(Box::new(EvictEverything)),
                filter: Some(Box::new(EvictEverything)),
                ..PluginHandles::default()
            })
        },
    );
    let evictor = if jobs { "MigrationController" } else { EVICTOR };
    let config = json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "1m",
        "profiles": [{
            "name": "bench",
            "plugins": {
                "deschedule": {"disabled": [{"name": "*"}]},
                "balance": {"disabled": [{"name": "*"}], "enabled": [{"name": "LowNodeLoad"}]},
                "evict": {"disabled": [{"name": "*"}], "enabled": [{"name": evictor}]},
                "filter": {"disabled": [{"name": "*"}], "enabled": [{"name": evictor}]},
            },
            "pluginConfig": [
                {"name": "LowNodeLoad", "args": {
                    "evictableNamespaces": {"exclude": ["kube-system", "koordinator-system"]},
                    "highThresholds": {"cpu": 100.0 * HIGH, "memory": 95.0},
                    "lowThresholds": {"cpu": 45.0, "memory": 80.0},
                    "anomalyCondition": {"consecutiveAbnormalities": 2},
                    "victimSelection": order,
                }},
                {"name": "MigrationController", "args": {
                    "evictionPolicy": "Eviction",
                    "namespaces": {"exclude": ["kube-system", "koordinator-system"]},
                    "evictQPS": "10",
                    "evictBurst": 1,
                }},
            ],
        }],
    });
    let config = Configuration::parse(&config.to_string()).context("configuration")?;
    let completed = registry.complete(config).context("configuration")?;
    completed.build().context("configuration")
}

/// Evictor that rejects no pod.
#[derive(Debug)]
struct EvictEverything;

impl Filter for EvictEverything {
    fn name(&self) -> &'static str {
        EVICTOR
    }
    fn filter(&self, _: &Snapshot, _: &PodInfo) -> Result<(), SkipReason> {
        Ok(())
    }
}

impl Evictor for EvictEverything {
    fn name(&self) -> &'static str {
        EVICTOR
    }
    fn evict(&mut self, _: &Snapshot, _: &EvictionRequest<'_>) -> Result<Intent, SkipReason> {
        Ok(Intent::Evict(None))
    }
}

#[cfg(test)]
mod tests;
