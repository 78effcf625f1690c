//! Placement of a group of pods: the nodes and the number of pods on each.
//!
//! A domain offers the slots of its nodes. The candidates are the domains that can hold all pods, in the
//! lowest such layer at or below the layer in which the pods must be together. Of these, the domain with most
//! of the pods that it belongs near is filled, then the one with the fewest slots, its fullest child first.
//! If the number of pods in a domain must be a multiple, only numbers are considered that its children can
//! make up.

use super::sums::CountSet;
use super::{Layers, TopologyTree};
use koord_api::extension::NetworkTopologySpec;
use rustc_hash::FxHashSet;
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;

const MUST: &str = "MustGather";

/// Slots that one node offers for the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeOffer {
    /// Number of pods that fit.
    pub slots: usize,
    /// Number of existing pods that the group belongs near.
    pub existing: usize,
    /// Score; of domains with equal offers, that with the higher sum is used.
    pub score: i64,
}

/// Placement requirements of a group, in terms of one topology's layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Number of pods.
    pub pods: usize,
    /// Depth of the layer in which all pods must share a domain; 0 requires nothing.
    gather: usize,
    /// Factor that the number of pods in a domain must be a multiple of, by depth; 1 requires nothing.
    multiples: Vec<usize>,
    /// Required layer that the topology does not have.
    unknown: Option<String>,
}

impl PlacementRequest {
    /// Parses the requirements of `spec` for `pods` pods. If several layers are required, the lowest applies;
    /// multiples in unknown layers are ignored.
    #[must_use]
    pub fn new(spec: &NetworkTopologySpec, pods: usize, layers: &Layers) -> Self {
        let mut out = Self {
            pods,
            gather: 0,
            multiples: vec![1; layers.0.len() + 1],
            unknown: None,
        };
        for rule in &spec.gather_strategy {
            let depth = layers.depth(&rule.layer);
            if rule.strategy == MUST {
                match depth {
                    Some(depth) => out.gather = out.gather.max(depth),
                    None => out.unknown = Some(rule.layer.clone()),
                }
            }
            let multiple = rule.pod_count_multiple.unwrap_or(0);
            let multiple = usize::try_from(multiple).unwrap_or(0).max(1);
            if let Some(entry) = depth.and_then(|depth| out.multiples.get_mut(depth)) {
                *entry = multiple;
            }
        }
        out
    }
}

/// Domains of one layer in which all pods of a group must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerDomains(FxHashSet<usize>);

impl LayerDomains {
    /// Returns the domains for further pods of a group that already has members on `nodes`, if `spec` requires
    /// one domain for all pods. These are the domains of the members: normally one, several if the members are
    /// not together. `None` if `spec` requires no layer that `tree` has, or `tree` has none of the nodes.
    #[must_use]
    pub fn for_nodes<'a>(
        spec: &NetworkTopologySpec,
        nodes: impl IntoIterator<Item = &'a str>,
        tree: &TopologyTree,
    ) -> Option<Self> {
        let depth = PlacementRequest::new(spec, 0, &tree.layers).gather;
        let nodes = nodes.into_iter();
        let domains = nodes.filter_map(|node| tree.place_at(node, depth));
        let domains: FxHashSet<usize> = domains.collect();
        (depth > 0 && !domains.is_empty()).then_some(Self(domains))
    }

    /// Returns true if `node` is in one of the domains.
    #[must_use]
    pub fn has(&self, node: &str, tree: &TopologyTree) -> bool {
        let depth = self
            .0
            .iter()
            .next()
            .map(|domain| tree.domains[*domain].depth);
        let place = depth.and_then(|depth| tree.place_at(node, depth));
        place.is_some_and(|place| self.0.contains(&place))
    }
}

/// Number of pods per node, in the order of placement.
pub type Placement = Vec<(Arc<str>, usize)>;

/// Reason why a group cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NoPlace {
    /// Number of pods of the group.
    pub pods: usize,
    /// Slots of the domains in the required layer, as `layer/name` with a number; sorted as text.
    pub offers: Vec<(String, usize)>,
    /// Required multiples by layer; sorted.
    pub multiples: Vec<(String, usize)>,
    /// Required layer, if the topology does not have it.
    pub unknown: Option<String>,
}

