//! Traversals of JSON objects: decoding, pruning, defaulting.

use serde_json::{Map, Value};

use super::{Members, Schema, SchemaAlternative, Type};
use crate::quantity;

/// Returns Go's name of a JSON value's kind, for decoding errors.
fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns Go's name of a built-in type.
fn go_name(schema: &Schema) -> String {
    let name = match schema.kind {
        Type::String => "string",
        Type::Boolean => "bool",
        Type::Int32 => "int32",
        Type::Integer | Type::Duration => "int64",
        Type::Number => "float64",
        Type::Bytes => "[]uint8",
        Type::Quantity => "resource.Quantity",
        Type::IntOrString => "intstr.IntOrString",
        Type::Time | Type::MicroTime => "v1.Time",
        Type::WrappedStrings => "[]string",
        Type::Array => return format!("[]{}", go_name(schema.element())),
        Type::Raw | Type::Any | Type::FieldsV1 | Type::Object | Type::SchemaOr(_) => {
            match (schema.named(), &schema.additional) {
                (Some(named), _) => named.short_name(),
                (None, Some(inner)) => return format!("map[string]{}", go_name(inner)),
                (None, None) => "object",
            }
        }
    };
    name.to_owned()
}

fn mismatch(root: &str, path: &[&str], value: &Value, schema: &Schema) -> String {
    format!(
        "json: cannot unmarshal {} into Go struct field {root}.{} of type {}",
        json_kind(value),
        path.join("."),
        go_name(schema)
    )
}

impl Schema {
    /// Checks that every known field of an object of a built-in type has a JSON type that its Go type can be
    /// decoded from.
    pub fn check_types(&self, object: &Value) -> Result<(), String> {
        let name = self.named().map_or("", |t| t.name);
        let name = name.rsplit_once('.').map_or(name, |(_, n)| n);
        check(name, self, object, &mut Vec::new())
    }
}

fn check<'v>(
    root: &str,
    schema: &Schema,
    value: &'v Value,
    path: &mut Vec<&'v str>,
) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    let fits = match schema.kind {
        Type::String | Type::Bytes => value.is_string(),
        Type::Boolean => value.is_boolean(),
        Type::Int32 => {
            if let Some(n) = value.as_number()
                && n.as_i64().is_none_or(|n| i32::try_from(n).is_err())
            {
                return Err(number_mismatch(root, path, n, "int32"));
            }
            value.is_number()
        }
        Type::Integer => {
            if let Some(n) = value.as_number()
                && n.as_i64().is_none()
            {
                return Err(number_mismatch(root, path, n, "int64"));
            }
            value.is_number()
        }
        Type::Duration => value.is_number() || value.is_string(),
        Type::Number => value.is_number(),
        Type::Quantity => return check_quantity(value, path),
        Type::IntOrString => value.is_string() || value.as_i64().is_some(),
        Type::Time | Type::MicroTime => match value {
            Value::String(s) if s.parse::<jiff::Timestamp>().is_ok() => true,
            Value::String(s) => {
                return Err(format!(
                    "parsing time {} in field {}: not an RFC 3339 timestamp",
                    crate::status::quoted(s),
                    path.join(".")
                ));
            }
            _ => false,
        },
        Type::Raw | Type::FieldsV1 => value.is_object(),
        Type::Any => true,
        Type::WrappedStrings => match value {
            Value::Array(items) => items.iter().all(Value::is_string),
            _ => false,
        },
        Type::SchemaOr(SchemaAlternative::Bool) if value.is_boolean() => true,
        Type::SchemaOr(SchemaAlternative::Schemas | SchemaAlternative::Strings)
            if value.is_array() =>
        {
            true
        }
        Type::Array => match value {
            Value::Array(items) => {
                for item in items {
                    check(root, schema.element(), item, path)?;
                }
                true
            }
            _ => false,
        },
        Type::Object | Type::SchemaOr(_) => match value {
            Value::Object(map) => {
                for (key, v) in map {
                    if let Some(inner) = schema.allowed_member(key) {
                        path.push(key);
                        check(root, inner, v, path)?;
                        path.pop();
                    }
                }
                true
            }
            _ => false,
        },
    };
    if fits {
        Ok(())
    } else {
        Err(mismatch(root, path, value, schema))
    }
}

fn number_mismatch(root: &str, path: &[&str], n: &serde_json::Number, ty: &str) -> String {
    format!(
        "json: cannot unmarshal number {n} into Go struct field {root}.{} of type {ty}",
        path.join(".")
    )
}

fn check_quantity(value: &Value, path: &[&str]) -> Result<(), String> {
    match quantity::parse(value) {
        Some(_) => Ok(()),
        None => Err(format!(
            "quantities must match the regular expression '{}': field {} has value {value}",
            quantity::PATTERN,
            path.join(".")
        )),
    }
}

/// A path into an object, as a linked list on the stack: it is only formatted when it is reported.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl std::fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Self::Root, key) => f.write_str(key),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Item(parent, item) => write!(f, "{parent}[{item}]"),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> Self {
        path.to_string()
    }
}

