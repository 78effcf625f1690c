//! `koord node status` shows what the node agent measures and enforces, by which means, and what this kernel
//! lacks. `koord node topology` is in `topology`.

mod topology;

use crate::{http_get, running};
use anyhow::{Context as _, Result, bail};
use comfy_table::{ColumnConstraint, Table, Width, presets};
use koord_app::console;
use koord_app::daemon::runtime;
use koordlet::status::{Collector, Guard, GuardService, State, Status, Strategy};
use std::fmt::Write;

/// Subcommands of `koord node`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum NodeCommand {
    /// Show what koordlet measures and enforces, by which means, and which features this kernel lacks.
    Status(Args),
    /// Show the NUMA nodes of this machine, and what the kubelet has allocated of each.
    Topology(topology::Args),
}

/// Arguments of `koord node status`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address of koordlet's HTTP server [default: the one of `koord up` on this machine, else 127.0.0.1:9316]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Print the status as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Queries koordlet or the machine, and prints the result.
///
/// # Errors
/// koordlet cannot be reached, or the machine's files cannot be read.
pub fn main(command: &NodeCommand) -> Result<()> {
    let args = match command {
        NodeCommand::Status(args) => args,
        NodeCommand::Topology(args) => return topology::main(args),
    };
    let status = runtime()?.block_on(fetch_status(&running::koordlet(args.address.as_deref())))?;
    if args.json {
        console::print_line(serde_json::to_string_pretty(&status)?);
    } else {
        console::print_line(render(&status).trim_end());
    }
    Ok(())
}

/// Fetches the status of koordlet at `address`.
///
/// # Errors
/// koordlet cannot be reached, or its response is invalid.
pub(crate) async fn fetch_status(address: &str) -> Result<Status> {
    let (code, body) = http_get::get(address, "koordlet", "/debug/status").await?;
    if code != 200 {
        bail!("koordlet at {address} returned HTTP status {code} for /debug/status");
    }
    serde_json::from_str(&body).context("invalid response from koordlet")
}

/// Formats the state of the pressure guard, with a line per service.
pub(crate) fn render_guard(guard: &Guard) -> String {
    let mut out = String::new();
    let g = guard;
    let mut now = Vec::new();
    if g.idle {
        now.push("cpu.idle on batch pods".to_owned());
    }
    if g.reclaim {
        now.push("reclaiming pages of batch pods".to_owned());
    }
    if let Some(percent) = g.bandwidth_percent {
        now.push(format!(
            "{percent} % of the memory bandwidth for batch pods"
        ));
    }
    if let Some(cpus) = &g.batch_cpus {
        now.push(format!("batch pods on CPUs {cpus}"));
    }
    match g.cap_percent {
        Some(cap) => now.push(format!("CPU cap at {cap} % of the node")),
        None => now.push("no CPU cap".to_owned()),
    }
    let _ = writeln!(out, "pressure guard: {}", now.join(", "));
    let _ = writeln!(out, "  start of batch pods: {}", g.start);
    let _ = writeln!(out, "  signals: {}", join_or_nothing(&g.signals));
    let lacks = g.absent.iter();
    let lacks: Vec<_> = lacks
        .map(|lack| format!("{} ({})", lack.mechanism, lack.consequence))
        .collect();
    let _ = writeln!(
        out,
        "  levers: {}; unavailable: {}",
        join_or_nothing(&g.levers),
        join_or_nothing(&lacks)
    );
    let _ = writeln!(
        out,
        "  batch pods ran for {} s and were paused for {} s; experiment budget: {:.0} s",
        g.batch_seconds, g.paused_seconds, g.budget_seconds
    );
    if g.services.is_empty() {
        return out;
    }
    let mut table = columns();
    table.set_header([
        "SERVICE",
        "VOTE",
        "VERDICT",
        "SIGNAL",
        "VALUE",
        "EXPECTED",
        "LEVERS",
        "LAST EXPERIMENT",
    ]);
    for service in &g.services {
        table.add_row(guard_row(service));
    }
    let _ = writeln!(out, "\n{}", trimmed(&table));
    out
}

fn join_or_nothing(all: &[String]) -> String {
    match all.is_empty() {
        true => "nothing".to_owned(),
        false => all.join(", "),
    }
}

