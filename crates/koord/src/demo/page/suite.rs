//! The self-contained HTML page of a demo.

use super::picture;
use crate::demo::result::{Phase, PhaseResult, Run, ScenarioResult, Suite, Verdict};
use crate::demo::table::{self, ratio};
use crate::demo::verdict::{self, Outcome};
use crate::demo::words::latency;
use anyhow::Result;
use std::fmt::Write as _;

pub(in crate::demo) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

pub(in crate::demo) const STYLE: &str = include_str!("style.css");

/// The page.
///
/// # Errors
/// Never in practice: writing into a text does not fail.
pub fn html(suite: &Suite) -> Result<String> {
    let mut page = String::new();
    let setup = &suite.setup;
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>koord: co-location on one machine</title><style>{STYLE}</style></head><body><main>\
         <h1>{}</h1><ul class=\"headlines\">",
        escape(&verdict::first_line(suite).unwrap_or_else(|| verdict::last_line(suite))),
    )?;
    for one in &suite.scenarios {
        write!(
            page,
            "<li class=\"{}\">{}</li>",
            class_of(one.verdict.outcome),
            escape(&one.headline)
        )?;
    }
    page.push_str("</ul>");
    if verdict::first_line(suite).is_some() {
        write!(page, "<p>{}</p>", escape(&verdict::last_line(suite)))?;
    }
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
    )?;
    for sentence in table::lacks(setup) {
        write!(page, "<p class=\"warn\">{}</p>", escape(&sentence))?;
    }
    if suite.scenarios.len() > 3 {
        overview(&mut page, suite)?;
    }
    for scenario in &suite.scenarios {
        section(&mut page, scenario, suite)?;
    }
    page.push_str("<h2>Under which conditions</h2><ul>");
    for caveat in &suite.caveats {
        write!(page, "<li>{}</li>", escape(caveat))?;
    }
    page.push_str("</ul></main></body></html>\n");
    Ok(page)
}

/// The CSS class of an outcome.
fn class_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Won => "good",
        Outcome::Harmless => "even",
        Outcome::Lost => "bad",
        Outcome::NotConclusive | Outcome::NotMeasured => "open",
    }
}

/// A row per scenario with a cue for each figure.
fn overview(page: &mut String, suite: &Suite) -> Result<()> {
    page.push_str(
        "<div class=\"panel scroll\"><table class=\"overview\"><tr><th rowspan=\"2\">neighbor</th>\
         <th colspan=\"3\">p99 of the service, times alone</th>\
         <th colspan=\"2\">batch work of koord, times that of</th></tr>\
         <tr>",
    );
    let (plain, fixed) = ("plain <i>Kubernetes</i>", "<i>Koordinator's</i> cap");
    for title in [plain, fixed, "koord", plain, fixed] {
        write!(page, "<th>{title}</th>")?;
    }
    page.push_str("</tr>");
    for one in &suite.scenarios {
        let ratios = &one.ratios;
        write!(
            page,
            "<tr><td><a href=\"#{0}\">{0}</a><small>{1}</small></td>",
            escape(&one.name),
            escape(&one.title)
        )?;
        if one.phases.is_empty() {
            let why = one.why.as_deref().unwrap_or("not measured");
            write!(
                page,
                "<td colspan=\"5\" class=\"l soft\">{}</td></tr>",
                escape(why)
            )?;
            continue;
        }
        for (phase, times) in [
            (Phase::BestEffort, ratios.p99_besteffort_over_alone),
            (Phase::Suppressed, ratios.p99_suppressed_over_alone),
            (Phase::Managed, ratios.p99_managed_over_alone),
        ] {
            let (class, word) = picture::cue(times);
            let same = if overlaps(one, phase) { "≈ " } else { "" };
            write!(
                page,
                "<td><span class=\"chip {class}\" title=\"{word}\">{same}{}</span></td>",
                ratio(times)
            )?;
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
            )?;
        }
        page.push_str("</tr>");
    }
    page.push_str(
        "</table></div><p class=\"key\"><span class=\"chip good\">p99 up to 1.15, batch from 0.9</span>\
         <span class=\"chip fair\">in between</span>\
         <span class=\"chip bad\">p99 over 1.5, batch under 0.5</span>\
         <span>≈ the runs' ranges overlap with those of alone</span></p>",
    );
    Ok(())
}

/// Whether the runs of a phase cannot be told from those of `alone`.
fn overlaps(one: &ScenarioResult, phase: Phase) -> bool {
    let find = |phase| one.phases.iter().find(|result| result.name == phase);
    match (find(Phase::Alone), find(phase)) {
        (Some(alone), Some(result)) => result.p99_against(alone) == Verdict::Indistinguishable,
        _ => false,
    }
}

