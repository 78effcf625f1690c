//! Results of the demo as data: the JSON that `--json` writes and the source of the table and the page.

pub use koord_workload::phase::{PHASES, Phase};
pub use koord_workload::sampler::CpuSample;
pub use koord_workload::statistics::{Verdict, median, range};

use super::verdict::{ScenarioVerdict, SuiteVerdict};
use koord_workload::load::Outcome;
use serde::{Deserialize, Serialize};

/// A kernel file that koordlet wrote during a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Write {
    /// Seconds since the start of the measured window.
    pub at_s: f64,
    /// The file, relative to the cgroup root.
    pub file: String,
    /// Former value of the file; empty if it was not read.
    pub old: String,
    /// The value written.
    pub new: String,
    /// Reason that koordlet logged for the write.
    pub reason: String,
}

/// A measured window of a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PhaseRun {
    /// Number of the repeat, from 1.
    pub repeat: usize,
    /// Results of the load generator.
    pub ls: Outcome,
    /// Busy fraction of the machine, 0 to 1.
    pub cpu_utilization: f64,
    /// Fraction of the machine used by neither service, batch, generator nor koord.
    pub strangers: f64,
    /// Fraction of the CPU time that the hypervisor stole.
    pub steal: f64,
    /// Batch operations per second.
    pub be_ops_per_s: f64,
    /// CPU pressure of the service (`some`, fraction of the window); `None` where the kernel does not report
    /// it.
    pub ls_psi_some: Option<f64>,
    /// Reason for which the noise rules reject this run; such a run is listed and not counted.
    pub rejected: Option<String>,
    /// CPU over time.
    pub cpu: Vec<CpuSample>,
    /// Writes of koordlet with their times.
    pub writes: Vec<Write>,
}

/// Latency figures of a phase, medians over its counted runs, in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Median of the medians.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Least and greatest 99th percentile of a counted run.
    pub p99_range_us: (f64, f64),
    /// Requests due.
    pub requests: u64,
    /// Requests never answered.
    pub errors: u64,
}

/// Batch work of a phase.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BatchWork {
    /// Median operations per second.
    pub ops_per_s: f64,
    /// Least and greatest of a counted run.
    pub range: (f64, f64),
}

/// Medians of one phase, and every run behind them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PhaseResult {
    /// `alone`, `besteffort`, `unmanaged`, `suppressed` or `managed`.
    pub name: Phase,
    /// Latency of the service.
    pub ls: Latency,
    /// Busy fraction of the machine, 0 to 1.
    pub cpu_utilization: f64,
    /// Batch work done.
    pub be: BatchWork,
    /// Median time from a step of the load until p99 is back, in milliseconds, where the load has
    /// steps: see [`super::recovery`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_ms: Option<f64>,
    /// Runs that count towards the medians.
    pub counted: usize,
    /// All runs, including rejected ones.
    pub repeats: Vec<PhaseRun>,
}

/// The figures that are the demo's purpose. Each is a quotient of the medians above; `None` where a phase has
/// no clean run or the divisor is zero.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Ratios {
    /// p99 latency of the service in phase `besteffort`, divided by that in phase `alone`.
    pub p99_besteffort_over_alone: Option<f64>,
    /// p99 latency of the service in phase `unmanaged`, divided by that in phase `alone`.
    pub p99_unmanaged_over_alone: Option<f64>,
    /// p99 latency of the service in phase `suppressed`, divided by that in phase `alone`.
    pub p99_suppressed_over_alone: Option<f64>,
    /// p99 latency of the service in phase `managed`, divided by that in phase `alone`.
    pub p99_managed_over_alone: Option<f64>,
    /// Batch work managed / besteffort.
    pub be_managed_over_besteffort: Option<f64>,
    /// Batch work managed / unmanaged.
    pub be_managed_over_unmanaged: Option<f64>,
    /// Batch work managed / suppressed.
    pub be_managed_over_suppressed: Option<f64>,
    /// Effective machine utilization in `managed`: service load over its peak load, plus batch work over the
    /// batch work of an otherwise idle machine.
    pub emu: Option<f64>,
}

