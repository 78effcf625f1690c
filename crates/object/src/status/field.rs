//! Validation errors of single fields: path, value, reason.

use std::fmt;

use serde_json::Value;

/// Class of a field error. The names follow the `reason` of a Status cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldErrorKind {
    /// The field is required.
    Required,
    /// The value has the right type but is not allowed.
    Invalid,
    /// The value has the wrong JSON type.
    TypeInvalid,
    /// The value is a duplicate in a collection of unique elements.
    Duplicate,
    /// The field must not be set or changed here.
    Forbidden,
    /// The value is not a supported one.
    NotSupported,
    /// The value refers to something that does not exist.
    NotFound,
    /// The value is longer than allowed.
    TooLong,
    /// The list or map has too many elements.
    TooMany,
    /// The server failed to check the field.
    Internal,
}

impl FieldErrorKind {
    /// Returns the machine-readable reason of the cause.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotSupported => "FieldValueNotSupported",
            Self::NotFound => "FieldValueNotFound",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::NotSupported => "Unsupported value",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    const fn shows_value(self) -> bool {
        !matches!(
            self,
            Self::Required | Self::Forbidden | Self::TooLong | Self::Internal
        )
    }
}

/// A validation error: path, value, reason.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    /// Class of the error.
    pub kind: FieldErrorKind,
    /// Path in kubectl's form, e.g. `spec.containers[0].resources.requests[cpu]`.
    pub field: String,
    /// The invalid value; `Null` if it is not shown.
    pub value: Value,
    /// Explanation; may be empty.
    pub detail: String,
}

impl FieldError {
    /// Creates an error of any class.
    pub fn new(
        kind: FieldErrorKind,
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            field: field.into(),
            value: value.into(),
            detail: detail.into(),
        }
    }
    /// Creates `field: Required value: detail`.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, field, Value::Null, detail)
    }
    /// Creates `field: Invalid value: "v": detail`.
    pub fn invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(FieldErrorKind::Invalid, field, value, detail)
    }
    /// Creates an error like [`FieldError::invalid`], but reported as a type error.
    pub fn type_invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(FieldErrorKind::TypeInvalid, field, value, detail)
    }
    /// Creates `field: Duplicate value: "v"`.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, value, "")
    }
    /// Creates `field: Forbidden: detail`.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, field, Value::Null, detail)
    }
    /// Creates `field: Unsupported value: "v": supported values: "a", "b"`.
    pub fn not_supported(
        field: impl Into<String>,
        value: impl Into<Value>,
        allowed: &[&str],
    ) -> Self {
        let list: Vec<String> = allowed.iter().map(|a| quoted(a)).collect();
        let detail = if list.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", list.join(", "))
        };
        Self::new(FieldErrorKind::NotSupported, field, value, detail)
    }
    /// Creates `field: Not found: "v"`.
    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(FieldErrorKind::NotFound, field, value, "")
    }
    /// Creates `field: Too long: may not be more than <max> bytes`.
    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {unit}");
        Self::new(FieldErrorKind::TooLong, field, Value::Null, detail)
    }
    /// Creates `field: Too many: <actual>: must have at most <max> items`.
    pub fn too_many(field: impl Into<String>, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        Self::new(FieldErrorKind::TooMany, field, actual as u64, detail)
    }

    /// Returns the message without the leading field path.
    #[must_use]
    pub fn body(&self) -> String {
        let mut out = self.kind.text().to_owned();
        if self.kind.shows_value() {
            out.push_str(": ");
            match &self.value {
                Value::String(s) => out.push_str(&quoted(s)),
                other => out.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Returns a string in double quotes with Go's escapes.
#[must_use]
pub fn quoted(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
