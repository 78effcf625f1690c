//! Errors that name a field.

use serde::{Deserialize, Deserializer};

/// A value out of bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field} is {value}: {reason}")]
pub struct FieldError {
    /// Path of the field in its section, such as `beClass.cpuQOS.schedIdle`.
    pub field: String,
    /// The value as JSON.
    pub value: String,
    /// The rule it breaks.
    pub reason: String,
}

/// A value that its type cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct DecodeError {
    /// Path of the field, such as `profiles[0].plugins`; `.` is the root.
    pub path: String,
    /// What is wrong; shows the value.
    pub message: String,
}

/// Decodes a value.
///
/// # Errors
/// When the value does not fit the type `T`.
pub fn decode<'de, T, D>(value: D) -> Result<T, DecodeError>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    serde_path_to_error::deserialize(value).map_err(|error| DecodeError {
        path: error.path().to_string(),
        message: error.inner().to_string(),
    })
}
