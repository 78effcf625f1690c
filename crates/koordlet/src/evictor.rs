//! Carries out evictions: a few concurrently, none waiting for another, through the API or, if the API server
//! does not answer, by killing the pod's containers.
//!
//! Nothing is retried here. A refused or failed eviction is returned to the loop, which passes to the next
//! pod and decides again with newer samples.

#[cfg(test)]
mod tests;

use crate::audit;
use crate::metrics::Metrics;
use crate::qos::Eviction;
use crate::states::States;
use k8s_openapi::api::core::v1::ObjectReference;
use koord_app::Clock;
use koord_host::{CgroupPath, HostError, Root};
use koord_kube::Client;
use koord_kube::events::{Recorder, Severity};
use koord_kube::evict::{EvictOptions, EvictOutcome, EvictVersion, evict_pod, eviction_version};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Maximum number of queued evictions.
const BACKLOG: usize = 64;
/// Number of rounds of killing until a container's processes must have ended.
const KILL_CHECKS: u32 = 20;
/// Pause between two rounds of killing.
const KILL_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of checks for remaining processes in each round.
const EXIT_CHECKS: u32 = 20;
/// Pause before each of these checks.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// `reason` of events, audit records and metrics; upstream has only this one.
pub const REASON: &str = "evicted";

/// Means of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictionMode {
    /// Evicts through the API; kills the containers if the API server does not answer, fails, or does not offer evictions.
    /// Disruption budgets are respected.
    #[default]
    ApiThenKill,
    /// Evicts through the API only.
    Api,
    /// Kills the containers, without an API request.
    Kill,
}

/// An unknown eviction mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("eviction-mode must be api-then-kill, api or kill, got {0:?}")]
pub struct UnknownEvictionMode(String);

impl FromStr for EvictionMode {
    type Err = UnknownEvictionMode;

    fn from_str(text: &str) -> Result<Self, UnknownEvictionMode> {
        match text {
            "api-then-kill" => Ok(Self::ApiThenKill),
            "api" => Ok(Self::Api),
            "kill" => Ok(Self::Kill),
            other => Err(UnknownEvictionMode(other.to_owned())),
        }
    }
}

/// Settings of the evictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Means of eviction.
    pub mode: EvictionMode,
    /// Maximum number of concurrent evictions.
    pub parallel: usize,
    /// Timeout of one request.
    pub timeout: Duration,
    /// True if evictions are recorded only.
    pub dry_run: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: EvictionMode::default(),
            parallel: 4,
            timeout: Duration::from_secs(5),
            dry_run: false,
        }
    }
}

/// Outcome of an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// The API server is deleting the pod.
    Evicted,
    /// The pod's containers were killed.
    Killed,
    /// The pod did not exist any more.
    Gone,
    /// A disruption budget or the server's load forbids the eviction for now; with the server's retry delay,
    /// if it sent one.
    Blocked(Option<Duration>),
    /// The eviction failed.
    Failed,
}

/// A finished eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionResult {
    /// The requested eviction.
    pub eviction: Eviction,
    /// Outcome of the eviction.
    pub outcome: EvictionOutcome,
}

/// Dependencies of the evictor.
#[derive(Clone)]
pub struct EvictorDeps {
    /// The API server.
    pub client: Client,
    /// Recorder of events.
    pub recorder: Recorder,
    /// State of the cluster, with the pods' cgroups.
    pub states: Arc<States>,
    /// The machine.
    pub root: Root,
    /// Audit log of evictions.
    pub audit: audit::Log,
    /// Metrics of evictions.
    pub metrics: Metrics,
    /// Clock of the records.
    pub clock: Clock,
}

impl fmt::Debug for EvictorDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// Accepts evictions without waiting for them.
#[derive(Debug, Clone)]
pub struct Evictor {
    queue: mpsc::Sender<Eviction>,
    /// UIDs of evictions in flight. Without it, repeated requests would evict long after the need has ended.
    in_flight: Arc<Mutex<FxHashSet<String>>>,
}

impl Evictor {
    /// Starts the evictor, which runs until `shutdown`. The channel returns the result of each eviction.
    #[must_use]
    pub fn start(
        config: Config,
        parts: EvictorDeps,
        shutdown: CancellationToken,
    ) -> (Self, mpsc::Receiver<EvictionResult>) {
        let (queue, waiting) = mpsc::channel(BACKLOG);
        let (done, results) = mpsc::channel(BACKLOG);
        let in_flight = Arc::<Mutex<FxHashSet<String>>>::default();
        let worker = Worker {
            config,
            parts,
            in_flight: in_flight.clone(),
            version: Mutex::default(),
            done,
        };
        tokio::spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = Arc::new(worker).run(waiting) => {}
            }
        });
        (Self { queue, in_flight }, results)
    }

    /// Enqueues an eviction. Returns `false` if that of the pod is already in flight, or the queue is full.
    pub fn try_evict(&self, eviction: Eviction) -> bool {
        let uid = eviction.uid.clone();
        let mut in_flight = self.in_flight.lock();
        // Locked while sending, because the result may arrive at once.
        !in_flight.contains(&uid) && self.queue.try_send(eviction).is_ok() && in_flight.insert(uid)
    }
}

