//! Whether and how a node serves a pod.

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
    /// How the pod is to be served on the node.
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
                // Not bound without a wish or a policy of the node.
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

    /// Whether the machine and its policies allow the plan at all.
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

    /// CPU of amplified nodes: bound pods take as much of it as their CPUs would have given others.
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

    /// What is imagined of the node, as far as this plugin holds books on it.
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
        // At reserve they are not imagined away.
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

    /// As [`Self::scene`]; a pod that ignores reservations may use all of them at reserve too.
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

    /// What the pod would get.
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

    /// How many CPUs the node lacks for a pod that is bound to any.
    pub(super) fn missing(&self, cycle: &Cycle<'_>, book: &Book, plan: &Plan<'_>) -> usize {
        let scene = Self::with_ignored(self.scene(cycle, book, plan), book, plan);
        let free = allocate::free_cpus(book, plan.side, &scene);
        plan.incoming.cpus().saturating_sub(free)
    }

    /// Adds what no NUMA node has enough of, for a pod that must have all from one; with another policy,
    /// what all of them together lack.
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
            // What no NUMA node lists is not asked of them.
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

    /// Whether the pod can be served from some NUMA nodes, or from anywhere where none matter.
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
