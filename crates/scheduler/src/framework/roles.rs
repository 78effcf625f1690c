//! The roles that few plugins have. What plugins keep count of is in `books`.

use super::{
    BindPlan, ClusterEvent, Cycle, Diagnosis, Effects, Groups, Helps, Interest, Lacks, NotShown,
    PermitResult, PodPatch, PostFilterResult, Readings, Rejection, Remark, RulesVersion, State,
    Surroundings, Verdict, View, Words,
};
#[cfg(doc)]
use super::{Filter, Score};
use crate::state::{NodeIndex, NodeStore, PodInfo};
use koord_model::numa::{NumaPolicy, Offers};
use koord_model::resources::ResourceTable;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Finds the events that may make pods schedulable that this plugin refused. Upstream:
/// `EnqueueExtensions`.
pub trait QueueHints {
    /// The events that can make a pod that this plugin refused schedulable.
    fn interests(&self) -> Vec<Interest>;
    /// Whether `event` helps `pod`, which this plugin refused.
    fn hint(&self, _pod: &PodInfo, _event: &ClusterEvent<'_>, _view: View<'_>) -> Helps {
        Helps::Queue
    }
    /// The one thing that `event` is about, where it helps only pods that name it: no others are asked
    /// about. Thousands may wait for a claim each, and every one of these claims comes alone.
    fn about(&self, _event: &ClusterEvent<'_>) -> Option<String> {
        None
    }
    /// What `pod` names, so that it is found by [`QueueHints::about`]. It stays the same while the pod waits.
    fn names<'a>(&self, _pod: &'a PodInfo) -> Vec<&'a str> {
        Vec::new()
    }
    /// Whether `event` may also help pods that only other plugins refused, because of what this one
    /// does for them: then [`QueueHints::hint`] is asked about those, too.
    fn reaches_further(&self, _event: &ClusterEvent<'_>) -> bool {
        false
    }
}

