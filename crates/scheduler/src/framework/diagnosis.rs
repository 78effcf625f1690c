//! Collects the reasons why a pod was refused.

use super::{Code, Instance, Reason, Rejection};
use crate::queue::PluginSet;
use crate::state::NodeIndex;
use koord_model::numa::NumaMask;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// The number of nodes that one plugin refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRefusal {
    /// The plugin.
    pub failed_plugin: &'static str,
    /// The reason of the rejection.
    pub reason: Reason,
    /// True if evicting pods might help.
    pub preempt_might_help: bool,
    /// Number of nodes refused for this reason.
    pub nodes: usize,
}

/// The reasons why a scheduling cycle did not place the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The number of nodes in the cluster.
    pub total_nodes: usize,
    /// The message of a plugin that refused the pod before any node was filtered; else empty.
    pub pre_filter_message: String,
    /// Refusals per plugin and reason. A node counts once per reason that its refusing plugin gave.
    pub refusals: Vec<NodeRefusal>,
    /// The result of the attempt to make room.
    pub post_filter_message: String,
    /// The result of preemption for the whole group, if the pod starts together with others.
    #[serde(skip)]
    pub for_group: Option<String>,
    /// The nominated node; empty when the previous nomination is cleared.
    #[serde(skip_serializing_if = "is_unset")]
    pub nominated: Option<String>,
    /// Names of the plugins that refused.
    pub plugins: Vec<&'static str>,
    /// The plugins that refused, as a set of instances.
    #[serde(skip)]
    pub(crate) by: PluginSet,
    /// True if a plugin only waits for something outside the scheduler.
    #[serde(skip)]
    pub(crate) pending: bool,
    /// The plugin that refused the pod before any node was filtered.
    #[serde(skip)]
    pub(crate) pre_filter_by: Option<Instance>,
    /// The number of nodes on which evicting pods might help.
    #[serde(skip)]
    pub(crate) helpable: usize,
    /// The nodes on which evicting pods might help; listed only if there are pods to evict.
    #[serde(skip)]
    pub(crate) candidates: Vec<NodeIndex>,
}

fn is_unset(node: &Option<String>) -> bool {
    node.as_deref().unwrap_or_default().is_empty()
}

impl Diagnosis {
    /// Returns the text of the pod's condition and event in kube-scheduler's form: `0/3 nodes are available:
    /// 1 Insufficient cpu, 2 node(s) were unschedulable. <post filter>`.
    #[must_use]
    pub fn message(&self) -> String {
        if self.total_nodes == 0 && self.pre_filter_message.is_empty() {
            return "no nodes available to schedule pods".to_owned();
        }
        let mut text = format!("0/{} nodes are available", self.total_nodes);
        if self.pre_filter_message.is_empty() {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for refusal in &self.refusals {
                *counts.entry(refusal.reason.as_str()).or_default() += refusal.nodes;
            }
            let mut parts: Vec<String> = counts
                .iter()
                .map(|(reason, count)| format!("{count} {reason}"))
                .collect();
            parts.sort_unstable();
            if parts.is_empty() {
                text.push('.');
            } else {
                text.push_str(&format!(": {}.", parts.join(", ")));
            }
        } else {
            text.push_str(&format!(": {}.", self.pre_filter_message));
        }
        if !self.post_filter_message.is_empty() {
            text.push(' ');
            text.push_str(&self.post_filter_message);
        }
        text
    }
}

/// The event text of a refused pod, formatted when it is first read. Most are never read where the decision
/// is made.
#[derive(Debug, Clone)]
pub struct LazyMessage {
    of: Option<Arc<Diagnosis>>,
    text: OnceLock<String>,
}

impl LazyMessage {
    /// Creates the text of `diagnosis`: its [`Diagnosis::message`].
    #[must_use]
    pub fn new(diagnosis: Arc<Diagnosis>) -> Self {
        Self {
            of: Some(diagnosis),
            text: OnceLock::new(),
        }
    }

    /// Returns true if the text was formatted already.
    #[cfg(test)]
    pub(crate) fn is_formatted(&self) -> bool {
        self.text.get().is_some()
    }
}

impl From<String> for LazyMessage {
    fn from(text: String) -> Self {
        Self {
            of: None,
            text: OnceLock::from(text),
        }
    }
}

impl Deref for LazyMessage {
    type Target = str;
    fn deref(&self) -> &str {
        let diagnosis = self.of.as_ref();
        self.text
            .get_or_init(|| diagnosis.map_or_else(String::new, |diagnosis| diagnosis.message()))
    }
}

impl Display for LazyMessage {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self)
    }
}

