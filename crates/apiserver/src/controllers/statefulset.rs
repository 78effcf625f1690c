//! StatefulSet controller: numbered pods, created in order and deleted in reverse.
//!
//! Volume claim templates have no effect: there is no volume provisioner.

use super::adoption;
use super::objects::{self, hash};
use super::pods;
use super::queue::RequeueAfter;
use super::recorder::EventSubject;
use super::revisions;
use super::workload::Workload;
use crate::rest::{Api, meta};
use crate::store::{Entry, Key};
use futures::FutureExt as _;
use koord_kinds::status::ApiError;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Pods created in one reconcile, so that a large set neither delays the others nor needs much memory for its
/// plan.
const BURST: usize = 500;
/// Label with the version of the template.
const HASH_LABEL: &str = "controller-revision-hash";

/// The StatefulSet controller.
pub(super) const STATEFUL_SETS: Workload = Workload {
    name: "statefulset-controller",
    group: "apps",
    plural: "statefulsets",
    kind: "StatefulSet",
    owns: ("", "pods"),
    adopts: true,
    also: || None,
    sync: |subject, key| sync(subject, key).boxed(),
};

/// A step towards the desired state of a set.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create(i64),
    Delete(i64),
}

/// State of one pod of the set.
#[derive(Debug, Clone, Copy)]
struct PodState {
    ended: bool,
    deleting: bool,
    ready: bool,
    current: bool,
}

/// Desired state of a set.
#[derive(Debug, Clone, Copy)]
struct DesiredState {
    /// Ordinal of the first pod.
    start: i64,
    replicas: i64,
    /// Number of pods, counted from the first, that keep their current template.
    partition: i64,
    /// True if all pods are managed at once instead of one after the other.
    parallel: bool,
    /// True if outdated pods are replaced.
    rolling: bool,
}

impl DesiredState {
    fn from_set(set: &Value) -> Self {
        let number = |path: &[&str], default: i64| {
            let number = meta::at(set, path).and_then(Value::as_i64);
            number.unwrap_or(default).max(0)
        };
        Self {
            start: number(&["spec", "ordinals", "start"], 0),
            replicas: number(&["spec", "replicas"], 1),
            partition: number(&["spec", "updateStrategy", "rollingUpdate", "partition"], 0),
            parallel: meta::text(set, &["spec", "podManagementPolicy"]) == "Parallel",
            rolling: meta::text(set, &["spec", "updateStrategy", "type"]) != "OnDelete",
        }
    }

    /// Returns the ordinal after the last pod.
    fn end(&self) -> i64 {
        self.start.saturating_add(self.replicas)
    }

    /// Returns true if the pod with this ordinal keeps its current template.
    fn keeps_template(&self, ordinal: i64) -> bool {
        ordinal < self.start.saturating_add(self.partition)
    }
}

/// Returns the steps to take now. Ordered sets take one step at a time and only when all earlier pods are
/// ready; parallel sets take all at once.
fn plan(desired: &DesiredState, pods: &BTreeMap<i64, PodState>) -> Vec<Step> {
    let mut steps = Vec::new();
    for ordinal in desired.start..desired.end() {
        match pods.get(&ordinal) {
            None => steps.push(Step::Create(ordinal)),
            Some(p) if p.ended && !p.deleting => steps.push(Step::Delete(ordinal)),
            Some(p) if p.ready && !p.deleting => continue,
            Some(_) => {}
        }
        // The rest of a full plan is left to the next reconcile, which the new pods cause.
        if !desired.parallel || steps.len() >= BURST {
            return finish(steps, desired, pods);
        }
    }
    let surplus = pods.range(desired.end()..).rev();
    for (ordinal, pod) in surplus.chain(pods.range(..desired.start).rev()) {
        if !pod.deleting {
            steps.push(Step::Delete(*ordinal));
        }
        if !desired.parallel {
            return steps;
        }
    }
    finish(steps, desired, pods)
}

