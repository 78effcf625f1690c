//! `LowNodeLoadArgs`, with upstream's names and defaults, and one additional field.

use crate::rules::{Namespaces, PodSelection, PodSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::duration::GoDuration;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Percentages by resource name.
pub type Thresholds = BTreeMap<String, f64>;
/// Weights by resource name.
pub type Weights = BTreeMap<String, i64>;

/// Name of the default pool, which the top-level fields define.
pub const DEFAULT_POOL: &str = "__default_node_pool__";

/// The arguments with their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "RawArgs")]
pub struct Args {
    /// True if the plugin does nothing.
    pub paused: bool,
    /// True if moves are only shown.
    pub dry_run: bool,
    /// Moves require more cold nodes than this.
    pub number_of_nodes: i32,
    /// Expiration time of a NodeMetric in seconds.
    pub node_metric_expiration_seconds: i64,
    /// Namespaces whose pods may be evicted; all without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictable_namespaces: Option<Namespaces>,
    /// Selector of the nodes of the default pool; all nodes without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Selectors of the pods that may be evicted, of which one must match.
    pub pod_selectors: Vec<PodSelector>,
    /// True if a pod is evicted only if it fits a cold node.
    pub node_fit: bool,
    /// True if thresholds are distances from the mean usage.
    pub use_deviation_thresholds: bool,
    /// A node with any usage above these thresholds is hot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_thresholds: Option<Thresholds>,
    /// A node with no usage above these thresholds is cold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_thresholds: Option<Thresholds>,
    /// Equivalent of `highThresholds` for the usage of pods of priority class prod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_high_thresholds: Option<Thresholds>,
    /// Equivalent of `lowThresholds` for the usage of pods of priority class prod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_low_thresholds: Option<Thresholds>,
    /// Weights of resources in node scores.
    pub resource_weights: Weights,
    /// Condition for evictions: the time that a node has to be hot.
    pub anomaly_condition: AnomalyCondition,
    /// Accepted for compatibility: the detector of a node is kept as long as the node exists.
    pub detector_cache_timeout: GoDuration,
    /// Further pools, in order.
    pub node_pools: Vec<Pool>,
    /// Strategy to select the pods of a hot node. Not in upstream, which only has `Greedy`.
    pub victim_selection: VictimSelection,
}

/// A pool of nodes. Absent fields are inherited from the top level when the arguments are decoded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pool {
    /// Name for users.
    pub name: String,
    /// Selector of its nodes; all nodes without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// True if thresholds are distances from the mean usage.
    pub use_deviation_thresholds: bool,
    /// `highThresholds` of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_thresholds: Option<Thresholds>,
    /// `lowThresholds` of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_thresholds: Option<Thresholds>,
    /// `prodHighThresholds` of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_high_thresholds: Option<Thresholds>,
    /// `prodLowThresholds` of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_low_thresholds: Option<Thresholds>,
    /// `resourceWeights` of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_weights: Option<Weights>,
    /// `anomalyCondition` of the pool; numbers that are 0 are inherited, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anomaly_condition: Option<AnomalyCondition>,
}

/// Condition for evictions: the time that a node has to be hot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AnomalyCondition {
    /// Time for which a node stays classified as hot for long enough; 0 for one minute.
    pub timeout: GoDuration,
    /// Number of consecutive hot cycles that must be exceeded; with 1 the first one is enough.
    pub consecutive_abnormalities: u32,
    /// Number of consecutive cycles without being hot after which, if exceeded, the classification ends.
    pub consecutive_normalities: u32,
}

/// Selection among pods of equal urgency. Each pod is moved at most once per hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum VictimSelection {
    /// The pods that reduce the variance of node usage most, only as long as the target nodes have capacity.
    #[default]
    Variance,
    /// Upstream's strategy: the pod whose usage is closest to the excess, with upstream's accounting.
    Greedy,
}

/// The arguments as in the file: absent values are distinguished from zeros.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawArgs {
    paused: bool,
    dry_run: bool,
    number_of_nodes: i32,
    node_metric_expiration_seconds: Option<i64>,
    evictable_namespaces: Option<Namespaces>,
    node_selector: Option<LabelSelector>,
    pod_selectors: Vec<PodSelector>,
    node_fit: Option<bool>,
    use_deviation_thresholds: bool,
    high_thresholds: Option<Thresholds>,
    low_thresholds: Option<Thresholds>,
    prod_high_thresholds: Option<Thresholds>,
    prod_low_thresholds: Option<Thresholds>,
    resource_weights: Option<Weights>,
    anomaly_condition: Option<AnomalyCondition>,
    detector_cache_timeout: Option<GoDuration>,
    node_pools: Vec<Pool>,
    victim_selection: VictimSelection,
}

