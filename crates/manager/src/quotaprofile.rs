//! Maintains one root quota per ElasticQuotaProfile, as large as the nodes that the profile selects.
//!
//! Source: Koordinator `pkg/quota-controller/profile`.

use crate::cache::ObjectKind;
use crate::controller::{Action, Controller, ControllerSpec};
use crate::replica::Replica;
use k8s_openapi::api::core::v1::Node;
use koord_api::quantity::{self, Format, Quantity, ResourceList};
use koord_api::quota::ElasticQuotaProfile;
use koord_api::requests::Total;
use koord_api::scheduling::{ElasticQuota, ElasticQuotaSpec, ElasticQuotaStatus};
use koord_api::{annotations, extension, labels, resources, selector};
use koord_kube::events::{self, Severity};
use koord_kube::queue::WorkQueue;
use koord_kube::{Api, Change, ObjectKey, patch};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the nodes are summed up.
const PERIOD: Duration = Duration::from_secs(10);
/// Delay before a failed write is retried.
const RETRY: Duration = Duration::from_secs(2);
/// Stands for no limit: the largest value whose sum over a cluster still fits in milli-cores.
const NO_LIMIT: i64 = i64::MAX / 2000;

/// Returns the tree id of the profile `namespace/name`: its 64-bit FNV-1a hash in decimal.
fn tree_id(key: &ObjectKey) -> String {
    let text = format!("{}/{}", key.namespace, key.name);
    let hash = text
        .bytes()
        .fold(14_695_981_039_346_656_037_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
        });
    hash.to_string()
}

/// The intended quota of a profile.
#[derive(Debug, Clone, PartialEq)]
struct Plan {
    /// The new tree id; `None` if the profile already has one.
    new_tree: Option<String>,
    labels: BTreeMap<String, String>,
    spec: ElasticQuotaSpec,
    total: ResourceList,
    unschedulable: ResourceList,
    /// Problems in the profile and its nodes.
    problems: Vec<String>,
}

/// Computes the quota of a profile from the nodes that it selects.
///
/// # Errors
/// The selector is invalid: the nodes of the profile are unknown then, and the quota stays as it is.
fn plan(
    profile: &ElasticQuotaProfile,
    nodes: impl IntoIterator<Item: Borrow<Node>>,
) -> Result<Plan, String> {
    let key = ObjectKey::from_object(profile);
    let spec = &profile.spec;
    let none = BTreeMap::new();
    let mut problems = Vec::new();
    let (mut total, mut unschedulable) = (ResourceList::new(), ResourceList::new());
    for node in nodes {
        let node: &Node = node.borrow();
        let labels = node.metadata.labels.as_ref().unwrap_or(&none);
        let selected = selector::matches(&spec.node_selector, labels);
        if !selected.map_err(|error| format!("spec.nodeSelector: {error}"))? {
            continue;
        }
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let allocatable = match allocatable.map(quantity::parse_list).transpose() {
            Ok(list) => list.unwrap_or_default(),
            Err((resource, error)) => {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                problems.push(format!(
                    "node {name} status.allocatable.{resource}: {error}"
                ));
                continue;
            }
        };
        total.add(&allocatable);
        if !is_schedulable(node) {
            unschedulable.add(&allocatable);
        }
    }
    if let Some(text) = &spec.resource_ratio {
        let ratio = text
            .parse()
            .ok()
            .filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
        if ratio.is_none() {
            problems.push(format!(
                "spec.resourceRatio {text:?} is not above 0 and at most 1: it counts as 1"
            ));
        }
        let ratio = ratio.unwrap_or(1.0);
        for list in [&mut total, &mut unschedulable] {
            for (resource, amount) in list {
                *amount = scale_amount(resource, *amount, ratio);
            }
        }
    }
    let (keys, problem) = resource_keys(profile);
    problems.extend(problem);
    let amounts = |of: &dyn Fn(&str) -> Quantity| {
        let keys = keys.iter();
        keys.map(|key| (key.clone(), of(key)))
            .collect::<ResourceList>()
    };
    let label = profile.metadata.labels.as_ref();
    let tree = label.and_then(|all| all.get(labels::QUOTA_TREE_ID));
    let tree = tree.filter(|tree| !tree.is_empty());
    let new_tree = tree.is_none().then(|| tree_id(&key));
    let mut quota_labels = BTreeMap::from([(labels::QUOTA_PROFILE.to_owned(), key.name)]);
    quota_labels.extend(spec.quota_labels.clone());
    let tree = tree.or(new_tree.as_ref()).cloned().unwrap_or_default();
    quota_labels.insert(labels::QUOTA_TREE_ID.to_owned(), tree);
    quota_labels.insert(labels::QUOTA_IS_ROOT.to_owned(), "true".to_owned());
    Ok(Plan {
        new_tree,
        labels: quota_labels,
        spec: ElasticQuotaSpec {
            min: amounts(&|key| total.get(key).copied().unwrap_or(Quantity::ZERO)),
            max: amounts(&|_| Quantity::from_value(NO_LIMIT)),
        },
        total,
        unschedulable,
        problems,
    })
}

