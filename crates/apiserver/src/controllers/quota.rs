//! ResourceQuota controller: computes the usage of each quota.
//!
//! Admission charges writes; this controller counts everything again when a quota is created or changed, when
//! an object it counts was deleted or ended, and periodically.

use super::queue::{Reconcile, ReconcileFuture, Source};
use crate::rest::{Api, meta};
use crate::store::{Entry, Key, TableId};
use futures::FutureExt as _;
use koord_api::quantity::{Quantity, ResourceList};
use koord_kinds::Resource;
use koord_kinds::quota::Quota;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// The ResourceQuota controller.
pub(super) struct Quotas {
    sources: Vec<TableId>,
}

/// Interval of periodic counts, as upstream's `--resource-quota-sync-period`.
const RESYNC: Duration = Duration::from_secs(300);
/// Interval of periodic counts for quotas of custom resources, whose changes are not watched.
const RESYNC_CUSTOM: Duration = Duration::from_secs(30);
/// Retry delay after a conflicting write.
const SOON: Duration = Duration::from_millis(20);

impl Quotas {
    /// Returns a controller that watches the built-in kinds.
    pub(super) fn new(api: &Api) -> Self {
        let mut tables = api.registry().tables();
        tables.retain(|r| countable(r) && !r.is_custom());
        Self {
            sources: tables.iter().map(|r| r.table.clone()).collect(),
        }
    }
}

fn countable(resource: &Resource) -> bool {
    resource.namespaced && &*resource.plural != "events"
}

/// Returns the quotas whose usage a change of the entry may reduce.
fn affected_quotas(api: &Api, entry: &Entry) -> Vec<Key> {
    if entry.table.group().is_empty() && entry.table.plural() == "resourcequotas" {
        // Admission charges only `status.used`. A recount is needed when `spec.hard` was changed.
        let quota = entry.value();
        let counted = Quota::from_status(&quota).hard == Quota::from_spec(&quota).hard;
        return Vec::from_iter((!counted).then(|| entry.key.clone()));
    }
    let changing = ["services", "persistentvolumeclaims"].contains(&entry.table.plural());
    let ended = || {
        let phase = entry.index.field("status.phase");
        entry.table.plural() == "pods" && matches!(phase, Some("Succeeded" | "Failed"))
    };
    let removed = || {
        let current = api.store().get(&entry.table, &entry.key);
        current.is_none_or(|c| c.index.uid != entry.index.uid)
    };
    if !(changing || ended() || removed()) {
        return Vec::new();
    }
    let Ok(quotas) = api.builtin("", "v1", "resourcequotas") else {
        return Vec::new();
    };
    let Some(resource) = api.registry().storage(&entry.table) else {
        return Vec::new();
    };
    api.entries(&quotas, Some(&entry.key.namespace))
        .iter()
        .filter(|quota| Quota::from_spec(&quota.value()).concerns(&resource))
        .map(|quota| quota.key.clone())
        .collect()
}

impl Reconcile for Quotas {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }

    fn sources(&self) -> Vec<Source> {
        let source = |table: &TableId| Source::from_table(table.clone(), affected_quotas);
        self.sources.iter().map(source).collect()
    }

    fn start(&self, api: &Api) -> Vec<Key> {
        let quotas = api.builtin("", "v1", "resourcequotas");
        let entries = quotas.map(|r| api.entries(&r, None)).unwrap_or_default();
        entries.iter().map(|e| e.key.clone()).collect()
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let quotas = api.builtin("", "v1", "resourcequotas")?;
            if api.store().get(&quotas.table, key).is_none() {
                return Ok(None);
            }
            let (mut custom, mut charging) = (false, false);
            // The count is written over the very version it was made for: a charge in between causes a new
            // count. While a charge is in progress its object may not be in the store yet.
            let result = api
                .edit(&quotas, Some("status"), key, |old| {
                    charging = api.admission().charges().has_namespace(&key.namespace);
                    if charging {
                        return Ok(None);
                    }
                    let quota = Quota::from_spec(old);
                    let (used, of_custom) = count(api, &key.namespace, &quota);
                    custom = of_custom;
                    let mut new = old.clone();
                    let status = meta::section(&mut new, "status");
                    status.insert("hard".to_owned(), to_value(&quota.hard));
                    status.insert("used".to_owned(), to_value(&used));
                    Ok((new != *old).then_some(new))
                })
                .await;
            match result {
                Err(e) if e.code != 404 => Err(e),
                _ if charging => Ok(Some(SOON)),
                _ if custom => Ok(Some(RESYNC_CUSTOM)),
                _ => Ok(Some(RESYNC)),
            }
        }
        .boxed()
    }
}

fn to_value(list: &ResourceList) -> Value {
    let pairs = list
        .iter()
        .map(|(name, amount)| (name.clone(), amount.to_string().into()));
    Value::Object(pairs.collect::<Map<_, _>>())
}

/// Returns the usage in the namespace of all that the quota tracks, and whether custom resources are among
/// it.
fn count(api: &Api, namespace: &str, quota: &Quota) -> (ResourceList, bool) {
    let now = api.clock().now();
    let mut used = ResourceList::new();
    let mut custom = false;
    for resource in api.registry().tables() {
        if countable(&resource) && quota.concerns(&resource) {
            custom |= resource.is_custom();
            add(api, namespace, quota, &resource, &mut used, now);
        }
    }
    (used, custom)
}

fn add(
    api: &Api,
    namespace: &str,
    quota: &Quota,
    resource: &Arc<Resource>,
    used: &mut ResourceList,
    now: jiff::Timestamp,
) {
    for name in quota.tracked(resource) {
        used.entry(name.to_owned()).or_insert(Quantity::ZERO);
    }
    for entry in api.entries(resource, Some(namespace)) {
        quota.count(used, resource, &entry.value(), now);
    }
}
