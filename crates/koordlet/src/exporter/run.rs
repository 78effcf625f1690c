//! The exporter's main loop.

use super::config::Alignment;
use super::events::Events;
use super::owner::TakeOver;
use super::publish::{self, PublishError, PublishOutcome};
use super::{ConfigSource, list, machine};
use k8s_openapi::api::core::v1::ObjectReference;
use koord_api::topology::AttributeInfo;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_app::metrics::register;
use koord_host::{Root, numa};
use koord_kube::events::{Recorder, Severity};
use koord_kube::failure_log::FailureLog;
use koord_kube::{Client, Informer, ObjectKey, Scope, Store};
use koord_model::export::{self, Report};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Delay from a change to the scan, because the kubelet writes several files for one pod.
const SETTLE_DELAY: Duration = Duration::from_millis(100);
/// Minimum time between two scans that changes trigger.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay of a retry after a failed write. The first delay is [`MIN_INTERVAL`].
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Settings of an exporter.
#[derive(Debug, Clone)]
pub struct ExporterSettings {
    /// The node's name.
    pub node: String,
    /// The socket of the kubelet's PodResources service.
    pub socket: PathBuf,
    /// Time between two periodic scans; zero disables them.
    pub interval: Duration,
    /// The kubelet's directory, whose changes trigger a scan. `None` disables the watch.
    pub state_dir: Option<PathBuf>,
    /// Source of the kubelet's alignment configuration.
    pub kubelet: ConfigSource,
    /// True if the report has a fingerprint of the counted pods.
    pub fingerprint: bool,
    /// Resources to exclude from the report.
    pub exclude: BTreeSet<String>,
    /// True if the report is written; otherwise it is only logged.
    pub publish: bool,
    /// Condition under which content of another exporter is overwritten.
    pub take_over: TakeOver,
}

/// Reason why nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {why}")]
pub struct ExporterError {
    step: &'static str,
    why: String,
}

/// Metrics of an exporter.
#[derive(Debug, Clone)]
pub struct Metrics {
    scans: IntCounterVec,
    writes: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// Fails if metrics of these names are already registered.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| {
            let vector = IntCounterVec::new(Opts::new(name, help), &["result"])?;
            register(registry, vector)
        };
        Ok(Self {
            scans: counter(
                "koord_topology_exporter_scans_total",
                "Looks at the machine and the kubelet's lists, by result.",
            )?,
            writes: counter(
                "koord_topology_exporter_writes_total",
                "Writes of the node's NodeResourceTopology, by result.",
            )?,
        })
    }
}

/// Current error of each failing step, and the throttling of its log.
#[derive(Debug, Default)]
struct StepErrors(
    BTreeMap<&'static str, String>,
    BTreeMap<&'static str, FailureLog>,
);

/// Topology exporter of one node.
pub struct Exporter {
    settings: ExporterSettings,
    root: Root,
    client: Client,
    recorder: Recorder,
    metrics: Metrics,
    errors: Arc<Mutex<StepErrors>>,
    /// The kubelet's alignment. `None` until it was read.
    alignment: Option<Alignment>,
    /// Report of the last scan. `None` if it failed.
    report: Option<Report>,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter")
            .field("settings", &self.settings)
            .field("troubles", &self.errors)
            .finish_non_exhaustive()
    }
}

const CONFIG_STEP: &str = "kubelet's configuration";
const MACHINE_STEP: &str = "NUMA nodes";
const LISTS_STEP: &str = "PodResources";
const WRITE_STEP: &str = "publication";

impl Exporter {
    /// Returns an exporter that has not scanned yet. Errors that prevent it from writing become events of the
    /// node.
    #[must_use]
    pub fn new(
        settings: ExporterSettings,
        root: Root,
        client: Client,
        recorder: Recorder,
        metrics: Metrics,
    ) -> Self {
        let errors = StepErrors(
            BTreeMap::from([(LISTS_STEP, "not asked yet".to_owned())]),
            BTreeMap::new(),
        );
        Self {
            settings,
            root,
            client,
            recorder,
            metrics,
            errors: Arc::new(Mutex::new(errors)),
            alignment: None,
            report: None,
        }
    }

    /// Returns a health check: `Ok` if the last report is published, otherwise the reason.
    pub fn health(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let errors = self.errors.clone();
        move || match errors.lock().0.first_key_value() {
            Some((step, why)) => Err(format!("{step}: {why}")),
            None => Ok(()),
        }
    }

