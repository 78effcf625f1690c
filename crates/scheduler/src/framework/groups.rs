//! Scores that all nodes of a group have in common.

use crate::state::NodeIndex;
use std::sync::Arc;

/// Nodes that a plugin gives the same, by group.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// By row, the group, or [`Groups::NONE`]; rows beyond the end have none. Absent: all nodes are one
    /// group. The same list for as long as nothing in it changes.
    pub of: Option<Arc<Vec<u32>>>,
    /// The nodes that are not like the others of their group; perhaps some that are.
    pub apart: Vec<NodeIndex>,
}

impl Groups {
    /// No group. Rows without one are alike, too.
    pub const NONE: u32 = u32::MAX;
}

/// What a plugin may want to know of all nodes that fit when it scores some of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// How many nodes fit.
    pub fitting: usize,
    /// How many of them have no group.
    pub ungrouped: usize,
    /// How many groups the others are of.
    pub groups: usize,
}
