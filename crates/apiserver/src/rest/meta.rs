//! Accessors of the metadata of untyped objects.

use crate::store::Entry;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

pub(crate) use koord_kinds::meta::{at, int_at, is_true, list_at, name, namespace, str_at as text};

/// Returns `metadata.uid`.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

/// Returns `metadata.resourceVersion`.
pub(crate) fn resource_version(object: &Value) -> &str {
    text(object, &["metadata", "resourceVersion"])
}

/// Returns true if the object is being deleted.
pub(crate) fn deleting(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some_and(|v| !v.is_null())
}

/// Returns `metadata.finalizers`.
pub(crate) fn finalizers(object: &Value) -> Vec<String> {
    at(object, &["metadata", "finalizers"])
        .and_then(Value::as_array)
        .map(|a| {
            a.iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
}

/// Replaces `metadata.finalizers`; an empty list removes the field.
pub(crate) fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    let meta = section(object, "metadata");
    if finalizers.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".to_owned(), finalizers.to_vec().into());
    }
}

/// Returns the object below `key`, created if it is missing or not an object.
pub(crate) fn section<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let root = as_object(object);
    as_object(root.entry(key).or_insert(Value::Null))
}

/// Returns `value` as a map; anything else is replaced by an empty one first.
pub(crate) fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// Sets a field of `metadata`.
pub(crate) fn set(object: &mut Value, key: &str, value: impl Into<Value>) {
    section(object, "metadata").insert(key.to_owned(), value.into());
}

/// An entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) controller: bool,
    pub(crate) block_owner_deletion: bool,
}

/// Returns `metadata.ownerReferences`.
pub(crate) fn owners(object: &Value) -> Vec<Owner> {
    let Some(list) = at(object, &["metadata", "ownerReferences"]).and_then(Value::as_array) else {
        return Vec::new();
    };
    let flag = |o: &Value, key: &str| o.get(key).and_then(Value::as_bool).unwrap_or(false);
    list.iter()
        .map(|o| Owner {
            api_version: text(o, &["apiVersion"]).to_owned(),
            kind: text(o, &["kind"]).to_owned(),
            name: text(o, &["name"]).to_owned(),
            uid: text(o, &["uid"]).to_owned(),
            controller: flag(o, "controller"),
            block_owner_deletion: flag(o, "blockOwnerDeletion"),
        })
        .collect()
}

/// Owner references and deletion state of an entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerInfo {
    /// `metadata.ownerReferences`.
    pub(crate) owners: Vec<Owner>,
    /// True if the object is being deleted.
    pub(crate) deleting: bool,
}

impl OwnerInfo {
    /// Parses only these fields of an entry, which is far cheaper than parsing all of it.
    pub(crate) fn from_entry(entry: &Entry) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Metadata {
            owner_references: Option<Vec<Owner>>,
            deletion_timestamp: Option<IgnoredAny>,
        }
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        match serde_json::from_slice::<Object>(&entry.bytes) {
            Ok(Object { metadata }) => Self {
                owners: metadata.owner_references.unwrap_or_default(),
                deleting: metadata.deletion_timestamp.is_some(),
            },
            // The typed parse fails, for example, on a null in the list.
            Err(_) => {
                let object = entry.value();
                Self {
                    owners: owners(&object),
                    deleting: deleting(&object),
                }
            }
        }
    }
}

/// Formats a time as RFC 3339 with whole seconds, like `metav1.Time`.
pub(crate) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Sets a condition by type; the transition time changes only with the status. Returns whether anything but
/// the time changed.
pub(crate) fn set_condition(
    status: &mut Map<String, Value>,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let list = status
        .entry("conditions")
        .or_insert_with(|| Value::Array(Vec::new()));
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(list) = list.as_array_mut() else {
        return false;
    };
    let matches = list.iter_mut().find(|c| text(c, &["type"]) == kind);
    let fresh = matches.is_none();
    let condition = match matches {
        Some(c) => c,
        None => {
            list.push(serde_json::json!({ "type": kind }));
            match list.last_mut() {
                Some(c) => c,
                None => return false,
            }
        }
    };
    let same_status = text(condition, &["status"]) == value;
    let unchanged = !fresh
        && same_status
        && text(condition, &["reason"]) == reason
        && text(condition, &["message"]) == message;
    if unchanged {
        return false;
    }
    let condition = as_object(condition);
    condition.insert("status".to_owned(), value.into());
    for (key, text) in [("reason", reason), ("message", message)] {
        if text.is_empty() {
            condition.remove(key);
        } else {
            condition.insert(key.to_owned(), text.into());
        }
    }
    if fresh || !same_status {
        condition.insert("lastTransitionTime".to_owned(), time(now).into());
    }
    true
}

/// Returns a condition by type.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    at(object, &["status", "conditions"])?
        .as_array()?
        .iter()
        .find(|c| text(c, &["type"]) == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Index, Key, Store, StoreOptions, TableId};
    use serde_json::json;

    #[tokio::test]
    async fn owners_from_bytes_equal_owners_from_object() {
        let options = StoreOptions::memory(koord_app::Clock::system());
        let store = Store::open(options).await.unwrap();
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u",
            "controller": true, "blockOwnerDeletion": true});
        let metadata = [
            json!({}),
            json!({"deletionTimestamp": null, "ownerReferences": null}),
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [owner]}),
            json!({"ownerReferences": [{"kind": "A", "controller": null}, owner, {"later": 1}]}),
        ];
        let mut counts = Vec::new();
        for (number, metadata) in metadata.into_iter().enumerate() {
            let (key, table) = (Key::cluster(number.to_string()), TableId::new("", "a"));
            let object = json!({"metadata": metadata, "spec": {"ownerReferences": [{}]}});
            let entry = store.create(table, key, object.clone(), Index::default());
            let owned = OwnerInfo::from_entry(&entry.await.unwrap());
            assert_eq!(owned.owners, owners(&object), "{object}");
            assert_eq!(owned.deleting, deleting(&object), "{object}");
            counts.push((owned.owners.len(), owned.deleting));
        }
        assert_eq!(counts, [(0, false), (0, false), (1, true), (3, false)]);
    }
}
