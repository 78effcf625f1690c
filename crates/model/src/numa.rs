//! NUMA alignment: masks, hints, their merge, and the split of amounts over NUMA nodes.

mod merge;
mod split;
#[cfg(test)]
mod tests;

pub use merge::admit;
pub use split::{Unit, Usage, amplify, least_allocated, most_allocated, split};

/// Set of NUMA nodes, by id; ids of 64 and above are not representable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct NumaMask(pub u64);

impl NumaMask {
    /// Returns the number of NUMA nodes in the set.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns true if NUMA node `id` is in the set.
    #[must_use]
    pub fn has(self, id: u8) -> bool {
        id < 64 && self.0 & (1 << id) != 0
    }

    /// Returns true if every NUMA node of the set is in `other`.
    #[must_use]
    pub fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns all non-empty subsets: small ones first, those of one size by their lowest ids.
    #[must_use]
    pub fn subsets(self) -> Vec<Self> {
        let ids: Vec<u8> = self.ids().collect();
        let mut out = Vec::new();
        let mut ring = vec![(Self(0), 0)];
        for _ in 0..ids.len() {
            let grow = |(mask, next): (Self, usize)| {
                let remaining = ids.iter().enumerate().skip(next);
                remaining
                    .map(move |(at, id)| (Self(mask.0 | 1 << id), at + 1))
                    .collect::<Vec<_>>()
            };
            ring = ring.into_iter().flat_map(grow).collect();
            out.extend(ring.iter().map(|(mask, _)| *mask));
        }
        out
    }

    /// Returns the ids in the set, ascending.
    pub fn ids(self) -> impl Iterator<Item = u8> {
        (0..64).filter(move |id| self.has(*id))
    }
}

impl std::fmt::Display for NumaMask {
    /// Formats the mask in binary with an even number of digits: `01`, `10`, `0100`.
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

/// Strictness of the NUMA alignment of a pod's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumaPolicyKind {
    /// Aligned if possible.
    BestEffort,
    /// Every provider must be served from its preferred set.
    Restricted,
    /// All resources from one NUMA node.
    SingleNumaNode,
}

/// Exclusion between pods on one NUMA node and pods that span several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NumaExclusive {
    /// No exclusion.
    #[default]
    None,
    /// Exclusion if possible.
    Preferred,
    /// Exclusion always.
    Required,
}

/// Occupation of a NUMA node, for the exclusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NumaState {
    /// Used by no pod.
    #[default]
    Idle,
    /// Used only by pods within this NUMA node.
    Single,
    /// Used by a pod that spans several NUMA nodes.
    Shared,
}

/// NUMA alignment required on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaPolicy {
    /// Strictness.
    pub kind: NumaPolicyKind,
    /// Whether pods on one NUMA node and pods that span several may share a NUMA node.
    pub exclusive: NumaExclusive,
    /// NUMA nodes of the node.
    pub nodes: NumaMask,
    /// State of each NUMA node, by id; absent means idle.
    pub states: Vec<(u8, NumaState)>,
}

/// Topology hint: one possible set of NUMA nodes for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// NUMA nodes; `None` means any.
    pub mask: Option<NumaMask>,
    /// True if no other hint of this provider is better.
    pub preferred: bool,
    /// Score between hints of one provider and mask size; higher is better.
    pub score: i64,
}

/// Hints of each provider, in the order of the providers: resource name and its hints; `None` means that the
/// provider has no preference.
pub type Offers = Vec<(std::sync::Arc<str>, Option<Vec<Hint>>)>;
