//! Compiles the JSON of `openAPIV3Schema`, and reports violations of the rules for structural schemas.

use regex::Regex;
use serde_json::{Map, Value};

use super::{ListType, Members, Rules, Schema, Type};
use crate::status::FieldError;

/// Deeper nesting is refused, to protect the stack.
const MAX_DEPTH: usize = 96;

/// Compiles the schema at `path`. A root schema must describe an object.
///
/// # Errors
/// All problems of the schema.
pub fn parse(value: &Value, path: &str) -> Result<Schema, Vec<FieldError>> {
    let mut parser = Parser { errors: Vec::new() };
    let mut schema = parser.node(value, path, true, 0);
    schema.object = true;
    if schema.kind != Type::Object {
        let kind = value.get("type").cloned().unwrap_or_else(|| "".into());
        parser.errors.push(if kind == "" {
            FieldError::required(format!("{path}.type"), "must not be empty at the root")
        } else {
            FieldError::invalid(format!("{path}.type"), kind, "must be object at the root")
        });
    }
    if parser.errors.is_empty() {
        Ok(schema)
    } else {
        Err(parser.errors)
    }
}

/// The keywords that become [`Rules`]; most schemas have none of them.
const RULES: [&str; 18] = [
    "format",
    "required",
    "enum",
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
];

struct Parser {
    errors: Vec<FieldError>,
}

impl Parser {
    /// Compiles a schema. With `typed`, a type is required here (not inside `anyOf` and the like).
    fn node(&mut self, value: &Value, path: &str, typed: bool, depth: usize) -> Schema {
        let Some(map) = value.as_object() else {
            self.errors.push(FieldError::invalid(
                path,
                value.clone(),
                "must be an object",
            ));
            return Schema::default();
        };
        if depth > MAX_DEPTH {
            self.errors
                .push(FieldError::invalid(path, "", "schema is nested too deeply"));
            return Schema::default();
        }
        if map.contains_key("$ref") {
            self.errors.push(FieldError::forbidden(
                format!("{path}.$ref"),
                "must not be set",
            ));
        }
        let mut s = Schema {
            kind: self.kind(map, path),
            nullable: flag(map, "nullable"),
            default: map.get("default").cloned().map(Box::new),
            preserve_unknown: flag(map, "x-kubernetes-preserve-unknown-fields"),
            object: flag(map, "x-kubernetes-embedded-resource"),
            atomic: text(map, "x-kubernetes-map-type").as_deref() == Some("atomic"),
            ..Schema::default()
        };
        let mut rules = Rules {
            format: text(map, "format"),
            required: strings(map.get("required")),
            allowed: map
                .get("enum")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            minimum: number(map, "minimum").map(|n| (n, flag(map, "exclusiveMinimum"))),
            maximum: number(map, "maximum").map(|n| (n, flag(map, "exclusiveMaximum"))),
            multiple_of: number(map, "multipleOf"),
            min_length: size(map, "minLength"),
            max_length: size(map, "maxLength"),
            pattern: self.pattern(map, path),
            min_items: size(map, "minItems"),
            max_items: size(map, "maxItems"),
            unique_items: flag(map, "uniqueItems"),
            min_properties: size(map, "minProperties"),
            max_properties: size(map, "maxProperties"),
            ..Rules::default()
        };
        self.structure(&mut s, map, path, typed, depth);
        for (key, list) in [
            ("allOf", &mut rules.all_of),
            ("anyOf", &mut rules.any_of),
            ("oneOf", &mut rules.one_of),
        ] {
            let members = map.get(key).and_then(Value::as_array);
            for (i, v) in members.into_iter().flatten().enumerate() {
                list.push(self.node(v, &format!("{path}.{key}[{i}]"), false, depth + 1));
            }
        }
        if let Some(v) = map.get("not").filter(|v| !v.is_null()) {
            rules.not = Some(self.node(v, &format!("{path}.not"), false, depth + 1));
        }
        if map.keys().any(|key| RULES.contains(&key.as_str())) {
            s.rules = Some(Box::new(rules));
        }
        s.list_type = self.list_type(map, path, &s);
        // The root has its own message.
        let inner = typed && depth > 0;
        if inner && s.kind == Type::Any && !s.preserve_unknown {
            self.errors.push(FieldError::required(
                format!("{path}.type"),
                "must not be empty for specified object fields",
            ));
        }
        s
    }

