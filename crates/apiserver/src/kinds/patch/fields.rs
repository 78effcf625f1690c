//! Field sets of server-side apply (`fieldsV1`) and the schema facts they depend on.
//!
//! A set is the JSON form itself: an object whose keys are path elements (`f:name`,
//! `k:{"key":"value"}`, `v:"value"`) and whose values are the sets below; `{}` ends a path and the
//! key `.` says that the element itself belongs to the set.

use serde_json::{Map, Value};

use crate::kinds::facts::{self, Field, Merge, Shape};
use crate::kinds::resource::{Behavior, Resource};
use crate::kinds::structural::{ListType, Schema};

/// A field set.
pub(super) type Set = Map<String, Value>;

/// Metadata that no manager owns.
const UNOWNED: [&str; 11] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "selfLink",
];

/// Built-in structs and maps that are owned as a whole.
const ATOMIC: [&str; 5] = [
    "meta/v1.LabelSelector",
    "core/v1.SecretKeySelector",
    "core/v1.ConfigMapKeySelector",
    "core/v1.ObjectReference",
    "core/v1.NodeSelector",
];

/// What is known of the value at a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Context<'a> {
    Builtin(&'a Shape, Option<&'a Field>),
    Custom(&'a Schema),
    Metadata(&'a Shape),
    Unknown,
}

/// How the elements of a list are told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Elements {
    Atomic,
    Set,
    Keys(Vec<String>),
}

impl<'a> Context<'a> {
    pub(super) fn root(resource: &'a Resource, shape: &'a Option<Shape>) -> Self {
        match (&resource.behavior, shape) {
            (Behavior::Custom(c), _) => Self::Custom(&c.schema),
            (_, Some(shape)) => Self::Builtin(shape, None),
            _ => Self::Unknown,
        }
    }

    pub(super) fn member(self, key: &str) -> Self {
        match self {
            Self::Builtin(Shape::Struct(id), _) | Self::Metadata(Shape::Struct(id)) => {
                match facts::get(*id).json_field(key) {
                    Some(f) => Self::Builtin(&f.shape, Some(f)),
                    None => Self::Unknown,
                }
            }
            Self::Builtin(Shape::Map(inner), _) => Self::Builtin(inner, None),
            Self::Custom(s) => match s.properties.get(key).or(s.additional.as_deref()) {
                Some(inner) => Self::Custom(inner),
                None => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }

    pub(super) fn element(self) -> Self {
        match self {
            Self::Builtin(Shape::List(inner), _) => Self::Builtin(inner, None),
            Self::Custom(s) => s.items.as_deref().map_or(Self::Unknown, Self::Custom),
            _ => Self::Unknown,
        }
    }

    fn atomic_object(self) -> bool {
        match self {
            Self::Builtin(Shape::Struct(id), _) => ATOMIC.contains(&facts::get(*id).name),
            Self::Builtin(_, Some(f)) => f.json == "nodeSelector",
            Self::Custom(s) => s.atomic_map,
            _ => false,
        }
    }

    pub(super) fn elements(self) -> Elements {
        match self {
            Self::Builtin(_, Some(f)) => match &f.merge {
                Merge::Default => Elements::Atomic,
                Merge::Set => Elements::Set,
                Merge::Key(key) => Elements::Keys(compound(f.json, key)),
            },
            Self::Custom(s) => match &s.list_type {
                ListType::Atomic => Elements::Atomic,
                ListType::Set => Elements::Set,
                ListType::Map(keys) => Elements::Keys(keys.clone()),
            },
            _ => Elements::Atomic,
        }
    }
}

/// Three lists are merged by one key in patches but told apart by two here.
fn compound(field: &str, key: &'static str) -> Vec<String> {
    let second = match (field, key) {
        ("ports", "containerPort" | "port") => "protocol",
        ("topologySpreadConstraints", "topologyKey") => "whenUnsatisfiable",
        _ => return vec![key.to_owned()],
    };
    vec![key.to_owned(), second.to_owned()]
}

/// The `k:` path element of a list element.
pub(super) fn key_element(keys: &[String], item: &Value) -> String {
    let mut id = Map::new();
    for key in keys {
        let value = match item.get(key) {
            Some(v) => v.clone(),
            None if key == "protocol" => "TCP".into(),
            None => continue,
        };
        id.insert(key.clone(), value);
    }
    format!("k:{}", Value::Object(id))
}

/// The path element of a member of a set.
pub(super) fn value_element(item: &Value) -> String {
    format!("v:{item}")
}

/// The fields of an object that a manager can own.
pub(super) fn of_object(root: Context<'_>, object: &Value) -> Set {
    let mut out = Set::new();
    for (key, v) in object.as_object().into_iter().flatten() {
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                let meta = facts::find("meta/v1.ObjectMeta").map(Shape::Struct);
                let context = meta.as_ref().map_or(Context::Unknown, Context::Metadata);
                let mut inner = Set::new();
                for (key, v) in v.as_object().into_iter().flatten() {
                    if !UNOWNED.contains(&key.as_str()) {
                        inner.insert(format!("f:{key}"), of(context.member(key), v, 0));
                    }
                }
                if !inner.is_empty() {
                    out.insert("f:metadata".to_owned(), Value::Object(inner));
                }
            }
            _ => {
                out.insert(format!("f:{key}"), of(root.member(key), v, 0));
            }
        }
    }
    out
}

