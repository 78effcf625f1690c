//! Deployment controller: manages one ReplicaSet per version of the pod template and scales them against each
//! other.

use super::adoption;
use super::objects::{self, hash, strip};
use super::pods;
use super::progress;
use super::queue::RequeueAfter;
use super::recorder::EventSubject;
use super::workload::Workload;
use crate::rest::{Api, WriteInput, WriteOptions, meta};
use crate::store::{Entry, Key};
use futures::FutureExt as _;
use koord_kinds::status::ApiError;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Label that distinguishes the pods of different template versions.
const HASH_LABEL: &str = "pod-template-hash";
/// Annotation with the revision number of a version.
const REVISION: &str = "deployment.kubernetes.io/revision";

/// The Deployment controller.
pub(super) const DEPLOYMENTS: Workload = Workload {
    name: "deployment-controller",
    group: "apps",
    plural: "deployments",
    kind: "Deployment",
    owns: ("apps", "replicasets"),
    adopts: true,
    also: || None,
    sync: |subject, key| sync(subject, key).boxed(),
};

/// One ReplicaSet of a Deployment.
#[derive(Debug, Clone)]
struct Version {
    entry: Arc<Entry>,
    value: Value,
}

impl Version {
    fn desired_replicas(&self) -> i64 {
        meta::int_at(&self.value, &["spec", "replicas"]).unwrap_or(1)
    }

    fn count(&self, key: &str) -> i64 {
        meta::int_at(&self.value, &["status", key]).unwrap_or(0)
    }

    fn revision(&self) -> i64 {
        meta::text(&self.value, &["metadata", "annotations", REVISION])
            .parse()
            .unwrap_or(0)
    }
}

/// Reconciles a Deployment: creates and scales the ReplicaSets of its versions, and updates its status.
async fn sync(subject: EventSubject<'_>, key: &Key) -> Result<RequeueAfter, ApiError> {
    let (api, resource, deployment) = (subject.api, subject.resource, subject.object);
    let sets = api.builtin("apps", "v1", "replicasets")?;
    let uid = meta::uid(deployment).to_owned();
    adoption::claim(api, resource, deployment, &sets, &|_| true).await?;
    let mut versions: Vec<Version> = pods::owned(api, &sets, &key.namespace, &uid)
        .into_iter()
        .map(|(entry, value)| Version { entry, value })
        .collect();
    let template = meta::at(deployment, &["spec", "template"])
        .cloned()
        .unwrap_or_default();
    let current = versions
        .iter()
        .position(|v| same_template(&v.value, &template));
    let paused = meta::is_true(deployment, &["spec", "paused"]);
    if meta::deleting(deployment) {
        return report(api, key, deployment, &versions, current).await;
    }
    let desired = meta::int_at(deployment, &["spec", "replicas"]).unwrap_or(1);
    let recreate = meta::text(deployment, &["spec", "strategy", "type"]) == "Recreate";
    let newest = versions.iter().map(Version::revision).max().unwrap_or(0);
    let current = match current {
        Some(at) => {
            if versions[at].revision() < newest {
                set_revision(
                    api,
                    &sets,
                    &versions[at].entry.key,
                    newest.saturating_add(1),
                )
                .await?;
            }
            Some(at)
        }
        None if paused => None,
        None => {
            let old_pods: i64 = versions.iter().map(|v| v.count("replicas")).sum();
            // Recreate: the new version starts only when the pods of the old ones are gone.
            let replicas = if recreate && old_pods > 0 {
                0
            } else {
                initial(
                    deployment,
                    desired,
                    versions.iter().map(Version::desired_replicas).sum(),
                )
            };
            let set = new_version(
                resource,
                deployment,
                &template,
                replicas,
                newest.saturating_add(1),
            );
            let value = objects::create(api, &sets, &key.namespace, set).await?;
            let set_key = Key::new(key.namespace.clone(), meta::name(&value));
            let Some(entry) = api.store().get(&sets.table, &set_key) else {
                return Ok(None);
            };
            if replicas > 0 {
                record_scaled(&subject, &set_key.name, 0, replicas).await;
            }
            versions.push(Version { entry, value });
            Some(versions.len() - 1)
        }
    };
    if let Some(current) = current {
        explain(api, &sets, &versions[current].entry.key, deployment).await?;
    }
    if let Some(current) = current.filter(|_| !paused) {
        let revision = versions[current].revision().max(newest);
        annotate(api, resource, key, revision).await?;
    }
    for (at, replicas) in plan(deployment, &versions, current, desired, recreate, paused) {
        let version = &versions[at];
        scale(api, &sets, &version.entry.key, replicas).await?;
        record_scaled(
            &subject,
            &version.entry.key.name,
            version.desired_replicas(),
            replicas,
        )
        .await;
    }
    clean_up(api, &sets, deployment, &versions, current).await?;
    report(api, key, deployment, &versions, current).await
}

