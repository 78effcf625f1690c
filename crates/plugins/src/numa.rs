//! `NodeNUMAResource`: binds pods to CPUs and NUMA nodes.
//!
//! Each node has a [`NodeAllocations`]: the machine as the NodeResourceTopology describes it, and the CPUs
//! and NUMA resources that are allocated to each pod. Allocations are written to the pod's annotations before
//! it is bound and are read back from there after a restart. They are exactly those of the pods on the node
//! plus those reserved for pods that are about to be bound.

mod allocate;
mod args;
mod feasibility;
mod inspect;
mod node_allocations;
mod node_topology;
mod pod;
#[cfg(test)]
mod tests;

use crate::common::allocate_policy;
use crate::common::patches::clear_annotation;
use crate::common::topologies::{self, TOPOLOGIES, TrimmedTopology};
use args::{Args, NumaSettings};
use koord_api::annotations;
use koord_api::extension::{self, CpuBindPolicy, ResourceSpec, ResourceStatus};
use koord_api::quantity::{Format, Quantity};
use koord_model::cpuset::BindPolicy;
use koord_model::numa::{NumaPolicy, NumaPolicyKind, Offers, Usage, amplify};
use koord_model::resources::{
    BATCH_MEMORY, CPU, EPHEMERAL_STORAGE, MEMORY, MID_MEMORY, ResourceId, ResourceTable,
};
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, Alignment, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects,
    Explain, Filter, Holders, IndexKind, Inputs, Interest, NotShown, ObjectChange, ObjectEvents,
    PerProfile, Plugin, PodEvents, PodPatch, Points, PreBind, PreFilter, PreFilterResult, PreScore,
    PreScoreResult, Problem, QueueHints, QueueingHint, Rejection, ReportedProblems, Reserve, Roles,
    Score, Shortfall, Sign, Signable, Signature, State, Subject, Verdict, View,
};
use koord_scheduler::state::{Booked, NodeIndex, PodInfo};
use node_allocations::NodeAllocations;
use node_topology::{NodeTopology, Report, to_milli};
use pod::{Allocation, NumaPod};
use rustc_hash::FxHashMap;
use serde_json::Value;
use std::sync::Arc;

const NAME: &str = "NodeNUMAResource";

/// The `NodeNUMAResource` plugin.
#[derive(Debug)]
pub(crate) struct Numa {
    settings: PerProfile<NumaSettings>,
    /// Topology reports by node name; a report may arrive before its node.
    reports: FxHashMap<String, Arc<Report>>,
    /// Changes by the last NodeResourceTopology event, for the queueing hint.
    last_change: TopologyChange,
    /// Allocations per node, by node index.
    allocations: Vec<NodeAllocations>,
    /// True, by node index, if the node places no constraint on a pod for which [`NumaPod::is_plain`] holds.
    plain: Vec<bool>,
    /// True if kubelet topology policies count in every scope; upstream recognizes only three policy names.
    all_policies: bool,
    reported: ReportedProblems,
}

/// The part of a NodeResourceTopology that an event changed.
#[derive(Debug, PartialEq, Eq)]
enum TopologyChange {
    Nothing,
    /// The amounts of these resources.
    Amounts(Vec<ResourceId>),
    /// More than amounts.
    All,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = crate::common::args::decode(NAME, value)?;
    Ok(Box::new(Numa {
        settings: PerProfile::new(args.settings()?),
        reports: FxHashMap::default(),
        last_change: TopologyChange::Nothing,
        allocations: Vec::new(),
        plain: Vec::new(),
        all_policies: context.gates.get("FullNRTPolicyMapping") == Some(&true),
        reported: ReportedProblems::default(),
    }))
}

impl Numa {
    fn node_allocations(&mut self, node: NodeIndex) -> &mut NodeAllocations {
        if self.allocations.len() <= node.row() {
            self.allocations
                .resize_with(node.row() + 1, NodeAllocations::default);
        }
        &mut self.allocations[node.row()]
    }

