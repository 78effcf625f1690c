//! Choosing the devices for one pod on one node.

use super::allocations::NodeDevices;
use super::pod::DevicePod;
use super::{DeviceShare, DeviceShareSettings, UNKNOWN};
use crate::common::allocate_policy::is_restricted;
use koord_api::labels;
use koord_model::device::{
    Allocation, DeviceType, Inventory, Need, PartitionTable, PerMinor, Refusal, Rules, Site, Used,
    allocate, supply,
};
use koord_model::numa::NumaMask;
use koord_scheduler::framework::{Code, Cycle, Reason, Reasons, Rejection, Shortfall, View};
use koord_scheduler::state::{NodeIndex, PodInfo};
use std::sync::Arc;

const NOT_INSIDE: &str = "node(s) cannot give what the pods have that the reservation takes in";

/// The rejection of a node for a pod.
#[derive(Debug)]
pub(super) struct NodeRejection(pub(super) Rejection);

impl From<Refusal> for NodeRejection {
    fn from(refusal: Refusal) -> Self {
        Self(if refusal.resolvable {
            Rejection::unschedulable(refusal.reason)
        } else {
            Rejection::unresolvable(refusal.reason)
        })
    }
}

/// Conditions of one placement attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlacementMode {
    pub(super) numa: Option<NumaMask>,
    /// True in Reserve, where devices are chosen in full; false where only feasibility is checked.
    pub(super) in_full: bool,
}

impl DeviceShare {
    /// Returns the devices that `pod` would get on `node`; `None` if the node's devices are not managed by
    /// this plugin.
    pub(super) fn place(
        &self,
        cycle: &Cycle<'_>,
        pod: &DevicePod,
        node: NodeIndex,
        mode: PlacementMode,
    ) -> Result<Option<Allocation>, NodeRejection> {
        let Some(row) = self.rows.get(node.row()) else {
            return Ok(None);
        };
        let Some(inventory) = row.managed_devices() else {
            return Ok(None);
        };
        let overlay = cycle.overlay;
        if row.unknown.iter().any(|uid| !overlay.removes(uid)) {
            return Err(NodeRejection(Rejection::unschedulable(UNKNOWN)));
        }
        let reserves = |uid: &str| {
            row.allocations
                .get(uid)
                .is_some_and(|holding| holding.reserves)
        };
        // The pods that a reservation absorbs count as removed before Reserve; in Reserve they are still
        // present.
        let is_absorbed = |uid: &str| cycle.absorbed().iter().any(|pod| *pod.uid == *uid);
        // Pods that leave. What a removed reservation holds becomes free only for other reservations; owners
        // get it through `place_in`.
        let leaves = |uid: &str| {
            overlay.removed.iter().any(|removed_pod| {
                *removed_pod.uid == *uid && (!removed_pod.is_holder() || cycle.pod.is_holder())
            }) || is_absorbed(uid)
        };
        let nominated = cycle.nominated.map(std::slice::from_ref);
        let offered = nominated.unwrap_or(overlay.removed);
        let offered: Vec<&Arc<PodInfo>> = offered
            .iter()
            .filter(|from| from.is_holder() && reserves(&from.uid) && !leaves(&from.uid))
            .collect();
        if pod.ignores_reservations {
            let used = row.allocations.without(|uid| leaves(uid) || reserves(uid));
            return Ok(Some(self.allocate(
                cycle, pod, inventory, &used, node, mode, None, [0; 3],
            )?));
        }
        let mut reasons: Vec<Reason> = Vec::new();
        for from in &offered {
            match self.place_in(cycle, pod, node, mode, row, inventory, from, &leaves) {
                Ok(allocation) => return Ok(Some(allocation)),
                Err(refusal) => {
                    reasons.push(format!("Reservation(s) {}", refusal.reason).into());
                }
            }
        }
        if pod.needs_reservation && !reasons.is_empty() {
            return Err(NodeRejection(Rejection {
                code: Code::Unschedulable,
                reasons: Reasons::Many(reasons.into()),
            }));
        }
        let without;
        let used = if overlay.removed.is_empty() && cycle.absorbed().is_empty() {
            row.allocations.used()
        } else {
            without = row.allocations.without(leaves);
            &without
        };
        let absorbed = absorbed_units(cycle, row);
        if absorbed.iter().any(|units| !units.is_empty()) {
            let allocation = self.place_around(cycle, pod, node, mode, inventory, used, &absorbed);
            return Ok(Some(allocation?));
        }
        let within = pod.designated.as_ref().map(|(units, _)| units);
        let allocation = self.allocate(cycle, pod, inventory, used, node, mode, within, [0; 3])?;
        Ok(Some(allocation))
    }

