//! Whether a kubelet with policy `single-numa-node` admits a pod.

use super::{Ask, Free, Kind, Role, Scope, Want, is_everywhere, suits};
use crate::resources::{CPU, EPHEMERAL_STORAGE, PODS, ResourceId};

/// Why a kubelet would refuse a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit {
    /// The text of the pod's condition, as upstream's.
    pub message: &'static str,
    /// The container, as an index into [`Ask::containers`]; `None` for the pod as a whole.
    pub container: Option<usize>,
    /// The resource that no zone has enough of beside the ones before it, in order of resource.
    pub resource: ResourceId,
}

/// Whether each container, or the pod, fits in one zone. `on_node` tells whether the node has a resource
/// at all.
///
/// A container that stays has its part of the zone that the kubelet chooses, the lowest that fits, from
/// then on; an init container that ends hands its part on. While CPUs and devices that it had are not
/// used up, who needs such after it gets no other zone. Which CPUs a container takes is not known: where
/// it may have used up the last ones and may not, the pod must fit both ways.
///
/// # Errors
/// What does not fit.
pub fn single(
    ask: &Ask,
    scope: Scope,
    free: Free<'_>,
    on_node: impl Fn(ResourceId) -> bool,
) -> Result<(), Unfit> {
    if scope == Scope::Pod {
        return match lowest(ask.guaranteed, &ask.whole, &free, &on_node, |_| None) {
            Ok(_) => Ok(()),
            Err(resource) => Err(Unfit {
                message: "cannot align pod",
                container: None,
                resource,
            }),
        };
    }
    let mut ways = MAX_WAYS;
    let course = Course {
        free,
        left: Vec::new(),
    };
    course.run(ask, 0, &on_node, &mut ways)
}

/// A pod of containers that come one by one may fit in exponentially many ways.
const MAX_WAYS: u32 = 256;

/// CPUs or devices that init containers left to those after them.
#[derive(Debug, Clone, Copy)]
struct Left {
    id: ResourceId,
    /// Where they lie, as an index.
    zone: usize,
    /// How much at least.
    least: i64,
}

/// How the containers of a pod are given their parts, one after the other.
#[derive(Debug, Clone)]
struct Course<'a> {
    free: Free<'a>,
    left: Vec<Left>,
}

impl Course<'_> {
    /// Goes on with the container at `from`; beyond `ways` more ways a pod fits none.
    fn run(
        mut self,
        ask: &Ask,
        from: usize,
        on_node: &impl Fn(ResourceId) -> bool,
        ways: &mut u32,
    ) -> Result<(), Unfit> {
        for (at, (role, wants)) in ask.containers.iter().enumerate().skip(from) {
            let left = |want: &Want| {
                let mut left = self.left.iter();
                let found = left.find(|left| left.id == want.id && is_own(ask, want));
                found.map(|left| left.zone)
            };
            let found = lowest(ask.guaranteed, wants, &self.free, on_node, left);
            let unfit = |resource| Unfit {
                message: match role {
                    Role::Init => "cannot align init container",
                    Role::Sidecar => "cannot align sidecar container",
                    Role::Main => "cannot align container",
                },
                container: Some(at),
                resource,
            };
            let zone = found.map_err(unfit)?;
            let last = at + 1 == ask.containers.len();
            let (Some(zone), false) = (zone, last) else {
                continue;
            };
            if *role == Role::Init {
                self.leave(ask, zone, wants);
                continue;
            }
            for want in wants {
                if ask.guaranteed || want.kind != Kind::Affine {
                    self.free.take(zone, want.id, want.amount);
                }
            }
            if self.consume(ask, zone, wants) {
                if *ways == 0 {
                    return Err(unfit(CPU));
                }
                *ways -= 1;
                let mut other = self.clone();
                other.left.retain(|left| left.id != CPU);
                other.run(ask, at + 1, on_node, ways)?;
            }
        }
        Ok(())
    }

    /// An init container ends.
    fn leave(&mut self, ask: &Ask, zone: usize, wants: &[Want]) {
        for want in wants.iter().filter(|want| is_own(ask, want)) {
            if self.free.get(zone, want.id).is_none() {
                continue;
            }
            match self.left.iter_mut().find(|left| left.id == want.id) {
                Some(left) => left.least = left.least.max(want.amount),
                None => self.left.push(Left {
                    id: want.id,
                    zone,
                    least: want.amount,
                }),
            }
        }
    }

    /// A container that stays has taken its part; whether CPUs may or may not be left.
    fn consume(&mut self, ask: &Ask, zone: usize, wants: &[Want]) -> bool {
        let mut unsure = false;
        let free = &self.free;
        for want in wants.iter().filter(|want| is_own(ask, want)) {
            let of = |left: &&mut Left| left.id == want.id && left.zone == zone;
            let Some(left) = self.left.iter_mut().find(of) else {
                continue;
            };
            left.least = left.least.saturating_sub(want.amount);
            // Devices are taken from what is left first; of CPUs nothing is left where none is free.
            if want.id == CPU && left.least <= 0 && free.get(zone, CPU).unwrap_or(0) > 0 {
                left.least = 1;
                unsure = true;
            }
        }
        self.left.retain(|left| left.least > 0);
        unsure
    }
}

/// Whether the container gets CPUs or devices that are nobody else's.
fn is_own(ask: &Ask, want: &Want) -> bool {
    let cores = want.id == CPU && ask.guaranteed && want.amount % 1000 == 0;
    want.amount > 0 && (cores || want.kind == Kind::Host)
}

/// The lowest zone with all of `wants`; `None` where none of them lies in zones. `only` tells the zone
/// that a want must be served from, if it is one.
fn lowest(
    guaranteed: bool,
    wants: &[Want],
    free: &Free<'_>,
    on_node: impl Fn(ResourceId) -> bool,
    only: impl Fn(&Want) -> Option<usize>,
) -> Result<Option<usize>, ResourceId> {
    let mut fits: Vec<usize> = (0..free.len()).collect();
    let mut bound = false;
    for want in wants.iter().filter(|want| want.amount > 0) {
        // What every node has is judged by the zones alone.
        let everywhere = is_everywhere(want.id) || [EPHEMERAL_STORAGE, PODS].contains(&want.id);
        if !everywhere && !on_node(want.id) {
            return Err(want.id);
        }
        if want.kind == Kind::Host && !free.lists(want.id) {
            continue;
        }
        bound = true;
        let only = only(want);
        fits.retain(|at| {
            let have = free.get(*at, want.id);
            only.is_none_or(|only| only == *at)
                && have.is_some_and(|have| suits(guaranteed, want, have))
        });
        if fits.is_empty() {
            return Err(want.id);
        }
    }
    Ok(fits.first().copied().filter(|_| bound))
}
