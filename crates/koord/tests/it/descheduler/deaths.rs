//! Leaders that are real processes, started with the flags of the manifests and with targets, and killed at
//! drawn moments in the middle of migrations: while a write is in flight to the API server, which is lost, or
//! done without a response, or comes late, once the next leader has made the same one. The server, simulated
//! nodes and koord's scheduler, which delays reservations, are in this process, the deschedulers connect to
//! the server over a socket each.
//!
//! `KOORD_DESCHEDULER_DEATHS` sets how many there are, by default 6, and `KOORD_SEED` the seed;
//! docs/measurements.md has a recorded run.

mod process;

use crate::watched::WatchedObjects;
use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase, Reservation};
use koord_api::slo::NodeMetric;
use koord_api::{Quantity, resources};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_descheduler::migration::{JobStage, annotation, stage};
use koord_kube::api::{ListParams, PostParams};
use koord_kube::{Api, Client, patch};
use process::{Aim, Process, Shared};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

/// Time limit of any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const NODES: usize = 7;
/// Number of first nodes, which have all pods at the start.
const HOT: usize = 3;
const CPUS: i64 = 32;
/// Workloads, pods of each, and milli-CPUs that a pod uses: 80 % of the first nodes.
const WORKLOADS: (usize, usize, u32) = (9, 8, 1060);
const PODS: usize = WORKLOADS.0 * WORKLOADS.1;
/// Percent.
const HIGH: i64 = 65;
/// The scheduler's configuration, which the descheduler has, forbids this node to pods.
const FORBIDDEN: &str = "sim-6";

const GLOBALLY: usize = 4;
const PER_NODE: usize = 2;
const PER_WORKLOAD: usize = 1;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn phase(job: &PodMigrationJob) -> Option<&PodMigrationJobPhase> {
    job.status.as_ref()?.phase.as_ref()
}

fn unfinished(jobs: &[PodMigrationJob]) -> usize {
    let all = jobs.iter();
    all.filter(|job| stage(job) != JobStage::Ended).count()
}

async fn holder(client: &Client) -> Option<String> {
    let leases: Api<Lease> = Api::default_namespaced(client.clone());
    let lease = leases.get_opt("koord-descheduler").await.unwrap();
    lease?.spec?.holder_identity
}

/// Returns the configuration of the descheduler.
fn descheduler() -> Value {
    json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "leaderElection": {"resourceNamespace": "default"},
        "healthzBindAddress": "127.0.0.1:0",
        "metricsBindAddress": "127.0.0.1:0",
        "deschedulingInterval": "500ms",
        "profiles": [{
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {"name": "MigrationController", "args": {
                    "defaultJobMode": "ReservationFirst",
                    "evictQPS": 100, "evictBurst": 10,
                    "maxConcurrentReconciles": 2,
                    "maxMigratingGlobally": GLOBALLY,
                    "maxMigratingPerNode": PER_NODE,
                    "maxMigratingPerWorkload": PER_WORKLOAD,
                    "objectLimiters": {"workload": {"duration": "0s"}},
                    "arbitrationArgs": {"interval": "100ms"},
                }},
                {"name": "LowNodeLoad", "args": {
                    "lowThresholds": {"cpu": 55, "memory": 80},
                    "highThresholds": {"cpu": HIGH, "memory": 90},
                    "anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1},
                }},
            ],
        }],
    })
}

fn scheduler() -> Value {
    let not_there =
        json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [FORBIDDEN]});
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "koord-scheduler", "pluginConfig": [{"name": "NodeAffinity", "args": {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "NodeAffinityArgs",
            "addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [not_there]}]}},
        }}]}],
    })
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn runs(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
}

fn all_run(pods: &BTreeMap<String, Arc<Pod>>) -> bool {
    pods.len() == PODS && pods.values().all(|pod| runs(pod))
}

/// Returns the milli-CPUs that a node uses.
fn used(metric: &NodeMetric) -> Option<i64> {
    let status = metric.status.as_ref()?;
    let node = status.node_metric.as_ref()?.node_usage.as_ref()?;
    Some(node.resources.get(resources::CPU)?.milli_value())
}

fn is_hot(metric: &NodeMetric) -> Option<bool> {
    Some(used(metric)? > CPUS * 1000 * HIGH / 100)
}

