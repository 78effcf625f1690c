//! The report of a scheduler that runs in shadow mode: how its decisions compare with those of the cluster's
//! scheduler.

use crate::engine::{ComparedNode, first_difference};
use jiff::Timestamp;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

/// Number of differences that are kept, newest first.
const RECENT: usize = 200;
/// Number of differences in the text.
const SHOWN: usize = 20;

/// How a decision compares with that of the cluster's scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShadowResult {
    /// The pod was bound to the node that this scheduler chose.
    Agree,
    /// The pod was bound to another node.
    OtherNode,
    /// The pod was bound, and this scheduler finds no node for it.
    Unschedulable,
    /// This scheduler has a node for the pod, which the cluster's scheduler has not bound in time.
    NotBound,
    /// The pod was bound before this scheduler decided, and there was no time to decide afterward.
    Undecided,
}

impl ShadowResult {
    /// All results.
    pub const ALL: [Self; 5] = [
        Self::Agree,
        Self::OtherNode,
        Self::Unschedulable,
        Self::NotBound,
        Self::Undecided,
    ];

    /// Returns the name in metrics and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Agree => "agree",
            Self::OtherNode => "other_node",
            Self::Unschedulable => "unschedulable",
            Self::NotBound => "not_bound",
            Self::Undecided => "undecided",
        }
    }

    /// Returns true if there is something to look at.
    #[must_use]
    pub fn is_difference(self) -> bool {
        !matches!(self, Self::Agree | Self::Undecided)
    }
}

/// A pod about which the two schedulers differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowDifference {
    /// The pod: `namespace/name`.
    pub pod: String,
    /// The pod's scheduler name.
    pub profile: String,
    /// The time at which the difference was found.
    pub time: Timestamp,
    /// The kind of the difference.
    pub result: ShadowResult,
    /// The node that this scheduler chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The node that the pod was bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_to: Option<String>,
    /// The plugin that decides: the first one whose scores differ, or that refuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<&'static str>,
    /// The reason, for users.
    pub reason: String,
    /// True if this scheduler decided after the pod was bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Both nodes with their scores, as of the binding; empty if there were too many differences at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<ComparedNode>,
}

impl ShadowDifference {
    /// Adds the comparison of the chosen node and the one that the pod was bound to, in this order.
    pub(crate) fn compare(&mut self, nodes: Vec<ComparedNode>) {
        if let [ours, other] = &nodes[..] {
            if let Some(plugin) = other.refused_by {
                self.plugin = Some(plugin);
                self.reason = format!("{} refused {}: {}", plugin, other.node, other.reason);
            } else if !other.reason.is_empty() {
                self.reason = format!("{}: {}", other.node, other.reason);
            } else if let Some((a, b)) = first_difference(ours, other) {
                self.plugin = Some(a.plugin);
                self.reason = format!(
                    "{} scores {} {} and {} {}",
                    a.plugin,
                    ours.node,
                    a.score.unwrap_or(a.raw),
                    other.node,
                    b.score.unwrap_or(b.raw)
                );
            } else {
                "both nodes have the same scores".clone_into(&mut self.reason);
            }
        }
        self.nodes = nodes;
    }
}

/// What a scheduler in shadow mode has found out.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowReport {
    /// Number of pods per result.
    pub results: BTreeMap<&'static str, u64>,
    /// Operations that were not carried out, by kind.
    pub withheld: BTreeMap<&'static str, u64>,
    /// Pods that have a node here and are not bound yet.
    pub placed: usize,
    /// Pods that find no node here and are not bound yet.
    pub refused: usize,
    /// The latest differences, newest first.
    pub differences: VecDeque<ShadowDifference>,
}

impl ShadowReport {
    /// Counts a result.
    pub(crate) fn count(&mut self, result: ShadowResult) {
        *self.results.entry(result.name()).or_default() += 1;
    }

    /// Adds a difference, in place of the oldest one if there are many.
    pub(crate) fn add(&mut self, difference: ShadowDifference) {
        self.differences.truncate(RECENT - 1);
        self.differences.push_front(difference);
    }

