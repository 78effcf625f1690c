//! NUMA alignment: masks, hints, their merge, and the split of amounts over NUMA nodes.

mod merge;
mod split;
#[cfg(test)]
mod tests;

pub use merge::admit;
pub use split::{Unit, Usage, amplify, least_allocated, most_allocated, split};

/// A set of NUMA nodes, by id; ids of 64 and above are not representable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct NumaMask(pub u64);

impl NumaMask {
    /// How many NUMA nodes are in the set.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether NUMA node `id` is in the set.
    #[must_use]
    pub fn has(self, id: u8) -> bool {
        id < 64 && self.0 & (1 << id) != 0
    }

    /// Whether every NUMA node of the set is in `other`.
    #[must_use]
    pub fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// All non-empty subsets: small ones first, those of one size by their lowest ids.
    #[must_use]
    pub fn subsets(self) -> Vec<Self> {
        let ids: Vec<u8> = self.ids().collect();
        let mut out = Vec::new();
        let mut ring = vec![(Self(0), 0)];
        for _ in 0..ids.len() {
            let grow = |(mask, next): (Self, usize)| {
                let more = ids.iter().enumerate().skip(next);
                more.map(move |(at, id)| (Self(mask.0 | 1 << id), at + 1))
                    .collect::<Vec<_>>()
            };
            ring = ring.into_iter().flat_map(grow).collect();
            out.extend(ring.iter().map(|(mask, _)| *mask));
        }
        out
    }

    /// The ids in the set, ascending.
    pub fn ids(self) -> impl Iterator<Item = u8> {
        (0..64).filter(move |id| self.has(*id))
    }
}

impl std::fmt::Display for NumaMask {
    /// Binary, an even number of digits: `01`, `10`, `0100`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = (64 - self.0.leading_zeros() as usize).max(1);
        write!(f, "{:0width$b}", self.0, width = digits.next_multiple_of(2))
    }
}

impl FromIterator<u8> for NumaMask {
    fn from_iter<I: IntoIterator<Item = u8>>(ids: I) -> Self {
        let bits = ids.into_iter().filter(|id| *id < 64);
        Self(bits.fold(0, |mask, id| mask | 1 << id))
    }
}

/// How strictly resources must come from the same NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumaPolicyKind {
    /// Preferably.
    BestEffort,
    /// Every provider must be served from its preferred set.
    Restricted,
    /// All from one NUMA node.
    SingleNumaNode,
}

/// Whether a pod on one NUMA node keeps pods that span several away, and the reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NumaExclusive {
    /// No.
    #[default]
    None,
    /// If possible.
    Preferred,
    /// Always.
    Required,
}

/// Who is on a NUMA node, as far as exclusiveness cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NumaState {
    /// Nobody.
    #[default]
    Idle,
    /// Only pods within this NUMA node.
    Single,
    /// A pod that spans several.
    Shared,
}

/// The alignment asked for on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaPolicy {
    /// How strict.
    pub kind: NumaPolicyKind,
    /// Exclusiveness.
    pub exclusive: NumaExclusive,
    /// The node's NUMA nodes.
    pub nodes: NumaMask,
    /// The state of each, by id; absent means idle.
    pub states: Vec<(u8, NumaState)>,
}

/// One way to serve one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// From these NUMA nodes; `None`: from any.
    pub mask: Option<NumaMask>,
    /// Whether it is as good as this provider can do.
    pub preferred: bool,
    /// Between hints of one provider and mask size, the higher the better.
    pub score: i64,
}

/// What each provider can do, in the order of the providers: resource name and its hints; no hints
/// list: it does not care.
pub type Offers = Vec<(std::sync::Arc<str>, Option<Vec<Hint>>)>;
