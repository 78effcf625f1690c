//! Strategic merge patch: a merge patch that merges certain lists by a key.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use super::PatchError;
use crate::schema::{MergeStrategy, Schema};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

/// Deeper nesting is refused, to protect the stack.
const MAX_DEPTH: usize = 128;

pub(super) fn merge(schema: &Schema, original: &Value, patch: &Value) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::Malformed(
            "a strategic merge patch must be an object".to_owned(),
        ));
    };
    let original = original.as_object().cloned().unwrap_or_default();
    let merged = merge_map(schema, original, patch, 0)?;
    Ok(Value::Object(merged))
}

fn directive(patch: &Map<String, Value>) -> Result<Option<&str>, PatchError> {
    match patch.get(PATCH) {
        None => Ok(None),
        Some(Value::String(s)) if matches!(s.as_str(), "merge" | "replace" | "delete") => {
            Ok(Some(s))
        }
        Some(other) => Err(PatchError::Broken(format!(
            "unknown patch type: {} in map: {}",
            format_go(other),
            format_go_map(patch)
        ))),
    }
}

/// Merges `patch` into an object, member by member, with its directives.
fn merge_map(
    schema: &Schema,
    mut original: Map<String, Value>,
    patch: &Map<String, Value>,
    depth: usize,
) -> Result<Map<String, Value>, PatchError> {
    if depth > MAX_DEPTH {
        return Err(PatchError::Failed(
            "the patch is nested too deeply".to_owned(),
        ));
    }
    match directive(patch)? {
        Some("replace") => {
            let mut out = patch.clone();
            out.remove(PATCH);
            return Ok(out);
        }
        Some("delete") => return Ok(Map::new()),
        _ => {}
    }
    if let Some(keep) = patch.get(RETAIN) {
        let keep = keep
            .as_array()
            .ok_or_else(|| PatchError::Failed(format!("{RETAIN} must be a list")))?;
        let keep: HashSet<&str> = keep.iter().filter_map(Value::as_str).collect();
        original.retain(|k, _| keep.contains(k.as_str()));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE) {
            let deleted = value
                .as_array()
                .ok_or_else(|| PatchError::Failed(format!("{key} must be a list")))?;
            if let Some(Value::Array(items)) = original.get_mut(field) {
                let deleted: HashSet<&Value> = deleted.iter().collect();
                items.retain(|item| !deleted.contains(item));
            }
        }
    }
    let server_lists: Map<String, Value> = patch
        .keys()
        .filter_map(|k| k.strip_prefix(ORDER))
        .filter_map(|f| Some((f.to_owned(), original.get(f)?.clone())))
        .collect();
    let ordered = |key: &str| patch.contains_key(&format!("{ORDER}{key}"));
    for (key, value) in patch {
        if key == PATCH || key == RETAIN || key.starts_with(ORDER) || key.starts_with(DELETE) {
            continue;
        }
        if value.is_null() {
            original.remove(key);
            continue;
        }
        let inner = schema.member(key);
        let merged = match value {
            Value::Object(p) if !inner.replace => {
                let old = match original.remove(key) {
                    Some(Value::Object(old)) => old,
                    _ => Map::new(),
                };
                Value::Object(merge_map(inner, old, p, depth + 1)?)
            }
            Value::Array(p) => {
                let old = match original.remove(key) {
                    Some(Value::Array(old)) => old,
                    _ => Vec::new(),
                };
                let merge_key = match inner.merge {
                    MergeStrategy::Key(k) => Some(k),
                    MergeStrategy::Set => None,
                    MergeStrategy::Default => {
                        original.insert(key.clone(), value.clone());
                        continue;
                    }
                };
                // A patch without an order of its own implies that of its list.
                let server = (!ordered(key)).then(|| ids(&old, merge_key));
                let merged = match merge_key {
                    Some(k) => merge_list(inner.element(), k, old, p, depth + 1)?,
                    None => union(old, p),
                };
                Value::Array(match server {
                    Some(server) => reorder(merged, &ids(p, merge_key), &server, merge_key),
                    None => merged,
                })
            }
            other => other.clone(),
        };
        original.insert(key.clone(), merged);
    }
    for (key, order) in patch {
        let Some(name) = key.strip_prefix(ORDER) else {
            continue;
        };
        let order = order
            .as_array()
            .ok_or_else(|| PatchError::Failed(format!("{key} must be a list")))?;
        let merge_key = match schema.member(name).merge {
            MergeStrategy::Key(k) => Some(k),
            MergeStrategy::Set => None,
            MergeStrategy::Default => continue,
        };
        let server = server_lists
            .get(name)
            .and_then(Value::as_array)
            .map_or(&[][..], |v| v);
        if let Some(Value::Array(items)) = original.get_mut(name) {
            let old = std::mem::take(items);
            let (order, server) = (ids(order, merge_key), ids(server, merge_key));
            *items = reorder(old, &order, &server, merge_key);
        }
    }
    Ok(original)
}

