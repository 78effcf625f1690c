//! Pods of nodes that no longer exist are deleted: no kubelet will ever do it.

use super::queue::{Again, Reconcile, Source};
use crate::kinds::status::ApiError;
use crate::rest::{Api, DeleteOptions};
use crate::store::{Key, TableId};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Deletes orphaned pods.
#[derive(Default)]
pub(super) struct PodGc {
    /// Since when nodes are known to be missing.
    missing: Mutex<FxHashMap<Key, Timestamp>>,
}

/// How long a node must be gone: it may be about to register again.
const QUARANTINE: Duration = Duration::from_secs(40);

impl Reconcile for PodGc {
    fn name(&self) -> &'static str {
        "pod-garbage-collector-controller"
    }

    /// Keys are names of nodes that pods refer to and that do not exist.
    fn sources(&self) -> Vec<Source> {
        vec![
            Source::own("", "nodes"),
            Source {
                table: TableId::new("", "pods"),
                keys: |api, entry| {
                    let Some(node) = entry.index.field("spec.nodeName").filter(|n| !n.is_empty())
                    else {
                        return Vec::new();
                    };
                    let key = Key::cluster(node);
                    match api.store().get(&TableId::new("", "nodes"), &key) {
                        Some(_) => Vec::new(),
                        None => vec![key],
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
            let nodes = TableId::new("", "nodes");
            if api.store().get(&nodes, key).is_some() {
                self.missing.lock().remove(key);
                return Ok(None);
            }
            let pods = api.builtin("", "v1", "pods")?;
            let orphans = api
                .store()
                .list(&pods.table, None, None, None, None, &|e| {
                    e.index.field("spec.nodeName") == Some(&*key.name)
                })
                .map(|p| p.items)
                .unwrap_or_default();
            if orphans.is_empty() {
                self.missing.lock().remove(key);
                return Ok(None);
            }
            let now = api.clock().now();
            let since = *self.missing.lock().entry(key.clone()).or_insert(now);
            let left = QUARANTINE.saturating_sub(now.duration_since(since).unsigned_abs());
            if !left.is_zero() {
                return Ok(Some(left));
            }
            self.missing.lock().remove(key);
            for pod in orphans {
                match api
                    .delete_object(&pods, &pod.key, &DeleteOptions::now(&pod.index.uid))
                    .await
                {
                    Ok(_) => {}
                    Err(e) if e.code == 404 || e.code == 409 => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(None)
        }
        .boxed()
    }
}
