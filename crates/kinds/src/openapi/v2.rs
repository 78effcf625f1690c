//! OpenAPI v2: one document of all resources, derived from the documents of v3.

use serde_json::{Map, Value, json};

use crate::registry::Registry;

const V3: &str = "#/components/schemas/";
const V2: &str = "#/definitions/";

/// Builds the document of `GET /openapi/v2`.
#[must_use]
pub fn document(registry: &Registry) -> Value {
    let (mut definitions, mut paths) = (Map::new(), Map::new());
    for (group, version) in super::by_version(registry).keys() {
        let Some(Value::Object(mut document)) = super::document(registry, group, version) else {
            continue;
        };
        if let Some(Value::Object(all)) = document.remove("paths") {
            paths.extend(all.into_iter().map(|(path, item)| (path, path_item(item))));
        }
        let schemas = document
            .get_mut("components")
            .and_then(|c| c.get_mut("schemas"))
            .map(Value::take);
        if let Some(Value::Object(all)) = schemas {
            let all = all.into_iter();
            definitions.extend(all.map(|(name, schema)| (name, bounded(schema))));
        }
    }
    let mut out = json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": super::VERSION},
        "paths": paths,
        "definitions": definitions,
    });
    point_to_definitions(&mut out);
    out
}

/// Returns [`document`] encoded as protobuf.
#[must_use]
pub fn binary(registry: &Registry) -> Vec<u8> {
    super::binary::document(&document(registry))
}

/// Simplifies a schema for clients that do not support `x-kubernetes-preserve-unknown-fields` or
/// alternatives: a kind that keeps unknown fields becomes any object.
fn bounded(mut schema: Value) -> Value {
    const GVK: &str = "x-kubernetes-group-version-kind";
    match schema.get(GVK) {
        Some(gvk) if schema["x-kubernetes-preserve-unknown-fields"] == true => {
            json!({"type": "object", GVK: gvk})
        }
        _ => {
            schema.as_object_mut().map(|map| map.remove("oneOf"));
            schema
        }
    }
}

fn point_to_definitions(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(V3)
            {
                *reference = format!("{V2}{name}");
            }
            map.values_mut().for_each(point_to_definitions);
        }
        Value::Array(items) => items.iter_mut().for_each(point_to_definitions),
        _ => {}
    }
}

fn path_item(item: Value) -> Value {
    let Value::Object(item) = item else {
        return item;
    };
    item.into_iter()
        .map(|(key, value)| {
            let value = match value {
                Value::Array(parameters) => parameters.into_iter().map(parameter).collect(),
                Value::Object(operation) => Value::Object(self::operation(operation)),
                other => other,
            };
            (key, value)
        })
        .collect::<Map<_, _>>()
        .into()
}

/// Converts a parameter: v2 has its type in the parameter itself.
fn parameter(value: Value) -> Value {
    let Value::Object(mut map) = value else {
        return value;
    };
    if let Some(Value::Object(schema)) = map.remove("schema") {
        map.extend(schema);
    }
    Value::Object(map)
}

/// Converts an operation: in v2 a body is a parameter, and media types are separate lists.
fn operation(mut map: Map<String, Value>) -> Map<String, Value> {
    let mut parameters: Vec<Value> = match map.remove("parameters") {
        Some(Value::Array(all)) => all.into_iter().map(parameter).collect(),
        _ => Vec::new(),
    };
    if let Some(body) = map.remove("requestBody") {
        let content = body.get("content").and_then(Value::as_object);
        let types: Vec<&String> = content.into_iter().flat_map(Map::keys).collect();
        map.insert("consumes".to_owned(), json!(types));
        parameters.push(json!({
            "name": "body", "in": "body", "required": true, "schema": schema(content),
        }));
    }
    if !parameters.is_empty() {
        map.insert("parameters".to_owned(), parameters.into());
    }
    let responses = map.get_mut("responses").and_then(Value::as_object_mut);
    for response in responses.into_iter().flat_map(Map::values_mut) {
        let content = response.get_mut("content").map(Value::take);
        let schema = schema(content.as_ref().and_then(Value::as_object));
        if let Some(map) = response.as_object_mut() {
            map.remove("content");
            map.insert("schema".to_owned(), schema);
        }
    }
    map.insert("produces".to_owned(), json!(["application/json"]));
    map
}

/// Returns the schema of a body, which is the same for every media type.
fn schema(content: Option<&Map<String, Value>>) -> Value {
    content
        .and_then(|c| c.values().next()?.get("schema"))
        .cloned()
        .unwrap_or_else(|| json!({"type": "object"}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_in_one_document() {
        let document = document(&Registry::builtin());
        assert_eq!(document["swagger"], "2.0");
        let definitions = document["definitions"].as_object().unwrap();
        for name in ["io.k8s.api.core.v1.Pod", "io.k8s.api.apps.v1.Deployment"] {
            assert!(definitions.contains_key(name), "{name}");
        }
        let alternatives = definitions.values().filter(|d| d.get("oneOf").is_some());
        assert_eq!(alternatives.count(), 0, "v2 has none");
        let text = document.to_string();
        assert!(!text.contains(V3) && !text.contains("requestBody"));
        for part in text.split("\"$ref\":\"").skip(1) {
            let target = part.split('"').next().unwrap();
            let name = target.strip_prefix(V2).unwrap();
            assert!(definitions.contains_key(name), "dangling {target}");
        }
        let post = &document["paths"]["/api/v1/namespaces/{namespace}/pods"]["post"];
        let body = post["parameters"].as_array().unwrap().last().unwrap();
        assert_eq!(body["in"], "body");
        assert_eq!(
            body["schema"]["$ref"],
            "#/definitions/io.k8s.api.core.v1.Pod"
        );
    }
}