/// Returns true if the template of a ReplicaSet equals `template` apart from the hash label.
fn same_template(set: &Value, template: &Value) -> bool {
    let mut own = meta::at(set, &["spec", "template"])
        .cloned()
        .unwrap_or_default();
    if let Some(labels) = own
        .pointer_mut("/metadata/labels")
        .and_then(Value::as_object_mut)
    {
        labels.remove(HASH_LABEL);
    }
    strip(&own) == strip(template)
}

/// Builds the ReplicaSet of a new version of the Deployment.
fn new_version(
    resource: &koord_kinds::Resource,
    deployment: &Value,
    template: &Value,
    replicas: i64,
    revision: i64,
) -> Value {
    let hash = hash(template);
    let mut template = template.clone();
    let labels = meta::section(&mut template, "metadata")
        .entry("labels")
        .or_insert(json!({}));
    meta::as_object(labels).insert(HASH_LABEL.to_owned(), hash.as_str().into());
    let labels = labels.clone();
    let mut selector = meta::at(deployment, &["spec", "selector"])
        .cloned()
        .unwrap_or_default();
    let matching = meta::section(&mut selector, "matchLabels");
    matching.insert(HASH_LABEL.to_owned(), hash.as_str().into());
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{}-{hash}", meta::name(deployment)),
            "labels": labels,
            "annotations": { REVISION: revision.to_string() },
            "ownerReferences": [pods::controller_reference(resource, deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": meta::at(deployment, &["spec", "minReadySeconds"]).cloned().unwrap_or(json!(0)),
            "selector": selector,
            "template": template,
        },
    })
}

/// Resolves a value of the form `n` or `p%` (of `total`); percentages are rounded up if `up`, else down.
pub(super) fn resolve_int_or_percent(
    value: Option<&Value>,
    default: &str,
    total: i64,
    up: bool,
) -> i64 {
    let default = Value::from(default);
    let value = value.filter(|v| !v.is_null()).unwrap_or(&default);
    if let Some(n) = value.as_i64() {
        return n.max(0);
    }
    let percent: i64 = value
        .as_str()
        .and_then(|s| s.strip_suffix('%'))
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let scaled = percent.saturating_mul(total);
    let scaled = if up {
        scaled.saturating_add(99)
    } else {
        scaled
    };
    scaled.div_euclid(100).max(0)
}

/// Returns `maxSurge` and `maxUnavailable` in pods: how many more than `replicas` may exist, and how many fewer
/// than `replicas` may be available.
fn rolling_update_limits(deployment: &Value, replicas: i64) -> (i64, i64) {
    let get = |key: &str| meta::at(deployment, &["spec", "strategy", "rollingUpdate", key]);
    let surge = resolve_int_or_percent(get("maxSurge"), "25%", replicas, true);
    let unavailable = resolve_int_or_percent(get("maxUnavailable"), "25%", replicas, false);
    if surge == 0 && unavailable == 0 {
        (0, 1)
    } else {
        (surge, unavailable.min(replicas))
    }
}

/// Returns the number of replicas that a new version starts with.
fn initial(deployment: &Value, replicas: i64, others: i64) -> i64 {
    let (surge, _) = rolling_update_limits(deployment, replicas);
    (replicas + surge - others).clamp(0, replicas)
}

