//! The garbage collector: deletes objects when all their owners are gone, and completes the foreground
//! deletion of owners whose blocking dependents are gone.
//!
//! It keeps only a queue of objects to check and the set of owners whose deletion waits. Whether an owner
//! exists and which objects refer to it is read from the store at the moment of the decision, so a late event
//! can never make it delete an object that has an owner.

use super::objects;
use super::queue::READ_INTERVAL;
use crate::rest::meta::{self, Owner};
use crate::rest::{Api, CRDS, DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::store::{Entry, Event, EventKind, Key, TableId};
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Delay before failed work is retried.
const RETRY: Duration = Duration::from_secs(1);
/// Capacity of the channel from the tables' forwarders to the collector.
const CHANNEL: usize = 1024;

/// Table and key of an object.
type ObjectRef = (TableId, Key);

/// A report of a table's forwarder.
enum TableReport {
    Listed(Arc<Entry>),
    Changed(Event),
}

/// An item of the collector's queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum GcTask {
    /// Check whether the object still has an owner.
    Dependent(ObjectRef),
    /// Check whether the deletion of the object can go on.
    Owner(ObjectRef),
}

#[derive(Default)]
struct GcQueue {
    /// Owners whose deletion waits for dependents.
    waiting: FxHashMap<Arc<str>, ObjectRef>,
    queue: VecDeque<GcTask>,
    queued: FxHashSet<GcTask>,
    /// Objects with an owner whose kind was not served when it was looked up.
    unknown: FxHashSet<ObjectRef>,
}

impl GcQueue {
    fn add(&mut self, work: GcTask) {
        if self.queued.insert(work.clone()) {
            self.queue.push_back(work);
        }
    }

    fn pop(&mut self) -> Option<GcTask> {
        let work = self.queue.pop_front()?;
        self.queued.remove(&work);
        Some(work)
    }

    fn link(&mut self, entry: &Entry, before: Option<&Entry>) {
        let object_ref = || (entry.table.clone(), entry.key.clone());
        if is_waiting_for_collector(entry) {
            self.waiting.insert(entry.index.uid.clone(), object_ref());
            self.add(GcTask::Owner(object_ref()));
        }
        // A deleted owner has an event of its own; most changes do not touch the owners.
        let same_owners = before.is_some_and(|old| old.index.owners == entry.index.owners);
        let existing = || !self.unknown.contains(&object_ref());
        if entry.index.owners.is_empty() || same_owners && existing() {
            return;
        }
        self.add(GcTask::Dependent(object_ref()));
    }

    fn mark_resolved(&mut self, work: GcTask) {
        if let GcTask::Dependent(object_ref) = work
            && !self.unknown.is_empty()
        {
            self.unknown.remove(&object_ref);
        }
    }

    fn mark_unresolved(&mut self, work: GcTask) {
        if let GcTask::Dependent(object_ref) = work {
            self.unknown.insert(object_ref);
        }
    }

    fn unlink(&mut self, entry: &Entry) {
        for owner in &entry.index.owners {
            if let Some(owner) = self.waiting.get(owner).cloned() {
                self.add(GcTask::Owner(owner));
            }
        }
    }

    fn apply_report(&mut self, api: &Api, report: TableReport) {
        match report {
            TableReport::Listed(entry) => self.link(&entry, None),
            TableReport::Changed(event) => {
                if let Some(old) = &event.old {
                    self.unlink(old);
                }
                match event.kind {
                    EventKind::Put => self.link(&event.new, event.old.as_deref()),
                    EventKind::Delete => {
                        self.unlink(&event.new);
                        let uid = &event.new.index.uid;
                        self.waiting.remove(uid);
                        self.unknown
                            .remove(&(event.new.table.clone(), event.new.key.clone()));
                        for (_, dependent_entry) in dependents_now(api, uid) {
                            self.add(GcTask::Dependent((
                                dependent_entry.table.clone(),
                                dependent_entry.key.clone(),
                            )));
                        }
                    }
                }
            }
        }
    }
}

