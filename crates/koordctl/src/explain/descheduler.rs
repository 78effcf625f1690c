//! Explains which pods were moved in the last cycle of the descheduler, and why others were not.

use super::{Args, SelectedCluster, query};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::{PodMigrationJob, PodMigrationJobPhase};
use koord_app::console::{self, counted};
use koord_descheduler::report::{ActionReport, NodeReport, Report};
use koord_kube::api::ListParams;
use koord_kube::{Api, ResourceExt as _};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const COMPONENT: &str = "the descheduler";
/// Maximum number of nodes that are named per problem.
const NODES_PER_PROBLEM: usize = 5;
/// Maximum number of node problems that are listed, most frequent first.
const MAX_PROBLEMS: usize = 10;
/// Maximum number of migrations that are listed, in progress and failed ones each.
const MAX_JOBS: usize = 20;

/// Queries the descheduler of the selected cluster and prints its report.
///
/// # Errors
/// It cannot be reached, it has not completed a cycle, or `node` was not part of it.
pub(super) async fn explain(args: &Args, node: Option<&str>) -> Result<()> {
    let cluster = match SelectedCluster::find(args).await {
        Ok(cluster) => Some(cluster),
        // The descheduler can be queried without the cluster.
        Err(error) if args.server.is_some() && args.cluster.kubeconfig.is_none() => {
            console::warn(format_args!("koord: querying only {COMPONENT}: {error:#}"));
            None
        }
        Err(error) => return Err(error),
    };
    let part = cluster
        .as_ref()
        .and_then(|cluster| cluster.part(super::DESCHEDULER));
    let server = args
        .server
        .clone()
        .or(part)
        .with_context(|| format!("the address of {COMPONENT} is unknown, set --server"))?;
    let path = match node {
        // Names of nodes need no escaping; anything else is not a node name.
        Some(node) if node.contains(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c)) => {
            bail!("invalid node name {node:?}")
        }
        Some(node) => format!("/debug/descheduler/{node}"),
        None => "/debug/descheduler".to_owned(),
    };
    let (code, body) = query(args, COMPONENT, &server, &path).await?;
    if code != 200 {
        let reason = match body.trim() {
            "" => format!("HTTP status {code}: enableProfiling is off, or this is another program"),
            reason => reason.to_owned(),
        };
        bail!("{COMPONENT} at {server}: {reason}");
    }
    let report: Report = serde_json::from_str(&body)
        .with_context(|| format!("invalid response from {COMPONENT}"))?;
    let jobs = match &cluster {
        Some(cluster) => jobs(cluster, node).await,
        None => Vec::new(),
    };
    if args.is_json() {
        let mut answer = serde_json::to_value(&report)?;
        answer["jobs"] = serde_json::to_value(&jobs)?;
        console::print_line(serde_json::to_string_pretty(&answer)?);
    } else {
        let mut text = render(&report, node);
        render_jobs(&mut text, &jobs);
        console::print_line(text.trim_end());
    }
    Ok(())
}

/// A migration that is in progress or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    /// Name of the PodMigrationJob.
    name: String,
    /// The pod as `namespace/name`.
    pod: String,
    /// Phase: `Pending`, `Running`, `Failed` or `Aborted`.
    phase: String,
    /// Status, reason and message.
    why: String,
}

impl Job {
    /// Converts a job; returns `None` if it succeeded.
    fn from_object(job: &PodMigrationJob) -> Option<Self> {
        let status = job.status.clone().unwrap_or_default();
        let phase = status.phase.map(|phase| phase.as_str().to_owned());
        let phase = phase.unwrap_or_else(|| PodMigrationJobPhase::Pending.as_str().to_owned());
        if phase == PodMigrationJobPhase::Succeeded.as_str() {
            return None;
        }
        let pod = &job.spec.pod_ref;
        let text_of = |part: &Option<String>| part.clone().unwrap_or_default();
        let parts = [status.status, status.reason, status.message];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Some(Self {
            name: job.metadata.name.clone().unwrap_or_default(),
            pod: format!("{}/{}", text_of(&pod.namespace), text_of(&pod.name)),
            phase,
            why: parts.join(": "),
        })
    }
}

/// Returns jobs in progress or failed, sorted by name, and only those of pods on `node` if it is set. Empty
/// if they cannot be read.
async fn jobs(cluster: &SelectedCluster, node: Option<&str>) -> Vec<Job> {
    let jobs: Api<PodMigrationJob> = Api::all(cluster.client.clone());
    let Ok(list) = jobs.list(&ListParams::default()).await else {
        return Vec::new();
    };
    let mut jobs: Vec<_> = list.items.iter().filter_map(Job::from_object).collect();
    jobs.sort_by(|a, b| a.name.cmp(&b.name));
    let Some(node) = node else {
        return jobs;
    };
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = match pods.list_metadata(&bound).await {
        Ok(pods) => pods.items,
        Err(_) => return Vec::new(),
    };
    let pods: BTreeSet<_> = pods
        .iter()
        .map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
        .collect();
    jobs.retain(|job| pods.contains(&job.pod));
    jobs
}

