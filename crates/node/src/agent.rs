//! The node agent: registers the machine, dispatches pods to their tasks, cleans up.

use crate::command::HostFacts;
use crate::container;
use crate::context::{MARK, Shared};
use crate::cri::{self, CriRunner};
use crate::groups::{GroupError, Groups};
use crate::http;
use crate::lifecycle::Backoff;
use crate::logs::Logs;
use crate::machine::{self, Machine, NodeFacts};
use crate::options::Options;
use crate::pod::burstable_shares;
use crate::pod_resources::PodTableSource;
use crate::runner::Runner;
use crate::runtime::Runtime;
use crate::security::{Rights, Views};
use crate::state::{State, StateError, StateFile};
use crate::table::Table;
use crate::worker::{Command, Worker};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_app::Context;
use koord_host::process::Spawner;
use koord_host::{HostError, Root, procfs};
use koord_kube::events::Recorder;
use koord_kube::lease::NodeLease;
use koord_kube::patch::{is_conflict, is_not_found, merge_node, strategic_status};
use koord_kube::{Change, Client, Informer, Scope};
use koord_rpc::lister;
use rustc_hash::FxHashMap;
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// An error that ends the node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Plain HTTP on this address would expose traffic and bearer tokens to the network.
    #[error("refusing to serve plain HTTP on {0}, which is not a loopback address")]
    Exposed(SocketAddr),
    /// The authorization guard cannot be set up.
    #[error(transparent)]
    Guard(#[from] koord_kube::guard::OpenPathError),
    /// The listen address is in use or not one of this machine.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Runs the node until shutdown: cleans up after an earlier run, starts the services and dispatches pods.
pub(crate) async fn run(options: Options, client: Client, ctx: Context) -> Result<(), Error> {
    let root = match &options.root {
        Some(root) => root.clone(),
        None => Root::system()?,
    };
    let boot_id = procfs::boot_id(&root)?.unwrap_or_default();
    let (state, previous) = open_state(&options.data_dir, &boot_id).await?;
    let state = Arc::new(state);
    let mut groups = Groups::new(root.clone(), &options.cgroup_parent, state.clone())?;
    let owner = std::path::absolute(&options.data_dir).unwrap_or_else(|_| options.data_dir.clone());
    let owner = owner.display().to_string();
    clear_runtimes(&options, &owner, &state, &previous).await;
    remove_orphans(&root, &groups, &state, &previous).await;
    let mut machine = Machine::read(&root, &options.data_dir)?;
    if let Some(runtime) = &options.runtime {
        groups.share_with_runtime();
        machine.info.container_runtime_version = runtime.version();
    }
    let milli = machine
        .cpus
        .saturating_mul(1000)
        .saturating_sub(options.reserved_cpu_milli);
    let (groups, confinement) = confine(&options, &root, groups, milli).await;
    let listener = match options.listen {
        None => None,
        Some(address) if !address.ip().is_loopback() => return Err(Error::Exposed(address)),
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .map_err(|source| Error::Listen { address, source })?,
        ),
    };
    let bound = listener
        .as_ref()
        .and_then(|listener| listener.local_addr().ok());
    let recorder = Recorder::start(
        client.clone(),
        "koord-node",
        &options.node_name,
        ctx.clock.clone(),
        ctx.shutdown.clone(),
    );
    let (views, rights) = rights(&options);
    let rights_text = match &options.runtime {
        Some(_) => "pods have the rights that their container runtime gives them".to_owned(),
        None => rights.describe(),
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let runner: Arc<dyn Runner> = match options.runtime.clone() {
        Some(runtime) => Arc::new(CriRunner::new(runtime, owner, machine.memory)),
        None => Arc::new(container::ProcessRunner),
    };
    let shared = Arc::new(Shared {
        spawner: Spawner::start(root.clone())?,
        root,
        groups,
        logs: options
            .logs
            .clone()
            .unwrap_or_else(|| Logs::new(&options.data_dir)),
        state,
        client,
        recorder,
        clock: ctx.clock.clone(),
        host: HostFacts {
            ip: machine.ip.clone(),
            path: if path.is_empty() {
                "/usr/local/bin:/usr/bin:/bin".to_owned()
            } else {
                path
            },
            rights,
        },
        views,
        table: Table::default(),
        registry: Arc::default(),
        backoff: Backoff {
            base: options.backoff_base,
            max: options.backoff_max,
        },
        shutdown: ctx.shutdown.clone(),
        options,
    });
    if let Some(execs) = &shared.options.execs {
        execs.attach(&shared.registry);
    }
    let mut services = JoinSet::new();
    if let Some(listener) = listener {
        let serve = axum::serve(listener, http::router(shared.clone())?);
        let shutdown = ctx.shutdown.clone();
        services.spawn(async move {
            // Open log streams must not delay the end, so this is not a graceful shutdown.
            tokio::select! {
                () = shutdown.cancelled() => {}
                result = serve => if let Err(error) = result {
                    tracing::error!(%error, "node HTTP server failed");
                },
            }
        });
    }
    let socket = lister::socket(&shared.options.data_dir);
    let source = PodTableSource(shared.table.clone());
    match lister::serve(source, &socket, ctx.shutdown.clone().cancelled_owned()) {
        Ok(served) => {
            services.spawn(async move {
                if let Err(error) = served.await {
                    tracing::error!(%error, "PodResources server failed");
                }
            });
        }
        // With a data directory whose path is too long for a socket, pods run all the same.
        Err(error) => tracing::warn!(%error, "failed to serve PodResources"),
    }
    tracing::info!(node = %shared.options.node_name, address = ?bound, confinement, "node started");
    let (registered, uid) = oneshot::channel();
    let port = bound.map(|address| address.port());
    services.spawn(report(
        shared.clone(),
        machine,
        [confinement, rights_text],
        port,
        registered,
    ));
    services.spawn(heartbeat(shared.clone(), uid));
    dispatch(&shared, &runner, &ctx).await;
    services.shutdown().await;
    if let Some(groups) = &shared.groups {
        groups.remove_all().await;
    }
    Ok(())
}

/// Returns the file views for containers and the rights that containers can be granted. With a container
/// runtime the views are empty, because the runtime sets up its own.
fn rights(options: &Options) -> (Views, Rights) {
    let mut hidden = options.hidden.clone();
    hidden.push(options.data_dir.clone());
    let views = match &options.runtime {
        Some(_) => Ok(Views::default()),
        None => Views::new(&hidden),
    };
    let (views, unguarded) = match views {
        Ok(views) => (views, None),
        Err(why) => (Views::default(), Some(why)),
    };
    let rights = Rights {
        uid: koord_host::user_id(),
        capabilities: koord_host::Capabilities::bounding(),
        unguarded,
        trusted: options.trusted_pods,
    };
    (views, rights)
}

/// Sets up control groups. Returns them, or `None` when containers run unconfined, and the value of the
/// confinement annotation.
async fn confine(
    options: &Options,
    root: &Root,
    groups: Groups,
    milli: i64,
) -> (Option<Groups>, String) {
    let reason = if options.unconfined {
        "it was asked for".to_owned()
    } else if !root.has_cgroups() {
        "no cgroup tree is mounted".to_owned()
    } else {
        match groups.setup(milli) {
            Ok(()) => {
                let suffix = if root.is_hybrid() {
                    " with unified tree"
                } else {
                    ""
                };
                return (Some(groups), format!("{}{suffix}", root.version()));
            }
            Err(error) => {
                let hint = match &error {
                    GroupError::Host(host) if host.is_denied() => " (are you root?)",
                    _ => "",
                };
                groups.remove_all().await;
                format!("{error}{hint}")
            }
        }
    };
    tracing::warn!(%reason, "running containers unconfined: no CPU or memory control, no QoS");
    (None, format!("{}{reason}", machine::UNCONFINED))
}

/// Opens the state of this node. A process forked by an earlier owner holds the lock until it executes its
/// program, so a locked file is retried for a moment.
async fn open_state(dir: &Path, boot_id: &str) -> Result<(StateFile, State), StateError> {
    const TRIES: u32 = 20;
    for _ in 1..TRIES {
        match StateFile::open(dir, boot_id) {
            Err(StateError::Locked { .. }) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            settled => return settled,
        }
    }
    StateFile::open(dir, boot_id)
}

/// Removes the sandboxes of an earlier run from its runtime and from the current one, and records which
/// runtime has sandboxes from now on.
async fn clear_runtimes(options: &Options, owner: &str, state: &StateFile, previous: &State) {
    let now = options.runtime.as_ref().map(Runtime::endpoint);
    let before = previous
        .runtime
        .as_deref()
        .filter(|before| Some(*before) != now);
    let before = match before.map(Runtime::connect) {
        None => None,
        Some(connecting) => match connecting.await {
            Ok(runtime) => Some(runtime),
            Err(error) => {
                tracing::warn!(%error, "failed to connect to the runtime of an earlier run, its pods may be left there");
                None
            }
        },
    };
    for runtime in before.iter().chain(&options.runtime) {
        let endpoint = runtime.endpoint();
        match cri::clear(runtime, owner).await {
            Ok(0) => {}
            Ok(sandboxes) => {
                tracing::info!(endpoint, sandboxes, "removed sandboxes of an earlier run")
            }
            Err(error) => tracing::warn!(
                endpoint,
                error,
                "failed to remove sandboxes of an earlier run"
            ),
        }
    }
    let now = now.map(str::to_owned);
    state.note(|state| state.runtime = now);
}

/// Ends processes and removes groups that an earlier run of this node left behind.
async fn remove_orphans(root: &Root, groups: &Groups, state: &StateFile, previous: &State) {
    for (uid, pod) in &previous.pods {
        for process in pod.processes.values() {
            match koord_host::process::kill_if_same(root, process.pid, process.start_ticks) {
                Ok(true) => tracing::info!(pod = %pod.name, uid, pid = process.pid,
                    "killed a process of an earlier run"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(pod = %pod.name, %error, "failed to kill a process of an earlier run")
                }
            }
        }
    }
    // Children of these processes, which did not die with the node.
    let ids = previous.pods.values().flat_map(|pod| pod.processes.keys());
    let ids = ids.cloned().collect();
    match koord_host::process::kill_by_environment(root, MARK, &ids) {
        Ok(0) => {}
        Ok(processes) => tracing::info!(processes, "killed orphan processes of an earlier run"),
        Err(error) => tracing::warn!(%error, "failed to kill orphan processes of an earlier run"),
    }
    if !previous.groups.is_empty() {
        tracing::info!(
            groups = previous.groups.len(),
            "removing control groups of an earlier run"
        );
        groups.remove_all().await;
    }
    state.note(|state| state.pods.clear());
}

/// Interval at which the Node is compared with its desired content: the kubelet's
/// `nodeStatusUpdateFrequency`.
const STATUS_CHECK: Duration = Duration::from_secs(10);

/// Registers the Node and keeps its status up to date: writes it when it is due, and at the next check when
/// the API server has other conditions, for example after a late lease.
///
/// `confinement` and `rights` are values of the Node's annotations, `port` is that of the node's HTTP server.
/// The Node's uid is sent to `registered` when the Node is first written.
async fn report(
    shared: Arc<Shared>,
    machine: Machine,
    [confinement, rights]: [String; 2],
    port: Option<u16>,
    registered: oneshot::Sender<Option<String>>,
) {
    let mut registered = Some(registered);
    let options = &shared.options;
    let facts = NodeFacts {
        name: &options.node_name,
        labels: &options.labels,
        reserved_cpu_milli: options.reserved_cpu_milli,
        reserved_memory: options.reserved_memory,
        max_pods: options.max_pods,
        port,
        confinement: &confinement,
        rights: &rights,
    };
    let mut pause = Duration::from_millis(200);
    let mut reported: Option<Instant> = None;
    loop {
        let due = reported.is_none_or(|at| at.elapsed() >= options.status_interval);
        match report_once(&shared, &machine, &facts, due).await {
            Ok((node, written)) => {
                if let Some(registered) = registered.take() {
                    tracing::info!(node = facts.name, "registered the node");
                    // The receiver is only dropped when the node stops.
                    let _ = registered.send(node.metadata.uid);
                }
                if written {
                    reported = Some(Instant::now());
                }
                pause = Duration::from_millis(200);
                tokio::time::sleep(options.status_interval.min(STATUS_CHECK)).await;
            }
            Err(error) => {
                tracing::warn!(node = facts.name, %error, "failed to report the node, retrying");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(10));
            }
        }
    }
}

