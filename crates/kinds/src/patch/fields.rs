//! Field sets of server-side apply (`fieldsV1`).
//!
//! A set is the JSON form itself, so that the entries of an object are changed in place: an object whose keys
//! are path elements (`f:name`, `k:{"key":"value"}`, `v:"value"`) and whose values are the sets below. A path
//! belongs to the set if its value is `{}` or has the key `.`.

use serde_json::{Map, Value};

use crate::schema::{ListType, Schema};

/// A field set.
pub(super) type Set = Map<String, Value>;

/// Marks a path with others below it as a member.
const HERE: &str = ".";
/// Deepest nesting of sets; deeper fields have no owner.
pub(super) const MAX_DEPTH: usize = 100;

/// Returns true if the path of `set` is a member.
fn is_member(set: &Set) -> bool {
    set.is_empty() || set.contains_key(HERE)
}

/// Makes the path of `set` itself a member of the set if `member` is true, and no member otherwise. Returns
/// false if no member remains, neither the path itself nor a path below it: the caller then drops `set`.
pub(super) fn normalize(set: &mut Set, member: bool) -> bool {
    set.remove(HERE);
    if set.is_empty() {
        return member;
    }
    if member {
        set.insert(HERE.to_owned(), Value::Object(Set::new()));
    }
    true
}

/// Returns true if the path of a node is a member.
pub(super) fn owned(node: Option<&Value>) -> bool {
    node.and_then(Value::as_object).is_some_and(is_member)
}

/// Returns true if a node has anything below it.
pub(super) fn has_below(node: Option<&Value>) -> bool {
    node.and_then(Value::as_object)
        .is_some_and(|m| m.keys().any(|k| k != HERE))
}

/// Adds `other` to `into`. Takes time proportional to the smaller of the two at each level, so that many sets
/// are added in linear time.
pub(super) fn union(into: &mut Set, mut other: Set) {
    if other.len() > into.len() {
        let here = into.remove(HERE);
        std::mem::swap(into, &mut other);
        into.remove(HERE);
        into.extend(here.map(|here| (HERE.to_owned(), here)));
    }
    for (key, value) in other {
        let Value::Object(theirs) = value else {
            continue;
        };
        if key == HERE {
            continue;
        }
        match into.get_mut(&key) {
            Some(Value::Object(mine)) => {
                let member = is_member(mine) || is_member(&theirs);
                union(mine, theirs);
                normalize(mine, member);
            }
            _ => {
                into.insert(key, Value::Object(theirs));
            }
        }
    }
}

/// Removes the members of `other` from `from`, but not the fields below them. Takes time proportional to
/// `from`: a small set of many managers costs little, regardless of the number of changes.
pub(super) fn subtract(from: &mut Set, other: &Set) {
    from.retain(|key, mine| {
        let (Value::Object(mine), Some(Value::Object(theirs))) = (mine, other.get(key)) else {
            return true;
        };
        if key == HERE {
            return true;
        }
        let member = is_member(mine) && !is_member(theirs);
        subtract(mine, theirs);
        normalize(mine, member)
    });
}

/// Returns the paths that are members of both, parents before their children.
pub(super) fn common(a: &Set, b: &Set) -> Vec<Vec<String>> {
    fn walk(a: &Set, b: &Set, path: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
        for (key, value) in a {
            let (Value::Object(x), Some(Value::Object(y))) = (value, b.get(key)) else {
                continue;
            };
            if key == HERE {
                continue;
            }
            path.push(key.clone());
            if is_member(x) && is_member(y) {
                out.push(path.clone());
            }
            path.pop();
        }
        for (key, value) in a {
            if let (Value::Object(x), Some(Value::Object(y)), true) =
                (value, b.get(key), key != HERE)
            {
                path.push(key.clone());
                walk(x, y, path, out);
                path.pop();
            }
        }
    }
    let mut out = Vec::new();
    walk(a, b, &mut Vec::new(), &mut out);
    out
}

/// Returns true if `value` is a set: nested objects whose keys are path elements.
pub(super) fn is_valid(value: &Value) -> bool {
    fn element(key: &str) -> bool {
        match key.split_once(':') {
            Some(("f", _)) => true,
            Some(("k", id)) => serde_json::from_str::<Map<String, Value>>(id).is_ok(),
            Some(("v", v)) => serde_json::from_str::<Value>(v).is_ok(),
            Some(("i", n)) => n.parse::<i32>().is_ok(),
            _ => key == HERE,
        }
    }
    fn set(value: &Value, depth: usize) -> bool {
        depth < MAX_DEPTH
            && value
                .as_object()
                .is_some_and(|m| m.iter().all(|(k, v)| element(k) && set(v, depth + 1)))
    }
    set(value, 0)
}

/// Returns the path element of an element of a list; `None` if it has none of the keys.
pub(super) fn element(list: &Schema, item: &Value) -> Option<String> {
    match &list.list_type {
        ListType::Atomic => None,
        ListType::Set => Some(format!("v:{item}")),
        ListType::Map(keys) => {
            let element = list.element();
            let mut id = Map::new();
            for key in keys {
                let provided = item.get(key).filter(|v| !v.is_null()).cloned();
                let default = || element.member(key).default.as_deref().cloned();
                if let Some(v) = provided.or_else(default) {
                    id.insert(key.clone(), v);
                }
            }
            (!id.is_empty()).then(|| format!("k:{}", Value::Object(id)))
        }
    }
}

/// Returns the elements of a list with their path elements, such as `k:{"name":"a"}`. Of several with the
/// same path element, only the first is returned.
pub(super) fn index<'v>(list: &Schema, items: &'v [Value]) -> Vec<(String, &'v Value)> {
    let mut observed = std::collections::HashSet::new();
    items
        .iter()
        .filter_map(|v| Some((element(list, v)?, v)))
        .filter(|(id, _)| observed.insert(id.clone()))
        .collect()
}

/// Formats a path for messages: `.spec.containers[name="a"].image`.
pub(super) fn display(path: &[String]) -> String {
    let mut out = String::new();
    for element in path {
        if let Some(name) = element.strip_prefix("f:") {
            out.push('.');
            out.push_str(name);
        } else if let Some(id) = element.strip_prefix("k:") {
            let id: Map<String, Value> = serde_json::from_str(id).unwrap_or_default();
            let parts: Vec<String> = id.iter().map(|(k, v)| format!("{k}={v}")).collect();
            out.push_str(&format!("[{}]", parts.join(",")));
        } else if let Some(v) = element.strip_prefix("v:") {
            out.push_str(&format!("[={v}]"));
        }
    }
    out
}
