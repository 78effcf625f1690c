//! Performance counters of control groups: cycles and instructions, for cycles per instruction.

use crate::cgroup::Cgroup;
use crate::controller::Controller;
use crate::error::{HostError, Result, is_gone};
use crate::topology;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A counted event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// CPU cycles (hardware).
    Cycles,
    /// Retired instructions (hardware).
    Instructions,
    /// Nanoseconds on a CPU (software: every kernel has it).
    TaskClock,
    /// Context switches (software).
    ContextSwitches,
}

impl Event {
    /// The two events of cycles per instruction.
    pub const CPI: [Self; 2] = [Self::Cycles, Self::Instructions];

    /// Returns `perf_type_id` and its configuration.
    fn code(self) -> (u32, u64) {
        match self {
            Self::Cycles => (0, 0),
            Self::Instructions => (0, 1),
            Self::TaskClock => (1, 1),
            Self::ContextSwitches => (1, 3),
        }
    }
}

/// `struct perf_event_attr` as of its first version; the kernel takes the rest as zero.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const FORMAT_TOTAL_TIME_ENABLED: u64 = 1;
const FORMAT_TOTAL_TIME_RUNNING: u64 = 1 << 1;
const FORMAT_GROUP: u64 = 1 << 3;
const FLAG_DISABLED: u64 = 1;
const PID_CGROUP: libc::c_ulong = 1 << 2;
const CLOEXEC: libc::c_ulong = 1 << 3;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_FLAG_GROUP: libc::c_ulong = 1;

/// Counters of one control group, running since they were opened. Holds one descriptor per event
/// and online CPU.
#[derive(Debug)]
pub struct Counters {
    /// Files per CPU: the leader first, then its members.
    cpus: Vec<Vec<File>>,
    events: usize,
}

impl Counters {
    /// Starts counting `events` (at least one, at most eight) for `group` and the groups below it; `None`
    /// when there is no such group.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] when the kernel or the machine has no such counters or this process lacks
    /// the right; else the kernel's error, such as EMFILE.
    pub fn open(group: &Cgroup, events: &[Event]) -> Result<Option<Self>> {
        // Where perf_event has no hierarchy of its own it is in the unified tree.
        let dir = group
            .dir(Controller::PerfEvent)
            .or_else(|| group.unified_dir());
        let Some(dir) = dir else {
            return Err(HostError::Unsupported {
                resource: "perf events of groups",
                version: "the mounted hierarchies",
            });
        };
        let place = match File::open(&dir) {
            Ok(place) => place,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(HostError::io("open", &dir, error)),
        };
        let events = events.get(..8).unwrap_or(events);
        let mut cpus = Vec::new();
        for cpu in topology::online(group.root())?.iter() {
            let mut files: Vec<File> = Vec::with_capacity(events.len());
            for event in events {
                let leader = files.first().map_or(-1, AsRawFd::as_raw_fd);
                let opened = open(*event, place.as_raw_fd(), cpu, leader);
                files.push(opened.map_err(|error| failure(*event, error))?);
            }
            if let Some(leader) = files.first() {
                enable(leader).map_err(|error| HostError::call("enable perf events", error))?;
            }
            cpus.push(files);
        }
        Ok(Some(Self {
            cpus,
            events: events.len(),
        }))
    }

    /// Returns the number of open file descriptors.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.cpus.iter().map(Vec::len).sum()
    }

    /// Returns the counts so far, in the order of the events, summed over the CPUs. Where the hardware has
    /// too few counters for all readers, the values are extrapolated to the time in which tasks of the group
    /// ran; `None` when tasks ran and none of that time was counted.
    ///
    /// # Errors
    /// When the kernel refuses to read.
    pub fn read(&self) -> Result<Option<Vec<u64>>> {
        let mut buffer = [0_u8; 8 * (3 + 8)];
        let mut readings = Vec::with_capacity(self.cpus.len());
        for files in &self.cpus {
            let Some(mut leader) = files.first() else {
                continue;
            };
            let got = leader
                .read(&mut buffer)
                .map_err(|error| HostError::call("read perf events", error))?;
            let mut numbers = buffer[..got].chunks_exact(8).map(|word| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                u64::from_ne_bytes(bytes)
            });
            let (_, enabled, running) = (numbers.next(), numbers.next(), numbers.next());
            readings.push(CpuCounts {
                enabled: enabled.unwrap_or(0),
                running: running.unwrap_or(0),
                values: numbers.collect(),
            });
        }
        Ok(total(&readings, self.events))
    }
}

