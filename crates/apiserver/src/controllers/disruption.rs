//! Disruption controller: keeps the status of PodDisruptionBudgets, which evictions consume.

use super::pods;
use super::queue::{Reconcile, ReconcileFuture, Source};
use crate::rest::{Api, meta};
use crate::store::{Entry, Key, TableId};
use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use koord_kinds::selector::LabelSelector;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Time that an evicted pod may take to be deleted before its disruption is returned to the budget.
const DISRUPTED_FOR: SignedDuration = SignedDuration::from_mins(2);

/// The disruption controller.
pub(super) struct Disruption;

fn budgets() -> TableId {
    TableId::new("policy", "poddisruptionbudgets")
}

impl Reconcile for Disruption {
    fn name(&self) -> &'static str {
        "disruption-controller"
    }

    fn sources(&self) -> Vec<Source> {
        vec![
            Source::from_own_entries("policy", "poddisruptionbudgets"),
            Source::new("", "pods", |api, entry| {
                let namespace = Some(&*entry.key.namespace);
                let matches = api.store().all(&budgets(), namespace, &|_| true);
                matches.iter().map(|budget| budget.key.clone()).collect()
            }),
        ]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let resource = api.builtin("policy", "v1", "poddisruptionbudgets")?;
            let Some(entry) = api.store().get(&resource.table, key) else {
                return Ok(None);
            };
            let budget = entry.value();
            if meta::deleting(&budget) {
                return Ok(None);
            }
            let pods_resource = api.builtin("", "v1", "pods")?;
            let selector = LabelSelector::from_json(meta::at(&budget, &["spec", "selector"]))
                .unwrap_or_else(|_| LabelSelector::nothing());
            let selected: Vec<Arc<Entry>> = api
                .entries(&pods_resource, Some(&key.namespace))
                .into_iter()
                .filter(|e| selector.matches(&e.index))
                .collect();
            let selected: Vec<Value> = selected.iter().map(|e| e.value()).collect();
            let now = api.clock().now();
            let expected_by_owners = expected_by_owners(api, &key.namespace, &selected);
            let result = api
                .edit(&resource, Some("status"), key, |old| {
                    let mut new = old.clone();
                    assess(&mut new, &selected, expected_by_owners, now);
                    Ok((new != *old).then_some(new))
                })
                .await;
            match result {
                Ok(result) => {
                    let value = result.object.value(&resource);
                    let pending = meta::at(&value, &["status", "disruptedPods"])
                        .and_then(Value::as_object)
                        .is_some_and(|d| !d.is_empty());
                    Ok(pending.then(|| Duration::from_secs(30)))
                }
                Err(e) if e.code == 404 => Ok(None),
                Err(e) => Err(e),
            }
        }
        .boxed()
    }
}

/// Returns the sum of the replicas that the pods' controllers specify; a pod without a controller counts as
/// one.
fn expected_by_owners(api: &Api, namespace: &str, pods: &[Value]) -> i64 {
    let mut observed = Vec::new();
    let mut expected = 0;
    for pod in pods {
        let Some(owner) = meta::owners(pod).into_iter().find(|o| o.controller) else {
            expected += 1;
            continue;
        };
        if observed.contains(&owner.uid) {
            continue;
        }
        let (group, version) = koord_kinds::meta::split_api_version(&owner.api_version);
        let owner_replicas = api
            .registry()
            .find_kind(group, version, &owner.kind)
            .and_then(|r| {
                let entry = api
                    .store()
                    .get(&r.table, &Api::key(&r, namespace, &owner.name))?;
                (*entry.index.uid == *owner.uid).then(|| entry.value())
            })
            .and_then(|o| {
                let replicas = meta::at(&o, &["spec", "replicas"]);
                replicas
                    .or_else(|| meta::at(&o, &["spec", "parallelism"]))
                    .and_then(Value::as_i64)
            });
        expected += owner_replicas.unwrap_or_else(|| {
            let owned_pods = pods
                .iter()
                .filter(|p| meta::owners(p).iter().any(|o| o.uid == owner.uid));
            i64::try_from(owned_pods.count()).unwrap_or(0)
        });
        observed.push(owner.uid);
    }
    expected
}

/// Resolves a value of the form `n` or `p%` (of `total`); percentages are rounded up. `None` if it is
/// neither.
fn resolve(value: &Value, total: i64) -> Option<i64> {
    if let Some(n) = value.as_i64() {
        return Some(n);
    }
    let percent: i64 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    Some(
        percent
            .saturating_mul(total)
            .saturating_add(99)
            .div_euclid(100),
    )
}

