//! The page of `koord demo`: the figures of all scenarios.

use super::{Page, escape, picture};
use crate::demo::result::{Phase, PhaseResult, PhaseRun, ScenarioResult, Suite, Verdict};
use crate::demo::summary::latency;
use crate::demo::table::{self, ratio};
use crate::demo::verdict::{self, ScenarioOutcome};

/// Returns the report of the demo as an HTML page.
#[must_use]
pub fn html(suite: &Suite) -> String {
    Page::document("koord: co-location on one machine", "", |page| {
        let first = verdict::first_line(suite);
        let last = verdict::last_line(suite);
        page.text("h1", first.as_ref().unwrap_or(&last));
        page.element("ul class=\"headlines\"", |page| {
            for scenario in &suite.scenarios {
                let class = css_class(scenario.verdict.outcome);
                page.text(&format!("li class=\"{class}\""), &scenario.headline);
            }
        });
        if first.is_some() {
            page.text("p", &last);
        }
        conditions(page, suite);
        if suite.scenarios.len() > 3 {
            overview(page, suite);
        }
        for scenario in &suite.scenarios {
            section(page, scenario, suite);
        }
        page.text("h2", "Under which conditions");
        page.element("ul", |page| {
            for caveat in &suite.caveats {
                page.text("li", caveat);
            }
        });
    })
}

/// Appends the machine, the method, and warnings about missing features.
fn conditions(page: &mut Page, suite: &Suite) {
    let setup = &suite.setup;
    write!(
        page,
        "<p class=\"soft\">{} CPUs, kernel {}, {}; {:.0}\u{a0}s in all. Open-loop load; medians of clean windows \
         of {:.1}\u{a0}s, every window a mark, an arrow where it is off the scale. ≈: the ranges of the windows \
         overlap. Gray: noise, not compared.</p>",
        setup.cpus,
        escape(&setup.kernel),
        escape(&setup.cgroup),
        setup.took_seconds,
        setup.phase_seconds,
    );
    for sentence in table::missing_features(setup) {
        page.text("p class=\"warn\"", &sentence);
    }
}

/// Returns the CSS class of an outcome.
fn css_class(outcome: ScenarioOutcome) -> &'static str {
    match outcome {
        ScenarioOutcome::Won => "good",
        ScenarioOutcome::Harmless => "even",
        ScenarioOutcome::Lost => "bad",
        ScenarioOutcome::NotConclusive | ScenarioOutcome::NotMeasured => "open",
    }
}

/// Appends a row per scenario with a cue for each figure.
fn overview(page: &mut Page, suite: &Suite) {
    page.table("table class=\"overview\"", |page| {
        write!(
            page,
            "<tr><th rowspan=\"2\">neighbor</th>\
             <th colspan=\"3\">p99 of the service, times alone</th>\
             <th colspan=\"2\">batch work of koord, times that of</th></tr>"
        );
        let (plain, fixed) = ("plain <i>Kubernetes</i>", "<i>Koordinator's</i> cap");
        page.row("tr", "th", [plain, fixed, "koord", plain, fixed]);
        for scenario in &suite.scenarios {
            page.element("tr", |page| overview_cells(page, scenario));
        }
    });
    write!(
        page,
        "<p class=\"key\"><span class=\"chip good\">p99 up to 1.15, batch from 0.9</span>\
         <span class=\"chip fair\">in between</span>\
         <span class=\"chip bad\">p99 over 1.5, batch under 0.5</span>\
         <span>≈ the runs' ranges overlap with those of alone</span></p>",
    );
}

/// Appends the cells of a scenario in the overview.
fn overview_cells(page: &mut Page, scenario: &ScenarioResult) {
    let ratios = &scenario.ratios;
    write!(
        page,
        "<td><a href=\"#{0}\">{0}</a><small>{1}</small></td>",
        escape(&scenario.name),
        escape(&scenario.title)
    );
    if scenario.phases.is_empty() {
        let why = scenario.why.as_deref().unwrap_or("not measured");
        page.text("td colspan=\"5\" class=\"l soft\"", why);
        return;
    }
    for (phase, times) in [
        (Phase::BestEffort, ratios.p99_besteffort_over_alone),
        (Phase::Suppressed, ratios.p99_suppressed_over_alone),
        (Phase::Managed, ratios.p99_managed_over_alone),
    ] {
        let (class, word) = picture::cue(times);
        let mark = if overlaps(scenario, phase) {
            "≈ "
        } else {
            ""
        };
        write!(
            page,
            "<td><span class=\"chip {class}\" title=\"{word}\">{mark}{}</span></td>",
            ratio(times)
        );
    }
    for times in [
        ratios.be_managed_over_besteffort,
        ratios.be_managed_over_suppressed,
    ] {
        let class = match times {
            Some(times) if times >= 0.9 => "good",
            Some(times) if times >= 0.5 => "fair",
            Some(_) => "bad",
            None => "",
        };
        write!(
            page,
            "<td><span class=\"chip {class}\">{}</span></td>",
            ratio(times)
        );
    }
}