/// Error of an eviction through the API.
enum EvictionError {
    /// The server refused it because of a disruption budget or its load; with its retry delay, if it sent
    /// one.
    Blocked(String, Option<Duration>),
    /// The request failed or was not answered.
    Failed(String),
}

/// Error of killing a pod.
#[derive(Debug, thiserror::Error)]
enum KillError {
    #[error("none of its containers is known to run")]
    NoContainers,
    #[error("some processes did not die")]
    StillRunning,
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("{0}")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Kills the processes in `groups` and waits briefly for them to end. Returns whether any remain. Blocks the
/// thread.
#[expect(
    clippy::disallowed_methods,
    reason = "processes end in real time, independent of tokio's clock"
)]
fn kill_all(root: &Root, groups: &[CgroupPath]) -> Result<bool, HostError> {
    let alive = || -> Result<Vec<_>, HostError> {
        let mut alive = Vec::new();
        for group in groups.iter().map(|group| root.cgroup(group)) {
            if group.exists() && !group.procs_recursive()?.is_empty() {
                alive.push(group);
            }
        }
        Ok(alive)
    };
    for group in alive()? {
        group.kill()?;
    }
    for _ in 0..EXIT_CHECKS {
        if alive()?.is_empty() {
            return Ok(false);
        }
        std::thread::sleep(EXIT_CHECK_INTERVAL);
    }
    Ok(true)
}

struct Worker {
    config: Config,
    parts: EvictorDeps,
    in_flight: Arc<Mutex<FxHashSet<String>>>,
    /// Version of the eviction API, once it was discovered.
    version: Mutex<Option<EvictVersion>>,
    done: mpsc::Sender<EvictionResult>,
}

impl Worker {
    async fn run(self: Arc<Self>, mut waiting: mpsc::Receiver<Eviction>) {
        let slots = Arc::new(Semaphore::new(self.config.parallel.max(1)));
        // Tasks are stopped when this future is dropped.
        let mut running = tokio::task::JoinSet::new();
        while let Some(eviction) = waiting.recv().await {
            while running.try_join_next().is_some() {}
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            let worker = self.clone();
            running.spawn(async move {
                let outcome = worker.evict(&eviction).await;
                drop(slot);
                worker.in_flight.lock().remove(&eviction.uid);
                let _ = worker.done.send(EvictionResult { eviction, outcome }).await;
            });
        }
        running.join_all().await;
    }

    /// Evicts a pod by the configured mode, and records the result.
    async fn evict(&self, eviction: &Eviction) -> EvictionOutcome {
        if self.config.dry_run {
            tracing::info!(
                pod = eviction.name,
                namespace = eviction.namespace,
                "pod not evicted: dry run"
            );
            self.audit(eviction, "not evicted: dry run");
            // The pod counts as evicted, as it would without the dry run.
            return EvictionOutcome::Evicted;
        }
        let refusal = if self.config.mode == EvictionMode::Kill {
            None
        } else {
            match self.request_eviction(eviction).await {
                Ok(outcome) => {
                    if outcome == EvictionOutcome::Evicted {
                        self.record_success(eviction, "evicted through the API");
                    }
                    return outcome;
                }
                Err(EvictionError::Blocked(why, after)) => {
                    tracing::info!(pod = eviction.name, why, "eviction blocked for now");
                    self.record_failure(eviction, &why);
                    return EvictionOutcome::Blocked(after);
                }
                Err(EvictionError::Failed(why)) => Some(why),
            }
        };
        if self.config.mode == EvictionMode::Api {
            let why = refusal.unwrap_or_default();
            tracing::warn!(pod = eviction.name, why, "eviction failed");
            self.record_failure(eviction, &why);
            return EvictionOutcome::Failed;
        }
        let method = match &refusal {
            Some(why) => format!("containers killed, as the API server could not be asked: {why}"),
            None => "containers killed".to_owned(),
        };
        match self.kill(&eviction.uid).await {
            Ok(true) => {
                tracing::info!(pod = eviction.name, method, "pod killed");
                self.record_success(eviction, &method);
                EvictionOutcome::Killed
            }
            Ok(false) => EvictionOutcome::Gone,
            Err(error) => {
                let why = match refusal {
                    Some(why) => format!("{why}; and killing failed: {error}"),
                    None => format!("killing failed: {error}"),
                };
                tracing::warn!(pod = eviction.name, why, "eviction failed");
                self.record_failure(eviction, &why);
                EvictionOutcome::Failed
            }
        }
    }

