//! Validation of a value against a schema, with the wording of a Kubernetes API server.

use serde_json::{Map, Value};

use super::{ListType, Schema, Type, formats};
use crate::kinds::status::FieldError;

/// Appends everything that is wrong with `value`.
pub fn validate(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema.nullable {
        return;
    }
    if !check_type(schema, value, path, errors) {
        return;
    }
    if !schema.allowed.is_empty() && !schema.allowed.contains(value) {
        errors.push(not_in_enum(schema, value, path));
    }
    match value {
        Value::String(text) => check_string(schema, text, path, errors),
        Value::Number(_) => check_number(schema, value, path, errors),
        Value::Array(items) => check_array(schema, items, path, errors),
        Value::Object(map) => check_object(schema, map, path, errors),
        Value::Null | Value::Bool(_) => {}
    }
    combined(schema, value, path, errors);
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_integral(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|f| f.fract() == 0.0)
}

fn check_type(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) -> bool {
    let fits = match schema.kind {
        _ if schema.int_or_string => {
            if value.is_string() || is_integral(value) {
                return true;
            }
            errors.push(wrong_type(path, value, "integer,string"));
            return false;
        }
        None => !value.is_null() || schema.preserve_unknown,
        Some(Type::Object) => value.is_object(),
        Some(Type::Array) => value.is_array(),
        Some(Type::String) => value.is_string(),
        Some(Type::Integer) => is_integral(value),
        Some(Type::Number) => value.is_number(),
        Some(Type::Boolean) => value.is_boolean(),
    };
    if !fits {
        errors.push(wrong_type(
            path,
            value,
            schema.kind.map_or("object", Type::name),
        ));
    }
    fits
}

fn wrong_type(path: &str, value: &Value, want: &str) -> FieldError {
    let found = type_name(value);
    FieldError::type_invalid(
        path,
        found,
        format!("{path} in body must be of type {want}: \"{found}\""),
    )
}

fn not_in_enum(schema: &Schema, value: &Value, path: &str) -> FieldError {
    let texts: Vec<String> = schema
        .allowed
        .iter()
        .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
        .collect();
    let refs: Vec<&str> = texts.iter().map(String::as_str).collect();
    FieldError::not_supported(path, value.clone(), &refs)
}

fn check_string(schema: &Schema, text: &str, path: &str, errors: &mut Vec<FieldError>) {
    let length = text.chars().count() as u64;
    if let Some(max) = schema.max_length
        && length > max
    {
        errors.push(FieldError::too_long(
            path,
            usize::try_from(max).unwrap_or(usize::MAX),
        ));
    }
    if let Some(min) = schema.min_length
        && length < min
    {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{path} in body should be at least {min} chars long"),
        ));
    }
    if let Some(pattern) = &schema.pattern
        && !pattern.is_match(text)
    {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{path} in body should match '{}'", pattern.as_str()),
        ));
    }
    if let Some(format) = &schema.format
        && !schema.int_or_string
        && !formats::matches(format, text)
    {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{path} in body must be of type {format}: \"{text}\""),
        ));
    }
}

fn check_number(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(n) = value.as_f64() else { return };
    let mut bad = |why: String| {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            format!("{path} in body {why}"),
        ));
    };
    if let Some((min, exclusive)) = schema.minimum {
        if exclusive && n <= min {
            bad(format!("should be greater than {min}"));
        } else if n < min {
            bad(format!("should be greater than or equal to {min}"));
        }
    }
    if let Some((max, exclusive)) = schema.maximum {
        if exclusive && n >= max {
            bad(format!("should be less than {max}"));
        } else if n > max {
            bad(format!("should be less than or equal to {max}"));
        }
    }
    if let Some(step) = schema.multiple_of
        && step > 0.0
        && (n / step).fract() != 0.0
    {
        bad(format!("should be a multiple of {step}"));
    }
    let fits = match schema.format.as_deref() {
        Some("int32") => n >= f64::from(i32::MIN) && n <= f64::from(i32::MAX),
        Some("int64") => value.is_i64() || (value.is_f64() && n.abs() < 9.2e18),
        _ => true,
    };
    if !fits && schema.kind == Some(Type::Integer) {
        let format = schema.format.as_deref().unwrap_or_default();
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            format!("Checked value must be integer with format {format}"),
        ));
    }
}

