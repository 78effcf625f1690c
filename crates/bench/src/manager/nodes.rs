//! A cluster of many nodes that report: the controllers' use of the machine, and the time until a change of
//! the settings reaches every node.

use super::objects::{self, ManagerCluster};
use super::process::{Manager, ManagerProgram};
use super::{Args, ManagerCost};
use crate::koordlet::objects as node;
use crate::meter::Window;
use anyhow::{Context as _, Result, bail, ensure};
use koord_api::configmap::{NAME as CONFIG_NAME, NAMESPACE as CONFIG_NAMESPACE};
use koord_apiserver::store::{Entry, TableId, Watcher};
use koord_app::console;
use koord_workload::statistics::median;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Time limit for the manager's work at its start.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit for a change of the settings to be applied.
const REPLAN: Duration = Duration::from_secs(120);
/// Time without a write after which a change of the settings is complete.
const CALM: Duration = Duration::from_millis(1500);
/// Interval between two checks of progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of changes of the settings.
const REPLANS: u32 = 3;
/// Ratio of koordlet's report rate to the rate at which a kubelet writes the status of an unchanged node.
const HEARTBEATS: u64 = 5;
/// Reports in a period of a node's load.
const DAY: f64 = 60.0;

/// Figures of the controllers of nodes.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeFigures {
    nodes: u32,
    pods_per_node: u32,
    /// Seconds between two reports of a node.
    interval: f64,
    /// Seconds from the start of the manager until every node has its NodeMetric and NodeSLO.
    start_sec: f64,
    /// CPU seconds that took.
    start_cpu_sec: f64,
    /// Reports per second in the window.
    reports_per_sec: f64,
    /// Writes of nodes per second in the window, without those of kubelets.
    node_writes_per_sec: f64,
    #[serde(flatten)]
    pub(super) cost: ManagerCost,
    /// Windows that were rejected because the machine was busy with something else.
    rejected: u32,
    /// True if the reported window should have been rejected, too.
    noisy: bool,
    /// Seconds from the write of the settings until the last node and NodeSLO was written, median.
    pub(super) config_replan_sec: f64,
    /// Seconds of each change of the settings.
    replans_sec: Vec<f64>,
    /// CPU seconds of the manager per change, mean.
    replan_cpu_sec: f64,
}

fn nodes_table() -> TableId {
    TableId::new("", "nodes")
}

fn slos_table() -> TableId {
    TableId::new("slo.koordinator.sh", "nodeslos")
}

/// Measures.
///
/// # Errors
/// The manager does not start, or leaves a node out.
pub(super) async fn run(args: &Args, program: &ManagerProgram, work: &Path) -> Result<NodeFigures> {
    let work = work.join("nodes");
    let cluster = Arc::new(ManagerCluster::start(&work).await?);
    fill(&cluster, args).await?;
    cluster.install_webhooks().await?;
    let began = Instant::now();
    let mut manager = Manager::start(program, &cluster.local.kubeconfig, &work, &[]).await?;
    let metrics = TableId::new("slo.koordinator.sh", "nodemetrics");
    for table in [&metrics, &slos_table()] {
        wait_for_all(&cluster, &mut manager, table, args.nodes, |_| true).await?;
    }
    let start_sec = began.elapsed().as_secs_f64();
    let start_cpu_sec = manager.cpu_seconds();

    let mut reports = JoinSet::new();
    reports.spawn(report_forever(cluster.clone(), args.clone()));
    let published = |entry: &Entry| {
        let amount = &entry.value()["status"]["allocatable"]["kubernetes.io/batch-cpu"];
        amount.is_string() && *amount != "0"
    };
    wait_for_all(
        &cluster,
        &mut manager,
        &nodes_table(),
        args.nodes,
        published,
    )
    .await?;
    // One more round, so that remaining work of the start is done.
    tokio::time::sleep(Duration::from_secs_f64(args.interval)).await;
    let mut rejected = 0;
    let (cost, node_writes_per_sec) = loop {
        let mut writes = TableWatch::start(&cluster, nodes_table())?;
        let window = Window::begin(manager.pid())?;
        let written = writes
            .count_changes(Duration::from_secs(args.seconds))
            .await?;
        manager.check_running()?;
        let cost = ManagerCost::from(window.usage()?);
        if cost.is_noisy() && rejected < args.repeats {
            rejected += 1;
            console::warn(format_args!(
                "a window is repeated: others {:.1} %, steal {:.1} %",
                cost.others_percent, cost.steal_percent
            ));
            continue;
        }
        let kubelets = f64::from(args.nodes) / args.interval / HEARTBEATS as f64;
        let per_sec = written as f64 / cost.seconds - kubelets;
        break (cost, per_sec.max(0.0));
    };
    // No reports are written while the settings change.
    reports.shutdown().await;
    let before = manager.cpu_seconds();
    let mut replans_sec = Vec::new();
    for round in 1..=REPLANS {
        replans_sec.push(replan(&cluster, &mut manager, args.nodes, round).await?);
    }
    let replan_cpu_sec = (manager.cpu_seconds() - before) / f64::from(REPLANS);
    Ok(NodeFigures {
        nodes: args.nodes,
        pods_per_node: args.pods_per_node,
        interval: args.interval,
        start_sec,
        start_cpu_sec,
        reports_per_sec: f64::from(args.nodes) / args.interval,
        node_writes_per_sec,
        rejected,
        noisy: cost.is_noisy(),
        cost,
        config_replan_sec: median(replans_sec.iter().copied()),
        replans_sec,
        replan_cpu_sec,
    })
}

