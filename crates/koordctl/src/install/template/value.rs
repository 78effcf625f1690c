//! Values of templates. Maps are shared: `set` changes a map for all that hold it, as in Helm.

use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A shared map of a template.
pub(crate) type SharedMap = Rc<RefCell<BTreeMap<String, Datum>>>;

/// A value that a template works with.
#[derive(Debug, Clone)]
pub(crate) enum Datum {
    /// A missing value, or `null`.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(Rc<str>),
    /// A list.
    List(Rc<Vec<Datum>>),
    /// A map.
    Map(SharedMap),
    /// The files of the chart, with the methods `Get` and `Glob`.
    Files,
}

impl Datum {
    /// Creates a text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(Rc::from(text.into()))
    }

    /// Creates a list.
    pub(crate) fn list(items: Vec<Self>) -> Self {
        Self::List(Rc::new(items))
    }

    /// Creates a map.
    pub(crate) fn map(entries: impl IntoIterator<Item = (String, Self)>) -> Self {
        Self::Map(Rc::new(RefCell::new(entries.into_iter().collect())))
    }

    /// Creates the value of a JSON value.
    pub(crate) fn from_json(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => number.as_i64().map_or_else(
                || Self::Float(number.as_f64().unwrap_or_default()),
                Self::Int,
            ),
            Value::String(text) => Self::text(text.as_str()),
            Value::Array(items) => Self::list(items.iter().map(Self::from_json).collect()),
            Value::Object(map) => Self::map(
                map.iter()
                    .map(|(key, value)| (key.clone(), Self::from_json(value))),
            ),
        }
    }

    /// Returns the JSON value; that of the chart's files is `null`.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Null | Self::Files => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::from(*value),
            Self::Float(value) => Value::from(*value),
            Self::Text(text) => Value::String(text.to_string()),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Map(map) => {
                let map = map.borrow();
                let entries = map
                    .iter()
                    .map(|(key, value)| (key.clone(), value.to_json()));
                Value::Object(entries.collect())
            }
        }
    }

    /// Returns true unless the value is missing, false, zero or empty.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(map) => !map.borrow().is_empty(),
            Self::Files => true,
        }
    }

    /// Returns the text that a template writes for the value.
    pub(crate) fn display(&self) -> String {
        match self {
            Self::Null | Self::Files => String::new(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(text) => text.to_string(),
            Self::List(_) | Self::Map(_) => self.to_json().to_string(),
        }
    }

    /// Returns Go's name for the kind of the value.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "invalid",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::List(_) => "slice",
            Self::Map(_) => "map",
            Self::Files => "struct",
        }
    }

    /// Returns true if both values are the same; numbers are compared by value.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self.number(), other.number()) {
            (Some(number), Some(other)) => number == other,
            (None, None) => self.kind() == other.kind() && self.to_json() == other.to_json(),
            _ => false,
        }
    }

    /// Returns the number; `None` for other values.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            #[allow(clippy::cast_precision_loss, reason = "ports and counts are small")]
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }
}