    /// Parses the members, values and elements of a schema.
    fn structure(
        &mut self,
        s: &mut Schema,
        map: &Map<String, Value>,
        path: &str,
        typed: bool,
        depth: usize,
    ) {
        if let Some(Value::Object(properties)) = map.get("properties") {
            let compiled = properties.iter().map(|(key, v)| {
                let child_path = format!("{path}.properties[{key}]");
                (key.clone(), self.node(v, &child_path, typed, depth + 1))
            });
            s.members = Members::Own(compiled.collect());
        }
        match map.get("additionalProperties") {
            Some(Value::Bool(any)) => s.additional_any = *any,
            Some(v @ Value::Object(_)) => {
                let child_path = format!("{path}.additionalProperties");
                s.additional = Some(Box::new(self.node(v, &child_path, typed, depth + 1)));
                if !s.properties().is_empty() && typed {
                    self.errors.push(FieldError::forbidden(
                        child_path,
                        "additionalProperties and properties are mutual exclusive",
                    ));
                }
            }
            _ => {}
        }
        match map.get("items") {
            Some(v @ Value::Object(_)) => {
                let child_path = format!("{path}.items");
                s.items = Some(Box::new(self.node(v, &child_path, typed, depth + 1)));
            }
            Some(Value::Array(_)) => self.errors.push(FieldError::forbidden(
                format!("{path}.items"),
                "items must be a schema object and not an array",
            )),
            _ => {
                if typed && s.kind == Type::Array && !s.preserve_unknown {
                    self.errors.push(FieldError::required(
                        format!("{path}.items"),
                        "must be specified",
                    ));
                }
            }
        }
    }

    fn kind(&mut self, map: &Map<String, Value>, path: &str) -> Type {
        if flag(map, "x-kubernetes-int-or-string") {
            return Type::IntOrString;
        }
        let text = text(map, "type").unwrap_or_default();
        for kind in [
            Type::Object,
            Type::Array,
            Type::String,
            Type::Integer,
            Type::Number,
            Type::Boolean,
        ] {
            if kind.name() == text {
                return kind;
            }
        }
        if !text.is_empty() {
            self.errors.push(FieldError::not_supported(
                format!("{path}.type"),
                text,
                &["array", "boolean", "integer", "number", "object", "string"],
            ));
        }
        Type::Any
    }

    fn pattern(&mut self, map: &Map<String, Value>, path: &str) -> Option<Regex> {
        let text = text(map, "pattern").filter(|t| !t.is_empty())?;
        match Regex::new(&text) {
            Ok(regex) => Some(regex),
            Err(e) => {
                let reason = e
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim()
                    .to_owned();
                self.errors.push(FieldError::invalid(
                    format!("{path}.pattern"),
                    text,
                    format!("must be a valid regular expression, but isn't: {reason}"),
                ));
                None
            }
        }
    }

    /// Parses the list type and its keys, and reports problems.
    fn list_type(&mut self, map: &Map<String, Value>, path: &str, s: &Schema) -> ListType {
        let Some(text) = text(map, "x-kubernetes-list-type") else {
            return ListType::Atomic;
        };
        let type_path = format!("{path}.x-kubernetes-list-type");
        if s.kind != Type::Array {
            self.errors.push(FieldError::invalid(
                type_path,
                text,
                "must be array if the list type is set",
            ));
            return ListType::Atomic;
        }
        match text.as_str() {
            "atomic" => ListType::Atomic,
            "set" => ListType::Set,
            "map" => {
                let keys = strings(map.get("x-kubernetes-list-map-keys"));
                if keys.is_empty() {
                    self.errors.push(FieldError::required(
                        format!("{path}.x-kubernetes-list-map-keys"),
                        "must not be empty if x-kubernetes-list-type is map",
                    ));
                }
                for key in &keys {
                    if s.items
                        .as_ref()
                        .is_some_and(|i| !i.properties().contains_key(key))
                    {
                        self.errors.push(FieldError::invalid(
                            format!("{path}.x-kubernetes-list-map-keys"),
                            key.as_str(),
                            "entries must all be names of item properties",
                        ));
                    }
                }
                ListType::Map(keys)
            }
            _ => {
                self.errors.push(FieldError::not_supported(
                    type_path,
                    text,
                    &["atomic", "map", "set"],
                ));
                ListType::Atomic
            }
        }
    }
}

fn text(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn flag(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn number(map: &Map<String, Value>, key: &str) -> Option<f64> {
    map.get(key).and_then(Value::as_f64)
}

fn size(map: &Map<String, Value>, key: &str) -> Option<u64> {
    map.get(key).and_then(Value::as_u64)
}

fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect()
}