/// Formats jobs, those in progress first.
fn render_jobs(out: &mut String, jobs: &[Job]) {
    let ended = |job: &&Job| matches!(job.phase.as_str(), "Failed" | "Aborted");
    let row = |job: &Job| {
        let reason = match job.why.as_str() {
            "" => job.phase.clone(),
            reason => format!("{}: {reason}", job.phase),
        };
        vec![job.pod.clone(), job.name.clone(), reason]
    };
    let in_progress = jobs
        .iter()
        .filter(|job| !ended(job))
        .take(MAX_JOBS)
        .map(row);
    super::render::rows(out, "migrations in progress", in_progress);
    let failed = jobs.iter().filter(ended).take(MAX_JOBS).map(row);
    super::render::rows(out, "failed migrations", failed);
    let shown = |ended: usize| ended.saturating_sub(MAX_JOBS);
    let failed = jobs.iter().filter(ended).count();
    let omitted = shown(failed) + shown(jobs.len() - failed);
    if omitted > 0 {
        let _ = writeln!(out, "  and {omitted} more: kubectl get podmigrationjobs");
    }
}

/// Formats the report. Without `node`, nodes without actions that are not hot are only counted.
fn render(report: &Report, node: Option<&str>) -> String {
    let mut out = String::new();
    let all = || {
        let nodes = report.nodes.iter();
        nodes.map(|(name, node)| (name.as_str(), node))
    };
    let everywhere = all().chain([("", &report.elsewhere)]);
    let actions: Vec<_> = everywhere
        .clone()
        .flat_map(|(_, node)| &node.actions)
        .collect();
    let successes = actions.iter().filter(|action| action.success).count();
    let hot = all().filter(|(_, node)| node.hot).count();
    let dry_run = if report.dry_run { ", a dry run" } else { "" };
    let _ = writeln!(
        out,
        "cycle of {}{dry_run}: {}, {}, {}",
        report.at,
        counted(hot, "hot node"),
        counted(successes, "action"),
        counted(actions.len() - successes, "failure"),
    );
    if let Some(error) = &report.error {
        let _ = writeln!(out, "  ended early: {error}");
    }
    for note in &report.notes {
        let _ = writeln!(out, "  {note}");
    }
    if let Some(name) = node {
        for (_, node) in all() {
            render_node(&mut out, name, node);
        }
        return out;
    }
    render_rules(&mut out, everywhere.clone());
    let shown_nodes: Vec<_> = all()
        .filter(|(_, node)| node.hot || !node.actions.is_empty())
        .collect();
    for (name, node) in &shown_nodes {
        render_node(&mut out, name, node);
    }
    if report.elsewhere != NodeReport::default() {
        render_node(&mut out, "", &report.elsewhere);
    }
    render_problems(&mut out, all());
    let other_nodes = all().filter(|(_, node)| !node.hot && node.actions.is_empty());
    let (skipped, cool): (Vec<_>, Vec<_>) = other_nodes.partition(|(_, node)| node.skipped);
    let cool = match cool.len() {
        0 => None,
        1 => Some("1 other node is not hot".to_owned()),
        n => Some(format!("{n} other nodes are not hot")),
    };
    let skipped = match skipped.len() {
        0 => None,
        1 => Some("1 node was skipped".to_owned()),
        n => Some(format!("{n} nodes were skipped")),
    };
    let summary: Vec<_> = cool.into_iter().chain(skipped).collect();
    if !summary.is_empty() {
        let _ = writeln!(
            out,
            "{}: see `koord explain descheduler NODE`",
            summary.join(", ")
        );
    }
    out
}

/// Lists how many pods each rule prevented from moving, most first.
fn render_rules<'a>(out: &mut String, nodes: impl Iterator<Item = (&'a str, &'a NodeReport)>) {
    let mut rules = BTreeMap::<&str, (usize, usize)>::new();
    for (rule, pods) in nodes.flat_map(|(_, node)| &node.kept) {
        let counts = rules.entry(rule).or_default();
        counts.0 += pods.count;
        counts.1 += 1;
    }
    let mut rules: Vec<_> = rules.into_iter().collect();
    rules.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let rows = rules.iter().map(|(rule, (pods, nodes))| {
        vec![
            (*rule).to_owned(),
            counted(*pods, "pod"),
            format!("on {}", counted(*nodes, "node")),
        ]
    });
    super::render::rows(out, "pods not moved, by rule", rows);
}

