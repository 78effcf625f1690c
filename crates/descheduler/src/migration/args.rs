//! `MigrationControllerArgs`.
//!
//! Source: Koordinator `pkg/descheduler/apis/config`.

use crate::rules::Namespaces;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, LabelSelector};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use koord_api::duration::GoDuration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `defaultJobMode` that reserves resources for the replacement before evicting the pod.
pub(crate) const RESERVATION_FIRST: &str = "ReservationFirst";
/// `defaultJobMode` that evicts the pod without a reservation.
pub(crate) const EVICT_DIRECTLY: &str = "EvictDirectly";

/// Arguments for creating, running and evicting with migration jobs. The defaults are upstream's.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MigrationControllerArgs {
    /// True if no job is created. Existing jobs are processed.
    pub dry_run: bool,
    /// Number of jobs that are processed in parallel.
    pub max_concurrent_reconciles: i32,
    /// Pods without an owner may be evicted once they failed.
    pub evict_failed_bare_pods: bool,
    /// Pods without an owner may be evicted.
    pub evict_all_bare_pods: bool,
    /// Pods with local volumes may be evicted.
    pub evict_local_storage_pods: bool,
    /// Pods of any priority may be evicted.
    pub evict_system_critical_pods: bool,
    /// Pods with a PersistentVolumeClaim are protected.
    pub ignore_pvc_pods: bool,
    /// Pods of this priority and above are protected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_threshold: Option<PriorityThreshold>,
    /// Selector of the pods that may be evicted; all pods without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Namespaces whose pods may be evicted; all without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Namespaces>,
    /// True if a pod is evicted only if it fits another node.
    pub node_fit: bool,
    /// Selector of the nodes that `nodeFit` considers, as a label selector in query syntax; all nodes if
    /// empty.
    pub node_selector: String,
    /// Names of rules that are disabled.
    pub skip_eviction_gates: Vec<String>,
    /// Maximum number of running jobs; unlimited without a value or with 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_migrating_globally: Option<i32>,
    /// Maximum for the pods of one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_migrating_per_node: Option<i32>,
    /// Maximum for one namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_migrating_per_namespace: Option<i32>,
    /// Maximum for one workload, as a number or a percentage of its replicas; see [`super::limits::max_affected_pods`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_migrating_per_workload: Option<IntOrString>,
    /// Maximum number of pods of one workload that are migrating or not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable_per_workload: Option<IntOrString>,
    /// True if workloads may be too small for the limits above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_check_expected_replicas: Option<bool>,
    /// Rate limits of evictions per workload or namespace.
    pub object_limiters: BTreeMap<LimitedObject, ObjectLimiter>,
    /// `ReservationFirst` or `EvictDirectly`.
    pub default_job_mode: String,
    /// Time to live of a job; unlimited if 0.
    #[serde(rename = "defaultJobTTL")]
    pub default_job_ttl: GoDuration,
    /// Names of schedulers that support reservations.
    pub scheduler_names: Vec<String>,
    /// Evictions per second.
    #[serde(rename = "evictQPS")]
    pub evict_qps: NumberOrText,
    /// Burst of evictions above `evictQPS`.
    pub evict_burst: i32,
    /// `Eviction`, `Delete` or `SoftEviction`.
    pub eviction_policy: String,
    /// Delete options of evictions, unless the job sets its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_delete_options: Option<DeleteOptions>,
    /// Settings of the arbitration.
    pub arbitration_args: ArbitrationArgs,
}

/// `priorityThreshold`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PriorityThreshold {
    /// The priority value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<i32>,
    /// Name of the PriorityClass whose value is used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Scope of an [`ObjectLimiter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitedObject {
    /// The pods of one controller.
    Workload,
    /// The pods of one namespace.
    Namespace,
}

/// Rate limit: at most `maxMigrating` evictions in `duration`, spread evenly over it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ObjectLimiter {
    /// Period of the limit; 0 disables it.
    pub duration: GoDuration,
    /// Maximum number of evictions in the period. For a workload it defaults to `maxMigratingPerWorkload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_migrating: Option<IntOrString>,
    /// Burst; 0 stands for 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub burst: i64,
}

/// `arbitrationArgs`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ArbitrationArgs {
    /// True if jobs have to pass the arbitration before they start.
    pub enabled: bool,
    /// Interval between two arbitrations.
    pub interval: GoDuration,
}

/// A number, or a text that should contain one.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum NumberOrText {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