fn check_array(schema: &Schema, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    let count = items.len() as u64;
    if let Some(max) = schema.max_items
        && count > max
    {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(path, items.len(), max));
    }
    if let Some(min) = schema.min_items
        && count < min
    {
        errors.push(FieldError::invalid(
            path,
            count,
            format!("{path} in body should have at least {min} items"),
        ));
    }
    if let Some(inner) = &schema.items {
        for (i, item) in items.iter().enumerate() {
            validate(inner, item, &format!("{path}[{i}]"), errors);
        }
    }
    let mut seen = std::collections::HashSet::new();
    match &schema.list_type {
        ListType::Atomic => {
            if schema.unique_items && !items.iter().all(|v| seen.insert(v.to_string())) {
                errors.push(FieldError::invalid(
                    path,
                    Value::from(items.to_vec()),
                    format!("{path} in body shouldn't contain duplicates"),
                ));
            }
        }
        ListType::Set => {
            for (i, item) in items.iter().enumerate() {
                if !seen.insert(item.to_string()) {
                    errors.push(FieldError::duplicate(format!("{path}[{i}]"), item.clone()));
                }
            }
        }
        ListType::Map(keys) => {
            for (i, item) in items.iter().enumerate() {
                let id: Map<String, Value> = keys
                    .iter()
                    .filter_map(|k| Some((k.clone(), item.get(k)?.clone())))
                    .collect();
                for key in keys.iter().filter(|k| !id.contains_key(*k)) {
                    let known = schema
                        .items
                        .as_ref()
                        .is_some_and(|s| s.required.contains(key));
                    if item.is_object() && !known {
                        errors.push(FieldError::required(format!("{path}[{i}].{key}"), ""));
                    }
                }
                let id = Value::Object(id);
                if !seen.insert(id.to_string()) {
                    errors.push(FieldError::duplicate(format!("{path}[{i}]"), id));
                }
            }
        }
    }
}

fn child(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn check_object(
    schema: &Schema,
    map: &Map<String, Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    for key in &schema.required {
        if !map.contains_key(key) {
            errors.push(FieldError::required(child(path, key), ""));
        }
    }
    if schema.embedded {
        for key in ["apiVersion", "kind"] {
            if map
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or("")
                .is_empty()
            {
                errors.push(FieldError::required(child(path, key), "must not be empty"));
            }
        }
    }
    let count = map.len() as u64;
    if let Some(min) = schema.min_properties
        && count < min
    {
        errors.push(FieldError::invalid(
            path,
            count,
            format!("{path} in body should have at least {min} properties"),
        ));
    }
    if let Some(max) = schema.max_properties
        && count > max
    {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(path, map.len(), max));
    }
    for (key, v) in map {
        if let Some(inner) = schema.properties.get(key).or(schema.additional.as_deref()) {
            validate(inner, v, &child(path, key), errors);
        }
    }
}

fn passes(schema: &Schema, value: &Value, path: &str) -> bool {
    let mut errors = Vec::new();
    validate_untyped(schema, value, path, &mut errors);
    errors.is_empty()
}

/// Schemas inside `anyOf` and friends need not have a type; null then is not an error by itself.
fn validate_untyped(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema.kind.is_none() {
        return;
    }
    validate(schema, value, path, errors);
}

fn combined(schema: &Schema, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for inner in &schema.all_of {
        validate_untyped(inner, value, path, errors);
    }
    // The two branches of an int-or-string are already covered by the type check.
    if !schema.any_of.is_empty()
        && !schema.int_or_string
        && !schema.any_of.iter().any(|s| passes(s, value, path))
    {
        errors.push(FieldError::invalid(
            path,
            "",
            format!("\"{path}\" must validate at least one schema (anyOf)"),
        ));
    }
    if !schema.one_of.is_empty() {
        let valid = schema
            .one_of
            .iter()
            .filter(|s| passes(s, value, path))
            .count();
        if valid != 1 {
            let found = if valid == 0 {
                "none".to_owned()
            } else {
                valid.to_string()
            };
            errors.push(FieldError::invalid(
                path,
                "",
                format!(
                    "\"{path}\" must validate one and only one schema (oneOf). Found {found} valid"
                ),
            ));
        }
    }
    if let Some(inner) = &schema.not
        && passes(inner, value, path)
    {
        errors.push(FieldError::invalid(
            path,
            "",
            format!("\"{path}\" must not validate the schema (not)"),
        ));
    }
}
