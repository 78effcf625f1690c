//! Choosing CPUs and NUMA resources for a pod on a node, and the topology hints for it.

use super::args::Settings;
use super::book::{Book, Held};
use super::node::{NodeSide, milli};
use super::pod::{Allocation, Incoming};
use koord_model::cpuset::{BindPolicy, CpuSet, ExclusivePolicy, NotEnough, Want, take, usable};
use koord_model::numa::{Hint, NumaMask, NumaPolicyKind, Offers, Unit, Usage, amplify, split};
use koord_model::numa::{least_allocated, most_allocated};
use koord_model::resources::{Amounts, CPU, ResourceId, ResourceTable};
use koord_scheduler::framework::{Code, Reason, Reasons, Rejection};
use std::sync::Arc;

const NOT_INSIDE: &str = "node(s) cannot give what the pods have that the reservation takes in";

/// The bind policy and NUMA policy that apply to a pod on one node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) incoming: &'a Incoming,
    pub(super) side: &'a NodeSide,
    /// CPU bind policy, and whether it is required; `None` if the pod is not bound to CPUs.
    pub(super) bind: Option<(BindPolicy, bool)>,
    pub(super) policy: Option<NumaPolicyKind>,
}

impl Plan<'_> {
    /// Returns true if the kubelet takes the first NUMA node with enough free resources, whichever is chosen
    /// here.
    fn takes_first(&self) -> bool {
        let single = self.policy == Some(NumaPolicyKind::SingleNumaNode);
        single && self.bind.is_none() && self.incoming.whole && self.side.is_static()
    }

    /// Returns the amplification ratio of the node's CPUs if the pod is bound to CPUs.
    pub(super) fn amplifies(&self) -> Option<f64> {
        self.bind.map(|_| self.side.ratio)
    }
}

/// Free CPUs and NUMA resources of a node, under one assumption about the reservation that the pod uses.
#[derive(Debug)]
pub(super) struct Room {
    cpus: CpuSet,
    /// Free amounts by NUMA node, ascending, amplified.
    zones: Vec<(u8, Amounts)>,
    preferred: CpuSet,
    pub(super) held: Held,
}

/// One source from which a pod can be served: the node, or the node with one reservation released.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) room: Room,
    /// True if the source is a reservation.
    reservation: bool,
    /// What the reservation has left, if the whole allocation must come from it (restricted policy).
    only: Option<Room>,
    /// Resources that must be part of the allocation.
    inside: Inside,
}

/// CPUs and NUMA resources of the pods that a reservation absorbs.
#[derive(Debug, Clone, Default)]
pub(super) struct Inside {
    cpus: CpuSet,
    /// Amounts by NUMA node.
    zones: Vec<(u8, Amounts)>,
}

impl Inside {
    pub(super) fn add(&mut self, allocation: &Allocation) {
        self.cpus.add(&allocation.cpus);
        for (id, amounts) in &allocation.zones {
            match self.zones.iter_mut().find(|(known, _)| known == id) {
                Some((_, known)) => known.add_all(amounts),
                None => self.zones.push((*id, amounts.clone())),
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.zones.is_empty()
    }

    /// Returns true if `given` contains all of it: every CPU and, if NUMA nodes were chosen, at least the
    /// amounts on each.
    fn is_in(&self, given: &Given) -> bool {
        let of_zone = |(id, amounts): &(u8, Amounts)| {
            let there = given.zones.iter().find(|(zone, _)| zone == id);
            there.is_some_and(|(_, there)| {
                let mut listed = amounts
                    .iter()
                    .filter(|(resource, _)| there.contains(*resource));
                listed.all(|(resource, amount)| amount <= there.get(resource))
            })
        };
        self.cpus.difference(&given.cpus).is_empty()
            && (given.zones.is_empty() || self.zones.iter().all(of_zone))
    }
}

/// CPUs and NUMA resources chosen for a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Given {
    pub(super) cpus: CpuSet,
    pub(super) zones: Vec<(u8, Amounts)>,
}

/// The reservations that a pod may use, and the pods that count as removed or added.
#[derive(Debug, Default)]
pub(super) struct Scene<'a> {
    /// Pods (by uid) that count as removed: preemption victims and absorbed pods.
    pub(super) gone: Vec<&'a str>,
    /// Reservations that are open to the pod: uid, and whether the allocation must come from the reservation
    /// alone.
    pub(super) open: Vec<(&'a str, bool)>,
    /// Allocations that count in addition to the recorded ones.
    pub(super) more: Vec<Allocation>,
    /// True if the pod must be placed in the open reservation.
    pub(super) nominated: bool,
    /// Resources of the pods that a reservation absorbs; those pods are also in `gone`.
    pub(super) inside: Inside,
}

impl Room {
    fn new(side: &NodeSide, held: Held, preferred: CpuSet) -> Self {
        let mut cpus = side.topology().all().difference(&held.cpus);
        cpus.subtract(&side.report.said.reserved);
        let zones = side.zones.iter().map(|(id, there)| {
            let mut free = there.clone();
            let taken = held.on_zone(side, *id);
            for (resource, amount) in there.iter() {
                free.set(resource, amount.saturating_sub(taken.get(resource)).max(0));
            }
            (*id, free)
        });
        Self {
            zones: zones.collect(),
            cpus,
            preferred,
            held,
        }
    }

