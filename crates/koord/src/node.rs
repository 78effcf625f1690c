//! `koord node status`: what the node agent measures, what it enforces and by which means, and what
//! this kernel lacks.

use crate::cluster::runtime;
use crate::{console, plain};
use anyhow::{Context as _, Result, bail};
use comfy_table::{ColumnConstraint, Table, Width, presets};
use koordlet::status::{Collector, State, Status, Strategy};
use std::fmt::Write;

/// What to do with a node.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// What koordlet measures and enforces here, by which means, and what this kernel lacks.
    Status(Args),
}

/// Whom to ask.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where koordlet serves its health and metrics.
    #[arg(long, default_value = "127.0.0.1:9316", value_name = "HOST:PORT")]
    pub address: String,
    /// Print all of it as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Asks koordlet and prints its answer.
///
/// # Errors
/// Koordlet cannot be asked.
pub fn main(command: &Command) -> Result<()> {
    let Command::Status(args) = command;
    let asked = plain::get(&args.address, "koordlet", "/debug/status");
    let (code, body) = runtime()?.block_on(asked)?;
    if code != 200 {
        bail!("{} answers {code} to /debug/status", args.address);
    }
    let status: Status = serde_json::from_str(&body).context("koordlet's answer")?;
    if args.json {
        console::say(serde_json::to_string_pretty(&status)?);
    } else {
        console::say(render(&status).trim_end());
    }
    Ok(())
}

