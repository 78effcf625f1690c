//! `metadata.managedFields`: who owns which fields of an object.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::compare::{self, Diff, Scope};
use super::fields::{self, Set};
use crate::meta;
use crate::quantity::format_time;
use crate::resource::Resource;

/// More managers than these by plain updates are merged, oldest first.
const MAX_UPDATERS: usize = 10;
/// Who owns what the merged ones did.
const ANCIENT: &str = "ancient-changes";

/// Who makes a change, and what of the object the request is about.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// Name of the field manager.
    pub manager: &'a str,
    /// The sub-resource, `None` for the object itself.
    pub part: Option<&'a str>,
    /// When.
    pub now: Timestamp,
}

/// The entries of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Managers {
    entries: Vec<Value>,
}

/// How an entry got its fields.
pub(super) const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    meta::str_at(entry, &[key])
}

/// The set of an entry, empty when it has none.
pub(super) fn set_of(entry: &Value) -> Option<&Set> {
    entry.get("fieldsV1").and_then(Value::as_object)
}

fn set_mut(entry: &mut Value) -> Option<&mut Set> {
    entry.get_mut("fieldsV1").and_then(Value::as_object_mut)
}

/// What is wrong with the entry at `at`.
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

/// What is wrong with the record of an object that somebody else has written.
pub fn record_fault(object: &Value) -> Option<String> {
    match meta::at(object, &["metadata", "managedFields"])? {
        Value::Null => None,
        Value::Array(entries) => entries.iter().enumerate().find_map(|(at, e)| fault(at, e)),
        _ => Some("managedFields must be a list".to_owned()),
    }
}

/// A list by which a client gives up what is known: empty, or with one empty entry.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}

/// Keeps a list that gives up the record apart from no list, which decoding into a type does not.
pub fn keep_reset(object: &mut Value) {
    let given = object.pointer_mut("/metadata/managedFields");
    if let Some(list) = given.filter(|l| is_reset(l)) {
        *list = json!([{}]);
    }
}

impl Managers {
    /// From `metadata.managedFields`; `None` when an entry is not what it should be.
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

    /// Those of a stored object, which were well formed when they were written.
    pub(super) fn of(object: &Value) -> Self {
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

    /// Where the entry of an applier is; it is the same in every version.
    pub(super) fn applier(&self, manager: &str, part: Option<&str>) -> Option<usize> {
        self.entries.iter().position(|e| {
            text(e, "operation") == APPLY
                && text(e, "manager") == manager
                && text(e, "subresource") == part.unwrap_or("")
        })
    }

    fn updater(&self, manager: &str, api_version: &str, part: Option<&str>) -> Option<usize> {
        self.entries.iter().position(|e| {
            text(e, "operation") == UPDATE
                && text(e, "manager") == manager
                && text(e, "apiVersion") == api_version
                && text(e, "subresource") == part.unwrap_or("")
        })
    }

    /// Takes from everybody what a change gave another value or removed; `but` keeps its fields.
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

    /// The fields that somebody applies.
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
                if touch || set_of(entry) != Some(&set) || text(entry, "apiVersion") != api_version
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

    /// The fields that somebody changed by a plain write.
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

    /// Keeps the number of updaters bounded: the oldest is merged into the next of its version, as
    /// long as there are too many.
    fn merge_ancient(&mut self) {
        let mut updaters: Vec<usize> = (0..self.entries.len())
            .filter(|i| text(&self.entries[*i], "operation") == UPDATE)
            .collect();
        let mut excess = updaters.len().saturating_sub(MAX_UPDATERS);
        if excess == 0 {
            return;
        }
        updaters.sort_by_key(|i| (text(&self.entries[*i], "time"), *i));
        // The next younger updater of the same version, where there is one.
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

    /// Writes them into an object: in their order, without those that own nothing.
    pub(super) fn store(mut self, object: &mut Value) {
        self.entries
            .retain(|e| set_of(e).is_some_and(|s| !s.is_empty()));
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

/// Records a plain write: `writer` owns what differs between `old` and `new`, and nobody else does
/// any more. What `new` says of managers counts only in a write of the object itself, and only when
/// it is well formed: a list that is empty ends the record until somebody applies, anything else
/// leaves it as it is in `old`.
///
/// An object without a record gets none by being changed: it begins with its creation, or with the
/// first apply.
pub fn track(resource: &Resource, old: Option<&Value>, new: &mut Value, writer: Writer<'_>) {
    let given = meta::metadata_mut(new).and_then(|m| m.remove("managedFields"));
    let live = old.and_then(|o| meta::at(o, &["metadata", "managedFields"]));
    let stored = || old.map(Managers::of).unwrap_or_default();
    let mut managers = match given {
        _ if writer.part.is_some() => stored(),
        // The usual case: what was read is sent back.
        Some(Value::Array(entries)) if live.and_then(Value::as_array) == Some(&entries) => {
            Managers { entries }
        }
        Some(list) if is_reset(&list) => Managers::default(),
        Some(list) => match Managers::decode(list) {
            Some(given) if !given.is_empty() => given,
            _ => stored(),
        },
        None => stored(),
    };
    if managers.is_empty() && old.is_some() {
        return;
    }
    let scope = Scope {
        resource,
        part: writer.part,
    };
    let diff = compare::compare(scope, old, new);
    // A Scale shows, and takes over, only replicas that somebody owns.
    let shown = |(_, e)| set_of(e).is_some_and(|s| !fields::common(s, &diff.changed).is_empty());
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

/// Records everything that a stored object has as `writer`'s.
pub(super) fn adopt(resource: &Resource, live: &Value, writer: Writer<'_>) -> Managers {
    let scope = Scope {
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

/// Whether two objects differ in nothing but the times at which their fields were taken.
#[must_use]
pub fn same_but_times(a: &Value, b: &Value) -> bool {
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
    // The order is partly that of the times.
    let others: HashSet<_> = b.iter().map(parts).collect();
    a.len() == b.len() && a.iter().all(|x| others.contains(&parts(x)))
}