    pub(super) fn zones(&self) -> &[(u8, Amounts)] {
        &self.zones
    }

    pub(super) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }
}

/// Returns the free resources of the node with all recorded allocations.
pub(super) fn room(book: &Book, side: &NodeSide) -> Room {
    Room::new(side, book.held.clone(), CpuSet::new())
}

/// Returns the free resources of the node if every pod that `scene` removes and every reservation that it
/// opens is gone.
pub(super) fn widest(book: &Book, side: &NodeSide, scene: &Scene<'_>) -> Room {
    if scene.gone.is_empty() && scene.open.is_empty() && scene.more.is_empty() {
        return room(book, side);
    }
    let away = |uid: &str| scene.gone.contains(&uid) || scene.open.iter().any(|(r, _)| *r == uid);
    Room::new(side, book.without(away, &scene.more), CpuSet::new())
}

/// Returns the number of free CPUs under the assumption of [`widest`].
pub(super) fn free_cpus(book: &Book, side: &NodeSide, scene: &Scene<'_>) -> usize {
    widest(book, side, scene).cpus.len()
}

/// Returns the sources from which the pod can be served, in the order in which they are tried.
pub(super) fn ways(book: &Book, plan: &Plan<'_>, scene: &Scene<'_>) -> Vec<Way> {
    let side = plan.side;
    let gone = |uid: &str| scene.gone.contains(&uid);
    let mut out = Vec::new();
    let shares = if scene.open.is_empty() {
        Vec::new()
    } else {
        book.shares(gone)
    };
    let share_of = |reservation: &str| {
        let found = shares.iter().find(|(uid, _)| **uid == *reservation);
        found.map(|(_, share)| share)
    };
    if plan.incoming.ignores_reservations {
        let mut room = widest(book, side, scene);
        for share in scene.open.iter().filter_map(|(uid, _)| share_of(uid)) {
            room.preferred.add(&share.cpus);
        }
        return vec![Way {
            room,
            reservation: false,
            only: None,
            inside: Inside::default(),
        }];
    }
    for (uid, restricted) in &scene.open {
        let Some(share) = share_of(uid) else { continue };
        let away = |other: &str| gone(other) || other == *uid;
        let held = book.without(away, &scene.more);
        let room = Room::new(side, held, share.cpus.clone());
        let only = restricted.then(|| Room {
            cpus: room.cpus.intersection(&share.cpus),
            // A reservation without NUMA resources restricts none.
            zones: if share.zones.is_empty() {
                room.zones.clone()
            } else {
                share.zones.clone()
            },
            preferred: share.cpus.clone(),
            held: room.held.clone(),
        });
        out.push(Way {
            room,
            reservation: true,
            only,
            inside: Inside::default(),
        });
    }
    let must = plan.incoming.reserved_only || scene.nominated;
    if out.is_empty() || !must {
        let room = if scene.gone.is_empty() && scene.more.is_empty() {
            room(book, side)
        } else {
            let preferred = scene.inside.cpus.clone();
            Room::new(side, book.without(gone, &scene.more), preferred)
        };
        out.push(Way {
            room,
            reservation: false,
            only: None,
            inside: scene.inside.clone(),
        });
    }
    out
}