    fn numa_pod(&self, pod: &PodInfo, view: View<'_>) -> Result<Option<NumaPod>, String> {
        NumaPod::new(pod, self.settings.for_pod(pod), view.resources)
    }

    fn node(&self, node: NodeIndex) -> Option<(&NodeAllocations, &NodeTopology)> {
        let node_allocations = self.allocations.get(node.row())?;
        Some((node_allocations, node_allocations.node_topology.as_ref()?))
    }

    fn refresh(&mut self, node: NodeIndex, view: View<'_>, fx: &mut Effects) {
        let node_topology = view.nodes.info(node).map(|info| {
            let report = self.reports.get(&*info.name).cloned().unwrap_or_default();
            let (node_topology, problems) = NodeTopology::new(info, report, view.resources);
            fx.problems.extend(problems);
            node_topology
        });
        if self.plain.len() <= node.row() {
            self.plain.resize(node.row() + 1, false);
        }
        self.plain[node.row()] = node_topology.as_ref().is_some_and(NodeTopology::is_plain);
        self.node_allocations(node).set_topology(node_topology);
    }

    /// Returns true if neither the node nor the pod requires CPU binding or NUMA alignment. Then the filter
    /// accepts, nothing is aligned, and the score is that of the node as a whole.
    fn are_plain(&self, incoming: &NumaPod, node: NodeIndex) -> bool {
        incoming.is_plain() && self.plain.get(node.row()) == Some(&true)
    }

    /// Returns the positions of those of `nodes` for which [`Self::are_plain`] does not hold.
    fn non_plain_positions<'a>(
        &'a self,
        incoming: &NumaPod,
        nodes: &'a [NodeIndex],
    ) -> impl Iterator<Item = usize> + 'a {
        let any_may_be = incoming.is_plain();
        let is_plain =
            move |node: &NodeIndex| any_may_be && self.plain.get(node.row()) == Some(&true);
        let nodes = nodes.iter().enumerate();
        nodes.filter_map(move |(position, node)| (!is_plain(node)).then_some(position))
    }

    /// Records the allocation in the annotations of a pod on the node. Returns true if it changed.
    fn read(&mut self, pod: &PodInfo, node: NodeIndex, view: View<'_>, fx: &mut Effects) -> bool {
        // The annotations of an assumed pod do not yet describe this placement.
        if pod.node.is_none() {
            return false;
        }
        match Allocation::read(pod, view.resources) {
            Ok(Some(allocation)) => self.node_allocations(node).put(&pod.uid, allocation),
            Ok(None) => false,
            Err(message) => {
                fx.problems.push(problem(pod, message));
                false
            }
        }
    }

    fn is_empty_on(&self, node: NodeIndex) -> bool {
        self.allocations
            .get(node.row())
            .is_none_or(|node_allocations| node_allocations.pods.is_empty())
    }
}

fn problem(pod: &PodInfo, message: String) -> Problem {
    let (kind, namespace, name) = match pod.booked() {
        Booked::Pod(_) => ("Pod", pod.namespace.to_string(), None),
        Booked::Holder(object) => ("Reservation", String::new(), object.name.clone()),
    };
    Problem {
        kind,
        namespace,
        name: name.unwrap_or_else(|| pod.name.to_string()),
        uid: pod.uid.to_string(),
        message: format!("{message}; what the pod was given before stays booked"),
    }
}

impl Plugin for Numa {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .alignment()
        .pre_bind()
        .explain()
        .object_events()
        .pod_events()
        .reserve();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::FILTER)
            .or(Points::PRE_SCORE)
            .or(Points::SCORE)
            .or(Points::RESERVE)
            .or(Points::PRE_BIND)
    }
    fn holders(&self) -> Holders {
        Holders::Booked
    }
    fn join(
        &mut self,
        profile: &str,
        args: Option<&Value>,
        _context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        let settings = crate::common::args::decode(NAME, args).and_then(Args::settings);
        Some(settings.map(|settings| self.settings.join(profile, settings)))
    }
}