fn render(status: &Status) -> String {
    let mut out = String::new();
    let s = status;
    let since = s.started_at.map_or_else(String::new, |at| {
        format!(" since {}", at.strftime("%Y-%m-%d %H:%M:%S UTC"))
    });
    let _ = writeln!(out, "node {}: koordlet {}{since}", s.node, s.version);
    let pods = match s.pods {
        Some(pods) => format!("{pods} pods"),
        None => "pods not known yet".to_owned(),
    };
    let _ = writeln!(
        out,
        "  {pods}; {} ticks, one every {}, the last took {}",
        s.ticks,
        time(s.interval_ms),
        micros(s.tick_us)
    );
    let kernel = &s.kernel;
    let _ = writeln!(
        out,
        "  kernel {}, cgroups {}, driver {}",
        kernel.release, kernel.cgroups, kernel.driver
    );
    if !s.collectors.is_empty() {
        let rows = s.collectors.iter().map(collector);
        section(&mut out, ["MEASURED", "STATE", "EVERY", "FROM"], rows);
    }
    let rows = s.strategies.iter().map(strategy);
    section(&mut out, ["ENFORCED", "STATE", "EVERY", "BY"], rows);
    if !kernel.has.is_empty() {
        let _ = writeln!(out, "\nThis kernel has {}.", kernel.has.join(", "));
    }
    if !kernel.lacks.is_empty() {
        let mut table = columns();
        table.set_header(["THIS KERNEL LACKS", "SO"]);
        for lack in &kernel.lacks {
            table.add_row([&lack.mechanism, &lack.consequence]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    if !s.malformed.is_empty() {
        let mut table = columns();
        table.set_header(["NOT UNDERSTOOD", "FIELD", "VALUE", "BECAUSE"]);
        for one in &s.malformed {
            table.add_row([&one.object, &one.field, &one.value, &one.error]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    let open = s.gates.iter().filter(|gate| gate.on);
    let without: Vec<_> = open.filter(|gate| !gate.why.is_empty()).collect();
    if !without.is_empty() {
        let mut table = columns();
        table.set_header(["OPEN GATE WITHOUT FULL EFFECT", "BECAUSE"]);
        for gate in without {
            table.add_row([&gate.name, &gate.why]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    out
}

fn collector(row: &Collector) -> [String; 4] {
    [
        row.name.clone(),
        state(row.state),
        time(row.every_ms),
        joined(&row.source, &row.why),
    ]
}

fn strategy(row: &Strategy) -> [String; 4] {
    let means = if row.mechanism.is_empty() {
        row.claims.join("; ")
    } else {
        row.mechanism.clone()
    };
    let means = match row.state {
        State::Off | State::Unavailable => String::new(),
        _ => means,
    };
    [
        row.name.clone(),
        state(row.state),
        time(row.every_ms),
        joined(&means, &row.why),
    ]
}

fn joined(means: &str, why: &str) -> String {
    match (means.is_empty(), why.is_empty()) {
        (_, true) => means.to_owned(),
        (true, false) => why.to_owned(),
        (false, false) => format!("{means} ({why})"),
    }
}

fn state(state: State) -> String {
    let name = match state {
        State::Active => "active",
        State::Idle => "idle",
        State::Off => "off",
        State::Unavailable => "unavailable",
        State::Failing => "FAILING",
    };
    name.to_owned()
}

/// Milliseconds as people write them; nothing for never.
fn time(ms: u64) -> String {
    match ms {
        0 => "-".to_owned(),
        ms if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        ms if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

fn micros(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1000.0)
}

fn section(out: &mut String, header: [&str; 4], rows: impl Iterator<Item = [String; 4]>) {
    let mut table = columns();
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    if let Some(last) = table.column_mut(3) {
        last.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(90)));
    }
    let _ = writeln!(out, "\n{}", trimmed(&table));
}

fn columns() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table.set_width(140);
    table
}

/// Without the blanks that a table's lines begin and end with.
fn trimmed(table: &Table) -> String {
    let text = table.to_string();
    let lines = text.lines().map(|line| {
        let line = line.strip_prefix(' ').unwrap_or(line);
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use koordlet::status::{Gate, Kernel, Lack, Malformed};

    #[test]
    fn a_status_reads_well() {
        let status = Status {
            node: "n1".to_owned(),
            version: "0.1.0".to_owned(),
            started_at: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            interval_ms: 1000,
            ticks: 61,
            tick_us: 1234,
            pods: Some(3),
            kernel: Kernel {
                release: "6.12.0".to_owned(),
                cgroups: "v2".to_owned(),
                driver: "systemd".to_owned(),
                has: vec!["CFS quota".to_owned(), "cpusets".to_owned()],
                lacks: vec![Lack {
                    mechanism: "resctrl".to_owned(),
                    consequence: "cache is not divided".to_owned(),
                }],
            },
            collectors: vec![Collector {
                name: "NodeResource".to_owned(),
                state: State::Active,
                every_ms: 1000,
                source: "/proc/stat".to_owned(),
                ..Collector::default()
            }],
            strategies: vec![
                Strategy {
                    name: "CPUSuppress".to_owned(),
                    state: State::Active,
                    every_ms: 500,
                    claims: vec!["cpu.cfs_quota_us at level Qos of BE".to_owned()],
                    ..Strategy::default()
                },
                Strategy {
                    name: "CPUBurst".to_owned(),
                    state: State::Off,
                    every_ms: 120_000,
                    claims: vec!["never shown".to_owned()],
                    why: "gate CPUBurst is closed".to_owned(),
                    ..Strategy::default()
                },
            ],
            gates: vec![Gate {
                name: "TerwayQoS".to_owned(),
                on: true,
                why: "Terway is not supported".to_owned(),
            }],
            malformed: vec![Malformed {
                object: "NodeSLO".to_owned(),
                field: "cpuBurstConfig.policy".to_owned(),
                value: "x".to_owned(),
                error: "no such policy".to_owned(),
            }],
            ..Status::default()
        };
        assert_eq!(
            render(&status),
            "node n1: koordlet 0.1.0 since 2026-01-01 00:00:00 UTC
  3 pods; 61 ticks, one every 1s, the last took 1.2 ms
  kernel 6.12.0, cgroups v2, driver systemd

MEASURED      STATE   EVERY  FROM
NodeResource  active  1s     /proc/stat

ENFORCED     STATE   EVERY  BY
CPUSuppress  active  500ms  cpu.cfs_quota_us at level Qos of BE
CPUBurst     off     2m     gate CPUBurst is closed

This kernel has CFS quota, cpusets.

THIS KERNEL LACKS  SO
resctrl            cache is not divided

NOT UNDERSTOOD  FIELD                  VALUE  BECAUSE
NodeSLO         cpuBurstConfig.policy  x      no such policy

OPEN GATE WITHOUT FULL EFFECT  BECAUSE
TerwayQoS                      Terway is not supported
"
        );
    }

    #[test]
    fn an_agent_of_another_version_is_understood() {
        let status: Status = serde_json::from_str(r#"{"node": "n1", "later": 1}"#).unwrap();
        assert!(render(&status).contains("pods not known yet"));
    }
}
