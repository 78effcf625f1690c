//! Section `colocation-config`: the share of a node that the manager gives to batch and mid pods.

use super::check::Checker;
use super::sections::MAX_SECONDS;
use crate::duration::GoDuration;
use crate::field::FieldError;
use crate::serde_util::open_enum;
use crate::slo::{AggregatePolicy, ExtensionsMap, MemoryCollectPolicy};
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

open_enum! {
    /// Amount of higher-priority pods that is subtracted from the resources of batch pods.
    CalculatePolicy {
        /// Their usage.
        Usage = "usage",
        /// Their requests (memory only).
        Request = "request",
        /// The larger of usage and request, pod by pod.
        MaxUsageRequest = "maxUsageRequest",
    }
}

/// Value of [`ColocationStrategy::mid_reclaim_mode`] that sizes mid resources by fixed shares.
pub const MID_RECLAIM_STATIC: &str = "static";

/// Settings of the noderesource and NodeMetric controllers. Unset fields are inherited.
///
/// Percentages are whole percent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ColocationStrategy {
    /// True if batch and mid resources are published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Window of usage averages, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_aggregate_duration_seconds: Option<i64>,
    /// Time between NodeMetric reports, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_report_interval_seconds: Option<i64>,
    /// Windows of usage percentiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_aggregate_policy: Option<AggregatePolicy>,
    /// Memory that counts as used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_memory_collect_policy: Option<MemoryCollectPolicy>,
    /// Share of the node's CPU that all pods together may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_reclaim_threshold_percent: Option<i64>,
    /// Amount of higher-priority pods that is subtracted from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_calculate_policy: Option<CalculatePolicy>,
    /// Share of the node's memory that all pods together may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_reclaim_threshold_percent: Option<i64>,
    /// Amount of higher-priority pods that is subtracted from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_calculate_policy: Option<CalculatePolicy>,
    /// Age of a NodeMetric from which it counts as expired, in minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrade_time_minutes: Option<i64>,
    /// Longest time between two writes of the node status, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time_threshold_seconds: Option<i64>,
    /// Relative change of an amount that is written to the node status at once, in the range (0, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_diff_threshold: Option<f64>,
    /// Mode that sizes mid resources: `static`, or unset for the measured one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mid_reclaim_mode: Option<String>,
    /// Upper bound of mid CPU, percent of allocatable.
    #[serde(
        rename = "midCPUThresholdPercent",
        skip_serializing_if = "Option::is_none"
    )]
    pub mid_cpu_threshold_percent: Option<i64>,
    /// Upper bound of mid memory, percent of allocatable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mid_memory_threshold_percent: Option<i64>,
    /// Percentage of unallocated resources that is added to mid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mid_unallocated_percent: Option<i64>,
    /// CPU reserved from mid in static mode, percent.
    #[serde(
        rename = "midStaticCPUReservedPercent",
        skip_serializing_if = "Option::is_none"
    )]
    pub mid_static_cpu_reserved_percent: Option<i64>,
    /// Memory reserved from mid in static mode, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mid_static_memory_reserved_percent: Option<i64>,
    /// Upper bound of batch CPU, percent of allocatable; unset is no bound.
    #[serde(
        rename = "batchCPUThresholdPercent",
        skip_serializing_if = "Option::is_none"
    )]
    pub batch_cpu_threshold_percent: Option<i64>,
    /// Upper bound of batch memory, percent of allocatable; unset is no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_memory_threshold_percent: Option<i64>,
    /// Settings of third parties.
    #[serde(default, skip_serializing_if = "ExtensionsMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "crate::schema::free_form_object")
    )]
    pub extensions: ExtensionsMap,
}

/// Largest value of a setting in minutes: the maximum of upstream's durations. A value above a year makes
/// sense for `degradeTimeMinutes`, where it means never.
const MAX_MINUTES: i64 = i64::MAX / 1_000_000_000 / 60;

impl ColocationStrategy {
    /// Returns the defaults: disabled, 60 % CPU, 65 % memory, reports every minute.
    #[must_use]
    pub fn defaults() -> Self {
        Self {
            enable: Some(false),
            metric_aggregate_duration_seconds: Some(300),
            metric_report_interval_seconds: Some(60),
            metric_aggregate_policy: Some(AggregatePolicy {
                durations: [5, 10, 30].map(GoDuration::from_mins).to_vec(),
            }),
            metric_memory_collect_policy: Some(MemoryCollectPolicy::WithoutPageCache),
            cpu_reclaim_threshold_percent: Some(60),
            cpu_calculate_policy: Some(CalculatePolicy::Usage),
            memory_reclaim_threshold_percent: Some(65),
            memory_calculate_policy: Some(CalculatePolicy::Usage),
            degrade_time_minutes: Some(15),
            update_time_threshold_seconds: Some(300),
            resource_diff_threshold: Some(0.1),
            mid_reclaim_mode: None,
            mid_cpu_threshold_percent: Some(100),
            mid_memory_threshold_percent: Some(100),
            mid_unallocated_percent: Some(0),
            mid_static_cpu_reserved_percent: Some(0),
            mid_static_memory_reserved_percent: Some(0),
            batch_cpu_threshold_percent: None,
            batch_memory_threshold_percent: None,
            extensions: ExtensionsMap::new(),
        }
    }

