//! `koord bench scheduler`: the engine alone, or the scheduler against the embedded API server.

mod placement;
mod running;

use crate::engine::{self as bench, ApiObjects, EngineFigures, Scenario};
use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use koord_kube::client::{ClientOptions, from_kubeconfig};
use koord_kube::{Api, Change, Client, Informer};
use placement::{Placement, post};
use running::SchedulerHandle;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Creations in progress at a time, as in upstream's harness.
const WORKERS: usize = 50;
/// Time without progress after which a run ends.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Flags of `koord bench scheduler`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Scenario: the kind of cluster and of pods.
    #[arg(long, default_value = "basic", value_parser = scenario)]
    pub scenario: Scenario,
    /// Number of nodes.
    #[arg(long, default_value_t = 1000)]
    pub nodes: usize,
    /// Number of pods to place.
    #[arg(long, default_value_t = 10_000)]
    pub pods: usize,
    /// Number of pods that run on the nodes before.
    #[arg(long, default_value_t = 0)]
    pub bound: usize,
    /// Make each of the running pods different, like pods of StatefulSets or of Jobs with one pod.
    #[arg(long)]
    pub distinct: bool,
    /// Plugins to use: those of kube-scheduler (`plain`), or all (`koord`).
    #[arg(long, default_value = "koord", value_parser = ["plain", "koord"])]
    pub profile: String,
    /// What to measure: the `engine` alone, or the scheduler against the embedded API server over HTTPS (`api`).
    #[arg(long, default_value = "engine", value_parser = ["engine", "api"])]
    pub path: String,
    /// Skip the baseline, the engine that evaluates every node for every pod.
    #[arg(long)]
    pub no_baseline: bool,
    /// Command of another scheduler to measure, with `--path api`. `{kubeconfig}` in it is replaced by a path.
    /// CPU and memory are those of its process alone. Its client must not be rate-limited.
    #[arg(long, value_name = "COMMAND")]
    pub scheduler: Option<String>,
    /// Create all pods before the scheduler starts, with `--path api`. Throughput counts from the first
    /// binding to the last.
    #[arg(long)]
    pub backlog: bool,
}

fn scenario(text: &str) -> Result<Scenario, bench::UnknownScenario> {
    text.parse()
}

impl Args {
    fn options(&self) -> bench::Options {
        bench::Options {
            scenario: self.scenario,
            nodes: self.nodes,
            pods: self.pods,
            bound: self.bound,
            distinct: self.distinct,
            koord: self.profile == "koord",
            baseline: !self.no_baseline,
        }
    }
}

/// Measures.
///
/// # Errors
/// The profile cannot be built, or the API server cannot be started.
pub(super) fn run(args: &Args) -> Result<EngineFigures> {
    let options = args.options();
    if args.path == "engine" {
        if args.scheduler.is_some() || args.backlog {
            bail!("--scheduler and --backlog need --path api");
        }
        return Ok(bench::run(&koord_plugins::registry(), &options)?);
    }
    if matches!(
        options.scenario,
        Scenario::MixedChurn
            | Scenario::Preemption
            | Scenario::NodeGrowth
            | Scenario::MetricStream
            | Scenario::Volumes
            | Scenario::ReservationMigration
            | Scenario::Nrt
            | Scenario::NrtStream
            | Scenario::Everything
    ) {
        let name = options.scenario.name();
        bail!("--path api: scenario {name} is measured on the engine only");
    }
    koord_app::daemon::runtime()?.block_on(over_http(&options, args))
}

/// Measures a scheduler that reads from and writes to an API server over HTTPS.
async fn over_http(options: &bench::Options, args: &Args) -> Result<EngineFigures> {
    let directory = tempfile::tempdir().context("temporary directory")?;
    let kubeconfig = directory.path().join("kubeconfig");
    let stop = CancellationToken::new();
    let (_, serving) = crate::local_server::serve(&kubeconfig, &stop).await?;
    let connect = |name: &str| {
        let options = ClientOptions {
            qps: 0.0,
            burst: 0,
            user_agent: name.to_owned(),
            ..ClientOptions::default()
        };
        let kubeconfig = kubeconfig.clone();
        async move { from_kubeconfig(Some(&kubeconfig), &options).await }
    };
    let mut objects = bench::api_objects(options);
    let client = connect("bench").await?;
    let classes = by_class(&mut objects);
    for (name, value) in &classes {
        let class = PriorityClass {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            value: *value,
            ..PriorityClass::default()
        };
        let api: Api<PriorityClass> = Api::all(client.clone());
        api.create(&PostParams::default(), &class).await?;
    }
    prepare(&client, &objects).await?;

    // A separate pod informer gets bindings like any client.
    let mut informer =
        Informer::<Placement>::start(connect("watcher").await?, Default::default(), stop.clone());
    let created: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let backlog = match args.backlog {
        true => Some(create(client.clone(), bodies(&objects.pods)?, created.clone()).await?),
        false => None,
    };
    let mut scheduler = match &args.scheduler {
        Some(command) => SchedulerHandle::outside(command, &kubeconfig)?,
        None => SchedulerHandle::inside(options, connect("koord-scheduler").await?),
    };
    let bodies = match backlog {
        Some(_) => Vec::new(),
        None => bodies(&objects.pods)?,
    };
    if backlog.is_none() {
        scheduler.ready(&client, &objects).await?;
    }
    let mut started = Instant::now();
    let mut before = scheduler.cpu();
    let creating = match backlog {
        Some(took) => tokio::spawn(std::future::ready(Ok(took))),
        None => tokio::spawn(create(client, bodies, created.clone())),
    };
    let mut latencies: Vec<Duration> = Vec::new();
    let mut last = Instant::now();
    while latencies.len() < objects.pods.len() {
        let change = tokio::time::timeout(TIMEOUT, informer.changes.recv()).await;
        let Ok(Some(change)) = change else {
            break;
        };
        let Change::Applied { new, .. } = change else {
            continue;
        };
        if new.is_bound() {
            let mut created = created.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = created.remove(new.name()) {
                last = Instant::now();
                if args.backlog && latencies.is_empty() {
                    (started, before) = (last, scheduler.cpu());
                }
                latencies.push(last.duration_since(at));
            }
        }
    }
    let elapsed = last.duration_since(started);
    let cpu = scheduler.cpu().saturating_sub(before);
    let creation = match creating.await? {
        Ok(creation) => creation,
        Err(error) => bail!("failed to create pods: {error}"),
    };
    let rss = scheduler.rss_mib();
    scheduler.stop().await;
    stop.cancel();
    let _ = serving.await;
    Ok(bench::api_report(
        options, latencies, elapsed, creation, cpu, rss,
    ))
}

