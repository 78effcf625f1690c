//! `koord explain`: why a pod waits, or why it is where it is, and what holds batch work back on a
//! node, in words.

use crate::cluster::{install_crypto_provider, runtime};
use crate::{console, node, plain};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use koord_kube::Api;
use koord_kube::client::{ClientOptions, Peer, from_kubeconfig, to_peer};
use koordlet::qos::guard::NAME as GUARD;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What to explain, and whom to ask.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The kind: pod or node.
    #[arg(value_parser = ["pod", "pods", "po", "node", "nodes", "no"])]
    pub kind: String,
    /// Of a pod NAMESPACE/NAME, or NAME alone in namespace default; of a node NAME.
    pub name: String,
    /// For a node: where its koordlet serves its health and metrics.
    #[arg(long, default_value = "127.0.0.1:9316", value_name = "HOST:PORT")]
    pub address: String,
    /// Where the scheduler serves its health and metrics, or its secure port with https://.
    #[arg(long, default_value = "http://127.0.0.1:10251", value_name = "URL")]
    pub server: String,
    /// For https: the token to show there.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// For https: who vouches for the scheduler's certificate, instead of the system's authorities.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// For https: take any certificate, as through a port-forward.
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
    /// When the scheduler cannot be reached: the cluster whose pod's condition to show instead.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Print what the scheduler says as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Asks the scheduler, or of a node its koordlet, and prints the answer.
///
/// # Errors
/// Nobody can be asked, or the pod or node is unknown there.
pub fn main(args: &Args) -> Result<()> {
    runtime()?.block_on(run(args))
}

async fn run(args: &Args) -> Result<()> {
    if args.kind.starts_with('n') {
        return explain_node(args).await;
    }
    let (namespace, name) = args.name.split_once('/').unwrap_or(("default", &args.name));
    let path = format!("/debug/scheduler/pods/{namespace}/{name}");
    let (code, body) = match (ask(args, &path).await, &args.kubeconfig) {
        (Ok(answer), _) => answer,
        (Err(error), Some(kubeconfig)) => {
            console::warn(format_args!("{error:#}; showing the pod's condition"));
            console::say(condition(kubeconfig, namespace, name).await?);
            return Ok(());
        }
        (Err(error), None) => {
            return Err(error.context("name another --server, or a --kubeconfig"));
        }
    };
    let value: Value = serde_json::from_str(&body).context("the scheduler's answer")?;
    if code != 200 {
        bail!("{}", value["message"].as_str().unwrap_or(&body));
    }
    if args.json {
        console::say(serde_json::to_string_pretty(&value)?);
    } else {
        console::say(render(&value).trim_end());
    }
    Ok(())
}

/// What holds batch work back on a node, and for which service.
async fn explain_node(args: &Args) -> Result<()> {
    let status = node::ask(&args.address).await?;
    if status.node != args.name {
        let (there, wanted) = (&status.node, &args.name);
        bail!(
            "koordlet at {} is that of node {there}, not {wanted}: name its --address",
            args.address
        );
    }
    if args.json {
        console::say(serde_json::to_string_pretty(&status.guard)?);
        return Ok(());
    }
    match &status.guard {
        Some(guard) => console::say(node::guard(guard).trim_end()),
        None => {
            let row = status.strategies.iter().find(|s| s.name == GUARD);
            let why = row.map_or("this koordlet has none", |row| row.why.as_str());
            console::say(format_args!("pressure guard: does nothing ({why})"));
        }
    }
    Ok(())
}

/// Status code and body of a GET.
pub(crate) async fn ask(args: &Args, path: &str) -> Result<(u16, String)> {
    if !args.server.starts_with("https://") {
        return plain::get(&args.server, "the scheduler", path).await;
    }
    install_crypto_provider();
    let client = to_peer(&Peer {
        url: args.server.clone(),
        token_file: args.token_file.clone(),
        authority: args.certificate_authority.clone(),
        insecure: args.insecure_skip_tls_verify,
    })
    .await?;
    let request = hyper::Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        Ok(body) => Ok((200, body)),
        Err(koord_kube::Error::Api(status)) => {
            let body = serde_json::json!({"message": status.message});
            Ok((status.code, body.to_string()))
        }
        Err(error) => Err(error)
            .with_context(|| format!("the scheduler at {} cannot be reached", args.server)),
    }
}