/// Returns true if the object is being deleted and one of the collector's finalizers holds it. Searches the
/// bytes first: nearly no object contains these words.
fn is_waiting_for_collector(entry: &Entry) -> bool {
    contains(&entry.bytes, "\"deletionTimestamp\"")
        && (has_finalizer(entry, FOREGROUND) || has_finalizer(entry, ORPHAN))
}

fn has_finalizer(entry: &Entry, finalizer: &str) -> bool {
    if !contains(&entry.bytes, "\"deletionTimestamp\"") || !contains(&entry.bytes, finalizer) {
        return false;
    }
    let value = entry.value();
    meta::deleting(&value) && meta::finalizers(&value).iter().any(|f| f == finalizer)
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    std::str::from_utf8(haystack).is_ok_and(|text| text.contains(needle))
}

/// Runs the garbage collector until `shutdown` is cancelled.
pub(super) async fn run(api: Api, shutdown: CancellationToken) {
    let (sender, mut reports) = mpsc::channel(CHANNEL);
    let mut graph = GcQueue::default();
    let mut followed = FxHashSet::default();
    let mut retries: VecDeque<(tokio::time::Instant, GcTask)> = VecDeque::new();
    follow_new(&api, &mut followed, &sender, &shutdown);
    loop {
        while let Ok(report) = reports.try_recv() {
            apply_and_follow(&api, &mut graph, report, &mut followed, &sender, &shutdown);
        }
        let Some(work) = graph.pop() else {
            let due = retries.front().map(|(at, _)| *at);
            let idle = tokio::time::Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep_until(due.unwrap_or(idle)) => {
                    if let Some((_, work)) = retries.pop_front() {
                        graph.add(work);
                    }
                }
                report = reports.recv() => match report {
                    Some(r) => apply_and_follow(&api, &mut graph, r, &mut followed, &sender, &shutdown),
                    None => return,
                },
            }
            continue;
        };
        let result = tokio::select! {
            () = shutdown.cancelled() => return,
            result = run_task(&api, &work) => result,
        };
        match result {
            Ok(GcOutcome::All) => graph.mark_resolved(work),
            Ok(GcOutcome::UnknownOwner) => graph.mark_unresolved(work),
            Err(error) => {
                tracing::debug!(?work, %error, "failed to collect garbage, retrying");
                retries.push_back((tokio::time::Instant::now() + RETRY, work));
            }
        }
        tokio::task::yield_now().await;
    }
}

fn apply_and_follow(
    api: &Api,
    graph: &mut GcQueue,
    report: TableReport,
    followed: &mut FxHashSet<TableId>,
    sender: &mpsc::Sender<TableReport>,
    shutdown: &CancellationToken,
) {
    let table = match &report {
        TableReport::Listed(entry) => &entry.table,
        TableReport::Changed(event) => &event.new.table,
    };
    let definitions = table.group() == CRDS.0 && table.plural() == CRDS.1;
    graph.apply_report(api, report);
    if definitions {
        follow_new(api, followed, sender, shutdown);
    }
}

/// Starts to follow the tables that are not followed yet.
fn follow_new(
    api: &Api,
    followed: &mut FxHashSet<TableId>,
    sender: &mpsc::Sender<TableReport>,
    shutdown: &CancellationToken,
) {
    for resource in api.registry().tables() {
        // Events own nothing, and no owner of theirs needs prompt collection.
        if &*resource.plural == "events" {
            continue;
        }
        if followed.insert(resource.table.clone()) {
            let (api, sender, shutdown) = (api.clone(), sender.clone(), shutdown.clone());
            tokio::spawn(follow(api, resource.table.clone(), sender, shutdown));
        }
    }
}

