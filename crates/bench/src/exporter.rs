//! Cost of the topology exporter on a node: it runs as its own process, queries a kubelet over its socket and
//! writes to an API server over HTTPS, while pods come and go.

use crate::meter::{Counters, run_time_of};
use crate::process::Process;
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_app::Context;
use koord_kube::api::{DeleteParams, PostParams};
use koord_kube::{Api, Client};
use koord_sim::{Kubelets, Layout, NodeTemplate};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Time limit of each step of the preparation.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Flags of `koord bench exporter`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Number of pods on the node; a quarter of them have two exclusive CPUs each.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub pods: u32,
    /// NUMA nodes, and CPUs of each: NODESxCPUS.
    #[arg(long, default_value = "2x64")]
    pub topology: Layout,
    /// Number of pods that start or end per minute.
    #[arg(long, default_value_t = 6)]
    pub changes: u32,
    /// Interval of the exporter's periodic scans, passed on as its --sleep-interval.
    #[arg(long, default_value = "60s")]
    pub sleep_interval: String,
    /// Length of the measurement, in seconds.
    #[arg(long, default_value_t = 130, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
}

/// The figures.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExporterFigures {
    pods: u32,
    changes_per_minute: u32,
    seconds: f64,
    /// Thousandths of a CPU.
    cpu_millicores: f64,
    rss_mib: f64,
    peak_rss_mib: f64,
    /// Writes of the node's NodeResourceTopology while it was measured.
    writes: i64,
}

/// Measures the CPU time, memory and writes of the exporter while pods come and go.
///
/// # Errors
/// When the fixture cannot be made, or the exporter does not report.
pub(super) async fn run(args: &Args) -> Result<ExporterFigures> {
    let directory = tempfile::tempdir().context("temporary directory")?;
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let kubeconfig = directory.path().join("kubeconfig");
    let (server, _serving) = crate::local_server::serve(&kubeconfig, &stop).await?;
    let client = koord_kube::client::in_process(server.service());
    let name = koord_sim::node_name(0);
    let kubelets = Kubelets {
        dir: directory.path().join("k"),
        nodes: BTreeSet::from([name.clone()]),
    };
    let kubelet = kubelets.dir.join(&name);
    let mut template = NodeTemplate::with_numa(args.topology.clone());
    let most = koord_api::quantity::Quantity::from_value(1000);
    template
        .capacity
        .insert(koord_api::resources::PODS.to_owned(), most);
    let options = koord_sim::Options {
        nodes: 1,
        template,
        kubelets,
        ..koord_sim::Options::default()
    };
    let context = Context {
        shutdown: stop.child_token(),
        ..Context::new()
    };
    drop(tokio::spawn(koord_sim::run(
        options,
        client.clone(),
        context,
    )));
    let nodes: Api<Node> = Api::all(client.clone());
    wait_until("the node", async || {
        nodes.get_opt(&name).await.ok().flatten()
    })
    .await?;
    for at in 0..args.pods {
        create(&client, &name, at).await?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    wait_until("running pods", async || {
        let all = pods.list(&Default::default()).await.ok()?;
        let phase = |pod: &Pod| pod.status.as_ref()?.phase.clone();
        let run = |pod: &&Pod| phase(pod).as_deref() == Some("Running");
        let running = all.items.iter().filter(run).count();
        (u32::try_from(running) == Ok(args.pods)).then_some(())
    })
    .await?;

    let exporter = Exporter::start(&kubeconfig, &name, &kubelet, &args.sleep_interval)?;
    let reports: Api<NodeResourceTopology> = Api::all(client.clone());
    wait_until("a report", async || {
        reports.get_opt(&name).await.ok().flatten()
    })
    .await?;
    let generation = async || {
        let report = reports.get(&name).await.context("the report")?;
        anyhow::Ok(report.metadata.generation.unwrap_or_default())
    };
    // The exporter's work at its start is over.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (before, cpu, writes) = (exporter.counters()?, exporter.cpu()?, generation().await?);
    let began = Instant::now();
    let window = Duration::from_secs(args.seconds);
    let pause = Duration::from_secs(60)
        .checked_div(args.changes)
        .unwrap_or(window);
    let mut at = 0;
    while began.elapsed() < window {
        tokio::time::sleep(pause.min(window.saturating_sub(began.elapsed()))).await;
        if args.changes > 0 && began.elapsed() < window {
            // The first pods have exclusive CPUs: one is deleted and created again.
            if at % 2 == 0 {
                let now = DeleteParams::default().grace_period(0);
                pods.delete("pod-0", &now)
                    .await
                    .context("failed to delete pod-0")?;
            } else {
                create(&client, &name, 0).await?;
            }
            at += 1;
        }
    }
    let (after, spent) = (exporter.counters()?, exporter.cpu()?.saturating_sub(cpu));
    let seconds = began.elapsed().as_secs_f64();
    if after.since(&before).seconds < 1.0 {
        bail!("the window is too short");
    }
    Ok(ExporterFigures {
        pods: args.pods,
        changes_per_minute: args.changes,
        seconds,
        cpu_millicores: spent.as_secs_f64() / seconds * 1000.0,
        rss_mib: after.rss_mib(),
        peak_rss_mib: after.peak_rss_mib(),
        writes: generation().await? - writes,
    })
}

async fn create(client: &Client, node: &str, at: u32) -> Result<()> {
    let (cpu, limit) = if at.is_multiple_of(4) {
        ("2", "2")
    } else {
        ("100m", "1")
    };
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{at}"), "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "c", "resources": {
            "requests": {"cpu": cpu, "memory": "64Mi"}, "limits": {"cpu": limit, "memory": "64Mi"}}}]},
    }))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let created = pods.create(&PostParams::default(), &pod).await;
    created.map(drop).context("failed to create a pod")
}

async fn wait_until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = found().await {
            return Ok(found);
        }
        if began.elapsed() > TIMEOUT {
            bail!("no {what} within {TIMEOUT:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The exporter as a process.
struct Exporter(Process);

impl Exporter {
    fn start(kubeconfig: &Path, node: &str, kubelet: &Path, interval: &str) -> Result<Self> {
        let this = std::env::current_exe().context("this program's path")?;
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let config = format!("file://{}", kubelet.join("config.yaml").display());
        let mut command = Command::new(this);
        command
            .arg("topology-exporter")
            .args([format!("--node-name={node}"), "--port=0".to_owned()])
            .arg(format!("--sleep-interval={interval}"))
            .arg(flag("kubeconfig", kubeconfig))
            .arg(flag("sys-root-dir", &kubelet.join("sys")))
            .arg(flag("kubelet-state-dir", kubelet))
            .arg(flag("podresources-socket", &Kubelets::socket(kubelet)))
            .arg(format!("--kubelet-config-uri={config}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(Self(Process::start("exporter", &mut command)?))
    }

    fn counters(&self) -> Result<Counters> {
        Counters::read(self.0.pid())
    }

    /// Returns the CPU time of the process, more exactly than in ticks of the kernel's clock.
    fn cpu(&self) -> Result<Duration> {
        run_time_of(self.0.pid())
    }
}
