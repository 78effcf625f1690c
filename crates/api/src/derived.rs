//! Custom resource definitions and section schemas derived from the Rust types.
//!
//! Programs use the committed files `crds/*.json` and `src/configmap/schemas.json`. A test compares both, and
//! writes the files when `UPDATE_EXPECT` is set.

use crate::configmap::keys;
use crate::schema::finish_root;
use crate::{analysis, config, configmap, quota, scheduling, slo, topology};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

/// Method by which the status of a kind is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Subresource,
    /// A plain update, as upstream does for these kinds.
    Plain,
}

const APPROVED: &str = "api-approved.kubernetes.io";
const SCHEDULER_PLUGINS: &str = "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52";
const NODE_TOPOLOGY: &str = "https://github.com/kubernetes/enhancements/pull/1870";

/// Returns the definitions of [`crds`](crate::crds) derived from the types.
#[must_use]
pub fn definitions() -> Vec<Value> {
    use Status::{Plain, Subresource};
    let mut topology = finished(&topology::v1alpha1::NodeResourceTopology::crd(), Plain);
    let stored = finished(&topology::v1alpha2::NodeResourceTopology::crd(), Plain);
    if let Some(versions) = topology
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut)
    {
        for version in versions.iter_mut() {
            version["storage"] = json!(false);
        }
        versions.push(stored["spec"]["versions"][0].clone());
    }
    vec![
        finished(&analysis::RecommendationCheckpoint::crd(), Plain),
        finished(&analysis::Recommendation::crd(), Subresource),
        finished(&config::ClusterColocationProfile::crd(), Subresource),
        finished(&quota::ElasticQuotaProfile::crd(), Plain),
        finished(&scheduling::ClusterNetworkTopology::crd(), Subresource),
        finished(&scheduling::Device::crd(), Plain),
        finished(&scheduling::PodMigrationJob::crd(), Subresource),
        finished(&scheduling::Reservation::crd(), Subresource),
        finished(&scheduling::ScheduleExplanation::crd(), Subresource),
        approved(
            finished(&scheduling::ElasticQuota::crd(), Plain),
            SCHEDULER_PLUGINS,
        ),
        approved(
            finished(&scheduling::PodGroup::crd(), Plain),
            SCHEDULER_PLUGINS,
        ),
        finished(&slo::NodeMetric::crd(), Subresource),
        finished(&slo::NodeSLO::crd(), Subresource),
        approved(topology, NODE_TOPOLOGY),
    ]
}

/// Returns the schema of each section of the ConfigMap by key, without descriptions: its root and the definitions
/// that the root refers to.
#[must_use]
pub fn section_schemas() -> Value {
    let mut schemas = described_section_schemas();
    strip_descriptions(&mut schemas);
    schemas
}

/// Returns the schemas of [`section_schemas`] with the descriptions of their fields.
#[must_use]
pub fn described_section_schemas() -> Value {
    fn schema_of<T: JsonSchema>() -> Value {
        let mut generator = SchemaGenerator::default();
        let root = Value::from(T::json_schema(&mut generator));
        json!({ "root": root, "definitions": generator.take_definitions(false) })
    }
    json!({
        keys::COLOCATION: schema_of::<configmap::ColocationStrategy>(),
        keys::RESOURCE_THRESHOLD: schema_of::<slo::ResourceThresholdStrategy>(),
        keys::RESOURCE_QOS: schema_of::<slo::ResourceQOSStrategy>(),
        keys::CPU_BURST: schema_of::<slo::CPUBurstStrategy>(),
        keys::SYSTEM: schema_of::<slo::SystemStrategy>(),
        keys::HOST_APPLICATION: schema_of::<configmap::HostApplications>(),
        keys::CPU_NORMALIZATION: schema_of::<configmap::CPUNormalizationStrategy>(),
        keys::RESOURCE_AMPLIFICATION: schema_of::<configmap::ResourceAmplificationStrategy>(),
    })
}

/// Removes the `description` texts of a schema at every depth. A property with that name is an object, and stays.
fn strip_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.retain(|key, value| !(key == "description" && value.is_string()));
            map.values_mut().for_each(strip_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_descriptions),
        _ => {}
    }
}

/// Converts a derived definition to upstream's form.
fn finished(derived: &CustomResourceDefinition, status: Status) -> Value {
    let mut crd = serde_json::to_value(derived).unwrap_or_default();
    if let Some(object) = crd.as_object_mut() {
        object.remove("status");
    }
    let kind = crd["spec"]["names"]["kind"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    crd["spec"]["names"]["listKind"] = json!(format!("{kind}List"));
    let versions = crd
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            finish_root(schema);
        }
        if let Some(version) = version.as_object_mut() {
            version.remove("subresources");
            if status == Status::Subresource {
                version.insert("subresources".to_owned(), json!({ "status": {} }));
            }
            // Empty lists, such as a list of no columns, are omitted.
            version.retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
        }
    }
    if let Some(names) = crd
        .pointer_mut("/spec/names")
        .and_then(Value::as_object_mut)
    {
        names.retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
    }
    crd
}

/// Adds the link to the API review that `*.k8s.io` groups must have.
fn approved(mut crd: Value, link: &str) -> Value {
    crd["metadata"]["annotations"] = json!({ APPROVED: link });
    crd
}
