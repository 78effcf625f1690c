//! The Node object, reduced to what the agent needs.

use super::malformed::Malformed;
use super::reader::Reader;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use koord_api::extension::{
    self, AmplificationRatios, NodeReservation, ReservedResources, SystemQosResource,
    parse_normalization_ratio,
};
use koord_api::{Quantity, ResourceList, annotations, labels, quantity, resources};
use koord_host::CpuSet;
use std::collections::BTreeMap;

/// Annotation that overrides the suppression mode on this node: `pressure` or `upstream`. It precedes the
/// NodeSLO and the flag.
pub const SUPPRESS_MODE_ANNOTATION: &str = "node.koordinator.sh/cpu-suppress-mode";

/// Amounts of CPU (milli-cores) and memory (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// CPU in milli-cores.
    pub cpu: i64,
    /// Memory in bytes.
    pub memory: i64,
}

/// Resources reserved by the node's reservation annotation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reservation {
    /// ReservedResources amounts; the number of [`Self::cpus`] if CPUs are listed.
    pub amounts: Amounts,
    /// Listed CPUs, on which no pods run.
    pub cpus: CpuSet,
    /// True if the scheduler subtracts the amounts from the allocatable ones.
    pub trims_allocatable: bool,
    /// The parsed annotation.
    pub annotation: NodeReservation,
}

/// CPUs of pods of class SYSTEM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SystemQos {
    /// The CPUs.
    pub cpus: CpuSet,
    /// True if other pods must not use them.
    pub exclusive: bool,
}

impl SystemQos {
    /// Parses the annotation's value. `None` if it has no CPUs.
    pub(super) fn parse(
        resource: &SystemQosResource,
    ) -> Result<Option<Self>, koord_host::Malformed> {
        let cpus: CpuSet = resource.cpuset.parse()?;
        Ok((!cpus.is_empty()).then(|| Self {
            cpus,
            exclusive: resource.is_exclusive(),
        }))
    }
}

/// The Node object, reduced to what the agent needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeInfo {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `status.capacity`.
    pub capacity: Amounts,
    /// `status.allocatable`.
    pub allocatable: Amounts,
    /// `status.allocatable` before amplification, from the annotation if present.
    pub raw_allocatable: Amounts,
    /// CPU reserved for the system, in milli-cores: the difference of capacity and allocatable, or the
    /// reservation, whichever is more.
    pub reserved_cpu: i64,
    /// The reservation annotation.
    pub reservation: Reservation,
    /// CPUs reserved for SYSTEM pods; `None` without any.
    pub system_qos: Option<SystemQos>,
    /// Speed of a CPU of this node relative to the reference model. Quotas are divided by it. `None` if not
    /// normalized.
    pub normalization_ratio: Option<f64>,
    /// Amplification factors of resources; only those above 1.
    pub amplification: BTreeMap<String, f64>,
    /// Bandwidth of the node in bits per second.
    pub network_bandwidth: Option<i64>,
    /// Label that selects whether each NUMA node reserves its part of the node's reservation: `true`.
    pub numa_reservation: Option<String>,
    /// Suppression mode of the annotation.
    pub suppress_mode: Option<String>,
    /// Published batch and mid resources (milli-cores and bytes).
    pub extended: BTreeMap<String, i64>,
    /// `status.addresses`: type and address.
    pub addresses: Vec<(String, String)>,
    /// Port of the kubelet's API.
    pub kubelet_port: Option<u16>,
}

impl NodeInfo {
    /// Parses a Node object, like [`Self::read`] without an earlier state.
    #[must_use]
    pub fn from_node(node: &Node) -> Self {
        Self::read(node, None).0
    }