impl Sign for Numa {
    fn sign(&self, pod: &PodInfo, table: &ResourceTable, signature: &mut Signature) -> Signable {
        match NumaPod::new(pod, self.settings.for_pod(pod), table) {
            Ok(Some(incoming)) => incoming.sign(signature),
            Ok(None) => signature.number(0),
            Err(message) => signature.text(&message),
        }
        Signable::Yes
    }
}

impl Inputs for Numa {
    fn watches(&self) -> Vec<Watch> {
        vec![topologies::watch(), allocate_policy::watch()]
    }
    fn indexes(&self) -> Vec<IndexKind> {
        vec![allocate_policy::index()]
    }
}

impl PreFilter for Numa {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        match self.numa_pod(cycle.pod, cycle.view) {
            Ok(Some(incoming)) => PreFilterResult::ready(incoming),
            Ok(None) => PreFilterResult::Skip,
            Err(message) => PreFilterResult::Reject(Rejection::unresolvable(message)),
        }
    }
}

impl Filter for Numa {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(incoming) = state.get::<NumaPod>() else {
            return Ok(());
        };
        if self.are_plain(incoming, node) {
            return Ok(());
        }
        let Some((node_allocations, node_topology)) = self.node(node) else {
            return Ok(());
        };
        let plan = self.plan(incoming, node_topology)?;
        self.check_amplified(cycle, &plan, node)?;
        self.check(&plan)?;
        if incoming.preassigned.is_some() && (plan.bind.is_some() || plan.policy.is_some()) {
            return self.serve(cycle, node_allocations, &plan).map(drop);
        }
        if plan.policy.is_some() {
            if node_topology.zones.is_empty() {
                return Err(Rejection::unresolvable("node(s) missing NUMA resources"));
            }
            return Ok(());
        }
        match plan.bind {
            Some((_, true)) => self.serve(cycle, node_allocations, &plan).map(drop),
            // The CPUs of absorbed pods must be part of the allocation, so counting free CPUs is not enough.
            Some((_, false))
                if !self
                    .assumptions(cycle, node_allocations, &plan)
                    .absorbed
                    .is_empty() =>
            {
                self.serve(cycle, node_allocations, &plan).map(drop)
            }
            // Any CPUs will do, so counting free CPUs is enough.
            Some((_, false)) => match self.missing_cpus(cycle, node_allocations, &plan) {
                0 => Ok(()),
                _ => {
                    let error = koord_model::cpuset::NotEnough;
                    Err(Rejection::unschedulable(error.to_string()))
                }
            },
            None => Ok(()),
        }
    }
    fn filter_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        refuse: &mut dyn FnMut(usize, Rejection),
    ) {
        let Some(incoming) = state.get::<NumaPod>() else {
            return;
        };
        for position in self.non_plain_positions(incoming, nodes) {
            if let Err(rejection) = Filter::filter(self, cycle, state, nodes[position]) {
                refuse(position, rejection);
            }
        }
    }
}

impl PreScore for Numa {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        match self.numa_pod(cycle.pod, cycle.view) {
            Ok(Some(incoming)) => PreScoreResult::Ready(State::new(incoming)),
            _ => PreScoreResult::Skip,
        }
    }
}

