//! `koord demo`: a latency-sensitive service and batch work share a machine: the service alone, both under
//! plain Kubernetes, both with koord; on request also under Koordinator's cap and without any QoS.
//!
//! All components are real: the batch pods of the cap and of koord request `kubernetes.io/batch-cpu` and run
//! because koordlet measured, the manager published and the scheduler chose.

pub mod descheduler;
pub mod output;
pub mod page;
pub mod progress;
pub mod recovery;
pub mod result;
mod scene;
pub mod schedule;
mod simulated;
mod stage;
pub mod summary;
pub mod table;
pub mod topology;
pub mod verdict;
mod window;

use crate::console;
use anyhow::{Context, Result};
use koord_workload::scenario::{self, Scenario};
use progress::Progress;
use result::{Phase, PhaseResult, PhaseRun, Ratios, ScenarioResult, Single, Suite};
use scene::Scene;
use schedule::{Extent, Schedule};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use verdict::ScenarioVerdict;

/// Window lengths in seconds: under a time budget, in repeats of one scenario, and of several.
const WINDOW_S: f64 = 1.5;
const LONG_WINDOW_S: f64 = 10.0;
const SEVERAL_WINDOW_S: f64 = 2.0;
/// The default time budget in seconds: for the start, for three phases of a scenario, and for each further.
const START_S: f64 = 12.0;
const SCENARIO_S: f64 = 61.0;
const PHASE_S: f64 = 22.0;
/// Part of the time budget reserved for the end of a scenario, in seconds.
const SCENARIO_END_S: f64 = 2.0;
/// Part of the time budget reserved for the end of the demo, in seconds.
const CLOSE_S: f64 = 4.0;
/// Number of waits of a third of a second for a quiet machine before a phase.
const PATIENCE: usize = 24;
const BRIEF_PATIENCE: usize = 6;

/// Help text on the exit codes of the demo.
pub const EXIT_CODES: &str = "Exit codes:
  0  conclusive: koord won against every harmful neighbor
  1  failed, 2  bad arguments
  3  not everything that was requested was measured
  4  NOT CONCLUSIVE: a neighbor has no result because of noise or too few clean windows
  5  lost: koord does not clearly reduce the harm of a neighbor";

/// Flags of `koord demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Neighbors to run next to the service: comma-separated names, or `all`.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "cpu,memory,burst",
          value_parser = scenario_name)]
    pub scenario: Vec<String>,
    /// Also measure Koordinator's fixed cap on batch CPU and, where a scenario has it, batch work without any
    /// QoS.
    #[arg(long)]
    pub all_phases: bool,
    /// Time limit of the demo, in seconds. Defaults to 195 for the three default neighbors. Noisy windows are
    /// measured again while time remains.
    #[arg(long, value_parser = budget)]
    pub budget_seconds: Option<f64>,
    /// Number of times to measure every phase, with long warm-ups and without a time limit. Published figures
    /// use five.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100), conflicts_with = "budget_seconds")]
    pub repeat: Option<u8>,
    /// Length of a measured window, in seconds. Defaults to 1.5; with --repeat to 10 for one scenario, 2
    /// for several.
    #[arg(long, value_parser = seconds)]
    pub phase_seconds: Option<f64>,
    /// Requests per second to the service. Defaults to the scenario's rate, a quarter of the CPUs' capacity.
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// Write all measurements to this file as JSON, with a verdict for each neighbor and for the whole demo.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the HTML report with charts to this file.
    #[arg(long, value_name = "FILE.html", default_value = "koord-demo.html")]
    pub report: PathBuf,
    /// Measure nothing: print and draw the results in a file that `--json` wrote earlier.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["scenario", "all_phases", "budget_seconds", "repeat", "phase_seconds", "rate", "json"])]
    pub from: Option<PathBuf>,
    /// Show the logs of the components.
    #[arg(long)]
    pub verbose: bool,
}

/// Parses the name of a scenario.
fn scenario_name(text: &str) -> Result<String, String> {
    scenario::select(&[text.to_owned()]).map(|_| text.to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    bounded(text, 0.5, 3600.0, "seconds")
}

fn budget(text: &str) -> Result<f64, String> {
    bounded(text, 30.0, 86_400.0, "seconds")
}

fn rate(text: &str) -> Result<f64, String> {
    bounded(text, 1.0, 1e6, "requests per second")
}

fn bounded(text: &str, low: f64, high: f64, unit: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("expected {low} to {high} {unit}")),
    }
}

