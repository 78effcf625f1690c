//! Admission of a pod by a kubelet with policy `single-numa-node`.

use super::{
    AlignmentRequest, FreeZones, ResourceDemand, ResourceKind, Role, Scope, is_everywhere, suits,
};
use crate::resources::{CPU, EPHEMERAL_STORAGE, PODS, ResourceId};

/// Reason why a kubelet would reject a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlignmentError {
    /// Message of the pod's condition, identical to upstream's.
    pub message: &'static str,
    /// The container, as an index into [`AlignmentRequest::containers`]; `None` for the pod as a whole.
    pub container: Option<usize>,
    /// First resource, in order of ids, for which no zone is left that also satisfies the resources before
    /// it.
    pub resource: ResourceId,
}

/// Checks that each container, or the pod, fits in one zone. `on_node` returns true if the node has a
/// resource at all.
///
/// A container that keeps running allocates from the zone that the kubelet chooses, the lowest that fits; an
/// init container passes its allocation on when it ends. While CPUs and devices of ended init containers are
/// left over, later containers that need such resources are bound to their zone. Which CPUs a container gets
/// is not predictable: if it may or may not have used up the last ones, the pod must fit in both cases.
///
/// # Errors
/// The container and resource that do not fit.
pub fn check_single_zone(
    request: &AlignmentRequest,
    scope: Scope,
    free: FreeZones<'_>,
    on_node: impl Fn(ResourceId) -> bool,
) -> Result<(), AlignmentError> {
    if scope == Scope::Pod {
        return match lowest(request.guaranteed, &request.whole, &free, &on_node, |_| {
            None
        }) {
            Ok(_) => Ok(()),
            Err(resource) => Err(AlignmentError {
                message: "cannot align pod",
                container: None,
                resource,
            }),
        };
    }
    let mut cases_left = MAX_CASES;
    let admission = Admission {
        free,
        leftovers: Vec::new(),
    };
    admission.run(request, 0, &on_node, &mut cases_left)
}

/// Maximum number of cases that are examined: a pod of several containers may have exponentially many.
const MAX_CASES: u32 = 256;

/// CPUs or devices that ended init containers leave to later containers.
#[derive(Debug, Clone, Copy)]
struct Leftover {
    id: ResourceId,
    /// Index of their zone.
    zone: usize,
    /// Lower bound of the amount.
    least: i64,
}

/// State of the admission of a pod's containers, one after the other.
#[derive(Debug, Clone)]
struct Admission<'a> {
    free: FreeZones<'a>,
    leftovers: Vec<Leftover>,
}