/// Creates or updates the Node, and writes its status if it is due or a condition differs. Returns whether
/// the status was written.
async fn report_once(
    shared: &Shared,
    machine: &Machine,
    facts: &NodeFacts<'_>,
    due: bool,
) -> Result<(Node, bool), koord_kube::Error> {
    let api: koord_kube::Api<Node> = koord_kube::Api::all(shared.client.clone());
    let metadata = machine::metadata(facts);
    let node_object = match api.get(facts.name).await {
        Ok(node) => {
            // Written only if one of this node's fields is missing or different.
            if differs(&node, &metadata) {
                merge_node(&shared.client, facts.name, &json!({"metadata": metadata})).await?
            } else {
                node
            }
        }
        Err(error) if is_not_found(&error) => {
            let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
            node["metadata"]["name"] = json!(facts.name);
            if !shared.options.taints.is_empty() {
                node["spec"] = json!({"taints": shared.options.taints});
            }
            let node = serde_json::from_value(node).map_err(koord_kube::Error::SerdeError)?;
            match api.create(&Default::default(), &node).await {
                Err(error) if is_conflict(&error) => api.get(facts.name).await?,
                other => other?,
            }
        }
        Err(error) => return Err(error),
    };
    let status = machine::status(machine, facts, Some(&node_object), shared.clock.now());
    if !due && !machine::conditions_differ(&node_object, &status) {
        return Ok((node_object, false));
    }
    let node = strategic_status(&api, facts.name, &json!({"status": status})).await?;
    Ok((node, true))
}

