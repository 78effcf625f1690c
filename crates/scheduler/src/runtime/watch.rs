//! Watching the kinds that plugins ask for, without knowing the plugins.

use crate::framework::{Action, ObjectChange};
use koord_kube::{Change, Client, Informer, Scope};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What reaches the engine's one channel.
#[derive(Debug)]
pub(crate) enum Message {
    /// A source has delivered its initial list.
    Synced,
    Pod(Change<k8s_openapi::api::core::v1::Pod>),
    Node(Change<k8s_openapi::api::core::v1::Node>),
    Object(ObjectChange),
    /// A binding was tried.
    Bound {
        uid: Arc<str>,
        result: Result<(), crate::engine::BindError>,
        seconds: f64,
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
    forward::<K>(client, sender, shutdown, move |change| match change {
        Change::Synced => Message::Synced,
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
    });
}

/// Starts an informer whose changes go to `sender`, in order.
pub(crate) fn forward<K>(
    client: Client,
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
    let mut informer = Informer::<K>::start(client, Scope::default(), shutdown);
    tokio::spawn(async move {
        while let Some(change) = informer.changes.recv().await {
            if sender.send(wrap(change)).await.is_err() {
                return;
            }
        }
    });
}
