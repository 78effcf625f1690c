//! Report of the last cycle by node, for users: what was done, and why not more.

use crate::framework::{Action, Finding, Plan};
use crate::state::{Snapshot, rejection};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Pods listed by name per rule and node; the others are only counted.
const NAMED: usize = 5;

/// Report of one cycle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Start of the cycle.
    pub at: Timestamp,
    /// True if the plan was only reported, not carried out.
    pub dry_run: bool,
    /// Error that ended the cycle early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// Notes about the whole cluster: `profile/strategy: text`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Reports by node name.
    pub nodes: BTreeMap<String, NodeReport>,
    /// Report for pods without a node, or on a node that does not exist.
    pub elsewhere: NodeReport,
}

/// Report of a cycle about one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// True if a strategy classifies the node as hot.
    #[serde(skip_serializing_if = "is_false", default)]
    pub hot: bool,
    /// True if every strategy that classifies the node as hot still waits for it to stay hot long enough.
    #[serde(skip_serializing_if = "is_false", default)]
    pub early: bool,
    /// True if a strategy skipped the node because its usage data are unusable.
    #[serde(skip_serializing_if = "is_false", default)]
    pub skipped: bool,
    /// Problems with the node or with its usage data.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<String>,
    /// Notes of strategies about the node: `profile/strategy: text`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Planned actions in order, each with its outcome.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub actions: Vec<ActionReport>,
    /// Pods that were considered and stay, by `strategy: rule`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub kept: BTreeMap<String, KeptPods>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A planned action and its outcome.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionReport {
    /// The action and its reason: `move default/p to b: reason`.
    pub what: String,
    /// Strategy that planned the action.
    pub strategy: String,
    /// Outcome: what was done, or the error.
    pub outcome: String,
    /// True if the action was done, or shown in a dry run.
    pub success: bool,
}

/// Pods on one node that one rule keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptPods {
    /// Number of pods.
    pub count: usize,
    /// The first of them: `namespace/name: detail`.
    pub pods: Vec<String>,
}

impl Report {
    /// Builds the report of `plan`, which was made from `snapshot`; `outcomes` are those of its actions, in
    /// order.
    #[must_use]
    pub fn new(
        snapshot: &Snapshot,
        plan: &Plan,
        outcomes: &[Result<String, String>],
        dry_run: bool,
    ) -> Self {
        let mut report = Self {
            at: snapshot.now,
            dry_run,
            error: plan.error.clone(),
            ..Self::default()
        };
        for node in &snapshot.nodes {
            let mut problems = node.problems.clone();
            if !node.ready {
                problems.push("is not ready".to_owned());
            }
            let usage = snapshot.usage.get(&node.name);
            match usage.map(|usage| usage.updated) {
                None => problems.push(rejection::NONE.to_owned()),
                Some(None) => problems.push(rejection::NO_TIME.to_owned()),
                Some(Some(at)) if at > snapshot.now => problems.push(rejection::AHEAD.to_owned()),
                Some(Some(_)) => {}
            }
            let problems = NodeReport {
                problems,
                ..NodeReport::default()
            };
            report.nodes.insert(node.name.to_string(), problems);
        }
        for note in &plan.notes {
            let text = format!("{}/{}: {}", note.profile, note.strategy, note.text);
            match &note.node {
                Some(node) => {
                    let node_report = report.node_mut(Some(node));
                    if note.is_hot() {
                        node_report.early =
                            note.is_early() && (node_report.early || !node_report.hot);
                        node_report.hot = true;
                    }
                    if let Finding::Skipped(problem) = note.finding {
                        node_report.skipped = true;
                        if !node_report
                            .problems
                            .iter()
                            .any(|existing| existing == problem)
                        {
                            node_report.problems.push(problem.to_owned());
                        }
                    }
                    node_report.notes.push(text);
                }
                None => report.notes.push(text),
            }
        }
        let mut outcomes = outcomes.iter();
        for action in &plan.actions {
            let outcome = outcomes.next().cloned();
            let outcome = outcome.unwrap_or_else(|| Err("not done".to_owned()));
            report.action(action, outcome);
        }
        for skipped in &plan.skipped {
            let rule = format!("{}: {}", skipped.strategy, skipped.reason.rule);
            let node_report = report.node_mut(skipped.pod.node.as_deref());
            let node_report = node_report.kept.entry(rule).or_default();
            node_report.count += 1;
            if node_report.pods.len() < NAMED {
                node_report
                    .pods
                    .push(format!("{}: {}", skipped.pod, skipped.reason.detail));
            }
        }
        report
    }

    fn node_mut(&mut self, node: Option<&str>) -> &mut NodeReport {
        match node.and_then(|node| self.nodes.get_mut(node)) {
            Some(node) => node,
            None => &mut self.elsewhere,
        }
    }

