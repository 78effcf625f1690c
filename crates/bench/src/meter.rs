//! The meter of all benchmarks: CPU time, memory and system calls of a process, read from `/proc`, and the
//! usage of the rest of the machine.

use anyhow::{Context as _, Result};
use koord_host::procfs;
use rustix::time::{ClockId, clock_gettime};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the CPU time of this process, to the nanosecond.
pub(crate) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Returns the CPU time of a process in ticks of the kernel's clock; zero for a process that does not exist.
pub(crate) fn cpu_time_of(pid: u32) -> Duration {
    Counters::read(pid).map_or(Duration::ZERO, |counters| counters.cpu_time())
}

/// Returns how long the threads of a process have run, to the nanosecond.
///
/// # Errors
/// The process does not exist, or the kernel has no statistics of its scheduler.
pub(crate) fn run_time_of(pid: u32) -> Result<Duration> {
    let tasks = format!("/proc/{pid}/task");
    let mut all = Duration::ZERO;
    for task in std::fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        let path = task?.path().join("schedstat");
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| path.display().to_string())?;
        let ran = text
            .split_ascii_whitespace()
            .next()
            .and_then(|it| it.parse().ok());
        let ran = ran.with_context(|| format!("{}: {text:?}", path.display()))?;
        all += Duration::from_nanos(ran);
    }
    Ok(all)
}

/// Returns the resident memory of this process in MiB.
pub(crate) fn rss_mib() -> f64 {
    rss_mib_of(std::process::id())
}

/// Returns the resident memory of a process in MiB; zero for a process that does not exist.
pub(crate) fn rss_mib_of(pid: u32) -> f64 {
    Counters::read(pid).map_or(0.0, |counters| counters.rss_mib())
}

/// Counters of a process at one instant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Counters {
    at: Instant,
    user_ticks: u64,
    system_ticks: u64,
    reads_and_writes: u64,
    rss_kib: u64,
    peak_rss_kib: u64,
    pub(crate) threads: u64,
    pub(crate) open_files: usize,
}

/// Usage between two readings of [`Counters`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProcessUse {
    pub(crate) seconds: f64,
    pub(crate) cpu_millicores: f64,
    pub(crate) system_millicores: f64,
    pub(crate) reads_and_writes_per_sec: f64,
}

impl Counters {
    /// Reads the counters now.
    ///
    /// # Errors
    /// The process is gone, or a file has another form.
    pub(crate) fn read(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
        };
        let (stat, io, status) = (read("stat")?, read("io")?, read("status")?);
        let (user_ticks, system_ticks) =
            ticks(&stat).with_context(|| format!("/proc/{pid}/stat has no times"))?;
        let field = |text: &str, name: &str| {
            field(text, name).with_context(|| format!("/proc/{pid} has no field {name}"))
        };
        Ok(Self {
            at: Instant::now(),
            user_ticks,
            system_ticks,
            reads_and_writes: field(&io, "syscr")? + field(&io, "syscw")?,
            rss_kib: field(&status, "VmRSS")?,
            peak_rss_kib: field(&status, "VmHWM")?,
            threads: field(&status, "Threads")?,
            open_files: std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count),
        })
    }

    /// Returns user and system time, including that of children that were waited for.
    fn cpu_time(&self) -> Duration {
        let ticks = self.user_ticks + self.system_ticks;
        Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second().max(1) as f64)
    }

    pub(crate) fn rss_mib(&self) -> f64 {
        self.rss_kib as f64 / 1024.0
    }

    pub(crate) fn peak_rss_mib(&self) -> f64 {
        self.peak_rss_kib as f64 / 1024.0
    }

    pub(crate) fn since(&self, before: &Self) -> ProcessUse {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(0.001);
        let per_sec = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let millicores =
            |now, then| per_sec(now, then) * 1000.0 / procfs::ticks_per_second().max(1) as f64;
        let system_millicores = millicores(self.system_ticks, before.system_ticks);
        ProcessUse {
            seconds,
            cpu_millicores: millicores(self.user_ticks, before.user_ticks) + system_millicores,
            system_millicores,
            reads_and_writes_per_sec: per_sec(self.reads_and_writes, before.reads_and_writes),
        }
    }
}

/// Parses user and system time of `/proc/PID/stat`, including that of children that were waited for.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    // The name is in brackets and may contain anything; utime, stime, cutime and cstime are fields
    // 14 to 17.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (user, system, child_user, child_system) = (next()?, next()?, next()?, next()?);
    Some((user + child_user, system + child_system))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Counts the system calls of a process per second with `perf`; `None` if perf fails.
pub(crate) fn all_system_calls(pid: u32, window: Duration) -> Option<f64> {
    let seconds = window.as_secs_f64();
    let output = Command::new("perf")
        .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p"])
        .args([&pid.to_string(), "--", "sleep", &seconds.to_string()])
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    count(&String::from_utf8_lossy(&output.stderr)).map(|calls| calls / seconds)
}