/// What the API server knows: the pod's own condition.
async fn condition(kubeconfig: &Path, namespace: &str, name: &str) -> Result<String> {
    install_crypto_provider();
    let client = from_kubeconfig(Some(kubeconfig), &ClientOptions::default()).await?;
    let api: Api<Pod> = Api::namespaced(client, namespace);
    let pod = api.get(name).await?;
    if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
        return Ok(format!("{namespace}/{name} is bound to {node}"));
    }
    let conditions = pod.status.and_then(|status| status.conditions);
    let scheduled = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled");
    let said = scheduled.and_then(|condition| condition.message);
    Ok(match said {
        Some(said) => format!("{namespace}/{name} is pending\n  {said}"),
        None => format!("{namespace}/{name} is pending; nothing was said about it yet"),
    })
}

/// The scheduler's answer as text.
fn render(value: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
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
        for (key, label) in [("refusedBy", "refused by"), ("gatedBy", "held back by")] {
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
        ("nominatedNode", "room is being made on"),
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
        nearest.map(|near| [text(&near["node"]), text(&near["lacks"])].to_vec()),
    );
    decision(&mut out, &value["decision"]);
    for (plugin, said) in value["plugins"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "  {plugin}: {said}");
    }
    out
}

/// The score table of a placement: a line per plugin, a column per node.
fn decision(out: &mut String, decision: &Value) {
    let Some(time) = decision["time"].as_str() else {
        return;
    };
    let ranking = decision["ranking"].as_array().cloned().unwrap_or_default();
    if ranking.is_empty() {
        let _ = writeln!(out, "  decided {time}, without a comparison");
        return;
    }
    let (feasible, nodes) = (&decision["feasible"], &decision["nodes"]);
    let _ = writeln!(out, "  decided {time}: {feasible} of {nodes} nodes fitted");
    let name = |node: &Value| node["node"].as_str().unwrap_or_default().to_owned();
    let mut table = vec![
        std::iter::once("score x weight".to_owned())
            .chain(ranking.iter().map(name))
            .collect::<Vec<_>>(),
    ];
    let plugins = ranking[0]["scores"].as_array().map_or(0, Vec::len);
    for at in 0..plugins {
        let mut line = vec![
            ranking[0]["scores"][at]["plugin"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        ];
        line.extend(ranking.iter().map(|node| {
            let score = &node["scores"][at];
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

/// A table under a title, columns aligned; nothing without rows.
fn rows(out: &mut String, title: &str, table: impl Iterator<Item = Vec<String>>) {
    let table: Vec<Vec<String>> = table.collect();
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    if columns == 0 {
        return;
    }
    let width = |column: usize| {
        let cells = table.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let _ = writeln!(out, "  {title}:");
    for row in &table {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(out, "    {}", line.join("  ").trim_end());
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
            "plugins": {"Coscheduling": {"gang": "ns/g"}}
        }));
        assert_eq!(
            text,
            "default/web is pending\n  0/3 nodes are available: 3 Insufficient cpu.\n  \
             queue: unschedulable, 2 attempts, refused by NodeResourcesFit\n  refused by:\n    \
             NodeResourcesFit  3 nodes  Insufficient cpu\n  nearest nodes:\n    \
             n1  cpu: needs 4, free 2500m\n  Coscheduling: {\"gang\":\"ns/g\"}\n"
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
            "default/web is bound on n1\n  decided 2026-01-01T00:00:00Z: 2 of 3 nodes fitted\n  \
             scores:\n    score x weight  n1      n2\n    Fit             90 x 2  8 x 2\n    \
             total           180     16\n"
        );
    }
}
