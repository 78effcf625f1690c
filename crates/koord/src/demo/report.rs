//! The self-contained HTML page of a demo, and the table for the terminal.

use super::charts;
use super::result::{Phase, PhaseResult, Report, Run};
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write as _;

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

fn us(value: f64) -> String {
    if value <= 0.0 {
        "–".to_owned()
    } else {
        format!("{value:.0}")
    }
}

/// The rows of the result table: phase, p50, p90, p99, p99.9, CPU, batch work, p99 over alone, and
/// batch work over plain best effort.
fn rows(report: &Report) -> Vec<[String; 9]> {
    let find = |phase: Phase| report.phases.iter().find(|result| result.name == phase);
    let over = |a: f64, b: Option<f64>| b.filter(|b| *b > 0.0).map(|b| a / b);
    report
        .phases
        .iter()
        .map(|result| {
            let alone = find(Phase::Alone).map(|alone| alone.ls.p99_us);
            let plain = find(Phase::BestEffort).map(|plain| plain.be.ops_per_s);
            let batch = result.name != Phase::Alone;
            [
                result.name.name().to_owned(),
                us(result.ls.p50_us),
                us(result.ls.p90_us),
                us(result.ls.p99_us),
                us(result.ls.p999_us),
                format!("{:.0} %", result.cpu_utilization * 100.0),
                if batch {
                    format!("{:.0}", result.be.ops_per_s)
                } else {
                    "–".to_owned()
                },
                ratio(over(result.ls.p99_us, alone)),
                if batch {
                    ratio(over(result.be.ops_per_s, plain))
                } else {
                    "–".to_owned()
                },
            ]
        })
        .collect()
}

const HEADER: [&str; 9] = [
    "phase",
    "p50 µs",
    "p90 µs",
    "p99 µs",
    "p99.9 µs",
    "CPU",
    "batch ops/s",
    "p99 / alone",
    "batch / besteffort",
];