/// Machine and settings of the measurement.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DemoSetup {
    /// CPUs the demo may use.
    pub cpus: usize,
    /// True if the kernel reports pressure (PSI) per cgroup.
    pub psi: bool,
    /// Kernel release.
    pub kernel: String,
    /// Cgroup hierarchy that enforces limits.
    pub cgroup: String,
    /// True if cgroups were enforced (root and a writable tree).
    pub enforced: bool,
    /// Reason why cgroups were not enforced, if so.
    pub unenforced: Option<String>,
    /// Arrivals per second.
    pub rate: f64,
    /// CPU cost of one request, in microseconds, as calibrated.
    pub service_us: f64,
    /// Length of a measured window.
    pub phase_seconds: f64,
    /// Repeats of every phase; 0 where a time budget decides.
    pub repeat: usize,
    /// The time budget in seconds, where there is one.
    pub budget_seconds: Option<f64>,
    /// Seconds that the whole demo took.
    pub took_seconds: f64,
    /// Batch operations per second of the otherwise idle machine, the median of `be_alone_runs`.
    pub be_alone_ops_per_s: f64,
    /// Measurements of `be_alone_ops_per_s`, one per repeat.
    pub be_alone_runs: Vec<f64>,
    /// Percent of the machine that load generator and control plane used while the service was
    /// alone. On a cluster they run elsewhere, so the cap of `suppressed` is this much higher than
    /// 65: it must not pay for them out of batch work.
    pub elsewhere_percent: f64,
    /// Seconds from the start of the demo until batch resources were published on the node.
    pub batch_resources_after_s: f64,
}

/// Results of one scenario.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ScenarioResult {
    /// Name of the scenario.
    pub name: String,
    /// Heading of the scenario.
    pub title: String,
    /// Description of the service and its neighbor.
    pub about: String,
    /// True if all of the scenario was measured.
    pub ran: bool,
    /// Reason why the scenario was not measured, or not all of it.
    pub why: Option<String>,
    /// Unit of the batch work.
    pub operation: String,
    /// Arrivals per second, on average.
    pub rate: f64,
    /// CPU cost of one request, in microseconds, as calibrated.
    pub service_us: f64,
    /// The phases.
    pub phases: Vec<PhaseResult>,
    /// The headline quotients.
    pub ratios: Ratios,
    /// `recovery_ms` of `managed`, where the load has steps.
    pub recovery_ms: Option<f64>,
    /// Verdict that the windows allow.
    pub verdict: ScenarioVerdict,
    /// The verdict in plain words.
    pub headline: String,
    /// Sentences on the effects of koord in this scenario.
    pub words: Vec<String>,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Suite {
    /// Machine and settings.
    pub setup: DemoSetup,
    /// True if every selected scenario ran to its end.
    pub complete: bool,
    /// The verdict over all scenarios; the exit code follows from it.
    pub verdict: SuiteVerdict,
    /// Results of the selected scenarios.
    pub scenarios: Vec<ScenarioResult>,
    /// Conditions of the measurement, and limits of what these figures show.
    pub caveats: Vec<String>,
    /// `cpu` by itself also has its phases and ratios at the top.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub single: Option<Single>,
}

/// Phases and ratios of a single scenario, see [`Suite::single`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Single {
    /// The phases.
    pub phases: Vec<PhaseResult>,
    /// The headline quotients.
    pub ratios: Ratios,
}

impl PhaseResult {
    /// Returns the runs behind the medians: those that are not noisy, or all if all are noisy.
    pub fn counted_runs(&self) -> impl Iterator<Item = &PhaseRun> {
        let all = self.counted == 0;
        self.repeats
            .iter()
            .filter(move |run| all || run.rejected.is_none())
    }

    /// Compares this phase's p99 with the other's.
    #[must_use]
    pub fn p99_against(&self, other: &Self) -> Verdict {
        let runs = self.counted.min(other.counted);
        Verdict::compare(self.ls.p99_range_us, other.ls.p99_range_us, runs)
    }

