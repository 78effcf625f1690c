//! Formats the scheduler's explanation of a pod.

use serde_json::Value;
use std::fmt::Write as _;

/// Formats the scheduler's response.
pub(super) fn render(value: &Value) -> String {
    let list = |value: &Value| -> String {
        let all = value.as_array().into_iter().flatten();
        all.map(text).collect::<Vec<_>>().join(", ")
    };
    let mut out = String::new();
    let pod = text(&value["pod"]);
    let state = text(&value["state"]);
    let _ = match value["node"].as_str() {
        Some(node) => writeln!(out, "{pod} is {state} on {node}"),
        None => writeln!(out, "{pod} is {state}"),
    };
    if let Some(message) = value["lastAttempt"]["message"].as_str() {
        let _ = writeln!(out, "  {message}");
    }
    let queue = &value["queue"];
    if let Some(place) = queue["place"].as_str() {
        let attempts = &queue["attempts"];
        let _ = write!(out, "  queue: {place}, {attempts} attempts");
        for (key, label) in [("refusedBy", "refused by"), ("gatedBy", "gated by")] {
            if queue[key].is_array() {
                let _ = write!(out, ", {label} {}", list(&queue[key]));
            }
        }
        for (key, label) in [("reasons", "because"), ("backoffUntil", "not before")] {
            match &queue[key] {
                Value::Null => {}
                Value::Array(_) => {
                    let _ = write!(out, ", {label} {}", list(&queue[key]));
                }
                one => {
                    let _ = write!(out, ", {label} {}", text(one));
                }
            }
        }
        out.push('\n');
    }
    for (key, label) in [
        ("nominatedNode", "nominated to node"),
        ("waitsFor", "waits for"),
    ] {
        if !value[key].is_null() {
            let _ = writeln!(out, "  {label} {}", text(&value[key]));
        }
    }
    let refusals = value["lastAttempt"]["diagnosis"]["refusals"].as_array();
    rows(
        &mut out,
        "refused by",
        refusals.into_iter().flatten().map(|refusal| {
            let nodes = format!("{} nodes", refusal["nodes"]);
            [
                text(&refusal["failedPlugin"]),
                nodes,
                text(&refusal["reason"]),
            ]
            .to_vec()
        }),
    );
    let nearest = value["nearest"].as_array().into_iter().flatten();
    rows(
        &mut out,
        "nearest nodes",
        nearest.map(|candidate| [text(&candidate["node"]), text(&candidate["lacks"])].to_vec()),
    );
    decision(&mut out, &value["decision"]);
    for (plugin, state) in value["plugins"].as_object().into_iter().flatten() {
        match plugin.as_str() {
            "Coscheduling" => gang(&mut out, state),
            "ElasticQuota" => quota(&mut out, state),
            _ => render_value(&mut out, 2, plugin, state),
        }
    }
    out
}

