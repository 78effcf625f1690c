//! Every namespace has a service account called `default`.

use super::queue::{Again, Reconcile, Source};
use crate::kinds::status::ApiError;
use crate::rest::Api;
use crate::store::{Key, TableId};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;

/// Makes the default service accounts.
pub(super) struct Accounts;

impl Reconcile for Accounts {
    fn name(&self) -> &'static str {
        "serviceaccounts"
    }

    fn sources(&self) -> Vec<Source> {
        vec![
            Source::own("", "namespaces"),
            Source {
                table: TableId::new("", "serviceaccounts"),
                keys: |_, entry| {
                    if &*entry.key.name == "default" {
                        vec![Key::cluster(entry.key.namespace.clone())]
                    } else {
                        Vec::new()
                    }
                },
            },
        ]
    }

    fn reconcile<'a>(
        &'a self,
        api: &'a Api,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Again, ApiError>> {
        async move {
            let namespace = api.store().get(&TableId::new("", "namespaces"), key);
            let active =
                namespace.is_some_and(|n| n.index.field("status.phase") != Some("Terminating"));
            if active {
                let account = json!({ "metadata": { "name": "default" } });
                match api
                    .ensure("", "v1", "serviceaccounts", &key.name, account)
                    .await
                {
                    // The namespace went away in between.
                    Err(e) if e.code == 403 || e.code == 404 => {}
                    other => other?,
                }
            }
            Ok(None)
        }
        .boxed()
    }
}
