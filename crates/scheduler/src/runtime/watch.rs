//! Watching the kinds that plugins ask for, without knowing the plugins.

use crate::framework::{Action, ObjectChange};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_kube::{Change, Client, Informer, Scope};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What reaches the engine's one channel.
#[derive(Debug)]
pub(crate) enum Message {
    /// A source, by kind, has delivered its initial list.
    Synced(&'static str),
    Pod(Change<Pod>),
    Node(Change<Node>),
    Object(ObjectChange),
    /// A victim of a preemption, by uid, could not be evicted.
    NotEvicted(Arc<str>),
    /// A binding was tried.
    Bound {
        uid: Arc<str>,
        result: Result<(), crate::engine::BindError>,
        seconds: f64,
        /// The position of the pod's profile.
        profile: usize,
        /// The plugin that said how to bind.
        binder: &'static str,
    },
}

type Start = fn(&'static str, Client, mpsc::Sender<Message>, CancellationToken);

/// A kind that a plugin needs to see.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    kind: &'static str,
    start: Start,
}

impl Watch {
    /// Watches all objects of type `K`. `kind` has the form `plural.version.group`.
    #[must_use]
    pub fn of<K>(kind: &'static str) -> Self
    where
        K: koord_kube::kube_core::Resource<DynamicType = ()>
            + Clone
            + Debug
            + serde::de::DeserializeOwned
            + Any
            + Send
            + Sync,
    {
        Self {
            kind,
            start: start::<K>,
        }
    }

    /// `plural.version.group`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    pub(crate) fn start(
        &self,
        client: Client,
        sender: mpsc::Sender<Message>,
        shutdown: CancellationToken,
    ) {
        (self.start)(self.kind, client, sender, shutdown);
    }
}

fn start<K>(
    kind: &'static str,
    client: Client,
    sender: mpsc::Sender<Message>,
    shutdown: CancellationToken,
) where
    K: koord_kube::kube_core::Resource<DynamicType = ()>
        + Clone
        + Debug
        + serde::de::DeserializeOwned
        + Any
        + Send
        + Sync,
{
    forward::<K>(
        client,
        |_| {},
        Some(kind),
        sender,
        shutdown,
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
        },
    );
}

/// Starts an informer whose changes go to `sender`, in order. A kind that is `optional`, by its
/// name, counts as listed when the API server does not have it: a cluster without a custom
/// resource has none of its objects, and those that come later are changes like any other.
pub(crate) fn forward<K>(
    client: Client,
    trim: fn(&mut K),
    optional: Option<&'static str>,
    sender: mpsc::Sender<Message>,
    shutdown: CancellationToken,
    wrap: impl Fn(Change<K>) -> Message + Send + 'static,
) where
    K: koord_kube::kube_core::Resource<DynamicType = ()>
        + Clone
        + Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let mut informer = Informer::<K>::start_trimmed(client, Scope::default(), trim, shutdown);
    tokio::spawn(async move {
        let mut absence = optional.is_some();
        loop {
            let message = tokio::select! {
                biased;
                change = informer.changes.recv() => match change {
                    Some(change) => wrap(change),
                    None => return,
                },
                changed = informer.absent.changed(), if absence => {
                    absence = changed.is_ok();
                    match optional {
                        Some(kind) if *informer.absent.borrow_and_update() => Message::Synced(kind),
                        _ => continue,
                    }
                }
            };
            if sender.send(message).await.is_err() {
                return;
            }
        }
    });
}

/// Drops what no scheduling rule reads: with many pods, that is most of their size.
pub(crate) fn trim_pod(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
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
    if let Some(status) = &mut pod.status {
        status.container_statuses = None;
        status.ephemeral_container_statuses = None;
        status.init_container_statuses = None;
    }
}

/// As [`trim_pod`], for nodes.
pub(crate) fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.addresses = None;
        status.daemon_endpoints = None;
        status.node_info = None;
    }
}
