//! The loop of a controller: workers take keys from a queue and reconcile them.
//!
//! The owner of the informers adds keys to the queue. A key is reconciled by one worker at a time. One that failed or
//! panicked comes back after its back-off, one that requests it after a delay.

mod metrics;

pub use metrics::ControllerMetrics;

use crate::queue::WorkQueue;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use std::fmt::{self, Display};
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// The action for a key after a successful reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The key is reconciled again when it is added.
    Done,
    /// The key is reconciled again after this delay at the latest.
    RequeueAfter(Duration),
}

/// A function that logs a failed reconcile. Its arguments: name of the controller, key, error (`None` after a
/// panic), and whether the reconcile before it succeeded.
/// [`log_reconcile_failures!`](crate::log_reconcile_failures) creates one.
pub type LogFailure = fn(&'static str, &dyn Display, Option<&dyn Display>, bool);

/// Creates a [`LogFailure`](crate::controller::LogFailure). Its log lines have the target of the module that
/// calls this macro, so that `RUST_LOG` selects them by the name of the program's crate.
#[macro_export]
macro_rules! log_reconcile_failures {
    () => {
        |controller: &'static str,
         key: &dyn ::std::fmt::Display,
         error: Option<&dyn ::std::fmt::Display>,
         is_first: bool| match error {
            Some(error) if is_first => {
                ::tracing::warn!(controller, %key, %error, "reconcile failed, retrying");
            }
            // Later failures are logged at debug level, as the delays grow.
            Some(error) => ::tracing::debug!(controller, %key, %error, "reconcile failed again"),
            None => ::tracing::error!(controller, %key, "reconcile panicked, retrying"),
        }
    };
}

type Reconcile<'a, K, E> = Box<dyn Fn(K) -> BoxFuture<'a, Result<Action, E>> + Send + Sync + 'a>;

/// A queue of keys and the function that reconciles a key.
pub struct Controller<'a, K, E> {
    name: &'static str,
    queue: WorkQueue<K>,
    workers: usize,
    metrics: ControllerMetrics,
    log: LogFailure,
    reconcile: Reconcile<'a, K, E>,
}

impl<K: fmt::Debug, E> fmt::Debug for Controller<'_, K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Controller");
        shown.field("name", &self.name).field("queue", &self.queue);
        shown.finish_non_exhaustive()
    }
}

impl<'a, K: Clone + Eq + Hash + Display, E: Display> Controller<'a, K, E> {
    /// Creates a controller that reconciles the keys of `queue`, at most `workers` at a time. Registers its
    /// series in `metrics`; `log` is called for each failure.
    pub fn new<F>(
        name: &'static str,
        queue: WorkQueue<K>,
        workers: usize,
        metrics: &ControllerMetrics,
        log: LogFailure,
        reconcile: impl Fn(K) -> F + Send + Sync + 'a,
    ) -> Self
    where
        F: Future<Output = Result<Action, E>> + Send + 'a,
    {
        metrics.announce(name, workers);
        queue.measure(name, &metrics.queues);
        Self {
            name,
            queue,
            workers,
            metrics: metrics.clone(),
            log,
            reconcile: Box::new(move |key| reconcile(key).boxed()),
        }
    }

    /// Returns the queue to which keys are added.
    #[must_use]
    pub fn queue(&self) -> &WorkQueue<K> {
        &self.queue
    }

    /// Reconciles keys until the queue is closed and drained.
    pub async fn run(&self) {
        join_all((0..self.workers).map(|_| self.work())).await;
    }

    async fn work(&self) {
        while let Some(work) = self.queue.next().await {
            let key = work.key();
            let running = self.metrics.begin(self.name);
            // A panic for one object must not end the worker.
            let result = AssertUnwindSafe(async { (self.reconcile)(key.clone()).await })
                .catch_unwind()
                .await;
            drop(running);
            self.requeue(key, result.ok());
        }
    }

    /// Adds `key` again if `result` requires it; `None` means that the reconcile panicked.
    fn requeue(&self, key: &K, result: Option<Result<Action, E>>) {
        let (controller, queue, metrics) = (self.name, &self.queue, &self.metrics);
        match result {
            Some(Ok(action)) => {
                queue.forget(key);
                if let Action::RequeueAfter(delay) = action {
                    metrics.count(controller, "requeue_after");
                    queue.add_after(key.clone(), delay);
                } else {
                    metrics.count(controller, "success");
                }
            }
            Some(Err(error)) => {
                metrics.count(controller, "error");
                (self.log)(controller, key, Some(&error), queue.failures(key) == 0);
                queue.add_rate_limited(key.clone());
            }
            None => {
                metrics.count_panic(controller);
                (self.log)(controller, key, None, queue.failures(key) == 0);
                queue.add_rate_limited(key.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
