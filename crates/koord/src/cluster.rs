//! A whole cluster in this process, for `koord up` and `koord demo`.

mod node_side;
mod startup;

use koord_cluster::objects::create;
pub use koord_cluster::objects::{QUICK_REPORT, config_data, descheduler_config, quick_config};

pub use koord_api::configmap::{NAME as CONFIG_NAME, NAMESPACE as CONFIG_NAMESPACE};
pub use koordctl::cluster_files::{ADDRESSES_NAME, default_data_dir};

use crate::access::{self, Access};
use crate::instance_dir::{self, Claim, Groups};
use crate::sim_exporter;
use anyhow::{Context as _, Result, anyhow};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use koord_apiserver::{ApiServer, Config, Storage};
use koord_app::Context;
use koord_app::admin::Admin;
use koord_app::flags::Selection;
use koord_app::local::RouteServer;
use koord_host::CgroupPath;
use koord_kube::controller::ControllerMetrics;
use koord_kube::{Api, Client};
use koord_placement::Targets;
use koordlet::gates::Gate;
use koordlet::states::{Driver, Layout};
use node_side::NodeSide;
use parking_lot::Mutex;
use serde_json::{Value, json};
use startup::Startup;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Optional components, which other programs can replace.
pub const COMPONENTS: [&str; 4] = ["manager", "scheduler", "descheduler", "koordlet"];

/// Port on which the scheduler of a local cluster serves health, metrics and explanations.
const SCHEDULER_PORT: u16 = 10251;
/// Port on which the descheduler of a local cluster serves health, metrics and explanations. Not its default,
/// which the scheduler has, too.
const DESCHEDULER_PORT: u16 = 10258;
/// Port on which the manager of a local cluster serves health, metrics and the dashboard.
const MANAGER_PORT: u16 = 10261;
/// Port on which koordlet of a local cluster serves its health, metrics, state and audit events.
const KOORDLET_PORT: u16 = 9316;

/// Settings of a cluster's start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the cluster's state, its certificates and the node's files.
    pub data_dir: PathBuf,
    /// Keep objects in memory only.
    pub memory: bool,
    /// Port of the API server on 127.0.0.1. `None`: the usual port, or any free one if that is taken.
    pub port: Option<u16>,
    /// Controllers of the API server that run.
    pub controllers: Selection,
    /// Components of [`COMPONENTS`] that run.
    pub components: Selection,
    /// Number of ended pods that are kept; 0: all.
    pub terminated_pod_gc_threshold: usize,
    /// Simulated nodes in addition to this machine.
    pub simulated_nodes: usize,
    /// True if this machine's node has [`koord_node::host_taint`] when there are simulated nodes.
    pub host_taint: bool,
    /// NUMA nodes of simulated nodes. With them and policy single-numa-node, the scheduler keeps pods off
    /// nodes whose kubelet would refuse them (NodeResourceTopologyMatch); with another policy and scope pod,
    /// NodeNUMAResource aligns by its own allocations, and kubelets may refuse some pods.
    pub topology: Option<koord_sim::Layout>,
    /// Directory of files that describe accelerators of this machine. If set, devices are reported.
    pub device_files: Option<PathBuf>,
    /// Configuration of the descheduler.
    pub descheduler: koord_descheduler::config::Configuration,
    /// The first content of `slo-controller-config`, by key.
    pub slo_config: Value,
    /// Interval of koordlet's reports. `None`: the one in the NodeMetric.
    pub report_interval: Option<Duration>,
    /// The container runtime that runs this machine's pods; processes when `None`.
    pub runtime: Option<crate::runtime::ChosenRuntime>,
    /// True if pods have all rights of this process unless they drop them.
    pub trusted_pods: bool,
    /// Request limits of the API server.
    pub limits: koord_apiserver::Limits,
}