impl Score for Numa {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let own;
        let incoming = match state.get::<NumaPod>() {
            Some(incoming) => incoming,
            // Profiles may enable the plugin for scoring only.
            None => match self.numa_pod(cycle.pod, cycle.view) {
                Ok(Some(incoming)) => {
                    own = incoming;
                    &own
                }
                _ => return 0,
            },
        };
        let settings = self.settings.for_pod(cycle.pod);
        let whole_node = |id| {
            let allocatable = cycle.view.nodes.allocatable(node, id);
            (allocatable, cycle.requested(node, id))
        };
        if self.are_plain(incoming, node) {
            return allocate::score(incoming, None, settings.nodes, whole_node);
        }
        let Some((node_allocations, node_topology)) = self.node(node) else {
            return 0;
        };
        let Ok(plan) = self.plan(incoming, node_topology) else {
            return 0;
        };
        if plan.bind.is_some() && !node_topology.topology().is_valid() {
            return 0;
        }
        let bound = |cpus: usize| amplify(to_milli(cpus), node_topology.ratio);
        let Some(policy) = plan.policy else {
            return allocate::score(incoming, plan.amplification(), settings.nodes, |id| {
                let (allocatable, mut used) = whole_node(id);
                if id == CPU && incoming.cpu() > 0 && node_topology.ratio > 1.0 {
                    let cpus = node_allocations.allocated.cpus.len();
                    used += bound(cpus) - to_milli(cpus);
                }
                (allocatable, used)
            });
        };
        let (sources, max_free) = self.sources(cycle, node_allocations, &plan);
        // With BestEffort the score does not depend on the chosen NUMA nodes.
        let cycle = Cycle {
            numa: cycle.numa.filter(|_| policy != NumaPolicyKind::BestEffort),
            ..*cycle
        };
        let Ok(allocation) = self.serve_from(&cycle, &plan, &sources) else {
            return 0;
        };
        allocate::score(incoming, plan.amplification(), settings.nodes, |id| {
            let sum = |zones: &[(u8, koord_model::resources::Amounts)]| -> i64 {
                let used = |zone: u8| allocation.zones.iter().any(|(id, _)| *id == zone);
                let zones = zones.iter().filter(|(zone, _)| used(*zone));
                zones.map(|(_, zone)| zone.get(id)).sum()
            };
            let (allocatable, mut used) = if allocation.zones.is_empty() {
                whole_node(id)
            } else {
                let allocatable = sum(&node_topology.zones);
                (allocatable, allocatable - sum(max_free.zones()))
            };
            if id == CPU && !allocation.cpus.is_empty() {
                used = bound(max_free.allocated.cpus.len());
            }
            (allocatable, used)
        })
    }
    fn score_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        scores: &mut [i64],
    ) {
        let strategy = self.settings.for_pod(cycle.pod).nodes;
        let incoming = state.get::<NumaPod>();
        let scored_resources = incoming
            .into_iter()
            .flat_map(|incoming| &incoming.scored_resources);
        let columns: Vec<_> = scored_resources
            .map(|(id, weight)| (cycle.view.nodes.column(*id), *id, *weight))
            .collect();
        for (score, node) in scores.iter_mut().zip(nodes) {
            let Some(incoming) = incoming.filter(|incoming| self.are_plain(incoming, *node)) else {
                *score = Score::score(self, cycle, state, *node);
                continue;
            };
            let usages = columns.iter().map(|(column, id, weight)| Usage {
                allocatable: column.allocatable(*node),
                requested: column
                    .requested(*node)
                    .saturating_add(incoming.requests.get(*id)),
                weight: *weight,
            });
            *score = allocate::average(strategy, usages);
        }
    }
}

impl QueueHints for Numa {
    fn interests(&self) -> Vec<Interest> {
        let any = Action::ADD.or(Action::UPDATE).or(Action::DELETE);
        let node = Action::ADD
            .or(Action::NODE_ALLOCATABLE)
            .or(Action::NODE_LABEL)
            .or(Action::NODE_ANNOTATION);
        [
            (Subject::AssignedPod, Action::DELETE),
            (Subject::Object(TOPOLOGIES), any),
            (Subject::Node, node),
        ]
        .map(|(subject, actions)| Interest { subject, actions })
        .to_vec()
    }
    /// Skips topology updates that change nothing the pod requests: koordlet and the manager update these
    /// objects often, and thousands of pods may wait.
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        if event.subject != Subject::Object(TOPOLOGIES) {
            return QueueingHint::Queue;
        }
        let helps = match &self.last_change {
            TopologyChange::Nothing => false,
            TopologyChange::Amounts(ids) => ids.iter().any(|id| pod.requests.get(*id) > 0),
            TopologyChange::All => true,
        };
        if helps {
            QueueingHint::Queue
        } else {
            QueueingHint::Skip
        }
    }
}