    /// Adds an action and its outcome to the report of its node.
    fn action(&mut self, action: &Action, outcome: Result<String, String>) {
        let (node, strategy, what) = match action {
            Action::Move(planned) => {
                let pod = &planned.pod;
                let to = planned.target.as_deref();
                let to = to.map(|target| format!(" to {target}")).unwrap_or_default();
                let description = format!("move {pod}{to}: {}", planned.reason);
                (pod.node.as_deref(), planned.strategy, description)
            }
            Action::Cordon { node, strategy } => {
                (Some(&**node), *strategy, "make unschedulable".to_owned())
            }
            Action::DeletionCost {
                pod,
                cost,
                strategy,
            } => {
                let description = format!("set the deletion cost of {pod} to {cost}");
                (pod.node.as_deref(), *strategy, description)
            }
        };
        let success = outcome.is_ok();
        let action = ActionReport {
            what,
            strategy: strategy.to_owned(),
            outcome: outcome.unwrap_or_else(|reason| reason),
            success,
        };
        self.node_mut(node).actions.push(action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{Move, Note, SkipReason, SkippedPod};
    use crate::testing::TestCluster;
    use serde_json::json;

    #[test]
    fn node_is_early_if_all_strategies_wait() {
        let mut world = TestCluster::default();
        world.node("a", json!({}));
        let (waits, long) = ("hot: cpu 71%, 2 of 5 cycles", "hot: cpu 71%");
        for (texts, early) in [
            (&[waits][..], true),
            (&[waits, "3 pods go", waits], true),
            (&[waits, long], false),
            (&[long, waits], false),
        ] {
            let note = |text: &&str| Note {
                profile: "profile".into(),
                strategy: "S",
                node: Some("a".into()),
                text: (*text).to_owned(),
                finding: match *text {
                    text if text == waits => Finding::Early,
                    text if text == long => Finding::Hot,
                    _ => Finding::Other,
                },
            };
            let plan = Plan {
                notes: texts.iter().map(note).collect(),
                ..Plan::default()
            };
            let report = Report::new(&world.snapshot(), &plan, &[], false);
            let a = &report.nodes["a"];
            assert_eq!((a.hot, a.early), (true, early), "{texts:?}");
        }
    }

    #[test]
    fn report_lists_actions_and_skipped_pods_by_node() {
        let mut world = TestCluster::default();
        world.node("a", json!({}));
        world.node(
            "b",
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        );
        world.node("c", json!({"status": {"allocatable": {"cpu": "much"}}}));
        world.usage("a", json!({"cpu": "1"}), json!({}), &[]);
        world.now = "2025-12-31T00:00:00Z".parse().unwrap();
        let (going, stuck) = (
            world.pod("p", "a", json!({})),
            world.pod("q", "a", json!({})),
        );
        let lost = world.pod("r", "gone", json!({}));
        let planned = |pod: &std::sync::Arc<crate::state::PodInfo>, target: Option<&str>| {
            Action::Move(Box::new(Move {
                pod: pod.clone(),
                profile: "profile".into(),
                strategy: "S",
                reason: "hot".to_owned(),
                intent: None,
                target: target.map(Into::into),
                drains: None,
            }))
        };
        let skipped = |at: usize| SkippedPod {
            pod: world.pods[1].clone(),
            profile: "profile".into(),
            strategy: "S",
            reason: SkipReason::new("DaemonSet", format!("no {at}")),
        };
        let mut plan = Plan {
            actions: vec![
                planned(&going, Some("c")),
                planned(&stuck, None),
                planned(&lost, None),
            ],
            skipped: (0..7).map(skipped).collect(),
            ..Plan::default()
        };
        for (node, text, finding) in [
            (Some("a".into()), "hot: 71%", Finding::Hot),
            (None, "no node is cold", Finding::Other),
            (
                Some("b".into()),
                "not looked at: it has none",
                Finding::Skipped(rejection::NONE),
            ),
        ] {
            plan.notes.push(Note {
                profile: "profile".into(),
                strategy: "S",
                node,
                text: text.to_owned(),
                finding,
            });
        }
        let outcomes = [Ok("is evicted".to_owned()), Err("eviction: 429".to_owned())];
        let report = Report::new(&world.snapshot(), &plan, &outcomes, false);
        assert_eq!(report.notes, ["profile/S: no node is cold"]);
        let a = &report.nodes["a"];
        assert_eq!(a.notes, ["profile/S: hot: 71%"]);
        assert!(a.hot && !a.early && !report.nodes["b"].hot);
        let shown: Vec<_> = a.actions.iter().chain(&report.elsewhere.actions).collect();
        let shown: Vec<_> = shown
            .iter()
            .map(|action| {
                (
                    action.what.as_str(),
                    action.outcome.as_str(),
                    action.success,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("move default/p to c: hot", "is evicted", true),
                ("move default/q: hot", "eviction: 429", false),
                ("move default/r: hot", "not done", false),
            ]
        );
        let skipped = &a.kept["S: DaemonSet"];
        assert_eq!((skipped.count, skipped.pods.len()), (7, NAMED));
        assert_eq!(skipped.pods[0], "default/q: no 0");
        assert_eq!(a.problems, ["its NodeMetric is of a time to come"]);
        assert!(report.nodes["b"].skipped && !a.skipped);
        assert_eq!(
            report.nodes["b"].problems,
            ["is not ready", "has no NodeMetric"]
        );
        let c = &report.nodes["c"].problems[0];
        assert!(
            c.contains("status.allocatable.cpu") && c.contains("much"),
            "{c}"
        );
        // The JSON served over HTTP decodes to an equal report.
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
