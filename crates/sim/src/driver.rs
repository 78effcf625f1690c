//! Driver of the simulation: watches, queues and writes. The other modules decide what to write.

use crate::cached_pod::CachedPod;
use crate::lifecycle::{self, Addresses, Step};
use crate::numa::{self, Admission, ForeignZones, NodeKubelets};
use crate::telemetry::Telemetry;
use crate::{Error, Options, heartbeat, node, refusal};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::slo::{NodeMetric, NodeMetricStatus};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_app::Context;
use koord_kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use koord_kube::events::{Recorder, Severity};
use koord_kube::kube_core::Resource as _;
use koord_kube::patch::{is_conflict, is_not_found, is_status, merge_node_status, merge_status};
use koord_kube::queue::WorkQueue;
use koord_kube::{Api, Cacheable, Change, Client, Informer, ObjectKey, Scope, Store};
use serde_json::json;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// First address of simulated pods: 10.128.0.1 in 10.128.0.0/9.
const FIRST_POD_ADDRESS: u32 = 0x0a80_0001;
const POD_ADDRESSES: u32 = 0x007f_fffe;
/// Maximum number of reports that wait for a free request; a node whose report does not fit is late by a
/// second.
const WAITING_REPORTS: usize = 4096;

/// Time that containers take to stop when their pod is deleted: long enough to be observed.
const STOPPING: Duration = Duration::from_millis(200);

/// Delay from a change of a kubelet's list to the exporter's report of it.
const EXPORTED_AFTER: Duration = Duration::from_millis(100);
/// Delay of the retry for a pod whose node's kubelet has not started, and for a report that waits for the
/// list of pods.
const KUBELET_STARTS: Duration = Duration::from_millis(50);
/// Field manager of a simulated node's NodeResourceTopology.
const EXPORTER: &str = "koord-sim";

/// Maximum number of pods that get a `Simulated` Event.
const MAX_SIMULATED_EVENTS: u32 = 100;

/// State shared by the workers.
struct Shared {
    client: Client,
    ctx: Context,
    options: Options,
    nodes: Store<Node>,
    pods: Store<CachedPod>,
    pod_queue: WorkQueue<ObjectKey>,
    node_queue: WorkQueue<String>,
    /// Kubelets of the nodes with NUMA nodes.
    kubelets: Arc<NodeKubelets>,
    /// Nodes whose kubelet's list has changed.
    export_queue: WorkQueue<String>,
    /// True once all existing pods are listed.
    listed: AtomicBool,
    next_address: AtomicU32,
    recorder: Recorder,
    /// Number of pods that got a `Simulated` Event.
    simulated_events: AtomicU32,
}

