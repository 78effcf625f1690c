//! Encoding of JSON objects as Kubernetes protobuf, by the fact table. The bytes are those that Go writes:
//! fields in the order of their numbers, with zero values of fields that are not pointers.

use base64::Engine as _;
use koord_api::GoDuration;
use serde_json::{Map, Value};

use super::super::meta;
use super::super::schema::types::{self, BuiltinType, ProtoField};
use super::super::schema::{Schema, SchemaAlternative, Type};
use super::{MAGIC, ProtoError, Result, malformed, type_of};

/// Encodes an object or a list with its envelope.
///
/// # Errors
/// [`ProtoError::UnknownKind`] for kinds without a protobuf form, such as custom resources;
/// [`ProtoError::Malformed`] for a value that does not fit its field.
pub fn encode(object: &Value) -> Result<Vec<u8>> {
    let api_version = meta::str_at(object, &["apiVersion"]);
    let kind = meta::str_at(object, &["kind"]);
    let raw = body(api_version, kind, object)?;
    let mut type_meta = Vec::new();
    delimited(&mut type_meta, 1, api_version.as_bytes());
    delimited(&mut type_meta, 2, kind.as_bytes());
    let mut out = MAGIC.to_vec();
    delimited(&mut out, 1, &type_meta);
    delimited(&mut out, 2, &raw);
    // Content encoding and type: none, and protobuf.
    delimited(&mut out, 3, &[]);
    delimited(&mut out, 4, &[]);
    Ok(out)
}

/// Encodes an event of a watch: four bytes of length, big-endian, and a `WatchEvent`, which has no envelope
/// although its object has one.
///
/// # Errors
/// Like [`encode`].
pub fn encode_event(kind: &str, object: &Value) -> Result<Vec<u8>> {
    let mut raw = Vec::new();
    delimited(&mut raw, 1, &encode(object)?);
    let mut event = Vec::new();
    delimited(&mut event, 1, kind.as_bytes());
    delimited(&mut event, 2, &raw);
    let Ok(length) = u32::try_from(event.len()) else {
        return malformed(format!("an event has {} bytes", event.len()));
    };
    let mut out = length.to_be_bytes().to_vec();
    out.append(&mut event);
    Ok(out)
}

/// Encodes an object or a list of objects.
fn body(api_version: &str, kind: &str, object: &Value) -> Result<Vec<u8>> {
    let unknown = || ProtoError::UnknownKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    };
    if let Some(named) = type_of(api_version, kind) {
        return encode_struct(named, object, "");
    }
    if kind == "PartialObjectMetadata" {
        return partial(object);
    }
    let element = kind.strip_suffix("List").ok_or_else(unknown)?;
    let named = type_of(api_version, element);
    if named.is_none() && element != "PartialObjectMetadata" {
        return Err(unknown());
    }
    let mut out = Vec::new();
    let list = object.get("metadata").unwrap_or(&Value::Null);
    delimited(&mut out, 1, &encode_named("meta/v1.ListMeta", list)?);
    let items = object.get("items").and_then(Value::as_array);
    for item in items.into_iter().flatten() {
        let item = match named {
            Some(named) => encode_struct(named, item, "")?,
            None => partial(item)?,
        };
        delimited(&mut out, 2, &item);
    }
    Ok(out)
}

fn partial(object: &Value) -> Result<Vec<u8>> {
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    let mut out = Vec::new();
    delimited(&mut out, 1, &encode_named("meta/v1.ObjectMeta", metadata)?);
    Ok(out)
}

fn encode_named(name: &str, value: &Value) -> Result<Vec<u8>> {
    match types::find(name) {
        Some(named) => encode_struct(named, value, name),
        None => malformed(format!("there is no type {name}")),
    }
}

/// Encodes an object as the message of the Go struct `named`. Null is encoded as an object without members.
fn encode_struct(named: &BuiltinType, value: &Value, name: &str) -> Result<Vec<u8>> {
    let nothing = Map::new();
    let map = match value {
        Value::Object(map) => map,
        Value::Null => &nothing,
        _ => return unfit(name, value),
    };
    let mut wire: Vec<&ProtoField> = named.wire.iter().filter(|w| w.number > 0).collect();
    wire.sort_unstable_by_key(|w| w.number);
    let mut out = Vec::new();
    for field in wire {
        let number = field.number;
        if let Some(inner) = field.inline {
            delimited(
                &mut out,
                number,
                &encode_struct(types::get(inner), value, name)?,
            );
        } else if let Some(schema) = named.field(field.json) {
            match map.get(field.json).filter(|v| !v.is_null()) {
                Some(value) => put(&mut out, number, schema, value, field.json)?,
                None if schema.pointer => {}
                None => zero(&mut out, number, schema)?,
            }
        }
    }
    Ok(out)
}

/// Writes the zero value of an unset field that is not a pointer, as Go does.
fn zero(out: &mut Vec<u8>, number: u32, schema: &Schema) -> Result<()> {
    let zero = match schema.kind {
        Type::Boolean => false.into(),
        Type::Int32 | Type::Integer | Type::Number | Type::IntOrString => 0.into(),
        Type::Quantity => "0".into(),
        Type::Duration => "0s".into(),
        Type::Object if schema.named().is_some() => Value::Null,
        Type::String | Type::Time | Type::MicroTime | Type::Raw | Type::FieldsV1 | Type::Any => {
            delimited(out, number, &[]);
            return Ok(());
        }
        // Empty slices and maps are not written.
        Type::Object | Type::Array | Type::Bytes | Type::WrappedStrings | Type::SchemaOr(_) => {
            return Ok(());
        }
    };
    put(out, number, schema, &zero, "")
}

