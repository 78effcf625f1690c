//! The table for the terminal, and the rows it shares with the page.

use super::result::{DemoSetup, Phase, PhaseResult, ScenarioResult, Suite, Verdict};
use super::summary::latency;
use super::verdict;
use comfy_table::{CellAlignment, Table, presets};
use std::ops::Range;

/// Formats a quotient; a dash where there is none.
#[must_use]
pub fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

/// Returns the rows of a scenario: phase, p50, p90, p99, range of p99, p99.9, CPU, batch work per second and
/// its range, p99 over alone, batch work over plain best effort.
#[must_use]
pub fn rows(scenario: &ScenarioResult) -> Vec<[String; 10]> {
    let find = |phase: Phase| scenario.phases.iter().find(|result| result.name == phase);
    let (alone, plain) = (find(Phase::Alone), find(Phase::BestEffort));
    let phases = scenario.phases.iter();
    phases
        .map(|result| {
            let batch = result.name != Phase::Alone;
            let or_dash = |text: String| if batch { text } else { "–".to_owned() };
            let p99_over = quotient(result, alone, |it| it.ls.p99_us);
            let work_over = quotient(result, plain, |it| it.be.ops_per_s);
            [
                result.name.name().to_owned(),
                latency(result.ls.p50_us),
                latency(result.ls.p90_us),
                latency(result.ls.p99_us),
                span(result.ls.p99_range_us),
                latency(result.ls.p999_us),
                format!("{:.0}\u{a0}%", result.cpu_utilization * 100.0),
                or_dash(format!("{:.0}", result.be.ops_per_s)),
                marked(
                    p99_over,
                    alone.map(|alone| result.p99_against(alone)),
                    result.name == Phase::Alone,
                ),
                or_dash(marked(
                    work_over,
                    plain.map(|plain| result.work_against(plain)),
                    result.name == Phase::BestEffort,
                )),
            ]
        })
        .collect()
}

/// Returns a figure of one phase over that of another; `None` if either has no clean window.
#[must_use]
pub fn quotient(
    one: &PhaseResult,
    other: Option<&PhaseResult>,
    figure: impl Fn(&PhaseResult) -> f64,
) -> Option<f64> {
    let other = other.filter(|other| other.counted > 0 && one.counted > 0)?;
    let divisor = figure(other);
    (divisor > 0.0).then(|| figure(one) / divisor)
}

/// Titles of [`rows`].
pub const HEADER: [&str; 10] = [
    "phase",
    "p50",
    "p90",
    "p99",
    "range of p99",
    "p99.9",
    "CPU",
    "batch/s",
    "p99 / alone",
    "batch / besteffort",
];

/// Formats a quotient, with `≈` if the ranges behind it overlap.
fn marked(value: Option<f64>, verdict: Option<Verdict>, itself: bool) -> String {
    let overlap = !itself && verdict == Some(Verdict::Indistinguishable);
    format!("{}{}", if overlap { "≈ " } else { "" }, ratio(value))
}

/// Formats a range of latencies, in milliseconds.
#[must_use]
pub fn span((low, high): (f64, f64)) -> String {
    let bare = |us: f64| latency(us).replace("\u{a0}ms", "");
    format!("{}–{}", bare(low), bare(high))
}

/// Returns a table whose first `left` columns are text.
fn plain_table(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    left: usize,
) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    render(table, left..usize::MAX)
}

