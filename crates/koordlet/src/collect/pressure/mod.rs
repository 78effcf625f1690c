//! Pressure of services: how long their tasks waited for a CPU.
//!
//! It is read from the pod's PSI if the kernel has it (the v2 tree, also next to v1 hierarchies), as the
//! growth of `some total`. A pod without that file falls back to the run-queue delay of its threads: delay /
//! (delay + run time), the share of their runnable time spent waiting. The two are not comparable, so each
//! share comes with its [`Signal`]. In addition to CPU, the pod's stalls for memory and IO are read if there
//! are such files.
//!
//! *Cost of the fallback.* Files stay open, and only so many threads are read per second ([`Limits`]), shared
//! out so that no pod gets more while another has too few. Of a pod with more threads than its share, those
//! that ran or waited most are read every time and the others in turns. Lists of threads are read from one
//! tree (that of the cpu controller), a few pods at a time, every ten seconds and when a pod is new. Threads
//! that do not live that long are missed.
//!
//! *Cost of the fast lane.* The average number of files read per step is limited
//! ([`Limits::files_per_step`]): on a node with more services the steps are two, three, … times as long, at
//! most five times ([`Pressure::pace`]). A peak is then the largest share of so long a step, and shorter
//! waits are flattened by as much. A baseline is learned at the same pace. What the fast lane read is not
//! read again at the end of the second, and on such a node stalls for memory and for IO take turns, each as a
//! share of two seconds.

mod threads;

use super::Rate;
use super::errors::{CollectError, KernelErrors};
use koord_host::error::Malformed;
use koord_host::{CgroupPath, Reader, Resource, Root, Scratch};
use koord_model::guard::{Readings, Signal};
use rustc_hash::FxHashMap;
use threads::Threads;

/// Limits of the cost of the fallback and of the fast lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Threads read per second, in all pods together.
    pub threads_per_second: u32,
    /// Threads' files kept open, in all pods together.
    pub open_files: usize,
    /// Interval in milliseconds after which a pod's list of threads is read again.
    pub refresh_ms: u64,
    /// Pods read per step of the fast lane, on average; more if steps five times as long do not suffice.
    pub files_per_step: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads_per_second: 512,
            open_files: 1024,
            refresh_ms: 10_000,
            files_per_step: 16,
        }
    }
}

/// Slowest pace of the fast lane, in steps: two shares in each second at ten steps per second.
const SLOWEST: u32 = 5;

/// Number of operations since the start, for tests and benchmarks. Each is one to four system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureCost {
    /// Reads from an open file.
    pub reads: u64,
    /// Files opened.
    pub opens: u64,
    /// Directories listed and lists of threads read.
    pub lists: u64,
}

/// The pressure of the services of a node.
#[derive(Debug)]
pub struct Pressure {
    root: Root,
    limits: Limits,
    pods: Vec<PressurePod>,
    at: FxHashMap<u64, usize>,
    last_ns: Option<u64>,
    /// Number of samples taken.
    samples: usize,
    cost: PressureCost,
    /// Kernel errors since the previous sample, including the fast lane.
    errors: KernelErrors,
}

/// The pod's stalls other than CPU.
const OTHERS: [(Resource, Signal); 2] = [
    (Resource::MemoryPressure, Signal::MemoryStall),
    (Resource::IoPressure, Signal::IoStall),
];

/// Reader and newest share of a stall other than CPU.
#[derive(Debug, Default)]
struct Stall {
    file: Option<Reader<u64>>,
    rate: Rate,
    newest: Option<f64>,
}

#[derive(Debug)]
struct PressurePod {
    id: u64,
    group: CgroupPath,
    psi: Option<Reader<u64>>,
    stalled: Rate,
    /// Time at which PSI was searched and the list of threads was read. `None` if that is due.
    refreshed_ms: Option<u64>,
    threads: Threads,
    newest: Option<(f64, Signal)>,
    others: [Stall; OTHERS.len()],
    /// Rate between two samples of the fast lane.
    stalled_fast: Rate,
    /// Last reading of the fast lane since the previous sample: time and total, in microseconds.
    newest_fast: Option<(u64, u64)>,
    /// Largest share of the fast lane since the previous sample; `newest_peak` is that of the interval
    /// before.
    peak: Option<f64>,
    newest_peak: Option<f64>,
}

impl Pressure {
    /// Creates a collector without pods.
    #[must_use]
    pub fn new(root: Root, limits: Limits) -> Self {
        Self {
            root,
            limits,
            pods: Vec::new(),
            at: FxHashMap::default(),
            last_ns: None,
            samples: 0,
            cost: PressureCost::default(),
            errors: KernelErrors::default(),
        }
    }