/// Lists the problems of nodes, and the nodes that have them.
fn render_problems<'a>(out: &mut String, nodes: impl Iterator<Item = (&'a str, &'a NodeReport)>) {
    let mut by_problem = BTreeMap::<&str, Vec<&str>>::new();
    for (name, node) in nodes {
        for problem in &node.problems {
            by_problem.entry(problem).or_default().push(name);
        }
    }
    let mut by_problem: Vec<_> = by_problem.into_iter().collect();
    by_problem.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.cmp(b.0)));
    let remaining = by_problem.split_off(by_problem.len().min(MAX_PROBLEMS));
    for (problem, nodes) in by_problem {
        let shown = nodes
            .iter()
            .take(NODES_PER_PROBLEM)
            .copied()
            .collect::<Vec<_>>()
            .join(", ");
        let ellipsis = if nodes.len() > NODES_PER_PROBLEM {
            ", ..."
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "{}: {problem} ({shown}{ellipsis})",
            counted(nodes.len(), "node")
        );
    }
    if !remaining.is_empty() {
        let nodes: BTreeSet<_> = remaining.iter().flat_map(|(_, nodes)| nodes).collect();
        let (problems, nodes) = (remaining.len(), counted(nodes.len(), "node"));
        let _ = writeln!(out, "{nodes}: {problems} other problems");
    }
}

