//! Status of quotas: annotations and status of their objects, and summaries for the HTTP service.

use super::ElasticQuotas;
use super::admission::quantities;
use super::metrics::WRITTEN;
use super::objects::{Key, Object, QuotaStatus, STATUS_ANNOTATIONS};
use jiff::{SignedDuration, Timestamp};
use koord_api::labels;
use koord_api::quantity::ResourceList;
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use koord_model::quota::{Quota, Sums};
use koord_model::resources::{Amounts, ResourceTable};
use koord_scheduler::framework::{Effects, Timed, Verb, View, Write};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

/// Interval between two checks of object statuses.
const CHECK_INTERVAL: SignedDuration = SignedDuration::from_secs(1);
/// Timeout after which a write is sent again if the object still has other values.
const WRITE_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);
/// Interval between two attempts to create the built-in quotas.
const CREATE_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// Status writes with their times.
#[derive(Debug, Default)]
pub(super) struct StatusWriter {
    sent: FxHashMap<Key, (Timestamp, QuotaStatus)>,
    /// True if something changed since the last check.
    pub dirty: bool,
    last_check: Timestamp,
    created: Option<Timestamp>,
}

impl StatusWriter {
    /// Returns the time of the next check; `None` if nothing is due. `missing` is true if a built-in quota has
    /// no object.
    pub(super) fn next_check(&self, missing: bool) -> Option<Timestamp> {
        let after = |at: Timestamp, wait| at.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let create = match self.created {
            None => Some(Timestamp::UNIX_EPOCH),
            Some(at) => missing.then(|| after(at, CREATE_INTERVAL)),
        };
        let look = self.dirty.then(|| after(self.last_check, CHECK_INTERVAL));
        let retry = self
            .sent
            .values()
            .map(|(at, _)| after(*at, WRITE_TIMEOUT))
            .min();
        create.into_iter().chain(look).chain(retry).min()
    }
}

impl ElasticQuotas {
    /// Returns true if a built-in quota has no object.
    pub(super) fn is_missing_built_ins(&self) -> bool {
        [ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA]
            .iter()
            .any(|name| self.objects.get(name).is_none())
    }

    /// Creates the objects of built-in quotas where they are missing.
    pub(super) fn create_built_ins(&mut self, now: Timestamp, fx: &mut Effects) {
        if let Some(last) = self.writer.created
            && (now.duration_since(last) < CREATE_INTERVAL || !self.is_missing_built_ins())
        {
            return;
        }
        self.writer.created = Some(now);
        let root = json!({
            labels::QUOTA_IS_PARENT: "true",
            labels::QUOTA_ALLOW_LENT_RESOURCE: "false",
            labels::QUOTA_PARENT: "",
        });
        let max = |list: &ResourceList| json!({"max": list});
        for (name, labels, spec) in [
            (ROOT_QUOTA, root, json!({})),
            (
                SYSTEM_QUOTA,
                json!({}),
                max(&self.args.system_quota_group_max),
            ),
            (
                DEFAULT_QUOTA,
                json!({}),
                max(&self.args.default_quota_group_max),
            ),
        ] {
            if self.objects.get(name).is_some() {
                continue;
            }
            let namespace = self.args.quota_group_namespace.clone();
            let body = json!({
                "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
                "kind": "ElasticQuota",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": spec,
            });
            fx.writes
                .push(write(&(namespace, name.to_owned()), Verb::Create(body)));
        }
    }

    /// Writes annotations and statuses that are out of date.
    pub(super) fn write_statuses(&mut self, view: View<'_>, fx: &mut Effects) {
        if !self.controls {
            self.writer.dirty = false;
            return;
        }
        let now = view.now;
        let overdue = |(at, _): &(Timestamp, QuotaStatus)| now.duration_since(*at) >= WRITE_TIMEOUT;
        let retry = self.writer.sent.values().any(overdue);
        if !retry
            && (!self.writer.dirty || now.duration_since(self.writer.last_check) < CHECK_INTERVAL)
        {
            return;
        }
        self.writer.dirty = false;
        self.writer.last_check = now;
        let mut sent_patches = std::mem::take(&mut self.writer.sent);
        let runtime = self.args.enable_runtime_quota;
        let trees = &mut self.trees;
        trees.rebuild();
        let mut pending = FxHashMap::default();
        for (key, object) in self.objects.iter() {
            if !self.objects.is_in_force(key) {
                continue;
            }
            if runtime {
                trees.refresh(&key.1);
            }
            let Some(quota) = trees.quota(&key.1) else {
                continue;
            };
            let desired = quota_status(quota);
            if desired.is_equal(&object.status) {
                continue;
            }
            if let Some((at, last)) = sent_patches.remove(key)
                && now.duration_since(at) < WRITE_TIMEOUT
                && last.is_equal(&desired)
            {
                pending.insert(key.clone(), (at, last));
                continue;
            }
            let patch = patch(&desired, object, view.resources);
            fx.writes.push(write(key, Verb::Patch(patch)));
            pending.insert(key.clone(), (now, desired));
        }
        self.writer.sent = pending;
    }

