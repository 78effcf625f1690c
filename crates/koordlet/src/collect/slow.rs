//! Slow collectors, which run on a thread of their own and never delay the loop.
//!
//! Each publishes its newest result itself: as metrics, or in [`SlowResults`], which strategies and the
//! reporter read. A collector that hangs in the kernel delays the other slow ones, but nothing else.

use super::cold::{ColdMemory, ColdPages};
use super::cpi::{ByGroup, CpiCollector};
use super::errors::CollectError;
use super::machine::MachineInfo;
use super::psi::PsiCollector;
use super::resctrl::ResctrlMonitor;
use crate::gates::Gate;
use crate::health::State;
use crate::log_on_change::LogOnChange;
use crate::metrics::{AgentPart, Metrics, NodeFact};
use crate::settings::Settings;
use crate::states::States;
use crate::store::snapshot;
use arc_swap::ArcSwapOption;
use koord_host::{HostError, Root};
use koord_model::blkio::Storage;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Newest results of the slow collectors.
#[derive(Debug, Default)]
pub struct SlowResults {
    /// The processor and the NUMA nodes.
    pub machine: ArcSwapOption<MachineInfo>,
    /// The local disks.
    pub storage: ArcSwapOption<Storage>,
    /// Cold memory, with the number of the round.
    pub cold: ArcSwapOption<(u64, ColdMemory)>,
    /// Counts of containers in their newest windows, with the number of the round.
    pub cpi: ArcSwapOption<(u64, ByGroup)>,
    /// True while the pressure guard watches services and needs windows without a pause.
    pub watched: AtomicBool,
    /// Samples to save for the next run.
    pub to_save: Mutex<Option<Vec<u8>>>,
    /// State and last error of collectors that fail or have stopped, by name.
    failures: Mutex<BTreeMap<&'static str, (State, String)>>,
}

impl SlowResults {
    /// Returns the state and the last error of the collector `name` if it fails or has stopped; else `None`.
    #[must_use]
    pub fn failure(&self, name: &str) -> Option<(State, String)> {
        self.failures.lock().get(name).cloned()
    }
}

/// Minimum time between two rounds of a collector, whatever its settings.
const SHORTEST: Duration = Duration::from_millis(100);

/// Error of a round.
pub type RoundError = Box<dyn std::error::Error>;

/// A failure that no later round can mend, because the kernel or machine lacks something. It is logged once,
/// and the collector stops.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnavailableFeature(String);

impl UnavailableFeature {
    /// Returns the error of a round for a missing feature.
    #[must_use]
    pub fn boxed(missing: impl fmt::Display) -> RoundError {
        Box::new(Self(missing.to_string()))
    }
}

/// A slow collector.
pub trait Job: Send {
    /// Returns the name in the table of collectors.
    fn name(&self) -> &'static str;
    /// Returns the time until the next round.
    fn every(&self) -> Duration;
    /// Runs one round.
    ///
    /// # Errors
    /// When there is no result. The error is logged once, counted, and the round is repeated later, unless it
    /// is [`UnavailableFeature`].
    fn round(&mut self) -> Result<(), RoundError>;
}

/// Context from which slow collectors are created.
#[derive(Debug, Clone, Copy)]
pub struct SlowJobContext<'a> {
    /// The machine.
    pub root: &'a Root,
    /// The settings of the loop.
    pub settings: &'a Settings,
    /// State of the cluster.
    pub states: &'a Arc<States>,
    /// Destination of results for strategies and the reporter.
    pub facts: &'a Arc<SlowResults>,
    /// Destination of results that are metrics.
    pub metrics: &'a Metrics,
}

pub(super) fn machine(parts: &SlowJobContext<'_>) -> Box<dyn Job> {
    Box::new(MachineJob {
        root: parts.root.clone(),
        every: Duration::from_millis(parts.settings.collectors.cpu_info_ms),
        huge_pages: parts.settings.gates.is_on(Gate::HugePageReport),
        facts: parts.facts.clone(),
        metrics: parts.metrics.clone(),
    })
}

pub(super) fn storage(parts: &SlowJobContext<'_>) -> Box<dyn Job> {
    Box::new(StorageJob {
        root: parts.root.clone(),
        every: Duration::from_millis(parts.settings.collectors.storage_info_ms),
        facts: parts.facts.clone(),
        metrics: parts.metrics.clone(),
    })
}

pub(super) fn psi(parts: &SlowJobContext<'_>) -> Box<dyn Job> {
    Box::new(PsiCollector::new(
        parts.root.clone(),
        parts.states.clone(),
        parts.metrics.clone(),
        Duration::from_millis(parts.settings.collectors.psi_ms),
    ))
}

pub(super) fn cpi(parts: &SlowJobContext<'_>) -> Box<dyn Job> {
    Box::new(CpiCollector::new(
        parts.root.clone(),
        parts.states.clone(),
        parts.facts.clone(),
        parts.metrics.clone(),
        Duration::from_millis(parts.settings.collectors.cpi_ms),
        Duration::from_millis(parts.settings.collectors.cpi_window_ms),
    ))
}

