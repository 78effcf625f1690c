//! `NodeResourceTopologyMatchArgs`: arguments of the plugin and their validation.

use super::NAME;
use crate::common::args::invalid;
use koord_model::alignment::ZoneStrategy;
use koord_scheduler::framework::BuildError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Arguments of `NodeResourceTopologyMatch`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    scoring_strategy: TopologyScoring,
    cache_resync_period_seconds: i64,
    discard_reserved_nodes: bool,
    cache: Cache,
    preemption_mode: PreemptionMode,
}

/// A scoring strategy and the weights of resources.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TopologyScoring {
    #[serde(rename = "type")]
    kind: TopologyStrategy,
    resources: Vec<TopologyResourceSpec>,
}

/// A strategy for scoring NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
enum TopologyStrategy {
    #[default]
    LeastAllocated,
    MostAllocated,
    BalancedAllocation,
    #[serde(rename = "LeastNUMANodes")]
    LeastNumaNodes,
}

/// A resource and its weight; values below 1 count as 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TopologyResourceSpec {
    name: String,
    #[serde(default)]
    weight: i64,
}

/// Arguments of the over-reserve cache.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Cache {
    foreign_pods_detect: ForeignPods,
    resync_method: ResyncMethod,
    informer_mode: InformerMode,
    resync_scope: ResyncScope,
}

/// Selects the pods of other schedulers that make a node's report doubtful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum ForeignPods {
    None,
    #[default]
    All,
    OnlyExclusiveResources,
}

/// Selects the pods that a fingerprint covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum ResyncMethod {
    /// The pods that the report states its fingerprint covers, else all.
    #[default]
    Autodetect,
    All,
    OnlyExclusiveResources,
}

/// Selects the pods that an exporter lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum InformerMode {
    /// Running pods.
    Shared,
    /// Running pods and, with kubelets before 1.34, ended pods that still exist.
    #[default]
    Dedicated,
}

/// Selects the parts of a report that apply before its fingerprint matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum ResyncScope {
    /// The kubelet's configuration applies.
    #[default]
    All,
    /// No part applies.
    OnlyResources,
}

/// Upstream's preemption mode; `Enabled` is accepted but has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
enum PreemptionMode {
    #[default]
    Disabled,
    Enabled,
}

/// Validated settings of the plugin.
#[derive(Debug)]
pub(super) struct TopologyMatchSettings {
    /// Scoring strategy; `None` prefers the fewest NUMA nodes.
    pub(super) strategy: Option<ZoneStrategy>,
    /// Weights other than 1, by resource name.
    pub(super) weights: BTreeMap<String, i64>,
    pub(super) cache_mode: CacheMode,
}

/// The cache mode: how placements count that no report contains yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheMode {
    /// Placements do not count.
    None,
    /// The node accepts no other pod while one is about to be bound.
    Discard,
    /// The requests of placed pods are subtracted from every zone until a report has counted them.
    OverReserve(OverReserve),
}

/// Settings of the over-reserve cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverReserve {
    /// Resync period. A problem is reported if no report has counted the pods after ten periods.
    pub(super) period: Duration,
    pub(super) foreign: ForeignPods,
    pub(super) method: ResyncMethod,
    pub(super) informer: InformerMode,
    pub(super) scope: ResyncScope,
}

impl Args {
    /// Validates the arguments.
    ///
    /// # Errors
    /// Returns an error that names the field and the value.
    pub(super) fn settings(self) -> Result<TopologyMatchSettings, BuildError> {
        let period = self.cache_resync_period_seconds;
        let period = u64::try_from(period).map_err(|_| {
            let message = format!("args.cacheResyncPeriodSeconds: {period} is below 0");
            invalid(NAME, message)
        })?;
        if self.preemption_mode == PreemptionMode::Enabled {
            tracing::warn!(
                plugin = NAME,
                "args.preemptionMode: Enabled has no effect: the NUMA node that an eviction would free is \
                 unknown"
            );
        }
        let weights = self.scoring_strategy.resources.into_iter();
        // A weight below 1 counts as 1.
        let weights = weights
            .map(|spec| (spec.name, spec.weight))
            .filter(|(_, weight)| *weight > 1);
        let cache_mode = match (self.discard_reserved_nodes, period) {
            (true, _) => CacheMode::Discard,
            (false, 0) => CacheMode::None,
            (false, seconds) => CacheMode::OverReserve(OverReserve {
                period: Duration::from_secs(seconds),
                foreign: self.cache.foreign_pods_detect,
                method: self.cache.resync_method,
                informer: self.cache.informer_mode,
                scope: self.cache.resync_scope,
            }),
        };
        Ok(TopologyMatchSettings {
            strategy: match self.scoring_strategy.kind {
                TopologyStrategy::LeastAllocated => Some(ZoneStrategy::LeastAllocated),
                TopologyStrategy::MostAllocated => Some(ZoneStrategy::MostAllocated),
                TopologyStrategy::BalancedAllocation => Some(ZoneStrategy::BalancedAllocation),
                TopologyStrategy::LeastNumaNodes => None,
            },
            weights: weights.collect(),
            cache_mode,
        })
    }
}
