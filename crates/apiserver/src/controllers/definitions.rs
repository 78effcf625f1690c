//! Controller that deletes the objects of a custom resource definition before the definition itself.

use super::queue::{Reconcile, ReconcileFuture, Source};
use crate::rest::{Api, CRD_FINALIZER, CRDS, DeleteOptions, meta};
use crate::store::{Key, TableId};
use futures::FutureExt as _;
use koord_kinds::status::ApiError;
use std::time::Duration;

/// The controller of custom resource definitions that are being deleted.
pub(super) struct Definitions;

/// Requeue delay while objects of the definition remain.
const WAIT: Duration = Duration::from_millis(500);

impl Reconcile for Definitions {
    fn name(&self) -> &'static str {
        "customresourcedefinition-controller"
    }

    fn sources(&self) -> Vec<Source> {
        vec![Source::from_own_entries(CRDS.0, CRDS.1)]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let crds = api.builtin(CRDS.0, "v1", CRDS.1)?;
            let Some(entry) = api.store().get(&crds.table, key) else {
                return Ok(None);
            };
            let definition = entry.value();
            let finalizers = meta::finalizers(&definition);
            if !meta::deleting(&definition) || !finalizers.iter().any(|f| f == CRD_FINALIZER) {
                return Ok(None);
            }
            let now = api.clock().now();
            api.edit(&crds, Some("status"), key, |old| {
                let mut new = old.clone();
                let changed = meta::set_condition(
                    meta::section(&mut new, "status"),
                    "Terminating",
                    "True",
                    "InstanceDeletionInProgress",
                    "CustomResource deletion is in progress",
                    now,
                );
                Ok(changed.then_some(new))
            })
            .await?;
            let table = TableId::new(
                meta::text(&definition, &["spec", "group"]),
                meta::text(&definition, &["spec", "names", "plural"]),
            );
            if let Some(resource) = api.registry().storage(&table) {
                let objects = api.entries(&resource, None);
                let none = objects.is_empty();
                for object in objects {
                    match api
                        .delete_object(&resource, &object.key, &DeleteOptions::default())
                        .await
                    {
                        Ok(_) => {}
                        Err(e) if e.code == 404 => {}
                        Err(e) => return Err(e),
                    }
                }
                // Requeue even if all were deleted at once, so that open watches deliver the last deletions.
                if !none {
                    return Ok(Some(WAIT));
                }
            }
            // From here on no object can be created any more, and the open watches end.
            api.registry().remove_crd(&key.name);
            api.store()
                .remove_table(&table)
                .await
                .map_err(|e| ApiError::internal(e.to_string()))?;
            api.drop_finalizer(&crds, key, CRD_FINALIZER).await?;
            Ok(None)
        }
        .boxed()
    }
}