/// Runs the demo. The exit code is that of the verdict: see [`EXIT_CODES`].
///
/// # Errors
/// When the cluster cannot start or a file cannot be written.
pub fn main(args: &Args) -> Result<ExitCode> {
    crate::cluster::init_logging(if args.verbose { "info" } else { "error" });
    let figures = args.from.as_deref().map(output::read).transpose()?;
    // The files are checked first, so that minutes of measurements are not lost.
    output::check_files(&args.report, args.json.as_deref())?;
    if let Some(path) = &args.from {
        output::distinct(path, &args.report, "--from and --report")?;
    }
    let suite = match figures {
        Some(suite) => suite,
        None => koord_app::daemon::runtime()?.block_on(run(args))?,
    };
    finish(args, &suite)?;
    Ok(ExitCode::from(suite.verdict.overall.exit_code()))
}

/// Extent and time budget of the measurements.
#[derive(Debug, Clone, Copy)]
struct Limits {
    extent: Extent,
    window_s: f64,
    budget_s: Option<f64>,
}

impl Limits {
    /// Returns the limits that the flags set, or the defaults for the selected scenarios.
    fn new(args: &Args, selected: &[&Scenario]) -> Self {
        let (extent, default_s, budget_s) = match args.repeat {
            Some(repeat) => {
                let is_single = selected.len() == 1;
                let window_s = if is_single {
                    LONG_WINDOW_S
                } else {
                    SEVERAL_WINDOW_S
                };
                (Extent::Repeats(usize::from(repeat)), window_s, None)
            }
            None => {
                let budget_s = args.budget_seconds.unwrap_or_else(|| {
                    let each =
                        |scenario: &&Scenario| default_budget_s(scenario.phases(args.all_phases));
                    START_S + selected.iter().map(each).sum::<f64>()
                });
                (Extent::Budget, WINDOW_S, Some(budget_s))
            }
        };
        Self {
            extent,
            window_s: args.phase_seconds.unwrap_or(default_s),
            budget_s,
        }
    }

    fn schedule(&self, scenario: &Scenario, all_phases: bool) -> Schedule {
        let reads_file = scenario.service.file.1 > 0;
        let phases = scenario.phases(all_phases);
        Schedule::new(phases, self.extent, self.window_s, reads_file)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a count of phases")]
fn default_budget_s(phases: &[Phase]) -> f64 {
    SCENARIO_S + PHASE_S * phases.len().saturating_sub(3) as f64
}

/// Measures the selected scenarios, and removes the cluster and its files afterwards.
async fn run(args: &Args) -> Result<Suite> {
    let begun = Instant::now();
    let selected = scenario::select(&args.scenario).map_err(anyhow::Error::msg)?;
    let limits = Limits::new(args, &selected);
    let end = limits
        .budget_s
        .map(|seconds| begun + Duration::from_secs_f64((seconds - CLOSE_S).max(0.0)));
    let mut stop = DemoSignals::new()?;
    let mut scene = Scene::open(limits.window_s, end, &mut stop).await?;
    scene.setup.repeat = usize::from(args.repeat.unwrap_or(0));
    scene.setup.budget_seconds = limits.budget_s;
    let windows =
        |scenario: &&Scenario| limits.schedule(scenario, args.all_phases).planned_windows();
    let time_left = end.map(|end| end.saturating_duration_since(Instant::now()));
    let mut progress = Progress::new(selected.iter().map(windows).sum(), time_left);
    let mut scenarios = Vec::new();
    for (at, scenario) in selected.iter().enumerate() {
        // Other scenarios get the unused share of a scenario.
        let share = u32::try_from(selected.len() - at).unwrap_or(u32::MAX);
        let deadline = end.map(|end| {
            let now = Instant::now();
            now + end.saturating_duration_since(now) / share
        });
        let measurement = Measurement {
            args,
            scenario,
            schedule: limits.schedule(scenario, args.all_phases),
            deadline,
            runs: Vec::new(),
        };
        let result = measurement.play(&mut scene, &mut progress, &mut stop).await;
        if let Some(why) = &result.why {
            console::warn(format_args!(
                "{}: not measured to its end: {why}",
                scenario.name
            ));
        }
        scenarios.push(result);
    }
    let mut setup = scene.setup.clone();
    // All that the demo started is removed, whatever happened.
    scene.close().await;
    setup.took_seconds = begun.elapsed().as_secs_f64();
    let single = match scenarios.as_slice() {
        [cpu] if cpu.name == "cpu" => Some(Single {
            phases: cpu.phases.clone(),
            ratios: cpu.ratios.clone(),
        }),
        _ => None,
    };
    let mut caveats = result::caveats(&setup);
    if single.is_some() {
        caveats.push(
            "Batch only computes here; `--scenario all` has neighbors that do worse.".to_owned(),
        );
    }
    Ok(Suite {
        caveats,
        setup,
        complete: scenarios.iter().all(|scenario| scenario.ran),
        verdict: verdict::judge_suite(&scenarios),
        scenarios,
        single,
    })
}

/// Signals that interrupt the demo: Ctrl-C and SIGTERM. The results until then are reported.
struct DemoSignals {
    interrupt: Signal,
    terminate: Signal,
    stopped: bool,
}

impl DemoSignals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("SIGTERM")?,
            stopped: false,
        })
    }

    async fn wait(&mut self) {
        if !self.stopped {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
            console::warn("interrupted: clearing away");
            self.stopped = true;
        }
    }
}

