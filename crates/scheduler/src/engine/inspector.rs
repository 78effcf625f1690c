//! Views of the engine's state for users and metrics.

use super::EngineOptions;
use super::cluster::ClusterState;
use super::plugin_table::PluginTable;
use super::preemptor::Preemptor;
use super::telemetry::Telemetry;
use super::waiting::WaitingPods;
use crate::framework::{MetricSamples, NotShown};
use crate::guard::guarded;
use crate::queue::Queue;
use jiff::Timestamp;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The parts of the engine that can be inspected.
///
/// Invariant: nothing here changes a decision; plugins only bring their own state up to date.
pub struct Inspector<'a> {
    pub(super) options: &'a EngineOptions,
    pub(super) cluster: &'a ClusterState,
    pub(super) table: &'a mut PluginTable,
    pub(super) queue: &'a Queue,
    pub(super) waits: &'a WaitingPods,
    pub(super) preemptor: &'a Preemptor,
    pub(super) telemetry: &'a Telemetry,
}

impl Inspector<'_> {
    /// Reads the metrics of all plugins.
    pub fn read(&mut self, now: Timestamp) -> MetricSamples {
        let mut out = MetricSamples::default();
        for plugin in &mut self.table.plugins {
            if let Some(source) = plugin.metric_source() {
                let view = self.cluster.view(now);
                guarded("reading metrics", || source.read(view, &mut out));
            }
        }
        out
    }

    /// Returns the number of refused pods per profile and refusing plugin.
    #[must_use]
    pub fn refused_by_plugin(&self) -> FxHashMap<(usize, &'static str), usize> {
        let mut out = FxHashMap::default();
        for (by, scheduler, pods) in self.queue.refusals() {
            let Some(profile) = self.table.profile_named(scheduler) else {
                continue;
            };
            for (instance, name) in self.table.names.iter().enumerate() {
                if by & (1 << instance) != 0 {
                    *out.entry((profile, *name)).or_default() += pods;
                }
            }
        }
        out
    }

    /// Serves `GET /apis/v1/plugins/<plugin>/<path>?<query>`.
    ///
    /// # Errors
    /// Fails if there is no such plugin or path, or nothing to show there.
    pub fn inspect(
        &mut self,
        plugin: &str,
        path: &[&str],
        query: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Result<serde_json::Value, NotShown> {
        let position = self.table.names.iter().position(|name| *name == plugin);
        let index = position.ok_or(NotShown::NoSuchPath)?;
        if let Some(role) = self.table.plugins[index].preparation() {
            role.prepare_explain(self.cluster.view(now));
        }
        let explainer = self.table.plugins[index]
            .explain()
            .ok_or(NotShown::NoSuchPath)?;
        explainer.inspect(path, query, self.cluster.view(now))
    }
}

impl std::fmt::Debug for Inspector<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inspector")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}