/// Lets pods take the place of others, like owners that of their reservation. Asked wherever the
/// plugin filters; `state` is what its pre-filter prepared.
pub trait Release {
    /// The pods on `node` whose place this pod may take: imagined away while the node is judged and
    /// scored.
    fn released(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Vec<Arc<PodInfo>>,
    );
    /// The pods on `node` that move into what this pod, a reservation, is to hold there: imagined
    /// away as well, but what they were given becomes part of what it gets ([`Cycle::taken_in`]).
    /// `serves` says whether all who hand out what belongs to NUMA nodes would serve the pod with
    /// these in it. Without an answer, [`Release::released`] is asked.
    fn takes_in(
        &self,
        _cycle: &Cycle<'_>,
        _state: &State,
        _node: NodeIndex,
        _serves: &dyn Fn(&[Arc<PodInfo>]) -> bool,
    ) -> Option<Vec<Arc<PodInfo>>> {
        None
    }
    /// The only nodes on which this plugin does anything for the pod: on all others its filter
    /// accepts, its score is 0 and it releases nothing, so that the pod shares what is found there
    /// with pods that this plugin tells from it. None when it may be any.
    fn special_rows(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Vec<NodeIndex>> {
        None
    }
    /// Of the released pods of the chosen node, the one whose place this pod takes, if any.
    /// `agreed` are those that every plugin agrees to ([`Alignment::agrees`]).
    fn nominate(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        agreed: &[Arc<PodInfo>],
    ) -> Option<Arc<PodInfo>>;
}

/// Hands out what belongs to NUMA nodes. Asked wherever the plugin filters; `state` is what its
/// pre-filter prepared.
pub trait Alignment {
    /// How strictly this pod must be aligned on `node`; the first plugin with an answer decides.
    fn numa_policy(
        &self,
        _cycle: &Cycle<'_>,
        _state: &State,
        _node: NodeIndex,
    ) -> Option<NumaPolicy> {
        None
    }
    /// Tells `asks` the positions of those of `nodes` for which [`Alignment::numa_policy`] has an answer.
    fn aligns_each(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        nodes: &[NodeIndex],
        asks: &mut dyn FnMut(usize),
    ) {
        for (at, node) in nodes.iter().enumerate() {
            if self.numa_policy(cycle, state, *node).is_some() {
                asks(at);
            }
        }
    }
    /// Per resource this plugin hands out: which sets of NUMA nodes can give it. No entry: it has
    /// no say. An entry with no hints at all: nothing can.
    ///
    /// # Errors
    /// Why the pod cannot be served on `node` at all.
    fn numa_hints(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        policy: &NumaPolicy,
    ) -> Result<Offers, Rejection>;
    /// Whether this plugin can serve the pod from the NUMA nodes in `cycle.numa`; books nothing.
    ///
    /// # Errors
    /// Why not.
    fn numa_allocate(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict;
    /// Whether the pod would be served on `node`, from the NUMA nodes in `cycle.numa` if any were
    /// agreed on, if it took the place of `from`, one of the pods released there.
    fn agrees(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        from: &Arc<PodInfo>,
    ) -> bool;
}

/// Gives verdicts and scores that move with every placement, for many nodes at a time: it is asked
/// afresh for each pod, over the nodes that all other plugins accept, and nothing is remembered. What
/// it reads of the pod need not be signed.
pub trait Volatile {
    /// [`Filter::filter`] for many nodes at a time: clears the entries of `fits` whose node is
    /// refused; entries that are clear already need no answer.
    fn filter_rows(
        &self,
        _cycle: &Cycle<'_>,
        _state: &State,
        _rows: &[NodeIndex],
        _fits: &mut [bool],
    ) {
    }
    /// By which groups [`Volatile::filter_rows`] judges for this pod, if it says the same of all nodes of a
    /// group.
    fn filter_groups(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Groups> {
        None
    }
    /// [`Score::score`] of all nodes that fit, in order of index: a node may be weighed by what the
    /// others are.
    fn score_rows(&self, cycle: &Cycle<'_>, state: &State, rows: &[NodeIndex], scores: &mut [i64]);
    /// By which groups [`Volatile::score_rows`] scores for this pod, if it gives all nodes of a group the
    /// same, however many nodes fit.
    fn score_groups(&self, _cycle: &Cycle<'_>, _state: &State) -> Option<Groups> {
        None
    }
    /// What [`Volatile::score_rows`] gives the nodes in `rows`, in order of index, where these are some
    /// of those that fit: one of each of [`Volatile::score_groups`] and all that are apart.
    fn score_among(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        _around: &Surroundings,
        rows: &[NodeIndex],
        scores: &mut [i64],
    ) {
        self.score_rows(cycle, state, rows, scores);
    }
    /// Whether what the filter says of `pod` may change with `mate`, which is not placed yet, on another node
    /// than the one that is judged.
    fn minds_afar(&self, _pod: &PodInfo, _mate: &PodInfo) -> bool {
        false
    }
}

/// Keeps pods from being the victims of a preemption.
pub trait Protection {
    /// Whether `pod`, which is on `node`, has to stay there: its end would make no room for `by`, or
    /// nobody may end it. Asked for pods of lower priority than `by`, which looks for room.
    fn protects(
        &self,
        pod: &PodInfo,
        node: NodeIndex,
        by: &PodInfo,
        nodes: &NodeStore,
        resources: &ResourceTable,
    ) -> bool;
}

/// What a node can do for a group of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The node.
    pub node: NodeIndex,
    /// How many of the pods it takes, from the first on.
    pub slots: usize,
    /// Of places that are the same otherwise, the one with the higher sum is taken.
    pub score: i64,
}

/// Decides for a group of pods together where each goes, before the first of them is tried. Its pre-filter
/// then leaves each member its node.
pub trait Planning {
    /// The pods that are to be placed by one plan, by uid, when `pod` is the first of them to be tried.
    fn members(&self, pod: &PodInfo) -> Option<Vec<Arc<str>>>;
    /// Puts members in the order in which nodes are dealt to them.
    fn arrange(&self, members: &mut [Arc<PodInfo>]);
    /// The node of each of `members`. `offers` says what each node can do; `fit` why nodes take no more.
    ///
    /// # Errors
    /// Why there is no plan, for the pods' conditions.
    fn plan(
        &self,
        members: &[Arc<PodInfo>],
        offers: &[Offer],
        fit: &str,
        view: View<'_>,
    ) -> Result<Vec<Arc<str>>, String>;
}

/// Tells people what it knows of pods and nodes.
pub trait Insight {
    /// What to add, in an event of its own, to what is `said` of a pod that was refused. That is not put into
    /// words before somebody reads it: who has nothing to say of the pod does not.
    fn remark(&self, _pod: &PodInfo, _said: &Words) -> Option<Remark> {
        None
    }
    /// Adds what `node` lacks for this pod that it refused, with figures, for people: `cpu: needs 4,
    /// free 2.5`. Nothing: the reasons of the refusal say it all.
    fn lack(&self, _cycle: &Cycle<'_>, _state: &State, _node: NodeIndex, _out: &mut Lacks) {}
    /// The plugin's own view of a pod (gang, quota, reservation …), for explanations.
    fn explain(&self, _pod: &PodInfo, _view: View<'_>) -> Option<serde_json::Value> {
        None
    }
    /// The paths of [`Insight::inspect`], parameters as `:name`.
    fn inspections(&self) -> &'static [&'static str] {
        &[]
    }
    /// Answers `GET /apis/v1/plugins/<name>/<path>?<query>`.
    ///
    /// # Errors
    /// There is no such path, or nothing to show there.
    fn inspect(
        &self,
        _path: &[&str],
        _query: &BTreeMap<String, String>,
        _view: View<'_>,
    ) -> Result<serde_json::Value, NotShown> {
        Err(NotShown::NoSuchPath)
    }
}

/// Has metrics of its own.
pub trait Metered {
    /// Adds what the plugin measures of itself; asked every few seconds. Observations are handed over
    /// once.
    fn read(&mut self, view: View<'_>, out: &mut Readings);
}

/// Has something to say when no node fits a pod.
pub trait PostFilter {
    /// No node fits: make room, or say why that is impossible.
    fn post_filter<'a>(&'a self, cycle: &Cycle<'a>, diagnosis: &Diagnosis) -> PostFilterResult<'a>;
    /// The version of the rules in [`PostFilterResult::Preempt`]; `None` when their answers depend on more
    /// than a pod's shape and priority, or change all the time.
    fn preemption_state(&self, _view: View<'_>) -> Option<RulesVersion> {
        None
    }
    /// The pods, by uid, for which [`PostFilterResult::PreemptForGroup`] would look for room, if that is what would be
    /// answered for `pod`: books are prepared for them, too.
    fn company(&self, _pod: &PodInfo) -> Vec<Arc<str>> {
        Vec::new()
    }
    /// What this plugin has to say of pods that start together, where its own refusals come from what other
    /// pods have and end when these go; none when it refuses for other reasons.
    fn admission(&self) -> Option<&dyn Admission> {
        None
    }
}

/// Lets pods in by what others have, wherever these are.
pub trait Admission {
    /// Whether all of `pods`, which have no place, would be let in together if `victims` were gone.
    /// The first of them are, too, if all are.
    fn admits(&self, pods: &[Arc<PodInfo>], victims: &[Arc<PodInfo>], view: View<'_>) -> bool;
    /// Hands over, by uid, everybody whose end may have more of `pods` let in, and perhaps more.
    fn in_the_way(&self, pods: &[Arc<PodInfo>], view: View<'_>, name: &mut dyn FnMut(&str));
}

/// Has pods of a group placed in one piece, whatever the queue's order.
pub trait Grouping {
    /// The pod (by uid) to try next, whatever the queue says; so that a group goes in one piece.
    fn next_pod(&mut self, view: View<'_>, fx: &mut Effects) -> Option<Arc<str>>;
    /// Whether `pod` is of a group whose members this plugin has tried in one piece: while an extender is
    /// asked about one of them, no pod of another group is tried.
    fn is_grouped(&self, pod: &PodInfo) -> bool;
    /// What became of [`Planning::plan`]: the members with their nodes, by uid and name, or none.
    fn planned(&mut self, _plan: Option<Vec<(Arc<str>, Arc<str>)>>) {}
}

/// May make a pod that is booked on a node wait before it is bound.
pub trait Permit {
    /// Whether the pod may bind now.
    fn permit(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _fx: &mut Effects) -> PermitResult {
        PermitResult::Allow
    }
    /// Whether what must precede the binding has happened: asked once the pod has every permission,
    /// and again when this plugin allows a pod that it made wait.
    fn ready_to_bind(
        &mut self,
        _cycle: &Cycle<'_>,
        _node: NodeIndex,
        _fx: &mut Effects,
    ) -> PermitResult {
        PermitResult::Allow
    }
}

/// Adds to what is written to a pod before it is bound.
pub trait PreBind {
    /// Adds to the patch that precedes the binding.
    fn pre_bind(&self, cycle: &Cycle<'_>, node: NodeIndex, patch: &mut PodPatch) -> Verdict;
}

/// Binds pods.
pub trait Bind {
    /// How to bind.
    fn bind(&self, cycle: &Cycle<'_>, node: NodeIndex) -> BindPlan;
}
