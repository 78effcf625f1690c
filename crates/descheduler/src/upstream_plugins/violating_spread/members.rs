//! The pods of a namespace, and their distribution over topology domains.

use super::candidates::Candidates;
use super::constraint::Constraint;
use crate::framework::{Cycle, SkipReason};
use crate::state::PodInfo;
use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// A pod and its constraints.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) pod: &'a Arc<PodInfo>,
    /// Indexes of the constraints of the pod itself.
    pub(super) constraints: Vec<usize>,
    /// True if the pod may be evicted. Other pods only count in their domains.
    pub(super) is_movable: bool,
    /// Reason why it may not be evicted; taken when it is reported.
    pub(super) reason: Option<SkipReason>,
}

/// The pods of a namespace, and the constraints of those that may be evicted.
#[derive(Debug, Default)]
pub(super) struct Members<'a> {
    pub(super) pods: Vec<Member<'a>>,
    pub(super) constraints: Vec<Constraint>,
}

/// A topology domain: one value of a topology key.
#[derive(Debug)]
pub(super) struct Domain<'a> {
    pub(super) value: String,
    /// Number of pods that count.
    pub(super) size: usize,
    /// Indexes of the pods that may be evicted.
    pub(super) movable: Vec<usize>,
    /// Evictable pods in eviction order; built when first needed.
    pub(super) candidates: Option<Candidates<'a>>,
}

/// The pods that match a constraint, by domain; domains without pods are included.
#[derive(Debug)]
pub(super) struct Domains<'a> {
    /// Domains sorted by value.
    pub(super) list: Vec<Domain<'a>>,
    /// Number of pods that leave their domain and need another one.
    pub(super) leaving: usize,
}

impl<'a> Members<'a> {
    /// Returns the index of constraint `of` of `pod`, adding it if it is new.
    pub(super) fn constraint(
        &mut self,
        of: &TopologySpreadConstraint,
        pod: &Arc<PodInfo>,
    ) -> usize {
        let constraint = Constraint::new(of, pod);
        let position = self
            .constraints
            .iter()
            .position(|existing| *existing == constraint);
        position.unwrap_or_else(|| {
            self.constraints.push(constraint);
            self.constraints.len() - 1
        })
    }

    /// Returns the pods that match `constraint` by domain, without those that leave.
    pub(super) fn domains(&self, cycle: &Cycle<'a>, constraint: &Constraint) -> Domains<'a> {
        let key = &constraint.topology_key;
        let nodes = cycle.nodes().iter();
        let included = nodes.filter(|node| constraint.includes(node));
        let mut domains = BTreeMap::<&str, (usize, Vec<usize>)>::new();
        for value in included.filter_map(|node| node.label(key)) {
            domains.entry(value).or_default();
        }
        let mut leaving = 0;
        for (place, member) in self.pods.iter().enumerate() {
            let pod = member.pod;
            // A pod that is being deleted has been replaced already.
            if pod.deleting || !constraint.selects(pod) {
                continue;
            }
            if cycle.is_leaving(pod) {
                leaving += 1;
                continue;
            }
            if let Some(value) = domain_of(cycle, pod, key) {
                let (size, movable) = domains.entry(value).or_default();
                *size += 1;
                if member.is_movable {
                    movable.push(place);
                }
            }
        }
        let list = domains.into_iter().map(|(value, (size, movable))| Domain {
            value: value.to_owned(),
            size,
            movable,
            candidates: None,
        });
        Domains {
            list: list.collect(),
            leaving,
        }
    }
}

/// Returns the domain of `pod` for topology key `key`.
fn domain_of<'a>(cycle: &Cycle<'a>, pod: &PodInfo, key: &str) -> Option<&'a str> {
    let node = cycle.snapshot().node(pod.node.as_ref()?)?;
    node.label(key)
}

