//! `koord top`: what nodes and pods request and use, by class.

use crate::cluster_args::ClusterArgs;
use crate::fetch::{Fetched, Fetcher, elements, full_name, name, text};
use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use k8s_openapi::api::core::v1::Pod;
use koord_api::priority::{self, PriorityClass};
use koord_api::{Quantity, ResourceList, qos, requests, resources};
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::tls::install_crypto_provider;
use serde::Serialize;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TopSubject {
    /// Nodes, one row per class.
    #[value(alias = "node")]
    Nodes,
    /// Pods.
    #[value(alias = "pod")]
    Pods,
}

/// Kind of class by which the pods of a node are grouped into rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Classes {
    /// prod, mid, batch and free.
    Priority,
    /// LSE, LSR, LS, BE and SYSTEM.
    Qos,
}

/// The resource to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SortBy {
    /// CPU usage.
    Cpu,
    /// Memory usage.
    Memory,
}

/// Arguments of `koord top`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to list.
    #[arg(value_enum)]
    pub subject: TopSubject,
    /// Kind of class to group pods by.
    #[arg(long, value_enum, default_value = "priority")]
    pub by: Classes,
    /// Sort by usage, the largest first [default: by name].
    #[arg(long, value_enum, value_name = "RESOURCE")]
    pub sort_by: Option<SortBy>,
    /// List only pods of this namespace [default: all].
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Output format.
    #[arg(short, long, default_value = "table", value_parser = ["table", "json"])]
    pub output: String,
    /// Leave out the header of the table.
    #[arg(long)]
    pub no_headers: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Seconds within which each request has to be answered.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub request_timeout: u64,
}

/// CPU in milli-cores and memory in bytes; `None` if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Amounts {
    cpu_milli: Option<i64>,
    memory_bytes: Option<i64>,
}

impl Amounts {
    const ZERO: Self = Self {
        cpu_milli: Some(0),
        memory_bytes: Some(0),
    };

    /// Adds known amounts; an unknown one counts as nothing.
    fn add(&mut self, other: Self) {
        let sum = |a: Option<i64>, b: Option<i64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        self.cpu_milli = sum(self.cpu_milli, other.cpu_milli);
        self.memory_bytes = sum(self.memory_bytes, other.memory_bytes);
    }

    /// Reads amounts of native resources.
    fn native(list: &ResourceList) -> Self {
        Self {
            cpu_milli: list.get(resources::CPU).map(Quantity::milli_value),
            memory_bytes: list.get(resources::MEMORY).map(Quantity::value),
        }
    }

    /// Reads amounts of reclaimed resources, whose CPU is in milli-cores.
    fn reclaimed(list: &ResourceList, cpu: &str, memory: &str) -> Self {
        Self {
            cpu_milli: list.get(cpu).map(Quantity::value),
            memory_bytes: list.get(memory).map(Quantity::value),
        }
    }

    /// Returns the usage that `metric` (of `podUsage` or `nodeUsage`) holds.
    fn usage(metric: &Value) -> Self {
        Self::native(&read_list(metric.get("resources")))
    }
}

/// A line of the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageRow {
    /// Node, or namespace and name of a pod.
    name: String,
    /// Class; `all` for the sum of a node.
    class: String,
    /// Number of pods; 1 for a pod.
    pods: usize,
    requested: Amounts,
    /// Amounts that the node offers to the class.
    allocatable: Amounts,
    /// Usage; unknown without a NodeMetric.
    used: Amounts,
}

/// Prints requests and usage.
///
/// # Errors
/// The cluster cannot be reached, or nodes or pods may not be listed.
pub fn main(args: &Args) -> Result<()> {
    runtime()?.block_on(async {
        install_crypto_provider();
        let client = args.cluster.connect().await?;
        let fetcher = Fetcher::new(client, Duration::from_secs(args.request_timeout));
        let (rows, unknown) = rows(&fetcher, args).await?;
        if let Some(reason) = unknown {
            console::warn(format_args!("koord: usage is unknown: {reason}"));
        }
        if args.output == "json" {
            console::print_line(serde_json::to_string_pretty(&rows)?);
        } else {
            console::print_line(render(&rows, args.subject, args.no_headers));
        }
        Ok(())
    })
}

