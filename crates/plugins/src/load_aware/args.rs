//! `LoadAwareSchedulingArgs`, and the thresholds that a node can override.

use super::load::{Dimensions, Limits};
use crate::common::args::invalid;
use koord_api::duration::GoDuration;
use koord_scheduler::framework::BuildError;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Percentages or weights by resource.
pub(super) type ByResource = BTreeMap<String, i64>;

/// LoadAwareSchedulingArgs, with upstream's defaults.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    pub filter_expired_node_metrics: bool,
    pub node_metric_expiration_seconds: i64,
    pub enable_schedule_when_node_metrics_expired: bool,
    pub resource_weights: ByResource,
    pub dominant_resource_weight: i64,
    pub usage_thresholds: ByResource,
    pub prod_usage_thresholds: ByResource,
    pub prod_usage_include_sys: bool,
    pub score_according_prod_usage: bool,
    pub estimator: String,
    pub estimated_scaling_factors: ByResource,
    pub estimated_seconds_after_pod_scheduled: Option<i64>,
    pub estimated_seconds_after_initialized: Option<i64>,
    pub allow_customize_estimation: bool,
    pub aggregated: Option<Aggregated>,
    /// Accepted and ignored: estimates cover every resource that has a scaling factor.
    #[allow(dead_code, reason = "accepted for compatibility")]
    pub supported_resources: Vec<String>,
}

/// Thresholds and scores by percentiles instead of means.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Aggregated {
    pub usage_thresholds: ByResource,
    pub usage_aggregation_type: String,
    pub usage_aggregated_duration: GoDuration,
    pub score_aggregation_type: String,
    pub score_aggregated_duration: GoDuration,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            filter_expired_node_metrics: true,
            node_metric_expiration_seconds: 180,
            enable_schedule_when_node_metrics_expired: false,
            resource_weights: ByResource::new(),
            dominant_resource_weight: 0,
            usage_thresholds: ByResource::new(),
            prod_usage_thresholds: ByResource::new(),
            prod_usage_include_sys: false,
            score_according_prod_usage: false,
            estimator: String::new(),
            estimated_scaling_factors: ByResource::new(),
            estimated_seconds_after_pod_scheduled: None,
            estimated_seconds_after_initialized: None,
            allow_customize_estimation: false,
            aggregated: None,
            supported_resources: Vec::new(),
        }
    }
}

fn pair(cpu: i64, memory: i64) -> ByResource {
    [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into()
}

impl Args {
    /// Fills in missing values.
    pub(super) fn complete(mut self) -> Self {
        if self.resource_weights.is_empty() && self.dominant_resource_weight == 0 {
            self.resource_weights = pair(1, 1);
        }
        if self.usage_thresholds.is_empty() {
            self.usage_thresholds = pair(65, 95);
        }
        for (name, factor) in pair(85, 70) {
            self.estimated_scaling_factors.entry(name).or_insert(factor);
        }
        self
    }

    /// Validates completed arguments.
    pub(super) fn validate(&self) -> Result<(), BuildError> {
        let within = |field: &str, values: &ByResource, low: i64| {
            for (name, value) in values {
                if !(low..=100).contains(value) {
                    return refuse(format!(
                        "{field}[{name}]: {value} is not within {low} and 100"
                    ));
                }
            }
            Ok(())
        };
        within("resourceWeights", &self.resource_weights, 1)?;
        within("usageThresholds", &self.usage_thresholds, 0)?;
        within("prodUsageThresholds", &self.prod_usage_thresholds, 0)?;
        within(
            "estimatedScalingFactors",
            &self.estimated_scaling_factors,
            1,
        )?;
        if !(0..=100).contains(&self.dominant_resource_weight) {
            let value = self.dominant_resource_weight;
            return refuse(format!(
                "dominantResourceWeight: {value} is not within 0 and 100"
            ));
        }
        if self.node_metric_expiration_seconds <= 0 {
            let value = self.node_metric_expiration_seconds;
            return refuse(format!(
                "nodeMetricExpirationSeconds: {value} must be above 0"
            ));
        }
        if !matches!(self.estimator.as_str(), "" | "defaultEstimator") {
            return refuse(format!(
                "estimator: {:?} is not supported, expected defaultEstimator",
                self.estimator
            ));
        }
        for name in self.resource_weights.keys() {
            if !self.estimated_scaling_factors.contains_key(name) {
                return refuse(format!(
                    "estimatedScalingFactors[{name}]: missing, {name} has a weight"
                ));
            }
        }
        if let Some(aggregated) = &self.aggregated {
            within(
                "aggregated.usageThresholds",
                &aggregated.usage_thresholds,
                0,
            )?;
            for (field, duration) in [
                (
                    "usageAggregatedDuration",
                    aggregated.usage_aggregated_duration,
                ),
                (
                    "scoreAggregatedDuration",
                    aggregated.score_aggregated_duration,
                ),
            ] {
                if duration < GoDuration::from_secs(0) {
                    return refuse(format!("aggregated.{field}: {duration} is below 0"));
                }
            }
            aggregation(
                "aggregated.usageAggregationType",
                &aggregated.usage_aggregation_type,
            )?;
            aggregation(
                "aggregated.scoreAggregationType",
                &aggregated.score_aggregation_type,
            )?;
        }
        Ok(())
    }
}

/// Checks an aggregation type.
fn aggregation(field: &str, kind: &str) -> Result<(), BuildError> {
    if matches!(kind, "" | "avg" | "p50" | "p90" | "p95" | "p99") {
        return Ok(());
    }
    refuse(format!(
        "{field}: {kind:?} is not one of avg, p50, p90, p95, p99"
    ))
}

/// Returns an error about the arguments.
fn refuse<T>(message: String) -> Result<T, BuildError> {
    Err(invalid(super::NAME, format!("args.{message}")))
}

/// Content of the node annotation `scheduling.koordinator.sh/usage-thresholds`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeThresholds {
    pub usage_thresholds: ByResource,
    pub prod_usage_thresholds: ByResource,
    pub aggregated_usage: Option<NodeAggregated>,
}