    /// Returns true if co-location is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enable == Some(true)
    }

    /// Returns the values that the controllers cannot work with. The bounds are those of upstream's
    /// controllers, except two: the bounds that prevent overflow of durations are added, and the upper bound
    /// of `resourceDiffThreshold` is that of upstream's webhook.
    #[must_use]
    pub fn violations(&self) -> Vec<FieldError> {
        let mut check = Checker::default();
        check.within(
            "metricAggregateDurationSeconds",
            self.metric_aggregate_duration_seconds,
            1,
            MAX_SECONDS,
        );
        check.within(
            "metricReportIntervalSeconds",
            self.metric_report_interval_seconds,
            1,
            MAX_SECONDS,
        );
        check.at_least(
            "cpuReclaimThresholdPercent",
            self.cpu_reclaim_threshold_percent,
            0,
        );
        check.at_least(
            "memoryReclaimThresholdPercent",
            self.memory_reclaim_threshold_percent,
            0,
        );
        check.within(
            "degradeTimeMinutes",
            self.degrade_time_minutes,
            1,
            MAX_MINUTES,
        );
        check.within(
            "updateTimeThresholdSeconds",
            self.update_time_threshold_seconds,
            1,
            MAX_SECONDS,
        );
        if let Some(threshold) = self.resource_diff_threshold
            && !(threshold > 0.0 && threshold <= 1.0)
        {
            let reason = "must be more than 0 and at most 1";
            check.fail(
                "resourceDiffThreshold",
                &format_args!("{threshold:?}"),
                reason,
            );
        }
        if let Some(policy) = &self.metric_memory_collect_policy
            && policy.as_str().is_empty()
        {
            check.fail("metricMemoryCollectPolicy", &"\"\"", "must not be empty");
        }
        check.within(
            "midCPUThresholdPercent",
            self.mid_cpu_threshold_percent,
            0,
            100,
        );
        check.within(
            "midMemoryThresholdPercent",
            self.mid_memory_threshold_percent,
            0,
            100,
        );
        check.within(
            "midUnallocatedPercent",
            self.mid_unallocated_percent,
            0,
            100,
        );
        check.at_least(
            "midStaticCPUReservedPercent",
            self.mid_static_cpu_reserved_percent,
            0,
        );
        check.at_least(
            "midStaticMemoryReservedPercent",
            self.mid_static_memory_reserved_percent,
            0,
        );
        check.at_least(
            "batchCPUThresholdPercent",
            self.batch_cpu_threshold_percent,
            0,
        );
        check.at_least(
            "batchMemoryThresholdPercent",
            self.batch_memory_threshold_percent,
            0,
        );
        check.finish()
    }

    /// Returns the settings that have another effect than expected.
    pub(super) fn remarks(&self) -> Vec<FieldError> {
        let mut check = Checker::default();
        for (field, percent) in [
            (
                "cpuReclaimThresholdPercent",
                self.cpu_reclaim_threshold_percent,
            ),
            (
                "memoryReclaimThresholdPercent",
                self.memory_reclaim_threshold_percent,
            ),
            ("batchCPUThresholdPercent", self.batch_cpu_threshold_percent),
            (
                "batchMemoryThresholdPercent",
                self.batch_memory_threshold_percent,
            ),
        ] {
            if let Some(percent) = percent.filter(|percent| *percent > 100) {
                let reason = "it is more than 100; batch resources never exceed the node";
                check.fail(field, &percent, reason);
            }
        }
        if self.cpu_calculate_policy == Some(CalculatePolicy::Request) {
            let reason = "it is none of usage, maxUsageRequest; usage is taken";
            check.fail("cpuCalculatePolicy", &"\"request\"", reason);
        }
        check.finish()
    }

    /// Returns the violations that the ConfigMap webhook rejects: [`ColocationStrategy::violations`] and
    /// those of tighter bounds.
    #[must_use]
    pub fn admission_violations(&self) -> Vec<FieldError> {
        let mut check = Checker::from(self.violations());
        for (field, value) in [
            (
                "midStaticCPUReservedPercent",
                self.mid_static_cpu_reserved_percent,
            ),
            (
                "midStaticMemoryReservedPercent",
                self.mid_static_memory_reserved_percent,
            ),
        ] {
            check.at_most(field, value, 100);
        }
        check.finish()
    }
}
