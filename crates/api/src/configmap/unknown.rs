//! Unknown fields of the ConfigMap sections, most often misspelled ones.

use super::FieldError;
use serde_json::Value;
use std::sync::OnceLock;

/// Schema key that allows any field below it.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Returns an error for each field of `value` that the schema of section `key` does not have, except the
/// names in `others`. `path` is the path of `value`. Names are compared without regard to case, as Go does.
pub(super) fn fields(key: &str, value: &Value, path: &str, others: &[&str]) -> Vec<FieldError> {
    let schemas = schemas();
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

fn schemas() -> &'static Value {
    static SCHEMAS: OnceLock<Value> = OnceLock::new();
    SCHEMAS.get_or_init(|| serde_json::from_str(include_str!("schemas.json")).unwrap_or_default())
}

/// Returns the names of the fields of section `key` at `path`, such as `clusterStrategy.beClass`; none if any name is
/// allowed there.
#[must_use]
pub fn field_names(key: &str, path: &str) -> Vec<String> {
    let inline = [
        super::keys::COLOCATION,
        super::keys::HOST_APPLICATION,
        super::keys::CPU_NORMALIZATION,
        super::keys::RESOURCE_AMPLIFICATION,
    ];
    let is_nested = !inline.contains(&key);
    let (cluster, nodes) = match is_nested {
        true => ("clusterStrategy", "nodeStrategies"),
        false => ("", "nodeConfigs"),
    };
    if is_nested && path.is_empty() {
        return vec![cluster.to_owned(), nodes.to_owned()];
    }
    let walk = SchemaWalk {
        definitions: &schemas()[key]["definitions"],
        unknown: Vec::new(),
    };
    let mut schema = walk.resolved(&schemas()[key]["root"]);
    let mut names = Vec::new();
    let parts = path.split(['.', '[']).filter(|part| !part.is_empty());
    for (at, part) in parts.enumerate() {
        let is_item = part.ends_with(']');
        if at == 0 && part == nodes {
            names = ["name", "nodeSelector", super::rollout::FIELD]
                .map(str::to_owned)
                .into();
        } else if !(at == 0 && part == cluster || at == 1 && is_item && !names.is_empty()) {
            names.clear();
            schema = match (is_item, property(schema, part)) {
                (true, _) => walk.resolved(&schema["items"]),
                (false, Ok(Some(schema))) => walk.resolved(schema),
                _ => return Vec::new(),
            };
        }
    }
    if path.is_empty() {
        names.push(nodes.to_owned());
    }
    let properties = schema["properties"].as_object().into_iter().flatten();
    names.extend(properties.map(|(name, _)| name.clone()));
    names
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configmap::keys;

    #[test]
    fn field_names_are_those_of_the_path() {
        for (key, path, expected, other) in [
            (keys::COLOCATION, "", "nodeConfigs", "clusterStrategy"),
            (keys::COLOCATION, "", "enable", "nodeSelector"),
            (
                keys::COLOCATION,
                "nodeConfigs[0]",
                "nodeSelector",
                "nodeConfigs",
            ),
            (keys::COLOCATION, "nodeConfigs[0]", "enable", "nodeConfigs"),
            (keys::RESOURCE_QOS, "", "nodeStrategies", "beClass"),
            (
                keys::RESOURCE_QOS,
                "clusterStrategy",
                "beClass",
                "nodeSelector",
            ),
            (
                keys::RESOURCE_QOS,
                "nodeStrategies[1].beClass",
                "cpuQOS",
                "beClass",
            ),
            (
                keys::RESOURCE_QOS,
                "clusterStrategy.beClass.cpuQOS",
                "groupIdentity",
                "cpuQOS",
            ),
            (
                keys::HOST_APPLICATION,
                "applications[0]",
                "cgroupPath",
                "applications",
            ),
        ] {
            let names = field_names(key, path);
            let has = |name: &str| names.iter().any(|it| it == name);
            assert!(has(expected) && !has(other), "{key} {path}: {names:?}");
        }
        assert_eq!(
            field_names(keys::RESOURCE_QOS, "clusterStrategy.none"),
            [""; 0]
        );
    }
}
