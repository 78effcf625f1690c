//! `koord demo`: a latency-sensitive service and batch work share a machine, in up to five ways:
//! alone, under plain Kubernetes, and under the policies of Koordinator and koord.
//!
//! Nothing is short-cut: the batch pods of the last two phases ask for `kubernetes.io/batch-cpu`
//! and run because koordlet measured, the manager published and the scheduler chose.

pub mod descheduler;
pub mod output;
pub mod picture;
pub mod pods;
pub mod progress;
pub mod recovery;
pub mod report;
pub mod result;
pub mod sampler;
pub mod scenario;
mod scene;
mod stage;
pub mod table;
pub mod topology;
pub(crate) mod window;
pub mod words;

use crate::console;
use anyhow::{Context, Result};
use progress::Progress;
use result::{Phase, PhaseResult, Ratios, Run, ScenarioResult, Single, Suite};
use scenario::Scenario;
use scene::Scene;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often a window that noise spoilt is measured again.
const RETRIES: usize = 2;
/// The exit code when something that was asked for did not run.
const INCOMPLETE: u8 = 3;

/// What to measure and where to put it.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to play: names, or `all`. Exit code 3 when not all of it could be measured.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "cpu",
          value_parser = known)]
    pub scenario: Vec<String>,
    /// Length of a measured window, in seconds. Defaults to 10 for one scenario, 2 for several.
    #[arg(long, value_parser = seconds)]
    pub phase_seconds: Option<f64>,
    /// How often every phase is measured. Ranges need two at least; published figures have five.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub repeat: u8,
    /// Requests per second. Defaults to what the scenario has, a quarter of what the CPUs could serve.
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// Write everything measured to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the page with the pictures to this file.
    #[arg(long, value_name = "FILE.html", default_value = "koord-demo.html")]
    pub report: PathBuf,
    /// Measure nothing: show and draw what `--json` wrote earlier.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["scenario", "repeat", "phase_seconds", "rate", "json"])]
    pub from: Option<PathBuf>,
    /// Show what the components log.
    #[arg(long)]
    pub verbose: bool,
}

fn known(text: &str) -> Result<String, String> {
    scenario::select(&[text.to_owned()]).map(|_| text.to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    bounded(text, 0.5, 3600.0, "seconds")
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

/// Runs the demo. The exit code tells whether everything that was asked for was measured.
///
/// # Errors
/// When the cluster cannot start or a file cannot be written.
pub fn main(args: &Args) -> Result<ExitCode> {
    crate::cluster::init_logging(if args.verbose { "info" } else { "error" });
    let figures = args.from.as_deref().map(output::read).transpose()?;
    // Minutes of measuring are not for the bin.
    output::check(&args.report)?;
    if let Some(path) = &args.from {
        output::distinct(path, &args.report, "--from and --report")?;
    }
    if let Some(path) = &args.json {
        output::check(path)?;
        output::distinct(path, &args.report, "--json and --report")?;
    }
    let suite = match figures {
        Some(suite) => suite,
        None => crate::cluster::runtime()?.block_on(run(args))?,
    };
    finish(args, &suite)?;
    Ok(match suite.complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(INCOMPLETE),
    })
}

async fn run(args: &Args) -> Result<Suite> {
    let selected = scenario::select(&args.scenario).map_err(anyhow::Error::msg)?;
    let default = if selected.len() == 1 { 10.0 } else { 2.0 };
    let mut stop = Stop::new()?;
    let mut scene = Scene::open(args.phase_seconds.unwrap_or(default), &mut stop).await?;
    scene.setup.repeat = usize::from(args.repeat);
    let windows = selected.iter().map(|one| one.phases.len()).sum::<usize>();
    let mut progress = Progress::new(windows * usize::from(args.repeat));
    let mut scenarios = Vec::new();
    for one in selected {
        let result = play(args, one, &mut scene, &mut progress, &mut stop).await;
        if let Some(why) = &result.why {
            console::warn(format_args!("{}: not measured to its end: {why}", one.name));
        }
        scenarios.push(result);
    }
    let setup = scene.setup.clone();
    // Whatever happened, nothing the demo started may stay behind.
    scene.close().await;
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
            "Batch only computes here; `--scenario all` has neighbours that do worse.".to_owned(),
        );
    }
    Ok(Suite {
        caveats,
        setup,
        complete: scenarios.iter().all(|one| one.ran),
        scenarios,
        single,
    })
}

/// Ctrl-C or a polite request to end. What was measured until then is reported.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
    stopped: bool,
}

