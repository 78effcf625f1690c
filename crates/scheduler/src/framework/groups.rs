//! Verdicts and scores that all nodes of a group have in common.

use crate::state::NodeIndex;
use std::sync::Arc;

/// Nodes that a plugin gives the same, by group.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// The label whose values make the groups; none: all nodes are one group.
    pub by: Option<Label>,
    /// The nodes that are not like the others of their group; perhaps some that are.
    pub apart: Vec<NodeIndex>,
}

/// Nodes by the value of a label.
#[derive(Debug, Clone)]
pub struct Label {
    /// Its key.
    pub key: String,
    /// By row, a number for the value, or [`Groups::NONE`]; rows beyond the end have none. The same list
    /// for as long as nothing in it changes.
    pub rows: Arc<Vec<u32>>,
}

impl Groups {
    /// No group. Rows without one are alike, too.
    pub const NONE: u32 = u32::MAX;

    /// Splits the groups by this label, too. `None` when they are by another one already.
    #[must_use]
    pub fn also_by(self, label: Label) -> Option<Self> {
        match &self.by {
            Some(by) if by.key != label.key => None,
            Some(_) => Some(self),
            None => Some(Self {
                by: Some(label),
                ..self
            }),
        }
    }

    /// Nodes that are alike by both. `None` when each is by another label.
    #[must_use]
    pub fn and(mut self, other: Self) -> Option<Self> {
        self.apart.extend(other.apart);
        match other.by {
            Some(label) => self.also_by(label),
            None => Some(self),
        }
    }
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
