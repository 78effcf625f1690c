//! `koord status`: the state of a `koord up` cluster on this machine, or a summary of the cluster that kubectl is
//! configured for.

use crate::check::collect::leases;
use crate::check::rules::components::{COMPONENT, images};
use crate::check::rules::scheduling::pending_reason;
use crate::cluster_args::ClusterArgs;
use crate::fetch::{Fetched, Fetcher, has_condition, integer, label, name, text};
use crate::{cluster_files, running};
use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::api::core::v1::Pod;
use koord_api::{configmap, qos, resources};
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::Client;
use koord_kube::tls::install_crypto_provider;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Number of reasons of pending pods in the text.
const MAX_REASONS: usize = 10;

const KUBECONFIG_HELP: &str = "Report on the cluster of this kubeconfig, not on a `koord up` cluster [default if \
                               none runs: KUBECONFIG, else ~/.kube/config]";
const CONTEXT_HELP: &str = "Report on the cluster of this context of the kubeconfig";
/// Arguments that select a `koord up` cluster.
const LOCAL: [&str; 2] = ["data_dir", "memory"];

/// Arguments of `koord status`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    mut_arg("kubeconfig", |it| it.help(KUBECONFIG_HELP).conflicts_with_all(LOCAL)),
    mut_arg("context", |it| it.help(CONTEXT_HELP).conflicts_with_all(LOCAL))
)]
pub struct Args {
    #[command(flatten)]
    local: running::Args,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format of the report on a cluster.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
    /// Seconds within which each request has to be answered.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    request_timeout: u64,
}

/// Prints the state of the selected cluster.
///
/// # Errors
/// No cluster runs on this machine, and none is configured or it cannot be reached.
pub fn main(args: &Args) -> Result<()> {
    let is_remote = args.cluster.is_named();
    let is_named = args.local.data_dir.is_some() || args.local.memory;
    if is_named || (!is_remote && !cluster_files::running().is_empty()) {
        return running::status(&args.local);
    }
    let reported = runtime()?.block_on(async {
        install_crypto_provider();
        let client = args.cluster.connect().await?;
        report(client, Duration::from_secs(args.request_timeout)).await
    });
    let report = match reported {
        Err(error) if !is_remote => {
            return Err(error).context("no cluster of koord up runs on this machine as this user");
        }
        reported => reported?,
    };
    if args.output == "json" {
        console::print_line(serde_json::to_string_pretty(&report)?);
    } else {
        console::print_line(render(&report).trim_end());
    }
    Ok(())
}

/// Summarizes the cluster of `client`, as `koord status --output json` prints it. Each request ends after `timeout`;
/// a section whose objects cannot be read names the reason.
///
/// # Errors
/// The API server cannot be reached, or refuses the caller.
pub async fn report(client: Client, timeout: Duration) -> Result<Value> {
    report_with(&Fetcher::new(client, timeout), configmap::NAMESPACE).await
}

/// Summarizes a cluster whose components are in `namespace`, like [`report`].
///
/// # Errors
/// The API server cannot be reached, or refuses the caller.
pub(crate) async fn report_with(fetcher: &Fetcher, namespace: &str) -> Result<Value> {
    let version = fetcher.version().await;
    let version = version.map_err(|error| anyhow!("failed to reach the API server: {error}"))?;
    let pods = fetcher.list("/api/v1/pods").await;
    let nodes = fetcher.list("/api/v1/nodes").await;
    let apps = |plural: &str| format!("/apis/apps/v1/namespaces/{namespace}/{plural}");
    let deployments = fetcher.list(&apps("deployments")).await;
    let daemon_sets = fetcher.list(&apps("daemonsets")).await;
    let leases = leases(fetcher, namespace).await;
    Ok(json!({
        "version": version,
        "components": section(&deployments, |it| components(it, "replicas", "readyReplicas")),
        "agents": section(&daemon_sets, |it| components(it, "desiredNumberScheduled", "numberReady")),
        "leaders": section(&leases, leaders),
        "nodes": section(&nodes, summarize_nodes),
        "podsByQosClass": section(&pods, pods_by_class),
        "pending": section(&pods, pending),
    }))
}

/// Returns a section of the report; the reason if the objects could not be read.
fn section(fetched: &Fetched<Vec<Value>>, summarize: impl Fn(&[Value]) -> Value) -> Value {
    match fetched.read() {
        Ok(objects) => summarize(objects),
        Err(reason) => json!({"unknown": reason}),
    }
}

fn components(workloads: &[Value], desired: &str, ready: &str) -> Value {
    let count =
        |it: &Value, field: &str| integer(it, &format!("/status/{field}")).unwrap_or_default();
    let ours = workloads
        .iter()
        .filter(|it| !label(it, COMPONENT).is_empty());
    let rows = ours.map(|it| {
        json!({"name": name(it), "desired": count(it, desired), "ready": count(it, ready), "image": images(it)})
    });
    Value::Array(rows.collect())
}

