//! Collectors that may be slow run on a thread of their own and never delay the loop.
//!
//! Each publishes its newest result by itself: as metrics, or in [`Facts`], which strategies and
//! the reporter read. One that hangs in the kernel delays the others here, and nobody else.

use super::Complaint;
use super::cold::{Cold, ColdPages};
use super::machine::MachineInfo;
use super::psi::PsiCollector;
use super::resctrl::ResctrlMonitor;
use super::storage::Storage;
use crate::gates::Gate;
use crate::metrics::{Metrics, NodeFact, Part};
use crate::options::Settings;
use crate::states::States;
use crate::store::snapshot;
use arc_swap::ArcSwapOption;
use koord_host::Root;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the slow collectors found last.
#[derive(Debug, Default)]
pub struct Facts {
    /// The processor and the NUMA nodes.
    pub machine: ArcSwapOption<MachineInfo>,
    /// The local disks.
    pub storage: ArcSwapOption<Storage>,
    /// What nobody touched of late, with a number that grows with each round.
    pub cold: ArcSwapOption<(u64, Cold)>,
    /// Samples to be saved over a restart.
    pub to_save: Mutex<Option<Vec<u8>>>,
    /// What collectors said last that fail, by name.
    failing: Mutex<BTreeMap<&'static str, String>>,
}

impl Facts {
    /// What the collector `name` said when it failed last, while it fails.
    #[must_use]
    pub fn failing(&self, name: &str) -> Option<String> {
        self.failing.lock().get(name).cloned()
    }
}

/// No collector runs more often, whatever it is told.
const SHORTEST: Duration = Duration::from_millis(100);

/// What may be wrong with a round.
pub type Failure = Box<dyn std::error::Error>;

/// One slow collector.
pub trait Job: Send {
    /// Its name in the table of collectors.
    fn name(&self) -> &'static str;
    /// Time from the round before to the next.
    fn every(&self) -> Duration;
    /// One round.
    ///
    /// # Errors
    /// Whatever kept it from a result. It is said once, counted, and tried again next time.
    fn round(&mut self) -> Result<(), Failure>;
}

/// The collectors that `settings` switch on.
#[must_use]
pub fn jobs(
    root: &Root,
    settings: &Settings,
    states: &Arc<States>,
    facts: &Arc<Facts>,
    metrics: &Metrics,
) -> Vec<Box<dyn Job>> {
    let on = |gate| settings.gates.is_on(gate);
    let told = &settings.collectors;
    let mut jobs: Vec<Box<dyn Job>> = vec![Box::new(MachineJob {
        root: root.clone(),
        every: Duration::from_millis(told.cpu_info_ms),
        huge_pages: on(Gate::HugePageReport),
        facts: facts.clone(),
        metrics: metrics.clone(),
    })];
    if on(Gate::BlkIOReconcile) {
        jobs.push(Box::new(StorageJob {
            root: root.clone(),
            every: Duration::from_millis(told.storage_info_ms),
            facts: facts.clone(),
            metrics: metrics.clone(),
        }));
    }
    if on(Gate::PSICollector) {
        jobs.push(Box::new(PsiCollector::new(
            root.clone(),
            states.clone(),
            metrics.clone(),
            Duration::from_millis(told.psi_ms),
        )));
    }
    if on(Gate::ColdPageCollector) {
        jobs.push(Box::new(ColdPages::new(
            root.clone(),
            states.clone(),
            facts.clone(),
            settings.layout.clone(),
        )));
    }
    if on(Gate::ResctrlCollector) && told.resctrl {
        jobs.push(Box::new(ResctrlMonitor::new(
            root.clone(),
            metrics.clone(),
            Duration::from_millis(told.resctrl_ms),
        )));
    }
    if let Some(path) = &settings.snapshot {
        jobs.push(Box::new(SaveJob {
            path: path.clone(),
            facts: facts.clone(),
        }));
    }
    jobs
}

