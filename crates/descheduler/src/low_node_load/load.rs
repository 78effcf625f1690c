//! Usage of nodes, and their classification by it.
//!
//! Source: Koordinator `pkg/descheduler/framework/plugins/loadaware`.

use super::args::{Pool, Thresholds};
use crate::framework::ProfileDepartures;
use crate::move_history::MoveHistory;
use crate::state::{NodeInfo, NodeUsage, PodInfo, Snapshot, UsageRejection, check_plausible};
use koord_model::resources::{Amounts, PODS, ResourceId, ResourceTable};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Amounts of the resources of a pool, in its order: CPU in milli-cores, all others in units.
pub(super) type Row = Vec<i64>;

/// A resource that a pool compares.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resource {
    pub(super) name: String,
    pub(super) id: ResourceId,
    /// Thresholds in percent.
    low: f64,
    pub(super) high: f64,
    prod_low: f64,
    pub(super) prod_high: f64,
    pub(super) weight: i64,
    /// True if thresholds are configured for the resource: for all pods, and for pods of priority class prod.
    given: [bool; 2],
}

impl Resource {
    /// Returns true if thresholds are configured for `usage_kind`.
    pub(super) fn has_thresholds(&self, usage_kind: UsageKind) -> bool {
        match usage_kind {
            UsageKind::Node => self.given[0],
            UsageKind::Prod => self.given[1],
        }
    }
}

/// The resources that a pool compares.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PoolResources {
    /// Resources sorted by name.
    pub(super) resources: Vec<Resource>,
    deviation: bool,
    /// Weight of `pods` in scores if it is not among the resources.
    pods_weight: Option<i64>,
}

impl PoolResources {
    /// Collects the resources of all thresholds of `pool`, and memory. A resource without thresholds neither
    /// makes a node hot nor keeps it from being cold.
    pub(super) fn new(pool: &Pool, table: &ResourceTable) -> Self {
        let maps = [
            &pool.low_thresholds,
            &pool.high_thresholds,
            &pool.prod_low_thresholds,
            &pool.prod_high_thresholds,
        ];
        let mut names: Vec<_> = maps
            .into_iter()
            .flatten()
            .flat_map(|map| map.keys())
            .cloned()
            .collect();
        names.push("memory".to_owned());
        names.sort();
        names.dedup();
        let without = if pool.use_deviation_thresholds {
            0.0
        } else {
            100.0
        };
        let thresholds_of = |low: &Option<Thresholds>, high: &Option<Thresholds>, name: &str| {
            let get =
                |map: &Option<Thresholds>| map.as_ref().and_then(|map| map.get(name).copied());
            match get(low) {
                Some(low) => (low, get(high).unwrap_or(0.0)),
                None => (without, without),
            }
        };
        let has = |map: &Option<Thresholds>, name: &str| {
            map.as_ref().is_some_and(|map| map.contains_key(name))
        };
        let weight = |name: &str| {
            let weights = pool.resource_weights.as_ref();
            weights
                .and_then(|weights| weights.get(name).copied())
                .unwrap_or(0)
        };
        let resource = |name: String| {
            let (low, high) = thresholds_of(&pool.low_thresholds, &pool.high_thresholds, &name);
            let (prod_low, prod_high) =
                thresholds_of(&pool.prod_low_thresholds, &pool.prod_high_thresholds, &name);
            Resource {
                id: table.intern(&name),
                weight: weight(&name),
                given: [&maps[..], &maps[2..]].map(|maps| maps.iter().any(|map| has(map, &name))),
                low,
                high,
                prod_low,
                prod_high,
                name,
            }
        };
        let resources: Vec<_> = names.into_iter().map(resource).collect();
        let has_pods = resources.iter().any(|resource| resource.id == PODS);
        Self {
            resources,
            deviation: pool.use_deviation_thresholds,
            pods_weight: (!has_pods).then(|| weight("pods")),
        }
    }

    /// Returns the usage `amounts` of a pod as a row; `pods` is 1.
    pub(super) fn pod_row(&self, amounts: &Amounts) -> Row {
        let amount = |resource: &Resource| match resource.id {
            PODS => 1,
            id => amounts.get(id),
        };
        self.resources.iter().map(amount).collect()
    }

    fn row(&self, amounts: &Amounts) -> Row {
        let amount = |resource: &Resource| amounts.get(resource.id);
        self.resources.iter().map(amount).collect()
    }
}

/// Absolute thresholds of a node by resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) low: Row,
    pub(super) high: Row,
}

