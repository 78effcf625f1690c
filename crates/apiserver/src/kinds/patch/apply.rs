//! Server-side apply: merging what a manager wants, with ownership of fields.
//!
//! Only applying managers are recorded in `metadata.managedFields`; ordinary updates neither own
//! nor take over fields.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::fields::{self, Context, Elements, Set};
use crate::kinds::facts::Shape;
use crate::kinds::meta;
use crate::kinds::quantity::format_time;
use crate::kinds::resource::Resource;
use crate::kinds::status::{ApiError, quoted};

/// Applies `applied` on behalf of `manager`; `live` is `None` when the object does not exist yet.
///
/// # Errors
/// 409 with one `FieldManagerConflict` cause per field that another manager owns, unless `force`.
pub fn apply(
    resource: &Resource,
    live: Option<&Value>,
    applied: &Value,
    manager: &str,
    force: bool,
    now: Timestamp,
) -> Result<Value, ApiError> {
    let shape = resource.shape().map(Shape::Struct);
    let root = Context::root(resource, &shape);
    let wanted = fields::of_object(root, applied);
    let mut entries: Vec<Value> = live
        .and_then(|l| meta::at(l, &["metadata", "managedFields"]))
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let mine = entries.iter().position(|e| {
        meta::str_at(e, &["manager"]) == manager && meta::str_at(e, &["operation"]) == "Apply"
    });
    let before = mine.map(|at| set_of(&entries[at])).unwrap_or_default();

    if let Some(live) = live {
        let conflicts = conflicts(root, live, applied, &wanted, &entries, mine);
        if !conflicts.is_empty() && !force {
            return Err(conflict_error(&conflicts));
        }
        for c in &conflicts {
            let mut set = set_of(&entries[c.entry]);
            fields::remove(&mut set, &c.path);
            entries[c.entry]["fieldsV1"] = Value::Object(set);
        }
    }

    let empty = Value::Object(Map::new());
    let mut out = merge(root, live.unwrap_or(&empty), applied, 0);
    let others: Vec<Set> = entries
        .iter()
        .enumerate()
        .filter(|(i, _)| Some(*i) != mine)
        .map(|(_, e)| set_of(e))
        .collect();
    drop_abandoned(root, &mut out, &before, &wanted, &others);
    record(resource, &mut entries, mine, wanted, manager, now);
    entries.retain(|e| !set_of(e).is_empty());
    if let Some(metadata) = meta::metadata_mut(&mut out) {
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
    Ok(out)
}

fn set_of(entry: &Value) -> Set {
    entry
        .get("fieldsV1")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

/// Puts the manager's fields into the list. An unchanged set keeps its time, so that applying the
/// same thing again changes nothing.
fn record(
    resource: &Resource,
    entries: &mut Vec<Value>,
    mine: Option<usize>,
    wanted: Set,
    manager: &str,
    now: Timestamp,
) {
    let api_version = resource.api_version();
    if let Some(at) = mine
        && set_of(&entries[at]) == wanted
        && meta::str_at(&entries[at], &["apiVersion"]) == api_version
    {
        return;
    }
    let entry = json!({
        "manager": manager,
        "operation": "Apply",
        "apiVersion": api_version,
        "time": format_time(now, 0),
        "fieldsType": "FieldsV1",
        "fieldsV1": wanted,
    });
    match mine {
        Some(at) => entries[at] = entry,
        None => entries.push(entry),
    }
}

struct Conflict {
    entry: usize,
    manager: String,
    version: String,
    path: Vec<String>,
}

fn conflicts(
    root: Context<'_>,
    live: &Value,
    applied: &Value,
    wanted: &Set,
    entries: &[Value],
    mine: Option<usize>,
) -> Vec<Conflict> {
    let mut out = Vec::new();
    for path in fields::leaves(wanted) {
        let (have, want) = (get(root, live, &path), get(root, applied, &path));
        if have == want || have.is_none() {
            continue;
        }
        for (i, entry) in entries.iter().enumerate().filter(|(i, _)| Some(*i) != mine) {
            if fields::owns(&set_of(entry), &path, true) {
                out.push(Conflict {
                    entry: i,
                    manager: meta::str_at(entry, &["manager"]).to_owned(),
                    version: meta::str_at(entry, &["apiVersion"]).to_owned(),
                    path: path.clone(),
                });
            }
        }
    }
    out
}

fn conflict_error(conflicts: &[Conflict]) -> ApiError {
    let text = |c: &Conflict| format!("conflict with {} using {}", quoted(&c.manager), c.version);
    let message = match conflicts {
        [one] => {
            format!(
                "Apply failed with 1 conflict: {}: {}",
                text(one),
                fields::display(&one.path)
            )
        }
        many => {
            let lines: Vec<String> = many
                .iter()
                .map(|c| format!("{}:\n- {}", text(c), fields::display(&c.path)))
                .collect();
            format!(
                "Apply failed with {} conflicts: {}",
                many.len(),
                lines.join("\n")
            )
        }
    };
    conflicts
        .iter()
        .fold(ApiError::new(409, "Conflict", message), |e, c| {
            e.cause("FieldManagerConflict", text(c), &fields::display(&c.path))
        })
}

/// The value at a path of a field set.
fn get<'a>(root: Context<'_>, value: &'a Value, path: &[String]) -> Option<&'a Value> {
    let mut current = value;
    let mut context = root;
    for element in path {
        if let Some(name) = element.strip_prefix("f:") {
            current = current.get(name)?;
            context = context.member(name);
        } else {
            let keys = context.elements();
            current = current
                .as_array()?
                .iter()
                .find(|v| names(&keys, v, element))?;
            context = context.element();
        }
    }
    Some(current)
}

/// Whether a list element is the one that a path element means.
fn names(elements: &Elements, item: &Value, element: &str) -> bool {
    match elements {
        Elements::Keys(keys) => fields::key_element(keys, item) == element,
        Elements::Set | Elements::Atomic => fields::value_element(item) == element,
    }
}

fn merge(context: Context<'_>, live: &Value, applied: &Value, depth: usize) -> Value {
    match (live, applied) {
        _ if depth > 100 => applied.clone(),
        (Value::Object(old), Value::Object(new)) => {
            let mut out = old.clone();
            for (key, v) in new {
                let merged = match old.get(key) {
                    Some(o) => merge(context.member(key), o, v, depth + 1),
                    None => v.clone(),
                };
                out.insert(key.clone(), merged);
            }
            Value::Object(out)
        }
        (Value::Array(old), Value::Array(new)) => match context.elements() {
            Elements::Atomic => applied.clone(),
            Elements::Set => {
                let mut out = old.clone();
                out.extend(new.iter().filter(|v| !old.contains(v)).cloned());
                Value::Array(out)
            }
            Elements::Keys(keys) => {
                let mut out = old.clone();
                for item in new {
                    let id = fields::key_element(&keys, item);
                    match out.iter_mut().find(|o| fields::key_element(&keys, o) == id) {
                        Some(o) => *o = merge(context.element(), o, item, depth + 1),
                        None => out.push(item.clone()),
                    }
                }
                Value::Array(out)
            }
        },
        _ => applied.clone(),
    }
}

/// Removes what the manager applied earlier, does not apply any more and nobody else owns.
fn drop_abandoned(
    root: Context<'_>,
    object: &mut Value,
    before: &Set,
    wanted: &Set,
    others: &[Set],
) {
    let mut gone = Vec::new();
    abandoned(before, wanted, others, &mut Vec::new(), &mut gone);
    for path in gone {
        delete(root, object, &path);
    }
}

/// The highest paths in `before` of which nothing is in `wanted` or in one of `others`.
fn abandoned(
    before: &Set,
    wanted: &Set,
    others: &[Set],
    path: &mut Vec<String>,
    out: &mut Vec<Vec<String>>,
) {
    for (key, inner) in before {
        if key == "." {
            continue;
        }
        path.push(key.clone());
        let touched = |s: &Set| fields::owns(s, path, true);
        if !touched(wanted) && !others.iter().any(touched) {
            // Plain members without a `.` go leaf by leaf: a parent nobody applied stays.
            match inner.as_object() {
                Some(m) if !m.is_empty() && !m.contains_key(".") => {
                    abandoned(m, wanted, others, path, out);
                }
                _ => out.push(path.clone()),
            }
        } else if let Value::Object(inner) = inner {
            abandoned(inner, wanted, others, path, out);
        }
        path.pop();
    }
}

fn delete(context: Context<'_>, value: &mut Value, path: &[String]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if let Some(name) = first.strip_prefix("f:") {
        let Some(map) = value.as_object_mut() else {
            return;
        };
        if rest.is_empty() {
            map.remove(name);
        } else if let Some(inner) = map.get_mut(name) {
            delete(context.member(name), inner, rest);
        }
        return;
    }
    let elements = context.elements();
    let Some(items) = value.as_array_mut() else {
        return;
    };
    if rest.is_empty() {
        items.retain(|v| !names(&elements, v, first));
    } else if let Some(item) = items.iter_mut().find(|v| names(&elements, v, first)) {
        delete(context.element(), item, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Registry;

    fn deployments() -> std::sync::Arc<Resource> {
        Registry::builtin()
            .find("apps", "v1", "deployments")
            .unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn web(replicas: Option<i64>, containers: Value) -> Value {
        let mut o = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"a": "1"}},
            "spec": {"template": {"spec": {"containers": containers}}}});
        if let Some(n) = replicas {
            o["spec"]["replicas"] = n.into();
        }
        o
    }

    #[test]
    fn merges_conflicts_and_gives_up_fields() {
        let r = deployments();
        let one = json!([{"name": "c", "image": "i:1"}, {"name": "side", "image": "s"}]);
        let first = apply(&r, None, &web(Some(2), one), "a", false, now()).unwrap();
        let set = &first["metadata"]["managedFields"][0]["fieldsV1"];
        assert_eq!(set["f:spec"]["f:replicas"], json!({}));
        assert!(set["f:metadata"].get("f:name").is_none());

        // Another manager sets another field of the same container and agrees on the image.
        let other = web(
            None,
            json!([{"name": "c", "image": "i:1", "workingDir": "/"}]),
        );
        let second = apply(&r, Some(&first), &other, "b", false, now()).unwrap();
        assert_eq!(
            second["spec"]["template"]["spec"]["containers"][0]["workingDir"],
            "/"
        );

        // It may not change the image.
        let clash = web(None, json!([{"name": "c", "image": "i:2"}]));
        let e = apply(&r, Some(&second), &clash, "b", false, now()).unwrap_err();
        assert_eq!(e.code, 409);
        assert_eq!(
            e.message,
            "Apply failed with 1 conflict: conflict with \"a\" using apps/v1: .spec.template.spec.containers[name=\"c\"].image"
        );
        let forced = apply(&r, Some(&second), &clash, "b", true, now()).unwrap();
        let containers = &forced["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[0]["image"], "i:2");
        assert!(
            containers[0].get("workingDir").is_none(),
            "b no longer applies it"
        );

        // `a` gives up replicas and the second container; its labels it shares with b.
        let less = web(None, json!([{"name": "c"}]));
        let third = apply(&r, Some(&forced), &less, "a", false, now()).unwrap();
        assert!(third["spec"].get("replicas").is_none());
        let names = third["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0]["image"], "i:2");
    }

    #[test]
    fn applying_again_changes_nothing() {
        let r = deployments();
        let want = web(
            Some(1),
            json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]),
        );
        let first = apply(&r, None, &want, "a", false, now()).unwrap();
        let later = "2027-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(
            apply(&r, Some(&first), &want, "a", false, later).unwrap(),
            first
        );
    }
}