/// The thread. Dropping it asks the thread to end and does not wait.
pub struct Worker(Arc<(Mutex<bool>, Condvar)>);

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Worker").finish()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(
        jobs: Vec<Box<dyn Job>>,
        facts: Arc<Facts>,
        metrics: Metrics,
    ) -> std::io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let ended = stop.clone();
        std::thread::Builder::new()
            .name("koordlet-slow".to_owned())
            .spawn(move || {
                let mut rounds = Rounds::new(jobs, facts, metrics);
                let origin = Instant::now();
                loop {
                    let wait = rounds.run(origin.elapsed());
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

/// Jobs and when each is due.
struct Rounds {
    jobs: Vec<(Box<dyn Job>, Duration, Complaint)>,
    facts: Arc<Facts>,
    metrics: Metrics,
}

impl Rounds {
    fn new(jobs: Vec<Box<dyn Job>>, facts: Arc<Facts>, metrics: Metrics) -> Self {
        let due_now = |job| (job, Duration::ZERO, Complaint::default());
        Self {
            jobs: jobs.into_iter().map(due_now).collect(),
            facts,
            metrics,
        }
    }

    /// Runs what is due at `now` (since the start) and returns the time until something is.
    fn run(&mut self, now: Duration) -> Duration {
        let mut next = Duration::from_secs(60);
        for (job, due, complaint) in &mut self.jobs {
            if *due <= now {
                match job.round() {
                    Ok(()) => {
                        complaint.clear();
                        self.facts.failing.lock().remove(job.name());
                    }
                    Err(error) => {
                        complaint.say(job.name(), &error);
                        let failing = &mut self.facts.failing.lock();
                        failing.insert(job.name(), error.to_string());
                        self.metrics.failed(Part::Collector, job.name());
                    }
                }
                *due = now + job.every().max(SHORTEST);
            }
            next = next.min(due.saturating_sub(now));
        }
        next.max(Duration::from_millis(10))
    }
}

struct MachineJob {
    root: Root,
    every: Duration,
    huge_pages: bool,
    facts: Arc<Facts>,
    metrics: Metrics,
}

impl Job for MachineJob {
    fn name(&self) -> &'static str {
        "machine"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&mut self) -> Result<(), Failure> {
        let found = MachineInfo::read(&self.root, self.huge_pages);
        self.metrics.collected(NodeFact::Cpu, found.is_ok());
        self.metrics.collected(NodeFact::Numa, found.is_ok());
        self.facts.machine.store(Some(Arc::new(found?)));
        Ok(())
    }
}

struct StorageJob {
    root: Root,
    every: Duration,
    facts: Arc<Facts>,
    metrics: Metrics,
}

impl Job for StorageJob {
    fn name(&self) -> &'static str {
        "storage"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&mut self) -> Result<(), Failure> {
        let found = Storage::read(&self.root);
        self.metrics
            .collected(NodeFact::LocalStorage, found.is_ok());
        self.facts.storage.store(Some(Arc::new(found?)));
        Ok(())
    }
}

/// Writes samples for the next run.
struct SaveJob {
    path: PathBuf,
    facts: Arc<Facts>,
}

impl Job for SaveJob {
    fn name(&self) -> &'static str {
        "samples"
    }

    fn every(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn round(&mut self) -> Result<(), Failure> {
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

    struct Fake(&'static str, u64, Arc<AtomicU32>, bool);

    impl Job for Fake {
        fn name(&self) -> &'static str {
            self.0
        }
        fn every(&self) -> Duration {
            Duration::from_secs(self.1)
        }
        fn round(&mut self) -> Result<(), Failure> {
            self.2.fetch_add(1, Ordering::Relaxed);
            if self.3 {
                Err("missing".into())
            } else {
                Ok(())
            }
        }
    }

    #[test]
    fn each_has_its_own_rate_and_fails_alone() {
        let counts: [Arc<AtomicU32>; 2] = Default::default();
        let jobs: Vec<Box<dyn Job>> = vec![
            Box::new(Fake("bad", 10, counts[0].clone(), true)),
            Box::new(Fake("good", 3, counts[1].clone(), false)),
        ];
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let facts: Arc<Facts> = Arc::default();
        let mut rounds = Rounds::new(jobs, facts.clone(), metrics);
        let mut now = Duration::ZERO;
        while now <= Duration::from_secs(30) {
            now += rounds.run(now);
        }
        let ran = counts.map(|count| count.load(Ordering::Relaxed));
        assert_eq!(ran, [4, 11]);
        assert_eq!(facts.failing("bad").as_deref(), Some("missing"));
        assert_eq!(facts.failing("good"), None);
    }

    #[test]
    fn the_thread_begins_and_ends() {
        let count: Arc<AtomicU32> = Arc::default();
        let jobs: Vec<Box<dyn Job>> = vec![Box::new(Fake("x", 1, count.clone(), false))];
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let worker = Worker::start(jobs, Arc::default(), metrics).unwrap();
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