/// Usage of one node of a pool.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) node: &'a Arc<NodeInfo>,
    /// Pods that have not ended and are not in the plan, by namespace and name.
    pub(super) pods: Vec<&'a Arc<PodInfo>>,
    /// Reported usage of each of `pods`; `None` if missing.
    pub(super) metrics: Vec<Option<&'a Amounts>>,
    /// Usage of the node.
    pub(super) usage: Row,
    /// Usage of its pods of priority class prod.
    pub(super) prod: Row,
    /// Expected usage of pods that were moved here and are not reported yet.
    pub(super) coming: Row,
    /// Number of all pods, and of pods of priority class prod.
    counts: [i64; 2],
    pub(super) capacity: Row,
    pub(super) node_bounds: Bounds,
    pub(super) prod_bounds: Bounds,
}

/// Classification of a node by its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadClass {
    /// Cold by node usage, but not by prod usage.
    Low,
    /// Cold by node usage and by prod usage.
    BothLow,
    /// Hot by node usage.
    Source,
    /// Hot by prod usage only.
    ProdHigh,
    /// Cold by prod usage only.
    ProdLow,
    /// Neither hot nor cold.
    Middle,
}

/// Kind of usage: of all pods or of prod pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageKind {
    /// Usage of the whole node.
    Node,
    /// Usage of the node's pods of priority class prod.
    Prod,
}

/// Returns true if any of `used` exceeds its threshold.
pub(super) fn any_over(used: &[i64], high: &[i64]) -> bool {
    used.iter().zip(high).any(|(used, high)| used > high)
}

fn none_over(used: &[i64], low: &[i64]) -> bool {
    !any_over(used, low)
}

/// Returns `amount` as a percentage of `of`; 0 if `of` is 0.
pub(super) fn percent(amount: i64, of: i64) -> f64 {
    if of == 0 {
        return 0.0;
    }
    100.0 * amount as f64 / of as f64
}

impl<'a> Load<'a> {
    /// Reads the usage of `node` without the pods that leave it. With a `history`, only existing pods count,
    /// recently moved pods do not, and expected pods are added.
    ///
    /// # Errors
    /// Returns why the NodeMetric is missing or unusable.
    pub(super) fn read(
        snapshot: &'a Snapshot,
        departures: ProfileDepartures<'_>,
        node: &'a Arc<NodeInfo>,
        watched: &PoolResources,
        expiration: i64,
        history: Option<&MoveHistory>,
    ) -> Result<Self, UsageRejection> {
        let report = snapshot
            .usage
            .get(&node.name)
            .ok_or_else(UsageRejection::missing)?;
        report.check_usable(snapshot.now, expiration)?;
        let active = snapshot.active_on(&node.name);
        let (planned, pods): (Vec<_>, Vec<_>) = active.partition(|pod| departures.is_planned(pod));
        let stays = |pod: &PodInfo| !departures.is_leaving(pod);
        let name = |pod: &'a Arc<PodInfo>| (&*pod.namespace, &*pod.name);
        let places: FxHashMap<_, _> = pods
            .iter()
            .enumerate()
            .map(|(at, pod)| (name(pod), at))
            .collect();
        let planned: FxHashSet<_> = planned.into_iter().map(name).collect();
        let mut metrics = vec![None; pods.len()];
        let mut used = report.system.clone();
        let mut prod_used = Amounts::new();
        for metric in &report.pods {
            let place = places.get(&(&*metric.namespace, &*metric.name)).copied();
            let pod = place.and_then(|index| pods.get(index));
            let counts = match pod {
                Some(pod) => stays(pod),
                None if planned.contains(&(&*metric.namespace, &*metric.name)) => false,
                None => history.is_none(),
            };
            if counts {
                used.add_all(&metric.usage);
            }
            if counts && pod.is_some_and(|pod| pod.is_prod()) {
                prod_used.add_all(&metric.usage);
            }
            let Some(place) = place else { continue };
            if let Some(metric_of) = metrics.get_mut(place) {
                *metric_of = Some(&metric.usage);
            }
        }
        let staying = || pods.iter().filter(|pod| stays(pod));
        let prod_pods = staying().filter(|pod| pod.is_prod()).count();
        let counts = [staying().count(), prod_pods];
        let counts = counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        let mut load = Self {
            usage: watched.row(&used),
            prod: watched.row(&prod_used),
            coming: vec![0; watched.resources.len()],
            capacity: watched.row(&node.raw_allocatable),
            node_bounds: Bounds::default(),
            prod_bounds: Bounds::default(),
            node,
            pods,
            metrics,
            counts,
        };
        load.check_usage(watched)?;
        load.count_pods(watched);
        if let Some(history) = history {
            let leaving = snapshot.active_on(&node.name);
            let leaving = leaving.filter(|pod| departures.is_leaving(pod));
            let leaving = leaving.map(|pod| &pod.uid).collect();
            load.apply_history(&leaving, history, report, watched);
        }
        Ok(load)
    }