/// Adds the replacement of the highest outdated pod when there are no other steps. An outdated pod is
/// replaced even if it is not ready: waiting for it could take forever.
fn finish(
    mut steps: Vec<Step>,
    desired: &DesiredState,
    pods: &BTreeMap<i64, PodState>,
) -> Vec<Step> {
    if !steps.is_empty() || !desired.rolling {
        return steps;
    }
    for (ordinal, pod) in pods.range(desired.start..desired.end()).rev() {
        if pod.deleting || desired.keeps_template(*ordinal) {
            return steps;
        }
        if !pod.current {
            steps.push(Step::Delete(*ordinal));
            return steps;
        }
        if !pod.ready {
            return steps;
        }
    }
    steps
}

fn ordinal(set: &str, pod: &str) -> Option<i64> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

/// Reconciles a StatefulSet: creates, updates and deletes pods by ordinal, and updates its status.
async fn sync(subject: EventSubject<'_>, key: &Key) -> Result<RequeueAfter, ApiError> {
    let (api, resource, set) = (subject.api, subject.resource, subject.object);
    let pods_resource = api.builtin("", "v1", "pods")?;
    if meta::deleting(set) {
        return Ok(None);
    }
    let uid = meta::uid(set).to_owned();
    let name = meta::name(set).to_owned();
    let template = meta::at(set, &["spec", "template"])
        .cloned()
        .unwrap_or_default();
    let version = format!("{name}-{}", hash(&template));
    let desired = DesiredState::from_set(set);
    let min_ready = meta::int_at(set, &["spec", "minReadySeconds"]).unwrap_or(0);
    let now = api.clock().now();
    let member = |pod: &Key| ordinal(&name, &pod.name).is_some();
    adoption::claim(api, resource, set, &pods_resource, &member).await?;
    let mut requeue: RequeueAfter = None;
    let mut entries: BTreeMap<i64, Arc<Entry>> = BTreeMap::new();
    let mut state: BTreeMap<i64, PodState> = BTreeMap::new();
    let mut status = Status::default();
    let mut hashes: BTreeSet<String> = BTreeSet::new();
    for (entry, pod) in pods::owned(api, &pods_resource, &key.namespace, &uid) {
        let Some(ordinal) = ordinal(&name, &entry.key.name) else {
            continue;
        };
        let pod_version = meta::text(&pod, &["metadata", "labels", HASH_LABEL]).to_owned();
        let current = pod_version == version;
        hashes.insert(pod_version);
        let (ended, deleting) = (pods::ended(&pod), meta::deleting(&pod));
        let ready = !ended && pods::ready(&pod);
        let available = ready
            && match pods::available(&pod, min_ready, now) {
                Ok(()) => true,
                Err(remaining) => {
                    let remaining = remaining.map(Duration::from_secs);
                    requeue = requeue.into_iter().chain(remaining).min();
                    false
                }
            };
        if !ended {
            status.replicas += 1;
            status.ready += i64::from(ready);
            status.available += i64::from(available);
            status.updated += i64::from(current && !deleting);
        }
        state.insert(
            ordinal,
            PodState {
                ended,
                deleting,
                ready: available,
                current,
            },
        );
        entries.insert(ordinal, entry);
    }
    let used = |hash: &str| {
        hashes
            .iter()
            .any(|have| have.as_str() == format!("{name}-{hash}"))
    };
    revisions::record(api, resource, set, &template, &hash(&template), used).await?;
    let before = previous_template(api, set, &version);
    for step in plan(&desired, &state) {
        match step {
            Step::Create(ordinal) => {
                let (template, version) = match &before {
                    Some((template, version)) if desired.keeps_template(ordinal) => {
                        (template, version)
                    }
                    _ => (&template, &version),
                };
                let mut pod = pods::from_template(template, resource, set);
                set_identity(&mut pod, set, ordinal, version);
                let pod_name = meta::name(&pod).to_owned();
                let result = objects::create(api, &pods_resource, &key.namespace, pod).await;
                record_event(&subject, "create", &pod_name, &result).await;
                result?;
                status.replicas += 1;
                status.updated += i64::from(before.is_none() || !desired.keeps_template(ordinal));
            }
            Step::Delete(ordinal) => {
                if let Some(entry) = entries.get(&ordinal) {
                    let result = pods::delete(api, &pods_resource, entry).await;
                    record_event(&subject, "delete", &entry.key.name, &result).await;
                    result?;
                }
            }
        }
    }
    let generation = meta::at(set, &["metadata", "generation"]).cloned();
    pods::write_status(api, resource, key, &uid, |s| {
        status.write(s, &version, desired.replicas, generation.clone());
    })
    .await?;
    Ok(requeue)
}

