//! Values of the chart: its defaults, files of the user and settings of the command line.

use super::{chart, schema};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value};
use std::iter::Peekable;
use std::str::Chars;

/// The largest index of a list in a setting, as Helm's.
const MAX_INDEX: usize = 65_536;

/// Returns the chart's values with those of the user, and what is wrong with them by the chart's schema: one sentence
/// with the path for each fault.
///
/// # Errors
/// The chart is invalid; never happens.
pub(super) fn complete(given: &Value) -> Result<(Value, Vec<String>)> {
    let files = chart::files();
    let file = |path: &str| {
        let text = files.get(path);
        text.with_context(|| format!("the chart has no {path}"))
    };
    let mut values: Value = serde_saphyr::from_str(file("values.yaml")?).context("values.yaml")?;
    merge(&mut values, given.clone());
    let schema: Value = serde_json::from_str(file("values.schema.json")?).context("schema")?;
    let faults = schema::faults(&schema, &values)?;
    Ok((values, faults))
}

/// Returns what is wrong with values of the user, as [`complete`] does.
///
/// # Errors
/// Like [`complete`].
pub(crate) fn value_faults(given: &Value) -> Result<Vec<String>> {
    complete(given).map(|(_, faults)| faults)
}

fn value_schema() -> Value {
    let files = chart::files();
    let text = files.get("values.schema.json");
    let parsed = text.and_then(|text| serde_json::from_str(text).ok());
    parsed.unwrap_or_default()
}

/// Returns the names of the chart's values.
pub(crate) fn value_names() -> Vec<String> {
    value_names_at("")
}

/// Returns the names of the values below a pointer such as `/koordlet/log`.
pub(crate) fn value_names_at(pointer: &str) -> Vec<String> {
    let root = value_schema();
    let mut schema = &root;
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        schema = resolved(&root, &schema["properties"][part]);
    }
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(|(name, _)| name.clone()).collect()
}

/// Returns the schema that a reference is to.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'));
    reference.and_then(|it| root.pointer(it)).unwrap_or(schema)
}

/// Merges `over` into `base`. Null removes a default.
pub(super) fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    base.remove(&key);
                } else if let Some(existing) = base.get_mut(&key) {
                    merge(existing, value);
                } else {
                    base.insert(key, value);
                }
            }
        }
        (base, over) => *base = over,
    }
}

/// Merges `over` into values of the user, where null stays: it removes a default later.
pub(super) fn overlay(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

/// Applies settings `a.b=c,d[0]=e` to `values`. A comma, dot, equals sign or bracket after a backslash is part of a
/// name or value. `{a,b}` is a list.
///
/// # Errors
/// The text is not of this form.
pub(super) fn set(values: &mut Value, text: &str, as_text: bool) -> Result<()> {
    let mut characters = text.chars().peekable();
    while characters.peek().is_some() {
        one(values, &mut characters, as_text)
            .with_context(|| format!("invalid setting {text:?}"))?;
    }
    Ok(())
}

/// Parses one `name=value`, up to and including the comma after it, and sets it in `values`.
fn one(values: &mut Value, characters: &mut Peekable<Chars<'_>>, as_text: bool) -> Result<()> {
    let mut place = values;
    loop {
        let (name, end) = until(characters, &['.', '=', '[', ',']);
        ensure!(!name.is_empty(), "a name is empty");
        place = entry(place, name);
        let mut end = end;
        while end == Some('[') {
            let (index, closing) = until(characters, &[']']);
            ensure!(closing.is_some(), "a bracket is not closed");
            let index: usize = index.parse().context("invalid index")?;
            ensure!(index <= MAX_INDEX, "index {index} is too large");
            place = item(place, index);
            end = characters.next();
        }
        match end {
            Some('.') => {}
            Some('=') => break,
            _ => bail!("expected NAME=VALUE"),
        }
    }
    if characters.next_if_eq(&'{').is_some() {
        let mut items = Vec::new();
        loop {
            let (text, end) = until(characters, &[',', '}']);
            match end {
                Some('}') if text.is_empty() && items.is_empty() => break,
                Some('}') => {
                    items.push(typed(text, as_text));
                    break;
                }
                Some(_) => items.push(typed(text, as_text)),
                None => bail!("a list is not closed"),
            }
        }
        *place = Value::Array(items);
        let next = characters.next();
        ensure!(
            next.is_none_or(|it| it == ','),
            "expected a comma after a list"
        );
    } else {
        let (text, _) = until(characters, &[',']);
        *place = typed(text, as_text);
    }
    Ok(())
}

/// Takes characters up to one of `ends`, which is returned, too.
fn until(characters: &mut Peekable<Chars<'_>>, ends: &[char]) -> (String, Option<char>) {
    let mut text = String::new();
    while let Some(character) = characters.next() {
        if character == '\\' {
            text.extend(characters.next());
        } else if ends.contains(&character) {
            return (text, Some(character));
        } else {
            text.push(character);
        }
    }
    (text, None)
}

/// Returns the entry of a map, which replaces any other value.
fn entry(value: &mut Value, name: String) -> &mut Value {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map.entry(name).or_insert(Value::Null),
        other => other,
    }
}

/// Returns the item of a list, which replaces any other value.
fn item(value: &mut Value, index: usize) -> &mut Value {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(items) => {
            if items.len() <= index {
                items.resize(index + 1, Value::Null);
            }
            &mut items[index]
        }
        other => other,
    }
}

/// Returns the value of a setting; numbers with a leading zero are texts.
fn typed(text: String, as_text: bool) -> Value {
    match text.as_str() {
        _ if as_text => Value::String(text),
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" => Value::Null,
        "0" => Value::from(0),
        _ if text.starts_with('0') => Value::String(text),
        _ => match text.parse::<i64>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::String(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_those_of_helm() {
        for (text, expected) in [
            ("a=1", json!({"a": 1})),
            ("a.b=c,d=true", json!({"a": {"b": "c"}, "d": true})),
            ("a=x\\,y", json!({"a": "x,y"})),
            ("a\\.b=x=y", json!({"a.b": "x=y"})),
            ("a={x,2}", json!({"a": ["x", 2]})),
            ("a={},b=0", json!({"a": [], "b": 0})),
            ("a[1].b=c", json!({"a": [null, {"b": "c"}]})),
            ("a=null", json!({"a": null})),
            ("a=012", json!({"a": "012"})),
            ("a=", json!({"a": ""})),
        ] {
            let mut values = json!({});
            set(&mut values, text, false).unwrap();
            assert_eq!(values, expected, "{text}");
        }
        let mut values = json!({});
        set(&mut values, "a=1", true).unwrap();
        assert_eq!(values, json!({"a": "1"}));
        for text in ["a", "=1", "a[x]=1", "a[0", "a={x", "a[99999999]=1", "a.=1"] {
            assert!(set(&mut json!({}), text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn null_removes_a_default() {
        let mut values = json!({"a": {"b": 1, "c": 2}, "d": 3});
        merge(&mut values, json!({"a": {"b": null, "c": [1]}, "e": 4}));
        assert_eq!(values, json!({"a": {"c": [1]}, "d": 3, "e": 4}));
    }
}
