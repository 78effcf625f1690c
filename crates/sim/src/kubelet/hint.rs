//! Topology hints of the providers, and their merge by the topology manager.

use super::machine::{Machine, Settings};
use koord_model::alignment::Policy;
use koord_model::numa::NumaMask;

/// A topology hint: one way to serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// NUMA nodes that serve the request; `None` for any.
    pub mask: Option<NumaMask>,
    /// True if no hint has fewer NUMA nodes on an empty machine.
    pub preferred: bool,
}

impl Hint {
    /// The hint without a preference.
    pub const ANY: Self = Self {
        mask: None,
        preferred: true,
    };
}

/// Hints of one resource: an empty list means that it cannot be served, `None` that any NUMA node will do.
pub type Offer = Option<Vec<Hint>>;

/// Returns the hints of a resource from the masks that serve it. Those with `least` NUMA nodes are preferred.
pub(super) fn rank(masks: Vec<NumaMask>, least: u32) -> Vec<Hint> {
    let hint = |mask: NumaMask| Hint {
        mask: Some(mask),
        preferred: mask.count() == least,
    };
    masks.into_iter().map(hint).collect()
}

/// Returns whether the policy admits a pod with this best hint.
#[must_use]
pub fn admits(policy: Policy, best: Hint) -> bool {
    match policy {
        Policy::None | Policy::BestEffort => true,
        Policy::Restricted | Policy::SingleNumaNode => best.preferred,
    }
}

/// Returns the best combination of one hint of each offer.
///
/// A combination is the intersection of its hints. It is preferred if all of them are and the masks that are
/// set are equal.
#[must_use]
pub fn merge(machine: &Machine, settings: &Settings, offers: &[Offer]) -> Hint {
    let all = machine.nodes();
    let single = settings.policy == Policy::SingleNumaNode;
    let lists: Vec<Vec<Hint>> = offers.iter().map(|offer| list(offer, single)).collect();
    let order = Order {
        machine,
        closest: settings.closest && !single,
        width: width(&lists),
    };
    // Intersections of the first lists' hints: many combinations have equal results, and are one entry here.
    let mut common = vec![Common {
        mask: all,
        preferred: true,
        agreed: None,
    }];
    for hints in &lists {
        let mut next: Vec<Common> = Vec::new();
        for before in &common {
            for hint in hints {
                let merged = before.and(hint);
                if !next.contains(&merged) {
                    next.push(merged);
                }
            }
        }
        common = next;
    }
    let candidates = common.into_iter().filter(|hints| hints.mask.count() > 0);
    let best = candidates.fold(None, |best, hints| {
        let candidate = (hints.mask, hints.preferred);
        Some(best.map_or(candidate, |best| order.better(best, candidate)))
    });
    let (mask, preferred) = best.unwrap_or((all, false));
    let any = single && mask == all;
    Hint {
        mask: (!any).then_some(mask),
        preferred,
    }
}

/// Returns the hints of an offer; with `single`, only those of one NUMA node or without a mask.
fn list(offer: &Offer, single: bool) -> Vec<Hint> {
    let hints = match offer {
        None => vec![Hint::ANY],
        Some(hints) if hints.is_empty() => vec![Hint {
            mask: None,
            preferred: false,
        }],
        Some(hints) => hints.clone(),
    };
    let fits = |hint: &Hint| hint.preferred && hint.mask.is_none_or(|mask| mask.count() == 1);
    hints
        .into_iter()
        .filter(|hint| !single || fits(hint))
        .collect()
}

/// Returns the maximum over the resources of the number of NUMA nodes in the resource's smallest hint. Hints
/// that are not preferred count, too.
pub(super) fn width(lists: &[Vec<Hint>]) -> u32 {
    let least = |hints: &Vec<Hint>| {
        let masks = hints.iter().filter_map(|hint| hint.mask);
        masks.map(NumaMask::count).min()
    };
    lists.iter().filter_map(least).max().unwrap_or(0)
}

/// A combination of hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Common {
    mask: NumaMask,
    preferred: bool,
    /// The mask of the hints, while they agree.
    agreed: Option<NumaMask>,
}

impl Common {
    /// Returns the combination of these hints and `hint`: the intersection of the masks, preferred if all hints
    /// are preferred and have the same mask.
    fn and(&self, hint: &Hint) -> Self {
        let agrees = match (self.agreed, hint.mask) {
            (Some(agreed), Some(mask)) => agreed == mask,
            _ => true,
        };
        let preferred = self.preferred && hint.preferred && agrees;
        Self {
            mask: NumaMask(self.mask.0 & hint.mask.map_or(u64::MAX, |mask| mask.0)),
            preferred,
            agreed: self.agreed.or(hint.mask).filter(|_| preferred),
        }
    }
}

/// Order of two combinations.
pub(super) struct Order<'a> {
    pub(super) machine: &'a Machine,
    pub(super) closest: bool,
    /// [`width`] of the hints.
    pub(super) width: u32,
}

impl Order<'_> {
    /// Returns `candidate` if it is better, else `current`. Neither is empty.
    pub(super) fn better(
        &self,
        current: (NumaMask, bool),
        candidate: (NumaMask, bool),
    ) -> (NumaMask, bool) {
        let (current_count, candidate_count) = (current.0.count(), candidate.0.count());
        let wins = match (current.1, candidate.1) {
            (false, true) => true,
            (true, false) => false,
            (true, true) => self.fits_better(candidate.0, current.0),
            // The closest to the width wins, one below it before one above it.
            (false, false) if current_count > self.width => {
                self.fits_better(candidate.0, current.0)
            }
            (false, false) if current_count == self.width => {
                candidate_count == self.width && self.fits_better(candidate.0, current.0)
            }
            (false, false) => {
                candidate_count == self.width
                    || (candidate_count < self.width
                        && (candidate_count > current_count
                            || (candidate_count == current_count
                                && self.fits_better(candidate.0, current.0))))
            }
        };
        if wins { candidate } else { current }
    }

    /// Returns true if `a` is better than `b`: it has fewer NUMA nodes, else they are closer to each other (if
    /// [`Self::closest`] is set), else their ids are lower.
    fn fits_better(&self, a: NumaMask, b: NumaMask) -> bool {
        let narrower = (a.count(), a) < (b.count(), b);
        // The closest is chosen only among sets of equally many NUMA nodes.
        if !self.closest || a.count() != b.count() {
            return narrower;
        }
        let ((sum_a, pairs_a), (sum_b, pairs_b)) = (self.spread(a), self.spread(b));
        // Average distances, compared as fractions.
        let (scaled_a, scaled_b) = (sum_a * pairs_b, sum_b * pairs_a);
        scaled_a < scaled_b || (scaled_a == scaled_b && narrower)
    }

    /// Returns the sum of the distances of all ordered pairs, and the number of pairs.
    fn spread(&self, mask: NumaMask) -> (u64, u64) {
        let from = |a: u8| {
            mask.ids()
                .map(move |b| u64::from(self.machine.distance(a, b)))
        };
        let sum = mask.ids().flat_map(from).sum();
        let nodes = u64::from(mask.count());
        (sum, nodes * nodes)
    }
}
