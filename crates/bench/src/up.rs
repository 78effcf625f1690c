//! Time that `koord up` takes to place a large Deployment, and its use of the machine: the command itself
//! runs as a separate process, with requests over HTTPS like kubectl's.

use super::meter::Counters;
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use koord_kube::api::PostParams;
use koord_kube::{Api, Client};
use koordctl::running::RunningCluster;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Interval between two checks of progress.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit of each step.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which the cluster is idle. After half of it the first reports, and the manager's reactions to
/// them, are over; in the other half, one interval of the nodes' reports and three of their leases, CPU time
/// is counted.
const IDLE_SECONDS: u32 = 60;
const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";

/// Flags of `koord bench up`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Number of simulated nodes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub nodes: u32,
    /// Number of replicas of the Deployment.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub replicas: u32,
    /// Idle time of the cluster before and after the Deployment, in seconds; CPU usage is measured in its last half.
    #[arg(long, default_value_t = IDLE_SECONDS, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub idle_seconds: u32,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            nodes: 1000,
            replicas: 5000,
            idle_seconds: IDLE_SECONDS,
        }
    }
}

/// Figures of `koord bench up`. Seconds are from the moment the Deployment is sent.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpFigures {
    /// Simulated nodes.
    nodes: u32,
    /// Replicas of the Deployment.
    replicas: u32,
    /// Seconds from the start of the command until all nodes are Ready.
    nodes_ready_sec: f64,
    /// CPU of the process in an interval of the nodes' reports, all of which have reported before, milli-cores.
    idle_millicores: f64,
    /// Idle CPU per simulated node, milli-cores.
    idle_millicores_per_node: f64,
    /// Memory of the process after that interval, MiB.
    #[serde(rename = "rssBeforeMiB")]
    rss_before_mib: f64,
    /// Seconds until all pods exist.
    created_sec: f64,
    /// Seconds until all pods have a node.
    pub(super) bound_sec: f64,
    /// Seconds until all pods run.
    running_sec: f64,
    /// CPU seconds of the process until then.
    cpu_sec: f64,
    /// Memory of the process when all pods have a node, MiB.
    #[serde(rename = "rssBoundMiB")]
    pub(super) rss_bound_mib: f64,
    /// CPU of the process in an interval of the reports while all pods run, milli-cores.
    loaded_millicores: f64,
    /// Memory of the process after that interval, MiB.
    #[serde(rename = "rssAfterMiB")]
    rss_after_mib: f64,
    /// Peak memory of the process, MiB.
    #[serde(rename = "rssPeakMiB")]
    rss_peak_mib: f64,
}

/// Process of `koord up`, which is terminated and waited for when dropped.
struct UpProcess(Child);

impl Drop for UpProcess {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        // It removes its cgroups on SIGTERM, and not on SIGKILL.
        if rustix::process::kill_process(pid, rustix::process::Signal::TERM).is_err() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

impl UpProcess {
    fn start(dir: &Path, nodes: u32) -> Result<Self> {
        let program = std::env::current_exe().context("this program's path")?;
        let child = Command::new(program)
            .args(["up", "--memory", "--quiet", "--port", "0", "--nodes"])
            .arg(nodes.to_string())
            .arg("--data-dir")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start koord up")?;
        Ok(Self(child))
    }

