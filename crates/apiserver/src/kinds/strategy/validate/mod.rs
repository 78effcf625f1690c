//! Validation.

pub(in crate::kinds) mod names;
