//! OpenAPI schema fragments that cannot be derived from Rust types, and the conventions applied to every
//! derived schema.
//!
//! The derive macro takes names, types, required fields and field attributes into account. It does not apply
//! Kubernetes' conventions for nullability, int-or-string, atomic structs and standard types; `apply_conventions` does,
//! so that the result accepts and defaults exactly what upstream's CRDs do.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// Pattern of a quantity, as in upstream's CRDs.
pub const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
/// Title that marks nullable fields until [`apply_conventions`] has removed it.
const KEEP_NULLABLE: &str = "nullable";

/// Returns the schema of an object with arbitrary fields, which are preserved.
pub(crate) fn free_form_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", PRESERVE: true })
}

/// Returns the schema of a value of any type, which is preserved.
pub(crate) fn any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ PRESERVE: true })
}

/// Returns the schema of a time that may be `null`.
pub(crate) fn nullable_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time", "nullable": true, "title": KEEP_NULLABLE })
}

/// Converts the derived schema of a root object to upstream's form.
pub(crate) fn finish_root(schema: &mut Value) {
    apply_conventions(schema);
    let Some(root) = schema.as_object_mut() else {
        return;
    };
    root.remove("description");
    let properties = root.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        for section in ["spec", "status"] {
            // The Rust types deserialize a missing section as empty; the API server must not add one.
            if let Some(section) = properties.get_mut(section).and_then(Value::as_object_mut) {
                section.remove("default");
            }
        }
        properties.insert("apiVersion".to_owned(), json!({ "type": "string" }));
        properties.insert("kind".to_owned(), json!({ "type": "string" }));
        properties.insert("metadata".to_owned(), json!({ "type": "object" }));
    }
    if let Some(required) = root.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !matches!(name.as_str(), Some("spec" | "status" | "metadata")));
        if required.is_empty() {
            root.remove("required");
        }
    }
}

/// Applies Kubernetes' conventions for nullable fields, int-or-string and standard types to a derived schema and
/// all nested ones.
fn apply_conventions(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    if object
        .remove("title")
        .is_none_or(|title| title != KEEP_NULLABLE)
    {
        object.remove("nullable");
    }
    if object.contains_key(INT_OR_STRING) {
        object.insert(
            "anyOf".to_owned(),
            json!([{ "type": "integer" }, { "type": "string" }]),
        );
        return;
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(apply_conventions);
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(nested) = object.get_mut(nested) {
            apply_conventions(nested);
        }
    }
    complete_standard_type(object);
}

/// Completes the generated schemas of Kubernetes' standard types, which are recognized by their fields.
fn complete_standard_type(object: &mut Map<String, Value>) {
    let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    let mut names: Vec<&str> = properties.keys().map(String::as_str).collect();
    names.sort_unstable();
    match names.as_slice() {
        // LabelSelector.
        ["matchExpressions", "matchLabels"] => {
            for path in [
                "/matchExpressions",
                "/matchExpressions/items/properties/values",
            ] {
                set_at(properties, path, "x-kubernetes-list-type", "atomic");
            }
            object.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
        }
        // ObjectReference, and the reference of a reservation owner to a controller.
        [
            "apiVersion",
            "fieldPath",
            "kind",
            "name",
            "namespace",
            "resourceVersion",
            "uid",
        ]
        | [
            "apiVersion",
            "blockOwnerDeletion",
            "controller",
            "kind",
            "name",
            "namespace",
            "uid",
        ] => {
            object.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
        }
        // metav1.Condition.
        [
            "lastTransitionTime",
            "message",
            "observedGeneration",
            "reason",
            "status",
            "type",
        ] => {
            *object = condition();
        }
        // DeleteOptions.
        [_, "dryRun", "gracePeriodSeconds", ..] => {
            set_at(properties, "/dryRun", "x-kubernetes-list-type", "atomic");
        }
        _ => {}
    }
}

fn set_at(properties: &mut Map<String, Value>, path: &str, key: &str, value: &str) {
    let mut path = path.trim_start_matches('/').splitn(2, '/');
    let field = path.next().and_then(|name| properties.get_mut(name));
    let target = match (field, path.next()) {
        (Some(field), Some(rest)) => field.pointer_mut(&format!("/{rest}")),
        (field, _) => field,
    };
    if let Some(object) = target.and_then(Value::as_object_mut) {
        object.insert(key.to_owned(), json!(value));
    }
}

/// Returns the standard schema of `metav1.Condition`, with its bounds.
fn condition() -> Map<String, Value> {
    const TYPE_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
    const REASON_PATTERN: &str = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";
    let schema = json!({
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": { "type": "string", "format": "date-time" },
            "message": { "type": "string", "maxLength": 32768 },
            "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
            "reason": {
                "type": "string", "minLength": 1, "maxLength": 1024, "pattern": REASON_PATTERN,
            },
            "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
            "type": { "type": "string", "maxLength": 316, "pattern": TYPE_PATTERN },
        },
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}
