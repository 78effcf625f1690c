//! The settings of the node: a NodeSLO with its defaults filled in.
//!
//! Besides upstream's fields, one extension is read: `spec.extensions.cpuSuppress`
//! (ConfigMap key `cpu-suppress-config`), for example `{"mode":"upstream","beCPUIdle":false}`.
//! `mode` is `pressure` or `upstream`; see [`SuppressMode`].

use koord_api::slo::{CPUSuppressPolicy, NodeSLOSpec, ResourceThresholdStrategy};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// The key below `spec.extensions` that holds a [`SuppressExtension`].
pub const SUPPRESS_EXTENSION: &str = "cpuSuppress";

/// How batch work is kept from disturbing services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuppressMode {
    /// On weight alone while the services' pressure is at its baseline; capped at the configured
    /// threshold when it rises. See [`koord_model::pressure`].
    #[default]
    Pressure,
    /// Always capped at the configured threshold, by the configured policy, as upstream does.
    Upstream,
}

/// A suppression mode that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cpu-suppress-mode must be pressure or upstream, got {0:?}")]
pub struct UnknownMode(String);

impl FromStr for SuppressMode {
    type Err = UnknownMode;
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "pressure" => Ok(Self::Pressure),
            "upstream" => Ok(Self::Upstream),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

impl fmt::Display for SuppressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pressure => "pressure",
            Self::Upstream => "upstream",
        })
    }
}

/// What `spec.extensions.cpuSuppress` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuppressExtension {
    /// The mode; the flag's when missing.
    pub mode: Option<SuppressMode>,
    /// Whether BE pods' own groups get `cpu.idle`.
    #[serde(rename = "beCPUIdle")]
    pub be_cpu_idle: Option<bool>,
}

/// Which file limits batch work in upstream mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The CPU list.
    #[default]
    Cpuset,
    /// The CFS quota.
    CfsQuota,
}

/// The settings in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slo {
    /// Whether a NodeSLO was seen at all.
    pub known: bool,
    /// Whether batch work is suppressed and evicted.
    pub enabled: bool,
    /// What everything together may use, in percent of the node.
    pub suppress_percent: i64,
    /// What batch work keeps, in percent of the node.
    pub suppress_min_percent: Option<i64>,
    /// How batch work is limited in upstream mode.
    pub policy: Policy,
    /// Memory use that starts eviction, in percent.
    pub memory_percent: Option<i64>,
    /// Memory use eviction aims at, in percent.
    pub memory_lower_percent: Option<i64>,
    /// Our extension.
    pub extension: SuppressExtension,
}

impl Default for Slo {
    fn default() -> Self {
        Self {
            known: false,
            enabled: false,
            suppress_percent: 65,
            suppress_min_percent: None,
            policy: Policy::Cpuset,
            memory_percent: Some(70),
            memory_lower_percent: None,
            extension: SuppressExtension::default(),
        }
    }
}

impl Slo {
    /// The settings `spec` asks for; what it leaves open keeps its default. A value outside its
    /// range is refused with a warning and keeps its default, too.
    #[must_use]
    pub fn of(spec: &NodeSLOSpec) -> Self {
        let mut slo = Self {
            known: true,
            ..Self::default()
        };
        if let Some(strategy) = &spec.resource_used_threshold_with_be {
            slo.overlay(strategy);
        }
        if let Some(value) = spec
            .extensions
            .as_ref()
            .and_then(|e| e.get(SUPPRESS_EXTENSION))
        {
            match SuppressExtension::deserialize(value) {
                Ok(extension) => slo.extension = extension,
                Err(error) => {
                    tracing::warn!(field = "extensions.cpuSuppress", %value, %error, "ignored");
                }
            }
        }
        slo
    }

    fn overlay(&mut self, strategy: &ResourceThresholdStrategy) {
        let percent = |field: &str, value: Option<i64>| -> Option<i64> {
            let ok = value.filter(|v| (0..=100).contains(v));
            if let (Some(value), None) = (value, ok) {
                tracing::warn!(field, value, "must be 0..=100; the default stays");
            }
            ok
        };
        self.enabled = strategy.enable.unwrap_or(self.enabled);
        if let Some(value) = percent(
            "cpuSuppressThresholdPercent",
            strategy.cpu_suppress_threshold_percent,
        ) {
            self.suppress_percent = value;
        }
        self.suppress_min_percent =
            percent("cpuSuppressMinPercent", strategy.cpu_suppress_min_percent);
        match &strategy.cpu_suppress_policy {
            None => {}
            Some(CPUSuppressPolicy::Cpuset) => self.policy = Policy::Cpuset,
            Some(CPUSuppressPolicy::CfsQuota) => self.policy = Policy::CfsQuota,
            Some(other) => {
                tracing::warn!(field = "cpuSuppressPolicy", value = %other, "is unknown; ignored");
            }
        }
        let threshold = percent(
            "memoryEvictThresholdPercent",
            strategy.memory_evict_threshold_percent,
        );
        self.memory_percent = threshold.or(self.memory_percent);
        self.memory_lower_percent = percent(
            "memoryEvictLowerPercent",
            strategy.memory_evict_lower_percent,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slo(value: serde_json::Value) -> Slo {
        Slo::of(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn defaults_fill_what_is_open() {
        assert_eq!(
            slo(json!({})),
            Slo {
                known: true,
                ..Slo::default()
            }
        );
        let some = slo(json!({"resourceUsedThresholdWithBE": {
            "enable": true, "cpuSuppressPolicy": "cfsQuota", "memoryEvictThresholdPercent": 80}}));
        assert!(some.enabled);
        assert_eq!(some.policy, Policy::CfsQuota);
        assert_eq!((some.suppress_percent, some.memory_percent), (65, Some(80)));
    }

    #[test]
    fn bad_values_keep_the_default() {
        let bad = slo(json!({
            "resourceUsedThresholdWithBE": {
                "cpuSuppressThresholdPercent": 101, "cpuSuppressPolicy": "magic",
                "memoryEvictThresholdPercent": -1},
            "extensions": {"cpuSuppress": {"mode": "magic"}}}));
        assert_eq!(
            bad,
            Slo {
                known: true,
                ..Slo::default()
            }
        );
    }

    #[test]
    fn the_extension_switches_the_mode() {
        let slo = slo(json!({"extensions": {
            "cpuSuppress": {"mode": "upstream", "beCPUIdle": true}, "other": 1}}));
        assert_eq!(slo.extension.mode, Some(SuppressMode::Upstream));
        assert_eq!(slo.extension.be_cpu_idle, Some(true));
        assert!("magic".parse::<SuppressMode>().is_err());
    }
}
