//! `metadata.managedFields`: ownership of an object's fields.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::compare::{self, Diff, WriteScope};
use super::fields::{self, Set};
use crate::meta;
use crate::quantity::format_time;
use crate::resource::Resource;

/// Most updaters that have entries of their own; beyond it the oldest are merged.
const MAX_UPDATERS: usize = 10;
/// Manager name of merged entries.
const ANCIENT: &str = "ancient-changes";

/// Field manager of a change, and the part of the object that the request is about.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// Name of the field manager.
    pub manager: &'a str,
    /// Subresource, `None` for the object itself.
    pub part: Option<&'a str>,
    /// Time of the change.
    pub now: Timestamp,
}

/// Entries of `managedFields` of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Managers {
    entries: Vec<Value>,
}

/// Operations of an entry.
pub(super) const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    meta::str_at(entry, &[key])
}

/// Returns the field set of an entry, `None` if it has none.
pub(super) fn field_set(entry: &Value) -> Option<&Set> {
    entry.get("fieldsV1").and_then(Value::as_object)
}

fn set_mut(entry: &mut Value) -> Option<&mut Set> {
    entry.get_mut("fieldsV1").and_then(Value::as_object_mut)
}

/// Returns why the entry at index `at` is invalid; `None` if it is valid.
fn fault(at: usize, entry: &Value) -> Option<String> {
    if !matches!(text(entry, "operation"), APPLY | UPDATE) {
        return Some("operation must be `Apply` or `Update`".to_owned());
    }
    if text(entry, "apiVersion").is_empty() {
        return Some("apiVersion must not be empty".to_owned());
    }
    match text(entry, "fieldsType") {
        "FieldsV1" => {}
        "" => return Some(format!("missing fieldsType in managed fields entry {at}")),
        other => {
            return Some(format!(
                "invalid fieldsType {other:?} in managed fields entry {at}"
            ));
        }
    }
    let wrong = entry
        .get("fieldsV1")
        .is_some_and(|set| !fields::is_valid(set));
    wrong.then(|| format!("invalid fieldsV1 in managed fields entry {at}"))
}

/// Returns why the managed fields of an object from a webhook or client are invalid; `None` if they are
/// valid.
pub fn managed_fields_error(object: &Value) -> Option<String> {
    match meta::at(object, &["metadata", "managedFields"])? {
        Value::Null => None,
        Value::Array(entries) => entries.iter().enumerate().find_map(|(at, e)| fault(at, e)),
        _ => Some("managedFields must be a list".to_owned()),
    }
}

/// Returns true for a list by which a client resets the managed fields: empty, or with one empty entry.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}

/// Makes a reset of the managed fields distinguishable from an absent list, which decoding into a type does
/// not preserve.
pub fn preserve_reset(object: &mut Value) {
    let provided = object.pointer_mut("/metadata/managedFields");
    if let Some(list) = provided.filter(|l| is_reset(l)) {
        *list = json!([{}]);
    }
}

impl Managers {
    /// Parses `metadata.managedFields`; `None` if an entry is invalid.
    pub(super) fn decode(list: Value) -> Option<Self> {
        let Value::Array(entries) = list else {
            return None;
        };
        let valid = entries
            .iter()
            .enumerate()
            .all(|(at, e)| fault(at, e).is_none());
        valid.then_some(Self { entries })
    }

