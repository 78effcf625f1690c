//! Utilization of nodes.

use super::args::UtilizationThresholds;
use crate::framework::Cycle;
use crate::state::{NodeInfo, PodInfo, Snapshot, UsageRejection, check_plausible};
use koord_model::resources::{Amounts, PODS, ResourceId, shown};
use rustc_hash::FxHashMap;

/// Maximum age of a NodeMetric in seconds, equal to the default of `LowNodeLoad`.
const EXPIRES: i64 = 180;

/// Usage of nodes and pods, for the resources that are compared.
#[derive(Debug)]
pub(super) struct Usages<'a> {
    snapshot: &'a Snapshot,
    /// True for measured usage, false for requests.
    measured: bool,
    resources: Vec<ResourceId>,
    pods: FxHashMap<(&'a str, &'a str), &'a Amounts>,
}

impl<'a> Usages<'a> {
    /// Creates the usages of `resources`: the measured ones, from NodeMetrics, or the requests of pods.
    pub(super) fn new(snapshot: &'a Snapshot, measured: bool, resources: Vec<ResourceId>) -> Self {
        let reports = snapshot.usage.values().filter(|_| measured);
        let pods = reports.flat_map(|report| &report.pods);
        let pods = pods
            .map(|pod| ((&*pod.namespace, &*pod.name), &pod.usage))
            .collect();
        Self {
            snapshot,
            measured,
            resources,
            pods,
        }
    }

    /// Returns the usage of `node` without the pods that leave it.
    ///
    /// # Errors
    /// Returns why the usage is unknown.
    pub(super) fn node_amounts(
        &self,
        cycle: &Cycle<'_>,
        node: &NodeInfo,
    ) -> Result<Amounts, UsageRejection> {
        let mut used = if self.measured {
            self.picked(self.report(node)?)
        } else {
            self.zero()
        };
        let mut pods = 0;
        for pod in self.snapshot.active_on(&node.name) {
            if cycle.is_leaving(pod) {
                if self.measured
                    && let Ok(less) = self.pod_amounts(pod)
                {
                    used.sub_all(&less);
                }
                continue;
            }
            pods += 1;
            if !self.measured {
                used.add_all(&self.picked(&pod.shape.requests));
            }
        }
        used.set(PODS, pods);
        Ok(used)
    }

    /// Returns the usage of `pod`.
    ///
    /// # Errors
    /// Returns why the usage is unknown.
    pub(super) fn pod_amounts(&self, pod: &PodInfo) -> Result<Amounts, String> {
        let mut used = if self.measured {
            let used = self.pods.get(&(&*pod.namespace, &*pod.name));
            self.picked(used.ok_or("no NodeMetric tells what it uses")?)
        } else {
            self.picked(&pod.shape.requests)
        };
        used.set(PODS, 1);
        Ok(used)
    }

    fn report(&self, node: &NodeInfo) -> Result<&'a Amounts, UsageRejection> {
        let report = self.snapshot.usage.get(&node.name);
        let report = report.ok_or_else(UsageRejection::missing)?;
        report.check_usable(self.snapshot.now, EXPIRES)?;
        // A usable NodeMetric has node usage.
        let used = report.node.as_ref().ok_or_else(UsageRejection::missing)?;
        for id in &self.resources {
            let name = self.snapshot.table.name(*id);
            check_plausible(&name, *id, used.get(*id), node.allocatable.get(*id))?;
        }
        Ok(used)
    }

    fn zero(&self) -> Amounts {
        self.picked(&Amounts::new())
    }

    fn picked(&self, of: &Amounts) -> Amounts {
        let mut picked = Amounts::new();
        for id in &self.resources {
            picked.set(*id, of.get(*id));
        }
        picked
    }
}

/// Percentages by resource.
#[derive(Debug, Clone, Default)]
pub(super) struct Percent(Vec<(ResourceId, f64)>);

impl Percent {
    pub(super) fn from_thresholds(snapshot: &Snapshot, thresholds: &UtilizationThresholds) -> Self {
        let each = thresholds.iter();
        Self(
            each.map(|(name, percent)| (snapshot.table.intern(name), *percent))
                .collect(),
        )
    }