impl NoPlace {
    /// Returns the message for pods; `fit` is the reason why nodes reject them.
    #[must_use]
    pub fn message(&self, fit: &str) -> String {
        let offers: Vec<String> = match &self.unknown {
            Some(layer) => vec![format!("topology layer {layer} does not exist")],
            None => {
                let offers = self.offers.iter();
                offers
                    .map(|(place, slots)| format!("topology topologyNode {place}: {slots}"))
                    .collect()
            }
        };
        let mut text = format!(
            "no candidate topology nodes can accommodate job, desiredOfferSlot: {}, {}, {fit}",
            self.pods,
            offers.join(";"),
        );
        if !self.multiples.is_empty() {
            let all = self.multiples.iter();
            let all: Vec<String> = all.map(|(layer, n)| format!("{layer}={n}")).collect();
            text.push_str(&format!(
                "; podCountMultiple constraints: {}",
                all.join(", ")
            ));
        }
        text
    }
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(""))
    }
}

/// Sums of offers by domain.
pub(super) struct OfferSums<'a> {
    tree: &'a TopologyTree,
    request: &'a PlacementRequest,
    pub(super) sums: Vec<NodeOffer>,
    can: Vec<CountSet>,
}

impl TopologyTree {
    /// Returns the domain at `depth` that contains the node.
    fn place_at(&self, node: &str, depth: usize) -> Option<usize> {
        let leaf = *self.leaves.get(node)?;
        let mut up = std::iter::successors(Some(leaf), |domain| self.domains[*domain].parent);
        up.find(|domain| self.domains[*domain].depth == depth)
    }

    /// Places the pods of `request` on nodes with these offers. Nodes without a position in the topology are
    /// ignored, and so is a second offer of a node.
    ///
    /// # Errors
    /// No domain can hold all of them.
    pub fn place<'a>(
        &self,
        request: &PlacementRequest,
        offers: impl IntoIterator<Item = (&'a str, NodeOffer)>,
    ) -> Result<Placement, NoPlace> {
        let mut leaves = vec![None; self.domains.len()];
        for (node, offer) in offers {
            if let Some(leaf) = self.leaves.get(node) {
                leaves[*leaf].get_or_insert(offer);
            }
        }
        let sums_by_domain = OfferSums::new(self, request, &leaves);
        let candidates = sums_by_domain.candidates();
        let best = candidates
            .into_iter()
            .min_by(|a, b| sums_by_domain.compare(*a, *b, false));
        let Some(best) = best else {
            return Err(sums_by_domain.refusal());
        };
        let mut dealt = Vec::new();
        sums_by_domain.distribute_pods(best, request.pods, &mut dealt);
        Ok(dealt)
    }
}

impl<'a> OfferSums<'a> {
    /// Sums the offers of nodes up to all domains, and the pod counts that each can hold.
    pub(super) fn new(
        tree: &'a TopologyTree,
        request: &'a PlacementRequest,
        leaves: &[Option<NodeOffer>],
    ) -> Self {
        let nothing = CountSet::UpTo(0);
        let mut sums = vec![NodeOffer::default(); tree.domains.len()];
        let mut can = vec![nothing; tree.domains.len()];
        for (at, domain) in tree.domains.iter().enumerate().rev() {
            let multiple = request.multiples[domain.depth];
            if let Some(offer) = leaves[at] {
                sums[at] = offer;
                can[at] = CountSet::multiples(multiple, offer.slots, request.pods);
            } else {
                for child in &domain.children {
                    let child = sums[*child];
                    let sum = &mut sums[at];
                    sum.slots = sum.slots.saturating_add(child.slots);
                    sum.existing = sum.existing.saturating_add(child.existing);
                    sum.score = sum.score.saturating_add(child.score);
                }
                let children = domain.children.iter();
                let all = children.fold(CountSet::UpTo(0), |all, child| {
                    all.plus(&can[*child], request.pods)
                });
                can[at] = all.only(multiple, request.pods);
            }
            sums[at].slots -= sums[at].slots % multiple;
        }
        Self {
            tree,
            request,
            sums,
            can,
        }
    }

