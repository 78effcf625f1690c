//! Reports ElasticQuotas that are invalid by themselves or in their tree, with events on the quota.
//!
//! The webhook refuses most of them, but not those that were written while it was unavailable, and not those
//! that become invalid when another quota changes.

use crate::cache::ObjectKind;
use crate::controller::{Action, Controller, ControllerSpec};
use crate::replica::Replica;
use koord_api::quantity::ResourceList;
use koord_api::quota::{ROOT_QUOTA, is_built_in};
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_kube::events::{self, Severity};
use koord_kube::queue::WorkQueue;
use koord_kube::{Change, ObjectKey};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Time over which changes are batched, since one check covers all quotas.
const DELAY: Duration = Duration::from_secs(2);

/// Labels whose value must be `true` or `false` if present.
const FLAGS: [&str; 5] = [
    labels::QUOTA_IS_PARENT,
    labels::QUOTA_IS_ROOT,
    labels::QUOTA_ALLOW_LENT_RESOURCE,
    labels::QUOTA_ALLOW_FORCE_UPDATE,
    labels::QUOTA_IGNORE_DEFAULT_TREE,
];
/// Annotations with a resource list that users write.
const AMOUNTS: [&str; 4] = [
    annotations::QUOTA_SHARED_WEIGHT,
    annotations::QUOTA_ADMISSION,
    annotations::QUOTA_TOTAL_RESOURCE,
    annotations::QUOTA_UNSCHEDULABLE_RESOURCE,
];
/// Annotations that are lists of names.
const LISTS: [&str; 2] = [
    annotations::QUOTA_NAMESPACES,
    annotations::QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
];

/// The controller.
pub(crate) const SPEC: ControllerSpec = ControllerSpec {
    name: "quotacheck",
    gate: None,
    needs: &[ObjectKind::Quotas],
    wants: &[],
    build,
};

/// The problems of each quota that has any.
type Problems = BTreeMap<ObjectKey, Vec<String>>;

fn build(replica: &Arc<Replica>) -> Controller {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    replica.caches.quotas.on_change(move |change| {
        let is_relevant = match change {
            // The scheduler often writes the status and annotations of its own.
            Change::Applied { old, new } => old
                .as_ref()
                .is_none_or(|old| checked_fields(old) != checked_fields(new)),
            Change::Deleted(_) => true,
            Change::Synced => false,
        };
        if is_relevant {
            changes.add_after(ObjectKey::new("", "all"), DELAY);
        }
    });
    let (own, reported) = (replica.clone(), Arc::<Mutex<Problems>>::default());
    SPEC.controller(replica, queue, move |_| {
        report(&own, &reported);
        std::future::ready(Ok(Action::Done))
    })
}

/// Returns the fields of a quota that the check reads: labels, min and max, and annotations.
fn checked_fields(
    quota: &ElasticQuota,
) -> (
    Option<&BTreeMap<String, String>>,
    [&ResourceList; 2],
    Vec<&str>,
) {
    let spec = &quota.spec;
    let keys = AMOUNTS.iter().chain(&LISTS);
    let texts = keys.map(|key| quota.annotation(key)).collect();
    (
        quota.metadata.labels.as_ref(),
        [&spec.min, &spec.max],
        texts,
    )
}

/// Records an event for each problem that was not reported before.
fn report(replica: &Replica, reported: &Mutex<Problems>) {
    let quotas = replica.caches.quotas.list();
    let problems = problems(&quotas);
    let mut reported = reported.lock();
    for quota in &quotas {
        let key = ObjectKey::from_object(&**quota);
        let before = reported.get(&key).map_or(&[][..], Vec::as_slice);
        let now = problems.get(&key).map_or(&[][..], Vec::as_slice);
        for problem in now.iter().filter(|problem| !before.contains(problem)) {
            tracing::warn!(quota = %key, problem, "invalid ElasticQuota");
            let about = events::reference(&**quota);
            let recorder = &replica.recorder;
            recorder.event(about, Severity::Warning, "InvalidQuota", problem.clone());
        }
    }
    *reported = problems;
}

/// Returns the problems of all quotas.
fn problems(quotas: &[Arc<ElasticQuota>]) -> Problems {
    let by_name = by_name(quotas);
    let circular = circular(&by_name);
    let mut all = Problems::new();
    for quota in quotas {
        let name = name(quota);
        let mut quota_problems = own_problems(quota);
        match by_name.get(name) {
            Some(other) if !std::ptr::eq(*other, &**quota) => quota_problems.push(format!(
                "invalid value {name:?} for metadata.name: expected a name that no other quota has; the older quota in \
                 namespace {:?} counts",
                other.metadata.namespace.as_deref().unwrap_or_default()
            )),
            _ => quota_problems.extend(tree_problem(quota, &by_name, &circular)),
        }
        if !quota_problems.is_empty() {
            all.insert(ObjectKey::from_object(&**quota), quota_problems);
        }
    }
    all
}

