//! CPU and memory of pods, their containers and the BE class.

use super::Rate;
use super::errors::KernelErrors;
use crate::states::PodInfo;
use crate::store::{SeriesSubject, Store};
use koord_host::cgroup::{CpuStat, MemoryStat};
use koord_host::{CgroupPath, Reader, Root, Scratch};

/// Number of ticks after which a missing cgroup is searched again.
const RETRY_TICKS: u32 = 5;

/// Open files of a cgroup and its newest sample.
#[derive(Debug, Default)]
pub struct GroupCollector {
    cpu_file: Option<Reader<u64>>,
    memory_file: Option<Reader<MemoryStat>>,
    stat_file: Option<Reader<CpuStat>>,
    periods: Option<(u64, u64)>,
    throttled_time: Rate,
    rate: Rate,
    retry: u32,
    tries: u32,
    /// CPU usage in cores.
    pub cpu: Option<f64>,
    /// Memory usage in bytes, without page cache.
    pub memory: Option<f64>,
    /// Memory usage in bytes, with page cache.
    pub memory_with_cache: Option<f64>,
    /// Share of the enforcement periods since the previous sample that were throttled, 0–1.
    pub throttled: Option<f64>,
    /// Throttled time per elapsed time. Counted per CPU, so it exceeds 1 when several CPUs are throttled at
    /// once.
    pub throttled_share: Option<f64>,
}

/// Selects what to sample in addition to CPU usage.
#[derive(Debug)]
pub struct SampleOptions<'a> {
    /// True to sample memory; otherwise the last sample remains.
    pub memory: bool,
    /// Destination of kernel errors of `cpu.stat`, to sample throttling; `None` does not sample it.
    pub throttling: Option<&'a mut KernelErrors>,
}

impl GroupCollector {
    /// Takes a sample at `now_ns`; errors of kernel files are added to `errors`.
    pub fn sample(
        &mut self,
        root: &Root,
        group: &CgroupPath,
        now_ns: u64,
        options: SampleOptions<'_>,
        scratch: &mut Scratch,
        errors: &mut KernelErrors,
    ) {
        if self.retry > 0 {
            self.retry -= 1;
            return;
        }
        if self.cpu_file.is_none() && !self.open(root, group, options.memory, errors) {
            // A pod's cgroup appears moments after its object; that of an ended pod never appears again.
            self.tries = (self.tries + 1).min(4);
            self.retry = if self.tries > 3 { RETRY_TICKS } else { 0 };
            self.clear();
            return;
        }
        self.tries = 0;
        let stat = self.read_stat(root, group, scratch, options.throttling);
        // Cgroup v2 has both in one file.
        let usage = match stat.and_then(|stat| stat.usage_ns) {
            Some(usage) => Some(usage),
            None => {
                let read = self.cpu_file.as_ref().map(|file| file.read(scratch));
                read.and_then(|read| errors.value_of(read))
            }
        };
        let Some(usage) = usage else {
            self.close();
            return;
        };
        self.cpu = self.rate.update(now_ns, usage);
        self.update_throttling(now_ns, stat);
        if options.memory {
            let read = self.memory_file.as_ref().map(|file| file.read(scratch));
            match read.and_then(|read| errors.value_of(read)) {
                Some(stat) => {
                    self.memory = Some(stat.without_page_cache() as f64);
                    self.memory_with_cache = Some(stat.with_page_cache() as f64);
                }
                None => {
                    self.memory_file = None;
                    (self.memory, self.memory_with_cache) = (None, None);
                    self.memory_file = errors.value_of(root.cgroup(group).memory_stat_reader());
                }
            }
        }
    }

    /// Returns the throttling counters; `None` if they are not sampled (no `errors`) or cannot be read.
    fn read_stat(
        &mut self,
        root: &Root,
        group: &CgroupPath,
        scratch: &mut Scratch,
        errors: Option<&mut KernelErrors>,
    ) -> Option<CpuStat> {
        let Some(errors) = errors else {
            self.stat_file = None;
            return None;
        };
        if self.stat_file.is_none() {
            self.stat_file = errors.value_of(root.cgroup(group).cpu_stat_reader());
        }
        let stat = errors.value_of(self.stat_file.as_ref()?.read(scratch));
        if stat.is_none() {
            self.stat_file = None;
        }
        stat
    }