/// Returns the row of a service in the table of the pressure guard.
fn guard_row(service: &GuardService) -> [String; 8] {
    let s = service;
    let verdict = match s.muted_seconds {
        Some(seconds) => format!("{} for {seconds} s", s.verdict),
        None => s.verdict.clone(),
    };
    let learned = if s.learned { "" } else { " (assumed)" };
    let levers = s.held.iter().map(|held| {
        // A lever is fully applied at 0 % and released at 100 %.
        let level = match held.level {
            0 => String::new(),
            100 => " released".to_owned(),
            level => format!(" {level} %"),
        };
        let doubt = if held.confirmed { "" } else { "?" };
        format!("{}{level}{doubt}", held.lever)
    });
    let last = s.last.as_ref().map_or_else(String::new, |last| {
        let outcome = if last.helped {
            "helped"
        } else {
            "did not help"
        };
        format!(
            "{} {outcome}: {:.3} -> {:.3}, {} s ago",
            last.lever, last.before, last.after, last.ago_seconds
        )
    });
    let signal = !s.signal.is_empty();
    [
        s.pod.clone(),
        s.vote.to_string(),
        verdict,
        s.signal.clone(),
        if signal {
            format!("{:.3}", s.value)
        } else {
            String::new()
        },
        match signal {
            true => format!("{:.3} + {:.3}{learned}", s.expected, s.margin),
            false => String::new(),
        },
        levers.collect::<Vec<_>>().join(", "),
        last,
    ]
}