    /// Returns the domains that can hold all pods, in the lowest layer that has one.
    fn candidates(&self) -> Vec<usize> {
        let (request, mut lowest) = (self.request, Vec::new());
        if request.unknown.is_some() {
            return lowest;
        }
        let mut above: Vec<usize> = vec![0];
        loop {
            above.retain(|domain| self.can[*domain].has(request.pods));
            let Some(first) = above.first() else {
                return lowest;
            };
            let domains = &self.tree.domains;
            let reached = domains[*first].depth >= request.gather;
            let below = above.iter().flat_map(|domain| &domains[*domain].children);
            let below = below.copied().collect();
            let layer = std::mem::replace(&mut above, below);
            if reached {
                lowest = layer;
            }
        }
    }

    /// Orders the better domain first. While a domain is filled, that is the one that takes most pods.
    pub(super) fn compare(&self, a: usize, b: usize, filling: bool) -> Ordering {
        let up = |at: usize| {
            std::iter::successors(Some(at), |at| self.tree.domains[*at].parent)
                .map(|at| &self.sums[at])
        };
        let existing = |domain| up(domain).map(|sum| Reverse(sum.existing));
        let slots = |domain| {
            let slots = up(domain).map(|sum| i128::try_from(sum.slots).unwrap_or(i128::MAX));
            slots.map(|slots| if filling { -slots } else { slots })
        };
        let last = |domain: usize| {
            (
                Reverse(self.sums[domain].score),
                &self.tree.domains[domain].name,
            )
        };
        existing(a)
            .cmp(existing(b))
            .then_with(|| slots(a).cmp(slots(b)))
            .then_with(|| last(a).cmp(&last(b)))
    }

    /// Distributes exactly `pods` pods over the nodes of domain `at`, which can hold them, and appends nodes with
    /// their numbers of pods to `out`.
    fn distribute_pods(&self, at: usize, pods: usize, out: &mut Placement) {
        let domain = &self.tree.domains[at];
        if pods == 0 {
            return;
        }
        if domain.children.is_empty() {
            out.push((domain.name.clone(), pods));
            return;
        }
        let mut children = domain.children.clone();
        children.sort_by(|a, b| self.compare(*a, *b, true));
        // Numbers that the later children can hold, so that no child gets more than leaves a solution.
        let mut later_counts = vec![CountSet::UpTo(0)];
        for child in children.iter().skip(1).rev() {
            let last = later_counts
                .last()
                .map(|last| last.plus(&self.can[*child], pods));
            later_counts.extend(last);
        }
        let mut remaining = pods;
        for (child, later) in children.into_iter().zip(later_counts.into_iter().rev()) {
            let count = self.can[child].largest(remaining, |n| later.has(remaining - n));
            let count = count.unwrap_or(0);
            self.distribute_pods(child, count, out);
            remaining -= count;
        }
    }

    /// Returns the reason why no domain can hold the pods.
    fn refusal(&self) -> NoPlace {
        let PlacementRequest {
            gather,
            multiples,
            unknown,
            pods,
        } = self.request;
        let tree = self.tree;
        let domains = tree.domains.iter().zip(&self.sums);
        let gathered = domains.filter(|(domain, _)| domain.depth == *gather);
        let mut offers: Vec<(String, usize)> = gathered
            .map(|(domain, sum)| {
                let layer = tree.layers.name(domain.depth);
                (format!("{layer}/{name}", name = domain.name), sum.slots)
            })
            .collect();
        offers.sort();
        let required = multiples.iter().enumerate().filter(|(_, n)| **n > 1);
        let mut multiples: Vec<(String, usize)> = required
            .map(|(depth, n)| (tree.layers.name(depth).to_owned(), *n))
            .collect();
        multiples.sort();
        NoPlace {
            pods: *pods,
            offers,
            multiples,
            unknown: unknown.clone(),
        }
    }
}