/// Returns the identity of a list element.
fn id(item: &Value, merge_key: Option<&str>) -> Value {
    match merge_key {
        Some(k) => item.get(k).cloned().unwrap_or(Value::Null),
        None => item.clone(),
    }
}

fn ids(items: &[Value], merge_key: Option<&str>) -> Vec<Value> {
    items.iter().map(|v| id(v, merge_key)).collect()
}

/// Formats a value as Go does.
fn format_go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Object(map) => format_go_map(map),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(format_go).collect();
            format!("[{}]", items.join(" "))
        }
        other => other.to_string(),
    }
}

fn format_go_map(map: &Map<String, Value>) -> String {
    let members: Vec<String> = map
        .iter()
        .map(|(k, v)| format!("{k}:{}", format_go(v)))
        .collect();
    format!("map[{}]", members.join(" "))
}

/// Appends the elements of `patch` that `old` does not have, each once.
fn union(mut old: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let mut unique: HashSet<&Value> = old.iter().collect();
    let new: Vec<&Value> = patch.iter().filter(|item| unique.insert(item)).collect();
    old.extend(new.into_iter().cloned());
    old
}

/// A list with the positions of each merge key, which avoids searching the list.
struct KeyedList<'a> {
    merge_key: &'a str,
    /// The elements; `None` for deleted ones.
    items: Vec<Option<Value>>,
    /// The positions of the elements with a key, in ascending order.
    positions: HashMap<Value, VecDeque<usize>>,
}

impl<'a> KeyedList<'a> {
    fn new(merge_key: &'a str, items: Vec<Value>) -> Self {
        let mut list = Self {
            merge_key,
            items: Vec::with_capacity(items.len()),
            positions: HashMap::new(),
        };
        for item in items {
            list.push(item);
        }
        list
    }

    fn push(&mut self, item: Value) {
        if let Some(key) = item.get(self.merge_key) {
            let positions = self.positions.entry(key.clone()).or_default();
            positions.push_back(self.items.len());
        }
        self.items.push(Some(item));
    }

    /// Deletes every element with `key`.
    fn delete(&mut self, key: &Value) {
        for position in self.positions.remove(key).into_iter().flatten() {
            self.items[position] = None;
        }
    }

    /// Replaces the first element with the merge key value `key` by the result of `change`. Without such an
    /// element, appends the result of `change` for an empty one.
    fn change(
        &mut self,
        key: &Value,
        change: impl FnOnce(Map<String, Value>) -> Result<Map<String, Value>, PatchError>,
    ) -> Result<(), PatchError> {
        let Some(positions) = self.positions.get_mut(key) else {
            let new = change(Map::new())?;
            self.push(Value::Object(new));
            return Ok(());
        };
        let Some(at) = positions.front().copied() else {
            return Ok(());
        };
        let base = match self.items[at].take() {
            Some(Value::Object(base)) => base,
            _ => Map::new(),
        };
        let changed = change(base)?;
        // A null key in the patch removes the key from the element.
        if changed.get(self.merge_key) != Some(key) {
            positions.pop_front();
            if positions.is_empty() {
                self.positions.remove(key);
            }
        }
        self.items[at] = Some(Value::Object(changed));
        Ok(())
    }

    fn into_items(self) -> Vec<Value> {
        self.items.into_iter().flatten().collect()
    }
}

/// Merges a list of objects by `merge_key`.
fn merge_list(
    element: &Schema,
    merge_key: &str,
    mut old: Vec<Value>,
    patch: &[Value],
    depth: usize,
) -> Result<Vec<Value>, PatchError> {
    let mut maps = Vec::with_capacity(patch.len());
    let mut replace_all = false;
    for item in patch {
        let Value::Object(map) = item else {
            return Err(PatchError::Failed(format!(
                "expected an object with merge key {merge_key}, got {item}"
            )));
        };
        match directive(map)? {
            Some("replace") => replace_all = true,
            kind => maps.push((map, kind == Some("delete"))),
        }
    }
    if replace_all {
        old.clear();
    }
    let mut list = KeyedList::new(merge_key, old);
    for (map, delete) in maps {
        let key = map.get(merge_key).ok_or_else(|| {
            PatchError::Broken(format!(
                "map: {} does not contain declared merge key: {merge_key}",
                format_go_map(map)
            ))
        })?;
        if delete {
            list.delete(key);
        } else {
            list.change(key, |base| merge_map(element, base, map, depth))?;
        }
    }
    Ok(list.into_items())
}