    /// Compares this phase's batch work with the other's.
    #[must_use]
    pub fn work_against(&self, other: &Self) -> Verdict {
        let runs = self.counted.min(other.counted);
        Verdict::compare(self.be.range, other.be.range, runs)
    }

    /// Returns medians over the clean runs of `phase`. If noise rejected every run, they are over all of
    /// them, to be shown and not compared: `counted` is 0.
    #[must_use]
    pub fn from_runs(phase: Phase, repeats: Vec<PhaseRun>) -> Self {
        let clean = repeats.iter().filter(|run| run.rejected.is_none()).count();
        let runs: Vec<&PhaseRun> = repeats
            .iter()
            .filter(|run| clean == 0 || run.rejected.is_none())
            .collect();
        let median_of = |value: fn(&PhaseRun) -> f64| median(runs.iter().map(|run| value(run)));
        let ls = Latency {
            p50_us: median_of(|run| run.ls.p50_us),
            p90_us: median_of(|run| run.ls.p90_us),
            p99_us: median_of(|run| run.ls.p99_us),
            p999_us: median_of(|run| run.ls.p999_us),
            p99_range_us: range(runs.iter().map(|run| run.ls.p99_us)),
            requests: runs.iter().map(|run| run.ls.requests).sum(),
            errors: runs.iter().map(|run| run.ls.errors).sum(),
        };
        let cpu_utilization = median_of(|run| run.cpu_utilization);
        let be = BatchWork {
            ops_per_s: median_of(|run| run.be_ops_per_s),
            range: range(runs.iter().map(|run| run.be_ops_per_s)),
        };
        Self {
            name: phase,
            ls,
            cpu_utilization,
            be,
            recovery_ms: None,
            counted: clean,
            repeats,
        }
    }
}

impl Ratios {
    /// Computes the quotients of `phases`. `setup` supplies the references for EMU, which is `None` without
    /// the batch work of the idle machine.
    #[must_use]
    pub fn from_phases(phases: &[PhaseResult], setup: &DemoSetup) -> Self {
        let find = |phase: Phase| {
            let clean = |one: &&PhaseResult| one.name == phase && one.counted > 0;
            phases.iter().find(clean)
        };
        let p99 = |phase| find(phase).map(|result| result.ls.p99_us);
        let work = |phase| find(phase).map(|result| result.be.ops_per_s);
        let over = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) if b > 0.0 => Some(a / b),
            _ => None,
        };
        let alone = p99(Phase::Alone);
        #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
        let peak_rate = setup.cpus as f64 * 1e6 / setup.service_us.max(f64::MIN_POSITIVE);
        let emu = over(work(Phase::Managed), Some(setup.be_alone_ops_per_s))
            .map(|batch| batch + setup.rate / peak_rate);
        Self {
            p99_besteffort_over_alone: over(p99(Phase::BestEffort), alone),
            p99_unmanaged_over_alone: over(p99(Phase::Unmanaged), alone),
            p99_suppressed_over_alone: over(p99(Phase::Suppressed), alone),
            p99_managed_over_alone: over(p99(Phase::Managed), alone),
            be_managed_over_besteffort: over(work(Phase::Managed), work(Phase::BestEffort)),
            be_managed_over_unmanaged: over(work(Phase::Managed), work(Phase::Unmanaged)),
            be_managed_over_suppressed: over(work(Phase::Managed), work(Phase::Suppressed)),
            emu,
        }
    }
}

