//! Operations of controllers on objects of any kind.

use crate::rest::{Api, Object, WriteInput, WriteOptions, meta};
use crate::store::Key;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::Value;
use std::sync::Arc;

/// Alphabet of the hash: characters that are valid in a name.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Creates an object in `namespace`.
pub(super) async fn create(
    api: &Api,
    resource: &Arc<Resource>,
    namespace: &str,
    object: Value,
) -> Result<Value, ApiError> {
    let result = create_object(api, resource, namespace, object).await?;
    Ok(result.value(resource))
}

/// Like [`create`], but returns the object without converting it to a `Value`.
pub(super) async fn create_object(
    api: &Api,
    resource: &Arc<Resource>,
    namespace: &str,
    object: Value,
) -> Result<Object, ApiError> {
    let options = WriteOptions::default();
    let result = api
        .create_object(resource, namespace, WriteInput::from(object), &options)
        .await?;
    Ok(result.object)
}

/// Removes the owner references for which `remove_if` is true from an object.
pub(super) async fn drop_owners(
    api: &Api,
    resource: &Arc<Resource>,
    key: &Key,
    remove_if: impl Fn(&Value) -> bool + Send + Sync,
) -> Result<(), ApiError> {
    api.edit(resource, None, key, |old| {
        let mut new = old.clone();
        let metadata = meta::section(&mut new, "metadata");
        let Some(list) = metadata
            .get_mut("ownerReferences")
            .and_then(Value::as_array_mut)
        else {
            return Ok(None);
        };
        let before = list.len();
        list.retain(|o| !remove_if(o));
        let changed = list.len() != before;
        if list.is_empty() {
            metadata.remove("ownerReferences");
        }
        Ok(changed.then_some(new))
    })
    .await
    .map(drop)
}

/// Returns a copy without nulls, which mean the same as absent fields.
pub(super) fn strip(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k.clone(), strip(v)))
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.iter().map(strip).collect()),
        other => other.clone(),
    }
}

/// Returns a short hash of a template that is usable in names: FNV-1a of its JSON without nulls.
pub(super) fn hash(template: &Value) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in strip(template).to_string().bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
    }
    let base = ALPHABET.len() as u64;
    let mut out = String::new();
    for _ in 0..9 {
        let at = usize::try_from(hash % base).unwrap_or(0);
        out.push(char::from(ALPHABET[at]));
        hash /= base;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn template_hash_ignores_nulls() {
        let a = json!({"spec": {"x": 1, "y": null}});
        assert_eq!(hash(&a), hash(&json!({"spec": {"x": 1}})));
        assert_ne!(hash(&a), hash(&json!({"spec": {"x": 2}})));
    }
}
