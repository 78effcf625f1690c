//! The settings of the node: a NodeSLO, validated, with its defaults filled in.
//!
//! In addition to upstream's fields, one extension is supported: `spec.extensions.Object.cpuSuppress`
//! (ConfigMap key `cpu-suppress-config`), for example `{"mode":"upstream","beCPUIdle":false}`. `mode` is
//! `pressure` or `upstream`; see [`SuppressMode`].

mod check;
mod host_app;

pub use host_app::HostApp;

use super::malformed::Malformed;
use koord_api::lenient;
use koord_api::qos::QosClass;
use koord_api::slo::{
    BlkIOQOSCfg, CPUBurstStrategy, CPUQOSCfg, CPUQOSPolicy, CPUSuppressPolicy, MemoryQOSCfg,
    NodeSLOSpec, ResctrlQOSCfg, ResourceQOS, ResourceThresholdStrategy, SystemStrategy, defaults,
};
use serde::Deserialize;
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

/// Key in `spec.extensions.Object` of a [`SuppressExtension`].
pub const SUPPRESS_EXTENSION: &str = "cpuSuppress";

/// Mode of CPU suppression, which keeps batch work from disturbing services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuppressMode {
    /// Lowest weight, and levers that were found to help when batch work harms a service. See
    /// [`koord_model::guard`].
    #[default]
    Pressure,
    /// Always capped at the configured threshold, by the configured policy, as upstream does.
    Upstream,
}

/// An unknown suppression mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cpu-suppress-mode must be pressure or upstream, got {0:?}")]
pub struct UnknownSuppressMode(String);

impl FromStr for SuppressMode {
    type Err = UnknownSuppressMode;
    fn from_str(text: &str) -> Result<Self, UnknownSuppressMode> {
        match text {
            "pressure" => Ok(Self::Pressure),
            "upstream" => Ok(Self::Upstream),
            other => Err(UnknownSuppressMode(other.to_owned())),
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

/// Content of `spec.extensions.Object.cpuSuppress`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuppressExtension {
    /// Suppression mode; `None` uses that of the flag.
    pub mode: Option<SuppressMode>,
    /// True if BE pods' own cgroups get `cpu.idle`; `None` uses the flag.
    #[serde(rename = "beCPUIdle")]
    pub be_cpu_idle: Option<bool>,
}

/// Returns the extension and its path below `spec.extensions`: in `Object`, which a Go manager preserves, or
/// directly.
fn suppress_extension(spec: &NodeSLOSpec) -> Option<(String, &Value)> {
    let all = spec.extensions.as_ref()?;
    let object = all
        .get("Object")
        .and_then(|object| object.get(SUPPRESS_EXTENSION));
    object
        .map(|value| (format!("Object.{SUPPRESS_EXTENSION}"), value))
        .or_else(|| Some((SUPPRESS_EXTENSION.to_owned(), all.get(SUPPRESS_EXTENSION)?)))
}

/// File that limits batch work in upstream mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SuppressPolicy {
    /// The CPU list.
    #[default]
    Cpuset,
    /// The CFS quota.
    CfsQuota,
}

/// Defaults of every section and class.
static DEFAULTS: LazyLock<Arc<NodeSLOSpec>> = LazyLock::new(|| {
    let defaults = defaults::node_slo_spec();
    // Merge the defaults with an empty spec.
    Arc::new(defaults::effective(&NodeSLOSpec::default()).unwrap_or(defaults))
});

/// The settings in force. Clones are cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct Slo {
    /// True if a NodeSLO was received.
    pub known: bool,
    /// True if batch work is suppressed and evicted.
    pub enabled: bool,
    /// Maximum CPU usage of the whole node, in percent.
    pub suppress_percent: i64,
    /// Minimum CPU of batch work, in percent of the node.
    pub suppress_min_percent: Option<i64>,
    /// File that limits batch work in upstream mode.
    pub policy: SuppressPolicy,
    /// Memory usage that starts eviction, in percent.
    pub memory_percent: Option<i64>,
    /// Memory usage at which eviction ends, in percent.
    pub memory_lower_percent: Option<i64>,
    /// The extension `cpuSuppress`.
    pub extension: SuppressExtension,
    /// Sections with their defaults, and disabled features of a class neutralized; see
    /// [`koord_api::slo::defaults::effective`].
    pub spec: Arc<NodeSLOSpec>,
    /// Services outside Kubernetes, in the order of the NodeSLO.
    pub host_apps: Arc<[HostApp]>,
    /// Valid values as given: the last valid value of every field.
    pub good: Arc<Value>,
}

impl Default for Slo {
    fn default() -> Self {
        let spec = DEFAULTS.clone();
        Self {
            known: false,
            good: Arc::new(Value::Null),
            ..Self::from_effective(spec)
        }
    }
}

impl Slo {
    /// Parses the settings of `spec`, like [`Self::read`] without earlier ones. Malformed values are dropped.
    #[must_use]
    pub fn from_spec(spec: &NodeSLOSpec) -> Self {
        let value = serde_json::to_value(spec).unwrap_or_default();
        Self::read(&value, None).0
    }

