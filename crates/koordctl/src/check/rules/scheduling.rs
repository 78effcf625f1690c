//! Checks of pods, quotas, gangs, reservations and migrations.

use super::read;
use crate::check::outcome::{Findings, Outcome, join_names};
use crate::check::snapshot::Snapshot;
use crate::fetch::{elements, full_name, integer, label, name, text};
use koord_api::quota::ROOT_QUOTA;
use koord_api::{GoDuration, ResourceList, labels};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// Seconds for which a pod may be pending.
const MAX_PENDING: i64 = 300;
/// Seconds that a gang waits for members if its PodGroup sets none.
const GANG_TIMEOUT: i64 = 600;
/// Seconds that a PodMigrationJob may take if it sets none.
const JOB_TTL: i64 = 300;

/// Returns whether a pod waits for a node, and why.
pub(crate) fn pending_reason(pod: &Value) -> Option<&str> {
    if !text(pod, "/spec/nodeName").is_empty() || text(pod, "/status/phase") != "Pending" {
        return None;
    }
    let conditions = elements(pod, "/status/conditions");
    let scheduled = conditions.iter().find(|it| it["type"] == "PodScheduled");
    let message = scheduled.map_or("", |it| text(it, "/message"));
    Some(match message {
        "" => "no scheduler has tried it",
        message => message,
    })
}

pub(super) fn pending(snapshot: &Snapshot) -> Outcome {
    let pods = read!(snapshot.pods);
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let Some(reason) = pending_reason(pod) else {
            continue;
        };
        if snapshot.age_of(pod).unwrap_or_default() <= MAX_PENDING {
            continue;
        }
        let reason = match text(pod, "/spec/schedulerName") {
            "" | "default-scheduler" => reason.to_owned(),
            scheduler => format!("{reason} ({scheduler})"),
        };
        by_reason.entry(reason).or_default().push(full_name(pod));
    }
    let mut findings = Findings::default();
    for (reason, pods) in by_reason {
        findings.warn(format!(
            "{} pods: {reason}: {}",
            pods.len(),
            join_names(&pods)
        ));
    }
    findings.finish("no pod is pending for more than 5 minutes")
}

/// Returns the amounts at a JSON pointer; none if one is invalid.
fn amounts(object: &Value, pointer: &str) -> ResourceList {
    let amounts = object.pointer(pointer).cloned();
    amounts
        .and_then(|amounts| serde_json::from_value(amounts).ok())
        .unwrap_or_default()
}

/// Returns the resources of which `amounts` has more than `limits` has, as `cpu 5 > 4`. A resource without a limit
/// has none.
pub(crate) fn excess(amounts: &ResourceList, limits: &ResourceList) -> Vec<String> {
    let compared = amounts
        .iter()
        .filter_map(|(resource, amount)| Some((resource, amount, limits.get(resource)?)));
    compared
        .filter(|(_, amount, limit)| amount > limit)
        .map(|(resource, amount, limit)| format!("{resource} {amount} > {limit}"))
        .collect()
}

pub(super) fn quotas(snapshot: &Snapshot) -> Outcome {
    let quotas = read!(snapshot.quotas);
    let by_name: HashMap<&str, &Value> = quotas.iter().map(|it| (name(it), it)).collect();
    let mut children_min: BTreeMap<&str, ResourceList> = BTreeMap::new();
    let mut findings = Findings::default();
    for quota in quotas {
        let (min, max) = (amounts(quota, "/spec/min"), amounts(quota, "/spec/max"));
        let over = excess(&min, &max);
        if !over.is_empty() {
            findings.fail(format!(
                "quota {}: min above max: {}",
                name(quota),
                over.join(", ")
            ));
        }
        let over = excess(&amounts(quota, "/status/used"), &max);
        if !over.is_empty() {
            findings.warn(format!(
                "quota {}: used above max: {}",
                name(quota),
                over.join(", ")
            ));
        }
        let parent = label(quota, labels::QUOTA_PARENT);
        if matches!(parent, "" | ROOT_QUOTA) {
            continue;
        }
        let Some(parent_quota) = by_name.get(parent) else {
            findings.fail(format!(
                "quota {}: there is no parent {parent}",
                name(quota)
            ));
            continue;
        };
        if label(parent_quota, labels::QUOTA_IS_PARENT) != "true" {
            findings.fail(format!(
                "quota {}: its parent {parent} has no label is-parent=true",
                name(quota)
            ));
        }
        let sum = children_min.entry(parent).or_default();
        for (resource, amount) in min {
            *sum.entry(resource).or_default() += amount;
        }
    }
    for (parent, sum) in &children_min {
        let over = by_name
            .get(parent)
            .map(|it| excess(sum, &amounts(it, "/spec/min")));
        let over = over.unwrap_or_default();
        if !over.is_empty() {
            findings.fail(format!(
                "quota {parent}: min of its children above its own: {}",
                over.join(", ")
            ));
        }
    }
    for (parent, pods) in pods_on_parents(snapshot, &by_name) {
        findings.warn(format!(
            "quota {parent} has children and pods: {}",
            join_names(&pods)
        ));
    }
    findings.finish(format!("{} quotas", quotas.len()))
}

