//! Computes the patch for an existing object. Content of other writers is kept: other annotations and labels,
//! attributes, costs, zones that are not NUMA nodes, and resources that koordlet does not report.
//!
//! Works on the original JSON, so that fields of newer definitions are kept, too.

use super::{Report, TopologyMode};
use crate::exporter;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::topology::{ResourceInfo, ZONE_TYPE_NODE, Zone, v1alpha1, v1alpha2};
use koord_api::{Quantity, labels};
use koord_kube::kube_core;
use koord_model::export::FINGERPRINT;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::marker::PhantomData;

/// Annotation with the fingerprint of old exporters.
const OLD_FINGERPRINT: &str = "topology.node.k8s.io/fingerprint";

/// A NodeResourceTopology as received from the API server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Object<K> {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    /// Fields other than the metadata.
    #[serde(flatten)]
    pub(crate) fields: Map<String, Value>,
    /// True if the object has the older version, which has no attributes.
    #[serde(skip)]
    older: bool,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

/// The newer version, which can hold the full report.
pub(crate) type TopologyV1Alpha2 = Object<v1alpha2::NodeResourceTopology>;
/// The older version, for clusters that serve only this one.
pub(crate) type TopologyV1Alpha1 = Object<v1alpha1::NodeResourceTopology>;

koord_kube::decode!(TopologyV1Alpha2, TopologyV1Alpha1);

impl From<TopologyV1Alpha1> for TopologyV1Alpha2 {
    fn from(older: TopologyV1Alpha1) -> Self {
        Self {
            metadata: older.metadata,
            fields: older.fields,
            older: true,
            kind: PhantomData,
        }
    }
}

koord_api::delegate_resource!(<K> Object<K> as K, metadata);

