//! Order of nodes for one pod that belongs near others.

use super::TopologyTree;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Counts of one domain.
#[derive(Debug, Clone, Copy, Default)]
struct DomainCounts {
    /// Number of pods that the new pod belongs near.
    existing: usize,
    /// Number of nodes that fit the pod.
    fitting: usize,
}

impl TopologyTree {
    /// Returns the rank of each of `nodes` for a pod that belongs near others; `existing` lists the number of
    /// these others on a node, which need not be one of `nodes`.
    ///
    /// The order is: nodes with more of them, then nodes in a domain with more of them, from the lowest layer
    /// up; then nodes in a domain with fewer of `nodes`, from the lowest layer up; then by name. Nodes
    /// without a position in the topology come last and have equal ranks.
    #[must_use]
    pub fn ranks<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a str>,
        existing: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Vec<usize> {
        let nodes = nodes.into_iter().map(|node| self.leaves.get(node).copied());
        let leaves: Vec<Option<usize>> = nodes.collect();
        let mut sums = vec![DomainCounts::default(); self.domains.len()];
        for (node, pods) in existing {
            if let Some(leaf) = self.leaves.get(node) {
                sums[*leaf].existing += pods;
            }
        }
        for leaf in leaves.iter().flatten() {
            sums[*leaf].fitting = 1;
        }
        for (at, domain) in self.domains.iter().enumerate().rev() {
            if let Some(parent) = domain.parent {
                let DomainCounts { existing, fitting } = sums[at];
                sums[parent].existing += existing;
                sums[parent].fitting += fitting;
            }
        }
        let groups = self.equal_groups(&leaves, &sums);
        let mut order: Vec<(usize, usize, usize)> = leaves
            .iter()
            .enumerate()
            .filter_map(|(at, leaf)| {
                let leaf = (*leaf)?;
                let group = groups.get(&(self.domains[leaf].parent, sums[leaf].existing))?;
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

    /// Returns the order number of each group of nodes that differ only in name; a group is identified by its
    /// parent domain and its number of existing pods. Groups are numbered in the order of
    /// [`TopologyTree::ranks`]; groups that compare as equal share a number.
    fn equal_groups(
        &self,
        leaves: &[Option<usize>],
        sums: &[DomainCounts],
    ) -> FxHashMap<(Option<usize>, usize), usize> {
        let up = |at: usize| {
            std::iter::successors(Some(at), |at| self.domains[*at].parent).map(|at| &sums[at])
        };
        let mut first: FxHashMap<(Option<usize>, usize), usize> = FxHashMap::default();
        for leaf in leaves.iter().flatten() {
            first
                .entry((self.domains[*leaf].parent, sums[*leaf].existing))
                .or_insert(*leaf);
        }
        let key = |leaf: usize| {
            let existing: Vec<Reverse<usize>> = up(leaf).map(|s| Reverse(s.existing)).collect();
            let fitting: Vec<usize> = up(leaf).map(|sum| sum.fitting).collect();
            (existing, fitting)
        };
        let mut keyed: Vec<_> = first
            .into_iter()
            .map(|(group, leaf)| (key(leaf), group))
            .collect();
        keyed.sort_unstable();
        let (mut out, mut last) = (FxHashMap::default(), (0, None));
        for (key, group) in keyed {
            if last.1.as_ref() != Some(&key) {
                last = (last.0 + 1, Some(key));
            }
            out.insert(group, last.0);
        }
        out
    }
}