/// Field `aggregatedUsage` of the annotation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeAggregated {
    pub usage_thresholds: ByResource,
    pub usage_aggregation_type: String,
    pub usage_aggregated_duration: Option<GoDuration>,
}

/// Thresholds for aggregated usage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AggregatedThresholds {
    pub limits: Limits,
    pub kind: String,
    /// Aggregation window; zero selects the longest one in the report.
    pub duration: GoDuration,
}

/// Thresholds of one node.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Thresholds {
    pub usage: Limits,
    /// Thresholds for production pods; `None` applies `usage` or `aggregated` to them, too.
    pub prod: Option<Limits>,
    pub aggregated: Option<AggregatedThresholds>,
}

impl Thresholds {
    /// Returns the thresholds of a node: its own where it sets them, otherwise those of the arguments.
    pub(super) fn resolve(
        args: &Args,
        own: Option<&NodeThresholds>,
        dimensions: &Dimensions,
    ) -> Self {
        let limits_of = |list: &ByResource| (!list.is_empty()).then(|| dimensions.limits(list));
        let own_usage = own.and_then(|own| limits_of(&own.usage_thresholds));
        let own_prod = own.and_then(|own| limits_of(&own.prod_usage_thresholds));
        let own_aggregated = own.and_then(|own| own.aggregated_usage.as_ref());
        let own_aggregated = own_aggregated.and_then(|own| {
            let over = own.usage_aggregated_duration.unwrap_or_default();
            AggregatedThresholds::new(
                limits_of(&own.usage_thresholds),
                &own.usage_aggregation_type,
                over,
            )
        });
        let aggregated = || {
            let all = args.aggregated.as_ref()?;
            AggregatedThresholds::new(
                limits_of(&all.usage_thresholds),
                &all.usage_aggregation_type,
                all.usage_aggregated_duration,
            )
        };
        Self {
            usage: own_usage.unwrap_or_else(|| dimensions.limits(&args.usage_thresholds)),
            prod: own_prod.or_else(|| limits_of(&args.prod_usage_thresholds)),
            aggregated: own_aggregated.or_else(aggregated),
        }
    }
}

impl AggregatedThresholds {
    /// Creates thresholds for usage that is aggregated by `kind` (such as `p95`) over `duration`. `None` if
    /// there are no limits or `kind` is empty.
    fn new(limits: Option<Limits>, kind: &str, duration: GoDuration) -> Option<Self> {
        let limits = limits.filter(|_| !kind.is_empty())?;
        Some(Self {
            limits,
            kind: kind.to_owned(),
            duration,
        })
    }
}
