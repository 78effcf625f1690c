//! How long a service's tasks waited for a CPU.
//!
//! From the group's PSI where the kernel keeps it (the v2 tree, also beside v1 hierarchies): the
//! growth of `some total`. Else from the run-queue delay of each thread: delay / (delay + run time),
//! the share of its runnable time that a thread spent waiting, averaged over threads by that time.

use super::Rate;
use koord_host::error::Malformed;
use koord_host::procfs::SchedStat;
use koord_host::{CgroupPath, Reader, Resource, Root, Scratch, procfs};
use rustc_hash::FxHashMap;

/// Which signal a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Pressure stall information of the group.
    Psi,
    /// Run-queue delay of the threads.
    RunQueue,
}

/// Threads looked at per pod when there is no PSI; the rest is left out.
const MAX_THREADS: usize = 256;
/// Less runnable time than this per interval says nothing.
const MIN_RUNNABLE_NS: u64 = 5_000_000;

/// Samples the pressure of one pod.
#[derive(Debug, Default)]
pub struct PressureCollector {
    psi: Option<Reader<u64>>,
    stalled: Rate,
    threads: FxHashMap<u32, SchedStat>,
}

impl PressureCollector {
    /// The share of the time since the sample before (0–1) in which the pod was held up, and the
    /// signal it was read from.
    pub fn sample(
        &mut self,
        root: &Root,
        pod: &CgroupPath,
        psi: bool,
        now_ns: u64,
        scratch: &mut Scratch,
    ) -> Option<(f64, Signal)> {
        if psi {
            if self.psi.is_none() {
                let path = root.cgroup(pod).file(Resource::CpuPressure).ok()?;
                self.psi = Reader::open(path, some_total).ok()?;
            }
            match self.psi.as_ref()?.read(scratch) {
                Ok(Some(total_us)) => {
                    let rate = self.stalled.update(now_ns / 1000, total_us)?;
                    return Some((rate.clamp(0.0, 1.0), Signal::Psi));
                }
                _ => {
                    self.psi = None;
                    self.stalled.reset();
                    return None;
                }
            }
        }
        self.run_queue(root, pod)
            .map(|share| (share, Signal::RunQueue))
    }

    fn run_queue(&mut self, root: &Root, pod: &CgroupPath) -> Option<f64> {
        let mut seen = FxHashMap::default();
        let (mut wait, mut run) = (0_u64, 0_u64);
        'pids: for pid in root.cgroup(pod).procs_recursive().ok()? {
            for thread in procfs::process::threads(root, pid)
                .ok()
                .flatten()
                .unwrap_or_default()
            {
                if seen.len() >= MAX_THREADS {
                    break 'pids;
                }
                let path = root.proc(&format!("{pid}/task/{thread}/schedstat"));
                let Ok(Some(now)) = root.read_with(&path, SchedStat::parse) else {
                    continue;
                };
                if let Some(before) = self.threads.get(&thread) {
                    wait += now.wait_ns.saturating_sub(before.wait_ns);
                    run += now.run_ns.saturating_sub(before.run_ns);
                }
                seen.insert(thread, now);
            }
        }
        self.threads = seen;
        let runnable = wait + run;
        (runnable >= MIN_RUNNABLE_NS).then(|| wait as f64 / runnable as f64)
    }
}

/// `total` of the `some` line, in microseconds. Nothing else of the file is looked at.
fn some_total(text: &str) -> Result<u64, Malformed> {
    text.lines()
        .find(|line| line.starts_with("some "))
        .and_then(|line| line.rsplit_once("total="))
        .and_then(|(_, total)| total.trim().parse().ok())
        .ok_or_else(|| Malformed::new("a some line with total=", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_total_of_some_counts() {
        let text = "some avg10=1.50 avg60=0.44 avg300=2.98 total=123\nfull avg10=0 total=9\n";
        assert_eq!(some_total(text).unwrap(), 123);
        assert!(some_total("full total=1\n").is_err());
        assert!(some_total("some total=x\n").is_err());
    }
}