impl PreBind for Numa {
    fn pre_bind(&self, cycle: &Cycle<'_>, node: NodeIndex, patch: &mut PodPatch) -> Verdict {
        let existing = self.node(node).filter(|_| !self.is_empty_on(node));
        let allocation = existing.and_then(|(node_allocations, node_topology)| {
            Some((node_allocations.pods.get(&cycle.pod.uid)?, node_topology))
        });
        let Some((allocation, node_topology)) = allocation else {
            clear_annotation(cycle.pod, annotations::RESOURCE_STATUS, patch);
            return Ok(());
        };
        let failed = |error: serde_json::Error| Rejection::error(error.to_string());
        if let Ok(Some(incoming)) = self.numa_pod(cycle.pod, cycle.view)
            && let Ok(plan) = self.plan(&incoming, node_topology)
            && let Some((bind, required)) = plan.bind
            && let Some(spec) = complete_spec(cycle.pod, bind, required)
        {
            let key = annotations::RESOURCE_SPEC;
            extension::write(&mut patch.annotations, key, &spec).map_err(failed)?;
        }
        let status = ResourceStatus {
            cpuset: allocation.cpus.to_string(),
            numa_node_resources: allocation
                .zones
                .iter()
                .map(|(id, amounts)| extension::NumaNodeResource {
                    node: i32::from(*id),
                    resources: amounts
                        .iter()
                        .map(|(id, amount)| {
                            let name = cycle.view.resources.name(id);
                            let quantity = quantity_of(id, amount, &name, Some(cycle.pod));
                            (name.to_string(), quantity)
                        })
                        .collect(),
                })
                .collect(),
        };
        let key = annotations::RESOURCE_STATUS;
        extension::write(&mut patch.annotations, key, &status).map_err(failed)
    }
}

impl Explain for Numa {
    fn explain_shortfall(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Shortfall,
    ) {
        let (Some(incoming), Some((node_allocations, node_topology))) =
            (state.get::<NumaPod>(), self.node(node))
        else {
            return;
        };
        let Ok(plan) = self.plan(incoming, node_topology) else {
            return;
        };
        let (needed, missing) = (
            incoming.cpus(),
            self.missing_cpus(cycle, node_allocations, &plan),
        );
        if plan.bind.is_some() && missing > 0 {
            out.add(missing as f64 / needed as f64, || {
                format!("exclusive cpus: needs {needed}, free {}", needed - missing)
            });
            return;
        }
        self.add_numa_shortfall(cycle, node_allocations, &plan, out);
    }
    fn explain(&self, pod: &PodInfo, view: View<'_>) -> Option<Value> {
        inspect::explain(self, pod, view)
    }
    fn inspections(&self) -> &'static [&'static str] {
        &["nodes/:nodeName"]
    }
    fn inspect(
        &self,
        path: &[&str],
        _query: &std::collections::BTreeMap<String, String>,
        view: View<'_>,
    ) -> Result<Value, NotShown> {
        match path {
            ["nodes", name] => inspect::node(self, name, view),
            _ => Err(NotShown::NoSuchPath),
        }
    }
}

