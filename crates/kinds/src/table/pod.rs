//! Table rows of pods, with kubectl's READY, STATUS and RESTARTS.

use jiff::Timestamp;
use serde_json::Value;

use super::{Printer, age, created, int_at, list_at, or_none};
use crate::meta::{self, str_at};

pub(super) const POD: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Status", "string", 0),
        ("Restarts", "string", 0),
        ("Age", "string", 0),
        ("IP", "string", 1),
        ("Node", "string", 1),
        ("Nominated Node", "string", 1),
        ("Readiness Gates", "string", 1),
    ],
    cells,
};

/// Returns the cells of a Pod.
fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let s = summarize(pod);
    let restarts = match s.last_restart {
        Some(at) if s.restarts > 0 => format!("{} ({} ago)", s.restarts, age(at, now)),
        _ => s.restarts.to_string(),
    };
    let ip = str_at(pod, &["status", "podIP"]);
    let ip = if ip.is_empty() {
        list_at(pod, &["status", "podIPs"])
            .first()
            .map_or("", |p| str_at(p, &["ip"]))
    } else {
        ip
    };
    vec![
        meta::name(pod).into(),
        format!("{}/{}", s.ready, s.total).into(),
        s.status.into(),
        restarts.into(),
        created(pod, now),
        or_none(ip),
        or_none(str_at(pod, &["spec", "nodeName"])),
        or_none(str_at(pod, &["status", "nominatedNodeName"])),
        gates(pod),
    ]
}

fn gates(pod: &Value) -> Value {
    let gates = list_at(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".into();
    }
    let met = gates
        .iter()
        .filter(|g| {
            list_at(pod, &["status", "conditions"]).iter().any(|c| {
                str_at(c, &["type"]) == str_at(g, &["conditionType"])
                    && str_at(c, &["status"]) == "True"
            })
        })
        .count();
    format!("{met}/{}", gates.len()).into()
}

struct PodSummary<'a> {
    ready: usize,
    total: usize,
    status: String,
    restarts: i64,
    last_restart: Option<&'a str>,
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    list_at(pod, &["status", "conditions"])
        .iter()
        .find(|c| str_at(c, &["type"]) == kind)
}

fn is_ready(status: &Value) -> bool {
    status
        .get("ready")
        .and_then(Value::as_bool)
        .unwrap_or(false)
}

/// Returns `ExitCode:1`, `Signal:9` or the reason of a terminated state.
fn terminated_text(state: &Value) -> String {
    let reason = str_at(state, &["reason"]);
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match int_at(state, &["signal"]) {
        0 => format!("ExitCode:{}", int_at(state, &["exitCode"])),
        signal => format!("Signal:{signal}"),
    }
}

/// Returns the later of two times. RFC 3339 texts in UTC with the same precision sort like their times.
fn later<'a>(a: Option<&'a str>, b: &'a str) -> Option<&'a str> {
    match a {
        _ if b.is_empty() => a,
        Some(a) if a >= b => Some(a),
        _ => Some(b),
    }
}

/// Returns the readiness, status and restarts of a pod, as kubectl shows them.
fn summarize(pod: &Value) -> PodSummary<'_> {
    let phase = str_at(pod, &["status", "phase"]);
    let reason = str_at(pod, &["status", "reason"]);
    let mut out = PodSummary {
        ready: 0,
        total: list_at(pod, &["spec", "containers"]).len(),
        status: if reason.is_empty() { phase } else { reason }.to_owned(),
        restarts: 0,
        last_restart: None,
    };
    if condition(pod, "PodScheduled").is_some_and(|c| str_at(c, &["reason"]) == "SchedulingGated") {
        out.status = "SchedulingGated".to_owned();
    }
    let initializing = init_containers(pod, &mut out);
    if !initializing || is_initialized(pod) {
        containers(pod, &mut out);
    }
    if pod
        .get("metadata")
        .and_then(|m| m.get("deletionTimestamp"))
        .is_some()
    {
        if reason == "NodeLost" {
            out.status = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            out.status = "Terminating".to_owned();
        }
    }
    out
}

fn is_initialized(pod: &Value) -> bool {
    condition(pod, "Initialized").is_some_and(|c| str_at(c, &["status"]) == "True")
}

/// Summarizes the init containers; returns true while some still have to finish.
fn init_containers<'a>(pod: &'a Value, out: &mut PodSummary<'a>) -> bool {
    let specs = list_at(pod, &["spec", "initContainers"]);
    let sidecar = |name: &str| {
        specs
            .iter()
            .any(|c| str_at(c, &["name"]) == name && str_at(c, &["restartPolicy"]) == "Always")
    };
    out.total += specs
        .iter()
        .filter(|c| str_at(c, &["restartPolicy"]) == "Always")
        .count();
    let mut initializing = false;
    for (i, c) in list_at(pod, &["status", "initContainerStatuses"])
        .iter()
        .enumerate()
    {
        let is_sidecar = sidecar(str_at(c, &["name"]));
        out.restarts += int_at(c, &["restartCount"]);
        out.last_restart = later(
            out.last_restart,
            str_at(c, &["lastState", "terminated", "finishedAt"]),
        );
        if is_sidecar && is_ready(c) {
            out.ready += 1;
        }
        if initializing {
            continue;
        }
        let terminated = meta::at(c, &["state", "terminated"]);
        let waiting = str_at(c, &["state", "waiting", "reason"]);
        let started = c.get("started").and_then(Value::as_bool).unwrap_or(false);
        match terminated {
            Some(t) if int_at(t, &["exitCode"]) == 0 => continue,
            None if is_sidecar && started => continue,
            Some(t) => out.status = format!("Init:{}", terminated_text(t)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => {
                out.status = format!("Init:{waiting}");
            }
            None => out.status = format!("Init:{i}/{}", specs.len()),
        }
        initializing = true;
    }
    initializing
}

/// Adds the states of the main containers to the summary.
fn containers<'a>(pod: &'a Value, out: &mut PodSummary<'a>) {
    let statuses = list_at(pod, &["status", "containerStatuses"]);
    let mut running = false;
    let before = out.restarts;
    out.restarts = 0;
    for c in statuses.iter().rev() {
        out.restarts += int_at(c, &["restartCount"]);
        out.last_restart = later(
            out.last_restart,
            str_at(c, &["lastState", "terminated", "finishedAt"]),
        );
        let waiting = str_at(c, &["state", "waiting", "reason"]);
        if !waiting.is_empty() {
            out.status = waiting.to_owned();
        } else if let Some(t) = meta::at(c, &["state", "terminated"]) {
            out.status = terminated_text(t);
        } else if is_ready(c) && meta::at(c, &["state", "running"]).is_some() {
            running = true;
            out.ready += 1;
        }
    }
    // Restarts of sidecars count together with those of containers; those of other init containers do not.
    if statuses.is_empty() {
        out.restarts = before;
    }
    if out.status == "Completed" && running {
        let ready = condition(pod, "Ready").is_some_and(|c| str_at(c, &["status"]) == "True");
        out.status = if ready { "Running" } else { "NotReady" }.to_owned();
    }
}
