//! Parsed nodes.

use k8s_openapi::api::core::v1::{Node, Taint};
use koord_api::extension::ReservedResources;
use koord_model::resources::{Amounts, ResourceTable};
use std::sync::Arc;

/// A problem of a node's content that was ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeProblem(pub String);

/// A parsed node.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// The object, as the informer holds it.
    pub object: Arc<Node>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `status.allocatable` minus what the reservation annotation reserves.
    pub allocatable: Amounts,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
}

impl NodeInfo {
    /// Parses `node` and adds its resource names to `table`. Also returns what was ignored: a resource whose
    /// amount is not a quantity keeps its amount from `before`, if there is one.
    #[must_use]
    pub fn new(
        node: Arc<Node>,
        before: Option<&Self>,
        table: &ResourceTable,
    ) -> (Self, Vec<NodeProblem>) {
        let status = node.status.as_ref();
        let listed = status.and_then(|s| s.allocatable.as_ref());
        let mut problems = Vec::new();
        let mut unread = Vec::new();
        let field = || "status.allocatable".to_owned();
        let read = super::pod::amounts_but(listed, table, field, |id, error| {
            let consequence = if before.is_some() {
                "keeps what it had"
            } else {
                "has none"
            };
            problems.push(NodeProblem(format!(
                "{error}; the node {consequence} of it"
            )));
            unread.push(id);
            Ok(())
        });
        let mut allocatable = read.unwrap_or_default();
        match ReservedResources::from_annotations(node.metadata.annotations.as_ref()) {
            Ok(reserved) => {
                let trimmed = reserved.map(|reserved| trimmed(&reserved, table));
                for (id, amount) in trimmed.iter().flat_map(Amounts::iter) {
                    let remaining = allocatable.get(id).saturating_sub(amount);
                    allocatable.set(id, remaining.max(0));
                }
            }
            Err(error) => problems.push(NodeProblem(format!("{error}; it is ignored"))),
        }
        for id in unread {
            allocatable.set(id, before.map_or(0, |before| before.allocatable.get(id)));
        }
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let unschedulable = node
            .spec
            .as_ref()
            .and_then(|s| s.unschedulable)
            .unwrap_or(false);
        let info = Self {
            name,
            allocatable,
            unschedulable,
            object: node,
        };
        (info, problems)
    }

    /// Returns the value of label `key`.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.object
            .metadata
            .labels
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    /// Returns the value of annotation `key`.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        annotation(&self.object, key)
    }

    /// Returns `spec.taints`.
    #[must_use]
    pub fn taints(&self) -> &[Taint] {
        self.object
            .spec
            .as_ref()
            .and_then(|s| s.taints.as_deref())
            .unwrap_or_default()
    }
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// Returns what the annotation `reserved` removes from allocatable.
fn trimmed(reserved: &ReservedResources, table: &ResourceTable) -> Amounts {
    let mut out = Amounts::new();
    if reserved.trims_allocatable {
        for (name, quantity) in &reserved.amounts {
            let id = table.intern(name);
            out.add(id, koord_model::resources::amount(id, quantity));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::annotations::NODE_RESERVATION;
    use koord_model::resources::CPU;
    use serde_json::json;

    fn node(reservation: &str) -> (NodeInfo, Vec<NodeProblem>) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {NODE_RESERVATION: reservation}},
            "status": {"allocatable": {"cpu": "8", "memory": "16Gi"}}
        }))
        .unwrap();
        NodeInfo::new(Arc::new(node), None, &ResourceTable::new())
    }

    #[test]
    fn the_reservation_annotation_lowers_allocatable() {
        let cpu = |text| node(text).0.allocatable.get(CPU);
        assert_eq!(cpu(r#"{"resources":{"cpu":"1500m"}}"#), 6500);
        assert_eq!(
            cpu(r#"{"resources":{"cpu":"1"},"reservedCPUs":"0-1,3"}"#),
            5000
        );
        assert_eq!(
            cpu(r#"{"reservedCPUs":"0-1","applyPolicy":"ReservedCPUsOnly"}"#),
            8000
        );
    }

    #[test]
    fn a_malformed_reservation_is_reported_and_ignored() {
        let (info, problems) = node(r#"{"reservedCPUs":"3-1"}"#);
        assert_eq!(info.allocatable.get(CPU), 8000);
        assert!(problems[0].0.contains(NODE_RESERVATION) && problems[0].0.contains("3-1"));
    }
}