/// Returns true if the runs of a phase cannot be distinguished from those of `alone`.
fn overlaps(scenario: &ScenarioResult, phase: Phase) -> bool {
    let find = |phase| scenario.phases.iter().find(|result| result.name == phase);
    match (find(Phase::Alone), find(phase)) {
        (Some(alone), Some(result)) => result.p99_against(alone) == Verdict::Indistinguishable,
        _ => false,
    }
}

/// Appends the section of a scenario.
fn section(page: &mut Page, scenario: &ScenarioResult, suite: &Suite) {
    let name = escape(&scenario.name);
    page.element(&format!("section id=\"{name}\""), |page| {
        page.element("h2", |page| {
            page.text("code", &scenario.name);
            page.append(" ");
            page.append(&scenario.title);
        });
        page.text("p class=\"soft\"", &scenario.about);
        if let Some(missing) = table::missing(scenario) {
            page.text("p class=\"warn\"", &missing);
        }
        if !scenario.phases.is_empty() {
            measured(page, scenario, suite);
        }
    });
}

/// Appends the pictures and figures of a measured scenario.
fn measured(page: &mut Page, scenario: &ScenarioResult, suite: &Suite) {
    page.panel(|page| write!(page, "{}", picture::scenario(scenario)));
    if let Some(back) = picture::recovery(scenario) {
        page.panel(|page| write!(page, "{back}"));
    }
    for sentence in &scenario.words {
        page.text("p", sentence);
    }
    let is_open = suite.scenarios.len() == 1;
    details(page, is_open, "Figures and percentiles", |page| {
        figures(page, scenario);
        write!(
            page,
            "<p class=\"soft\">{:.0} requests per second on average, {:.0}\u{a0}µs of CPU each. ≈: the ranges \
             of the runs overlap, the two are indistinguishable.</p>",
            scenario.rate, scenario.service_us,
        );
        page.panel(|page| write!(page, "{}", picture::percentiles(&scenario.phases)));
    });
    details(page, is_open, "CPU over time", |page| {
        cpu(page, scenario, suite.setup.cpus);
    });
    details(page, false, "What koordlet wrote", |page| {
        for result in &scenario.phases {
            if let Some(run) = picture::representative(result) {
                writes(page, result, run);
            }
        }
    });
    details(page, false, "Every run", |page| runs(page, scenario));
}

/// Appends content that a click on its summary shows or hides.
fn details(page: &mut Page, is_open: bool, summary: &str, content: impl FnOnce(&mut Page)) {
    let tag = if is_open { "details open" } else { "details" };
    page.element(tag, |page| {
        page.text("summary", summary);
        content(page);
    });
}

/// Appends the table of a scenario with a row per phase.
fn figures(page: &mut Page, scenario: &ScenarioResult) {
    page.table("table", |page| {
        page.row("tr", "th", table::HEADER);
        for (row, result) in table::rows(scenario).iter().zip(&scenario.phases) {
            let summary = escape(result.name.summary());
            page.row(&format!("tr title=\"{summary}\""), "td", row);
        }
    });
}

fn cpu(page: &mut Page, scenario: &ScenarioResult, cpus: usize) {
    page.key(
        "p class=\"key\"",
        &[
            ("service", "service"),
            ("batch", "batch"),
            ("other", "everything else"),
            ("cap", "cap on batch"),
        ],
        "ticks at the top: koordlet wrote to the kernel",
    );
    page.element("div class=\"grid\"", |page| {
        for result in &scenario.phases {
            if let Some(run) = picture::representative(result) {
                page.panel(|page| {
                    write!(page, "<b>{}</b> ", result.name.label());
                    page.text("span class=\"soft\"", result.name.summary());
                    write!(page, "{}", picture::cpu(run, cpus));
                });
            }
        }
    });
}

/// Appends the writes of koordlet in a run.
fn writes(page: &mut Page, result: &PhaseResult, run: &PhaseRun) {
    const SHOWN: usize = 100;
    let name = result.name.name();
    let count = run.writes.len();
    let shown = if count > SHOWN {
        format!(", the first {SHOWN}")
    } else {
        String::new()
    };
    page.text("h4", &format!("{name}: {count} writes{shown}"));
    if run.writes.is_empty() {
        return;
    }
    page.table("table class=\"wrap\"", |page| {
        write!(
            page,
            "<tr><th>at s</th><th class=\"l\">file</th><th>was</th><th>is</th><th class=\"l\">why</th></tr>"
        );
        for write in run.writes.iter().take(SHOWN) {
            write!(
                page,
                "<tr><td>{:.2}</td><td class=\"l\"><code>{}</code></td><td>{}</td><td>{}</td>\
                 <td class=\"l\">{}</td></tr>",
                write.at_s,
                escape(&write.file),
                escape(&write.old),
                escape(&write.new),
                escape(&write.reason)
            );
        }
    });
}

