//! Bounds of the sections that end up in a NodeSLO, and the strategies that only live in the ConfigMap.
//!
//! The bounds are the validation tags of upstream's types, enforced by its ConfigMap webhook.

use super::check::Checker;
use crate::extension::MAX_AMPLIFICATION;
use crate::field::FieldError;
use crate::slo::{
    CPUBurstStrategy, HostApplicationSpec, ResourceQOS, ResourceQOSStrategy,
    ResourceThresholdStrategy, SystemStrategy,
};
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest value of a setting in seconds: one year. Larger values overflow in duration arithmetic.
pub(super) const MAX_SECONDS: i64 = 365 * 24 * 60 * 60;

/// Returns the violations for which the ConfigMap webhook rejects `resource-threshold-config`.
#[must_use]
pub fn threshold_violations(strategy: &ResourceThresholdStrategy) -> Vec<FieldError> {
    check_threshold(strategy).finish()
}

/// Checks `resource-threshold-config`.
pub(super) fn check_threshold(strategy: &ResourceThresholdStrategy) -> Checker {
    let s = strategy;
    let mut check = Checker::default();
    for (field, value) in [
        (
            "cpuSuppressThresholdPercent",
            s.cpu_suppress_threshold_percent,
        ),
        ("cpuSuppressMinPercent", s.cpu_suppress_min_percent),
        (
            "memoryEvictThresholdPercent",
            s.memory_evict_threshold_percent,
        ),
        ("memoryEvictLowerPercent", s.memory_evict_lower_percent),
        (
            "cpuEvictBESatisfactionUpperPercent",
            s.cpu_evict_be_satisfaction_upper_percent,
        ),
        (
            "cpuEvictBESatisfactionLowerPercent",
            s.cpu_evict_be_satisfaction_lower_percent,
        ),
        (
            "cpuEvictBEUsageThresholdPercent",
            s.cpu_evict_be_usage_threshold_percent,
        ),
        ("cpuEvictThresholdPercent", s.cpu_evict_threshold_percent),
        ("cpuEvictLowerPercent", s.cpu_evict_lower_percent),
    ] {
        check.within(field, value, 0, 100);
    }
    for (field, value) in [
        (
            "memoryAllocatableEvictThresholdPercent",
            s.memory_allocatable_evict_threshold_percent,
        ),
        (
            "memoryAllocatableEvictLowerPercent",
            s.memory_allocatable_evict_lower_percent,
        ),
        (
            "cpuAllocatableEvictThresholdPercent",
            s.cpu_allocatable_evict_threshold_percent,
        ),
        (
            "cpuAllocatableEvictLowerPercent",
            s.cpu_allocatable_evict_lower_percent,
        ),
    ] {
        check.at_least(field, value, 0);
    }
    check.within(
        "cpuEvictTimeWindowSeconds",
        s.cpu_evict_time_window_seconds,
        1,
        MAX_SECONDS,
    );
    check.within(
        "allocatableEvictPriorityThreshold",
        s.allocatable_evict_priority_threshold.map(i64::from),
        0,
        7999,
    );
    check.ordered(
        (
            "memoryEvictThresholdPercent",
            s.memory_evict_threshold_percent,
            Some(70),
        ),
        (
            "memoryEvictLowerPercent",
            s.memory_evict_lower_percent,
            None,
        ),
    );
    check.ordered(
        (
            "memoryAllocatableEvictThresholdPercent",
            s.memory_allocatable_evict_threshold_percent,
            Some(110),
        ),
        (
            "memoryAllocatableEvictLowerPercent",
            s.memory_allocatable_evict_lower_percent,
            Some(100),
        ),
    );
    check.ordered(
        (
            "cpuEvictThresholdPercent",
            s.cpu_evict_threshold_percent,
            None,
        ),
        ("cpuEvictLowerPercent", s.cpu_evict_lower_percent, None),
    );
    check.ordered(
        (
            "cpuAllocatableEvictThresholdPercent",
            s.cpu_allocatable_evict_threshold_percent,
            Some(110),
        ),
        (
            "cpuAllocatableEvictLowerPercent",
            s.cpu_allocatable_evict_lower_percent,
            Some(100),
        ),
    );
    check.ordered(
        (
            "cpuEvictBESatisfactionUpperPercent",
            s.cpu_evict_be_satisfaction_upper_percent,
            None,
        ),
        (
            "cpuEvictBESatisfactionLowerPercent",
            s.cpu_evict_be_satisfaction_lower_percent,
            None,
        ),
    );
    check
}

