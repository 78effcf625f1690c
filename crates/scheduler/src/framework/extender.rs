//! Results of scheduler extenders.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The combined result of all extenders that were called. An error is that of an extender that is not
/// ignorable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtenderResult {
    /// Result for [`crate::engine::ExtenderRequest::Nodes`].
    Nodes(Result<ExtenderNodeResult, String>),
    /// Result for [`crate::engine::ExtenderRequest::Victims`].
    Victims(Result<Vec<ExtenderPreemptResult>, String>),
}

/// Filter and prioritize results of extenders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtenderNodeResult {
    /// The refused nodes, each with the reason and whether the refusal is unresolvable by evictions.
    pub refused: BTreeMap<Arc<str>, (String, bool)>,
    /// Values to add to the total scores of nodes.
    pub scores: BTreeMap<Arc<str>, i64>,
}

/// A preemption candidate that the extenders accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtenderPreemptResult {
    /// The extender that returned it last, for error messages.
    pub extender: String,
    /// The node.
    pub node: Arc<str>,
    /// Uids of the victims.
    pub victims: Vec<String>,
    /// Number of victims whose disruption budget allows no further eviction.
    pub violations: i64,
}