impl<K: kube_core::Resource<DynamicType = ()>> Object<K> {
    /// Returns a new object with the full report, owned by the Node.
    pub(crate) fn created(node: &str, uid: &str, report: &Report, mode: TopologyMode) -> Self {
        let is_owner = mode != TopologyMode::AnnotationsOnly;
        let labels = report.labels.iter().filter_map(|(key, value)| {
            let value = value.clone()?;
            Some(((*key).to_owned(), value))
        });
        let manager = (labels::MANAGED_BY.to_owned(), "Koordinator".to_owned());
        let notes = report.annotations.iter();
        let notes = notes.map(|(key, text)| ((*key).to_owned(), text.clone()));
        let owner = k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        // The definition requires both lists.
        let (policy, zones) = if is_owner {
            (report.policy.as_str(), json!(report.zones))
        } else {
            ("None", json!([]))
        };
        let mut fields = Map::new();
        fields.insert("apiVersion".to_owned(), json!(K::api_version(&())));
        fields.insert("kind".to_owned(), json!(K::kind(&())));
        fields.insert("topologyPolicies".to_owned(), json!([policy]));
        fields.insert("zones".to_owned(), zones);
        if is_owner && !report.attributes.is_empty() {
            fields.insert("attributes".to_owned(), json!(report.attributes));
        }
        Self {
            metadata: ObjectMeta {
                name: Some(node.to_owned()),
                labels: Some(labels.chain([manager]).collect()),
                annotations: Some(notes.collect()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            fields,
            older: false,
            kind: PhantomData,
        }
    }
}

impl TopologyV1Alpha2 {
    /// Returns whether an exporter writes the zones: the object has a fingerprint, or koord's exporter owns
    /// zones.
    pub(crate) fn is_exported(&self) -> bool {
        let notes = self.metadata.annotations.as_ref();
        let old = notes.is_some_and(|notes| notes.contains_key(OLD_FINGERPRINT));
        // Koord's exporter can be configured to omit the fingerprint.
        let entries = self.metadata.managed_fields.iter().flatten();
        let mut entries =
            entries.filter(|it| it.manager.as_deref() == Some(exporter::FIELD_MANAGER));
        old || list(&self.fields, "attributes").any(|it| it["name"] == FINGERPRINT)
            || entries.any(|it| {
                it.fields_v1
                    .as_ref()
                    .is_some_and(|it| it.0.get("f:zones").is_some())
            })
    }

    /// Returns a merge patch that brings the object to `report`, in the object's own version. `None` if
    /// nothing differs.
    pub(crate) fn changes(&self, report: &Report, mode: TopologyMode) -> Option<Value> {
        let mut patch = Map::new();
        let mut metadata = Map::new();
        let present = self.metadata.annotations.as_ref();
        let present = |key: &str| present?.get(key).map(String::as_str);
        let notes = report.annotations.iter();
        let notes =
            notes.filter(|(key, text)| !present(key).is_some_and(|present| is_same(present, text)));
        let notes: Map<String, Value> = notes
            .map(|(key, text)| ((*key).into(), json!(text)))
            .collect();
        if !notes.is_empty() {
            metadata.insert("annotations".to_owned(), notes.into());
        }
        let present_labels = self.metadata.labels.as_ref();
        let outdated = report.labels.iter();
        let outdated = outdated
            .filter(|(key, value)| present_labels.and_then(|all| all.get(**key)) != value.as_ref());
        let outdated: Map<String, Value> = outdated
            .map(|(key, value)| ((*key).into(), json!(value)))
            .collect();
        if !outdated.is_empty() {
            metadata.insert("labels".to_owned(), outdated.into());
        }
        let owns_zones = match mode {
            TopologyMode::Koordinator => true,
            TopologyMode::AnnotationsOnly => false,
            TopologyMode::Auto => !self.is_exported(),
        };
        if owns_zones {
            let policies = json!([report.policy]);
            if self.fields.get("topologyPolicies") != Some(&policies) {
                patch.insert("topologyPolicies".to_owned(), policies);
            }
            if let Some(zones) = self.zones(&report.zones) {
                patch.insert("zones".to_owned(), zones);
            }
            if let Some(attributes) = self.attributes(report) {
                patch.insert("attributes".to_owned(), attributes);
            }
        }
        if patch.is_empty() && metadata.is_empty() {
            return None;
        }
        // Lists are replaced as a whole, so the version guards against lost updates of other clients.
        let version = &self.metadata.resource_version;
        metadata.insert("resourceVersion".to_owned(), json!(version));
        patch.insert("metadata".to_owned(), metadata.into());
        Some(patch.into())
    }

    fn attributes(&self, report: &Report) -> Option<Value> {
        if self.older || report.attributes.is_empty() {
            return None;
        }
        let mut all: Vec<Value> = list(&self.fields, "attributes").cloned().collect();
        let before = all.clone();
        for attribute in &report.attributes {
            match all.iter_mut().find(|it| it["name"] == attribute.name) {
                Some(present) => present["value"] = json!(attribute.value),
                None => all.push(json!(attribute)),
            }
        }
        (all != before).then(|| all.into())
    }

    /// Returns the new list of zones, or `None` if it is unchanged. The order of the present list does not
    /// matter.
    fn zones(&self, wanted: &[Zone]) -> Option<Value> {
        let present: Vec<&Value> = list(&self.fields, "zones").collect();
        let present_zone = |zone: &Zone| {
            let mut all = present.iter().copied();
            all.find(|it| it["name"] == zone.name && it["type"] == ZONE_TYPE_NODE)
        };
        let foreign = present
            .iter()
            .copied()
            .filter(|it| it["type"] != ZONE_TYPE_NODE);
        let mut merged: Vec<Value> = wanted
            .iter()
            .map(|zone| merged(zone, present_zone(zone)))
            .collect();
        merged.extend(foreign.cloned());
        let is_there = |zone: &Value| present.contains(&zone);
        if merged.len() == present.len() && merged.iter().all(is_there) {
            return None;
        }
        sort(&mut merged);
        Some(merged.into())
    }
}

/// Returns `present` with the resources of `zone`. Unchanged if it already has them.
fn merged(zone: &Zone, present: Option<&Value>) -> Value {
    let Some(present) = present else {
        return json!(zone);
    };
    let mut resources: Vec<Value> = match &present["resources"] {
        Value::Array(all) => all.clone(),
        _ => Vec::new(),
    };
    let mut changed = false;
    for resource in &zone.resources {
        match resources.iter_mut().find(|it| it["name"] == resource.name) {
            Some(present) if has_amounts(present, resource) => continue,
            Some(present) => *present = json!(resource),
            None => resources.push(json!(resource)),
        }
        changed = true;
    }
    let mut out = present.clone();
    if changed && let Some(fields) = out.as_object_mut() {
        sort(&mut resources);
        fields.insert("resources".to_owned(), resources.into());
    }
    out
}

fn has_amounts(present: &Value, resource: &ResourceInfo) -> bool {
    let is = |field: &str, amount: Quantity| {
        let value: Option<Quantity> = present[field].as_str().and_then(|text| text.parse().ok());
        value == Some(amount)
    };
    is("capacity", resource.capacity)
        && is("allocatable", resource.allocatable)
        && is("available", resource.available)
}

fn sort(all: &mut [Value]) {
    all.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
}

fn list<'a>(fields: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> {
    fields
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// Returns whether two texts contain the same JSON value.
fn is_same(present: &str, wanted: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    present == wanted || read(present).is_some_and(|present| Some(present) == read(wanted))
}
