//! The pictures of the report. Bars are HTML, so that their labels keep their size on every screen
//! and never overlap; CPU over time is SVG. Colors are the page's, for light and dark.

use super::Page;
use crate::demo::result::{CpuSample, Phase, PhaseResult, PhaseRun, ScenarioResult, Verdict};
use crate::demo::summary::latency;
use crate::demo::table::{quotient, span};
use std::fmt::Write as _;

/// Up to the first multiple of `alone`, a p99 is as good as alone; up to the second, not yet bad.
const GOOD: f64 = 1.15;
const BAD: f64 = 1.5;

/// Compares a p99 with that of `alone`: returns the CSS class of its color, and a word for it. Gray where
/// there is no multiple: noise.
#[must_use]
pub fn cue(times: Option<f64>) -> (&'static str, &'static str) {
    match times {
        None => ("noise", ""),
        Some(times) if times * GOOD < 1.0 => ("good", "below alone"),
        Some(times) if times <= GOOD => ("good", "as alone"),
        Some(times) if times <= BAD => ("fair", "worse"),
        Some(_) => ("bad", "much worse"),
    }
}

/// Returns the run whose p99 is nearest the phase's median, for pictures of one run.
#[must_use]
pub fn representative(result: &PhaseResult) -> Option<&PhaseRun> {
    result.counted_runs().min_by(|a, b| {
        let distance = |run: &PhaseRun| (run.ls.p99_us - result.ls.p99_us).abs();
        distance(a).total_cmp(&distance(b))
    })
}

/// A bar: a share of its track, the range of the runs and every run as a dot.
struct Bar {
    class: &'static str,
    value: f64,
    runs: Vec<f64>,
    text: String,
    note: String,
}

impl Bar {
    /// Appends the bar on a scale that ends at `top`.
    fn html(&self, page: &mut Page, top: f64) {
        let percent = |value: f64| (value / top.max(f64::MIN_POSITIVE) * 100.0).clamp(0.0, 100.0);
        page.element("div class=\"track\"", |page| {
            let (class, width) = (self.class, percent(self.value));
            write!(
                page,
                "<i class=\"bar {class}\" style=\"width:{width:.2}%\"></i>"
            );
            if self.runs.len() > 1 {
                for run in &self.runs {
                    let beyond = if *run > top { " beyond" } else { "" };
                    let left = percent(*run);
                    write!(
                        page,
                        "<i class=\"run{beyond}\" style=\"left:{left:.2}%\"></i>"
                    );
                }
            }
        });
        let (text, note) = (&self.text, &self.note);
        write!(
            page,
            "<div class=\"value\"><b>{text}</b> <span>{note}</span></div>"
        );
    }
}

/// Appends a row of small bars: a label, and what `content` appends as the bar.
fn small(page: &mut Page, class: &str, label: &str, content: impl FnOnce(&mut Page)) {
    page.element(&format!("div class=\"{class}\""), |page| {
        page.text("span", label);
        pair(page, content);
    });
}

/// Appends a bar and its figure.
fn pair(page: &mut Page, content: impl FnOnce(&mut Page)) {
    page.element("div class=\"pair\"", content);
}

fn values(result: &PhaseResult, of: fn(&PhaseRun) -> f64) -> Vec<f64> {
    result.counted_runs().map(of).collect()
}

/// Returns the end of the scale: the largest run, but not far beyond the largest median, or one outlier would
/// flatten all bars.
fn top<'a>(bars: impl Iterator<Item = &'a Bar>) -> f64 {
    let (median, run) = bars.fold((0.0_f64, 0.0_f64), |(median, run), bar| {
        let runs = bar.runs.iter().copied().fold(run, f64::max);
        (median.max(bar.value), runs.max(bar.value))
    });
    run.min(1.5 * median)
}

