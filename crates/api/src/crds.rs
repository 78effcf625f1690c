//! The custom resource definitions, ready to install.

use crate::configmap::FieldError;
use crate::schema::finish_root;
use crate::{analysis, config, quota, scheduling, slo, topology};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::OnceLock;

/// Whether a kind's status is written through the `status` subresource.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Subresource,
    /// Upstream writes the status of these kinds with a plain update.
    Plain,
}

const APPROVED: &str = "api-approved.kubernetes.io";
const SCHEDULER_PLUGINS: &str = "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52";
const NODE_TOPOLOGY: &str = "https://github.com/kubernetes/enhancements/pull/1870";

/// Kinds that upstream does not have: a cluster without them lacks what the comment says.
pub const OWN_CRDS: [&str; 1] = [
    // Without it a restart of the manager forgets what the recommender learned.
    "recommendationcheckpoints.analysis.koordinator.sh",
];

/// Upstream's 13 definitions and our own ([`OWN_CRDS`]), sorted by group and plural name.
///
/// Of upstream's, names, types, required fields, defaults, bounds, columns and subresources are upstream's: replacing
/// upstream's definitions by these changes nothing that a client can see.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    crd_values()
        .into_iter()
        .filter_map(|crd| serde_json::from_value(crd).ok())
        .collect()
}

/// The definitions of [`crds`] as JSON values.
#[must_use]
pub fn crd_values() -> Vec<Value> {
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

/// The PriorityClasses of Koordinator, one for each band, with the values that Koordinator installs: a
/// value is immutable, so others could not be applied over a cluster that has them.
#[must_use]
pub fn priority_class_values() -> [Value; 4] {
    use crate::priority::PriorityClass::{Batch, Free, Mid, Prod};
    [(Prod, 9000), (Mid, 7000), (Batch, 5000), (Free, 3000)].map(|(class, value)| {
        let name = class.as_str();
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value,
            "description": format!("Koordinator's {} band", name.trim_start_matches("koord-")),
        })
    })
}

/// The definitions as one YAML stream, each document starting with `---`.
///
/// # Errors
/// A definition cannot be written as YAML; never happens for the built-in ones.
pub fn crds_yaml() -> Result<String, serde_saphyr::ser::Error> {
    yaml(&crd_values())
}

/// The PriorityClasses as [`crds_yaml`] writes the definitions.
///
/// # Errors
/// As there.
pub fn priority_classes_yaml() -> Result<String, serde_saphyr::ser::Error> {
    yaml(&priority_class_values())
}

fn yaml(objects: &[Value]) -> Result<String, serde_saphyr::ser::Error> {
    let mut stream = String::new();
    for object in objects {
        let document = serde_saphyr::to_string(object)?;
        // Writing to a String cannot fail.
        let _ = writeln!(stream, "---\n{}", document.trim_end());
    }
    Ok(stream)
}

/// What the API server would refuse in `part` of a NodeSLO's spec: numbers out of the definition's
/// bounds, and words that are none of its own. Types are the caller's to keep.
pub(crate) fn refusals(part: &str, value: &impl Serialize) -> Vec<FieldError> {
    static SPEC: OnceLock<Value> = OnceLock::new();
    let spec = SPEC.get_or_init(|| {
        let crd = finished(&slo::NodeSLO::crd(), Status::Subresource);
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        crd.pointer(spec).cloned().unwrap_or_default()
    });
    let mut found = Vec::new();
    let value = serde_json::to_value(value).unwrap_or_default();
    refuse("", &spec[part], &value, &mut found);
    found
}

fn refuse(path: &str, schema: &Value, value: &Value, found: &mut Vec<FieldError>) {
    let mut wrong = |reason: String| {
        found.push(FieldError {
            field: path.to_owned(),
            value: value.to_string(),
            reason,
        });
    };
    match value {
        Value::Number(number) => {
            let (number, bound) = (number.as_f64(), |key: &str| schema[key].as_f64());
            let (least, most) = (bound("minimum"), bound("maximum"));
            let low = least.is_some_and(|least| number < Some(least));
            if low || most.is_some_and(|most| number > Some(most)) {
                wrong(match (least, most) {
                    (Some(least), Some(most)) => format!("must be from {least} to {most}"),
                    (Some(least), None) => format!("must be at least {least}"),
                    (None, most) => format!("must be at most {}", most.unwrap_or_default()),
                });
            }
        }
        Value::String(_) => {
            let words = schema["enum"].as_array();
            if let Some(words) = words.filter(|words| !words.contains(value)) {
                let words: Vec<String> = words.iter().map(Value::to_string).collect();
                wrong(format!("must be one of {}", words.join(", ")));
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                refuse(&format!("{path}[{at}]"), &schema["items"], item, found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let known = &schema["properties"][name.as_str()];
                let of_any = &schema["additionalProperties"];
                let schema = if known.is_null() { of_any } else { known };
                let dot = if path.is_empty() { "" } else { "." };
                refuse(&format!("{path}{dot}{name}"), schema, field, found);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// The derived definition in upstream's form.
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
            // Keys that say nothing, such as an empty list of columns.
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

/// `*.k8s.io` groups need a link to the review that approved the API.
fn approved(mut crd: Value, link: &str) -> Value {
    crd["metadata"]["annotations"] = json!({ APPROVED: link });
    crd
}
