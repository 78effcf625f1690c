//! Informers for the kinds that plugins declare.

use super::takeover::{self, Feed};
use crate::framework::{Action, Message, ObjectChange, Problem, Source, Trim, Watch};
use crate::state::volume_matters;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, PodSpec};
use koord_kube::kube_core::{ApiResource, Resource};
use koord_kube::{Cacheable, Change, Decode, Informer, Scope, Unread};
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::mpsc;

impl Watch {
    /// Watches all objects of type `K`, converted to `V` on the task that decodes them. `kind` has the form
    /// `plural.version.group`.
    #[must_use]
    pub fn mapped<K, V>(kind: &'static str) -> Self
    where
        K: Resource<DynamicType = ()> + Decode + Any + Clone + Send + Sync,
        V: From<K> + Cacheable,
    {
        Self {
            kind,
            names: [kind; 3],
            start: |kind, source| start(kind, source, |object: K| V::from(object)),
            keep: |object| {
                let object = object.downcast_ref::<K>()?.clone();
                Some(Arc::new(V::from(object)))
            },
        }
    }

    /// Watches objects as [`Watch::mapped`] does, for a kind that the API server may serve in an older
    /// version only: then it is watched as `O`, still under the name `kind`.
    #[must_use]
    pub fn with_fallback<K, O, V>(kind: &'static str) -> Self
    where
        K: Resource<DynamicType = ()> + Decode + Any + Clone + Send + Sync,
        O: Resource<DynamicType = ()> + Decode + Into<K> + Send + Sync + 'static,
        V: From<K> + Cacheable,
    {
        Self {
            start: |kind, source| {
                let (client, shutdown) = (source.client.clone(), source.shutdown.clone());
                let list_client = client.clone();
                let listed = move || {
                    takeover::listed_with_fallback(list_client.clone(), erase::<K>(), erase::<O>())
                };
                let (report, unread) = unread(K::kind(&()));
                let start = move || {
                    let keep = |object: K| V::from(object);
                    let (client, scope) = (client.clone(), Scope::default());
                    let (report, stop) = (report.clone(), shutdown.clone());
                    Informer::start_either_reporting::<K, O>(client, scope, keep, report, stop)
                };
                feed(source, start, listed, unread, true, as_object(kind));
            },
            ..Self::mapped::<K, V>(kind)
        }
    }

    /// Watches objects of type `K`, trimmed by `T` unless they are sent to extenders.
    #[must_use]
    pub fn trimmed<K, T: Trim<K>>(kind: &'static str) -> Self
    where
        K: Resource<DynamicType = ()> + Decode + Any + Clone + Send + Sync,
    {
        Self {
            kind,
            names: [kind; 3],
            start: |kind, source| {
                let whole = source.whole;
                start(kind, source, move |mut object: K| {
                    if !whole {
                        T::trim(&mut object);
                    }
                    object
                });
            },
            keep: |object| {
                let mut object = object.downcast_ref::<K>()?.clone();
                T::trim(&mut object);
                Some(Arc::new(object))
            },
        }
    }

    pub(crate) fn start(&self, source: Source) {
        (self.start)(self.kind, source);
    }
}

fn start<K, V>(kind: &'static str, source: Source, keep: impl Fn(K) -> V + Clone + Send + 'static)
where
    K: Resource<DynamicType = ()> + Decode + Any + Clone + Send + Sync,
    V: Cacheable,
{
    forward(source, keep, true, as_object(kind));
}

/// Converts a change to a message about an object of a watched kind.
fn as_object<V: Cacheable>(kind: &'static str) -> impl Fn(Change<V>) -> Message + Send + 'static {
    move |change| match change {
        Change::Synced => Message::Synced(kind),
        Change::Applied { old, new } => Message::Object(ObjectChange {
            kind,
            action: if old.is_some() {
                Action::UPDATE
            } else {
                Action::ADD
            },
            old: old.map(|old| old as Arc<dyn Any + Send + Sync>),
            new,
        }),
        Change::Deleted(last) => Message::Object(ObjectChange {
            kind,
            action: Action::DELETE,
            old: None,
            new: last,
        }),
    }
}

/// Starts an informer and sends its changes to `source.sender` as [`feed`] does.
pub(crate) fn forward<K, V: Cacheable>(
    source: Source,
    keep: impl Fn(K) -> V + Clone + Send + 'static,
    optional: bool,
    wrap: impl Fn(Change<V>) -> Message + Send + 'static,
) where
    K: Resource<DynamicType = ()> + Decode + Send + 'static,
{
    let (client, shutdown) = (source.client.clone(), source.shutdown.clone());
    let list_client = client.clone();
    let listed = move || takeover::listed(list_client.clone(), erase::<K>());
    let (report, unread) = unread(K::kind(&()));
    let start = move || {
        let (client, scope) = (client.clone(), Scope::default());
        Informer::start_reporting(
            client,
            scope,
            keep.clone(),
            report.clone(),
            shutdown.clone(),
        )
    };
    feed(source, start, listed, unread, optional, wrap);
}

/// Returns the API resource of a type.
fn erase<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// Returns a function that reports objects of a kind that fail to decode, and the receiver of the reports. A
/// standby stores a few of them; all are logged.
fn unread(
    kind: Cow<'static, str>,
) -> (
    impl Fn(&Unread) + Clone + Send + 'static,
    mpsc::Receiver<Problem>,
) {
    let (sender, receiver) = mpsc::channel(64);
    let kind = match kind {
        Cow::Borrowed(kind) => kind,
        Cow::Owned(_) => "",
    };
    let report = move |unread: &Unread| {
        let meta = &unread.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let _ = sender.try_send(Problem {
            kind,
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
            message: format!("{unread}; what was read of the object before stays in force"),
        });
    };
    (report, receiver)
}

/// Starts an informer with `start` and sends its changes to `source.sender`, in order. It starts to send when
/// this replica leads, with the objects that exist then; `listed` lists their versions. An `optional` kind
/// counts as listed if the API server lacks it: a cluster without a custom resource has no objects of it, and
/// objects created later are ordinary changes.
fn feed<V: Cacheable, F>(
    source: Source,
    start: impl Fn() -> Informer<V> + Send + 'static,
    listed: impl Fn() -> F + Send + 'static,
    mut unread: mpsc::Receiver<Problem>,
    optional: bool,
    wrap: impl Fn(Change<V>) -> Message + Send + 'static,
) where
    F: Future<Output = Result<takeover::ListSnapshot, koord_kube::Error>> + Send + 'static,
{
    let Source {
        sender,
        leads,
        shutdown,
        ..
    } = source;
    let mut feed = Feed::new(start(), optional);
    tokio::spawn(async move {
        if !leads.is_cancelled() {
            let gathered = feed.gather(leads, listed, start);
            let Some(Some(gathered)) = shutdown.run_until_cancelled(gathered).await else {
                return;
            };
            for change in gathered {
                if sender.send(wrap(change)).await.is_err() {
                    return;
                }
            }
        }
        loop {
            let message = tokio::select! {
                biased;
                Some(problem) = unread.recv() => Message::Problem(problem),
                change = feed.next() => match change {
                    Some(change) => wrap(change),
                    None => return,
                },
            };
            if sender.send(message).await.is_err() {
                return;
            }
        }
    });
}

/// Removes fields that scheduling does not read: with many pods, they make up most of the size.
pub(crate) fn trim_pod(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        trim_pod_spec(spec);
    }
    trim_status(pod);
}

/// Removes fields that scheduling does not read from a pod spec, for example from that of a template.
pub fn trim_pod_spec(spec: &mut PodSpec) {
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        container.args = None;
        container.command = None;
        container.env = None;
        container.env_from = None;
        container.lifecycle = None;
        container.liveness_probe = None;
        container.readiness_probe = None;
        container.security_context = None;
        container.startup_probe = None;
        container.volume_mounts = None;
    }
    spec.ephemeral_containers = None;
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(volume_matters);
        volumes.shrink_to_fit();
    }
    spec.volumes = spec.volumes.take().filter(|volumes| !volumes.is_empty());
}

fn trim_status(pod: &mut Pod) {
    if let Some(status) = &mut pod.status {
        // Only the resources of containers are read, which may differ from the requested ones.
        for statuses in [
            &mut status.container_statuses,
            &mut status.init_container_statuses,
        ] {
            let all = statuses.take().into_iter().flatten();
            let with_resources = all.filter(|status| status.resources.is_some());
            let trimmed: Vec<ContainerStatus> = with_resources
                .map(|status| ContainerStatus {
                    name: status.name,
                    resources: status.resources,
                    allocated_resources: status.allocated_resources,
                    ..ContainerStatus::default()
                })
                .collect();
            *statuses = Some(trimmed).filter(|trimmed| !trimmed.is_empty());
        }
        status.ephemeral_container_statuses = None;
    }
}

/// Removes fields of nodes that scheduling does not read.
pub(crate) fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.addresses = None;
        status.daemon_endpoints = None;
        status.node_info = None;
    }
}