/// Returns the previous template of the set and its version while a rollout is in progress.
fn previous_template(api: &Api, set: &Value, version: &str) -> Option<(Value, String)> {
    let current = meta::text(set, &["status", "currentRevision"]);
    if current.is_empty() || current == version {
        return None;
    }
    let revisions = api.builtin("apps", "v1", "controllerrevisions").ok()?;
    let key = Key::new(meta::namespace(set), current);
    let revision = api.store().get(&revisions.table, &key)?.value();
    let actual = meta::owners(&revision)
        .iter()
        .any(|o| o.uid == meta::uid(set));
    let mut template = meta::at(&revision, &["data", "spec", "template"])
        .filter(|_| actual)?
        .clone();
    template.as_object_mut()?.remove("$patch");
    Some((template, current.to_owned()))
}

/// Records an event about a pod with the messages of upstream's StatefulSet controller.
async fn record_event<T>(
    subject: &EventSubject<'_>,
    verb: &str,
    pod: &str,
    result: &Result<T, ApiError>,
) {
    let description = format!(
        "{verb} Pod {pod} in StatefulSet {}",
        meta::name(subject.object)
    );
    match (result, verb) {
        (Ok(_), "create") => {
            let message = format!("{description} successful");
            subject.normal("SuccessfulCreate", &message).await;
        }
        (Ok(_), _) => {
            let message = format!("{description} successful");
            subject.normal("SuccessfulDelete", &message).await;
        }
        (Err(e), "create") => {
            let message = format!("{description} failed error: {e}");
            subject.warning("FailedCreate", &message).await;
        }
        (Err(e), _) => {
            let message = format!("{description} failed error: {e}");
            subject.warning("FailedDelete", &message).await;
        }
    }
}

/// Sets the name, host name, subdomain and labels of a pod.
fn set_identity(pod: &mut Value, set: &Value, ordinal: i64, version: &str) {
    let name = format!("{}-{ordinal}", meta::name(set));
    let metadata = meta::section(pod, "metadata");
    metadata.remove("generateName");
    metadata.insert("name".to_owned(), name.as_str().into());
    let labels = meta::as_object(metadata.entry("labels").or_insert(json!({})));
    labels.insert(
        "statefulset.kubernetes.io/pod-name".to_owned(),
        name.as_str().into(),
    );
    labels.insert(
        "apps.kubernetes.io/pod-index".to_owned(),
        ordinal.to_string().into(),
    );
    labels.insert(HASH_LABEL.to_owned(), version.into());
    let spec = meta::section(pod, "spec");
    spec.insert("hostname".to_owned(), name.into());
    let service = meta::text(set, &["spec", "serviceName"]);
    if !service.is_empty() {
        spec.insert("subdomain".to_owned(), service.into());
    }
}

#[derive(Debug, Default)]
struct Status {
    replicas: i64,
    ready: i64,
    available: i64,
    updated: i64,
}

