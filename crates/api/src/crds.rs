//! The custom resource definitions, ready to install.

use crate::field::FieldError;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::OnceLock;

const NODE_SLO: &str = include_str!("../crds/slo.koordinator.sh_nodeslos.json");

/// The committed definitions, generated from the types (see `crate::derived`).
const FILES: [&str; 14] = [
    include_str!("../crds/analysis.koordinator.sh_recommendationcheckpoints.json"),
    include_str!("../crds/analysis.koordinator.sh_recommendations.json"),
    include_str!("../crds/config.koordinator.sh_clustercolocationprofiles.json"),
    include_str!("../crds/quota.koordinator.sh_elasticquotaprofiles.json"),
    include_str!("../crds/scheduling.koordinator.sh_clusternetworktopologies.json"),
    include_str!("../crds/scheduling.koordinator.sh_devices.json"),
    include_str!("../crds/scheduling.koordinator.sh_podmigrationjobs.json"),
    include_str!("../crds/scheduling.koordinator.sh_reservations.json"),
    include_str!("../crds/scheduling.koordinator.sh_scheduleexplanations.json"),
    include_str!("../crds/scheduling.sigs.k8s.io_elasticquotas.json"),
    include_str!("../crds/scheduling.sigs.k8s.io_podgroups.json"),
    include_str!("../crds/slo.koordinator.sh_nodemetrics.json"),
    NODE_SLO,
    include_str!("../crds/topology.node.k8s.io_noderesourcetopologies.json"),
];

/// Names of the definitions that upstream does not have. The comment on each states what is missing in a
/// cluster without it.
pub const OWN_CRDS: [&str; 1] = [
    // Without it the usage history of the recommender is lost when the manager restarts.
    "recommendationcheckpoints.analysis.koordinator.sh",
];

/// Returns upstream's 13 definitions and our own ([`OWN_CRDS`]), sorted by group and plural name.
///
/// In upstream's definitions all names, types, required fields, defaults, bounds, columns and subresources
/// are unchanged: replacing upstream's files by these changes nothing that a client can see.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    crd_values()
        .into_iter()
        .filter_map(|crd| serde_json::from_value(crd).ok())
        .collect()
}

/// Returns the definitions of [`crds`] as JSON values.
#[must_use]
pub fn crd_values() -> Vec<Value> {
    let parsed = FILES.iter().map(|file| serde_json::from_str(file));
    parsed.filter_map(Result::ok).collect()
}

/// Returns the PriorityClasses of Koordinator, one for each band, with the values that Koordinator installs.
/// A PriorityClass value is immutable, so other values could not be applied to a cluster that has them.
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

/// Returns the violations for which the API server would reject `part` of a NodeSLO's spec: numbers out of
/// bounds and texts that are not in the enumeration. Types are not checked.
pub(crate) fn refusals(part: &str, value: &impl Serialize) -> Vec<FieldError> {
    static SPEC: OnceLock<Value> = OnceLock::new();
    let spec = SPEC.get_or_init(|| {
        let crd: Value = serde_json::from_str(NODE_SLO).unwrap_or_default();
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        crd.pointer(spec).cloned().unwrap_or_default()
    });
    let mut violations = Vec::new();
    let value = serde_json::to_value(value).unwrap_or_default();
    refuse("", &spec[part], &value, &mut violations);
    violations
}

/// Adds the violations of the schema by `value` at `path`.
fn refuse(path: &str, schema: &Value, value: &Value, violations: &mut Vec<FieldError>) {
    let mut wrong = |reason: String| {
        violations.push(FieldError {
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
            let allowed = schema["enum"].as_array();
            if let Some(allowed) = allowed.filter(|allowed| !allowed.contains(value)) {
                let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
                wrong(format!("must be one of {}", allowed.join(", ")));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                refuse(
                    &format!("{path}[{index}]"),
                    &schema["items"],
                    item,
                    violations,
                );
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let named = &schema["properties"][name.as_str()];
                let catch_all = &schema["additionalProperties"];
                let schema = if named.is_null() { catch_all } else { named };
                let dot = if path.is_empty() { "" } else { "." };
                refuse(&format!("{path}{dot}{name}"), schema, field, violations);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}