/// Replaces the priority of each pod by a priority class, because an API server sets `spec.priority` from the
/// class only. Returns the value of each class by its name.
fn by_class(objects: &mut ApiObjects) -> BTreeMap<String, i32> {
    let mut classes = BTreeMap::new();
    for pod in objects.pods.iter_mut().chain(&mut objects.bound) {
        let pod = Arc::make_mut(pod);
        if let Some(spec) = &mut pod.spec
            && let Some(value) = spec.priority.take()
        {
            let sign = if value < 0 { "below" } else { "above" };
            let name = format!("bench-{sign}-{}", value.unsigned_abs());
            spec.priority_class_name = Some(name.clone());
            spec.preemption_policy = None;
            classes.insert(name, value);
        }
    }
    classes
}

/// Creates nodes and all other objects that exist before the pods.
async fn prepare(client: &Client, objects: &ApiObjects) -> Result<()> {
    let post = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in objects.namespaces() {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces.create(&post, &namespace).await?;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let work = objects.nodes.iter().map(|node| {
        let (nodes, post) = (nodes.clone(), post.clone());
        async move {
            nodes.create(&post, node).await?;
            let status = json!({"status": node.status});
            let name = node.metadata.name.clone().unwrap_or_default();
            let patch = Patch::Merge(&status);
            nodes
                .patch_status(&name, &PatchParams::default(), &patch)
                .await?;
            Ok::<_, koord_kube::Error>(())
        }
    });
    all(work).await?;
    for (kind, value) in &objects.others {
        other(client, kind, value)
            .await
            .with_context(|| format!("failed to create an object of {kind}"))?;
    }
    let pods = objects.bound.iter().map(|pod| {
        let api: Api<Pod> = Api::namespaced(client.clone(), bench::NAMESPACE);
        let post = post.clone();
        async move { api.create(&post, pod).await.map(|_| ()) }
    });
    all(pods).await?;
    Ok(())
}

async fn all<F>(work: impl Iterator<Item = F>) -> Result<(), koord_kube::Error>
where
    F: Future<Output = Result<(), koord_kube::Error>>,
{
    let mut running = futures::stream::iter(work).buffer_unordered(WORKERS);
    while let Some(done) = running.next().await {
        done?;
    }
    Ok(())
}

/// Creates a custom resource, and writes its status where it has one.
async fn other(client: &Client, kind: &str, value: &Value) -> Result<()> {
    let mut parts = kind.splitn(3, '.');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (plural, version, group) = (part(), part(), part());
    let resource = ApiResource {
        api_version: format!("{group}/{version}"),
        group,
        version,
        kind: value["kind"].as_str().unwrap_or_default().to_owned(),
        plural,
    };
    let object: DynamicObject = serde_json::from_value(value.clone())?;
    let name = object.metadata.name.clone();
    let name = name.ok_or_else(|| anyhow!("an object without a name"))?;
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.create(&PostParams::default(), &object).await?;
    if let Some(status) = value.get("status") {
        let patch = json!({"status": status});
        let written = api
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        if let Err(error) = written
            && !koord_kube::patch::is_not_found(&error)
        {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Returns the names of `pods` and their JSON.
fn bodies(pods: &[Arc<Pod>]) -> Result<Vec<(String, Bytes)>> {
    let body = |pod: &Arc<Pod>| {
        let name = pod.metadata.name.clone().unwrap_or_default();
        Ok((name, serde_json::to_vec(pod)?.into()))
    };
    pods.iter().map(body).collect()
}

/// Creates the pods; returns how long that took.
async fn create(
    client: Client,
    pods: Vec<(String, Bytes)>,
    created: Arc<Mutex<HashMap<String, Instant>>>,
) -> Result<Duration, koord_kube::Error> {
    let started = Instant::now();
    let url: Arc<str> = Api::<Pod>::namespaced(client.clone(), bench::NAMESPACE)
        .resource_url()
        .into();
    let work = pods.into_iter().map(move |(name, body)| {
        let (client, url, created) = (client.clone(), url.clone(), created.clone());
        async move {
            created
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(name, Instant::now());
            post(&client, &url, body).await
        }
    });
    all(work).await?;
    Ok(started.elapsed())
}
