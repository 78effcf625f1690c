//! Merging of an exporter's report into a NodeResourceTopology. Its lists are written as a whole, so every
//! writer must preserve the parts of other writers.

use super::{FINGERPRINT, FINGERPRINT_METHOD};
use koord_api::domains;
use koord_api::resources::{self, is_extended};
use koord_api::topology::v1alpha2::NodeResourceTopologyFields;
use koord_api::topology::{AttributeInfo, ZONE_TYPE_NODE, Zone};

/// Report of an exporter for a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Zones, one per NUMA node.
    pub zones: Vec<Zone>,
    /// Attributes; see [`super::attributes`].
    pub attributes: Vec<AttributeInfo>,
    /// Deprecated policy name; see [`super::policy_name`].
    pub policy: String,
}

/// Returns the object after an exporter has written `report` over `before`.
///
/// Kept are zones that are not NUMA nodes; in zones of NUMA nodes the parent, the attributes and the
/// resources that no kubelet allocates: those of `kubernetes.io`, such as batch resources, and of
/// `koordinator.sh`; and attributes of the object that no exporter writes.
#[must_use]
pub fn merged(before: &NodeResourceTopologyFields, report: &Report) -> NodeResourceTopologyFields {
    let mut zones = report.zones.clone();
    keep_foreign(&mut zones, &before.zones);
    let mut attributes = report.attributes.clone();
    let existing = before.attributes.iter();
    attributes.extend(existing.filter(|it| !is_exporters(&it.name)).cloned());
    NodeResourceTopologyFields {
        topology_policies: vec![report.policy.clone()],
        zones,
        attributes,
    }
}

