//! The table and the page of `koord demo descheduler`.

use super::{DeschedulerOutcome, LoadSpread, Sample};
use crate::demo::page::{Page, escape};
use crate::demo::table::render;
use comfy_table::{Table, presets};
use std::fmt::Write as _;

/// The pictures' size, in their own units.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 220.0;
const KEY: &str = "div class=\"key\"";
/// Rows of the table in the terminal; the page has all nodes.
const ROWS: usize = 24;

const MORE_STYLE: &str = ".grid{grid-template-columns:repeat(auto-fit,minmax(min(100%,280px),1fr))}svg{height:220px}path.node{stroke-width:1.5;fill:none;vector-effect:non-scaling-stroke;\
    stroke:var(--work);opacity:.75}path.node.first{stroke:var(--bad)}path.start{stroke:var(--soft);stroke-width:1;\
    stroke-dasharray:4 4;fill:none;vector-effect:non-scaling-stroke}path.low{stroke:var(--good);stroke-width:1;\
    stroke-dasharray:6 4;fill:none;vector-effect:non-scaling-stroke}path.high{stroke:var(--cap);stroke-width:1;\
    stroke-dasharray:6 4;fill:none;vector-effect:non-scaling-stroke}rect.cool{fill:var(--work)}\
    rect.hot{fill:var(--bad)}rect.idle{fill:var(--good)}.dot.first{background:var(--bad)}\
    .dot.hot{background:var(--bad)}.dot.cool,.dot.late{background:var(--work)}.dot.idle{background:var(--good)}";

const CAVEAT: &str = "Nodes are simulated, and so is what their pods use; nothing waits for a container. API server, \
    controllers, scheduler and descheduler are real. Usage is averaged over 2 s, cycles are 1 s apart and a workload may \
    have moves every 2 s, so that minutes of a real cluster are seconds here.";

fn about(outcome: &DeschedulerOutcome) -> String {
    let setup = &outcome.setup;
    format!(
        "{} simulated nodes of {} CPUs; {} of them have all {} pods when the others join. LowNodeLoad moves pods from \
         nodes above {} % to nodes below {} %; each has its new place reserved before it is evicted.",
        setup.nodes.len(),
        setup.cpus,
        setup.first,
        setup.pods,
        setup.high,
        setup.low,
    )
}

/// Returns the figures in one line.
fn headline(outcome: &DeschedulerOutcome) -> String {
    let (before, after) = (&outcome.before, &outcome.after);
    format!(
        "{} moves: hot nodes {} to {}, p95 of load {:.0} % to {:.0} %, standard deviation {:.0} to {:.0} points",
        outcome.moves, before.hot, after.hot, before.p95, after.p95, before.stddev, after.stddev,
    )
}

/// Returns the sentences about the run.
fn sentences(outcome: &DeschedulerOutcome) -> Vec<String> {
    let mut sentences = vec![match outcome.seconds_to_cool {
        Some(seconds) => format!("The last node had cooled after {seconds:.0} s."),
        None if outcome.after.hot == 1 => "One node was still hot at the end.".to_owned(),
        None => format!("{} nodes were still hot at the end.", outcome.after.hot),
    }];
    sentences.push(format!(
        "Of {} pods at least {} ran whenever they were counted, twice a second; {}.",
        outcome.setup.pods,
        outcome.fewest_running,
        match outcome.max_moves_per_pod {
            0 => "no pod was moved".to_owned(),
            1 => "no pod was moved twice".to_owned(),
            most => format!("one pod was moved {most} times"),
        },
    ));
    if outcome.failures > 0 {
        let first = outcome.failure.as_deref().unwrap_or_default();
        let noun = if outcome.failures == 1 { "job" } else { "jobs" };
        sentences.push(format!(
            "{} {noun} failed, the first with: {first}.",
            outcome.failures
        ));
    }
    sentences
}

/// Returns the loads before, in the middle of the moves, and at the end.
fn moments(outcome: &DeschedulerOutcome) -> [(&'static str, Option<&Sample>); 3] {
    let samples = &outcome.samples;
    let before = samples.iter().rfind(|sample| sample.second <= 0.0);
    let half = outcome.moves.div_ceil(2);
    let during = samples.iter().find(|sample| sample.moves >= half.max(1));
    [
        ("before", before),
        ("during", during),
        ("after", samples.last()),
    ]
}

/// Returns the table for the terminal.
pub(super) fn table(outcome: &DeschedulerOutcome) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["node", "before", "during", "after", ""]);
    let moments = moments(outcome);
    let load = |sample: Option<&Sample>, at: usize| {
        sample.and_then(|sample| sample.loads.get(at)).copied()
    };
    for (at, name) in outcome.setup.nodes.iter().enumerate().take(ROWS) {
        let mut row = vec![name.clone()];
        for (_, sample) in &moments {
            row.push(load(*sample, at).map_or_else(String::new, |load| format!("{load:.0} %")));
        }
        let bars = [moments[0].1, moments[2].1].map(|sample| bar(load(sample, at)));
        row.push(bars.join(" "));
        table.add_row(row);
    }
    let mut text = render(table, 1..4);
    if let Some(more) = outcome.setup.nodes.len().checked_sub(ROWS + 1) {
        let _ = write!(text, "\n and {} more nodes", more + 1);
    }
    let _ = write!(text, "\n\n  {}.", headline(outcome));
    for sentence in sentences(outcome) {
        let _ = write!(text, "\n  {sentence}");
    }
    let _ = write!(text, "\n  {}\n  {CAVEAT}", about(outcome));
    text
}

