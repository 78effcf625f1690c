//! Deciding whether a node can serve a pod, and from which CPUs and NUMA nodes.

use super::Numa;
use super::allocate::{self, AllocationSource, Assumptions, FreeResources, NumaAllocation, Plan};
use super::node_allocations::NodeAllocations;
use super::node_topology::{NodeTopology, to_milli};
use super::pod::{Allocation, NumaPod};
use crate::common::allocate_policy::is_restricted;
use koord_api::topology::zone_name;
use koord_model::cpuset::BindPolicy;
use koord_model::numa::{Hint, NumaPolicyKind, amplify};
use koord_model::resources::{CPU, shown};
use koord_scheduler::framework::{Cycle, Rejection, Shortfall, Verdict};
use koord_scheduler::state::NodeIndex;

impl Numa {
    /// Returns the bind policy and the NUMA policy that apply to the pod on the node.
    pub(super) fn plan<'a>(
        &self,
        incoming: &'a NumaPod,
        node_topology: &'a NodeTopology,
    ) -> Result<Plan<'a>, Rejection> {
        let policy = match (node_topology.policy, incoming.policy) {
            (Some(node), Some(pod)) if node != pod => {
                let reason = "node(s) NUMA Topology policy not match";
                return Err(Rejection::unresolvable(reason));
            }
            (node, pod) => pod.or(node),
        };
        let bound =
            incoming.cpu_request.is_some() || (node_topology.bind.is_some() && incoming.cpu() > 0);
        if bound && incoming.cpu() % 1000 != 0 {
            let reason = "the requested CPUs must be integer";
            return Err(Rejection::unresolvable(reason));
        }
        let bind = bound.then(|| {
            let cpu_request = incoming.cpu_request;
            match (
                cpu_request.and_then(|cpu_request| cpu_request.required),
                node_topology.bind,
            ) {
                (Some(required), _) => (required, true),
                (None, Some(node)) => (node, true),
                // Without a request of the pod or a policy of the node, the pod is not bound at all.
                (None, None) => (
                    cpu_request.map_or(BindPolicy::FullPCpus, |cpu_request| cpu_request.preferred),
                    false,
                ),
            }
        });
        Ok(Plan {
            incoming,
            node_topology,
            bind,
            policy,
        })
    }

    /// Checks whether the machine's topology and policies allow the plan.
    pub(super) fn check(&self, plan: &Plan<'_>) -> Verdict {
        let Some((bind, required)) = plan.bind else {
            return Ok(());
        };
        let topology = plan.node_topology.topology();
        if !topology.is_valid() {
            return Err(Rejection::unresolvable("node(s) invalid CPU Topology"));
        }
        let own = plan
            .incoming
            .cpu_request
            .and_then(|cpu_request| cpu_request.required);
        if own.is_some()
            && plan
                .node_topology
                .bind
                .is_some_and(|node| Some(node) != own)
        {
            return Err(Rejection::unresolvable(
                "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
            ));
        }
        let threads = topology.per_core().max(1);
        let odd = !plan.incoming.cpus().is_multiple_of(threads);
        if required && bind == BindPolicy::FullPCpus && odd {
            return Err(Rejection::unresolvable(
                "node(s) requested cpus not multiple cpus per core",
            ));
        }
        Ok(())
    }

    /// Checks the free CPU of an amplified node, on which the CPUs of bound pods count amplified.
    pub(super) fn check_amplified(
        &self,
        cycle: &Cycle<'_>,
        plan: &Plan<'_>,
        node: NodeIndex,
    ) -> Verdict {
        if plan.incoming.cpu() == 0 {
            return Ok(());
        }
        let Some(ratio) = plan.node_topology.node_ratio else {
            return Err(Rejection::unresolvable(
                "node(s) invalid CPU amplification ratio",
            ));
        };
        if ratio <= 1.0 {
            return Ok(());
        }
        let requested_cpu = match plan.bind {
            Some(_) => amplify(plan.incoming.cpu(), ratio),
            None => plan.incoming.cpu(),
        };
        let bound = self
            .node(node)
            .map_or(0, |(node_allocations, node_topology)| {
                let assumptions = self.assumptions(cycle, node_allocations, plan);
                to_milli(
                    allocate::max_free(node_allocations, node_topology, &assumptions)
                        .allocated
                        .cpus
                        .len(),
                )
            });
        let mut requested = cycle.requested(node, CPU);
        if bound > 0 && requested >= bound {
            requested += amplify(bound, ratio) - bound;
        }
        if requested_cpu > cycle.view.nodes.allocatable(node, CPU) - requested {
            return Err(Rejection::unschedulable("Insufficient amplified cpu"));
        }
        Ok(())
    }

    /// Returns the assumptions of this cycle about the node: removed and added pods, and the reservations
    /// that the pod may use.
    pub(super) fn assumptions<'a>(
        &self,
        cycle: &Cycle<'a>,
        node_allocations: &NodeAllocations,
        plan: &Plan<'_>,
    ) -> Assumptions<'a> {
        let mut assumptions = Assumptions::default();
        for pod in cycle.overlay.removed {
            match node_allocations.pods.get(&pod.uid) {
                Some(allocation) if allocation.is_reservation => {
                    let restricted = is_restricted(cycle.view, &pod.uid);
                    assumptions.open.push((&*pod.uid, restricted));
                }
                Some(_) => assumptions.removed.push(&*pod.uid),
                None => {}
            }
        }
        // In Reserve, absorbed pods are not in the overlay.
        for pod in cycle.absorbed() {
            let Some(allocation) = node_allocations.pods.get(&pod.uid) else {
                continue;
            };
            assumptions.absorbed.add(allocation);
            if !assumptions.removed.contains(&&*pod.uid) {
                assumptions.removed.push(&*pod.uid);
            }
        }
        for pod in cycle.overlay.added {
            if let Ok(Some(allocation)) = Allocation::read(pod, cycle.view.resources) {
                assumptions.added.push(allocation);
            }
        }
        if let Some(nominated) = cycle.nominated
            && node_allocations.pods.contains_key(&nominated.uid)
        {
            let restricted = is_restricted(cycle.view, &nominated.uid);
            assumptions.open = vec![(&*nominated.uid, restricted)];
            assumptions.nominated = !plan.incoming.ignores_reservations;
        }
        assumptions
    }

    /// Opens all reservations of the node to a pod that ignores reservations; the overlay does not list them
    /// in Reserve.
    pub(super) fn open_ignored_reservations<'a>(
        mut assumptions: Assumptions<'a>,
        node_allocations: &'a NodeAllocations,
        plan: &Plan<'_>,
    ) -> Assumptions<'a> {
        if plan.incoming.ignores_reservations {
            let reservations = node_allocations
                .pods
                .iter()
                .filter(|(_, pod)| pod.is_reservation);
            assumptions.open = reservations.map(|(uid, _)| (&**uid, false)).collect();
        }
        assumptions
    }

    /// Returns the sources to allocate the pod's CPUs and NUMA resources from (free resources or reservations), in
    /// the order to try, and the largest free resources of the node.
    pub(super) fn sources(
        &self,
        cycle: &Cycle<'_>,
        node_allocations: &NodeAllocations,
        plan: &Plan<'_>,
    ) -> (Vec<AllocationSource>, FreeResources) {
        let assumptions = Self::open_ignored_reservations(
            self.assumptions(cycle, node_allocations, plan),
            node_allocations,
            plan,
        );
        let sources = allocate::sources(node_allocations, plan, &assumptions);
        (
            sources,
            allocate::max_free(node_allocations, plan.node_topology, &assumptions),
        )
    }

    /// Returns the allocation that the pod would get.
    pub(super) fn serve(
        &self,
        cycle: &Cycle<'_>,
        node_allocations: &NodeAllocations,
        plan: &Plan<'_>,
    ) -> Result<NumaAllocation, Rejection> {
        let (sources, _) = self.sources(cycle, node_allocations, plan);
        self.serve_from(cycle, plan, &sources)
    }

    /// Returns the allocation from the first of `sources` that suffices, on the NUMA nodes of the cycle.
    pub(super) fn serve_from(
        &self,
        cycle: &Cycle<'_>,
        plan: &Plan<'_>,
        sources: &[AllocationSource],
    ) -> Result<NumaAllocation, Rejection> {
        let mask = cycle.numa.filter(|_| plan.policy.is_some());
        allocate::serve(
            plan,
            self.settings.for_pod(cycle.pod),
            sources,
            mask,
            cycle.view.resources,
        )
    }

    /// Returns how many CPUs the node is short of for a pod with bound CPUs.
    pub(super) fn missing_cpus(
        &self,
        cycle: &Cycle<'_>,
        node_allocations: &NodeAllocations,
        plan: &Plan<'_>,
    ) -> usize {
        let assumptions = Self::open_ignored_reservations(
            self.assumptions(cycle, node_allocations, plan),
            node_allocations,
            plan,
        );
        let free = allocate::free_cpus(node_allocations, plan.node_topology, &assumptions);
        plan.incoming.cpus().saturating_sub(free)
    }

    /// Adds the first resource of which the NUMA nodes have too little: for the single-NUMA-node policy no
    /// one of them has enough, for other policies their sum is too small.
    pub(super) fn add_numa_shortfall(
        &self,
        cycle: &Cycle<'_>,
        node_allocations: &NodeAllocations,
        plan: &Plan<'_>,
        out: &mut Shortfall,
    ) {
        let Some(policy) = plan.policy else {
            return;
        };
        let single = policy == NumaPolicyKind::SingleNumaNode;
        let assumptions = Self::open_ignored_reservations(
            self.assumptions(cycle, node_allocations, plan),
            node_allocations,
            plan,
        );
        let free_resources = allocate::max_free(node_allocations, plan.node_topology, &assumptions);
        for (id, needs) in cycle.pod.requests.iter().filter(|(_, needs)| *needs > 0) {
            // A resource that no NUMA node lists is not aligned.
            let listed = free_resources
                .zones()
                .iter()
                .filter(|(_, free)| free.contains(id));
            let free: Vec<(u8, i64)> = listed.map(|(zone, free)| (*zone, free.get(id))).collect();
            let Some(most) = free.iter().map(|(_, free)| *free).max() else {
                continue;
            };
            let sum = free.iter().map(|(_, free)| *free).sum();
            let has = if single { most } else { sum };
            if has >= needs {
                continue;
            }
            out.add((needs - has) as f64 / needs as f64, || {
                let each = free.iter().map(|(zone, free)| {
                    let zone = zone_name(u32::from(*zone));
                    format!("{} in {zone}", shown(id, *free))
                });
                let each: Vec<String> = each.collect();
                format!(
                    "{} in {}: needs {}, free {}",
                    cycle.view.resources.name(id),
                    if single {
                        "one NUMA node"
                    } else {
                        "NUMA nodes"
                    },
                    shown(id, needs),
                    each.join(" and ")
                )
            });
            return;
        }
    }

    /// Returns true if some NUMA nodes can serve the pod, or the node can if alignment does not apply.
    pub(super) fn can_serve(
        &self,
        cycle: &Cycle<'_>,
        node_allocations: &NodeAllocations,
        plan: &Plan<'_>,
    ) -> bool {
        if plan.bind.is_none() && plan.policy.is_none() {
            return true;
        }
        let (sources, max_free) = self.sources(cycle, node_allocations, plan);
        let aligned = plan.policy.filter(|_| plan.incoming.preassigned.is_none());
        let Some(policy) = aligned.filter(|_| cycle.numa.is_none()) else {
            return self.serve_from(cycle, plan, &sources).is_ok();
        };
        let table = cycle.view.resources;
        let narrow = |hint: &Hint| {
            let single = policy == NumaPolicyKind::SingleNumaNode;
            !single || hint.mask.is_none_or(|mask| mask.count() == 1)
        };
        let offers = allocate::hints(
            plan,
            self.settings.for_pod(cycle.pod),
            &sources,
            &max_free,
            table,
        );
        let mut hints = offers.iter().filter_map(|(_, hints)| hints.as_ref());
        hints.all(|hints| hints.iter().any(narrow))
    }
}
