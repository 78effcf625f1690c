//! Eviction order of the pods of a domain.

use super::members::{ConstraintCounts, Surplus};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// True if a pod fits a node with too few pods, and its order among those that do: higher is evicted earlier.
pub(super) type Rank = (bool, (bool, Reverse<Option<i32>>));

/// The pods of a domain that may be evicted: highest rank first, among equals those in the domains with the
/// largest surplus for other constraints.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    /// Indexes of pods with their rank, highest last.
    ranked: Vec<(usize, Rank)>,
    /// Pods of one rank that are in equal domains of other constraints, with their order: each evicted pod
    /// reduces the surplus for all of them.
    buckets: Vec<(Surplus<'a>, Vec<(usize, usize)>)>,
    /// Buckets with pods: the surplus when it was pushed, the order of its next pod, and its index.
    heap: BinaryHeap<(usize, usize, usize)>,
    /// True if the pods in the buckets fit.
    fits: bool,
}

impl<'a> Candidates<'a> {
    /// Creates the order from `pods`, which are indexes with their rank; among equals, later ones are evicted
    /// earlier.
    pub(super) fn new(pods: impl Iterator<Item = (usize, Rank)>) -> Self {
        let mut ranked: Vec<_> = pods.collect();
        ranked.sort_by_key(|(_, rank)| *rank);
        Self {
            ranked,
            buckets: Vec::new(),
            heap: BinaryHeap::new(),
            fits: false,
        }
    }

    /// Removes the next pod and returns its index, and whether it fits.
    pub(super) fn next(
        &mut self,
        constraint_counts: &mut ConstraintCounts<'_, 'a>,
    ) -> Option<(usize, bool)> {
        loop {
            let Some(top) = self.heap.pop() else {
                self.fill(constraint_counts)?;
                continue;
            };
            let (.., at) = top;
            let current = self.head(at, constraint_counts);
            if current != Some(top) {
                // Pods that were removed since have reduced the surplus.
                self.heap.extend(current);
                continue;
            }
            let (surplus, bucket) = self.buckets.get_mut(at)?;
            let (_, place) = bucket.pop()?;
            constraint_counts.take(surplus);
            self.heap.extend(self.head(at, constraint_counts));
            return Some((place, self.fits));
        }
    }

    fn head(
        &self,
        at: usize,
        constraint_counts: &ConstraintCounts<'_, 'a>,
    ) -> Option<(usize, usize, usize)> {
        let (surplus, bucket) = self.buckets.get(at)?;
        let (order, _) = bucket.last()?;
        Some((constraint_counts.excess(surplus), *order, at))
    }

    /// Sorts the pods of the next rank into buckets, if there are any left.
    fn fill(&mut self, constraint_counts: &mut ConstraintCounts<'_, 'a>) -> Option<()> {
        let (_, rank) = self.ranked.last().copied()?;
        let from = self.ranked.partition_point(|(_, other)| *other < rank);
        let mut places = FxHashMap::default();
        self.buckets.clear();
        for (order, (place, _)) in self.ranked.split_off(from).into_iter().enumerate() {
            let surplus = constraint_counts.surplus(place);
            let index = *places.entry(surplus.clone()).or_insert_with(|| {
                self.buckets.push((surplus, Vec::new()));
                self.buckets.len() - 1
            });
            self.buckets.get_mut(index)?.1.push((order, place));
        }
        let heads = (0..self.buckets.len()).filter_map(|index| self.head(index, constraint_counts));
        self.heap = heads.collect();
        self.fits = rank.0;
        Some(())
    }
}
