//! What only the leader runs: a table of controllers, each a queue of keys and a reconcile.
//!
//! A controller fills its queue from the caches of the replica, on every replica: a key waits there
//! once however often it is added, so that a new leader starts with all that there is.

use crate::cache::Kind;
use crate::controller::{Controller, Outcome, Row};
use crate::metrics::Reconciles;
use crate::replica::Replica;
use crate::{
    colocationprofile, nodemetric, noderesource, nodeslo, quotacheck, quotaprofile, recommender,
};
use futures::FutureExt;
use koord_app::features::Gates;
use koord_app::flags::Selection;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// All controllers.
const TABLE: [Row; 7] = [
    nodemetric::ROW,
    nodeslo::ROW,
    noderesource::ROW,
    colocationprofile::ROW,
    recommender::ROW,
    quotaprofile::ROW,
    quotacheck::ROW,
];

/// The names that `--controllers` may say.
pub(crate) const NAMES: [&str; 7] = [
    nodemetric::ROW.name,
    nodeslo::ROW.name,
    noderesource::ROW.name,
    recommender::ROW.name,
    quotaprofile::ROW.name,
    colocationprofile::ROW.name,
    quotacheck::ROW.name,
];

/// The enabled controllers of a replica.
pub(crate) struct Controllers(Vec<(Row, Controller)>);

impl Controllers {
    /// Builds the enabled ones; they listen to caches from now on.
    pub(crate) fn build(replica: &Arc<Replica>) -> Self {
        let options = &replica.options;
        let rows = TABLE.into_iter();
        let enabled = rows.filter(|row| is_enabled(row, &options.controllers, &options.gates));
        Self(
            enabled
                .map(|row| {
                    let controller = (row.build)(replica);
                    let metrics = &replica.metrics;
                    controller.queue.measure(row.name, &metrics.queues);
                    metrics.reconciles.announce(row.name, WORKERS);
                    (row, controller)
                })
                .collect(),
        )
    }

    /// The kinds they read.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let rows = self.0.iter();
        rows.flat_map(|(row, _)| row.needs.iter().chain(row.wants).copied())
            .collect()
    }

    /// Runs them until `stop`; called by the leader.
    pub(crate) async fn run(self, replica: Arc<Replica>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut queues = Vec::new();
        for (row, controller) in self.0 {
            queues.push(controller.queue.clone());
            let replica = replica.clone();
            tasks.spawn(async move {
                replica.wait_for(row.needs, row.wants).await;
                tracing::info!(controller = row.name, "controller starts");
                let controller = Arc::new(controller);
                let metrics = &replica.metrics.reconciles;
                let workers = (0..WORKERS).map(|_| work(row.name, controller.clone(), metrics));
                futures::future::join_all(workers).await;
            });
        }
        replica.settings.complain(&replica.recorder, stop).await;
        for queue in queues {
            queue.close();
        }
        tasks.shutdown().await;
    }
}

fn is_enabled(row: &Row, selected: &Selection, gates: &Gates) -> bool {
    selected.enabled(row.name) && row.gate.is_none_or(|gate| gates.enabled(gate))
}

/// How many keys each controller works on at once.
const WORKERS: usize = 4;

async fn work(name: &'static str, controller: Arc<Controller>, metrics: &Reconciles) {
    let Controller { queue, reconcile } = &*controller;
    while let Some(work) = queue.next().await {
        let key = work.key().clone();
        let running = metrics.begin(name);
        // One object that a controller cannot bear must not take its workers away from all others.
        let done = AssertUnwindSafe(async { reconcile(key.clone()).await })
            .catch_unwind()
            .await;
        drop(running);
        let Ok(done) = done else {
            metrics.panicked(name);
            tracing::error!(controller = name, %key, "reconcile panicked; it is retried");
            queue.add_rate_limited(key);
            continue;
        };
        match done {
            Ok(outcome) => {
                queue.forget(&key);
                if let Outcome::Again(delay) = outcome {
                    metrics.count(name, "requeue_after");
                    queue.add_after(key, delay);
                } else {
                    metrics.count(name, "success");
                }
            }
            Err(error) => {
                metrics.count(name, "error");
                // With growing pauses; one line says it all.
                if queue.failures(&key) == 0 {
                    tracing::warn!(controller = name, %key, %error, "reconcile failed; it is retried");
                } else {
                    tracing::debug!(controller = name, %key, %error, "reconcile failed again");
                }
                queue.add_rate_limited(key);
            }
        }
    }
}
