//! Periodic update of the node's NodeResourceTopology.

use super::cpus::STATE_FILE;
use super::errors::{ErrorReporter, ReportError};
use super::merge::{TopologyV1Alpha1, TopologyV1Alpha2};
use super::{FIELD_MANAGER, Inputs, Report, Reporting, TopologyMode};
use crate::collect::machine::MachineInfo;
use crate::metrics::Metrics;
use crate::node_events::Warnings;
use crate::states::{NodeInfo, States, TopologyInfo};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_host::Root;
use koord_host::procfs::MemInfo;
use koord_kube::api::{Patch, PatchParams, PostParams};
use koord_kube::{Api, Client, Error, Informer, ObjectKey, Scope, Store, patch};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Maximum time for one write to the API server.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Dependencies and settings of the reporter.
pub(crate) struct ReporterDeps {
    pub(crate) node: String,
    pub(crate) root: Root,
    pub(crate) states: Arc<States>,
    pub(crate) metrics: Metrics,
    pub(crate) client: Client,
    pub(crate) reporting: Reporting,
    /// True if the object is written. The agent itself uses the report in any case.
    pub(crate) writes: bool,
    /// True if the report needs the kubelet's configuration. There is no report until it is known.
    pub(crate) asks_kubelet: bool,
    /// The kubelet's directory.
    pub(crate) kubelet_dir: PathBuf,
    pub(crate) huge_pages: bool,
    /// True if there is a metric for each CPU of the pools.
    pub(crate) each_cpu: bool,
    /// Time between two reads of the machine.
    pub(crate) machine_every: Duration,
}

/// Reporter of the node's NodeResourceTopology.
pub(crate) struct TopologyReporter {
    deps: ReporterDeps,
    machine: Option<(MachineInfo, Instant)>,
    /// Content of the last report. `None` before the first one.
    report: Option<Report>,
    /// Resource version of the object that has the content of the last report.
    reported_version: Option<String>,
    errors: ErrorReporter,
    yields_zones: bool,
}

/// The watched object, and whether the API server lacks its resource kind.
struct WatchedObject {
    store: Store<TopologyV1Alpha2>,
    absent: watch::Receiver<bool>,
}

impl TopologyReporter {
    /// Returns a reporter that records persistent errors in `warnings`.
    pub(crate) fn new(deps: ReporterDeps, warnings: Warnings) -> Self {
        Self {
            errors: ErrorReporter::new(deps.states.malformed_inputs.clone(), warnings),
            deps,
            machine: None,
            report: None,
            reported_version: None,
            yields_zones: false,
        }
    }

    /// Updates the object periodically until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let watched = self.deps.writes.then(|| self.watch(&shutdown));
        let work = async {
            let mut timer = interval(self.deps.reporting.interval);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                timer.tick().await;
                let outcome = self.report_once(watched.as_ref()).await;
                self.errors.record(outcome);
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }

    fn watch(&self, shutdown: &CancellationToken) -> WatchedObject {
        let scope = Scope {
            fields: Some(format!("metadata.name={}", self.deps.node)),
            ..Scope::default()
        };
        let Informer {
            store,
            mut changes,
            absent,
        } = Informer::start_either::<TopologyV1Alpha2, TopologyV1Alpha1>(
            self.deps.client.clone(),
            scope,
            |object| object,
            shutdown.clone(),
        );
        tokio::spawn(async move { while changes.recv().await.is_some() {} });
        WatchedObject { store, absent }
    }

    /// Writes the report if the object lacks it; does nothing before the node and the pods were received.
    async fn report_once(&mut self, watched: Option<&WatchedObject>) -> Result<(), ReportError> {
        let states = self.deps.states.clone();
        let (Some(node), Some(pods)) = (states.node.load_full(), states.pods.load_full()) else {
            return Ok(());
        };
        let object = match watched {
            Some(watched) if *watched.absent.borrow() => {
                self.update_report(&node, &pods).await?;
                return Err(ReportError::NoDefinition);
            }
            Some(watched) => {
                // Without the initial list, it is unknown whether the object exists.
                if !watched.store.wait_synced().await {
                    return Ok(());
                }
                watched.store.get(&ObjectKey::new("", &self.deps.node))
            }
            None => None,
        };
        if self.report.is_none()
            && !states.pods_settled()
            && let Some(object) = &object
        {
            // The first lists of a kubelet may be partial: the report from before the agent's restart
            // is more accurate.
            let mut before = NodeResourceTopology::default();
            before.metadata.clone_from(&object.metadata);
            let last = states.topology.load_full();
            self.publish(TopologyInfo::read(&before, last.as_deref()).0);
            return Ok(());
        }
        self.update_report(&node, &pods).await?;
        let Some(report) = &self.report else {
            return Ok(());
        };
        let mode = self.deps.reporting.mode;
        match (watched, object) {
            (None, _) => Ok(()),
            (Some(_), None) => self.create(&node, report, mode).await,
            (Some(_), Some(object)) => {
                let version = &object.metadata.resource_version;
                if version.is_some() && *version == self.reported_version {
                    return Ok(());
                }
                let yields_zones = mode == TopologyMode::Auto && object.is_exported();
                if yields_zones && !self.yields_zones {
                    tracing::info!(
                        "writing only annotations and labels of the NodeResourceTopology: an exporter \
                         owns its zones"
                    );
                }
                match object.changes(report, mode) {
                    Some(change) => self.patch(&change).await?,
                    None => self.reported_version.clone_from(version),
                }
                self.yields_zones = yields_zones;
                Ok(())
            }
        }
    }