    /// Parses a Node object. A malformed annotation has its value in `last`, and is reported in the second
    /// result.
    #[must_use]
    pub fn read(node: &Node, last: Option<&Self>) -> (Self, Vec<Malformed>) {
        let mut reader = Reader::new(node.metadata.annotations.as_ref());
        let status = node.status.as_ref();
        let capacity = amounts(
            &mut reader,
            "capacity",
            status.and_then(|s| s.capacity.as_ref()),
        );
        let list = status.and_then(|s| s.allocatable.as_ref());
        let allocatable = amounts(&mut reader, "allocatable", list);
        let key = annotations::NODE_RAW_ALLOCATABLE;
        let raw_allocatable = match reader.json::<ResourceList>(key, None) {
            Some(list) => Amounts {
                cpu: list
                    .get(resources::CPU)
                    .map_or(allocatable.cpu, Quantity::milli_value),
                memory: list
                    .get(resources::MEMORY)
                    .map_or(allocatable.memory, Quantity::value),
            },
            // Malformed: the earlier raw value is closer than the amplified one.
            None if reader.text(key).is_some() => {
                last.map_or(allocatable, |last| last.raw_allocatable)
            }
            None => allocatable,
        };
        let reservation = reservation(&mut reader, last);
        let extended = [
            resources::BATCH_CPU,
            resources::BATCH_MEMORY,
            resources::MID_CPU,
            resources::MID_MEMORY,
        ];
        let extended = extended.into_iter().filter_map(|name| {
            let q = list?.get(name)?;
            Some((name.to_owned(), quantity::parse(q).ok()?.value()))
        });
        let kubelet = status.and_then(|s| s.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref());
        let addresses = status
            .into_iter()
            .flat_map(|s| s.addresses.iter().flatten());
        let label = |key: &str| Some(node.metadata.labels.as_ref()?.get(key)?.as_str());
        let info = Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            uid: node.metadata.uid.clone().unwrap_or_default(),
            capacity,
            allocatable,
            raw_allocatable,
            reserved_cpu: capacity
                .cpu
                .saturating_sub(allocatable.cpu)
                .max(reservation.amounts.cpu)
                .max(0),
            reservation,
            system_qos: system_qos(&mut reader, last.map(|last| &last.system_qos)),
            normalization_ratio: normalization_ratio(&mut reader, last),
            amplification: reader
                .with(
                    annotations::NODE_RESOURCE_AMPLIFICATION_RATIO,
                    last.map(|last| last.amplification.clone()),
                    |text| AmplificationRatios::parse(text).map(ratios_above_one),
                )
                .unwrap_or_default(),
            network_bandwidth: reader.with(
                annotations::NODE_BANDWIDTH,
                last.and_then(|last| last.network_bandwidth),
                |text| text.parse::<Quantity>().map(|q| q.value()),
            ),
            numa_reservation: label(labels::NODE_NUMA_RESERVATION)
                .filter(|value| !value.is_empty())
                .map(str::to_owned),
            suppress_mode: reader.text(SUPPRESS_MODE_ANNOTATION).map(str::to_owned),
            extended: extended.collect(),
            addresses: addresses
                .map(|a| (a.type_.clone(), a.address.clone()))
                .collect(),
            kubelet_port: kubelet.and_then(|endpoint| u16::try_from(endpoint.port).ok()),
        };
        (info, reader.malformed)
    }

    /// Returns the amplification factor of `resource`; 1 if it is not amplified.
    #[must_use]
    pub fn amplification_of(&self, resource: &str) -> f64 {
        self.amplification.get(resource).copied().unwrap_or(1.0)
    }
}

fn amounts(
    reader: &mut Reader<'_>,
    part: &str,
    list: Option<&BTreeMap<String, ApiQuantity>>,
) -> Amounts {
    let mut read = |name: &str| -> Quantity {
        let Some(text) = list.and_then(|list| list.get(name)) else {
            return Quantity::ZERO;
        };
        quantity::parse(text).unwrap_or_else(|error| {
            let field = format!("status.{part}.{name}");
            reader
                .malformed
                .push(Malformed::new(field, text.0.clone(), &error));
            Quantity::ZERO
        })
    };
    Amounts {
        cpu: read(resources::CPU).milli_value(),
        memory: read(resources::MEMORY).value(),
    }
}

fn reservation(reader: &mut Reader<'_>, last: Option<&NodeInfo>) -> Reservation {
    let read = ReservedResources::from_annotations(reader.annotations()).map(|reserved| {
        reserved.map(|reserved| Reservation {
            amounts: Amounts {
                cpu: reserved.amount(resources::CPU).milli_value().max(0),
                memory: reserved.amount(resources::MEMORY).value().max(0),
            },
            cpus: reserved.cpus.clone(),
            trims_allocatable: reserved.trims_allocatable,
            // The same annotation was parsed before.
            annotation: extension::read(reader.annotations(), annotations::NODE_RESERVATION)
                .ok()
                .flatten()
                .unwrap_or_default(),
        })
    });
    let last = last.map(|last| last.reservation.clone());
    reader.checked(read, last).unwrap_or_default()
}

/// Parses the annotation of a Node or a NodeResourceTopology.
pub(super) fn system_qos(
    reader: &mut Reader<'_>,
    last: Option<&Option<SystemQos>>,
) -> Option<SystemQos> {
    let key = annotations::NODE_SYSTEM_QOS_RESOURCE;
    let before = reader.malformed.len();
    let resource = reader.json::<SystemQosResource>(key, None);
    match resource.map(|resource| SystemQos::parse(&resource)) {
        Some(Ok(read)) => return read,
        Some(Err(error)) => {
            let text = reader.text(key).unwrap_or_default();
            reader.malformed.push(Malformed::new(key, text, &error));
        }
        None => {}
    }
    let malformed = reader.malformed.len() > before;
    last.cloned().flatten().filter(|_| malformed)
}

fn normalization_ratio(reader: &mut Reader<'_>, last: Option<&NodeInfo>) -> Option<f64> {
    let key = annotations::NODE_CPU_NORMALIZATION_RATIO;
    let last = last.map(|last| last.normalization_ratio);
    let read = reader.with(key, last, |text| match text {
        // Upstream's readers return it for "not set".
        "-1" => Ok(None),
        text => parse_normalization_ratio(text).map(Some),
    });
    read.flatten()
}

