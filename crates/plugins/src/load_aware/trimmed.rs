//! Trimmed form of a NodeMetric for informers, in the scheduler's units.
//!
//! Every node sends a report each minute, with all of its pods. Reports are converted at decoding, so that
//! the engine task only looks up amounts.

use jiff::Timestamp;
use koord_api::duration::GoDuration;
use koord_api::priority::PriorityClass;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::slo::{NodeMetric, ResourceMap};
use koord_model::resources::MOST;
use koord_scheduler::Cacheable;
use std::sync::Arc;

/// Report interval in milliseconds, if the NodeMetric sets none.
const DEFAULT_INTERVAL: i64 = 60_000;

/// Amounts by resource name, sorted by name: in milli-cores for `cpu`, otherwise in the resource's unit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ReportedAmounts(Box<[(Box<str>, i64)]>);

impl ReportedAmounts {
    fn from_list(list: &ResourceList) -> Self {
        let amounts = list.iter();
        Self(
            amounts
                .map(|(name, quantity)| (name.as_str().into(), amount(name, quantity)))
                .collect(),
        )
    }

    fn from_map(map: Option<&ResourceMap>) -> Self {
        map.map_or_else(Self::default, |map| Self::from_list(&map.resources))
    }

    /// Returns the amount of resource `name`; 0 if it is not listed.
    pub(super) fn get(&self, name: &str) -> i64 {
        let named = self.0.iter().find(|(listed, _)| **listed == *name);
        named.map_or(0, |(_, amount)| *amount)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Converts `quantity` of resource `name` to milli-cores for `cpu`, otherwise to the resource's unit, rounded
/// up. The result is at most [`MOST`], because it is of one node or pod.
pub(super) fn amount(name: &str, quantity: &Quantity) -> i64 {
    let amount = match name {
        "cpu" => quantity.milli_value(),
        _ => quantity.value(),
    };
    amount.clamp(-MOST, MOST)
}

/// Amounts by aggregation type, such as `p95`.
type UsageByKind = Vec<(Box<str>, ReportedAmounts)>;

/// Reported usage of one pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodUsage {
    namespace: Box<str>,
    name: Box<str>,
    pub(super) usage: ReportedAmounts,
    pub(super) prod: bool,
}

impl PodUsage {
    fn key(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

/// NodeMetric without the fields that the plugin does not read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TrimmedNodeMetric {
    /// Name of the object, which is the node's.
    pub(super) name: Arc<str>,
    uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    /// Value of `status.updateTime`.
    pub(super) updated: Option<Timestamp>,
    /// Report interval in milliseconds.
    pub(super) interval: i64,
    /// Usage of the node; `None` if the report has none.
    pub(super) usage: Option<ReportedAmounts>,
    pub(super) system: ReportedAmounts,
    /// Aggregated usage of the node, by window.
    aggregated: Vec<(GoDuration, UsageByKind)>,
    /// Usage of pods, sorted by namespace and name.
    pods: Vec<PodUsage>,
}

impl From<NodeMetric> for TrimmedNodeMetric {
    fn from(metric: NodeMetric) -> Self {
        Self::from(&metric)
    }
}

impl From<&NodeMetric> for TrimmedNodeMetric {
    fn from(metric: &NodeMetric) -> Self {
        let meta = &metric.metadata;
        let text = |text: &Option<String>| text.as_deref().map(Box::from);
        let policy = metric.spec.metric_collect_policy.as_ref();
        let seconds = policy.and_then(|policy| policy.report_interval_seconds);
        let status = metric.status.as_ref();
        let node = status.and_then(|status| status.node_metric.as_ref());
        let windows = node.map(|node| node.aggregated_node_usages.as_slice());
        let aggregated = windows.unwrap_or_default().iter().map(|window| {
            let kinds = window.usage.iter();
            let kinds = kinds.map(|(kind, map)| {
                (
                    kind.as_str().into(),
                    ReportedAmounts::from_list(&map.resources),
                )
            });
            let listed =
                kinds.filter(|(_, amounts): &(Box<str>, ReportedAmounts)| !amounts.is_empty());
            (window.duration.unwrap_or_default(), listed.collect())
        });
        let pods = status.map(|status| status.pods_metric.as_slice());
        let pods = pods.unwrap_or_default().iter().map(|pod| PodUsage {
            namespace: pod.namespace.as_str().into(),
            name: pod.name.as_str().into(),
            usage: ReportedAmounts::from_map(pod.pod_usage.as_ref()),
            prod: pod.priority == PriorityClass::Prod,
        });
        let mut pods: Vec<PodUsage> = pods.filter(|pod| !pod.usage.is_empty()).collect();
        // The last entry of a pod counts.
        pods.sort_by(|a, b| a.key().cmp(&b.key()));
        pods.dedup_by(|later, previous| {
            let same_pod = later.key() == previous.key();
            if same_pod {
                std::mem::swap(later, previous);
            }
            same_pod
        });
        Self {
            name: meta.name.as_deref().unwrap_or_default().into(),
            uid: text(&meta.uid),
            resource_version: text(&meta.resource_version),
            updated: status
                .and_then(|status| status.update_time.as_ref())
                .map(|time| time.0),
            interval: seconds.map_or(DEFAULT_INTERVAL, |seconds| seconds.saturating_mul(1000)),
            usage: node.map(|node| ReportedAmounts::from_map(node.node_usage.as_ref())),
            system: ReportedAmounts::from_map(node.and_then(|node| node.system_usage.as_ref())),
            aggregated: aggregated.collect(),
            pods,
        }
    }
}

impl Cacheable for TrimmedNodeMetric {
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

impl TrimmedNodeMetric {
    /// Returns a copy without update time, which counts as expired.
    pub(super) fn without_time(&self) -> Self {
        Self {
            updated: None,
            ..self.clone()
        }
    }

    /// Returns the reported usage of a pod.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&PodUsage> {
        let at = self
            .pods
            .binary_search_by(|pod| pod.key().cmp(&(namespace, name)));
        at.ok().and_then(|at| self.pods.get(at))
    }

    /// Returns the usage aggregated by `kind` over `duration`. Zero selects the longest window that has
    /// `kind`, or the mean if none has. `None` if an explicit duration is missing.
    pub(super) fn aggregated(&self, kind: &str, duration: GoDuration) -> Option<&ReportedAmounts> {
        let with_kind = self.aggregated.iter().filter_map(|(over, kinds)| {
            let mut kinds = kinds.iter();
            let (_, amounts) = kinds.find(|(listed, _)| **listed == *kind)?;
            Some((*over, amounts))
        });
        if duration == GoDuration::ZERO {
            let longest = with_kind.max_by_key(|(over, _)| over.as_nanos());
            return longest.map(|(_, amounts)| amounts).or(self.usage.as_ref());
        }
        let mut with_kind = with_kind;
        let matching = with_kind.find(|(over, _)| *over == duration);
        matching.map(|(_, amounts)| amounts)
    }
}
