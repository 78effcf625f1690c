//! Validation of ElasticQuota objects. Upstream's webhook rejects most invalid values, but a cluster need not
//! have that webhook: the quota stays in force as far as possible, and an event names the value.

use super::objects::{Key, Object, Objects, problem};
use super::{ElasticQuotas, RETRY_EVERY};
use jiff::Timestamp;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::quota::{ROOT_QUOTA, is_built_in};
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_scheduler::framework::{Effects, Problem, ReportedProblems};
use rustc_hash::FxHashMap;

/// Problems of quotas that were reported.
#[derive(Debug, Default)]
pub(super) struct Reports {
    values: ReportedProblems,
    parents: ReportedProblems,
    /// Time of the next check of parents: a moment after a change, because quotas are often created together.
    parents_due: Option<Timestamp>,
}

impl Reports {
    /// Returns the time of the next check of parents.
    pub(super) fn next_check(&self) -> Option<Timestamp> {
        self.parents_due
    }

    /// Schedules a check after quotas were added, removed or moved.
    pub(super) fn parents_changed(&mut self, now: Timestamp) {
        let due = now.saturating_add(RETRY_EVERY).unwrap_or(Timestamp::MAX);
        self.parents_due.get_or_insert(due);
    }

    /// Reports values of `object` that are not used as written. Values about trees are checked only if
    /// `trees`, that is, if there are several.
    pub(super) fn values(&mut self, object: &ElasticQuota, trees: bool, fx: &mut Effects) {
        let problems = invalid_values(object, trees).into_iter();
        let problems = problems.map(|message| problem(object, message)).collect();
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        self.values.update(uid, problems, fx);
    }

    /// Removes the problems of a deleted object.
    pub(super) fn remove(&mut self, object: &ElasticQuota) {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        self.values.remove(uid);
        self.parents.remove(uid);
    }
}

impl ElasticQuotas {
    /// Reports quotas whose parent is missing or invalid, if a check is due at `now`.
    pub(super) fn report_parents(&mut self, now: Timestamp, fx: &mut Effects) {
        if self.reports.parents_due.is_none_or(|due| due > now) {
            return;
        }
        self.reports.parents_due = None;
        let cycles = cycles(&self.objects);
        for (key, object) in self.objects.iter() {
            let problems = invalid_parent(key, object, &self.objects, &cycles);
            let problems = problems.map(|message| problem(&object.object, message));
            let uid = object.object.metadata.uid.as_deref().unwrap_or_default();
            let problems = problems.into_iter().collect();
            self.reports.parents.update(uid, problems, fx);
        }
    }
}

/// Returns the messages for values that are not used as written.
fn invalid_values(object: &ElasticQuota, trees: bool) -> Vec<String> {
    let total = trees.then_some(annotations::QUOTA_TOTAL_RESOURCE);
    let lists = || {
        [Some(annotations::QUOTA_SHARED_WEIGHT), total]
            .into_iter()
            .flatten()
    };
    let mut out = Vec::new();
    let mut negative = |field: &str, list: &ResourceList| {
        let below = list.iter().filter(|(_, amount)| amount.nanos() < 0);
        out.extend(below.map(|(name, amount)| {
            let field = format!("{field}[{name}]");
            Problem::invalid(&field, amount.to_string(), "0 or more; 0 is used")
        }));
    };
    let (min, max) = (&object.spec.min, &object.spec.max);
    negative("spec.min", min);
    negative("spec.max", max);
    for key in lists() {
        if let Ok(list) = serde_json::from_str(object.annotation(key)) {
            negative(&format!("annotation {key}"), &list);
        }
    }
    let invalid = |key: &str, error: &serde_json::Error, expected: &str| {
        let expected = format!("{expected} ({error}); the last valid value stays in force");
        Problem::invalid(
            &format!("annotation {key}"),
            object.annotation(key),
            &expected,
        )
    };
    for key in lists() {
        let text = object.annotation(key);
        let read = serde_json::from_str::<ResourceList>(text);
        if let Some(error) = read.err().filter(|_| !text.is_empty()) {
            out.push(invalid(key, &error, "a JSON object of resource amounts"));
        }
    }
    let key = annotations::QUOTA_NAMESPACES;
    let text = object.annotation(key);
    let read = serde_json::from_str::<Vec<String>>(text);
    if let Some(error) = read.err().filter(|_| !text.is_empty()) {
        out.push(invalid(key, &error, "a JSON list of namespaces"));
    }
    let limit = |name: &str| max.get(name).map(Quantity::nanos);
    for (name, amount) in min {
        if limit(name).is_some_and(|limit| amount.nanos() > limit) {
            let limit = max.get(name).map(ToString::to_string).unwrap_or_default();
            let expected = format!("at most spec.max[{name}], {limit}, which limits it");
            let field = format!("spec.min[{name}]");
            out.push(Problem::invalid(&field, amount.to_string(), &expected));
        }
    }
    for (key, used) in [
        (labels::QUOTA_IS_PARENT, "false"),
        (labels::QUOTA_ALLOW_LENT_RESOURCE, "true"),
        (labels::QUOTA_ALLOW_FORCE_UPDATE, "false"),
        (labels::QUOTA_IS_ROOT, "false"),
        (labels::QUOTA_IGNORE_DEFAULT_TREE, "false"),
    ] {
        let of_trees = matches!(
            key,
            labels::QUOTA_IS_ROOT | labels::QUOTA_IGNORE_DEFAULT_TREE
        );
        let value = object.label(key);
        if of_trees && !trees {
            continue;
        }
        if !matches!(value, "" | "true" | "false") {
            let expected = format!("true or false; {used} is used");
            out.push(Problem::invalid(&format!("label {key}"), value, &expected));
        }
    }
    out
}

