//! Deciding whether a node can serve a pod, and from which CPUs and NUMA nodes.

use super::Numa;
use super::allocate::{self, Given, Plan, Room, Scene, Way};
use super::book::Book;
use super::node::{NodeSide, milli};
use super::pod::{Allocation, Incoming};
use crate::common::restricted::is_restricted;
use koord_api::topology::zone_name;
use koord_model::cpuset::BindPolicy;
use koord_model::numa::{Hint, NumaPolicyKind, amplify};
use koord_model::resources::{CPU, shown};
use koord_scheduler::framework::{Cycle, Lacks, Rejection, Verdict};
use koord_scheduler::state::NodeIndex;

impl Numa {
    /// Returns the bind policy and the NUMA policy that apply to the pod on the node.
    pub(super) fn plan<'a>(
        &self,
        incoming: &'a Incoming,
        side: &'a NodeSide,
    ) -> Result<Plan<'a>, Rejection> {
        let policy = match (side.policy, incoming.policy) {
            (Some(node), Some(pod)) if node != pod => {
                let reason = "node(s) NUMA Topology policy not match";
                return Err(Rejection::unresolvable(reason));
            }
            (node, pod) => pod.or(node),
        };
        let bound = incoming.wish.is_some() || (side.bind.is_some() && incoming.cpu() > 0);
        if bound && incoming.cpu() % 1000 != 0 {
            let reason = "the requested CPUs must be integer";
            return Err(Rejection::unresolvable(reason));
        }
        let bind = bound.then(|| {
            let wish = incoming.wish;
            match (wish.and_then(|wish| wish.required), side.bind) {
                (Some(required), _) => (required, true),
                (None, Some(node)) => (node, true),
                // Without a request of the pod or a policy of the node, the pod is not bound at all.
                (None, None) => (
                    wish.map_or(BindPolicy::FullPCpus, |wish| wish.preferred),
                    false,
                ),
            }
        });
        Ok(Plan {
            incoming,
            side,
            bind,
            policy,
        })
    }

    /// Checks whether the machine's topology and policies allow the plan.
    pub(super) fn check(&self, plan: &Plan<'_>) -> Verdict {
        let Some((bind, required)) = plan.bind else {
            return Ok(());
        };
        let topology = plan.side.topology();
        if !topology.is_valid() {
            return Err(Rejection::unresolvable("node(s) invalid CPU Topology"));
        }
        let own = plan.incoming.wish.and_then(|wish| wish.required);
        if own.is_some() && plan.side.bind.is_some_and(|node| Some(node) != own) {
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
        let Some(ratio) = plan.side.node_ratio else {
            return Err(Rejection::unresolvable(
                "node(s) invalid CPU amplification ratio",
            ));
        };
        if ratio <= 1.0 {
            return Ok(());
        }
        let asked = match plan.bind {
            Some(_) => amplify(plan.incoming.cpu(), ratio),
            None => plan.incoming.cpu(),
        };
        let bound = self.known(node).map_or(0, |(book, side)| {
            let scene = self.scene(cycle, book, plan);
            milli(allocate::widest(book, side, &scene).held.cpus.len())
        });
        let mut requested = cycle.requested(node, CPU);
        if bound > 0 && requested >= bound {
            requested += amplify(bound, ratio) - bound;
        }
        if asked > cycle.view.nodes.allocatable(node, CPU) - requested {
            return Err(Rejection::unschedulable("Insufficient amplified cpu"));
        }
        Ok(())
    }

    /// Returns the assumptions of this cycle about the node: removed and added pods, and the reservations
    /// that the pod may use.
    pub(super) fn scene<'a>(&self, cycle: &Cycle<'a>, book: &Book, plan: &Plan<'_>) -> Scene<'a> {
        let mut scene = Scene::default();
        for pod in cycle.overlay.removed {
            match book.pods.get(&pod.uid) {
                Some(known) if known.is_reservation => {
                    let restricted = is_restricted(cycle.view, &pod.uid);
                    scene.open.push((&*pod.uid, restricted));
                }
                Some(_) => scene.gone.push(&*pod.uid),
                None => {}
            }
        }
        // In Reserve, absorbed pods are not in the overlay.
        for pod in cycle.taken_in() {
            let Some(given) = book.pods.get(&pod.uid) else {
                continue;
            };
            scene.inside.add(given);
            if !scene.gone.contains(&&*pod.uid) {
                scene.gone.push(&*pod.uid);
            }
        }
        for pod in cycle.overlay.added {
            if let Ok(Some(given)) = Allocation::read(pod, cycle.view.resources) {
                scene.more.push(given);
            }
        }
        if let Some(nominated) = cycle.nominated
            && book.pods.contains_key(&nominated.uid)
        {
            let restricted = is_restricted(cycle.view, &nominated.uid);
            scene.open = vec![(&*nominated.uid, restricted)];
            scene.nominated = !plan.incoming.ignores_reservations;
        }
        scene
    }

    /// Opens all reservations of the node to a pod that ignores reservations; the overlay does not list them
    /// in Reserve.
    pub(super) fn with_ignored<'a>(
        mut scene: Scene<'a>,
        book: &'a Book,
        plan: &Plan<'_>,
    ) -> Scene<'a> {
        if plan.incoming.ignores_reservations {
            let held = book.pods.iter().filter(|(_, pod)| pod.is_reservation);
            scene.open = held.map(|(uid, _)| (&**uid, false)).collect();
        }
        scene
    }

    pub(super) fn ways(&self, cycle: &Cycle<'_>, book: &Book, plan: &Plan<'_>) -> (Vec<Way>, Room) {
        let scene = Self::with_ignored(self.scene(cycle, book, plan), book, plan);
        let ways = allocate::ways(book, plan, &scene);
        (ways, allocate::widest(book, plan.side, &scene))
    }

    /// Returns the allocation that the pod would get.
    pub(super) fn serve(
        &self,
        cycle: &Cycle<'_>,
        book: &Book,
        plan: &Plan<'_>,
    ) -> Result<Given, Rejection> {
        let (ways, _) = self.ways(cycle, book, plan);
        self.serve_by(cycle, plan, &ways)
    }

    pub(super) fn serve_by(
        &self,
        cycle: &Cycle<'_>,
        plan: &Plan<'_>,
        ways: &[Way],
    ) -> Result<Given, Rejection> {
        let mask = cycle.numa.filter(|_| plan.policy.is_some());
        allocate::serve(
            plan,
            self.settings.of(cycle.pod),
            ways,
            mask,
            cycle.view.resources,
        )
    }

    /// Returns how many CPUs the node is short of for a CPU-bound pod.
    pub(super) fn missing(&self, cycle: &Cycle<'_>, book: &Book, plan: &Plan<'_>) -> usize {
        let scene = Self::with_ignored(self.scene(cycle, book, plan), book, plan);
        let free = allocate::free_cpus(book, plan.side, &scene);
        plan.incoming.cpus().saturating_sub(free)
    }

    /// Adds the first resource of which the NUMA nodes have too little: for the single-NUMA-node policy no
    /// one of them has enough, for other policies their sum is too small.
    pub(super) fn misaligned(
        &self,
        cycle: &Cycle<'_>,
        book: &Book,
        plan: &Plan<'_>,
        out: &mut Lacks,
    ) {
        let Some(policy) = plan.policy else {
            return;
        };
        let single = policy == NumaPolicyKind::SingleNumaNode;
        let scene = Self::with_ignored(self.scene(cycle, book, plan), book, plan);
        let room = allocate::widest(book, plan.side, &scene);
        for (id, needs) in cycle.pod.requests.iter().filter(|(_, needs)| *needs > 0) {
            // A resource that no NUMA node lists is not aligned.
            let listed = room.zones().iter().filter(|(_, free)| free.contains(id));
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
    pub(super) fn can_serve(&self, cycle: &Cycle<'_>, book: &Book, plan: &Plan<'_>) -> bool {
        if plan.bind.is_none() && plan.policy.is_none() {
            return true;
        }
        let (ways, widest) = self.ways(cycle, book, plan);
        let aligned = plan.policy.filter(|_| plan.incoming.designated.is_none());
        let Some(policy) = aligned.filter(|_| cycle.numa.is_none()) else {
            return self.serve_by(cycle, plan, &ways).is_ok();
        };
        let table = cycle.view.resources;
        let narrow = |hint: &Hint| {
            let single = policy == NumaPolicyKind::SingleNumaNode;
            !single || hint.mask.is_none_or(|mask| mask.count() == 1)
        };
        let offers = allocate::hints(plan, self.settings.of(cycle.pod), &ways, &widest, table);
        let mut hints = offers.iter().filter_map(|(_, hints)| hints.as_ref());
        hints.all(|hints| hints.iter().any(narrow))
    }
}
