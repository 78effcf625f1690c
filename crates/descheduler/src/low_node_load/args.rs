//! `LowNodeLoadArgs`: with upstream's names and defaults, and one field of ours.

use crate::rules::{Choice, Namespaces, PodSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::duration::GoDuration;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Percentages by resource.
pub type Thresholds = BTreeMap<String, f64>;
/// Weights by resource.
pub type Weights = BTreeMap<String, i64>;

/// Name of the pool that the top level stands for.
pub const DEFAULT_POOL: &str = "__default_node_pool__";

/// The arguments, with their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "Written")]
pub struct Args {
    /// Whether nothing is looked at.
    pub paused: bool,
    /// Whether what would be moved is only shown.
    pub dry_run: bool,
    /// Nothing is moved unless more nodes than this are cold.
    pub number_of_nodes: i32,
    /// After how many seconds a NodeMetric is not believed any more.
    pub node_metric_expiration_seconds: i64,
    /// Whose pods may go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictable_namespaces: Option<Namespaces>,
    /// The nodes of the default pool; all without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Which pods may go: those that any selects.
    pub pod_selectors: Vec<PodSelector>,
    /// Whether a pod goes only if it fits a cold node.
    pub node_fit: bool,
    /// Whether thresholds are distances from the mean.
    pub use_deviation_thresholds: bool,
    /// Above any of these, a node is hot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_thresholds: Option<Thresholds>,
    /// Not above any of these, a node is cold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_thresholds: Option<Thresholds>,
    /// As `highThresholds`, for what pods of class prod use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_high_thresholds: Option<Thresholds>,
    /// As `lowThresholds`, for what pods of class prod use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_low_thresholds: Option<Thresholds>,
    /// How much resources matter.
    pub resource_weights: Weights,
    /// How long a node has to be hot.
    pub anomaly_condition: Condition,
    /// Accepted for compatibility: a node is retained_until as long as it exists.
    pub detector_cache_timeout: GoDuration,
    /// Further pools, in order.
    pub node_pools: Vec<Pool>,
    /// Which pods of a hot node go. Ours; upstream knows only `Greedy`.
    pub victim_selection: VictimSelection,
}

/// One pool of nodes. What is not given is as at the top level, once that is read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pool {
    /// What people call it.
    pub name: String,
    /// Its nodes; all without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<LabelSelector>,
    /// Whether thresholds are distances from the mean.
    pub use_deviation_thresholds: bool,
    /// As at the top level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_thresholds: Option<Thresholds>,
    /// As at the top level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_thresholds: Option<Thresholds>,
    /// As at the top level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_high_thresholds: Option<Thresholds>,
    /// As at the top level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prod_low_thresholds: Option<Thresholds>,
    /// As at the top level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_weights: Option<Weights>,
    /// As at the top level; numbers that are 0 too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anomaly_condition: Option<Condition>,
}

/// How long a node has to be hot until pods go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Condition {
    /// How long it is taken for one that has been hot for long; 0 is one minute.
    pub timeout: GoDuration,
    /// More cycles in a row than this; with 1 the first one will do.
    pub consecutive_abnormalities: u32,
    /// After more cycles in a row than this it no longer is.
    pub consecutive_normalities: u32,
}

/// Which of the pods go that matter equally little. Each goes once an hour at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum VictimSelection {
    /// Those that even the load of nodes out most, and only while what goes fits what takes.
    #[default]
    Variance,
    /// Upstream's: the one whose use is closest to what has to go, with upstream's accounts.
    Greedy,
}

/// As in a file: what is absent is told from what is zero.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Written {
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
    anomaly_condition: Option<Condition>,
    detector_cache_timeout: Option<GoDuration>,
    node_pools: Vec<Pool>,
    victim_selection: VictimSelection,
}

const BY_DEFAULT: Condition = Condition {
    timeout: GoDuration::from_mins(1),
    consecutive_abnormalities: 5,
    consecutive_normalities: 3,
};

