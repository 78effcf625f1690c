//! Pruning and defaulting.

use serde_json::{Map, Value};

use super::Schema;
use crate::kinds::facts;

/// Fields that every root or embedded object has whatever its schema says.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Whether `key` of an object is described by the schema (or always there).
fn is_object_field(schema: &Schema, root: bool, key: &str) -> bool {
    (root || schema.embedded) && OBJECT_FIELDS.contains(&key)
}

fn prune_metadata(value: &mut Value) {
    if let Some(shape) = facts::find("meta/v1.ObjectMeta") {
        facts::prune(shape, value);
    }
}

/// Removes fields the schema does not describe. `root` is true for a whole custom resource.
pub fn prune(schema: &Schema, root: bool, value: &mut Value) {
    match value {
        Value::Object(map) => prune_map(schema, root, map),
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for item in items {
                    prune(inner, false, item);
                }
            }
        }
        _ => {}
    }
}

fn prune_map(schema: &Schema, root: bool, map: &mut Map<String, Value>) {
    map.retain(|key, v| {
        if is_object_field(schema, root, key) {
            if key == "metadata" {
                prune_metadata(v);
            }
            return true;
        }
        match schema.properties.get(key).or(schema.additional.as_deref()) {
            Some(inner) => {
                prune(inner, false, v);
                true
            }
            None => schema.additional_any || schema.preserve_unknown,
        }
    });
}

/// Collects the paths that [`prune`] would remove.
pub fn unknown_fields(
    schema: &Schema,
    root: bool,
    value: &Value,
    path: &str,
    out: &mut Vec<String>,
) {
    match value {
        Value::Object(map) => {
            for (key, v) in map {
                let at = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                if is_object_field(schema, root, key) {
                    if key == "metadata"
                        && let Some(shape) = facts::find("meta/v1.ObjectMeta")
                    {
                        let mut inner = Vec::new();
                        facts::unknown_fields(shape, v, &mut inner);
                        out.extend(inner.into_iter().map(|p| format!("{at}.{p}")));
                    }
                    continue;
                }
                match schema.properties.get(key).or(schema.additional.as_deref()) {
                    Some(inner) => unknown_fields(inner, false, v, &at, out),
                    None if schema.additional_any || schema.preserve_unknown => {}
                    None => out.push(at),
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for (i, item) in items.iter().enumerate() {
                    unknown_fields(inner, false, item, &format!("{path}[{i}]"), out);
                }
            }
        }
        _ => {}
    }
}

/// Fills in defaults. A null in a field that is not nullable counts as absent.
pub fn apply_defaults(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in &schema.properties {
                if map.get(key).is_some_and(Value::is_null) && !inner.nullable {
                    map.remove(key);
                }
                if !map.contains_key(key)
                    && let Some(default) = &inner.default
                {
                    map.insert(key.clone(), default.clone());
                }
                if let Some(v) = map.get_mut(key) {
                    apply_defaults(inner, v);
                }
            }
            if let Some(inner) = &schema.additional {
                for (key, v) in map.iter_mut() {
                    if schema.properties.contains_key(key) {
                        continue;
                    }
                    if v.is_null()
                        && !inner.nullable
                        && let Some(default) = &inner.default
                    {
                        *v = default.clone();
                    }
                    apply_defaults(inner, v);
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for item in items {
                    apply_defaults(inner, item);
                }
            }
        }
        _ => {}
    }
}