/// Appends a field; arrays are repeated fields and maps are repeated entries.
fn put(out: &mut Vec<u8>, number: u32, schema: &Schema, value: &Value, name: &str) -> Result<()> {
    match (schema.kind, value) {
        (Type::String, Value::String(s)) => delimited(out, number, s.as_bytes()),
        (Type::Boolean, Value::Bool(b)) => integer(out, number, i64::from(*b)),
        (Type::Int32 | Type::Integer, v) => match v.as_i64() {
            Some(n) => integer(out, number, n),
            None => return unfit(name, v),
        },
        (Type::Number, v) => match v.as_f64() {
            Some(f) => {
                tag(out, number, 1);
                out.extend(f.to_bits().to_le_bytes());
            }
            None => return unfit(name, v),
        },
        (Type::Bytes, Value::String(s)) => {
            match base64::engine::general_purpose::STANDARD.decode(s) {
                Ok(bytes) => delimited(out, number, &bytes),
                Err(_) => return unfit(name, value),
            }
        }
        (Type::Array, Value::Array(items)) => {
            for item in items {
                put(out, number, schema.element(), item, name)?;
            }
        }
        (Type::Object, Value::Object(map)) if schema.named().is_none() => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            for (key, value) in entries {
                let mut entry = Vec::new();
                delimited(&mut entry, 1, key.as_bytes());
                put(&mut entry, 2, schema.member(key), value, name)?;
                delimited(out, number, &entry);
            }
        }
        _ => delimited(out, number, &message(schema, value, name)?),
    }
    Ok(())
}

/// Encodes the types that are messages of their own.
fn message(schema: &Schema, value: &Value, name: &str) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match (schema.kind, schema.named(), value) {
        (Type::Object, Some(named), v) => return encode_struct(named, v, name),
        (Type::SchemaOr(other), Some(named), v) => schema_or(&mut out, other, named, v, name)?,
        (Type::Quantity, _, Value::String(s)) => delimited(&mut out, 1, s.as_bytes()),
        (Type::Quantity, _, Value::Number(n)) => delimited(&mut out, 1, n.to_string().as_bytes()),
        (Type::IntOrString, _, v) => {
            let text = v.as_str();
            let number = match (text, v.as_i64()) {
                (None, None) => return unfit(name, v),
                (_, number) => number.unwrap_or(0),
            };
            integer(&mut out, 1, i64::from(text.is_some()));
            integer(&mut out, 2, number);
            delimited(&mut out, 3, text.unwrap_or_default().as_bytes());
        }
        (Type::Time | Type::MicroTime, _, Value::String(s)) => {
            let Ok(time) = s.parse::<jiff::Timestamp>() else {
                return unfit(name, value);
            };
            integer(&mut out, 1, time.as_second());
            integer(&mut out, 2, i64::from(time.subsec_nanosecond()));
        }
        (Type::Duration, _, Value::String(s)) => match s.parse::<GoDuration>() {
            Ok(duration) => integer(&mut out, 1, duration.as_nanos()),
            Err(_) => return unfit(name, value),
        },
        (Type::Raw | Type::FieldsV1 | Type::Any, _, v) => {
            delimited(&mut out, 1, v.to_string().as_bytes());
        }
        (Type::WrappedStrings, _, Value::Array(items)) => strings(&mut out, 1, items, name)?,
        _ => return unfit(name, value),
    }
    Ok(out)
}

/// Encodes a schema of a definition, or the value that may stand in its place.
fn schema_or(
    out: &mut Vec<u8>,
    other: SchemaAlternative,
    named: &BuiltinType,
    value: &Value,
    name: &str,
) -> Result<()> {
    match (other, value) {
        (SchemaAlternative::Bool, Value::Bool(allows)) => integer(out, 1, i64::from(*allows)),
        (SchemaAlternative::Bool, schema) => {
            integer(out, 1, 1);
            delimited(out, 2, &encode_struct(named, schema, name)?);
        }
        (SchemaAlternative::Schemas, Value::Array(schemas)) => {
            for schema in schemas {
                delimited(out, 2, &encode_struct(named, schema, name)?);
            }
        }
        (SchemaAlternative::Strings, Value::Array(items)) => strings(out, 2, items, name)?,
        (SchemaAlternative::Schemas | SchemaAlternative::Strings, schema) => {
            delimited(out, 1, &encode_struct(named, schema, name)?);
        }
    }
    Ok(())
}

fn strings(out: &mut Vec<u8>, number: u32, items: &[Value], name: &str) -> Result<()> {
    for item in items {
        match item.as_str() {
            Some(text) => delimited(out, number, text.as_bytes()),
            None => return unfit(name, item),
        }
    }
    Ok(())
}

fn unfit<T>(name: &str, value: &Value) -> Result<T> {
    malformed(format!("field {name} cannot hold {value}"))
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n as u8) | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Writes the tag of a field with a wire type.
pub(crate) fn tag(out: &mut Vec<u8>, number: u32, wire: u64) {
    varint(out, u64::from(number) << 3 | wire);
}

/// Writes a field of text, bytes or a message.
pub(crate) fn delimited(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    tag(out, number, 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a field of a number or a boolean.
pub(crate) fn integer(out: &mut Vec<u8>, number: u32, n: i64) {
    tag(out, number, 0);
    varint(out, n as u64);
}
