//! What a controller of the manager is.

use crate::Error;
use crate::cache::Kind;
use crate::replica::Replica;
use koord_kube::ObjectKey;
pub(crate) use koord_kube::controller::Action;
use koord_kube::queue::WorkQueue;
use std::sync::Arc;

/// A queue that listens to caches, and what is done with its keys.
pub(crate) type Controller = koord_kube::controller::Controller<'static, ObjectKey, Error>;

/// How many keys each controller works on at once.
const WORKERS: usize = 4;

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

impl Row {
    /// Returns the controller of this row, which reconciles the keys of `queue`.
    pub(crate) fn controller<F>(
        &self,
        replica: &Replica,
        queue: WorkQueue<ObjectKey>,
        reconcile: impl Fn(ObjectKey) -> F + Send + Sync + 'static,
    ) -> Controller
    where
        F: Future<Output = Result<Action, Error>> + Send + 'static,
    {
        let metrics = &replica.metrics.controllers;
        let log = koord_kube::log_reconcile_failures!();
        Controller::new(self.name, queue, WORKERS, metrics, log, reconcile)
    }
}
