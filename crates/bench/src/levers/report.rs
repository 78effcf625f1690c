//! The figures of `koord bench levers`: medians, ranges, comparisons, and a table of them.

use super::{Args, Lever};
use koord_workload::statistics::{Verdict, median, range};
use serde::Serialize;
use std::fmt::Write as _;

/// Name of the cell without batch work for the plain service.
pub(super) const ALONE: &str = "none";
/// Name of the cell without batch work for the service that walks through a table.
pub(super) const ALONE_WALKING: &str = "none (for stream)";

/// Machine of the measurement.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct MachineInfo {
    pub(super) cpus: usize,
    pub(super) kernel: String,
    pub(super) cgroup: &'static str,
}

/// Figures of one window.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeverRun {
    pub(super) neighbour: &'static str,
    pub(super) lever: Lever,
    pub(super) repeat: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) requests: u64,
    pub(super) errors: u64,
    /// Operations of batch work per second; their unit depends on the neighbour.
    pub(super) batch_per_s: f64,
    pub(super) cpu_utilization: f64,
    pub(super) steal: f64,
    pub(super) strangers: f64,
    pub(super) send_lag_p99_us: f64,
    /// Reason why the window does not count, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rejected: Option<String>,
}

/// The windows of one neighbour and lever that count.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct LeverSummary {
    neighbour: &'static str,
    lever: Lever,
    p99_us: f64,
    p99_range_us: (f64, f64),
    batch_per_s: f64,
    batch_range_per_s: (f64, f64),
    /// Windows that count, and all.
    counted: usize,
    windows: usize,
    /// Comparison with plain shares and the same neighbour.
    p99_against_shares: &'static str,
    batch_against_shares: &'static str,
}

/// A lever that this machine does not have.
#[derive(Debug, Clone, Serialize)]
struct MissingLever {
    lever: Lever,
    why: &'static str,
}

/// Figures of the benchmark.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeverFigures {
    machine: MachineInfo,
    seconds: f64,
    repeat: u8,
    absent: Vec<MissingLever>,
    results: Vec<LeverSummary>,
    runs: Vec<LeverRun>,
}

