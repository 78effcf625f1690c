//! Usage of a node and its pods as reported by koordlet.

use super::PodInfo;
use super::node::amounts;
use jiff::{SignedDuration, Timestamp};
use koord_api::priority::PriorityClass;
use koord_api::slo::{NodeMetric, ResourceMap};
use koord_model::report_time::{self, ReportTimeError};
use koord_model::resources::{Amounts, ResourceId, ResourceTable, shown};
use std::sync::Arc;

/// The fields of a NodeMetric that the descheduler uses.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeUsage {
    /// The node's name.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
    /// `status.updateTime`.
    pub updated: Option<Timestamp>,
    /// `status.nodeMetric.nodeUsage`; `None` when there is no `nodeMetric`.
    pub node: Option<Amounts>,
    /// `status.nodeMetric.systemUsage`.
    pub system: Amounts,
    /// `status.podsMetric`, in the order of the NodeMetric.
    pub pods: Vec<PodUsage>,
}

/// Usage of one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodUsage {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Name of the pod.
    pub name: Arc<str>,
    /// Reported priority class.
    pub class: PriorityClass,
    /// CPU in milli-cores, memory in bytes.
    pub usage: Amounts,
}

/// Reason why a node's usage data are not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct UsageRejection {
    /// Short description without figures, equal for all nodes with this problem.
    pub problem: &'static str,
    /// Explanation for users.
    pub detail: String,
}

/// Short descriptions of problems with NodeMetrics.
pub mod rejection {
    /// The NodeMetric does not exist.
    pub const NONE: &str = "has no NodeMetric";
    /// The NodeMetric has no update time.
    pub const NO_TIME: &str = "its NodeMetric has no status.updateTime";
    /// The NodeMetric has no usage.
    pub const EMPTY: &str = "its NodeMetric has no status.nodeMetric";
    /// The NodeMetric has expired.
    pub const OLD: &str = "its NodeMetric is too old";
    /// The update time lies in the future.
    pub const AHEAD: &str = "its NodeMetric is of a time to come";
    /// The usage is implausible.
    pub const ABSURD: &str = "its NodeMetric says what cannot be";
}

/// Usage above this multiple of the capacity is implausible.
const ABSURD: i64 = 10;

impl UsageRejection {
    /// Returns the rejection for a missing NodeMetric.
    #[must_use]
    pub fn missing() -> Self {
        Self::new(rejection::NONE, "there is no NodeMetric of it")
    }

    fn new(problem: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { problem, detail }
    }
}

/// Checks whether usage `used` is plausible for a node with capacity `has` of resource `name`.
///
/// # Errors
/// Returns an error if the usage is negative or far above the capacity.
pub fn check_plausible(
    name: &str,
    id: ResourceId,
    used: i64,
    has: i64,
) -> Result<(), UsageRejection> {
    if used >= 0 && (has <= 0 || used / ABSURD <= has) {
        return Ok(());
    }
    let (used, has) = (shown(id, used), shown(id, has));
    let detail = format!("its NodeMetric says it uses {name} {used} of {has}");
    Err(UsageRejection::new(rejection::ABSURD, detail))
}

impl NodeUsage {
    /// Returns the reported usage of `pod`, if there is one.
    #[must_use]
    pub fn pod_usage(&self, pod: &PodInfo) -> Option<&Amounts> {
        let is_it =
            |metric: &&PodUsage| metric.namespace == pod.namespace && metric.name == pod.name;
        self.pods.iter().find(is_it).map(|metric| &metric.usage)
    }

    /// Checks whether the NodeMetric can be used at `now`; it expires after `expiration` seconds.
    ///
    /// # Errors
    /// Returns why it cannot be used.
    pub fn check_usable(&self, now: Timestamp, expiration: i64) -> Result<(), UsageRejection> {
        let no = |problem, said: String| Err(UsageRejection::new(problem, said));
        if self.node.is_none() {
            return no(rejection::EMPTY, rejection::EMPTY.to_owned());
        }
        let Some(updated) = self.updated else {
            return no(rejection::NO_TIME, rejection::NO_TIME.to_owned());
        };
        let life = SignedDuration::from_secs(expiration);
        match report_time::check(updated, now, life) {
            Ok(()) => {}
            Err(ReportTimeError::Expired { age, life }) => {
                let (age, limit) = (age.as_secs(), life.as_secs());
                let detail = format!("its NodeMetric is {age} s old, and expires after {limit} s");
                return no(rejection::OLD, detail);
            }
            Err(ReportTimeError::Ahead { ahead, .. }) => {
                let seconds = ahead.as_secs();
                let detail = format!("its NodeMetric is of {seconds} s in the future");
                return no(rejection::AHEAD, detail);
            }
        }
        Ok(())
    }

    /// Converts `metric`, interning its resource names in `table`.
    #[must_use]
    pub fn new(metric: NodeMetric, table: &ResourceTable) -> Self {
        let status = metric.status.unwrap_or_default();
        let read = |map: Option<&ResourceMap>| map.map(|map| amounts(&map.resources, table));
        let node = status.node_metric.as_ref();
        let pods = status.pods_metric.into_iter().map(|pod| PodUsage {
            usage: read(pod.pod_usage.as_ref()).unwrap_or_default(),
            namespace: pod.namespace.into(),
            name: pod.name.into(),
            class: pod.priority,
        });
        Self {
            pods: pods.collect(),
            name: metric.metadata.name.unwrap_or_default().into(),
            uid: metric.metadata.uid.unwrap_or_default().into(),
            resource_version: metric.metadata.resource_version,
            updated: status.update_time.as_ref().map(|time| time.0),
            node: node.map(|node| read(node.node_usage.as_ref()).unwrap_or_default()),
            system: node
                .and_then(|node| read(node.system_usage.as_ref()))
                .unwrap_or_default(),
        }
    }
}

impl koord_kube::informer::Cacheable for NodeUsage {
    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}