/// Returns true if a node accepts new pods: it is ready and not cordoned.
fn is_schedulable(node: &Node) -> bool {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let is_ready =
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    cordoned != Some(true) && is_ready
}

/// Returns a fraction of an amount, truncated: CPU to milli-cores, everything else to whole units.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "upstream's arithmetic; an f64 too large saturates"
)]
fn scale_amount(resource: &str, amount: Quantity, ratio: f64) -> Quantity {
    let share = |value: i64| (value as f64 * ratio) as i64;
    match resource {
        resources::CPU => Quantity::from_milli(share(amount.milli_value())),
        resources::MEMORY => Quantity::from_bytes(share(amount.value())),
        _ => Quantity::from_value(share(amount.value())).with_format(Format::DecimalSi),
    }
}

/// Returns the resources that the quota limits, and the problem in the annotation that lists them, if any.
fn resource_keys(profile: &ElasticQuotaProfile) -> (Vec<String>, Option<String>) {
    let annotations = profile.metadata.annotations.as_ref();
    let (named, problem) = match extension::read(annotations, annotations::QUOTA_RESOURCE_KEYS) {
        Ok(named) => (named, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let usual = || vec![resources::CPU.to_owned(), resources::MEMORY.to_owned()];
    (named.unwrap_or_else(usual), problem)
}

impl Plan {
    /// Returns the merge patch from `quota` to the intended one; `None` if it needs no change. Amounts that
    /// are equal but written differently stay as they are.
    fn change(&self, quota: &ElasticQuota) -> Option<Value> {
        let mut change = json!({});
        for (key, value) in &self.labels {
            if quota.label(key) != value {
                change["metadata"]["labels"][key] = json!(value);
            }
        }
        for (key, list) in self.sums() {
            let current = quota.amounts(key);
            if quota.annotation(key).is_empty() || current.as_ref() != Ok(list) {
                change["metadata"]["annotations"][key] = json!(encode_list(list));
            }
        }
        for (field, current, desired) in [
            ("min", &quota.spec.min, &self.spec.min),
            ("max", &quota.spec.max, &self.spec.max),
        ] {
            if current != desired {
                let removed = current.keys().filter(|key| !desired.contains_key(*key));
                change["spec"][field] = json!(desired);
                for key in removed {
                    change["spec"][field][key] = Value::Null;
                }
            }
        }
        if change.as_object().is_none_or(|all| all.is_empty()) {
            return None;
        }
        if quota.status.is_none() {
            change["status"] = json!({});
        }
        Some(change)
    }

    fn sums(&self) -> [(&'static str, &ResourceList); 2] {
        [
            (annotations::QUOTA_TOTAL_RESOURCE, &self.total),
            (
                annotations::QUOTA_UNSCHEDULABLE_RESOURCE,
                &self.unschedulable,
            ),
        ]
    }

    /// Returns a new quota.
    fn quota(&self, key: &ObjectKey) -> ElasticQuota {
        let mut quota = ElasticQuota::new(&key.name, self.spec.clone());
        quota.metadata.namespace = Some(key.namespace.clone());
        quota.metadata.labels = Some(self.labels.clone());
        let sums = self
            .sums()
            .map(|(key, list)| (key.to_owned(), encode_list(list)));
        quota.metadata.annotations = Some(BTreeMap::from(sums));
        // Upstream writes an empty status, too, and would update a quota without one. `change` does likewise.
        quota.status = Some(ElasticQuotaStatus::default());
        quota
    }
}

fn encode_list(list: &ResourceList) -> String {
    serde_json::to_string(list).unwrap_or_default()
}

/// The controller.
pub(crate) const SPEC: ControllerSpec = ControllerSpec {
    name: "quotaprofile",
    gate: None,
    needs: &[
        ObjectKind::Nodes,
        ObjectKind::Quotas,
        ObjectKind::QuotaProfiles,
    ],
    wants: &[],
    build,
};

/// Creates the controller, which also reconciles a profile as soon as its spec changes.
fn build(replica: &Arc<Replica>) -> Controller {
    let queue = WorkQueue::default();
    let profiles = queue.clone();
    replica.caches.quota_profiles.on_change(move |change| {
        if let Change::Applied { old, new } = change {
            // All other changes are covered by the periodic reconcile.
            let generation = |profile: &ElasticQuotaProfile| profile.metadata.generation;
            if old
                .as_ref()
                .is_none_or(|old| generation(old) != generation(new))
            {
                profiles.add(ObjectKey::from_object(&**new));
            }
        }
    });
    let (own, reported) = (replica.clone(), Arc::new(ReportedProblems::default()));
    SPEC.controller(replica, queue, move |key| {
        reconcile(own.clone(), reported.clone(), key)
    })
}

/// An event reason and its message.
type ProfileProblem = (&'static str, String);

/// The problems of each profile as of its last reconcile.
type ReportedProblems = Mutex<HashMap<ObjectKey, Vec<ProfileProblem>>>;

async fn reconcile(
    replica: Arc<Replica>,
    reported: Arc<ReportedProblems>,
    key: ObjectKey,
) -> Result<Action, crate::Error> {
    // The quota of a deleted profile stays.
    let Some(profile) = replica.caches.quota_profiles.get(&key) else {
        reported.lock().remove(&key);
        return Ok(Action::Done);
    };
    let mut problems = Vec::new();
    let outcome = apply_quota(&replica, &profile, &key, &mut problems).await;
    // The reconcile repeats every few seconds: report only new problems.
    let before = reported.lock().remove(&key).unwrap_or_default();
    for (reason, message) in problems.iter().filter(|problem| !before.contains(problem)) {
        tracing::warn!(profile = %key, reason, message);
        let about = events::reference(&*profile);
        let recorder = &replica.recorder;
        recorder.event(about, Severity::Warning, reason, message.clone());
    }
    if !problems.is_empty() {
        reported.lock().insert(key, problems);
    }
    outcome
}

/// Creates or updates the quota of a profile.
async fn apply_quota(
    replica: &Replica,
    profile: &ElasticQuotaProfile,
    key: &ObjectKey,
    problems: &mut Vec<ProfileProblem>,
) -> Result<Action, crate::Error> {
    let caches = &replica.caches;
    let plan = match plan(profile, caches.nodes.objects()) {
        Ok(plan) => plan,
        Err(problem) => {
            problems.push(("InvalidProfile", problem));
            return Ok(Action::RequeueAfter(PERIOD));
        }
    };
    let invalid = plan.problems.iter();
    problems.extend(invalid.map(|problem| ("InvalidProfile", problem.clone())));
    if let Some(tree) = &plan.new_tree {
        let profiles: Api<ElasticQuotaProfile> =
            Api::namespaced(replica.client.clone(), &key.namespace);
        let change = json!({"metadata": {"labels": {labels::QUOTA_TREE_ID: tree}}});
        patch::merge(&profiles, &key.name, &change).await?;
    }
    let quota = ObjectKey::new(&key.namespace, &profile.spec.quota_name);
    let quotas: Api<ElasticQuota> = Api::namespaced(replica.client.clone(), &key.namespace);
    let (reason, doing, written) = match caches.quotas.get(&quota) {
        None => {
            let new = plan.quota(&quota);
            let created = quotas.create(&Default::default(), &new).await;
            ("CreateQuotaFailed", "create", created.map(drop))
        }
        Some(existing) => match plan.change(&existing) {
            None => return Ok(Action::RequeueAfter(PERIOD)),
            Some(change) => {
                let updated = patch::merge(&quotas, &quota.name, &change).await;
                ("UpdateQuotaFailed", "update", updated.map(drop))
            }
        },
    };
    match written {
        Ok(()) => Ok(Action::RequeueAfter(PERIOD)),
        Err(error) => {
            problems.push((
                reason,
                format!("failed to {doing} quota {quota}, err: {error}"),
            ));
            Ok(Action::RequeueAfter(RETRY))
        }
    }
}

#[cfg(test)]
mod tests;
