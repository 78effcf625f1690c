//! CPU time of services per unit of work. It shows that a neighbor takes memory bandwidth or shared cache on
//! machines that cannot count instructions, such as most virtual machines.
//!
//! The unit of work is a packet with payload that a process of the pod sends, loopback included: an answer, a
//! request to another service, a record. [`koord_host::packets`] defines what counts. How much work a packet
//! stands for differs between services, and a service is compared only with itself. The value is microseconds
//! of CPU time per packet.
//!
//! *Cost.* One system call per pod and sample, and some tens of nanoseconds per packet of these pods.

use super::Rate;
use super::errors::{CollectError, KernelErrors};
use crate::health::State;
use koord_host::packets::{PacketCounter, PacketProgram};
use koord_host::{Cgroup, CgroupPath, HostError, Root};
use rustc_hash::FxHashMap;
use std::fmt;

/// Minimum packets per second: by chance alone fifty vary by a seventh, which is the least that counts as
/// harm.
const FEWEST: f64 = 50.0;
/// Minimum CPU time to compare, in cores.
const LEAST_CORES: f64 = 0.01;
/// Milliseconds after which a cgroup that is missing in the unified tree is searched again.
const RETRY_MS: u64 = 10_000;

/// Packet counter of a cgroup.
pub trait PacketCount: fmt::Debug + Send {
    /// Returns the number of packets so far; `None` if the cgroup has been removed.
    ///
    /// # Errors
    /// When the kernel refuses the read.
    fn packets(&self) -> koord_host::Result<Option<u64>>;
}

/// Source of packet counters.
pub trait PacketSource: fmt::Debug + Send {
    /// Starts to count for a cgroup; `None` if there is no such cgroup in the unified tree.
    ///
    /// # Errors
    /// [`HostError::is_unsupported`] if this machine never can.
    fn attach(&self, group: &Cgroup) -> koord_host::Result<Option<Box<dyn PacketCount>>>;
}

impl PacketCount for PacketCounter {
    fn packets(&self) -> koord_host::Result<Option<u64>> {
        self.read()
    }
}

impl PacketSource for PacketProgram {
    fn attach(&self, group: &Cgroup) -> koord_host::Result<Option<Box<dyn PacketCount>>> {
        let counter = Self::attach(self, group)?;
        Ok(counter.map(|counter| Box::new(counter) as Box<dyn PacketCount>))
    }
}

/// State of the source of packet counters.
#[derive(Debug)]
enum SourceState {
    /// Switched off.
    Off,
    /// The source is not needed yet.
    New,
    Ready(Box<dyn PacketSource>),
    /// The machine does not support the source; with the reason.
    Unavailable(String),
}

/// Measures the CPU time per packet of the services of a node.
#[derive(Debug)]
pub struct WorkMeter {
    root: Root,
    stage: SourceState,
    pods: Vec<WorkPod>,
    at: FxHashMap<u64, usize>,
    errors: KernelErrors,
}

#[derive(Debug)]
struct WorkPod {
    id: u64,
    group: CgroupPath,
    counter: Option<Box<dyn PacketCount>>,
    /// Time of the last attempt to attach a counter, in milliseconds.
    tried_ms: Option<u64>,
    rate: Rate,
    newest: Option<f64>,
}

impl WorkMeter {
    /// Creates a meter without pods, switched on or off.
    #[must_use]
    pub fn new(root: Root, on: bool) -> Self {
        Self {
            root,
            stage: if on {
                SourceState::New
            } else {
                SourceState::Off
            },
            pods: Vec::new(),
            at: FxHashMap::default(),
            errors: KernelErrors::default(),
        }
    }

    /// Creates a meter with `source` instead of the kernel's, for tests.
    #[must_use]
    pub fn with_source(root: Root, source: Box<dyn PacketSource>) -> Self {
        Self {
            stage: SourceState::Ready(source),
            ..Self::new(root, true)
        }
    }

