//! Merging one partial setting over another.
//!
//! The rule is Koordinator's `util.MergeCfg`: fields that the upper setting leaves unset keep the value of
//! the lower one; scalars and lists replace; objects and maps merge key by key. `false` and `0` count as set.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Merges `upper` over `base`. A `null` in `upper` counts as unset.
pub fn overlay(base: &mut Value, upper: &Value) {
    match upper {
        Value::Null => {}
        Value::Object(upper) => {
            if !base.is_object() {
                *base = Value::Object(Map::new());
            }
            for (key, value) in upper.iter().filter(|(_, value)| !value.is_null()) {
                overlay(&mut base[key.as_str()], value);
            }
        }
        upper => base.clone_from(upper),
    }
}

/// Returns `base` with every field that `upper` sets. A field is unset if its type omits it in JSON.
///
/// # Errors
/// The merged JSON does not fit the type; impossible for the setting types of this crate.
pub fn merged<T: Serialize + DeserializeOwned>(base: &T, upper: &T) -> serde_json::Result<T> {
    let mut value = serde_json::to_value(base)?;
    overlay(&mut value, &serde_json::to_value(upper)?);
    serde_json::from_value(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(mut base: Value, upper: &Value, want: &Value) {
        overlay(&mut base, upper);
        assert_eq!(&base, want);
    }

    #[test]
    fn set_values_replace_and_unset_ones_do_not() {
        check(
            json!({"a": 1, "b": true}),
            &json!({"b": false}),
            &json!({"a": 1, "b": false}),
        );
        check(json!({"a": 1}), &json!({"a": null}), &json!({"a": 1}));
        check(json!({"a": 1}), &json!({"a": 0}), &json!({"a": 0}));
        check(json!({"l": [1, 2]}), &json!({"l": [3]}), &json!({"l": [3]}));
        check(
            json!({"o": {"x": 1}}),
            &json!({"o": {"y": 2}}),
            &json!({"o": {"x": 1, "y": 2}}),
        );
        check(
            json!({}),
            &json!({"o": {"y": null, "z": 1}}),
            &json!({"o": {"z": 1}}),
        );
    }
}