fn differs(node: &Node, metadata: &serde_json::Value) -> bool {
    let has = |map: &Option<std::collections::BTreeMap<String, String>>, wanted: &str| {
        metadata[wanted]
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| {
                map.as_ref()
                    .and_then(|map| map.get(key))
                    .map(String::as_str)
                    == value.as_str()
            })
    };
    !has(&node.metadata.labels, "labels") || !has(&node.metadata.annotations, "annotations")
}

async fn heartbeat(shared: Arc<Shared>, uid: oneshot::Receiver<Option<String>>) {
    // The lease belongs to the Node, so it waits for its uid.
    let Ok(uid) = uid.await else { return };
    let lease = NodeLease::new(shared.options.node_name.clone(), uid);
    lease
        .run(
            shared.client.clone(),
            shared.clock.clone(),
            shared.shutdown.clone(),
        )
        .await;
}

/// The tasks of the pods, and the dispatch of changes to them.
struct Pods {
    shared: Arc<Shared>,
    runner: Arc<dyn Runner>,
    tasks: JoinSet<String>,
    inboxes: FxHashMap<String, (Arc<Pod>, mpsc::UnboundedSender<Command>)>,
}

/// Sends changes of the node's pods to their tasks until shutdown, then stops the tasks.
async fn dispatch(shared: &Arc<Shared>, runner: &Arc<dyn Runner>, ctx: &Context) {
    let scope = Scope {
        fields: Some(format!("spec.nodeName={}", shared.options.node_name)),
        ..Scope::default()
    };
    let mut informer: Informer<Pod> =
        Informer::start(shared.client.clone(), scope, ctx.shutdown.clone());
    let mut pods = Pods {
        shared: shared.clone(),
        runner: runner.clone(),
        tasks: JoinSet::new(),
        inboxes: FxHashMap::default(),
    };
    loop {
        tokio::select! {
            () = ctx.shutdown.cancelled() => break,
            change = informer.changes.recv() => match change {
                Some(Change::Applied { old, new }) => {
                    if let Some(old) = old.filter(|old| old.metadata.uid != new.metadata.uid) {
                        pods.remove(&old);
                    }
                    pods.apply(new);
                }
                Some(Change::Deleted(pod)) => pods.remove(&pod),
                Some(Change::Synced) => {
                    let pods = informer.store.list();
                    let uids = pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
                    shared.logs.keep_only(&uids);
                }
                None => break,
            },
            Some(ended) = pods.tasks.join_next() => pods.finish_task(ended),
        }
    }
    for (_, inbox) in pods.inboxes.values() {
        // A task that has just ended needs no command.
        let _ = inbox.send(Command::Stop);
    }
    while let Some(ended) = pods.tasks.join_next().await {
        pods.finish_task(ended);
    }
}

