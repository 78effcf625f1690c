//! Runs the agent: starts informers, reporters and the evictor, and drives the loop on its thread.

use crate::agent::{Agent, AgentError, TickOutcome};
use crate::collect::needs::Needs;
use crate::collect::table;
use crate::devices::{self, DeviceFinder};
use crate::evictor::{self, EvictionOutcome, EvictionResult, Evictor};
use crate::exporter::{self, Exporter};
use crate::gates::{Gate, Gates};
use crate::http;
use crate::metrics::Metrics;
use crate::node_events::{NodeEvents, Warnings};
use crate::node_topology;
use crate::options::{Options, PodSource, Thread};
use crate::qos;
use crate::runtime;
use crate::states::layout::LayoutFinder;
use crate::states::metric_policy::{MemoryPolicy, MetricPolicy};
use crate::states::{
    Layout, NodeInfo, Slo, States, TopologyInfo, claims, kubelet, layout_detection, lifecycle,
};
use crate::status::{self, StatusHandle};
use crate::time::TickTime;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::slo::{NodeMetricStatus, RawNodeMetric, RawNodeSLO};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_app::Context;
use koord_host::features::KernelFeatures;
use koord_host::{HostError, Root, features, limits, resctrl, sched};
use koord_kube::client::read_only;
use koord_kube::events::Recorder;
use koord_kube::{Change, Client, Informer, Scope};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Error of [`run`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node has no name.
    #[error("node name is empty: set NODE_NAME or --node-name")]
    NodeName,
    /// A kernel file could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The agent could not be created.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The HTTP server failed.
    #[error(transparent)]
    Http(#[from] koord_app::admin::AdminError),
    /// The loop panicked; the panic is in the log.
    #[error("agent loop panicked")]
    LoopPanicked,
    /// A thread could not be started.
    #[error("failed to start the agent thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// Timeout of a NodeMetric report, so that an unanswered one does not delay the next.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// A request from other tasks to the loop.
enum Request {
    Report(MetricPolicy, oneshot::Sender<Option<NodeMetricStatus>>),
}

/// Runs the agent until `ctx.shutdown` is cancelled.
///
/// All parts start independently: the loop measures before any object of the cluster was received, and each
/// strategy waits for its own inputs only.
///
/// Everything begins independently: the loop measures before any object of the cluster is known,
/// and each strategy waits for its own inputs only.
pub fn run(
    options: Options,
    client: Client,
    ctx: Context,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(run_inner(options, client, ctx))
}

/// Starts all parts of the agent and runs its loop until shutdown.
async fn run_inner(mut options: Options, client: Client, ctx: Context) -> Result<(), Error> {
    if options.node_name.is_empty() {
        return Err(Error::NodeName);
    }
    let root = match options.root.clone() {
        Some(root) => root,
        None => Root::system()?,
    };
    let reports_to = client.clone();
    let (root, client) = match options.dry_run {
        true => {
            options.disable_writes();
            tracing::info!("dry run: nothing is written, see the audit log");
            (root.dry_run(), read_only(client))
        }
        false => (root, client),
    };
    let states = Arc::new(States::default());
    if let Some(parent) = options.detect_layout.clone() {
        let finder = LayoutFinder::new(root.clone(), parent);
        options.settings.layout = finder.detect(None).layout;
        let setting = options.settings.layout.clone();
        let detection =
            layout_detection::detect_layout(finder, setting, states.clone(), ctx.shutdown.clone());
        tokio::spawn(detection);
    }
    if options.mount_resctrl {
        mount_resctrl(&root, &options.settings.gates);
    }
    let features = features::probe(&root)?;
    announce(&features, &options);
    let open_files = limits::raise_open_files();
    tracing::debug!(?open_files, "set the limit of open files");
    let metrics = Metrics::new(&ctx.metrics).ok_or(AgentError::Metrics)?;
    koord_app::metrics::register_process(&ctx.metrics).map_err(|_| AgentError::Metrics)?;
    metrics.record_start(&options.node_name, ctx.clock.now().as_second());
    options.audit.set_metrics(metrics.clone());
    let status = StatusHandle::new(states.malformed_inputs.clone(), states.conditions.clone());
    status.update(|status| {
        status.node.clone_from(&options.node_name);
        status.started_at = Some(ctx.clock.now());
        status::describe(status, &features, &options.settings);
    });
    states.malformed_inputs.register(
        &ctx.metrics,
        &options.node_name,
        metrics.bad_input().clone(),
    );
    states.conditions.register(&ctx.metrics, &options.node_name);
    let agent = Agent::new(
        root.clone(),
        options.settings.clone(),
        states.clone(),
        options.audit.clone(),
        metrics.clone(),
    )?;
    let ready = Arc::new(AtomicBool::new(false));
    let served = || http::HttpState {
        registry: ctx.metrics.clone(),
        audit: options.audit.clone(),
        gates: options.settings.gates.clone(),
        ready: ready.clone(),
        status: status.clone(),
    };
    if let Some(server) = &options.server {
        server.serve(served().router());
    } else if let Some(address) = options.address {
        let local = http::serve(address, served(), ctx.shutdown.clone()).await?;
        tracing::info!(address = %local, "serving health, metrics and audit events");
    }
    watch_cluster(&options, &client, &ctx, &states, &metrics);
    if options.settings.gates.is_on(Gate::BlkIOReconcile) {
        let follow = claims::follow(states.clone(), client.clone(), ctx.shutdown.clone());
        tokio::spawn(follow);
    }
    if let PodSource::Kubelet(kubelet) = &options.pods {
        let poll = kubelet::KubeletPoller::new(
            kubelet.clone(),
            options.settings.layout.clone(),
            root.clone(),
            states.clone(),
            (client.clone(), options.node_name.clone()),
            metrics.kubelet().clone(),
        );
        tokio::spawn(poll.run(ctx.shutdown.clone()));
        tokio::spawn(lifecycle::watch(
            root.clone(),
            options.settings.layout.clone(),
            states.clone(),
            ctx.shutdown.clone(),
        ));
    }
    report_devices(&options, &client, &ctx, &states, &root, &status);
    let recorder = match options.dry_run {
        true => Recorder::silent(),
        false => Recorder::start(
            client.clone(),
            "koordlet",
            &options.node_name,
            ctx.clock.clone(),
            ctx.shutdown.clone(),
        ),
    };
    if let Some(reporting) = options.topology.filter(|it| !it.interval.is_zero()) {
        let parts = topology_parts(&options, reporting, &client, &root, &states, &metrics);
        let warnings = Warnings::new(&options.node_name, recorder.clone());
        let reporter = node_topology::TopologyReporter::new(parts, warnings);
        tokio::spawn(reporter.run(ctx.shutdown.clone()));
    }
    let (requests, inbox) = mpsc::channel(16);
    if let Some(exporter) = options.exporter.clone() {
        let counts = exporter::Metrics::new(&ctx.metrics).map_err(|_| AgentError::Metrics)?;
        let (root, recorder) = (root.clone(), recorder.clone());
        let exporter = Exporter::new(exporter, root, client.clone(), recorder, counts);
        tokio::spawn(exporter.run(ctx.shutdown.clone()));
    }
    let parts = runtime::HookContext {
        states: states.clone(),
        rules: agent.rules().clone(),
        settings: options.settings.clone(),
        root: root.clone(),
        metrics: metrics.clone(),
        warnings: Arc::new(Warnings::new(&options.node_name, recorder.clone())),
        dry_run: options.dry_run.then(|| runtime::AdjustmentAudit {
            log: options.audit.clone(),
            clock: ctx.clock.clone(),
        }),
    };
    let conflicts = runtime::start(&options.runtime, parts, ctx.shutdown.clone());
    let parts = evictor::EvictorDeps {
        client: client.clone(),
        recorder: recorder.clone(),
        states: states.clone(),
        root,
        audit: options.audit.clone(),
        metrics: metrics.clone(),
        clock: ctx.clock.clone(),
    };
    let (evictor, evicted) = Evictor::start(options.evict, parts, ctx.shutdown.clone());
    if options.report {
        let reporter = NodeMetricReporter {
            node: options.node_name.clone(),
            client: reports_to,
            states: states.clone(),
            requests: requests.clone(),
            interval: options.report_interval,
        };
        tokio::spawn(reporter.run(ctx.shutdown.clone()));
    }
    // The channel must outlive every optional sender.
    let _requests = requests;
    let driver = MainLoop {
        agent,
        ctx: ctx.clone(),
        interval: Duration::from_millis(options.settings.interval_ms.max(10)),
        fast_interval: Duration::from_millis(options.settings.fast_interval_ms.max(10)),
        restore_on_stop: options.settings.restore_on_stop,
        metrics,
        ready,
        states,
        audit: options.audit.clone(),
        status,
        evictor: Some(evictor),
        conflicts,
        events: NodeEvents::new(&options.node_name, recorder),
    };
    match options.thread {
        Thread::Shared => driver.run(inbox, evicted).await,
        Thread::Own => on_own_thread(driver, inbox, evicted, options.realtime_priority).await?,
    }
    options.audit.flush();
    Ok(())
}

/// Starts the reporter of devices if its gate is open.
fn report_devices(
    options: &Options,
    client: &Client,
    ctx: &Context,
    states: &Arc<States>,
    root: &Root,
    status: &StatusHandle,
) {
    let config = &options.devices;
    let finder = DeviceFinder::new(root.clone(), &options.settings.gates, config);
    let Some(finder) = finder.filter(|_| !config.interval.is_zero()) else {
        return;
    };
    let reporter = devices::DeviceReporter {
        node: options.node_name.clone(),
        client: client.clone(),
        states: states.clone(),
        clock: ctx.clock.clone(),
        finder,
        status: status.clone(),
        interval: config.interval,
    };
    tokio::spawn(reporter.run(ctx.shutdown.clone()));
}

fn topology_parts(
    options: &Options,
    reporting: node_topology::Reporting,
    client: &Client,
    root: &Root,
    states: &Arc<States>,
    metrics: &Metrics,
) -> node_topology::ReporterDeps {
    let settings = &options.settings;
    node_topology::ReporterDeps {
        node: options.node_name.clone(),
        root: root.clone(),
        states: states.clone(),
        metrics: metrics.clone(),
        client: client.clone(),
        reporting,
        writes: settings.gates.is_on(Gate::NodeTopologyReport) && !options.dry_run,
        asks_kubelet: matches!(&options.pods, PodSource::Kubelet(kubelet) if kubelet.query_config),
        kubelet_dir: settings.kubelet_dir.clone(),
        huge_pages: settings.gates.is_on(Gate::HugePageReport),
        each_cpu: settings.gates.is_on(Gate::PerCPUMetric),
        machine_every: Duration::from_millis(settings.collectors.cpu_info_ms),
    }
}

/// Mounts resctrl where a strategy that is switched on could use it.
fn mount_resctrl(root: &Root, gates: &Gates) {
    if ![Gate::RdtResctrl, Gate::Resctrl]
        .iter()
        .any(|gate| gates.is_on(*gate))
    {
        return;
    }
    let mounted = resctrl::is_mountable(root).and_then(|mountable| {
        if mountable {
            resctrl::mount(root)?;
        }
        Ok(mountable)
    });
    match mounted {
        Ok(true) => tracing::info!("mounted resctrl"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "failed to mount resctrl"),
    }
}

/// Logs the kernel's features and the enabled strategies and collectors.
fn announce(features: &KernelFeatures, options: &Options) {
    for line in features.lines() {
        tracing::debug!("{line}");
    }
    options.settings.gates.announce();
    for row in qos::strategy_rows(&options.settings) {
        tracing::debug!(
            strategy = row.name,
            on = row.on,
            every_ms = row.every_ms,
            by = crate::status::describe_mechanism(row.name, &row.claims),
            "configured strategy"
        );
    }
    let needs = Needs::default();
    for row in table::collector_rows(&options.settings, needs, MemoryPolicy::default(), |_| None) {
        tracing::debug!(
            collector = row.name,
            state = ?row.state,
            every_ms = row.every_ms,
            source = row.source,
            why = row.why,
            "configured collector"
        );
    }
    tracing::info!(
        node = options.node_name,
        driver = ?options.settings.layout.driver(),
        mode = %options.settings.suppress_mode,
        interval_ms = options.settings.interval_ms,
        "koordlet started"
    );
}

/// Starts the informers that fill `states`.
fn watch_cluster(
    options: &Options,
    client: &Client,
    ctx: &Context,
    states: &Arc<States>,
    metrics: &Metrics,
) {
    let node = options.node_name.as_str();
    let by_name = || Scope {
        fields: Some(format!("metadata.name={node}")),
        ..Scope::default()
    };
    let nodes = Informer::<Node>::start(client.clone(), by_name(), ctx.shutdown.clone());
    let slos = Informer::<RawNodeSLO>::start(client.clone(), by_name(), ctx.shutdown.clone());
    if options.topology.is_none() {
        follow_topology(options, client, by_name(), ctx, states, metrics);
    }
    let to = states.clone();
    let metrics = metrics.clone();
    tokio::spawn(follow(nodes.changes, move |node: Option<&Node>| {
        let last = to.node.load_full();
        let info = node.map(|node| {
            let (info, malformed) = NodeInfo::read(node, last.as_deref());
            to.malformed_inputs
                .replace(&format!("Node {}", info.name), malformed);
            info
        });
        if let Some(info) = &info {
            metrics.allocatable(info);
        }
        to.node.store(info.map(Arc::new));
    }));
    let to = states.clone();
    tokio::spawn(follow(slos.changes, move |slo: Option<&RawNodeSLO>| {
        let last = to.slo.load_full();
        let (slo, malformed) =
            slo.map_or_else(Default::default, |slo| Slo::read(&slo.spec, Some(&last)));
        to.malformed_inputs.replace("NodeSLO", malformed);
        to.slo.store(Arc::new(slo));
    }));
    if options.pods == PodSource::ApiServer {
        let scope = Scope {
            fields: Some(format!("spec.nodeName={node}")),
            ..Scope::default()
        };
        let pods = Informer::<Pod>::start(client.clone(), scope, ctx.shutdown.clone());
        let (to, layout) = (states.clone(), options.settings.layout.clone());
        tokio::spawn(follow_pods(pods, layout, to));
    }
    let policies =
        Informer::<RawNodeMetric>::start(client.clone(), by_name(), ctx.shutdown.clone());
    let to = states.clone();
    let read = move |object: Option<&RawNodeMetric>| {
        let last = to.policy.load_full();
        let policy = object.map(|object| MetricPolicy::read(&object.spec, last.as_deref()));
        let (policy, malformed) = policy.unzip();
        to.malformed_inputs
            .replace("NodeMetric", malformed.unwrap_or_default());
        to.policy.store(policy.map(Arc::new));
    };
    tokio::spawn(follow(policies.changes, read));
}

/// Starts the informer of a NodeResourceTopology that another component writes.
fn follow_topology(
    options: &Options,
    client: &Client,
    scope: Scope,
    ctx: &Context,
    states: &Arc<States>,
    metrics: &Metrics,
) {
    let topologies =
        Informer::<NodeResourceTopology>::start(client.clone(), scope, ctx.shutdown.clone());
    let (to, pools) = (states.clone(), metrics.clone());
    let each_cpu = options.settings.gates.is_on(Gate::PerCPUMetric);
    let read = move |object: Option<&NodeResourceTopology>| {
        let last = to.topology.load_full();
        let info = object.map(|object| TopologyInfo::read(object, last.as_deref()));
        let (info, malformed) = info.unzip();
        to.malformed_inputs
            .replace("NodeResourceTopology", malformed.unwrap_or_default());
        if let Some(info) = &info {
            pools.topology(info, each_cpu);
        }
        to.topology.store(info.map(Arc::new));
    };
    tokio::spawn(follow(topologies.changes, read));
}

/// Passes the newest state of the one watched object to `set`; `None` when it was deleted.
async fn follow<K>(mut changes: mpsc::Receiver<Change<K>>, set: impl Fn(Option<&K>)) {
    while let Some(change) = changes.recv().await {
        match change {
            Change::Applied { new, .. } => set(Some(&new)),
            Change::Deleted(_) => set(None),
            Change::Synced => {}
        }
    }
}

/// Rebuilds the list of pods after each burst of changes. Nothing is published before the first list is
/// complete: a partial list would make the node look idle.
async fn follow_pods(mut pods: Informer<Pod>, layout: Layout, states: Arc<States>) {
    let mut synced = false;
    loop {
        tokio::select! {
            change = pods.changes.recv() => match change {
                Some(change) => synced |= matches!(change, Change::Synced),
                None => return,
            },
            // The cgroup layout has changed.
            () = states.resync_requested() => {}
        }
        while let Ok(change) = pods.changes.try_recv() {
            synced |= matches!(change, Change::Synced);
        }
        if synced {
            let list = pods.store.list();
            let layout = states.layout_or(&layout);
            states.publish_pods(list.iter().map(AsRef::as_ref), &layout);
            states.set_pods_settled(true);
        }
    }
}

/// Returns the timer of the fast lane. Missed steps are skipped.
fn fast_ticker(period: Duration) -> Interval {
    let mut steps = interval(period);
    steps.set_missed_tick_behavior(MissedTickBehavior::Skip);
    steps
}

/// The loop: the agent and everything that drives it.
struct MainLoop {
    agent: Agent,
    ctx: Context,
    interval: Duration,
    fast_interval: Duration,
    restore_on_stop: bool,
    metrics: Metrics,
    ready: Arc<AtomicBool>,
    states: Arc<States>,
    audit: crate::audit::Log,
    status: StatusHandle,
    /// `None` disables eviction.
    evictor: Option<Evictor>,
    /// `Some` with a runtime plugin.
    conflicts: Option<runtime::PluginConflicts>,
    events: NodeEvents,
}

impl MainLoop {
    /// Runs the loop until shutdown: ticks, requests and results of evictions.
    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Request>,
        mut evicted: mpsc::Receiver<EvictionResult>,
    ) {
        let origin = Instant::now();
        let mut timer = interval(self.interval);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut fast = fast_ticker(self.fast_interval);
        let mut current_pace = 1;
        let mut flushed = origin;
        let mut shown = None;
        loop {
            let pace = self.agent.fast_pace();
            if let Some(pace) = pace.filter(|pace| *pace != current_pace) {
                fast = fast_ticker(self.fast_interval * pace);
                current_pace = pace;
            }
            tokio::select! {
                biased;
                () = self.ctx.shutdown.cancelled() => {
                    if self.restore_on_stop {
                        let now = self.now(origin);
                        self.agent.restore(now);
                    }
                    self.agent.save(self.now(origin));
                    return;
                }
                Some(request) = inbox.recv() => {
                    let now = self.now(origin);
                    match request {
                        Request::Report(policy, reply) => {
                            let status = self.agent.report(&policy, now.ms(), now.wall);
                            let _ = reply.send(status);
                        }
                    }
                }
                Some(EvictionResult { eviction, outcome }) = evicted.recv() => {
                    let now = self.now(origin);
                    match outcome {
                        EvictionOutcome::Evicted | EvictionOutcome::Killed | EvictionOutcome::Gone => {
                            self.agent.evicted(&eviction, now);
                        }
                        EvictionOutcome::Blocked(after) => self.agent.refused(&eviction, after, now),
                        EvictionOutcome::Failed => self.agent.refused(&eviction, None, now),
                    }
                }
                _ = fast.tick(), if pace.is_some() => {
                    let now = self.now(origin);
                    self.agent.tick_fast(now);
                }
                _ = timer.tick() => {
                    let began = std::time::Instant::now();
                    let now = self.now(origin);
                    let TickOutcome { evictions: due, strategy_states, guard_actions, guard, .. } =
                        self.agent.tick(now);
                    let took = began.elapsed();
                    self.metrics.record_tick(took.as_secs_f64());
                    let collectors = self.agent.collectors();
                    self.status.show_errors(self.agent.strategy_errors());
                    let listed = self.states.pods.load_full();
                    let pods = listed.as_ref().map(|pods| pods.len());
                    if let Some(listed) = listed
                        && !shown.as_ref().is_some_and(|old| Arc::ptr_eq(old, &listed))
                    {
                        self.metrics.pods(&listed);
                        if let Some(conflicts) = &mut self.conflicts {
                            conflicts.update(&listed);
                        }
                        shown = Some(listed);
                    }
                    let layout = self.states.layout.load();
                    self.status.update(|status| {
                        if let Some(layout) = layout.as_ref() {
                            status.kernel.driver = status::driver(layout);
                        }
                        status.collectors = collectors;
                        status.ticks += 1;
                        status.tick_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                        status.updated_at = Some(now.wall);
                        status.pods = pods;
                        if let Some(guard) = guard {
                            status.guard = guard;
                        }
                        status::apply_strategy_states(status, strategy_states);
                    });
                    for action in guard_actions.iter().filter(|action| action.event) {
                        self.events.record(now.ms(), action);
                    }
                    if let Some(evictor) = &self.evictor {
                        for eviction in due {
                            evictor.try_evict(eviction);
                        }
                    }
                    if pods.is_some() {
                        self.ready.store(true, Ordering::Relaxed);
                    }
                    if flushed.elapsed() >= Duration::from_secs(5) {
                        flushed = Instant::now();
                        self.audit.flush();
                    }
                }
            }
        }
    }

    fn now(&self, origin: Instant) -> TickTime {
        let steady_ns = u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        TickTime {
            steady_ns,
            wall: self.ctx.clock.now(),
        }
    }
}

/// Runs the loop on a thread of its own, with real-time priority if `priority` is above 0.
async fn on_own_thread(
    driver: MainLoop,
    inbox: mpsc::Receiver<Request>,
    evicted: mpsc::Receiver<EvictionResult>,
    priority: u8,
) -> Result<(), Error> {
    let (done, finished) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(Error::Thread)?;
    std::thread::Builder::new()
        .name("koordlet".to_owned())
        .spawn(move || {
            if priority > 0
                && let Err(error) = sched::set_fifo(priority.into())
            {
                tracing::warn!(%error, "failed to set real-time priority, continuing at normal priority");
            }
            runtime.block_on(driver.run(inbox, evicted));
            let _ = done.send(());
        })
        .map_err(Error::Thread)?;
    // Nothing is sent when the thread panicked: the node would silently be without an agent.
    finished.await.map_err(|_| Error::LoopPanicked)
}

/// Publishes NodeMetric at the interval that the NodeMetric object specifies.
struct NodeMetricReporter {
    node: String,
    client: Client,
    states: Arc<States>,
    requests: mpsc::Sender<Request>,
    interval: Option<Duration>,
}

impl NodeMetricReporter {
    async fn run(self, shutdown: CancellationToken) {
        let work = async {
            loop {
                // The manager creates the object; until then there is nowhere to report to.
                let policy = self.states.policy.load_full();
                let wait = policy.as_ref().map_or(Duration::from_secs(1), |p| {
                    Duration::from_millis(p.interval_ms)
                });
                sleep(self.interval.map_or(wait, |interval| interval.min(wait))).await;
                if let Some(policy) = self.states.policy.load_full() {
                    self.report(policy.as_ref().clone()).await;
                }
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }

    async fn report(&self, policy: MetricPolicy) {
        let (reply, answer) = oneshot::channel();
        if self
            .requests
            .send(Request::Report(policy, reply))
            .await
            .is_err()
        {
            return;
        }
        let Ok(Some(status)) = answer.await else {
            return;
        };
        let published = publish(&self.client, &self.node, &status);
        match timeout(REPORT_TIMEOUT, published).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "failed to report NodeMetric"),
            Err(_) => tracing::warn!(
                limit = ?REPORT_TIMEOUT,
                "failed to report NodeMetric: the API server does not answer"
            ),
        }
    }
}

/// Replaces the status of the node's NodeMetric. A deleted NodeMetric is no error.
async fn publish(
    client: &Client,
    node: &str,
    status: &NodeMetricStatus,
) -> Result<(), koord_kube::Error> {
    let api: koord_kube::Api<RawNodeMetric> = koord_kube::Api::all(client.clone());
    let status = serde_json::to_value(status).map_err(koord_kube::Error::SerdeError)?;
    // koordlet owns the whole status. Values that are no longer reported must be removed; a JSON patch that
    // replaces the status does that without a resourceVersion to conflict on.
    let patch = serde_json::json!([{ "op": "add", "path": "/status", "value": status }]);
    let patch = serde_json::from_value(patch).map_err(koord_kube::Error::SerdeError)?;
    let patch = koord_kube::api::Patch::Json::<()>(patch);
    match api
        .patch_status(node, &koord_kube::api::PatchParams::default(), &patch)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if koord_kube::patch::is_not_found(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
