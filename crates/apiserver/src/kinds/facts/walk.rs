//! Walks over JSON objects of built-in types.

use serde_json::{Map, Value};

use super::{Field, Other, Shape, StructId, get};
use crate::kinds::quantity;

/// Go-like name of what a JSON value is, for decoding errors.
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

fn shape_name(shape: &Shape) -> String {
    match shape {
        Shape::Str => "string".to_owned(),
        Shape::Bool => "bool".to_owned(),
        Shape::Int32 => "int32".to_owned(),
        Shape::Int64 | Shape::Duration => "int64".to_owned(),
        Shape::Double => "float64".to_owned(),
        Shape::Bytes => "[]uint8".to_owned(),
        Shape::Quantity => "resource.Quantity".to_owned(),
        Shape::IntOrString => "intstr.IntOrString".to_owned(),
        Shape::Time | Shape::MicroTime => "v1.Time".to_owned(),
        Shape::Raw | Shape::Any | Shape::FieldsV1 => "object".to_owned(),
        Shape::WrappedStrings => "[]string".to_owned(),
        Shape::List(inner) => format!("[]{}", shape_name(inner)),
        Shape::Map(inner) => format!("map[string]{}", shape_name(inner)),
        Shape::Struct(id) | Shape::SchemaOr(_, id) => {
            let name = get(*id).name;
            name.rsplit_once('/').map_or(name, |(_, n)| n).to_owned()
        }
    }
}

/// Checks that every known field of `object` has a JSON type its Go type can be decoded from.
pub(in crate::kinds) fn check_types(id: StructId, object: &Value) -> Result<(), String> {
    let name = get(id).name;
    let name = name.rsplit_once('.').map_or(name, |(_, n)| n);
    check_struct(name, id, object, &mut Vec::new())
}

fn mismatch(root: &str, path: &[&str], value: &Value, shape: &Shape) -> String {
    format!(
        "json: cannot unmarshal {} into Go struct field {root}.{} of type {}",
        json_kind(value),
        path.join("."),
        shape_name(shape)
    )
}

fn check_struct<'v>(
    root: &str,
    id: StructId,
    value: &'v Value,
    path: &mut Vec<&'v str>,
) -> Result<(), String> {
    let map = match value {
        Value::Null => return Ok(()),
        Value::Object(map) => map,
        other => return Err(mismatch(root, path, other, &Shape::Struct(id))),
    };
    let this = get(id);
    for (key, v) in map {
        if let Some(field) = this.json_field(key) {
            path.push(key);
            check_shape(root, &field.shape, v, path)?;
            path.pop();
        }
    }
    Ok(())
}

fn check_shape<'v>(
    root: &str,
    shape: &Shape,
    value: &'v Value,
    path: &mut Vec<&'v str>,
) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    let fits = match shape {
        Shape::Str | Shape::Bytes => value.is_string(),
        Shape::Bool => value.is_boolean(),
        Shape::Int32 => {
            if let Some(n) = value.as_number()
                && n.as_i64().is_none_or(|n| i32::try_from(n).is_err())
            {
                return Err(number_mismatch(root, path, n, "int32"));
            }
            value.is_number()
        }
        Shape::Int64 | Shape::Duration => {
            if let (Shape::Int64, Some(n)) = (shape, value.as_number())
                && n.as_i64().is_none()
            {
                return Err(number_mismatch(root, path, n, "int64"));
            }
            value.is_number() || (*shape == Shape::Duration && value.is_string())
        }
        Shape::Double => value.is_number(),
        Shape::Quantity => return check_quantity(value, path),
        Shape::IntOrString => value.is_string() || value.as_i64().is_some(),
        Shape::Time | Shape::MicroTime => match value {
            Value::String(s) if s.parse::<jiff::Timestamp>().is_ok() => true,
            Value::String(s) => {
                return Err(format!(
                    "parsing time {} in field {}: not an RFC 3339 timestamp",
                    crate::kinds::status::quoted(s),
                    path.join(".")
                ));
            }
            _ => false,
        },
        Shape::Raw | Shape::FieldsV1 => value.is_object(),
        Shape::Any => true,
        Shape::WrappedStrings => match value {
            Value::Array(items) => items.iter().all(Value::is_string),
            _ => false,
        },
        Shape::List(inner) => match value {
            Value::Array(items) => {
                for item in items {
                    check_shape(root, inner, item, path)?;
                }
                true
            }
            _ => false,
        },
        Shape::Map(inner) => match value {
            Value::Object(map) => {
                for (key, v) in map {
                    path.push(key);
                    check_shape(root, inner, v, path)?;
                    path.pop();
                }
                true
            }
            _ => false,
        },
        Shape::Struct(id) => return check_struct(root, *id, value, path),
        Shape::SchemaOr(other, id) => match (other, value) {
            (_, Value::Object(_)) => return check_struct(root, *id, value, path),
            (Other::Bool, value) => value.is_boolean(),
            (Other::Schemas | Other::Strings, value) => value.is_array(),
        },
    };
    if fits {
        Ok(())
    } else {
        Err(mismatch(root, path, value, shape))
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

/// A path into an object, as a list on the stack: written out only when it is reported.
#[derive(Clone, Copy)]
enum Path<'a> {
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

/// Paths of the fields that the type does not have.
pub(in crate::kinds) fn unknown_fields(id: StructId, object: &Value, out: &mut Vec<String>) {
    unknown_struct(id, object, &Path::Root, out);
}

fn unknown_struct(id: StructId, value: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    let Value::Object(map) = value else { return };
    let this = get(id);
    for (key, v) in map {
        let at = Path::Key(path, key);
        match this.json_field(key) {
            Some(field) => unknown_shape(&field.shape, v, &at, out),
            None => out.push(at.to_string()),
        }
    }
}

fn unknown_shape(shape: &Shape, value: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    match (shape, value) {
        (Shape::Struct(id) | Shape::SchemaOr(_, id), _) => unknown_struct(*id, value, path, out),
        (Shape::List(inner), Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                unknown_shape(inner, item, &Path::Item(path, i), out);
            }
        }
        (Shape::Map(inner), Value::Object(map)) => {
            for (key, v) in map {
                unknown_shape(inner, v, &Path::Key(path, key), out);
            }
        }
        _ => {}
    }
}