    /// Sends the eviction to the API server.
    async fn request_eviction(
        &self,
        eviction: &Eviction,
    ) -> Result<EvictionOutcome, EvictionError> {
        let failed = |error: koord_kube::Error| EvictionError::Failed(error.to_string());
        let attempt = async {
            let version = self.version().await.map_err(failed)?;
            let Some(version) = version else {
                let why = "the API server offers no evictions".to_owned();
                return Err(EvictionError::Failed(why));
            };
            let options = EvictOptions {
                uid: Some(eviction.uid.clone()),
                version,
                ..EvictOptions::default()
            };
            let EvictorDeps { client, .. } = &self.parts;
            let attempt = evict_pod(client, &eviction.namespace, &eviction.name, &options);
            match attempt.await.map_err(failed)? {
                EvictOutcome::Evicted => Ok(EvictionOutcome::Evicted),
                EvictOutcome::Gone { .. } => Ok(EvictionOutcome::Gone),
                EvictOutcome::Blocked {
                    message,
                    retry_after,
                } => Err(EvictionError::Blocked(message, retry_after)),
            }
        };
        let limit = self.config.timeout;
        timeout(limit, attempt).await.unwrap_or_else(|_| {
            let why = format!("the API server did not answer within {limit:?}");
            Err(EvictionError::Failed(why))
        })
    }

    /// Returns the version of the eviction API, discovered once; `None` if the server offers none.
    async fn version(&self) -> Result<Option<EvictVersion>, koord_kube::Error> {
        let cached = *self.version.lock();
        if cached.is_some() {
            return Ok(cached);
        }
        let discovered = eviction_version(&self.parts.client).await?;
        *self.version.lock() = discovered;
        Ok(discovered)
    }

    /// Kills the processes of the pod's containers; `false` if the pod is not listed any more. Its sandbox is
    /// left to the runtime. Containers that do not run are skipped.
    async fn kill(&self, uid: &str) -> Result<bool, KillError> {
        let pods = self.parts.states.pods.load_full();
        let pod = pods.iter().flat_map(|all| all.iter());
        let Some(pod) = pod.into_iter().find(|pod| pod.uid == uid) else {
            return Ok(false);
        };
        let containers = pod.containers.iter();
        let groups: Vec<_> = containers.filter_map(|c| c.cgroup.clone()).collect();
        if groups.is_empty() {
            return Err(KillError::NoContainers);
        }
        for _ in 0..KILL_CHECKS {
            let (root, groups) = (self.parts.root.clone(), groups.clone());
            if !tokio::task::spawn_blocking(move || kill_all(&root, &groups)).await?? {
                return Ok(true);
            }
            sleep(KILL_CHECK_INTERVAL).await;
        }
        Err(KillError::StillRunning)
    }

    /// Records the event, audit record and metric of a successful eviction.
    fn record_success(&self, eviction: &Eviction, how: &str) {
        self.event(eviction, "evictPodSuccess", &eviction.message);
        let parts = &self.parts;
        parts
            .metrics
            .evicted(&eviction.namespace, &eviction.name, REASON);
        self.audit(eviction, how);
    }

    fn audit(&self, eviction: &Eviction, how: &str) {
        let parts = &self.parts;
        let message = format!("{}; {how}", eviction.message);
        let mut entry = audit::Entry::new(audit::Subject::Pod, 0, REASON, message);
        entry.namespace.clone_from(&eviction.namespace);
        entry.name.clone_from(&eviction.name);
        parts.audit.record(parts.clock.now(), entry);
    }

    fn record_failure(&self, eviction: &Eviction, why: &str) {
        let message = format!("{}, error {why}", eviction.message);
        self.event(eviction, "evictPodFail", &message);
    }

    fn event(&self, eviction: &Eviction, reason: &str, message: &str) {
        let Eviction {
            namespace, name, ..
        } = eviction;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            uid: Some(eviction.uid.clone()),
            ..ObjectReference::default()
        };
        let message = format!("evict Pod:{namespace}/{name}, reason: {REASON}, message: {message}");
        self.parts
            .recorder
            .event(about, Severity::Warning, reason, message);
    }
}
