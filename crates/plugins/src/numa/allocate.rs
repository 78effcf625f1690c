//! Choosing CPUs and NUMA resources for a pod on a node, and the topology hints for it.

use super::args::NumaSettings;
use super::node_allocations::{AllocatedResources, NodeAllocations};
use super::node_topology::{NodeTopology, to_milli};
use super::pod::{Allocation, NumaPod};
use koord_model::cpuset::{
    BindPolicy, CpuRequest, CpuSet, ExclusivePolicy, NotEnough, take, usable,
};
use koord_model::numa::{Hint, NumaMask, NumaPolicyKind, Offers, Unit, Usage, amplify, split};
use koord_model::numa::{least_allocated, most_allocated};
use koord_model::resources::{Amounts, CPU, ResourceId, ResourceTable};
use koord_scheduler::framework::{Code, Reason, Reasons, Rejection};
use std::sync::Arc;

const NOT_INSIDE: &str = "node(s) cannot give what the pods have that the reservation takes in";

/// The bind policy and NUMA policy that apply to a pod on one node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) incoming: &'a NumaPod,
    pub(super) node_topology: &'a NodeTopology,
    /// CPU bind policy, and whether it is required; `None` if the pod is not bound to CPUs.
    pub(super) bind: Option<(BindPolicy, bool)>,
    pub(super) policy: Option<NumaPolicyKind>,
}

impl Plan<'_> {
    /// Returns true if the kubelet takes the first NUMA node with enough free resources, whichever is chosen
    /// here.
    fn kubelet_takes_first(&self) -> bool {
        let single = self.policy == Some(NumaPolicyKind::SingleNumaNode);
        single && self.bind.is_none() && self.incoming.whole_cpus && self.node_topology.is_static()
    }

    /// Returns the amplification ratio of the node's CPUs if the pod is bound to CPUs.
    pub(super) fn amplification(&self) -> Option<f64> {
        self.bind.map(|_| self.node_topology.ratio)
    }
}

/// Free CPUs and NUMA resources of a node, under one assumption about the reservation that the pod uses.
#[derive(Debug)]
pub(super) struct FreeResources {
    cpus: CpuSet,
    /// Free amounts by NUMA node, ascending, amplified.
    zones: Vec<(u8, Amounts)>,
    preferred: CpuSet,
    pub(super) allocated: AllocatedResources,
}

/// A source from which a pod can be served: the node, or the node with one reservation released.
#[derive(Debug)]
pub(super) struct AllocationSource {
    pub(super) free: FreeResources,
    /// True if the source is a reservation.
    reservation: bool,
    /// Remaining resources of the reservation, if the whole allocation must come from it (restricted policy).
    only: Option<FreeResources>,
    /// Resources that must be part of the allocation.
    absorbed: AbsorbedResources,
}

/// CPUs and NUMA resources of the pods that a reservation absorbs.
#[derive(Debug, Clone, Default)]
pub(super) struct AbsorbedResources {
    cpus: CpuSet,
    /// Amounts by NUMA node.
    zones: Vec<(u8, Amounts)>,
}