/// Appends the table of all runs of a scenario.
fn runs(page: &mut Page, scenario: &ScenarioResult) {
    page.table("table", |page| {
        write!(
            page,
            "<tr><th>phase</th><th>repeat</th><th>p50</th><th>p90</th>\
             <th>p99</th><th>p99.9</th><th>requests</th><th>errors</th><th>CPU</th><th>batch/s</th>\
             <th>PSI</th><th>steal</th><th>lag p99</th><th class=\"l\">note</th></tr>"
        );
        for result in &scenario.phases {
            for run in &result.repeats {
                run_row(page, result.name.name(), run);
            }
        }
    });
}

/// Appends a table row with the figures of one run of `phase`.
fn run_row(page: &mut Page, phase: &str, run: &PhaseRun) {
    let tag = match run.rejected {
        Some(_) => "tr class=\"rejected\"",
        None => "tr",
    };
    page.element(tag, |page| {
        write!(
            page,
            "<td>{phase}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{:.0}\u{a0}%</td><td>{:.0}</td><td>{}</td>\
             <td>{:.1}\u{a0}%</td><td>{}</td><td class=\"l\">{}</td>",
            run.repeat,
            latency(run.ls.p50_us),
            latency(run.ls.p90_us),
            latency(run.ls.p99_us),
            latency(run.ls.p999_us),
            run.ls.requests,
            run.ls.errors,
            run.cpu_utilization * 100.0,
            run.be_ops_per_s,
            run.ls_psi_some
                .map_or_else(|| "–".to_owned(), |v| format!("{:.1}\u{a0}%", v * 100.0)),
            run.steal * 100.0,
            latency(run.ls.send_lag_p99_us),
            escape(run.rejected.as_deref().unwrap_or(""))
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::result::tests::noisy;
    use crate::demo::summary;
    use crate::demo::verdict::tests::{enforced, judged, scenario_of};

    fn suite(scenarios: Vec<ScenarioResult>) -> Suite {
        let with_headline = |scenario: ScenarioResult| {
            let mut scenario = judged(scenario);
            scenario.headline = summary::headline(&scenario);
            scenario
        };
        let scenarios: Vec<ScenarioResult> = scenarios.into_iter().map(with_headline).collect();
        Suite {
            setup: enforced(),
            verdict: verdict::judge_suite(&scenarios),
            scenarios,
            ..Suite::default()
        }
    }

    fn three() -> Vec<ScenarioResult> {
        vec![
            scenario_of("a", &[1000.0, 1001.0], &[3000.0, 3001.0], &[1100.0, 1101.0]),
            scenario_of("b", &[1000.0, 1001.0], &[1000.0, 1001.0], &[1000.0, 1001.0]),
            ScenarioResult {
                name: "d".to_owned(),
                why: Some("d needs <root>".to_owned()),
                ..ScenarioResult::default()
            },
        ]
    }

    #[test]
    fn page_has_what_the_terminal_has() {
        let suite = suite(three());
        let page = html(&suite);
        let terminal = table::text(&suite);
        for scenario in &suite.scenarios {
            assert!(terminal.contains(&scenario.headline), "{terminal}");
            assert!(
                page.contains(&escape(&scenario.headline)),
                "{}",
                scenario.headline
            );
        }
        let last = verdict::last_line(&suite);
        assert!(terminal.ends_with(&last) && page.contains(&escape(&last)));
        for text in [
            "<h1>NOT MEASURED: d: d needs &lt;root&gt;.</h1>",
            "class=\"good\">a: won",
            "class=\"even\">b: harmless",
            "class=\"open\">d: not measured",
            "&lt;a&gt;",
            "prefers-color-scheme",
        ] {
            assert!(page.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn page_of_noise_begins_with_not_conclusive() {
        let mut scenarios = three();
        scenarios.truncate(2);
        scenarios[1].phases[1] = noisy(Phase::BestEffort, &[562_000.0, 570_000.0]);
        let page = html(&suite(scenarios));
        let first = page.split("<h1>").nth(1).unwrap();
        assert!(
            first.starts_with("NOT CONCLUSIVE: b: every window"),
            "{first}"
        );
    }

    #[test]
    fn unprotected_phases_are_named_as_such() {
        let mut suite = suite(three());
        suite.setup.enforced = false;
        suite.setup.unenforced = Some("kubepods: not <root>".to_owned());
        let page = html(&suite);
        assert!(page.contains("Nothing was protected") && page.contains("not &lt;root&gt;"));
    }

    #[test]
    fn missing_psi_is_reported() {
        let mut suite = Suite {
            setup: enforced(),
            ..Suite::default()
        };
        let shown = |suite: &Suite| table::text(suite) + &html(suite);
        assert!(!shown(&suite).contains("PSI"));
        suite.setup.psi = false;
        assert_eq!(shown(&suite).matches("run-queue delay").count(), 2);
    }
}