/// Returns the picture of a scenario: p99 of the service and batch work done, a row per phase.
#[must_use]
pub fn scenario(scenario: &ScenarioResult) -> String {
    let find = |phase: Phase| scenario.phases.iter().find(|result| result.name == phase);
    let (reference, plain) = (find(Phase::Alone), find(Phase::BestEffort));
    let rows: Vec<(Phase, Bar, Option<Bar>)> = scenario
        .phases
        .iter()
        .map(|result| {
            let times = quotient(result, reference, |it| it.ls.p99_us);
            let (class, word) = cue(times);
            let is_same = reference
                .is_some_and(|alone| result.p99_against(alone) == Verdict::Indistinguishable);
            let word = if is_same { "≈ alone" } else { word };
            let p999_text = format!("p99.9 {}", latency(result.ls.p999_us));
            let note = match times {
                Some(times) if result.name != Phase::Alone => {
                    format!("{times:.2}×, {word}<br>{p999_text}")
                }
                _ if result.counted == 0 => format!("noisy, no ratio<br>{p999_text}"),
                _ => p999_text,
            };
            let p99_bar = Bar {
                class,
                value: result.ls.p99_us,
                runs: values(result, |run| run.ls.p99_us),
                text: latency(result.ls.p99_us),
                note,
            };
            let batch_bar = (result.name != Phase::Alone).then(|| Bar {
                class: if result.counted == 0 { "noise" } else { "work" },
                value: result.be.ops_per_s,
                runs: values(result, |run| run.be_ops_per_s),
                text: format!("{:.0}/s", result.be.ops_per_s),
                note: match quotient(result, plain, |it| it.be.ops_per_s) {
                    Some(times) if result.name != Phase::BestEffort => format!("{times:.2}×"),
                    _ => String::new(),
                },
            });
            (result.name, p99_bar, batch_bar)
        })
        .collect();
    let p99_top = top(rows.iter().map(|(_, p99_bar, _)| p99_bar));
    let batch_top = top(rows
        .iter()
        .filter_map(|(_, _, batch_bar)| batch_bar.as_ref()));
    let head = format!(
        "<div class=\"head\"><span></span>\
         <span>1 request of 100 takes longer than this <em>(p99; shorter is better)</em></span>\
         <span>batch work: {} per second <em>(longer is better)</em></span></div>",
        scenario.operation
    );
    Page::fragment(|page| {
        let tag = "div class=\"picture\" role=\"img\" aria-label=\"p99 of the service and batch work by phase\"";
        page.element(tag, |page| {
            write!(page, "{head}");
            for (phase, p99_bar, batch_bar) in &rows {
                let class = if *phase == Phase::Managed {
                    " ours"
                } else {
                    ""
                };
                page.element(&format!("div class=\"row{class}\""), |page| {
                    let (label, name) = (phase.label(), phase.name());
                    write!(
                        page,
                        "<div class=\"label\">{label}<small>{name}</small></div>"
                    );
                    pair(page, |page| p99_bar.html(page, p99_top));
                    pair(page, |page| match batch_bar {
                        Some(bar) => bar.html(page, batch_top),
                        None => write!(
                            page,
                            "<div class=\"track none\"></div><div class=\"value\"><span>no batch</span></div>"
                        ),
                    });
                });
            }
            page.element("div class=\"row scale\"", |page| {
                write!(page, "<div class=\"label\"></div>");
                pair(page, |page| scale(page, p99_top, 1000.0, "ms"));
                pair(page, |page| scale(page, batch_top, 1.0, "/s"));
            });
        });
    })
}

/// Returns the marks of an axis: about five round numbers from 0 to `top`.
fn ticks(top: f64) -> Vec<f64> {
    if !top.is_finite() || top <= 0.0 {
        return vec![0.0];
    }
    let decade = 10_f64.powf((top / 5.0).log10().floor());
    let fits = |factor: &&f64| top / (decade * **factor) <= 5.0;
    let step = decade * [1.0, 2.0, 5.0].iter().find(fits).unwrap_or(&10.0);
    let marks = (0..=5).map(|number| f64::from(number) * step);
    marks.take_while(|mark| *mark <= top * 1.000_001).collect()
}