struct DeathsCluster {
    shared: Arc<Shared>,
    client: Client,
    pods: WatchedObjects<Pod>,
    metrics: WatchedObjects<NodeMetric>,
    jobs: WatchedObjects<PodMigrationJob>,
    /// Nodes of the initial pods, by UID.
    first: BTreeMap<String, String>,
    context: Context,
    _stop: DropGuard,
}

impl DeathsCluster {
    /// Nodes of which the first are hot, and all pods run.
    async fn start(spared: Arc<AtomicBool>) -> Self {
        let server = ApiServer::open(Config::memory(Clock::system()))
            .await
            .unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        let context = Context::new();
        let stop = context.shutdown.clone();
        let mut nodes = WatchedObjects::<Node>::start(&client, &stop);
        let mut cluster = Self {
            shared: Arc::new(Shared {
                server: server.service(),
                client: client.clone(),
                spared,
                evictions: Mutex::default(),
                exceeded: Mutex::default(),
                renewals: watch::Sender::default(),
                late: Mutex::default(),
                came: Mutex::default(),
            }),
            pods: WatchedObjects::start(&client, &stop),
            metrics: WatchedObjects::start(&client, &stop),
            jobs: WatchedObjects::start(&client, &stop),
            client,
            first: BTreeMap::new(),
            context,
            _stop: stop.drop_guard(),
        };
        let mut template = koord_sim::NodeTemplate::default();
        let cpus = Quantity::from_value(CPUS);
        template.capacity.insert(resources::CPU.to_owned(), cpus);
        let options = koord_sim::Options {
            nodes: NODES,
            template,
            sample_interval: Duration::from_millis(500),
            least_report_interval: Duration::from_secs(1),
            ..koord_sim::Options::default()
        };
        let (client, context) = (cluster.client.clone(), cluster.context.clone());
        tokio::spawn(async move { koord_sim::run(options, client, context).await.unwrap() });
        nodes.until("nodes", |nodes| nodes.len() == NODES).await;
        cluster.fill(&nodes.all).await;
        cluster
    }

