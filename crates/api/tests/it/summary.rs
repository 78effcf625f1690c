//! Short textual form of custom resource definitions. `cargo xtask crds` writes upstream's definitions in
//! this form, and the test next to this file compares it with ours.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Pattern of a Kubernetes quantity.
pub(crate) const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Annotations about the generator of the file.
const GENERATED: [&str; 1] = ["controller-gen.kubebuilder.io/version"];

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the short form of all definitions.
pub(crate) fn summary(definitions: &[Value]) -> String {
    let mut out = Vec::new();
    for crd in definitions {
        out.push(format!("\ncrd {}", text(crd, "/metadata/name")));
        let short = crd
            .pointer("/spec/names/shortNames")
            .and_then(Value::as_array)
            .map(|names| {
                names
                    .iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(",")
            })
            .unwrap_or_default();
        out.push(format!(
            "names kind={} list={} plural={} singular={} short={short} scope={}",
            text(crd, "/spec/names/kind"),
            text(crd, "/spec/names/listKind"),
            text(crd, "/spec/names/plural"),
            text(crd, "/spec/names/singular"),
            text(crd, "/spec/scope"),
        ));
        let annotations = crd
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        for (key, value) in annotations.into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            if !GENERATED.contains(&key.as_str()) {
                out.push(format!("annotation {key}={value}"));
            }
        }
        let versions = crd.pointer("/spec/versions").and_then(Value::as_array);
        for version in versions.into_iter().flatten() {
            out.push(format!(
                "version {} served={} storage={} status={}",
                text(version, "/name"),
                version["served"],
                version["storage"],
                version.pointer("/subresources/status").is_some(),
            ));
            let columns = version
                .get("additionalPrinterColumns")
                .and_then(Value::as_array);
            for column in columns.into_iter().flatten() {
                let described = if column.get("description").is_some() {
                    " description"
                } else {
                    ""
                };
                out.push(format!(
                    "column {} {} {}{described}",
                    text(column, "/name"),
                    text(column, "/type"),
                    text(column, "/jsonPath"),
                ));
            }
            let root = &version["schema"]["openAPIV3Schema"];
            let required = required_of(root);
            for (name, field) in root["properties"].as_object().into_iter().flatten() {
                if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    render(&mut out, name, field, required.contains(name.as_str()));
                }
            }
        }
    }
    out.join("\n") + "\n"
}

fn required_of(schema: &Value) -> BTreeSet<&str> {
    schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn render(out: &mut Vec<String>, path: &str, schema: &Value, required: bool) {
    let mut attributes = attributes_of(schema);
    if required {
        attributes.push("required".to_owned());
    }
    let (name, nested) = if let Some(items) = schema.get("items") {
        // Items that are standard atomic structs are not marked in the summary.
        let inner = attributes_of(items)
            .into_iter()
            .filter(|a| a != "map-type=atomic");
        attributes.extend(inner.map(|attribute| format!("items.{attribute}")));
        (
            format!("[]{}", type_of(items)),
            Some((format!("{path}[]"), items)),
        )
    } else if let Some(values) = schema.get("additionalProperties") {
        (
            format!("map[string]{}", type_of(values)),
            Some((format!("{path}{{}}"), values)),
        )
    } else {
        (type_of(schema), Some((path.to_owned(), schema)))
    };
    attributes.sort();
    let attributes: String = attributes
        .iter()
        .map(|attribute| format!(" {attribute}"))
        .collect();
    out.push(format!("{path}: {name}{attributes}"));
    if let Some((prefix, schema)) = nested
        && !matches!(type_of(schema).as_str(), "LabelSelector" | "Condition")
    {
        let required = required_of(schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            render(
                out,
                &format!("{prefix}.{name}"),
                field,
                required.contains(name.as_str()),
            );
        }
    }
}

fn type_of(schema: &Value) -> String {
    let bare = without_descriptions(schema);
    if bare == label_selector() {
        return "LabelSelector".to_owned();
    }
    if bare["properties"]["observedGeneration"].is_object() && bare == condition() {
        return "Condition".to_owned();
    }
    let has = |key: &str| schema.get(key).is_some();
    let preserve = has("x-kubernetes-preserve-unknown-fields");
    match (
        schema.get("type").and_then(Value::as_str),
        schema.get("format").and_then(Value::as_str),
    ) {
        (None, _) if preserve => "any".to_owned(),
        (None, _) if has("x-kubernetes-int-or-string") => {
            let int_or_string = json!([{ "type": "integer" }, { "type": "string" }]);
            match schema["pattern"].as_str() {
                _ if schema["anyOf"] != int_or_string => {
                    format!("int-or-string anyOf={}", schema["anyOf"])
                }
                Some(QUANTITY) => "Quantity".to_owned(),
                Some(other) => format!("int-or-string pattern={other}"),
                None => "int-or-string".to_owned(),
            }
        }
        (None, _) => "untyped".to_owned(),
        (Some(kind), None) if preserve => format!("{kind}(preserve-unknown)"),
        (Some(kind), None) => kind.to_owned(),
        (Some(kind), Some(format)) => format!("{kind}/{format}"),
    }
}

fn attributes_of(schema: &Value) -> Vec<String> {
    let mut attributes = Vec::new();
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        let plain = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let plain = plain.strip_suffix(".0").unwrap_or(&plain);
        match keyword.as_str() {
            "type"
            | "format"
            | "properties"
            | "items"
            | "additionalProperties"
            | "required"
            | "description"
            | "anyOf"
            | "x-kubernetes-int-or-string"
            | "x-kubernetes-preserve-unknown-fields" => {}
            "pattern" if schema.get("x-kubernetes-int-or-string").is_some() => {}
            "x-kubernetes-map-type" if type_of(schema) == "LabelSelector" => {}
            "enum" => {
                let values = value.as_array().into_iter().flatten();
                let values: Vec<_> = values.filter_map(Value::as_str).collect();
                attributes.push(format!("enum={}", values.join("|")));
            }
            other => attributes.push(format!(
                "{}={plain}",
                other.trim_start_matches("x-kubernetes-")
            )),
        }
    }
    attributes
}

fn without_descriptions(schema: &Value) -> Value {
    match schema {
        Value::Object(object) => {
            let mut bare = Map::new();
            for (key, value) in object {
                // A description is text; a property of that name is an object.
                if key != "description" || !value.is_string() {
                    bare.insert(key.clone(), without_descriptions(value));
                }
            }
            Value::Object(bare)
        }
        Value::Array(items) => items.iter().map(without_descriptions).collect(),
        other => other.clone(),
    }
}

fn label_selector() -> Value {
    json!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchExpressions": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string" },
                        "operator": { "type": "string" },
                        "values": {
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "items": { "type": "string" },
                        },
                    },
                },
            },
            "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
        },
    })
}

fn condition() -> Value {
    json!({
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "lastTransitionTime": { "type": "string", "format": "date-time" },
            "message": { "type": "string", "maxLength": 32768 },
            "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
            "reason": {
                "type": "string", "minLength": 1, "maxLength": 1024,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
            "type": {
                "type": "string", "maxLength": 316,
                "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            },
        },
    })
}