/// Formats a number of an axis without trailing zeros.
fn tick(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

/// Appends the axis under bars that end at `top`: numbers in `unit`, which is `factor` of the bars' own.
fn scale(page: &mut Page, top: f64, factor: f64, unit: &str) {
    page.element("div class=\"ticks\"", |page| {
        for mark in ticks(top / factor) {
            let at = (mark * factor / top.max(f64::MIN_POSITIVE) * 100.0).clamp(0.0, 100.0);
            write!(page, "<i style=\"left:{at:.2}%\">{}</i>", tick(mark));
        }
    });
    write!(page, "<div class=\"value\"><span>{unit}</span></div>");
}

/// Returns latencies by percentile: a block per percentile with a bar per phase. These are the medians of the
/// table, every one labelled.
#[must_use]
pub fn percentiles(phases: &[PhaseResult]) -> String {
    type Of = (fn(&PhaseResult) -> f64, fn(&PhaseRun) -> f64);
    let alone = phases.iter().find(|result| result.name == Phase::Alone);
    let blocks: [(&str, Of); 4] = [
        ("p50", (|r| r.ls.p50_us, |run| run.ls.p50_us)),
        ("p90", (|r| r.ls.p90_us, |run| run.ls.p90_us)),
        ("p99", (|r| r.ls.p99_us, |run| run.ls.p99_us)),
        ("p99.9", (|r| r.ls.p999_us, |run| run.ls.p999_us)),
    ];
    Page::fragment(|page| {
        page.element("div class=\"percentiles\"", |page| {
            for (name, (median, one)) in blocks {
                let bars: Vec<(Phase, Bar)> = phases
                    .iter()
                    .map(|result| (result.name, percentile(result, alone, median, one)))
                    .collect();
                let top = top(bars.iter().map(|(_, bar)| bar));
                block(page, name, &bars, top, 1000.0);
            }
        });
    })
}

/// Returns the bar of a percentile in a phase.
fn percentile(
    result: &PhaseResult,
    alone: Option<&PhaseResult>,
    median: fn(&PhaseResult) -> f64,
    one: fn(&PhaseRun) -> f64,
) -> Bar {
    let value = median(result);
    let runs = values(result, one);
    let range = runs
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(low, high), run| {
            (low.min(*run), high.max(*run))
        });
    let note = match runs.len() {
        0 | 1 => String::new(),
        _ => span(range),
    };
    Bar {
        class: cue(quotient(result, alone, median)).0,
        value,
        runs,
        text: latency(value),
        note,
    }
}

/// Appends a small bar for each phase, and their scale in milliseconds, which have `factor` of the bars'
/// unit.
fn block(page: &mut Page, title: &str, bars: &[(Phase, Bar)], top: f64, factor: f64) {
    page.element("div class=\"block\"", |page| {
        page.text("h4", title);
        for (phase, bar) in bars {
            small(page, "small", phase.label(), |page| bar.html(page, top));
        }
        small(page, "small scale", "", |page| {
            scale(page, top, factor, "ms");
        });
    });
}

/// Returns the recovery times of p99 after a step of the load, a bar per phase; `None` if the load has no
/// steps.
#[must_use]
pub fn recovery(scenario: &ScenarioResult) -> Option<String> {
    let bars: Vec<(Phase, Bar)> = scenario
        .phases
        .iter()
        .filter_map(|result| {
            let ms = result.recovery_ms?;
            let class = match ms {
                ms if ms <= 100.0 => "good",
                ms if ms <= 200.0 => "fair",
                _ => "bad",
            };
            let bar = Bar {
                class,
                value: ms,
                runs: Vec::new(),
                text: format!("{ms:.0}\u{a0}ms"),
                note: String::new(),
            };
            Some((result.name, bar))
        })
        .collect();
    // So that 0 and 20 ms do not look as far apart as 0 and 1 s.
    let top = top(bars.iter().map(|(_, bar)| bar)).max(200.0);
    if bars.is_empty() {
        return None;
    }
    let title = "After the load's step: until p99 is back (shorter is better)";
    Some(Page::fragment(|page| block(page, title, &bars, top, 1.0)))
}

/// Height of a layer of the stack, as a fraction of the machine.
type Height = fn(&CpuSample) -> f64;