/// Returns the replica counts to set, as pairs of the index of a version and a number.
fn plan(
    deployment: &Value,
    versions: &[Version],
    current: Option<usize>,
    desired: i64,
    recreate: bool,
    paused: bool,
) -> Vec<(usize, i64)> {
    let Some(current) = current else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let new = &versions[current];
    let mut old: Vec<usize> = (0..versions.len())
        .filter(|i| *i != current && versions[*i].desired_replicas() > 0)
        .collect();
    old.sort_by_key(|i| versions[*i].revision());
    let old_wanted: i64 = old.iter().map(|i| versions[*i].desired_replicas()).sum();
    let set_new = |out: &mut Vec<(usize, i64)>, n: i64| {
        if n != new.desired_replicas() {
            out.push((current, n));
        }
    };
    if paused {
        // While paused, only scaling is applied, and only to the version that has the pods.
        if old_wanted == 0 {
            set_new(&mut out, desired);
        }
        return out;
    }
    if recreate {
        out.extend(old.iter().map(|i| (*i, 0)));
        let remaining: i64 = versions
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != current)
            .map(|(_, v)| v.count("replicas"))
            .sum();
        if old.is_empty() && remaining == 0 {
            set_new(&mut out, desired);
        }
        return out;
    }
    let (surge, unavailable) = rolling_update_limits(deployment, desired);
    let mut new_wanted = new.desired_replicas();
    if new_wanted > desired {
        new_wanted = desired;
    } else if new_wanted < desired {
        let capacity = desired + surge - old_wanted - new_wanted;
        new_wanted = (new_wanted + capacity.max(0)).min(desired);
    }
    set_new(&mut out, new_wanted);
    // Unavailable old pods are removed first; available ones only as new ones become available.
    let available: i64 = versions
        .iter()
        .map(|v| v.count("availableReplicas").min(v.desired_replicas()))
        .sum();
    let mut spare = available - (desired - unavailable);
    for i in old {
        let version = &versions[i];
        let have = version.desired_replicas();
        let broken = (have - version.count("availableReplicas")).clamp(0, have);
        let take = (have - broken).min(spare.max(0));
        spare -= take;
        let remaining = have - broken - take;
        if remaining != have {
            out.push((i, remaining));
        }
    }
    out
}

async fn record_scaled(subject: &EventSubject<'_>, set: &str, from: i64, to: i64) {
    let way = if to > from { "up" } else { "down" };
    let message = format!("Scaled {way} replica set {set} from {from} to {to}");
    subject.normal("ScalingReplicaSet", &message).await;
}

async fn scale(
    api: &Api,
    sets: &Arc<koord_kinds::Resource>,
    key: &Key,
    replicas: i64,
) -> Result<(), ApiError> {
    let result = api
        .modify(sets, None, key, &WriteOptions::default(), |old| {
            let mut new = old.clone();
            meta::section(&mut new, "spec").insert("replicas".to_owned(), replicas.into());
            Ok(WriteInput::from(new))
        })
        .await;
    match result {
        Err(e) if e.code != 404 => Err(e),
        _ => Ok(()),
    }
}

async fn set_revision(
    api: &Api,
    resource: &Arc<koord_kinds::Resource>,
    key: &Key,
    revision: i64,
) -> Result<(), ApiError> {
    annotate(api, resource, key, revision).await
}

/// Returns the annotations of a Deployment that its ReplicaSets inherit, such as the change cause that
/// `kubectl rollout history` shows.
fn inherited(deployment: &Value) -> Map<String, Value> {
    const OWN: &str = "deployment.kubernetes.io/";
    let annotations = meta::at(deployment, &["metadata", "annotations"]);
    let mut map = annotations
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    map.retain(|key, _| {
        !key.starts_with(OWN) && key != "kubectl.kubernetes.io/last-applied-configuration"
    });
    map
}