impl LeverFigures {
    pub(super) fn new(
        machine: &MachineInfo,
        args: &Args,
        absent: &[(Lever, &'static str)],
        runs: Vec<LeverRun>,
    ) -> Self {
        let absent = absent
            .iter()
            .map(|(lever, why)| MissingLever { lever: *lever, why });
        Self {
            machine: machine.clone(),
            seconds: args.seconds,
            repeat: args.repeat,
            absent: absent.collect(),
            results: summaries(&runs),
            runs,
        }
    }
}

/// Returns one summary per neighbour and lever, in the order of the table.
fn summaries(runs: &[LeverRun]) -> Vec<LeverSummary> {
    let mut all: Vec<LeverSummary> = Vec::new();
    let mut levers = vec![Lever::Shares];
    levers.extend(Lever::OTHERS);
    let kinds = super::NEIGHBOURS.map(|(name, _)| name);
    for neighbour in [ALONE, ALONE_WALKING].into_iter().chain(kinds) {
        for lever in &levers {
            let plain = all
                .iter()
                .find(|row| row.neighbour == neighbour && row.lever == Lever::Shares);
            if let Some(row) = summary(neighbour, *lever, runs, plain) {
                all.push(row);
            }
        }
    }
    all
}

/// Summarizes the windows of a cell. If noise spoiled every window, all of them count.
fn summary(
    neighbour: &'static str,
    lever: Lever,
    runs: &[LeverRun],
    plain: Option<&LeverSummary>,
) -> Option<LeverSummary> {
    let of_cell = |run: &&LeverRun| run.neighbour == neighbour && run.lever == lever;
    let windows: Vec<&LeverRun> = runs.iter().filter(of_cell).collect();
    let clean: Vec<&LeverRun> = windows
        .iter()
        .copied()
        .filter(|run| run.rejected.is_none())
        .collect();
    let counted = if clean.is_empty() { &windows } else { &clean };
    if counted.is_empty() {
        return None;
    }
    let each = |value: fn(&LeverRun) -> f64| counted.iter().map(move |run| value(run));
    let p99_range_us = range(each(|run| run.p99_us));
    let batch_range_per_s = range(each(|run| run.batch_per_s));
    let against = |mine: (f64, f64), theirs: fn(&LeverSummary) -> (f64, f64)| {
        plain.map_or("", |plain| {
            let runs = counted.len().min(plain.counted.max(1));
            verdict(Verdict::compare(mine, theirs(plain), runs))
        })
    };
    Some(LeverSummary {
        neighbour,
        lever,
        p99_us: median(each(|run| run.p99_us)),
        p99_range_us,
        batch_per_s: median(each(|run| run.batch_per_s)),
        batch_range_per_s,
        counted: counted.len(),
        windows: windows.len(),
        p99_against_shares: against(p99_range_us, |plain| plain.p99_range_us),
        batch_against_shares: against(batch_range_per_s, |plain| plain.batch_range_per_s),
    })
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Lower => "lower",
        Verdict::Higher => "higher",
        Verdict::Indistinguishable => "indistinguishable",
        Verdict::Single => "one window",
    }
}

/// Formats the table as Markdown.
pub(crate) fn text(report: &LeverFigures) -> String {
    let mut text = String::from(
        "| neighbour | lever | p99 ms [range] | against shares 2 | batch/s [range] | against \
         shares 2 | windows |\n|---|---|---:|---|---:|---|---:|\n",
    );
    for row in &report.results {
        let ms = |us: f64| us / 1000.0;
        let alone = [ALONE, ALONE_WALKING].contains(&row.neighbour);
        let (lever, batch) = match alone {
            true => ("–", "–".to_owned()),
            false => (
                row.lever.label(),
                format!(
                    "{:.0} [{:.0}–{:.0}]",
                    row.batch_per_s, row.batch_range_per_s.0, row.batch_range_per_s.1
                ),
            ),
        };
        let or_dash = |words: &'static str| if words.is_empty() { "–" } else { words };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {lever} | {:.2} [{:.2}–{:.2}] | {} | {batch} | {} | {} of {} |",
            row.neighbour,
            ms(row.p99_us),
            ms(row.p99_range_us.0),
            ms(row.p99_range_us.1),
            or_dash(row.p99_against_shares),
            or_dash(row.batch_against_shares),
            row.counted,
            row.windows,
        );
    }
    for absent in &report.absent {
        let _ = writeln!(
            text,
            "\nNot measured: {}: {}.",
            absent.lever.label(),
            absent.why
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lever: Lever, p99_us: f64, batch_per_s: f64, rejected: bool) -> LeverRun {
        LeverRun {
            neighbour: "fork",
            lever,
            repeat: 0,
            p50_us: 0.0,
            p99_us,
            p999_us: 0.0,
            requests: 1,
            errors: 0,
            batch_per_s,
            cpu_utilization: 1.0,
            steal: 0.0,
            strangers: 0.0,
            send_lag_p99_us: 0.0,
            rejected: rejected.then(|| "noise".to_owned()),
        }
    }

    #[test]
    fn summaries_of_overlapping_ranges_are_indistinguishable() {
        let runs = vec![
            run(Lever::Shares, 2000.0, 100.0, false),
            run(Lever::Shares, 3000.0, 110.0, false),
            run(Lever::IdlePods, 900.0, 90.0, false),
            run(Lever::IdlePods, 1500.0, 105.0, false),
            run(Lever::Quota, 2500.0, 60.0, false),
            run(Lever::Quota, 9000.0, 70.0, false),
            // Noisy windows count only if there are no others.
            run(Lever::Shares, 500.0, 10.0, true),
            run(Lever::Slice, 700.0, 100.0, true),
        ];
        let all = summaries(&runs);
        let of = |lever| all.iter().find(|row| row.lever == lever).unwrap();
        assert_eq!(of(Lever::Shares).p99_us, 2500.0);
        assert_eq!(of(Lever::Shares).p99_against_shares, "");
        let idle = of(Lever::IdlePods);
        assert_eq!(idle.p99_against_shares, "lower");
        assert_eq!(idle.batch_against_shares, "indistinguishable");
        let quota = of(Lever::Quota);
        assert_eq!(quota.p99_against_shares, "indistinguishable");
        assert_eq!(quota.batch_against_shares, "lower");
        assert_eq!(of(Lever::Slice).p99_against_shares, "one window");
        let report = LeverFigures {
            machine: MachineInfo::default(),
            seconds: 2.0,
            repeat: 2,
            absent: vec![MissingLever {
                lever: Lever::Partition,
                why: "there is one CPU",
            }],
            results: all,
            runs,
        };
        let text = text(&report);
        assert!(
            text.contains(
                "| fork | + cpu.idle on pods | 1.20 [0.90–1.50] | lower | 98 [90–105] | \
             indistinguishable | 2 of 2 |"
            ),
            "{text}"
        );
        assert!(
            text.contains("Not measured: + one CPU: there is one CPU."),
            "{text}"
        );
    }
}