/// Returns the pods that name a quota with children.
fn pods_on_parents<'a>(
    snapshot: &'a Snapshot,
    quotas: &HashMap<&str, &Value>,
) -> BTreeMap<&'a str, Vec<String>> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in snapshot.pods.value().into_iter().flatten() {
        let quota = label(pod, labels::POD_QUOTA_NAME);
        let is_parent = |it: &&Value| label(it, labels::QUOTA_IS_PARENT) == "true";
        if quotas.get(quota).is_some_and(is_parent) {
            found.entry(quota).or_default().push(full_name(pod));
        }
    }
    found
}

pub(super) fn gangs(snapshot: &Snapshot) -> Outcome {
    let groups = read!(snapshot.pod_groups);
    let pods = read!(snapshot.pods);
    let mut members: HashMap<(&str, &str), i64> = HashMap::new();
    for pod in pods {
        let group = match label(pod, labels::POD_GROUP) {
            "" => label(pod, labels::POD_GROUP_DEPRECATED),
            group => group,
        };
        // Members that succeeded count, as in the scheduler's view of a gang that ran.
        if !group.is_empty() && text(pod, "/status/phase") != "Failed" {
            *members
                .entry((text(pod, "/metadata/namespace"), group))
                .or_default() += 1;
        }
    }
    let mut findings = Findings::default();
    for group in groups {
        let needed = integer(group, "/spec/minMember").unwrap_or_default();
        let key = (text(group, "/metadata/namespace"), name(group));
        let count = members.get(&key).copied().unwrap_or_default();
        let timeout = integer(group, "/spec/scheduleTimeoutSeconds").unwrap_or(GANG_TIMEOUT);
        let is_done = matches!(text(group, "/status/phase"), "Finished" | "Failed");
        if count < needed && !is_done && snapshot.age_of(group).unwrap_or_default() > timeout {
            findings.fail(format!(
                "gang {} needs {needed} pods and has {count}: it cannot be placed",
                full_name(group)
            ));
        }
    }
    findings.finish(format!("{} gangs", groups.len()))
}

pub(super) fn reservations(snapshot: &Snapshot) -> Outcome {
    let reservations = read!(snapshot.reservations);
    let mut findings = Findings::default();
    let (mut pending, mut failed, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for reservation in reservations {
        let age = snapshot.age_of(reservation).unwrap_or_default();
        match text(reservation, "/status/phase") {
            "" | "Pending" if age > MAX_PENDING => pending.push(name(reservation)),
            "Failed" if !elements(reservation, "/status/currentOwners").is_empty() => {
                failed.push(name(reservation));
            }
            "Available" => {
                let expires = text(reservation, "/spec/expires");
                if snapshot.age(expires).is_some_and(|age| age > 60) {
                    late.push(name(reservation));
                }
            }
            _ => {}
        }
    }
    for (problem, names) in [
        ("pending for more than 5 minutes", pending),
        ("expired or failed, with pods in it", failed),
        ("available after the end of its time", late),
    ] {
        if !names.is_empty() {
            findings.warn(format!("{problem}: {}", join_names(&names)));
        }
    }
    findings.finish(format!("{} reservations", reservations.len()))
}

pub(super) fn migrations(snapshot: &Snapshot) -> Outcome {
    let jobs = read!(snapshot.migration_jobs);
    let mut findings = Findings::default();
    let mut failed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for job in jobs {
        let ttl = text(job, "/spec/ttl").parse::<GoDuration>();
        let ttl = ttl.map(GoDuration::as_secs).ok().filter(|it| *it > 0);
        let ttl = ttl.unwrap_or(JOB_TTL);
        match text(job, "/status/phase") {
            "Failed" => failed
                .entry(text(job, "/status/reason"))
                .or_default()
                .push(name(job)),
            "Running" if snapshot.age_of(job).unwrap_or_default() > ttl => {
                findings.fail(format!("{} runs for longer than {ttl} s", name(job)));
            }
            _ => {}
        }
    }
    for (reason, jobs) in failed {
        findings.warn(format!(
            "{} jobs failed: {reason}: {}",
            jobs.len(),
            join_names(&jobs)
        ));
    }
    findings.finish(format!("{} jobs", jobs.len()))
}