const BY_DEFAULT: AnomalyCondition = AnomalyCondition {
    timeout: GoDuration::from_mins(1),
    consecutive_abnormalities: 5,
    consecutive_normalities: 3,
};

impl From<RawArgs> for Args {
    fn from(raw: RawArgs) -> Self {
        let condition = raw.anomaly_condition.unwrap_or(BY_DEFAULT);
        let condition = condition.or(BY_DEFAULT);
        let configured = [&raw.low_thresholds, &raw.high_thresholds];
        let configured = configured.into_iter().flatten().flat_map(BTreeMap::keys);
        let configured = configured.map(String::as_str).chain(["cpu", "memory"]);
        let mut weights = raw.resource_weights.unwrap_or_default();
        for resource in configured {
            match weights.get_mut(resource) {
                Some(weight) if *weight > 0 => {}
                Some(weight) => *weight = 1,
                None => {
                    weights.insert(resource.to_owned(), 1);
                }
            }
        }
        let mut pools = raw.node_pools;
        for pool in &mut pools {
            inherit(&mut pool.high_thresholds, &raw.high_thresholds);
            inherit(&mut pool.low_thresholds, &raw.low_thresholds);
            inherit(&mut pool.prod_high_thresholds, &raw.prod_high_thresholds);
            inherit(&mut pool.prod_low_thresholds, &raw.prod_low_thresholds);
            pool.resource_weights.get_or_insert_with(|| weights.clone());
            let own = pool.anomaly_condition.unwrap_or(condition);
            pool.anomaly_condition = Some(own.or(condition));
        }
        Self {
            paused: raw.paused,
            dry_run: raw.dry_run,
            number_of_nodes: raw.number_of_nodes,
            node_metric_expiration_seconds: raw.node_metric_expiration_seconds.unwrap_or(180),
            evictable_namespaces: raw.evictable_namespaces,
            node_selector: raw.node_selector,
            pod_selectors: raw.pod_selectors,
            node_fit: raw.node_fit.unwrap_or(true),
            use_deviation_thresholds: raw.use_deviation_thresholds,
            high_thresholds: raw.high_thresholds,
            low_thresholds: raw.low_thresholds,
            prod_high_thresholds: raw.prod_high_thresholds,
            prod_low_thresholds: raw.prod_low_thresholds,
            resource_weights: weights,
            anomaly_condition: condition,
            detector_cache_timeout: raw
                .detector_cache_timeout
                .unwrap_or(GoDuration::from_mins(5)),
            node_pools: pools,
            victim_selection: raw.victim_selection,
        }
    }
}

fn inherit(own: &mut Option<Thresholds>, top: &Option<Thresholds>) {
    if own.is_none() {
        own.clone_from(top);
    }
}

impl AnomalyCondition {
    /// Returns the time after which the classification of a node as hot for long enough ends; one minute if
    /// it is not configured.
    pub(super) fn timeout(&self) -> GoDuration {
        let configured = Some(self.timeout).filter(|timeout| timeout.as_nanos() > 0);
        configured.unwrap_or(BY_DEFAULT.timeout)
    }

    /// Extends the timeout to at least two cycles of length `interval`.
    pub(super) fn with_min_timeout(mut self, interval: GoDuration) -> Self {
        let two = GoDuration::from_nanos(interval.as_nanos().saturating_mul(2));
        self.timeout = self.timeout().max(two);
        self
    }

    /// Replaces numbers that are 0 by those of `other`.
    fn or(mut self, other: Self) -> Self {
        if self.consecutive_abnormalities == 0 {
            self.consecutive_abnormalities = other.consecutive_abnormalities;
        }
        if self.consecutive_normalities == 0 {
            self.consecutive_normalities = other.consecutive_normalities;
        }
        self
    }
}

