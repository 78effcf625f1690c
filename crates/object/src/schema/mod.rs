//! What is known of a value: one type for the built-in kinds, which `types` reads from a table,
//! and for the schemas of definitions, which [`parse`] compiles. Decoding, pruning, defaulting,
//! validation, every kind of patch and protobuf walk it.

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

/// What a value is. The first six are those that JSON schemas name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// JSON object.
    Object,
    /// JSON array.
    Array,
    /// JSON string.
    String,
    /// Number without fraction; in a built-in type one of 64 bits.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// Number without fraction or string.
    IntOrString,
    /// Nothing is said.
    Any,
    /// Number of 32 bits without fraction.
    Int32,
    /// Bytes in base64.
    Bytes,
    /// Amount of a resource.
    Quantity,
    /// Time with a precision of seconds.
    Time,
    /// Time with a precision of microseconds.
    MicroTime,
    /// Nanoseconds, or text such as `1m`.
    Duration,
    /// JSON object held as bytes.
    Raw,
    /// Field set of a manager.
    FieldsV1,
    /// A list of strings that protobuf wraps in a message.
    WrappedStrings,
    /// A schema of a definition, or something else in its place.
    SchemaOr(Other),
}

/// What may stand in the place of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// Several schemas.
    Schemas,
    /// Whether anything is allowed.
    Bool,
    /// Names of properties.
    Strings,
}

impl Type {
    /// The schema keyword of a type that has one.
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

/// How server-side apply tells the elements of a list apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    /// Not at all: the list is one value.
    #[default]
    Atomic,
    /// Scalars that may occur once.
    Set,
    /// Objects identified by these fields.
    Map(Vec<String>),
}

/// How a strategic merge patch treats a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Merge {
    /// The patch's value replaces the old one.
    #[default]
    Default,
    /// Elements with the same value of this key merge.
    Key(&'static str),
    /// A list of scalars used as a set.
    Set,
}

/// Where the members of an object are declared.
#[derive(Debug, Clone, Default)]
pub enum Members {
    /// Nowhere.
    #[default]
    None,
    /// Here: `properties`.
    Own(BTreeMap<String, Schema>),
    /// In a built-in type, which other values have too.
    Named(TypeId),
}

/// What is known of a value, and of the field that it is the value of.
#[derive(Debug, Clone)]
pub struct Schema {
    /// `type`.
    pub kind: Type,
    /// Of a built-in type: what is decoded into it loses nulls and what is empty.
    pub typed: bool,
    pub members: Members,
    /// `additionalProperties` as a schema, the values of a map.
    pub additional: Option<Box<Schema>>,
    /// `items`.
    pub items: Option<Box<Schema>>,
    /// `x-kubernetes-list-type` with `x-kubernetes-list-map-keys`.
    pub list_type: ListType,
    /// The object is owned as a whole (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// `default`; in a built-in type what an absent key of a list element stands for.
    pub default: Option<Box<Value>>,
    /// `additionalProperties: true`.
    pub additional_any: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// A whole object with apiVersion, kind and metadata: the root, or what
    /// `x-kubernetes-embedded-resource` says.
    pub object: bool,
    /// `nullable`.
    pub nullable: bool,
    /// What [`Schema::validate`] asks besides.
    rules: Option<Box<Rules>>,
    /// A pointer: its empty value is not left out.
    pub pointer: bool,
    /// A field that a typed server writes even when it is empty.
    pub written: bool,
    pub merge: Merge,
    /// A patch replaces the value.
    pub replace: bool,
    /// A patch says which members stay.
    pub retain_keys: bool,
}

/// What a value must be besides its type.
#[derive(Debug, Clone, Default)]
struct Rules {
    /// `format`.
    format: Option<String>,
    /// `required`.
    required: Vec<String>,
    /// `enum`.
    allowed: Vec<Value>,
    /// `minimum` and whether it is exclusive.
    minimum: Option<(f64, bool)>,
    /// `maximum` and whether it is exclusive.
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

/// Of what nothing is declared: objects are taken apart, lists are not.
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
            merge: Merge::Default,
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

    /// The built-in type of the value.
    pub fn named(&self) -> Option<&'static types::Named> {
        match self.members {
            Members::Named(id) => Some(types::get(id)),
            _ => None,
        }
    }

    /// `properties` of a definition's schema.
    pub fn properties(&self) -> &BTreeMap<String, Self> {
        match &self.members {
            Members::Own(properties) => properties,
            _ => &NO_PROPERTIES,
        }
    }

    /// Members that it does not know are kept.
    fn is_open(&self) -> bool {
        self.additional_any || self.preserve_unknown
    }

    /// The member `key` where it is declared by its name.
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

    /// The member `key`; `None` when the schema has no place for it.
    fn allowed_member(&self, key: &str) -> Option<&Self> {
        self.declared(key).or(self.additional.as_deref())
    }

    /// The member `key`, of which nothing may be known.
    pub fn member(&self, key: &str) -> &Self {
        self.allowed_member(key).unwrap_or(&ANYTHING)
    }

    /// The elements of a list.
    pub fn element(&self) -> &Self {
        self.items.as_deref().unwrap_or(&ANYTHING)
    }

    /// The type declares a member of this name; the keys of a map are not declared.
    pub fn declares(&self, key: &str) -> bool {
        self.declared(key).is_some()
    }

    /// An object is owned as a whole.
    pub fn is_whole(&self) -> bool {
        self.atomic || self.named().is_some_and(|t| t.schema.atomic)
    }

    /// A typed server never leaves this object out, not even when it is empty.
    pub fn is_always_there(&self) -> bool {
        self.kind == Type::Object && !self.pointer && self.named().is_some()
    }

    /// A typed server never leaves this list or map out, but writes null.
    pub fn is_null_when_absent(&self) -> bool {
        self.written && (self.items.is_some() || self.additional.is_some())
    }
}

#[cfg(test)]
mod tests;