/// Draws CPU over time of one run, stacked by class, with the cap on batch work as a line and koordlet's
/// writes as ticks along the top.
#[must_use]
pub fn cpu(run: &PhaseRun, cpus: usize) -> String {
    const WIDTH: f64 = 400.0;
    const HEIGHT: f64 = 120.0;
    let begin = run.cpu.first().map_or(0.0, |sample| sample.at_s);
    let end = run
        .cpu
        .last()
        .map_or(1.0, |sample| sample.at_s)
        .max(begin + 0.1);
    let x = |at_s: f64| (at_s - begin) / (end - begin) * WIDTH;
    let y = |share: f64| 8.0 + (1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - 8.0);
    Page::fragment(|page| {
        page.element("div class=\"plot\"", |page| {
            page.axis("levels", ["100\u{a0}%", "50\u{a0}%", "0"]);
            page.chart((WIDTH, HEIGHT), "CPU over time", |page| {
                areas(page, run, x, y, (WIDTH, HEIGHT));
                for share in [0.25, 0.5, 0.75, 1.0] {
                    let at = y(share);
                    write!(
                        page,
                        "<path class=\"grid\" d=\"M0 {at:.1} L{WIDTH} {at:.1}\"/>"
                    );
                }
                let cap = cap(run, cpus, x, y);
                if !cap.is_empty() {
                    write!(page, "<path class=\"cap\" d=\"{cap}\"/>");
                }
                let writes = run.writes.iter().map(|write| write.at_s);
                for at in writes.filter(|at| (begin..=end).contains(at)).map(x) {
                    write!(page, "<path class=\"tick\" d=\"M{at:.1} 0 L{at:.1} 6\"/>");
                }
            });
        });
        let seconds = [begin, f64::midpoint(begin, end), end];
        let seconds = seconds.map(|at| format!("{at:.1}\u{a0}s"));
        page.axis("axis seconds", seconds.each_ref().map(String::as_str));
    })
}

/// Draws the stacked areas.
fn areas(
    page: &mut Page,
    run: &PhaseRun,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
    (width, height): (f64, f64),
) {
    // From the back to the front: each area covers the lower part of the one behind it.
    let stacks: [(&str, Height); 3] = [
        ("other", |sample| {
            sample.service + sample.batch + sample.other
        }),
        ("batch", |sample| sample.service + sample.batch),
        ("service", |sample| sample.service),
    ];
    for (class, share) in stacks {
        let mut path = format!("M0 {height}");
        for sample in &run.cpu {
            let _ = write!(path, " L{:.1} {:.1}", x(sample.at_s), y(share(sample)));
        }
        write!(
            page,
            "<path class=\"{class}\" d=\"{path} L{width} {height} Z\"/>"
        );
    }
}