/// Counts on one CPU.
struct CpuCounts {
    /// Nanoseconds in which a task of the group ran.
    enabled: u64,
    /// Nanoseconds of `enabled` in which the events had counters.
    running: u64,
    /// Count of each event.
    values: Vec<u64>,
}

/// Returns the sum over all CPUs for each of `event_count` events. A CPU on which the events never had counters counts
/// with the average of the others; `None` if that is true of every CPU.
fn total(cpus: &[CpuCounts], event_count: usize) -> Option<Vec<u64>> {
    let (mut enabled_time, mut counted_time) = (0_u64, 0_u64);
    let mut sums = vec![0_u64; event_count];
    for cpu in cpus {
        enabled_time = enabled_time.saturating_add(cpu.enabled);
        if cpu.running > 0 {
            counted_time = counted_time.saturating_add(cpu.enabled);
        }
        for (sum, value) in sums.iter_mut().zip(&cpu.values) {
            *sum = sum.saturating_add(scaled(*value, cpu.enabled, cpu.running));
        }
    }
    if enabled_time > 0 && counted_time == 0 {
        return None;
    }
    for sum in &mut sums {
        *sum = scaled(*sum, enabled_time, counted_time);
    }
    Some(sums)
}

/// Returns `value` of `running` nanoseconds, extrapolated to `enabled` nanoseconds.
fn scaled(value: u64, enabled: u64, running: u64) -> u64 {
    if running == 0 || running >= enabled {
        return value;
    }
    let scaled = u128::from(value) * u128::from(enabled) / u128::from(running);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn failure(event: Event, error: io::Error) -> HostError {
    let version = match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this machine (no performance counters, or none in this virtual machine)"
        }
        Some(libc::EACCES | libc::EPERM) => "what this process may use (CAP_PERFMON)",
        Some(libc::ENOSYS | libc::EBADF | libc::EINVAL) => "this kernel for groups",
        _ => return HostError::call(format!("perf_event_open({event:?})"), error),
    };
    let resource = match event {
        Event::Cycles => "perf event cycles",
        Event::Instructions => "perf event instructions",
        Event::TaskClock => "perf event task-clock",
        Event::ContextSwitches => "perf event context-switches",
    };
    HostError::Unsupported { resource, version }
}

#[allow(
    unsafe_code,
    reason = "a system call that neither rustix nor libc wraps"
)]
/// Opens a counter of an event on one CPU for the cgroup with the open directory `group`.
fn open(event: Event, group: RawFd, cpu: u32, leader: RawFd) -> io::Result<File> {
    let (kind, config) = event.code();
    let attributes = Attributes {
        kind,
        size: u32::try_from(size_of::<Attributes>()).unwrap_or(64),
        config,
        read_format: FORMAT_GROUP | FORMAT_TOTAL_TIME_ENABLED | FORMAT_TOTAL_TIME_RUNNING,
        // The leader is enabled once all its members exist.
        flags: if leader < 0 { FLAG_DISABLED } else { 0 },
        ..Attributes::default()
    };
    let cpu = i32::try_from(cpu).unwrap_or(i32::MAX);
    // SAFETY: the kernel reads `attributes.size` bytes, which is the size of the structure, and
    // keeps no pointer to it; all other arguments are numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            group,
            cpu,
            leader,
            PID_CGROUP | CLOEXEC,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us; no other code has it.
        Ok(fd) if fd >= 0 => Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => Err(io::Error::last_os_error()),
    }
}