/// Formats the score table of a placement: a line per plugin, a column per node.
fn decision(out: &mut String, decision: &Value) {
    let Some(time) = decision["time"].as_str() else {
        return;
    };
    let ranking = decision["ranking"].as_array().cloned().unwrap_or_default();
    if ranking.is_empty() {
        let _ = writeln!(out, "  decided {time}, without scores");
        return;
    }
    let (feasible, nodes) = (&decision["feasible"], &decision["nodes"]);
    let _ = writeln!(
        out,
        "  decided {time}: {feasible} of {nodes} nodes were feasible"
    );
    let name = |node: &Value| node["node"].as_str().unwrap_or_default().to_owned();
    let mut table = vec![
        std::iter::once("score x weight".to_owned())
            .chain(ranking.iter().map(name))
            .collect::<Vec<_>>(),
    ];
    let plugins = ranking[0]["scores"].as_array().map_or(0, Vec::len);
    for index in 0..plugins {
        let mut line = vec![
            ranking[0]["scores"][index]["plugin"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        ];
        line.extend(ranking.iter().map(|node| {
            let score = &node["scores"][index];
            match score["score"].as_i64() {
                Some(value) => format!("{value} x {}", score["weight"]),
                None => format!("(raw {})", score["raw"]),
            }
        }));
        table.push(line);
    }
    let totals = ranking.iter().map(|node| node["total"].to_string());
    table.push(std::iter::once("total".to_owned()).chain(totals).collect());
    rows(out, "scores", table.into_iter());
}

/// Formats the state of a gang.
fn gang(out: &mut String, gang: &Value) {
    let count = |key: &str| gang[key].as_u64().unwrap_or(0);
    let name = text(&gang["gang"]);
    let _ = match gang["needs"].as_u64() {
        Some(needs) => writeln!(
            out,
            "  gang {name}: needs {needs} pods, has {}: {} pending, {} waiting for the \
             others, {} bound",
            count("members"),
            count("pending"),
            count("waiting"),
            count("bound"),
        ),
        None => writeln!(
            out,
            "  gang {name}: has {} pods; the number it needs is unknown",
            count("members")
        ),
    };
    let group = gang["group"].as_str().unwrap_or_default();
    if group.contains(',') {
        let _ = writeln!(out, "    gang group {group}");
    }
    for (key, label) in [("blocked", "blocked"), ("lastFailure", "last failure")] {
        if let Some(reason) = gang[key].as_str() {
            let _ = writeln!(out, "    {label}: {reason}");
        }
    }
}

/// Formats the state of a quota, with a line for each resource it limits.
fn quota(out: &mut String, state: &Value) {
    let quota = &state["quota"];
    let counted = match state["placed"].as_bool() {
        Some(true) => "usage includes this pod",
        _ => "usage does not include this pod yet",
    };
    let _ = writeln!(out, "  quota {}: {counted}", text(&quota["name"]));
    if let Some(refusal) = state["refusal"].as_str() {
        let _ = writeln!(out, "    refused: {refusal}");
    }
    let amount = |list: &str, resource: &str| match &quota[list][resource] {
        Value::Null => "-".to_owned(),
        amount => text(amount),
    };
    let resources = quota["max"].as_object().into_iter().flatten();
    let mut table = vec![
        ["resource", "used", "runtime", "min", "max"]
            .map(str::to_owned)
            .to_vec(),
    ];
    table.extend(resources.map(|(resource, max)| {
        let [used, runtime, min] = ["used", "runtime", "min"].map(|list| amount(list, resource));
        vec![resource.clone(), used, runtime, min, text(max)]
    }));
    if table.len() > 1 {
        lines(out, "    ", &table);
    }
}

/// Formats the state of any other plugin, as `key: value` lines.
fn render_value(out: &mut String, indent: usize, key: &str, value: &Value) {
    let pad = " ".repeat(indent);
    let _ = match value {
        Value::Null => return,
        Value::Object(map) => {
            let _ = writeln!(out, "{pad}{key}:");
            for (key, value) in map {
                render_value(out, indent + 2, key, value);
            }
            return;
        }
        Value::Array(all) if all.iter().any(|item| item.is_object() || item.is_array()) => {
            for item in all {
                render_value(out, indent, key, item);
            }
            return;
        }
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(text).collect();
            writeln!(out, "{pad}{key}: {}", all.join(", "))
        }
        item => writeln!(out, "{pad}{key}: {}", text(item)),
    };
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Formats a table under a title; nothing without rows.
pub(super) fn rows(out: &mut String, title: &str, table: impl Iterator<Item = Vec<String>>) {
    let table: Vec<Vec<String>> = table.collect();
    if table.is_empty() {
        return;
    }
    let _ = writeln!(out, "  {title}:");
    lines(out, "    ", &table);
}

/// Formats rows with aligned columns.
fn lines(out: &mut String, indent: &str, table: &[Vec<String>]) {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = table.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in table {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(out, "{indent}{}", line.join("  ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pending_pod_is_explained() {
        let text = render(&json!({
            "pod": "default/web", "state": "pending", "nominatedNode": null,
            "lastAttempt": {"message": "0/3 nodes are available: 3 Insufficient cpu.",
                "diagnosis": {"refusals": [
                    {"failedPlugin": "NodeResourcesFit", "nodes": 3, "reason": "Insufficient cpu"}]}},
            "queue": {"place": "unschedulable", "attempts": 2, "refusedBy": ["NodeResourcesFit"]},
            "nearest": [{"node": "n1", "lacks": "cpu: needs 4, free 2500m", "distance": 0.4}],
            "plugins": {
                "Coscheduling": {"gang": "ns/g", "group": "ns/g", "needs": 3, "members": 2,
                    "pending": 2, "waiting": 0, "bound": 0, "onceSatisfied": false,
                    "blocked": "too few", "lastFailure": null},
                "ElasticQuota": {"quota": {"name": "team", "max": {"cpu": "4"}, "min": {},
                    "used": {"cpu": "3"}, "runtime": {"cpu": "4"}},
                    "placed": false, "refusal": "Insufficient quotas"},
                "Reservation": {"reservations": [{"name": "r", "usable": false, "why": null}]},
            }
        }));
        assert_eq!(
            text,
            "default/web is pending\n  0/3 nodes are available: 3 Insufficient cpu.\n  \
             queue: unschedulable, 2 attempts, refused by NodeResourcesFit\n  refused by:\n    \
             NodeResourcesFit  3 nodes  Insufficient cpu\n  nearest nodes:\n    \
             n1  cpu: needs 4, free 2500m\n  \
             gang ns/g: needs 3 pods, has 2: 2 pending, 0 waiting for the others, 0 \
             bound\n    blocked: too few\n  \
             quota team: usage does not include this pod yet\n    refused: Insufficient quotas\n    \
             resource  used  runtime  min  max\n    \
             cpu       3     4        -    4\n  \
             Reservation:\n    reservations:\n      name: r\n      usable: false\n"
        );
    }

    #[test]
    fn a_bound_pod_shows_its_scores() {
        let node = |name: &str, score: i64| {
            json!({"node": name, "total": 2 * score, "scores": [
                {"plugin": "Fit", "raw": score, "score": score, "weight": 2}]})
        };
        let text = render(&json!({
            "pod": "default/web", "state": "bound", "node": "n1", "plugins": {},
            "decision": {"time": "2026-01-01T00:00:00Z", "feasible": 2, "nodes": 3,
                "ranking": [node("n1", 90), node("n2", 8)]}
        }));
        assert_eq!(
            text,
            "default/web is bound on n1\n  decided 2026-01-01T00:00:00Z: 2 of 3 nodes were feasible\n  \
             scores:\n    score x weight  n1      n2\n    Fit             90 x 2  8 x 2\n    \
             total           180     16\n"
        );
    }
}
