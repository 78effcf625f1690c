//! Enforcement of LimitRange and ResourceQuota.
//!
//! The usage of a quota is in its status: a write is charged there before it is stored, so that two
//! concurrent writes cannot both take the last of it. A charge whose write is not stored is corrected by the
//! quota controller at its next count.

use super::{AdmissionAttributes, Operation, builtin};
use crate::rest::core::Core;
use crate::rest::meta;
use crate::store::{Entry, Key};
use koord_api::quantity::ResourceList;
use koord_kinds::quota::{self, Quota};
use koord_kinds::status::ApiError;
use koord_kinds::{Resource, limits};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Numbers of charged writes per namespace that are not stored yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Charges(Arc<Mutex<FxHashMap<Arc<str>, usize>>>);

/// Guard of a charged write. While it is held nothing may be counted in its namespace: the quota may include
/// an object that is not in the store yet.
#[derive(Debug)]
pub(crate) struct QuotaCharge {
    namespace: Arc<str>,
    charges: Charges,
}

impl QuotaCharge {
    fn new(charges: &Charges, namespace: &str) -> Self {
        let namespace: Arc<str> = namespace.into();
        *charges.0.lock().entry(namespace.clone()).or_insert(0) += 1;
        Self {
            namespace,
            charges: charges.clone(),
        }
    }
}

impl Drop for QuotaCharge {
    fn drop(&mut self) {
        let mut charges = self.charges.0.lock();
        if let Some(n) = charges.get_mut(&self.namespace) {
            *n -= 1;
            if *n == 0 {
                charges.remove(&self.namespace);
            }
        }
    }
}

impl Charges {
    /// Returns true if a write in the namespace is charged and may not be stored yet.
    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        self.0.lock().contains_key(namespace)
    }
}

fn forbidden(attributes: &AdmissionAttributes<'_>, object: &Value, reason: &str) -> ApiError {
    let Resource { group, plural, .. } = &**attributes.resource;
    let name = match attributes.name {
        "" => builtin::display_name(object),
        name => name,
    };
    ApiError::forbidden(group, plural, name, reason)
}

/// Returns the objects of a core kind in the namespace of a write.
fn objects_in_namespace(
    core: &Core,
    attributes: &AdmissionAttributes<'_>,
    plural: &str,
) -> Result<(Arc<Resource>, Vec<Arc<Entry>>), ApiError> {
    let resource = core.builtin("", "v1", plural)?;
    let entries = core.entries(&resource, Some(attributes.namespace));
    Ok((resource, entries))
}

/// Applies the defaults of the namespace's LimitRanges to a new pod.
pub(super) fn fill(
    core: &Core,
    attributes: &AdmissionAttributes<'_>,
    pod: &mut Value,
) -> Result<(), ApiError> {
    let (_, ranges) = objects_in_namespace(core, attributes, "limitranges")?;
    for range in ranges {
        limits::fill(&range.value(), pod);
    }
    Ok(())
}

/// Refuses an object outside the bounds of the namespace's LimitRanges.
pub(super) fn bound(
    core: &Core,
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let resource = attributes.resource;
    let bounded = match attributes.operation {
        Operation::Create => resource.is("", "pods") || resource.is("", "persistentvolumeclaims"),
        Operation::Update => resource.is("", "persistentvolumeclaims"),
        Operation::Delete => false,
    };
    if !bounded || !attributes.subresource.is_empty() || old.is_some_and(meta::deleting) {
        return Ok(());
    }
    let (_, ranges) = objects_in_namespace(core, attributes, "limitranges")?;
    for range in ranges {
        limits::check(&range.value(), resource, object)
            .map_err(|reason| forbidden(attributes, object, &reason))?;
    }
    Ok(())
}

/// Charges a write to the quotas of its namespace, or refuses it.
pub(super) async fn charge(
    core: &Core,
    charges: &Charges,
    attributes: &AdmissionAttributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<Option<QuotaCharge>, ApiError> {
    let resource = attributes.resource;
    if !counts(attributes, object, old) {
        return Ok(None);
    }
    let (quotas, entries) = objects_in_namespace(core, attributes, "resourcequotas")?;
    if entries.is_empty() || is_name_taken(core, attributes, object) {
        return Ok(None);
    }
    let now = core.clock().now();
    let decide = |stored: &Value| {
        Quota::from_status(stored)
            .charge(resource, object, old, now)
            .map_err(|reason| forbidden(attributes, object, &reason))
    };
    let mut due = Vec::new();
    for entry in entries {
        if decide(&entry.value())?.is_some() {
            due.push(entry.key.clone());
        }
    }
    if attributes.dry_run() || due.is_empty() {
        return Ok(None);
    }
    let charge = QuotaCharge::new(charges, attributes.namespace);
    let mut paid: Vec<(Key, ResourceList)> = Vec::new();
    for key in due {
        let mut charged = ResourceList::new();
        let result = core
            .modify_admitted(&quotas, &key, false, |stored| {
                charged.clear();
                let Some(used) = decide(&stored)? else {
                    return Ok(None);
                };
                let before = Quota::from_status(&stored).used;
                for (name, amount) in &used {
                    let had = before.get(name).copied().unwrap_or_default();
                    charged.insert(name.clone(), *amount - had);
                }
                Ok(Some(with_used(&stored, &used)))
            })
            .await;
        match result {
            Ok(_) => paid.push((key, charged)),
            // The quota was deleted in the meantime.
            Err(e) if e.code == 404 => {}
            Err(e) => {
                refund(core, &quotas, &paid).await;
                return Err(e);
            }
        }
    }
    Ok(Some(charge))
}

/// Returns true if the write may change the usage of a quota.
fn counts(attributes: &AdmissionAttributes<'_>, object: &Value, old: Option<&Value>) -> bool {
    let resource = attributes.resource;
    if !resource.namespaced || !resource.stored || &*resource.plural == "events" {
        return false;
    }
    match (attributes.operation, attributes.subresource, old) {
        (Operation::Create, "", _) => true,
        (Operation::Update, "", Some(old)) => quota::update_changes_usage(resource, object, old),
        (Operation::Update, "resize", Some(_)) => resource.is("", "pods"),
        _ => false,
    }
}

/// Returns true if a create will fail because its name is taken: it is not charged.
fn is_name_taken(core: &Core, attributes: &AdmissionAttributes<'_>, object: &Value) -> bool {
    let key = Key::new(attributes.namespace, meta::name(object));
    attributes.operation == Operation::Create
        && core.store().get(&attributes.resource.table, &key).is_some()
}

/// Returns the quota with `used` in its status.
fn with_used(quota: &Value, used: &ResourceList) -> Value {
    let mut new = quota.clone();
    let shown: Map<String, Value> = used
        .iter()
        .map(|(name, amount)| (name.clone(), amount.to_string().into()))
        .collect();
    meta::section(&mut new, "status").insert("used".to_owned(), shown.into());
    new
}

/// Reverts charges of a write that is refused after all.
async fn refund(core: &Core, quotas: &Arc<Resource>, paid: &[(Key, ResourceList)]) {
    for (key, taken) in paid {
        let result = core
            .modify_admitted(quotas, key, false, |stored| {
                let mut used = Quota::from_status(&stored).used;
                for (name, amount) in taken {
                    if let Some(have) = used.get_mut(name) {
                        *have -= *amount;
                    }
                }
                Ok(Some(with_used(&stored, &used)))
            })
            .await;
        if let Err(error) = result {
            tracing::debug!(quota = %key, %error, "failed to revert quota charge, leaving it to the quota controller");
        }
    }
}
