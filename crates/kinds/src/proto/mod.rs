//! Conversion between JSON and Kubernetes protobuf, driven by the fact table. kubectl's typed commands and Go
//! components send protobuf without a fallback to JSON; some clients accept nothing else.

mod encode;
mod wire;

use base64::Engine as _;
use serde_json::{Map, Value};

use super::builtin;
use super::meta;
use super::quantity::format_time;
use super::schema::types::{self, BuiltinType};
use super::schema::{Schema, SchemaAlternative, Type};
pub(crate) use encode::{delimited, integer, tag};
pub use encode::{encode, encode_event};
use wire::{Payload, Reader};

/// First bytes of every Kubernetes protobuf body.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// Deepest nesting of messages; deeper ones are refused, as they would exhaust the stack.
const MAX_DEPTH: usize = 48;

/// A body that cannot be decoded or encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// The wire format or a value is invalid.
    #[error("protobuf body is malformed: {0}")]
    Malformed(String),
    /// The kind is unknown; custom resources are JSON only.
    #[error("no protobuf form of {kind:?} in version {api_version:?}")]
    UnknownKind {
        /// `apiVersion` of the body.
        api_version: String,
        /// `kind` of the body.
        kind: String,
    },
}

impl From<ProtoError> for super::ApiError {
    fn from(e: ProtoError) -> Self {
        match e {
            ProtoError::Malformed(_) => Self::bad_request(e.to_string()),
            ProtoError::UnknownKind { .. } => {
                Self::unsupported_media_type(&["application/json", "application/yaml"])
            }
        }
    }
}

type Result<T> = std::result::Result<T, ProtoError>;

fn malformed<T>(detail: impl Into<String>) -> Result<T> {
    Err(ProtoError::Malformed(detail.into()))
}

/// Decodes a body (with envelope) to a JSON object.
///
/// # Errors
/// A [`ProtoError`].
pub fn decode(body: &[u8]) -> Result<Value> {
    let Some(envelope) = body.strip_prefix(&MAGIC) else {
        return malformed("the envelope magic is missing");
    };
    let (mut api_version, mut kind) = (String::new(), String::new());
    let (mut raw, mut content_type): (&[u8], &[u8]) = (&[], &[]);
    let mut reader = Reader::new(envelope);
    while let Some((number, payload)) = reader.next()? {
        match (number, payload) {
            (1, Payload::Bytes(b)) => (api_version, kind) = type_meta(b)?,
            (2, Payload::Bytes(b)) => raw = b,
            (4, Payload::Bytes(b)) => content_type = b,
            _ => {}
        }
    }
    if content_type == b"application/json" {
        return serde_json::from_slice(raw).or_else(|e| malformed(e.to_string()));
    }
    let Some(named) = type_of(&api_version, &kind) else {
        return Err(ProtoError::UnknownKind { api_version, kind });
    };
    let mut object = Map::new();
    read_struct(named, raw, &mut object, 0)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

fn type_meta(bytes: &[u8]) -> Result<(String, String)> {
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        if let Payload::Bytes(b) = payload {
            match number {
                1 => api_version = text(b)?,
                2 => kind = text(b)?,
                _ => {}
            }
        }
    }
    Ok((api_version, kind))
}

/// Returns the type of a body with this version and kind.
fn type_of(api_version: &str, kind: &str) -> Option<&'static BuiltinType> {
    let (group, version) = meta::split_api_version(api_version);
    // These two are accepted under any group version.
    match kind {
        "DeleteOptions" => return types::find("meta/v1.DeleteOptions"),
        "Status" => return types::find("meta/v1.Status"),
        _ => {}
    }
    let name = match (group, kind) {
        ("policy", "Eviction") => "policy/v1.Eviction",
        ("authentication.k8s.io", "TokenRequest") => "authentication/v1.TokenRequest",
        ("autoscaling", "Scale") => "autoscaling/v1.Scale",
        _ => builtin::type_name(group, version, kind)?,
    };
    types::find(name)
}

fn text(bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(s) => Ok(s.to_owned()),
        Err(_) => malformed("a string is not UTF-8"),
    }
}