/// Returns the conditions of this measurement, and the limits of a demo of this kind.
#[must_use]
pub fn caveats(setup: &DemoSetup) -> Vec<String> {
    vec![
        format!(
            "{} CPUs of one machine; service, load generator, control plane and batch share it.",
            setup.cpus
        ),
        "The service's threads are pinned, one per CPU. A service whose threads float moves away from \
         busy CPUs, and waits where two of its threads meet."
            .to_owned(),
        "Load generator and sampler run at real-time priority (FIFO): they measure the service's \
         delay, not their own. koordlet runs in the ordinary class, as the daemon does by default."
            .to_owned(),
        format!(
            "Load generator and control plane took {:.1}\u{a0}% of the machine. They would run \
             elsewhere in a cluster, so the cap of suppressed is 65\u{a0}% and that much more.",
            setup.elsewhere_percent
        ),
        "In the phases without koord, koordlet runs and measures, with everything it enforces \
         switched off; what it wrote is listed."
            .to_owned(),
        "SMT siblings are not distinguished; a busy sibling slows a service in a way weights cannot \
         prevent."
            .to_owned(),
        "On a virtual machine p99.9 carries the host's own stalls; compare p99.".to_owned(),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a phase of runs with these 99th percentiles.
    pub(in super::super) fn phase_of(phase: Phase, p99: &[f64]) -> PhaseResult {
        PhaseResult::from_runs(
            phase,
            p99.iter().map(|p99| run(*p99, 100.0, false)).collect(),
        )
    }

    /// Returns a phase like [`phase_of`], with every run rejected as noisy.
    pub(in super::super) fn noisy(phase: Phase, p99: &[f64]) -> PhaseResult {
        PhaseResult::from_runs(
            phase,
            p99.iter().map(|p99| run(*p99, 100.0, true)).collect(),
        )
    }

    pub(in super::super) fn run(p99: f64, ops: f64, rejected: bool) -> PhaseRun {
        PhaseRun {
            repeat: 1,
            ls: Outcome {
                p99_us: p99,
                requests: 10,
                ..Outcome::default()
            },
            cpu_utilization: 0.5,
            strangers: 0.0,
            steal: 0.0,
            be_ops_per_s: ops,
            ls_psi_some: None,
            rejected: rejected.then(|| "noise".to_owned()),
            cpu: Vec::new(),
            writes: Vec::new(),
        }
    }

    #[test]
    fn rejected_runs_are_listed_and_not_counted() {
        let result = PhaseResult::from_runs(
            Phase::Managed,
            vec![
                run(500.0, 900.0, false),
                run(9000.0, 1.0, true),
                run(520.0, 920.0, false),
            ],
        );
        assert_eq!(result.ls.p99_us, 510.0);
        assert_eq!(result.counted, 2);
        assert_eq!(result.repeats.len(), 3);
        let all_noisy = PhaseResult::from_runs(Phase::Managed, vec![run(7.0, 1.0, true)]);
        assert_eq!((all_noisy.ls.p99_us, all_noisy.counted), (7.0, 0));
        let phases = [phase_of(Phase::Alone, &[5.0, 6.0]), all_noisy];
        let ratios = Ratios::from_phases(&phases, &DemoSetup::default());
        assert_eq!(ratios.p99_managed_over_alone, None);
    }

    #[test]
    fn ratios_follow_the_medians_and_are_absent_without_a_divisor() {
        let phases: Vec<PhaseResult> = [
            (Phase::Alone, 500.0, 0.0),
            (Phase::BestEffort, 600.0, 1000.0),
            (Phase::Unmanaged, 2000.0, 1000.0),
            (Phase::Suppressed, 700.0, 500.0),
            (Phase::Managed, 550.0, 980.0),
        ]
        .map(|(phase, p99, ops)| PhaseResult::from_runs(phase, vec![run(p99, ops, false)]))
        .into();
        let setup = DemoSetup {
            cpus: 2,
            rate: 2000.0,
            service_us: 250.0,
            be_alone_ops_per_s: 1280.0,
            ..DemoSetup::default()
        };
        let ratios = Ratios::from_phases(&phases, &setup);
        assert_eq!(ratios.p99_unmanaged_over_alone, Some(4.0));
        assert_eq!(ratios.p99_besteffort_over_alone, Some(1.2));
        assert_eq!(ratios.be_managed_over_besteffort, Some(0.98));
        assert_eq!(ratios.be_managed_over_suppressed, Some(1.96));
        assert!((ratios.emu.unwrap() - (0.25 + 980.0 / 1280.0)).abs() < 1e-9);
        assert_eq!(
            Ratios::from_phases(&phases[1..], &setup).p99_managed_over_alone,
            None
        );
    }
}
