//! The common parts of the manager's controllers.

use crate::Error;
use crate::cache::ObjectKind;
use crate::replica::Replica;
use koord_kube::ObjectKey;
pub(crate) use koord_kube::controller::Action;
use koord_kube::queue::WorkQueue;
use std::sync::Arc;

/// A work queue that is filled from caches, with the function that reconciles its keys.
pub(crate) type Controller = koord_kube::controller::Controller<'static, ObjectKey, Error>;

/// Number of keys that each controller reconciles concurrently.
const WORKERS: usize = 4;

/// Static description of a controller.
pub(crate) struct ControllerSpec {
    /// The name in `--controllers`.
    pub(crate) name: &'static str,
    /// The feature gate that must be enabled; `None` if there is none.
    pub(crate) gate: Option<&'static str>,
    /// Kinds that must be in sync before the controller starts.
    pub(crate) needs: &'static [ObjectKind],
    /// Optional kinds: the controller waits until each is in sync or known to be not installed.
    pub(crate) wants: &'static [ObjectKind],
    pub(crate) build: fn(&Arc<Replica>) -> Controller,
}

impl ControllerSpec {
    /// Returns the controller of this description, which reconciles the keys of `queue`.
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
