//! Read-only access to the informer of one kind.

use koord_kube::{Cacheable, Change, Informer, Store};
use tokio::sync::watch;

/// Read-only access to the informer store of one kind.
#[derive(Debug)]
pub(super) struct Lister<V> {
    pub(super) store: Store<V>,
    absent: watch::Receiver<bool>,
}

impl<V: Cacheable> Lister<V> {
    pub(super) fn new(informer: Informer<V>) -> Self {
        Self::with_handler(informer, |_| {})
    }

    /// Calls `handler` for every change, after the store contains it.
    pub(super) fn with_handler(
        informer: Informer<V>,
        mut handler: impl FnMut(Change<V>) + Send + 'static,
    ) -> Self {
        let Informer {
            store,
            mut changes,
            absent,
        } = informer;
        tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                handler(change);
            }
        });
        Self { store, absent }
    }

    /// Waits for the first list, or until the API server reports that it does not have the kind.
    pub(super) async fn wait_synced(&self) {
        let mut absent = self.absent.clone();
        tokio::select! {
            _ = self.store.wait_synced() => {}
            _ = absent.wait_for(|absent| *absent) => {}
        }
    }
}
