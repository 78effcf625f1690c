//! The reason why a rule keeps a pod on its node.

use std::borrow::Cow;

/// The rule that keeps a pod on its node, and the detail that it objects to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {detail}")]
pub struct SkipReason {
    /// Name of the rule, such as `OwnedByDaemonSet` or `MaxMigratingPerNode`. Used as a metric label, so
    /// there are only a few.
    pub rule: &'static str,
    /// Explanation for users.
    pub detail: Cow<'static, str>,
}

impl SkipReason {
    /// Builds a reason from rule and detail.
    pub fn new(rule: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = detail.into();
        Self { rule, detail }
    }

    /// Returns true if the pod may become evictable without changing itself, for example when other moves
    /// end.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        TEMPORARY.contains(&self.rule)
    }
}

/// Rules that depend on the current state of other moves.
const TEMPORARY: [&str; 14] = [
    "ExistingJob",
    "MaxMigratingGlobally",
    "MaxMigratingPerNamespace",
    "MaxMigratingPerNode",
    "MaxMigratingPerWorkload",
    "MaxNoOfPodsToEvictPerNamespace",
    "MaxNoOfPodsToEvictPerNode",
    "MaxNoOfPodsToEvictTotal",
    "MaxUnavailablePerWorkload",
    "MoveRefused",
    "NamespaceLimiter",
    "PodDisruptionBudget",
    "WorkloadLimiter",
    "WorkloadUnknown",
];