/// Sorts the elements that `order` lists (`$setElementOrder`) into its order; the others keep their position
/// relative to `server`, the server's list before the patch.
fn reorder(
    items: Vec<Value>,
    order: &[Value],
    server: &[Value],
    merge_key: Option<&str>,
) -> Vec<Value> {
    let (order, server) = (ranks(order), ranks(server));
    let ranked = items.into_iter().map(|item| {
        let id = id(&item, merge_key);
        (order.get(&id).copied(), server.get(&id).copied(), item)
    });
    let (mut named, others): (Vec<_>, Vec<_>) = ranked.partition(|(rank, ..)| rank.is_some());
    named.sort_by_key(|(rank, ..)| *rank);
    let mut out = Vec::with_capacity(named.len() + others.len());
    let mut named = named.into_iter().peekable();
    let mut others = others.into_iter().peekable();
    loop {
        let named_first = match (named.peek(), others.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((_, Some(n), _)), Some((_, Some(r), _))) => n < r,
            (Some(_), Some(_)) => true,
        };
        let next = if named_first {
            named.next()
        } else {
            others.next()
        };
        out.extend(next.map(|(.., item)| item));
    }
}

/// Returns the position of each value in a list; the first one for duplicates.
fn ranks(list: &[Value]) -> HashMap<&Value, usize> {
    let mut ranks = HashMap::with_capacity(list.len());
    for (rank, value) in list.iter().enumerate() {
        ranks.entry(value).or_insert(rank);
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::types;
    use serde_json::json;

    fn pod(original: Value, patch: Value) -> Result<Value, PatchError> {
        let pod = types::find("core/v1.Pod").unwrap();
        merge(&pod.schema, &original, &patch)
    }

    #[test]
    fn merges_lists_by_key() {
        let old = json!({"spec": {
            "containers": [{"name": "a", "image": "x", "args": ["1", "2"]}, {"name": "b"}],
            "tolerations": [{"key": "k"}],
        }});
        let out = pod(
            old.clone(),
            json!({"spec": {
                "containers": [{"name": "b", "image": "y"}, {"name": "a", "args": ["3"]}],
                "tolerations": [{"key": "other"}],
            }}),
        );
        assert_eq!(
            out.unwrap(),
            json!({"spec": {
                "containers": [
                    {"name": "b", "image": "y"}, {"name": "a", "image": "x", "args": ["3"]}],
                "tolerations": [{"key": "other"}],
            }})
        );
        let deleted = pod(
            old.clone(),
            json!({"spec": {"containers": [{"$patch": "delete", "name": "a"}]}}),
        );
        assert_eq!(
            deleted.unwrap()["spec"]["containers"],
            json!([{"name": "b"}])
        );
        let replaced = pod(
            old.clone(),
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
        );
        assert_eq!(
            replaced.unwrap()["spec"]["containers"],
            json!([{"name": "c"}])
        );
        assert!(
            pod(
                old.clone(),
                json!({"spec": {"containers": [{"image": "x"}]}})
            )
            .is_err()
        );
        assert!(pod(old, json!({"spec": {"$patch": "burn"}})).is_err());
    }

    #[test]
    fn directives() {
        let old = json!({"metadata": {"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"}}});
        let out = pod(
            old,
            json!({"metadata": {
                "finalizers": ["c", "a"],
                "$deleteFromPrimitiveList/finalizers": ["b"],
                "$setElementOrder/finalizers": ["c", "a"],
                "labels": {"x": null, "z": "3"},
            }}),
        );
        assert_eq!(
            out.unwrap(),
            json!({"metadata": {"finalizers": ["c", "a"], "labels": {"y": "2", "z": "3"}}})
        );
        let out = pod(
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
            json!({"spec": {"volumes": [
                {"name": "v", "emptyDir": {}, "$retainKeys": ["name", "emptyDir"]}]}}),
        );
        assert_eq!(
            out.unwrap(),
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}})
        );
        let out = pod(
            json!({"spec": {"nodeSelector": {"a": "b"}}}),
            json!({"spec": {"nodeSelector": {"$patch": "replace", "c": "d"}}}),
        );
        assert_eq!(out.unwrap(), json!({"spec": {"nodeSelector": {"c": "d"}}}));
    }

    #[test]
    fn set_element_order_keeps_server_only_items_in_place() {
        let old = json!({"spec": {"containers": [{"name": "a"}, {"name": "s"}, {"name": "b"}]}});
        let out = pod(
            old,
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}],
                "containers": [{"name": "n"}],
            }}),
        )
        .unwrap();
        let names: Vec<&str> = out["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["s", "b", "n", "a"]);
    }

    #[test]
    fn new_object_in_patch_loses_nulls_and_directives() {
        let out = pod(
            json!({}),
            json!({"spec": {"a": null, "securityContext": {"runAsUser": null, "fsGroup": 1}}}),
        );
        assert_eq!(
            out.unwrap(),
            json!({"spec": {"securityContext": {"fsGroup": 1}}})
        );
    }
}
