//! `NodeResourceTopologyMatchArgs`.

use super::NAME;
use crate::common::args::invalid;
use koord_model::alignment::Strategy;
use koord_scheduler::framework::BuildError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The plugin's arguments.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    scoring_strategy: Scoring,
    cache_resync_period_seconds: i64,
    discard_reserved_nodes: bool,
    cache: Cache,
    preemption_mode: PreemptionMode,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Scoring {
    #[serde(rename = "type")]
    kind: Kind,
    resources: Vec<ResourceSpec>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
enum Kind {
    #[default]
    LeastAllocated,
    MostAllocated,
    BalancedAllocation,
    #[serde(rename = "LeastNUMANodes")]
    LeastNumaNodes,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResourceSpec {
    name: String,
    #[serde(default)]
    weight: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Cache {
    foreign_pods_detect: ForeignPods,
    resync_method: ResyncMethod,
    informer_mode: InformerMode,
    resync_scope: ResyncScope,
}

/// Which pods of other schedulers make a node's report doubtful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum ForeignPods {
    None,
    #[default]
    All,
    OnlyExclusiveResources,
}

/// Which pods a fingerprint is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum ResyncMethod {
    /// As the report says, else all.
    #[default]
    Autodetect,
    All,
    OnlyExclusiveResources,
}

/// Which pods an exporter sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum InformerMode {
    /// Those that run.
    Shared,
    /// Those that run, and, with kubelets before 1.34, those that have ended and are still there.
    #[default]
    Dedicated,
}

/// What of a report is taken over before its fingerprint is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) enum ResyncScope {
    /// How the kubelet is configured.
    #[default]
    All,
    /// Nothing.
    OnlyResources,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
enum PreemptionMode {
    #[default]
    Disabled,
    Enabled,
}

/// The arguments, ready for use.
#[derive(Debug)]
pub(super) struct Settings {
    /// `None`: the fewest NUMA nodes.
    pub(super) strategy: Option<Strategy>,
    /// By resource name, those that are not 1.
    pub(super) weights: BTreeMap<String, i64>,
    pub(super) books: Books,
}

/// What is remembered of placements that a report does not show yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Books {
    /// Nothing.
    None,
    /// That a pod is about to be bound: the node takes no other meanwhile.
    Discard,
    /// What pods need, until a report has counted them.
    OverReserve(OverReserve),
}

/// How a report is found to have counted pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverReserve {
    /// A report that has not counted them after ten of these is complained about.
    pub(super) period: Duration,
    pub(super) foreign: ForeignPods,
    pub(super) method: ResyncMethod,
    pub(super) informer: InformerMode,
    pub(super) scope: ResyncScope,
}

impl Args {
    /// Checks what the types do not.
    ///
    /// # Errors
    /// Names the field and the value.
    pub(super) fn settings(self) -> Result<Settings, BuildError> {
        let period = self.cache_resync_period_seconds;
        let period = u64::try_from(period).map_err(|_| {
            let message = format!("args.cacheResyncPeriodSeconds: {period} is below 0");
            invalid(NAME, message)
        })?;
        if self.preemption_mode == PreemptionMode::Enabled {
            tracing::warn!(
                "{NAME}: args.preemptionMode: Enabled has no effect: what an evicted pod would give \
                 back to which NUMA node is not known"
            );
        }
        let weights = self.scoring_strategy.resources.into_iter();
        // A weight below 1 counts as 1.
        let weights = weights
            .map(|spec| (spec.name, spec.weight))
            .filter(|(_, weight)| *weight > 1);
        let books = match (self.discard_reserved_nodes, period) {
            (true, _) => Books::Discard,
            (false, 0) => Books::None,
            (false, seconds) => Books::OverReserve(OverReserve {
                period: Duration::from_secs(seconds),
                foreign: self.cache.foreign_pods_detect,
                method: self.cache.resync_method,
                informer: self.cache.informer_mode,
                scope: self.cache.resync_scope,
            }),
        };
        Ok(Settings {
            strategy: match self.scoring_strategy.kind {
                Kind::LeastAllocated => Some(Strategy::LeastAllocated),
                Kind::MostAllocated => Some(Strategy::MostAllocated),
                Kind::BalancedAllocation => Some(Strategy::BalancedAllocation),
                Kind::LeastNumaNodes => None,
            },
            weights: weights.collect(),
            books,
        })
    }
}
