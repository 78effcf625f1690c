//! Watches the machine while a phase runs: CPU by class, pressure of the service, batch progress.
//!
//! It runs on a thread of its own at real-time priority: a sampler of ordinary priority is itself
//! starved when the machine is full, and its CPU columns are then wrong.

use crate::{counter, monotonic_ns};
use koord_host::cgroup::PressureKind;
use koord_host::{Cgroup, Root};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// CPU use of the machine by class over one sampling interval, each as a fraction of the machine.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CpuSample {
    /// Seconds since the start of the phase's measured window (negative while it warms up).
    pub at_s: f64,
    /// CPU use of the latency-sensitive service, as a fraction of the machine (0–1).
    pub service: f64,
    /// CPU use of batch pods of any class, as a fraction of the machine (0–1).
    pub batch: f64,
    /// CPU use of all else (load generator, control plane, other processes), as a fraction of the machine
    /// (0–1).
    pub other: f64,
    /// The BE cap at that moment in cores, `None` when there is none.
    pub be_cap_cores: Option<f64>,
}

/// Cgroups whose CPU use, and counters whose values, the sampler reads.
#[derive(Debug, Clone)]
pub struct Targets {
    /// The kernel.
    pub root: Root,
    /// The service's pod, where it is confined.
    pub service: Option<Cgroup>,
    /// Services other than the measured one.
    pub others: Vec<Cgroup>,
    /// The batch pods.
    pub batch: Vec<Cgroup>,
    /// The kubelet's BestEffort cgroup. Its CFS quota is the cap on the CPU of all batch pods.
    pub best_effort: Option<Cgroup>,
    /// Directory of the batch counters.
    pub counters: PathBuf,
}

/// Counters at one instant. All of them only grow, except the cap.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    at_ns: u64,
    busy: f64,
    total: f64,
    steal: f64,
    service_ns: f64,
    batch_ns: f64,
    own_ticks: f64,
    load_ticks: f64,
    ops: f64,
    psi_us: Option<f64>,
    cap_cores: Option<f64>,
}

/// Measurements between two instants, as fractions of the machine unless noted otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    /// CPU utilization of the machine (0–1).
    pub cpu_utilization: f64,
    /// Fraction of the machine (0–1) that the hypervisor took.
    pub steal: f64,
    /// Fraction used by processes outside of the measured pods and programs.
    pub strangers: f64,
    /// Fraction used by the load generator and by this process, which includes the control plane.
    pub elsewhere: f64,
    /// Batch operations per second.
    pub be_ops_per_s: f64,
    /// CPU pressure (`some`) of the service, fraction of the time.
    pub ls_psi_some: Option<f64>,
}

/// A running thread that samples the counters of [`Targets`].
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    load_pid: Arc<AtomicU32>,
    thread: std::thread::JoinHandle<Vec<Sample>>,
}

/// Samples of a finished measurement.
#[derive(Debug)]
pub struct Series {
    samples: Vec<Sample>,
    cpus: f64,
}

const INTERVAL: Duration = Duration::from_millis(100);