/// Quotas by name.
pub(crate) type ByName<'a> = HashMap<&'a str, &'a ElasticQuota>;

/// Returns the name of a quota.
pub(crate) fn name(quota: &ElasticQuota) -> &str {
    quota.metadata.name.as_deref().unwrap_or_default()
}

/// Returns the effective quota for each name: the oldest one.
fn by_name(quotas: &[Arc<ElasticQuota>]) -> ByName<'_> {
    let age = |quota: &ElasticQuota| {
        let meta = &quota.metadata;
        let created = meta.creation_timestamp.as_ref().map(|time| time.0);
        (created, meta.namespace.clone())
    };
    let mut by_name = ByName::new();
    for quota in quotas {
        let entry = by_name.entry(name(quota)).or_insert(&**quota);
        if age(quota) < age(entry) {
            *entry = &**quota;
        }
    }
    by_name
}

/// Returns the names of quotas that are their own ancestors. Each quota is visited once.
pub(crate) fn circular<'a>(by_name: &ByName<'a>) -> HashSet<&'a str> {
    let mut visited = HashSet::new();
    let mut circular = HashSet::new();
    for start in by_name.keys() {
        let mut path: Vec<&str> = Vec::new();
        let mut places = HashMap::new();
        let mut next = Some(*start);
        while let Some(here) = next {
            if let Some(place) = places.get(here) {
                circular.extend(&path[*place..]);
                break;
            }
            if !visited.insert(here) {
                break;
            }
            places.insert(here, path.len());
            path.push(here);
            next = by_name
                .get(here)
                .and_then(|quota| by_name.get_key_value(quota.parent()))
                .map(|(parent, _)| *parent);
        }
    }
    circular
}

/// Returns what is wrong with a quota's parent label; `None` if it is valid.
pub(crate) fn tree_problem(
    quota: &ElasticQuota,
    by_name: &ByName<'_>,
    circular: &HashSet<&str>,
) -> Option<String> {
    let (name, parent) = (name(quota), quota.parent());
    if is_built_in(name) || parent == ROOT_QUOTA {
        return None;
    }
    let expected = if parent == name {
        "the name of another quota".to_owned()
    } else if circular.contains(name) {
        format!("a quota that is not below {name:?}")
    } else {
        match by_name.get(parent) {
            None => "an existing quota".to_owned(),
            Some(above) if !above.is_parent() => {
                format!("a quota with the label {}=true", labels::QUOTA_IS_PARENT)
            }
            Some(above)
                if above.label(labels::QUOTA_TREE_ID) != quota.label(labels::QUOTA_TREE_ID) =>
            {
                format!("a quota of the same {}", labels::QUOTA_TREE_ID)
            }
            Some(_) => return None,
        }
    };
    let key = labels::QUOTA_PARENT;
    Some(format!(
        "invalid value {parent:?} for metadata.labels[{key}]: expected {expected}"
    ))
}

/// Returns the problems of a quota that do not depend on other quotas.
pub(crate) fn own_problems(quota: &ElasticQuota) -> Vec<String> {
    let mut problems = Vec::new();
    for key in FLAGS {
        let value = quota.label(key);
        if !matches!(value, "" | "true" | "false") {
            problems.push(format!(
                "invalid value {value:?} for metadata.labels[{key}]: expected true or false; it counts as not given"
            ));
        }
    }
    let (min, max) = (&quota.spec.min, &quota.spec.max);
    negative("spec.min", min, &mut problems);
    negative("spec.max", max, &mut problems);
    for (resource, amount) in min {
        let expected = match max.get(resource) {
            Some(most) if amount > most => format!("at most spec.max.{resource}, {most}"),
            Some(_) => continue,
            None => "a resource that spec.max limits".to_owned(),
        };
        problems.push(format!(
            "invalid value \"{amount}\" for spec.min.{resource}: expected {expected}"
        ));
    }
    for key in AMOUNTS {
        match quota.amounts(key) {
            Ok(amounts) => negative(
                &format!("metadata.annotations[{key}]"),
                &amounts,
                &mut problems,
            ),
            Err(_) => problems.push(unreadable(quota, key, "a resource list as JSON")),
        }
    }
    for key in LISTS {
        if quota.list(key).is_err() {
            problems.push(unreadable(quota, key, "a list of names as JSON"));
        }
    }
    problems
}

fn unreadable(quota: &ElasticQuota, key: &str, expected: &str) -> String {
    let value: String = quota.annotation(key).chars().take(100).collect();
    format!(
        "invalid value {value:?} for metadata.annotations[{key}]: expected {expected}; it counts as not given"
    )
}

/// Adds a problem for each amount below zero.
fn negative(field: &str, amounts: &ResourceList, problems: &mut Vec<String>) {
    for (resource, amount) in amounts.iter().filter(|(_, amount)| amount.signum() < 0) {
        problems.push(format!(
            "invalid value \"{amount}\" for {field}.{resource}: expected at least 0"
        ));
    }
}

#[cfg(test)]
mod tests;