pub(super) fn cold_pages(parts: &SlowJobContext<'_>) -> Box<dyn Job> {
    Box::new(ColdPages::new(
        parts.root.clone(),
        parts.states.clone(),
        parts.facts.clone(),
        parts.settings.layout.clone(),
    ))
}

pub(super) fn resctrl(parts: &SlowJobContext<'_>) -> Box<dyn Job> {
    Box::new(ResctrlMonitor::new(
        parts.root.clone(),
        parts.metrics.clone(),
        Duration::from_millis(parts.settings.collectors.resctrl_ms),
    ))
}

/// Returns the job that saves samples for the next run; `None` if samples are kept in memory only.
#[must_use]
pub fn save_job(settings: &Settings, facts: &Arc<SlowResults>) -> Option<Box<dyn Job>> {
    let path = settings.snapshot.clone()?;
    let facts = facts.clone();
    Some(Box::new(SaveJob { path, facts }))
}

/// Handle of the thread. Dropping it requests the end of the thread without waiting for it.
pub struct SlowWorker(Arc<(Mutex<bool>, Condvar)>);

impl fmt::Debug for SlowWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Worker").finish()
    }
}

impl Drop for SlowWorker {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

impl SlowWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub fn start(
        jobs: Vec<Box<dyn Job>>,
        facts: Arc<SlowResults>,
        metrics: Metrics,
    ) -> std::io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let ended = stop.clone();
        std::thread::Builder::new()
            .name("koordlet-slow".to_owned())
            .spawn(move || {
                let mut schedule = JobSchedule::new(jobs, facts, metrics);
                let origin = Instant::now();
                loop {
                    let wait = schedule.run(origin.elapsed());
                    let mut ended_now = ended.0.lock();
                    if !*ended_now {
                        ended.1.wait_for(&mut ended_now, wait);
                    }
                    if *ended_now {
                        return;
                    }
                }
            })?;
        Ok(Self(stop))
    }
}

/// The jobs and the time at which each is due.
struct JobSchedule {
    jobs: Vec<(Box<dyn Job>, Duration)>,
    log: LogOnChange,
    facts: Arc<SlowResults>,
    metrics: Metrics,
}

impl JobSchedule {
    fn new(jobs: Vec<Box<dyn Job>>, facts: Arc<SlowResults>, metrics: Metrics) -> Self {
        let due_now = |job| (job, Duration::ZERO);
        Self {
            jobs: jobs.into_iter().map(due_now).collect(),
            log: LogOnChange::default(),
            facts,
            metrics,
        }
    }

    /// Runs the jobs that are due at `now` (since the start) and returns the time until the next is due.
    fn run(&mut self, now: Duration) -> Duration {
        let mut next = Duration::from_secs(60);
        let (failures, log) = (&self.facts.failures, &mut self.log);
        self.jobs.retain_mut(|(job, due)| {
            if *due <= now {
                match job.round() {
                    Ok(()) => {
                        log.clear(job.name());
                        failures.lock().remove(job.name());
                    }
                    Err(error) if error.is::<UnavailableFeature>() => {
                        tracing::warn!(part = job.name(), %error, "slow collector unavailable, stopping it");
                        let entry = (State::Unavailable, error.to_string());
                        failures.lock().insert(job.name(), entry);
                        return false;
                    }
                    Err(error) => {
                        log.log_first_failure(job.name(), &error);
                        let entry = (State::Failing, error.to_string());
                        failures.lock().insert(job.name(), entry);
                        self.metrics.failed(AgentPart::Collector, job.name());
                        self.metrics
                            .collect_errors(job.name(), kernel_errors(error.as_ref()));
                    }
                }
                *due = now + job.every().max(SHORTEST);
            }
            next = next.min(due.saturating_sub(now));
            true
        });
        next.max(Duration::from_millis(10))
    }
}

/// Returns the number of kernel files that could not be read in a round that failed with `error`.
fn kernel_errors(error: &(dyn std::error::Error + 'static)) -> u64 {
    match (
        error.downcast_ref::<CollectError>(),
        error.downcast_ref::<HostError>(),
    ) {
        (Some(errors), _) => errors.count(),
        (None, Some(error)) if !error.is_gone() && !error.is_unsupported() => 1,
        _ => 0,
    }
}

struct MachineJob {
    root: Root,
    every: Duration,
    huge_pages: bool,
    facts: Arc<SlowResults>,
    metrics: Metrics,
}

impl Job for MachineJob {
    fn name(&self) -> &'static str {
        "machine"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&mut self) -> Result<(), RoundError> {
        let machine = MachineInfo::read(&self.root, self.huge_pages);
        self.metrics.collected(NodeFact::Cpu, machine.is_ok());
        self.metrics.collected(NodeFact::Numa, machine.is_ok());
        self.facts.machine.store(Some(Arc::new(machine?)));
        Ok(())
    }
}

