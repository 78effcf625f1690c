//! What a node and its pods use, as its koordlet says.

use super::PodInfo;
use super::node::amounts;
use jiff::{SignedDuration, Timestamp};
use koord_api::priority::PriorityClass;
use koord_api::slo::{NodeMetric, ResourceMap};
use koord_model::report_time::{self, ReportTimeError};
use koord_model::resources::{Amounts, ResourceId, ResourceTable, shown};
use std::sync::Arc;

/// What of a NodeMetric is kept.
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
    /// `status.podsMetric`, in the order of the report.
    pub pods: Vec<PodUsage>,
}

/// What one pod uses.
#[derive(Debug, Clone, PartialEq)]
pub struct PodUsage {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// The reported priority class.
    pub class: PriorityClass,
    /// CPU in milli, memory in bytes.
    pub usage: Amounts,
}

/// Why what is reported of a node is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct UsageRejection {
    /// In few words, the same for all nodes of which it is so.
    pub problem: &'static str,
    /// For people.
    pub detail: String,
}

/// What may be wrong with reports.
pub mod rejection {
    /// There is none.
    pub const NONE: &str = "has no NodeMetric";
    /// It has no time.
    pub const NO_TIME: &str = "its NodeMetric has no status.updateTime";
    /// It says nothing.
    pub const EMPTY: &str = "its NodeMetric has no status.nodeMetric";
    /// It is too old.
    pub const OLD: &str = "its NodeMetric is too old to be believed";
    /// It is of the future.
    pub const AHEAD: &str = "its NodeMetric is of a time to come";
    /// It says what cannot be.
    pub const ABSURD: &str = "its NodeMetric says what cannot be";
}

/// A node that is said to use so many times what it has does not: its report is wrong.
const ABSURD: i64 = 10;

impl UsageRejection {
    /// There is no report.
    #[must_use]
    pub fn none() -> Self {
        Self::new(rejection::NONE, "there is no NodeMetric of it")
    }

    fn new(problem: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { problem, detail }
    }
}

/// Whether a node that has `has` of resource `name` may use `used`.
///
/// # Errors
/// It cannot.
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
    let said = format!("its NodeMetric says it uses {name} {used} of {has}");
    Err(UsageRejection::new(rejection::ABSURD, said))
}

impl NodeUsage {
    /// What `pod` uses, if it says so.
    #[must_use]
    pub fn pod_usage(&self, pod: &PodInfo) -> Option<&Amounts> {
        let is_it =
            |metric: &&PodUsage| metric.namespace == pod.namespace && metric.name == pod.name;
        self.pods.iter().find(is_it).map(|metric| &metric.usage)
    }

    /// Whether it is to be believed at all `now`, when reports expire after so many seconds.
    ///
    /// # Errors
    /// It is not.
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
                let said =
                    format!("its NodeMetric is {age} s old, and is not believed after {limit} s");
                return no(rejection::OLD, said);
            }
            Err(ReportTimeError::Ahead { ahead, .. }) => {
                let ahead = ahead.as_secs();
                let said = format!("its NodeMetric is of {ahead} s in the future");
                return no(rejection::AHEAD, said);
            }
        }
        Ok(())
    }

    /// Reads `metric`, numbering its resources in `table`.
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

impl koord_kube::informer::Mirrored for NodeUsage {
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