impl AbsorbedResources {
    /// Adds the allocation of an absorbed pod.
    pub(super) fn add(&mut self, allocation: &Allocation) {
        self.cpus.add(&allocation.cpus);
        for (id, amounts) in &allocation.zones {
            match self.zones.iter_mut().find(|(existing, _)| existing == id) {
                Some((_, existing)) => existing.add_all(amounts),
                None => self.zones.push((*id, amounts.clone())),
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.zones.is_empty()
    }

    /// Returns true if `allocation` contains all of it: every CPU and, if NUMA nodes were chosen, at least the
    /// amounts on each.
    fn is_covered_by(&self, allocation: &NumaAllocation) -> bool {
        let covers_zone = |(id, amounts): &(u8, Amounts)| {
            let on_zone = allocation.zones.iter().find(|(zone, _)| zone == id);
            on_zone.is_some_and(|(_, on_zone)| {
                let mut listed = amounts
                    .iter()
                    .filter(|(resource, _)| on_zone.contains(*resource));
                listed.all(|(resource, amount)| amount <= on_zone.get(resource))
            })
        };
        self.cpus.difference(&allocation.cpus).is_empty()
            && (allocation.zones.is_empty() || self.zones.iter().all(covers_zone))
    }
}

/// CPUs and NUMA resources chosen for a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NumaAllocation {
    pub(super) cpus: CpuSet,
    pub(super) zones: Vec<(u8, Amounts)>,
}

/// The reservations that a pod may use, and the pods that count as removed or added.
#[derive(Debug, Default)]
pub(super) struct Assumptions<'a> {
    /// Pods (by uid) that count as removed: preemption victims and absorbed pods.
    pub(super) removed: Vec<&'a str>,
    /// Reservations that are open to the pod: uid, and whether the allocation must come from the reservation
    /// alone.
    pub(super) open: Vec<(&'a str, bool)>,
    /// Allocations that count in addition to the recorded ones.
    pub(super) added: Vec<Allocation>,
    /// True if the pod must be placed in the open reservation.
    pub(super) nominated: bool,
    /// Resources of the pods that a reservation absorbs; those pods are also in `removed`.
    pub(super) absorbed: AbsorbedResources,
}

impl FreeResources {
    fn new(node_topology: &NodeTopology, allocated: AllocatedResources, preferred: CpuSet) -> Self {
        let mut cpus = node_topology.topology().all().difference(&allocated.cpus);
        cpus.subtract(&node_topology.report.annotations.reserved);
        let zones = node_topology.zones.iter().map(|(id, allocatable)| {
            let mut free = allocatable.clone();
            let zone_allocated = allocated.zone_amounts(node_topology, *id);
            for (resource, amount) in allocatable.iter() {
                free.set(
                    resource,
                    amount.saturating_sub(zone_allocated.get(resource)).max(0),
                );
            }
            (*id, free)
        });
        Self {
            zones: zones.collect(),
            cpus,
            preferred,
            allocated,
        }
    }

    /// Returns the free amounts by NUMA node, ascending, amplified.
    pub(super) fn zones(&self) -> &[(u8, Amounts)] {
        &self.zones
    }

    /// Returns the free CPUs.
    pub(super) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }
}

/// Returns the free resources of the node with all recorded allocations.
pub(super) fn free_resources(
    node_allocations: &NodeAllocations,
    node_topology: &NodeTopology,
) -> FreeResources {
    FreeResources::new(
        node_topology,
        node_allocations.allocated.clone(),
        CpuSet::new(),
    )
}

/// Returns the free resources of the node if every pod that `assumptions` removes and every reservation that it
/// opens is gone.
pub(super) fn max_free(
    node_allocations: &NodeAllocations,
    node_topology: &NodeTopology,
    assumptions: &Assumptions<'_>,
) -> FreeResources {
    if assumptions.removed.is_empty() && assumptions.open.is_empty() && assumptions.added.is_empty()
    {
        return free_resources(node_allocations, node_topology);
    }
    let away = |uid: &str| {
        assumptions.removed.contains(&uid) || assumptions.open.iter().any(|(r, _)| *r == uid)
    };
    FreeResources::new(
        node_topology,
        node_allocations.without(away, &assumptions.added),
        CpuSet::new(),
    )
}

/// Returns the number of free CPUs under the assumption of [`max_free`].
pub(super) fn free_cpus(
    node_allocations: &NodeAllocations,
    node_topology: &NodeTopology,
    assumptions: &Assumptions<'_>,
) -> usize {
    max_free(node_allocations, node_topology, assumptions)
        .cpus
        .len()
}

