//! ReplicaSet and ReplicationController controllers: keep the requested number of pods.

use super::adoption;
use super::pods;
use super::queue::{Reconcile, ReconcileFuture, Source};
use super::recorder::EventSubject;
use super::workload;
use crate::rest::{Api, meta};
use crate::store::{Entry, Key};
use futures::FutureExt as _;
use jiff::Timestamp;
use koord_kinds::Resource;
use koord_kinds::selector::LabelSelector;
use koord_kinds::status::ApiError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Pods created or deleted in one reconcile.
const BURST: usize = 500;

/// The controller of one of the two kinds.
pub(super) enum Replicas {
    /// ReplicaSets.
    Sets(PodCache),
    /// ReplicationControllers, the older kind: like ReplicaSets, with a plain map as selector.
    Controllers(PodCache),
}

/// Parsed pods of each set, by set and pod: most of thousands of pods are unchanged at each reconcile.
#[derive(Default)]
pub(super) struct PodCache(Mutex<FxHashMap<Key, FxHashMap<Key, Replica>>>);

impl PodCache {
    /// Returns the active pods that `uid`, the set `key`, controls; unchanged ones are not parsed again.
    fn replicas(&self, api: &Api, pods: &Resource, key: &Key, uid: &str) -> Vec<Replica> {
        let mut cache = self.0.lock().remove(key).unwrap_or_default();
        let entries = api.store().owned(&pods.table, uid);
        let of_namespace = entries
            .into_iter()
            .filter(|entry| entry.key.namespace == key.namespace);
        let all: FxHashMap<Key, Replica> = of_namespace
            .map(|entry| match cache.remove(&entry.key) {
                Some(same) if same.entry.revision == entry.revision => (entry.key.clone(), same),
                _ => (entry.key.clone(), Replica::new(entry, uid)),
            })
            .collect();
        let counted = all.values().filter(|pod| pod.active).cloned().collect();
        self.0.lock().insert(key.clone(), all);
        counted
    }
}

/// The state of a pod that matters to its set.
#[derive(Debug, Clone)]
struct Replica {
    entry: Arc<Entry>,
    /// True if the set controls the pod, and the pod has neither ended nor is being deleted.
    active: bool,
    /// Since when the pod is ready; `None` if it is not.
    ready: Option<Timestamp>,
}

impl Replica {
    fn new(entry: Arc<Entry>, controller: &str) -> Self {
        let pod = entry.value();
        let is_owned = meta::owners(&pod)
            .iter()
            .any(|o| o.controller && o.uid == controller);
        Self {
            active: is_owned && pods::is_active(&pod),
            ready: pods::ready_since(&pod),
            entry,
        }
    }
}

impl Replicas {
    fn resource(&self, api: &Api) -> Result<Arc<Resource>, ApiError> {
        match self {
            Self::Sets(_) => api.builtin("apps", "v1", "replicasets"),
            Self::Controllers(_) => api.builtin("", "v1", "replicationcontrollers"),
        }
    }

    fn cache(&self) -> &PodCache {
        let (Self::Sets(cache) | Self::Controllers(cache)) = self;
        cache
    }
}