fn section(page: &mut String, scenario: &ScenarioResult, suite: &Suite) -> Result<()> {
    write!(
        page,
        "<section id=\"{0}\"><h2><code>{0}</code> {1}</h2><p class=\"soft\">{2}</p>",
        escape(&scenario.name),
        escape(&scenario.title),
        escape(&scenario.about)
    )?;
    if let Some(missing) = table::missing(scenario) {
        write!(page, "<p class=\"warn\">{}</p>", escape(&missing))?;
    }
    if scenario.phases.is_empty() {
        page.push_str("</section>");
        return Ok(());
    }
    write!(
        page,
        "<div class=\"panel\">{}</div>",
        picture::scenario(scenario)
    )?;
    if let Some(back) = picture::recovery(scenario) {
        write!(page, "<div class=\"panel\">{back}</div>")?;
    }
    for sentence in &scenario.words {
        write!(page, "<p>{}</p>", escape(sentence))?;
    }
    let open = if suite.scenarios.len() == 1 {
        " open"
    } else {
        ""
    };
    write!(
        page,
        "<details{open}><summary>Figures and percentiles</summary>"
    )?;
    figures(page, scenario)?;
    write!(
        page,
        "<p class=\"soft\">{:.0} requests per second on average, {:.0}\u{a0}µs of CPU each. ≈: the ranges \
         of the runs overlap, the two are indistinguishable.</p>\
         <div class=\"panel\">{}</div></details>",
        scenario.rate,
        scenario.service_us,
        picture::percentiles(&scenario.phases)
    )?;
    write!(page, "<details{open}><summary>CPU over time</summary>")?;
    cpu(page, scenario, suite.setup.cpus)?;
    page.push_str("</details><details><summary>What koordlet wrote</summary>");
    for result in &scenario.phases {
        if let Some(run) = picture::representative(result) {
            writes(page, result, run)?;
        }
    }
    page.push_str("</details><details><summary>Every run</summary>");
    runs(page, scenario)?;
    page.push_str("</details></section>");
    Ok(())
}

fn figures(page: &mut String, scenario: &ScenarioResult) -> Result<()> {
    page.push_str("<div class=\"panel scroll\"><table><tr>");
    for title in table::HEADER {
        write!(page, "<th>{title}</th>")?;
    }
    page.push_str("</tr>");
    for (row, result) in table::rows(scenario).iter().zip(&scenario.phases) {
        write!(page, "<tr title=\"{}\">", escape(result.name.summary()))?;
        for cell in row {
            write!(page, "<td>{cell}</td>")?;
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div>");
    Ok(())
}

fn cpu(page: &mut String, scenario: &ScenarioResult, cpus: usize) -> Result<()> {
    page.push_str(
        "<p class=\"key\"><span><i class=\"dot service\"></i>service</span>\
         <span><i class=\"dot batch\"></i>batch</span>\
         <span><i class=\"dot other\"></i>everything else</span>\
         <span><i class=\"dot cap\"></i>cap on batch</span>\
         <span>ticks at the top: koordlet wrote to the kernel</span></p><div class=\"grid\">",
    );
    for result in &scenario.phases {
        if let Some(run) = picture::representative(result) {
            write!(
                page,
                "<div class=\"panel\"><b>{}</b> <span class=\"soft\">{}</span>{}</div>",
                result.name.label(),
                escape(result.name.summary()),
                picture::cpu(run, cpus)
            )?;
        }
    }
    page.push_str("</div>");
    Ok(())
}

fn writes(page: &mut String, result: &PhaseResult, run: &Run) -> Result<()> {
    const SHOWN: usize = 100;
    write!(
        page,
        "<h4>{}: {} writes{}</h4>",
        result.name.name(),
        run.writes.len(),
        if run.writes.len() > SHOWN {
            format!(", the first {SHOWN}")
        } else {
            String::new()
        }
    )?;
    if run.writes.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<div class=\"panel scroll\"><table class=\"wrap\"><tr><th>at s</th><th class=\"l\">file</th>\
         <th>was</th><th>is</th><th class=\"l\">why</th></tr>",
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
        )?;
    }
    page.push_str("</table></div>");
    Ok(())
}

fn runs(page: &mut String, scenario: &ScenarioResult) -> Result<()> {
    page.push_str(
        "<div class=\"panel scroll\"><table><tr><th>phase</th><th>repeat</th><th>p50</th><th>p90</th>\
         <th>p99</th><th>p99.9</th><th>requests</th><th>errors</th><th>CPU</th><th>batch/s</th>\
         <th>PSI</th><th>steal</th><th>lag p99</th><th class=\"l\">note</th></tr>",
    );
    for result in &scenario.phases {
        for run in &result.repeats {
            let class = if run.rejected.is_some() {
                " class=\"rejected\""
            } else {
                ""
            };
            write!(
                page,
                "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{:.0}\u{a0}%</td><td>{:.0}</td><td>{}</td>\
                 <td>{:.1}\u{a0}%</td><td>{}</td><td class=\"l\">{}</td></tr>",
                result.name.name(),
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
            )?;
        }
    }
    page.push_str("</table></div>");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::result::tests::noisy;
    use crate::demo::verdict::tests::{enforced, judged, scenario_of};
    use crate::demo::words;

    fn suite(scenarios: Vec<ScenarioResult>) -> Suite {
        let told = |one: ScenarioResult| {
            let mut one = judged(one);
            one.headline = words::headline(&one);
            one
        };
        let scenarios: Vec<ScenarioResult> = scenarios.into_iter().map(told).collect();
        Suite {
            setup: enforced(),
            verdict: verdict::of_suite(&scenarios),
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
        let page = html(&suite).unwrap();
        let terminal = table::text(&suite);
        for one in &suite.scenarios {
            assert!(terminal.contains(&one.headline), "{terminal}");
            assert!(page.contains(&escape(&one.headline)), "{}", one.headline);
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
        let page = html(&suite(scenarios)).unwrap();
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
        let page = html(&suite).unwrap();
        assert!(page.contains("Nothing was protected") && page.contains("not &lt;root&gt;"));
    }

    #[test]
    fn a_kernel_without_pressure_is_said_to_be_that() {
        let mut suite = Suite {
            setup: enforced(),
            ..Suite::default()
        };
        let said = |suite: &Suite| table::text(suite) + &html(suite).unwrap();
        assert!(!said(&suite).contains("PSI"));
        suite.setup.psi = false;
        assert_eq!(said(&suite).matches("run-queue delay").count(), 2);
    }
}