    /// Returns the report as text for users.
    #[must_use]
    pub fn text(&self) -> String {
        let count = |result: ShadowResult| self.results.get(result.name()).copied().unwrap_or(0);
        let compared: u64 = [
            ShadowResult::Agree,
            ShadowResult::OtherNode,
            ShadowResult::Unschedulable,
        ]
        .map(count)
        .iter()
        .sum();
        let mut text = format!("{compared} pods compared");
        if compared > 0 {
            let percent = 100.0 * count(ShadowResult::Agree) as f64 / compared as f64;
            let _ = write!(text, ", {percent:.1} % on the same node");
        }
        let waiting = self.placed + self.refused;
        let _ = writeln!(
            text,
            "; {waiting} pods pending, {} of them with a node here",
            self.placed
        );
        for result in ShadowResult::ALL {
            let _ = writeln!(text, "  {:<14} {}", result.name(), count(result));
        }
        if !self.withheld.is_empty() {
            text.push_str("not carried out:");
            for (kind, count) in &self.withheld {
                let _ = write!(text, " {kind} {count}");
            }
            text.push('\n');
        }
        for difference in self.differences.iter().take(SHOWN) {
            let dash = || "-".to_owned();
            let _ = writeln!(
                text,
                "{} {} {}: {} here, {} there: {}",
                difference.time.strftime("%H:%M:%S"),
                difference.pod,
                difference.result.name(),
                difference.node.clone().unwrap_or_else(dash),
                difference.bound_to.clone().unwrap_or_else(dash),
                difference.reason
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PluginScore;

    fn difference(pod: &str) -> ShadowDifference {
        ShadowDifference {
            pod: pod.to_owned(),
            profile: "koord-scheduler".to_owned(),
            time: Timestamp::UNIX_EPOCH,
            result: ShadowResult::OtherNode,
            node: Some("n1".to_owned()),
            bound_to: Some("n2".to_owned()),
            plugin: None,
            reason: String::new(),
            late: false,
            nodes: Vec::new(),
        }
    }

    fn compared(node: &str, scores: [i64; 2]) -> ComparedNode {
        let names = ["Fit", "LoadAwareScheduling"];
        let scores = names.into_iter().zip(scores);
        ComparedNode {
            node: node.to_owned(),
            total: Some(0),
            scores: scores
                .map(|(plugin, raw)| PluginScore {
                    plugin,
                    raw,
                    score: Some(raw),
                    weight: 1,
                })
                .collect(),
            ..ComparedNode::default()
        }
    }

    #[test]
    fn first_plugin_that_differs_is_named() {
        let refused = ComparedNode {
            node: "n2".to_owned(),
            refused_by: Some("TaintToleration"),
            reason: "node(s) had untolerated taint".to_owned(),
            ..ComparedNode::default()
        };
        for (other, plugin, reason) in [
            (
                compared("n2", [50, 20]),
                Some("LoadAwareScheduling"),
                "LoadAwareScheduling scores n1 80 and n2 20",
            ),
            (
                compared("n2", [40, 20]),
                Some("Fit"),
                "Fit scores n1 50 and n2 40",
            ),
            (
                compared("n2", [50, 80]),
                None,
                "both nodes have the same scores",
            ),
            (
                refused,
                Some("TaintToleration"),
                "TaintToleration refused n2: node(s) had untolerated taint",
            ),
        ] {
            let mut difference = difference("ns/p");
            difference.compare(vec![compared("n1", [50, 80]), other]);
            assert_eq!((difference.plugin, &*difference.reason), (plugin, reason));
        }
    }

    #[test]
    fn report_is_bounded_and_shows_the_newest() {
        let mut report = ShadowReport::default();
        for number in 0..500 {
            report.count(ShadowResult::OtherNode);
            report.add(difference(&format!("ns/p{number}")));
        }
        for _ in 0..1500 {
            report.count(ShadowResult::Agree);
        }
        assert_eq!(report.differences.len(), RECENT);
        let text = report.text();
        assert!(
            text.starts_with("2000 pods compared, 75.0 % on the same node; 0 pods pending"),
            "{text}"
        );
        assert!(
            text.contains("ns/p499 other_node: n1 here, n2 there"),
            "{text}"
        );
        assert!(!text.contains("ns/p479 "), "{text}");
    }
}
