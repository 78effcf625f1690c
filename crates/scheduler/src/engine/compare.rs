//! Comparison of chosen nodes for one pod: the verdict and the scores of each plugin.

use super::class::Evaluation;
use super::cycle::CycleError;
use super::explain::PluginScore;
use super::inspector::Inspector;
use super::scope::Scope;
use crate::framework::{Cycle, RowVerdict};
use crate::state::PodInfo;
use jiff::Timestamp;
use serde::Serialize;
use std::sync::Arc;

/// A node with what the plugins say about it for one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComparedNode {
    /// The node's name.
    pub node: String,
    /// The plugin that refuses the node; `None` if it fits, or is not in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_by: Option<&'static str>,
    /// The reason why the node does not fit; empty if it fits.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The weighted sum of the scores that are present; `None` if the node does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// The scores by plugin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<PluginScore>,
}

impl Inspector<'_> {
    /// Evaluates `nodes` for `pod`, which must be on no node, as of now and from scratch. Scores are normalized
    /// over all nodes that fit. Empty if no profile has the pod's scheduler name.
    pub fn compare_nodes(
        &mut self,
        pod: &Arc<PodInfo>,
        nodes: &[&str],
        now: Timestamp,
    ) -> Vec<ComparedNode> {
        let Some(profile) = self.table.profile_of(pod) else {
            return Vec::new();
        };
        let refused = |refused_by: Option<&'static str>, reason: &str| -> Vec<ComparedNode> {
            let refused = |node: &&str| ComparedNode {
                node: (*node).to_owned(),
                refused_by,
                reason: reason.to_owned(),
                ..ComparedNode::default()
            };
            nodes.iter().map(refused).collect()
        };
        self.table
            .prepare_state(&self.telemetry.meter, pod, profile, self.cluster.view(now));
        let cycle = Cycle::new(pod, self.cluster.view(now));
        let meter = &self.telemetry.meter;
        let prepared = match self.table.prepare_tolerating(meter, &cycle, profile, 0) {
            Ok(prepared) => prepared,
            Err(CycleError::Refused(diagnosis)) => {
                let plugin = diagnosis.plugins.first().copied();
                return refused(plugin, &diagnosis.pre_filter_message);
            }
            Err(CycleError::Failed(message)) => return refused(None, &message),
        };
        let chain = self.table.chain(prepared);
        let nominator = &self.preemptor.nominator;
        let scope = Scope::new(cycle, self.table, &chain, nominator, self.options);
        let evaluation = Evaluation::fresh(&scope);
        let compare = |name: &&str| {
            let mut compared = ComparedNode {
                node: (*name).to_owned(),
                ..ComparedNode::default()
            };
            let node = self.cluster.nodes.find(name);
            match node.map(|node| (node, scope.judge(node))) {
                None | Some((_, RowVerdict::Absent)) => {
                    "the node is not known".clone_into(&mut compared.reason);
                }
                Some((_, RowVerdict::Refused(plugin, rejection))) => {
                    compared.refused_by = Some(self.table.names[plugin]);
                    compared.reason = rejection.message();
                }
                Some((node, RowVerdict::Fits(_))) => {
                    let mut raws = Vec::new();
                    scope.evaluate(node, &mut raws);
                    let scored = scope.scored(node, &evaluation.columns, &raws);
                    (compared.total, compared.scores) = (Some(scored.total), scored.scores);
                }
            }
            compared
        };
        nodes.iter().map(compare).collect()
    }
}

/// Returns the first plugin whose scores of two nodes differ; `None` if there is none, or one does not fit.
#[must_use]
pub fn first_difference<'a>(
    ours: &'a ComparedNode,
    other: &'a ComparedNode,
) -> Option<(&'a PluginScore, &'a PluginScore)> {
    let pairs = ours.scores.iter().zip(&other.scores);
    let mut differing = pairs.filter(|(a, b)| match (a.score, b.score) {
        (Some(a), Some(b)) => a != b,
        _ => a.raw != b.raw,
    });
    differing.next()
}
