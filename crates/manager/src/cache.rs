//! The watch caches of a replica: one per kind, started only if an enabled part needs it.

use koord_kube::kube_core::Resource;
use koord_kube::{Cacheable, Change, Informer, ObjectKey, Store, Text};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A kind of object that the manager watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    Settings,
    Nodes,
    Pods,
    NodeMetrics,
    NodeSlos,
    Devices,
    Topologies,
    Profiles,
    Namespaces,
    PriorityClasses,
    Quotas,
    QuotaProfiles,
    Recommendations,
}

impl ObjectKind {
    /// Returns the plural resource name, as the API server has it.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Settings => "configmaps",
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::NodeMetrics => "nodemetrics",
            Self::NodeSlos => "nodeslos",
            Self::Devices => "devices",
            Self::Topologies => "noderesourcetopologies",
            Self::Profiles => "clustercolocationprofiles",
            Self::Namespaces => "namespaces",
            Self::PriorityClasses => "priorityclasses",
            Self::Quotas => "elasticquotas",
            Self::QuotaProfiles => "elasticquotaprofiles",
            Self::Recommendations => "recommendations",
        }
    }
}

/// Progress of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheState {
    /// The cache is not started: no enabled part needs it.
    Off,
    /// The cache is started, but the first list is not complete.
    Waiting,
    /// The cache is in sync with the API server, and all listeners have received the first list.
    Synced,
    /// The API server does not serve this kind. The cache retries until the kind appears.
    Absent,
    /// The informer's task has ended: the cache is no longer updated.
    Stopped,
}

impl CacheState {
    /// Returns true if decisions can be made from the cache: a kind that is not installed has no objects.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Self::Synced | Self::Absent)
    }
}

/// A cache, independent of its object type.
pub(crate) trait ObjectCache: Send + Sync {
    fn kind(&self) -> ObjectKind;

    /// Starts to watch the API server. Later calls have no effect.
    fn start(&self, stop: &CancellationToken);

    fn state(&self) -> watch::Receiver<CacheState>;
}

type ChangeListener<V> = Box<dyn Fn(&Change<V>) + Send + Sync>;
type StartInformer<V> = Box<dyn FnOnce(CancellationToken) -> Informer<V> + Send>;

/// The watch cache of one kind, empty until it is started. Clones share the content.
pub(crate) struct Cache<V>(Arc<CacheInner<V>>);

struct CacheInner<V> {
    kind: ObjectKind,
    /// `None` once started.
    start: Mutex<Option<StartInformer<V>>>,
    store: OnceLock<Store<V>>,
    state: watch::Sender<CacheState>,
    listeners: RwLock<Vec<ChangeListener<V>>>,
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V: Cacheable> Cache<V> {
    /// Creates a cache; `start` creates its informer when the cache is needed.
    pub(crate) fn new(
        kind: ObjectKind,
        start: impl FnOnce(CancellationToken) -> Informer<V> + Send + 'static,
    ) -> Self {
        Self(Arc::new(CacheInner {
            kind,
            start: Mutex::new(Some(Box::new(start))),
            store: OnceLock::new(),
            state: watch::channel(CacheState::Off).0,
            listeners: RwLock::default(),
        }))
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<V>> {
        self.0.store.get()?.get(key)
    }

    /// Returns all objects, in no particular order.
    pub(crate) fn list(&self) -> Vec<Arc<V>> {
        self.0.store.get().map(Store::list).unwrap_or_default()
    }

    /// Calls `listener` for every change, in order; it must not block. A listener that is added later first
    /// receives the objects that already exist.
    pub(crate) fn on_change(&self, listener: impl Fn(&Change<V>) + Send + Sync + 'static) {
        let mut listeners = self.0.listeners.write();
        for new in self.list() {
            listener(&Change::Applied { old: None, new });
        }
        listeners.push(Box::new(listener));
    }
}

impl<K> Cache<Text<K>>
where
    K: Resource + Serialize + DeserializeOwned + Default + 'static,
{
    /// Returns the object under `key`, decoded.
    pub(crate) fn object(&self, key: &ObjectKey) -> Option<K> {
        self.get(key).map(|text| text.read())
    }

    /// Returns an iterator that decodes the objects one by one, in no particular order.
    pub(crate) fn objects(&self) -> impl Iterator<Item = K> {
        self.list().into_iter().map(|text| text.read())
    }
}

impl<V: Cacheable> ObjectCache for Cache<V> {
    fn kind(&self) -> ObjectKind {
        self.0.kind
    }

    fn start(&self, stop: &CancellationToken) {
        let Some(start) = self.0.start.lock().take() else {
            return;
        };
        self.0.state.send_replace(CacheState::Waiting);
        let informer = start(stop.clone());
        // `start` is taken above, so this runs once and the cell is empty.
        let _ = self.0.store.set(informer.store.clone());
        let stopped = StopGuard(self.0.clone());
        tokio::spawn(async move { stopped.0.pump(informer).await });
    }

    fn state(&self) -> watch::Receiver<CacheState> {
        self.0.state.subscribe()
    }
}

impl<V: Cacheable> CacheInner<V> {
    async fn pump(&self, mut informer: Informer<V>) {
        let mut synced = false;
        loop {
            tokio::select! {
                Ok(()) = informer.absent.changed() => {
                    let absent = *informer.absent.borrow_and_update();
                    self.state.send_replace(match (absent, synced) {
                        (true, _) => CacheState::Absent,
                        (false, true) => CacheState::Synced,
                        (false, false) => CacheState::Waiting,
                    });
                }
                change = informer.changes.recv() => {
                    let Some(change) = change else { return };
                    for listener in self.listeners.read().iter() {
                        listener(&change);
                    }
                    if matches!(change, Change::Synced) {
                        synced = true;
                        self.state.send_replace(CacheState::Synced);
                    }
                }
            }
        }
    }
}

/// Sets the state to [`CacheState::Stopped`] when dropped, however the cache's task ends.
struct StopGuard<V>(Arc<CacheInner<V>>);

impl<V> Drop for StopGuard<V> {
    fn drop(&mut self) {
        self.0.state.send_replace(CacheState::Stopped);
    }
}
