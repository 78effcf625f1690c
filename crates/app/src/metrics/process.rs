//! Metrics `process_*` of this process, as Prometheus clients export them; read at each scrape.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Error, Gauge, Registry};
use std::collections::HashMap;
use std::fs;

/// Ticks per second of the times in `/proc`: fixed on every architecture Rust has Linux for.
const TICKS: f64 = 100.0;

/// Registers the metrics of this process, once.
///
/// # Errors
///
/// When a metric's definition is wrong, which tests would show.
pub fn register_process(registry: &Registry) -> prometheus::Result<()> {
    match registry.register(Box::new(Process::new()?)) {
        Ok(()) | Err(Error::AlreadyReg) => Ok(()),
        Err(error) => Err(error),
    }
}

struct Process {
    cpu: Counter,
    started: Gauge,
    resident: Gauge,
    virtual_now: Gauge,
    virtual_max: Gauge,
    open: Gauge,
    open_max: Gauge,
}

impl Process {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "CPU time used, in user and system mode.",
            )?,
            started: Gauge::new(
                "process_start_time_seconds",
                "When the process started, since the Unix epoch.",
            )?,
            resident: Gauge::new("process_resident_memory_bytes", "Resident memory.")?,
            virtual_now: Gauge::new("process_virtual_memory_bytes", "Virtual memory.")?,
            virtual_max: Gauge::new(
                "process_virtual_memory_max_bytes",
                "The most virtual memory there may be.",
            )?,
            open: Gauge::new("process_open_fds", "Open file descriptors.")?,
            open_max: Gauge::new(
                "process_max_fds",
                "The most open file descriptors there may be.",
            )?,
        })
    }

    /// Reads the metrics of this process again from `/proc`. A metric that cannot be read keeps its value.
    fn refresh(&self) {
        if let Some([used, start]) = read("/proc/self/stat").as_deref().and_then(times) {
            self.cpu.inc_by((used - self.cpu.get()).max(0.0));
            let boot =
                read("/proc/stat").and_then(|text| first_numbers(&text).get("btime").copied());
            if let Some(boot) = boot {
                self.started.set(boot + start);
            }
        }
        if let Some(status) = read("/proc/self/status") {
            let status = first_numbers(&status);
            for (key, gauge) in [("VmRSS:", &self.resident), ("VmSize:", &self.virtual_now)] {
                if let Some(kib) = status.get(key) {
                    gauge.set(kib * 1024.0);
                }
            }
        }
        if let Some(limits) = read("/proc/self/limits") {
            for (key, gauge) in [
                ("Max address space", &self.virtual_max),
                ("Max open files", &self.open_max),
            ] {
                if let Some(limit) = limit(&limits, key) {
                    gauge.set(limit);
                }
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            #[allow(clippy::cast_precision_loss, reason = "a count of files")]
            self.open.set(open.count() as f64);
        }
    }

    /// Returns the metrics of the process, which are described and collected together.
    fn collectors(&self) -> [&dyn Collector; 7] {
        [
            &self.cpu,
            &self.started,
            &self.resident,
            &self.virtual_now,
            &self.virtual_max,
            &self.open,
            &self.open_max,
        ]
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors()
            .into_iter()
            .flat_map(|collector| collector.desc())
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        let collectors = self.collectors().into_iter();
        collectors
            .flat_map(|collector| collector.collect())
            .collect()
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Parses the CPU seconds used, and the seconds from boot to start. The command's name may contain any
/// character.
fn times(stat: &str) -> Option<[f64; 2]> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some([(ticks(11)? + ticks(12)?) / TICKS, ticks(19)? / TICKS])
}

/// Returns for each line of a file in `/proc` the number that follows its first word, by that word. Other lines
/// are left out.
fn first_numbers(text: &str) -> HashMap<&str, f64> {
    let line = |line: &'_ str| -> Option<(usize, f64)> {
        let mut parts = line.split_whitespace();
        let key = parts.next()?.len();
        Some((key, parts.next()?.parse().ok()?))
    };
    text.lines()
        .filter_map(|text| line(text).map(|(key, value)| (&text[..key], value)))
        .collect()
}

/// Parses the soft limit on the line that starts with `name`.
fn limit(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        // The value of Go's client.
        "unlimited" => Some(18_446_744_073_709_551_615.0),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    #[test]
    fn proc_is_understood() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 9 0 12300 99 88";
        assert_eq!(times(stat), Some([3.0, 123.0]));
        assert_eq!(times("7 (a"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert!(limit(limits, "Max address space").is_some_and(|limit| limit > 1e19));
        assert_eq!(limit(limits, "Max nothing"), None);
        let status = "Name:\tx y\nVmSize:\t  10 kB\nVmRSS:\t   4 kB\n";
        assert_eq!(first_numbers(status)["VmRSS:"], 4.0);
    }

    #[test]
    fn process_metrics_are_registered_once() {
        let registry = Registry::new();
        register_process(&registry).unwrap();
        register_process(&registry).unwrap();
        let text = encode(&registry).unwrap();
        for name in [
            "process_cpu_seconds_total",
            "process_start_time_seconds",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_virtual_memory_max_bytes",
            "process_open_fds",
            "process_max_fds",
        ] {
            assert_eq!(
                text.matches(&format!("# TYPE {name} ")).count(),
                1,
                "{text}"
            );
        }
        assert!(
            !text.contains("process_resident_memory_bytes 0\n"),
            "{text}"
        );
        assert!(!text.contains("process_start_time_seconds 0\n"), "{text}");
    }
}