    /// Waits until `koord up` serves, and returns a client of it.
    async fn client(&mut self, dir: &Path) -> Result<Client> {
        let began = Instant::now();
        let running = loop {
            if let Some(status) = self.0.try_wait().context("koord up")? {
                bail!("koord up ended with {status}");
            }
            if let Some(running) = RunningCluster::read(dir)? {
                break running;
            }
            if began.elapsed() > TIMEOUT {
                bail!("koord up is not up after {TIMEOUT:?}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let options = koord_kube::client::ClientOptions::default();
        koord_kube::client::from_kubeconfig(Some(&running.kubeconfig), &options)
            .await
            .context("client of koord up")
    }

    fn counters(&self) -> Result<Counters> {
        Counters::read(self.0.id())
    }

    /// Leaves the cluster idle for `idle`; returns its CPU in the second half, in milli-cores, and its
    /// counters at the end.
    async fn window(&self, idle: Duration) -> Result<(f64, Counters)> {
        tokio::time::sleep(idle / 2).await;
        let begin = self.counters()?;
        tokio::time::sleep(idle / 2).await;
        let end = self.counters()?;
        Ok((end.since(&begin).cpu_millicores, end))
    }
}

/// Measures once.
///
/// # Errors
/// When the cluster does not come up or the pods do not get there in two minutes.
pub(super) async fn run(args: &Args) -> Result<UpFigures> {
    let dir = tempfile::tempdir().context("temporary directory")?;
    let idle_time = Duration::from_secs(args.idle_seconds.into());
    let began = Instant::now();
    let mut up = UpProcess::start(dir.path(), args.nodes)?;
    let client = up.client(dir.path()).await?;
    // Including this machine's node. Lists of all nodes would be much of the measured load.
    wait_until("all nodes exist", || {
        objects_exist(&client, NODES, args.nodes + 1)
    })
    .await?;
    wait_until("all nodes are Ready", || nodes_ready(&client, args.nodes)).await?;
    let nodes_ready_sec = began.elapsed().as_secs_f64();
    wait_until("all nodes have reported", || {
        nodes_reported(&client, args.nodes)
    })
    .await?;
    let (idle, before) = up.window(idle_time).await?;

    let began = Instant::now();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let deployment = serde_json::from_value(deployment(args.replicas)).context("Deployment")?;
    deployments
        .create(&PostParams::default(), &deployment)
        .await
        .context("failed to create the Deployment")?;
    wait_until("all pods exist", || {
        objects_exist(&client, PODS, args.replicas)
    })
    .await?;
    let created_sec = began.elapsed().as_secs_f64();
    let waiting = "spec.nodeName%3D";
    wait_until("all pods have a node", || no_pod_matches(&client, waiting)).await?;
    let bound_sec = began.elapsed().as_secs_f64();
    let bound = up.counters()?;
    let starting = "status.phase%21%3DRunning";
    wait_until("all pods run", || no_pod_matches(&client, starting)).await?;
    let running_sec = began.elapsed().as_secs_f64();
    let running = up.counters()?.since(&before);
    let (loaded, after) = up.window(idle_time).await?;
    Ok(UpFigures {
        nodes: args.nodes,
        replicas: args.replicas,
        nodes_ready_sec,
        idle_millicores: idle,
        idle_millicores_per_node: idle / f64::from(args.nodes),
        rss_before_mib: before.rss_mib(),
        created_sec,
        bound_sec,
        running_sec,
        cpu_sec: running.cpu_millicores * running.seconds / 1000.0,
        loaded_millicores: loaded,
        rss_bound_mib: bound.rss_mib(),
        rss_after_mib: after.rss_mib(),
        rss_peak_mib: after.peak_rss_mib(),
    })
}

/// Returns the object that `kubectl create deployment web --image=nginx --replicas=N` sends.
fn deployment(replicas: u32) -> Value {
    let labels = json!({"app": "web"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "nginx", "image": "nginx", "resources": {}}]},
            },
        },
    })
}

/// Polls `done` until it is true. `what` names the awaited state in the error.
///
/// # Errors
/// That of `done`, or when [`TIMEOUT`] has passed.
async fn wait_until<F>(what: &str, done: impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    let began = Instant::now();
    while !done().await? {
        if began.elapsed() > TIMEOUT {
            bail!("timed out after {TIMEOUT:?} waiting until {what}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    let request = http::Request::get(path).body(Vec::new())?;
    client
        .request(request)
        .await
        .with_context(|| format!("GET {path}"))
}

async fn nodes_ready(client: &Client, wanted: u32) -> Result<bool> {
    let list = get(client, NODES).await?;
    let ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let nodes = list["items"].as_array().into_iter().flatten();
    // And this machine.
    Ok(nodes.filter(ready).count() > wanted as usize)
}

/// Returns true if so many simulated nodes and this machine have reported.
async fn nodes_reported(client: &Client, wanted: u32) -> Result<bool> {
    let list = get(client, "/apis/slo.koordinator.sh/v1alpha1/nodemetrics").await?;
    let metrics = list["items"].as_array().into_iter().flatten();
    let reported = metrics.filter(|metric| metric["status"]["updateTime"].is_string());
    Ok(reported.count() > wanted as usize)
}

/// Returns whether the collection at `path` has so many objects. One of them is read, and how many remain.
async fn objects_exist(client: &Client, path: &str, wanted: u32) -> Result<bool> {
    let list = get(client, &format!("{path}?limit=1")).await?;
    let remaining = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
    let first = list["items"].as_array().map_or(0, Vec::len) as u64;
    Ok(first + remaining >= u64::from(wanted))
}

/// Returns true if the selector matches no pod.
async fn no_pod_matches(client: &Client, selector: &str) -> Result<bool> {
    let list = get(client, &format!("{PODS}?limit=1&fieldSelector={selector}")).await?;
    Ok(list["items"].as_array().is_some_and(Vec::is_empty))
}
