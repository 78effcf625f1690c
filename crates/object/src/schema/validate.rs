//! Validates a value against a schema, with the messages of a Kubernetes API server.

use serde_json::{Map, Value};

use super::walk::Path;
use super::{ListType, Rules, Schema, Type, formats};
use crate::status::FieldError;

impl Schema {
    /// Appends all errors of the `value` at `path`, by the schema of a custom resource.
    pub fn validate(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let path = match path {
            "" => Path::Root,
            path => Path::Key(&Path::Root, path),
        };
        validate(self, value, path, errors);
    }
}

fn validate(schema: &Schema, value: &Value, path: Path<'_>, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema.nullable {
        return;
    }
    if !check_type(schema, value, path, errors) {
        return;
    }
    let rules = schema.rules();
    if !rules.allowed.is_empty() && !rules.allowed.contains(value) {
        errors.push(not_in_enum(rules, value, path));
    }
    match value {
        Value::String(text) => check_string(schema, text, path, errors),
        Value::Number(_) => check_number(schema, value, path, errors),
        Value::Array(items) => check_array(schema, items, path, errors),
        Value::Object(map) => check_object(schema, map, path, errors),
        Value::Null | Value::Bool(_) => {}
    }
    validate_combinations(schema, value, path, errors);
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

fn check_type(
    schema: &Schema,
    value: &Value,
    path: Path<'_>,
    errors: &mut Vec<FieldError>,
) -> bool {
    let fits = match schema.kind {
        Type::IntOrString => value.is_string() || is_integral(value),
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer => is_integral(value),
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
        // The other types do not occur in custom resources.
        _ => !value.is_null() || schema.preserve_unknown,
    };
    if !fits {
        let want = match schema.kind {
            Type::IntOrString => "integer,string",
            kind => kind.name(),
        };
        errors.push(wrong_type(path, value, want));
    }
    fits
}

fn wrong_type(path: Path<'_>, value: &Value, want: &str) -> FieldError {
    let actual = type_name(value);
    FieldError::type_invalid(
        path,
        actual,
        format!("{path} in body must be of type {want}: \"{actual}\""),
    )
}

fn not_in_enum(rules: &Rules, value: &Value, path: Path<'_>) -> FieldError {
    let texts: Vec<String> = rules
        .allowed
        .iter()
        .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
        .collect();
    let refs: Vec<&str> = texts.iter().map(String::as_str).collect();
    FieldError::not_supported(path, value.clone(), &refs)
}

/// Checks the length, pattern and format of a string.
fn check_string(schema: &Schema, text: &str, path: Path<'_>, errors: &mut Vec<FieldError>) {
    let rules = schema.rules();
    let length = text.chars().count() as u64;
    if let Some(max) = rules.max_length
        && length > max
    {
        errors.push(FieldError::too_long(
            path,
            usize::try_from(max).unwrap_or(usize::MAX),
        ));
    }
    if let Some(min) = rules.min_length
        && length < min
    {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{path} in body should be at least {min} chars long"),
        ));
    }
    if let Some(pattern) = &rules.pattern
        && !pattern.is_match(text)
    {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{path} in body should match '{}'", pattern.as_str()),
        ));
    }
    if let Some(format) = &rules.format
        && schema.kind != Type::IntOrString
        && !formats::matches(format, text)
    {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{path} in body must be of type {format}: \"{text}\""),
        ));
    }
}

/// Checks the bounds of a number.
fn check_number(schema: &Schema, value: &Value, path: Path<'_>, errors: &mut Vec<FieldError>) {
    let rules = schema.rules();
    let Some(n) = value.as_f64() else { return };
    let mut report = |reason: String| {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            format!("{path} in body {reason}"),
        ));
    };
    if let Some((min, exclusive)) = rules.minimum {
        if exclusive && n <= min {
            report(format!("should be greater than {min}"));
        } else if n < min {
            report(format!("should be greater than or equal to {min}"));
        }
    }
    if let Some((max, exclusive)) = rules.maximum {
        if exclusive && n >= max {
            report(format!("should be less than {max}"));
        } else if n > max {
            report(format!("should be less than or equal to {max}"));
        }
    }
    if let Some(step) = rules.multiple_of
        && step > 0.0
        && (n / step).fract() != 0.0
    {
        report(format!("should be a multiple of {step}"));
    }
    let fits = match rules.format.as_deref() {
        Some("int32") => n >= f64::from(i32::MIN) && n <= f64::from(i32::MAX),
        Some("int64") => value.is_i64() || (value.is_f64() && n.abs() < 9.2e18),
        _ => true,
    };
    if !fits && schema.kind == Type::Integer {
        let format = rules.format.as_deref().unwrap_or_default();
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            format!("Checked value must be integer with format {format}"),
        ));
    }
}