impl Sampler {
    /// Starts to sample `targets` ten times a second.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(targets: Targets) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let load_pid = Arc::new(AtomicU32::new(0));
        let thread = std::thread::Builder::new()
            .name("sampler".to_owned())
            .spawn({
                let (stop, load_pid) = (stop.clone(), load_pid.clone());
                move || {
                    // Without the privilege it samples at ordinary priority.
                    let _ = koord_host::sched::set_fifo(40);
                    let mut samples = Vec::with_capacity(1024);
                    while !stop.load(Ordering::Acquire) {
                        samples.push(targets.sample(load_pid.load(Ordering::Acquire)));
                        std::thread::park_timeout(INTERVAL);
                    }
                    samples.push(targets.sample(load_pid.load(Ordering::Acquire)));
                    samples
                }
            })?;
        Ok(Self {
            stop,
            load_pid,
            thread,
        })
    }

    /// Sets the process that generates the load, so that it does not count as a stranger.
    pub fn set_load_pid(&self, pid: u32) {
        self.load_pid.store(pid, Ordering::Release);
    }

    /// Ends sampling and returns the series.
    #[must_use]
    pub fn finish(self, cpus: usize) -> Series {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
        Series {
            samples: self.thread.join().unwrap_or_default(),
            cpus: cpus.max(1) as f64,
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counters of a run of seconds")]
impl Targets {
    fn sample(&self, load_pid: u32) -> Sample {
        let usage = |group: &Cgroup| group.cpu_usage().ok().flatten().unwrap_or(0) as f64;
        let psi = self
            .service
            .as_ref()
            .and_then(|group| group.pressure(PressureKind::Cpu).ok()?);
        let (busy, total, steal) = self.machine_ticks();
        Sample {
            at_ns: monotonic_ns(),
            busy,
            total,
            steal,
            service_ns: self.service.iter().chain(&self.others).map(usage).sum(),
            batch_ns: self.batch.iter().map(usage).sum(),
            own_ticks: self.process_ticks("self"),
            load_ticks: if load_pid == 0 {
                0.0
            } else {
                self.process_ticks(&load_pid.to_string())
            },
            ops: counter::total(&self.counters) as f64,
            psi_us: psi.map(|psi| psi.some.total_us as f64),
            cap_cores: self.best_effort.as_ref().and_then(|group| {
                let quota = group.cfs_quota().ok()??;
                let period = group.cfs_period().ok()??;
                (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
            }),
        }
    }

    /// Returns the busy, total and stolen ticks of the machine since boot.
    fn machine_ticks(&self) -> (f64, f64, f64) {
        let text = self
            .root
            .read(&self.root.proc("stat"))
            .ok()
            .flatten()
            .unwrap_or_default();
        let ticks: Vec<f64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0.0);
        let total: f64 = ticks.iter().sum();
        (total - at(3) - at(4) - at(7), total, at(7))
    }

    /// Returns the user and system ticks of a process; 0 when it is gone.
    fn process_ticks(&self, process: &str) -> f64 {
        let path = self.root.proc(&format!("{process}/stat"));
        let text = self.root.read(&path).ok().flatten().unwrap_or_default();
        // The name may hold spaces and parentheses; the fields of interest follow the last one.
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|f| f.parse::<f64>().ok())
            .sum()
    }
}

impl Series {
    /// Returns the counters at `at_ns`, interpolated between the two samples around it.
    fn at(&self, at_ns: u64) -> Sample {
        let after = self.samples.partition_point(|sample| sample.at_ns < at_ns);
        let (Some(b), Some(a)) = (
            self.samples
                .get(after.min(self.samples.len().saturating_sub(1)))
                .copied(),
            self.samples.get(after.saturating_sub(1)).copied(),
        ) else {
            return Sample::default();
        };
        if b.at_ns <= a.at_ns {
            return b;
        }
        #[allow(clippy::cast_precision_loss, reason = "a fraction")]
        let part = (at_ns.saturating_sub(a.at_ns) as f64 / (b.at_ns - a.at_ns) as f64).min(1.0);
        let mix = |a: f64, b: f64| a + (b - a) * part;
        Sample {
            at_ns,
            busy: mix(a.busy, b.busy),
            total: mix(a.total, b.total),
            steal: mix(a.steal, b.steal),
            service_ns: mix(a.service_ns, b.service_ns),
            batch_ns: mix(a.batch_ns, b.batch_ns),
            own_ticks: mix(a.own_ticks, b.own_ticks),
            load_ticks: mix(a.load_ticks, b.load_ticks),
            ops: mix(a.ops, b.ops),
            psi_us: a.psi_us.zip(b.psi_us).map(|(a, b)| mix(a, b)),
            cap_cores: b.cap_cores,
        }
    }

    /// Returns the measurements between `window.0` and `window.1` (`CLOCK_MONOTONIC` nanoseconds).
    #[must_use]
    pub fn window(&self, window: (u64, u64)) -> Window {
        let (a, b) = (self.at(window.0), self.at(window.1));
        #[allow(clippy::cast_precision_loss, reason = "seconds of a run")]
        let elapsed_ns = window.1.saturating_sub(window.0).max(1) as f64;
        let total = (b.total - a.total).max(1.0);
        let machine_ns = elapsed_ns * self.cpus;
        let busy = ((b.busy - a.busy) / total).clamp(0.0, 1.0);
        let elsewhere =
            (b.own_ticks - a.own_ticks + (b.load_ticks - a.load_ticks).max(0.0)) / total;
        let accounted =
            (b.service_ns - a.service_ns + b.batch_ns - a.batch_ns) / machine_ns + elsewhere;
        Window {
            cpu_utilization: busy,
            steal: (b.steal - a.steal) / total,
            strangers: (busy - accounted).max(0.0),
            elsewhere,
            be_ops_per_s: (b.ops - a.ops).max(0.0) / (elapsed_ns / 1e9),
            ls_psi_some: a
                .psi_us
                .zip(b.psi_us)
                .map(|(a, b)| (b - a) * 1000.0 / elapsed_ns),
        }
    }

    /// Returns the CPU usage by class over time, seconds counted from `origin_ns`, in steps of half a second.
    #[must_use]
    pub fn cpu(&self, origin_ns: u64) -> Vec<CpuSample> {
        const STEP: usize = 5;
        self.samples
            .windows(STEP + 1)
            .step_by(STEP)
            .map(|part| {
                let (a, b) = (part[0], part[STEP]);
                #[allow(clippy::cast_precision_loss, reason = "seconds of a run")]
                let elapsed = b.at_ns.saturating_sub(a.at_ns).max(1) as f64 * self.cpus;
                let busy = (b.busy - a.busy) / (b.total - a.total).max(1.0);
                let service = (b.service_ns - a.service_ns) / elapsed;
                let batch = (b.batch_ns - a.batch_ns) / elapsed;
                #[allow(clippy::cast_precision_loss, reason = "seconds of a run")]
                let at_s = (b.at_ns as f64 - origin_ns as f64) / 1e9;
                CpuSample {
                    at_s,
                    service,
                    batch,
                    other: (busy - service - batch).max(0.0),
                    be_cap_cores: b.cap_cores,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        let samples = (0..=100u32)
            .map(|i| Sample {
                at_ns: u64::from(i) * 100_000_000,
                busy: f64::from(i) * 15.0,
                total: f64::from(i) * 20.0,
                service_ns: f64::from(i) * 50e6,
                batch_ns: f64::from(i) * 80e6,
                own_ticks: f64::from(i),
                ops: f64::from(i) * 10.0,
                psi_us: Some(f64::from(i) * 2000.0),
                ..Sample::default()
            })
            .collect();
        Series { samples, cpus: 2.0 }
    }

    #[test]
    fn windows_are_interpolated_between_samples() {
        let window = series().window((1_050_000_000, 3_050_000_000));
        assert!((window.cpu_utilization - 0.75).abs() < 1e-9);
        assert!((window.be_ops_per_s - 100.0).abs() < 1e-6);
        assert!((window.ls_psi_some.unwrap() - 0.02).abs() < 1e-9);
        // 75 % busy, of which 25 % service, 40 % batch and 5 % this process.
        assert!((window.strangers - 0.05).abs() < 1e-9, "{window:?}");
    }

    #[test]
    fn classes_add_up_to_the_busy_machine() {
        for sample in series().cpu(0) {
            assert!((sample.service + sample.batch + sample.other - 0.75).abs() < 1e-9);
        }
    }

    #[test]
    fn an_empty_series_is_all_zero() {
        let empty = Series {
            samples: Vec::new(),
            cpus: 2.0,
        };
        assert_eq!(empty.window((0, 1)).be_ops_per_s, 0.0);
        assert!(empty.cpu(0).is_empty());
    }
}
