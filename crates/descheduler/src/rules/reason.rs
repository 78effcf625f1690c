//! Why a rule keeps a pod where it is.

use std::borrow::Cow;

/// Why a pod stays: the rule, and what about the pod it does not like.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {detail}")]
pub struct Why {
    /// Name of the rule, such as `OwnedByDaemonSet` or `MaxMigratingPerNode`: a value of a metric's label, so there are
    /// few of them.
    pub rule: &'static str,
    /// For people.
    pub detail: Cow<'static, str>,
}

impl Why {
    /// A reason.
    pub fn new(rule: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = detail.into();
        Self { rule, detail }
    }

    /// Whether the pod may go by itself when other moves are over, though nothing about it changes.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        TEMPORARY.contains(&self.rule)
    }
}

/// Rules of the moment.
const TEMPORARY: [&str; 11] = [
    "ExistingJob",
    "MaxMigratingGlobally",
    "MaxMigratingPerNamespace",
    "MaxMigratingPerNode",
    "MaxMigratingPerWorkload",
    "MaxUnavailablePerWorkload",
    "MoveRefused",
    "NamespaceLimiter",
    "PodDisruptionBudget",
    "WorkloadLimiter",
    "WorkloadUnknown",
];
