//! What the API server has of one kind.

use koord_kube::{Change, Informer, Mirrored, Store};
use tokio::sync::watch;

/// The mirror of one kind, for who reads its content only.
#[derive(Debug)]
pub(super) struct Mirror<V> {
    pub(super) store: Store<V>,
    absent: watch::Receiver<bool>,
}

impl<V: Mirrored> Mirror<V> {
    pub(super) fn of(informer: Informer<V>) -> Self {
        Self::told(informer, |_| {})
    }

    /// `hear` is told of every change, after it can be read.
    pub(super) fn told(
        informer: Informer<V>,
        mut hear: impl FnMut(Change<V>) + Send + 'static,
    ) -> Self {
        let Informer {
            store,
            mut changes,
            absent,
        } = informer;
        tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                hear(change);
            }
        });
        Self { store, absent }
    }

    /// Waits for the first list, or for the API server to say that it has no such kind.
    pub(super) async fn settled(&self) {
        let mut absent = self.absent.clone();
        tokio::select! {
            _ = self.store.wait_synced() => {}
            _ = absent.wait_for(|absent| *absent) => {}
        }
    }
}
