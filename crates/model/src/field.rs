//! Error type for settings that are out of range.

/// Error for a setting that is ignored because its value is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {want}, got {value}")]
pub struct FieldError {
    /// Name of the field in the API object.
    pub field: &'static str,
    /// The allowed range.
    pub want: &'static str,
    /// The rejected value.
    pub value: String,
}

impl FieldError {
    /// Creates the error for a `field` whose `value` is not in the range `want`.
    #[must_use]
    pub fn new(field: &'static str, want: &'static str, value: &impl ToString) -> Self {
        Self {
            field,
            want,
            value: value.to_string(),
        }
    }
}
