//! Reports from nodes whose clock is ahead.

use super::LoadAware;
use super::trimmed::TrimmedNodeMetric;
use jiff::SignedDuration;
use koord_model::report_time;
use koord_scheduler::framework::{Effects, Problem, View};
use std::sync::Arc;

impl LoadAware {
    /// Removes the time of a report that is too far ahead, so that it counts as expired until the next
    /// report. Returns whether it did. A problem is reported once per node, until its clock is right again.
    pub(super) fn reject_future_time(
        &self,
        metric: Arc<TrimmedNodeMetric>,
        view: View<'_>,
        fx: &mut Effects,
    ) -> (Arc<TrimmedNodeMetric>, bool) {
        let life = SignedDuration::from_secs(self.args.node_metric_expiration_seconds);
        let excess = |reported| report_time::excess(reported, view.now, life);
        let Some((reported, ahead)) = metric.updated.and_then(|at| Some((at, excess(at)?))) else {
            return (metric, false);
        };
        let node_report = self.reports.get(&metric.name);
        if node_report.is_none_or(|node_report| !node_report.is_ahead) {
            let node = view.nodes.find(&metric.name);
            let node = node.and_then(|node| view.nodes.info(node));
            let uid = node.and_then(|node| node.object.metadata.uid.clone());
            let (ahead, limit) = (ahead.as_secs(), life.min(report_time::MAX_AHEAD).as_secs());
            fx.problems.push(Problem {
                kind: "Node",
                namespace: String::new(),
                name: metric.name.to_string(),
                uid: uid.unwrap_or_default(),
                message: format!(
                    "invalid value {:?} for status.updateTime of the NodeMetric: expected less than {limit} s \
                     ahead of the scheduler's clock, and it is {ahead} s ahead; the report counts as expired",
                    reported.to_string()
                ),
            });
        }
        (Arc::new(metric.without_time()), true)
    }
}
