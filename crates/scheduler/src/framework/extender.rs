//! What extenders answer.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What extenders answer together; an error is that of one that may not be ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advice {
    /// To [`crate::engine::Question::Nodes`].
    Nodes(Result<Advised, String>),
    /// To [`crate::engine::Question::Victims`].
    Victims(Result<Vec<Agreed>, String>),
}

/// What extenders said about nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advised {
    /// Those refused, with the reason and whether no eviction could help.
    pub refused: BTreeMap<Arc<str>, (String, bool)>,
    /// What to add to the total scores of nodes.
    pub scores: BTreeMap<Arc<str>, i64>,
}

/// Victims that extenders agreed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// The extender that said so last, for complaints.
    pub extender: String,
    /// Their node.
    pub node: Arc<str>,
    /// Uids of those who go.
    pub victims: Vec<String>,
    /// How many of them have no disruption budget left.
    pub violations: i64,
}