impl Args {
    /// Returns the pools in order, with the default pool first.
    #[must_use]
    pub fn pools(&self) -> Vec<Pool> {
        let top = Pool {
            name: DEFAULT_POOL.to_owned(),
            node_selector: self.node_selector.clone(),
            use_deviation_thresholds: self.use_deviation_thresholds,
            high_thresholds: self.high_thresholds.clone(),
            low_thresholds: self.low_thresholds.clone(),
            prod_high_thresholds: self.prod_high_thresholds.clone(),
            prod_low_thresholds: self.prod_low_thresholds.clone(),
            resource_weights: Some(self.resource_weights.clone()),
            anomaly_condition: Some(self.anomaly_condition),
        };
        let mut pools = vec![top];
        pools.extend(self.node_pools.iter().cloned());
        pools
    }

    /// Returns the selection of pods that may be evicted.
    #[must_use]
    pub fn selection(&self) -> PodSelection {
        PodSelection {
            namespaces: self.evictable_namespaces.clone(),
            selectors: self.pod_selectors.clone(),
        }
    }

    /// Validates the values.
    ///
    /// # Errors
    /// Returns the first field with an invalid value.
    pub fn check(&self) -> Result<(), String> {
        if self.number_of_nodes < 0 {
            let value = self.number_of_nodes;
            return Err(format!("numberOfNodes: {value} is below 0"));
        }
        if self.node_metric_expiration_seconds <= 0 {
            let value = self.node_metric_expiration_seconds;
            return Err(format!(
                "nodeMetricExpirationSeconds: {value} is not above 0"
            ));
        }
        self.selection().check()?;
        for (at, pool) in self.pools().iter().enumerate() {
            // The first pool is the top level, which has no path prefix.
            pool.check().map_err(|problem| match at.checked_sub(1) {
                None => problem,
                Some(at) => format!("nodePools[{at}].{problem}"),
            })?;
        }
        Ok(())
    }
}

impl Pool {
    fn check(&self) -> Result<(), String> {
        let empty = Thresholds::new();
        let all = |thresholds: &'_ Option<Thresholds>| thresholds.clone().unwrap_or_default();
        let (low, high) = (all(&self.low_thresholds), all(&self.high_thresholds));
        let (prod_low, prod_high) = (
            all(&self.prod_low_thresholds),
            all(&self.prod_high_thresholds),
        );
        check_thresholds(("lowThresholds", &low), ("highThresholds", &high), &empty)?;
        let (prod_lows, prod_highs) = ("prodLowThresholds", "prodHighThresholds");
        check_thresholds((prod_lows, &prod_low), (prod_highs, &prod_high), &high)?;
        let condition = self.anomaly_condition.unwrap_or(BY_DEFAULT);
        let counts = [
            (
                "consecutiveAbnormalities",
                condition.consecutive_abnormalities,
            ),
            ("consecutiveNormalities", condition.consecutive_normalities),
        ];
        match counts.iter().find(|(_, count)| *count == 0) {
            Some((field, _)) => Err(format!("anomalyCondition.{field}: 0 is not above 0")),
            None => Ok(()),
        }
    }
}

/// Checks a pair of fields, given by name and value: both name the same resources, and no low threshold exceeds
/// the high one, nor a high one that of its resource in `ceiling`.
fn check_thresholds(
    (lows, low): (&str, &Thresholds),
    (highs, high): (&str, &Thresholds),
    ceiling: &Thresholds,
) -> Result<(), String> {
    for (field, thresholds) in [(lows, low), (highs, high)] {
        let bad = thresholds
            .iter()
            .find(|(_, percent)| !percent.is_finite() || **percent < 0.0);
        if let Some((resource, percent)) = bad {
            return Err(format!(
                "{field}.{resource}: {percent} is no percentage of 0 or more"
            ));
        }
    }
    let resources: BTreeSet<_> = low.keys().chain(high.keys()).collect();
    for resource in resources {
        match (low.get(resource), high.get(resource)) {
            (Some(low), Some(high)) if low > high => {
                return Err(format!("{lows}.{resource}: {low} is above {highs} {high}"));
            }
            // With only one of the two, the other one would be 0, exceeded by every node, or 100, exceeded by
            // none.
            (Some(_), None) => {
                return Err(format!("{lows}.{resource}: {highs} has no {resource}"));
            }
            (None, Some(_)) => {
                return Err(format!("{highs}.{resource}: {lows} has no {resource}"));
            }
            _ => {}
        }
        if let (Some(high), Some(ceiling)) = (high.get(resource), ceiling.get(resource))
            && high > ceiling
        {
            return Err(format!(
                "{highs}.{resource}: {high} is above highThresholds {ceiling}"
            ));
        }
    }
    Ok(())
}
