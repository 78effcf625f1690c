//! Schemas of values: one type for the built-in kinds, which `types` reads from a table, and for the schemas
//! of custom resources, which [`parse`] compiles. Decoding, pruning, defaulting, validation, all kinds of
//! patches and protobuf are based on it.

mod formats;
mod parse;
pub mod types;
mod validate;
mod walk;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

pub use parse::parse;
use types::TypeId;

/// Type of a value. The first six are the types of JSON schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// JSON object.
    Object,
    /// JSON array.
    Array,
    /// JSON string.
    String,
    /// Number without fraction; 64 bits in a built-in type.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// Number without fraction, or string.
    IntOrString,
    /// Any value: no type is specified.
    Any,
    /// Number without fraction, 32 bits.
    Int32,
    /// Bytes in base64.
    Bytes,
    /// Amount of a resource.
    Quantity,
    /// Time with a precision of seconds.
    Time,
    /// Time with a precision of microseconds.
    MicroTime,
    /// Duration in nanoseconds, or text such as `1m`.
    Duration,
    /// JSON object stored as bytes.
    Raw,
    /// Field set of a field manager.
    FieldsV1,
    /// A list of strings that protobuf wraps in a message.
    WrappedStrings,
    /// A schema of a custom resource, or an alternative to it.
    SchemaOr(SchemaAlternative),
}

/// Value that is allowed in place of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaAlternative {
    /// A list of schemas.
    Schemas,
    /// A boolean that allows any value or none.
    Bool,
    /// A list of property names.
    Strings,
}

impl Type {
    /// Returns the schema keyword; `object` for types without their own.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            _ => "object",
        }
    }
}

/// Rule by which server-side apply identifies the elements of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    /// Elements have no identity: the list is one value.
    #[default]
    Atomic,
    /// Unique scalars.
    Set,
    /// Objects identified by these fields.
    Map(Vec<String>),
}

/// Rule by which a strategic merge patch merges a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MergeStrategy {
    /// The list of the patch replaces the old one.
    #[default]
    Default,
    /// Elements with an equal value of this key are merged.
    Key(&'static str),
    /// A list of scalars treated as a set.
    Set,
}

/// Declaration of an object's members.
#[derive(Debug, Clone, Default)]
pub enum Members {
    /// No members are declared.
    #[default]
    None,
    /// Declared in this schema (`properties`).
    Own(BTreeMap<String, Schema>),
    /// Declared in a built-in type, which other values share.
    Named(TypeId),
}

/// Schema of a value, and of the field that contains it.
#[derive(Debug, Clone)]
pub struct Schema {
    /// `type`.
    pub kind: Type,
    /// True for a built-in type: decoding drops nulls and empty values.
    pub typed: bool,
    pub members: Members,
    /// `additionalProperties` as a schema: the values of a map.
    pub additional: Option<Box<Schema>>,
    /// `items`.
    pub items: Option<Box<Schema>>,
    /// `x-kubernetes-list-type` with `x-kubernetes-list-map-keys`.
    pub list_type: ListType,
    /// True if the object is owned as a whole (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// `default`; in a built-in type the value that an absent key of a list element stands for.
    pub default: Option<Box<Value>>,
    /// `additionalProperties: true`.
    pub additional_any: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// True for an object with apiVersion, kind and metadata: the root, or one with
    /// `x-kubernetes-embedded-resource`.
    pub object: bool,
    /// `nullable`.
    pub nullable: bool,
    /// Validation rules in addition to the type.
    rules: Option<Box<Rules>>,
    /// True for a pointer, whose empty value is not omitted.
    pub pointer: bool,
    /// True for a field of a Go type that is encoded even if it is empty (no `omitempty`).
    pub written: bool,
    pub merge: MergeStrategy,
    /// True if a patch replaces the value.
    pub replace: bool,
    /// True if a patch lists the members to retain.
    pub retain_keys: bool,
}

