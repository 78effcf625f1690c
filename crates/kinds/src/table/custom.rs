//! Table columns of custom resources.

use jiff::Timestamp;
use serde_json::Value;

use super::{age, created, head};
use crate::meta;
use crate::resource::{Column, CustomVersion};

pub(super) fn columns(c: &CustomVersion) -> Vec<Value> {
    let mut out = vec![head("Name", "string", "", 0)];
    out.extend(c.columns.iter().map(|col| {
        let mut h = head(&col.name, &col.kind, &col.description, col.priority);
        h["format"] = col.format.as_str().into();
        h
    }));
    if c.columns.is_empty() {
        out.push(head("Age", "date", "", 0));
    }
    out
}

pub(super) fn cells(c: &CustomVersion, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut out = vec![meta::name(object).into()];
    out.extend(c.columns.iter().map(|col| cell(col, object, now)));
    if c.columns.is_empty() {
        out.push(created(object, now));
    }
    out
}

/// Returns a cell. A missing value is null, which kubectl prints as `<none>` or nothing depending on its
/// version.
fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let Some(value) = column.path.first(object).filter(|v| !v.is_null()) else {
        return Value::Null;
    };
    match column.kind.as_str() {
        "integer" => value
            .as_i64()
            .or_else(|| value.as_f64().map(|f| f as i64))
            .or_else(|| value.as_str().and_then(|s| s.parse().ok()))
            .map_or(Value::Null, Value::from),
        "number" => value
            .as_f64()
            .or_else(|| value.as_str().and_then(|s| s.parse().ok()))
            .map_or(Value::Null, Value::from),
        "boolean" => value.as_bool().map_or(Value::Null, Value::from),
        "date" => match value.as_str() {
            Some(text) => age(text, now).into(),
            None => Value::Null,
        },
        _ => {
            let matches = column.path.select(object);
            let texts: Vec<String> = matches
                .iter()
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                .collect();
            match texts.as_slice() {
                [one] => one.as_str().into(),
                many => many.join(" ").into(),
            }
        }
    }
}
