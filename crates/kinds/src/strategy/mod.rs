//! Strategies of each kind: defaulting, fields that clients may not set, validation, conversion.

mod autoscaler;
mod convert;
mod defaults;
mod lifecycle;
mod validate;

use serde_json::{Map, Value};

use super::resource::Resource;

impl Resource {
    /// Applies the API defaults; also brings quantities and timestamps to their canonical form.
    pub fn default_object(&self, object: &mut Value) {
        if !self.is_custom() {
            self.schema.canonicalize(object);
            defaults::default_object(self, object);
            // A typed server writes these even if they are empty.
            if let Some(root) = object.as_object_mut() {
                for part in ["spec", "status"] {
                    if self.schema.member(part).is_always_there() {
                        let absent = || Value::Object(Map::new());
                        root.entry(part).or_insert_with(absent);
                    }
                }
            }
        } else {
            self.schema.apply_defaults(object);
        }
    }
}

/// Returns the object at `key`, created if absent; `None` if the value is not an object.
fn child<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let slot = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut()
}

/// Sets `key` if it is absent (or null).
fn set_default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    match map.get_mut(key) {
        Some(Value::Null) | None => {
            map.insert(key.to_owned(), value.into());
        }
        Some(_) => {}
    }
}

/// Sets a default like [`set_default`], and replaces an empty string or zero, too: for fields that are not
/// pointers in Go, where absent and empty are equal.
fn set_default_nonzero(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let empty = match map.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Number(n)) => n.as_i64() == Some(0),
        Some(_) => false,
    };
    if empty {
        map.insert(key.to_owned(), value.into());
    }
}

/// Returns the JSON objects in the list at `key`.
fn objects_mut<'a>(
    map: &'a mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    map.get_mut(key)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests;
