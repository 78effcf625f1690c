//! Settings that cannot be used.

/// A setting that is not used because its value is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {want}, got {value}")]
pub struct FieldError {
    /// The field's name on the wire.
    pub field: &'static str,
    /// The allowed range.
    pub want: &'static str,
    /// The value that was given.
    pub value: String,
}

impl FieldError {
    /// `value` of `field` is not `want`.
    #[must_use]
    pub fn new(field: &'static str, want: &'static str, value: &impl ToString) -> Self {
        Self {
            field,
            want,
            value: value.to_string(),
        }
    }
}
