//! A node as the scheduler sees it.

use k8s_openapi::api::core::v1::{Node, Taint};
use koord_model::resources::{Amounts, CPU, ResourceTable};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Annotation that sets resources of a node aside: `{"resources":{..},"reservedCPUs":"0-3",..}`.
const RESERVATION: &str = "node.koordinator.sh/reservation";

/// Something on a node that was ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeProblem(pub String);

/// A node, parsed.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// The object, as the informer holds it.
    pub object: Arc<Node>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `status.allocatable` less what the reservation annotation sets aside.
    pub allocatable: Amounts,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
}

impl NodeInfo {
    /// Reads `node`, numbering the resources it names in `table`. Also returns what was ignored: of a
    /// resource whose amount is not a quantity, the node keeps what it had `before`, if anything.
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
            let left = if before.is_some() {
                "keeps what it had"
            } else {
                "has none"
            };
            problems.push(NodeProblem(format!("{error}; the node {left} of it")));
            unread.push(id);
            Ok(())
        });
        let mut allocatable = read.unwrap_or_default();
        if let Some(text) = annotation(&node, RESERVATION) {
            match reserved(text, table) {
                Ok(reserved) => {
                    for (id, amount) in reserved.iter() {
                        let left = allocatable.get(id).saturating_sub(amount);
                        allocatable.set(id, left.max(0));
                    }
                }
                Err(error) => problems.push(NodeProblem(format!(
                    "annotation {RESERVATION} is ignored: {error}: {text:?}"
                ))),
            }
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

    /// The value of label `key`.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.object
            .metadata
            .labels
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    /// The value of annotation `key`.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        annotation(&self.object, key)
    }

    /// `spec.taints`.
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reserved {
    #[serde(default)]
    resources: BTreeMap<String, String>,
    #[serde(default, rename = "reservedCPUs")]
    reserved_cpus: String,
    #[serde(default)]
    apply_policy: String,
}

/// What the annotation takes from allocatable: nothing under policy `ReservedCPUsOnly`; reserved
/// CPUs count as `cpu` in place of an amount.
fn reserved(text: &str, table: &ResourceTable) -> Result<Amounts, String> {
    let parsed: Reserved = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut out = Amounts::new();
    if !matches!(parsed.apply_policy.as_str(), "" | "Default") {
        return Ok(out);
    }
    for (name, amount) in &parsed.resources {
        let quantity: koord_api::quantity::Quantity = amount
            .parse()
            .map_err(|error| format!("resources[{name}]: {error}"))?;
        let id = table.intern(name);
        out.add(id, koord_model::resources::amount(id, &quantity));
    }
    if !parsed.reserved_cpus.is_empty() {
        out.set(CPU, 1000 * count_cpus(&parsed.reserved_cpus)?);
    }
    Ok(out)
}

/// How many CPUs a list such as `0-3,8` names.
fn count_cpus(list: &str) -> Result<i64, String> {
    let mut cpus = std::collections::BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.trim()
                .parse::<u16>()
                .map_err(|_| format!("reservedCPUs: {part:?} is no CPU range"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("reservedCPUs: {part:?} runs backwards"));
        }
        cpus.extend(first..=last);
    }
    i64::try_from(cpus.len()).map_err(|_| "reservedCPUs: too many".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(reservation: &str) -> (NodeInfo, Vec<NodeProblem>) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {RESERVATION: reservation}},
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
        assert!(problems[0].0.contains(RESERVATION) && problems[0].0.contains("3-1"));
    }
}