impl NumberOrText {
    /// Returns the number; 0 for a text that is not a number.
    #[must_use]
    pub fn value(&self) -> f64 {
        match self {
            Self::Number(number) => *number,
            Self::Text(text) => text.trim().parse().unwrap_or(0.0),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Default for ArbitrationArgs {
    fn default() -> Self {
        Self {
            enabled: true,
            interval: GoDuration::from_nanos(500_000_000),
        }
    }
}

impl Default for MigrationControllerArgs {
    fn default() -> Self {
        Self {
            dry_run: false,
            max_concurrent_reconciles: 1,
            evict_failed_bare_pods: false,
            evict_all_bare_pods: false,
            evict_local_storage_pods: false,
            evict_system_critical_pods: false,
            ignore_pvc_pods: false,
            priority_threshold: None,
            label_selector: None,
            namespaces: None,
            node_fit: false,
            node_selector: String::new(),
            skip_eviction_gates: Vec::new(),
            max_migrating_globally: None,
            max_migrating_per_node: Some(2),
            max_migrating_per_namespace: None,
            max_migrating_per_workload: None,
            max_unavailable_per_workload: None,
            skip_check_expected_replicas: None,
            object_limiters: BTreeMap::from([(
                LimitedObject::Workload,
                ObjectLimiter {
                    duration: GoDuration::from_mins(5),
                    ..ObjectLimiter::default()
                },
            )]),
            default_job_mode: RESERVATION_FIRST.to_owned(),
            default_job_ttl: GoDuration::from_mins(5),
            scheduler_names: vec!["koord-scheduler".to_owned()],
            evict_qps: NumberOrText::Number(10.0),
            evict_burst: 1,
            eviction_policy: "Eviction".to_owned(),
            default_delete_options: None,
            arbitration_args: ArbitrationArgs::default(),
        }
    }
}

/// A rule that `skipEvictionGates` can switch off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are upstream's, and say it")]
pub enum Gate {
    MaxUnavailablePerWorkload,
    MaxMigratingPerWorkload,
    MaxMigratingPerNode,
    MaxMigratingPerNamespace,
    MaxMigratingGlobally,
    ExpectedReplicas,
    Pvc,
    BarePods,
    LocalStorage,
    SystemCritical,
    PriorityThreshold,
    LabelSelector,
    Namespaces,
    NodeFit,
}

impl Gate {
    const ALL: [(&'static str, Self); 14] = [
        ("MaxUnavailablePerWorkload", Self::MaxUnavailablePerWorkload),
        ("MaxMigratingPerWorkload", Self::MaxMigratingPerWorkload),
        ("MaxMigratingPerNode", Self::MaxMigratingPerNode),
        ("MaxMigratingPerNamespace", Self::MaxMigratingPerNamespace),
        ("MaxMigratingGlobally", Self::MaxMigratingGlobally),
        ("ExpectedReplicas", Self::ExpectedReplicas),
        ("PVC", Self::Pvc),
        ("BarePods", Self::BarePods),
        ("LocalStorage", Self::LocalStorage),
        ("SystemCritical", Self::SystemCritical),
        ("PriorityThreshold", Self::PriorityThreshold),
        ("LabelSelector", Self::LabelSelector),
        ("Namespaces", Self::Namespaces),
        ("NodeFit", Self::NodeFit),
    ];

    fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(known, _)| *known == name).map(|(_, gate)| *gate)
    }
}

impl MigrationControllerArgs {
    /// Fills in defaults for zero values that Go cannot distinguish from absent fields.
    #[must_use]
    pub fn completed(mut self) -> Self {
        let by_default = Self::default();
        if self.default_job_mode.is_empty() {
            self.default_job_mode = by_default.default_job_mode;
        }
        if self.scheduler_names.is_empty() {
            self.scheduler_names = by_default.scheduler_names;
        }
        if self.eviction_policy.is_empty() {
            self.eviction_policy = by_default.eviction_policy;
        }
        if self.object_limiters.is_empty() {
            self.object_limiters = by_default.object_limiters;
        }
        if self.arbitration_args.interval == GoDuration::ZERO {
            self.arbitration_args.interval = by_default.arbitration_args.interval;
        }
        self
    }

    /// Returns true if rule `gate` is disabled.
    #[must_use]
    pub fn skips(&self, gate: Gate) -> bool {
        let mut skipped = self.skip_eviction_gates.iter();
        skipped.any(|name| Gate::named(name) == Some(gate))
    }

    /// Validates the values.
    ///
    /// # Errors
    /// Returns the first field with an invalid value, and the value.
    pub fn validate(&self) -> Result<(), String> {
        for (at, name) in self.skip_eviction_gates.iter().enumerate() {
            if Gate::named(name).is_none() {
                let field = format!("skipEvictionGates[{at}]");
                let names: Vec<_> = Gate::ALL.iter().map(|(name, _)| *name).collect();
                let problem = format!("is no gate; there are {}", names.join(", "));
                return refuse(field, name, problem);
            }
        }
        for (field, value) in [
            ("maxMigratingGlobally", self.max_migrating_globally),
            ("maxMigratingPerNode", self.max_migrating_per_node),
            ("maxMigratingPerNamespace", self.max_migrating_per_namespace),
        ] {
            if let Some(value) = value.filter(|value| *value < 0) {
                return refuse(field, value, "must not be negative");
            }
        }
        let shares = [
            ("maxMigratingPerWorkload", &self.max_migrating_per_workload),
            (
                "maxUnavailablePerWorkload",
                &self.max_unavailable_per_workload,
            ),
        ];
        for (field, share) in shares {
            if let Some(share) = share {
                checked_share(field, share)?;
            }
        }
        for (kind, limiter) in &self.object_limiters {
            self.check_limiter(*kind, limiter)?;
        }
        if self.evict_qps.value() <= 0.0 || !self.evict_qps.value().is_finite() {
            let value = match &self.evict_qps {
                NumberOrText::Number(number) => number.to_string(),
                NumberOrText::Text(text) => format!("{text:?}"),
            };
            return refuse("evictQPS", value, "must be a number above 0");
        }
        if self.evict_burst <= 0 {
            return refuse("evictBurst", self.evict_burst, "must be above 0");
        }
        if let Some(namespaces) = &self.namespaces {
            namespaces.check("namespaces")?;
        }
        if self.max_concurrent_reconciles < 1 {
            let value = self.max_concurrent_reconciles;
            return refuse("maxConcurrentReconciles", value, "must be at least 1");
        }
        let mode = self.default_job_mode.as_str();
        if ![RESERVATION_FIRST, EVICT_DIRECTLY].contains(&mode) {
            let problem = format!("must be {RESERVATION_FIRST} or {EVICT_DIRECTLY}");
            return refuse("defaultJobMode", format!("{mode:?}"), problem);
        }
        if self.default_job_ttl < GoDuration::ZERO {
            return refuse(
                "defaultJobTTL",
                self.default_job_ttl,
                "must not be negative",
            );
        }
        let policy = &self.eviction_policy;
        if super::evict::Policy::named(policy).is_none() {
            let problem = "must be Eviction, Delete or SoftEviction";
            return refuse("evictionPolicy", format!("{policy:?}"), problem);
        }
        let interval = self.arbitration_args.interval;
        if interval < GoDuration::ZERO {
            return refuse("arbitrationArgs.interval", interval, "must not be negative");
        }
        if let Err(error) = koord_object::selector::LabelSelector::parse(&self.node_selector) {
            let value = format!("{:?}", self.node_selector);
            return refuse("nodeSelector", value, error.to_string());
        }
        Ok(())
    }

    fn check_limiter(&self, kind: LimitedObject, limiter: &ObjectLimiter) -> Result<(), String> {
        let name = match kind {
            LimitedObject::Workload => "workload",
            LimitedObject::Namespace => "namespace",
        };
        let field = |field: &str| format!("objectLimiters.{name}.{field}");
        if limiter.duration < GoDuration::ZERO {
            return refuse(field("duration"), limiter.duration, "must not be negative");
        }
        if limiter.burst < 0 {
            return refuse(field("burst"), limiter.burst, "must not be negative");
        }
        match &limiter.max_migrating {
            Some(share) => checked_share(&field("maxMigrating"), share),
            None => Ok(()),
        }
    }
}

fn refuse(
    field: impl std::fmt::Display,
    value: impl std::fmt::Display,
    problem: impl std::fmt::Display,
) -> Result<(), String> {
    Err(format!("{field}: {value} {problem}"))
}

fn checked_share(field: &str, share: &IntOrString) -> Result<(), String> {
    match super::limits::scaled(share, 100) {
        Some(_) => Ok(()),
        None => {
            let value = match share {
                IntOrString::Int(number) => number.to_string(),
                IntOrString::String(text) => format!("{text:?}"),
            };
            refuse(field, value, "must be a number or a percentage such as 10%")
        }
    }
}