/// Returns the output of `koord top` for all namespaces, divided by priority class.
///
/// # Errors
/// Nodes or pods may not be listed.
pub(crate) async fn report(fetcher: &Fetcher, subject: TopSubject) -> Result<String> {
    let args = Args {
        subject,
        by: Classes::Priority,
        sort_by: None,
        namespace: None,
        output: "table".to_owned(),
        no_headers: false,
        cluster: ClusterArgs::default(),
        request_timeout: 0,
    };
    let (rows, unknown) = rows(fetcher, &args).await?;
    let note = unknown.map_or_else(String::new, |reason| {
        format!("usage is unknown: {reason}\n")
    });
    Ok(format!("{note}{}", render(&rows, subject, false)))
}

/// Reads the cluster and returns the rows in their order, and why usage is unknown if it is.
async fn rows(fetcher: &Fetcher, args: &Args) -> Result<(Vec<UsageRow>, Option<String>)> {
    let pods = match &args.namespace {
        Some(namespace) if args.subject == TopSubject::Pods => require(
            fetcher
                .list(&format!("/api/v1/namespaces/{namespace}/pods"))
                .await,
        )?,
        _ => require(fetcher.list("/api/v1/pods").await)?,
    };
    let metrics = fetcher
        .list("/apis/slo.koordinator.sh/v1alpha1/nodemetrics")
        .await;
    let unknown = metrics.read().err();
    let metrics = metrics.value().map(Vec::as_slice).unwrap_or_default();
    let mut rows = match args.subject {
        TopSubject::Nodes => {
            let nodes = require(fetcher.list("/api/v1/nodes").await)?;
            node_rows(&nodes, &pods, metrics, args.by)
        }
        TopSubject::Pods => pod_rows(&pods, metrics, args.by),
    };
    sort(&mut rows, args.sort_by);
    Ok((rows, unknown))
}

/// Returns the objects, or an error if the cluster did not return them.
fn require(fetched: Fetched<Vec<Value>>) -> Result<Vec<Value>> {
    match fetched {
        Fetched::Read(objects) => Ok(objects),
        missing => bail!(
            "failed to read the cluster: {}",
            missing.read().err().unwrap_or_default()
        ),
    }
}

/// Sorts rows: nodes and pods with the largest usage first, and rows of a node together.
fn sort(rows: &mut [UsageRow], by: Option<SortBy>) {
    let Some(by) = by else {
        // Rows of a node keep the order of classes.
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        return;
    };
    let usage = |row: &UsageRow| match by {
        SortBy::Cpu => row.used.cpu_milli,
        SortBy::Memory => row.used.memory_bytes,
    };
    let mut largest: HashMap<String, Option<i64>> = HashMap::new();
    for row in rows.iter() {
        let value = largest.entry(row.name.clone()).or_default();
        *value = (*value).max(usage(row));
    }
    rows.sort_by_cached_key(|row| {
        (
            Reverse(largest.get(&row.name).copied().flatten()),
            row.name.clone(),
        )
    });
}

fn read_list(list: Option<&Value>) -> ResourceList {
    list.and_then(|list| serde_json::from_value(list.clone()).ok())
        .unwrap_or_default()
}

/// Returns the class of a pod and its requests.
fn classify(pod: &Pod, by: Classes) -> (String, Amounts) {
    let priority = priority::pod_priority_class_or_default(pod);
    let class = match by {
        Classes::Priority => short(priority).to_owned(),
        Classes::Qos => qos::pod_qos_class_or_default(pod).to_string(),
    };
    let list = pod.spec.as_ref().map(requests::pod_requests);
    let list = list.and_then(Result::ok).unwrap_or_default();
    let mut requested = Amounts::native(&list);
    requested.add(Amounts::reclaimed(
        &list,
        resources::BATCH_CPU,
        resources::BATCH_MEMORY,
    ));
    requested.add(Amounts::reclaimed(
        &list,
        resources::MID_CPU,
        resources::MID_MEMORY,
    ));
    (class, requested)
}

/// Returns the class's name without prefix; a pod without a class counts as prod.
fn short(class: PriorityClass) -> &'static str {
    match class.as_str().trim_start_matches("koord-") {
        "" => "prod",
        name => name,
    }
}

