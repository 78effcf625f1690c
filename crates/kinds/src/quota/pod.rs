//! Quota usage of pods: requests and limits, and scopes.

use super::list;
use crate::{meta, quantity};
use jiff::{SignedDuration, Timestamp};
use koord_api::quantity::{Quantity, ResourceList};
use serde_json::Value;

/// Resources that every container must request or limit if a quota tracks them.
const REQUIRED: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];
/// Quota resources with fixed names that pods use.
const COMPUTE: [&str; 10] = [
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// Returns true if the quota resource `name` applies to pods.
pub(super) fn covers(name: &str) -> bool {
    COMPUTE.contains(&name)
        || name.starts_with("hugepages-")
        || name
            .strip_prefix("requests.")
            .is_some_and(|n| n.starts_with("hugepages-") || n.contains('/'))
}

/// Adds amounts to a list.
fn add(to: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        *to.entry(name.clone()).or_insert(Quantity::ZERO) += *amount;
    }
}

/// Raises the amounts of a list to at least those of `other`.
fn raise(to: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        let have = to.entry(name.clone()).or_insert(*amount);
        if *have < *amount {
            *have = *amount;
        }
    }
}

fn containers<'a>(pod: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    let list = meta::at(pod, &["spec", key]).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Returns the effective requests or limits (`part`) of a pod without overhead: the sum of its containers and
/// sidecars, or the peak of an init container together with the sidecars started before it. Pod-level
/// resources take precedence.
pub(crate) fn total(pod: &Value, part: &str) -> ResourceList {
    let of = |container: &Value| list(meta::at(container, &["resources", part]));
    let mut sum = ResourceList::new();
    for container in containers(pod, "containers") {
        add(&mut sum, &of(container));
    }
    let (mut sidecars, mut most) = (ResourceList::new(), ResourceList::new());
    for container in containers(pod, "initContainers") {
        let own = of(container);
        let mut at_once = sidecars.clone();
        add(&mut at_once, &own);
        if meta::str_at(container, &["restartPolicy"]) == "Always" {
            add(&mut sum, &own);
            sidecars.clone_from(&at_once);
        }
        raise(&mut most, &at_once);
    }
    raise(&mut sum, &most);
    for (name, amount) in list(meta::at(pod, &["spec", "resources", part])) {
        if matches!(&*name, "cpu" | "memory") || name.starts_with("hugepages-") {
            sum.insert(name, amount);
        }
    }
    sum
}

/// Returns [`total`] with the overhead of the pod's runtime, which is added to existing limits only.
fn with_overhead(pod: &Value, part: &str) -> ResourceList {
    let mut sum = total(pod, part);
    for (name, amount) in list(meta::at(pod, &["spec", "overhead"])) {
        if part == "requests" || sum.contains_key(&name) {
            *sum.entry(name).or_insert(Quantity::ZERO) += amount;
        }
    }
    sum
}

/// Returns what quotas charge for one pod with these requests and limits, by the resource names of quotas.
fn named(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut out = ResourceList::new();
    out.insert("pods".to_owned(), Quantity::from_value(1));
    for (name, amount) in requests {
        let plain = matches!(&**name, "cpu" | "memory" | "ephemeral-storage");
        if plain || name.starts_with("hugepages-") {
            out.insert(name.clone(), *amount);
        }
        if plain || name.starts_with("hugepages-") || name.contains('/') {
            out.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits {
        if matches!(&**name, "cpu" | "memory" | "ephemeral-storage") {
            out.insert(format!("limits.{name}"), *amount);
        }
    }
    out
}

/// Returns true if the pod has ended, or should have ended by `now`: it then uses nothing.
fn ended(pod: &Value, now: Timestamp) -> bool {
    if matches!(
        meta::str_at(pod, &["status", "phase"]),
        "Succeeded" | "Failed"
    ) {
        return true;
    }
    let since = meta::text(pod, "deletionTimestamp").parse::<Timestamp>();
    let grace = meta::int_at(pod, &["metadata", "deletionGracePeriodSeconds"]);
    let (Ok(since), Some(grace)) = (since, grace) else {
        return false;
    };
    since
        .checked_add(SignedDuration::from_secs(grace))
        .is_ok_and(|end| now > end)
}

/// Returns the usage of the pod at `now`.
pub(super) fn usage(pod: &Value, now: Timestamp) -> ResourceList {
    if ended(pod, now) {
        return ResourceList::new();
    }
    named(
        &with_overhead(pod, "requests"),
        &with_overhead(pod, "limits"),
    )
}

/// Checks that the containers set what a quota of the `tracked` resources requires. The error is a sentence.
pub(super) fn missing<'a>(
    pod: &Value,
    tracked: impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    let total = meta::at(pod, &["spec", "resources"]);
    let provided = |part: &str| {
        total
            .and_then(|w| w.get(part))
            .is_some_and(|v| !v.is_null())
    };
    if provided("requests") || provided("limits") {
        return Ok(());
    }
    let mut parts = Vec::new();
    // `tracked` is sorted, as the keys of a map; so are the names within it.
    for name in tracked.filter(|name| REQUIRED.contains(name)) {
        let mut without: Vec<&str> = containers(pod, "containers")
            .chain(containers(pod, "initContainers"))
            .filter(|c| {
                let part = |part| list(meta::at(c, &["resources", part]));
                !named(&part("requests"), &part("limits")).contains_key(name)
            })
            .map(|c| meta::str_at(c, &["name"]))
            .collect();
        if !without.is_empty() {
            without.sort_unstable();
            without.dedup();
            parts.push(format!("{name} for: {}", without.join(",")));
        }
    }
    if parts.is_empty() {
        Ok(())
    } else {
        Err(format!("must specify {}", parts.join("; ")))
    }
}

/// Returns true if the pod has a deadline after which it ends by itself.
pub(super) fn terminating(pod: &Value) -> bool {
    meta::int_at(pod, &["spec", "activeDeadlineSeconds"]).is_some_and(|s| s >= 0)
}

/// Returns true if the pod is in a scope.
pub(super) fn is_in_scope(pod: &Value, scope: &super::Scope) -> bool {
    let best_effort = || meta::str_at(pod, &["status", "qosClass"]) == "BestEffort";
    match &*scope.name {
        "Terminating" => terminating(pod),
        "NotTerminating" => !terminating(pod),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = meta::str_at(pod, &["spec", "priorityClassName"]);
            let named = scope.values.iter().any(|v| v == class);
            match &*scope.operator {
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                "In" => !class.is_empty() && named,
                "NotIn" => class.is_empty() || !named,
                _ => false,
            }
        }
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn crosses_namespaces(pod: &Value) -> bool {
    let foreign = |term: &Value| {
        let named = term.get("namespaces").and_then(Value::as_array);
        named.is_some_and(|n| !n.is_empty())
            || term.get("namespaceSelector").is_some_and(|s| !s.is_null())
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let terms = |key| {
            let at = meta::at(pod, &["spec", "affinity", kind, key]);
            at.and_then(Value::as_array).into_iter().flatten()
        };
        terms("requiredDuringSchedulingIgnoredDuringExecution").any(foreign)
            || terms("preferredDuringSchedulingIgnoredDuringExecution")
                .filter_map(|t| t.get("podAffinityTerm"))
                .any(foreign)
    })
}

/// Parses a quantity of an object; 0 if it is missing or invalid.
pub(super) fn amount(object: &Value, path: &[&str]) -> Quantity {
    meta::at(object, path)
        .and_then(quantity::parse)
        .unwrap_or(Quantity::ZERO)
}