/// A scenario that is being measured.
struct Measurement<'a> {
    args: &'a Args,
    scenario: &'static Scenario,
    schedule: Schedule,
    /// End of the scenario's share of the time budget.
    deadline: Option<Instant>,
    runs: Vec<(Phase, PhaseRun)>,
}

impl Measurement<'_> {
    /// Plays the scenario until its end, its deadline or an interruption.
    async fn play(
        mut self,
        scene: &mut Scene,
        progress: &mut Progress,
        stop: &mut DemoSignals,
    ) -> ScenarioResult {
        let planned = self.schedule.planned_windows();
        let why = if let Some(why) = scene.obstacle(self.scenario) {
            Some(why)
        } else if stop.stopped {
            Some("interrupted before it began".to_owned())
        } else {
            let deadline = self.deadline;
            let ended = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let outcome = tokio::select! {
                outcome = self.measure(scene, progress) => outcome,
                () = ended => Ok(()),
                () = stop.wait() => Err(anyhow::anyhow!("interrupted")),
            };
            let outcome = match scene.leave().await {
                Ok(()) => outcome.and_then(|()| self.whole()),
                Err(error) => outcome.and(Err(error)),
            };
            outcome.err().map(|error| console::chain(&error))
        };
        progress.skip_to_end_of(planned, why.is_some() || self.deadline.is_some());
        summarise(self.args, self.scenario, scene, &self.runs, why)
    }

    /// Sets the scenario up and measures windows until the schedule or the time ends.
    async fn measure(&mut self, scene: &mut Scene, progress: &mut Progress) -> Result<()> {
        scene.enter(self.scenario, self.args.rate).await?;
        let deadline = self.deadline;
        let left_s = move || match deadline {
            Some(deadline) => {
                let time_left = deadline.saturating_duration_since(Instant::now());
                time_left.as_secs_f64() - SCENARIO_END_S
            }
            None => f64::INFINITY,
        };
        let patience = match deadline {
            Some(_) => BRIEF_PATIENCE,
            None => PATIENCE,
        };
        let reference = self.scenario.name == "cpu" && self.args.all_phases;
        while let Some(visit) = self.schedule.next(left_s()) {
            if reference && visit.phase == Phase::Alone {
                scene.measure_reference(visit.round).await?;
            }
            let bar = scene.progress.clone();
            let mut attempts = 0;
            let again = |run: PhaseRun| {
                attempts += 1;
                let clean = run.rejected.is_none();
                let again = self.schedule.measured(visit, clean, attempts, left_s());
                let again = again && (clean || deadline.is_some() || progress.may_retry());
                progress.measured(again && !clean);
                let line = progress.line(self.scenario.name, visit.phase, &run);
                bar.suspend(|| console::warn(line));
                self.runs.push((visit.phase, run));
                again
            };
            scene.visit(visit, patience, again).await?;
        }
        Ok(())
    }

    /// Checks that every phase was measured.
    fn whole(&self) -> Result<()> {
        let measured = |phase: &Phase| self.runs.iter().any(|(of, _)| of == phase);
        let mut phases = self.scenario.phases(self.args.all_phases).iter();
        match phases.find(|phase| !measured(phase)) {
            Some(phase) => anyhow::bail!("the time budget ended before {}", phase.label()),
            None => Ok(()),
        }
    }
}