#[allow(unsafe_code, reason = "an ioctl of perf events")]
fn enable(leader: &File) -> io::Result<()> {
    // SAFETY: this ioctl takes a number, not a pointer, and the descriptor is open.
    let code = unsafe { libc::ioctl(leader.as_raw_fd(), IOC_ENABLE, IOC_FLAG_GROUP) };
    if code == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Spawn, Spawner};
    use crate::real_group::RealGroup;
    use crate::{CgroupPath, fake};

    #[test]
    fn shares_of_a_counter_are_extrapolated() {
        assert_eq!(scaled(100, 1000, 1000), 100);
        assert_eq!(scaled(100, 1000, 250), 400);
        assert_eq!(scaled(0, 1000, 0), 0);
        assert_eq!(scaled(u64::MAX, 3, 1), u64::MAX);
    }

    #[test]
    fn cpus_without_counters_count_as_the_others() {
        type Case<'a> = (&'a [(u64, u64, u64, u64)], Option<[u64; 2]>);
        // Time enabled and running, cycles and instructions of each CPU; the sums.
        let cases: [Case<'_>; 8] = [
            (&[], Some([0, 0])),
            (&[(0, 0, 0, 0), (0, 0, 0, 0)], Some([0, 0])),
            (&[(10, 10, 40, 20), (10, 10, 2, 1)], Some([42, 21])),
            (&[(10, 5, 40, 20), (10, 10, 2, 1)], Some([82, 41])),
            (&[(10, 10, 40, 20), (0, 0, 0, 0)], Some([40, 20])),
            (&[(10, 10, 40, 20), (30, 0, 0, 0)], Some([160, 80])),
            (&[(10, 0, 0, 0), (0, 0, 0, 0)], None),
            (&[(10, 10, 40, 0)], Some([40, 0])),
        ];
        for (cpus, want) in cases {
            let readings: Vec<CpuCounts> = cpus
                .iter()
                .map(|(enabled, running, cycles, instructions)| CpuCounts {
                    enabled: *enabled,
                    running: *running,
                    values: vec![*cycles, *instructions],
                })
                .collect();
            let got = total(&readings, 2);
            assert_eq!(got.as_deref(), want.as_ref().map(|w| &w[..]), "{cpus:?}");
        }
    }

    #[test]
    fn a_directory_that_is_no_group_has_no_counters() {
        let tree = fake::Tree::hybrid("0").unwrap();
        let group = tree.group("kubepods").unwrap();
        let error = Counters::open(&tree.root().cgroup(&group), &[Event::TaskClock]).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        let missing_group = tree.root().cgroup(&CgroupPath::new("gone").unwrap());
        assert!(
            Counters::open(&missing_group, &Event::CPI)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_busy_group_is_counted() {
        if let Some(group) = RealGroup::new("perf", &[]).unwrap() {
            count(&group.0);
        }
    }

    fn count(group: &Cgroup) {
        let counters = match Counters::open(group, &[Event::TaskClock, Event::ContextSwitches]) {
            Ok(counters) => counters.unwrap(),
            Err(error) => {
                assert!(error.is_unsupported(), "{error}");
                crate::testing::skip("perf", error);
                return;
            }
        };
        let time = || counters.read().unwrap().map_or(0, |values| values[0]);
        assert_eq!(time(), 0, "nothing runs there yet");
        let spawner = Spawner::start(group.root().clone()).unwrap();
        let _busy = spawner
            .spawn(Spawn {
                program: "/bin/sh".into(),
                args: vec!["-c".into(), "while :; do :; done".into()],
                cgroups: group.entrances(),
                ..Spawn::default()
            })
            .unwrap();
        while time() < 1_000_000 {
            std::thread::yield_now();
        }
        match Counters::open(group, &Event::CPI) {
            Ok(counters) => {
                let counters = counters.unwrap();
                while (counters.read().unwrap()).is_none_or(|values| values.contains(&0)) {
                    std::thread::yield_now();
                }
            }
            Err(error) => {
                assert!(error.is_unsupported(), "{error}");
                crate::testing::skip("perf-hardware", error);
            }
        }
    }
}
