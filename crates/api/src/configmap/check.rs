//! Bounds of configuration values.

use crate::field::FieldError;
use std::fmt;

/// Collects the violations of bounds. Unset values violate no bound.
#[derive(Debug, Default)]
pub(super) struct Checker {
    prefix: String,
    errors: Vec<FieldError>,
    /// Ends of a range that have no effect without the other end. They are harmless, and upstream accepts
    /// them.
    lone_ends: Vec<FieldError>,
}

impl From<Vec<FieldError>> for Checker {
    fn from(errors: Vec<FieldError>) -> Self {
        Self {
            errors,
            ..Self::default()
        }
    }
}

impl Checker {
    /// Returns all violations.
    pub(super) fn finish(self) -> Vec<FieldError> {
        let (mut errors, lone_ends) = self.split();
        errors.extend(lone_ends);
        errors
    }

    /// Returns the violations that must be rejected, and those of values without effect.
    pub(super) fn split(self) -> (Vec<FieldError>, Vec<FieldError>) {
        (self.errors, self.lone_ends)
    }

    /// Checks the fields of a nested object.
    pub(super) fn nested(&mut self, name: &str, check: impl FnOnce(&mut Self)) {
        let length = self.prefix.len();
        self.prefix.push_str(name);
        self.prefix.push('.');
        check(self);
        self.prefix.truncate(length);
    }

    pub(super) fn fail(
        &mut self,
        field: &str,
        value: &dyn fmt::Display,
        reason: impl Into<String>,
    ) {
        let error = self.error(field, value, reason);
        self.errors.push(error);
    }

    fn error(
        &self,
        field: &str,
        value: &dyn fmt::Display,
        reason: impl Into<String>,
    ) -> FieldError {
        FieldError {
            field: format!("{}{field}", self.prefix),
            value: value.to_string(),
            reason: reason.into(),
        }
    }

    pub(super) fn at_least(&mut self, field: &str, value: Option<i64>, min: i64) {
        if let Some(value) = value
            && value < min
        {
            self.fail(field, &value, format!("must be at least {min}"));
        }
    }

    pub(super) fn at_most(&mut self, field: &str, value: Option<i64>, max: i64) {
        if let Some(value) = value
            && value > max
        {
            self.fail(field, &value, format!("must be at most {max}"));
        }
    }

    pub(super) fn within(&mut self, field: &str, value: Option<i64>, min: i64, max: i64) {
        if let Some(value) = value
            && !(min..=max).contains(&value)
        {
            self.fail(field, &value, format!("must be from {min} to {max}"));
        }
    }

    /// Checks that `upper` is greater than `lower`. An unset end has its default; if it has none, the other
    /// end has no effect alone.
    pub(super) fn ordered(
        &mut self,
        (upper_field, upper, upper_default): (&str, Option<i64>, Option<i64>),
        (lower_field, lower, lower_default): (&str, Option<i64>, Option<i64>),
    ) {
        match (upper.or(upper_default), lower.or(lower_default)) {
            _ if upper.is_none() && lower.is_none() => {}
            (Some(high), Some(low)) if high <= low => {
                let (field, value) = if lower.is_some() {
                    (lower_field, low)
                } else {
                    (upper_field, high)
                };
                let (bound, rule) = if lower.is_some() {
                    (high, format!("must be less than {upper_field}"))
                } else {
                    (low, format!("must be more than {lower_field}"))
                };
                self.fail(field, &value, format!("{rule}, which is {bound}"));
            }
            (None, Some(low)) => {
                let reason = format!("needs {upper_field} to be set");
                let error = self.error(lower_field, &low, reason);
                self.lone_ends.push(error);
            }
            _ => {}
        }
    }
}