struct StorageJob {
    root: Root,
    every: Duration,
    facts: Arc<SlowResults>,
    metrics: Metrics,
}

impl Job for StorageJob {
    fn name(&self) -> &'static str {
        "storage"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&mut self) -> Result<(), RoundError> {
        let storage = super::storage::read(&self.root);
        self.metrics
            .collected(NodeFact::LocalStorage, storage.is_ok());
        self.facts.storage.store(Some(Arc::new(storage?)));
        Ok(())
    }
}

/// Writes samples for the next run.
struct SaveJob {
    path: PathBuf,
    facts: Arc<SlowResults>,
}

impl Job for SaveJob {
    fn name(&self) -> &'static str {
        "samples"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn round(&mut self) -> Result<(), RoundError> {
        let bytes = self.facts.to_save.lock().take();
        let Some(bytes) = bytes else {
            return Ok(());
        };
        let path = self.path.display();
        snapshot::write(&self.path, &bytes).map_err(|error| format!("{path}: {error}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Fake(
        &'static str,
        u64,
        Arc<AtomicU32>,
        fn() -> Result<(), RoundError>,
    );

    impl Job for Fake {
        fn name(&self) -> &'static str {
            self.0
        }
        fn every(&self) -> Duration {
            Duration::from_secs(self.1)
        }
        fn round(&mut self) -> Result<(), RoundError> {
            self.2.fetch_add(1, Ordering::Relaxed);
            self.3()
        }
    }

    #[test]
    fn each_has_its_own_rate_and_fails_alone() {
        let counts: [Arc<AtomicU32>; 4] = Default::default();
        let fake = |name, every, at: usize, result| -> Box<dyn Job> {
            Box::new(Fake(name, every, counts[at].clone(), result))
        };
        let jobs = vec![
            fake("bad", 10, 0, || Err("missing".into())),
            fake("hopeless", 3, 1, || {
                Err(UnavailableFeature::boxed("no PMU"))
            }),
            fake("good", 3, 2, || Ok(())),
            fake("unreadable", 10, 3, || {
                let malformed = koord_host::Malformed::new("a number", "x");
                let path = "/sys/x".into();
                Err(HostError::Malformed { path, malformed }.into())
            }),
        ];
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("n1", 0);
        let facts: Arc<SlowResults> = Arc::default();
        let mut schedule = JobSchedule::new(jobs, facts.clone(), metrics);
        let mut now = Duration::ZERO;
        while now <= Duration::from_secs(30) {
            now += schedule.run(now);
        }
        let ran = counts.map(|count| count.load(Ordering::Relaxed));
        assert_eq!(ran, [4, 1, 11, 4]);
        let failure = |state, text: &str| Some((state, text.to_owned()));
        assert_eq!(facts.failure("bad"), failure(State::Failing, "missing"));
        let gave_up = failure(State::Unavailable, "no PMU");
        assert_eq!(facts.failure("hopeless"), gave_up);
        assert_eq!(facts.failure("good"), None);
        let text = koord_app::metrics::encode(&registry).unwrap();
        for count in [
            r#"koordlet_collect_errors_total{collector="bad",node="n1"} 0"#,
            r#"koordlet_collect_errors_total{collector="unreadable",node="n1"} 4"#,
        ] {
            assert!(text.contains(count), "{text}");
        }
    }

    #[test]
    fn job_failure_ends_and_interval_has_minimum() {
        let count: Arc<AtomicU32> = Arc::default();
        let recovers = RecoveringJob(count.clone());
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let facts: Arc<SlowResults> = Arc::default();
        let mut schedule = JobSchedule::new(vec![Box::new(recovers)], facts.clone(), metrics);
        let mut run = |ms: u64| {
            schedule.run(Duration::from_millis(ms));
            count.load(Ordering::Relaxed)
        };
        assert_eq!(run(0), 1);
        assert_eq!(run(99), 1, "the minimum applies");
        assert!(facts.failure("recovers").is_some());
        assert_eq!(run(100), 2);
        assert_eq!(facts.failure("recovers"), None);
    }

    /// Fails in the first round, and has an interval of zero.
    struct RecoveringJob(Arc<AtomicU32>);

    impl Job for RecoveringJob {
        fn name(&self) -> &'static str {
            "recovers"
        }
        fn every(&self) -> Duration {
            Duration::ZERO
        }
        fn round(&mut self) -> Result<(), RoundError> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => Err("not yet".into()),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn the_thread_begins_and_ends() {
        let count: Arc<AtomicU32> = Arc::default();
        let jobs: Vec<Box<dyn Job>> = vec![Box::new(Fake("x", 1, count.clone(), || Ok(())))];
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let worker = SlowWorker::start(jobs, Arc::default(), metrics).unwrap();
        while count.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(worker);
        // The job is dropped with the thread.
        while Arc::strong_count(&count) > 1 {
            std::thread::yield_now();
        }
    }
}
