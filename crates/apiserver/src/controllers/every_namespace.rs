//! Controllers that keep an object in every namespace: the service account `default`, and a ConfigMap with
//! the certificate of the server's authority.

use super::queue::{Reconcile, ReconcileFuture, Source};
use crate::rest::Api;
use crate::store::{Entry, Key, TableId};
use futures::FutureExt as _;
use serde_json::json;

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";

/// A controller that keeps one object in every namespace.
pub(super) enum EveryNamespace {
    /// Keeps the service account `default`.
    Account,
    /// Keeps the ConfigMap with this certificate (PEM).
    RootCa(String),
}

/// Returns the key of the entry's namespace if the entry is called `name`.
fn namespace_of(entry: &Entry, name: &str) -> Vec<Key> {
    let own = (&*entry.key.name == name).then(|| Key::cluster(entry.key.namespace.clone()));
    own.into_iter().collect()
}

impl Reconcile for EveryNamespace {
    fn name(&self) -> &'static str {
        match self {
            Self::Account => "serviceaccount-controller",
            Self::RootCa(_) => "root-ca-certificate-publisher-controller",
        }
    }

    fn sources(&self) -> Vec<Source> {
        let retained = match self {
            Self::Account => Source::new("", "serviceaccounts", |_, entry| {
                namespace_of(entry, ACCOUNT)
            }),
            Self::RootCa(_) => {
                Source::new("", "configmaps", |_, entry| namespace_of(entry, ROOT_CA))
            }
        };
        vec![Source::from_own_entries("", "namespaces"), retained]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let namespace = api.store().get(&TableId::new("", "namespaces"), key);
            let active =
                namespace.is_some_and(|n| n.index.field("status.phase") != Some("Terminating"));
            if !active {
                return Ok(None);
            }
            let retained = match self {
                Self::Account => {
                    let account = json!({ "metadata": { "name": ACCOUNT } });
                    api.ensure("", "v1", "serviceaccounts", &key.name, account)
                        .await
                }
                Self::RootCa(pem) => {
                    let data = json!({ "ca.crt": pem });
                    api.apply_config_map(&key.name, ROOT_CA, data).await
                }
            };
            match retained {
                // The namespace was deleted in the meantime.
                Err(e) if e.code == 403 || e.code == 404 => Ok(None),
                other => other.map(|()| None),
            }
        }
        .boxed()
    }
}
