//! The self-contained HTML page of a demo.

use super::picture;
use super::result::{Phase, PhaseResult, Run, ScenarioResult, Suite, Verdict};
use super::table::{self, ratio};
use super::words::latency;
use anyhow::Result;
use std::fmt::Write as _;

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

pub(super) const STYLE: &str = include_str!("page.css");

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
         <h1>{}</h1><p class=\"soft\">{} CPUs, kernel {}, {}. Open-loop load; windows of \
         {:.0}\u{a0}s, {}.</p>",
        escape(&headline(suite)),
        setup.cpus,
        escape(&setup.kernel),
        escape(&setup.cgroup),
        setup.phase_seconds,
        match setup.repeat {
            1 => "each measured once".to_owned(),
            repeats => format!(
                "medians of {repeats}, every run a mark, an arrow where it is off the scale"
            ),
        },
    )?;
    for sentence in table::lacks(setup) {
        write!(page, "<p class=\"warn\">{}</p>", escape(&sentence))?;
    }
    if !suite.complete {
        page.push_str(
            "<p class=\"warn\">Not everything was measured; what is missing says why.</p>",
        );
    }
    if suite.scenarios.len() > 1 {
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

/// What the figures say in a sentence or two, the tail included.
fn headline(suite: &Suite) -> String {
    if let [only] = suite.scenarios.as_slice() {
        let find = |phase| only.phases.iter().find(|result| result.name == phase);
        if let (Some(alone), Some(managed), true) = (
            find(Phase::Alone),
            find(Phase::Managed),
            suite.setup.enforced,
        ) {
            let work = only.ratios.be_managed_over_suppressed;
            return format!(
                "{}: p99 {} beside batch under koord, {} alone; p99.9 {} and {}.{}",
                only.title,
                latency(managed.ls.p99_us),
                latency(alone.ls.p99_us),
                latency(managed.ls.p999_us),
                latency(alone.ls.p999_us),
                work.map_or_else(String::new, |times| format!(
                    " {times:.2} times the batch work of a fixed 65\u{a0}% cap."
                ))
            );
        }
        return only.title.clone();
    }
    if !suite.setup.enforced {
        return "Services beside batch work, and nothing protected".to_owned();
    }
    let times = |of: fn(&ScenarioResult) -> Option<f64>, bar: fn(f64) -> bool| {
        let hit = |one: &&ScenarioResult| of(one).is_some_and(bar);
        suite.scenarios.iter().filter(hit).count()
    };
    let harmed = |times: f64| times >= 1.5;
    let plain = |one: &ScenarioResult| one.ratios.p99_besteffort_over_alone;
    let ours = |one: &ScenarioResult| one.ratios.p99_managed_over_alone;
    let saved = |one: &&ScenarioResult| {
        plain(one).is_some_and(harmed) && ours(one).is_some_and(|times| times <= 1.15)
    };
    format!(
        "In {} of {} scenarios batch work raises the service's p99 to 1.5 times and more under plain \
         Kubernetes; with koord in {}. In {} koord brings it back to what the service has alone. \
         At p99.9 these are {} under plain Kubernetes and {} with koord.",
        times(plain, harmed),
        times(plain, |_| true),
        times(ours, harmed),
        suite.scenarios.iter().filter(saved).count(),
        times(|one| tail_over_alone(one, Phase::BestEffort), harmed),
        times(|one| tail_over_alone(one, Phase::Managed), harmed),
    )
}

/// p99.9 of a phase over that of `alone`.
fn tail_over_alone(one: &ScenarioResult, phase: Phase) -> Option<f64> {
    let tail = |phase| {
        let found = one.phases.iter().find(|result| result.name == phase);
        found.map(|result| result.ls.p999_us)
    };
    let (tail, alone) = (tail(phase)?, tail(Phase::Alone)?);
    (alone > 0.0).then(|| tail / alone)
}

/// A row per scenario with a cue for each figure.
fn overview(page: &mut String, suite: &Suite) -> Result<()> {
    page.push_str(
        "<div class=\"panel scroll\"><table class=\"overview\"><tr><th rowspan=\"2\">scenario</th>\
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
    let noisy: Vec<&str> = scenario
        .phases
        .iter()
        .filter(|result| result.counted == 0)
        .map(|result| picture::label(result.name))
        .collect();
    if !noisy.is_empty() {
        write!(
            page,
            "<p class=\"warn\">The machine was noisy in every window of: {}. What they show is weak.</p>",
            noisy.join(", ")
        )?;
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
                picture::label(result.name),
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
    use super::super::result::tests::phase_of;
    use super::super::result::{Ratios, Setup};
    use super::*;

    fn scenario(name: &str, plain: f64, managed: f64) -> ScenarioResult {
        let phases = vec![
            phase_of(Phase::Alone, &[1000.0, 1000.0]),
            phase_of(Phase::BestEffort, &[plain, plain]),
            phase_of(Phase::Managed, &[managed, managed]),
        ];
        ScenarioResult {
            name: name.to_owned(),
            title: format!("<{name}>"),
            ran: true,
            ratios: Ratios::of(&phases, &Setup::default()),
            phases,
            ..ScenarioResult::default()
        }
    }

    #[test]
    fn the_page_of_several_counts_what_was_won() {
        let suite = Suite {
            setup: enforced(),
            complete: false,
            scenarios: vec![
                scenario("a", 3000.0, 1100.0),
                scenario("b", 1000.0, 1000.0),
                scenario("c", 2000.0, 1900.0),
                ScenarioResult {
                    name: "d".to_owned(),
                    why: Some("d needs <root>".to_owned()),
                    ..ScenarioResult::default()
                },
            ],
            ..Suite::default()
        };
        let page = html(&suite).unwrap();
        for text in [
            "In 2 of 3 scenarios",
            "with koord in 1.",
            "In 1 koord",
            "At p99.9 these are 0 under plain",
            "d needs &lt;root&gt;",
            "&lt;a&gt;",
            "Not everything was measured",
            "prefers-color-scheme",
        ] {
            assert!(page.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn the_headline_of_one_names_the_tail() {
        let mut suite = Suite {
            setup: enforced(),
            scenarios: vec![scenario("a", 3000.0, 1100.0)],
            ..Suite::default()
        };
        assert!(headline(&suite).contains("p99.9"), "{}", headline(&suite));
        // Without cgroups the phases are names, and a headline must not praise one of them.
        suite.setup.enforced = false;
        suite.setup.unenforced = Some("kubepods: not <root>".to_owned());
        assert_eq!(headline(&suite), "<a>");
        suite.scenarios.push(scenario("b", 3000.0, 1100.0));
        assert!(headline(&suite).contains("nothing protected"));
        let page = html(&suite).unwrap();
        assert!(page.contains("Nothing was protected") && page.contains("not &lt;root&gt;"));
    }

    fn enforced() -> Setup {
        Setup {
            enforced: true,
            psi: true,
            ..Setup::default()
        }
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
