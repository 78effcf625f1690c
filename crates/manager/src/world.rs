//! The cluster as the controllers see it, and the loop that feeds them.

use crate::config::Config;
use crate::metrics::Metrics;
use crate::noderesource::view::PodFacts;
use crate::{Options, nodemetric, noderesource, nodeslo};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_app::{Clock, Context};
use koord_kube::events::{self, Recorder, Severity};
use koord_kube::queue::WorkQueue;
use koord_kube::{Change, Informer, Mirrored, ObjectKey, Scope, Store, patch};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a reconcile asks for when it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Look again after this long, whatever happens.
    Again(Duration),
}

/// What all controllers read and write through.
pub(crate) struct World {
    pub(crate) client: koord_kube::Client,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) recorder: Recorder,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    pub(crate) nodes: Store<Node>,
    pub(crate) node_metrics: Store<NodeMetric>,
    pub(crate) node_slos: Store<NodeSLO>,
    pub(crate) pods: PodIndex,
}

/// Pods by the node they are bound to.
#[derive(Debug, Default)]
pub(crate) struct PodIndex {
    by_node: RwLock<HashMap<String, HashMap<ObjectKey, Arc<SeenPod>>>>,
}

/// What is kept of a pod: its object is several kilobytes even when most of it is empty.
#[derive(Debug)]
struct SeenPod {
    uid: Option<String>,
    resource_version: Option<String>,
    facts: PodFacts,
}

impl SeenPod {
    fn of(pod: &Pod) -> Self {
        Self {
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            facts: PodFacts::of(pod),
        }
    }
}

impl Mirrored for SeenPod {
    fn key(&self) -> ObjectKey {
        self.facts.key.clone()
    }
    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

impl PodIndex {
    /// The pods bound to a node.
    pub(crate) fn of_node(&self, node: &str) -> Vec<PodFacts> {
        let pods = self.by_node.read();
        pods.get(node)
            .into_iter()
            .flat_map(|pods| pods.values().map(|pod| pod.facts.clone()))
            .collect()
    }

    fn change(&self, change: Change<SeenPod>) {
        match change {
            Change::Applied { old, new } => {
                let node = &new.facts.node;
                if let Some(old) = old.filter(|old| old.facts.node != *node) {
                    self.remove(&old.facts);
                }
                if !node.is_empty() {
                    let mut pods = self.by_node.write();
                    let key = new.facts.key.clone();
                    pods.entry(node.clone()).or_default().insert(key, new);
                }
            }
            Change::Deleted(pod) => self.remove(&pod.facts),
            Change::Synced => {}
        }
    }

    fn remove(&self, pod: &PodFacts) {
        let mut all = self.by_node.write();
        if let Some(pods) = all.get_mut(&pod.node) {
            pods.remove(&pod.key);
            if pods.is_empty() {
                all.remove(&pod.node);
            }
        }
    }
}

/// One queue of node names for each controller.
struct Queues {
    node_metric: WorkQueue<String>,
    node_slo: WorkQueue<String>,
    node_resource: WorkQueue<String>,
}

impl Queues {
    fn all(&self) -> [&WorkQueue<String>; 3] {
        [&self.node_metric, &self.node_slo, &self.node_resource]
    }

