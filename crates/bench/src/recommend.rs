//! `koord bench recommend`: the recommendations for the days of a trace, compared with simpler rules; and the
//! memory of histories.

mod trace;

use crate::meter::rss_mib;
use anyhow::{Context, Result, ensure};
use koord_api::GoDuration;
use koord_model::recommend::container::Sample;
use koord_model::recommend::{ContainerModel, Settings, estimate};
use koord_workload::statistics::percentile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use trace::Series;

const DAY_MS: i64 = 86_400_000;
/// Days of history before the first recommendation is judged.
const HISTORY_DAYS: i64 = 7;
/// Least samples of a day that is judged.
const LEAST_SAMPLES: usize = 12;

/// Flags of `koord bench recommend`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Args {
    /// Directory or file of a usage trace. Formats: CSV files `timestamp,value` (CPU in percent of a core, as
    /// in the Numenta Anomaly Benchmark), CSV files of GWA-T-12 (Bitbrains; CPU and memory), and directories
    /// with one file per day and machine, of one percentage every five minutes (PlanetLab)
    #[arg(long = "trace", value_name = "PATH")]
    pub traces: Vec<PathBuf>,
    /// Maximum number of series to replay of each trace
    #[arg(long, value_name = "N")]
    pub series: Option<usize>,
    /// Like koord-manager's --recommender-cpu-percentile.
    #[arg(long, value_name = "SHARE")]
    pub cpu_percentile: Option<f64>,
    /// Like koord-manager's --recommender-memory-percentile.
    #[arg(long, value_name = "SHARE")]
    pub memory_percentile: Option<f64>,
    /// Like koord-manager's --recommender-margin.
    #[arg(long, value_name = "SHARE")]
    pub margin: Option<f64>,
    /// Like koord-manager's --recommender-cpu-half-life and --recommender-memory-half-life.
    #[arg(long, value_name = "DURATION")]
    pub half_life: Option<GoDuration>,
    /// Number of usage histories for the memory figure; the default is 10,000 Recommendations of three containers
    #[arg(long, default_value_t = 30_000)]
    pub containers: usize,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecommendFigures {
    traces: Vec<Replay>,
    /// Growth of the process's memory while it stored the histories, in MiB.
    #[serde(rename = "recommenderRssMiB")]
    recommender_rss_mi_b: f64,
    containers: usize,
}

/// Results for one trace and resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Replay {
    trace: String,
    resource: &'static str,
    series: usize,
    /// Recommendations that were judged, one per series and day.
    days: u64,
    rules: BTreeMap<&'static str, Figures>,
}

/// Errors of a rule.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    /// Share of the next day's samples above the recommendation, in percent.
    violations_percent: f64,
    /// Σ (recommended − peak of the next day) / Σ peak, in percent.
    waste_percent: f64,
    /// Σ (recommended − peak of the next day) over the days on which that is positive, in percent of all
    /// peaks.
    over_percent: f64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    samples: u64,
    above: u64,
    recommended: f64,
    over: f64,
    peaks: f64,
    days: u64,
}

impl Sums {
    fn judge(&mut self, recommended: f64, day: &[f64]) {
        let peak = day.iter().copied().fold(0.0, f64::max);
        self.samples += day.len() as u64;
        self.above += day.iter().filter(|used| **used > recommended).count() as u64;
        self.recommended += recommended;
        self.over += (recommended - peak).max(0.0);
        self.peaks += peak;
        self.days += 1;
    }

    fn figures(&self) -> Figures {
        let percent = |part: f64, whole: f64| {
            let share = if whole > 0.0 { part / whole } else { 0.0 };
            (share * 10_000.0).round() / 100.0
        };
        Figures {
            violations_percent: percent(self.above as f64, self.samples as f64),
            waste_percent: percent(self.recommended - self.peaks, self.peaks),
            over_percent: percent(self.over, self.peaks),
        }
    }
}

const RULES: [&str; 5] = [
    "koord",
    "p95/p98 + 15 %",
    "VPA defaults",
    "max of 7 days",
    "p99 of 7 days",
];

