//! The controllers, which only the leader runs: each is a queue of keys and a reconcile function.
//!
//! Every replica fills the queues from its caches. A queue holds each key once, however often it is added, so
//! a new leader starts with all objects.

use crate::cache::ObjectKind;
use crate::controller::{Controller, ControllerSpec};
use crate::replica::Replica;
use crate::{
    colocationprofile, nodemetric, noderesource, nodeslo, quotacheck, quotaprofile, recommender,
};
use koord_app::features::Gates;
use koord_app::flags::Selection;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// All controllers.
const TABLE: [ControllerSpec; 7] = [
    nodemetric::SPEC,
    nodeslo::SPEC,
    noderesource::SPEC,
    colocationprofile::SPEC,
    recommender::SPEC,
    quotaprofile::SPEC,
    quotacheck::SPEC,
];

/// The names that `--controllers` accepts.
pub(crate) const NAMES: [&str; 7] = [
    nodemetric::SPEC.name,
    nodeslo::SPEC.name,
    noderesource::SPEC.name,
    recommender::SPEC.name,
    quotaprofile::SPEC.name,
    colocationprofile::SPEC.name,
    quotacheck::SPEC.name,
];

/// The enabled controllers of a replica.
pub(crate) struct Controllers(Vec<(ControllerSpec, Controller)>);

impl Controllers {
    /// Builds the enabled controllers and registers their cache listeners.
    pub(crate) fn build(replica: &Arc<Replica>) -> Self {
        let options = &replica.options;
        let rows = TABLE.into_iter();
        let enabled = rows.filter(|row| is_enabled(row, &options.controllers, &options.gates));
        let controllers = enabled.map(|row| {
            let controller = (row.build)(replica);
            (row, controller)
        });
        Self(controllers.collect())
    }

    /// Returns the kinds that the enabled controllers read.
    pub(crate) fn kinds(&self) -> Vec<ObjectKind> {
        let rows = self.0.iter();
        rows.flat_map(|(row, _)| row.needs.iter().chain(row.wants).copied())
            .collect()
    }

    /// Runs the controllers until `stop` is cancelled. Only the leader calls it.
    pub(crate) async fn run(self, replica: Arc<Replica>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut queues = Vec::new();
        for (row, controller) in self.0 {
            queues.push(controller.queue().clone());
            let replica = replica.clone();
            tasks.spawn(async move {
                replica.wait_for(row.needs, row.wants).await;
                tracing::info!(controller = row.name, "controller started");
                controller.run().await;
            });
        }
        replica
            .settings
            .record_problems(&replica.recorder, stop)
            .await;
        for queue in queues {
            queue.close();
        }
        tasks.shutdown().await;
    }
}

fn is_enabled(row: &ControllerSpec, selected: &Selection, gates: &Gates) -> bool {
    selected.enabled(row.name) && row.gate.is_none_or(|gate| gates.enabled(gate))
}