/// Creates the nodes and their pods.
async fn fill(cluster: &ManagerCluster, args: &Args) -> Result<()> {
    let nodes = (0..args.nodes).map(objects::node);
    cluster.create_all("/api/v1/nodes", nodes).await?;
    let path = format!("/api/v1/namespaces/{}/pods", node::NAMESPACE);
    let pods = (0..args.nodes * args.pods_per_node)
        .map(|index| objects::running_pod(index, args.pods_per_node));
    cluster.create_all(&path, pods).await
}

/// Waits until `done` holds for `count` objects of `table`. An object for which it held once is not checked again.
///
/// # Errors
/// The manager has ended, or [`TIMEOUT`] has passed.
pub(super) async fn wait_for_all(
    cluster: &ManagerCluster,
    manager: &mut Manager,
    table: &TableId,
    count: u32,
    done: impl Fn(&Entry) -> bool,
) -> Result<()> {
    let mut ready_names: HashSet<Arc<str>> = HashSet::new();
    let until = Instant::now() + TIMEOUT;
    while ready_names.len() < count as usize {
        manager.check_running()?;
        if Instant::now() > until {
            bail!(
                "{table:?}: {} of {count} after {TIMEOUT:?}",
                ready_names.len()
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        let page = cluster.local.server.store().all(table, None, &|entry| {
            !ready_names.contains(&entry.key.name) && done(entry)
        });
        ready_names.extend(page.iter().map(|entry| entry.key.name.clone()));
    }
    Ok(())
}

/// Reports for every node once in an interval, one after the other; every [`HEARTBEATS`]-th time its status
/// is written, too, as a kubelet does.
async fn report_forever(cluster: Arc<ManagerCluster>, args: Args) -> Result<()> {
    let pause = Duration::from_secs_f64(args.interval / f64::from(args.nodes));
    let mut due = tokio::time::interval(pause);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0_u64.. {
        for index in 0..args.nodes {
            due.tick().await;
            let name = objects::node_name(index);
            let load = load_at(index, round);
            let status = objects::report(
                index,
                args.pods_per_node,
                objects::name_of_running,
                load,
                &mut random,
            );
            let path = format!("/apis/slo.koordinator.sh/v1alpha1/nodemetrics/{name}/status");
            cluster
                .local
                .patch(&path, &json!({"status": status}))
                .await?;
            if (round + u64::from(index)).is_multiple_of(HEARTBEATS) {
                let path = format!("/api/v1/nodes/{name}/status");
                cluster.local.patch(&path, &objects::heartbeat()).await?;
            }
        }
    }
    Ok(())
}

/// Returns the load of a node over its mean: up and down by 40 % in [`DAY`] reports, each node at its own
/// phase.
fn load_at(index: u32, round: u64) -> f64 {
    let turn = (round as f64 / DAY + f64::from(index % 97) / 97.0) * std::f64::consts::TAU;
    1.0 + 0.4 * turn.sin()
}

/// The changes of a table since a point in time.
struct TableWatch(Watcher);

impl TableWatch {
    fn start(cluster: &ManagerCluster, table: TableId) -> Result<Self> {
        let store = cluster.local.server.store();
        let watcher = store.watch(table, store.revision());
        Ok(Self(watcher.context("watch")?))
    }

    /// Counts the changes that arrive within `window`. Each is read at once, because the store buffers few.
    async fn count_changes(&mut self, window: Duration) -> Result<u64> {
        let end = tokio::time::Instant::now() + window;
        let mut count = 0;
        while let Ok(event) = tokio::time::timeout_at(end, self.0.next()).await {
            event.map_err(|_| lagged())?;
            count += 1;
        }
        Ok(count)
    }
}

/// Returns the error of a watch that has lost events.
fn lagged() -> anyhow::Error {
    anyhow::anyhow!("watch lagged: more changes than the store keeps")
}

/// Changes the settings, waits until every node and NodeSLO has them, and returns the seconds until the last
/// one did.
async fn replan(
    cluster: &ManagerCluster,
    manager: &mut Manager,
    nodes: u32,
    round: u32,
) -> Result<f64> {
    tokio::time::sleep(CALM).await;
    let mut statuses = TableWatch::start(cluster, nodes_table())?;
    let mut slos = TableWatch::start(cluster, slos_table())?;
    // Enough that every node is written, and values differ from the last ones.
    let (reclaim, suppress) = [(65, 65), (45, 60), (65, 55), (45, 50)][round as usize % 4];
    let path = format!("/api/v1/namespaces/{CONFIG_NAMESPACE}/configmaps/{CONFIG_NAME}");
    let began = Instant::now();
    let settings = objects::settings(reclaim, suppress);
    let texts = settings.as_object().into_iter().flatten();
    let data: serde_json::Map<String, Value> = texts
        .map(|(key, value)| (key.clone(), value.to_string().into()))
        .collect();
    cluster.local.patch(&path, &json!({"data": data})).await?;
    let mut last = began;
    let mut written_names: [HashSet<Arc<str>>; 2] = Default::default();
    loop {
        let next = async {
            tokio::select! {
                event = statuses.0.next() => (0, event),
                event = slos.0.next() => (1, event),
            }
        };
        match tokio::time::timeout(CALM, next).await {
            Ok((which, event)) => {
                let event = event.map_err(|_| lagged())?;
                last = Instant::now();
                if let Some(names) = written_names.get_mut(which) {
                    names.insert(event.new.key.name.clone());
                }
            }
            Err(_)
                if written_names
                    .iter()
                    .all(|names| names.len() == nodes as usize) =>
            {
                break;
            }
            Err(_) => manager.check_running()?,
        }
        let [nodes_seen, slos_seen] = [written_names[0].len(), written_names[1].len()];
        ensure!(
            began.elapsed() < REPLAN,
            "{nodes_seen} nodes and {slos_seen} NodeSLOs of {nodes} were written after {REPLAN:?}"
        );
    }
    let slos = cluster
        .local
        .server
        .store()
        .all(&slos_table(), None, &|_| true);
    let has_settings = |entry: &Arc<Entry>| {
        entry.value()["spec"]["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"]
            == suppress
    };
    ensure!(
        slos.iter().all(has_settings),
        "a NodeSLO does not have the last settings"
    );
    Ok(last.duration_since(began).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_go_up_and_down_around_their_mean() {
        let day: Vec<f64> = (0..60).map(|round| load_at(3, round)).collect();
        let mean = day.iter().sum::<f64>() / 60.0;
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
        assert!(day.iter().all(|load| (0.6..=1.4).contains(load)));
        assert!((load_at(3, 60) - load_at(3, 0)).abs() < 1e-9);
        assert!((load_at(3, 0) - load_at(4, 0)).abs() > 1e-3);
    }
}