    /// Returns the summary of a quota for the HTTP service. The runtime must have been divided before.
    pub(super) fn summary(&self, name: &str, pods: bool, table: &ResourceTable) -> Option<Value> {
        let trees = &self.trees;
        let tree = trees.tree_of(name).to_owned();
        let version = trees.parent(name).map_or(0, |parent| parent.version);
        let quota = trees.quota(name)?;
        let list = |amounts: &Amounts| quantities(amounts, table);
        let own = quota.own();
        let parent = if quota.spec.parent.is_empty() && name != ROOT_QUOTA {
            ROOT_QUOTA
        } else {
            &quota.spec.parent
        };
        let sums = &quota.sums;
        let mut out = json!({
            "name": name,
            "parentName": parent,
            "isParent": quota.spec.is_parent,
            "runtimeVersion": version,
            "allowLentResource": quota.spec.lendable,
            "tree": tree,
            "max": list(&quota.spec.max),
            "min": list(&quota.spec.min),
            "autoScaleMin": list(&quota.scaled_min),
            "used": list(&sums.used),
            "nonPreemptibleUsed": list(&sums.non_preemptible_used),
            "request": list(&sums.request),
            "nonPreemptibleRequest": list(&sums.non_preemptible_request),
            "sharedWeight": list(&quota.spec.weight),
            "runtime": list(&quota.runtime),
            "childRequest": list(&quota.child_request),
            "allocated": list(&quota.allocated),
            "guaranteed": list(&quota.guaranteed),
            "selfUsed": list(&own.used),
            "selfNonPreemptibleUsed": list(&own.non_preemptible_used),
            "selfRequest": list(&own.request),
            "selfNonPreemptibleRequest": list(&own.non_preemptible_request),
        });
        let cache: serde_json::Map<String, Value> = self
            .ledger
            .quota_pods(name)
            .filter(|_| pods)
            .map(|charge| {
                let pod = json!({
                    "isAssigned": charge.placed,
                    "resource": list(&charge.amounts),
                });
                (charge.info.to_string(), pod)
            })
            .collect();
        if !cache.is_empty() {
            out["podCache"] = Value::Object(cache);
        }
        Some(out)
    }
}

impl QuotaStatus {
    /// Returns true if both are equal, with missing amounts counted as zero.
    fn is_equal(&self, other: &Self) -> bool {
        let pairs = self.annotations.iter().zip(&other.annotations);
        let or_empty = |amounts: &Option<Amounts>| amounts.clone().unwrap_or_default();
        let mut pairs = pairs.map(|(a, b)| (or_empty(a), or_empty(b)));
        let equal = |a: &Amounts, b: &Amounts| {
            let within =
                |a: &Amounts, b: &Amounts| a.iter().all(|(id, amount)| b.get(id) == amount);
            within(a, b) && within(b, a)
        };
        equal(&self.used, &other.used) && pairs.all(|(a, b)| equal(&a, &b))
    }
}

/// Returns the current values of a quota.
fn quota_status(quota: &Quota) -> QuotaStatus {
    let Sums {
        request,
        non_preemptible_request,
        used,
        non_preemptible_used,
    } = &quota.sums;
    QuotaStatus {
        annotations: [
            &quota.runtime,
            request,
            &quota.child_request,
            &quota.guaranteed,
            &quota.allocated,
            non_preemptible_request,
            non_preemptible_used,
        ]
        .map(|amounts| Some(amounts.clone())),
        used: used.clone(),
    }
}

/// Returns a merge patch with the fields of `object` that differ from `desired`.
fn patch(desired: &QuotaStatus, object: &Object, table: &ResourceTable) -> Value {
    let mut out = json!({});
    let differs = |a: &Amounts, b: &Amounts| {
        let only_used = |amounts: &Amounts| QuotaStatus {
            used: amounts.clone(),
            ..QuotaStatus::default()
        };
        !only_used(a).is_equal(&only_used(b))
    };
    let pairs = desired.annotations.iter().zip(&object.status.annotations);
    for (key, (desired, shown)) in STATUS_ANNOTATIONS.iter().zip(pairs) {
        let (desired, shown) = (
            desired.clone().unwrap_or_default(),
            shown.clone().unwrap_or_default(),
        );
        if differs(&desired, &shown) {
            let text = json!(quantities(&desired, table)).to_string();
            out["metadata"]["annotations"][*key] = Value::String(text);
        }
    }
    if differs(&desired.used, &object.status.used) {
        let mut used = json!(quantities(&desired.used, table));
        let status = object.object.status.as_ref();
        for name in status.iter().flat_map(|status| status.used.keys()) {
            if used.get(name).is_none() {
                used[name] = Value::Null;
            }
        }
        out["status"]["used"] = used;
    }
    out
}

/// Builds a write to the ElasticQuota `key`; patches are timed.
fn write(key: &Key, verb: Verb) -> Write {
    let timed = matches!(verb, Verb::Patch(_)).then_some(Timed(&WRITTEN));
    Write {
        group: "scheduling.sigs.k8s.io",
        version: "v1alpha1",
        plural: "elasticquotas",
        namespace: key.0.clone(),
        name: key.1.clone(),
        verb,
        timed,
    }
}