    fn update_throttling(&mut self, now_ns: u64, stat: Option<CpuStat>) {
        let Some(now) = stat else {
            (self.throttled, self.periods, self.throttled_share) = (None, None, None);
            self.throttled_time.reset();
            return;
        };
        self.throttled_share = self.throttled_time.update(now_ns, now.throttled_ns);
        let before = self.periods.replace((now.nr_periods, now.nr_throttled));
        self.throttled = before.map(|(periods, throttled)| {
            let periods = now.nr_periods.saturating_sub(periods);
            let throttled = now.nr_throttled.saturating_sub(throttled);
            if periods == 0 {
                0.0
            } else {
                throttled as f64 / periods as f64
            }
        });
    }

    /// Looks for a missing cgroup at the next sample, without the pause.
    pub fn retry_now(&mut self) {
        (self.retry, self.tries) = (0, 0);
    }

    fn open(
        &mut self,
        root: &Root,
        group: &CgroupPath,
        memory: bool,
        errors: &mut KernelErrors,
    ) -> bool {
        let group = root.cgroup(group);
        self.cpu_file = errors.value_of(group.cpu_usage_reader());
        if memory {
            self.memory_file = errors.value_of(group.memory_stat_reader());
        }
        self.cpu_file.is_some()
    }

    fn close(&mut self) {
        (self.cpu_file, self.memory_file, self.stat_file) = (None, None, None);
        self.periods = None;
        self.rate.reset();
        self.clear();
    }

    fn clear(&mut self) {
        (self.cpu, self.memory, self.memory_with_cache) = (None, None, None);
        (self.throttled, self.throttled_share) = (None, None);
    }
}

/// A container with its open files.
#[derive(Debug)]
pub struct TrackedContainer {
    /// Number that no other pod or container of this process ever had.
    pub id: u64,
    /// Cgroup of the container.
    pub group: CgroupPath,
    /// True if the container has a CPU limit of its own that can throttle it.
    pub limited: bool,
    /// Open files of the container's cgroup.
    pub usage: GroupCollector,
}

/// A pod with its open files.
#[derive(Debug)]
pub struct TrackedPod {
    /// Number that no other pod or container of this process ever had.
    pub id: u64,
    /// Open files of the pod's own cgroup.
    pub usage: GroupCollector,
    /// Containers that have a cgroup.
    pub containers: Vec<TrackedContainer>,
}

impl TrackedPod {
    /// Creates a pod without samples.
    #[must_use]
    pub fn new(id: u64) -> Self {
        Self {
            id,
            usage: GroupCollector::default(),
            containers: Vec::new(),
        }
    }

    /// Returns the largest share of time (0–1) for which one of the pod's containers was throttled by its own
    /// limit.
    #[must_use]
    pub fn throttled_share(&self) -> f64 {
        let each = self
            .containers
            .iter()
            .filter_map(|c| c.usage.throttled_share);
        each.fold(0.0, f64::max).clamp(0.0, 1.0)
    }

