//! Formats of annotation values: JSON, CPU lists, ratios, integers as text.
//!
//! [`read`] and [`write`](write()) convert JSON formats from and to an annotation map. Parsing is as lenient
//! as Go's decoder (see [`crate::lenient`]). Source: Koordinator `apis/extension`.

mod gang;
mod node;
mod pod;
mod ratio;

pub use gang::{GangAnnotationError, GangMatchPolicy, GangMode, GangSpec, gang_groups, gang_spec};
pub use node::*;
pub use pod::*;
pub use ratio::{
    AmplificationRatios, MAX_AMPLIFICATION, RatioError, format_normalization_ratio,
    parse_normalization_ratio,
};

use crate::lenient::{self, ReadError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Error for an annotation or label whose value does not match its format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key} has value {value:?}: {problem}")]
pub struct AnnotationError {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The reason.
    pub problem: ReadError,
}

impl AnnotationError {
    /// Creates the error for annotation `key`, which is JSON but whose field `path` violates a rule.
    pub(crate) fn field(
        annotations: Option<&BTreeMap<String, String>>,
        key: &str,
        path: &str,
        message: &dyn std::fmt::Display,
    ) -> Self {
        let value = annotations.and_then(|all| all.get(key));
        Self {
            key: key.to_owned(),
            value: value.cloned().unwrap_or_default(),
            problem: ReadError::Field {
                path: path.to_owned(),
                message: message.to_string(),
            },
        }
    }
}

/// Parses the JSON annotation `key`. Returns `None` if it is missing or empty.
///
/// # Errors
/// The value does not match the format. The error names key, value and field.
pub fn read<T: DeserializeOwned>(
    annotations: Option<&BTreeMap<String, String>>,
    key: &str,
) -> Result<Option<T>, AnnotationError> {
    let text = annotations.and_then(|all| all.get(key));
    parse(key, text.map(String::as_str))
}

/// Parses `text`, the value of the JSON annotation `key`. Returns `None` if it is missing or empty.
///
/// # Errors
/// Like [`read`].
pub fn parse<T: DeserializeOwned>(
    key: &str,
    text: Option<&str>,
) -> Result<Option<T>, AnnotationError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    lenient::from_json(text)
        .map(Some)
        .map_err(|problem| AnnotationError {
            key: key.to_owned(),
            value: text.to_owned(),
            problem,
        })
}

/// Writes the JSON annotation `key`.
///
/// # Errors
/// The value cannot be written as JSON; impossible for the formats of this module.
pub fn write<T: Serialize>(
    annotations: &mut BTreeMap<String, String>,
    key: &str,
    value: &T,
) -> serde_json::Result<()> {
    annotations.insert(key.to_owned(), serde_json::to_string(value)?);
    Ok(())
}

/// Parses annotation `pod.koordinator.sh/replace-resources` to pairs of a resource and its replacement;
/// `None` removes the resource. Parts that are not exactly one `from:to` are skipped.
#[must_use]
pub fn parse_replace_resources(text: &str) -> Vec<(&str, Option<&str>)> {
    text.split(',')
        .filter_map(|part| {
            let (from, to) = part.trim().split_once(':')?;
            let (from, to) = (from.trim(), to.trim());
            (!to.contains(':')).then_some((from, (!to.is_empty()).then_some(to)))
        })
        .collect()
}

/// Parses annotation `scheduling.koordinator.sh/eviction-cost`. A leading `+` and leading zeros are not
/// allowed, as in upstream.
///
/// # Errors
/// The text is not such a 32-bit integer.
pub fn parse_eviction_cost(text: &str) -> Result<i32, ReadError> {
    let error = || ReadError::Field {
        path: ".".to_owned(),
        message: format!("invalid eviction cost {text:?}, expected a 32-bit integer"),
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if text.starts_with('+') || (digits.len() > 1 && digits.starts_with('0')) {
        return Err(error());
    }
    text.parse().map_err(|_| error())
}

#[cfg(test)]
mod tests;