/// Copies the inherited annotations of the Deployment to the current version.
async fn explain(
    api: &Api,
    sets: &Arc<koord_kinds::Resource>,
    key: &Key,
    deployment: &Value,
) -> Result<(), ApiError> {
    let inherited_annotations = inherited(deployment);
    if inherited_annotations.is_empty() {
        return Ok(());
    }
    let result = api
        .edit(sets, None, key, |old| {
            let mut new = old.clone();
            let metadata = meta::section(&mut new, "metadata");
            let annotations = meta::as_object(metadata.entry("annotations").or_insert(json!({})));
            annotations.extend(inherited_annotations.clone());
            Ok((new != *old).then_some(new))
        })
        .await;
    match result {
        Err(e) if e.code != 404 => Err(e),
        _ => Ok(()),
    }
}

/// Writes the revision annotation.
async fn annotate(
    api: &Api,
    resource: &Arc<koord_kinds::Resource>,
    key: &Key,
    revision: i64,
) -> Result<(), ApiError> {
    let result = api
        .edit(resource, None, key, |old| {
            let text = revision.to_string();
            if meta::text(old, &["metadata", "annotations", REVISION]) == text {
                return Ok(None);
            }
            let mut new = old.clone();
            let metadata = meta::section(&mut new, "metadata");
            let annotations = meta::as_object(metadata.entry("annotations").or_insert(json!({})));
            annotations.insert(REVISION.to_owned(), text.into());
            Ok(Some(new))
        })
        .await;
    match result {
        Err(e) if e.code != 404 => Err(e),
        _ => Ok(()),
    }
}

/// Deletes the oldest idle versions beyond the history limit.
async fn clean_up(
    api: &Api,
    sets: &Arc<koord_kinds::Resource>,
    deployment: &Value,
    versions: &[Version],
    current: Option<usize>,
) -> Result<(), ApiError> {
    let limit = meta::at(deployment, &["spec", "revisionHistoryLimit"])
        .and_then(Value::as_u64)
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(10);
    let mut idle: Vec<&Version> = versions
        .iter()
        .enumerate()
        .filter(|(i, v)| {
            Some(*i) != current && v.desired_replicas() == 0 && v.count("replicas") == 0
        })
        .map(|(_, v)| v)
        .collect();
    idle.sort_by_key(|v| v.revision());
    let surplus = idle.len().saturating_sub(limit);
    for version in &idle[..surplus] {
        pods::delete(api, sets, &version.entry).await?;
    }
    Ok(())
}