/// Returns the violations for which the ConfigMap webhook rejects `resource-qos-config`, class by class.
#[must_use]
pub fn qos_violations(strategy: &ResourceQOSStrategy) -> Vec<FieldError> {
    check_qos(strategy).finish()
}

/// Checks `resource-qos-config`.
pub(super) fn check_qos(strategy: &ResourceQOSStrategy) -> Checker {
    let mut check = Checker::default();
    for (name, class) in [
        ("lsrClass", &strategy.lsr_class),
        ("lsClass", &strategy.ls_class),
        ("beClass", &strategy.be_class),
        ("systemClass", &strategy.system_class),
        ("cgroupRoot", &strategy.cgroup_root),
    ] {
        if let Some(class) = class {
            check.nested(name, |check| class_violations(check, class));
        }
    }
    check
}

/// Checks the bounds of the settings of one QoS class.
fn class_violations(check: &mut Checker, class: &ResourceQOS) {
    if let Some(cpu) = &class.cpu_qos {
        check.nested("cpuQOS", |check| {
            check.within("groupIdentity", cpu.group_identity, -1, 2);
            check.within("schedIdle", cpu.sched_idle, 0, 1);
        });
    }
    if let Some(memory) = &class.memory_qos {
        check.nested("memoryQOS", |check| {
            check.within("minLimitPercent", memory.min_limit_percent, 0, 100);
            check.within("lowLimitPercent", memory.low_limit_percent, 0, 100);
            check.within("throttlingPercent", memory.throttling_percent, 0, 100);
            check.within("wmarkRatio", memory.wmark_ratio, 0, 100);
            check.within("wmarkScalePermill", memory.wmark_scale_permill, 1, 1000);
            check.within("wmarkMinAdj", memory.wmark_min_adj, -25, 50);
            check.within("priorityEnable", memory.priority_enable, 0, 1);
            check.within("priority", memory.priority, 0, 12);
            check.within("oomKillGroup", memory.oom_kill_group, 0, 1);
            check.within(
                "pageCacheLimitPercent",
                memory.page_cache_limit_percent,
                0,
                100,
            );
        });
    }
    if let Some(resctrl) = &class.resctrl_qos {
        check.nested("resctrlQOS", |check| {
            check.within(
                "catRangeStartPercent",
                resctrl.cat_range_start_percent,
                0,
                100,
            );
            check.within("catRangeEndPercent", resctrl.cat_range_end_percent, 0, 100);
            check.within("mbaPercent", resctrl.mba_percent, 0, 100);
            check.ordered(
                (
                    "catRangeEndPercent",
                    resctrl.cat_range_end_percent,
                    Some(100),
                ),
                (
                    "catRangeStartPercent",
                    resctrl.cat_range_start_percent,
                    None,
                ),
            );
        });
    }
}

/// Returns the violations for which the ConfigMap webhook rejects `cpu-burst-config`.
#[must_use]
pub fn burst_violations(strategy: &CPUBurstStrategy) -> Vec<FieldError> {
    check_burst(strategy).finish()
}

/// Checks `cpu-burst-config`.
pub(super) fn check_burst(strategy: &CPUBurstStrategy) -> Checker {
    let mut check = Checker::default();
    check.within("cpuBurstPercent", strategy.cpu_burst_percent, 1, 10000);
    check.at_least(
        "cfsQuotaBurstPercent",
        strategy.cfs_quota_burst_percent,
        100,
    );
    check.within(
        "cfsQuotaBurstPeriodSeconds",
        strategy.cfs_quota_burst_period_seconds,
        -1,
        MAX_SECONDS,
    );
    check.within(
        "sharePoolThresholdPercent",
        strategy.share_pool_threshold_percent,
        0,
        100,
    );
    check
}

/// Returns the violations for which the ConfigMap webhook rejects `system-config`.
#[must_use]
pub fn system_violations(strategy: &SystemStrategy) -> Vec<FieldError> {
    check_system(strategy).finish()
}

