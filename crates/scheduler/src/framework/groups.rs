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

    /// So many of `rows` nodes may be apart, or groups: with more there is little to win, and all nodes are looked
    /// at.
    #[must_use]
    pub fn most(rows: usize) -> usize {
        (rows / 8).max(64)
    }

    /// Sets these of `rows` nodes apart, too. `None` when they would be too many; they are not asked for then.
    #[must_use]
    pub fn also_apart(
        mut self,
        nodes: impl ExactSizeIterator<Item = NodeIndex>,
        rows: usize,
    ) -> Option<Self> {
        if self.apart.len() + nodes.len() > Self::most(rows) {
            return None;
        }
        self.apart.extend(nodes);
        Some(self)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_apart_and_no_more() {
        let some = |from: u32, to: u32| (from..to).map(NodeIndex).collect::<Vec<_>>().into_iter();
        let most = u32::try_from(Groups::most(800)).unwrap();
        assert_eq!(most, 100);
        let full = Groups::default().also_apart(some(0, most), 800).unwrap();
        assert_eq!(full.apart.len(), 100);
        assert!(full.clone().also_apart(some(0, 0), 800).is_some());
        assert!(full.also_apart(some(0, 1), 800).is_none());
        // A small cluster has few groups in any case.
        assert_eq!(Groups::most(10), 64);
    }
}
