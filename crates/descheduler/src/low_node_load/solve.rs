//! Solver: finds the move of a pod to a node that evens out node usage most per eviction.
//!
//! It minimizes the sum over nodes and resources of weight · (used ÷ has − mean)². For pods of priority class
//! prod that leave nodes which are hot by prod usage, `used` is the prod usage. To find the best pair of pod
//! and node, nodes are tried from the emptiest on, at most [`NEAR`] nodes with enough capacity per pod. The
//! work is counted, and the search ends when the limit is reached.

use super::load::{Row, UsageKind};

/// Maximum number of nodes with enough capacity that are tried for a pod: they are ordered, so the best one
/// is nearly always among the first.
pub(super) const NEAR: usize = 8;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bin {
    /// Usage of each resource.
    pub(super) used: Row,
    /// Usage by pods of priority class prod.
    pub(super) prod: Row,
    /// Limit of the usage.
    pub(super) high: Row,
    /// Limit of the prod usage.
    pub(super) prod_high: Row,
    /// Capacity.
    pub(super) has: Row,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Usage of the pod.
    pub(super) usage: Row,
    /// True if the pod is of priority class prod.
    pub(super) prod: bool,
}

/// A pod and a node that it can move to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pair {
    /// Index of the pod.
    pub(super) item: usize,
    /// Index of the node.
    pub(super) bin: usize,
    /// Decrease of the objective.
    pub(super) gain: f64,
}

/// Remaining work, in tried pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work(pub(super) u64);

impl Work {
    /// Uses up one unit; returns false if none was left.
    fn spend(&mut self) -> bool {
        let remaining = self.0.checked_sub(1);
        self.0 = remaining.unwrap_or(0);
        remaining.is_some()
    }
}

/// Nodes that can take pods.
#[derive(Debug, Clone)]
pub(super) struct Bins {
    /// The kind of usage to even out.
    usage_kind: UsageKind,
    bins: Vec<Bin>,
    weights: Vec<f64>,
    mean: Vec<f64>,
    levels: Vec<f64>,
    /// Indexes, emptiest node first.
    order: Vec<usize>,
}

impl Bin {
    fn share(&self, amount: i64, at: usize) -> f64 {
        match self.has.get(at) {
            Some(has) if *has > 0 => amount as f64 / *has as f64,
            _ => 0.0,
        }
    }

    fn shares(&self, usage_kind: UsageKind) -> impl Iterator<Item = f64> + '_ {
        let used = match usage_kind {
            UsageKind::Node => &self.used,
            UsageKind::Prod => &self.prod,
        };
        used.iter()
            .enumerate()
            .map(|(at, used)| self.share(*used, at))
    }

    /// Returns true if the node can take `item` without exceeding a limit because of it.
    pub(super) fn can_take(&self, item: &Item) -> bool {
        let within = |used: &Row, high: &Row| {
            let mut all = used.iter().zip(&item.usage).zip(high);
            all.all(|((used, more), high)| *more <= 0 || used.saturating_add(*more) <= *high)
        };
        within(&self.used, &self.high) && (!item.prod || within(&self.prod, &self.prod_high))
    }

    fn change(&mut self, item: &Item, change: fn(i64, i64) -> i64) {
        let rows = [Some(&mut self.used), item.prod.then_some(&mut self.prod)];
        for row in rows.into_iter().flatten() {
            for (used, amount) in row.iter_mut().zip(&item.usage) {
                *used = change(*used, *amount);
            }
        }
    }

    /// Adds `item` to the usage.
    pub(super) fn add(&mut self, item: &Item) {
        self.change(item, i64::saturating_add);
    }
}

impl Bins {
    /// Creates the solver for `usage_kind`, with `weights` and the `mean` share over all nodes of each
    /// resource.
    pub(super) fn new(
        usage_kind: UsageKind,
        bins: Vec<Bin>,
        weights: Vec<f64>,
        mean: Vec<f64>,
    ) -> Self {
        let mut out = Self {
            usage_kind,
            levels: Vec::new(),
            order: (0..bins.len()).collect(),
            bins,
            weights,
            mean,
        };
        out.levels = out.bins.iter().map(|bin| out.level(bin)).collect();
        let levels = &out.levels;
        out.order
            .sort_by(|a, b| levels[*a].total_cmp(&levels[*b]).then(a.cmp(b)));
        out
    }

    /// Returns the sum of the node's usage shares, each times the weight of its resource.
    fn level(&self, bin: &Bin) -> f64 {
        let shares = bin.shares(self.usage_kind).zip(&self.weights);
        shares.map(|(share, weight)| share * weight).sum()
    }

    /// Adds `item` to the node at index `at`, and sorts the node by its new level.
    pub(super) fn put(&mut self, at: usize, item: &Item) {
        let Some(bin) = self.bins.get_mut(at) else {
            return;
        };
        bin.add(item);
        let bin = bin.clone();
        let level = self.level(&bin);
        self.levels[at] = level;
        self.order.retain(|other| *other != at);
        let levels = &self.levels;
        let position = self.order.partition_point(|other| {
            levels[*other]
                .total_cmp(&level)
                .then(other.cmp(&at))
                .is_lt()
        });
        self.order.insert(position, at);
    }

    /// Returns the decrease of the objective when `item` moves from `source` to `bin`.
    pub(super) fn gain(&self, source: &Bin, bin: &Bin, item: &Item) -> f64 {
        let resources = self.weights.iter().zip(&self.mean).zip(&item.usage);
        let shares = source
            .shares(self.usage_kind)
            .zip(bin.shares(self.usage_kind));
        resources
            .zip(shares)
            .enumerate()
            .map(|(at, (((weight, mean), usage), (from, to)))| {
                let (less, more) = (source.share(*usage, at), bin.share(*usage, at));
                let falls = less * (2.0 * (from - mean) - less);
                let rises = more * (2.0 * (to - mean) + more);
                weight * (falls - rises)
            })
            .sum()
    }

    /// Returns the pair with the highest gain, among `items` of `source` and the nodes that can take them and
    /// that `allows` accepts; the first of equals.
    pub(super) fn best<'i>(
        &self,
        source: &Bin,
        items: impl Iterator<Item = (usize, &'i Item)>,
        mut allows: impl FnMut(usize, usize) -> bool,
        work: &mut Work,
    ) -> Option<Pair> {
        let mut best: Option<Pair> = None;
        for (item_at, item) in items {
            let mut tried = 0;
            for index in &self.order {
                if tried == NEAR {
                    break;
                }
                if !work.spend() {
                    return best;
                }
                let Some(bin) = self.bins.get(*index).filter(|bin| bin.can_take(item)) else {
                    continue;
                };
                let gain = self.gain(source, bin, item);
                let better = gain > 0.0 && best.is_none_or(|best| gain > best.gain);
                // A pair that would not be better is not checked.
                if better && !allows(item_at, *index) {
                    continue;
                }
                tried += 1;
                if better {
                    best = Some(Pair {
                        item: item_at,
                        bin: *index,
                        gain,
                    });
                }
            }
        }
        best
    }
}
