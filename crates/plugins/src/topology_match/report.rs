//! The parsed NodeResourceTopology of one node.

use crate::common::topologies::TrimmedTopology;
use koord_api::topology::{ZONE_TYPE_NODE, zone_id};
use koord_model::alignment::{Config, MAX_ZONES, UNKNOWN_COST, Zone, fingerprint};
use koord_model::resources::{Amounts, ResourceId, ResourceTable, amount};
use koord_scheduler::framework::Problem;

/// An exporter's report about a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Report {
    pub(super) config: Config,
    /// The NUMA nodes by number, ascending.
    pub(super) zones: Vec<Zone>,
    /// Fingerprint of the pods that the report has counted; `None` if it has none.
    pub(super) fingerprint: Option<String>,
    /// True if the fingerprint is an attribute, rather than the annotation of old exporters.
    pub(super) attributed: bool,
    /// True if the fingerprint covers only pods with exclusive resources, according to the report.
    pub(super) only_exclusive: bool,
}

impl Report {
    /// Parses `object`. Also returns messages about ignored parts.
    pub(super) fn new(object: &TrimmedTopology, table: &ResourceTable) -> (Self, Vec<Problem>) {
        let mut wrong = Vec::new();
        let attributes = object.attributes.iter();
        let attributes = || {
            let all = attributes.clone();
            all.map(|attribute| (attribute.name.as_str(), attribute.value.as_str()))
        };
        let policies = object.policies.iter().map(String::as_str);
        let (config, unread) = Config::read(policies, attributes());
        for (name, value) in unread {
            wrong.push(format!("attributes[{name}]: {value:?} is not known"));
        }
        let find = |name: &str| attributes().find(|(other, _)| *other == name);
        let stated = find("nodeTopologyPodsFingerprint").map(|(_, value)| value);
        let attributed = stated.is_some();
        let only_exclusive = attributed
            && find("nodeTopologyPodsFingerprintMethod")
                .is_some_and(|(_, value)| value == "with-exclusive-resources");
        let stated = stated.or(object.legacy.as_deref());
        let stated = stated.filter(|text| !text.is_empty());
        if let Some(Err(error)) = stated.map(fingerprint::check) {
            wrong.push(format!("fingerprint of pods: {error}"));
        }
        let report = Self {
            config,
            zones: zones(object, table, &mut wrong),
            fingerprint: stated.map(str::to_owned),
            attributed,
            only_exclusive,
        };
        let wrong = wrong.into_iter();
        let problems = wrong.map(|problem| object.problem(format!("{problem}; it is ignored")));
        (report, problems.collect())
    }

    /// Returns true if a pod that does not fit this report may fit `other`. `None` means no report, which
    /// rejects no pod.
    pub(super) fn may_improve_with(&self, other: Option<&Self>) -> bool {
        let Some(other) = other else {
            return true;
        };
        let ids = |report: &Self| report.zones.iter().map(|zone| zone.id).collect::<Vec<_>>();
        if ids(self) != ids(other) {
            return true;
        }
        let mut zones = self.zones.iter().zip(&other.zones);
        zones.any(|(zone, other)| {
            let (before, now) = (&zone.available, &other.available);
            // A resource that no zone lists is not aligned.
            let removed = before.iter().any(|(id, _)| !now.contains(id));
            removed
                || now
                    .iter()
                    .any(|(id, amount)| !before.contains(id) || amount > before.get(id))
        })
    }

    /// Returns true if any zone lists the resource.
    pub(super) fn lists(&self, id: ResourceId) -> bool {
        self.zones.iter().any(|zone| zone.available.contains(id))
    }
}

/// Parses the zones of NUMA nodes; problems are appended to `wrong`.
fn zones(object: &TrimmedTopology, table: &ResourceTable, wrong: &mut Vec<String>) -> Vec<Zone> {
    let mut zones: Vec<Zone> = Vec::new();
    let listed = object.zones.iter();
    for zone in listed.filter(|zone| zone.type_ == ZONE_TYPE_NODE) {
        let name = &zone.name;
        let Some(id) = zone_id(name).filter(|id| *id < MAX_ZONES) else {
            wrong.push(format!("zone {name:?}: not node-0 to node-63"));
            continue;
        };
        if zones.iter().any(|other| other.id == id) {
            wrong.push(format!("zone {name:?}: listed twice"));
            continue;
        }
        let mut available = Amounts::new();
        for resource in &zone.resources {
            let number = table.intern(&resource.name);
            let free = amount(number, &resource.available);
            if free < 0 {
                let (resource_name, value) = (&resource.name, &resource.available);
                wrong.push(format!(
                    "zone {name:?}: {resource_name}.available: {value} is below 0"
                ));
            }
            let mut free = free.max(0);
            if available.contains(number) {
                wrong.push(format!("zone {name:?}: {}: listed twice", resource.name));
                free = free.min(available.get(number));
            }
            available.set(number, free);
        }
        let mut costs = Vec::new();
        for cost in &zone.costs {
            match (zone_id(&cost.name), u32::try_from(cost.value)) {
                (Some(other), Ok(value)) => costs.push((other, value.min(UNKNOWN_COST))),
                _ => wrong.push(format!(
                    "zone {name:?}: costs[{:?}]: {} is no distance to a NUMA node",
                    cost.name, cost.value
                )),
            }
        }
        zones.push(Zone {
            id,
            available,
            costs,
        });
    }
    zones.sort_by_key(|zone| zone.id);
    zones
}
