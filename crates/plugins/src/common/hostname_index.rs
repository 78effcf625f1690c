//! Index of nodes by their hostname label, which node affinities of volumes and pods use.

use k8s_openapi::api::core::v1::NodeSelectorTerm;
use koord_scheduler::state::{NodeIndex, NodeInfo, NodeStore};
use rustc_hash::FxHashMap;

/// Label with the hostname of a node.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";

/// Nodes by their `kubernetes.io/hostname` label.
#[derive(Debug, Default)]
pub(crate) struct HostnameIndex {
    /// Several nodes may have the same hostname.
    by_name: FxHashMap<String, Vec<NodeIndex>>,
    names: FxHashMap<NodeIndex, String>,
}

impl HostnameIndex {
    /// Updates the hostname of a node; `None` removes the node.
    pub(crate) fn set(&mut self, node: NodeIndex, info: Option<&NodeInfo>) {
        let name = info.and_then(|info| info.label(HOSTNAME));
        if self.names.get(&node).map(String::as_str) == name {
            return;
        }
        if let Some(old) = self.names.remove(&node)
            && let Some(nodes) = self.by_name.get_mut(&old)
        {
            nodes.retain(|other| *other != node);
            if nodes.is_empty() {
                self.by_name.remove(&old);
            }
        }
        if let Some(name) = name {
            self.names.insert(node, name.to_owned());
            self.by_name.entry(name.to_owned()).or_default().push(node);
        }
    }

    /// Returns the nodes with this hostname.
    pub(crate) fn nodes(&self, name: &str) -> &[NodeIndex] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the only nodes that can match one of `terms`, or `None` if some term requires neither a
    /// hostname nor a node name.
    pub(crate) fn candidate_nodes(
        &self,
        terms: &[NodeSelectorTerm],
        nodes: &NodeStore,
    ) -> Option<Vec<NodeIndex>> {
        let mut out = Vec::new();
        for term in terms {
            let labels = term.match_expressions.iter().flatten();
            let mut labels = labels.filter(|rule| rule.operator == "In" && rule.key == HOSTNAME);
            let fields = term.match_fields.iter().flatten();
            let mut fields =
                fields.filter(|rule| rule.operator == "In" && rule.key == "metadata.name");
            if let Some(rule) = labels.next() {
                let names = rule.values.iter().flatten();
                out.extend(names.flat_map(|name| self.nodes(name)));
            } else if let Some(rule) = fields.next() {
                let names = rule.values.iter().flatten();
                out.extend(names.filter_map(|name| nodes.find(name)));
            } else {
                return None;
            }
        }
        Some(out)
    }
}
