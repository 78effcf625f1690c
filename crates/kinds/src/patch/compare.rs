//! Field sets of objects, and differences between two objects.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::fields::{self, MAX_DEPTH, Set, normalize};
use crate::resource::Resource;
use crate::schema::{ListType, Schema};

/// Metadata that never has an owner.
const UNOWNED: [&str; 8] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
];

/// The part of a kind's objects that a request can change, and so own.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteScope<'a> {
    pub(super) resource: &'a Resource,
    /// Subresource, `None` for the object itself.
    pub(super) part: Option<&'a str>,
}

impl WriteScope<'_> {
    fn has(&self, key: &str) -> bool {
        match (key, self.part) {
            ("apiVersion" | "kind", _) => false,
            ("metadata", Some("status")) => !self.resource.is_custom(),
            ("metadata", _) => true,
            ("status", None) => !self.resource.has_status(),
            (_, Some("status")) => key == "status",
            _ => true,
        }
    }

    fn has_metadata(&self, key: &str) -> bool {
        if UNOWNED.contains(&key) {
            return false;
        }
        self.part != Some("status") || !self.resource.keeps_in_status(key)
    }

    fn root(&self) -> &Schema {
        &self.resource.schema
    }
}

/// Differences of a second object from a first.
#[derive(Debug, Default)]
pub(super) struct Diff {
    /// Fields that have another value in the second object, or exist only there.
    pub(super) changed: Set,
    /// Fields that exist only in the first object.
    pub(super) removed: Set,
}

impl Diff {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    fn put(&mut self, key: String, (changed, removed): Sides) {
        if let Some(set) = changed {
            self.changed.insert(key.clone(), Value::Object(set));
        }
        if let Some(set) = removed {
            self.removed.insert(key, Value::Object(set));
        }
    }

    fn sides(mut self, changed: bool, removed: bool) -> Sides {
        let (c, r) = (
            normalize(&mut self.changed, changed),
            normalize(&mut self.removed, removed),
        );
        (c.then_some(self.changed), r.then_some(self.removed))
    }
}

/// Changed and removed fields at and below a path.
type Sides = (Option<Set>, Option<Set>);

/// Compares two objects within a scope; without a first object, everything is new.
pub(super) fn compare(scope: WriteScope<'_>, old: Option<&Value>, new: &Value) -> Diff {
    let root = scope.root();
    let mut out = Diff::default();
    for (key, a, b) in merged_members(old.and_then(Value::as_object), new.as_object()) {
        if !scope.has(key) {
            continue;
        }
        if key != "metadata" {
            out.put(
                format!("f:{key}"),
                values(root.member(key), a, b, (0, false)),
            );
            continue;
        }
        let node = root.member(key);
        let mut inner = Diff::default();
        for (key, a, b) in
            merged_members(a.and_then(Value::as_object), b.and_then(Value::as_object))
        {
            if scope.has_metadata(key) {
                inner.put(
                    format!("f:{key}"),
                    values(node.member(key), a, b, (0, false)),
                );
            }
        }
        out.put("f:metadata".to_owned(), inner.sides(false, false));
    }
    out
}

/// Returns the members of two objects, each key once.
fn merged_members<'a>(
    a: Option<&'a Map<String, Value>>,
    b: Option<&'a Map<String, Value>>,
) -> impl Iterator<Item = (&'a String, Option<&'a Value>, Option<&'a Value>)> {
    let first = a.into_iter().flatten();
    let shared = first.map(move |(k, v)| (k, Some(v), b.and_then(|b| b.get(k))));
    let second = b.into_iter().flatten();
    let new = second.filter(move |(k, _)| a.is_none_or(|a| !a.contains_key(*k)));
    shared.chain(new.map(|(k, v)| (k, None, Some(v))))
}

/// Shape of a value: decides how it is split into fields.
enum ValueShape<'v> {
    Nothing,
    Leaf,
    Object(&'v Map<String, Value>),
    List(&'v [Value]),
}

fn kind<'v>(node: &Schema, value: Option<&'v Value>) -> ValueShape<'v> {
    match value {
        None | Some(Value::Null) => ValueShape::Nothing,
        Some(Value::Object(map)) if !node.is_whole() => ValueShape::Object(map),
        Some(Value::Array(items)) if node.list_type != ListType::Atomic => ValueShape::List(items),
        Some(_) => ValueShape::Leaf,
    }
}

fn leaf(old: Option<&Value>, new: Option<&Value>) -> Sides {
    match (old, new) {
        (Some(a), Some(b)) if a == b => (None, None),
        (_, Some(_)) => (Some(Set::new()), None),
        (Some(_), None) => (None, Some(Set::new())),
        (None, None) => (None, None),
    }
}