/// Forwards the objects of one table and their changes.
async fn follow(
    api: Api,
    table: TableId,
    sender: mpsc::Sender<TableReport>,
    shutdown: CancellationToken,
) {
    while !shutdown.is_cancelled() {
        let Ok((entries, mut watcher)) = api.store().follow(&table) else {
            continue;
        };
        for entry in entries {
            if sender.send(TableReport::Listed(entry)).await.is_err() {
                return;
            }
        }
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                event = watcher.next() => event,
            };
            let Ok(event) = event else { break };
            let mut next = Some(event);
            while let Some(event) = next {
                if sender.send(TableReport::Changed(event)).await.is_err() {
                    return;
                }
                // If the watcher lags, the next wait reports it.
                next = watcher.try_next().ok().flatten();
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(READ_INTERVAL) => {}
            }
        }
    }
}

/// Outcome of a check of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GcOutcome {
    All,
    /// The kind of an owner is not served: the next change of the object causes another check.
    UnknownOwner,
}

async fn run_task(api: &Api, work: &GcTask) -> Result<GcOutcome, ApiError> {
    match work {
        GcTask::Dependent(object_ref) => dependent(api, object_ref).await,
        GcTask::Owner(object_ref) => owner(api, object_ref).await.map(|()| GcOutcome::All),
    }
}

/// State of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerState {
    /// The owner exists.
    Solid,
    /// The owner is being deleted in the foreground and waits for its dependents.
    Waiting,
    /// The owner does not exist.
    Absent,
    /// The kind of the owner is not served (yet), so it is unknown whether the owner exists.
    Unknown,
}

fn state_of(api: &Api, namespace: &str, owner: &Owner) -> OwnerState {
    let (group, version) = koord_kinds::meta::split_api_version(&owner.api_version);
    let Some(resource) = api.registry().find_kind(group, version, &owner.kind) else {
        return OwnerState::Unknown;
    };
    // A cluster-scoped object cannot have an owner in a namespace.
    if resource.namespaced && namespace.is_empty() {
        return OwnerState::Unknown;
    }
    let key = Api::key(&resource, namespace, &owner.name);
    match api.store().get(&resource.table, &key) {
        Some(entry) if *entry.index.uid == *owner.uid => {
            if has_finalizer(&entry, FOREGROUND) {
                OwnerState::Waiting
            } else {
                OwnerState::Solid
            }
        }
        _ => OwnerState::Absent,
    }
}

/// Action for an object that has owner references.
#[derive(Debug, PartialEq, Eq)]
enum GcVerdict {
    Keep,
    /// Remove the references to these owners (uids), which are gone or wait for this object.
    Release(Vec<String>),
    Delete(Option<Propagation>),
}

fn decide(owners: &[(Owner, OwnerState)], has_dependents: impl FnOnce() -> bool) -> GcVerdict {
    let with = |s: OwnerState| owners.iter().filter(move |(_, state)| *state == s);
    if with(OwnerState::Unknown).next().is_some() {
        return GcVerdict::Keep;
    }
    if with(OwnerState::Solid).next().is_some() {
        let stale_owners: Vec<String> = with(OwnerState::Absent)
            .chain(with(OwnerState::Waiting))
            .map(|(o, _)| o.uid.clone())
            .collect();
        return if stale_owners.is_empty() {
            GcVerdict::Keep
        } else {
            GcVerdict::Release(stale_owners)
        };
    }
    let waiting = with(OwnerState::Waiting).next().is_some();
    if waiting && has_dependents() {
        return GcVerdict::Delete(Some(Propagation::Foreground));
    }
    GcVerdict::Delete(None)
}

fn look_up(api: &Api, object_ref: &ObjectRef) -> Option<(Arc<Resource>, Arc<Entry>)> {
    let resource = api.registry().storage(&object_ref.0)?;
    let entry = api.store().get(&object_ref.0, &object_ref.1)?;
    Some((resource, entry))
}