/// Writes the status of `budget` for the pods it selects.
fn assess(budget: &mut Value, pods: &[Value], expected_by_owners: i64, now: Timestamp) {
    let count = i64::try_from(pods.iter().filter(|p| !pods::ended(p)).count()).unwrap_or(0);
    let spec = budget.get("spec").cloned().unwrap_or_default();
    let (expected, desired) = match (spec.get("minAvailable"), spec.get("maxUnavailable")) {
        (_, Some(max)) if !max.is_null() => {
            let max = resolve(max, expected_by_owners).unwrap_or(0);
            (expected_by_owners, (expected_by_owners - max).max(0))
        }
        (Some(min), _) if min.is_string() => (
            expected_by_owners,
            resolve(min, expected_by_owners).unwrap_or(expected_by_owners),
        ),
        (Some(min), _) if !min.is_null() => (count, min.as_i64().unwrap_or(1)),
        _ => (count, 1),
    };
    let old = meta::at(budget, &["status", "disruptedPods"])
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    // An eviction counts until its pod is gone or its timeout has passed.
    let disrupted: Map<String, Value> = old
        .into_iter()
        .filter(|(name, at)| {
            let present = pods
                .iter()
                .any(|p| meta::name(p) == name && !meta::deleting(p));
            let fresh = at
                .as_str()
                .and_then(|t| t.parse::<Timestamp>().ok())
                .is_some_and(|t| now.duration_since(t) < DISRUPTED_FOR);
            present && fresh
        })
        .collect();
    let healthy = pods
        .iter()
        .filter(|p| !meta::deleting(p) && !disrupted.contains_key(meta::name(p)) && pods::ready(p))
        .count();
    let healthy = i64::try_from(healthy).unwrap_or(0);
    let allowed = if expected <= 0 {
        0
    } else {
        (healthy - desired).max(0)
    };
    let generation = meta::int_at(budget, &["metadata", "generation"]).unwrap_or(1);
    let status = meta::section(budget, "status");
    for (key, value) in [
        ("observedGeneration", generation),
        ("disruptionsAllowed", allowed),
        ("currentHealthy", healthy),
        ("desiredHealthy", desired),
        ("expectedPods", expected),
    ] {
        status.insert(key.to_owned(), json!(value));
    }
    if disrupted.is_empty() {
        status.remove("disruptedPods");
    } else {
        status.insert("disruptedPods".to_owned(), Value::Object(disrupted));
    }
    let (value, reason) = if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    meta::set_condition(status, "DisruptionAllowed", value, reason, "", now);
    if let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        for c in list {
            let c = meta::as_object(c);
            // The condition type requires a message, even an empty one.
            c.entry("message").or_insert_with(|| "".into());
            c.insert("observedGeneration".to_owned(), generation.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ready: bool) -> Value {
        let status = if ready { "True" } else { "False" };
        json!({"metadata": {"name": name}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": status}]}})
    }

    fn allowed(spec: Value, pods: &[Value], expected: i64) -> i64 {
        let mut budget = json!({"metadata": {"name": "b", "generation": 3}, "spec": spec});
        assess(
            &mut budget,
            pods,
            expected,
            "2026-01-01T00:00:00Z".parse().unwrap(),
        );
        assert_eq!(budget["status"]["observedGeneration"], 3);
        budget["status"]["disruptionsAllowed"].as_i64().unwrap()
    }

    #[test]
    fn budget_allows_disruptions_by_status() {
        let pods = [pod("a", true), pod("b", true), pod("c", false)];
        assert_eq!(allowed(json!({"minAvailable": 1}), &pods, 3), 1);
        assert_eq!(allowed(json!({"minAvailable": 2}), &pods, 3), 0);
        assert_eq!(allowed(json!({"minAvailable": "34%"}), &pods, 3), 0);
        assert_eq!(allowed(json!({"minAvailable": "33%"}), &pods, 3), 1);
        assert_eq!(allowed(json!({"maxUnavailable": 1}), &pods, 3), 0);
        assert_eq!(allowed(json!({"maxUnavailable": 2}), &pods, 3), 1);
        assert_eq!(allowed(json!({"minAvailable": 0}), &[], 0), 0);
    }

    #[test]
    fn evictions_count_until_the_pod_is_gone() {
        let mut budget = json!({"metadata": {"name": "b", "generation": 1},
            "spec": {"minAvailable": 1},
            "status": {"disruptedPods": {"a": "2026-01-01T00:00:00Z", "x": "2026-01-01T00:00:00Z"}}});
        let pods = [pod("a", true), pod("b", true), pod("c", true)];
        assess(
            &mut budget,
            &pods,
            3,
            "2026-01-01T00:01:00Z".parse().unwrap(),
        );
        assert_eq!(
            budget["status"]["disruptedPods"],
            json!({"a": "2026-01-01T00:00:00Z"})
        );
        assert_eq!(budget["status"]["disruptionsAllowed"], 1);
        assess(
            &mut budget,
            &pods,
            3,
            "2026-01-01T00:02:00Z".parse().unwrap(),
        );
        assert_eq!(budget["status"]["disruptionsAllowed"], 2);
    }
}