/// Validation rules in addition to the type.
#[derive(Debug, Clone, Default)]
struct Rules {
    /// `format`.
    format: Option<String>,
    /// `required`.
    required: Vec<String>,
    /// `enum`.
    allowed: Vec<Value>,
    /// `minimum`, and true if it is exclusive.
    minimum: Option<(f64, bool)>,
    /// `maximum`, and true if it is exclusive.
    maximum: Option<(f64, bool)>,
    /// `multipleOf`.
    multiple_of: Option<f64>,
    /// `minLength` in characters.
    min_length: Option<u64>,
    /// `maxLength` in characters.
    max_length: Option<u64>,
    /// `pattern`.
    pattern: Option<Regex>,
    /// `minItems`.
    min_items: Option<u64>,
    /// `maxItems`.
    max_items: Option<u64>,
    /// `uniqueItems`.
    unique_items: bool,
    /// `minProperties`.
    min_properties: Option<u64>,
    /// `maxProperties`.
    max_properties: Option<u64>,
    /// `allOf`.
    all_of: Vec<Schema>,
    /// `anyOf`.
    any_of: Vec<Schema>,
    /// `oneOf`.
    one_of: Vec<Schema>,
    /// `not`.
    not: Option<Schema>,
}

/// Schema of undeclared values: objects are merged by member, lists are atomic.
static ANYTHING: Schema = Schema::new(Type::Any, true);

static NO_RULES: LazyLock<Rules> = LazyLock::new(Rules::default);
static NO_PROPERTIES: BTreeMap<String, Schema> = BTreeMap::new();

impl Default for Schema {
    fn default() -> Self {
        Self::new(Type::Any, false)
    }
}

impl Schema {
    const fn new(kind: Type, preserve_unknown: bool) -> Self {
        Self {
            kind,
            typed: false,
            members: Members::None,
            additional: None,
            items: None,
            list_type: ListType::Atomic,
            atomic: false,
            default: None,
            additional_any: false,
            preserve_unknown,
            object: false,
            nullable: false,
            rules: None,
            pointer: false,
            written: false,
            merge: MergeStrategy::Default,
            replace: false,
            retain_keys: false,
        }
    }

    fn rules(&self) -> &Rules {
        match &self.rules {
            Some(rules) => rules,
            None => &NO_RULES,
        }
    }

    /// Returns the built-in type of the value; `None` if it has none.
    pub fn named(&self) -> Option<&'static types::BuiltinType> {
        match self.members {
            Members::Named(id) => Some(types::get(id)),
            _ => None,
        }
    }

    /// Returns `properties` of a custom resource's schema.
    pub fn properties(&self) -> &BTreeMap<String, Self> {
        match &self.members {
            Members::Own(properties) => properties,
            _ => &NO_PROPERTIES,
        }
    }

    /// Returns true if unknown members are preserved.
    fn is_open(&self) -> bool {
        self.additional_any || self.preserve_unknown
    }

    /// Returns the schema of the member `key` if it is declared by name.
    fn declared(&self, key: &str) -> Option<&Self> {
        if self.object {
            match key {
                "metadata" => return Some(types::object_meta()),
                "apiVersion" | "kind" => return Some(&ANYTHING),
                _ => {}
            }
        }
        match &self.members {
            Members::None => None,
            Members::Own(properties) => properties.get(key),
            Members::Named(id) => types::get(*id).field(key),
        }
    }

    /// Returns the schema of the member `key`; `None` if the schema does not allow it.
    fn allowed_member(&self, key: &str) -> Option<&Self> {
        self.declared(key).or(self.additional.as_deref())
    }

    /// Returns the schema of the member `key`, which allows anything if it is not declared.
    pub fn member(&self, key: &str) -> &Self {
        self.allowed_member(key).unwrap_or(&ANYTHING)
    }

    /// Returns the schema of a list's elements.
    pub fn element(&self) -> &Self {
        self.items.as_deref().unwrap_or(&ANYTHING)
    }

    /// Returns true if the type declares a member of this name; the keys of a map are not declared.
    pub fn declares(&self, key: &str) -> bool {
        self.declared(key).is_some()
    }

    /// Returns true if the object is owned as a whole.
    pub fn is_whole(&self) -> bool {
        self.atomic || self.named().is_some_and(|t| t.schema.atomic)
    }

    /// Returns true if Go encodes this object even if it is empty: its type is a struct, not a pointer.
    pub fn is_always_there(&self) -> bool {
        self.kind == Type::Object && !self.pointer && self.named().is_some()
    }

    /// Returns true if Go encodes this list or map as null if it is absent.
    pub fn is_null_when_absent(&self) -> bool {
        self.written && (self.items.is_some() || self.additional.is_some())
    }
}

#[cfg(test)]
mod tests;