/// Formats the status of koordlet.
fn render(status: &Status) -> String {
    let mut out = String::new();
    let s = status;
    let since = s.started_at.map_or_else(String::new, |started| {
        format!(" since {}", started.strftime("%Y-%m-%d %H:%M:%S UTC"))
    });
    let _ = writeln!(out, "node {}: koordlet {}{since}", s.node, s.version);
    let pods = match s.pods {
        Some(pods) => format!("{pods} pods"),
        None => "pods not read yet".to_owned(),
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
        let rows = s.collectors.iter().map(collector_row);
        section(&mut out, ["MEASURED", "STATE", "EVERY", "FROM"], rows);
    }
    let rows = s.strategies.iter().map(strategy_row);
    section(&mut out, ["ENFORCED", "STATE", "EVERY", "BY"], rows);
    if let Some(guard) = &s.guard {
        let _ = writeln!(out, "\n{}", self::render_guard(guard).trim_end());
    }
    if !s.devices.is_empty() {
        let mut table = columns();
        table.set_header(["DEVICE", "MINOR", "ID", "STATE", "LOCATION"]);
        for device in &s.devices {
            let minor = device.minor.to_string();
            table.add_row([
                &device.kind,
                &minor,
                &device.id,
                &device.health,
                &device.place,
            ]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    if !kernel.has.is_empty() {
        let _ = writeln!(out, "\nThis kernel has {}.", kernel.has.join(", "));
    }
    if !kernel.lacks.is_empty() {
        let mut table = columns();
        table.set_header(["THIS KERNEL LACKS", "CONSEQUENCE"]);
        for lack in &kernel.lacks {
            table.add_row([&lack.mechanism, &lack.consequence]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    if !s.malformed.is_empty() {
        let mut table = columns();
        table.set_header(["INVALID OBJECT", "FIELD", "VALUE", "ERROR"]);
        for input in &s.malformed {
            table.add_row([&input.object, &input.field, &input.value, &input.error]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    if !s.conditions.is_empty() {
        let mut table = columns();
        table.set_header(["CONDITION", "OBJECT", "MESSAGE"]);
        for active in &s.conditions {
            table.add_row([&active.condition, &active.object, &active.message]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    let open = s.gates.iter().filter(|gate| gate.on);
    let without: Vec<_> = open.filter(|gate| !gate.why.is_empty()).collect();
    if !without.is_empty() {
        let mut table = columns();
        table.set_header(["ENABLED GATE WITHOUT FULL EFFECT", "REASON"]);
        for gate in without {
            table.add_row([&gate.name, &gate.why]);
        }
        let _ = writeln!(out, "\n{}", trimmed(&table));
    }
    out
}

/// Returns the table cells of a collector: name, state, interval, and source or reason.
fn collector_row(row: &Collector) -> [String; 4] {
    [
        row.name.clone(),
        state(row.state),
        time(row.every_ms),
        joined(&row.source, &row.why),
    ]
}

fn strategy_row(row: &Strategy) -> [String; 4] {
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

/// Formats milliseconds in the largest exact unit; `-` for 0, which means never.
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

/// Formats a table without blanks at the start and end of its lines.
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
    use koordlet::status::{
        ActiveCondition, Device, GateStatus, Kernel, MalformedInput, MissingFeature,
    };

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
                lacks: vec![MissingFeature {
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
            devices: vec![
                Device {
                    kind: "gpu".to_owned(),
                    id: "GPU-1".to_owned(),
                    health: "Xid44: Xid error detected on device, error code: 44".to_owned(),
                    place: "NUMA node 0, pci0000:3a, 0000:44:00.0".to_owned(),
                    ..Device::default()
                },
                Device {
                    kind: "rdma".to_owned(),
                    minor: 1,
                    id: "0000:3b:00.1".to_owned(),
                    health: "healthy".to_owned(),
                    ..Device::default()
                },
            ],
            gates: vec![GateStatus {
                name: "TerwayQoS".to_owned(),
                on: true,
                why: "Terway is not supported".to_owned(),
            }],
            malformed: vec![MalformedInput {
                object: "NodeSLO".to_owned(),
                field: "cpuBurstConfig.policy".to_owned(),
                value: "x".to_owned(),
                error: "no such policy".to_owned(),
            }],
            conditions: vec![ActiveCondition {
                condition: "WriteRefused".to_owned(),
                object: "/kubepods/podx memory.high".to_owned(),
                message: "Invalid argument (os error 22); written again after 60 s".to_owned(),
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

DEVICE  MINOR  ID            STATE                                                LOCATION
gpu     0      GPU-1         Xid44: Xid error detected on device, error code: 44  NUMA node 0, pci0000:3a, 0000:44:00.0
rdma    1      0000:3b:00.1  healthy

This kernel has CFS quota, cpusets.

THIS KERNEL LACKS  CONSEQUENCE
resctrl            cache is not divided

INVALID OBJECT  FIELD                  VALUE  ERROR
NodeSLO         cpuBurstConfig.policy  x      no such policy

CONDITION     OBJECT                      MESSAGE
WriteRefused  /kubepods/podx memory.high  Invalid argument (os error 22); written again after 60 s

ENABLED GATE WITHOUT FULL EFFECT  REASON
TerwayQoS                         Terway is not supported
"
        );
    }

    #[test]
    fn guard_is_rendered() {
        let text = render_guard(&Guard {
            start: "free: all is seen".to_owned(),
            signals: vec!["CPU stall".to_owned()],
            levers: vec!["cpu.idle".to_owned(), "CPU cap".to_owned()],
            absent: vec![MissingFeature {
                mechanism: "CPU partition".to_owned(),
                consequence: "there is one CPU".to_owned(),
            }],
            idle: true,
            batch_seconds: 120,
            paused_seconds: 0,
            budget_seconds: 24.6,
            services: vec![GuardService {
                pod: "shop/cart".to_owned(),
                vote: 1.0,
                verdict: "protected".to_owned(),
                signal: "CPU stall".to_owned(),
                value: 0.021,
                expected: 0.02,
                margin: 0.025,
                learned: true,
                held: vec![koordlet::status::GuardHeld {
                    lever: "cpu.idle".to_owned(),
                    confirmed: true,
                    ..Default::default()
                }],
                last: Some(koordlet::status::GuardExperiment {
                    lever: "cpu.idle".to_owned(),
                    before: 0.3,
                    after: 0.001,
                    helped: true,
                    ago_seconds: 7,
                    ..Default::default()
                }),
                ..GuardService::default()
            }],
            ..Guard::default()
        });
        assert_eq!(
            text,
            "pressure guard: cpu.idle on batch pods, no CPU cap
  start of batch pods: free: all is seen
  signals: CPU stall
  levers: cpu.idle, CPU cap; unavailable: CPU partition (there is one CPU)
  batch pods ran for 120 s and were paused for 0 s; experiment budget: 25 s

SERVICE    VOTE  VERDICT    SIGNAL     VALUE  EXPECTED       LEVERS    LAST EXPERIMENT
shop/cart  1     protected  CPU stall  0.021  0.020 + 0.025  cpu.idle  cpu.idle helped: 0.300 -> 0.001, 7 s ago
"
        );
    }

    #[test]
    fn status_of_another_version_is_parsed() {
        let status: Status = serde_json::from_str(r#"{"node": "n1", "later": 1}"#).unwrap();
        assert!(render(&status).contains("pods not read yet"));
    }
}