/// Returns the results of a scenario from its runs; `why` is the reason if it did not end.
fn summarise(
    args: &Args,
    scenario: &Scenario,
    scene: &Scene,
    runs: &[(Phase, PhaseRun)],
    why: Option<String>,
) -> ScenarioResult {
    let mut phases: Vec<PhaseResult> = scenario
        .phases(args.all_phases)
        .iter()
        .map(|&phase| {
            let of_phase = runs.iter().filter(|(of, _)| *of == phase);
            let of_phase = of_phase.map(|(_, run)| run.clone());
            PhaseResult::from_runs(phase, of_phase.collect())
        })
        .filter(|result| !result.repeats.is_empty())
        .collect();
    if let Some((slot, peak)) = scenario.load.slots {
        recovery::recoveries(&mut phases, slot, peak);
    }
    let service_us = scenario.service.us;
    #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
    let rate = args
        .rate
        .unwrap_or(scenario.load.share * scene.setup.cpus as f64 * 1e6 / service_us);
    let mut setup = scene.setup.clone();
    (setup.rate, setup.service_us) = (rate, service_us);
    if scenario.name != "cpu" {
        setup.be_alone_ops_per_s = 0.0;
    }
    let managed = phases.iter().find(|result| result.name == Phase::Managed);
    let mut result = ScenarioResult {
        name: scenario.name.to_owned(),
        title: scenario.title.to_owned(),
        about: scenario.about.to_owned(),
        ran: why.is_none(),
        why,
        operation: scenario.neighbour.operation().to_owned(),
        rate,
        service_us,
        ratios: Ratios::from_phases(&phases, &setup),
        recovery_ms: managed.and_then(|managed| managed.recovery_ms),
        // Without enforcement the phases differ by name only.
        words: match scene.setup.enforced {
            true => summary::sentences(&phases),
            false => Vec::new(),
        },
        phases,
        verdict: ScenarioVerdict::default(),
        headline: String::new(),
    };
    result.verdict = verdict::judge_scenario(&result, &scene.setup);
    result.headline = summary::headline(&result);
    result
}

/// Prints and writes the results: the figures first, as they cannot be repeated.
fn finish(args: &Args, suite: &Suite) -> Result<()> {
    console::print_line("");
    console::print_line(table::text(suite));
    console::print_line("");
    if let Some(path) = &args.json {
        output::write_json(path, suite)?;
        console::print_line(format_args!("The figures:  {}", path.display()));
    }
    output::write(&args.report, &page::suite::html(suite))?;
    console::print_line(format_args!("The pictures: {}", args.report.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = ["koord"].iter().chain(line);
        <Line as clap::Parser>::try_parse_from(line).unwrap().args
    }

    #[test]
    fn default_is_three_neighbors_within_195_seconds() {
        let args = args(&[]);
        let selected = scenario::select(&args.scenario).unwrap();
        let names: Vec<&str> = selected.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names, ["cpu", "memory", "burst"]);
        let limits = Limits::new(&args, &selected);
        assert_eq!(limits.budget_s, Some(195.0));
        for scenario in selected {
            let phases = scenario.phases(args.all_phases);
            assert_eq!(phases, [Phase::Alone, Phase::BestEffort, Phase::Managed]);
        }
    }

    #[test]
    fn repeats_have_no_time_budget() {
        let args = args(&["--scenario", "io", "--repeat", "5", "--all-phases"]);
        let selected = scenario::select(&args.scenario).unwrap();
        let limits = Limits::new(&args, &selected);
        assert_eq!((limits.budget_s, limits.window_s), (None, LONG_WINDOW_S));
        assert_eq!(
            limits
                .schedule(selected[0], args.all_phases)
                .planned_windows(),
            20
        );
    }

    #[test]
    fn bad_arguments_name_their_bounds() {
        assert!(seconds("0").unwrap_err().contains("0.5 to 3600 seconds"));
        assert!(rate("NaN").is_err());
        assert_eq!(rate("2000"), Ok(2000.0));
        assert!(scenario_name("disk").unwrap_err().contains("fork"));
    }
}
