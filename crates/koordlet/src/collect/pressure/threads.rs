//! Run-queue delay of a pod's threads.

use super::{KernelErrors, PressureCost};
use koord_host::procfs::SchedStat;
use koord_host::{CgroupPath, Controller, Reader, Root, Scratch};

/// Minimum runnable time between two samples; less does not give a meaningful share.
const MIN_RUNNABLE_NS: u64 = 5_000_000;
/// Maximum age of the previous sample of a thread for its delta to count.
const FRESH_NS: u64 = 2_500_000_000;
/// Threads followed per pod; the rest is ignored.
const MAX_THREADS: usize = 1024;
/// Depth to which cgroups below a container's are searched.
const MAX_DEPTH: usize = 4;

/// The threads of a pod: first those that are read every time, then those that are read in turns.
#[derive(Debug, Default)]
pub(super) struct Threads {
    list: Vec<TrackedThread>,
    turn: usize,
}

#[derive(Debug)]
struct TrackedThread {
    id: u32,
    file: Option<Reader<SchedStat>>,
    last: Option<(SchedStat, u64)>,
    /// Runnable time per second at the last reading, in nanoseconds.
    busy: u64,
}

/// A sampling round through the pods.
pub(super) struct SampleRound<'a> {
    pub(super) root: &'a Root,
    pub(super) now_ns: u64,
    /// Maximum threads read per pod.
    pub(super) max_threads: usize,
    /// Maximum files kept open per pod.
    pub(super) max_files: usize,
    pub(super) scratch: &'a mut Scratch,
    pub(super) cost: &'a mut PressureCost,
    pub(super) errors: &'a mut KernelErrors,
}

impl Threads {
    /// Returns the number of threads.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Reads the list of threads in and below `group`, from the tree of the cpu controller.
    pub(super) fn list(
        &mut self,
        root: &Root,
        group: &CgroupPath,
        (cost, errors): (&mut PressureCost, &mut KernelErrors),
    ) {
        let mut ids = Vec::new();
        collect(root, group, MAX_DEPTH, &mut ids, (cost, errors));
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(MAX_THREADS);
        // Ended threads are removed, new ones appended, and the order of the others is kept.
        self.list
            .retain(|thread| ids.binary_search(&thread.id).is_ok());
        let mut listed: Vec<u32> = self.list.iter().map(|thread| thread.id).collect();
        listed.sort_unstable();
        let new = ids
            .into_iter()
            .filter(|id| listed.binary_search(id).is_err());
        self.list.extend(new.map(|id| TrackedThread {
            id,
            file: None,
            last: None,
            busy: 0,
        }));
        self.list.shrink_to(self.list.len() * 2);
    }

    /// Returns the share of runnable time that the threads waited since they were last read; `None` if they
    /// were hardly runnable.
    pub(super) fn sample(&mut self, round: &mut SampleRound<'_>) -> Option<f64> {
        let (mut wait, mut run) = (0, 0);
        let all = self.list.len();
        let part = round.max_threads.min(all);
        // If not all can be read, a quarter of the reads rotates through the others.
        let always = if part == all {
            all
        } else {
            part - part.div_ceil(4)
        };
        let rotating = (all - always).max(1);
        for n in 0..part {
            let index = if n < always {
                n
            } else {
                always + (self.turn + n - always) % rotating
            };
            let Some(thread) = self.list.get_mut(index) else {
                continue;
            };
            if let Some((waited, ran)) = thread.read(round, index < round.max_files) {
                wait += waited;
                run += ran;
            }
        }
        self.turn = (self.turn + part - always) % rotating;
        if part < all {
            self.promote(always);
        }
        let runnable: u64 = wait + run;
        (runnable >= MIN_RUNNABLE_NS).then(|| wait as f64 / runnable as f64)
    }

    /// Swaps the busiest rotating thread with the least busy of the first `always`, if it is busier.
    fn promote(&mut self, always: usize) {
        let Some(slot) = (0..always).min_by_key(|n| self.list.get(*n).map(|t| t.busy)) else {
            return;
        };
        let Some(best) =
            (always..self.list.len()).max_by_key(|n| self.list.get(*n).map(|t| t.busy))
        else {
            return;
        };
        let busy = |n: usize| self.list.get(n).map_or(0, |thread| thread.busy);
        if busy(best) > busy(slot) {
            self.list.swap(best, slot);
            // It is now among those that are seldom read.
            if let Some(thread) = self.list.get_mut(best) {
                thread.file = None;
            }
        }
    }
}

impl TrackedThread {
    /// Returns the time the thread waited and ran since it was last read; `None` if that was too long ago.
    fn read(&mut self, round: &mut SampleRound<'_>, keep: bool) -> Option<(u64, u64)> {
        if self.file.is_none() {
            round.cost.opens += 1;
            // Procfs also resolves thread numbers here, though it lists only processes.
            let path = round.root.proc(&format!("{}/schedstat", self.id));
            self.file = (round.errors).value_of(Reader::open(path, SchedStat::parse));
        }
        round.cost.reads += u64::from(self.file.is_some());
        let read = self.file.as_ref().map(|file| file.read(round.scratch));
        let now = read.and_then(|read| round.errors.value_of(read));
        if !keep || now.is_none() {
            self.file = None;
        }
        let now = now?;
        let (before, at) = self.last.replace((now, round.now_ns))?;
        let wait = now.wait_ns.saturating_sub(before.wait_ns);
        let run = now.run_ns.saturating_sub(before.run_ns);
        let since = round.now_ns.saturating_sub(at).max(1);
        let busy = u128::from(wait + run) * 1_000_000_000 / u128::from(since);
        self.busy = u64::try_from(busy).unwrap_or(u64::MAX);
        (since <= FRESH_NS).then_some((wait, run))
    }
}

fn collect(
    root: &Root,
    group: &CgroupPath,
    depth: usize,
    into: &mut Vec<u32>,
    (cost, errors): (&mut PressureCost, &mut KernelErrors),
) {
    let cgroup = root.cgroup(group);
    cost.lists += 2;
    into.extend(errors.value_of(cgroup.tasks()));
    if depth == 0 || into.len() >= MAX_THREADS {
        return;
    }
    for child in errors.value_of(cgroup.children_in(Controller::Cpu)) {
        collect(root, &child, depth - 1, into, (&mut *cost, &mut *errors));
    }
}