    /// Scans and writes once.
    ///
    /// # Errors
    /// Returns the reason why nothing was written.
    pub async fn once(mut self) -> Result<PublishOutcome, ExporterError> {
        self.configure().await;
        self.scan().await;
        let published = self.publish(None).await;
        let errors = std::mem::take(&mut *self.errors.lock()).0;
        match (errors.into_iter().next(), published) {
            (Some((step, why)), _) => Err(ExporterError { step, why }),
            (None, published) => Ok(published.unwrap_or(PublishOutcome::Unchanged)),
        }
    }

    /// Scans after each interval and whenever the kubelet's files change, and writes the report if the object
    /// differs from it, also after another client changed or deleted the object. Ends with `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let scope = Scope {
            fields: Some(format!("metadata.name={}", self.settings.node)),
            ..Scope::default()
        };
        let mut object =
            Informer::<NodeResourceTopology>::start(self.client.clone(), scope, stop.clone());
        let mut events = Events::new(self.settings.state_dir.as_deref());
        let mut next_tick = Instant::now();
        let (mut scan_at, mut write_at) = (None, None);
        let mut last_action = None;
        let mut retry_delay = MIN_INTERVAL;
        loop {
            let ticks = !self.settings.interval.is_zero() || last_action.is_none();
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next_tick), if ticks => {
                    next_tick = Instant::now() + self.settings.interval;
                    events.extend();
                    if self.alignment.is_some() {
                        self.configure().await;
                    }
                    scan_at = Some(Instant::now());
                }
                () = events.changed() => {
                    scan_at = Some(scan_at.unwrap_or_else(|| next_scan(last_action)));
                }
                change = object.changes.recv() => match change {
                    Some(_) => {
                        write_at = Some(write_at.unwrap_or_else(|| next_scan(last_action)));
                    }
                    None => return,
                },
                () = sleep_until(scan_at.unwrap_or(next_tick)), if scan_at.is_some() => {
                    scan_at = None;
                    last_action = Some(Instant::now());
                    if self.alignment.is_none() {
                        self.configure().await;
                    }
                    self.scan().await;
                    write_at = last_action;
                }
                () = sleep_until(write_at.unwrap_or(next_tick)), if write_at.is_some() => {
                    last_action = Some(Instant::now());
                    write_at = match self.publish(Some(&object.store)).await {
                        Ok(_) => {
                            retry_delay = MIN_INTERVAL;
                            None
                        }
                        Err(false) => None,
                        Err(true) => {
                            let retry = Instant::now() + retry_delay;
                            retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                            Some(retry)
                        }
                    };
                }
            }
        }
    }

    /// Records the outcome of a step. Logs the start and the end of a failure, and creates an event for each
    /// new error.
    fn record_step(&self, step: &'static str, outcome: Result<(), String>) {
        let mut errors = self.errors.lock();
        match outcome {
            Ok(()) => {
                errors.1.remove(step);
                if let Some(was) = errors.0.remove(step) {
                    tracing::info!(step, was, "topology exporter step recovered");
                }
            }
            Err(why) => {
                let is_same = errors.0.insert(step, why.clone()).as_ref() == Some(&why);
                if errors.1.entry(step).or_default().record(&why) {
                    tracing::warn!(
                        step,
                        why,
                        "topology exporter step failed, publishing nothing"
                    );
                }
                if is_same {
                    return;
                }
                drop(errors);
                let node = ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(self.settings.node.clone()),
                    uid: Some(self.settings.node.clone()),
                    ..ObjectReference::default()
                };
                let message = format!("{step}: {why}");
                self.recorder
                    .event(node, Severity::Warning, "TopologyNotPublished", message);
            }
        }
    }

    /// Reads the kubelet's alignment. After a failure, the last known one stays in use.
    async fn configure(&mut self) {
        let (source, node) = (&self.settings.kubelet, &self.settings.node);
        match source.read(&self.client, node).await {
            Ok(alignment) => {
                self.alignment = Some(alignment);
                self.record_step(CONFIG_STEP, Ok(()));
            }
            Err(error) if self.alignment.is_some() => {
                tracing::debug!(
                    error,
                    "failed to refresh kubelet configuration, keeping last"
                );
            }
            Err(error) => self.record_step(CONFIG_STEP, Err(error)),
        }
    }

    /// Reads the machine's NUMA nodes and the kubelet's lists into the report.
    async fn scan(&mut self) {
        let report = self.collect_report().await;
        let result = if report.is_ok() { "ok" } else { "error" };
        self.metrics.scans.with_label_values(&[result]).inc();
        self.report = report.ok();
    }

    /// Returns the report of the current lists. The outcome of each step is recorded.
    async fn collect_report(&self) -> Result<Report, ()> {
        let failed = |step, why: String| self.record_step(step, Err(why));
        let machine =
            machine(&self.root).and_then(|nodes| Ok((nodes, numa::cpu_types(&self.root)?)));
        let (machine, types) = machine.map_err(|error| failed(MACHINE_STEP, error.to_string()))?;
        self.record_step(MACHINE_STEP, Ok(()));
        let listed = list(&machine, &self.settings.socket).await;
        let listed = listed.map_err(|error| failed(LISTS_STEP, error.to_string()))?;
        let problems = listed.zones.problems.join("; ");
        if listed.zones.is_contradictory {
            let why = format!("the lists contradict each other: {problems}");
            self.record_step(LISTS_STEP, Err(why));
            return Err(());
        }
        if !problems.is_empty() {
            tracing::debug!(problems, "ignoring invalid entries of kubelet lists");
        }
        self.record_step(LISTS_STEP, Ok(()));
        // The missing configuration is already reported.
        let Alignment {
            policy,
            scope,
            ref reserved,
        } = *self.alignment.as_ref().ok_or(())?;
        let fingerprint = Some(listed.fingerprint).filter(|_| self.settings.fingerprint);
        let mut attributes = export::attributes(policy, scope, fingerprint);
        attributes.extend(types.into_iter().map(|(name, cpus)| AttributeInfo {
            name: format!("cpu_{name}"),
            value: cpus.to_string(),
        }));
        let mut zones = listed.zones.zones;
        export::add_unmanaged(&mut zones, &machine, reserved);
        for zone in &mut zones {
            let exclude = &self.settings.exclude;
            zone.resources
                .retain(|resource| !exclude.contains(&resource.name));
        }
        Ok(Report {
            zones,
            attributes,
            policy: export::policy_name(policy, scope).to_owned(),
        })
    }

    /// Writes the report, unless the object in `informed` already has its content. `Err(true)` if a retry can
    /// succeed.
    async fn publish(
        &self,
        informed: Option<&Store<NodeResourceTopology>>,
    ) -> Result<PublishOutcome, bool> {
        let Some(report) = &self.report else {
            return Err(false);
        };
        let node = &self.settings.node;
        let informed = informed.and_then(|store| store.get(&ObjectKey::new("", node.as_str())));
        let is_there = |object: Arc<NodeResourceTopology>| {
            export::is_same(&object.spec, &export::merged(&object.spec, report))
        };
        if informed.is_some_and(is_there) {
            self.record_step(WRITE_STEP, Ok(()));
            return Ok(PublishOutcome::Unchanged);
        }
        if !self.settings.publish {
            tracing::info!(zones = ?report.zones, attributes = ?report.attributes, "publication disabled, report not written");
            return Ok(PublishOutcome::Unchanged);
        }
        let published = publish::publish(&self.client, node, report, self.settings.take_over).await;
        let result = match &published {
            Ok(PublishOutcome::Unchanged) => {
                return self.publish_succeeded(PublishOutcome::Unchanged);
            }
            Ok(PublishOutcome::Written) => "ok",
            Err(PublishError::Taken { .. }) => "refused",
            Err(_) => "error",
        };
        self.metrics.writes.with_label_values(&[result]).inc();
        match published {
            Ok(published) => self.publish_succeeded(published),
            Err(error) => {
                let retry = error.is_retryable();
                // A conflict with another writer is retried and not reported.
                if !error.is_conflict() {
                    self.record_step(WRITE_STEP, Err(error.to_string()));
                }
                Err(retry)
            }
        }
    }

    fn publish_succeeded(&self, published: PublishOutcome) -> Result<PublishOutcome, bool> {
        self.record_step(WRITE_STEP, Ok(()));
        Ok(published)
    }
}

/// Returns the time of the scan that follows a change.
fn next_scan(last: Option<Instant>) -> Instant {
    let earliest = Instant::now() + SETTLE_DELAY;
    last.map_or(earliest, |last| earliest.max(last + MIN_INTERVAL))
}