fn of(context: Context<'_>, value: &Value, depth: usize) -> Value {
    let mut out = Set::new();
    match value {
        _ if depth > 100 => {}
        Value::Object(map) if !context.atomic_object() => {
            for (key, v) in map {
                out.insert(format!("f:{key}"), of(context.member(key), v, depth + 1));
            }
        }
        Value::Array(items) => match context.elements() {
            Elements::Atomic => {}
            Elements::Set => {
                for item in items {
                    out.insert(value_element(item), Value::Object(Map::new()));
                }
            }
            Elements::Keys(keys) => {
                for item in items {
                    let mut inner = match of(context.element(), item, depth + 1) {
                        Value::Object(map) => map,
                        _ => Map::new(),
                    };
                    inner.insert(".".to_owned(), Value::Object(Map::new()));
                    out.insert(key_element(&keys, item), Value::Object(inner));
                }
            }
        },
        _ => {}
    }
    Value::Object(out)
}

/// True if the set ends here: the whole value is owned.
pub(super) fn is_leaf(set: &Value) -> bool {
    set.as_object().is_none_or(|m| m.is_empty())
}

/// The paths of `set`, each ending at a leaf, without the `.` markers.
pub(super) fn leaves(set: &Set) -> Vec<Vec<String>> {
    fn walk(set: &Set, path: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
        for (key, inner) in set {
            if key == "." {
                continue;
            }
            path.push(key.clone());
            match inner.as_object() {
                Some(m) if m.keys().any(|k| k != ".") => walk(m, path, out),
                _ => out.push(path.clone()),
            }
            path.pop();
        }
    }
    let mut out = Vec::new();
    walk(set, &mut Vec::new(), &mut out);
    out
}

/// Whether `set` owns the path: it has it, ends above it, or (for `below`) has something below it.
pub(super) fn owns(set: &Set, path: &[String], below: bool) -> bool {
    let mut current = set;
    for (i, element) in path.iter().enumerate() {
        match current.get(element) {
            None => return false,
            Some(inner) if is_leaf(inner) => return i + 1 == path.len() || !below,
            Some(Value::Object(inner)) => current = inner,
            Some(_) => return false,
        }
    }
    below || current.contains_key(".")
}

/// Takes a path out of a set, and branches that become empty by it.
pub(super) fn remove(set: &mut Set, path: &[String]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        set.remove(first);
        return;
    }
    if let Some(Value::Object(inner)) = set.get_mut(first)
        && !inner.is_empty()
    {
        remove(inner, rest);
        if inner.is_empty() {
            set.remove(first);
        }
    }
}

/// A path as messages show it: `.spec.containers[name="a"].image`.
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
