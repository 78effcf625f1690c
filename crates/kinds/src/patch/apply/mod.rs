//! Server-side apply: merges the fields of a manager and tracks field ownership.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::compare::{self, WriteScope};
use super::fields::{self, MAX_DEPTH, Set};
use super::managers::{self, APPLY, Managers, Writer, field_set};
use crate::meta;
use crate::resource::Resource;
use crate::schema::{ListType, Schema};
use crate::status::{ApiError, quoted};

/// Manager of the fields of an object without a record of ownership.
const BEFORE: &str = "before-first-apply";
/// Manager that takes over the fields of its own client-side apply.
const KUBECTL: &str = "kubectl";
/// Annotation in which client-side apply keeps the applied document.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns 500, as a Kubernetes API server does, for a document that does not match its type.
fn untyped(resource: &Resource, applied: &Value, problem: &str) -> ApiError {
    let object = format!("{}/{}", meta::namespace(applied), meta::name(applied));
    let (version, kind) = (resource.api_version(), &resource.kind);
    let description = format!("{object}; {version}, Kind={kind}");
    let problem = format!("failed to create typed patch object ({description}): {problem}");
    ApiError::new(500, "", problem)
}

/// Checks that the schema declares every field of an applied document: other fields cannot have owners.
///
/// # Errors
/// 500 with the undeclared fields, as from a Kubernetes API server.
pub fn check_declared(resource: &Resource, applied: &Value) -> Result<(), ApiError> {
    let unknown = resource.undeclared_fields(applied);
    let messages: Vec<String> = unknown
        .iter()
        .map(|path| format!(".{path}: field not declared in schema"))
        .collect();
    match &messages[..] {
        [] => Ok(()),
        [message] => Err(untyped(resource, applied, message)),
        all => {
            let all = format!("errors:\n  {}", all.join("\n  "));
            Err(untyped(resource, applied, &all))
        }
    }
}

/// Applies `applied` for `writer`; `live` is `None` if the object does not exist yet.
///
/// # Errors
/// 409 with one `FieldManagerConflict` cause per field that another manager owns, unless `force`; 500, as
/// from a Kubernetes API server, if two elements of a list have the same keys.
pub fn apply(
    resource: &Resource,
    live: Option<&Value>,
    applied: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, ApiError> {
    let scope = WriteScope {
        resource,
        part: writer.part,
    };
    let mut applied = Cow::Borrowed(applied);
    if !resource.is_custom() {
        resource.schema.canonicalize(applied.to_mut());
    }
    let root = &*resource.schema;
    check_duplicates(root, &applied, &mut Vec::new())
        .map_err(|problem| untyped(resource, &applied, &problem))?;
    let managers = match live {
        None => Managers::default(),
        Some(live) => match Managers::from_object(live) {
            existing if existing.is_empty() => {
                let manager = BEFORE;
                managers::adopt(resource, live, Writer { manager, ..writer })
            }
            existing => existing,
        },
    };
    let operation = Apply {
        scope,
        root,
        live,
        applied: &applied,
        writer,
    };
    let (mut out, managers) = match operation.run(managers.clone(), force) {
        Ok(result) => result,
        Err(conflicts) => match live.filter(|_| writer.manager == KUBECTL) {
            None => return Err(conflict_error(&conflicts)),
            Some(live) => {
                let own = last_applied(scope, live);
                let foreign: Vec<Conflict> = conflicts
                    .into_iter()
                    .filter(|c| !has(&own, &c.path))
                    .collect();
                if !foreign.is_empty() {
                    return Err(conflict_error(&foreign));
                }
                operation
                    .run(managers, true)
                    .map_err(|conflicts| conflict_error(&conflicts))?
            }
        },
    };
    if writer.manager == KUBECTL {
        keep_last_applied(live, &applied, &mut out);
    }
    managers.store(&mut out);
    Ok(out)
}

struct Apply<'a> {
    scope: WriteScope<'a>,
    root: &'a Schema,
    live: Option<&'a Value>,
    applied: &'a Value,
    writer: Writer<'a>,
}

