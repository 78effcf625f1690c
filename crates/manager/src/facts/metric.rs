//! NodeMetric reports in compact form: the usage of a node by pod.

use super::packed::PackedAmount;
use koord_api::PriorityClass;
use koord_api::quantity::ResourceList;
use koord_api::resources;
use koord_api::slo::{NodeMetric, NodeMetricSpec, PodMetricInfo, ResourceMap};
use koord_kube::Cacheable;
use koord_model::reclaim::{Amount, ClassUsage};

/// The fields of a NodeMetric that the manager reads.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct MetricFacts {
    pub(crate) node: Box<str>,
    uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    pub(crate) spec: NodeMetricSpec,
    /// The last report; `None` before the first one.
    pub(crate) report: Option<MetricReport>,
}

/// The status of a NodeMetric.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct MetricReport {
    /// Time of the report in Unix seconds; `None` if it has none.
    pub(crate) updated: Option<i64>,
    /// True if `nodeMetric` is present; without it the report contains no measurement.
    pub(crate) measured: bool,
    /// Usage outside pods and host applications; missing resources are zero.
    pub(crate) system_usage: Amount,
    /// Usage of the whole node; `None` if CPU or memory is missing.
    pub(crate) node_usage: Option<Amount>,
    /// Predicted amount that prod pods request and will not use.
    pub(crate) prod_reclaimable: Amount,
    pub(crate) pods: Box<[PodUsage]>,
    pub(crate) host_apps: Box<[ClassUsage]>,
    /// State of services under the pressure guard; empty on nodes without it.
    pub(crate) guarded: Box<[GuardedService]>,
}

/// State of the pressure guard for one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuardedService {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    /// Verdict on the service, in koordlet's words.
    pub(crate) verdict: Box<str>,
    /// Levers that hold batch pods back for the service.
    pub(crate) held: Box<[Box<str>]>,
}

/// Key of the pressure guard in the extensions of a pod's metric.
const GUARD_EXTENSION: &str = "pressureGuard";

impl GuardedService {
    /// Reads the pressure guard's state of a service from the extension `pressureGuard` of its pod's metric;
    /// `None` if koordlet reports none.
    fn from_metric(pod: &PodMetricInfo) -> Option<Self> {
        let guard = pod.extensions.as_ref()?.get(GUARD_EXTENSION)?;
        let text = |value: &serde_json::Value| value.as_str().map(Box::<str>::from);
        let held = guard["held"].as_array();
        Some(Self {
            namespace: pod.namespace.as_str().into(),
            name: pod.name.as_str().into(),
            verdict: text(&guard["verdict"]).unwrap_or_default(),
            held: held.into_iter().flatten().filter_map(text).collect(),
        })
    }
}

/// Usage of one pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodUsage {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    /// The reported priority class.
    pub(crate) priority: PriorityClass,
    /// `None` if the report lists the pod without an amount.
    pub(crate) usage: Option<PackedAmount>,
}

impl MetricFacts {
    pub(crate) fn from_metric(metric: &NodeMetric) -> Self {
        let meta = &metric.metadata;
        let boxed = |text: &Option<String>| text.as_deref().map(Box::from);
        Self {
            node: meta.name.as_deref().unwrap_or_default().into(),
            uid: boxed(&meta.uid),
            resource_version: boxed(&meta.resource_version),
            spec: metric.spec.clone(),
            report: metric.status.as_ref().map(MetricReport::from_status),
        }
    }
}

impl MetricReport {
    /// Keeps the fields of the status that the manager reads.
    pub(crate) fn from_status(status: &koord_api::slo::NodeMetricStatus) -> Self {
        let info = status.node_metric.as_ref();
        let node_usage = info.and_then(|info| info.node_usage.as_ref());
        let complete = |list: &ResourceList| {
            list.contains_key(resources::CPU) && list.contains_key(resources::MEMORY)
        };
        let system = info.and_then(|info| info.system_usage.as_ref());
        let reclaimable = status.prod_reclaimable_metric.as_ref();
        let pods = status.pods_metric.iter().map(|pod| PodUsage {
            namespace: pod.namespace.as_str().into(),
            name: pod.name.as_str().into(),
            priority: pod.priority,
            usage: pod.pod_usage.as_ref().map(|used| amount(used).into()),
        });
        let host_apps = status.host_application_metric.iter().map(|app| ClassUsage {
            priority: app.priority,
            usage: app.usage.as_ref().map(amount).unwrap_or_default(),
        });
        let guarded = status.pods_metric.iter();
        let guarded = guarded.filter_map(GuardedService::from_metric);
        Self {
            updated: status.update_time.as_ref().map(|time| time.0.as_second()),
            measured: info.is_some(),
            system_usage: system.map(amount).unwrap_or_default(),
            node_usage: node_usage
                .filter(|map| complete(&map.resources))
                .map(amount),
            prod_reclaimable: reclaimable
                .and_then(|metric| metric.resource.as_ref())
                .map(amount)
                .unwrap_or_default(),
            pods: pods.collect(),
            host_apps: host_apps.collect(),
            guarded: guarded.collect(),
        }
    }
}

impl Cacheable for MetricFacts {
    fn names(&self) -> (&str, &str) {
        ("", &self.node)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

fn amount(map: &ResourceMap) -> Amount {
    let amount = |name| map.resources.get(name).copied().unwrap_or_default();
    Amount::new(amount(resources::CPU), amount(resources::MEMORY))
}
