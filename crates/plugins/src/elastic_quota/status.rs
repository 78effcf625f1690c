//! Status of quotas: annotations and status of their objects, and summaries for the HTTP service.

use super::ElasticQuotas;
use super::admission::quantities;
use super::metrics::WRITTEN;
use super::objects::{Key, Object, SHOWN, Shown};
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
const EVERY: SignedDuration = SignedDuration::from_secs(1);
/// Timeout after which a write is sent again if the object still has other values.
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);
/// Interval between two attempts to create the built-in quotas.
const CREATE_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// Status writes with their times.
#[derive(Debug, Default)]
pub(super) struct Writer {
    sent: FxHashMap<Key, (Timestamp, Shown)>,
    /// True if something changed since the last check.
    pub dirty: bool,
    looked: Timestamp,
    created: Option<Timestamp>,
}

impl Writer {
    /// Returns the time of the next check; `missing` if a built-in quota has no object.
    pub(super) fn next(&self, missing: bool) -> Option<Timestamp> {
        let after = |at: Timestamp, wait| at.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let create = match self.created {
            None => Some(Timestamp::UNIX_EPOCH),
            Some(at) => missing.then(|| after(at, CREATE_EVERY)),
        };
        let look = self.dirty.then(|| after(self.looked, EVERY));
        let again = self.sent.values().map(|(at, _)| after(*at, PATIENCE)).min();
        create.into_iter().chain(look).chain(again).min()
    }
}

impl ElasticQuotas {
    /// Returns true if a built-in quota has no object.
    pub(super) fn lacks_built_ins(&self) -> bool {
        [ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA]
            .iter()
            .any(|name| self.objects.of(name).is_none())
    }

    /// Creates the objects of built-in quotas where they are missing.
    pub(super) fn create_built_ins(&mut self, now: Timestamp, fx: &mut Effects) {
        if let Some(last) = self.writer.created
            && (now.duration_since(last) < CREATE_EVERY || !self.lacks_built_ins())
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
            if self.objects.of(name).is_some() {
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
    pub(super) fn show(&mut self, view: View<'_>, fx: &mut Effects) {
        if !self.controls {
            self.writer.dirty = false;
            return;
        }
        let now = view.now;
        let overdue = |(at, _): &(Timestamp, Shown)| now.duration_since(*at) >= PATIENCE;
        let again = self.writer.sent.values().any(overdue);
        if !again && (!self.writer.dirty || now.duration_since(self.writer.looked) < EVERY) {
            return;
        }
        self.writer.dirty = false;
        self.writer.looked = now;
        let mut sent = std::mem::take(&mut self.writer.sent);
        let runtime = self.args.enable_runtime_quota;
        let trees = &mut self.trees;
        trees.settle();
        let mut keep = FxHashMap::default();
        for (key, object) in self.objects.iter() {
            if !self.objects.speaks(key) {
                continue;
            }
            if runtime {
                trees.refresh(&key.1);
            }
            let Some(quota) = trees.quota(&key.1) else {
                continue;
            };
            let wanted = shown(quota);
            if wanted.same(&object.shown) {
                continue;
            }
            if let Some((at, last)) = sent.remove(key)
                && now.duration_since(at) < PATIENCE
                && last.same(&wanted)
            {
                keep.insert(key.clone(), (at, last));
                continue;
            }
            let patch = patch(&wanted, object, view.resources);
            fx.writes.push(write(key, Verb::Patch(patch)));
            keep.insert(key.clone(), (now, wanted));
        }
        self.writer.sent = keep;
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
            .of(name)
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

impl Shown {
    /// Returns true if both are equal, with missing amounts counted as zero.
    fn same(&self, other: &Self) -> bool {
        let pairs = self.annotations.iter().zip(&other.annotations);
        let some = |amounts: &Option<Amounts>| amounts.clone().unwrap_or_default();
        let mut pairs = pairs.map(|(a, b)| (some(a), some(b)));
        let equal = |a: &Amounts, b: &Amounts| {
            let within =
                |a: &Amounts, b: &Amounts| a.iter().all(|(id, amount)| b.get(id) == amount);
            within(a, b) && within(b, a)
        };
        equal(&self.used, &other.used) && pairs.all(|(a, b)| equal(&a, &b))
    }
}

fn shown(quota: &Quota) -> Shown {
    let Sums {
        request,
        non_preemptible_request,
        used,
        non_preemptible_used,
    } = &quota.sums;
    Shown {
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

/// Returns a merge patch with the fields of `object` that differ from `wanted`.
fn patch(wanted: &Shown, object: &Object, table: &ResourceTable) -> Value {
    let mut out = json!({});
    let differs = |a: &Amounts, b: &Amounts| {
        let one = |amounts: &Amounts| Shown {
            used: amounts.clone(),
            ..Shown::default()
        };
        !one(a).same(&one(b))
    };
    let pairs = wanted.annotations.iter().zip(&object.shown.annotations);
    for (key, (wanted, shown)) in SHOWN.iter().zip(pairs) {
        let (wanted, shown) = (
            wanted.clone().unwrap_or_default(),
            shown.clone().unwrap_or_default(),
        );
        if differs(&wanted, &shown) {
            let text = json!(quantities(&wanted, table)).to_string();
            out["metadata"]["annotations"][*key] = Value::String(text);
        }
    }
    if differs(&wanted.used, &object.shown.used) {
        let mut used = json!(quantities(&wanted.used, table));
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