    /// Places the workloads on the first nodes until these are hot, and opens the others.
    async fn fill(&mut self, nodes: &BTreeMap<String, Arc<Node>>) {
        let late: Vec<_> = nodes.keys().skip(HOT).cloned().collect();
        let close = async |closed: bool| {
            for name in &late {
                let change = json!({"spec": {"unschedulable": closed}});
                patch::merge_node(&self.client, name, &change)
                    .await
                    .unwrap();
            }
        };
        close(true).await;
        let options = koord_scheduler::Options {
            leader_elect: false,
            ..koord_scheduler::Options::new(koord_plugins::registry())
        };
        let client = koord_kube::client::in_process(process::unhurried(&self.shared));
        let context = self.context.clone();
        tokio::spawn(async move {
            koord_scheduler::run(options, client, context)
                .await
                .unwrap()
        });
        let deployments: Api<Deployment> = Api::default_namespaced(self.client.clone());
        let (count, replicas, uses) = WORKLOADS;
        for at in 0..count {
            let name = format!("w{at}");
            let labels = json!({"app": name});
            let deployment = serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {
                    "metadata": {"labels": labels, "annotations": {
                        koord_sim::usage::KWOK_CPU_ANNOTATION: format!("{uses}m"),
                        koord_sim::usage::KWOK_MEMORY_ANNOTATION: "1Gi"}},
                    "spec": {"schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0,
                        "containers": [{"name": "c", "image": "c",
                            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
                }},
            }))
            .unwrap();
            let params = PostParams::default();
            deployments.create(&params, &deployment).await.unwrap();
        }
        self.pods.until("pods", all_run).await;
        // Usage is reported only now: with reports during placement, pods would not be spread evenly.
        let metrics: Api<NodeMetric> = Api::all(self.client.clone());
        for name in nodes.keys() {
            let metric = json!({"metadata": {"name": name}, "spec": {"metricCollectPolicy": {
                "aggregateDurationSeconds": 2, "reportIntervalSeconds": 1}}});
            let metric = serde_json::from_value(metric).unwrap();
            metrics
                .create(&PostParams::default(), &metric)
                .await
                .unwrap();
        }
        let hot = |metrics: &BTreeMap<String, Arc<NodeMetric>>| {
            let hot = metrics
                .values()
                .filter(|metric| is_hot(metric) == Some(true));
            hot.count() == HOT && metrics.values().all(|metric| used(metric).is_some())
        };
        self.metrics.until("hot nodes", hot).await;
        let placed = self.pods.all.values().map(|pod| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            (uid, node_of(pod).unwrap_or_default().to_owned())
        });
        self.first = placed.collect();
        close(false).await;
    }

    /// Waits until no node is hot and nothing moves; limits hold at all times.
    async fn settled(&mut self) {
        let wait = async {
            loop {
                let hot = self.metrics.all.values();
                let cool = hot.clone().all(|metric| is_hot(metric) == Some(false));
                let jobs = self.jobs.all.values();
                let mut jobs = jobs.map(|job| stage(job));
                if cool && all_run(&self.pods.all) && jobs.all(|it| it == JobStage::Ended) {
                    return;
                }
                tokio::select! {
                    () = self.pods.next() => {}
                    () = self.metrics.next() => {}
                    () = self.jobs.next() => self.within_limits(),
                }
            }
        };
        // The wait starts again with each death: the time limit is for any progress.
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let states = self.jobs.all.values().map(|job| &job.status);
            panic!("nodes stay hot: {:#?}", states.collect::<Vec<_>>());
        }
    }

    /// Checks the limits that hold at any time; the limits per node and workload are checked when a job may
    /// begin.
    fn within_limits(&self) {
        let live: Vec<_> = self.jobs.all.values().collect();
        let uid = |job: &PodMigrationJob| job.spec.pod_ref.uid.clone().unwrap_or_default();
        let mut pods = BTreeSet::new();
        for job in live.iter().filter(|job| stage(job) != JobStage::Ended) {
            assert!(pods.insert(uid(job)), "two jobs of {:?}", job.spec.pod_ref);
        }
        let begun: Vec<_> = live
            .iter()
            .filter(|job| stage(job) == JobStage::Begun)
            .collect();
        assert!(begun.len() <= GLOBALLY, "{} have begun", begun.len());
        self.evicted_with_room();
    }

    /// Checks that capacity was reserved at the moment of each eviction.
    fn evicted_with_room(&self) {
        let evictions = self.shared.evictions.lock().unwrap().clone();
        let rash: Vec<_> = evictions
            .iter()
            .filter(|eviction| !eviction.reserved)
            .collect();
        assert!(rash.is_empty(), "evicted with no room reserved: {rash:?}");
    }

    /// Checks the result after all processes have stopped.
    async fn check(&self) -> usize {
        let exceeded = self.shared.exceeded.lock().unwrap().clone();
        assert!(exceeded.is_empty(), "{exceeded:?}");
        self.evicted_with_room();
        let evictions = self.shared.evictions.lock().unwrap().clone();
        // Late writes repeat what is done already. A dry-run eviction is always allowed.
        let late_writes = self.shared.came.lock().unwrap().clone();
        let refused = |(about, status): &(String, StatusCode)| {
            status.is_client_error() || about.contains("/eviction")
        };
        assert!(late_writes.iter().all(refused), "{late_writes:?}");
        let jobs = process::jobs(&self.client).await;
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        assert!(pods.len() == PODS && pods.iter().all(runs), "{pods:?}");
        let present: BTreeSet<_> = pods
            .iter()
            .filter_map(|pod| pod.metadata.uid.clone())
            .collect();
        let (mut moved, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for job in &jobs {
            let uid = job.spec.pod_ref.uid.clone().unwrap_or_default();
            assert!(self.first.contains_key(&uid), "moved twice: {job:?}");
            let memo = annotation(job, "descheduler.koordinator.sh/load-move").expect("a memo");
            let memo: Value = serde_json::from_str(memo).unwrap();
            let target = memo["target"].as_str().expect("a target");
            assert_ne!(
                target, FORBIDDEN,
                "--scheduler-config keeps pods off this node"
            );
            match phase(job) {
                Some(PodMigrationJobPhase::Succeeded) => {
                    assert!(!present.contains(&uid), "not moved: {job:?}");
                    assert!(moved.insert(uid), "moved twice: {job:?}");
                    let new = job
                        .status
                        .as_ref()
                        .and_then(|status| status.pod_ref.clone());
                    let new = new.and_then(|pod| pod.uid).expect("the new pod");
                    assert!(present.contains(&new), "{job:?}");
                }
                Some(PodMigrationJobPhase::Failed) => {
                    failed.insert(uid);
                }
                other => panic!("{other:?}: {job:?}"),
            }
        }
        let lost = failed.iter();
        let mut lost = lost.filter(|uid| !present.contains(*uid) && !moved.contains(*uid));
        assert_eq!(lost.next(), None, "{jobs:?}");
        // Each pod that no longer exists has a successful job, and was evicted once, with a reservation.
        let deleted: BTreeSet<_> = self
            .first
            .keys()
            .filter(|uid| !present.contains(*uid))
            .cloned()
            .collect();
        assert_eq!(deleted, moved);
        let mut evicted: Vec<_> = evictions.into_iter().map(|eviction| eviction.uid).collect();
        evicted.sort();
        assert!(evicted.iter().eq(&moved), "{evicted:?}");
        // Every reservation was used, or is deleted.
        let reservations: Api<Reservation> = Api::all(self.client.clone());
        for reservation in reservations
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
        {
            let owners = reservation
                .status
                .clone()
                .unwrap_or_default()
                .current_owners;
            assert_eq!(owners.len(), 1, "{reservation:?}");
        }
        println!(
            "{} pods moved, {} not at first, {} writes came late",
            moved.len(),
            failed.len(),
            late_writes.len(),
        );
        moved.len()
    }
}

