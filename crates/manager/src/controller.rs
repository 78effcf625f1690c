//! A controller: a queue of keys and a reconcile.

use crate::Error;
use crate::cache::Kind;
use crate::replica::Replica;
use futures::FutureExt;
use futures::future::BoxFuture;
use koord_kube::ObjectKey;
use koord_kube::queue::WorkQueue;
use std::sync::Arc;
use std::time::Duration;

/// What a reconcile asks for when it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Look again after this long, whatever happens.
    Again(Duration),
}

/// Brings what a key names to what it shall be.
pub(crate) type Reconcile =
    Box<dyn Fn(ObjectKey) -> BoxFuture<'static, Result<Outcome, Error>> + Send + Sync>;

/// A row of the table.
pub(crate) struct Row {
    /// As `--controllers` names it.
    pub(crate) name: &'static str,
    /// The feature gate that must be on.
    pub(crate) gate: Option<&'static str>,
    /// Kinds without which it does not start. They must be in sync.
    pub(crate) needs: &'static [Kind],
    /// Kinds that it can do without where they are not installed.
    pub(crate) wants: &'static [Kind],
    pub(crate) build: fn(&Arc<Replica>) -> Controller,
}

/// A queue that listens to caches, and what is done with its keys.
pub(crate) struct Controller {
    pub(crate) queue: WorkQueue<ObjectKey>,
    pub(crate) reconcile: Reconcile,
}

impl Controller {
    /// A controller of `queue` whose keys `reconcile` works on.
    pub(crate) fn new<F>(
        queue: WorkQueue<ObjectKey>,
        reconcile: impl Fn(ObjectKey) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        Self {
            queue,
            reconcile: Box::new(move |key| reconcile(key).boxed()),
        }
    }
}
