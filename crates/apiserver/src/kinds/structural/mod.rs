//! Structural schemas: the part of OpenAPI v3 that custom resource definitions use, compiled once
//! and then walked for pruning, defaulting and validation.

mod formats;
mod parse;
mod validate;
mod walk;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

pub use parse::parse;
pub use validate::validate;
pub use walk::{apply_defaults, prune, unknown_fields};

/// JSON type of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// JSON object.
    Object,
    /// JSON array.
    Array,
    /// JSON string.
    String,
    /// Number without fraction.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
}

impl Type {
    /// The schema keyword.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// Uniqueness rule of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    /// Elements are not compared; patches replace the list.
    #[default]
    Atomic,
    /// Scalars that may occur once.
    Set,
    /// Objects identified by these fields.
    Map(Vec<String>),
}

/// A compiled schema node.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// `type`.
    pub kind: Option<Type>,
    /// `format`.
    pub format: Option<String>,
    /// `nullable`.
    pub nullable: bool,
    /// `default`.
    pub default: Option<Value>,
    /// `properties`.
    pub properties: BTreeMap<String, Schema>,
    /// `additionalProperties` as a schema.
    pub additional: Option<Box<Schema>>,
    /// `additionalProperties: true`.
    pub additional_any: bool,
    /// `items`.
    pub items: Option<Box<Schema>>,
    /// `required`.
    pub required: Vec<String>,
    /// `enum`.
    pub allowed: Vec<Value>,
    /// `minimum` and whether it is exclusive.
    pub minimum: Option<(f64, bool)>,
    /// `maximum` and whether it is exclusive.
    pub maximum: Option<(f64, bool)>,
    /// `multipleOf`.
    pub multiple_of: Option<f64>,
    /// `minLength` in characters.
    pub min_length: Option<u64>,
    /// `maxLength` in characters.
    pub max_length: Option<u64>,
    /// `pattern`.
    pub pattern: Option<Regex>,
    /// `minItems`.
    pub min_items: Option<u64>,
    /// `maxItems`.
    pub max_items: Option<u64>,
    /// `uniqueItems`.
    pub unique_items: bool,
    /// `minProperties`.
    pub min_properties: Option<u64>,
    /// `maxProperties`.
    pub max_properties: Option<u64>,
    /// `allOf`.
    pub all_of: Vec<Schema>,
    /// `anyOf`.
    pub any_of: Vec<Schema>,
    /// `oneOf`.
    pub one_of: Vec<Schema>,
    /// `not`.
    pub not: Option<Box<Schema>>,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded: bool,
    /// `x-kubernetes-list-type` with `x-kubernetes-list-map-keys`.
    pub list_type: ListType,
    /// `x-kubernetes-map-type: atomic`: patches replace the object.
    pub atomic_map: bool,
}

#[cfg(test)]
mod tests;
