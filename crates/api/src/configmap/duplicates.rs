//! Duplicate names within one JSON object. JSON decoders use the last value and drop the others silently.

use super::FieldError;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of duplicates reported for one text.
const MAX_REPORTED: usize = 20;

/// Returns an error for each name that occurs more than once in an object of `text`, compared without regard
/// to case, as decoders match names. The error shows the value that takes effect. A text that is not JSON has
/// no duplicates.
pub(super) fn fields(text: &str) -> Vec<FieldError> {
    let mut duplicates = Vec::new();
    let value_visitor = DuplicateVisitor {
        path: String::new(),
        duplicates: &mut duplicates,
    };
    let mut reader = serde_json::Deserializer::from_str(text);
    // The parser of the section reports text that is not JSON.
    drop(value_visitor.deserialize(&mut reader));
    duplicates
}

/// Visitor of one value that records its path in the document.
struct DuplicateVisitor<'a> {
    path: String,
    duplicates: &'a mut Vec<FieldError>,
}

impl<'de> DeserializeSeed<'de> for DuplicateVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DuplicateVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        // Maps the name in lower case to its spellings and the value of each.
        let mut values_by_name: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
        let mut folded_names = Vec::new();
        let dot = if self.path.is_empty() { "" } else { "." };
        while let Some(name) = map.next_key::<String>()? {
            let value_visitor = DuplicateVisitor {
                path: format!("{}{dot}{name}", self.path),
                duplicates: &mut *self.duplicates,
            };
            let value = map.next_value_seed(value_visitor)?;
            let folded = name.to_ascii_lowercase();
            let spellings = values_by_name.entry(folded.clone()).or_default();
            match spellings.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = value,
                None => spellings.push((name, value)),
            }
            folded_names.push(folded);
        }
        folded_names.sort_unstable();
        let repeated = folded_names
            .chunk_by(|a, b| a == b)
            .filter(|repeats| repeats.len() > 1);
        for repeats in repeated {
            let spellings = repeats.first().and_then(|name| values_by_name.get(name));
            let Some([(name, value), others @ ..]) = spellings.map(Vec::as_slice) else {
                continue;
            };
            if self.duplicates.len() >= MAX_REPORTED {
                break;
            }
            let reason = match others {
                [] => "it is given more than once; the last value counts".to_owned(),
                [(other, _), ..] => {
                    format!("{other:?} is given, too; the exact spelling counts")
                }
            };
            self.duplicates.push(FieldError {
                field: format!("{}{dot}{name}", self.path),
                value: value.to_string(),
                reason,
            });
        }
        // Values inside an object are reported by their own paths.
        Ok(Value::Object(serde_json::Map::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut index = 0;
        loop {
            let value_visitor = DuplicateVisitor {
                path: format!("{}[{index}]", self.path),
                duplicates: &mut *self.duplicates,
            };
            if items.next_element_seed(value_visitor)?.is_none() {
                // The items are reported by their own paths; their values are not needed.
                return Ok(Value::Array(Vec::new()));
            }
            index += 1;
        }
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        fields(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn duplicate_names_are_found_at_every_depth() {
        assert_eq!(
            shown(
                r#"{"enable": true, "nodeConfigs": [{"a": 1, "a": 2, "a": 3}], "enable": false}"#
            ),
            [
                "field nodeConfigs[0].a is 3: it is given more than once; the last value counts",
                "field enable is false: it is given more than once; the last value counts",
            ]
        );
        assert_eq!(
            shown(r#"{"enable": true, "Enable": false}"#),
            ["field enable is true: \"Enable\" is given, too; the exact spelling counts"]
        );
        for text in [
            "",
            "{",
            "[1, 1]",
            r#"{"a": {"b": 1}, "c": {"b": 1}}"#,
            "null",
        ] {
            assert_eq!(shown(text), [""; 0], "{text}");
        }
    }

    /// Bounds the time and the number of reports for a text with many duplicates.
    #[test]
    fn many_duplicates_are_reported_in_part() {
        let names: Vec<String> = (0..50_000)
            .map(|n| format!("\"k{}\":1", n % 25_000))
            .collect();
        assert_eq!(
            fields(&format!("{{{}}}", names.join(","))).len(),
            MAX_REPORTED
        );
        let members = vec!["\"k\":1"; 100_000].join(",");
        assert_eq!(fields(&format!("{{{members}}}")).len(), 1);
    }
}
