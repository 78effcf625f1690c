//! A configuration as `/configz` of upstream's programs shows it: by the names of Go's fields, which are
//! those of the file with a capital.

use serde_json::{Map, Value};

/// Exceptions in the names of one configuration's fields.
#[derive(Debug, Clone, Copy)]
pub struct GoNames {
    /// Maps and API objects: their keys are not fields of the configuration.
    pub as_they_are: &'static [&'static str],
    /// Names that are not those of the file with a capital: as in the file, and in Go.
    pub special: &'static [(&'static str, &'static str)],
    /// Numbers that are 0 when they are unset.
    pub zero: &'static [&'static str],
}

impl GoNames {
    /// `value` with Go's names.
    #[must_use]
    pub fn of(&self, value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|field| self.field(field));
                fields.collect::<Map<_, _>>().into()
            }
            Value::Array(list) => list.into_iter().map(|value| self.of(value)).collect(),
            other => other,
        }
    }

    fn field(&self, (key, value): (String, Value)) -> (String, Value) {
        let is = |names: &[&str]| names.contains(&key.as_str());
        let value = match value {
            // Unset lists and numbers of Go.
            Value::Array(list) if list.is_empty() => Value::Null,
            Value::Null if is(self.zero) => 0.into(),
            value if is(self.as_they_are) => value,
            value => self.of(value),
        };
        let special = self.special.iter().find(|(name, _)| *name == key);
        let name = match special {
            Some((_, name)) => (*name).to_owned(),
            None => {
                let mut letters = key.chars();
                let first = letters.next().map(|letter| letter.to_ascii_uppercase());
                first.into_iter().chain(letters).collect()
            }
        };
        (name, value)
    }
}