/// Replays the traces and measures the memory.
///
/// # Errors
/// A trace cannot be read, or has no series of more than a week.
pub(super) fn run(args: &Args) -> Result<RecommendFigures> {
    let recommender_rss_mi_b = history_memory(args.containers)?;
    let settings = evaluated_settings(args)?;
    let mut traces = Vec::new();
    for path in &args.traces {
        let mut all = trace::read(path).with_context(|| format!("trace {}", path.display()))?;
        all.truncate(args.series.unwrap_or(usize::MAX));
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy();
        let replays: Vec<Replay> = ["cpu", "memory"]
            .into_iter()
            .map(|resource| replay(&name, resource, &all, &settings))
            .filter(|replay| replay.days > 0)
            .collect();
        ensure!(
            !replays.is_empty(),
            "trace {}: no series of more than {HISTORY_DAYS} days",
            path.display()
        );
        traces.extend(replays);
    }
    Ok(RecommendFigures {
        traces,
        recommender_rss_mi_b,
        containers: args.containers,
    })
}

/// Formats the figures.
pub(super) fn text(report: &RecommendFigures) -> String {
    let mut text = String::new();
    for replay in &report.traces {
        let _ = writeln!(
            text,
            "{}, {}: {} series, {} days",
            replay.trace, replay.resource, replay.series, replay.days
        );
        for rule in RULES {
            let Some(errors) = replay.rules.get(rule) else {
                continue;
            };
            let _ = writeln!(
                text,
                "  {rule:<15} violations {:6.2} %  waste {:8.2} %  above the peak {:8.2} %",
                errors.violations_percent, errors.waste_percent, errors.over_percent
            );
        }
    }
    let _ = writeln!(
        text,
        "histories of {} containers: {:.1} MiB",
        report.containers, report.recommender_rss_mi_b
    );
    text
}

/// Returns the recommender settings to evaluate, from the flags. They have no minimum amounts, which would hide
/// differences on small machines.
fn evaluated_settings(args: &Args) -> Result<Settings> {
    let mut settings = Settings {
        min_cpu: 0.0,
        min_memory: 0.0,
        ..Settings::peak()
    };
    let chosen = &mut settings.percentiles;
    chosen.cpu = args.cpu_percentile.unwrap_or(chosen.cpu);
    chosen.memory = args.memory_percentile.unwrap_or(chosen.memory);
    settings.margin = args.margin.unwrap_or(settings.margin);
    if let Some(half_life) = args.half_life {
        settings.cpu_half_life_ms = half_life.as_nanos() / 1_000_000;
        settings.memory_half_life_ms = settings.cpu_half_life_ms;
    }
    settings.check()?;
    Ok(settings)
}

/// Returns the settings of other programs: the percentiles of Koordinator's predictor with VPA's margin, and
/// VPA's defaults.
fn other_settings() -> [Settings; 2] {
    let vpa = Settings {
        min_cpu: 0.0,
        min_memory: 0.0,
        ..Settings::vpa()
    };
    let mut predictor = vpa.clone();
    predictor.percentiles.cpu = 0.95;
    predictor.percentiles.memory = 0.98;
    [predictor, vpa]
}

/// Replays all series of a trace for one resource.
fn replay(trace: &str, resource: &'static str, all: &[Series], settings: &Settings) -> Replay {
    let mut sums = [Sums::default(); 5];
    let mut series = 0;
    for single in all {
        let before = sums[0].days;
        replay_series(single, resource, settings, &mut sums);
        series += usize::from(sums[0].days > before);
    }
    Replay {
        trace: trace.to_owned(),
        resource,
        series,
        days: sums[0].days,
        rules: RULES
            .into_iter()
            .zip(&sums)
            .map(|(rule, sums)| (rule, sums.figures()))
            .collect(),
    }
}

