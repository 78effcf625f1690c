//! Unknown fields of the ConfigMap sections, most often misspelled ones.

use super::FieldError;
use serde_json::Value;
use std::sync::OnceLock;

/// Schema key that allows any field below it.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Returns an error for each field of `value` that the schema of section `key` does not have, except the
/// names in `others`. `path` is the path of `value`. Names are compared without regard to case, as Go does.
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
            walk.collect_unknown(root, &Value::Object(own.collect()), path);
        }
        _ => walk.collect_unknown(root, value, path),
    }
    walk.unknown
}

/// Returns an error for each member of `value` that is not in `known`.
pub(super) fn members(value: &Value, known: &[&str]) -> Vec<FieldError> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| !known.iter().any(|k| k.eq_ignore_ascii_case(name)))
        .map(|(name, value)| unknown_field_error(name.clone(), value))
        .collect()
}

fn unknown_field_error(field: String, value: &Value) -> FieldError {
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
    /// Adds an error for each field of `value`, which is at `path`, that `schema` does not declare.
    fn collect_unknown(&mut self, schema: &'a Value, value: &Value, path: &str) {
        let schema = self.resolved(schema);
        match value {
            Value::Object(fields) if schema[PRESERVE] != true => {
                let dot = if path.is_empty() { "" } else { "." };
                for (name, field) in fields {
                    let field_path = format!("{path}{dot}{name}");
                    match property(schema, name) {
                        Ok(Some(schema)) => self.collect_unknown(schema, field, &field_path),
                        Ok(None) => {}
                        Err(()) => self.unknown.push(unknown_field_error(field_path, field)),
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.collect_unknown(&schema["items"], item, &format!("{path}[{index}]"));
                }
            }
            _ => {}
        }
    }

    /// Resolves a schema that is a reference or the schema of an optional value.
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

/// Returns the schema of the field `name`. `Ok(None)` means that any value is allowed, `Err` that there is no
/// such field.
fn property<'a>(schema: &'a Value, name: &str) -> Result<Option<&'a Value>, ()> {
    let any = &schema["additionalProperties"];
    match schema["properties"].as_object() {
        Some(properties) => {
            let mut properties = properties.iter();
            let member = properties.find(|(key, _)| key.eq_ignore_ascii_case(name));
            member.map(|(_, schema)| Some(schema)).ok_or(())
        }
        None if any.is_object() => Ok(Some(any)),
        None => Ok(None),
    }
}