/// Returns the sources from which the pod can be served, in the order in which they are tried.
pub(super) fn sources(
    node_allocations: &NodeAllocations,
    plan: &Plan<'_>,
    assumptions: &Assumptions<'_>,
) -> Vec<AllocationSource> {
    let node_topology = plan.node_topology;
    let removed = |uid: &str| assumptions.removed.contains(&uid);
    let mut out = Vec::new();
    let shares = if assumptions.open.is_empty() {
        Vec::new()
    } else {
        node_allocations.shares(removed)
    };
    let share_of = |reservation: &str| {
        let all_hints = shares.iter().find(|(uid, _)| **uid == *reservation);
        all_hints.map(|(_, share)| share)
    };
    if plan.incoming.ignores_reservations {
        let mut free = max_free(node_allocations, node_topology, assumptions);
        for share in assumptions.open.iter().filter_map(|(uid, _)| share_of(uid)) {
            free.preferred.add(&share.cpus);
        }
        return vec![AllocationSource {
            free,
            reservation: false,
            only: None,
            absorbed: AbsorbedResources::default(),
        }];
    }
    for (uid, restricted) in &assumptions.open {
        let Some(share) = share_of(uid) else { continue };
        let away = |other: &str| removed(other) || other == *uid;
        let allocated = node_allocations.without(away, &assumptions.added);
        let free = FreeResources::new(node_topology, allocated, share.cpus.clone());
        let only = restricted.then(|| FreeResources {
            cpus: free.cpus.intersection(&share.cpus),
            // A reservation without NUMA resources restricts none.
            zones: if share.zones.is_empty() {
                free.zones.clone()
            } else {
                share.zones.clone()
            },
            preferred: share.cpus.clone(),
            allocated: free.allocated.clone(),
        });
        out.push(AllocationSource {
            free,
            reservation: true,
            only,
            absorbed: AbsorbedResources::default(),
        });
    }
    let must = plan.incoming.reserved_only || assumptions.nominated;
    if out.is_empty() || !must {
        let free = if assumptions.removed.is_empty() && assumptions.added.is_empty() {
            free_resources(node_allocations, node_topology)
        } else {
            let preferred = assumptions.absorbed.cpus.clone();
            FreeResources::new(
                node_topology,
                node_allocations.without(removed, &assumptions.added),
                preferred,
            )
        };
        out.push(AllocationSource {
            free,
            reservation: false,
            only: None,
            absorbed: assumptions.absorbed.clone(),
        });
    }
    out
}