/// Checks the length of a list, the uniqueness of its elements, and each element.
fn check_array(schema: &Schema, items: &[Value], path: Path<'_>, errors: &mut Vec<FieldError>) {
    let rules = schema.rules();
    let count = items.len() as u64;
    if let Some(max) = rules.max_items
        && count > max
    {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(path, items.len(), max));
    }
    if let Some(min) = rules.min_items
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
            validate(inner, item, Path::Item(&path, i), errors);
        }
    }
    let mut unique = std::collections::HashSet::new();
    match &schema.list_type {
        ListType::Atomic => {
            if rules.unique_items && !items.iter().all(|v| unique.insert(v.to_string())) {
                errors.push(FieldError::invalid(
                    path,
                    Value::from(items.to_vec()),
                    format!("{path} in body shouldn't contain duplicates"),
                ));
            }
        }
        ListType::Set => {
            for (i, item) in items.iter().enumerate() {
                if !unique.insert(item.to_string()) {
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
                    let is_required = schema
                        .items
                        .as_ref()
                        .is_some_and(|s| s.rules().required.contains(key));
                    if item.is_object() && !is_required {
                        errors.push(FieldError::required(format!("{path}[{i}].{key}"), ""));
                    }
                }
                let id = Value::Object(id);
                if !unique.insert(id.to_string()) {
                    errors.push(FieldError::duplicate(format!("{path}[{i}]"), id));
                }
            }
        }
    }
}

/// Checks the members of an object.
fn check_object(
    schema: &Schema,
    map: &Map<String, Value>,
    path: Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let rules = schema.rules();
    for key in &rules.required {
        if !map.contains_key(key) {
            errors.push(FieldError::required(Path::Key(&path, key), ""));
        }
    }
    // Those of the root are checked earlier.
    if schema.object && !matches!(path, Path::Root) {
        for key in ["apiVersion", "kind"] {
            if map
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or("")
                .is_empty()
            {
                errors.push(FieldError::required(
                    Path::Key(&path, key),
                    "must not be empty",
                ));
            }
        }
    }
    let count = map.len() as u64;
    if let Some(min) = rules.min_properties
        && count < min
    {
        errors.push(FieldError::invalid(
            path,
            count,
            format!("{path} in body should have at least {min} properties"),
        ));
    }
    if let Some(max) = rules.max_properties
        && count > max
    {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(path, map.len(), max));
    }
    for (key, v) in map {
        if let Some(inner) = schema
            .properties()
            .get(key)
            .or(schema.additional.as_deref())
        {
            validate(inner, v, Path::Key(&path, key), errors);
        }
    }
}

fn is_valid(schema: &Schema, value: &Value, path: Path<'_>) -> bool {
    let mut errors = Vec::new();
    validate_untyped(schema, value, path, &mut errors);
    errors.is_empty()
}

/// Validates `value` by a schema inside `allOf`, `anyOf`, `oneOf` or `not`. Such a schema need not have a type;
/// without one, null is valid.
fn validate_untyped(schema: &Schema, value: &Value, path: Path<'_>, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema.kind == Type::Any {
        return;
    }
    validate(schema, value, path, errors);
}

/// Checks `allOf`, `anyOf`, `oneOf` and `not`.
fn validate_combinations(
    schema: &Schema,
    value: &Value,
    path: Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(rules) = &schema.rules else {
        return;
    };
    for inner in &rules.all_of {
        validate_untyped(inner, value, path, errors);
    }
    // The two alternatives of an int-or-string are covered by the type check.
    if !rules.any_of.is_empty()
        && schema.kind != Type::IntOrString
        && !rules.any_of.iter().any(|s| is_valid(s, value, path))
    {
        errors.push(FieldError::invalid(
            path,
            "",
            format!("\"{path}\" must validate at least one schema (anyOf)"),
        ));
    }
    if !rules.one_of.is_empty() {
        let valid = rules
            .one_of
            .iter()
            .filter(|s| is_valid(s, value, path))
            .count();
        if valid != 1 {
            let valid_count = if valid == 0 {
                "none".to_owned()
            } else {
                valid.to_string()
            };
            errors.push(FieldError::invalid(
                path,
                "",
                format!(
                    "\"{path}\" must validate one and only one schema (oneOf). Found {valid_count} valid"
                ),
            ));
        }
    }
    if let Some(inner) = &rules.not
        && is_valid(inner, value, path)
    {
        errors.push(FieldError::invalid(
            path,
            "",
            format!("\"{path}\" must not validate the schema (not)"),
        ));
    }
}
