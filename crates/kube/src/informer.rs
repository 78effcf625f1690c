//! Informers that keep the old object, preserve the order of events, and report when the initial list is
//! complete.
//!
//! kube's own `reflector` does not do this; the scheduler and the manager need all three.

mod either;
mod failure;
mod objects;
mod readable;
mod text;

pub use readable::{Readable, Unread};
pub use text::Text;

use crate::decode::Decode;
use crate::raw_object::RawObject;
use failure::{FailureReporter, Retry, WatchFailure};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use kube::core::{ApiResource, NamespaceResourceScope};
use kube::runtime::watcher;
use objects::Objects;
use parking_lot::RwLock;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Namespace (empty for cluster-scoped objects) and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The field `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// Returns the key of `object`.
    pub fn from_object<K: kube::Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }

    /// Creates a key from namespace and name.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
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

/// A value that an informer can store: an object, or what is derived from one.
pub trait Cacheable: Send + Sync + 'static {
    /// Returns namespace (empty for cluster-scoped objects) and name.
    fn names(&self) -> (&str, &str);
    /// Returns the key of the object.
    fn key(&self) -> ObjectKey {
        let (namespace, name) = self.names();
        ObjectKey::new(namespace, name)
    }
    /// Returns whether `other`, which has the same key, has the same `metadata.uid`.
    fn is_same(&self, other: &Self) -> bool;
    /// Returns `metadata.resourceVersion`.
    fn resource_version(&self) -> Option<&str>;
}

impl<K: kube::Resource<DynamicType = ()> + Send + Sync + 'static> Cacheable for K {
    fn names(&self) -> (&str, &str) {
        let meta = self.meta();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        (namespace, meta.name.as_deref().unwrap_or_default())
    }
    fn is_same(&self, other: &Self) -> bool {
        self.meta().uid == other.meta().uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.meta().resource_version.as_deref()
    }
}

/// A change of one object, in the order in which the API server sent it.
#[derive(Debug, Clone)]
pub enum Change<K> {
    /// The object is new (`old` is `None`) or changed. Events that repeat a resourceVersion are suppressed;
    /// another object with the same key is a deletion and an addition.
    Applied {
        /// The object in the store before the change.
        old: Option<Arc<K>>,
        /// The object in the store now.
        new: Arc<K>,
    },
    /// The object was deleted; this is its last state (the last known one if the event of the deletion was
    /// missed).
    Deleted(Arc<K>),
    /// The initial list is complete. Sent once, before all later changes.
    Synced,
}

/// Selects the objects of a kind to watch.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// A label selector in query syntax.
    pub labels: Option<String>,
    /// A field selector in query syntax.
    pub fields: Option<String>,
}

/// A read-only view of the watched objects. Clones share the same content.
#[derive(Debug)]
pub struct Store<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            synced: self.synced.clone(),
        }
    }
}

impl<K: Cacheable> Store<K> {
    /// Returns the object with `key`; `None` if there is none.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let objects = self.objects.read();
        objects.get((&key.namespace, &key.name)).cloned()
    }
}

impl<K> Store<K> {
    /// Returns all objects, in no particular order.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<K>> {
        self.objects.read().iter().cloned().collect()
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.read().len()
    }

    /// Returns whether there are no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until the initial list is complete. Returns `false` if the informer ended first.
    pub async fn wait_synced(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }
}

/// A running informer: its store and its ordered changes.
#[derive(Debug)]
pub struct Informer<K> {
    /// Objects of the informer by key. The store is updated before the matching change is sent, and never waits for
    /// a reader of `changes`.
    pub store: Store<K>,
    /// Changes in order. Unread changes wait in memory, so a slow reader delays neither the store nor the
    /// watch, but it must read or drop this receiver.
    pub changes: mpsc::Receiver<Change<K>>,
    /// True while the API server does not have the kind: its CRD is not installed, or was deleted. The
    /// informer retries.
    pub absent: watch::Receiver<bool>,
}

impl<K> Informer<K>
where
    K: kube::Resource<DynamicType = ()> + Decode + Send + Sync + 'static,
{
    /// Watches all objects in `scope`, in every namespace, until `shutdown` is cancelled or the receiver is
    /// dropped.
    ///
    /// Errors of the API server are logged and retried with back-off, without end. An object that cannot be
    /// decoded (the schema of a CRD may be less strict than `K`) is logged with field and value, and skipped:
    /// its last decoded state stays until it is deleted, and all other objects are processed.
    #[must_use]
    pub fn start(client: kube::Client, scope: Scope, shutdown: CancellationToken) -> Self {
        Self::start_mapped(client, scope, |object: K| object, shutdown)
    }

    /// Like [`Informer::start`]; `trim` removes fields that the reader does not need before an object is
    /// stored, so that a store of many large objects stays small.
    #[must_use]
    pub fn start_trimmed(
        client: kube::Client,
        scope: Scope,
        trim: fn(&mut K),
        shutdown: CancellationToken,
    ) -> Self {
        Self::start_mapped(
            client,
            scope,
            move |mut object| {
                trim(&mut object);
                object
            },
            shutdown,
        )
    }

    /// Like [`Informer::start`], in one namespace: the permission to list and watch there is enough.
    #[must_use]
    pub fn start_in_namespace(
        client: kube::Client,
        namespace: &str,
        scope: Scope,
        shutdown: CancellationToken,
    ) -> Self
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
    {
        let kind = ApiResource::erase::<K>(&());
        let api = kube::Api::namespaced_with(client, namespace, &kind);
        run(
            decode_objects(events(api, scope), |object: K| object, |_| {}),
            kind_of::<K>(),
            shutdown,
        )
    }

    /// Like [`Informer::start`], for readers that need only the store.
    #[must_use]
    pub fn start_store(
        client: kube::Client,
        scope: Scope,
        shutdown: CancellationToken,
    ) -> Store<K> {
        let Self {
            store, mut changes, ..
        } = Self::start(client, scope, shutdown);
        tokio::spawn(async move { while changes.recv().await.is_some() {} });
        store
    }
}

impl<V: Cacheable> Informer<V> {
    /// Like [`Informer::start`]; the store and the changes have the result of `keep` instead of the object.
    #[must_use]
    pub fn start_mapped<K>(
        client: kube::Client,
        scope: Scope,
        keep: impl Fn(K) -> V + Send + 'static,
        shutdown: CancellationToken,
    ) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Decode + 'static,
    {
        Self::start_reporting(client, scope, keep, |_| {}, shutdown)
    }

    /// Like [`Informer::start_mapped`]; each object that cannot be decoded is logged and passed to `report`.
    #[must_use]
    pub fn start_reporting<K>(
        client: kube::Client,
        scope: Scope,
        keep: impl Fn(K) -> V + Send + 'static,
        report: impl Fn(&Unread) + Send + 'static,
        shutdown: CancellationToken,
    ) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Decode + 'static,
    {
        let events = watch_objects(client, scope, keep, report);
        run(events, kind_of::<K>(), shutdown)
    }

    /// Like [`Informer::start_mapped`], for readers that also need the objects that cannot be decoded.
    #[must_use]
    pub fn start_readable<K>(
        client: kube::Client,
        scope: Scope,
        keep: impl Fn(Readable<K>) -> V + Send + 'static,
        shutdown: CancellationToken,
    ) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Decode + 'static,
    {
        let keep = move |raw: RawObject| {
            let read = Readable::<K>::from_json(raw.json.get());
            Decoded::Object(keep(without_managed_fields(read)))
        };
        let events = map_objects(events(raw_api::<K>(client), scope), keep);
        run(events, kind_of::<K>(), shutdown)
    }
}

/// A decoded value, or an object that cannot be decoded.
enum Decoded<V> {
    Object(V),
    Unread(Box<Unread>),
}

/// Returns the events of all objects in `scope`. Objects are decoded one by one: the schema of a CRD may
/// admit objects that cannot be decoded, and one of them must not break the list of all others.
fn watch_objects<K, V: Cacheable>(
    client: kube::Client,
    scope: Scope,
    keep: impl Fn(K) -> V + Send + 'static,
    report: impl Fn(&Unread) + Send + 'static,
) -> DecodedEvents<V>
where
    K: kube::Resource<DynamicType = ()> + Decode + 'static,
{
    decode_objects(events(raw_api::<K>(client), scope), keep, report)
}

fn raw_api<K: kube::Resource<DynamicType = ()>>(client: kube::Client) -> kube::Api<RawObject> {
    kube::Api::all_with(client, &ApiResource::erase::<K>(&()))
}

/// Decodes the objects of `events`, and replaces each by the result of `keep`.
fn decode_objects<K, V: Cacheable>(
    events: RawEvents,
    keep: impl Fn(K) -> V + Send + 'static,
    report: impl Fn(&Unread) + Send + 'static,
) -> DecodedEvents<V>
where
    K: kube::Resource<DynamicType = ()> + Decode + 'static,
{
    map_objects(events, move |raw| {
        match Readable::<K>::from_json(raw.json.get()).0 {
            Ok(mut object) => {
                // koord does not use managedFields, and they can be half of an object's size.
                object.meta_mut().managed_fields = None;
                Decoded::Object(keep(object))
            }
            Err(unread) => {
                report(&unread);
                Decoded::Unread(unread)
            }
        }
    })
}

/// Returns `plural.group/version` of the kind.
fn kind_of<K: kube::Resource<DynamicType = ()>>() -> String {
    let (plural, group, version) = (K::plural(&()), K::group(&()), K::version(&()));
    format!("{plural}.{group}/{version}")
}

/// Returns the events of the objects of `api` in `scope`.
fn events(api: kube::Api<RawObject>, scope: Scope) -> RawEvents {
    let config = watcher::Config {
        label_selector: scope.labels,
        field_selector: scope.fields,
        ..watcher::Config::default()
    };
    watcher(api, config).boxed()
}

/// Replaces the objects of `events` by the results of `keep`.
fn map_objects<K: Send + 'static, V: 'static>(
    events: BoxStream<'static, Result<watcher::Event<K>, watcher::Error>>,
    keep: impl Fn(K) -> Decoded<V> + Send + 'static,
) -> DecodedEvents<V> {
    let map = move |event| match event {
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(keep(object)),
        watcher::Event::InitDone => watcher::Event::InitDone,
        watcher::Event::Apply(object) => watcher::Event::Apply(keep(object)),
        watcher::Event::Delete(object) => watcher::Event::Delete(keep(object)),
    };
    events.map_ok(map).boxed()
}

fn run<V: Cacheable>(
    events: DecodedEvents<V>,
    kind: String,
    shutdown: CancellationToken,
) -> Informer<V> {
    let (sender, changes) = mpsc::channel(64);
    let (writer, store, absent) = StoreWriter::new(kind);
    tokio::spawn(async move {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = pump(events, writer, sender) => {}
        }
    });
    Informer {
        store,
        changes,
        absent,
    }
}

/// Removes managedFields: koord does not use them, and they can be half of an object's size.
fn without_managed_fields<K: kube::Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// Capacity that the queue of changes keeps when it is empty.
const KEPT_CAPACITY: usize = 64;

type DecodedEvents<V> = BoxStream<'static, Result<watcher::Event<Decoded<V>>, watcher::Error>>;
type RawEvents = BoxStream<'static, Result<watcher::Event<RawObject>, watcher::Error>>;

/// Applies events to the store as they arrive, and sends the changes as the reader receives them.
async fn pump<V: Cacheable>(
    mut events: DecodedEvents<V>,
    mut writer: StoreWriter<V>,
    sender: mpsc::Sender<Change<V>>,
) {
    let mut waiting = VecDeque::new();
    let mut retry = Retry::default();
    let mut reporter = FailureReporter::default();
    let mut pause = None;
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(pause.unwrap_or_else(Instant::now)), if pause.is_some() => pause = None,
            permit = sender.reserve(), if !waiting.is_empty() => match (permit, waiting.pop_front()) {
                (Ok(permit), Some(change)) => {
                    permit.send(change);
                    if waiting.is_empty() {
                        // A list needs room for the changes of all objects.
                        waiting.shrink_to(KEPT_CAPACITY);
                    }
                }
                _ => return,
            },
            () = sender.closed(), if waiting.is_empty() => return,
            event = events.next(), if pause.is_none() => match event {
                Some(Ok(event)) => {
                    // Each attempt to list begins with `Init`, even if it fails.
                    if !matches!(event, watcher::Event::Init) {
                        reporter.clear(&writer.kind);
                    }
                    writer.handle(event, &mut waiting);
                }
                Some(Err(error)) => {
                    let failure = WatchFailure::classify(&error);
                    pause = Some(Instant::now() + retry.delay(failure));
                    if failure == WatchFailure::Absent {
                        writer.set_absent(true);
                    }
                    reporter.report(&writer.kind, failure, &error);
                }
                None => return,
            },
        }
    }
}

/// Writes the content of a [`Store`].
struct StoreWriter<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Sender<bool>,
    absent: watch::Sender<bool>,
    /// The kind as `plural.group/version`, for the log.
    kind: String,
    /// Keys in the list in progress; `None` if no list is in progress or the store was empty before it.
    listed: Option<HashSet<ObjectKey>>,
}

impl<K: Cacheable> StoreWriter<K> {
    fn new(kind: String) -> (Self, Store<K>, watch::Receiver<bool>) {
        let (synced, is_synced) = watch::channel(false);
        let (absent, is_absent) = watch::channel(false);
        let objects = Arc::new(RwLock::new(Objects::default()));
        let store = Store {
            objects: objects.clone(),
            synced: is_synced,
        };
        let writer = Self {
            objects,
            synced,
            absent,
            kind,
            listed: None,
        };
        (writer, store, is_absent)
    }

    /// Sets whether the kind is absent, and logs a change.
    fn set_absent(&self, absent: bool) {
        if self
            .absent
            .send_if_modified(|was| std::mem::replace(was, absent) != absent)
        {
            let kind = &self.kind;
            if absent {
                tracing::warn!(kind, "waiting for the API server to serve the kind");
            } else {
                tracing::info!(kind, "found the kind on the API server");
            }
        }
    }

    /// Applies `event` to the store and appends the changes to `out`.
    fn handle(&mut self, event: watcher::Event<Decoded<K>>, out: &mut VecDeque<Change<K>>) {
        if !matches!(event, watcher::Event::Init) {
            self.set_absent(false);
        }
        match event {
            // The first list cannot miss an object of the store.
            watcher::Event::Init => {
                let has_objects = self.objects.read().len() > 0;
                self.listed = has_objects.then(HashSet::new);
            }
            watcher::Event::InitApply(item) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(match &item {
                        Decoded::Object(object) => object.key(),
                        Decoded::Unread(unread) => unread.key(),
                    });
                }
                self.apply(item, out);
            }
            watcher::Event::Apply(item) => self.apply(item, out),
            // An object that is not in the store was never sent as applied, or was sent as deleted already.
            watcher::Event::Delete(Decoded::Object(object)) => {
                if self.objects.write().remove(object.names()).is_some() {
                    out.push_back(Change::Deleted(Arc::new(object)));
                }
            }
            watcher::Event::Delete(Decoded::Unread(unread)) => {
                let last = self.objects.write().remove(unread.names());
                out.extend(last.map(Change::Deleted));
            }
            watcher::Event::InitDone => {
                // An object that is missing in a new list was deleted while the watch was interrupted.
                if let Some(listed) = self.listed.take() {
                    let mut objects = self.objects.write();
                    let missing = |object: &mut Arc<K>| !listed.contains(&object.key());
                    let mut deleted: Vec<_> = objects.take_if(missing).collect();
                    deleted.sort_by(|a, b| a.names().cmp(&b.names()));
                    out.extend(deleted.into_iter().map(Change::Deleted));
                }
                if !*self.synced.borrow() {
                    self.synced.send_replace(true);
                    out.push_back(Change::Synced);
                }
            }
        }
    }

    fn apply(&self, item: Decoded<K>, out: &mut VecDeque<Change<K>>) {
        let object = match item {
            Decoded::Object(object) => object,
            Decoded::Unread(unread) => {
                let (kind, object) = (&self.kind, unread.key());
                tracing::warn!(kind, %object, error = %unread, "skipping an object that cannot be decoded");
                return;
            }
        };
        let new = Arc::new(object);
        let mut old = self.objects.write().insert(new.clone());
        if let Some(before) = &old {
            let version = before.resource_version();
            if version.is_some() && version == new.resource_version() {
                return;
            }
            if !before.is_same(&new) {
                out.extend(old.take().map(Change::Deleted));
            }
        }
        out.push_back(Change::Applied { old, new });
    }
}

#[cfg(test)]
mod tests;
