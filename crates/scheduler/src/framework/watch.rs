//! A kind of objects that a plugin watches, and where what is seen of it arrives.

use super::{Advice, BindError, EventNames, ObjectChange, Problem};
use crate::state::SeenPod;
use k8s_openapi::api::core::v1::Node;
use koord_kube::{Change, Client};
use std::any::Any;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What reaches the engine's one channel.
#[derive(Debug)]
pub(crate) enum Message {
    /// A source, by kind, has delivered its initial list.
    Synced(&'static str),
    Pod(Change<SeenPod>),
    Node(Change<Node>),
    Object(ObjectChange),
    /// Extenders answered, or did not.
    Consulted {
        uid: Arc<str>,
        ticket: u64,
        advice: Advice,
    },
    /// An object could not be read.
    Problem(Problem),
    /// A victim of a preemption, by uid, could not be evicted.
    NotEvicted(Arc<str>),
    /// A binding was tried.
    Bound {
        uid: Arc<str>,
        result: Result<(), BindError>,
    },
}

/// Where informers read, and whom they tell.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) client: Client,
    pub(crate) sender: mpsc::Sender<Message>,
    /// Cancelled as soon as this replica leads. Until then informers only gather what there is.
    pub(crate) leads: CancellationToken,
    pub(crate) shutdown: CancellationToken,
    /// Objects are kept as they are: others are shown them.
    pub(crate) whole: bool,
}

/// What is dropped of objects of type `K` before they are kept. What is left is never written back:
/// writes are patches.
pub trait Trim<K>: 'static {
    /// Drops what nobody reads.
    fn trim(object: &mut K);
}

type Start = fn(&'static str, Source);
type Keep = fn(&Arc<dyn Any + Send + Sync>) -> Option<Arc<dyn Any + Send + Sync>>;

/// A kind that a plugin needs to see.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    pub(crate) kind: &'static str,
    pub(crate) names: EventNames,
    pub(crate) start: Start,
    pub(crate) keep: Keep,
}

impl Watch {
    /// The same, what happens being counted under these names and not under the kind's.
    #[must_use]
    pub fn counted_as(self, names: EventNames) -> Self {
        Self { names, ..self }
    }

    /// How metrics call what happens to such objects.
    #[must_use]
    pub fn names(&self) -> EventNames {
        self.names
    }

    /// `plural.version.group`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// `change` as it arrives, where it says what the object is.
    #[must_use]
    pub fn kept(&self, change: ObjectChange) -> ObjectChange {
        let keep = |object: Arc<dyn Any + Send + Sync>| (self.keep)(&object).unwrap_or(object);
        ObjectChange {
            old: change.old.map(keep),
            new: keep(change.new),
            ..change
        }
    }
}