/// Compares two values. `deleted` is true if the parent does not exist in the second object, so that its
/// default members do not exist there either.
fn values(
    node: &Schema,
    mut old: Option<&Value>,
    mut new: Option<&Value>,
    (depth, deleted): (usize, bool),
) -> Sides {
    static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
    if depth > MAX_DEPTH {
        return leaf(old, new);
    }
    let absent = if node.is_always_there() {
        Some(&*EMPTY)
    } else {
        node.is_null_when_absent().then_some(&Value::Null)
    };
    old = old.or(absent);
    new = new.or(absent.filter(|_| !deleted));
    let (a, b) = match (kind(node, old), kind(node, new)) {
        (ValueShape::Object(a), ValueShape::Object(b)) => (Some(a), Some(b)),
        (ValueShape::Object(a), ValueShape::Nothing) => (Some(a), None),
        (ValueShape::Nothing, ValueShape::Object(b)) => (None, Some(b)),
        (ValueShape::List(a), ValueShape::List(b)) => return lists(node, old, new, a, b, depth),
        (ValueShape::List(a), ValueShape::Nothing) => return lists(node, old, new, a, &[], depth),
        (ValueShape::Nothing, ValueShape::List(b)) => return lists(node, old, new, &[], b, depth),
        (ValueShape::Nothing | ValueShape::Leaf, ValueShape::Nothing | ValueShape::Leaf) => {
            return leaf(old, new);
        }
        // The value has another kind now.
        _ => {
            let (_, removed) = values(node, old, None, (depth + 1, false));
            let (changed, _) = values(node, None, new, (depth + 1, false));
            return (changed, removed);
        }
    };
    if a.is_none_or(Map::is_empty) && b.is_none_or(Map::is_empty) {
        return leaf(old, new);
    }
    let mut out = Diff::default();
    let deleted = b.is_none();
    for (key, a, b) in merged_members(a, b) {
        let sides = values(node.member(key), a, b, (depth + 1, deleted));
        if sides != (None, None) {
            out.put(format!("f:{key}"), sides);
        }
    }
    out.sides(old.is_none(), new.is_none())
}

/// Compares two lists by the ids of their elements.
fn lists(
    node: &Schema,
    old: Option<&Value>,
    new: Option<&Value>,
    a: &[Value],
    b: &[Value],
    depth: usize,
) -> Sides {
    if (a.is_empty() && b.is_empty()) || a == b {
        return leaf(old, new);
    }
    let element = node.element();
    let (a, b) = (fields::index(node, a), fields::index(node, b));
    let before: std::collections::HashMap<&str, &Value> =
        a.iter().map(|(id, v)| (id.as_str(), *v)).collect();
    let mut out = Diff::default();
    let mut retained = std::collections::HashSet::new();
    for (id, v) in &b {
        retained.insert(id.as_str());
        let was = before.get(id.as_str()).copied();
        out.put(id.clone(), item(element, was, Some(v), depth));
    }
    for (id, v) in a.iter().filter(|(id, _)| !retained.contains(id.as_str())) {
        out.put(id.clone(), item(element, Some(v), None, depth));
    }
    out.sides(old.is_none(), new.is_none())
}

/// Compares two elements of a list. An element never exists by default.
fn item(node: &Schema, old: Option<&Value>, new: Option<&Value>, depth: usize) -> Sides {
    let (mut changed, mut removed) = values(node, old, new, (depth + 1, new.is_none()));
    match (old, new) {
        (None, Some(_)) => {
            let set = changed.get_or_insert_default();
            normalize(set, true);
        }
        (Some(_), None) => {
            let set = removed.get_or_insert_default();
            normalize(set, true);
        }
        _ => {}
    }
    (changed, removed)
}

/// Returns the fields that an applier of `object` claims.
pub(super) fn fields_of(scope: WriteScope<'_>, object: &Value) -> Set {
    let root = scope.root();
    let mut out = Set::new();
    for (key, v) in object.as_object().into_iter().flatten() {
        if !scope.has(key) {
            continue;
        }
        let node = root.member(key);
        if key != "metadata" {
            put(
                &mut out,
                format!("f:{key}"),
                node,
                v,
                !root.declares(key),
                0,
            );
            continue;
        }
        let mut inner = Set::new();
        for (key, v) in v.as_object().into_iter().flatten() {
            if scope.has_metadata(key) {
                put(
                    &mut inner,
                    format!("f:{key}"),
                    node.member(key),
                    v,
                    false,
                    0,
                );
            }
        }
        if !inner.is_empty() {
            out.insert("f:metadata".to_owned(), Value::Object(inner));
        }
    }
    out
}

/// Adds the fields of `value`; `member`: the path itself counts even if there are fields below it.
fn put(out: &mut Set, key: String, node: &Schema, value: &Value, member: bool, depth: usize) {
    let mut set = Set::new();
    let mut here = member;
    match value {
        _ if depth > MAX_DEPTH => here = true,
        Value::Object(map) if !node.is_whole() => {
            here |= map.is_empty();
            for (k, v) in map {
                let declared = node.declares(k);
                put(
                    &mut set,
                    format!("f:{k}"),
                    node.member(k),
                    v,
                    !declared,
                    depth + 1,
                );
            }
        }
        Value::Array(items) if node.list_type != ListType::Atomic => {
            for (id, v) in fields::index(node, items) {
                put(&mut set, id, node.element(), v, true, depth + 1);
            }
        }
        _ => here = true,
    }
    if normalize(&mut set, here) {
        out.insert(key, Value::Object(set));
    }
}