/// Writes the status of the Deployment and returns the time until its rollout times out.
async fn report(
    api: &Api,
    key: &Key,
    deployment: &Value,
    versions: &[Version],
    current: Option<usize>,
) -> Result<RequeueAfter, ApiError> {
    let resource = api.builtin("apps", "v1", "deployments")?;
    let replicas = meta::int_at(deployment, &["spec", "replicas"]).unwrap_or(1);
    let sum = |k: &str| versions.iter().map(|v| v.count(k)).sum::<i64>();
    let updated = current.map_or(0, |i| versions[i].count("replicas"));
    let (total, ready, available) = (
        sum("replicas"),
        sum("readyReplicas"),
        sum("availableReplicas"),
    );
    let (_, unavailable) = rolling_update_limits(deployment, replicas);
    let enough = available >= replicas - unavailable;
    let complete = updated == replicas && total == replicas && available >= replicas;
    let name = current
        .map(|i| versions[i].entry.key.name.to_string())
        .unwrap_or_default();
    let generation = meta::at(deployment, &["metadata", "generation"]).cloned();
    let now = api.clock().now();
    // The largest value means that there is no deadline.
    let deadline = meta::int_at(deployment, &["spec", "progressDeadlineSeconds"])
        .filter(|n| *n < i64::from(i32::MAX));
    let mut remaining = None;
    pods::write_status(
        api,
        &resource,
        key,
        meta::uid(deployment),
        |status: &mut Map<String, Value>| {
            let had = |k: &str| status.get(k).and_then(Value::as_i64).unwrap_or(0);
            let old = total - updated;
            let moved = updated > had("updatedReplicas")
                || old < had("replicas") - had("updatedReplicas")
                || ready > had("readyReplicas")
                || available > had("availableReplicas");
            for (k, n) in [
                ("replicas", total),
                ("updatedReplicas", updated),
                ("readyReplicas", ready),
                ("availableReplicas", available),
                ("unavailableReplicas", (replicas - available).max(0)),
            ] {
                if n == 0 {
                    status.remove(k);
                } else {
                    status.insert(k.to_owned(), n.into());
                }
            }
            if let Some(g) = generation.clone() {
                status.insert("observedGeneration".to_owned(), g);
            }
            let (value, reason, message) = if enough {
                (
                    "True",
                    "MinimumReplicasAvailable",
                    "Deployment has minimum availability.",
                )
            } else {
                (
                    "False",
                    "MinimumReplicasUnavailable",
                    "Deployment does not have minimum availability.",
                )
            };
            if meta::set_condition(status, "Available", value, reason, message, now) {
                progress::stamp(status, "Available", now);
            }
            let state = progress::RolloutState {
                complete,
                moved,
                rolling: total != updated,
            };
            remaining = progress::write(status, &name, state, deadline, now);
        },
    )
    .await?;
    Ok(remaining
        .filter(|remaining| *remaining > 0)
        .map(Duration::from_secs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Index;

    fn version(revision: i64, replicas: i64, available: i64) -> Version {
        let value = json!({
            "metadata": {"annotations": {REVISION: revision.to_string()}},
            "spec": {"replicas": replicas},
            "status": {"replicas": replicas, "availableReplicas": available},
        });
        let store_entry = crate::controllers::deployment::tests::entry(revision);
        Version {
            entry: store_entry,
            value,
        }
    }

    fn entry(n: i64) -> Arc<Entry> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let clock = koord_app::Clock::system();
            let options = crate::store::StoreOptions::memory(clock);
            let store = crate::store::Store::open(options).await.unwrap();
            let table = crate::store::TableId::new("apps", "replicasets");
            let key = Key::new("default", format!("v{n}"));
            store
                .create(table, key, json!({}), Index::default())
                .await
                .unwrap()
        })
    }

    fn deployment() -> Value {
        json!({"spec": {"replicas": 4, "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}}})
    }

    #[test]
    fn rollout_respects_surge_and_unavailability() {
        // Start: 4 old, all available; the new one may have one, one old may go.
        let v = [version(1, 4, 4), version(2, 0, 0)];
        assert_eq!(
            plan(&deployment(), &v, Some(1), 4, false, false),
            [(1, 1), (0, 3)]
        );
        // Nothing new is available yet: nothing moves.
        let v = [version(1, 3, 3), version(2, 2, 0)];
        assert_eq!(plan(&deployment(), &v, Some(1), 4, false, false), []);
        // Both new ones came up.
        let v = [version(1, 3, 3), version(2, 2, 2)];
        assert_eq!(plan(&deployment(), &v, Some(1), 4, false, false), [(0, 1)]);
        // Old pods that are broken go first.
        let v = [version(1, 3, 0), version(2, 1, 1)];
        assert_eq!(
            plan(&deployment(), &v, Some(1), 4, false, false),
            [(1, 2), (0, 0)]
        );
    }

    #[test]
    fn recreate_waits_for_the_old_pods() {
        let v = [version(1, 4, 4), version(2, 0, 0)];
        assert_eq!(plan(&deployment(), &v, Some(1), 4, true, false), [(0, 0)]);
        let v = [version(1, 0, 0), version(2, 0, 0)];
        assert_eq!(plan(&deployment(), &v, Some(1), 4, true, false), [(1, 4)]);
    }

    #[test]
    fn percentages() {
        assert_eq!(resolve_int_or_percent(None, "25%", 10, true), 3);
        assert_eq!(resolve_int_or_percent(None, "25%", 10, false), 2);
        assert_eq!(resolve_int_or_percent(Some(&json!(5)), "25%", 10, false), 5);
        assert_eq!(
            rolling_update_limits(
                &json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "1%"}}}}),
                4
            ),
            (0, 1)
        );
    }
}
