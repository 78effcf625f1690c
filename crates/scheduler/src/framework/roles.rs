//! Roles for queueing, preemption, NUMA alignment, pod groups, permit, binding and explanations. [`Filter`]
//! and [`Score`] are in `rules`, roles that track state in `books`.

use super::{
    BindPlan, ClusterEvent, Cycle, Diagnosis, Effects, FitSummary, Groups, Interest, LazyMessage,
    MetricSamples, NotShown, PermitResult, PodPatch, PostFilterResult, QueueingHint, RefusalEvent,
    Rejection, RulesVersion, Shortfall, State, Verdict, View,
};
#[cfg(doc)]
use super::{Filter, Score};
use crate::state::{NodeIndex, NodeStore, PodInfo};
use koord_model::numa::{NumaPolicy, Offers};
use koord_model::resources::ResourceTable;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Declares which events can make pods schedulable that this plugin refused. Upstream: `EnqueueExtensions`.
pub trait QueueHints {
    /// Returns the events that can make a pod schedulable that this plugin refused.
    fn interests(&self) -> Vec<Interest>;
    /// Returns whether `event` can make `pod`, which this plugin refused, schedulable.
    fn hint(&self, _pod: &PodInfo, _event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        QueueingHint::Queue
    }
    /// Returns the name of the object that `event` concerns, if the event can help only pods that reference
    /// that object ([`QueueHints::referenced_objects`]): [`QueueHints::hint`] is then called only for these. This keeps
    /// the cost down when thousands of pods wait for one volume claim each.
    fn event_subject(&self, _event: &ClusterEvent<'_>) -> Option<String> {
        None
    }
    /// Returns the names of the objects that `pod` references, by which [`QueueHints::event_subject`] finds the pod.
    /// Must not change while the pod waits.
    fn referenced_objects<'a>(&self, _pod: &'a PodInfo) -> Vec<&'a str> {
        Vec::new()
    }
    /// Returns true if `event` can make pods schedulable that only other plugins refused, because of what
    /// this plugin does for them; [`QueueHints::hint`] is then called for those pods, too.
    fn affects_unrefused(&self, _event: &ClusterEvent<'_>) -> bool {
        false
    }
}