/// Parses the value of perf's one line, `VALUE,unit,EVENT,…`.
fn count(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

/// A window of time that has begun, in which a process and the rest of the machine are measured.
#[derive(Debug)]
pub(crate) struct Window {
    pid: u32,
    machine: MachineTimes,
    process: Counters,
    own: Counters,
}

/// Usage of a process and of the rest of the machine in a [`Window`].
#[derive(Debug)]
pub(crate) struct WindowUse {
    pub(crate) spent: ProcessUse,
    /// The process's counters at the end of the window.
    pub(crate) process: Counters,
    /// CPU time of everything but the process, in percent of the machine.
    pub(crate) others_percent: f64,
    /// CPU time of everything but the process and this program, in percent of the machine.
    pub(crate) foreign_percent: f64,
    /// CPU time that the hypervisor took, in percent of the machine.
    pub(crate) steal_percent: f64,
}

impl Window {
    /// Begins a window in which the process `pid` is measured.
    ///
    /// # Errors
    /// The process does not exist, or a file of `/proc` has another form.
    pub(crate) fn begin(pid: u32) -> Result<Self> {
        Ok(Self {
            pid,
            machine: MachineTimes::now()?,
            process: Counters::read(pid)?,
            own: Counters::read(std::process::id())?,
        })
    }

    /// Returns the usage since the window began; the window continues.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn usage(&self) -> Result<WindowUse> {
        let machine = MachineTimes::now()?.since(&self.machine);
        let process = Counters::read(self.pid)?;
        let spent = process.since(&self.process);
        let own = Counters::read(std::process::id())?.since(&self.own);
        let others_percent = machine.busy_percent - machine.percent_of(spent.cpu_millicores);
        Ok(WindowUse {
            spent,
            process,
            others_percent,
            foreign_percent: (others_percent - machine.percent_of(own.cpu_millicores)).max(0.0),
            steal_percent: machine.steal_percent,
        })
    }
}

/// CPU time of the whole machine.
#[derive(Debug, Clone, PartialEq)]
struct MachineTimes {
    busy: u64,
    steal: u64,
    total: u64,
    cpus: f64,
}

/// Usage of the machine between two instants.
#[derive(Debug, Clone, PartialEq)]
struct MachineUse {
    busy_percent: f64,
    steal_percent: f64,
    cpus: f64,
}

impl MachineUse {
    /// Converts milli-cores to percent of the machine.
    fn percent_of(&self, millicores: f64) -> f64 {
        millicores / 10.0 / self.cpus
    }
}

impl MachineTimes {
    fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&text).context("/proc/stat has no line cpu")
    }

    /// Parses the first line of `/proc/stat`.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guest time is in user time already.
        let fields: Vec<u64> = line
            .split_ascii_whitespace()
            .take(8)
            .map_while(|field| field.parse().ok())
            .collect();
        let [user, nice, system, idle, wait, irq, soft, steal] = fields[..] else {
            return None;
        };
        let busy = user + nice + system + irq + soft;
        let is_cpu = |line: &&str| line.starts_with("cpu");
        Some(Self {
            busy,
            steal,
            total: busy + idle + wait + steal,
            cpus: text.lines().filter(is_cpu).count().saturating_sub(1).max(1) as f64,
        })
    }

    fn since(&self, before: &Self) -> MachineUse {
        let total = self.total.saturating_sub(before.total).max(1) as f64;
        let percent = |now: u64, then: u64| now.saturating_sub(then) as f64 * 100.0 / total;
        MachineUse {
            busy_percent: percent(self.busy, before.busy),
            steal_percent: percent(self.steal, before.steal),
            cpus: self.cpus,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_a_name_with_brackets_and_spaces() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 110 12 3 4 20 0";
        assert_eq!(ticks(stat), Some((113, 16)));
        assert_eq!(ticks("7 (a) S 1 2"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "VmHWM:\t  900 kB\nVmRSS:\t  800 kB\nThreads:\t3\n";
        assert_eq!(field(status, "VmRSS"), Some(800));
        assert_eq!(field(status, "Vm"), None);
    }

    #[test]
    fn count_of_perf_output_is_none_when_not_counted() {
        let line = "1234,,raw_syscalls:sys_enter,100,100.00,,\n";
        assert_eq!(count(line), Some(1234.0));
        assert_eq!(count("<not supported>,,raw_syscalls:sys_enter,0,,\n"), None);
    }

    #[test]
    fn machine_use_is_in_percent() {
        let at = |user: u64, idle: u64, steal: u64| {
            let line = format!("cpu {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 0\ncpu1 0\nintr 1\n");
            MachineTimes::parse(&line).unwrap()
        };
        let spent = at(150, 140, 10).since(&at(100, 100, 0));
        assert_eq!((spent.busy_percent, spent.steal_percent), (50.0, 10.0));
        assert_eq!(spent.percent_of(100.0), 5.0);
        assert!(MachineTimes::parse("cpu 1 2\n").is_none());
    }

    #[test]
    fn counters_of_this_process_are_plausible() {
        let before = Counters::read(std::process::id()).unwrap();
        let spent = Counters::read(std::process::id()).unwrap().since(&before);
        assert!(before.peak_rss_mib() >= 1.0 && before.threads >= 1);
        assert!(spent.cpu_millicores >= spent.system_millicores);
    }

    #[test]
    fn meters_read_this_process_and_zero_for_a_missing_one() {
        let before = cpu_time();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2) {}
        assert!(cpu_time() > before && rss_mib() >= 1.0);
        assert!(run_time_of(std::process::id()).unwrap() > Duration::ZERO);
        assert_eq!(
            (cpu_time_of(u32::MAX), rss_mib_of(u32::MAX)),
            (Duration::ZERO, 0.0)
        );
        assert!(run_time_of(u32::MAX).is_err());
    }

    #[test]
    fn window_separates_the_process_from_the_machine() {
        let used = Window::begin(std::process::id()).unwrap().usage().unwrap();
        assert!(used.process.rss_mib() >= 1.0 && used.spent.seconds > 0.0);
        assert!(used.foreign_percent >= 0.0);
    }
}