/// Replays one series by day: compares the recommendation at midnight with the following day.
fn replay_series(series: &Series, resource: &str, settings: &Settings, sums: &mut [Sums; 5]) {
    let is_cpu = resource == "cpu";
    let [predictor, vpa] = other_settings();
    let Some(begin) = series.samples.first().map(|sample| sample.time) else {
        return;
    };
    let mut days: BTreeMap<i64, Vec<(i64, f64)>> = BTreeMap::new();
    for sample in &series.samples {
        let value = if is_cpu { sample.cpu } else { sample.memory };
        if let Some(value) = value {
            let day = (sample.time - begin).div_euclid(DAY_MS);
            days.entry(day).or_default().push((sample.time, value));
        }
    }
    let mut models =
        [settings, &predictor, &vpa].map(|settings| (settings, ContainerModel::new(settings)));
    for (&day, samples) in &days {
        let used: Vec<f64> = samples.iter().map(|(_, used)| *used).collect();
        let mut week: Vec<f64> = days
            .range(day - HISTORY_DAYS..day)
            .flat_map(|(_, samples)| samples.iter().map(|(_, used)| *used))
            .collect();
        let full = days.range(day - HISTORY_DAYS..day).count() as i64 == HISTORY_DAYS;
        if full && used.len() >= LEAST_SAMPLES && used.iter().any(|used| *used > 0.0) {
            let amount = |at: usize| {
                let (settings, model) = models.get(at)?;
                let recommendation = estimate(model, settings, settings.percentiles, 1)?;
                let target = recommendation.target;
                Some(if is_cpu {
                    target.cpu_milli as f64 / 1000.0
                } else {
                    target.memory as f64
                })
            };
            week.sort_by(f64::total_cmp);
            if let (Some(ours), Some(predictor), Some(vpa)) = (amount(0), amount(1), amount(2)) {
                let most = week.last().copied().unwrap_or(0.0);
                let p99 = percentile(&week, 99).unwrap_or(0.0);
                for (sums, amount) in sums.iter_mut().zip([ours, predictor, vpa, most, p99]) {
                    sums.judge(amount, &used);
                }
            }
        }
        for &(time, value) in samples {
            // CPU and memory are learned together; the other one is ignored.
            let sample = Sample {
                pod: "p",
                time,
                cpu: Some(if is_cpu { value } else { 0.0 }),
                memory: Some(if is_cpu { 0.0 } else { value }),
            };
            for (settings, model) in &mut models {
                model.add(settings, sample);
            }
        }
    }
}

/// Measures the growth of the process while it stores histories of `containers`, in MiB. Each has nine days
/// of hourly samples that vary by a factor of ten, of two pods.
fn history_memory(containers: usize) -> Result<f64> {
    let settings = Settings::peak();
    let before = rss_mib();
    let mut all = Vec::with_capacity(containers);
    for at in 0..containers {
        let mut model = ContainerModel::new(&settings);
        let size = 0.05 * (1.0 + (at % 97) as f64);
        for hour in 0..9 * 24_i64 {
            let swing = 0.1 + 0.9 * ((hour * 7 + at as i64) % 24) as f64 / 23.0;
            for pod in [
                "5f0c1c6e-0c0e-4a6a-9b8e-000000000001",
                "5f0c1c6e-0c0e-4a6a-9b8e-000000000002",
            ] {
                let sample = Sample {
                    pod,
                    time: 1_767_225_600_000 + hour * 3_600_000,
                    cpu: Some(size * swing),
                    memory: Some(size * 1e9 * swing),
                };
                model.add(&settings, sample);
            }
        }
        all.push(model);
    }
    let grown = (rss_mib() - before).max(0.0);
    ensure!(
        all.len() == containers,
        "histories were dropped during the measurement"
    );
    Ok(grown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::TraceSample;

    #[test]
    fn replay_of_an_old_spike_raises_only_the_maximum_rule() {
        let value = |minute: i64| if minute == 60 { 10.0 } else { 1.0 };
        let samples = (0..9 * 288)
            .map(|at| TraceSample {
                time: at * 300_000,
                cpu: Some(value(at * 5)),
                memory: None,
            })
            .collect();
        let series = Series { samples };
        let replay = replay(
            "t",
            "cpu",
            &[series],
            &evaluated_settings(&Args::default()).unwrap(),
        );
        // Days 7 and 8.
        assert_eq!((replay.series, replay.days), (1, 2));
        let koord = &replay.rules["koord"];
        assert_eq!(koord.violations_percent, 0.0);
        assert!((5.0..11.0).contains(&koord.waste_percent), "{koord:?}");
        // The spike of day 0 is within seven days of day 7, not of day 8.
        let most = &replay.rules["max of 7 days"];
        assert!((most.waste_percent - 450.0).abs() < 1e-9, "{most:?}");
        assert_eq!(replay.rules["p99 of 7 days"].waste_percent, 0.0);
    }
}