/// Returns the line of the cap on batch work: a part for each time that there is one.
fn cap(run: &PhaseRun, cpus: usize, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a count of CPUs")]
    let machine = cpus.max(1) as f64;
    let mut line = String::new();
    let mut step = 'M';
    for sample in &run.cpu {
        let Some(cap) = sample.be_cap_cores else {
            step = 'M';
            continue;
        };
        let at = y(sample.service + cap / machine);
        let _ = write!(line, " {step}{:.1} {at:.1}", x(sample.at_s));
        step = 'L';
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::result::tests::{noisy, phase_of};

    fn result() -> ScenarioResult {
        ScenarioResult {
            phases: vec![
                phase_of(Phase::Alone, &[500.0, 510.0]),
                phase_of(Phase::BestEffort, &[40_000.0, 50_000.0]),
                phase_of(Phase::Managed, &[550.0, 560.0]),
            ],
            ..ScenarioResult::default()
        }
    }

    #[test]
    fn every_bar_has_its_figure_and_a_cue() {
        let picture = scenario(&result());
        for text in ["0.51\u{a0}ms", "45.0\u{a0}ms", "much worse", "as alone"] {
            assert!(picture.contains(text), "{text} is missing in {picture}");
        }
        assert_eq!(picture.matches("class=\"bar bad\"").count(), 1);
    }

    #[test]
    fn phase_of_noise_only_is_gray_and_has_no_ratio() {
        let mut result = result();
        result.phases[2] = noisy(Phase::Managed, &[200.0, 210.0]);
        let picture = scenario(&result);
        let tail = picture.split("row ours").nth(1).unwrap();
        let row = tail.split("row scale").next().unwrap();
        assert_eq!(row.matches("class=\"bar noise\"").count(), 2, "{row}");
        assert!(
            row.contains("noisy, no ratio") && !row.contains('×'),
            "{row}"
        );
        // Without a clean `alone`, nothing is good or bad.
        result.phases[0] = noisy(Phase::Alone, &[500.0]);
        let picture = scenario(&result) + &percentiles(&result.phases);
        for class in ["bar good", "bar fair", "bar bad"] {
            assert!(!picture.contains(class), "{class}: {picture}");
        }
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        for (top, marks) in [
            (4.0, vec![0.0, 1.0, 2.0, 3.0, 4.0]),
            (0.71, vec![0.0, 0.2, 0.4, 0.6]),
            (563.0, vec![0.0, 200.0, 400.0]),
            (1700.0, vec![0.0, 500.0, 1000.0, 1500.0]),
            (0.0, vec![0.0]),
            (f64::NAN, vec![0.0]),
        ] {
            let shown: Vec<String> = ticks(top).into_iter().map(tick).collect();
            let expected: Vec<String> = marks.into_iter().map(tick).collect();
            assert_eq!(shown, expected, "{top}");
        }
        assert_eq!(tick(0.2), "0.2");
        assert_eq!(tick(1500.0), "1500");
        let picture = scenario(&result());
        assert_eq!(picture.matches("class=\"ticks\"").count(), 2);
    }

    #[test]
    fn a_stray_run_does_not_flatten_the_others() {
        let mut result = result();
        result.phases[2] = phase_of(Phase::Managed, &[550.0, 560.0, 900_000.0]);
        let picture = scenario(&result);
        // The scale ends at 1.5 times 45 ms.
        assert!(
            picture.contains("bar bad\" style=\"width:66.67%\""),
            "{picture}"
        );
        assert!(picture.contains("run beyond\" style=\"left:100.00%\""));
        assert_eq!(picture.matches("beyond").count(), 1);
    }

    #[test]
    fn the_way_back_is_drawn_where_there_is_one() {
        let mut result = result();
        assert_eq!(recovery(&result), None);
        for (phase, ms) in result.phases.iter_mut().zip([0.0, 1000.0, 60.0]) {
            phase.recovery_ms = Some(ms);
        }
        let picture = recovery(&result).unwrap();
        for text in [
            "1000\u{a0}ms",
            "bar bad\" style=\"width:100.00%",
            "bar good\" style=\"width:6.00%",
        ] {
            assert!(picture.contains(text), "{text} is missing in {picture}");
        }
    }

    #[test]
    fn the_percentiles_are_those_of_the_table() {
        let result = result();
        let picture = percentiles(&result.phases);
        for row in crate::demo::table::rows(&result) {
            for cell in [&row[1], &row[2], &row[3], &row[5]] {
                assert!(picture.contains(cell.as_str()), "{cell} is missing");
            }
        }
    }

    #[test]
    fn temporary_cap_is_drawn_while_it_applies() {
        let mut run = phase_of(Phase::Managed, &[1.0]).repeats.remove(0);
        let caps = [None, Some(0.5), Some(0.5), None, Some(0.7)];
        run.cpu = (0..5_u32)
            .zip(caps)
            .map(|(at, cap)| CpuSample {
                at_s: f64::from(at),
                be_cap_cores: cap,
                ..CpuSample::default()
            })
            .collect();
        let svg = cpu(&run, 2);
        let line = svg.split("class=\"cap\" d=\"").nth(1).unwrap();
        assert_eq!(line.split('"').next().unwrap().matches('M').count(), 2);
        assert!(!svg.contains("NaN"));
        run.cpu.clear();
        assert!(cpu(&run, 0).ends_with("</div>"));
    }
}
