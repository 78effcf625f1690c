//! One view of the type of a value, whether a built-in kind or a definition declares it: what it has
//! inside, how the elements of its lists are told apart, what is owned as a whole.

use std::sync::LazyLock;

use serde_json::Value;

use super::facts::{self, Field, Shape};
use super::resource::{Behavior, Resource};
use super::structural::{ListType, Schema};

/// Fields that every root or embedded object has whatever its schema says.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// `metadata` of every object.
static METADATA: LazyLock<Option<Shape>> =
    LazyLock::new(|| facts::find("meta/v1.ObjectMeta").map(Shape::Struct));

/// What is known of the value at a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Node<'a> {
    /// Of a built-in type, with the field it is the value of.
    Builtin(&'a Shape, Option<&'a Field>),
    /// Of a definition's schema; `object` for one with apiVersion, kind and metadata.
    Custom { schema: &'a Schema, object: bool },
    /// Nothing is declared: maps are taken apart, lists are not.
    Unknown,
}

/// How the elements of a list are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements<'a> {
    /// Not at all.
    Atomic,
    /// By their value.
    Set,
    /// By these members.
    Keys(&'a [String]),
}

impl<'a> From<&'a ListType> for Elements<'a> {
    fn from(list: &'a ListType) -> Self {
        match list {
            ListType::Atomic => Self::Atomic,
            ListType::Set => Self::Set,
            ListType::Map(keys) => Self::Keys(keys),
        }
    }
}

impl<'a> Node<'a> {
    /// The objects of a resource.
    pub(super) fn root(resource: &'a Resource) -> Self {
        match &resource.behavior {
            Behavior::Custom(c) => Self::Custom {
                schema: &c.schema,
                object: true,
            },
            Behavior::Builtin { .. } => match resource.shape() {
                Some(id) => Self::Builtin(&facts::get(id).shape, None),
                None => Self::Unknown,
            },
        }
    }

    /// The member `key` of an object.
    pub(super) fn member(self, key: &str) -> Self {
        match self {
            Self::Builtin(Shape::Struct(id) | Shape::SchemaOr(_, id), _) => {
                match facts::get(*id).json_field(key) {
                    Some(f) => Self::Builtin(&f.shape, Some(f)),
                    None => Self::Unknown,
                }
            }
            Self::Builtin(Shape::Map(inner), _) => Self::Builtin(inner, None),
            Self::Custom { object: true, .. } if key == "metadata" => match &*METADATA {
                Some(shape) => Self::Builtin(shape, None),
                None => Self::Unknown,
            },
            Self::Custom { schema, .. } => {
                match schema.properties.get(key).or(schema.additional.as_deref()) {
                    Some(inner) => Self::Custom {
                        schema: inner,
                        object: inner.embedded,
                    },
                    None => Self::Unknown,
                }
            }
            _ => Self::Unknown,
        }
    }

    /// The elements of a list.
    pub(super) fn element(self) -> Self {
        match self {
            Self::Builtin(Shape::List(inner), _) => Self::Builtin(inner, None),
            Self::Custom { schema, .. } => match schema.items.as_deref() {
                Some(inner) => Self::Custom {
                    schema: inner,
                    object: inner.embedded,
                },
                None => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }

    /// The type declares a member of this name; the keys of a map are not declared.
    pub(super) fn declares(self, key: &str) -> bool {
        match self {
            Self::Builtin(Shape::Struct(id) | Shape::SchemaOr(_, id), _) => {
                facts::get(*id).json_field(key).is_some()
            }
            Self::Custom { schema, object } => {
                schema.properties.contains_key(key) || (object && OBJECT_FIELDS.contains(&key))
            }
            _ => false,
        }
    }

    /// An object is owned as a whole.
    pub(super) fn is_whole(self) -> bool {
        match self {
            Self::Builtin(_, Some(f)) if f.atomic => true,
            Self::Builtin(Shape::Struct(id), _) => facts::get(*id).atomic,
            Self::Custom { schema, .. } => schema.atomic_map,
            _ => false,
        }
    }

    /// A typed server never leaves this object out, not even when it is empty.
    pub(super) fn is_always_there(self) -> bool {
        match self {
            Self::Builtin(Shape::Struct(_), Some(f)) => !f.pointer,
            Self::Builtin(Shape::Struct(_), None) => true,
            _ => false,
        }
    }

    /// A typed server never leaves this list or map out, but writes null.
    pub(super) fn is_null_when_absent(self) -> bool {
        match self {
            Self::Builtin(Shape::List(_) | Shape::Map(_), Some(f)) => !f.omit_empty,
            _ => false,
        }
    }

    /// How the elements of a list are told apart.
    pub(super) fn elements(self) -> Elements<'a> {
        match self {
            Self::Builtin(_, Some(f)) => (&f.list).into(),
            Self::Custom { schema, .. } => (&schema.list_type).into(),
            _ => Elements::Atomic,
        }
    }

    /// What an absent member stands for where it is a key of a list element.
    pub(super) fn key_default(self, key: &str) -> Option<Value> {
        match self {
            Self::Builtin(Shape::Struct(id), _) => {
                facts::get(*id).json_field(key)?.default.map(Value::from)
            }
            Self::Custom { schema, .. } => schema.properties.get(key)?.default.clone(),
            _ => None,
        }
    }
}