/// Copies the parts of the zones in `before` that [`merged`] keeps.
pub fn keep_foreign(zones: &mut Vec<Zone>, before: &[Zone]) {
    for old in before {
        if old.type_ != ZONE_TYPE_NODE {
            zones.push(old.clone());
            continue;
        }
        let Some(zone) = zones.iter_mut().find(|zone| zone.name == old.name) else {
            continue;
        };
        zone.parent.clone_from(&old.parent);
        zone.attributes.clone_from(&old.attributes);
        let is_listed = |name: &str, zone: &Zone| zone.resources.iter().any(|it| it.name == name);
        for resource in &old.resources {
            if is_foreign(&resource.name) && !is_listed(&resource.name, zone) {
                zone.resources.push(resource.clone());
            }
        }
        zone.resources.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

/// Returns only the parts of these zones that [`keep_foreign`] would copy.
#[must_use]
pub fn foreign(zones: &[Zone]) -> Vec<Zone> {
    let part = |zone: &Zone| {
        if zone.type_ != ZONE_TYPE_NODE {
            return Some(zone.clone());
        }
        let foreign = zone.resources.iter().filter(|it| is_foreign(&it.name));
        let part = Zone {
            costs: Vec::new(),
            resources: foreign.cloned().collect(),
            ..zone.clone()
        };
        let nothing = part.resources.is_empty() && part.attributes.is_empty();
        (!nothing || !part.parent.is_empty()).then_some(part)
    };
    zones.iter().filter_map(part).collect()
}

/// Returns true for a resource that no kubelet allocates.
fn is_foreign(name: &str) -> bool {
    let native = [resources::CPU, resources::MEMORY].contains(&name);
    let pages = name.starts_with("hugepages-");
    let is_koordinator = name
        .split_once('/')
        .is_some_and(|(domain, _)| domain == domains::KOORDINATOR);
    !native && !pages && (is_koordinator || !is_extended(name))
}

/// Returns true if exporters write the attribute.
fn is_exporters(name: &str) -> bool {
    name.starts_with("topologyManager")
        || name.starts_with("cpu_")
        || [FINGERPRINT, FINGERPRINT_METHOD].contains(&name)
}

/// Returns true if both are equal, regardless of the order of zones, resources and attributes.
#[must_use]
pub fn is_same(one: &NodeResourceTopologyFields, other: &NodeResourceTopologyFields) -> bool {
    sorted(one) == sorted(other)
}

fn sorted(fields: &NodeResourceTopologyFields) -> NodeResourceTopologyFields {
    let by_name = |a: &AttributeInfo, b: &AttributeInfo| a.name.cmp(&b.name);
    let mut fields = fields.clone();
    fields.attributes.sort_by(by_name);
    fields.zones.sort_by(|a, b| a.name.cmp(&b.name));
    for zone in &mut fields.zones {
        zone.attributes.sort_by(by_name);
        zone.costs.sort_by(|a, b| a.name.cmp(&b.name));
        zone.resources.sort_by(|a, b| a.name.cmp(&b.name));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn amount(name: &str, amount: &str) -> Value {
        json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount})
    }

    fn fields(value: Value) -> NodeResourceTopologyFields {
        serde_json::from_value(value).unwrap()
    }

    fn report() -> Report {
        let before = fields(json!({"zones": [
            {"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}],
                "resources": [amount("cpu", "4"), amount("ex.com/a", "1")]},
            {"name": "node-1", "type": "Node", "resources": [amount("cpu", "4")]}],
            "attributes": [{"name": "topologyManagerPolicy", "value": "restricted"}]}));
        Report {
            zones: before.zones,
            attributes: before.attributes,
            policy: "RestrictedContainerLevel".to_owned(),
        }
    }

    #[test]
    fn fields_of_other_writers_are_kept() {
        let before = fields(json!({"topologyPolicies": ["None"],
            "attributes": [{"name": "topologyManagerScope", "value": "pod"},
                {"name": "nodeTopologyPodsFingerprint", "value": "x"}, {"name": "cpu_core", "value": "0"},
                {"name": "rack", "value": "7"}],
            "zones": [
                {"name": "node-0", "type": "Node", "parent": "socket-0",
                    "costs": [{"name": "node-0", "value": 99}],
                    "attributes": [{"name": "die", "value": "3"}],
                    "resources": [amount("memory", "1Gi"), amount("kubernetes.io/batch-cpu", "500"),
                        amount("ex.com/gone", "2"), amount("hugepages-2Mi", "4Mi"),
                        amount("koordinator.sh/gpu-core", "100"), amount("cpu", "99")]},
                {"name": "node-7", "type": "Node", "resources": [amount("kubernetes.io/batch-cpu", "5")]},
                {"name": "socket-0", "type": "Socket", "resources": [amount("cpu", "8")]}]}));
        let after = merged(&before, &report());
        let expected = fields(json!({"topologyPolicies": ["RestrictedContainerLevel"],
            "attributes": [{"name": "topologyManagerPolicy", "value": "restricted"},
                {"name": "rack", "value": "7"}],
            "zones": [
                {"name": "node-0", "type": "Node", "parent": "socket-0",
                    "costs": [{"name": "node-0", "value": 10}],
                    "attributes": [{"name": "die", "value": "3"}],
                    "resources": [amount("cpu", "4"), amount("ex.com/a", "1"),
                        amount("koordinator.sh/gpu-core", "100"), amount("kubernetes.io/batch-cpu", "500")]},
                {"name": "node-1", "type": "Node", "resources": [amount("cpu", "4")]},
                {"name": "socket-0", "type": "Socket", "resources": [amount("cpu", "8")]}]}));
        assert_eq!(after, expected);
        // A second merge changes nothing. The foreign fields alone give the same zones.
        assert_eq!(merged(&after, &report()), after);
        let mut zones = report().zones;
        keep_foreign(&mut zones, &foreign(&before.zones));
        assert_eq!(zones, after.zones);
        assert!(foreign(&report().zones).is_empty());
    }

    #[test]
    fn order_and_notation_of_amounts_do_not_matter() {
        let one = fields(json!({"zones": [
            {"name": "node-0", "type": "Node", "resources": [amount("cpu", "4"), amount("memory", "1Gi")]},
            {"name": "node-1", "type": "Node"}],
            "attributes": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]}));
        let mut other = fields(json!({"zones": [
            {"name": "node-1", "type": "Node"},
            {"name": "node-0", "type": "Node",
                "resources": [amount("memory", "1073741824"), amount("cpu", "4000m")]}],
            "attributes": [{"name": "b", "value": "2"}, {"name": "a", "value": "1"}]}));
        assert!(is_same(&one, &other));
        other.zones[1].resources[1].available = "3".parse().unwrap();
        assert!(!is_same(&one, &other));
    }
}
