//! Cycles and instructions of containers, counted in windows (gate CPICollector).
//!
//! One round opens the counters and another reads and closes them, so that no thread waits for a window to
//! end. If there are more containers than descriptors to count them with, containers are counted in
//! consecutive windows until each had one, and the pause follows. There is no pause while the pressure guard
//! watches services.

use super::slow::{Job, RoundError, SlowResults, UnavailableFeature};
use crate::metrics::{Container, Cpi, Metrics};
use crate::states::States;
use koord_host::perf::{Counters, Event};
use koord_host::{CgroupPath, HostError, Root, limits};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum descriptors of a window: two per container and CPU. Suffices for sixteen containers on 128 CPUs.
const DESCRIPTORS: usize = 4096;

/// Performance counters of a container in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpiCounts {
    /// CPU cycles.
    pub cycles: u64,
    /// Retired instructions.
    pub instructions: u64,
    /// True if this is the last window of the round; counts of earlier windows are some time old.
    pub newest: bool,
}

/// Newest counts, by the container's cgroup.
pub type ByGroup = FxHashMap<CgroupPath, CpiCounts>;

/// Minimum instructions of a pod in a window; fewer do not characterize its services.
const FEWEST_INSTRUCTIONS: u64 = 10_000_000;

/// Returns the cycles per instruction of a pod from the counts of its containers; `None` if they executed too
/// few instructions, or if not all counts are of the last window.
#[must_use]
pub fn pod_cpi<'a>(containers: impl Iterator<Item = &'a CpiCounts>) -> Option<f64> {
    let (mut cycles, mut instructions) = (0_u64, 0_u64);
    for counts in containers {
        if !counts.newest {
            return None;
        }
        cycles = cycles.saturating_add(counts.cycles);
        instructions = instructions.saturating_add(counts.instructions);
    }
    (instructions >= FEWEST_INSTRUCTIONS).then(|| cycles as f64 / instructions as f64)
}

/// A container that is or will be counted.
#[derive(Debug)]
struct CountedContainer {
    group: CgroupPath,
    label: Container,
}

/// Counts cycles and instructions of every running container.
#[derive(Debug)]
pub struct CpiCollector {
    root: Root,
    states: Arc<States>,
    facts: Arc<SlowResults>,
    metrics: Metrics,
    /// Pause between the last window of a round and the first of the next.
    every: Duration,
    window: Duration,
    /// Perf events for cycles and for instructions.
    events: [Event; 2],
    /// True once the machine was found to support the counters.
    is_supported: bool,
    /// Maximum descriptors of one window.
    descriptors: usize,
    /// Containers whose window is still to come.
    waiting: VecDeque<CountedContainer>,
    /// Containers whose window is open.
    open: Vec<(CountedContainer, Counters)>,
    /// Counts since the pause.
    counted: Vec<(CountedContainer, CpiCounts)>,
    /// First failure since the pause.
    failure: Option<String>,
    last_failure: Option<String>,
    rounds: u64,
}