fn leaders(leases: &[Value]) -> Value {
    const OURS: [&str; 3] = [
        "koordinator-manager",
        "koord-scheduler",
        "koord-descheduler",
    ];
    let ours = leases
        .iter()
        .filter(|it| OURS.contains(&name(it)) || name(it) == "kube-scheduler");
    let rows = ours.map(|it| {
        json!({"lease": name(it), "holder": text(it, "/spec/holderIdentity"),
            "renewed": text(it, "/spec/renewTime")})
    });
    Value::Array(rows.collect())
}

fn summarize_nodes(nodes: &[Value]) -> Value {
    let has_batch = |node: &&Value| {
        let allocatable = node.pointer("/status/allocatable");
        let amount = allocatable.and_then(|it| it.get(resources::BATCH_CPU));
        amount.and_then(Value::as_str).is_some_and(|it| it != "0")
    };
    let ready = nodes.iter().filter(|it| has_condition(it, "Ready")).count();
    json!({"total": nodes.len(), "ready": ready, "withBatchResources": nodes.iter().filter(has_batch).count()})
}

fn pods_by_class(pods: &[Value]) -> Value {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for object in pods {
        if matches!(text(object, "/status/phase"), "Succeeded" | "Failed") {
            continue;
        }
        if let Ok(pod) = serde_json::from_value::<Pod>(object.clone()) {
            let class = qos::pod_qos_class_or_default(&pod).to_string();
            *counts.entry(class).or_default() += 1;
        }
    }
    json!(counts)
}

/// Returns the number of pending pods by reason, the most frequent first.
fn pending(pods: &[Value]) -> Value {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in pods.iter().filter_map(pending_reason) {
        *counts.entry(reason).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rows = counts
        .into_iter()
        .map(|(reason, count)| json!({"pods": count, "reason": reason}));
    Value::Array(rows.collect())
}

/// Formats a report of [`report`] as text.
pub fn render(report: &Value) -> String {
    let mut out = format!("Kubernetes {}\n", text(report, "/version"));
    // Writing to a String cannot fail.
    for field in ["components", "agents", "leaders", "pending"] {
        let section = &report[field];
        let rows = match section.as_array() {
            None => {
                let _ = writeln!(out, "{field}: unknown, {}", text(section, "/unknown"));
                continue;
            }
            Some(rows) if rows.is_empty() => {
                let _ = writeln!(out, "{field}: none");
                continue;
            }
            Some(rows) => rows,
        };
        let _ = writeln!(out, "{field}:");
        for row in rows.iter().take(MAX_REASONS) {
            let _ = match field {
                "leaders" => writeln!(out, "  {}: {}", text(row, "/lease"), text(row, "/holder")),
                "pending" => writeln!(out, "  {} pods: {}", row["pods"], text(row, "/reason")),
                _ => writeln!(
                    out,
                    "  {}: {} of {} ready, {}",
                    text(row, "/name"),
                    row["ready"],
                    row["desired"],
                    text(row, "/image")
                ),
            };
        }
        if rows.len() > MAX_REASONS {
            let _ = writeln!(out, "  and {} more", rows.len() - MAX_REASONS);
        }
    }
    let nodes = &report["nodes"];
    let _ = match nodes["unknown"].as_str() {
        Some(reason) => writeln!(out, "nodes: unknown, {reason}"),
        None => writeln!(
            out,
            "nodes: {}, {} ready, {} with batch resources",
            nodes["total"], nodes["ready"], nodes["withBatchResources"]
        ),
    };
    let classes = &report["podsByQosClass"];
    let _ = match classes["unknown"].as_str() {
        Some(reason) => writeln!(out, "pods: unknown, {reason}"),
        None => {
            let counts = classes.as_object().into_iter().flatten();
            let counts: Vec<String> = counts.map(|(class, n)| format!("{n} {class}")).collect();
            let none = || "none".to_owned();
            let counts = Some(counts.join(", ")).filter(|counts| !counts.is_empty());
            writeln!(out, "pods: {}", counts.unwrap_or_else(none))
        }
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_reasons_are_counted() {
        let pod = |message: &str| json!({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "message": message}]}});
        let bound = json!({"spec": {"nodeName": "a"}, "status": {"phase": "Pending"}});
        let pods = [pod("a"), pod("b"), pod("b"), bound];
        assert_eq!(
            pending(&pods),
            json!([{"pods": 2, "reason": "b"}, {"pods": 1, "reason": "a"}])
        );
    }
}
