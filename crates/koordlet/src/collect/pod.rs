//! CPU and memory of pods, their containers and the BE class.

use super::Rate;
use super::pressure::PressureCollector;
use crate::qos::HeldUp;
use crate::states::PodInfo;
use koord_host::cgroup::MemoryStat;
use koord_host::{CgroupPath, Reader, Root, Scratch};

/// How long a group that was not there is left alone before it is looked for again, in ticks.
const RETRY_TICKS: u32 = 5;

/// The open files of one group and its newest sample.
#[derive(Debug, Default)]
pub struct GroupCollector {
    cpu_file: Option<Reader<u64>>,
    memory_file: Option<Reader<MemoryStat>>,
    rate: Rate,
    retry: u32,
    tries: u32,
    /// Cores in use.
    pub cpu: Option<f64>,
    /// Bytes in use, page cache left out.
    pub memory: Option<f64>,
    /// Bytes in use, page cache included.
    pub memory_with_cache: Option<f64>,
}

impl GroupCollector {
    /// Takes a sample at `now_ns`; memory only when `with_memory`, else the last one stays.
    pub fn sample(
        &mut self,
        root: &Root,
        group: &CgroupPath,
        now_ns: u64,
        with_memory: bool,
        scratch: &mut Scratch,
    ) {
        if self.retry > 0 {
            self.retry -= 1;
            return;
        }
        if self.cpu_file.is_none() && !self.open(root, group) {
            // A pod's group appears moments after its object; an ended one's never again.
            self.tries = (self.tries + 1).min(4);
            self.retry = if self.tries > 3 { RETRY_TICKS } else { 0 };
            self.clear();
            return;
        }
        self.tries = 0;
        match self.cpu_file.as_ref().map(|file| file.read(scratch)) {
            Some(Ok(Some(usage))) => {
                self.cpu = self.rate.update(now_ns, usage);
            }
            Some(Err(error)) => {
                tracing::debug!(%group, %error, "CPU usage");
                self.close();
                return;
            }
            _ => {
                self.close();
                return;
            }
        }
        if with_memory {
            match self.memory_file.as_ref().map(|file| file.read(scratch)) {
                Some(Ok(Some(stat))) => {
                    self.memory = Some(stat.without_page_cache() as f64);
                    self.memory_with_cache = Some(stat.with_page_cache() as f64);
                }
                _ => {
                    self.memory_file = None;
                    (self.memory, self.memory_with_cache) = (None, None);
                    self.memory_file = root.cgroup(group).memory_stat_reader().ok().flatten();
                }
            }
        }
    }

    /// Looks for a missing group at the next sample.
    pub fn hurry(&mut self) {
        (self.retry, self.tries) = (0, 0);
    }

    fn open(&mut self, root: &Root, group: &CgroupPath) -> bool {
        let group = root.cgroup(group);
        self.cpu_file = group.cpu_usage_reader().ok().flatten();
        self.memory_file = group.memory_stat_reader().ok().flatten();
        self.cpu_file.is_some()
    }

    fn close(&mut self) {
        (self.cpu_file, self.memory_file) = (None, None);
        self.rate.reset();
        self.clear();
    }

    fn clear(&mut self) {
        (self.cpu, self.memory, self.memory_with_cache) = (None, None, None);
    }
}

/// One container as the agent follows it.
#[derive(Debug)]
pub struct TrackedContainer {
    /// A number that no other pod or container of this process ever had.
    pub id: u64,
    /// Its group.
    pub group: CgroupPath,
    /// What it uses.
    pub usage: GroupCollector,
}

/// One pod as the agent follows it.
#[derive(Debug)]
pub struct TrackedPod {
    /// A number that no other pod or container of this process ever had.
    pub id: u64,
    /// The pod's own group.
    pub group: GroupCollector,
    /// One per container that has a group.
    pub containers: Vec<TrackedContainer>,
    /// How long the pod was held up.
    pub pressure: PressureCollector,
    /// The newest pressure.
    pub held_up: Option<HeldUp>,
}

impl TrackedPod {
    /// A pod without samples.
    #[must_use]
    pub fn new(id: u64) -> Self {
        Self {
            id,
            group: GroupCollector::default(),
            containers: Vec::new(),
            pressure: PressureCollector::default(),
            held_up: None,
        }
    }

    /// Keeps the collectors of containers that are still there, and adds those of new ones, numbered
    /// from `next_id` on. Returns the numbers of those that are gone.
    pub fn follow(&mut self, info: &PodInfo, next_id: &mut u64) -> Vec<u64> {
        self.group.hurry();
        let mut old = std::mem::take(&mut self.containers);
        let groups = info.containers.iter().filter_map(|c| c.cgroup.as_ref());
        for group in groups {
            let known = old.iter().position(|container| container.group == *group);
            self.containers.push(match known {
                Some(at) => old.swap_remove(at),
                None => {
                    *next_id += 1;
                    TrackedContainer {
                        id: *next_id - 1,
                        group: group.clone(),
                        usage: GroupCollector::default(),
                    }
                }
            });
        }
        old.into_iter().map(|container| container.id).collect()
    }
}