impl Stop {
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

/// Plays one scenario as far as it goes.
async fn play(
    args: &Args,
    scenario: &'static Scenario,
    scene: &mut Scene,
    progress: &mut Progress,
    stop: &mut Stop,
) -> ScenarioResult {
    let mut runs = Vec::new();
    let why = if let Some(why) = scene.obstacle(scenario) {
        Some(why)
    } else if stop.stopped {
        Some("interrupted before it began".to_owned())
    } else {
        let windows = windows(args, scenario, scene, progress, &mut runs);
        let outcome = tokio::select! {
            outcome = windows => outcome,
            () = stop.wait() => Err(anyhow::anyhow!("interrupted")),
        };
        let outcome = match scene.leave().await {
            Ok(()) => outcome,
            Err(error) => outcome.and(Err(error)),
        };
        outcome.err().map(|error| console::chain(&error))
    };
    let planned = scenario.phases.len() * usize::from(args.repeat);
    progress.skip_to_end_of(planned, why.is_some());
    let (rate, emu) = (args.rate, scenario.name == "cpu");
    summarise(scenario, scene, runs, why, rate, emu)
}

async fn windows(
    args: &Args,
    scenario: &'static Scenario,
    scene: &mut Scene,
    progress: &mut Progress,
    runs: &mut Vec<(Phase, Run)>,
) -> Result<()> {
    scene.enter(scenario, args.rate).await?;
    for repeat in 1..=usize::from(args.repeat) {
        if scenario.name == "cpu" {
            scene.reference(repeat).await?;
        }
        for phase in order(scenario.phases, repeat) {
            for attempt in 0..=RETRIES {
                let run = scene.measure(phase, repeat).await?;
                let again = run.rejected.is_some() && attempt < RETRIES && progress.may_retry();
                progress.measured(again);
                let line = progress.line(scenario.name, phase, &run);
                scene.progress.suspend(|| console::warn(line));
                runs.push((phase, run));
                if !again {
                    break;
                }
            }
        }
    }
    Ok(())
}

fn summarise(
    scenario: &Scenario,
    scene: &Scene,
    runs: Vec<(Phase, Run)>,
    why: Option<String>,
    rate: Option<f64>,
    emu: bool,
) -> ScenarioResult {
    let mut phases: Vec<PhaseResult> = scenario
        .phases
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
    let rate = rate.unwrap_or(scenario.load.share * scene.setup.cpus as f64 * 1e6 / service_us);
    let mut setup = scene.setup.clone();
    (setup.rate, setup.service_us) = (rate, service_us);
    if !emu {
        setup.be_alone_ops_per_s = 0.0;
    }
    let managed = phases.iter().find(|one| one.name == Phase::Managed);
    ScenarioResult {
        name: scenario.name.to_owned(),
        title: scenario.title.to_owned(),
        about: scenario.about.to_owned(),
        ran: why.is_none(),
        why,
        operation: scenario.neighbour.operation().to_owned(),
        rate,
        service_us,
        ratios: Ratios::of(&phases, &setup),
        recovery_ms: managed.and_then(|managed| managed.recovery_ms),
        // Without enforcement the phases differ by name only.
        words: match scene.setup.enforced {
            true => words::of(&phases),
            false => Vec::new(),
        },
        phases,
    }
}

/// `alone` comes first in every repeat; the others take turns, so that a drift of the machine does
/// not always hit the same phase.
fn order(phases: &[Phase], repeat: usize) -> Vec<Phase> {
    let (first, rest) = phases.split_at(1);
    let mut rest = rest.to_vec();
    let turn = (repeat - 1) % rest.len().max(1);
    rest.rotate_left(turn);
    [first, &rest].concat()
}

/// Prints and writes what was measured: the figures first, as nothing brings them back.
fn finish(args: &Args, suite: &Suite) -> Result<()> {
    console::say("");
    console::say(table::text(suite));
    console::say("");
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(suite).context("report as JSON")?;
        output::write(path, &text)?;
        console::say(format_args!("The figures:  {}", path.display()));
    }
    output::write(&args.report, &report::html(suite)?)?;
    console::say(format_args!("The pictures: {}", args.report.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_repeat_measures_every_phase_and_starts_alone() {
        for scenario in scenario::ALL {
            for repeat in 1..7 {
                let mut phases = order(scenario.phases, repeat);
                assert_eq!(phases[0], Phase::Alone);
                phases.sort();
                assert_eq!(phases, scenario.phases);
            }
        }
        let phases = &result::PHASES;
        assert_ne!(order(phases, 1), order(phases, 2));
    }

    #[test]
    fn bad_arguments_name_their_bounds() {
        assert!(seconds("0").unwrap_err().contains("0.5 to 3600 seconds"));
        assert!(rate("NaN").is_err());
        assert_eq!(rate("2000"), Ok(2000.0));
        assert!(known("disk").unwrap_err().contains("fork"));
    }
}