impl ObjectEvents for Numa {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let deleted = change.action == Action::DELETE;
        let Some(object) = TrimmedTopology::from_change(change) else {
            return;
        };
        let name = object.name.to_string();
        self.last_change = TopologyChange::All;
        if deleted {
            self.reports.remove(&name);
            self.reported.remove(&name);
        } else {
            let (report, problems) = Report::new(&object, view.resources, self.all_policies);
            // koordlet updates the object often, mostly in parts that this plugin does not use.
            if let Some(existing) = self.reports.get(&name) {
                self.last_change = report.changes_since(existing);
                if self.last_change == TopologyChange::Nothing {
                    return;
                }
            }
            self.reported.update(&name, problems, fx);
            self.reports.insert(name.clone(), Arc::new(report));
        }
        if let Some(node) = view.nodes.find(&name) {
            self.refresh(node, view, fx);
            fx.touched.push(node);
        }
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, fx: &mut Effects) {
        self.refresh(node, view, fx);
    }
}

impl PodEvents for Numa {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        self.read(pod, node, view, fx);
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let [was, is] = [old, new].map(|pod| &pod.object.annotations);
        if old.node == new.node && was == is {
            return;
        }
        if self.read(new, node, view, fx) {
            fx.touched.push(node);
        } else if let Ok(Some(reservation)) = pod::reservation_of(new)
            && let Some(existing) = self.node_allocations(node).pods.get(&new.uid).cloned()
        {
            let allocation = Allocation {
                reservation: Some(reservation),
                ..(*existing).clone()
            };
            if self.node_allocations(node).put(&new.uid, allocation) {
                fx.touched.push(node);
            }
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.node_allocations(node).remove(&pod.uid);
    }
}

impl Reserve for Numa {
    fn reserve(&mut self, cycle: &Cycle<'_>, node: NodeIndex, _fx: &mut Effects) -> Verdict {
        let Ok(Some(incoming)) = self.numa_pod(cycle.pod, cycle.view) else {
            return Ok(());
        };
        let Some((node_allocations, node_topology)) = self.node(node) else {
            return Ok(());
        };
        let plan = self.plan(&incoming, node_topology)?;
        if plan.bind.is_none() && plan.policy.is_none() {
            return Ok(());
        }
        if plan.bind.is_some() && !node_topology.topology().is_valid() {
            return Err(Rejection::error("node(s) invalid CPU Topology"));
        }
        let allocation = self.serve(cycle, node_allocations, &plan).map_err(|rejection| {
            if cycle.nominated.is_some() && !incoming.reserved_only {
                Rejection::unschedulable(
                    "pod has a nominated reservation but cannot be allocated within its NUMA scope",
                )
            } else {
                rejection
            }
        })?;
        let nominated = cycle
            .nominated
            .filter(|pod| node_allocations.pods.contains_key(&pod.uid));
        let allocation = Allocation {
            cpus: allocation.cpus,
            zones: allocation.zones,
            exclusive: incoming
                .cpu_request
                .map(|cpu_request| cpu_request.exclusive)
                .unwrap_or_default(),
            reservation: nominated.map(|pod| pod.uid.clone()),
            ..Allocation::empty(cycle.pod)
        };
        self.node_allocations(node).put(&cycle.pod.uid, allocation);
        Ok(())
    }
    fn unreserve(&mut self, cycle: &Cycle<'_>, node: NodeIndex, _fx: &mut Effects) {
        self.node_allocations(node).remove(&cycle.pod.uid);
    }
}