/// Checks an object against its owners: keeps it, releases it from absent owners, or deletes it.
async fn dependent(api: &Api, object_ref: &ObjectRef) -> Result<GcOutcome, ApiError> {
    let Some((resource, entry)) = look_up(api, object_ref) else {
        return Ok(GcOutcome::All);
    };
    if entry.index.owners.is_empty() {
        return Ok(GcOutcome::All);
    }
    let owned = meta::OwnerInfo::from_entry(&entry);
    if owned.deleting {
        return Ok(GcOutcome::All);
    }
    let owners: Vec<(Owner, OwnerState)> = owned
        .owners
        .into_iter()
        .map(|o| {
            let state = state_of(api, &entry.key.namespace, &o);
            (o, state)
        })
        .collect();
    let has_dependents = || !dependents_now(api, &entry.index.uid).is_empty();
    let result = match decide(&owners, has_dependents) {
        GcVerdict::Keep
            if owners
                .iter()
                .any(|(_, state)| *state == OwnerState::Unknown) =>
        {
            return Ok(GcOutcome::UnknownOwner);
        }
        GcVerdict::Keep => return Ok(GcOutcome::All),
        GcVerdict::Release(uids) => release(api, &resource, &entry.key, &uids).await,
        GcVerdict::Delete(propagation) => {
            let options = DeleteOptions {
                uid: Some(entry.index.uid.to_string()),
                resource_version: Some(entry.revision.to_string()),
                propagation,
                ..DeleteOptions::default()
            };
            api.delete_object(&resource, &entry.key, &options)
                .await
                .map(|_| ())
        }
    };
    match result {
        Err(e) if e.code != 404 => Err(e),
        _ => Ok(GcOutcome::All),
    }
}

/// Removes the references to some owners from an object.
async fn release(
    api: &Api,
    resource: &Arc<Resource>,
    key: &Key,
    uids: &[String],
) -> Result<(), ApiError> {
    let is_stale = |o: &Value| uids.iter().any(|u| meta::text(o, &["uid"]) == u);
    objects::drop_owners(api, resource, key, is_stale).await
}

/// Returns the objects that refer to `owner`, a uid, at this moment. Read from the store, not from events,
/// which arrive late: the deletion of an owner must not go on before its last dependent was seen.
fn dependents_now(api: &Api, owner: &str) -> Vec<(Arc<Resource>, Arc<Entry>)> {
    let mut out = Vec::new();
    for resource in api.registry().tables() {
        let entries = api.store().owned(&resource.table, owner);
        out.extend(entries.into_iter().map(|e| (resource.clone(), e)));
    }
    out
}

/// Returns true if the entry blocks the deletion of its owner `uid`.
fn blocks(entry: &Entry, uid: &str) -> bool {
    meta::owners(&entry.value())
        .iter()
        .any(|o| o.uid == uid && o.block_owner_deletion)
}

/// Returns true if `from`, which is deleted in the foreground, waits for the object `uid` directly or through
/// other objects. Two objects that wait for each other would wait forever.
fn waits_for(api: &Api, from: &Arc<Entry>, uid: &str) -> bool {
    let mut observed = FxHashSet::default();
    let mut todo = vec![from.clone()];
    while let Some(entry) = todo.pop() {
        if *entry.index.uid == *uid {
            return true;
        }
        if !observed.insert(entry.index.uid.clone()) {
            continue;
        }
        for (_, next) in dependents_now(api, &entry.index.uid) {
            if has_finalizer(&next, FOREGROUND) && blocks(&next, &entry.index.uid) {
                todo.push(next);
            }
        }
    }
    false
}