    /// Replaces the followed pods: their numbers, their cgroups, and whether the pod changed since the
    /// previous call.
    pub fn follow<'a>(&mut self, pods: impl Iterator<Item = (u64, &'a CgroupPath, bool)>) {
        let mut old: FxHashMap<u64, PressurePod> =
            self.pods.drain(..).map(|pod| (pod.id, pod)).collect();
        for (id, group, changed) in pods {
            let existing = old.remove(&id).filter(|pod| pod.group == *group);
            let mut pod = existing.unwrap_or_else(|| PressurePod::new(id, group));
            if changed {
                pod.refreshed_ms = None;
            }
            self.pods.push(pod);
        }
        self.at = (0..).zip(&self.pods).map(|(n, pod)| (pod.id, n)).collect();
    }

    /// Takes a sample of every pod at `now_ns` of the monotonic clock.
    ///
    /// # Errors
    /// When files could not be read or parsed; values that could be read are in the newest sample.
    pub fn sample(&mut self, now_ns: u64, scratch: &mut Scratch) -> Result<(), CollectError> {
        let now_ms = now_ns / 1_000_000;
        const SECOND: u64 = 1_000_000_000;
        let since = self
            .last_ns
            .map_or(SECOND, |last| now_ns.saturating_sub(last).min(SECOND));
        self.last_ns = Some(now_ns);
        self.refresh(now_ms);
        // Index of the other stall to read in this sample; all of them if there are few pods.
        let turn = (self.pace() > 1).then_some(self.samples % OTHERS.len());
        self.samples = self.samples.wrapping_add(1);
        for pod in &mut self.pods {
            pod.newest = pod.stalled(now_ns, scratch, &mut self.cost, &mut self.errors);
            pod.newest_peak = pod.peak.take();
            let counted = (&mut self.cost, &mut self.errors);
            pod.sample_others(turn, now_ns, scratch, counted);
        }
        // The budget is per second, however often samples are taken.
        let budget = u64::from(self.limits.threads_per_second);
        let budget = (budget * since / SECOND) as usize;
        let sizes = || {
            let falling_back = self.pods.iter().filter(|pod| pod.psi.is_none());
            falling_back.map(|pod| pod.threads.len())
        };
        let max_threads = fair_share(sizes(), budget);
        let max_files = fair_share(sizes(), self.limits.open_files);
        let mut delays = threads::SampleRound {
            root: &self.root,
            now_ns,
            max_threads,
            max_files,
            scratch,
            cost: &mut self.cost,
            errors: &mut self.errors,
        };
        for pod in self.pods.iter_mut().filter(|pod| pod.psi.is_none()) {
            pod.newest = pod
                .threads
                .sample(&mut delays)
                .map(|share| (share, Signal::RunQueue));
        }
        self.errors.finish()
    }

    /// Returns how many steps of the fast lane are taken as one. Each wake-up begins with cold caches, so
    /// that many files at once cost less than a few in each step.
    #[must_use]
    pub fn pace(&self) -> u32 {
        let files = self.pods.iter().filter(|pod| pod.psi.is_some()).count();
        let pace = files.div_ceil(self.limits.files_per_step.max(1));
        u32::try_from(pace).map_or(SLOWEST, |pace| pace.clamp(1, SLOWEST))
    }

    /// Runs a step of the fast lane: reads the CPU PSI of the pods that have such a file, and updates their
    /// peaks. A peak shows short waits that the average of a second hides.
    pub fn sample_fast(&mut self, now_ns: u64, scratch: &mut Scratch) {
        for pod in &mut self.pods {
            let Some(file) = &pod.psi else { continue };
            self.cost.reads += 1;
            let Some(total_us) = self.errors.value_of(file.read(scratch)) else {
                continue;
            };
            pod.newest_fast = Some((now_ns / 1000, total_us));
            if let Some(share) = pod.stalled_fast.update(now_ns / 1000, total_us) {
                let share = share.clamp(0.0, 1.0);
                pod.peak = Some(pod.peak.map_or(share, |peak| peak.max(share)));
            }
        }
    }

    /// Returns the largest share (0–1) of the pod `id` in the fast lane during the last whole interval;
    /// `None` while the fast lane is inactive, and for pods without PSI.
    #[must_use]
    pub fn peak_share(&self, id: u64) -> Option<f64> {
        self.pods.get(*self.at.get(&id)?)?.newest_peak
    }

    /// Closes all files when there is no demand any more.
    pub fn suspend(&mut self) {
        self.last_ns = None;
        self.errors = KernelErrors::default();
        for pod in &mut self.pods {
            *pod = PressurePod::new(pod.id, &pod.group);
        }
    }

    /// Returns all newest readings of the pod `id`.
    #[must_use]
    pub fn readings(&self, id: u64) -> Readings {
        let Some(pod) = self.at.get(&id).and_then(|index| self.pods.get(*index)) else {
            return Readings::default();
        };
        let other_stalls = OTHERS.iter().zip(&pod.others);
        let mut readings = other_stalls.fold(Readings::default(), |all, ((_, signal), stall)| {
            all.with(*signal, stall.newest)
        });
        readings = readings.with(Signal::CpuPeak, pod.newest_peak);
        match pod.newest {
            Some((share, signal)) => readings.with(signal, Some(share)),
            None => readings,
        }
    }

    /// Returns the newest share (0–1) of the pod `id`, with its signal.
    #[must_use]
    pub fn share(&self, id: u64) -> Option<(f64, Signal)> {
        self.pods.get(*self.at.get(&id)?)?.newest
    }

    /// Returns the number of operations so far.
    #[must_use]
    pub fn cost(&self) -> PressureCost {
        self.cost
    }

    /// Looks for PSI and reads lists of threads: of new pods first, then of those that are due. The number of
    /// pods per call is limited, so that each call takes about the same time.
    fn refresh(&mut self, now_ms: u64) {
        let age = |pod: &PressurePod| match pod.refreshed_ms {
            None => u64::MAX,
            Some(at) => now_ms.saturating_sub(at),
        };
        let mut due: Vec<(u64, usize)> = (0..)
            .zip(&self.pods)
            .filter(|(_, pod)| pod.psi.is_none())
            .map(|(n, pod)| (age(pod), n))
            .filter(|(age, _)| *age >= self.limits.refresh_ms)
            .collect();
        due.sort_unstable_by(|a, b| b.cmp(a));
        for (_, n) in due.into_iter().take(self.pods.len() / 8 + 8) {
            let Some(pod) = self.pods.get_mut(n) else {
                continue;
            };
            pod.refreshed_ms = Some(now_ms);
            self.cost.opens += 1;
            // If PSI is switched off its files exist but cannot be opened (EOPNOTSUPP).
            let open = |file| Reader::open(self.root.cgroup(&pod.group).file(file)?, some_total);
            pod.psi = self.errors.value_of(open(Resource::CpuPressure));
            if pod.psi.is_some() {
                pod.threads = Threads::default();
                for ((file, _), stall) in OTHERS.iter().zip(&mut pod.others) {
                    self.cost.opens += 1;
                    stall.file = self.errors.value_of(open(*file));
                }
            } else {
                let counted = (&mut self.cost, &mut self.errors);
                pod.threads.list(&self.root, &pod.group, counted);
            }
        }
    }
}

