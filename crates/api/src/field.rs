//! Errors that name the field of a document.

use serde::{Deserialize, Deserializer};

/// Error for a value that is out of bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field} is {value}: {reason}")]
pub struct FieldError {
    /// Path of the field in its section, such as `beClass.cpuQOS.schedIdle`.
    pub field: String,
    /// The value as JSON.
    pub value: String,
    /// The violated rule.
    pub reason: String,
}

/// Error for a value that does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct DecodeError {
    /// Path of the field, such as `profiles[0].plugins`; `.` is the root.
    pub path: String,
    /// Reason, with the value.
    pub message: String,
}

/// Deserializes a value and names the field of an error.
///
/// # Errors
/// The value does not fit the type `T`.
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