impl Reconcile for Replicas {
    fn name(&self) -> &'static str {
        match self {
            Self::Sets(_) => "replicaset-controller",
            Self::Controllers(_) => "replicationcontroller-controller",
        }
    }

    fn sources(&self) -> Vec<Source> {
        let (group, plural, kind) = match self {
            Self::Sets(_) => ("apps", "replicasets", "ReplicaSet"),
            Self::Controllers(_) => ("", "replicationcontrollers", "ReplicationController"),
        };
        let pods = workload::owned(("", "pods"), (group, plural, kind), true);
        vec![Source::from_own_entries(group, plural), pods]
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let resource = self.resource(api)?;
            let pods_resource = api.builtin("", "v1", "pods")?;
            let Some(entry) = api.store().get(&resource.table, key) else {
                self.cache().0.lock().remove(key);
                return Ok(None);
            };
            let set = entry.value();
            let uid = meta::uid(&set).to_owned();
            let subject = EventSubject {
                api,
                resource: &resource,
                object: &set,
                component: match self {
                    Self::Sets(_) => "replicaset-controller",
                    Self::Controllers(_) => "replication-controller",
                },
            };
            adoption::claim(api, &resource, &set, &pods_resource, &|_| true).await?;
            let mut owned = self.cache().replicas(api, &pods_resource, key, &uid);
            let desired = meta::at(&set, &["spec", "replicas"])
                .and_then(Value::as_u64)
                .unwrap_or(1);
            let desired = usize::try_from(desired).unwrap_or(usize::MAX);
            let mut failure = None;
            if !meta::deleting(&set) {
                if owned.len() > desired {
                    owned.sort_by_cached_key(|pod| pods::deletion_order(&pod.entry.value()));
                    let surplus = (owned.len() - desired).min(BURST);
                    for pod in owned.drain(..surplus) {
                        pods::delete_recorded(&subject, &pods_resource, &pod.entry).await?;
                    }
                }
                let template = meta::at(&set, &["spec", "template"])
                    .cloned()
                    .unwrap_or_default();
                let missing = desired.saturating_sub(owned.len()).min(BURST);
                for _ in 0..missing {
                    let pod = pods::from_template(&template, &resource, &set);
                    match pods::create_recorded(&subject, &pods_resource, pod).await {
                        Ok(entry) => owned.push(Replica {
                            entry,
                            active: true,
                            ready: None,
                        }),
                        Err(e) => {
                            failure = Some(e);
                            break;
                        }
                    }
                }
            }
            let now = api.clock().now();
            let min_ready = meta::int_at(&set, &["spec", "minReadySeconds"]).unwrap_or(0);
            let status = ReplicaCounts::new(&set, &owned, min_ready, now);
            let generation = meta::at(&set, &["metadata", "generation"]).cloned();
            let message = failure.as_ref().map(ToString::to_string);
            pods::write_status(api, &resource, key, &uid, |s| {
                status.write(s, generation.clone());
                match &message {
                    Some(m) => {
                        meta::set_condition(s, "ReplicaFailure", "True", "FailedCreate", m, now);
                    }
                    None => remove_condition(s, "ReplicaFailure"),
                }
            })
            .await?;
            match failure {
                Some(e) => Err(e),
                None => Ok(status.again.map(Duration::from_secs)),
            }
        }
        .boxed()
    }
}

/// Removes the condition of type `kind`, and the list of conditions with its last element.
pub(super) fn remove_condition(status: &mut Map<String, Value>, kind: &str) {
    if let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        list.retain(|c| meta::text(c, &["type"]) != kind);
        if list.is_empty() {
            status.remove("conditions");
        }
    }
}

/// Numbers of pods of a set by their state.
struct ReplicaCounts {
    replicas: u64,
    labeled: u64,
    ready: u64,
    available: u64,
    /// Seconds until another pod may become available.
    again: Option<u64>,
}

impl ReplicaCounts {
    fn new(set: &Value, pods: &[Replica], min_ready: i64, now: Timestamp) -> Self {
        let labels = meta::at(set, &["spec", "template", "metadata", "labels"]);
        let template = LabelSelector::from_map(labels.unwrap_or(&Value::Null));
        let mut out = Self {
            replicas: 0,
            labeled: 0,
            ready: 0,
            available: 0,
            again: None,
        };
        for pod in pods {
            out.replicas += 1;
            out.labeled += u64::from(template.matches(&pod.entry.index));
            out.ready += u64::from(pod.ready.is_some());
            match pods::available_since(pod.ready, min_ready, now) {
                Ok(()) => out.available += 1,
                Err(Some(remaining)) => {
                    out.again = Some(out.again.map_or(remaining, |a| a.min(remaining)))
                }
                Err(None) => {}
            }
        }
        out
    }

    fn write(&self, status: &mut Map<String, Value>, generation: Option<Value>) {
        status.insert("replicas".to_owned(), json!(self.replicas));
        for (key, n) in [
            ("fullyLabeledReplicas", self.labeled),
            ("readyReplicas", self.ready),
            ("availableReplicas", self.available),
        ] {
            if n == 0 {
                status.remove(key);
            } else {
                status.insert(key.to_owned(), json!(n));
            }
        }
        if let Some(g) = generation {
            status.insert("observedGeneration".to_owned(), g);
        }
    }
}