/// Serves the pod from the first source that can, limited to the NUMA nodes of `mask` if given.
pub(super) fn serve(
    plan: &Plan<'_>,
    settings: &Settings,
    ways: &[Way],
    mask: Option<NumaMask>,
    table: &ResourceTable,
) -> Result<Given, Rejection> {
    let mut reasons = Vec::new();
    for way in ways {
        match way.serve(plan, settings, mask, table) {
            Ok(given) => return Ok(given),
            Err(rejection) if way.reservation => {
                let texts = rejection.reasons.as_slice().iter();
                reasons
                    .extend(texts.map(|reason| Reason::from(format!("Reservation(s) {reason}"))));
            }
            Err(rejection) => return Err(rejection),
        }
    }
    Err(Rejection {
        code: Code::Unschedulable,
        reasons: Reasons::Many(reasons.into()),
    })
}

impl Way {
    fn serve(
        &self,
        plan: &Plan<'_>,
        settings: &Settings,
        mask: Option<NumaMask>,
        table: &ResourceTable,
    ) -> Result<Given, Rejection> {
        let given = self.room.serve(plan, settings, mask, table)?;
        if !self.inside.is_in(&given) {
            return Err(Rejection::unschedulable(NOT_INSIDE));
        }
        let Some(only) = &self.only else {
            return Ok(given);
        };
        if plan.bind.is_some() && plan.incoming.cpus() > only.cpus.len() {
            return Err(Rejection::unschedulable(not_enough()));
        }
        only.serve(plan, settings, mask, table)
    }
}

fn not_enough() -> String {
    NotEnough.to_string()
}

impl Room {
    fn serve(
        &self,
        plan: &Plan<'_>,
        settings: &Settings,
        mask: Option<NumaMask>,
        table: &ResourceTable,
    ) -> Result<Given, Rejection> {
        let mut given = Given::default();
        let designated = plan.incoming.designated.as_ref();
        let mask = match designated {
            Some(designated) if designated.zones.is_empty() => None,
            Some(designated) => Some(designated.zones.iter().map(|(id, _)| *id).collect()),
            None => mask,
        };
        if let Some(mask) = mask.filter(|_| !self.zones.is_empty()) {
            let mut zones = self.usable_zones(plan);
            for (id, chosen) in designated.iter().flat_map(|designated| &designated.zones) {
                if let Some((_, zone)) = zones.iter_mut().find(|(zone, _)| zone == id) {
                    let cap =
                        |(resource, n): (ResourceId, i64)| (resource, n.min(chosen.get(resource)));
                    *zone = zone.iter().map(cap).collect();
                }
            }
            let parts = split(&plan.incoming.requests, &zones, mask, unit(plan));
            given.zones = parts.map_err(|missing| {
                let reason = |id| Reason::from(format!("Insufficient NUMA {}", table.name(id)));
                Rejection {
                    code: Code::Unschedulable,
                    reasons: Reasons::Many(missing.into_iter().map(reason).collect()),
                }
            })?;
        }
        if let Some((bind, required)) = plan.bind {
            given.cpus = self.take(plan, settings, &given.zones, bind, required)?;
        }
        if designated.is_some_and(|designated| designated.cpus != given.cpus) {
            return Err(Rejection::unschedulable(not_enough()));
        }
        Ok(given)
    }

