//! The Node object, reduced to what the agent needs.

use k8s_openapi::api::core::v1::Node;
use koord_api::{annotations, quantity, resources};
use std::collections::BTreeMap;

/// Overrides how batch work is suppressed on this node: `pressure` or `upstream`. It goes before the
/// NodeSLO and the flag.
pub const SUPPRESS_MODE_ANNOTATION: &str = "node.koordinator.sh/cpu-suppress-mode";

/// Amounts of CPU (milli-cores) and memory (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// Milli-cores.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// `status.capacity`.
    pub capacity: Amounts,
    /// `status.allocatable`.
    pub allocatable: Amounts,
    /// `status.allocatable` before amplification, from the annotation when it is there.
    pub raw_allocatable: Amounts,
    /// CPU kept back for the system, in milli-cores.
    pub reserved_cpu: i64,
    /// The suppression mode asked for by annotation.
    pub suppress_mode: Option<String>,
    /// Published batch and mid resources, for the metrics.
    pub extended: BTreeMap<String, i64>,
}

impl NodeInfo {
    /// Reads a Node object.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let empty = BTreeMap::new();
        let notes = node.metadata.annotations.as_ref().unwrap_or(&empty);
        let status = node.status.as_ref();
        let capacity = amounts(status.and_then(|s| s.capacity.as_ref()));
        let allocatable = amounts(status.and_then(|s| s.allocatable.as_ref()));
        let raw = notes
            .get(annotations::NODE_RAW_ALLOCATABLE)
            .and_then(|text| serde_json::from_str::<koord_api::ResourceList>(text).ok());
        let raw_allocatable = raw.map_or(allocatable, |list| Amounts {
            cpu: list
                .get(resources::CPU)
                .map_or(allocatable.cpu, |q| q.milli_value()),
            memory: list
                .get(resources::MEMORY)
                .map_or(allocatable.memory, |q| q.value()),
        });
        let extended = [
            resources::BATCH_CPU,
            resources::BATCH_MEMORY,
            resources::MID_CPU,
            resources::MID_MEMORY,
        ]
        .into_iter()
        .filter_map(|name| {
            let q = status?.allocatable.as_ref()?.get(name)?;
            Some((name.to_owned(), quantity::parse(q).ok()?.value()))
        })
        .collect();
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
            capacity,
            allocatable,
            raw_allocatable,
            reserved_cpu: capacity
                .cpu
                .saturating_sub(allocatable.cpu)
                .max(reserved_by_annotation(notes))
                .max(0),
            suppress_mode: notes.get(SUPPRESS_MODE_ANNOTATION).cloned(),
            extended,
        }
    }
}

fn amounts(
    list: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> Amounts {
    let read = |name: &str| {
        list.and_then(|l| l.get(name))
            .and_then(|q| quantity::parse(q).ok())
    };
    Amounts {
        cpu: read(resources::CPU).map_or(0, |q| q.milli_value()),
        memory: read(resources::MEMORY).map_or(0, |q| q.value()),
    }
}

#[derive(serde::Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Reservation {
    resources: koord_api::ResourceList,
    #[serde(rename = "reservedCPUs")]
    reserved_cpus: String,
}

/// Explicit CPUs go before an amount. An unreadable annotation reserves nothing.
fn reserved_by_annotation(notes: &BTreeMap<String, String>) -> i64 {
    let Some(text) = notes.get(annotations::NODE_RESERVATION) else {
        return 0;
    };
    let reservation: Reservation = serde_json::from_str(text).unwrap_or_default();
    let cpus = reservation
        .reserved_cpus
        .parse::<koord_host::CpuSet>()
        .unwrap_or_default();
    if !cpus.is_empty() {
        return cpus.len() as i64 * 1000;
    }
    reservation
        .resources
        .get(resources::CPU)
        .map_or(0, |q| q.milli_value())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(annotations: serde_json::Value) -> NodeInfo {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": annotations},
            "status": {
                "capacity": {"cpu": "16", "memory": "40G"},
                "allocatable": {"cpu": "15", "memory": "38G", "kubernetes.io/batch-cpu": "9000"}}
        }))
        .unwrap();
        NodeInfo::of(&node)
    }

    #[test]
    fn reservation_table() {
        assert_eq!(node(json!({})).reserved_cpu, 1000);
        for (text, want) in [
            (r#"{"resources":{"cpu":"2500m"}}"#, 2500),
            (r#"{"reservedCPUs":"0-2","resources":{"cpu":"9"}}"#, 3000),
            (r#"{"resources":{"cpu":"100m"}}"#, 1000),
            ("garbage", 1000),
        ] {
            let key = annotations::NODE_RESERVATION;
            assert_eq!(node(json!({ key: text })).reserved_cpu, want, "{text}");
        }
    }

    #[test]
    fn raw_allocatable_goes_first() {
        let plain = node(json!({}));
        assert_eq!(plain.raw_allocatable.cpu, 15_000);
        assert_eq!(plain.extended.get(resources::BATCH_CPU), Some(&9000));
        let raw = node(json!({"node.koordinator.sh/raw-allocatable": r#"{"cpu":"10"}"#}));
        assert_eq!(
            (raw.raw_allocatable.cpu, raw.allocatable.cpu),
            (10_000, 15_000)
        );
        assert_eq!(raw.raw_allocatable.memory, 38_000_000_000);
    }
}
