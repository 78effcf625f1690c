//! Errors that name a field.

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
