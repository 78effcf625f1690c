//! Whether a kubelet with policy `single-numa-node` admits a pod.

use super::{Ask, Free, Kind, Role, Scope, Want, is_everywhere, suits};
use crate::resources::{EPHEMERAL_STORAGE, PODS, ResourceId};

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
/// then on; an init container that ends hands its part on.
///
/// # Errors
/// What does not fit.
pub fn single(
    ask: &Ask,
    scope: Scope,
    mut free: Free<'_>,
    on_node: impl Fn(ResourceId) -> bool,
) -> Result<(), Unfit> {
    if scope == Scope::Pod {
        return match lowest(ask.guaranteed, &ask.whole, &free, &on_node) {
            Ok(_) => Ok(()),
            Err(resource) => Err(Unfit {
                message: "cannot align pod",
                container: None,
                resource,
            }),
        };
    }
    for (at, (role, wants)) in ask.containers.iter().enumerate() {
        let found = lowest(ask.guaranteed, wants, &free, &on_node);
        let zone = found.map_err(|resource| Unfit {
            message: match role {
                Role::Init => "cannot align init container",
                Role::Sidecar => "cannot align sidecar container",
                Role::Main => "cannot align container",
            },
            container: Some(at),
            resource,
        })?;
        let last = at + 1 == ask.containers.len();
        let (Some(zone), false, false) = (zone, *role == Role::Init, last) else {
            continue;
        };
        for want in wants {
            if ask.guaranteed || want.kind != Kind::Affine {
                free.take(zone, want.id, want.amount);
            }
        }
    }
    Ok(())
}

/// The lowest zone with all of `wants`; `None` where none of them lies in zones.
fn lowest(
    guaranteed: bool,
    wants: &[Want],
    free: &Free<'_>,
    on_node: impl Fn(ResourceId) -> bool,
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
        fits.retain(|at| {
            let have = free.get(*at, want.id);
            have.is_some_and(|have| suits(guaranteed, want, have))
        });
        if fits.is_empty() {
            return Err(want.id);
        }
    }
    Ok(fits.first().copied().filter(|_| bound))
}
