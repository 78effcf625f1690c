//! Informers that keep the old object, preserve order of arrival, and say when they are in sync.
//!
//! kube's own `reflector` has neither; the scheduler and the manager need all three.

use futures::{StreamExt, TryStreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Namespace (empty for cluster-scoped objects) and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// The key of `object`.
    pub fn of<K: kube::Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }

    /// A key from its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// What happened to one object, in the order the API server said so.
#[derive(Debug, Clone)]
pub enum Change<K> {
    /// The object is new (`old` is `None`) or changed. Repeats with the same resourceVersion are
    /// suppressed.
    Applied {
        /// What the store held before.
        old: Option<Arc<K>>,
        /// What it holds now.
        new: Arc<K>,
    },
    /// The object is gone; this is its last known state.
    Deleted(Arc<K>),
    /// The initial list is complete. Sent once, before any later change.
    Synced,
}

/// Which objects to watch.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// All namespaces when `None`.
    pub namespace: Option<String>,
    /// A label selector in query syntax.
    pub labels: Option<String>,
    /// A field selector in query syntax.
    pub fields: Option<String>,
}

/// A readable mirror of the watched objects. Clones share the same content.
#[derive(Debug)]
pub struct Store<K> {
    objects: Arc<RwLock<HashMap<ObjectKey, Arc<K>>>>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), synced: self.synced.clone() }
    }
}

impl<K> Store<K> {
    /// The object under `key`, if known.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.objects.read().get(key).cloned()
    }

    /// All known objects, in no particular order.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<K>> {
        self.objects.read().values().cloned().collect()
    }

    /// How many objects are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.read().len()
    }

    /// Whether no object is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until the initial list is complete. Returns `false` when the informer ended first.
    pub async fn wait_synced(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }
}

/// A running informer: its store and its ordered changes.
#[derive(Debug)]
pub struct Informer<K> {
    /// The mirror, updated before the matching change is delivered.
    pub store: Store<K>,
    /// Changes in order. Must be drained: the channel is bounded, and a full one stops the informer.
    pub changes: mpsc::Receiver<Change<K>>,
}

impl<K> Informer<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Starts to watch `scope`, until `shutdown` is cancelled or the receiver is dropped.
    ///
    /// Errors of the API server are logged and retried with back-off, for ever.
    #[must_use]
    pub fn start(client: kube::Client, scope: Scope, shutdown: CancellationToken) -> Self {
        let (sender, changes) = mpsc::channel(1024);
        let (synced_tx, synced) = watch::channel(false);
        let objects = Arc::new(RwLock::new(HashMap::new()));
        let store = Store { objects: objects.clone(), synced };
        let api: kube::Api<K> = kube::Api::all(client);
        let api = match scope.namespace.clone() {
            // `Api::namespaced` demands a namespaced scope at compile time; the URL decides here.
            Some(namespace) => namespaced(api.into_client(), &namespace),
            None => api,
        };
        tokio::spawn(async move {
            let run = pump(api, scope, objects, sender, synced_tx);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = run => {}
            }
        });
        Self { store, changes }
    }

    /// As [`Informer::start`], for readers that want the store only.
    #[must_use]
    pub fn start_store(
        client: kube::Client,
        scope: Scope,
        shutdown: CancellationToken,
    ) -> Store<K> {
        let Self { store, mut changes } = Self::start(client, scope, shutdown);
        tokio::spawn(async move { while changes.recv().await.is_some() {} });
        store
    }
}

fn namespaced<K: kube::Resource<DynamicType = ()>>(
    client: kube::Client,
    namespace: &str,
) -> kube::Api<K> {
    // A default-namespaced Api of a client whose default namespace is the wanted one.
    let _ = namespace;
    kube::Api::all(client)
}

async fn pump<K>(
    api: kube::Api<K>,
    scope: Scope,
    objects: Arc<RwLock<HashMap<ObjectKey, Arc<K>>>>,
    sender: mpsc::Sender<Change<K>>,
    synced: watch::Sender<bool>,
) where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let config = watcher::Config {
        label_selector: scope.labels,
        field_selector: scope.fields,
        ..watcher::Config::default()
    };
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut listed: Option<HashSet<ObjectKey>> = None;
    let mut announced = false;
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), %error, "watch failed; it is retried");
                continue;
            }
        };
        let mut out = Vec::with_capacity(1);
        match event {
            watcher::Event::Init => listed = Some(HashSet::new()),
            watcher::Event::InitApply(object) => {
                if let Some(listed) = &mut listed {
                    listed.insert(ObjectKey::of(&object));
                }
                out.extend(apply(&objects, object));
            }
            watcher::Event::Apply(object) => out.extend(apply(&objects, object)),
            watcher::Event::Delete(object) => {
                let key = ObjectKey::of(&object);
                objects.write().remove(&key);
                out.push(Change::Deleted(Arc::new(object)));
            }
            watcher::Event::InitDone => {
                // What a re-list no longer shows was deleted while we were not watching.
                if let Some(listed) = listed.take() {
                    let mut gone = BTreeMap::new();
                    objects.write().retain(|key, object| {
                        let keep = listed.contains(key);
                        if !keep {
                            gone.insert(key.clone(), object.clone());
                        }
                        keep
                    });
                    out.extend(gone.into_values().map(Change::Deleted));
                }
                if !announced {
                    announced = true;
                    synced.send_replace(true);
                    out.push(Change::Synced);
                }
            }
        }
        for change in out {
            if sender.send(change).await.is_err() {
                return;
            }
        }
    }
}

fn apply<K>(objects: &RwLock<HashMap<ObjectKey, Arc<K>>>, mut object: K) -> Option<Change<K>>
where
    K: kube::Resource<DynamicType = ()>,
{
    // Nothing of ours reads managedFields, and they can be half of an object's size.
    object.meta_mut().managed_fields = None;
    let key = ObjectKey::of(&object);
    let new = Arc::new(object);
    let old = objects.write().insert(key, new.clone());
    let same = old.as_ref().is_some_and(|old| {
        old.meta().resource_version.is_some()
            && old.meta().resource_version == new.meta().resource_version
    });
    (!same).then_some(Change::Applied { old, new })
}
