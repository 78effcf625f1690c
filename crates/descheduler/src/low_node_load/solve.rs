//! Which pod should go where, so that the load of nodes evens out most for one eviction.
//!
//! What is lowered is the sum over nodes and resources of weight · (used ÷ has − mean)², where for pods of class prod that
//! leave nodes which are hot of prod, used is what such pods use. Of all pairs of a pod and a node
//! that takes it, the best one is found by looking at the nodes from the emptiest on, and at no more than [`NEAR`] of them
//! that take the pod; the work is counted, and ends when it is used up.

use super::load::{Row, UsageKind};

/// How many nodes that take a pod are looked at for it: they come in order, so the best is nearly always among the first.
pub(super) const NEAR: usize = 8;

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bin {
    /// What is used of each resource.
    pub(super) used: Row,
    /// What pods of class prod use.
    pub(super) prod: Row,
    /// What may be used.
    pub(super) high: Row,
    /// What pods of class prod may use.
    pub(super) prod_high: Row,
    /// What there is.
    pub(super) has: Row,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// What it uses.
    pub(super) usage: Row,
    /// Whether it is of class prod.
    pub(super) prod: bool,
}

/// A pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pair {
    /// The pod's place among those that were offered.
    pub(super) item: usize,
    /// The node's place.
    pub(super) bin: usize,
    /// By how much the sum falls.
    pub(super) gain: f64,
}

/// How much work may be done yet, in pairs that are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work(pub(super) u64);

impl Work {
    /// One more; whether there was any left.
    fn spend(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// Nodes that take pods.
#[derive(Debug, Clone)]
pub(super) struct Bins {
    /// Whose use is to be even.
    usage_kind: UsageKind,
    bins: Vec<Bin>,
    weights: Vec<f64>,
    mean: Vec<f64>,
    levels: Vec<f64>,
    /// The emptiest first.
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

    /// Whether it takes `item` without being over anything for it.
    pub(super) fn takes(&self, item: &Item) -> bool {
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

    /// Adds `item`.
    pub(super) fn add(&mut self, item: &Item) {
        self.change(item, i64::saturating_add);
    }
}

impl Bins {
    /// What is used of `usage_kind` is to be even: `weights` and the `mean` share of each resource, over all nodes.
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

    fn level(&self, bin: &Bin) -> f64 {
        let shares = bin.shares(self.usage_kind).zip(&self.weights);
        shares.map(|(share, weight)| share * weight).sum()
    }

    /// `item` goes to the node at `at`.
    pub(super) fn put(&mut self, at: usize, item: &Item) {
        let Some(bin) = self.bins.get_mut(at) else {
            return;
        };
        bin.add(item);
        let level = bin.clone();
        let level = self.level(&level);
        self.levels[at] = level;
        self.order.retain(|other| *other != at);
        let levels = &self.levels;
        let place = self.order.partition_point(|other| {
            levels[*other]
                .total_cmp(&level)
                .then(other.cmp(&at))
                .is_lt()
        });
        self.order.insert(place, at);
    }

    /// By how much the sum falls when `item` goes from `source` to `bin`.
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

    /// The pair that lowers the sum most, of `items` on `source` and the nodes that take them and that `allows` lets them
    /// go to; the first of equals.
    pub(super) fn best<'i>(
        &self,
        source: &Bin,
        items: impl Iterator<Item = (usize, &'i Item)>,
        mut allows: impl FnMut(usize, usize) -> bool,
        work: &mut Work,
    ) -> Option<Pair> {
        let mut best: Option<Pair> = None;
        for (item_at, item) in items {
            let mut near = 0;
            for at in &self.order {
                if near == NEAR {
                    break;
                }
                if !work.spend() {
                    return best;
                }
                let Some(bin) = self.bins.get(*at).filter(|bin| bin.takes(item)) else {
                    continue;
                };
                let gain = self.gain(source, bin, item);
                let better = gain > 0.0 && best.is_none_or(|best| gain > best.gain);
                // What would be no better need not be asked about.
                if better && !allows(item_at, *at) {
                    continue;
                }
                near += 1;
                if better {
                    best = Some(Pair {
                        item: item_at,
                        bin: *at,
                        gain,
                    });
                }
            }
        }
        best
    }
}