/// A running cluster.
pub struct Cluster {
    /// Access to its API server, in process.
    pub client: Client,
    /// Shared by all components; cancelling `shutdown` stops them.
    pub context: Context,
    /// The API server.
    pub server: Arc<ApiServer>,
    /// Address on which the API server listens.
    pub address: SocketAddr,
    /// Path of the written kubeconfig.
    pub kubeconfig: PathBuf,
    /// Audit log of koordlet's writes to the kernel.
    pub audit: koordlet::audit::Log,
    /// Name of this machine's node.
    pub node_name: String,
    /// Address on which the manager serves health, metrics and the dashboard; `None` if it does not.
    pub manager_address: Option<SocketAddr>,
    /// Address on which the scheduler serves health, metrics and explanations; `None` if it does not.
    pub scheduler_address: Option<SocketAddr>,
    /// Address on which the descheduler serves health, metrics and explanations; `None` if it does not.
    pub descheduler_address: Option<SocketAddr>,
    /// Address on which koordlet serves its health, metrics, state and audit events; `None` if it does not.
    pub koordlet_address: Option<SocketAddr>,
    /// Token that ends the grace period of pods while the cluster stops: they are killed.
    pub hurry: CancellationToken,
    /// Notes for the user about unexpected circumstances of the start.
    pub notes: Vec<String>,
    groups: Groups,
    access: Access,
    components: JoinSet<(&'static str, Result<()>)>,
    serving: JoinHandle<Result<(), koord_apiserver::Error>>,
    server_stop: CancellationToken,
    _directory: Claim,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Sends logs to standard error; `RUST_LOG` overrides `default`.
pub fn init_logging(default: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(crate::console::interactive())
        .with_target(false);
    // A second call (tests) keeps the first subscriber.
    let _ = logs.try_init();
}

impl Options {
    /// Returns true if this machine's node is tainted, so that pods without a toleration run on simulated
    /// nodes.
    fn taints_host(&self) -> bool {
        self.host_taint && self.simulated_nodes > 0
    }

    /// Returns the options of the scheduler: the chart's profile, also for pods that name no scheduler.
    fn scheduler(&self) -> koord_scheduler::Options {
        let mut registry = match self.topology {
            Some(_) => koord_plugins::registry_with_topology_match(),
            None => koord_plugins::registry(),
        };
        koord_plugins::apply_chart_defaults(&mut registry);
        let mut scheduler = koord_scheduler::Options {
            leader_elect: false,
            profile_names: vec!["koord-scheduler".to_owned(), "default-scheduler".to_owned()],
            ..koord_scheduler::Options::new(registry)
        };
        scheduler.build.network_topology = true;
        if self.topology.as_ref().is_some_and(|it| it.scope == "pod") {
            // NodeNUMAResource aligns whole pods: with scope pod it can do so for every policy.
            let gate = "FullNRTPolicyMapping".to_owned();
            scheduler.build.gates.insert(gate, true);
        }
        scheduler
    }
}

impl Cluster {
    /// Starts everything and returns once the API server answers and the components run.
    ///
    /// # Errors
    /// When the data directory cannot be used or another cluster has it, the port is taken, or the
    /// first objects cannot be written. What another cluster wrote is untouched then.
    pub async fn start(options: Options) -> Result<Self> {
        koord_kube::tls::install_crypto_provider();
        let directory = instance_dir::claim_directory(&options.data_dir).await?;
        let groups = instance_dir::claim_groups(&options.data_dir)?;
        let context = Context::new();
        let node_name = koord_node::host_name();
        let node_logs = koord_node::Logs::new(options.data_dir.join("node"));

        let storage = if options.memory {
            Storage::Memory
        } else {
            Storage::Dir(options.data_dir.join("apiserver"))
        };
        let mut config = Config::new(storage, context.clock.clone());
        let (bind, note) = instance_dir::find_port(options.port).await?;
        config.bind = bind;
        config.limits = options.limits.clone();
        config.controllers = options.controllers.clone();
        config.terminated_pod_gc_threshold = options.terminated_pod_gc_threshold;
        let execs = koord_node::Execs::default();
        let side = Arc::new(NodeSide {
            logs: node_logs.clone(),
            execs: execs.clone(),
            node: node_name.clone(),
            client: OnceLock::new(),
        });
        config.pod_logs = Some(side.clone());
        config.pod_exec = Some(side.clone());
        let server = ApiServer::open(config).await?;
        let listener = server.listen().await?;
        let address = listener.local_addr().context("local address")?;
        let kubeconfig = options.data_dir.join("kubeconfig");
        let client = koord_kube::client::in_process(server.service());
        // Set once, here.
        let _ = side.client.set(client.clone());
        let startup = Startup {
            server: &server,
            client: &client,
            clock: &context.clock,
            options: &options,
        };
        let server_stop = CancellationToken::new();
        let (manager, serving) = startup.run(listener, &server_stop).await?;
        let access = Access::new(&options.data_dir, client.clone())?;
        server.write_kubeconfig(&kubeconfig)?;

        let audit = koordlet::audit::Log::open(koordlet::audit::Config {
            dir: (!options.memory).then(|| options.data_dir.join("audit")),
            ..Default::default()
        });
        let mut cluster = Self {
            client,
            context,
            server,
            address,
            kubeconfig,
            audit,
            node_name,
            manager_address: None,
            scheduler_address: None,
            descheduler_address: None,
            koordlet_address: None,
            hurry: CancellationToken::new(),
            notes: note.into_iter().collect(),
            groups,
            access,
            components: JoinSet::new(),
            serving,
            server_stop,
            _directory: directory,
        };
        cluster
            .start_components(&options, manager, node_logs, execs)
            .await?;
        cluster.publish_addresses().await?;
        Ok(cluster)
    }

    /// Starts the components that `options` select, each as a task of `components`.
    async fn start_components(
        &mut self,
        options: &Options,
        mut manager: koord_manager::Options,
        node_logs: koord_node::Logs,
        execs: koord_node::Execs,
    ) -> Result<()> {
        let (client, context) = (self.client.clone(), self.context.clone());
        let controllers = ControllerMetrics::register(&context.metrics)?;
        manager.controller_metrics = Some(controllers.clone());
        let spawn = |components: &mut JoinSet<_>, name: &'static str, run: ComponentFuture| {
            components.spawn(async move { (name, run.await) });
        };
        let enabled = |name: &str| options.components.enabled(name);
        if enabled("manager") {
            if let Some((listener, address)) = access::listen(MANAGER_PORT) {
                self.manager_address = Some(address);
                manager.secure_server = Some(self.route_server(listener));
            }
            spawn(
                &mut self.components,
                "manager",
                component_future(koord_manager::run(manager, client.clone(), context.clone())),
            );
        }
        if enabled("scheduler") {
            let scheduler = options.scheduler();
            let admin = Admin::new(context.metrics.clone()).with_routes(scheduler.debug.router());
            self.scheduler_address = self.serve("scheduler", SCHEDULER_PORT, &admin);
            spawn(
                &mut self.components,
                "scheduler",
                component_future(koord_scheduler::run(
                    scheduler,
                    client.clone(),
                    context.clone(),
                )),
            );
        }
        if enabled("descheduler") {
            let running = self.descheduler(options, controllers).await?;
            spawn(&mut self.components, "descheduler", running);
        }
        let node = koord_node::Options {
            node_name: self.node_name.clone(),
            data_dir: options.data_dir.join("node"),
            cgroup_parent: self.groups.parent.clone(),
            logs: Some(node_logs),
            execs: Some(execs),
            hurry: self.hurry.clone(),
            hidden: vec![options.data_dir.clone()],
            trusted_pods: options.trusted_pods,
            taints: options
                .taints_host()
                .then(koord_node::host_taint)
                .into_iter()
                .collect(),
            runtime: options
                .runtime
                .as_ref()
                .map(|chosen| chosen.runtime.clone()),
            ..Default::default()
        };
        spawn(
            &mut self.components,
            "node",
            component_future(koord_node::run(node, client.clone(), context.clone())),
        );
        if enabled("koordlet") {
            let mut settings = koordlet::Settings {
                // Cgroups with the node agent's layout; a kubelet of this machine may use another.
                layout: Layout::new(Driver::Cgroupfs, self.groups.parent.clone()),
                ..Default::default()
            };
            settings.gates.set(Gate::AuditEventsHTTPHandler, true);
            let mut devices = koordlet::devices::Config::default();
            if let Some(files) = &options.device_files {
                devices.files.clone_from(files);
                for gate in [Gate::Accelerators, Gate::RDMADevices] {
                    settings.gates.set(gate, true);
                }
            }
            let server = match access::listen(KOORDLET_PORT) {
                Some((listener, address)) => {
                    self.koordlet_address = Some(address);
                    Some(self.route_server(listener))
                }
                None => None,
            };
            if !options.memory {
                settings.predict.dir = Some(options.data_dir.join("koordlet"));
            }
            let agent = koordlet::Options {
                settings,
                detect_layout: None,
                node_name: self.node_name.clone(),
                audit: self.audit.clone(),
                report_interval: options.report_interval,
                server,
                devices,
                runtime: options
                    .runtime
                    .as_ref()
                    .map(|chosen| chosen.hooks.clone())
                    .unwrap_or_default(),
                ..Default::default()
            };
            spawn(
                &mut self.components,
                "koordlet",
                component_future(koordlet::run(agent, client.clone(), context.clone())),
            );
        }
        if options.simulated_nodes > 0 {
            let kubelets = match options.topology {
                Some(_) => sim_exporter::kubelets(&options.data_dir),
                None => koord_sim::Kubelets::default(),
            };
            for name in &kubelets.nodes {
                spawn(
                    &mut self.components,
                    "topology-exporter",
                    Box::pin(sim_exporter::export(
                        kubelets.clone(),
                        name.clone(),
                        client.clone(),
                        context.clone(),
                    )),
                );
            }
            let sim = koord_sim::Options {
                nodes: options.simulated_nodes,
                kubelets,
                template: options.topology.clone().map_or_else(
                    koord_sim::NodeTemplate::default,
                    koord_sim::NodeTemplate::with_numa,
                ),
                ..Default::default()
            };
            spawn(
                &mut self.components,
                "sim",
                component_future(koord_sim::run(sim, client, context)),
            );
        }
        Ok(())
    }

    /// Prepares the descheduler and serves its port. Leader election is off: it is the only instance.
    async fn descheduler(
        &mut self,
        cluster: &Options,
        controllers: ControllerMetrics,
    ) -> Result<ComponentFuture> {
        use koord_descheduler::daemon;
        let registry = koord_descheduler::registry::Registry::in_tree();
        let config = cluster.descheduler.clone();
        let completed = registry.complete(config).context("descheduler")?;
        for note in &completed.notes {
            tracing::info!(note = %note, "read the descheduler configuration");
        }
        let options = daemon::Options {
            election: None,
            controller_metrics: Some(controllers),
            ..daemon::Options::new(&completed.config)
        };
        let last = options.last.clone();
        let admin = Admin::new(self.context.metrics.clone())
            .ready_when("cluster", move || last.readiness())
            .with_routes(options.last.routes(&completed.config));
        let mut framework = completed.build().context("descheduler")?;
        if framework.has_strategies() {
            let mut scheduler = cluster.scheduler();
            koord_placement::set_load_thresholds(&mut scheduler.registry);
            let targets = Targets::follow(scheduler, &self.client, &self.context);
            framework.placement = Some(Box::new(targets.context("descheduler")?));
        }
        self.descheduler_address = self.serve("descheduler", DESCHEDULER_PORT, &admin);
        let (client, context) = (self.client.clone(), self.context.clone());
        Ok(component_future(Box::pin(daemon::run(
            options, framework, client, context,
        ))))
    }

    /// Serves a component's routes. Another cluster on this machine may use the usual port.
    fn serve(&self, component: &str, port: u16, admin: &Admin) -> Option<SocketAddr> {
        let Some((listener, address)) = access::listen(port) else {
            tracing::warn!(
                component,
                "failed to serve health and explanations: no port is free"
            );
            return None;
        };
        let stop = self.context.shutdown.clone();
        self.access.serve(listener, admin.router(), stop);
        Some(address)
    }

    /// Returns a server for a component's routes, which serves once.
    fn route_server(&self, listener: std::net::TcpListener) -> RouteServer {
        let (access, stop) = (self.access.clone(), self.context.shutdown.clone());
        let listener = Mutex::new(Some(listener));
        RouteServer::new(move |routes| {
            if let Some(listener) = listener.lock().take() {
                access.serve(listener, routes, stop.clone());
            }
        })
    }

    /// Writes the addresses of the components to a ConfigMap, for `koord explain` and other clients that only
    /// have a kubeconfig.
    async fn publish_addresses(&self) -> Result<()> {
        let url = |address: Option<SocketAddr>| {
            address.map_or_else(String::new, |address| format!("http://{address}"))
        };
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": ADDRESSES_NAME, "namespace": CONFIG_NAMESPACE},
            "data": {
                "node": self.node_name,
                "manager": url(self.manager_address),
                "scheduler": url(self.scheduler_address),
                "descheduler": url(self.descheduler_address),
                "koordlet": url(self.koordlet_address),
            },
        });
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), CONFIG_NAMESPACE);
        let patch = koord_kube::api::Patch::Merge(&map);
        match maps
            .patch(ADDRESSES_NAME, &Default::default(), &patch)
            .await
        {
            Err(error) if koord_kube::patch::is_not_found(&error) => {
                let map = serde_json::from_value(map).context("ConfigMap")?;
                create(&maps, &map).await
            }
            other => other.map(drop).map_err(Into::into),
        }
        .with_context(|| format!("ConfigMap {ADDRESSES_NAME}"))
    }

    /// Returns the parent cgroup of the cgroup of all pods.
    #[must_use]
    pub fn groups_parent(&self) -> &CgroupPath {
        &self.groups.parent
    }

    /// Returns the cgroup of all pods of this cluster.
    ///
    /// # Errors
    /// Never for the parents that are chosen here.
    pub fn pods_group(&self) -> Result<CgroupPath> {
        self.groups
            .parent
            .join("kubepods")
            .context("group of all pods")
    }

    /// Returns a note about another cluster that runs on this machine, if one does.
    #[must_use]
    pub fn other_cluster_note(&self) -> Option<String> {
        let other = self.groups.other_cluster.as_ref()?;
        Some(format!(
            "another cluster runs on this machine (process {}, {}): this one's pods are in control \
             groups of their own below {}, and each measures the other as usage of the system",
            other.pid,
            other.dir.display(),
            self.groups.parent,
        ))
    }

    /// Waits until the node is ready, and returns how its pods are confined and what they may do.
    ///
    /// # Errors
    /// When a component ends before.
    pub async fn ready(&mut self) -> Result<PodTerms> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let name = self.node_name.clone();
        let ready = async {
            loop {
                if let Ok(Some(node)) = nodes.get_opt(&name).await
                    && let Some(terms) = pod_terms(&node)
                {
                    return terms;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            terms = ready => Ok(terms),
            error = self.failed() => Err(error),
        }
    }

    /// Waits until a component ends by itself, which none should, and returns an error with its name and the
    /// cause.
    pub async fn failed(&mut self) -> anyhow::Error {
        tokio::select! {
            served = &mut self.serving => match served {
                Ok(Err(error)) => anyhow!(error).context("API server"),
                _ => anyhow!("the API server ended"),
            },
            ended = self.components.join_next() => match ended {
                Some(Ok((name, Ok(())))) => anyhow!("{name} ended"),
                Some(Ok((name, Err(error)))) => error.context(name),
                Some(Err(error)) => anyhow!("a component panicked: {error}"),
                None => anyhow!("nothing runs"),
            },
        }
    }

    /// Stops the components, then the API server, which receives their last writes.
    pub async fn stop(mut self) {
        self.context.shutdown.cancel();
        let components = async {
            while let Some(ended) = self.components.join_next().await {
                if let Ok((name, Err(error))) = ended {
                    tracing::warn!(component = name, error = %format!("{error:#}"), "component failed");
                }
            }
        };
        if tokio::time::timeout(PATIENCE, components).await.is_err() {
            tracing::warn!(timeout = ?PATIENCE, "failed to stop some components in time");
        }
        self.server_stop.cancel();
        if tokio::time::timeout(PATIENCE, self.serving).await.is_err() {
            tracing::warn!(timeout = ?PATIENCE, "failed to stop the API server in time");
        }
        self.server.close().await;
    }
}

/// Confinement and rights of the pods of a node.
#[derive(Debug, Clone)]
pub struct PodTerms {
    /// The value of [`koord_node::CONFINEMENT_ANNOTATION`].
    pub confinement: String,
    /// The value of [`koord_node::RIGHTS_ANNOTATION`].
    pub rights: Option<String>,
}

/// Returns the confinement and rights of the pods of a node; `None` while it is not ready.
fn pod_terms(node: &Node) -> Option<PodTerms> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let annotations = node.metadata.annotations.as_ref()?;
    let confinement = annotations.get(koord_node::CONFINEMENT_ANNOTATION)?;
    ready.then(|| PodTerms {
        confinement: confinement.clone(),
        rights: annotations.get(koord_node::RIGHTS_ANNOTATION).cloned(),
    })
}

/// Time limit for a component to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A component that runs until it fails or shuts down.
type ComponentFuture = BoxFuture<'static, Result<()>>;

/// Boxes the future of a component and converts its error.
fn component_future<E>(future: BoxFuture<'static, Result<(), E>>) -> ComponentFuture
where
    E: std::error::Error + Send + Sync + 'static,
{
    Box::pin(async move { future.await.map_err(anyhow::Error::from) })
}