impl Apply<'_> {
    /// Merges the applied document and updates the managers. Returns the conflicts unless `force` is set.
    fn run(&self, mut managers: Managers, force: bool) -> Result<(Value, Managers), Vec<Conflict>> {
        let empty = Value::Object(Map::new());
        let live = self.live.unwrap_or(&empty);
        let own = managers.applier(self.writer.manager, self.writer.part);
        let claimed = compare::fields_of(self.scope, self.applied);
        let mut out = merge(self.root, live, self.applied, 0);
        if let Some(last) = own.and_then(|at| field_set(managers.get(at)?)) {
            let mut owned = claimed.clone();
            // The applier always owns the name.
            let name = json!({"f:metadata": {"f:name": {}}});
            if let Value::Object(name) = name {
                fields::union(&mut owned, name);
            }
            for (_, entry) in managers.entries().filter(|(i, _)| Some(*i) != own) {
                fields::union(&mut owned, field_set(entry).cloned().unwrap_or_default());
            }
            give_up(self.root, &mut out, last, Some(&owned), false, false);
        }
        let diff = compare::compare(self.scope, self.live, &out);
        if !force {
            let conflicts: Vec<Conflict> = managers
                .entries()
                .filter(|(i, _)| Some(*i) != own)
                .flat_map(|(_, entry)| conflicts(entry, &diff.changed))
                .collect();
            if !conflicts.is_empty() {
                return Err(conflicts);
            }
        }
        managers.take(&diff, own);
        let version = self.scope.resource.api_version();
        managers.set_applied(own, claimed, version, self.writer, !diff.is_empty());
        Ok((out, managers))
    }
}

/// A field that another manager owns and that would change.
struct Conflict {
    /// Owner, as messages show it.
    manager: String,
    path: Vec<String>,
}

fn conflicts(entry: &Value, changed: &Set) -> Vec<Conflict> {
    let paths = field_set(entry).map(|set| fields::common(set, changed));
    let text = |key: &str| meta::str_at(entry, &[key]);
    let mut manager = quoted(text("manager"));
    if !text("subresource").is_empty() {
        manager.push_str(&format!(
            " with subresource {}",
            quoted(text("subresource"))
        ));
    }
    if text("operation") != APPLY {
        manager.push_str(&format!(" using {}", text("apiVersion")));
    }
    paths
        .into_iter()
        .flatten()
        .map(|path| Conflict {
            manager: manager.clone(),
            path,
        })
        .collect()
}

/// Returns 409 with one cause per conflict, and upstream's message.
fn conflict_error(conflicts: &[Conflict]) -> ApiError {
    let message = match conflicts {
        [one] => format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager,
            fields::display(&one.path)
        ),
        many => {
            let mut by_manager: BTreeMap<&str, Vec<&Conflict>> = BTreeMap::new();
            for conflict in many {
                by_manager
                    .entry(&conflict.manager)
                    .or_default()
                    .push(conflict);
            }
            let mut lines = Vec::new();
            for (name, theirs) in by_manager {
                lines.push(format!("conflicts with {name}:"));
                let paths = theirs.iter().map(|c| fields::display(&c.path));
                lines.extend(paths.map(|path| format!("- {path}")));
            }
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
            e.cause(
                "FieldManagerConflict",
                format!("conflict with {}", c.manager),
                &fields::display(&c.path),
            )
        })
}

fn has(set: &Set, path: &[String]) -> bool {
    let Some((last, front)) = path.split_last() else {
        return false;
    };
    let mut at = Some(set);
    for element in front {
        at = at.and_then(|s| s.get(element)?.as_object());
    }
    at.is_some_and(|s| fields::owned(s.get(last)))
}

/// Returns the fields that client-side apply has set and that are unchanged since.
fn last_applied(scope: WriteScope<'_>, live: &Value) -> Set {
    let text = meta::str_at(live, &["metadata", "annotations", LAST_APPLIED]);
    let Ok(last) = serde_json::from_str::<Value>(text) else {
        return Set::new();
    };
    if meta::str_at(&last, &["apiVersion"]) != scope.resource.api_version() {
        return Set::new();
    }
    let mut set = compare::fields_of(scope, &last);
    let diff = compare::compare(scope, Some(&last), live);
    fields::subtract(&mut set, &diff.changed);
    fields::subtract(&mut set, &diff.removed);
    set
}

/// Updates the annotation of client-side apply, if the object has it.
fn keep_last_applied(live: Option<&Value>, applied: &Value, out: &mut Value) {
    let path = ["metadata", "annotations", LAST_APPLIED];
    if live.and_then(|l| meta::at(l, &path)).is_none() {
        return;
    }
    let mut applied = applied.clone();
    let inner = applied
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut);
    if let Some(annotations) = inner {
        annotations.remove(LAST_APPLIED);
    }
    let annotations = out
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.insert(LAST_APPLIED.to_owned(), format!("{applied}\n").into());
    }
}