/// Counts over all deaths of leaders.
struct Record {
    wanted: usize,
    random: fastrand::Rng,
    deaths: usize,
    fell: BTreeMap<String, usize>,
    left: usize,
    spared: Arc<AtomicBool>,
}

impl Record {
    fn note(&mut self, death: Option<process::Death>) {
        let Some(death) = death else {
            self.left += 1;
            assert!(self.left <= 3 + self.deaths, "leaders do not stay");
            return;
        };
        death.fell_where_intended();
        self.deaths += 1;
        println!("death {}: {death:?}", self.deaths);
        *self.fell.entry(death.last).or_default() += 1;
        self.spared
            .store(self.deaths >= self.wanted, Ordering::SeqCst);
    }

    /// Runs one cluster, whose leaders are killed until no node is hot. There are always two.
    async fn cluster(&mut self, dir: &Path) -> usize {
        let mut cluster = DeathsCluster::start(self.spared.clone()).await;
        let shared = cluster.shared.clone();
        let start = async |random: &mut fastrand::Rng| {
            Process::start(&shared, dir, Aim::draw(random)).await
        };
        let mut first = start(&mut self.random).await;
        let mut other = start(&mut self.random).await;
        loop {
            tokio::select! {
                death = first.died() => {
                    self.note(death);
                    first = start(&mut self.random).await;
                }
                death = other.died() => {
                    self.note(death);
                    other = start(&mut self.random).await;
                }
                () = cluster.settled() => break,
            }
        }
        first.stop().await;
        other.stop().await;
        cluster.check().await
    }
}

#[test]
fn descheduler_leaders_killed_in_migrations_keep_limits() {
    let begun = std::time::Instant::now();
    koord_kube::tls::install_crypto_provider();
    let dir = tempfile::tempdir().unwrap();
    super::write(dir.path(), "descheduler.json", &descheduler());
    super::write(dir.path(), "scheduler.json", &scheduler());
    let wanted = usize::try_from(number("KOORD_DESCHEDULER_DEATHS", 6)).unwrap();
    let mut record = Record {
        wanted,
        random: fastrand::Rng::with_seed(number("KOORD_SEED", 1)),
        deaths: 0,
        fell: BTreeMap::new(),
        left: 0,
        spared: Arc::default(),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut clusters, mut moves) = (0, 0);
    while record.deaths < wanted {
        assert!(clusters <= wanted, "leaders do not die: {:?}", record.fell);
        moves += runtime.block_on(Box::pin(record.cluster(dir.path())));
        clusters += 1;
    }
    println!(
        "{} deaths in {clusters} clusters and {moves} moves, {:?}; {} ended by themselves; {:.0} s",
        record.deaths,
        record.fell,
        record.left,
        begun.elapsed().as_secs_f64(),
    );
}