/// Serves the pod from the first source that can, limited to the NUMA nodes of `mask` if given.
pub(super) fn serve(
    plan: &Plan<'_>,
    settings: &NumaSettings,
    sources: &[AllocationSource],
    mask: Option<NumaMask>,
    table: &ResourceTable,
) -> Result<NumaAllocation, Rejection> {
    let mut reasons = Vec::new();
    for source in sources {
        match source.serve(plan, settings, mask, table) {
            Ok(allocation) => return Ok(allocation),
            Err(rejection) if source.reservation => {
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

impl AllocationSource {
    fn serve(
        &self,
        plan: &Plan<'_>,
        settings: &NumaSettings,
        mask: Option<NumaMask>,
        table: &ResourceTable,
    ) -> Result<NumaAllocation, Rejection> {
        let allocation = self.free.serve(plan, settings, mask, table)?;
        if !self.absorbed.is_covered_by(&allocation) {
            return Err(Rejection::unschedulable(NOT_INSIDE));
        }
        let Some(only) = &self.only else {
            return Ok(allocation);
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

impl FreeResources {
    /// Allocates the requests of a pod from the NUMA nodes of `mask`, and its CPUs if it is bound.
    fn serve(
        &self,
        plan: &Plan<'_>,
        settings: &NumaSettings,
        mask: Option<NumaMask>,
        table: &ResourceTable,
    ) -> Result<NumaAllocation, Rejection> {
        let mut allocation = NumaAllocation::default();
        let preassigned = plan.incoming.preassigned.as_ref();
        let mask = match preassigned {
            Some(preassigned) if preassigned.zones.is_empty() => None,
            Some(preassigned) => Some(preassigned.zones.iter().map(|(id, _)| *id).collect()),
            None => mask,
        };
        if let Some(mask) = mask.filter(|_| !self.zones.is_empty()) {
            let mut zones = self.usable_zones(plan);
            for (id, chosen) in preassigned
                .iter()
                .flat_map(|preassigned| &preassigned.zones)
            {
                if let Some((_, zone)) = zones.iter_mut().find(|(zone, _)| zone == id) {
                    let cap =
                        |(resource, n): (ResourceId, i64)| (resource, n.min(chosen.get(resource)));
                    *zone = zone.iter().map(cap).collect();
                }
            }
            let parts = split(&plan.incoming.requests, &zones, mask, unit(plan));
            allocation.zones = parts.map_err(|missing| {
                let reason = |id| Reason::from(format!("Insufficient NUMA {}", table.name(id)));
                Rejection {
                    code: Code::Unschedulable,
                    reasons: Reasons::Many(missing.into_iter().map(reason).collect()),
                }
            })?;
        }
        if let Some((bind, required)) = plan.bind {
            allocation.cpus = self.take(plan, settings, &allocation.zones, bind, required)?;
        }
        if preassigned.is_some_and(|preassigned| preassigned.cpus != allocation.cpus) {
            return Err(Rejection::unschedulable(not_enough()));
        }
        Ok(allocation)
    }

    /// Returns the free amounts by NUMA node, reduced to what a pod with a CPU bind policy can use.
    fn usable_zones(&self, plan: &Plan<'_>) -> Vec<(u8, Amounts)> {
        let mut zones = self.zones.clone();
        let Some((bind, required)) = plan.bind else {
            return zones;
        };
        let fitting = required.then(|| usable(plan.node_topology.topology(), &self.cpus, bind));
        for (id, amounts) in &mut zones {
            let mut cpu = amounts.get(CPU);
            if cpu == 0 {
                continue;
            }
            if let Some(fitting) = &fitting {
                let on = plan.node_topology.topology().on_node(*id);
                cpu = cpu.min(to_milli(
                    on.map_or(0, |all| all.intersection(fitting).len()),
                ));
            }
            if plan.node_topology.ratio > 1.0 {
                cpu = unamplified(cpu, amounts.get(CPU), plan.node_topology.ratio);
            }
            amounts.set(CPU, cpu);
        }
        zones
    }

    /// Selects the CPUs of a bound pod, as many from each NUMA node as `zones` lists.
    fn take(
        &self,
        plan: &Plan<'_>,
        settings: &NumaSettings,
        zones: &[(u8, Amounts)],
        bind: BindPolicy,
        required: bool,
    ) -> Result<CpuSet, Rejection> {
        let topology = plan.node_topology.topology();
        let available = if required {
            usable(topology, &self.cpus, bind)
        } else {
            self.cpus.clone()
        };
        let needed = plan.incoming.cpus();
        let reject = |error: NotEnough| Rejection::unschedulable(error.to_string());
        if available.len() < needed {
            return Err(reject(NotEnough));
        }
        let cpu_request = plan.incoming.cpu_request;
        let want = |available, needed| CpuRequest {
            topology,
            available,
            preferred: match &plan.incoming.preassigned {
                Some(preassigned) => &preassigned.cpus,
                None => &self.preferred,
            },
            owned: &self.allocated.owned,
            needed,
            bind,
            exclusive: cpu_request
                .map_or(ExclusivePolicy::None, |cpu_request| cpu_request.exclusive),
            strategy: plan.node_topology.strategy.unwrap_or(settings.numa),
        };
        let part = |(id, amounts): &(u8, Amounts)| {
            let all = topology.on_node(*id);
            let zone_cpus = all
                .map(|all| all.intersection(&available))
                .unwrap_or_default();
            let count = usize::try_from(amounts.get(CPU) / 1000).unwrap_or(0);
            (count.min(zone_cpus.len()), zone_cpus)
        };
        let parts: Vec<(usize, CpuSet)> = if zones.is_empty() {
            vec![(needed, available.clone())]
        } else {
            zones.iter().map(part).collect()
        };
        let mut cpus = CpuSet::new();
        for (count, from) in &parts {
            cpus.add(&take(&want(from, *count)).map_err(reject)?);
        }
        if cpus.len() != needed {
            return Err(reject(NotEnough));
        }
        let cores = topology.cores_of(&cpus);
        let satisfied = match bind {
            BindPolicy::FullPCpus => cores * topology.per_core() == cpus.len(),
            BindPolicy::SpreadByPCpus => cores == cpus.len(),
        };
        if required && !satisfied {
            return Err(Rejection::unschedulable(format!(
                "insufficient CPUs to satisfy required cpu bind policy {}",
                bind.as_str()
            )));
        }
        Ok(cpus)
    }
}

/// Returns the largest number of whole CPUs, in milli-cores and at most `cpu`, whose amplified amount does
/// not exceed `free`.
fn unamplified(cpu: i64, free: i64, ratio: f64) -> i64 {
    let mut whole = cpu / 1000 * 1000;
    // Few steps: the guess by division is at most one CPU off.
    let guess = (free as f64 / ratio) as i64 / 1000 * 1000 + 1000;
    whole = whole.min(guess);
    while whole > 0 && amplify(whole, ratio) > free {
        whole -= 1000;
    }
    whole.max(0)
}

fn unit(plan: &Plan<'_>) -> Unit {
    match plan.bind {
        None => Unit::Milli,
        Some((BindPolicy::FullPCpus, true)) => {
            Unit::Core(i64::try_from(plan.node_topology.topology().per_core()).unwrap_or(1))
        }
        Some(_) => Unit::Cpu,
    }
}

/// Number of NUMA nodes above which only the smallest sets that can serve the pod are offered.
const ALL_SIZES: u32 = 8;

/// Returns the sets of NUMA nodes that can serve the pod, per resource.
pub(super) fn hints(
    plan: &Plan<'_>,
    settings: &NumaSettings,
    sources: &[AllocationSource],
    max_free: &FreeResources,
    table: &ResourceTable,
) -> Offers {
    let zones = max_free.usable_zones(plan);
    let listed: Vec<ResourceId> = plan
        .incoming
        .requests
        .iter()
        .map(|(id, _)| id)
        .filter(|id| {
            plan.node_topology
                .zones
                .iter()
                .any(|(_, zone)| zone.contains(*id))
        })
        .collect();
    let mut all_hints: Vec<Vec<Hint>> = vec![Vec::new(); listed.len()];
    let mask = plan.node_topology.mask();
    let mut size = 0;
    for mask in mask.subsets() {
        let wider = mask.count() > size;
        let served = all_hints.iter().any(|hints| !hints.is_empty());
        if wider && served && plan.node_topology.mask().count() > ALL_SIZES {
            break;
        }
        size = mask.count();
        let free = |id: ResourceId| -> i64 {
            let inside = zones.iter().filter(|(zone, _)| mask.has(*zone));
            inside.map(|(_, zone)| zone.get(id)).sum()
        };
        // A cheap check before `serve`, and never wrong: a split cannot exceed the sum of the free amounts.
        let hopeless = listed
            .iter()
            .any(|id| free(*id) < plan.incoming.requests.get(*id));
        if hopeless || serve(plan, settings, sources, Some(mask), table).is_err() {
            continue;
        }
        let score = zone_score(plan, settings, &zones, mask);
        for (id, hints) in listed.iter().zip(&mut all_hints) {
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
    let offers = listed.into_iter().zip(all_hints).map(|(id, mut hints)| {
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
fn zone_score(
    plan: &Plan<'_>,
    settings: &NumaSettings,
    free: &[(u8, Amounts)],
    mask: NumaMask,
) -> i64 {
    if plan.kubelet_takes_first() {
        return 0;
    }
    let inside = |zones: &[(u8, Amounts)], id| -> i64 {
        let zones = zones.iter().filter(|(zone, _)| mask.has(*zone));
        zones.map(|(_, zone)| zone.get(id)).sum()
    };
    score(plan.incoming, plan.amplification(), settings.numa, |id| {
        let allocatable = inside(&plan.node_topology.zones, id);
        (allocatable, (allocatable - inside(free, id)).max(0))
    })
}

/// Returns the score of a node or of NUMA nodes; `amounts` returns (allocatable, requested) of a resource.
/// `ratio` is the factor by which the pod's own CPU request is amplified.
pub(super) fn score(
    incoming: &NumaPod,
    ratio: Option<f64>,
    strategy: koord_model::cpuset::CpuStrategy,
    amounts: impl Fn(ResourceId) -> (i64, i64),
) -> i64 {
    let usages = incoming.scored_resources.iter().map(|(id, weight)| {
        let mut own = incoming.requests.get(*id);
        if let Some(ratio) = ratio.filter(|_| *id == CPU) {
            own = amplify(own, ratio);
        }
        let (allocatable, requested) = amounts(*id);
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
    strategy: koord_model::cpuset::CpuStrategy,
    usages: impl Iterator<Item = Usage>,
) -> i64 {
    match strategy {
        koord_model::cpuset::CpuStrategy::LeastAllocated => least_allocated(usages),
        koord_model::cpuset::CpuStrategy::MostAllocated => most_allocated(usages),
    }
}