/// Formats the report of a node; an empty name stands for pods on no node.
fn render_node(out: &mut String, name: &str, node: &NodeReport) {
    let _ = match (name, node.hot) {
        ("", _) => writeln!(out, "pods on no node"),
        (name, true) if node.early => {
            writeln!(out, "node {name} is hot, but not for enough cycles yet")
        }
        (name, true) => writeln!(out, "node {name} is hot"),
        (name, false) => writeln!(out, "node {name}"),
    };
    for note in &node.notes {
        let _ = writeln!(out, "  {note}");
    }
    for problem in &node.problems {
        let _ = writeln!(out, "  problem: {problem}");
    }
    let actions_with = |success: bool| {
        let actions = node
            .actions
            .iter()
            .filter(move |action| action.success == success);
        actions.map(|action: &ActionReport| vec![action.what.clone(), action.outcome.clone()])
    };
    super::render::rows(out, "succeeded", actions_with(true));
    super::render::rows(out, "failed", actions_with(false));
    let not_moved = node.kept.iter().map(|(rule, pods)| {
        let omitted = pods.count.saturating_sub(pods.pods.len());
        let mut named = pods.pods.join("; ");
        if omitted > 0 {
            let _ = write!(named, "; and {omitted} more");
        }
        vec![rule.clone(), counted(pods.count, "pod"), named]
    });
    super::render::rows(out, "not moved", not_moved);
    let nothing = node.actions.is_empty() && node.kept.is_empty();
    if nothing && node.notes.is_empty() && node.problems.is_empty() {
        let _ = writeln!(
            out,
            "  no strategy reported anything, and no pod was considered"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Report {
        let kept_pods = |count: usize, pods: &[&str]| json!({"count": count, "pods": pods});
        let report = json!({
            "at": "2026-01-01T00:00:00Z", "dryRun": false,
            "notes": ["p/LowNodeLoad: 1 node is below its low thresholds"],
            "nodes": {
                "a": {
                    "hot": true, "notes": ["p/LowNodeLoad: hot: cpu usage 81.00% > threshold 75.00%"],
                    "actions": [
                        {"what": "move d/p to c: hot", "strategy": "LowNodeLoad", "outcome": "PodMigrationJob j is created", "success": true},
                        {"what": "move d/q: hot", "strategy": "LowNodeLoad", "outcome": "eviction: 429", "success": false},
                    ],
                    "kept": {
                        "LowNodeLoad: DaemonSet": kept_pods(7, &["d/r: is of DaemonSet x"]),
                        "LowNodeLoad: MaxMigratingPerNode": kept_pods(2, &["d/s: 2 of 2", "d/t: 2 of 2"]),
                    },
                },
                "b": {"hot": true, "notes": ["p/LowNodeLoad: hot"], "kept": {"LowNodeLoad: DaemonSet": kept_pods(1, &["d/u: is of DaemonSet x"])}},
                "c": {"problems": ["has no NodeMetric"]},
                "d": {"problems": ["has no NodeMetric"], "skipped": true},
            },
            "elsewhere": {},
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn the_cluster_is_explained_by_rules_and_hot_nodes() {
        assert_eq!(
            render(&report(), None),
            "\
cycle of 2026-01-01T00:00:00Z: 2 hot nodes, 1 action, 1 failure
  p/LowNodeLoad: 1 node is below its low thresholds
  pods not moved, by rule:
    LowNodeLoad: DaemonSet            8 pods  on 2 nodes
    LowNodeLoad: MaxMigratingPerNode  2 pods  on 1 node
node a is hot
  p/LowNodeLoad: hot: cpu usage 81.00% > threshold 75.00%
  succeeded:
    move d/p to c: hot  PodMigrationJob j is created
  failed:
    move d/q: hot  eviction: 429
  not moved:
    LowNodeLoad: DaemonSet            7 pods  d/r: is of DaemonSet x; and 6 more
    LowNodeLoad: MaxMigratingPerNode  2 pods  d/s: 2 of 2; d/t: 2 of 2
node b is hot
  p/LowNodeLoad: hot
  not moved:
    LowNodeLoad: DaemonSet  1 pod  d/u: is of DaemonSet x
2 nodes: has no NodeMetric (c, d)
1 other node is not hot, 1 node was skipped: see `koord explain descheduler NODE`
"
        );
    }

    #[test]
    fn skipped_nodes_are_not_called_cool() {
        let mut report = Report::default();
        for index in 0..5000 {
            let unknown = NodeReport {
                skipped: true,
                problems: vec![
                    "has no NodeMetric".to_owned(),
                    format!("is odd in way {index}"),
                ],
                ..NodeReport::default()
            };
            report.nodes.insert(format!("n{index:04}"), unknown);
        }
        let text = render(&report, None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 1 + MAX_PROBLEMS + 2, "{text}");
        assert_eq!(
            lines[1],
            "5000 nodes: has no NodeMetric (n0000, n0001, n0002, n0003, n0004, ...)"
        );
        assert_eq!(lines[11], "4991 nodes: 4991 other problems");
        assert!(lines[12].starts_with("5000 nodes were skipped: "), "{text}");
    }

    #[test]
    fn one_node_is_explained_whatever_it_is() {
        let mut report = report();
        report.nodes = [("x".to_owned(), NodeReport::default())].into();
        let early_report = NodeReport {
            hot: true,
            early: true,
            notes: vec!["p/LowNodeLoad: hot: cpu, 1 of 6 cycles".to_owned()],
            ..NodeReport::default()
        };
        let mut waits = report.clone();
        waits.nodes = [("x".to_owned(), early_report)].into();
        let text = render(&waits, Some("x"));
        assert!(
            text.ends_with(
                "node x is hot, but not for enough cycles yet\n  p/LowNodeLoad: hot: cpu, 1 of 6 cycles\n"
            ),
            "{text}"
        );
        report.error = Some("1 node is ready, and 2 are needed".to_owned());
        report.dry_run = true;
        assert_eq!(
            render(&report, Some("x")),
            "\
cycle of 2026-01-01T00:00:00Z, a dry run: 0 hot nodes, 0 actions, 0 failures
  ended early: 1 node is ready, and 2 are needed
  p/LowNodeLoad: 1 node is below its low thresholds
node x
  no strategy reported anything, and no pod was considered
"
        );
    }

    #[test]
    fn migrations_that_have_not_ended_well_are_listed() {
        let job = |name: &str, status: serde_json::Value| {
            let job = json!({"metadata": {"name": name}, "status": status,
                "spec": {"podRef": {"namespace": "d", "name": format!("pod-{name}")}}});
            Job::from_object(&serde_json::from_value(job).unwrap())
        };
        let jobs = [
            job(
                "a",
                json!({"phase": "Running", "status": "WaitForPodEvict"}),
            ),
            job(
                "b",
                json!({"phase": "Failed", "reason": "Timeout", "message": "too late"}),
            ),
            job("c", json!({"phase": "Succeeded", "status": "Complete"})),
            job("d", json!(null)),
        ];
        let jobs: Vec<_> = jobs.into_iter().flatten().collect();
        let mut text = String::new();
        render_jobs(&mut text, &jobs);
        assert_eq!(
            text,
            "  migrations in progress:\n    d/pod-a  a  Running: WaitForPodEvict\n    d/pod-d  d  Pending\n  \
             failed migrations:\n    d/pod-b  b  Failed: Timeout: too late\n"
        );
        let all_jobs: Vec<_> = (0..25).map(|_| jobs[0].clone()).collect();
        let mut text = String::new();
        render_jobs(&mut text, &all_jobs);
        assert!(
            text.ends_with("and 5 more: kubectl get podmigrationjobs\n"),
            "{text}"
        );
    }
}