impl Admission<'_> {
    /// Admits the containers from index `from` on. Each further case that is examined takes one from
    /// `cases_left`; a pod that needs more is rejected.
    fn run(
        mut self,
        request: &AlignmentRequest,
        from: usize,
        on_node: &impl Fn(ResourceId) -> bool,
        cases_left: &mut u32,
    ) -> Result<(), AlignmentError> {
        for (at, (role, demands)) in request.containers.iter().enumerate().skip(from) {
            let leftover_zone = |demand: &ResourceDemand| {
                let mut leftovers = self.leftovers.iter();
                let found =
                    leftovers.find(|leftover| leftover.id == demand.id && is_own(request, demand));
                found.map(|leftover| leftover.zone)
            };
            let found = lowest(
                request.guaranteed,
                demands,
                &self.free,
                on_node,
                leftover_zone,
            );
            let unfit = |resource| AlignmentError {
                message: match role {
                    Role::Init => "cannot align init container",
                    Role::Sidecar => "cannot align sidecar container",
                    Role::Main => "cannot align container",
                },
                container: Some(at),
                resource,
            };
            let zone = found.map_err(unfit)?;
            let last = at + 1 == request.containers.len();
            let (Some(zone), false) = (zone, last) else {
                continue;
            };
            if *role == Role::Init {
                self.add_leftovers(request, zone, demands);
                continue;
            }
            for demand in demands {
                if request.guaranteed || demand.kind != ResourceKind::Affine {
                    self.free.take(zone, demand.id, demand.amount);
                }
            }
            if self.consume(request, zone, demands) {
                if *cases_left == 0 {
                    return Err(unfit(CPU));
                }
                *cases_left -= 1;
                let mut other = self.clone();
                other.leftovers.retain(|leftover| leftover.id != CPU);
                other.run(request, at + 1, on_node, cases_left)?;
            }
        }
        Ok(())
    }

    /// Records the allocation that an ended init container leaves.
    fn add_leftovers(
        &mut self,
        request: &AlignmentRequest,
        zone: usize,
        demands: &[ResourceDemand],
    ) {
        for demand in demands.iter().filter(|demand| is_own(request, demand)) {
            if self.free.get(zone, demand.id).is_none() {
                continue;
            }
            match self
                .leftovers
                .iter_mut()
                .find(|leftover| leftover.id == demand.id)
            {
                Some(leftover) => leftover.least = leftover.least.max(demand.amount),
                None => self.leftovers.push(Leftover {
                    id: demand.id,
                    zone,
                    least: demand.amount,
                }),
            }
        }
    }

    /// Subtracts the allocation of a container that keeps running from the leftovers. Returns true if it is
    /// uncertain whether CPUs are left.
    fn consume(
        &mut self,
        request: &AlignmentRequest,
        zone: usize,
        demands: &[ResourceDemand],
    ) -> bool {
        let mut unsure = false;
        let free = &self.free;
        for demand in demands.iter().filter(|demand| is_own(request, demand)) {
            let is_same =
                |leftover: &&mut Leftover| leftover.id == demand.id && leftover.zone == zone;
            let Some(leftover) = self.leftovers.iter_mut().find(is_same) else {
                continue;
            };
            leftover.least = leftover.least.saturating_sub(demand.amount);
            // Devices are allocated from leftovers first; no CPUs are left over if the zone has no free one.
            if demand.id == CPU && leftover.least <= 0 && free.get(zone, CPU).unwrap_or(0) > 0 {
                leftover.least = 1;
                unsure = true;
            }
        }
        self.leftovers.retain(|leftover| leftover.least > 0);
        unsure
    }
}

/// Returns true if the container gets exclusive CPUs or devices for `demand`.
fn is_own(request: &AlignmentRequest, demand: &ResourceDemand) -> bool {
    let cores = demand.id == CPU && request.guaranteed && demand.amount % 1000 == 0;
    demand.amount > 0 && (cores || demand.kind == ResourceKind::Host)
}

/// Returns the lowest zone that holds all of `demands`; `None` if none of them belongs to zones. `only` returns
/// the zone that a resource must come from, if it is restricted to one.
fn lowest(
    guaranteed: bool,
    demands: &[ResourceDemand],
    free: &FreeZones<'_>,
    on_node: impl Fn(ResourceId) -> bool,
    only: impl Fn(&ResourceDemand) -> Option<usize>,
) -> Result<Option<usize>, ResourceId> {
    let mut fits: Vec<usize> = (0..free.len()).collect();
    let mut bound = false;
    for demand in demands.iter().filter(|demand| demand.amount > 0) {
        // Resources that every node has are checked by the zones alone.
        let everywhere = is_everywhere(demand.id) || [EPHEMERAL_STORAGE, PODS].contains(&demand.id);
        if !everywhere && !on_node(demand.id) {
            return Err(demand.id);
        }
        if demand.kind == ResourceKind::Host && !free.lists(demand.id) {
            continue;
        }
        bound = true;
        let only = only(demand);
        fits.retain(|at| {
            let free_amount = free.get(*at, demand.id);
            only.is_none_or(|only| only == *at)
                && free_amount.is_some_and(|free_amount| suits(guaranteed, demand, free_amount))
        });
        if fits.is_empty() {
            return Err(demand.id);
        }
    }
    Ok(fits.first().copied().filter(|_| bound))
}
