//! Kinds of objects that plugins watch, and the channel that their changes arrive on.

use super::{BindError, EventNames, ExtenderResult, ObjectChange, Problem};
use crate::state::ParsedPod;
use k8s_openapi::api::core::v1::Node;
use koord_kube::{Change, Client};
use std::any::Any;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A message on the engine's one channel.
#[derive(Debug)]
pub(crate) enum Message {
    /// The informer of this kind has delivered its initial list.
    Synced(&'static str),
    Pod(Change<ParsedPod>),
    Node(Change<Node>),
    Object(ObjectChange),
    /// Extenders returned a result, or failed.
    Consulted {
        uid: Arc<str>,
        ticket: u64,
        advice: ExtenderResult,
    },
    /// An object could not be decoded.
    Problem(Problem),
    /// A victim of a preemption, by uid, could not be evicted.
    NotEvicted(Arc<str>),
    /// A binding was attempted.
    Bound {
        uid: Arc<str>,
        result: Result<(), BindError>,
    },
}

/// The client of an informer and the channel it sends to.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) client: Client,
    pub(crate) sender: mpsc::Sender<Message>,
    /// Cancelled as soon as this replica leads. Until then informers only collect objects.
    pub(crate) leads: CancellationToken,
    pub(crate) shutdown: CancellationToken,
    /// True if objects are stored untrimmed because they are served to other readers.
    pub(crate) whole: bool,
}

/// Removes unused fields of objects of type `K` before they are stored. Stored objects are never written
/// back: writes are patches.
pub trait Trim<K>: 'static {
    /// Removes the fields that are not read.
    fn trim(object: &mut K);
}

type StartFn = fn(&'static str, Source);
type ConvertFn = fn(&Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn Any + Send + Sync>>;

/// A kind of object that a plugin watches.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    pub(crate) kind: &'static str,
    pub(crate) names: EventNames,
    pub(crate) start: StartFn,
    pub(crate) keep: ConvertFn,
}

impl Watch {
    /// Returns this watch with `names` for its events in metrics instead of those of the kind.
    #[must_use]
    pub fn counted_as(self, names: EventNames) -> Self {
        Self { names, ..self }
    }

    /// Returns the names of this kind's events in metrics.
    #[must_use]
    pub fn names(&self) -> EventNames {
        self.names
    }

    /// Returns the kind: `plural.version.group`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns `change` with its objects in the form in which an informer delivers them.
    #[must_use]
    pub fn as_delivered(&self, change: ObjectChange) -> ObjectChange {
        let keep = |object: Arc<dyn Any + Send + Sync>| (self.keep)(&object).unwrap_or(object);
        ObjectChange {
            old: change.old.map(keep),
            new: keep(change.new),
            ..change
        }
    }
}
