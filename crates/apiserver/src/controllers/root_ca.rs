//! Every namespace has the certificate of the server's authority in a ConfigMap.

use super::queue::{Again, Reconcile, Source};
use crate::kinds::status::ApiError;
use crate::rest::Api;
use crate::store::{Key, TableId};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;

/// The ConfigMap's name.
const NAME: &str = "kube-root-ca.crt";

/// Publishes the authority's certificate (PEM).
pub(super) struct RootCa {
    pub(super) pem: String,
}

impl Reconcile for RootCa {
    fn name(&self) -> &'static str {
        "root-ca-certificate-publisher"
    }

    fn sources(&self) -> Vec<Source> {
        vec![
            Source::own("", "namespaces"),
            Source {
                table: TableId::new("", "configmaps"),
                keys: |_, entry| {
                    if &*entry.key.name == NAME {
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
                let data = json!({ "ca.crt": self.pem });
                match api.keep_config_map(&key.name, NAME, data).await {
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