impl Status {
    /// Writes the counts into the status of the set.
    fn write(
        &self,
        status: &mut Map<String, Value>,
        version: &str,
        replicas: i64,
        generation: Option<Value>,
    ) {
        status.insert("replicas".to_owned(), self.replicas.into());
        status.insert("availableReplicas".to_owned(), self.available.into());
        for (key, n) in [
            ("readyReplicas", self.ready),
            ("updatedReplicas", self.updated),
        ] {
            if n == 0 {
                status.remove(key);
            } else {
                status.insert(key.to_owned(), n.into());
            }
        }
        status.insert("updateRevision".to_owned(), version.into());
        if self.updated >= replicas || !status.contains_key("currentRevision") {
            status.insert("currentRevision".to_owned(), version.into());
        }
        let current = if status.get("currentRevision").and_then(Value::as_str) == Some(version) {
            self.updated
        } else {
            self.replicas - self.updated
        };
        status.insert("currentReplicas".to_owned(), current.max(0).into());
        status.insert("collisionCount".to_owned(), 0.into());
        if let Some(g) = generation {
            status.insert("observedGeneration".to_owned(), g);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(list: &[(i64, bool, bool)]) -> BTreeMap<i64, PodState> {
        list.iter()
            .map(|(i, ready, current)| {
                (
                    *i,
                    PodState {
                        ended: false,
                        deleting: false,
                        ready: *ready,
                        current: *current,
                    },
                )
            })
            .collect()
    }

    fn desired(replicas: i64, parallel: bool, rolling: bool) -> DesiredState {
        DesiredState {
            start: 0,
            replicas,
            partition: 0,
            parallel,
            rolling,
        }
    }

    #[test]
    fn pods_start_at_ordinal_and_keep_partition() {
        let from_3 = DesiredState {
            start: 3,
            ..desired(2, false, true)
        };
        assert_eq!(plan(&from_3, &pods(&[])), [Step::Create(3)]);
        let moved = pods(&[(1, true, true), (3, true, true), (4, true, true)]);
        assert_eq!(plan(&from_3, &moved), [Step::Delete(1)]);
        let canary = DesiredState {
            partition: 1,
            ..from_3
        };
        let old = pods(&[(3, true, false), (4, true, false)]);
        assert_eq!(plan(&canary, &old), [Step::Delete(4)]);
        let half = pods(&[(3, true, false), (4, true, true)]);
        assert_eq!(plan(&canary, &half), []);
        assert_eq!(plan(&from_3, &half), [Step::Delete(3)]);
    }

    #[test]
    fn ordered_pods_start_one_at_a_time() {
        assert_eq!(
            plan(&desired(3, false, true), &pods(&[])),
            [Step::Create(0)]
        );
        assert_eq!(
            plan(&desired(3, false, true), &pods(&[(0, false, true)])),
            []
        );
        assert_eq!(
            plan(&desired(3, false, true), &pods(&[(0, true, true)])),
            [Step::Create(1)]
        );
        assert_eq!(
            plan(&desired(2, true, true), &pods(&[])),
            [Step::Create(0), Step::Create(1)]
        );
        assert_eq!(
            plan(&desired(i64::MAX, true, true), &pods(&[])).len(),
            BURST
        );
        let all = pods(&[(0, true, true), (1, true, true), (2, true, true)]);
        assert_eq!(plan(&desired(1, false, true), &all), [Step::Delete(2)]);
    }

    #[test]
    fn updates_start_at_highest_ordinal() {
        let old = pods(&[(0, true, false), (1, true, false)]);
        assert_eq!(plan(&desired(2, false, true), &old), [Step::Delete(1)]);
        assert_eq!(plan(&desired(2, false, false), &old), []);
        let half = pods(&[(0, true, false), (1, false, true)]);
        assert_eq!(plan(&desired(2, false, true), &half), []);
        let broken = pods(&[(0, true, false), (1, false, false)]);
        assert_eq!(plan(&desired(2, false, true), &broken), [Step::Delete(1)]);
    }

    #[test]
    fn ordinals() {
        assert_eq!(ordinal("web", "web-12"), Some(12));
        assert_eq!(ordinal("web", "web-x"), None);
        assert_eq!(ordinal("web", "webs-1"), None);
    }
}