impl CpiCollector {
    /// Creates a collector that counts the containers in `states` and publishes in `facts` and `metrics`. It
    /// pauses for `every` after windows of the length `window`.
    #[must_use]
    pub fn new(
        root: Root,
        states: Arc<States>,
        facts: Arc<SlowResults>,
        metrics: Metrics,
        every: Duration,
        window: Duration,
    ) -> Self {
        // Leave enough descriptors for the agent's other files.
        let most = limits::raise_open_files().and_then(|limit| usize::try_from(limit / 4).ok());
        Self {
            root,
            states,
            facts,
            metrics,
            every,
            window,
            events: Event::CPI,
            is_supported: false,
            descriptors: most.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS)),
            waiting: VecDeque::new(),
            open: Vec::new(),
            counted: Vec::new(),
            failure: None,
            last_failure: None,
            rounds: 0,
        }
    }

    /// Checks that the machine supports the counters, with the root cgroup, which never disappears: a refusal
    /// for another cgroup may only mean that it is being removed.
    fn probe(&mut self) -> Result<(), RoundError> {
        let all = self.root.cgroup(&CgroupPath::root());
        match Counters::open(&all, &self.events) {
            Ok(_) => self.is_supported = true,
            Err(error) if error.is_unsupported() => return Err(UnavailableFeature::boxed(error)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Returns every running container; `None` before the first pod list.
    fn subjects(&self) -> Option<VecDeque<CountedContainer>> {
        let pods = self.states.pods.load_full()?;
        let active = pods.iter().filter(|pod| pod.is_active());
        let subjects = active.flat_map(|pod| {
            let running = pod
                .containers
                .iter()
                .filter(|container| container.id.is_some());
            running.filter_map(|container| {
                Some(CountedContainer {
                    group: container.cgroup.clone()?,
                    label: Container::from_pod(pod, container),
                })
            })
        });
        Some(subjects.collect())
    }

    /// Ends the window: reads and closes the counters.
    fn close(&mut self) {
        for (_, counts) in &mut self.counted {
            counts.newest = false;
        }
        for (subject, counters) in self.open.drain(..) {
            match counters.read() {
                Ok(counted) => {
                    if let Some([cycles, instructions]) = counted.as_deref() {
                        let counts = CpiCounts {
                            cycles: *cycles,
                            instructions: *instructions,
                            newest: true,
                        };
                        self.counted.push((subject, counts));
                    }
                }
                Err(error) => fail(&mut self.failure, &subject, &error),
            }
        }
    }

    /// Opens the next window, for at least one container and as many as there are descriptors for.
    fn open_next(&mut self) {
        let mut descriptors = 0;
        while let Some(subject) = self.waiting.pop_front() {
            match Counters::open(&self.root.cgroup(&subject.group), &self.events) {
                Ok(Some(counters)) => {
                    let needed = counters.descriptors();
                    descriptors += needed;
                    self.open.push((subject, counters));
                    if descriptors + needed > self.descriptors {
                        return;
                    }
                }
                // The cgroup has been removed, or is being removed.
                Ok(None) => {}
                Err(error) if error.is_unsupported() => {}
                Err(error) => fail(&mut self.failure, &subject, &error),
            }
        }
    }

    /// Publishes the counts of all windows of the round.
    fn publish(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        self.rounds += 1;
        let by_group: ByGroup = counted
            .iter()
            .map(|(subject, counts)| (subject.group.clone(), *counts))
            .collect();
        self.facts
            .cpi
            .store(Some(Arc::new((self.rounds, by_group))));
        let rows = counted.into_iter().map(|(subject, counts)| Cpi {
            container: subject.label,
            cycles: counts.cycles as f64,
            instructions: counts.instructions as f64,
        });
        self.metrics.cpi(rows.collect());
        self.last_failure = self.failure.take();
    }
}

/// Stores the first failure of a container.
fn fail(failure: &mut Option<String>, subject: &CountedContainer, error: &HostError) {
    let Container {
        namespace,
        pod,
        name,
        ..
    } = &subject.label;
    failure.get_or_insert_with(|| format!("{namespace}/{pod}/{name}: {error}"));
}

impl Job for CpiCollector {
    fn name(&self) -> &'static str {
        "cpi"
    }

    fn every(&self) -> Duration {
        match self.open.is_empty() {
            true if self.facts.watched.load(Ordering::Relaxed) => Duration::ZERO,
            true => self.every,
            false => self.window,
        }
    }

    fn round(&mut self) -> Result<(), RoundError> {
        if !self.is_supported {
            self.probe()?;
        }
        if self.open.is_empty() {
            let Some(subjects) = self.subjects() else {
                return Ok(());
            };
            self.waiting = subjects;
        }
        self.close();
        self.open_next();
        if self.open.is_empty() {
            self.publish();
        }
        match &self.last_failure {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