    /// Keeps the collectors of containers that still exist, and adds those of new ones with numbers after
    /// `last_id`.
    pub fn follow(&mut self, info: &PodInfo, last_id: &mut u64, store: &mut Store) {
        self.usage.retry_now();
        let mut old = std::mem::take(&mut self.containers);
        for container in info.resident_containers() {
            let Some(group) = &container.cgroup else {
                continue;
            };
            let limited = container.native.cpu_limit.is_some_and(|milli| milli > 0);
            let position = old.iter().position(|container| container.group == *group);
            self.containers.push(match position {
                Some(at) => TrackedContainer {
                    limited,
                    ..old.swap_remove(at)
                },
                None => {
                    *last_id += 1;
                    TrackedContainer {
                        id: *last_id,
                        group: group.clone(),
                        limited,
                        usage: GroupCollector::default(),
                    }
                }
            });
        }
        for container in old {
            store.remove(SeriesSubject::Container(container.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::Resource;
    use koord_host::fake::Tree;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn use_and_throttling_of_both_versions() {
        for (tree, v2) in [
            (Tree::v1("0-3").unwrap(), false),
            (Tree::v2("0-3").unwrap(), true),
        ] {
            let group = tree.group("kubepods/podx").unwrap();
            let feed = |cpu_ms: u64, periods: u64, throttled: u64| {
                let bandwidth = format!("nr_periods {periods}\nnr_throttled {throttled}\n");
                let (usage, stat) = if v2 {
                    let cpu_stat = format!("usage_usec {}\n{bandwidth}", cpu_ms * 1000);
                    (cpu_stat.clone(), cpu_stat)
                } else {
                    (format!("{}\n", cpu_ms * 1_000_000), bandwidth)
                };
                tree.feed(&group, Resource::CpuacctUsage, &usage).unwrap();
                tree.feed(&group, Resource::CpuStat, &stat).unwrap();
            };
            let mut collector = GroupCollector::default();
            let (mut scratch, mut errors) = (Scratch::new(), KernelErrors::default());
            let mut of_throttling = KernelErrors::default();
            let mut sample = |second: u64, throttling: bool| {
                let options = SampleOptions {
                    memory: false,
                    throttling: throttling.then_some(&mut of_throttling),
                };
                let now = second * SECOND;
                collector.sample(tree.root(), &group, now, options, &mut scratch, &mut errors);
                (collector.cpu, collector.throttled)
            };
            feed(0, 100, 10);
            assert_eq!(sample(1, true), (None, None));
            feed(500, 110, 14);
            assert_eq!(sample(2, true), (Some(0.5), Some(0.4)));
            feed(500, 110, 14);
            assert_eq!(sample(3, true), (Some(0.0), Some(0.0)), "no period");
            feed(600, 120, 24);
            assert_eq!(sample(4, false), (Some(0.1), None), "not sampled");
            feed(600, 140, 24);
            assert_eq!(sample(5, true), (Some(0.0), None), "first sample");
            feed(600, 5, 1);
            assert_eq!(sample(6, true), (Some(0.0), Some(0.0)), "recreated");
            if v2 {
                // One file, read once: the other reader is unused.
                collector.cpu_file = other_usage(&tree);
                feed(1100, 10, 2);
                let options = SampleOptions {
                    memory: false,
                    throttling: Some(&mut of_throttling),
                };
                let (root, now) = (tree.root(), 7 * SECOND);
                collector.sample(root, &group, now, options, &mut scratch, &mut errors);
                assert_eq!((collector.cpu, collector.throttled), (Some(0.5), Some(0.2)));
            }
        }
    }

    /// Reads the usage of another cgroup.
    fn other_usage(tree: &Tree) -> Option<Reader<u64>> {
        let other = tree.group("kubepods/pody").unwrap();
        let text = "usage_usec 7000000\n";
        tree.feed(&other, Resource::CpuacctUsage, text).unwrap();
        tree.root().cgroup(&other).cpu_usage_reader().unwrap()
    }

    #[test]
    fn groups_that_are_missing_gone_or_unreadable() {
        let tree = Tree::v2("0-3").unwrap();
        let group = CgroupPath::new("kubepods/podx").unwrap();
        let feed = |cpu_ms: u64, memory: &str| {
            tree.group("kubepods/podx").unwrap();
            let usage = format!("usage_usec {}\n", cpu_ms * 1000);
            tree.feed(&group, Resource::CpuacctUsage, &usage).unwrap();
            tree.feed(&group, Resource::MemoryStat, memory).unwrap();
        };
        let stat = "inactive_anon 1\nactive_anon 2\nunevictable 3\n\
                    inactive_file 10\nactive_file 20\n";
        let (mut collector, mut scratch) = (GroupCollector::default(), Scratch::new());
        let mut errors = KernelErrors::default();
        let mut sample = |collector: &mut GroupCollector, scratch: &mut Scratch, second: u64| {
            let options = SampleOptions {
                memory: true,
                throttling: None,
            };
            let now = second * SECOND;
            collector.sample(tree.root(), &group, now, options, scratch, &mut errors);
            (collector.cpu, collector.memory)
        };
        for second in 1..=4 {
            assert_eq!(sample(&mut collector, &mut scratch, second), (None, None));
        }
        // After four attempts it is not read for a while, unless its pod changes.
        feed(1000, stat);
        assert_eq!(sample(&mut collector, &mut scratch, 5), (None, None));
        collector.retry_now();
        assert_eq!(sample(&mut collector, &mut scratch, 6), (None, Some(6.0)));
        feed(1500, stat);
        let expected = (Some(0.5), Some(6.0));
        assert_eq!(sample(&mut collector, &mut scratch, 7), expected);
        feed(2000, "active_anon many\n");
        assert_eq!(sample(&mut collector, &mut scratch, 8), (Some(0.5), None));
        feed(2500, stat);
        sample(&mut collector, &mut scratch, 9);
        feed(3000, stat);
        assert_eq!(
            sample(&mut collector, &mut scratch, 10),
            expected,
            "opened again"
        );
        tree.vanish(&group).unwrap();
        assert_eq!(sample(&mut collector, &mut scratch, 11), (None, None));
        // Another group of the same name, whose counter went further.
        feed(9000, stat);
        assert_eq!(sample(&mut collector, &mut scratch, 12), (None, Some(6.0)));
        let error = errors.finish().unwrap_err();
        assert_eq!(error.count(), 1, "the file of second 8: {error}");
    }
}