impl Alignment for Numa {
    fn numa_policy(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Option<NumaPolicy> {
        let incoming = state.get::<NumaPod>()?;
        if self.are_plain(incoming, node) {
            return None;
        }
        let (node_allocations, node_topology) = self.node(node)?;
        let plan = self.plan(incoming, node_topology).ok()?;
        let kind = plan.policy.filter(|_| incoming.preassigned.is_none())?;
        let assumptions = self.assumptions(cycle, node_allocations, &plan);
        Some(NumaPolicy {
            kind,
            exclusive: incoming.exclusive(),
            nodes: node_topology.mask(),
            states: allocate::max_free(node_allocations, node_topology, &assumptions)
                .allocated
                .states,
        })
    }
    fn aligns_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        asks: &mut dyn FnMut(usize),
    ) {
        let Some(incoming) = state.get::<NumaPod>() else {
            return;
        };
        let positions = self.non_plain_positions(incoming, nodes);
        positions
            .filter(|position| self.numa_policy(cycle, state, nodes[*position]).is_some())
            .for_each(asks);
    }
    fn numa_hints(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        _policy: &NumaPolicy,
    ) -> Result<Offers, Rejection> {
        let (Some(incoming), Some((node_allocations, node_topology))) =
            (state.get::<NumaPod>(), self.node(node))
        else {
            return Ok(Vec::new());
        };
        let plan = self.plan(incoming, node_topology)?;
        let (sources, max_free) = self.sources(cycle, node_allocations, &plan);
        let table = cycle.view.resources;
        Ok(allocate::hints(
            &plan,
            self.settings.for_pod(cycle.pod),
            &sources,
            &max_free,
            table,
        ))
    }
    fn numa_allocate(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(incoming), Some((node_allocations, node_topology))) =
            (state.get::<NumaPod>(), self.node(node))
        else {
            return Ok(());
        };
        let plan = self.plan(incoming, node_topology)?;
        self.serve(cycle, node_allocations, &plan).map(drop)
    }
    fn agrees(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        from: &Arc<PodInfo>,
    ) -> bool {
        let (Some(incoming), Some((node_allocations, node_topology))) =
            (state.get::<NumaPod>(), self.node(node))
        else {
            return true;
        };
        // A reservation without an allocation here imposes no constraint.
        if !node_allocations.pods.contains_key(&from.uid) {
            return true;
        }
        let cycle = Cycle {
            nominated: Some(from),
            ..*cycle
        };
        let plan = self.plan(incoming, node_topology);
        plan.is_ok_and(|plan| self.can_serve(&cycle, node_allocations, &plan))
    }
}

/// Returns the pod's resource spec with unset and default bind policies filled in; `None` if nothing changes.
fn complete_spec(pod: &PodInfo, bind: BindPolicy, required: bool) -> Option<ResourceSpec> {
    let key = annotations::RESOURCE_SPEC;
    let parsed = extension::parse(key, pod.annotation(key));
    let mut spec: ResourceSpec = parsed.ok()?.unwrap_or_default();
    let before = spec.clone();
    let policy = CpuBindPolicy::from(bind.as_str());
    let unset = |policy: &Option<CpuBindPolicy>| {
        policy
            .as_ref()
            .is_none_or(|policy| policy.as_str().is_empty())
    };
    let default = Some(CpuBindPolicy::Default);
    let open = unset(&spec.required_cpu_bind_policy) || spec.required_cpu_bind_policy == default;
    if required && open {
        spec.required_cpu_bind_policy = Some(policy.clone());
    }
    if spec.preferred_cpu_bind_policy == default {
        spec.preferred_cpu_bind_policy = Some(policy.clone());
    }
    if unset(&spec.required_cpu_bind_policy) && unset(&spec.preferred_cpu_bind_policy) {
        spec.preferred_cpu_bind_policy = Some(policy);
    }
    (spec != before).then_some(spec)
}

/// Returns `amount` of resource `id` in the format of the pod's own request.
fn quantity_of(id: ResourceId, amount: i64, name: &str, pod: Option<&PodInfo>) -> Quantity {
    let binary = [MEMORY, EPHEMERAL_STORAGE, BATCH_MEMORY, MID_MEMORY].contains(&id)
        || name.starts_with("hugepages-");
    let containers = pod.into_iter().flat_map(|pod| &*pod.object.containers);
    let mut main = containers.filter(|container| !container.init);
    let requested = main.find_map(|container| {
        let amount = container.requests.get(name)?;
        amount.parse::<Quantity>().ok()
    });
    let format = match requested {
        Some(requested) => requested.format(),
        None if binary => Format::BinarySi,
        None => Format::DecimalSi,
    };
    let quantity = if id == CPU {
        Quantity::from_milli(amount)
    } else {
        Quantity::from_value(amount)
    };
    quantity.with_format(format)
}