    /// Returns the devices that the pod would get from one reservation, topped up from the node where the
    /// reservation's allocate policy allows that.
    #[allow(
        clippy::too_many_arguments,
        reason = "one step of place, with what it has worked out"
    )]
    fn place_in(
        &self,
        cycle: &Cycle<'_>,
        pod: &DevicePod,
        node: NodeIndex,
        mode: PlacementMode,
        row: &NodeDevices,
        inventory: &Inventory,
        from: &PodInfo,
        leaves: &impl Fn(&str) -> bool,
    ) -> Result<Allocation, Refusal> {
        let used = row
            .allocations
            .without(|uid| leaves(uid) || *uid == *from.uid);
        let remaining = row.allocations.unallocated_of(&from.uid, leaves);
        let restricted = is_restricted(cycle.view, &from.uid);
        let place = |within: Option<&[PerMinor; 3]>, preferred| {
            self.allocate(cycle, pod, inventory, &used, node, mode, within, preferred)
        };
        let preferred = DeviceType::ALL.map(|kind| remaining.set_of(kind));
        let units = DeviceType::ALL.map(|kind| remaining.units(kind));
        if restricted {
            return place(Some(&units), preferred);
        }
        // The reserved devices are tried first, then any device of the node.
        let all = DeviceType::ALL.map(|kind| full_capacity(inventory, kind, &units[kind.index()]));
        place(Some(&all), preferred).or_else(|_| place(None, preferred))
    }

    /// Returns the devices for a reservation that absorbs running pods: only the devices of those pods if
    /// that suffices, else those and others.
    #[allow(
        clippy::too_many_arguments,
        reason = "one step of place, with what it has worked out"
    )]
    fn place_around(
        &self,
        cycle: &Cycle<'_>,
        pod: &DevicePod,
        node: NodeIndex,
        mode: PlacementMode,
        inventory: &Inventory,
        used: &Used,
        absorbed: &[PerMinor; 3],
    ) -> Result<Allocation, Refusal> {
        let absorbed_devices =
            DeviceType::ALL.map(|kind| full_capacity(inventory, kind, &absorbed[kind.index()]));
        let preferred = DeviceType::ALL.map(|kind| absorbed[kind.index()].set_of());
        // Types that the reservation does not request stay with the pods.
        let is_requested = |kind: &DeviceType| pod.need.requests_type(*kind);
        let covers = |allocation: &Allocation| {
            let mut requested = DeviceType::ALL.into_iter().filter(is_requested);
            requested.all(|kind| allocation.covers(kind, &absorbed[kind.index()]))
        };
        let place = |within: Option<&[PerMinor; 3]>| {
            let allocation =
                self.allocate(cycle, pod, inventory, used, node, mode, within, preferred)?;
            match covers(&allocation) {
                true => Ok(allocation),
                false => Err(Refusal {
                    reason: NOT_INSIDE,
                    resolvable: true,
                }),
            }
        };
        place(Some(&absorbed_devices)).or_else(|_| place(None))
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "gathers the inputs of the model's allocation"
    )]
    fn allocate(
        &self,
        cycle: &Cycle<'_>,
        pod: &DevicePod,
        inventory: &Inventory,
        used: &Used,
        node: NodeIndex,
        mode: PlacementMode,
        within: Option<&[PerMinor; 3]>,
        preferred: [u64; 3],
    ) -> Result<Allocation, Refusal> {
        let rules = Rules {
            within,
            preferred,
            functions: pod.designated.as_ref().map(|(_, functions)| functions),
            ..self.rules(cycle.pod, mode)
        };
        allocate(
            &pod.need,
            &allocation_site(inventory, used, cycle.view, node),
            &rules,
        )
    }

    /// Returns the allocation rules of the pod's profile.
    pub(super) fn rules(&self, pod: &PodInfo, mode: PlacementMode) -> Rules<'_> {
        let DeviceShareSettings { args, scorer, .. } = self.settings.for_pod(pod);
        Rules {
            numa: mode.numa.filter(|_| !args.disable_alignment()),
            scorer: Some(scorer),
            in_full: mode.in_full,
            quirks: self.quirks,
            ..Rules::default()
        }
    }
}

/// Returns the device units held by the pods that the reservation absorbs.
fn absorbed_units(cycle: &Cycle<'_>, row: &NodeDevices) -> [PerMinor; 3] {
    let mut out = <[PerMinor; 3]>::default();
    let absorbed = cycle.absorbed().iter();
    for absorbed in absorbed.filter_map(|pod| row.allocations.get(&pod.uid)) {
        for kind in DeviceType::ALL {
            for grant in absorbed.devices.grants(kind) {
                out[kind.index()].add(grant.minor, &grant.units);
            }
        }
    }
    out
}

/// Returns the full capacity of each device that `some` lists.
fn full_capacity(inventory: &Inventory, kind: DeviceType, some: &PerMinor) -> PerMinor {
    let mut out = PerMinor::default();
    for (minor, _) in some.iter() {
        if let Some(device) = inventory.device(kind, minor) {
            out.set(minor, device.total);
        }
    }
    out
}

/// Creates the input of the device allocation for a node: its devices, the units in use, and what its labels set
/// for partitions.
pub(super) fn allocation_site<'a>(
    inventory: &'a Inventory,
    used: &'a Used,
    view: View<'_>,
    node: NodeIndex,
) -> Site<'a> {
    let label = |key| {
        let info = view.nodes.info(node);
        info.and_then(|info| info.label(key)).unwrap_or_default()
    };
    Site {
        inventory,
        used,
        model: PartitionTable::for_model(
            label(labels::NODE_GPU_VENDOR),
            label(labels::NODE_GPU_MODEL),
        ),
        honor_model: label(labels::NODE_GPU_PARTITION_POLICY) == "Honor",
    }
}

/// Adds the node's shortfall for each type of device to `out`.
pub(super) fn add_shortfall(need: &Need, site: &Site<'_>, rules: &Rules<'_>, out: &mut Shortfall) {
    for (kind, wanted, each, serving) in supply(need, site, rules) {
        if serving < wanted {
            out.add((wanted - serving) as f64 / wanted as f64, || {
                let each = each.iter().map(|(resource, amount)| {
                    format!("{} {}", resource.name(), resource.quantity(amount))
                });
                let each: Vec<String> = each.collect();
                let all = site.inventory.devices(kind).len();
                format!(
                    "{}: needs {wanted} with {}, {serving} of {all} have that free",
                    kind.name(),
                    each.join(", ")
                )
            });
        }
    }
}
