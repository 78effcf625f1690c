//! Checks of nodes and their agents.

use super::components::COMPONENT;
use super::read;
use crate::check::outcome::{Findings, Outcome, join_names};
use crate::check::snapshot::Snapshot;
use crate::fetch::{Fetched, elements, full_name, integer, label, name, text};
use koord_api::labels;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

const KOORDLET: &str = "koordlet";
/// Report interval of a NodeMetric that sets none, in seconds.
const REPORT_INTERVAL: i64 = 60;
/// Names of workloads whose pods write the same files as koordlet.
const OTHER_AGENTS: [&str; 3] = ["katalyst-agent", "crane-agent", "volcano-agent"];

fn is_linux(node: &Value) -> bool {
    matches!(label(node, "kubernetes.io/os"), "" | "linux")
}

/// Returns the number of koordlets by node.
fn koordlets(pods: &[Value]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        let is_over = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        // A pod that is deleted runs next to the one that replaces it for a moment.
        let is_deleted = !text(pod, "/metadata/deletionTimestamp").is_empty();
        if label(pod, COMPONENT) == KOORDLET && !is_over && !is_deleted {
            *counts.entry(text(pod, "/spec/nodeName")).or_default() += 1;
        }
    }
    counts
}

pub(super) fn coverage(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    let pods = read!(snapshot.pods);
    if snapshot.is_koord_up() {
        return Outcome::ok("koordlet runs in the process of `koord up`");
    }
    let koordlets = koordlets(pods);
    if koordlets.is_empty() {
        return Outcome::skipped("no koordlet is installed, see C-04");
    }
    let without: Vec<String> = nodes
        .iter()
        .filter(|node| is_linux(node) && !koordlets.contains_key(name(node)))
        .map(|node| match elements(node, "/spec/taints") {
            [] => format!("{} ({})", name(node), label(node, "kubernetes.io/arch")),
            [taint, ..] => format!("{} (taint {})", name(node), text(taint, "/key")),
        })
        .collect();
    let mut findings = Findings::default();
    if !without.is_empty() {
        findings.warn(format!(
            "{} nodes without koordlet: {}",
            without.len(),
            join_names(&without)
        ));
    }
    findings.finish(format!("koordlet runs on {} nodes", koordlets.len()))
}

pub(super) fn agents(snapshot: &Snapshot) -> Outcome {
    let pods = read!(snapshot.pods);
    let mut findings = Findings::default();
    let koordlets = koordlets(pods);
    let double: Vec<&str> = koordlets
        .iter()
        .filter(|(node, count)| **count > 1 && !node.is_empty())
        .map(|(node, _)| *node)
        .collect();
    if !double.is_empty() {
        findings.fail(format!("several koordlets on {}", join_names(&double)));
    }
    let others: Vec<String> = pods
        .iter()
        .filter(|pod| {
            OTHER_AGENTS
                .iter()
                .any(|agent| name(pod).starts_with(agent))
        })
        .filter(|pod| koordlets.contains_key(text(pod, "/spec/nodeName")))
        .map(full_name)
        .collect();
    if !others.is_empty() {
        findings.fail(format!(
            "agents that write the same files as koordlet: {}",
            join_names(&others)
        ));
    }
    findings.finish("at most one agent on each node")
}

pub(super) fn reports(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    let metrics = read!(snapshot.node_metrics);
    let by_node: HashMap<&str, &Value> = metrics.iter().map(|it| (name(it), it)).collect();
    let (mut missing, mut stale) = (Vec::new(), Vec::new());
    // A node that joined just now still has to report.
    let is_new = |object: &Value, interval: i64| {
        let age = snapshot.age_of(object);
        age.is_some_and(|age| age <= interval.saturating_mul(2))
    };
    for node in nodes.iter().filter(|node| is_linux(node)) {
        let Some(metric) = by_node.get(name(node)) else {
            if !is_new(node, REPORT_INTERVAL) {
                missing.push(name(node).to_owned());
            }
            continue;
        };
        let interval = integer(metric, "/spec/metricCollectPolicy/reportIntervalSeconds");
        let interval = interval.filter(|it| *it > 0).unwrap_or(REPORT_INTERVAL);
        match snapshot.age(text(metric, "/status/updateTime")) {
            None if is_new(metric, interval) => {}
            None => missing.push(format!("{} (never reported)", name(node))),
            Some(age) if age > interval.saturating_mul(2) => {
                stale.push(format!("{} ({age} s)", name(node)));
            }
            Some(_) => {}
        }
    }
    let mut findings = Findings::default();
    if !missing.is_empty() {
        findings.fail(format!(
            "{} nodes without a report: {}",
            missing.len(),
            join_names(&missing)
        ));
    }
    if !stale.is_empty() {
        findings.fail(format!(
            "{} nodes with a report older than two intervals: {}",
            stale.len(),
            join_names(&stale)
        ));
    }
    findings.finish(format!("{} reports", metrics.len()))
}