    /// Replaces the followed pods: their numbers and cgroups.
    pub fn follow<'a>(&mut self, pods: impl Iterator<Item = (u64, &'a CgroupPath)>) {
        let mut old: FxHashMap<u64, WorkPod> =
            self.pods.drain(..).map(|pod| (pod.id, pod)).collect();
        for (id, group) in pods {
            let existing = old.remove(&id).filter(|pod| pod.group == *group);
            self.pods
                .push(existing.unwrap_or_else(|| WorkPod::new(id, group)));
        }
        self.at = (0..).zip(&self.pods).map(|(n, pod)| (pod.id, n)).collect();
    }

    /// Takes a sample of every pod at `now_ns` of the monotonic clock. `cores` returns the CPU usage of a pod
    /// since the previous sample.
    ///
    /// # Errors
    /// When the packets of a pod cannot be counted.
    pub fn sample(
        &mut self,
        now_ns: u64,
        cores: impl Fn(u64) -> Option<f64>,
    ) -> Result<(), CollectError> {
        if matches!(self.stage, SourceState::New) && !self.pods.is_empty() {
            match PacketProgram::load() {
                Ok(program) => self.stage = SourceState::Ready(Box::new(program)),
                Err(error) => self.stop_counting(&error),
            }
        }
        self.attach(now_ns / 1_000_000);
        for pod in &mut self.pods {
            let read = pod.counter.as_ref().map(|counter| counter.packets());
            let Some(packets) = read.and_then(|read| self.errors.value_of(read)) else {
                pod.close();
                continue;
            };
            let per_second = pod.rate.update(now_ns, packets).map(|rate| rate * 1e9);
            pod.newest = per_second
                .zip(cores(pod.id))
                .filter(|(rate, cores)| *rate >= FEWEST && *cores >= LEAST_CORES)
                .map(|(rate, cores)| cores * 1e6 / rate);
        }
        self.errors.finish()
    }

    /// Starts to count for new pods, and for those that are due for another attempt. The number of pods per
    /// call is limited, so that each call takes about the same time.
    fn attach(&mut self, now_ms: u64) {
        let SourceState::Ready(source) = &self.stage else {
            return;
        };
        let most = self.pods.len() / 8 + 8;
        let due = |pod: &&mut WorkPod| {
            let tried = pod.tried_ms;
            pod.counter.is_none()
                && tried.is_none_or(|last_try| now_ms.saturating_sub(last_try) >= RETRY_MS)
        };
        for pod in self.pods.iter_mut().filter(due).take(most) {
            pod.tried_ms = Some(now_ms);
            match source.attach(&self.root.cgroup(&pod.group)) {
                Ok(counter) => pod.counter = counter,
                Err(error) if error.is_unsupported() => {
                    self.stop_counting(&error);
                    return;
                }
                Err(error) => self.errors.add(error),
            }
        }
    }

    fn stop_counting(&mut self, error: &HostError) {
        tracing::warn!(part = "packets", %error, "packet counting unavailable, stopping it");
        self.stage = SourceState::Unavailable(error.to_string());
        for pod in &mut self.pods {
            pod.close();
        }
    }

    /// Stops counting when there is no demand any more.
    pub fn suspend(&mut self) {
        for pod in &mut self.pods {
            *pod = WorkPod::new(pod.id, &pod.group);
        }
    }

    /// Returns the newest CPU time per packet of the pod `id`, in microseconds; `None` if nothing is counted
    /// or the pod does too little to be compared.
    #[must_use]
    pub fn cpu_per_packet(&self, id: u64) -> Option<f64> {
        self.pods.get(*self.at.get(&id)?)?.newest
    }

    /// Returns why packets are not counted, or not for every pod.
    #[must_use]
    pub fn problem(&self) -> Option<(State, String)> {
        let without = || {
            let tried = self.pods.iter().filter(|pod| pod.tried_ms.is_some());
            tried.filter(|pod| pod.counter.is_none()).count()
        };
        match &self.stage {
            SourceState::Off => Some((
                State::Off,
                "flag --enable-packet-collector=false".to_owned(),
            )),
            SourceState::Unavailable(why) => Some((State::Unavailable, why.clone())),
            SourceState::New => None,
            SourceState::Ready(_) if without() > 0 => {
                let why = format!(
                    "{} of {} services have no group in the unified tree",
                    without(),
                    self.pods.len()
                );
                Some((State::Active, why))
            }
            SourceState::Ready(_) => None,
        }
    }
}

impl WorkPod {
    fn new(id: u64, group: &CgroupPath) -> Self {
        Self {
            id,
            group: group.clone(),
            counter: None,
            tried_ms: None,
            rate: Rate::default(),
            newest: None,
        }
    }

    /// Stops counting and drops the newest value.
    fn close(&mut self) {
        (self.counter, self.newest) = (None, None);
        self.rate.reset();
    }
}

#[cfg(test)]
pub(crate) mod tests;