/// Returns the classes in the order of rows.
const fn classes(by: Classes) -> &'static [&'static str] {
    match by {
        Classes::Priority => &["prod", "mid", "batch", "free"],
        Classes::Qos => &["LSE", "LSR", "LS", "BE", "SYSTEM"],
    }
}

/// Returns the usage of each pod, by namespace and name.
fn usage_by_pod(metrics: &[Value]) -> HashMap<String, Amounts> {
    let pods = metrics
        .iter()
        .flat_map(|it| elements(it, "/status/podsMetric"));
    pods.map(|pod| {
        let name = format!("{}/{}", text(pod, "/namespace"), text(pod, "/name"));
        (name, Amounts::usage(&pod["podUsage"]))
    })
    .collect()
}

/// Returns the pods that hold resources, decoded; an invalid one is left out.
fn running_pods(pods: &[Value]) -> impl Iterator<Item = (&Value, Pod)> {
    pods.iter()
        .filter(|pod| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed"))
        .filter_map(|pod| Some((pod, serde_json::from_value(pod.clone()).ok()?)))
}

fn pod_rows(pods: &[Value], metrics: &[Value], by: Classes) -> Vec<UsageRow> {
    let usage = usage_by_pod(metrics);
    running_pods(pods)
        .map(|(object, pod)| {
            let (class, requested) = classify(&pod, by);
            let name = full_name(object);
            let used = usage.get(&name).copied().unwrap_or_default();
            UsageRow {
                name,
                class,
                pods: 1,
                requested,
                allocatable: Amounts::default(),
                used,
            }
        })
        .collect()
}

fn node_rows(nodes: &[Value], pods: &[Value], metrics: &[Value], by: Classes) -> Vec<UsageRow> {
    let usage = usage_by_pod(metrics);
    let metrics: HashMap<&str, &Value> = metrics.iter().map(|it| (name(it), it)).collect();
    // Requests and usage by node and class.
    let mut sums: BTreeMap<(String, String), (usize, Amounts, Amounts)> = BTreeMap::new();
    for (object, pod) in running_pods(pods) {
        let (class, requested) = classify(&pod, by);
        let node = text(object, "/spec/nodeName").to_owned();
        let sum = sums
            .entry((node, class))
            .or_insert((0, Amounts::ZERO, Amounts::default()));
        sum.0 += 1;
        sum.1.add(requested);
        sum.2
            .add(usage.get(&full_name(object)).copied().unwrap_or_default());
    }
    let mut rows = Vec::new();
    for node in nodes {
        let node_name = name(node);
        let offered = read_list(node.pointer("/status/allocatable"));
        let report = metrics
            .get(node_name)
            .and_then(|it| it.pointer("/status/nodeMetric"));
        let mut total = UsageRow {
            name: node_name.to_owned(),
            class: "all".to_owned(),
            pods: 0,
            requested: Amounts::ZERO,
            allocatable: Amounts::native(&offered),
            used: report.map_or_else(Amounts::default, |it| Amounts::usage(&it["nodeUsage"])),
        };
        let mut parts = Vec::new();
        for class in classes(by).iter().copied() {
            let key = (node_name.to_owned(), class.to_owned());
            let sum = sums.get(&key).copied();
            let (pods, requested, used) = sum.unwrap_or((0, Amounts::ZERO, Amounts::default()));
            let allocatable = match class {
                "batch" => {
                    Amounts::reclaimed(&offered, resources::BATCH_CPU, resources::BATCH_MEMORY)
                }
                "mid" => Amounts::reclaimed(&offered, resources::MID_CPU, resources::MID_MEMORY),
                _ => Amounts::default(),
            };
            // A reported node without pods of a class uses nothing for it.
            let used = match report {
                Some(_) if pods == 0 => Amounts::ZERO,
                Some(_) => used,
                None => Amounts::default(),
            };
            total.pods += pods;
            total.requested.add(requested);
            parts.push(UsageRow {
                name: node_name.to_owned(),
                class: class.to_owned(),
                pods,
                requested,
                allocatable,
                used,
            });
        }
        rows.push(total);
        rows.append(&mut parts);
    }
    rows
}

/// Formats CPU as kubectl does.
fn cpu(amount: Option<i64>) -> String {
    amount.map_or_else(|| "-".to_owned(), |milli| format!("{milli}m"))
}

/// Formats memory as kubectl does.
fn memory(amount: Option<i64>) -> String {
    amount.map_or_else(|| "-".to_owned(), |bytes| format!("{}Mi", bytes >> 20))
}

fn render(rows: &[UsageRow], subject: TopSubject, no_headers: bool) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let is_nodes = subject == TopSubject::Nodes;
    if !no_headers {
        let mut header = vec![
            "NAME",
            "CLASS",
            "CPU(requested)",
            "CPU(used)",
            "MEMORY(requested)",
            "MEMORY(used)",
        ];
        if is_nodes {
            header.extend(["CPU(allocatable)", "MEMORY(allocatable)", "PODS"]);
        }
        table.set_header(header);
    }
    for row in rows {
        let mut cells = vec![
            row.name.clone(),
            row.class.clone(),
            cpu(row.requested.cpu_milli),
            cpu(row.used.cpu_milli),
            memory(row.requested.memory_bytes),
            memory(row.used.memory_bytes),
        ];
        if is_nodes {
            cells.extend([
                cpu(row.allocatable.cpu_milli),
                memory(row.allocatable.memory_bytes),
                row.pods.to_string(),
            ]);
        }
        table.add_row(cells);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, class: &str, requests: Value) -> Value {
        json!({"metadata": {"name": name, "namespace": "d", "labels": {"koordinator.sh/priority-class": class}},
            "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"}})
    }

    fn node(name: &str) -> Value {
        json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi",
            "kubernetes.io/batch-cpu": "1500", "kubernetes.io/batch-memory": "1Gi"}}})
    }

    fn metric() -> Value {
        let usage = |cpu: &str, memory: &str| json!({"resources": {"cpu": cpu, "memory": memory}});
        json!({"metadata": {"name": "a"}, "status": {
            "nodeMetric": {"nodeUsage": usage("900m", "2Gi")},
            "podsMetric": [{"namespace": "d", "name": "web", "podUsage": usage("300m", "1Gi")},
                {"namespace": "d", "name": "job", "podUsage": usage("500m", "512Mi")}]}})
    }

    #[test]
    fn node_has_a_row_per_class() {
        let pods = [
            pod("web", "koord-prod", json!({"cpu": "1", "memory": "2Gi"})),
            pod(
                "job",
                "koord-batch",
                json!({"kubernetes.io/batch-cpu": "700", "kubernetes.io/batch-memory": "600Mi"}),
            ),
        ];
        let rows = node_rows(
            &[node("a"), node("b")],
            &pods,
            &[metric()],
            Classes::Priority,
        );
        let lines: Vec<String> = rows
            .iter()
            .map(|row| {
                format!(
                    "{} {} {} {} {} {}",
                    row.name,
                    row.class,
                    cpu(row.requested.cpu_milli),
                    cpu(row.used.cpu_milli),
                    memory(row.used.memory_bytes),
                    cpu(row.allocatable.cpu_milli)
                )
            })
            .collect();
        assert_eq!(
            lines[..5],
            [
                "a all 1700m 900m 2048Mi 4000m",
                "a prod 1000m 300m 1024Mi -",
                "a mid 0m 0m 0Mi -",
                "a batch 700m 500m 512Mi 1500m",
                "a free 0m 0m 0Mi -",
            ]
        );
        // Node b has no NodeMetric: unknown is not zero.
        assert_eq!(lines[5], "b all 0m - - 4000m");
        assert_eq!(lines[8], "b batch 0m - - 1500m");
    }

    #[test]
    fn largest_usage_comes_first_and_unknown_last() {
        let row = |name: &str, cpu| UsageRow {
            name: name.to_owned(),
            class: "prod".to_owned(),
            pods: 1,
            requested: Amounts::ZERO,
            allocatable: Amounts::default(),
            used: Amounts {
                cpu_milli: cpu,
                memory_bytes: None,
            },
        };
        let mut rows = [row("a", None), row("b", Some(1)), row("c", Some(9))];
        sort(&mut rows, Some(SortBy::Cpu));
        assert_eq!(rows.map(|row| row.name), ["c", "b", "a"]);
    }
}