/// Returns the lines of a table whose columns `right` are aligned to the right.
pub(super) fn render(mut table: Table, right: Range<usize>) -> String {
    for (at, column) in table.column_iter_mut().enumerate() {
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    // Trims the padding of cells at the ends of lines.
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Returns the final output for the terminal: the verdict in plain words, the figures, how many neighbors
/// were won.
#[must_use]
pub fn text(suite: &Suite) -> String {
    let mut parts = Vec::new();
    parts.extend(verdict::first_line(suite));
    let headlines: Vec<String> = suite
        .scenarios
        .iter()
        .map(|scenario| format!("  {}", scenario.headline))
        .collect();
    parts.push(headlines.join("\n"));
    if suite
        .scenarios
        .iter()
        .any(|scenario| !scenario.phases.is_empty())
    {
        parts.push(phase_table(suite));
    }
    if let Some(emu) = suite
        .scenarios
        .iter()
        .find_map(|scenario| scenario.ratios.emu)
    {
        parts.push(format!(
            "  effective machine utilization with koord (cpu): {emu:.2}"
        ));
    }
    let lacks = missing_features(&suite.setup);
    parts.extend(lacks.map(|sentence| format!("  {sentence}")));
    parts.push(verdict::last_line(suite));
    parts.join("\n\n")
}

/// Returns a table with one row per phase of every scenario.
fn phase_table(suite: &Suite) -> String {
    let header = [
        "neighbor",
        "phase",
        "p99",
        "range",
        "times alone",
        "batch/s",
        "times plain",
        "CPU",
        "windows",
    ];
    let rows = suite.scenarios.iter().flat_map(|scenario| {
        let phases = scenario.phases.iter().zip(rows(scenario)).enumerate();
        phases.map(|(at, (result, row))| {
            let [_, _, _, p99, span, _, cpu, batch, over_alone, over_plain] = row;
            let name = if at == 0 { scenario.name.as_str() } else { "" };
            let label = result.name.label();
            let row = [p99, span, over_alone, batch, over_plain, cpu];
            let row = row.map(|cell| match result.counted {
                0 if cell != "–" => format!("({cell})"),
                _ => cell,
            });
            let first = [name.to_owned(), label.to_owned()];
            first
                .into_iter()
                .chain(row)
                .chain([windows(result)])
                .collect()
        })
    });
    let table = plain_table(&header, rows, 2);
    format!(
        "{table}\n\n  p99 of the service: medians and ranges of the clean windows; ≈: the ranges overlap; (): noise"
    )
}

/// Formats how many windows of a phase count, and how many are noisy.
#[must_use]
pub fn windows(result: &PhaseResult) -> String {
    match result.repeats.len() - result.counted {
        0 => result.counted.to_string(),
        noisy => format!("{}, {noisy} noisy", result.counted),
    }
}

/// Returns warnings about features this machine is missing, which limit what the figures show.
pub fn missing_features(setup: &DemoSetup) -> impl Iterator<Item = String> {
    let unprotected = (!setup.enforced).then(|| {
        let why = setup.unenforced.as_deref();
        format!(
            "Nothing was protected, whatever a phase is called: {}.",
            why.unwrap_or("control groups were not enforced")
        )
    });
    let blind = (setup.enforced && !setup.psi).then(|| {
        "This kernel reports no pressure per cgroup (PSI): koordlet uses run-queue delay."
            .to_owned()
    });
    [unprotected, blind].into_iter().flatten()
}

/// Returns the reason why a scenario is missing figures.
#[must_use]
pub fn missing(scenario: &ScenarioResult) -> Option<String> {
    let why = scenario.why.as_deref()?;
    Some(match scenario.phases.is_empty() {
        true => format!("Not measured: {why}."),
        false => format!("Not measured to its end: {why}."),
    })
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::{noisy, phase_of};
    use super::super::verdict::tests::{judged, scenario_of};
    use super::*;
    use crate::demo::summary;

    fn suite(scenarios: Vec<ScenarioResult>) -> Suite {
        let with_headline = |mut scenario: ScenarioResult| {
            scenario.headline = summary::headline(&scenario);
            scenario
        };
        let scenarios: Vec<ScenarioResult> = scenarios.into_iter().map(with_headline).collect();
        Suite {
            verdict: verdict::judge_suite(&scenarios),
            scenarios,
            ..Suite::default()
        }
    }

    #[test]
    fn text_has_words_first_and_the_count_last() {
        let text = text(&suite(vec![
            scenario_of("a", &[500.0, 510.0], &[900.0, 990.0], &[505.0, 515.0]),
            scenario_of("b", &[500.0, 510.0], &[505.0, 515.0], &[500.0, 515.0]),
        ]));
        assert!(text.starts_with("  a: won. Plain"), "{text}");
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "Of 2 neighbors, koord won 1 (a); harmless: 1 (b); lost: 0."
        );
        assert!(!text.contains("NOT CONCLUSIVE"), "{text}");
    }

    #[test]
    fn phase_of_noise_only_has_no_ratio() {
        for at in 0..3 {
            let mut scenario =
                scenario_of("a", &[1400.0, 1410.0], &[900.0, 990.0], &[505.0, 515.0]);
            let phase = scenario.phases[at].name;
            scenario.phases[at] = noisy(phase, &[562_000.0, 563_000.0]);
            let text = text(&suite(vec![judged(scenario)]));
            assert!(
                text.starts_with("NOT CONCLUSIVE: a: every window of"),
                "{text}"
            );
            let label = format!(" {} ", phase.label());
            let row = text
                .lines()
                .find(|line| line.contains(&label) && line.contains("562"));
            let row = row.unwrap();
            assert!(row.contains("0, 2 noisy"), "{row}");
            let cells: Vec<&str> = row.split("  ").map(str::trim).collect();
            assert!(
                cells.contains(&"(562\u{a0}ms)") && cells.contains(&"–"),
                "{row}"
            );
            assert!(!text.contains("402") && !text.contains("0.40"), "{text}");
        }
    }

    #[test]
    fn quotient_needs_a_clean_window_of_both() {
        let clean = phase_of(Phase::Alone, &[500.0]);
        let noise = noisy(Phase::Managed, &[250.0]);
        let p99 = |one: &PhaseResult| one.ls.p99_us;
        assert_eq!(quotient(&clean, Some(&clean), p99), Some(1.0));
        assert_eq!(quotient(&noise, Some(&clean), p99), None);
        assert_eq!(quotient(&clean, Some(&noise), p99), None);
        assert_eq!(quotient(&clean, None, p99), None);
    }
}
