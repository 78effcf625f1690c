//! Enforcing LimitRange and ResourceQuota.
//!
//! What a quota has used stands in its status: a write is charged there before it is stored, so that two
//! at once cannot both take the last of it. What is charged and then not stored, the controller of quotas
//! corrects when it next counts.

use super::{Attributes, Operation, builtin};
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

/// How many writes in a namespace are charged and not stored yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Charges(Arc<Mutex<FxHashMap<Arc<str>, usize>>>);

/// A write that is charged. Nothing may be counted while it is held: the object may not be in the
/// store yet, although its quota has it.
#[derive(Debug)]
pub(crate) struct Charge {
    namespace: Arc<str>,
    charges: Charges,
}

impl Charge {
    fn new(charges: &Charges, namespace: &str) -> Self {
        let namespace: Arc<str> = namespace.into();
        *charges.0.lock().entry(namespace.clone()).or_insert(0) += 1;
        Self {
            namespace,
            charges: charges.clone(),
        }
    }
}

impl Drop for Charge {
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
    /// Whether a write in the namespace is charged and perhaps not stored yet.
    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        self.0.lock().contains_key(namespace)
    }
}

fn forbidden(attributes: &Attributes<'_>, object: &Value, why: &str) -> ApiError {
    let Resource { group, plural, .. } = &**attributes.resource;
    let name = match attributes.name {
        "" => builtin::called(object),
        name => name,
    };
    ApiError::forbidden(group, plural, name, why)
}

/// The objects of a core kind in the namespace of a write.
fn neighbours(
    core: &Core,
    attributes: &Attributes<'_>,
    plural: &str,
) -> Result<(Arc<Resource>, Vec<Arc<Entry>>), ApiError> {
    let resource = core.builtin("", "v1", plural)?;
    let entries = core.entries(&resource, Some(attributes.namespace));
    Ok((resource, entries))
}

/// Fills in what a new pod leaves to the namespace's defaults.
pub(super) fn fill(
    core: &Core,
    attributes: &Attributes<'_>,
    pod: &mut Value,
) -> Result<(), ApiError> {
    let (_, ranges) = neighbours(core, attributes, "limitranges")?;
    for range in ranges {
        limits::fill(&range.value(), pod);
    }
    Ok(())
}

/// Refuses what is out of the namespace's bounds.
pub(super) fn bound(
    core: &Core,
    attributes: &Attributes<'_>,
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
    let (_, ranges) = neighbours(core, attributes, "limitranges")?;
    for range in ranges {
        limits::check(&range.value(), resource, object)
            .map_err(|why| forbidden(attributes, object, &why))?;
    }
    Ok(())
}

/// Charges the quotas of the namespace with a write, or refuses it.
pub(super) async fn charge(
    core: &Core,
    charges: &Charges,
    attributes: &Attributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<Option<Charge>, ApiError> {
    let resource = attributes.resource;
    if !counts(attributes, object, old) {
        return Ok(None);
    }
    let (quotas, entries) = neighbours(core, attributes, "resourcequotas")?;
    if entries.is_empty() || taken(core, attributes, object) {
        return Ok(None);
    }
    let now = core.clock().now();
    let decide = |stored: &Value| {
        Quota::enforced(stored)
            .charge(resource, object, old, now)
            .map_err(|why| forbidden(attributes, object, &why))
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
    let charge = Charge::new(charges, attributes.namespace);
    let mut paid: Vec<(Key, ResourceList)> = Vec::new();
    for key in due {
        let mut taken = ResourceList::new();
        let done = core
            .modify_admitted(&quotas, &key, false, |stored| {
                taken.clear();
                let Some(used) = decide(&stored)? else {
                    return Ok(None);
                };
                let before = Quota::enforced(&stored).used;
                for (name, amount) in &used {
                    let had = before.get(name).copied().unwrap_or_default();
                    taken.insert(name.clone(), *amount - had);
                }
                Ok(Some(with_used(&stored, &used)))
            })
            .await;
        match done {
            Ok(_) => paid.push((key, taken)),
            // The quota went meanwhile.
            Err(e) if e.code == 404 => {}
            Err(e) => {
                refund(core, &quotas, &paid).await;
                return Err(e);
            }
        }
    }
    Ok(Some(charge))
}

/// Whether the write may change what some quota counts.
fn counts(attributes: &Attributes<'_>, object: &Value, old: Option<&Value>) -> bool {
    let resource = attributes.resource;
    if !resource.namespaced || !resource.stored || &*resource.plural == "events" {
        return false;
    }
    match (attributes.operation, attributes.subresource, old) {
        (Operation::Create, "", _) => true,
        (Operation::Update, "", Some(old)) => quota::update_counts(resource, object, old),
        (Operation::Update, "resize", Some(_)) => resource.is("", "pods"),
        _ => false,
    }
}

/// A create that will fail, as the name is taken, costs nothing.
fn taken(core: &Core, attributes: &Attributes<'_>, object: &Value) -> bool {
    let key = Key::new(attributes.namespace, meta::name(object));
    attributes.operation == Operation::Create
        && core.store().get(&attributes.resource.table, &key).is_some()
}

/// The quota with `used` in its status.
fn with_used(quota: &Value, used: &ResourceList) -> Value {
    let mut new = quota.clone();
    let shown: Map<String, Value> = used
        .iter()
        .map(|(name, amount)| (name.clone(), amount.to_string().into()))
        .collect();
    meta::section(&mut new, "status").insert("used".to_owned(), shown.into());
    new
}

/// Gives back what was charged for a write that is refused after all.
async fn refund(core: &Core, quotas: &Arc<Resource>, paid: &[(Key, ResourceList)]) {
    for (key, taken) in paid {
        let done = core
            .modify_admitted(quotas, key, false, |stored| {
                let mut used = Quota::enforced(&stored).used;
                for (name, amount) in taken {
                    if let Some(have) = used.get_mut(name) {
                        *have -= *amount;
                    }
                }
                Ok(Some(with_used(&stored, &used)))
            })
            .await;
        if let Err(error) = done {
            tracing::debug!(quota = %key, %error, "a charge is left to the controller of quotas");
        }
    }
}