impl PressurePod {
    fn new(id: u64, group: &CgroupPath) -> Self {
        Self {
            id,
            group: group.clone(),
            psi: None,
            stalled: Rate::default(),
            refreshed_ms: None,
            threads: Threads::default(),
            newest: None,
            others: Default::default(),
            stalled_fast: Rate::default(),
            newest_fast: None,
            peak: None,
            newest_peak: None,
        }
    }

    /// Samples the other stalls, or only that with index `turn`. A missing file is opened again together with
    /// the CPU's.
    fn sample_others(
        &mut self,
        turn: Option<usize>,
        now_ns: u64,
        scratch: &mut Scratch,
        (cost, errors): (&mut PressureCost, &mut KernelErrors),
    ) {
        for (n, stall) in self.others.iter_mut().enumerate() {
            if self.psi.is_some() && turn.is_some_and(|turn| turn != n) {
                continue;
            }
            let Some(file) = stall.file.as_ref().filter(|_| self.psi.is_some()) else {
                *stall = Stall::default();
                continue;
            };
            cost.reads += 1;
            let total_us = errors.value_of(file.read(scratch));
            stall.newest = total_us.and_then(|total_us| stall.rate.update(now_ns / 1000, total_us));
        }
    }

    /// Returns the share of time stalled for CPU, by PSI.
    fn stalled(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        cost: &mut PressureCost,
        errors: &mut KernelErrors,
    ) -> Option<(f64, Signal)> {
        let file = self.psi.as_ref()?;
        let newest = self.newest_fast.take().or_else(|| {
            cost.reads += 1;
            let total_us = errors.value_of(file.read(scratch))?;
            Some((now_ns / 1000, total_us))
        });
        let Some((at_us, total_us)) = newest else {
            // The cgroup was recreated, or PSI was switched off.
            (self.psi, self.refreshed_ms) = (None, None);
            self.stalled.reset();
            return None;
        };
        let rate = self.stalled.update(at_us, total_us)?;
        Some((rate.clamp(0.0, 1.0), Signal::CpuStall))
    }
}

/// Returns the largest share, at least one, such that pods of `sizes` threads use at most `budget` threads in
/// total if each is limited to the share.
fn fair_share(sizes: impl Iterator<Item = usize>, budget: usize) -> usize {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable();
    let (mut left, mut pods) = (budget, sizes.len());
    for size in sizes {
        if size.saturating_mul(pods) > left {
            return (left / pods).max(1);
        }
        left -= size;
        pods -= 1;
    }
    usize::MAX
}

/// Returns `total` of the `some` line, in microseconds. The rest of the file is ignored.
fn some_total(text: &str) -> Result<u64, Malformed> {
    text.lines()
        .find(|line| line.starts_with("some "))
        .and_then(|line| line.rsplit_once("total="))
        .and_then(|(_, total)| total.trim().parse().ok())
        .ok_or_else(|| Malformed::new("a some line with total=", text))
}

#[cfg(test)]
mod tests;