    /// Returns the entries of a stored object, which were valid when they were written.
    pub(super) fn from_object(object: &Value) -> Self {
        match meta::at(object, &["metadata", "managedFields"]) {
            Some(Value::Array(entries)) => Self {
                entries: entries.clone(),
            },
            _ => Self::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, &Value)> {
        self.entries.iter().enumerate()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Value> {
        self.entries.get(at)
    }

    /// Returns the index of the entry of an applier, which is the same in all versions.
    pub(super) fn applier(&self, manager: &str, part: Option<&str>) -> Option<usize> {
        self.entries.iter().position(|e| {
            text(e, "operation") == APPLY
                && text(e, "manager") == manager
                && text(e, "subresource") == part.unwrap_or("")
        })
    }

    /// Returns the index of the entry for plain writes by `manager` with this version and subresource.
    fn updater(&self, manager: &str, api_version: &str, part: Option<&str>) -> Option<usize> {
        self.entries.iter().position(|e| {
            text(e, "operation") == UPDATE
                && text(e, "manager") == manager
                && text(e, "apiVersion") == api_version
                && text(e, "subresource") == part.unwrap_or("")
        })
    }

    /// Deletes from all entries, except the one with index `but`, the fields that `diff` modified or removed.
    pub(super) fn take(&mut self, diff: &Diff, but: Option<usize>) {
        for (i, entry) in self.entries.iter_mut().enumerate() {
            if Some(i) != but
                && let Some(set) = set_mut(entry)
            {
                fields::subtract(set, &diff.changed);
                fields::subtract(set, &diff.removed);
            }
        }
    }

    /// Sets the fields that a manager applies.
    pub(super) fn set_applied(
        &mut self,
        at: Option<usize>,
        set: Set,
        api_version: String,
        writer: Writer<'_>,
        touch: bool,
    ) {
        match at.and_then(|i| self.entries.get_mut(i)) {
            Some(entry) => {
                if touch
                    || field_set(entry) != Some(&set)
                    || text(entry, "apiVersion") != api_version
                {
                    entry["time"] = format_time(writer.now, 0).into();
                }
                entry["apiVersion"] = api_version.into();
                entry["fieldsV1"] = Value::Object(set);
            }
            None => self
                .entries
                .push(new_entry(APPLY, set, api_version, writer)),
        }
    }

    /// Adds the fields that a manager changed by a plain write.
    fn add_updated(&mut self, changed: Set, api_version: String, writer: Writer<'_>) {
        match self.updater(writer.manager, &api_version, writer.part) {
            Some(at) => {
                let entry = &mut self.entries[at];
                entry["time"] = format_time(writer.now, 0).into();
                match set_mut(entry) {
                    Some(set) => fields::union(set, changed),
                    None => entry["fieldsV1"] = Value::Object(changed),
                }
            }
            None => {
                self.entries
                    .push(new_entry(UPDATE, changed, api_version, writer));
                self.merge_ancient();
            }
        }
    }

    /// Bounds the number of updaters: while there are too many, the oldest is merged into the next one of its
    /// version.
    fn merge_ancient(&mut self) {
        let mut updaters: Vec<usize> = (0..self.entries.len())
            .filter(|i| text(&self.entries[*i], "operation") == UPDATE)
            .collect();
        let mut excess = updaters.len().saturating_sub(MAX_UPDATERS);
        if excess == 0 {
            return;
        }
        updaters.sort_by_key(|i| (text(&self.entries[*i], "time"), *i));
        // The next younger updater of the same version, if there is one.
        let mut next = vec![None; updaters.len()];
        let mut last: HashMap<&str, usize> = HashMap::new();
        for (n, at) in updaters.iter().enumerate().rev() {
            next[n] = last.insert(text(&self.entries[*at], "apiVersion"), *at);
        }
        let mut merged = HashSet::new();
        for (older, newer) in updaters.iter().zip(next) {
            let Some(newer) = newer.filter(|_| excess > 0) else {
                continue;
            };
            excess -= 1;
            let set = set_mut(&mut self.entries[*older]).map(std::mem::take);
            merged.insert(*older);
            let into = &mut self.entries[newer];
            into["manager"] = ANCIENT.into();
            if let Some(map) = into.as_object_mut() {
                map.remove("subresource");
            }
            let set = set.unwrap_or_default();
            match set_mut(into) {
                Some(mine) => fields::union(mine, set),
                None => into["fieldsV1"] = Value::Object(set),
            }
        }
        let mut at = 0..;
        self.entries
            .retain(|_| at.next().is_none_or(|at| !merged.contains(&at)));
    }

    /// Writes the entries into an object: sorted, without those that own nothing.
    pub(super) fn store(mut self, object: &mut Value) {
        self.entries
            .retain(|e| field_set(e).is_some_and(|s| !s.is_empty()));
        let order = ["operation", "time", "manager", "apiVersion", "subresource"];
        self.entries
            .sort_by(|a, b| order.map(|k| text(a, k)).cmp(&order.map(|k| text(b, k))));
        let Some(metadata) = meta::metadata_mut(object) else {
            return;
        };
        if self.entries.is_empty() {
            metadata.remove("managedFields");
        } else {
            metadata.insert("managedFields".to_owned(), Value::Array(self.entries));
        }
    }
}

fn new_entry(operation: &str, set: Set, api_version: String, writer: Writer<'_>) -> Value {
    let mut entry = json!({
        "manager": writer.manager,
        "operation": operation,
        "apiVersion": api_version,
        "time": format_time(writer.now, 0),
        "fieldsType": "FieldsV1",
    });
    entry["fieldsV1"] = Value::Object(set);
    if let Some(part) = writer.part {
        entry["subresource"] = part.into();
    }
    entry
}

/// Records a plain write: `writer` becomes the only owner of the fields that differ between `old` and `new`.
/// The managed fields in `new` count only in a write of the object itself, and only if they are valid: an
/// empty list ends the record until the next apply, anything else leaves it as it is in `old`.
///
/// An object without a record gets none by being changed: a record begins with the object's creation, or with
/// the first apply.
pub fn track(resource: &Resource, old: Option<&Value>, new: &mut Value, writer: Writer<'_>) {
    let provided = meta::metadata_mut(new).and_then(|m| m.remove("managedFields"));
    let live = old.and_then(|o| meta::at(o, &["metadata", "managedFields"]));
    let stored = || old.map(Managers::from_object).unwrap_or_default();
    let mut managers = match provided {
        _ if writer.part.is_some() => stored(),
        // The usual case: the list is sent back unchanged.
        Some(Value::Array(entries)) if live.and_then(Value::as_array) == Some(&entries) => {
            Managers { entries }
        }
        Some(list) if is_reset(&list) => Managers::default(),
        Some(list) => match Managers::decode(list) {
            Some(provided) if !provided.is_empty() => provided,
            _ => stored(),
        },
        None => stored(),
    };
    if managers.is_empty() && old.is_some() {
        return;
    }
    let scope = WriteScope {
        resource,
        part: writer.part,
    };
    let diff = compare::compare(scope, old, new);
    // A Scale takes over only replicas that already have an owner.
    let shown = |(_, e)| field_set(e).is_some_and(|s| !fields::common(s, &diff.changed).is_empty());
    if writer.part == Some("scale") && !managers.entries().any(shown) {
        managers.store(new);
        return;
    }
    if !diff.is_empty() {
        managers.take(&diff, None);
        if !diff.changed.is_empty() {
            managers.add_updated(diff.changed, resource.api_version(), writer);
        }
    }
    managers.store(new);
}

/// Records all fields of a stored object as owned by `writer`.
pub(super) fn adopt(resource: &Resource, live: &Value, writer: Writer<'_>) -> Managers {
    let scope = WriteScope {
        resource,
        part: writer.part,
    };
    let diff = compare::compare(scope, None, live);
    let mut managers = Managers::default();
    if !diff.changed.is_empty() {
        managers.add_updated(diff.changed, resource.api_version(), writer);
    }
    managers
}

/// Returns true if two objects are equal apart from the times in their managed fields.
#[must_use]
pub fn equal_except_times(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return a == b;
    };
    if a.len() != b.len() {
        return false;
    }
    a.iter().all(|(key, x)| {
        let Some(y) = b.get(key) else { return false };
        match (key.as_str(), x, y) {
            ("metadata", Value::Object(x), Value::Object(y)) => {
                x.len() == y.len()
                    && x.iter().all(|(key, x)| match (key.as_str(), y.get(key)) {
                        ("managedFields", Some(y)) => same_entries(x, y),
                        (_, y) => Some(x) == y,
                    })
            }
            _ => x == y,
        }
    })
}

fn same_entries(a: &Value, b: &Value) -> bool {
    let (Value::Array(a), Value::Array(b)) = (a, b) else {
        return a == b;
    };
    const KEYS: [&str; 5] = [
        "manager",
        "operation",
        "apiVersion",
        "subresource",
        "fieldsV1",
    ];
    fn parts(entry: &Value) -> [Option<&Value>; 5] {
        KEYS.map(|key| entry.get(key))
    }
    // The order depends partly on the times.
    let others: HashSet<_> = b.iter().map(parts).collect();
    a.len() == b.len() && a.iter().all(|x| others.contains(&parts(x)))
}
