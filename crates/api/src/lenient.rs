//! Parsing hand-written JSON the way Go's decoder does.
//!
//! ConfigMaps and annotations are written by people for a decoder in Go: field names match without regard to
//! case, unknown fields are ignored, `null` leaves a field unset. Types stay strict: `65.0` or `"65"` is not
//! an integer.

use crate::field::{DecodeError, decode};
use serde::Deserializer;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Error as _, IntoDeserializer, Visitor};
use serde_json::Value;

/// Error for a JSON text that does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The text is not JSON.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// A field has the wrong type or an impossible value. The message shows the value.
    #[error("field {path}: {message}")]
    Field {
        /// Path in the document, such as `nodeConfigs[0].enable`; `.` is the root.
        path: String,
        /// The reason.
        message: String,
    },
}

/// Parses `text` as a `T`.
///
/// # Errors
/// The text is not JSON or does not fit; the error names the field and shows the value.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, ReadError> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| ReadError::Syntax(error.to_string()))?;
    from_value(&value)
}

/// Deserializes a parsed document as a `T`.
///
/// # Errors
/// The value does not fit; the error names the field and shows the value.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, ReadError> {
    let field = |DecodeError { path, message }| ReadError::Field { path, message };
    decode(Lenient(value)).map_err(field)
}

/// Returns the member of `object` that Go decodes into a field called `name`: the exact name, otherwise one
/// that differs only in case.
#[must_use]
pub fn member<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let object = object.as_object()?;
    object.get(name).or_else(|| {
        object
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    })
}

#[derive(Clone, Copy)]
struct Lenient<'a>(&'a Value);

impl<'de> IntoDeserializer<'de, serde_json::Error> for Lenient<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Lenient<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.iter().map(Lenient)))
            }
            Value::Object(_) => self.deserialize_map(visitor),
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_null() {
            return visitor.visit_seq(SeqDeserializer::new(std::iter::empty::<Lenient<'de>>()));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let fields: Vec<(&str, Lenient<'de>)> = match self.0 {
            Value::Object(object) => object
                .iter()
                .map(|(key, value)| (key.as_str(), Lenient(value)))
                .collect(),
            Value::Null => Vec::new(),
            scalar => return scalar.deserialize_map(visitor),
        };
        visitor.visit_map(MapDeserializer::new(fields.into_iter()))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if !matches!(self.0, Value::Object(_) | Value::Null) {
            return Err(Self::Error::custom(format!(
                "invalid type: {}, expected an object",
                self.0
            )));
        }
        // A field that is null counts as missing, whatever its type.
        let present = fields.iter().filter_map(|name| {
            member(self.0, name)
                .filter(|value| !value.is_null())
                .map(|v| (*name, Lenient(v)))
        });
        visitor.visit_map(MapDeserializer::new(present))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configmap::ColocationStrategy;

    #[test]
    fn names_match_without_case_and_exact_spelling_wins() {
        let strategy: ColocationStrategy =
            from_json(r#"{"Enable": true, "CPURECLAIMTHRESHOLDPERCENT": 70, "other": {}}"#)
                .unwrap();
        assert_eq!(strategy.enable, Some(true));
        assert_eq!(strategy.cpu_reclaim_threshold_percent, Some(70));
        let strategy: ColocationStrategy =
            from_json(r#"{"ENABLE": true, "enable": false}"#).unwrap();
        assert_eq!(strategy.enable, Some(false));
    }

    #[test]
    fn null_is_unset() {
        let strategy: ColocationStrategy =
            from_json(r#"{"enable": null, "metricAggregatePolicy": {"durations": null}}"#).unwrap();
        assert_eq!(strategy.enable, None);
    }

    #[test]
    fn enums_are_read_by_name() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Mode {
            Fast,
            Slow,
        }
        assert_eq!(
            from_json(r#"["fast", "slow"]"#),
            Ok(vec![Mode::Fast, Mode::Slow])
        );
        let error = from_json::<Vec<Mode>>(r#"["quick"]"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("quick") && error.contains("[0]"), "{error}");
    }

    #[test]
    fn errors_name_field_and_value() {
        for (text, parts) in [
            (
                r#"{"degradeTimeMinutes": 65.0}"#,
                ["degradeTimeMinutes", "65.0"],
            ),
            (
                r#"{"degradeTimeMinutes": "x"}"#,
                ["degradeTimeMinutes", "\"x\""],
            ),
            (
                r#"{"metricAggregatePolicy": {"durations": ["5x"]}}"#,
                ["metricAggregatePolicy.durations[0]", "\"5x\""],
            ),
            (
                r#"{"metricAggregatePolicy": 7}"#,
                ["metricAggregatePolicy", "7"],
            ),
            ("[1]", [".", "[1]"]),
            ("{", ["not JSON", "line 1"]),
        ] {
            let error = from_json::<ColocationStrategy>(text)
                .unwrap_err()
                .to_string();
            assert!(
                parts.iter().all(|part| error.contains(part)),
                "{text}: {error}"
            );
        }
    }
}