impl Domains<'_> {
    /// Counts the replacements of the pods that leave in the smallest domains, where a scheduler places them.
    pub(super) fn place_leaving(&mut self) {
        let sizes = self.list.iter().enumerate();
        let mut smallest: BinaryHeap<_> = sizes
            .map(|(at, domain)| Reverse((domain.size, at)))
            .collect();
        for _ in 0..self.leaving {
            let Some(Reverse((size, at))) = smallest.pop() else {
                return;
            };
            if let Some(domain) = self.list.get_mut(at) {
                domain.size = size + 1;
            }
            smallest.push(Reverse((size + 1, at)));
        }
    }

    /// Returns the average number of pods per domain.
    pub(super) fn average(&self) -> f64 {
        let pods = self.list.iter().map(|domain| domain.size).sum();
        super::count(pods) / super::count(self.list.len().max(1))
    }

    /// Returns true if no domain exceeds another by more than `max_skew` pods.
    pub(super) fn is_balanced(&self, max_skew: i32) -> bool {
        let sizes = || self.list.iter().map(|domain| domain.size);
        let (Some(least), Some(most)) = (sizes().min(), sizes().max()) else {
            return true;
        };
        i64::try_from(most - least).is_ok_and(|skew| skew <= i64::from(max_skew))
    }
}

/// Indexes of the other constraints of a pod, with its domain for each.
pub(super) type Surplus<'a> = Vec<(usize, &'a str)>;

/// Numbers of pods by domain for other constraints, while one constraint is processed.
#[derive(Debug)]
pub(super) struct ConstraintCounts<'m, 'a> {
    cycle: &'m Cycle<'a>,
    members: &'m Members<'a>,
    /// Index of the constraint that is processed.
    judged: usize,
    others: FxHashMap<usize, DomainCounts<'a>>,
}

/// Pods per domain of one constraint.
#[derive(Debug, Default)]
struct DomainCounts<'a> {
    sizes: FxHashMap<&'a str, usize>,
    /// Pods that each domain has if all pods are spread evenly, rounded up.
    fair_share: usize,
}

impl<'m, 'a> ConstraintCounts<'m, 'a> {
    pub(super) fn new(cycle: &'m Cycle<'a>, members: &'m Members<'a>, judged: usize) -> Self {
        Self {
            cycle,
            members,
            judged,
            others: FxHashMap::default(),
        }
    }

    /// Returns the domains of the pod at `place` for its other constraints.
    pub(super) fn surplus(&mut self, place: usize) -> Surplus<'a> {
        let (cycle, members) = (self.cycle, self.members);
        let Some(member) = members.pods.get(place) else {
            return Surplus::new();
        };
        let other_constraints = member
            .constraints
            .iter()
            .filter(|index| **index != self.judged);
        let mut surplus = Surplus::new();
        for index in other_constraints {
            let Some(constraint) = members.constraints.get(*index) else {
                continue;
            };
            if constraint.selects(member.pod)
                && let Some(value) = domain_of(cycle, member.pod, &constraint.topology_key)
            {
                self.others
                    .entry(*index)
                    .or_insert_with(|| DomainCounts::new(cycle, members, constraint));
                surplus.push((*index, value));
            }
        }
        surplus
    }

    /// Returns the total surplus of these domains.
    pub(super) fn excess(&self, surplus: &Surplus<'a>) -> usize {
        let excess = |(at, value): &(usize, &'a str)| {
            let domain_counts = self.others.get(at)?;
            Some(
                domain_counts
                    .sizes
                    .get(value)?
                    .saturating_sub(domain_counts.fair_share),
            )
        };
        surplus.iter().filter_map(excess).sum()
    }

    /// Removes a pod from these domains.
    pub(super) fn take(&mut self, surplus: &Surplus<'a>) {
        for (at, value) in surplus {
            if let Some(domain_counts) = self.others.get_mut(at)
                && let Some(size) = domain_counts.sizes.get_mut(value)
            {
                *size = size.saturating_sub(1);
            }
        }
    }
}

impl<'a> DomainCounts<'a> {
    /// Counts the pods that `constraint` selects and that are not being moved away, by domain.
    fn new(cycle: &Cycle<'a>, members: &Members<'a>, constraint: &Constraint) -> Self {
        let domains = members.domains(cycle, constraint);
        let pods = domains.leaving + domains.list.iter().map(|domain| domain.size).sum::<usize>();
        let mut domain_counts = Self {
            fair_share: pods.div_ceil(domains.list.len().max(1)),
            ..Self::default()
        };
        for member in &members.pods {
            let pod = member.pod;
            if !cycle.is_leaving(pod)
                && constraint.selects(pod)
                && let Some(value) = domain_of(cycle, pod, &constraint.topology_key)
            {
                *domain_counts.sizes.entry(value).or_default() += 1;
            }
        }
        domain_counts
    }
}