/// Formats a load as ten characters.
fn bar(load: Option<f64>) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 10"
    )]
    let full = (load.unwrap_or_default() / 10.0).round().clamp(0.0, 10.0) as usize;
    format!("{}{}", "█".repeat(full), "·".repeat(10 - full))
}

/// Returns the page.
pub(super) fn html(outcome: &DeschedulerOutcome) -> String {
    Page::document("koord: descheduling", MORE_STYLE, |page| {
        page.text("h1", &headline(outcome));
        page.text("p class=\"soft\"", &about(outcome));
        for sentence in sentences(outcome) {
            page.text("p", &sentence);
        }
        page.text("h2", "Load of each node");
        page.element("div class=\"grid\"", |page| {
            for (when, sample) in moments(outcome) {
                if let Some(sample) = sample {
                    page.panel(|page| bars(page, outcome, when, sample));
                }
            }
        });
        let dots = [("hot", "hot"), ("cool", "neither"), ("idle", "takes pods")];
        page.key(KEY, &dots, "");
        over_time(page, outcome);
        spreads(page, outcome);
        page.text("p class=\"soft\"", CAVEAT);
    })
}

fn height(load: f64) -> f64 {
    HEIGHT - 1.0 - (HEIGHT - 2.0) * (load / 100.0).clamp(0.0, 1.0)
}

/// Draws lines at both thresholds.
fn thresholds(page: &mut Page, outcome: &DeschedulerOutcome) {
    let setup = &outcome.setup;
    for (class, at) in [("low", setup.low), ("high", setup.high)] {
        let y = height(f64::from(at));
        write!(
            page,
            "<path class=\"{class}\" d=\"M0 {y:.1} L{WIDTH} {y:.1}\"/>"
        );
    }
}

/// Draws a bar for each node.
#[allow(clippy::cast_precision_loss, reason = "points of a picture")]
fn bars(page: &mut Page, outcome: &DeschedulerOutcome, when: &str, sample: &Sample) {
    let setup = &outcome.setup;
    let hot = LoadSpread::from_loads(&sample.loads, f64::from(setup.high)).hot;
    let moves = sample.moves;
    page.text("h4", &format!("{when}: {hot} hot, {moves} pods moved"));
    let label = format!("load by node, {when}");
    page.chart((WIDTH, HEIGHT), &label, |page| {
        let step = WIDTH / sample.loads.len().max(1) as f64;
        for (at, load) in sample.loads.iter().enumerate() {
            let class = match load {
                load if *load > f64::from(setup.high) => "hot",
                load if *load < f64::from(setup.low) => "idle",
                _ => "cool",
            };
            let name = setup.nodes.get(at).map_or("", String::as_str);
            let top = height(*load);
            write!(
                page,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                 <title>{}: {load:.0} %</title></rect>",
                (at as f64).mul_add(step, step * 0.1),
                step * 0.8,
                HEIGHT - top,
                escape(name),
            );
        }
        thresholds(page, outcome);
    });
    let name = |name: Option<&String>| name.cloned().unwrap_or_default();
    let (first, last) = (name(setup.nodes.first()), name(setup.nodes.last()));
    page.axis("axis", [&first, "0 to 100 % of CPU", &last]);
}

/// Draws a line for each node.
fn over_time(page: &mut Page, outcome: &DeschedulerOutcome) {
    let samples = &outcome.samples;
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return;
    };
    let (begin, end) = (first.second, last.second);
    let span = (end - begin).max(f64::MIN_POSITIVE);
    let x = |second: f64| (second - begin) / span * WIDTH;
    page.text("h2", "Load over time");
    page.panel(|page| {
        page.chart((WIDTH, HEIGHT), "load of each node over time", |page| {
            for at in 0..outcome.setup.nodes.len() {
                let class = if at < outcome.setup.first {
                    " first"
                } else {
                    ""
                };
                let path = line(samples, at, x);
                write!(page, "<path class=\"node{class}\" d=\"{path}\"/>");
            }
            thresholds(page, outcome);
            let start = x(0.0);
            write!(
                page,
                "<path class=\"start\" d=\"M{start:.1} 0 L{start:.1} {HEIGHT}\"/>"
            );
        });
        let (begin, end) = (format!("{begin:.0} s"), format!("{end:.0} s"));
        page.axis("axis", [&begin, "0 to 100 % of CPU", &end]);
        let high = format!("{} %: hot above", outcome.setup.high);
        let low = format!("{} %: takes pods below", outcome.setup.low);
        let dots = [
            ("first", "nodes that were there first"),
            ("late", "nodes that joined"),
            ("cap", &high),
            ("idle", &low),
        ];
        let start = "upright line, at 0 s: the descheduler starts";
        page.key(KEY, &dots, start);
    });
}

