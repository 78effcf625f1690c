//! Groups of nodes that share a verdict or a score.

use crate::state::NodeIndex;
use std::sync::Arc;

/// A partition of the nodes into groups whose members a plugin treats alike.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// The label whose values define the groups; `None`: all nodes form one group.
    pub by: Option<Label>,
    /// Nodes that must be evaluated one by one because they may differ from the others of their group.
    pub apart: Vec<NodeIndex>,
}

/// The value of one label on every node.
#[derive(Debug, Clone)]
pub struct Label {
    /// The label's key.
    pub key: String,
    /// Number of the group by node row; [`Groups::NONE`], or no element, for a row without the label. The `Arc`
    /// is replaced only if the content changes.
    pub rows: Arc<Vec<u32>>,
}

impl Groups {
    /// Row without the label. Such rows are treated alike, too.
    pub const NONE: u32 = u32::MAX;

    /// Returns how many of `rows` nodes may be apart, and how many groups there may be. With more, grouping
    /// saves little and every node is evaluated.
    #[must_use]
    pub fn most(rows: usize) -> usize {
        (rows / 8).max(64)
    }

    /// Adds nodes that are evaluated one by one; `rows` is the number of nodes. Returns `None`, without
    /// consuming `nodes`, if that would exceed [`Groups::most`].
    #[must_use]
    pub fn with_apart(
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

    /// Splits the groups by this label. Returns `None` if they are split by another label already.
    #[must_use]
    pub fn with_label(self, label: Label) -> Option<Self> {
        match &self.by {
            Some(by) if by.key != label.key => None,
            Some(_) => Some(self),
            None => Some(Self {
                by: Some(label),
                ..self
            }),
        }
    }

    /// Returns the groups of nodes that are alike in both partitions, or `None` if these use different
    /// labels.
    #[must_use]
    pub fn and(mut self, other: Self) -> Option<Self> {
        self.apart.extend(other.apart);
        match other.by {
            Some(label) => self.with_label(label),
            None => Some(self),
        }
    }
}

/// Summary of all nodes that fit, for plugins that score only some of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FitSummary {
    /// Number of nodes that fit.
    pub fitting: usize,
    /// Number of nodes that fit and have no group.
    pub ungrouped: usize,
    /// The number of groups that the others belong to.
    pub groups: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_limit_rows_that_are_apart() {
        let nodes = |from: u32, to: u32| (from..to).map(NodeIndex).collect::<Vec<_>>().into_iter();
        let most = u32::try_from(Groups::most(800)).unwrap();
        assert_eq!(most, 100);
        let full = Groups::default().with_apart(nodes(0, most), 800).unwrap();
        assert_eq!(full.apart.len(), 100);
        assert!(full.clone().with_apart(nodes(0, 0), 800).is_some());
        assert!(full.with_apart(nodes(0, 1), 800).is_none());
        // A small cluster has few groups in any case.
        assert_eq!(Groups::most(10), 64);
    }
}
