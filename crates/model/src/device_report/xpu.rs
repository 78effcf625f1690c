//! Devices described by vendors' tools in files: an interface that needs no vendor library.
//!
//! A file is a JSON list of devices:

use super::{Detected, Health, Problem, Report};
use koord_api::extension::{GpuPartition, GpuPartitionTable};
use koord_api::scheduling::{DeviceInfo, DeviceTopology, DeviceType};
use koord_api::{Quantity, annotations, labels, resources};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of GPUs: consumers store sets of them as 64-bit masks.
const MOST_GPUS: i32 = 64;

/// Device described in a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Card {
    /// Vendor.
    pub vendor: String,
    /// Model.
    pub model: String,
    /// Reported description and health.
    pub found: Detected,
    /// Sets of GPUs wired with this one, itself included, with the link type; `None` if the file has no
    /// links.
    pub links: Option<Vec<(BTreeSet<i32>, String)>>,
    /// True if only wired sets may be allocated.
    pub must_honor: bool,
}

/// Parses the content of a file. Also returns the problems of ignored parts.
///
/// # Errors
/// The content is not a JSON list; nothing of it can be used.
pub fn parse(text: &str) -> Result<(Vec<Card>, Vec<Problem>), Problem> {
    let whole = |why: String| Problem {
        field: String::new(),
        value: excerpt(text),
        why,
    };
    let value: Value = serde_json::from_str(text)
        .map_err(|error| whole(format!("no JSON ({error}); what was read last stands")))?;
    let Value::Array(list) = value else {
        return Err(whole(
            "must be a JSON list; what was read last stands".to_owned(),
        ));
    };
    let mut problems = Vec::new();
    let mut cards = Vec::new();
    for (number, value) in list.iter().enumerate() {
        let mut reader = Reader {
            path: format!("[{number}]"),
            problems: &mut problems,
        };
        cards.extend(reader.card(value));
    }
    Ok((cards, problems))
}

/// Builds the report of the cards of all files, and returns the problems of their combination. Vendor, model
/// and partition policy of the node are those of the first card.
#[must_use]
pub fn report(cards: &[Card]) -> (Report, Vec<Problem>) {
    let mut report = Report::default();
    let mut problems = Vec::new();
    let mut minors = BTreeSet::new();
    for card in cards {
        let minor = card.found.info.minor;
        if minors.insert(minor) {
            report.devices.push(card.found.clone());
            continue;
        }
        problems.push(Problem {
            field: "minor".to_owned(),
            value: minor.map(|minor| minor.to_string()).unwrap_or_default(),
            why: format!(
                "another device has it; {:?} is left out",
                card.found.info.id
            ),
        });
    }
    if let Some(first) = cards.first() {
        let policy = match (&first.links, first.must_honor) {
            (None, _) => "",
            (Some(_), true) => "Honor",
            (Some(_), false) => "Prefer",
        };
        for (key, value) in [
            (labels::NODE_GPU_VENDOR, first.vendor.as_str()),
            (labels::NODE_GPU_MODEL, first.model.as_str()),
            (labels::NODE_GPU_PARTITION_POLICY, policy),
        ] {
            label(&mut report.labels, key, value, &mut problems);
        }
    }
    let links = cards
        .iter()
        .filter_map(|card| card.links.as_ref())
        .flatten();
    if let Some(table) = partitions(links) {
        let key = annotations::DEVICE_GPU_PARTITIONS.to_owned();
        report.annotations.insert(key, table);
    }
    (report, problems)
}

/// Adds a label. Blanks, which occur in model names, become `-`. An invalid label value is dropped and
/// reported, because the API server would reject the whole object.
pub fn label(
    labels: &mut BTreeMap<String, String>,
    key: &str,
    value: &str,
    problems: &mut Vec<Problem>,
) {
    let text = value.trim().replace(' ', "-");
    if text.is_empty() {
        return;
    }
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if bytes.len() <= 63 && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(plain) {
        labels.insert(key.to_owned(), text);
        return;
    }
    problems.push(Problem {
        field: key.to_owned(),
        value: value.to_owned(),
        why: "no label can have that value; it is left out".to_owned(),
    });
}