    /// Returns `used` in percent of the capacity of `node`, without resources that the node lacks.
    #[allow(
        clippy::cast_precision_loss,
        reason = "upstream computes with such numbers too"
    )]
    pub(super) fn used(node: &NodeInfo, used: &Amounts) -> Self {
        let known_resources = used.iter().filter(|(id, _)| node.allocatable.contains(*id));
        let percent = known_resources.map(|(id, used)| match node.allocatable.get(id) {
            total if total > 0 => (id, used as f64 / total as f64 * 100.0),
            _ => (id, 0.0),
        });
        Self(percent.collect())
    }

    /// Returns the average of each resource of `wanted` over those of `of` that have it.
    #[allow(clippy::cast_precision_loss, reason = "far fewer nodes than 2^52")]
    pub(super) fn average<'p>(of: impl Iterator<Item = &'p Self> + Clone, wanted: &Self) -> Self {
        let average = |(id, _): &(ResourceId, f64)| {
            let values = of.clone().filter_map(|percent| percent.find(*id));
            let (sum, count) = values.fold((0.0, 0_usize), |(sum, count), value| {
                (sum + value, count + 1)
            });
            (count > 0).then(|| (*id, sum / count as f64))
        };
        Self(wanted.0.iter().filter_map(average).collect())
    }

    /// Returns the values shifted by `factor` times `span`, clamped to 0 to 100.
    pub(super) fn shifted(&self, span: &Self, factor: f64) -> Self {
        let shifted = self.0.iter();
        let shifted =
            shifted.map(|(id, value)| (*id, (value + factor * span.get(*id)).clamp(0.0, 100.0)));
        Self(shifted.collect())
    }

    /// Returns `percent` for each of these resources.
    pub(super) fn all(&self, percent: f64) -> Self {
        Self(self.0.iter().map(|(id, _)| (*id, percent)).collect())
    }

    pub(super) fn resources(&self) -> impl Iterator<Item = ResourceId> + '_ {
        self.0.iter().map(|(id, _)| *id)
    }

    /// Returns true if no resource exceeds its threshold.
    pub(super) fn is_below(&self, thresholds: &Self) -> bool {
        self.above(thresholds).is_none()
    }

    /// Returns a resource that exceeds its threshold.
    pub(super) fn above(&self, thresholds: &Self) -> Option<ResourceId> {
        let mut above = thresholds
            .0
            .iter()
            .filter(|(id, threshold)| *threshold < self.get(*id));
        above.next().map(|(id, _)| *id)
    }

    /// Formats a comparison for users: `cpu 80.00% > 50.00%`.
    pub(super) fn compared(&self, snapshot: &Snapshot, id: ResourceId, limit: &Self) -> String {
        let name = snapshot.table.name(id);
        format!("{name} {:.2}% > {:.2}%", self.get(id), limit.get(id))
    }

    /// Formats the percentages for users: `cpu 80.00%, memory 3.00%`.
    pub(super) fn shown(&self, snapshot: &Snapshot) -> String {
        let each = self.0.iter();
        let each = each.map(|(id, value)| format!("{} {value:.2}%", snapshot.table.name(*id)));
        each.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn find(&self, id: ResourceId) -> Option<f64> {
        let mut entries = self.0.iter().filter(|(of, _)| *of == id);
        entries.next().map(|(_, value)| *value)
    }

    fn get(&self, id: ResourceId) -> f64 {
        self.find(id).unwrap_or(0.0)
    }
}

/// Returns the amounts up to which `node` may be used: the threshold's share of a resource that has one, the
/// whole capacity of others.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "upstream computes with such numbers too; a float beyond i64 saturates"
)]
pub(super) fn limit(node: &NodeInfo, resources: &[ResourceId], thresholds: &Percent) -> Amounts {
    let mut limit = Amounts::new();
    for id in resources {
        let all = node.allocatable.get(*id);
        let share = thresholds.find(*id);
        limit.set(
            *id,
            share.map_or(all, |share| (share * 0.01 * all as f64) as i64),
        );
    }
    limit
}

/// Formats amounts for users: `cpu 1500m, memory 2Gi`.
pub(super) fn listed(snapshot: &Snapshot, amounts: &Amounts) -> String {
    let each = amounts.iter();
    let each =
        each.map(|(id, amount)| format!("{} {}", snapshot.table.name(id), shown(id, amount)));
    each.collect::<Vec<_>>().join(", ")
}
