//! `koord demo colocation`: a latency-sensitive service and batch work share the CPUs, five ways.
//!
//! Nothing is short-cut: the batch pods of the last two phases ask for `kubernetes.io/batch-cpu`
//! and run because koordlet measured, the manager published and the scheduler chose.

pub mod charts;
pub mod pods;
pub mod report;
pub mod result;
pub mod sampler;
mod scene;
pub mod words;

use crate::console;
use crate::workload;
use anyhow::{Context, Result, bail};
use result::{PHASES, Phase, PhaseResult, Ratios, Report, Run};
use scene::Scene;
use std::path::PathBuf;

/// What one request costs the CPU, in microseconds.
const SERVICE_US: f64 = 250.0;
/// How often a window that noise spoilt is measured again.
const RETRIES: usize = 6;

/// What to measure and where to put it.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Length of a measured window, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub phase_seconds: f64,
    /// How often every phase is measured.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub repeat: u8,
    /// Requests per second. Defaults to a quarter of what the CPUs could serve.
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// Write everything measured to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the page with the pictures to this file.
    #[arg(long, value_name = "FILE.html", default_value = "koord-demo.html")]
    pub report: PathBuf,
    /// Show what the components log.
    #[arg(long)]
    pub verbose: bool,
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

/// Runs the demo.
///
/// # Errors
/// When the cluster cannot start, a pod does not come to run, or a file cannot be written.
pub fn main(args: &Args) -> Result<()> {
    crate::cluster::init_logging(if args.verbose { "info" } else { "error" });
    let runtime = crate::cluster::runtime()?;
    runtime.block_on(async {
        tokio::select! {
            outcome = run(args) => outcome,
            _ = tokio::signal::ctrl_c() => bail!("interrupted; everything started is stopped"),
        }
    })
}

async fn run(args: &Args) -> Result<()> {
    let cpus = workload::serve::allowed_cpus().len();
    #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
    let rate = args.rate.unwrap_or(0.25 * cpus as f64 * 1e6 / SERVICE_US);
    let mut scene = Scene::open(rate, SERVICE_US, args.phase_seconds).await?;
    let outcome = play(args, &mut scene).await;
    // Whatever happened, nothing the demo started may stay behind.
    scene.close().await;
    let report = outcome?;

    console::say("");
    console::say(report::table(&report));
    summary(&report);
    write(&args.report, &report::html(&report)?)?;
    console::say(format_args!("\nThe pictures: {}", args.report.display()));
    if let Some(path) = &args.json {
        write(
            path,
            &serde_json::to_string_pretty(&report).context("report as JSON")?,
        )?;
        console::say(format_args!("The figures:  {}", path.display()));
    }
    Ok(())
}

fn write(path: &std::path::Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

async fn play(args: &Args, scene: &mut Scene) -> Result<Report> {
    let mut runs: Vec<(Phase, Run)> = Vec::new();
    for repeat in 1..=usize::from(args.repeat) {
        scene.reference(repeat).await?;
        for phase in order(repeat) {
            for attempt in 0..=RETRIES {
                let run = scene.measure(phase, repeat).await?;
                let noisy = run.rejected.is_some();
                runs.push((phase, run));
                if !noisy || attempt == RETRIES {
                    break;
                }
            }
        }
    }
    let phases: Vec<PhaseResult> = PHASES
        .into_iter()
        .map(|phase| {
            let of_phase = runs
                .iter()
                .filter(|(of, _)| *of == phase)
                .map(|(_, run)| run.clone());
            PhaseResult::from_runs(phase, of_phase.collect())
        })
        .collect();
    let mut setup = scene.setup();
    setup.repeat = usize::from(args.repeat);
    let ratios = Ratios::of(&phases, &setup);
    let caveats = result::caveats(&setup);
    let words = words::of(&phases);
    Ok(Report {
        setup,
        phases,
        ratios,
        words,
        caveats,
    })
}

/// `alone` comes first in every repeat; the others take turns, so that a drift of the machine does
/// not always hit the same phase.
fn order(repeat: usize) -> Vec<Phase> {
    let mut rest = PHASES[1..].to_vec();
    let turn = (repeat - 1) % rest.len();
    rest.rotate_left(turn);
    let mut order = vec![Phase::Alone];
    order.append(&mut rest);
    order
}

fn summary(report: &Report) {
    let ratios = &report.ratios;
    let show = |label: &str, value: Option<f64>| {
        if let Some(value) = value {
            console::say(format_args!("  {label:<42} {value:>6.2}"));
        }
    };
    console::say("");
    show("p99 besteffort / alone", ratios.p99_besteffort_over_alone);
    show("p99 unmanaged / alone", ratios.p99_unmanaged_over_alone);
    show("p99 suppressed / alone", ratios.p99_suppressed_over_alone);
    show("p99 managed / alone", ratios.p99_managed_over_alone);
    show(
        "batch work managed / suppressed",
        ratios.be_managed_over_suppressed,
    );
    show(
        "batch work managed / besteffort",
        ratios.be_managed_over_besteffort,
    );
    show(
        "batch work managed / unmanaged",
        ratios.be_managed_over_unmanaged,
    );
    show("effective machine utilisation, managed", ratios.emu);
    console::say("");
    for sentence in &report.words {
        console::say(format_args!("  {sentence}"));
    }
    for result in &report.phases {
        let rejected = result.repeats.len() - result.counted;
        if rejected > 0 {
            console::say(format_args!(
                "  {rejected} of {} runs of {} were noisy{}",
                result.repeats.len(),
                result.name.name(),
                if result.counted == 0 {
                    " and count all the same"
                } else {
                    " and do not count"
                },
            ));
        }
    }
    if !report.setup.enforced {
        console::say("  Not root, or cgroups are not writable: nothing was protected.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_repeat_measures_every_phase_and_starts_alone() {
        for repeat in 1..7 {
            let mut phases = order(repeat);
            assert_eq!(phases[0], Phase::Alone);
            phases.sort();
            assert_eq!(phases, PHASES);
        }
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn bad_arguments_name_their_bounds() {
        assert!(seconds("0").unwrap_err().contains("0.5 to 3600 seconds"));
        assert!(rate("NaN").is_err());
        assert_eq!(rate("2000"), Ok(2000.0));
    }
}