/// The table for the terminal.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEADER);
    for row in rows(report) {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn css_colour(phase: Phase) -> String {
    let colour = charts::colour(phase);
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

const STYLE: &str = "\
:root{--ink:#1f2937;--soft:#6b7280;--line:#e5e7eb;--card:#fff;--page:#f7f7f5}\
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);\
font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:960px;margin:0 auto;padding:40px 24px 64px}\
h1{font-size:30px;line-height:1.25;margin:0 0 8px;letter-spacing:-.01em}\
h2{font-size:20px;margin:40px 0 10px}p{margin:8px 0}.soft{color:var(--soft)}\
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(270px,1fr));gap:14px;margin:24px 0}\
.card,.panel{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px}\
.card b{display:block;font-size:30px;letter-spacing:-.02em}.card span{color:var(--soft);font-size:14px}\
.panel{overflow-x:auto}.panel svg{max-width:100%;height:auto;display:block}\
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:14px}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}\
th,td{padding:7px 8px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}td.l,th.l{text-align:left;white-space:normal;min-width:220px}\
th{color:var(--soft);font-weight:600}tr:last-child td{border-bottom:0}\
.dot{display:inline-block;width:10px;height:10px;border-radius:50%;margin-right:8px}\
.key{display:flex;gap:18px;flex-wrap:wrap;font-size:14px;color:var(--soft);margin:6px 0 12px}\
.rejected td{color:#9ca3af}code{font:13px ui-monospace,SFMono-Regular,Menlo,monospace}\
details summary{cursor:pointer;color:var(--soft);margin:8px 0}ul{padding-left:20px}";

/// The page.
///
/// # Errors
/// When a picture cannot be drawn.
pub fn html(report: &Report) -> Result<String> {
    let mut page = String::new();
    let ratios = &report.ratios;
    let setup = &report.setup;
    let headline = match (
        ratios.p99_managed_over_alone,
        ratios.be_managed_over_suppressed,
    ) {
        (Some(p99), Some(work)) => format!(
            "Batch fills the machine; the service's p99 is {p99:.2}× what it has alone. \
             {work:.2}× the batch work of a fixed 65\u{a0}% cap."
        ),
        _ => "Latency-sensitive service and batch work on one machine".to_owned(),
    };
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>koord: co-location on one machine</title><style>{STYLE}</style></head><body><main>\
         <h1>{}</h1><p class=\"soft\">{} CPUs, kernel {}, {}. {:.0} requests/s of {:.0} µs each, \
         open loop; windows of {:.0} s, medians of {}.{}</p>",
        escape(&headline),
        setup.cpus,
        escape(&setup.kernel),
        escape(&setup.cgroup),
        setup.rate,
        setup.service_us,
        setup.phase_seconds,
        if setup.repeat == 1 {
            "one repeat".to_owned()
        } else {
            format!("{} repeats", setup.repeat)
        },
        if setup.enforced {
            ""
        } else {
            " <b>Cgroups were not enforced: nothing here was protected.</b>"
        },
    )?;
    page.push_str("<div class=\"cards\">");
    for (value, label) in [
        (
            ratio(ratios.p99_besteffort_over_alone),
            "p99 besteffort / alone",
        ),
        (
            ratio(ratios.p99_unmanaged_over_alone),
            "p99 unmanaged / alone",
        ),
        (
            ratio(ratios.p99_suppressed_over_alone),
            "p99 suppressed / alone",
        ),
        (ratio(ratios.p99_managed_over_alone), "p99 managed / alone"),
        (
            ratio(ratios.be_managed_over_suppressed),
            "batch work managed / suppressed",
        ),
        (
            ratio(ratios.be_managed_over_besteffort),
            "batch work managed / besteffort",
        ),
        (ratio(ratios.emu), "effective machine utilisation, managed"),
    ] {
        write!(
            page,
            "<div class=\"card\"><b>{value}</b><span>{label}</span></div>"
        )?;
    }
    page.push_str("</div><div class=\"panel\"><table><tr>");
    for title in HEADER {
        write!(page, "<th>{title}</th>")?;
    }
    page.push_str("</tr>");
    for (row, result) in rows(report).iter().zip(&report.phases) {
        write!(
            page,
            "<tr title=\"{}\"><td>{}",
            result.name.summary(),
            dot(result.name)
        )?;
        write!(page, "{}</td>", row[0])?;
        for cell in &row[1..] {
            write!(page, "<td>{cell}</td>")?;
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div><h2>What koord adds here</h2>");
    for sentence in &report.words {
        write!(page, "<p>{}</p>", escape(sentence))?;
    }
    page.push_str("<h2>Latency by percentile</h2><div class=\"panel\">");
    page.push_str(&charts::latency(&report.phases)?);
    page.push_str("</div><h2>CPU over time</h2>");
    page.push_str(
        "<div class=\"key\"><span><i class=\"dot\" style=\"background:#2563eb\"></i>service</span>\
         <span><i class=\"dot\" style=\"background:#0f8b6d\"></i>batch</span>\
         <span><i class=\"dot\" style=\"background:#9ca3af\"></i>everything else</span>\
         <span><i class=\"dot\" style=\"background:#f33\"></i>cap on BE</span>\
         <span>ticks at the top: koordlet wrote to the kernel</span></div><div class=\"grid\">",
    );
    for result in &report.phases {
        if let Some(run) = charts::representative(result) {
            write!(
                page,
                "<div class=\"panel\"><b>{}{}</b> <span class=\"soft\">{}</span>{}</div>",
                dot(result.name),
                result.name.name(),
                result.name.summary(),
                charts::cpu(run, setup.cpus)?
            )?;
        }
    }
    page.push_str("</div><h2>What koordlet wrote</h2>");
    for result in &report.phases {
        if let Some(run) = charts::representative(result).filter(|run| !run.writes.is_empty()) {
            writes(&mut page, result, run)?;
        }
    }
    page.push_str("<h2>Every run</h2>");
    runs(&mut page, report)?;
    page.push_str("<h2>What this does not show</h2><ul>");
    for caveat in &report.caveats {
        write!(page, "<li>{}</li>", escape(caveat))?;
    }
    page.push_str("</ul></main></body></html>\n");
    Ok(page)
}

fn dot(phase: Phase) -> String {
    format!(
        "<i class=\"dot\" style=\"background:{}\"></i>",
        css_colour(phase)
    )
}

fn writes(page: &mut String, result: &PhaseResult, run: &Run) -> Result<()> {
    const SHOWN: usize = 200;
    write!(
        page,
        "<details><summary>{}: {} writes</summary><div class=\"panel\"><table>\
         <tr><th>at s</th><th class=\"l\">file</th><th>was</th><th>is</th><th class=\"l\">why</th></tr>",
        result.name.name(),
        run.writes.len()
    )?;
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
    page.push_str("</table></div></details>");
    Ok(())
}

fn runs(page: &mut String, report: &Report) -> Result<()> {
    page.push_str(
        "<div class=\"panel\"><table><tr><th>phase</th><th>repeat</th><th>p50</th><th>p90</th>\
         <th>p99</th><th>p99.9</th><th>requests</th><th>errors</th><th>CPU</th><th>batch ops/s</th>\
         <th>service PSI</th><th>steal</th><th>send lag p99</th><th class=\"l\">note</th></tr>",
    );
    for result in &report.phases {
        for run in &result.repeats {
            let class = if run.rejected.is_some() {
                " class=\"rejected\""
            } else {
                ""
            };
            write!(
                page,
                "<tr{class}><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{:.1} %</td><td>{:.0}</td><td>{}</td><td>{:.1} %</td>\
                 <td>{:.0}</td><td class=\"l\">{}</td></tr>",
                dot(result.name),
                result.name.name(),
                run.repeat,
                us(run.ls.p50_us),
                us(run.ls.p90_us),
                us(run.ls.p99_us),
                us(run.ls.p999_us),
                run.ls.requests,
                run.ls.errors,
                run.cpu_utilization * 100.0,
                run.be_ops_per_s,
                run.ls_psi_some
                    .map_or_else(|| "–".to_owned(), |v| format!("{:.1} %", v * 100.0)),
                run.steal * 100.0,
                run.ls.send_lag_p99_us,
                escape(run.rejected.as_deref().unwrap_or(""))
            )?;
        }
    }
    page.push_str("</table></div>");
    Ok(())
}