    /// Makes the current report and publishes it within the agent.
    async fn update_report(
        &mut self,
        node: &NodeInfo,
        pods: &[crate::states::PodInfo],
    ) -> Result<(), ReportError> {
        self.read_machine().await?;
        let Some((machine, _)) = &self.machine else {
            return Ok(());
        };
        let kubelet = self.deps.states.kubelet.load_full();
        let kubelet = kubelet.filter(|_| self.deps.asks_kubelet);
        if self.deps.asks_kubelet && kubelet.is_none() {
            return Err(ReportError::NoConfiguration);
        }
        let mut state = String::new();
        if kubelet
            .as_ref()
            .is_some_and(|config| config.is_cpu_manager_static())
        {
            let path = self.deps.kubelet_dir.join(STATE_FILE);
            state = match std::fs::read_to_string(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
                read => read.map_err(|source| ReportError::StateFile { path, source })?,
            };
        }
        let report = Report::from_inputs(&Inputs {
            machine,
            node,
            pods,
            kubelet: kubelet.as_deref(),
            cpu_manager_state: &state,
            huge_pages: self.deps.huge_pages,
        });
        let report = report.map_err(|error| ReportError::Facts { error, state })?;
        if self.report.as_ref() != Some(&report) {
            let malformed_inputs = &self.deps.states.malformed_inputs;
            malformed_inputs.replace("NodeResourceTopology", report.malformed.clone());
            self.publish(report.read());
            self.reported_version = None;
            self.report = Some(report);
        }
        Ok(())
    }

    fn publish(&self, info: TopologyInfo) {
        self.deps.metrics.topology(&info, self.deps.each_cpu);
        self.deps.states.topology.store(Some(Arc::new(info)));
    }

    /// Reads the machine if the last read is too old.
    async fn read_machine(&mut self) -> Result<(), ReportError> {
        let every = self.deps.machine_every;
        let last = self.machine.as_ref();
        if last.is_some_and(|(_, at)| at.elapsed() < every) {
            return Ok(());
        }
        let (root, huge_pages) = (self.deps.root.clone(), self.deps.huge_pages);
        // Reads one file for each CPU, of which there may be hundreds.
        let read = tokio::task::spawn_blocking(move || machine(&root, huge_pages));
        let machine = read.await??;
        self.machine = Some((machine, Instant::now()));
        Ok(())
    }

    async fn create(
        &self,
        node: &NodeInfo,
        report: &Report,
        mode: TopologyMode,
    ) -> Result<(), ReportError> {
        let (name, uid) = (&node.name, &node.uid);
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let newer: Api<TopologyV1Alpha2> = Api::all(self.deps.client.clone());
        let work = async {
            let object = TopologyV1Alpha2::created(name, uid, report, mode);
            match newer.create(&params, &object).await {
                Err(error) if patch::is_not_found(&error) => {
                    let older: Api<TopologyV1Alpha1> = Api::all(self.deps.client.clone());
                    let object = TopologyV1Alpha1::created(name, uid, report, mode);
                    older.create(&params, &object).await.map(drop)
                }
                outcome => outcome.map(drop),
            }
        };
        write_result("created", timeout(WRITE_TIMEOUT, work).await)
    }

    async fn patch(&self, change: &serde_json::Value) -> Result<(), ReportError> {
        let name = &self.deps.node;
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let change = Patch::Merge(change);
        let newer: Api<TopologyV1Alpha2> = Api::all(self.deps.client.clone());
        let work = async {
            match newer.patch(name, &params, &change).await {
                // The version is not served, or the object does not exist.
                Err(error) if patch::is_not_found(&error) => {
                    let older: Api<TopologyV1Alpha1> = Api::all(self.deps.client.clone());
                    older.patch(name, &params, &change).await.map(drop)
                }
                outcome => outcome.map(drop),
            }
        };
        write_result("written", timeout(WRITE_TIMEOUT, work).await)
    }
}

/// Maps the outcome of a write to an error. A conflict with another client's write is no error: the next
/// update handles it.
fn write_result(
    what: &'static str,
    outcome: Result<Result<(), Error>, tokio::time::error::Elapsed>,
) -> Result<(), ReportError> {
    let why = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) if patch::is_conflict(&error) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {WRITE_TIMEOUT:?}"),
    };
    Err(ReportError::Write { what, why })
}

/// Reads the machine. Without NUMA support in the kernel, there is one node with all memory.
fn machine(root: &Root, huge_pages: bool) -> koord_host::Result<MachineInfo> {
    let mut machine = MachineInfo::read(root, huge_pages)?;
    if let [only] = machine.numa.as_mut_slice()
        && only.memory.is_none()
    {
        only.memory = MemInfo::read(root)?;
    }
    Ok(machine)
}