    /// Returns the free amounts by NUMA node, reduced to what a CPU-bound pod can use.
    fn usable_zones(&self, plan: &Plan<'_>) -> Vec<(u8, Amounts)> {
        let mut zones = self.zones.clone();
        let Some((bind, required)) = plan.bind else {
            return zones;
        };
        let fitting = required.then(|| usable(plan.side.topology(), &self.cpus, bind));
        for (id, amounts) in &mut zones {
            let mut cpu = amounts.get(CPU);
            if cpu == 0 {
                continue;
            }
            if let Some(fitting) = &fitting {
                let on = plan.side.topology().on_node(*id);
                cpu = cpu.min(milli(on.map_or(0, |all| all.intersection(fitting).len())));
            }
            if plan.side.ratio > 1.0 {
                cpu = unamplified(cpu, amounts.get(CPU), plan.side.ratio);
            }
            amounts.set(CPU, cpu);
        }
        zones
    }

    fn take(
        &self,
        plan: &Plan<'_>,
        settings: &Settings,
        zones: &[(u8, Amounts)],
        bind: BindPolicy,
        required: bool,
    ) -> Result<CpuSet, Rejection> {
        let topology = plan.side.topology();
        let available = if required {
            usable(topology, &self.cpus, bind)
        } else {
            self.cpus.clone()
        };
        let needed = plan.incoming.cpus();
        let refuse = |error: NotEnough| Rejection::unschedulable(error.to_string());
        if available.len() < needed {
            return Err(refuse(NotEnough));
        }
        let wish = plan.incoming.wish;
        let want = |available, needed| Want {
            topology,
            available,
            preferred: match &plan.incoming.designated {
                Some(designated) => &designated.cpus,
                None => &self.preferred,
            },
            owned: &self.held.owned,
            needed,
            bind,
            exclusive: wish.map_or(ExclusivePolicy::None, |wish| wish.exclusive),
            strategy: plan.side.strategy.unwrap_or(settings.numa),
        };
        let part = |(id, amounts): &(u8, Amounts)| {
            let all = topology.on_node(*id);
            let here = all
                .map(|all| all.intersection(&available))
                .unwrap_or_default();
            let count = usize::try_from(amounts.get(CPU) / 1000).unwrap_or(0);
            (count.min(here.len()), here)
        };
        let parts: Vec<(usize, CpuSet)> = if zones.is_empty() {
            vec![(needed, available.clone())]
        } else {
            zones.iter().map(part).collect()
        };
        let mut taken = CpuSet::new();
        for (count, from) in &parts {
            taken.add(&take(&want(from, *count)).map_err(refuse)?);
        }
        if taken.len() != needed {
            return Err(refuse(NotEnough));
        }
        let cores = topology.cores_of(&taken);
        let satisfied = match bind {
            BindPolicy::FullPCpus => cores * topology.per_core() == taken.len(),
            BindPolicy::SpreadByPCpus => cores == taken.len(),
        };
        if required && !satisfied {
            return Err(Rejection::unschedulable(format!(
                "insufficient CPUs to satisfy required cpu bind policy {}",
                bind.as_str()
            )));
        }
        Ok(taken)
    }
}

/// Returns the largest number of whole CPUs, in milli-cores and at most `cpu`, whose amplified amount does
/// not exceed `room`.
fn unamplified(cpu: i64, room: i64, ratio: f64) -> i64 {
    let mut whole = cpu / 1000 * 1000;
    // Few steps: the guess by division is at most one CPU off.
    let guess = (room as f64 / ratio) as i64 / 1000 * 1000 + 1000;
    whole = whole.min(guess);
    while whole > 0 && amplify(whole, ratio) > room {
        whole -= 1000;
    }
    whole.max(0)
}

fn unit(plan: &Plan<'_>) -> Unit {
    match plan.bind {
        None => Unit::Milli,
        Some((BindPolicy::FullPCpus, true)) => {
            Unit::Core(i64::try_from(plan.side.topology().per_core()).unwrap_or(1))
        }
        Some(_) => Unit::Cpu,
    }
}

/// With more NUMA nodes than this, only the smallest sets that can serve the pod are offered.
const ALL_SIZES: u32 = 8;

