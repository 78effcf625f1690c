//! Objects of the API server that a test watches, without polling.

use koord_host::testing::PATIENCE;
use koord_kube::{Change, Client, Informer, Scope};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

/// Current objects of one kind, updated by a watch.
pub(crate) struct WatchedObjects<K> {
    changes: Receiver<Change<K>>,
    pub(crate) all: BTreeMap<String, Arc<K>>,
}

impl<K> WatchedObjects<K>
where
    K: koord_kube::kube_core::Resource<DynamicType = ()>
        + koord_kube::Decode
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    pub(crate) fn start(client: &Client, stop: &CancellationToken) -> Self {
        let informer = Informer::<K>::start(client.clone(), Scope::default(), stop.clone());
        Self {
            changes: informer.changes,
            all: BTreeMap::new(),
        }
    }

    /// Waits for the next change.
    pub(crate) async fn next(&mut self) {
        let change = self.changes.recv().await.expect("the informer goes on");
        let name = |object: &Arc<K>| object.meta().name.clone().unwrap_or_default();
        match change {
            Change::Applied { new, .. } => {
                self.all.insert(name(&new), new);
            }
            Change::Deleted(last) => {
                self.all.remove(&name(&last));
            }
            Change::Synced => {}
        }
    }

    pub(crate) async fn until(
        &mut self,
        what: &str,
        is: impl Fn(&BTreeMap<String, Arc<K>>) -> bool,
    ) {
        let wait = async {
            while !is(&self.all) {
                self.next().await;
            }
        };
        let waited = tokio::time::timeout(2 * PATIENCE, wait).await;
        assert!(
            waited.is_ok(),
            "timed out waiting for {what}: {:?}",
            self.all
        );
    }
}
