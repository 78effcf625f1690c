//! Converts a configuration to the format of upstream's `/configz`, which shows the names of the Go struct
//! fields: usually the name in the configuration file with a capital first letter.

use serde_json::{Map, Value};

/// Exceptions in the names of one configuration's fields.
#[derive(Debug, Clone, Copy)]
pub struct GoNames {
    /// Names of fields that hold maps or API objects: the keys inside are not renamed.
    pub as_they_are: &'static [&'static str],
    /// Names for which a capital first letter is not enough: the name in the file, and the name in Go.
    pub special: &'static [(&'static str, &'static str)],
    /// Names of numeric fields that are shown as 0 if they are unset, not as null.
    pub zero: &'static [&'static str],
}

impl GoNames {
    /// Returns `value` with the names of Go's struct fields.
    #[must_use]
    pub fn rename_fields(&self, value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|field| self.field(field));
                fields.collect::<Map<_, _>>().into()
            }
            Value::Array(list) => list
                .into_iter()
                .map(|value| self.rename_fields(value))
                .collect(),
            other => other,
        }
    }

    /// Converts one field: its name to Go's, and its value to what Go shows, with all fields inside renamed.
    fn field(&self, (key, value): (String, Value)) -> (String, Value) {
        let is = |names: &[&str]| names.contains(&key.as_str());
        let value = match value {
            // Go shows an unset list as null, and an unset number as 0.
            Value::Array(list) if list.is_empty() => Value::Null,
            Value::Null if is(self.zero) => 0.into(),
            value if is(self.as_they_are) => value,
            value => self.rename_fields(value),
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