impl Pods {
    fn apply(&mut self, pod: Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.clone() else {
            return;
        };
        if let Some((cached, inbox)) = self.inboxes.get_mut(&uid) {
            *cached = pod.clone();
            // A task that has just ended is started again below only by a later change.
            let _ = inbox.send(Command::Update(pod));
        } else {
            let refused = self.admit(&pod);
            let (inbox, commands) = mpsc::unbounded_channel();
            let worker = Worker::new(
                self.shared.clone(),
                self.runner.clone(),
                pod.clone(),
                refused,
            );
            self.inboxes.insert(uid.clone(), (pod, inbox));
            self.tasks.spawn(async move {
                worker.run(commands).await;
                uid
            });
        }
        self.update_burstable_shares();
    }

    fn remove(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some((_, inbox)) = self.inboxes.get(uid) {
            // A task that has just ended needs no command.
            let _ = inbox.send(Command::Gone);
        }
    }

    fn finish_task(&mut self, ended: Result<String, tokio::task::JoinError>) {
        match ended {
            Ok(uid) => {
                self.inboxes.remove(&uid);
                self.update_burstable_shares();
            }
            Err(error) => tracing::error!(%error, "pod task failed"),
        }
    }

    /// Returns the reason and message for rejecting `pod`, or `None` if it may run here.
    fn admit(&self, pod: &Pod) -> Option<(String, String)> {
        let over = |pod: &Pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let running = self.inboxes.values().filter(|(pod, _)| !over(pod)).count();
        let most = self.shared.options.max_pods;
        if over(pod) || running < most as usize {
            return None;
        }
        let message = format!("this node runs at most {most} pods");
        Some(("OutOfpods".to_owned(), message))
    }

    /// Sets the weight of the burstable class to the sum of its pods' requests.
    fn update_burstable_shares(&self) {
        let Some(groups) = &self.shared.groups else {
            return;
        };
        let running = self.inboxes.values().map(|(pod, _)| &**pod).filter(|pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        });
        if let Err(error) = groups.set_burstable(burstable_shares(running)) {
            tracing::warn!(%error, "failed to set the weight of the burstable class");
        }
    }
}