/// Checks that an applied list has no duplicate elements.
fn check_duplicates(node: &Schema, value: &Value, path: &mut Vec<String>) -> Result<(), String> {
    match value {
        _ if path.len() > MAX_DEPTH => {}
        Value::Object(map) if !node.is_whole() => {
            for (key, v) in map {
                path.push(format!("f:{key}"));
                check_duplicates(node.member(key), v, path)?;
                path.pop();
            }
        }
        Value::Array(items) => {
            let element = node.element();
            let mut observed = HashSet::new();
            for item in items {
                let Some(id) = fields::element(node, item) else {
                    continue;
                };
                if !observed.insert(id.clone()) {
                    return Err(format!(
                        "{}: duplicate entries for key {}",
                        fields::display(path),
                        fields::display(&[id])
                    ));
                }
                path.push(id);
                check_duplicates(element, item, path)?;
                path.pop();
            }
        }
        _ => {}
    }
    Ok(())
}

fn merge(node: &Schema, live: &Value, applied: &Value, depth: usize) -> Value {
    match (live, applied) {
        _ if depth > MAX_DEPTH => applied.clone(),
        (Value::Object(old), Value::Object(new)) if !node.is_whole() => {
            let mut out = old.clone();
            for (key, v) in new {
                let merged = match old.get(key) {
                    Some(o) => merge(node.member(key), o, v, depth + 1),
                    None => v.clone(),
                };
                out.insert(key.clone(), merged);
            }
            Value::Object(out)
        }
        (Value::Array(old), Value::Array(new)) if node.list_type != ListType::Atomic => {
            Value::Array(merge_lists(node, old, new, depth))
        }
        _ => applied.clone(),
    }
}

/// Merges two lists. Elements of both are in the order in which they are applied; those of the live list
/// alone are as far to the front as their order among the others allows.
fn merge_lists(node: &Schema, live: &[Value], applied: &[Value], depth: usize) -> Vec<Value> {
    let element = node.element();
    let id = |v: &Value| fields::element(node, v);
    let applied_items: Vec<(Option<String>, &Value)> = applied.iter().map(|v| (id(v), v)).collect();
    let have: Vec<(Option<String>, &Value)> = live.iter().map(|v| (id(v), v)).collect();
    let applied_ids: HashSet<&Option<String>> = applied_items.iter().map(|(id, _)| id).collect();
    let mut old: HashMap<&Option<String>, &Value> = HashMap::with_capacity(have.len());
    for (id, v) in &have {
        old.entry(id).or_insert(v);
    }
    // The next element of both lists, from each element of the applied list on.
    let mut next = vec![None; applied_items.len()];
    let mut shared = None;
    for (at, (id, _)) in applied_items.iter().enumerate().rev() {
        if old.contains_key(id) {
            shared = Some(id);
        }
        next[at] = shared;
    }
    let mut out = Vec::with_capacity(live.len() + applied.len());
    let mut tail = have.iter().peekable();
    let mut merged = HashSet::new();
    for ((id, v), next) in applied_items.iter().zip(next) {
        while let Some((h, o)) = tail.peek() {
            if !applied_ids.contains(h) {
                out.push((*o).clone());
            } else if !merged.contains(h) && Some(h) == next {
                break;
            }
            tail.next();
        }
        merged.insert(id);
        out.push(match old.get(id) {
            Some(o) => merge(element, o, v, depth + 1),
            None => (*v).clone(),
        });
    }
    out.extend(
        tail.filter(|(h, _)| !applied_ids.contains(h))
            .map(|(_, o)| (*o).clone()),
    );
    out
}

/// Removes fields that a manager applied last, no longer applies and that have no other owner; `last` and
/// `owned` are the sets at this path. `was_listed` is true if a path above this one was in `last`,
/// `is_removed` if one of those has no owner any more.
fn give_up(
    node: &Schema,
    value: &mut Value,
    last: &Set,
    owned: Option<&Set>,
    was_listed: bool,
    is_removed: bool,
) {
    // Declared members of a type count together with the fields below them.
    let is_in = |set: Option<&Value>, declared: bool| {
        fields::owned(set) || (declared && fields::has_below(set))
    };
    let decide = |id: &str, declared: bool, inner: &Schema, child: &mut Value| -> bool {
        let Some(was) = last.get(id) else {
            return true;
        };
        let now = owned.and_then(|o| o.get(id));
        let was_here = is_in(Some(was), declared);
        let was_listed = was_listed || was_here;
        let is_removed = is_removed || (was_listed && !is_in(now, declared));
        if is_removed && was_here {
            return false;
        }
        if let Value::Object(was) = was {
            give_up(
                inner,
                child,
                was,
                now.and_then(Value::as_object),
                was_listed,
                is_removed,
            );
        }
        true
    };
    match value {
        Value::Object(map) if !node.is_whole() => {
            map.retain(|key, v| {
                decide(&format!("f:{key}"), node.declares(key), node.member(key), v)
            });
        }
        Value::Array(items) => {
            let element = node.element();
            items.retain_mut(|v| match fields::element(node, v) {
                Some(id) => decide(&id, false, element, v),
                None => true,
            });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