    /// Subtracts the usage of pods that leave and adds the expected usage of incoming pods. For a pod that
    /// runs here already, only the expected usage above the reported one is added.
    fn apply_history(
        &mut self,
        leaving: &FxHashSet<&Arc<str>>,
        history: &MoveHistory,
        report: &NodeUsage,
        watched: &PoolResources,
    ) {
        let moved = history.leaving(&self.node.name);
        // Pods in `leaving` are excluded from the usage already.
        for moved in moved.filter(|moved| !leaving.contains(&moved.uid)) {
            let row = watched.pod_row(&moved.usage);
            let prod = moved.prod.then_some(&mut self.prod);
            for used in [Some(&mut self.usage), prod].into_iter().flatten() {
                for (used, less) in used.iter_mut().zip(&row) {
                    *used = used.saturating_sub(*less).max(0);
                }
            }
        }
        for moved in history.moves_to(&self.node.name) {
            let mut row = watched.pod_row(&moved.usage);
            if let Some(came) = &moved.replacement {
                let mut reported = report.pod_usage(came).cloned().unwrap_or_default();
                // The pod itself is counted already.
                reported.set(PODS, 1);
                for (more, resource) in row.iter_mut().zip(&watched.resources) {
                    *more = more.saturating_sub(reported.get(resource.id)).max(0);
                }
            }
            for (coming, more) in self.coming.iter_mut().zip(&row) {
                *coming = coming.saturating_add(*more);
            }
        }
    }

    fn check_usage(&self, watched: &PoolResources) -> Result<(), UsageRejection> {
        let usage = self.usage.iter().zip(&self.capacity);
        let mut all = watched.resources.iter().zip(usage);
        all.try_for_each(|(resource, (used, has))| {
            check_plausible(&resource.name, resource.id, *used, *has)
        })
    }

    fn count_pods(&mut self, watched: &PoolResources) {
        let [all, prod] = self.counts;
        for (at, resource) in watched.resources.iter().enumerate() {
            if resource.id == PODS {
                self.usage[at] = all;
                self.prod[at] = prod;
            }
        }
    }

    /// Returns the usage of this kind.
    pub(super) fn used(&self, usage_kind: UsageKind) -> &Row {
        match usage_kind {
            UsageKind::Node => &self.usage,
            UsageKind::Prod => &self.prod,
        }
    }

    /// Returns the thresholds of this kind of usage.
    pub(super) fn bounds(&self, usage_kind: UsageKind) -> &Bounds {
        match usage_kind {
            UsageKind::Node => &self.node_bounds,
            UsageKind::Prod => &self.prod_bounds,
        }
    }

    /// Returns true if the usage exceeds a high threshold.
    pub(super) fn is_over(&self, usage_kind: UsageKind) -> bool {
        any_over(self.used(usage_kind), &self.bounds(usage_kind).high)
    }

