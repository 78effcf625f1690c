//! The descheduler's representation of a node.

use k8s_openapi::api::core::v1::{Node, Taint};
use koord_api::annotations::NODE_RAW_ALLOCATABLE;
use koord_api::quantity::{self, ResourceList};
use koord_model::resources::{Amounts, ResourceTable, amount};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The fields of a node that the descheduler uses.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeInfo {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// True if condition `Ready` is `True` or absent.
    pub ready: bool,
    /// `status.allocatable`.
    pub allocatable: Amounts,
    /// The annotation `node.koordinator.sh/raw-allocatable`, or `status.allocatable` without a valid one.
    /// Usage percentages refer to it.
    pub raw_allocatable: Amounts,
    /// Fields that could not be parsed, with their values.
    pub problems: Vec<String>,
}

impl NodeInfo {
    /// Converts `node`, interning its resource names in `table`. Fields that cannot be parsed are omitted and
    /// listed in `problems`.
    #[must_use]
    pub fn new(node: Node, table: &ResourceTable) -> Self {
        let mut problems = Vec::new();
        let mut allocatable = Amounts::new();
        let status = node.status.unwrap_or_default();
        for (name, value) in status.allocatable.iter().flatten() {
            let id = table.intern(name);
            match quantity::parse(value) {
                Ok(value) => allocatable.set(id, amount(id, &value)),
                Err(error) => problems.push(format!("status.allocatable.{name}: {error}")),
            }
        }
        let meta = node.metadata;
        let raw = meta
            .annotations
            .as_ref()
            .and_then(|all| all.get(NODE_RAW_ALLOCATABLE));
        let raw = raw.and_then(|text| match serde_json::from_str::<ResourceList>(text) {
            Ok(list) => Some(amounts(&list, table)),
            Err(error) => {
                problems.push(format!(
                    "annotation {NODE_RAW_ALLOCATABLE}: {error}: {text:?}"
                ));
                None
            }
        });
        let conditions = status.conditions.iter().flatten();
        let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
        let spec = node.spec.unwrap_or_default();
        Self {
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.unwrap_or_default().into(),
            resource_version: meta.resource_version,
            labels: meta.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            ready: ready.all(|condition| condition.status == "True"),
            raw_allocatable: raw.unwrap_or_else(|| allocatable.clone()),
            allocatable,
            problems,
        }
    }

    /// Returns the value of label `key`.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

/// Converts `list` to amounts with the resource ids of `table`: CPU in milli-cores, all others in units.
pub(crate) fn amounts(list: &ResourceList, table: &ResourceTable) -> Amounts {
    let mut out = Amounts::new();
    for (name, quantity) in list {
        let id = table.intern(name);
        out.set(id, amount(id, quantity));
    }
    out
}

impl koord_kube::informer::Cacheable for NodeInfo {
    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}
