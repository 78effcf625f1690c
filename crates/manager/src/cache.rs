//! What a replica knows of the cluster: one cache for each kind, started only if somebody needs it.

use koord_kube::kube_core::Resource;
use koord_kube::{Change, Informer, Mirrored, ObjectKey, Store, Text};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A kind of object that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
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

impl Kind {
    /// The plural, as the API server names it.
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

/// How far a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody needs it.
    Off,
    /// The first list is not complete.
    Waiting,
    /// It mirrors the API server, and all listeners have heard of the first list.
    Synced,
    /// The API server has no such kind. It is looked for until it appears.
    Absent,
    /// It does not follow any more.
    Stopped,
}

impl State {
    /// Whether decisions can be made from it: a kind that is not installed has no objects.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Self::Synced | Self::Absent)
    }
}

/// A cache, whatever it holds.
pub(crate) trait ObjectCache: Send + Sync {
    fn kind(&self) -> Kind;

    /// Starts to follow the API server, once.
    fn start(&self, stop: &CancellationToken);

    fn state(&self) -> watch::Receiver<State>;
}

type ChangeListener<V> = Box<dyn Fn(&Change<V>) + Send + Sync>;
type Start<V> = Box<dyn FnOnce(CancellationToken) -> Informer<V> + Send>;

/// The mirror of one kind. Until it is started it is empty. Clones share the same content.
pub(crate) struct Cache<V>(Arc<Inner<V>>);

struct Inner<V> {
    kind: Kind,
    /// `None` once started.
    start: Mutex<Option<Start<V>>>,
    store: OnceLock<Store<V>>,
    state: watch::Sender<State>,
    listeners: RwLock<Vec<ChangeListener<V>>>,
}

impl<V> Clone for Cache<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V: Mirrored> Cache<V> {
    /// A cache that `start` fills when it is needed.
    pub(crate) fn new(
        kind: Kind,
        start: impl FnOnce(CancellationToken) -> Informer<V> + Send + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            kind,
            start: Mutex::new(Some(Box::new(start))),
            store: OnceLock::new(),
            state: watch::channel(State::Off).0,
            listeners: RwLock::default(),
        }))
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<V>> {
        self.0.store.get()?.get(key)
    }

    /// All objects, in no particular order.
    pub(crate) fn list(&self) -> Vec<Arc<V>> {
        self.0.store.get().map(Store::list).unwrap_or_default()
    }

    /// Calls `listener` for every change, in order; it must not block. A listener that comes late
    /// hears of the objects that are there first.
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
    /// The object under `key`, if known.
    pub(crate) fn object(&self, key: &ObjectKey) -> Option<K> {
        self.get(key).map(|text| text.read())
    }

    /// All objects, one after the other, in no particular order.
    pub(crate) fn objects(&self) -> impl Iterator<Item = K> {
        self.list().into_iter().map(|text| text.read())
    }
}

impl<V: Mirrored> ObjectCache for Cache<V> {
    fn kind(&self) -> Kind {
        self.0.kind
    }

    fn start(&self, stop: &CancellationToken) {
        let Some(start) = self.0.start.lock().take() else {
            return;
        };
        self.0.state.send_replace(State::Waiting);
        let informer = start(stop.clone());
        // Started once: it is empty.
        let _ = self.0.store.set(informer.store.clone());
        let stopped = Stopped(self.0.clone());
        tokio::spawn(async move { stopped.0.pump(informer).await });
    }

    fn state(&self) -> watch::Receiver<State> {
        self.0.state.subscribe()
    }
}

impl<V: Mirrored> Inner<V> {
    async fn pump(&self, mut informer: Informer<V>) {
        let mut synced = false;
        loop {
            tokio::select! {
                Ok(()) = informer.absent.changed() => {
                    let absent = *informer.absent.borrow_and_update();
                    self.state.send_replace(match (absent, synced) {
                        (true, _) => State::Absent,
                        (false, true) => State::Synced,
                        (false, false) => State::Waiting,
                    });
                }
                change = informer.changes.recv() => {
                    let Some(change) = change else { return };
                    for listener in self.listeners.read().iter() {
                        listener(&change);
                    }
                    if matches!(change, Change::Synced) {
                        synced = true;
                        self.state.send_replace(State::Synced);
                    }
                }
            }
        }
    }
}

/// Says that a cache has stopped, however its task ends.
struct Stopped<V>(Arc<Inner<V>>);

impl<V> Drop for Stopped<V> {
    fn drop(&mut self) {
        self.0.state.send_replace(State::Stopped);
    }
}