/// Returns the JSON table of wired sets by size; `None` if there are no sets.
fn partitions<'a>(links: impl Iterator<Item = &'a (BTreeSet<i32>, String)>) -> Option<String> {
    let mut added = BTreeSet::new();
    let mut table = GpuPartitionTable::new();
    for (set, kind) in links {
        if added.insert(set) {
            table
                .entry(set.len().to_string())
                .or_default()
                .push(GpuPartition {
                    minors: set.iter().copied().collect(),
                    gpu_link_type: kind.clone(),
                    ring_bus_bandwidth: None,
                    allocation_score: 1,
                });
        }
    }
    // Texts and numbers can always be serialized.
    (!table.is_empty()).then(|| serde_json::to_string(&table).unwrap_or_default())
}

/// Parser of one device that records problems with their path in the file.
struct Reader<'a> {
    path: String,
    problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    fn record_problem(&mut self, field: &str, value: &Value, why: &str) {
        let value = match value {
            Value::String(text) => excerpt(text),
            other => excerpt(&other.to_string()),
        };
        self.problems.push(Problem {
            field: format!("{}{field}", self.path),
            value,
            why: why.to_owned(),
        });
    }

    /// Parses a card; `None` if it is not an object or has no valid minor.
    fn card(&mut self, value: &Value) -> Option<Card> {
        let Value::Object(map) = value else {
            self.record_problem("", value, "must be an object; it is left out");
            return None;
        };
        let minor = map.get("minor").unwrap_or(&Value::Null);
        let number = minor.as_str().and_then(|text| text.parse::<i32>().ok());
        let Some(number) = number.filter(|number| *number >= 0) else {
            // Any default would be the number of another device.
            self.record_problem(
                ".minor",
                minor,
                "must be a number as text, such as \"0\"; the device is left out",
            );
            return None;
        };
        let health = self.health(map);
        let (topology, links, must_honor) = self.topology(map, number);
        Some(Card {
            vendor: self.text(map, "", "vendor"),
            model: self.text(map, "", "model"),
            found: Detected {
                info: DeviceInfo {
                    id: self.text(map, "", "uuid"),
                    minor: Some(number),
                    type_: Some(DeviceType::Gpu),
                    health: health.as_ref().is_none_or(|health| health.healthy),
                    resources: self.resources(map),
                    topology,
                    ..DeviceInfo::default()
                },
                health,
            },
            links,
            must_honor,
        })
    }

    /// Returns the text field `key`; empty if it is missing.
    fn text(&mut self, map: &Map<String, Value>, parent: &str, key: &str) -> String {
        match map.get(key) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => {
                self.record_problem(
                    &format!("{parent}.{key}"),
                    other,
                    "must be a text; it counts as not given",
                );
                String::new()
            }
        }
    }

    fn flag(&mut self, map: &Map<String, Value>, parent: &str, key: &str) -> bool {
        match map.get(key) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                let problem = "must be true or false; it counts as false";
                self.record_problem(&format!("{parent}.{key}"), other, problem);
                false
            }
        }
    }

    /// Returns the object field `key`; `None` if it is missing.
    fn object<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        key: &str,
    ) -> Option<&'a Map<String, Value>> {
        match map.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::Object(object)) => Some(object),
            Some(other) => {
                self.record_problem(
                    &format!(".{key}"),
                    other,
                    "must be an object; it counts as not given",
                );
                None
            }
        }
    }

    /// Parses the capacity of a card; invalid amounts are reported and left out.
    fn resources(&mut self, map: &Map<String, Value>) -> BTreeMap<String, Quantity> {
        let mut amounts = BTreeMap::new();
        amounts.insert(
            resources::GPU_MEMORY_RATIO.to_owned(),
            Quantity::from_value(100),
        );
        let Some(given) = self.object(map, "resources") else {
            return amounts;
        };
        for (name, value) in given {
            let amount = value
                .as_str()
                .and_then(|text| text.parse::<Quantity>().ok());
            let Some(amount) = amount.filter(|amount| *amount >= Quantity::ZERO) else {
                let problem =
                    "must be an amount as text, such as \"32Gi\"; the resource is left out";
                self.record_problem(&format!(".resources.{name}"), value, problem);
                continue;
            };
            let name = match name.as_str() {
                "gpu-core" => resources::GPU_CORE,
                "gpu-memory" => resources::GPU_MEMORY,
                other => crate::resources::canonical(other),
            };
            amounts.insert(name.to_owned(), amount);
        }
        amounts
    }

    /// Parses the health of a card; `None` if it is not given.
    fn health(&mut self, map: &Map<String, Value>) -> Option<Health> {
        if let Some(other) = map
            .get("status")
            .filter(|value| !value.is_null() && !value.is_object())
        {
            // A health status that cannot be parsed does not count as healthy.
            self.record_problem(
                ".status",
                other,
                "must be an object; the device counts as unhealthy",
            );
            return Some(Health {
                healthy: false,
                code: String::new(),
                message: "status cannot be read".to_owned(),
            });
        }
        let status = self.object(map, "status")?;
        Some(Health {
            healthy: self.flag(status, ".status", "healthy"),
            code: self.text(status, ".status", "errCode"),
            message: self.text(status, ".status", "errMessage"),
        })
    }

    /// Parses the position, the links and the partition flag of the card `minor`.
    #[expect(clippy::type_complexity, reason = "the three parts of one object")]
    fn topology(
        &mut self,
        map: &Map<String, Value>,
        minor: i32,
    ) -> (
        Option<DeviceTopology>,
        Option<Vec<(BTreeSet<i32>, String)>>,
        bool,
    ) {
        let Some(topology) = self.object(map, "topology") else {
            return (None, None, false);
        };
        let node = self.text(topology, ".topology", "nodeID");
        let node_id = match (node.as_str(), node.parse::<i32>()) {
            ("", _) => -1,
            (_, Ok(id)) if id >= 0 => id,
            // Some tools write -1 if the NUMA node is unknown.
            ("-1", _) => -1,
            _ => {
                let problem = "must be a NUMA node's number as text; it counts as not given";
                self.record_problem(".topology.nodeID", &Value::String(node), problem);
                -1
            }
        };
        let place = DeviceTopology {
            socket_id: -1,
            node_id,
            pcie_id: self.text(topology, ".topology", "pcieID"),
            bus_id: self.text(topology, ".topology", "busID"),
        };
        let links = match topology.get("p2pLinks") {
            None | Some(Value::Null) => None,
            Some(Value::Array(list)) => {
                let links = list.iter().enumerate();
                Some(
                    links
                        .filter_map(|(number, link)| self.link(number, link, minor))
                        .collect(),
                )
            }
            Some(other) => {
                let problem = "must be a list; it counts as not given";
                self.record_problem(".topology.p2pLinks", other, problem);
                None
            }
        };
        let must_honor = self.flag(topology, ".topology", "mustHonorPartition");
        (Some(place), links, must_honor)
    }

    /// Parses the set of GPUs of a link and its type.
    fn link(&mut self, number: usize, link: &Value, minor: i32) -> Option<(BTreeSet<i32>, String)> {
        let path = format!(".topology.p2pLinks[{number}]");
        let Value::Object(map) = link else {
            self.record_problem(&path, link, "must be an object; it is left out");
            return None;
        };
        let peers = self.text(map, &path, "peerMinor");
        let kind = self.text(map, &path, "type");
        if peers.is_empty() || kind.is_empty() {
            self.record_problem(&path, link, "must have peerMinor and type; it is left out");
            return None;
        }
        let mut set = BTreeSet::from([minor]);
        for peer in peers.split(',') {
            match peer.trim().parse::<i32>() {
                Ok(peer) if (0..MOST_GPUS).contains(&peer) => {
                    set.insert(peer);
                }
                _ => {
                    let problem = "must be a minor within 0..=63; it is left out";
                    self.record_problem(
                        &format!("{path}.peerMinor"),
                        &Value::String(peer.to_owned()),
                        problem,
                    );
                }
            }
        }
        if minor >= MOST_GPUS {
            // The scheduler would reject the table because of one such set.
            self.record_problem(
                &path,
                link,
                "a GPU with a minor above 63 is in no partition; it is left out",
            );
            return None;
        }
        Some((set, kind))
    }
}

/// Returns the beginning of a value, for messages.
fn excerpt(text: &str) -> String {
    const LIMIT: usize = 120;
    match text.char_indices().nth(LIMIT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
