//! In which order nodes come for one pod that belongs near others.

use super::Tree;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// What there is in a place, nodes and all above them.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    /// Pods that belong near the one that is placed.
    existing: usize,
    /// Nodes that it may go to.
    fitting: usize,
}

impl Tree {
    /// For each of `nodes`, how many come before it as the node of a pod that belongs near others; `existing`
    /// says how many of these are on a node, whether it is one of `nodes` or not.
    ///
    /// First come nodes with more of them, then those in a place with more of them, from the lowest layer up;
    /// then those in a place with fewer of `nodes`, from the lowest up, then by name. Nodes without a place in
    /// the topology come behind all others, and are alike.
    #[must_use]
    pub fn ranks<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a str>,
        existing: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Vec<usize> {
        let nodes = nodes.into_iter().map(|node| self.leaves.get(node).copied());
        let leaves: Vec<Option<usize>> = nodes.collect();
        let mut sums = vec![Sum::default(); self.spots.len()];
        for (node, pods) in existing {
            if let Some(leaf) = self.leaves.get(node) {
                sums[*leaf].existing += pods;
            }
        }
        for leaf in leaves.iter().flatten() {
            sums[*leaf].fitting = 1;
        }
        for (at, spot) in self.spots.iter().enumerate().rev() {
            if let Some(parent) = spot.parent {
                let Sum { existing, fitting } = sums[at];
                sums[parent].existing += existing;
                sums[parent].fitting += fitting;
            }
        }
        let groups = self.alike(&leaves, &sums);
        let mut order: Vec<(usize, usize, usize)> = leaves
            .iter()
            .enumerate()
            .filter_map(|(at, leaf)| {
                let leaf = (*leaf)?;
                let group = groups.get(&(self.spots[leaf].parent, sums[leaf].existing))?;
                Some((*group, self.by_name[leaf], at))
            })
            .collect();
        order.sort_unstable();
        let mut ranks = vec![order.len(); leaves.len()];
        for (rank, (.., at)) in order.into_iter().enumerate() {
            ranks[at] = rank;
        }
        ranks
    }

    /// Nodes that only names tell apart, by what they have in common: the place they hang under, and how many
    /// pods they have. Each gets a number in the order of [`Tree::ranks`]; of equal ones the same.
    fn alike(
        &self,
        leaves: &[Option<usize>],
        sums: &[Sum],
    ) -> FxHashMap<(Option<usize>, usize), usize> {
        let up = |at: usize| {
            std::iter::successors(Some(at), |at| self.spots[*at].parent).map(|at| &sums[at])
        };
        let mut first: FxHashMap<(Option<usize>, usize), usize> = FxHashMap::default();
        for leaf in leaves.iter().flatten() {
            first
                .entry((self.spots[*leaf].parent, sums[*leaf].existing))
                .or_insert(*leaf);
        }
        let key = |leaf: usize| {
            let existing: Vec<Reverse<usize>> = up(leaf).map(|s| Reverse(s.existing)).collect();
            let fitting: Vec<usize> = up(leaf).map(|sum| sum.fitting).collect();
            (existing, fitting)
        };
        let mut keyed: Vec<_> = first
            .into_iter()
            .map(|(of, leaf)| (key(leaf), of))
            .collect();
        keyed.sort_unstable();
        let (mut out, mut last) = (FxHashMap::default(), (0, None));
        for (key, of) in keyed {
            if last.1.as_ref() != Some(&key) {
                last = (last.0 + 1, Some(key));
            }
            out.insert(of, last.0);
        }
        out
    }
}