fn ratios_above_one(ratios: AmplificationRatios) -> BTreeMap<String, f64> {
    let mut ratios = ratios.0;
    ratios.retain(|_, ratio| *ratio > 1.0 && *ratio <= extension::MAX_AMPLIFICATION);
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(annotations: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": annotations,
                "labels": {"node.koordinator.sh/enable-numa-reservation": "true"}},
            "status": {
                "capacity": {"cpu": "16", "memory": "40G"},
                "allocatable": {"cpu": "15", "memory": "38G", "kubernetes.io/batch-cpu": "9000"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}
        }))
        .unwrap()
    }

    fn node(annotations: Value) -> NodeInfo {
        NodeInfo::from_node(&object(annotations))
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
        let text = r#"{"reservedCPUs":"0-2","resources":{"memory":"1Gi"},"applyPolicy":"ReservedCPUsOnly"}"#;
        let info = node(json!({ annotations::NODE_RESERVATION: text }));
        assert_eq!(info.reservation.amounts.memory, 1 << 30);
        assert_eq!(info.reservation.cpus.to_string(), "0-2");
        assert!(!info.reservation.trims_allocatable);
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

    /// A good value, a malformed one, and what makes the difference to having none.
    const NOTES: [(&str, &str, &str); 6] = [
        (
            annotations::NODE_RESERVATION,
            r#"{"reservedCPUs":"0-2"}"#,
            r#"{"reservedCPUs":"2-0"}"#,
        ),
        (
            annotations::NODE_SYSTEM_QOS_RESOURCE,
            r#"{"cpuset":"0-1"}"#,
            r#"{"cpuset":"0-"}"#,
        ),
        (annotations::NODE_CPU_NORMALIZATION_RATIO, "1.20", "0"),
        (
            annotations::NODE_RESOURCE_AMPLIFICATION_RATIO,
            r#"{"cpu":1.5,"memory":1}"#,
            r#"{"cpu":"much"}"#,
        ),
        (annotations::NODE_BANDWIDTH, "10G", "fast"),
        (
            annotations::NODE_RAW_ALLOCATABLE,
            r#"{"cpu":"10"}"#,
            r#"{"cpu":"10x"}"#,
        ),
    ];

    #[test]
    fn every_annotation_is_read() {
        let notes: BTreeMap<_, _> = NOTES.iter().map(|(key, good, _)| (*key, *good)).collect();
        let (info, malformed) = NodeInfo::read(&object(json!(notes)), None);
        assert_eq!(malformed, []);
        assert_eq!(info.reservation.amounts.cpu, 3000);
        let system = info.system_qos.as_ref().unwrap();
        assert_eq!((system.cpus.len(), system.exclusive), (2, true));
        assert_eq!(info.normalization_ratio, Some(1.2));
        assert_eq!(info.amplification_of("cpu"), 1.5);
        assert_eq!(info.amplification_of("memory"), 1.0);
        assert_eq!(info.network_bandwidth, Some(10_000_000_000));
        assert_eq!(info.numa_reservation.as_deref(), Some("true"));
        assert_eq!(info.kubelet_port, Some(10250));
        assert_eq!(info.addresses[0].1, "10.0.0.1");
        let off = node(json!({annotations::NODE_CPU_NORMALIZATION_RATIO: "-1"}));
        assert_eq!(off.normalization_ratio, None);
        let shared = r#"{"cpuset":"0-1","cpusetExclusive":false}"#;
        let shared = node(json!({annotations::NODE_SYSTEM_QOS_RESOURCE: shared}));
        assert!(!shared.system_qos.unwrap().exclusive);
    }

    #[test]
    fn malformed_node_annotation_keeps_last_value() {
        for (key, good, bad) in NOTES {
            let none = node(json!({}));
            let (first, _) = NodeInfo::read(&object(json!({ key: good })), None);
            assert_ne!(first, none, "{key}");
            let (kept, malformed) = NodeInfo::read(&object(json!({ key: bad })), Some(&first));
            assert_eq!(kept, first, "{key}");
            assert_eq!(malformed.len(), 1, "{key}: {malformed:?}");
            assert_eq!(
                (malformed[0].field.as_str(), malformed[0].value.as_str()),
                (key, bad)
            );
            let (fresh, _) = NodeInfo::read(&object(json!({ key: bad })), None);
            assert_eq!(fresh, none, "{key}");
            let (removed, malformed) = NodeInfo::read(&object(json!({})), Some(&first));
            assert_eq!((removed, malformed), (none, Vec::new()), "{key}");
        }
    }

    #[test]
    fn a_status_that_is_no_quantity_is_named() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "many", "memory": "1Gi"}}}))
        .unwrap();
        let (info, malformed) = NodeInfo::read(&node, None);
        assert_eq!((info.capacity.cpu, info.capacity.memory), (0, 1 << 30));
        assert_eq!(malformed[0].field, "status.capacity.cpu");
        assert_eq!(malformed[0].value, "many");
    }
}