/// Counts of node rejections per plugin, code and reason.
#[derive(Debug, Clone, Default)]
pub(crate) struct RejectionCounts {
    counts: FxHashMap<(Instance, Code, Reason), usize>,
    /// The number of refused nodes on which evicting pods might help.
    pub(crate) helpable: usize,
}

impl RejectionCounts {
    pub(crate) fn add(&mut self, plugin: Instance, rejection: &Rejection) {
        self.add_many(plugin, rejection, 1);
    }

    /// Adds `nodes` nodes with one rejection.
    pub(crate) fn add_many(&mut self, plugin: Instance, rejection: &Rejection, nodes: usize) {
        if nodes == 0 {
            return;
        }
        if rejection.code == Code::Unschedulable {
            self.helpable += nodes;
        }
        for reason in rejection.reasons.as_slice() {
            *self
                .counts
                .entry((plugin, rejection.code, reason.clone()))
                .or_default() += nodes;
        }
    }

    pub(crate) fn remove(&mut self, plugin: Instance, rejection: &Rejection) {
        self.helpable -= usize::from(rejection.code == Code::Unschedulable);
        for reason in rejection.reasons.as_slice() {
            let key = (plugin, rejection.code, reason.clone());
            if let Some(count) = self.counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&key);
                }
            }
        }
    }

    /// Returns the diagnosis of a pod that fits no node. `names` holds the plugin name of each instance.
    pub(crate) fn diagnosis(&self, total_nodes: usize, names: &[&'static str]) -> Diagnosis {
        let mut out = Diagnosis {
            total_nodes,
            helpable: self.helpable,
            ..Diagnosis::default()
        };
        for ((plugin, code, reason), nodes) in &self.counts {
            out.by |= 1 << plugin;
            out.pending |= *code == Code::Pending;
            out.refusals.push(NodeRefusal {
                failed_plugin: names.get(*plugin).copied().unwrap_or_default(),
                reason: reason.clone(),
                preempt_might_help: *code == Code::Unschedulable,
                nodes: *nodes,
            });
        }
        out.refusals.sort_by(|a, b| {
            b.nodes
                .cmp(&a.nodes)
                .then_with(|| (a.failed_plugin, &a.reason).cmp(&(b.failed_plugin, &b.reason)))
        });
        out.plugins = out
            .refusals
            .iter()
            .map(|refusal| refusal.failed_plugin)
            .collect();
        out.plugins.sort_unstable();
        out.plugins.dedup();
        out
    }

    /// Returns a plugin's error on some node, if there is one: the cycle failed rather than refused the pod.
    pub(crate) fn error(&self) -> Option<(Instance, &Reason)> {
        self.counts
            .keys()
            .find(|(_, code, _)| *code == Code::Error)
            .map(|(p, _, r)| (*p, r))
    }
}

/// The result of filtering one row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) enum RowVerdict {
    /// The row holds no node.
    #[default]
    Absent,
    /// The node fits, with the selected NUMA nodes if alignment is required.
    Fits(Option<NumaMask>),
    Refused(Instance, Rejection),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_counts_reasons_and_sorts_them_as_text() {
        let mut tally = RejectionCounts::default();
        for _ in 0..10 {
            tally.add(0, &Rejection::unschedulable("Insufficient cpu"));
        }
        tally.add(1, &Rejection::unresolvable("node(s) were unschedulable"));
        tally.add(1, &Rejection::unresolvable("node(s) were unschedulable"));
        let mut diagnosis = tally.diagnosis(12, &["Fit", "Unschedulable"]);
        assert_eq!(
            diagnosis.message(),
            "0/12 nodes are available: 10 Insufficient cpu, 2 node(s) were unschedulable."
        );
        diagnosis.post_filter_message = "preemption: no.".to_owned();
        assert!(
            diagnosis
                .message()
                .ends_with("unschedulable. preemption: no.")
        );
        assert_eq!(diagnosis.by, 0b11);
        for _ in 0..2 {
            tally.remove(1, &Rejection::unresolvable("node(s) were unschedulable"));
        }
        assert_eq!(tally.diagnosis(10, &["Fit", ""]).refusals.len(), 1);
        assert_eq!(tally.helpable, 10);
    }

    #[test]
    fn a_pre_filter_message_replaces_the_counts() {
        let pre_filter_message = "no quota".to_owned();
        let diagnosis = Diagnosis {
            total_nodes: 2,
            pre_filter_message,
            ..Diagnosis::default()
        };
        assert_eq!(diagnosis.message(), "0/2 nodes are available: no quota.");
        assert_eq!(
            Diagnosis::default().message(),
            "no nodes available to schedule pods"
        );
    }
}