    /// Returns the indexes of the resources that exceed their high thresholds.
    pub(super) fn over(&self, usage_kind: UsageKind) -> impl Iterator<Item = usize> + '_ {
        let usage = self
            .used(usage_kind)
            .iter()
            .zip(&self.bounds(usage_kind).high);
        let over = usage.enumerate().filter(|(_, (used, high))| used > high);
        over.map(|(at, _)| at)
    }

    /// Returns the usage in percent of the capacity.
    pub(super) fn percent(&self, usage_kind: UsageKind, at: usize) -> f64 {
        match (self.used(usage_kind).get(at), self.capacity.get(at)) {
            (Some(used), Some(has)) => percent(*used, *has),
            _ => 0.0,
        }
    }

    /// Returns the weighted utilization in thousandths.
    pub(super) fn score(&self, usage_kind: UsageKind, watched: &PoolResources) -> i64 {
        let pods = match usage_kind {
            UsageKind::Node => self.counts[0],
            UsageKind::Prod => self.counts[1],
        };
        let pods = watched.pods_weight.map(|weight| {
            let has = self.node.raw_allocatable.get(PODS);
            (pods, has, weight)
        });
        let weights = watched.resources.iter().map(|resource| resource.weight);
        let rows = self
            .used(usage_kind)
            .iter()
            .zip(&self.capacity)
            .zip(weights);
        let rows = rows.map(|((used, has), weight)| (*used, *has, weight));
        let (mut sum, mut weights) = (0_i64, 0_i64);
        for (used, has, weight) in rows.chain(pods) {
            let share = if has == 0 {
                0
            } else {
                let share = i128::from(used.min(has)) * 1000 / i128::from(has);
                i64::try_from(share).unwrap_or(1000)
            };
            sum = sum.saturating_add(share.saturating_mul(weight));
            weights = weights.saturating_add(weight);
        }
        sum.checked_div(weights).unwrap_or(0)
    }

    /// Lists the exceeded thresholds: `cpu usage 71.00% > threshold 65.00%`.
    pub(super) fn describe_hot(&self, usage_kind: UsageKind, watched: &PoolResources) -> String {
        let label = match usage_kind {
            UsageKind::Node => "usage",
            UsageKind::Prod => "usage of prod",
        };
        let exceeded = self.over(usage_kind).map(|index| {
            let name = watched
                .resources
                .get(index)
                .map_or("", |resource| &resource.name);
            let high = self
                .bounds(usage_kind)
                .high
                .get(index)
                .copied()
                .unwrap_or(0);
            let has = self.capacity.get(index).copied().unwrap_or(0);
            let (used, high) = (self.percent(usage_kind, index), percent(high, has));
            format!("{name} {label} {used:.2}% > threshold {high:.2}%")
        });
        exceeded.collect::<Vec<_>>().join(", ")
    }

    /// Returns the reason of evictions from the node, in upstream's words.
    pub(super) fn reason(&self, usage_kind: UsageKind, watched: &PoolResources) -> String {
        let label = match usage_kind {
            UsageKind::Node => "node",
            UsageKind::Prod => "prod",
        };
        let exceeded = self.over(usage_kind).filter_map(|index| {
            let resource = watched.resources.get(index)?;
            let high = match usage_kind {
                UsageKind::Node => resource.high,
                UsageKind::Prod => resource.prod_high,
            };
            let (name, used) = (&resource.name, self.percent(usage_kind, index));
            Some(format!(
                "{label} {name} usage({used:.2}%)>threshold({high:.2}%)"
            ))
        });
        let exceeded = exceeded.collect::<Vec<_>>().join(", ");
        format!("node is overutilized, {exceeded}")
    }

    /// Classifies the node by its usage.
    pub(super) fn class(&self) -> LoadClass {
        let with = |used: &[i64]| -> Row {
            let pairs = used.iter().zip(&self.coming);
            pairs
                .map(|(used, coming)| used.saturating_add(*coming))
                .collect()
        };
        let takes = !self.node.unschedulable;
        let is_low = |used: &Row, bounds: &Bounds| takes && none_over(&with(used), &bounds.low);
        let low = is_low(&self.usage, &self.node_bounds);
        let prod_low = is_low(&self.prod, &self.prod_bounds);
        let prod_high = self.is_over(UsageKind::Prod);
        match (low, prod_high, prod_low) {
            (false, _, _) if self.is_over(UsageKind::Node) => LoadClass::Source,
            (_, true, _) => LoadClass::ProdHigh,
            (true, false, true) => LoadClass::BothLow,
            (true, false, false) => LoadClass::Low,
            (false, false, true) => LoadClass::ProdLow,
            (false, false, false) => LoadClass::Middle,
        }
    }
}

/// Returns `percent` of `of`, truncated.
fn percent_of(of: i64, percent: f64) -> i64 {
    (percent * 0.01 * of as f64) as i64
}

/// Sets the absolute thresholds of `loads`.
pub(super) fn set_bounds(loads: &mut [Load<'_>], watched: &PoolResources) {
    let average = |usage_kind: UsageKind, at: usize| {
        let sum: f64 = loads.iter().map(|load| load.percent(usage_kind, at)).sum();
        sum / loads.len().max(1) as f64
    };
    let resources = watched.resources.iter().enumerate();
    let averages: Vec<_> = resources
        .map(|(at, _)| [average(UsageKind::Node, at), average(UsageKind::Prod, at)])
        .collect();
    let bounds = |load: &Load<'_>, usage_kind: UsageKind| {
        let mut out = Bounds::default();
        for ((resource, has), averages) in
            watched.resources.iter().zip(&load.capacity).zip(&averages)
        {
            let (low, high, average) = match usage_kind {
                UsageKind::Node => (resource.low, resource.high, averages[0]),
                UsageKind::Prod => (resource.prod_low, resource.prod_high, averages[1]),
            };
            let (low, high) = if !watched.deviation {
                (percent_of(*has, low), percent_of(*has, high))
            } else if low == 0.0 {
                (*has, *has)
            } else {
                let within = |percent: f64| percent_of(*has, percent.clamp(0.0, 100.0));
                (within(average - low), within(average + high))
            };
            out.low.push(low);
            out.high.push(high);
        }
        out
    };
    for load in loads {
        let (node, prod) = (bounds(load, UsageKind::Node), bounds(load, UsageKind::Prod));
        (load.node_bounds, load.prod_bounds) = (node, prod);
    }
}