    fn add_to_all(&self, name: &str) {
        for queue in self.all() {
            queue.add(name.to_owned());
        }
    }
}

/// How many nodes each controller works on at once.
const WORKERS: usize = 4;

/// Runs the controllers until the shutdown.
pub(crate) async fn run(
    options: Options,
    client: koord_kube::Client,
    metrics: Metrics,
    ready: Arc<std::sync::atomic::AtomicBool>,
    ctx: Context,
) {
    let stop = ctx.shutdown.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let everything = Scope::default;
    let mut nodes = Informer::<Node>::start(client.clone(), everything(), stop.clone());
    let mut node_metrics =
        Informer::<NodeMetric>::start(client.clone(), everything(), stop.clone());
    let mut node_slos = Informer::<NodeSLO>::start(client.clone(), everything(), stop.clone());
    let of = |pod: Pod| SeenPod::of(&pod);
    let mut pods = Informer::start_kept(client.clone(), everything(), of, stop.clone());
    let only = Scope {
        fields: Some(format!("metadata.name={}", options.config_name)),
        ..Scope::default()
    };
    let mut configs = Informer::<ConfigMap>::start_in_namespace(
        client.clone(),
        &options.config_namespace,
        only,
        stop.clone(),
    );
    let recorder = Recorder::start(
        client.clone(),
        "koordinator-manager",
        &options.identity,
        ctx.clock.clone(),
        stop.clone(),
    );
    let (config_tx, config) = watch::channel(Arc::new(Config::default()));
    let world = Arc::new(World {
        client,
        clock: ctx.clock,
        metrics,
        recorder,
        config,
        nodes: nodes.store.clone(),
        node_metrics: node_metrics.store.clone(),
        node_slos: node_slos.store.clone(),
        pods: PodIndex::default(),
    });
    let resources = Arc::new(noderesource::Controller::new(
        options.noderesource_plugins.clone(),
    ));
    let queues = Queues {
        node_metric: WorkQueue::default(),
        node_slo: WorkQueue::default(),
        node_resource: WorkQueue::default(),
    };
    let mut workers = JoinSet::new();
    let mut missing = 5;
    loop {
        let synced = tokio::select! {
            () = stop.cancelled() => break,
            Some(change) = nodes.changes.recv() => {
                let synced = matches!(change, Change::Synced);
                on_node(change, &queues);
                synced
            }
            Some(change) = node_metrics.changes.recv() => {
                let synced = matches!(change, Change::Synced);
                on_node_metric(change, &queues, &resources);
                synced
            }
            Some(change) = node_slos.changes.recv() => {
                let synced = matches!(change, Change::Synced);
                on_node_slo(change, &queues);
                synced
            }
            Some(change) = pods.changes.recv() => {
                let synced = matches!(change, Change::Synced);
                world.pods.change(change);
                synced
            }
            Some(change) = configs.changes.recv() => {
                let synced = matches!(change, Change::Synced);
                if on_config(change, &config_tx, &world.recorder) {
                    for node in world.nodes.list() {
                        queues.add_to_all(&ObjectKey::of(&*node).name);
                    }
                }
                synced
            }
            else => break,
        };
        if synced {
            missing -= 1;
            if missing == 0 {
                ready.store(true, std::sync::atomic::Ordering::SeqCst);
                tracing::info!(nodes = world.nodes.len(), "manager is in sync");
                start_workers(&options, &world, &queues, &resources, &mut workers);
            }
        }
    }
    for queue in queues.all() {
        queue.close();
    }
    workers.shutdown().await;
}

fn start_workers(
    options: &Options,
    world: &Arc<World>,
    queues: &Queues,
    resources: &Arc<noderesource::Controller>,
    workers: &mut JoinSet<()>,
) {
    type Reconcile =
        Arc<dyn Fn(String) -> BoxFuture<'static, Result<Outcome, crate::Error>> + Send + Sync>;
    let (a, b, c) = (world.clone(), world.clone(), world.clone());
    let resources = resources.clone();
    let controllers: [(&'static str, &WorkQueue<String>, Reconcile); 3] = [
        (
            nodemetric::NAME,
            &queues.node_metric,
            Arc::new(move |name| {
                let world = a.clone();
                async move { nodemetric::reconcile(&world, &name).await }.boxed()
            }),
        ),
        (
            nodeslo::NAME,
            &queues.node_slo,
            Arc::new(move |name| {
                let world = b.clone();
                async move { nodeslo::reconcile(&world, &name).await }.boxed()
            }),
        ),
        (
            noderesource::NAME,
            &queues.node_resource,
            Arc::new(move |name| {
                let (world, resources) = (c.clone(), resources.clone());
                async move { resources.reconcile(&world, &name).await }.boxed()
            }),
        ),
    ];
    for (controller, queue, reconcile) in controllers {
        if !options.controllers.enabled(controller) {
            queue.close();
            continue;
        }
        for _ in 0..WORKERS {
            workers.spawn(work(controller, queue.clone(), reconcile.clone()));
        }
    }
}

async fn work(
    controller: &'static str,
    queue: WorkQueue<String>,
    reconcile: Arc<
        dyn Fn(String) -> BoxFuture<'static, Result<Outcome, crate::Error>> + Send + Sync,
    >,
) {
    while let Some(work) = queue.next().await {
        let name = work.key().clone();
        // One node that a controller cannot bear must not take its workers away from all others.
        let done = AssertUnwindSafe(reconcile(name.clone()))
            .catch_unwind()
            .await;
        let Ok(done) = done else {
            tracing::error!(controller, node = name, "reconcile panicked; it is retried");
            queue.add_rate_limited(name);
            continue;
        };
        match done {
            Ok(outcome) => {
                queue.forget(&name);
                if let Outcome::Again(delay) = outcome {
                    queue.add_after(name, delay);
                }
            }
            Err(error) => {
                tracing::warn!(controller, node = name, %error, "reconcile failed; it is retried");
                queue.add_rate_limited(name);
            }
        }
    }
}

fn on_node(change: Change<Node>, queues: &Queues) {
    match change {
        Change::Applied { old: None, new } => queues.add_to_all(&ObjectKey::of(&*new).name),
        Change::Applied {
            old: Some(old),
            new,
        } => {
            if noderesource::is_relevant(&old, &new) {
                queues.add_to_all(&ObjectKey::of(&*new).name);
            }
        }
        Change::Deleted(node) => queues.add_to_all(&ObjectKey::of(&*node).name),
        Change::Synced => {}
    }
}

fn on_node_metric(
    change: Change<NodeMetric>,
    queues: &Queues,
    resources: &noderesource::Controller,
) {
    match change {
        Change::Applied { old, new } => {
            let name = ObjectKey::of(&*new).name;
            let old = old.as_deref();
            if old.is_none_or(|old| old.spec != new.spec) {
                queues.node_metric.add(name.clone());
            }
            if old.is_none_or(|old| old.status != new.status) {
                queues.node_resource.add(name);
            }
        }
        Change::Deleted(metric) => {
            let name = ObjectKey::of(&*metric).name;
            resources.forget(&name);
            queues.node_metric.add(name.clone());
            queues.node_resource.add(name);
        }
        Change::Synced => {}
    }
}

fn on_node_slo(change: Change<NodeSLO>, queues: &Queues) {
    match change {
        Change::Applied { old, new } => {
            if old.is_none_or(|old| old.spec != new.spec) {
                queues.node_slo.add(ObjectKey::of(&*new).name);
            }
        }
        Change::Deleted(slo) => queues.node_slo.add(ObjectKey::of(&*slo).name),
        Change::Synced => {}
    }
}

/// Takes over the settings; `true` if anything changed.
fn on_config(
    change: Change<ConfigMap>,
    current: &watch::Sender<Arc<Config>>,
    recorder: &Recorder,
) -> bool {
    let (next, problems, about) = match change {
        Change::Applied { new, .. } => {
            let data = new.data.clone().unwrap_or_default();
            let (next, problems) = current.borrow().updated(&data);
            (next, problems, Some(events::reference(&*new)))
        }
        // Without the ConfigMap the defaults apply, but only if there never was one: losing it by
        // accident must not switch co-location off everywhere.
        Change::Synced if !current.borrow().is_available() && !current.borrow().is_present() => {
            let (next, problems) = current.borrow().updated(&Default::default());
            (next, problems, None)
        }
        Change::Deleted(config) => {
            let about = events::reference(&*config);
            let message = "the settings are gone; the last ones stay in force until a restart";
            recorder.event(about, Severity::Warning, "SLOConfigDeleted", message);
            tracing::warn!(message);
            return false;
        }
        Change::Synced => return false,
    };
    for problem in problems {
        tracing::error!(
            key = problem.key,
            problem = problem.message,
            "there is something wrong with the settings"
        );
        if let Some(about) = &about {
            recorder.event(
                about.clone(),
                Severity::Warning,
                problem.reason,
                problem.message,
            );
        }
    }
    current.send_if_modified(|current| {
        let changed = **current != next;
        *current = Arc::new(next);
        changed
    })
}

/// A conflict means that somebody was faster; the event of it brings the object back here.
pub(crate) fn unless_conflict<T>(
    result: Result<T, koord_kube::Error>,
) -> Result<(), koord_kube::Error> {
    match result {
        Err(error) if !patch::is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

/// What is gone need not be deleted.
pub(crate) fn unless_gone<T>(
    result: Result<T, koord_kube::Error>,
) -> Result<(), koord_kube::Error> {
    match result {
        Err(error) if !patch::is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}
