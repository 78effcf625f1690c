//! Namespace controller: deletes the objects of a namespace before the namespace itself.

use super::queue::{Reconcile, ReconcileFuture, Source};
use crate::rest::{Api, DeleteOptions, Propagation, meta};
use crate::store::{Key, StoreError};
use futures::FutureExt as _;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The controller of namespaces that are being deleted.
pub(super) struct Namespaces;

/// Requeue delay while objects remain.
const WAIT: Duration = Duration::from_millis(500);
/// The finalizer in `spec.finalizers` that this controller removes.
const FINALIZER: &str = "kubernetes";

impl Reconcile for Namespaces {
    fn name(&self) -> &'static str {
        "namespace-controller"
    }

    fn sources(&self) -> Vec<Source> {
        vec![Source::from_own_entries("", "namespaces")]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let namespaces = api.builtin("", "v1", "namespaces")?;
            let Some(entry) = api.store().get(&namespaces.table, key) else {
                return Ok(None);
            };
            let terminating = entry.index.field("status.phase") == Some("Terminating")
                && meta::deleting(&entry.value());
            if !terminating {
                return Ok(None);
            }
            let round = delete_contents(api, &key.name).await;
            if !round.remaining.is_empty() {
                report(api, key, &round).await?;
                return Ok(Some(WAIT));
            }
            finalize(api, key).await?;
            Ok(None)
        }
        .boxed()
    }
}

/// Remaining objects of one resource.
#[derive(Debug, Default)]
struct RemainingObjects {
    objects: usize,
    finalizers: BTreeMap<String, usize>,
}

/// Outcome of a round of deletions: the remaining objects by resource.
#[derive(Debug, Default)]
struct DeletionRound {
    remaining: BTreeMap<String, RemainingObjects>,
    /// Reasons why objects could not be deleted.
    failures: Vec<String>,
}

/// Deletes everything in the namespace. Pods first: they may still need the rest.
async fn delete_contents(api: &Api, namespace: &str) -> DeletionRound {
    let mut round = DeletionRound::default();
    let mut resources = api.registry().tables();
    resources.retain(|r| r.namespaced);
    resources.sort_by_key(|r| !r.is("", "pods"));
    for resource in resources {
        delete_all(api, &resource, namespace, &mut round).await;
        if resource.is("", "pods") && !round.remaining.is_empty() {
            break;
        }
    }
    round
}

/// Deletes the objects of a resource in a namespace and records the remaining ones.
async fn delete_all(
    api: &Api,
    resource: &Arc<Resource>,
    namespace: &str,
    round: &mut DeletionRound,
) {
    // Background deletion, so that no object waits for its dependents any longer.
    let options = DeleteOptions {
        propagation: Some(Propagation::Background),
        ..DeleteOptions::default()
    };
    for entry in api.entries(resource, Some(namespace)) {
        match api.delete_object(resource, &entry.key, &options).await {
            Err(e) if e.code != 404 => round.failures.push(e.message),
            _ => {}
        }
    }
    for entry in api.entries(resource, Some(namespace)) {
        let name = if resource.group.is_empty() {
            format!("{}.", resource.plural)
        } else {
            resource.qualified()
        };
        let remaining = round.remaining.entry(name).or_default();
        remaining.objects += 1;
        for finalizer in meta::finalizers(&entry.value()) {
            *remaining.finalizers.entry(finalizer).or_insert(0) += 1;
        }
    }
}

/// Writes to the conditions what the deletion waits for.
async fn report(api: &Api, key: &Key, round: &DeletionRound) -> Result<(), ApiError> {
    let remaining = &round.remaining;
    let objects: Vec<String> = remaining
        .iter()
        .map(|(name, l)| format!("{name} has {} resource instances", l.objects))
        .collect();
    let mut by_finalizer: BTreeMap<&str, usize> = BTreeMap::new();
    for l in remaining.values() {
        for (finalizer, n) in &l.finalizers {
            *by_finalizer.entry(finalizer).or_insert(0) += n;
        }
    }
    let finalizers: Vec<String> = by_finalizer
        .iter()
        .map(|(finalizer, n)| format!("{finalizer} in {n} resource instances"))
        .collect();
    let now = api.clock().now();
    let namespaces = api.builtin("", "v1", "namespaces")?;
    api.edit(&namespaces, Some("status"), key, |old| {
        let mut new = old.clone();
        let status = meta::section(&mut new, "status");
        let mut changed = false;
        let mut set = |kind: &str, value: &str, reason: &str, message: &str| {
            changed |= meta::set_condition(status, kind, value, reason, message, now);
        };
        set(
            "NamespaceDeletionDiscoveryFailure",
            "False",
            "ResourcesDiscovered",
            "All resources successfully discovered",
        );
        if round.failures.is_empty() {
            set(
                "NamespaceDeletionContentFailure",
                "False",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            );
        } else {
            set(
                "NamespaceDeletionContentFailure",
                "True",
                "ContentDeletionFailed",
                &format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    round.failures.len(),
                    round.failures.join(", ")
                ),
            );
        }
        set(
            "NamespaceContentRemaining",
            "True",
            "SomeResourcesRemain",
            &format!("Some resources are remaining: {}", objects.join(", ")),
        );
        if finalizers.is_empty() {
            set(
                "NamespaceFinalizersRemaining",
                "False",
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            );
        } else {
            set(
                "NamespaceFinalizersRemaining",
                "True",
                "SomeFinalizersRemain",
                &format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    finalizers.join(", ")
                ),
            );
        }
        Ok(changed.then_some(new))
    })
    .await
    .map(|_| ())
}

/// Removes the finalizer `kubernetes`, and the namespace itself if no other finalizer holds it.
async fn finalize(api: &Api, key: &Key) -> Result<(), ApiError> {
    let namespaces = api.builtin("", "v1", "namespaces")?;
    let result = api
        .edit(&namespaces, Some("finalize"), key, |old| {
            let mut new = old.clone();
            let spec = meta::section(&mut new, "spec");
            let Some(list) = spec.get_mut("finalizers").and_then(Value::as_array_mut) else {
                return Ok(None);
            };
            let before = list.len();
            list.retain(|f| f.as_str() != Some(FINALIZER));
            let changed = list.len() != before;
            if list.is_empty() {
                spec.insert("finalizers".to_owned(), json!([]));
            }
            Ok(changed.then_some(new))
        })
        .await;
    match result {
        Ok(_) => {}
        Err(e) if e.code == 404 => return Ok(()),
        Err(e) => return Err(e),
    }
    let Some(entry) = api.store().get(&namespaces.table, key) else {
        return Ok(());
    };
    let object = entry.value();
    let owned_rules = meta::at(&object, &["spec", "finalizers"])
        .and_then(Value::as_array)
        .is_some_and(|f| !f.is_empty());
    if owned_rules || !meta::finalizers(&object).is_empty() || !meta::deleting(&object) {
        return Ok(());
    }
    match api.remove(&namespaces, key, Some(entry.revision)).await {
        Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(e) => Err(ApiError::internal(e.to_string())),
    }
}
