//! Arguments of `LowNodeUtilization` and `HighNodeUtilization`.

use crate::rules::Namespaces;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Percentages by resource name.
pub(super) type UtilizationThresholds = BTreeMap<String, f64>;

const KUBERNETES_METRICS: &str = "KubernetesMetrics";
/// Resources whose usage is measured: those in NodeMetrics, and the number of pods.
const MEASURED: [&str; 3] = ["cpu", "memory", "pods"];

/// `LowNodeUtilizationArgs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::upstream_plugins) struct LowArgs {
    pub(super) use_deviation_thresholds: bool,
    pub(super) thresholds: UtilizationThresholds,
    pub(super) target_thresholds: UtilizationThresholds,
    number_of_nodes: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics_utilization: Option<MetricsUtilization>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evictable_namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_limits: Option<EvictionLimits>,
}

/// `HighNodeUtilizationArgs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::upstream_plugins) struct HighArgs {
    pub(super) thresholds: UtilizationThresholds,
    number_of_nodes: i64,
    eviction_modes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evictable_namespaces: Option<Namespaces>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetricsUtilization {
    metrics_server: bool,
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    prometheus: Option<Prometheus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Prometheus {
    query: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EvictionLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u64>,
}

impl LowArgs {
    /// Returns true if utilization means measured usage instead of requests.
    pub(super) fn measures(&self) -> bool {
        self.metrics_utilization.is_some()
    }

    pub(super) fn number_of_nodes(&self) -> usize {
        usize::try_from(self.number_of_nodes).unwrap_or(0)
    }

    /// Returns the maximum number of pods evicted per node.
    pub(super) fn node_limit(&self) -> Option<u64> {
        self.eviction_limits.as_ref().and_then(|limits| limits.node)
    }
}

impl HighArgs {
    pub(super) fn number_of_nodes(&self) -> usize {
        usize::try_from(self.number_of_nodes).unwrap_or(0)
    }

    pub(super) fn only_thresholding_resources(&self) -> bool {
        !self.eviction_modes.is_empty()
    }
}

/// Checks the arguments of LowNodeUtilization.
pub(in crate::upstream_plugins) fn check_low(args: &LowArgs) -> Result<(), String> {
    check_excluded(args.evictable_namespaces.as_ref())?;
    check_thresholds("thresholds", &args.thresholds)?;
    check_thresholds("targetThresholds", &args.target_thresholds)?;
    let missing = |of: &UtilizationThresholds, all: &UtilizationThresholds| {
        all.keys().find(|name| !of.contains_key(*name)).cloned()
    };
    if let Some(name) = missing(&args.target_thresholds, &args.thresholds) {
        return Err(format!(
            "targetThresholds.{name}: is missing, but there is thresholds.{name}"
        ));
    }
    if let Some(name) = missing(&args.thresholds, &args.target_thresholds) {
        return Err(format!(
            "thresholds.{name}: is missing, but there is targetThresholds.{name}"
        ));
    }
    for (name, low) in &args.thresholds {
        let high = args.target_thresholds.get(name).copied().unwrap_or(*low);
        if *low > high && !args.use_deviation_thresholds {
            return Err(format!(
                "thresholds.{name}: {low} is above targetThresholds.{name} {high}"
            ));
        }
    }
    let Some(metrics) = &args.metrics_utilization else {
        return Ok(());
    };
    check_metrics(metrics)?;
    let unknown = |name: &&String| !MEASURED.contains(&name.as_str());
    match args.thresholds.keys().find(unknown) {
        Some(name) => Err(format!(
            "thresholds.{name}: NodeMetrics do not tell its use, only that of {}",
            MEASURED.join(", ")
        )),
        None => Ok(()),
    }
}

fn check_metrics(metrics: &MetricsUtilization) -> Result<(), String> {
    let MetricsUtilization {
        metrics_server,
        source,
        prometheus,
    } = metrics;
    match source.as_str() {
        KUBERNETES_METRICS if *metrics_server => Err(format!(
            "metricsUtilization: metricsServer cannot be given together with source {source}"
        )),
        KUBERNETES_METRICS if prometheus.is_some() => Err(format!(
            "metricsUtilization.prometheus: cannot be given with source {source}"
        )),
        KUBERNETES_METRICS => Ok(()),
        "" if *metrics_server => Ok(()),
        "" => Err("metricsUtilization.source: is missing".to_owned()),
        other => Err(format!(
            "metricsUtilization.source: {other:?} cannot be asked here, only {KUBERNETES_METRICS}, \
             for which NodeMetrics are read"
        )),
    }
}

pub(in crate::upstream_plugins) fn check_high(args: &HighArgs) -> Result<(), String> {
    check_excluded(args.evictable_namespaces.as_ref())?;
    check_thresholds("thresholds", &args.thresholds)?;
    super::super::check_listed(
        "evictionModes",
        &args.eviction_modes,
        &["OnlyThresholdingResources"],
    )
}

fn check_excluded(namespaces: Option<&Namespaces>) -> Result<(), String> {
    match namespaces {
        Some(namespaces) if !namespaces.include.is_empty() => {
            Err("evictableNamespaces.include: only exclude can be given here".to_owned())
        }
        _ => Ok(()),
    }
}

fn check_thresholds(field: &str, thresholds: &UtilizationThresholds) -> Result<(), String> {
    if thresholds.is_empty() {
        return Err(format!("{field}: no resource is given"));
    }
    let outside = |(_, percent): &(&String, &f64)| !(0.0..=100.0).contains(*percent);
    match thresholds.iter().find(outside) {
        Some((name, percent)) => Err(format!("{field}.{name}: {percent} is not within 0 and 100")),
        None => Ok(()),
    }
}