/// Returns the parent of a quota if that is not the root.
fn named_parent(object: &Object) -> Option<&str> {
    let parent = object.spec.parent.as_str();
    (!parent.is_empty() && parent != ROOT_QUOTA).then_some(parent)
}

/// Returns the message for a parent that cannot be used.
fn invalid_parent(
    key: &Key,
    object: &Object,
    objects: &Objects,
    cycles: &FxHashMap<&str, String>,
) -> Option<String> {
    let name = key.1.as_str();
    let parent = named_parent(object).filter(|_| objects.is_in_force(key) && !is_built_in(name))?;
    let expected = if parent == name {
        "another quota than itself".to_owned()
    } else if is_built_in(parent) {
        "a quota that is not built in, or the root".to_owned()
    } else if let Some(cycle) = cycles.get(name) {
        format!("a quota that is not below this one ({cycle})")
    } else {
        match objects.get(parent) {
            None => "the name of a quota that exists".to_owned(),
            Some(other) if other.tree != object.tree => {
                format!("a quota of the same tree, {:?}", object.tree)
            }
            Some(_) => return None,
        }
    };
    let field = format!("label {}", labels::QUOTA_PARENT);
    let expected =
        format!("{expected}; until then the quota has what it is guaranteed, and no more");
    Some(Problem::invalid(&field, parent, &expected))
}

/// Returns the quotas whose parents form a cycle, with its path. Takes time linear in the number of quotas.
fn cycles(objects: &Objects) -> FxHashMap<&str, String> {
    let mut walks: FxHashMap<&str, usize> = FxHashMap::default();
    let mut out = FxHashMap::default();
    let names = objects.iter().filter(|(key, _)| objects.is_in_force(key));
    for (number, (key, _)) in names.enumerate() {
        let mut walk: Vec<&str> = Vec::new();
        let mut at = Some(key.1.as_str());
        while let Some(name) = at.filter(|name| !walks.contains_key(name)) {
            walks.insert(name, number);
            walk.push(name);
            at = objects.get(name).and_then(named_parent);
        }
        let closing = at.filter(|name| walks.get(name) == Some(&number));
        let Some(from) = closing.and_then(|name| walk.iter().position(|visited| *visited == name))
        else {
            continue;
        };
        let mut path = walk[from..].to_vec();
        path.push(walk[from]);
        // Long cycles are cut.
        let shown = path.iter().take(8).copied().collect::<Vec<_>>();
        let ellipsis = if shown.len() < path.len() {
            " -> …"
        } else {
            ""
        };
        let path = format!("{}{ellipsis}", shown.join(" -> "));
        out.extend(walk[from..].iter().map(|name| (*name, path.clone())));
    }
    out
}
