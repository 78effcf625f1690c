//! The tables for the terminal.

use super::result::{Phase, PhaseResult, ScenarioResult, Setup, Suite, Verdict};
use super::words::latency;
use comfy_table::{CellAlignment, Table, presets};

/// A quotient for people; a dash where there is none.
#[must_use]
pub fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

/// The rows of a scenario: phase, p50, p90, p99, range of p99, p99.9, CPU, batch work per second and
/// its range, p99 over alone, batch work over plain best effort.
#[must_use]
pub fn rows(scenario: &ScenarioResult) -> Vec<[String; 10]> {
    let find = |phase: Phase| scenario.phases.iter().find(|result| result.name == phase);
    let over = |a: f64, b: Option<f64>| b.filter(|b| *b > 0.0).map(|b| a / b);
    let (alone, plain) = (find(Phase::Alone), find(Phase::BestEffort));
    let phases = scenario.phases.iter();
    phases
        .map(|result| {
            let batch = result.name != Phase::Alone;
            let or_dash = |text: String| if batch { text } else { "–".to_owned() };
            let p99_over = over(result.ls.p99_us, alone.map(|alone| alone.ls.p99_us));
            let work_over = over(result.be.ops_per_s, plain.map(|plain| plain.be.ops_per_s));
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

/// A quotient with `≈` where the ranges behind it overlap.
fn marked(value: Option<f64>, verdict: Option<Verdict>, itself: bool) -> String {
    let same = !itself && verdict == Some(Verdict::Indistinguishable);
    format!("{}{}", if same { "≈ " } else { "" }, ratio(value))
}

/// A range of latencies, in milliseconds.
#[must_use]
pub fn span((low, high): (f64, f64)) -> String {
    let bare = |us: f64| latency(us).replace("\u{a0}ms", "");
    format!("{}–{}", bare(low), bare(high))
}

fn plain_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    // Cells are padded to the column; nobody wants that at the ends of lines.
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Everything the terminal shows at the end.
#[must_use]
pub fn text(suite: &Suite) -> String {
    let mut parts = Vec::new();
    for scenario in &suite.scenarios {
        parts.push(scenario_text(scenario, suite.scenarios.len() > 1));
    }
    if suite.scenarios.len() > 1 {
        parts.push(overview(suite));
    }
    if let Some(emu) = suite.scenarios.iter().find_map(|one| one.ratios.emu) {
        parts.push(format!(
            "  effective machine utilisation, managed (cpu): {emu:.2}"
        ));
    }
    let lacks = lacks(&suite.setup);
    parts.extend(lacks.map(|sentence| format!("  {sentence}")));
    parts.join("\n\n")
}

/// What this machine lacks for the figures to be worth what they could be.
pub fn lacks(setup: &Setup) -> impl Iterator<Item = String> {
    let unprotected = (!setup.enforced).then(|| {
        let why = setup.unenforced.as_deref();
        format!(
            "Nothing was protected, whatever a phase is called: {}.",
            why.unwrap_or("control groups were not enforced")
        )
    });
    let blind = (setup.enforced && !setup.psi).then(|| {
        "This kernel tells no pressure per group (PSI): koordlet goes by run-queue delay."
            .to_owned()
    });
    [unprotected, blind].into_iter().flatten()
}

/// Why a scenario has not all its figures.
#[must_use]
pub fn missing(scenario: &ScenarioResult) -> Option<String> {
    let why = scenario.why.as_deref()?;
    Some(match scenario.phases.is_empty() {
        true => format!("Not measured: {why}."),
        false => format!("Not measured to its end: {why}."),
    })
}

fn scenario_text(scenario: &ScenarioResult, heading: bool) -> String {
    let mut lines = Vec::new();
    if heading {
        lines.push(format!(" {}: {}", scenario.name, scenario.title));
    }
    if let Some(missing) = missing(scenario) {
        lines.push(format!("  {missing}"));
    }
    if !scenario.phases.is_empty() {
        let rows = rows(scenario).into_iter().map(Vec::from);
        lines.push(plain_table(&HEADER, rows));
        lines.push(String::new());
    }
    for sentence in &scenario.words {
        lines.push(format!("  {sentence}"));
    }
    for result in &scenario.phases {
        lines.extend(noise(result));
    }
    lines.join("\n")
}

fn noise(result: &PhaseResult) -> Option<String> {
    let rejected = result
        .repeats
        .iter()
        .filter(|run| run.rejected.is_some())
        .count();
    let counts = if result.counted == 0 {
        "and count all the same"
    } else {
        "and do not count"
    };
    (rejected > 0).then(|| {
        format!(
            "  {rejected} of {} windows of {} were noisy {counts}.",
            result.repeats.len(),
            result.name.name()
        )
    })
}

/// One row per scenario.
fn overview(suite: &Suite) -> String {
    let header = [
        "scenario",
        "besteffort / alone",
        "suppressed / alone",
        "managed / alone",
        "batch managed / besteffort",
        "batch managed / suppressed",
        "back after",
    ];
    let rows = suite.scenarios.iter().map(|one| {
        let ratios = &one.ratios;
        let name = match one.ran {
            true => one.name.clone(),
            false if one.phases.is_empty() => format!("{} (not measured)", one.name),
            false => format!("{} (not all)", one.name),
        };
        vec![
            name,
            ratio(ratios.p99_besteffort_over_alone),
            ratio(ratios.p99_suppressed_over_alone),
            ratio(ratios.p99_managed_over_alone),
            ratio(ratios.be_managed_over_besteffort),
            ratio(ratios.be_managed_over_suppressed),
            one.recovery_ms
                .map_or_else(|| "–".to_owned(), |ms| format!("{ms:.0}\u{a0}ms")),
        ]
    });
    plain_table(&header, rows)
}