    /// Parses the raw `spec` of a NodeSLO; missing values have their default. An invalid value is reported in
    /// the second result and replaced by that of `last`, else by the default.
    #[must_use]
    pub fn read(spec: &Value, last: Option<&Self>) -> (Self, Vec<Malformed>) {
        let nothing = Value::Null;
        let checked = check::check(spec, last.map_or(&nothing, |last| &last.good));
        let mut malformed = checked.malformed;
        let spec = defaults::effective(&checked.spec).unwrap_or_else(|error| {
            // Impossible for values of these types, and no reason to stop.
            malformed.push(Malformed::new("spec", "", &error));
            DEFAULTS.as_ref().clone()
        });
        let mut slo = Self::from_effective(Arc::new(spec));
        slo.known = true;
        slo.good = Arc::new(checked.good);
        (slo, malformed)
    }

    /// Returns the settings of a validated and completed `spec`.
    fn from_effective(spec: Arc<NodeSLOSpec>) -> Self {
        let threshold = spec.resource_used_threshold_with_be.clone();
        let threshold = threshold.unwrap_or_else(defaults::resource_threshold_strategy);
        let extension = suppress_extension(&spec)
            .and_then(|(_, value)| lenient::from_value::<SuppressExtension>(value).ok())
            .unwrap_or_default();
        Self {
            known: false,
            enabled: threshold.enable.unwrap_or_default(),
            suppress_percent: threshold.cpu_suppress_threshold_percent.unwrap_or(100),
            suppress_min_percent: threshold.cpu_suppress_min_percent,
            policy: match threshold.cpu_suppress_policy {
                Some(CPUSuppressPolicy::CfsQuota) => SuppressPolicy::CfsQuota,
                _ => SuppressPolicy::Cpuset,
            },
            memory_percent: threshold.memory_evict_threshold_percent,
            memory_lower_percent: threshold.memory_evict_lower_percent,
            extension,
            host_apps: spec
                .host_applications
                .iter()
                .map(HostApp::from_spec)
                .collect(),
            spec,
            good: Arc::new(Value::Null),
        }
    }

    /// Returns the thresholds of suppression and eviction.
    #[must_use]
    pub fn thresholds(&self) -> &ResourceThresholdStrategy {
        let section = self.spec.resource_used_threshold_with_be.as_ref();
        section.unwrap_or_else(|| {
            static DEFAULT: LazyLock<ResourceThresholdStrategy> =
                LazyLock::new(defaults::resource_threshold_strategy);
            &DEFAULT
        })
    }

    /// Returns the CPU burst settings of services.
    #[must_use]
    pub fn cpu_burst(&self) -> &CPUBurstStrategy {
        let section = self.spec.cpu_burst_strategy.as_ref();
        section.unwrap_or_else(|| {
            static DEFAULT: LazyLock<CPUBurstStrategy> =
                LazyLock::new(defaults::cpu_burst_strategy);
            &DEFAULT
        })
    }

    /// Returns the kernel settings of the whole node.
    #[must_use]
    pub fn system(&self) -> &SystemStrategy {
        let section = self.spec.system_strategy.as_ref();
        section.unwrap_or_else(|| {
            static DEFAULT: LazyLock<SystemStrategy> = LazyLock::new(defaults::system_strategy);
            &DEFAULT
        })
    }

    /// Returns the settings of a class: LSE has those of LSR, a pod without class has none.
    #[must_use]
    pub fn class(&self, qos: QosClass) -> Option<&ResourceQOS> {
        let strategy = self.spec.resource_qos_strategy.as_ref()?;
        match qos {
            QosClass::Lse | QosClass::Lsr => strategy.lsr_class.as_ref(),
            QosClass::Ls => strategy.ls_class.as_ref(),
            QosClass::Be => strategy.be_class.as_ref(),
            QosClass::System => strategy.system_class.as_ref(),
            QosClass::None => None,
        }
    }

    /// Returns the CPU scheduler settings of a class.
    #[must_use]
    pub fn cpu_qos(&self, qos: QosClass) -> Option<&CPUQOSCfg> {
        self.class(qos)?.cpu_qos.as_ref()
    }

    /// Returns the memory settings of a class.
    #[must_use]
    pub fn memory_qos(&self, qos: QosClass) -> Option<&MemoryQOSCfg> {
        self.class(qos)?.memory_qos.as_ref()
    }

    /// Returns the settings of cache and memory bandwidth of a class.
    #[must_use]
    pub fn resctrl_qos(&self, qos: QosClass) -> Option<&ResctrlQOSCfg> {
        self.class(qos)?.resctrl_qos.as_ref()
    }

    /// Returns the block I/O settings of a class.
    #[must_use]
    pub fn blkio_qos(&self, qos: QosClass) -> Option<&BlkIOQOSCfg> {
        self.class(qos)?.blkio_qos.as_ref()
    }

    /// Returns the block I/O settings of the root cgroup.
    #[must_use]
    pub fn root_blkio(&self) -> Option<&BlkIOQOSCfg> {
        let strategy = self.spec.resource_qos_strategy.as_ref()?;
        strategy.cgroup_root.as_ref()?.blkio_qos.as_ref()
    }

    /// Returns whether CPU QoS uses core scheduling; otherwise it uses group identity.
    #[must_use]
    pub fn by_core_sched(&self) -> bool {
        let strategy = self.spec.resource_qos_strategy.as_ref();
        let policies = strategy.and_then(|strategy| strategy.policies.as_ref());
        policies.is_some_and(|p| p.cpu_policy == Some(CPUQOSPolicy::CoreSched))
    }
}

#[cfg(test)]
mod tests;