/// Completes the deletion of an owner when no dependent blocks it any more.
async fn owner(api: &Api, object_ref: &ObjectRef) -> Result<(), ApiError> {
    let Some((resource, entry)) = look_up(api, object_ref) else {
        return Ok(());
    };
    let value = entry.value();
    if !meta::deleting(&value) {
        return Ok(());
    }
    let uid = entry.index.uid.to_string();
    let dependents = dependents_now(api, &uid);
    let finalizers = meta::finalizers(&value);
    if finalizers.iter().any(|f| f == ORPHAN) {
        for (resource, dependent) in &dependents {
            match release(api, resource, &dependent.key, std::slice::from_ref(&uid)).await {
                Err(e) if e.code != 404 => return Err(e),
                _ => {}
            }
        }
        return api.drop_finalizer(&resource, &entry.key, ORPHAN).await;
    }
    if !finalizers.iter().any(|f| f == FOREGROUND) {
        return Ok(());
    }
    for (resource, dependent) in &dependents {
        if !contains(&dependent.bytes, "\"deletionTimestamp\"") {
            let object_ref = (resource.table.clone(), dependent.key.clone());
            self::dependent(api, &object_ref).await?;
        }
    }
    // Read again: dependents that could be removed at once are gone by now.
    let blocked = dependents_now(api, &uid).iter().any(|(_, dependent)| {
        let circle = || has_finalizer(dependent, FOREGROUND) && waits_for(api, dependent, &uid);
        blocks(dependent, &uid) && !circle()
    });
    if blocked {
        return Ok(());
    }
    api.drop_finalizer(&resource, &entry.key, FOREGROUND).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str) -> Owner {
        Owner {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: uid.into(),
            uid: uid.into(),
            controller: false,
            block_owner_deletion: true,
        }
    }

    #[test]
    fn object_with_existing_owner_is_kept() {
        use OwnerState::{Absent, Solid, Unknown, Waiting};
        let owners = |states: &[OwnerState]| -> Vec<(Owner, OwnerState)> {
            states
                .iter()
                .enumerate()
                .map(|(i, s)| (owner(&i.to_string()), *s))
                .collect()
        };
        assert_eq!(decide(&owners(&[Solid]), || false), GcVerdict::Keep);
        assert_eq!(
            decide(&owners(&[Solid, Absent, Waiting]), || false),
            GcVerdict::Release(vec!["1".into(), "2".into()])
        );
        assert_eq!(
            decide(&owners(&[Absent, Absent]), || false),
            GcVerdict::Delete(None)
        );
        assert_eq!(
            decide(&owners(&[Waiting]), || false),
            GcVerdict::Delete(None)
        );
        assert_eq!(
            decide(&owners(&[Waiting, Absent]), || true),
            GcVerdict::Delete(Some(Propagation::Foreground))
        );
        assert_eq!(
            decide(&owners(&[Absent, Unknown]), || false),
            GcVerdict::Keep
        );
    }

    #[tokio::test]
    async fn changed_owners_are_looked_up() {
        let options = crate::store::StoreOptions::memory(koord_app::Clock::system());
        let store = crate::store::Store::open(options).await.unwrap();
        let table = TableId::new("", "pods");
        let entry = async |name: &str, owner: &str| {
            let index = crate::store::Index {
                owners: vec![owner.into()],
                ..Default::default()
            };
            let key = Key::new("default", name);
            let object = serde_json::json!({});
            let created = store.create(table.clone(), key, object, index).await;
            created.unwrap()
        };
        let (old, same, other) = (
            entry("old", "a").await,
            entry("same", "a").await,
            entry("other", "b").await,
        );
        let mut graph = GcQueue::default();
        let object_ref = |entry: &Entry| (entry.table.clone(), entry.key.clone());
        let looks = |graph: &mut GcQueue, new: &Entry, before: Option<&Entry>| {
            graph.link(new, before);
            graph.pop() == Some(GcTask::Dependent(object_ref(new)))
        };
        assert!(looks(&mut graph, &same, None));
        assert!(!looks(&mut graph, &same, Some(&old)));
        assert!(looks(&mut graph, &other, Some(&old)));
        // The kind of an owner may be served now.
        graph.mark_unresolved(GcTask::Dependent(object_ref(&same)));
        assert!(looks(&mut graph, &same, Some(&old)));
        graph.mark_resolved(GcTask::Dependent(object_ref(&same)));
        assert!(!looks(&mut graph, &same, Some(&old)));
    }
}