/// Lets pods take the place of others, as owners take that of their reservation. Called wherever the plugin
/// filters; `state` is what its pre-filter prepared.
pub trait Release {
    /// Adds to `out` the pods on `node` whose place this pod may take. They are treated as removed while the
    /// node is filtered and scored.
    fn released(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Vec<Arc<PodInfo>>,
    );
    /// Returns the pods on `node` that this pod, a reservation, absorbs. They are treated as removed, and
    /// what is allocated to them becomes part of what the reservation gets ([`Cycle::absorbed`]). `serves`
    /// returns true if all plugins that allocate resources of NUMA nodes could serve the reservation with the
    /// given pods absorbed. If `None` is returned, [`Release::released`] is called.
    fn absorbed_pods(
        &self,
        _cycle: &Cycle<'_>,
        _state: &State,
        _node: NodeIndex,
        _serves: &dyn Fn(&[Arc<PodInfo>]) -> bool,
    ) -> Option<Vec<Arc<PodInfo>>> {
        None
    }
    /// Returns the only nodes on which this plugin affects the pod: on all others its filter accepts, its
    /// score is 0 and it releases nothing. On those others, the pod shares results with pods that differ from
    /// it only in what this plugin reads. `None` if any node may be affected.
    fn special_rows(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Vec<NodeIndex>> {
        None
    }
    /// Returns the pod whose place this one takes on the chosen node, if any: one of the released pods.
    /// `agreed` lists those that every plugin accepts ([`Alignment::agrees`]).
    fn nominate(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        agreed: &[Arc<PodInfo>],
    ) -> Option<Arc<PodInfo>>;
}

/// Allocates resources that belong to NUMA nodes. Called wherever the plugin filters; `state` is what its
/// pre-filter prepared.
pub trait Alignment {
    /// Returns the NUMA policy for this pod on `node`; the first plugin that returns one decides.
    fn numa_policy(
        &self,
        _cycle: &Cycle<'_>,
        _state: &State,
        _node: NodeIndex,
    ) -> Option<NumaPolicy> {
        None
    }
    /// Calls `report` with the position of each of `nodes` for which [`Alignment::numa_policy`] returns a
    /// policy.
    fn aligns_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        report: &mut dyn FnMut(usize),
    ) {
        for (at, node) in nodes.iter().enumerate() {
            if self.numa_policy(cycle, state, *node).is_some() {
                report(at);
            }
        }
    }
    /// Returns, per resource this plugin allocates, the sets of NUMA nodes that can provide it. A resource
    /// without an entry is unrestricted; an entry without hints means that no set can provide it.
    ///
    /// # Errors
    /// Returns the rejection if the pod cannot be served on `node` at all.
    fn numa_hints(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        policy: &NumaPolicy,
    ) -> Result<Offers, Rejection>;
    /// Checks whether this plugin can serve the pod from the NUMA nodes in `cycle.numa`, without allocating
    /// anything.
    ///
    /// # Errors
    /// Returns the rejection if it cannot.
    fn numa_allocate(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict;
    /// Returns true if the pod could be served on `node` when it took the place of `from`, one of the pods
    /// released there; from the NUMA nodes in `cycle.numa` if any were selected.
    fn agrees(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        from: &Arc<PodInfo>,
    ) -> bool;
}

/// Filters and scores many nodes at a time, for results that change with every placement. It is called again
/// for each pod, over the nodes that all other plugins accept, and its results are not cached. What it reads
/// of the pod need not be signed.
pub trait Volatile {
    /// Filters many nodes at a time, as [`Filter::filter`] does one: clears the entries of `fits` whose node
    /// is refused. Entries that are false already can be skipped.
    fn filter_rows(
        &self,
        _cycle: &Cycle<'_>,
        _state: &State,
        _rows: &[NodeIndex],
        _fits: &mut [bool],
    ) {
    }
    /// Returns the groups by which [`Volatile::filter_rows`] decides for this pod, if its answer is equal for
    /// all nodes of a group.
    fn filter_groups(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Groups> {
        None
    }
    /// Writes the scores of all nodes that fit, in order of index. Unlike [`Score::score`], a node's score
    /// may depend on the other nodes.
    fn score_rows(&self, cycle: &Cycle<'_>, state: &State, rows: &[NodeIndex], scores: &mut [i64]);
    /// Returns the groups by which [`Volatile::score_rows`] scores for this pod, if all nodes of a group get
    /// the same score however many nodes fit.
    fn score_groups(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Groups> {
        None
    }
    /// Writes the scores that [`Volatile::score_rows`] would give the nodes in `rows`, in order of index,
    /// when `rows` holds only some of the nodes that fit: one of each group of [`Volatile::score_groups`] and
    /// all nodes that are apart.
    fn score_among(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        _around: &FitSummary,
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        self.score_rows(cycle, state, rows, scores);
    }
    /// Returns true if placing `mate`, which is not placed yet, on another node can change the filter result
    /// of `pod`.
    fn depends_on_other_nodes(&self, _pod: &PodInfo, _mate: &PodInfo) -> bool {
        false
    }
}

/// Protects pods from becoming preemption victims.
pub trait Protection {
    /// Returns true if `pod` on `node` must not be evicted to make room for `by`: evicting it would free
    /// nothing for `by`, or is not allowed. Called for pods of lower priority than `by`, the preemptor.
    fn protects(
        &self,
        pod: &PodInfo,
        node: NodeIndex,
        by: &PodInfo,
        nodes: &NodeStore,
        resources: &ResourceTable,
    ) -> bool;
}

/// The capacity of one node for a group of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The node.
    pub node: NodeIndex,
    /// Number of pods that fit, counted from the first.
    pub slots: usize,
    /// Breaks ties: of otherwise equal placements, the one with the highest sum is chosen.
    pub score: i64,
}

/// Plans the placement of a whole group of pods before the first of them is tried. The plugin's pre-filter
/// then restricts each member to its planned node.
pub trait Planning {
    /// Returns the uids of the pods to place by one plan when `pod` is the first of them to be tried; `None`
    /// if no plan is needed.
    fn members(&self, pod: &PodInfo) -> Option<Vec<Arc<str>>>;
    /// Sorts `members` into the order in which nodes are assigned to them.
    fn arrange(&self, members: &mut [Arc<PodInfo>]);
    /// Returns the node of each of `members`. `offers` holds the capacity of each node; `fit` explains why
    /// nodes take no more.
    ///
    /// # Errors
    /// Returns the reason why there is no plan, for the pods' conditions.
    fn plan(
        &self,
        members: &[Arc<PodInfo>],
        offers: &[Offer],
        fit: &str,
        view: View<'_>,
    ) -> Result<Vec<Arc<str>>, String>;
}

/// Explains pods and nodes to users.
pub trait Explain {
    /// Returns an additional event for a refused pod whose event text is `message`, if the plugin has one.
    /// `message` is formatted only when it is read, so do not read it for pods without such an event.
    fn refusal_event(&self, _pod: &PodInfo, _message: &LazyMessage) -> Option<RefusalEvent> {
        None
    }
    /// Adds to `out` what `node`, which this plugin refused, lacks for the pod, with figures and units: `cpu:
    /// needs 4, free 2.5`. Adds nothing if the reasons of the refusal are sufficient.
    fn explain_shortfall(
        &self,
        _cycle: &Cycle<'_>,
        _state: &State,
        _node: NodeIndex,
        _out: &mut Shortfall,
    ) {
    }
    /// Returns the plugin's state of a pod (gang, quota, reservation …) for explanations.
    fn explain(&self, _pod: &PodInfo, _view: View<'_>) -> Option<serde_json::Value> {
        None
    }
    /// Returns the paths that [`Explain::inspect`] serves, with parameters written as `:name`.
    fn inspections(&self) -> &'static [&'static str] {
        &[]
    }
    /// Serves `GET /apis/v1/plugins/<name>/<path>?<query>`.
    ///
    /// # Errors
    /// Returns an error if there is no such path, or nothing to show there.
    fn inspect(
        &self,
        _path: &[&str],
        _query: &BTreeMap<String, String>,
        _view: View<'_>,
    ) -> Result<serde_json::Value, NotShown> {
        Err(NotShown::NoSuchPath)
    }
}

/// Exports metrics of the plugin's own.
pub trait MetricSource {
    /// Adds the plugin's current metrics to `out`; called every few seconds. Each observation is reported
    /// once.
    fn read(&mut self, view: View<'_>, out: &mut MetricSamples);
}

/// Reacts when no node fits a pod.
pub trait PostFilter {
    /// Makes room for a pod that no node fits, or explains why that is impossible.
    fn post_filter<'a>(&'a self, cycle: &Cycle<'a>, diagnosis: &Diagnosis) -> PostFilterResult<'a>;
    /// Returns the version of the rules in [`PostFilterResult::Preempt`]. `None` if the rules depend on more
    /// than a pod's shape and priority, or change constantly.
    fn preemption_state(&self, _view: View<'_>) -> Option<RulesVersion> {
        None
    }
    /// Returns the uids of the pods in the group of `pod` if its preemption is one for a group
    /// ([`PostFilterResult::PreemptForGroup`]), else nothing. Plugins prepare their state for these pods, too.
    fn group_members(&self, _pod: &PodInfo) -> Vec<Arc<str>> {
        Vec::new()
    }
    /// Returns the admission rules for groups of pods, if this plugin's refusals depend on what other pods
    /// use and end when these are evicted. `None` if it refuses for other reasons.
    fn admission(&self) -> Option<&dyn Admission> {
        None
    }
}

/// Admits pods according to what other pods use anywhere in the cluster, as a quota does.
pub trait Admission {
    /// Returns true if all of `pods`, which are not placed, would be admitted together once `victims` are
    /// gone. Then every prefix of `pods` is admitted, too.
    fn admits(&self, pods: &[Arc<PodInfo>], victims: &[Arc<PodInfo>], view: View<'_>) -> bool;
    /// Calls `name` with the uid of every pod whose eviction can make more of `pods` admissible, and possibly
    /// of others.
    fn blocking_pods(&self, pods: &[Arc<PodInfo>], view: View<'_>, name: &mut dyn FnMut(&str));
}

/// Makes the pods of a group be tried one after the other, whatever the queue's order.
pub trait Grouping {
    /// Returns the uid of the pod to try next, if it must come before those of the queue, so that a group is
    /// tried as a whole.
    fn next_pod(&mut self, view: View<'_>, fx: &mut Effects) -> Option<Arc<str>>;
    /// Returns true if `pod` belongs to a group whose members this plugin has tried as a whole. While an
    /// extender call for one of them is pending, no pod of another group is tried.
    fn is_grouped(&self, pod: &PodInfo) -> bool;
    /// Receives the result of [`Planning::plan`]: the uid and node name of each member, or `None` without a
    /// plan.
    fn planned(&mut self, _plan: Option<Vec<(Arc<str>, Arc<str>)>>) {}
}

/// The permit role: can delay the binding of a pod that is reserved on a node.
pub trait Permit {
    /// Decides whether the pod may bind now.
    fn permit(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _fx: &mut Effects) -> PermitResult {
        PermitResult::Allow
    }
    /// Decides whether everything that must precede the binding has happened. Called once every plugin
    /// permits the pod, and again when this plugin allows a pod that it made wait.
    fn ready_to_bind(
        &mut self,
        _cycle: &Cycle<'_>,
        _node: NodeIndex,
        _fx: &mut Effects,
    ) -> PermitResult {
        PermitResult::Allow
    }
}

/// Adds to the patch that is written to a pod before it is bound.
pub trait PreBind {
    /// Adds to the patch that precedes the binding.
    fn pre_bind(&self, cycle: &Cycle<'_>, node: NodeIndex, patch: &mut PodPatch) -> Verdict;
}

/// Chooses how pods are bound.
pub trait Bind {
    /// Returns how to bind the pod to `node`.
    fn bind(&self, cycle: &Cycle<'_>, node: NodeIndex) -> BindPlan;
}