/// Returns the sets of NUMA nodes that can serve the pod, per resource.
pub(super) fn hints(
    plan: &Plan<'_>,
    settings: &Settings,
    ways: &[Way],
    widest: &Room,
    table: &ResourceTable,
) -> Offers {
    let zones = widest.usable_zones(plan);
    let listed: Vec<ResourceId> = plan
        .incoming
        .requests
        .iter()
        .map(|(id, _)| id)
        .filter(|id| plan.side.zones.iter().any(|(_, zone)| zone.contains(*id)))
        .collect();
    let mut found: Vec<Vec<Hint>> = vec![Vec::new(); listed.len()];
    let mask = plan.side.mask();
    let mut size = 0;
    for mask in mask.subsets() {
        let wider = mask.count() > size;
        let served = found.iter().any(|hints| !hints.is_empty());
        if wider && served && plan.side.mask().count() > ALL_SIZES {
            break;
        }
        size = mask.count();
        let room = |id: ResourceId| -> i64 {
            let inside = zones.iter().filter(|(zone, _)| mask.has(*zone));
            inside.map(|(_, zone)| zone.get(id)).sum()
        };
        // A cheap check before `serve`, and never wrong: a split cannot exceed the sum of the free amounts.
        let hopeless = listed
            .iter()
            .any(|id| room(*id) < plan.incoming.requests.get(*id));
        if hopeless || serve(plan, settings, ways, Some(mask), table).is_err() {
            continue;
        }
        let score = zone_score(plan, settings, &zones, mask);
        for (id, hints) in listed.iter().zip(&mut found) {
            let inside = zones.iter().filter(|(zone, _)| mask.has(*zone));
            if inside.clone().all(|(_, zone)| zone.get(*id) > 0) {
                hints.push(Hint {
                    mask: Some(mask),
                    preferred: false,
                    score,
                });
            }
        }
    }
    let restricted = plan.policy == Some(NumaPolicyKind::Restricted);
    let offers = listed.into_iter().zip(found).map(|(id, mut hints)| {
        let width = |hint: &Hint| hint.mask.map_or(0, NumaMask::count);
        let least = hints.iter().map(width).min();
        for hint in &mut hints {
            hint.preferred = restricted || Some(width(hint)) == least;
        }
        (table.name(id), Some(hints))
    });
    offers.collect::<Vec<(Arc<str>, Option<Vec<Hint>>)>>()
}

/// Returns the score of the NUMA nodes of `mask` for the pod.
fn zone_score(plan: &Plan<'_>, settings: &Settings, free: &[(u8, Amounts)], mask: NumaMask) -> i64 {
    if plan.takes_first() {
        return 0;
    }
    let inside = |zones: &[(u8, Amounts)], id| -> i64 {
        let zones = zones.iter().filter(|(zone, _)| mask.has(*zone));
        zones.map(|(_, zone)| zone.get(id)).sum()
    };
    score(plan.incoming, plan.amplifies(), settings.numa, |id| {
        let there = inside(&plan.side.zones, id);
        (there, (there - inside(free, id)).max(0))
    })
}

/// Returns the score of a node or of NUMA nodes; `place` returns (allocatable, requested) of a resource.
/// `ratio` is the factor by which the pod's own CPU request is amplified.
pub(super) fn score(
    incoming: &Incoming,
    ratio: Option<f64>,
    strategy: koord_model::cpuset::Strategy,
    place: impl Fn(ResourceId) -> (i64, i64),
) -> i64 {
    let usages = incoming.weighed.iter().map(|(id, weight)| {
        let mut own = incoming.requests.get(*id);
        if let Some(ratio) = ratio.filter(|_| *id == CPU) {
            own = amplify(own, ratio);
        }
        let (allocatable, requested) = place(*id);
        Usage {
            allocatable,
            requested: requested.saturating_add(own),
            weight: *weight,
        }
    });
    average(strategy, usages)
}

/// Returns the weighted score of these usages.
#[inline]
pub(super) fn average(
    strategy: koord_model::cpuset::Strategy,
    usages: impl Iterator<Item = Usage>,
) -> i64 {
    match strategy {
        koord_model::cpuset::Strategy::LeastAllocated => least_allocated(usages),
        koord_model::cpuset::Strategy::MostAllocated => most_allocated(usages),
    }
}