/// Runs the simulation until shutdown.
pub(crate) async fn run(options: Options, client: Client, ctx: Context) -> Result<(), Error> {
    check(&options)?;
    tokio::select! {
        () = ctx.shutdown.cancelled() => return Ok(()),
        prepared = prepare(&options, &client, ctx.clock.now()) => prepared?,
    }
    let shutdown = || ctx.shutdown.clone();
    let mut nodes =
        Informer::<Node>::start_trimmed(client.clone(), Scope::default(), trim_node, shutdown());
    let bound = Scope {
        fields: Some("spec.nodeName!=".to_owned()),
        ..Scope::default()
    };
    let mut pods = Informer::start_mapped(client.clone(), bound, CachedPod::new, shutdown());
    let mut metrics = Informer::<NodeMetric>::start_trimmed(
        client.clone(),
        Scope::default(),
        |metric| metric.status = None,
        shutdown(),
    );
    let topologies = client.clone();
    let mut topologies =
        Informer::start_mapped(topologies, Scope::default(), ForeignZones::new, shutdown());
    let shared = Arc::new(Shared {
        client: client.clone(),
        ctx: ctx.clone(),
        options: options.clone(),
        nodes: nodes.store.clone(),
        pods: pods.store.clone(),
        pod_queue: WorkQueue::default(),
        node_queue: WorkQueue::default(),
        kubelets: Arc::default(),
        export_queue: WorkQueue::default(),
        listed: AtomicBool::new(false),
        next_address: AtomicU32::new(0),
        recorder: Recorder::start(
            client.clone(),
            "koord-sim",
            "",
            ctx.clock.clone(),
            ctx.shutdown.clone(),
        ),
        simulated_events: AtomicU32::new(0),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..options.concurrency {
        tasks.spawn(work_on_pods(Arc::clone(&shared)));
        tasks.spawn(work_on_exports(Arc::clone(&shared)));
        tasks.spawn(work_on_nodes(Arc::clone(&shared)));
    }
    let heartbeat = heartbeat::run(
        nodes.store.clone(),
        options.heartbeat_interval,
        options.concurrency,
        client.clone(),
        ctx.clone(),
    );
    tasks.spawn(heartbeat);
    let (reports, waiting) = mpsc::channel(WAITING_REPORTS);
    tasks.spawn(write_reports(waiting, options.concurrency, client));

    let mut telemetry = Telemetry::new(&options);
    let mut ticks = tokio::time::interval(options.sample_interval.min(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tracing::info!(nodes = options.nodes, "simulated nodes started");
    loop {
        tokio::select! {
            () = ctx.shutdown.cancelled() => break,
            Some(change) = nodes.changes.recv() => on_node(change, &mut telemetry, &shared),
            Some(change) = pods.changes.recv() => on_pod(change, &mut telemetry, &shared),
            Some(change) = metrics.changes.recv() => on_metric(&change, &mut telemetry),
            Some(change) = topologies.changes.recv() => on_topology(&change, &shared),
            _ = ticks.tick() => {
                let now = ctx.clock.now();
                telemetry.sample(now);
                for report in telemetry.due(now, reports.capacity()) {
                    // Only this task sends, so there is space.
                    let _ = reports.try_send(report);
                }
            }
        }
    }
    shared.pod_queue.close();
    shared.node_queue.close();
    shared.export_queue.close();
    drop(reports);
    tasks.shutdown().await;
    Ok(())
}

/// Checks that the intervals and the concurrency are not 0.
fn check(options: &Options) -> Result<(), Error> {
    for (option, interval) in [
        ("heartbeat_interval", options.heartbeat_interval),
        ("sample_interval", options.sample_interval),
        ("report_interval", options.report_interval),
        ("least_report_interval", options.least_report_interval),
    ] {
        if interval.is_zero() {
            return Err(Error::Option {
                option,
                value: format!("{interval:?}"),
            });
        }
    }
    if options.concurrency == 0 {
        return Err(Error::Option {
            option: "concurrency",
            value: "0".to_owned(),
        });
    }
    Ok(())
}

/// Creates the nodes that are missing and deletes what a larger earlier run left.
async fn prepare(options: &Options, client: &Client, now: Timestamp) -> Result<(), Error> {
    let api: Api<Node> = Api::all(client.clone());
    let failed = |node: &str| {
        let node = node.to_owned();
        move |source| Error::Node { node, source }
    };
    let existing = api
        .list(&ListParams::default())
        .await
        .map_err(failed("(list)"))?;
    let names: std::collections::HashSet<&str> = existing
        .items
        .iter()
        .filter_map(|node| node.metadata.name.as_deref())
        .collect();
    let missing: Vec<usize> = (0..options.nodes)
        .filter(|index| !names.contains(node::name(*index).as_str()))
        .collect();
    stream::iter(missing)
        .map(Ok)
        .try_for_each_concurrent(options.concurrency, |index| {
            let api = api.clone();
            let node = node::registered(index, &options.template, now);
            async move {
                let name = node::name(index);
                let node = node.map_err(|error| Error::Node {
                    node: name.clone(),
                    source: koord_kube::Error::SerdeError(error),
                })?;
                match api.create(&PostParams::default(), &node).await {
                    Err(error) if !is_conflict(&error) => Err(failed(&name)(error)),
                    _ => Ok(()),
                }
            }
        })
        .await?;
    for node in &existing.items {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if node::is_surplus(node, options.nodes) {
            match api.delete(name, &DeleteParams::default()).await {
                Err(error) if !is_not_found(&error) => return Err(failed(name)(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn on_node(change: Change<Node>, telemetry: &mut Telemetry, shared: &Shared) {
    match change {
        Change::Applied { new, .. } => {
            let managed = koord_api::simulation::is_simulated(&new);
            let pods = telemetry.apply_node(&new, managed);
            if managed {
                shared.start_kubelet(&new, &pods);
            }
            for pod in pods {
                shared.pod_queue.add(pod);
            }
            if managed && !node::is_ready(&new) {
                shared
                    .node_queue
                    .add(new.metadata.name.clone().unwrap_or_default());
            }
        }
        Change::Deleted(last) => {
            let name = last.metadata.name.as_deref().unwrap_or_default();
            shared.kubelets.remove(name);
            telemetry.node_gone(name);
        }
        Change::Synced => {}
    }
}

fn on_pod(change: Change<CachedPod>, telemetry: &mut Telemetry, shared: &Shared) {
    match change {
        Change::Applied { old, new } => {
            let key = new.key();
            let pod = new.pod();
            telemetry.pod(&key, &pod);
            shared.reserve_address(&pod);
            if refusal::ended(&pod) {
                shared.release(&pod);
            } else if has_started(&pod) {
                shared.readmit(&pod);
            }
            if new.deleting && old.is_some_and(|old| !old.deleting) {
                shared.pod_queue.add_after(key, STOPPING);
            } else {
                shared.pod_queue.add(key);
            }
        }
        Change::Deleted(last) => {
            shared.release(&last.pod());
            telemetry.pod_gone(&last.key());
        }
        Change::Synced => shared.listed.store(true, Ordering::Release),
    }
}

fn on_metric(change: &Change<NodeMetric>, telemetry: &mut Telemetry) {
    match change {
        Change::Applied { new, .. } => telemetry.metric(
            new.metadata.name.as_deref().unwrap_or_default(),
            Some(new.spec.clone()),
        ),
        Change::Deleted(last) => {
            telemetry.metric(last.metadata.name.as_deref().unwrap_or_default(), None);
        }
        Change::Synced => {}
    }
}

fn on_topology(change: &Change<ForeignZones>, shared: &Shared) {
    let (name, object) = match change {
        Change::Applied { new, .. } => (&new.name, Some(&**new)),
        Change::Deleted(last) => (&last.name, None),
        Change::Synced => return,
    };
    if shared.kubelets.update_foreign_zones(name, object) {
        shared.export(name);
    }
}

impl Shared {
    /// Starts the kubelet of a node with NUMA nodes; `pods` are those on the node.
    fn start_kubelet(&self, node: &Node, pods: &[ObjectKey]) {
        match self.kubelets.add(node) {
            Ok(false) => {}
            Ok(true) => {
                for cached in pods.iter().filter_map(|key| self.pods.get(key)) {
                    let pod = cached.pod();
                    if has_started(&pod) && !refusal::ended(&pod) {
                        self.readmit(&pod);
                    }
                }
                let name = node.metadata.name.as_deref().unwrap_or_default();
                if let Some(dir) = self.options.kubelets.dir_of(name) {
                    let stop = self.ctx.shutdown.clone().cancelled_owned();
                    if let Err(error) = numa::serve(&self.kubelets, name, &dir, stop) {
                        let dir = dir.display();
                        tracing::warn!(node = name, %dir, %error, "failed to serve a simulated kubelet");
                    }
                }
                self.export(name);
            }
            Err(error) => {
                let message = format!("{error}; the node has no NUMA nodes");
                self.recorder.event(
                    node.object_ref(&()),
                    Severity::Warning,
                    "Simulated",
                    message,
                );
            }
        }
    }

    /// Admits a running pod again, so that it keeps its resources when the simulation restarts.
    fn readmit(&self, pod: &Pod) {
        let name = node_of(pod);
        let Some(node) = self.nodes.get(&ObjectKey::new("", name)) else {
            return;
        };
        match self.kubelets.admit(&node, pod) {
            Admission::Admitted(true) => self.export(name),
            Admission::Refused(reason, _) => {
                if self.kubelets.count(name, pod) {
                    self.export(name);
                }
                let pod = pod.metadata.name.as_deref().unwrap_or_default();
                tracing::warn!(
                    node = name,
                    pod,
                    reason,
                    "running a simulated pod unaligned"
                );
            }
            Admission::Admitted(false) | Admission::NotYet => {}
        }
    }

    fn release(&self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let node = node_of(pod);
        if self.kubelets.release(node, uid) {
            self.export(node);
        }
    }

    /// Writes the state file of the kubelet of `node`, if it has one, and queues the node's topology for export.
    fn export(&self, node: &str) {
        if let Some(dir) = self.options.kubelets.dir_of(node) {
            // The exporter reads the file; koordlet's annotations come from the simulation all the same.
            if let Err(error) = numa::write_cpu_manager_state(&self.kubelets, node, &dir) {
                tracing::warn!(node, %error, "failed to write the state of a simulated kubelet");
            }
        }
        self.export_queue.add_after(node.to_owned(), EXPORTED_AFTER);
    }

    /// Returns the admission decision for a new pod of the kubelet of a node with NUMA nodes.
    fn admit(&self, key: &ObjectKey, pod: &Pod, node: &Node) -> Admission {
        // Running pods come first, and all of them are known only after the list.
        if !self.listed.load(Ordering::Acquire) {
            return Admission::NotYet;
        }
        let admission = self.kubelets.admit(node, pod);
        if admission == Admission::Admitted(true) {
            self.export(node_of(pod));
            let uid = self.pods.get(key).map(|cached| cached.pod().metadata.uid);
            if uid.as_ref() != Some(&pod.metadata.uid) {
                // Deleted meanwhile, and no other event will release it.
                self.release(pod);
            }
        }
        admission
    }

    /// Keeps addresses of pods from an earlier run out of use.
    fn reserve_address(&self, pod: &Pod) {
        let address = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref());
        let Some(Ok(address)) = address.map(str::parse::<Ipv4Addr>) else {
            return;
        };
        let offset = u32::from(address).wrapping_sub(FIRST_POD_ADDRESS);
        if offset < POD_ADDRESSES {
            self.next_address.fetch_max(offset + 1, Ordering::Relaxed);
        }
    }

    /// Records an Event that the pod is only simulated, for the first [`MAX_SIMULATED_EVENTS`] pods.
    fn record_simulated_event(&self, pod: &Pod, node: &Node) {
        if self.simulated_events.fetch_add(1, Ordering::Relaxed) < MAX_SIMULATED_EVENTS {
            let message = format!(
                "node {} is simulated: the pod is said to run, and nothing runs",
                node.metadata.name.as_deref().unwrap_or_default()
            );
            self.recorder
                .event(pod.object_ref(&()), Severity::Normal, "Simulated", message);
        }
    }

    fn new_address(&self) -> String {
        let offset = self.next_address.fetch_add(1, Ordering::Relaxed) % POD_ADDRESSES;
        Ipv4Addr::from(FIRST_POD_ADDRESS + offset).to_string()
    }

    /// Admits a new pod and takes the next step of its lifecycle.
    async fn handle_pod(&self, key: &ObjectKey) -> Result<(), koord_kube::Error> {
        let Some(cached) = self.pods.get(key) else {
            return Ok(());
        };
        let pod = cached.pod();
        let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let node = node_name.and_then(|name| self.nodes.get(&ObjectKey::new("", name)));
        let Some(node) = node.filter(|node| koord_api::simulation::is_simulated(node)) else {
            return Ok(());
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let fresh = !has_started(&pod) && !refusal::ended(&pod);
        if fresh && pod.metadata.deletion_timestamp.is_none() {
            let refused = refusal::check(&pod, &node, || {
                let all = self.pods.list();
                all.into_iter().map(|cached| cached.pod())
            });
            let refused = match refused {
                Some(refused) => Some(refused),
                None => match self.admit(key, &pod, &node) {
                    Admission::Admitted(_) => None,
                    Admission::Refused(reason, message) => Some((reason, message)),
                    Admission::NotYet => {
                        self.pod_queue.add_after(key.clone(), KUBELET_STARTS);
                        return Ok(());
                    }
                },
            };
            if let Some((reason, message)) = refused {
                let generation = pod.metadata.generation;
                let patch = json!({ "status": { "phase": "Failed", "reason": reason,
                    "message": message, "observedGeneration": generation } });
                return merge_status(&api, &key.name, &patch).await.map(drop);
            }
        }
        let pod_ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let step = lifecycle::step(&pod, self.ctx.clock.now(), || Addresses {
            host: node::address(&node),
            pod: pod_ip.unwrap_or_else(|| self.new_address()),
        });
        match step {
            Step::Nothing => Ok(()),
            Step::Wait(delay) => {
                self.pod_queue.add_after(key.clone(), delay);
                Ok(())
            }
            Step::Status(patch) => {
                merge_status(&api, &key.name, &patch).await?;
                if !has_started(&pod) {
                    self.record_simulated_event(&pod, &node);
                }
                Ok(())
            }
            Step::Delete { uid } => {
                let params = DeleteParams {
                    grace_period_seconds: Some(0),
                    preconditions: Some(Preconditions {
                        uid: Some(uid),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                api.delete(&key.name, &params).await.map(drop)
            }
        }
    }
}

async fn work_on_pods(shared: Arc<Shared>) {
    while let Some(work) = shared.pod_queue.next().await {
        let key = work.key();
        match shared.handle_pod(key).await {
            Ok(()) => shared.pod_queue.forget(key),
            // Deleted, or another pod of this name: its own change is handled here.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {
                shared.pod_queue.forget(key);
            }
            Err(error) => {
                tracing::warn!(pod = %key, %error, "failed to write a simulated pod, retrying");
                shared.pod_queue.add_rate_limited(key.clone());
            }
        }
    }
}

async fn work_on_nodes(shared: Arc<Shared>) {
    while let Some(work) = shared.node_queue.next().await {
        let name = work.key();
        let Some(node) = shared.nodes.get(&ObjectKey::new("", name.as_str())) else {
            continue;
        };
        if node::is_ready(&node) || !koord_api::simulation::is_simulated(&node) {
            continue;
        }
        let patch = node::ready_status(&node, &shared.options.template, shared.ctx.clock.now());
        match merge_node_status(&shared.client, name, &patch).await {
            Ok(_) => shared.node_queue.forget(name),
            Err(error) if is_not_found(&error) => shared.node_queue.forget(name),
            Err(error) => {
                tracing::warn!(node = %name, %error, "failed to write a simulated node, retrying");
                shared.node_queue.add_rate_limited(name.clone());
            }
        }
    }
}

/// Writes the reports of exporters.
async fn work_on_exports(shared: Arc<Shared>) {
    let api: Api<NodeResourceTopology> = Api::all(shared.client.clone());
    let params = PatchParams::apply(EXPORTER).force();
    while let Some(work) = shared.export_queue.next().await {
        let name = work.key();
        // Before the list, resources of pods that ran earlier would be reported as free.
        if !shared.listed.load(Ordering::Acquire) {
            shared.export_queue.add_after(name.clone(), KUBELET_STARTS);
            continue;
        }
        if shared.options.kubelets.nodes.contains(name) {
            annotate(&shared, &api, name).await;
            continue;
        }
        let Some(report) = shared.kubelets.report(name) else {
            continue;
        };
        match api.patch(name, &params, &Patch::Apply(&report)).await {
            Ok(_) => {
                shared.kubelets.reported(name, report);
                shared.export_queue.forget(name);
            }
            Err(error) => {
                tracing::warn!(node = %name, %error, "failed to write the NodeResourceTopology of a simulated node, retrying");
                shared.export_queue.add_rate_limited(name.clone());
            }
        }
    }
}

/// Writes koordlet's annotations into the report that an exporter makes.
async fn annotate(shared: &Shared, api: &Api<NodeResourceTopology>, name: &String) {
    let Some(change) = shared.kubelets.annotation_patch(name) else {
        return;
    };
    let params = PatchParams {
        field_manager: Some(EXPORTER.to_owned()),
        ..PatchParams::default()
    };
    match api.patch(name, &params, &Patch::Merge(&change)).await {
        Ok(_) => {
            shared.kubelets.reported(name, change);
            shared.export_queue.forget(name);
        }
        // The exporter has not created the object yet.
        Err(error) if is_not_found(&error) => {
            shared.export_queue.add_after(name.clone(), KUBELET_STARTS);
        }
        Err(error) => {
            tracing::warn!(node = %name, %error, "failed to annotate the NodeResourceTopology of a simulated node, retrying");
            shared.export_queue.add_rate_limited(name.clone());
        }
    }
}

/// Writes reports until the channel closes. A failed report is not repeated: the next one is newer.
async fn write_reports(
    waiting: mpsc::Receiver<(String, NodeMetricStatus)>,
    concurrency: usize,
    client: Client,
) {
    let api: Api<NodeMetric> = Api::all(client);
    let reports = stream::unfold(waiting, |mut waiting| async {
        waiting.recv().await.map(|report| (report, waiting))
    });
    let write = |(name, status): (String, NodeMetricStatus)| {
        let api = api.clone();
        async move {
            let patch = json!({ "status": status });
            match merge_status(&api, &name, &patch).await {
                Err(error) if !is_status(&error, 404) => {
                    tracing::warn!(node = %name, %error, "failed to write the report of a simulated node");
                }
                _ => {}
            }
        }
    };
    reports.for_each_concurrent(concurrency, write).await;
}

fn node_of(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

fn has_started(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.start_time.is_some())
}

fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}