/// Checks `system-config`.
pub(super) fn check_system(strategy: &SystemStrategy) -> Checker {
    let mut check = Checker::default();
    check.at_least("minFreeKbytesFactor", strategy.min_free_kbytes_factor, 1);
    check.within(
        "watermarkScaleFactor",
        strategy.watermark_scale_factor,
        1,
        400,
    );
    check.within("memcgReapBackGround", strategy.memcg_reap_back_ground, 0, 1);
    check.within(
        "pageCacheLimitEnabled",
        strategy.page_cache_limit_enabled,
        0,
        1,
    );
    if let Some(bandwidth) = strategy.total_network_bandwidth
        && bandwidth.signum() < 0
    {
        let value = format!("{:?}", bandwidth.to_string());
        check.fail("totalNetworkBandwidth", &value, "must be at least 0");
    }
    check
}

/// Section `host-application-config`: the host applications of a node. The list is always serialized, so that
/// an empty list of an override replaces the list of the cluster.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostApplications {
    /// The applications.
    #[serde(default)]
    pub applications: Vec<HostApplicationSpec>,
}

/// Section `cpu-normalization-config`: the relative speed of CPU models.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CPUNormalizationStrategy {
    /// True if CPU normalization is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Ratio of models that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_ratio: Option<f64>,
    /// Ratios by CPU model name, as in `/proc/cpuinfo`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ratio_model: BTreeMap<String, ModelRatioCfg>,
}

impl CPUNormalizationStrategy {
    /// Returns the defaults: normalization is off.
    #[must_use]
    pub fn defaults() -> Self {
        Self {
            enable: Some(false),
            ..Self::default()
        }
    }

    /// Returns the ratios that are not positive and finite.
    #[must_use]
    pub fn violations(&self) -> Vec<FieldError> {
        self.check().finish()
    }

    pub(super) fn check(&self) -> Checker {
        let mut check = Checker::default();
        positive(&mut check, "defaultRatio", self.default_ratio);
        for (model, ratios) in &self.ratio_model {
            check.nested("ratioModel", |check| {
                check.nested(model, |check| {
                    positive(check, "baseRatio", ratios.base_ratio);
                    positive(
                        check,
                        "hyperThreadEnabledRatio",
                        ratios.hyper_thread_enabled_ratio,
                    );
                    positive(check, "turboEnabledRatio", ratios.turbo_enabled_ratio);
                    positive(
                        check,
                        "hyperThreadTurboEnabledRatio",
                        ratios.hyper_thread_turbo_enabled_ratio,
                    );
                });
            });
        }
        check
    }
}

fn positive(check: &mut Checker, field: &str, value: Option<f64>) {
    if let Some(value) = value
        && !(value.is_finite() && value > 0.0)
    {
        check.fail(field, &value, "must be more than 0");
    }
}

/// Speed of one CPU model relative to the reference model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ModelRatioCfg {
    /// Ratio with hyper-threading and turbo off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ratio: Option<f64>,
    /// Ratio with hyper-threading on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyper_thread_enabled_ratio: Option<f64>,
    /// Ratio with turbo on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turbo_enabled_ratio: Option<f64>,
    /// Ratio with hyper-threading and turbo on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyper_thread_turbo_enabled_ratio: Option<f64>,
}

/// Section `resource-amplification-config`: factors by which nodes publish more of a resource than they have.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceAmplificationStrategy {
    /// True if amplification is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Factor by resource name, from 1 to 100; 1 has no effect.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resource_amplification_ratio: BTreeMap<String, f64>,
}

impl ResourceAmplificationStrategy {
    /// Checks the factors. No node is amplified by a factor outside of these bounds.
    pub(super) fn check(&self) -> Checker {
        let mut check = Checker::default();
        check.nested("resourceAmplificationRatio", |check| {
            for (resource, ratio) in &self.resource_amplification_ratio {
                if !(1.0..=MAX_AMPLIFICATION).contains(ratio) {
                    let reason = format!("must be from 1 to {MAX_AMPLIFICATION}");
                    check.fail(resource, &format_args!("{ratio:?}"), reason);
                }
            }
        });
        check
    }

    /// Returns the defaults: amplification is off.
    #[must_use]
    pub fn defaults() -> Self {
        Self {
            enable: Some(false),
            ..Self::default()
        }
    }
}