/// Returns the path of the load of the node at an index, over time.
fn line(samples: &[Sample], node: usize, x: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for sample in samples {
        let load = sample.loads.get(node).copied().unwrap_or_default();
        let letter = if path.is_empty() { "M" } else { " L" };
        let _ = write!(path, "{letter}{:.1} {:.1}", x(sample.second), height(load));
    }
    path
}

/// Appends the table of the loads before and after.
fn spreads(page: &mut Page, outcome: &DeschedulerOutcome) {
    page.text("h2", "Before and after");
    page.table("table", |page| {
        let titles = [
            "",
            "hot nodes",
            "highest",
            "p95",
            "mean",
            "standard deviation",
        ];
        page.row("tr", "th", titles);
        for (when, spread) in [("before", &outcome.before), ("after", &outcome.after)] {
            let LoadSpread {
                mean,
                stddev,
                p95,
                max,
                hot,
            } = spread;
            let cells = [
                when.to_owned(),
                hot.to_string(),
                format!("{max:.0} %"),
                format!("{p95:.0} %"),
                format!("{mean:.0} %"),
                format!("{stddev:.1} points"),
            ];
            page.row("tr", "td", cells);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::descheduler::DeschedulerSetup;

    fn outcome() -> DeschedulerOutcome {
        let sample = |second: f64, moves: usize, loads: [f64; 3]| Sample {
            second,
            moves,
            loads: loads.to_vec(),
        };
        let samples = vec![
            sample(-1.0, 0, [90.0, 0.0, 1.0]),
            sample(0.0, 0, [90.0, 1.0, 1.0]),
            sample(5.0, 1, [75.0, 16.0, 1.0]),
            sample(9.0, 2, [60.0, 16.0, 16.0]),
        ];
        DeschedulerOutcome {
            setup: DeschedulerSetup {
                nodes: ["<a>", "b", "c"].map(str::to_owned).to_vec(),
                first: 1,
                cpus: 16,
                pods: 9,
                low: 45,
                high: 65,
            },
            before: LoadSpread::from_loads(&[90.0, 1.0, 1.0], 65.0),
            after: LoadSpread::from_loads(&[60.0, 16.0, 16.0], 65.0),
            moves: 2,
            failures: 1,
            failure: Some("Timeout: <late>".to_owned()),
            max_moves_per_pod: 1,
            fewest_running: 8,
            seconds_to_cool: Some(9.0),
            samples,
        }
    }

    #[test]
    fn table_has_a_row_per_node_and_the_result() {
        let text = table(&outcome());
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .take(3)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[0],
            [
                "<a>",
                "90",
                "%",
                "75",
                "%",
                "60",
                "%",
                "█████████·",
                "██████····"
            ]
        );
        assert_eq!(rows[2][..7], ["c", "1", "%", "1", "%", "16", "%"]);
        for sentence in [
            "2 moves: hot nodes 1 to 0, p95 of load 90 % to 60 %, standard deviation 42 to 21 points.",
            "had cooled after 9 s",
            "Of 9 pods at least 8 ran whenever they were counted, twice a second; no pod was moved twice.",
            "1 job failed, the first with: Timeout: <late>",
        ] {
            assert!(text.contains(sentence), "{sentence}: {text}");
        }
        let mut hot = outcome();
        (hot.seconds_to_cool, hot.after.hot) = (None, 1);
        assert!(
            table(&hot).contains("One node was still hot"),
            "{}",
            table(&hot)
        );
    }

    #[test]
    fn the_pictures_are_of_three_moments_and_of_all_the_time() {
        let page = html(&outcome());
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches("<rect class=\"hot\"").count(), 2, "{page}");
        assert!(!page.contains("NaN") && !page.contains("<late>") && !page.contains("<a>:"));
        // From −1 s to 9 s, the start is at a tenth.
        assert!(page.contains("M100.0 0 L100.0 220"), "{page}");
    }

    #[test]
    fn the_figures_are_read_back() {
        let text = serde_json::to_string(&outcome()).unwrap();
        assert!(text.contains("\"maxMovesPerPod\":1") && text.contains("\"stddev\""));
        assert_eq!(
            serde_json::from_str::<DeschedulerOutcome>(&text).unwrap(),
            outcome()
        );
    }
}