/// Removes unknown fields, nulls and empty values that the type leaves out.
pub(in crate::kinds) fn prune(id: StructId, object: &mut Value) {
    if let Value::Object(map) = object {
        prune_struct(id, map);
    }
}

fn prune_struct(id: StructId, map: &mut Map<String, Value>) {
    let this = get(id);
    map.retain(|key, v| match this.json_field(key) {
        None => false,
        Some(field) => {
            prune_shape(&field.shape, v);
            let left_out = v.is_null() || (field.omit_empty && droppable(field, v));
            !left_out
        }
    });
}

/// What Go's `omitempty` leaves out. Pointers to empty values stay.
fn droppable(field: &Field, value: &Value) -> bool {
    match value {
        Value::Array(a) => a.is_empty(),
        Value::Object(m) => m.is_empty() && matches!(field.shape, Shape::Map(_)),
        Value::String(s) => !field.pointer && s.is_empty(),
        Value::Bool(b) => !field.pointer && !b,
        Value::Number(n) => {
            !field.pointer
                && n.as_f64() == Some(0.0)
                && !matches!(field.shape, Shape::Quantity | Shape::IntOrString)
        }
        Value::Null => true,
    }
}

fn prune_shape(shape: &Shape, value: &mut Value) {
    match (shape, value) {
        (Shape::Struct(id) | Shape::SchemaOr(_, id), Value::Object(map)) => prune_struct(*id, map),
        (Shape::List(inner), Value::Array(items)) => {
            for item in items {
                prune_shape(inner, item);
            }
        }
        (Shape::Map(inner), Value::Object(map)) => {
            map.retain(|_, v| {
                prune_shape(inner, v);
                !v.is_null() || **inner == Shape::Any
            });
        }
        _ => {}
    }
}

/// Brings quantities and timestamps to the form a typed server writes.
pub(in crate::kinds) fn canonicalize(id: StructId, object: &mut Value) {
    if let Value::Object(map) = object {
        canonical_struct(id, map);
    }
}

fn canonical_struct(id: StructId, map: &mut Map<String, Value>) {
    let this = get(id);
    for (key, v) in map.iter_mut() {
        if let Some(field) = this.json_field(key) {
            canonical_shape(&field.shape, v);
        }
    }
}

fn canonical_shape(shape: &Shape, value: &mut Value) {
    match (shape, &mut *value) {
        (Shape::Struct(id) | Shape::SchemaOr(_, id), Value::Object(map)) => {
            canonical_struct(*id, map);
        }
        (Shape::List(inner), Value::Array(items)) => {
            for item in items {
                canonical_shape(inner, item);
            }
        }
        (Shape::Map(inner), Value::Object(map)) => {
            for v in map.values_mut() {
                canonical_shape(inner, v);
            }
        }
        (Shape::Quantity, v) => {
            if let Some(text) = quantity::canonical(v)
                && v.as_str() != Some(&text)
            {
                *v = text.into();
            }
        }
        (Shape::Time, Value::String(s)) => rewrite_time(s, 0),
        (Shape::MicroTime, Value::String(s)) => rewrite_time(s, 6),
        _ => {}
    }
}

fn rewrite_time(text: &mut String, digits: u8) {
    // Most timestamps are ours already: `2026-01-02T03:04:05Z`.
    if digits == 0 && text.len() == 20 && text.ends_with('Z') {
        return;
    }
    if let Ok(t) = text.parse::<jiff::Timestamp>() {
        *text = crate::kinds::quantity::format_time(t, digits);
    }
}
