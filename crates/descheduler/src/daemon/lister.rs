//! What the API server has of one kind.

use koord_kube::{Change, Informer, Mirrored, Store};
use tokio::sync::watch;

/// The lister of one kind, for who reads its content only.
#[derive(Debug)]
pub(super) struct Lister<V> {
    pub(super) store: Store<V>,
    absent: watch::Receiver<bool>,
}

impl<V: Mirrored> Lister<V> {
    pub(super) fn new(informer: Informer<V>) -> Self {
        Self::with_handler(informer, |_| {})
    }

    /// `handler` is told of every change, after it can be read.
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

    /// Waits for the first list, or for the API server to say that it has no such kind.
    pub(super) async fn wait_synced(&self) {
        let mut absent = self.absent.clone();
        tokio::select! {
            _ = self.store.wait_synced() => {}
            _ = absent.wait_for(|absent| *absent) => {}
        }
    }
}