fn read_struct(
    named: &BuiltinType,
    bytes: &[u8],
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return malformed("messages are nested too deeply");
    }
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        let field = named.wire.iter().find(|f| f.number == number);
        let Some(field) = field.filter(|f| f.number != 0) else {
            continue;
        };
        if let Some(inner) = field.inline {
            if let Payload::Bytes(b) = payload {
                read_struct(types::get(inner), b, out, depth + 1)?;
            }
        } else if let Some(schema) = named.field(field.json) {
            read_field(field.json, schema, payload, out, depth)?;
        }
    }
    Ok(())
}

/// Reads one occurrence of a field into `out`: an element, a map entry or a value.
fn read_field(
    name: &str,
    field: &Schema,
    payload: Payload<'_>,
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<()> {
    match (&field.items, &field.additional) {
        (Some(inner), _) => {
            let slot = out.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(items) = slot else {
                return Ok(());
            };
            match (inner.kind, payload) {
                // Packed numbers.
                (Type::Int32 | Type::Integer, Payload::Bytes(b)) => {
                    let mut reader = Reader::new(b);
                    while let Some(n) = reader.packed()? {
                        items.push((n as i64).into());
                    }
                }
                _ => items.push(read_value(inner, name, payload, depth)?),
            }
        }
        (None, Some(inner)) => {
            let Payload::Bytes(entry) = payload else {
                return malformed(format!("{name} is not a map"));
            };
            let (mut key, mut value) = (String::new(), None);
            let mut reader = Reader::new(entry);
            while let Some((number, payload)) = reader.next()? {
                match (number, payload) {
                    (1, Payload::Bytes(b)) => key = text(b)?,
                    (2, p) => value = Some(read_value(inner, name, p, depth)?),
                    _ => {}
                }
            }
            let value = match value {
                Some(v) => v,
                None => empty(inner),
            };
            let slot = out.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(map) = slot {
                map.insert(key, value);
            }
        }
        (None, None) => {
            let value = read_value(field, name, payload, depth)?;
            if keeps(field, &value) {
                out.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

/// Returns true if a field is kept: Go writes zero values of fields that JSON omits.
fn keeps(field: &Schema, value: &Value) -> bool {
    match value {
        Value::Null => false,
        _ if field.pointer || field.written => true,
        Value::String(s) => !s.is_empty(),
        Value::Bool(b) => *b,
        Value::Number(n) => field.kind == Type::IntOrString || n.as_f64() != Some(0.0),
        Value::Object(m) => !m.is_empty(),
        Value::Array(a) => !a.is_empty(),
    }
}

/// Returns the value of a map entry that was omitted because it is empty.
fn empty(schema: &Schema) -> Value {
    match schema.kind {
        Type::Object => Value::Object(Map::new()),
        Type::Array | Type::WrappedStrings => Value::Array(Vec::new()),
        Type::Boolean => false.into(),
        Type::Int32 | Type::Integer | Type::Number => 0.into(),
        Type::Quantity => "0".into(),
        _ => "".into(),
    }
}

/// Reads a value by the kind of its schema.
fn read_value(schema: &Schema, name: &str, payload: Payload<'_>, depth: usize) -> Result<Value> {
    let wrong = || malformed(format!("field {name} has the wrong wire type"));
    let bytes = match (schema.kind, payload) {
        (Type::Boolean, Payload::Varint(n)) => return Ok((n != 0).into()),
        (Type::Int32, Payload::Varint(n)) => return Ok(i64::from(n as i32).into()),
        (Type::Integer, Payload::Varint(n)) => return Ok((n as i64).into()),
        (Type::Number, Payload::Fixed64(n)) => {
            let f = f64::from_bits(n);
            return Ok(serde_json::Number::from_f64(f).map_or(Value::Null, Value::Number));
        }
        (Type::Boolean | Type::Int32 | Type::Integer | Type::Number, _) => return wrong(),
        (_, Payload::Bytes(b)) => b,
        _ => return wrong(),
    };
    Ok(match schema.kind {
        Type::String => text(bytes)?.into(),
        Type::Bytes => base64::engine::general_purpose::STANDARD
            .encode(bytes)
            .into(),
        Type::Quantity => match string_member(bytes)? {
            q if q.is_empty() => "0".into(),
            q => q.into(),
        },
        Type::IntOrString => int_or_string(bytes)?,
        Type::Time => timestamp(bytes, 0)?,
        Type::MicroTime => timestamp(bytes, 6)?,
        Type::Duration => format!("{}ns", varint_member(bytes, 1)?.unwrap_or(0)).into(),
        Type::Raw | Type::FieldsV1 | Type::Any => json_member(bytes)?,
        Type::WrappedStrings => {
            let mut items = Vec::new();
            let mut reader = Reader::new(bytes);
            while let Some((number, payload)) = reader.next()? {
                if let (1, Payload::Bytes(b)) = (number, payload) {
                    items.push(Value::from(text(b)?));
                }
            }
            Value::Array(items)
        }
        kind => match (kind, schema.named()) {
            (Type::Object, Some(named)) => {
                let mut map = Map::new();
                read_struct(named, bytes, &mut map, depth + 1)?;
                Value::Object(map)
            }
            (Type::SchemaOr(other), Some(named)) => schema_or(other, named, bytes, depth)?,
            // Lists of lists and maps of lists do not occur outside of wrappers.
            _ => return wrong(),
        },
    })
}

/// Decodes a schema of a definition, or the value that may stand in its place.
fn schema_or(
    other: SchemaAlternative,
    named: &BuiltinType,
    bytes: &[u8],
    depth: usize,
) -> Result<Value> {
    let schema = |bytes: &[u8]| -> Result<Value> {
        let mut map = Map::new();
        read_struct(named, bytes, &mut map, depth + 1)?;
        Ok(Value::Object(map))
    };
    let (mut found, mut list, mut allows) = (None, Vec::new(), false);
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        match (other, number, payload) {
            (SchemaAlternative::Bool, 1, Payload::Varint(n)) => allows = n != 0,
            (SchemaAlternative::Bool, 2, Payload::Bytes(b)) => found = Some(schema(b)?),
            (SchemaAlternative::Schemas | SchemaAlternative::Strings, 1, Payload::Bytes(b)) => {
                found = Some(schema(b)?);
            }
            (SchemaAlternative::Schemas, 2, Payload::Bytes(b)) => list.push(schema(b)?),
            (SchemaAlternative::Strings, 2, Payload::Bytes(b)) => list.push(text(b)?.into()),
            _ => {}
        }
    }
    Ok(match (found, other) {
        (Some(schema), _) => schema,
        (None, SchemaAlternative::Bool) => allows.into(),
        (None, _) => Value::Array(list),
    })
}

fn member(bytes: &[u8], wanted: u32) -> Result<Option<&[u8]>> {
    let mut matches = None;
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        if let (true, Payload::Bytes(b)) = (number == wanted, payload) {
            matches = Some(b);
        }
    }
    Ok(matches)
}

fn string_member(bytes: &[u8]) -> Result<String> {
    member(bytes, 1)?.map_or(Ok(String::new()), text)
}

fn varint_member(bytes: &[u8], wanted: u32) -> Result<Option<i64>> {
    let mut matches = None;
    let mut reader = Reader::new(bytes);
    while let Some((number, payload)) = reader.next()? {
        if let (true, Payload::Varint(n)) = (number == wanted, payload) {
            matches = Some(n as i64);
        }
    }
    Ok(matches)
}

fn json_member(bytes: &[u8]) -> Result<Value> {
    match member(bytes, 1)? {
        None | Some([]) => Ok(Value::Null),
        Some(raw) => match serde_json::from_slice(raw) {
            // The object that contains it must stay parseable.
            Ok(v) if koord_object::patch::measure(&v).1 > MAX_DEPTH => {
                malformed("embedded JSON is nested too deeply")
            }
            Ok(v) => Ok(v),
            Err(e) => malformed(e.to_string()),
        },
    }
}

fn int_or_string(bytes: &[u8]) -> Result<Value> {
    if varint_member(bytes, 1)?.unwrap_or(0) == 1 {
        return Ok(member(bytes, 3)?.map_or(Ok(String::new()), text)?.into());
    }
    Ok(varint_member(bytes, 2)?.unwrap_or(0).into())
}

/// Decodes a timestamp. An empty message is the zero time, which JSON shows as null.
fn timestamp(bytes: &[u8], digits: u8) -> Result<Value> {
    let (seconds, nanos) = (varint_member(bytes, 1)?, varint_member(bytes, 2)?);
    if seconds.is_none() && nanos.is_none() {
        return Ok(Value::Null);
    }
    let nanos = i32::try_from(nanos.unwrap_or(0)).unwrap_or(0);
    match jiff::Timestamp::new(seconds.unwrap_or(0), nanos) {
        Ok(t) => Ok(format_time(t, digits).into()),
        Err(e) => malformed(e.to_string()),
    }
}

#[cfg(test)]
mod tests;