pub(super) fn kernel(_: &Snapshot) -> Outcome {
    Outcome::skipped("koordlet shows the kernel's features on its node only: koord node status")
}

pub(super) fn kubelets(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    let exclusive: HashSet<&str> = snapshot
        .pods
        .value()
        .into_iter()
        .flatten()
        .filter(|pod| matches!(label(pod, labels::POD_QOS), "LSE" | "LSR"))
        .map(|pod| text(pod, "/spec/nodeName"))
        .collect();
    let mut read = 0;
    let mut refusal = None;
    let mut nodes_by_problem: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, configuration) in &snapshot.kubelets {
        match configuration {
            Fetched::Read(configuration) => {
                read += 1;
                for problem in conflicts(configuration, exclusive.contains(node.as_str())) {
                    nodes_by_problem.entry(problem).or_default().push(node);
                }
            }
            refused => refusal = refused.read().err(),
        }
    }
    if read == 0 {
        let reason = refusal.unwrap_or_else(|| "no kubelet was asked".to_owned());
        return Outcome::skipped(reason);
    }
    let mut findings = Findings::default();
    for (problem, nodes) in nodes_by_problem {
        findings.warn(format!("{problem}: {}", join_names(&nodes)));
    }
    findings.finish(format!("{read} of {} kubelets read", nodes.len()))
}

/// Returns the settings of a kubelet that conflict with koordlet's.
fn conflicts(configuration: &Value, has_exclusive_pods: bool) -> Vec<&'static str> {
    let config = &configuration["kubeletconfig"];
    let mut found = Vec::new();
    if config["cpuManagerPolicy"] == "static" && has_exclusive_pods {
        found.push("cpuManagerPolicy static on a node with LSE or LSR pods: both assign CPUs");
    }
    if config["featureGates"]["MemoryQoS"] == true
        || config["memoryReservationPolicy"] == "TieredReservation"
    {
        found.push("the kubelet's MemoryQoS writes memory.high or memory.min, as memoryQOS does");
    }
    if config["memorySwap"]["swapBehavior"] == "LimitedSwap" {
        found.push("swapBehavior LimitedSwap: batch memory does not count swap");
    }
    if config["cpuCFSQuota"] == false {
        found.push("cpuCFSQuota false: limits of pods are not CFS quotas, which CPU burst needs");
    }
    let policy = text(config, "/topologyManagerPolicy");
    if !matches!(policy, "" | "none" | "best-effort") {
        found.push("topologyManagerPolicy refuses pods that the scheduler did not align (TopologyAffinityError)");
    }
    found
}

pub(super) fn topologies(snapshot: &Snapshot) -> Outcome {
    let topologies = read!(snapshot.topologies);
    if topologies.is_empty() {
        return Outcome::skipped("there is no NodeResourceTopology");
    }
    let empty = topologies
        .iter()
        .filter(|it| elements(it, "/zones").is_empty());
    let empty: Vec<&str> = empty.map(name).collect();
    let mut findings = Findings::default();
    if !empty.is_empty() {
        findings.warn(format!("no zones: {}", join_names(&empty)));
    }
    findings.finish(format!("{} reports with zones", topologies.len()))
}

pub(super) fn devices(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    let devices = read!(snapshot.devices);
    let reported: BTreeSet<&str> = devices.iter().map(name).collect();
    let has_gpus = |node: &&Value| {
        let capacity = node.pointer("/status/capacity/nvidia.com~1gpu");
        capacity
            .and_then(Value::as_str)
            .is_some_and(|amount| amount != "0")
    };
    let without: Vec<&str> = nodes
        .iter()
        .filter(has_gpus)
        .map(name)
        .filter(|node| !reported.contains(node))
        .collect();
    let mut findings = Findings::default();
    if !without.is_empty() {
        findings.warn(format!(
            "GPUs without a Device object: {}",
            join_names(&without)
        ));
    }
    for device in devices {
        let unhealthy = elements(device, "/spec/devices").iter();
        let unhealthy = unhealthy.filter(|it| it["health"] == false).count();
        if unhealthy > 0 {
            findings.warn(format!("{unhealthy} unhealthy devices on {}", name(device)));
        }
    }
    findings.finish(format!("{} nodes with devices", devices.len()))
}