impl Schema {
    /// Adds the paths of the undeclared fields that [`Schema::prune`] removes, at most the first 100.
    pub fn unknown_fields(&self, object: &Value, out: &mut Vec<String>) {
        unknown(self, object, &Path::Root, out);
    }

    /// Removes undeclared fields; in built-in types also nulls and empty values that Go omits.
    pub fn prune(&self, value: &mut Value) {
        match value {
            Value::Object(map) => self.prune_map(map),
            Value::Array(items) => {
                if let Some(inner) = &self.items {
                    items.iter_mut().for_each(|item| inner.prune(item));
                }
            }
            _ => {}
        }
    }

    /// Prunes the members of an object, as [`Schema::prune`] describes.
    fn prune_map(&self, map: &mut Map<String, Value>) {
        let is_builtin_type = matches!(self.members, Members::Named(_));
        map.retain(|key, v| {
            let Some(inner) = self.allowed_member(key) else {
                return self.is_open();
            };
            inner.prune(v);
            let is_removed = if v.is_null() {
                is_builtin_type || (self.typed && inner.kind != Type::Any)
            } else {
                is_builtin_type && !inner.written && inner.is_omitted(v)
            };
            !is_removed
        });
    }

    /// Returns true if Go's `omitempty` omits the value. Pointers to empty values are not omitted.
    fn is_omitted(&self, value: &Value) -> bool {
        match value {
            Value::Array(a) => a.is_empty(),
            Value::Object(m) => m.is_empty() && self.additional.is_some(),
            Value::String(s) => !self.pointer && s.is_empty(),
            Value::Bool(b) => !self.pointer && !b,
            Value::Number(n) => {
                !self.pointer
                    && n.as_f64() == Some(0.0)
                    && !matches!(self.kind, Type::Quantity | Type::IntOrString)
            }
            Value::Null => true,
        }
    }

    /// Converts the quantities and timestamps of a built-in type to the form that a typed server writes.
    pub fn canonicalize(&self, value: &mut Value) {
        match (self.kind, &mut *value) {
            (Type::Quantity, v) => {
                if let Some(text) = quantity::canonical(v)
                    && v.as_str() != Some(&text)
                {
                    *v = text.into();
                }
            }
            (Type::Time, Value::String(s)) => rewrite_time(s, 0),
            (Type::MicroTime, Value::String(s)) => rewrite_time(s, 6),
            (_, Value::Array(items)) => {
                if let Some(inner) = &self.items {
                    items.iter_mut().for_each(|item| inner.canonicalize(item));
                }
            }
            (_, Value::Object(map)) => {
                for (key, v) in map.iter_mut() {
                    if let Some(inner) = self.allowed_member(key) {
                        inner.canonicalize(v);
                    }
                }
            }
            _ => {}
        }
    }

    /// Sets the defaults of a custom resource's schema. A null in a field that is not nullable counts as
    /// absent.
    pub fn apply_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, inner) in self.properties() {
                    if map.get(key).is_some_and(Value::is_null) && !inner.nullable {
                        map.remove(key);
                    }
                    if !map.contains_key(key)
                        && let Some(default) = &inner.default
                    {
                        map.insert(key.clone(), Value::clone(default));
                    }
                    if let Some(v) = map.get_mut(key) {
                        inner.apply_defaults(v);
                    }
                }
                let Some(inner) = &self.additional else {
                    return;
                };
                for (key, v) in map.iter_mut() {
                    if self.properties().contains_key(key) {
                        continue;
                    }
                    if v.is_null()
                        && !inner.nullable
                        && let Some(default) = &inner.default
                    {
                        *v = Value::clone(default);
                    }
                    inner.apply_defaults(v);
                }
            }
            Value::Array(items) => {
                if let Some(inner) = &self.items {
                    items.iter_mut().for_each(|item| inner.apply_defaults(item));
                }
            }
            _ => {}
        }
    }
}

/// Maximum number of unknown fields that are listed: kube-apiserver's limit of strict decoding errors.
pub(crate) const MAX_UNKNOWN: usize = 100;
/// Maximum total size of the listed paths in bytes: a long key is part of every path below it.
const MAX_UNKNOWN_BYTES: usize = 1024 * 1024;

fn unknown(schema: &Schema, value: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    let listed = |out: &[String]| {
        out.len() >= MAX_UNKNOWN || out.iter().map(String::len).sum::<usize>() > MAX_UNKNOWN_BYTES
    };
    match value {
        Value::Object(map) => {
            for (key, v) in map {
                let child = Path::Key(path, key);
                match schema.allowed_member(key) {
                    Some(inner) => unknown(inner, v, &child, out),
                    None if schema.is_open() => {}
                    None if listed(out) => return,
                    None => out.push(child.to_string()),
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for (i, item) in items.iter().enumerate() {
                    unknown(inner, item, &Path::Item(path, i), out);
                }
            }
        }
        _ => {}
    }
}

fn rewrite_time(text: &mut String, digits: u8) {
    // Most timestamps already have this form: `2026-01-02T03:04:05Z`.
    if digits == 0 && text.len() == 20 && text.ends_with('Z') {
        return;
    }
    if let Ok(t) = text.parse::<jiff::Timestamp>() {
        *text = quantity::format_time(t, digits);
    }
}
