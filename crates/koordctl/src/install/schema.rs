//! Checks values by `values.schema.json`: the keywords of JSON Schema that it uses.
//!
//! A general validator brings about 30 crates for one small schema. An unknown keyword is an error.

use anyhow::{Context as _, Result, bail};
use regex::Regex;
use serde_json::Value;

/// Returns what is wrong with `value`, one sentence with the path for each fault.
///
/// # Errors
/// The schema has a keyword that is not supported.
pub(super) fn faults(schema: &Value, value: &Value) -> Result<Vec<String>> {
    let mut check = Validator {
        root: schema,
        faults: Vec::new(),
    };
    check.value(schema, value, "")?;
    Ok(check.faults)
}

struct Validator<'a> {
    root: &'a Value,
    faults: Vec<String>,
}

impl Validator<'_> {
    fn fault(&mut self, path: &str, text: impl std::fmt::Display) {
        self.faults.push(format!("at '{path}': {text}"));
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str) -> Result<()> {
        let Some(keywords) = schema.as_object() else {
            bail!("invalid schema at {path:?}");
        };
        for (keyword, rule) in keywords {
            match keyword.as_str() {
                "$schema" | "$comment" | "$defs" | "title" | "description" => {}
                "additionalProperties" if !keywords.contains_key("properties") => {
                    self.properties(&Value::Null, Some(rule), value, path)?;
                }
                // The one with properties reads it.
                "additionalProperties" => {}
                "properties" => {
                    self.properties(rule, keywords.get("additionalProperties"), value, path)?;
                }
                "$ref" => {
                    let pointer = rule.as_str().and_then(|it| it.strip_prefix('#'));
                    let target = pointer.and_then(|it| self.root.pointer(it));
                    let target = target.with_context(|| format!("no schema {rule}"))?.clone();
                    self.value(&target, value, path)?;
                }
                "anyOf" => self.any_of(rule, value, path)?,
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.value(rule, item, &format!("{path}/{index}"))?;
                    }
                }
                _ => self.keyword(keyword, rule, value, path)?,
            }
        }
        Ok(())
    }

    fn properties(
        &mut self,
        properties: &Value,
        additional: Option<&Value>,
        value: &Value,
        path: &str,
    ) -> Result<()> {
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = format!("{path}/{key}");
            match (properties.get(key), additional) {
                (Some(schema), _) => self.value(schema, value, &path)?,
                (None, Some(Value::Bool(false))) => self.fault(&path, "no such value"),
                (None, Some(schema @ Value::Object(_))) => self.value(schema, value, &path)?,
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn any_of(&mut self, rule: &Value, value: &Value, path: &str) -> Result<()> {
        let mut messages = Vec::new();
        for schema in rule.as_array().into_iter().flatten() {
            let mut check = Validator {
                root: self.root,
                faults: Vec::new(),
            };
            check.value(schema, value, path)?;
            if check.faults.is_empty() {
                return Ok(());
            }
            messages.append(&mut check.faults);
        }
        self.fault(
            path,
            format!("no alternative matches ({})", messages.join("; ")),
        );
        Ok(())
    }

    /// Checks a keyword without schemas below it.
    fn keyword(&mut self, keyword: &str, rule: &Value, value: &Value, path: &str) -> Result<()> {
        let too = match (keyword, value) {
            ("type", value) => {
                let single = std::slice::from_ref(rule);
                let types = rule.as_array().map_or(single, Vec::as_slice);
                let mut names = types.iter().filter_map(Value::as_str);
                if !names.any(|name| is_type(name, value)) {
                    self.fault(path, format!("got {value}, expected type {rule}"));
                }
                false
            }
            ("enum", value) => {
                let allowed = rule.as_array().into_iter().flatten();
                if !allowed.into_iter().any(|it| it == value) {
                    self.fault(path, format!("got {value}, expected one of {rule}"));
                }
                false
            }
            ("const", value) => {
                if value != rule {
                    self.fault(path, format!("got {value}, expected {rule}"));
                }
                false
            }
            ("required", Value::Object(map)) => {
                for name in rule.as_array().into_iter().flatten() {
                    if name.as_str().is_some_and(|it| !map.contains_key(it)) {
                        self.fault(path, format!("{name} is missing"));
                    }
                }
                false
            }
            ("pattern", Value::String(text)) => {
                let pattern = rule.as_str().unwrap_or_default();
                !Regex::new(pattern)
                    .context("invalid pattern")?
                    .is_match(text)
            }
            ("minimum", Value::Number(number)) => number.as_f64() < rule.as_f64(),
            ("maximum", Value::Number(number)) => number.as_f64() > rule.as_f64(),
            ("maxLength", Value::String(text)) => rule
                .as_u64()
                .is_some_and(|it| text.chars().count() as u64 > it),
            ("maxProperties", Value::Object(map)) => {
                rule.as_u64().is_some_and(|it| map.len() as u64 > it)
            }
            ("required" | "pattern" | "minimum" | "maximum" | "maxLength" | "maxProperties", _) => {
                false
            }
            _ => bail!("unsupported keyword {keyword:?} of the schema"),
        };
        if too {
            self.fault(path, format!("got {value}, expected {keyword} {rule}"));
        }
        Ok(())
    }
}

fn is_type(name: &str, value: &Value) -> bool {
    match (name, value) {
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("string", Value::String(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_))
        | ("number", Value::Number(_)) => true,
        ("integer", Value::Number(number)) => {
            number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn faults_have_their_paths() {
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "port": {"$ref": "#/$defs/port"},
                "name": {"type": ["string", "null"], "pattern": "^[a-z]*$", "maxLength": 3},
                "mode": {"enum": ["a", "b"]}, "off": {"const": false},
                "list": {"type": "array", "items": {"type": "object", "required": ["name"]}},
                "texts": {"type": "object", "additionalProperties": {"type": "string"}},
                "either": {"anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 0}]},
            },
            "$defs": {"port": {"type": "integer", "minimum": 1, "maximum": 9}},
        });
        let good = json!({
            "port": 9, "name": null, "mode": "a", "off": false, "list": [{"name": 1}],
            "texts": {"a": "b"}, "either": {},
        });
        assert_eq!(faults(&schema, &good).unwrap(), Vec::<String>::new());
        for (value, path) in [
            (json!({"port": 10}), "/port"),
            (json!({"port": 0}), "/port"),
            (json!({"port": 1.5}), "/port"),
            (json!({"port": "1"}), "/port"),
            (json!({"name": "A"}), "/name"),
            (json!({"name": "abcd"}), "/name"),
            (json!({"mode": "c"}), "/mode"),
            (json!({"off": true}), "/off"),
            (json!({"list": [{"name": 1}, {}]}), "/list/1"),
            (json!({"texts": {"a": 1}}), "/texts/a"),
            (json!({"either": {"a": 1}}), "/either"),
            (json!({"other": 1}), "/other"),
        ] {
            let faults = faults(&schema, &value).unwrap();
            assert_eq!(faults.len(), 1, "{value}: {faults:?}");
            assert!(
                faults[0].starts_with(&format!("at '{path}': ")),
                "{faults:?}"
            );
        }
        assert!(super::faults(&json!({"oneOf": []}), &json!({})).is_err());
    }
}