impl From<Written> for Args {
    fn from(written: Written) -> Self {
        let condition = written.anomaly_condition.unwrap_or(BY_DEFAULT);
        let condition = condition.or(BY_DEFAULT);
        let given = [&written.low_thresholds, &written.high_thresholds];
        let given = given.into_iter().flatten().flat_map(BTreeMap::keys);
        let given = given.map(String::as_str).chain(["cpu", "memory"]);
        let mut weights = written.resource_weights.unwrap_or_default();
        for resource in given {
            match weights.get_mut(resource) {
                Some(weight) if *weight > 0 => {}
                Some(weight) => *weight = 1,
                None => {
                    weights.insert(resource.to_owned(), 1);
                }
            }
        }
        let mut pools = written.node_pools;
        for pool in &mut pools {
            inherit(&mut pool.high_thresholds, &written.high_thresholds);
            inherit(&mut pool.low_thresholds, &written.low_thresholds);
            inherit(
                &mut pool.prod_high_thresholds,
                &written.prod_high_thresholds,
            );
            inherit(&mut pool.prod_low_thresholds, &written.prod_low_thresholds);
            pool.resource_weights.get_or_insert_with(|| weights.clone());
            let own = pool.anomaly_condition.unwrap_or(condition);
            pool.anomaly_condition = Some(own.or(condition));
        }
        Self {
            paused: written.paused,
            dry_run: written.dry_run,
            number_of_nodes: written.number_of_nodes,
            node_metric_expiration_seconds: written.node_metric_expiration_seconds.unwrap_or(180),
            evictable_namespaces: written.evictable_namespaces,
            node_selector: written.node_selector,
            pod_selectors: written.pod_selectors,
            node_fit: written.node_fit.unwrap_or(true),
            use_deviation_thresholds: written.use_deviation_thresholds,
            high_thresholds: written.high_thresholds,
            low_thresholds: written.low_thresholds,
            prod_high_thresholds: written.prod_high_thresholds,
            prod_low_thresholds: written.prod_low_thresholds,
            resource_weights: weights,
            anomaly_condition: condition,
            detector_cache_timeout: written
                .detector_cache_timeout
                .unwrap_or(GoDuration::from_mins(5)),
            node_pools: pools,
            victim_selection: written.victim_selection,
        }
    }
}

fn inherit(own: &mut Option<Thresholds>, top: &Option<Thresholds>) {
    if own.is_none() {
        own.clone_from(top);
    }
}

impl Condition {
    /// How long a node is taken for one that has been hot for long.
    pub(super) fn timeout(&self) -> GoDuration {
        let given = Some(self.timeout).filter(|timeout| timeout.as_nanos() > 0);
        given.unwrap_or(BY_DEFAULT.timeout)
    }

    /// With a timeout of two cycles at least, of which one comes every `interval`.
    pub(super) fn lasting(mut self, interval: GoDuration) -> Self {
        let two = GoDuration::from_nanos(interval.as_nanos().saturating_mul(2));
        self.timeout = self.timeout().max(two);
        self
    }

    /// With `other`'s numbers in the place of those that are 0.
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
    /// The pools in their order: first the one that the top level stands for.
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

    /// Which pods may go.
    #[must_use]
    pub fn choice(&self) -> Choice {
        Choice {
            namespaces: self.evictable_namespaces.clone(),
            selectors: self.pod_selectors.clone(),
        }
    }

    /// Whether the values are allowed.
    ///
    /// # Errors
    /// The first that is not, with its field.
    pub fn check(&self) -> Result<(), String> {
        if self.number_of_nodes < 0 {
            let given = self.number_of_nodes;
            return Err(format!("numberOfNodes: {given} is below 0"));
        }
        if self.node_metric_expiration_seconds <= 0 {
            let given = self.node_metric_expiration_seconds;
            return Err(format!(
                "nodeMetricExpirationSeconds: {given} is not above 0"
            ));
        }
        self.choice().check()?;
        for (at, pool) in self.pools().iter().enumerate() {
            // The top level is the first of them, under its own names.
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
        pair(("lowThresholds", &low), ("highThresholds", &high), &empty)?;
        let (prod_lows, prod_highs) = ("prodLowThresholds", "prodHighThresholds");
        pair((prod_lows, &prod_low), (prod_highs, &prod_high), &high)?;
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

/// Checks low and high thresholds, of which no high one may be above that of the same resource in `ceiling`.
fn pair(
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
            // Without its other half a threshold would be 0, and every node over it, or 100, and none.
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
