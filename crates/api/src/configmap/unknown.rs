//! Fields that nobody reads: most often misspelt ones.

use super::FieldError;
use serde_json::Value;
use std::sync::OnceLock;

/// Below this schema every field is somebody's.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Returns the fields of `value`, found at `path`, that the section `key` does not have, except those of `others`.
/// Case does not count, as for Go.
pub(super) fn fields(key: &str, value: &Value, path: &str, others: &[&str]) -> Vec<FieldError> {
    static SCHEMAS: OnceLock<Value> = OnceLock::new();
    let schemas = SCHEMAS
        .get_or_init(|| serde_json::from_str(include_str!("schemas.json")).unwrap_or_default());
    let root = &schemas[key]["root"];
    let mut walk = SchemaWalk {
        definitions: &schemas[key]["definitions"],
        unknown: Vec::new(),
    };
    match value {
        Value::Object(object) => {
            let is_own = |name: &String| !others.iter().any(|o| o.eq_ignore_ascii_case(name));
            let own = object.iter().filter(|(name, _)| is_own(name));
            let own = own.map(|(name, value)| (name.clone(), value.clone()));
            walk.visit(root, &Value::Object(own.collect()), path);
        }
        _ => walk.visit(root, value, path),
    }
    walk.unknown
}

/// An error for each field of `value` that is none of `known`.
pub(super) fn members(value: &Value, known: &[&str]) -> Vec<FieldError> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| !known.iter().any(|k| k.eq_ignore_ascii_case(name)))
        .map(|(name, value)| error(name.clone(), value))
        .collect()
}

fn error(field: String, value: &Value) -> FieldError {
    let mut value = value.to_string();
    if let Some((end, _)) = value.char_indices().nth(200) {
        value.truncate(end);
        value.push_str("...");
    }
    FieldError {
        field,
        value,
        reason: "there is no such field; it is ignored".to_owned(),
    }
}

struct SchemaWalk<'a> {
    definitions: &'a Value,
    unknown: Vec<FieldError>,
}

impl<'a> SchemaWalk<'a> {
    fn visit(&mut self, schema: &'a Value, value: &Value, path: &str) {
        let schema = self.resolved(schema);
        match value {
            Value::Object(fields) if schema[PRESERVE] != true => {
                let dot = if path.is_empty() { "" } else { "." };
                for (name, field) in fields {
                    let field_path = format!("{path}{dot}{name}");
                    match property(schema, name) {
                        Ok(Some(schema)) => self.visit(schema, field, &field_path),
                        Ok(None) => {}
                        Err(()) => self.unknown.push(error(field_path, field)),
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.visit(&schema["items"], item, &format!("{path}[{index}]"));
                }
            }
            _ => {}
        }
    }

    /// What a reference, or an option of something, stands for.
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        let variants = ["anyOf", "allOf", "oneOf"]
            .into_iter()
            .filter_map(|key| schema[key].as_array());
        let mut chosen = schema;
        for variant in variants.flatten() {
            if variant["type"] != "null" {
                chosen = variant;
                break;
            }
        }
        match chosen["$ref"]
            .as_str()
            .and_then(|name| name.rsplit('/').next())
        {
            Some(name) => &self.definitions[name],
            None => chosen,
        }
    }
}

/// The schema of a field; `Ok(None)` if any field is allowed, `Err` if there is none of this name.
fn property<'a>(schema: &'a Value, name: &str) -> Result<Option<&'a Value>, ()> {
    let any = &schema["additionalProperties"];
    match schema["properties"].as_object() {
        Some(properties) => {
            let mut properties = properties.iter();
            let found = properties.find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, schema)| Some(schema)).ok_or(())
        }
        None if any.is_object() => Ok(Some(any)),
        None => Ok(None),
    }
}
