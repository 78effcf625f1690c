//! The plugin API: extension points, plugin roles and the state that plugins read.
//!
//! Two rules make the engine fast. A plugin filters and scores nodes by their dense index against columns,
//! with the pod's side prepared once per cycle ([`PreFilter`], [`PreScore`]). And a plugin declares which
//! parts of a pod it reads ([`Sign`]): pods with equal signatures share verdicts and scores until a plugin or
//! the engine touches a node.

mod diagnosis;
mod effects;
mod event;
mod extender;
mod groups;
mod index;
mod metric_sample;
mod per_profile;
mod plugin;
mod profile;
mod registry;
mod results;
mod roles;
mod rules;
mod stateful;
mod status;
mod watch;

pub use diagnosis::{Diagnosis, LazyMessage, NodeRefusal};
pub(crate) use diagnosis::{RejectionCounts, RowVerdict};
pub use effects::{Effects, Problem, RefusalEvent, ReportedProblems, Timed, Verb, Write};
pub use event::{Action, ClusterEvent, EventNames, Interest, ObjectChange, QueueingHint, Subject};
pub use extender::{ExtenderNodeResult, ExtenderPreemptResult, ExtenderResult};
pub use groups::{FitSummary, Groups, Label};
pub use index::{Index, IndexKind, Indexes};
pub use metric_sample::{Family, MetricKind, MetricSample, MetricSamples};
pub use per_profile::PerProfile;
pub use plugin::{AnyPlugin, BoxedPlugin, Plugin, Roles};
pub use profile::{Instance, Profile, ProfileError, Profiles};
pub use registry::{Build, BuildContext, BuildError, Factory, Order, Registry};
pub use results::{
    BindError, BindPlan, GroupPreemption, Judge, Normalize, NotShown, PermitResult, PodPatch, Pool,
    PostFilterResult, PreFilterResult, PreScoreResult, Preemption, RulesVersion, Shortfall,
};
pub use roles::{
    Admission, Alignment, Bind, Explain, Grouping, MetricSource, Offer, Permit, Planning,
    PostFilter, PreBind, Protection, QueueHints, Release, Volatile,
};
pub(crate) use rules::NoRule;
pub use rules::{Filter, Inputs, PreEnqueue, PreFilter, PreScore, Score, Sign};
pub use stateful::{
    ObjectEvents, PodEvents, PostBind, PostFilterTransformer, Preparation, Reserve, Tick,
};
pub use status::{Code, Reason, Reasons, Rejection, Verdict};
pub(crate) use watch::{Message, Source};
pub use watch::{Trim, Watch};

pub use crate::state::{ShapeId, Signable, Signature};

use crate::state::{NodeIndex, NodeStore, PodInfo};
use jiff::Timestamp;
use koord_model::numa::NumaMask;
use koord_model::resources::{PODS, ResourceId, ResourceTable};
use std::any::Any;
use std::sync::Arc;

/// A set of extension points, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Points(pub u16);

impl Points {
    /// PreEnqueue: may keep a pod out of the active queue.
    pub const PRE_ENQUEUE: Self = Self(1);
    /// QueueSort: orders the queue.
    pub const QUEUE_SORT: Self = Self(1 << 1);
    /// PreFilter: checks the pod before any node.
    pub const PRE_FILTER: Self = Self(1 << 2);
    /// Filter: accepts or refuses nodes.
    pub const FILTER: Self = Self(1 << 3);
    /// PostFilter: tries to make room when no node fits, by preemption for example.
    pub const POST_FILTER: Self = Self(1 << 4);
    /// PreScore: prepares scoring.
    pub const PRE_SCORE: Self = Self(1 << 5);
    /// Score: scores nodes.
    pub const SCORE: Self = Self(1 << 6);
    /// Reserve: reserves what the pod takes on its node.
    pub const RESERVE: Self = Self(1 << 7);
    /// Permit: may make the pod wait before binding.
    pub const PERMIT: Self = Self(1 << 8);
    /// PreBind: adds to the patch that precedes the binding.
    pub const PRE_BIND: Self = Self(1 << 9);
    /// Bind: chooses how the pod is bound.
    pub const BIND: Self = Self(1 << 10);
    /// PostBind: is called after a pod was bound.
    pub const POST_BIND: Self = Self(1 << 11);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if `other` is a subset of this set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The engine's state, as plugins read it.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// All nodes with the pods on them, assumed pods included.
    pub nodes: &'a NodeStore,
    /// The mapping of resource names to numbers.
    pub resources: &'a ResourceTable,
    /// The indexes of objects that more than one plugin reads.
    pub indexes: &'a Indexes,
    /// The time of this cycle or event; equal for all plugins and nodes of a cycle.
    pub now: Timestamp,
}

impl<'a> View<'a> {
    /// Returns the index `T`, or `None` when no plugin declared it ([`Inputs::indexes`]).
    #[must_use]
    pub fn index<T: Index>(&self) -> Option<&'a T> {
        self.indexes.get()
    }
}

/// Differences between a node's recorded state and the state to filter and score it in: pods to treat as
/// removed (victims of a preemption, reservations that the pod may use) and pods to treat as added (nominated
/// ones).
#[derive(Debug, Clone, Copy, Default)]
pub struct Overlay<'a> {
    /// Pods on the node that are treated as if they were not.
    pub removed: &'a [Arc<PodInfo>],
    /// Pods not on the node that are treated as if they were.
    pub added: &'a [Arc<PodInfo>],
}

impl Overlay<'_> {
    /// Returns true if the node is evaluated as recorded.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Returns true if the pod with this uid is treated as removed.
    #[must_use]
    pub fn removes(&self, uid: &str) -> bool {
        self.removed.iter().any(|pod| *pod.uid == *uid)
    }
}

/// One pod's scheduling cycle.
#[derive(Debug, Clone, Copy)]
pub struct Cycle<'a> {
    /// The pod to schedule.
    pub pod: &'a Arc<PodInfo>,
    /// The state that the pod is scheduled against.
    pub view: View<'a>,
    /// Changes to assume on the node passed to the same call. Code that reads the pods of a node must use the
    /// methods below, or apply the overlay itself.
    pub overlay: Overlay<'a>,
    /// The NUMA nodes selected on the node passed to the same call, if alignment selected any.
    pub numa: Option<NumaMask>,
    /// The pod whose place this one takes ([`Release::nominate`]); set from reserve on.
    pub nominated: Option<&'a Arc<PodInfo>>,
    /// Pods on the node passed to the same call that this pod, a reservation, absorbs
    /// ([`Release::absorbed_pods`]): what is allocated to them becomes part of what the reservation gets. Before
    /// reserve they are treated as removed, too. `None` when none can be absorbed or that is not known yet;
    /// then [`Release::released`] lists the pods to treat as removed.
    pub absorbed: Option<&'a [Arc<PodInfo>]>,
}

impl<'a> Cycle<'a> {
    /// Creates a cycle with an empty overlay.
    #[must_use]
    pub fn new(pod: &'a Arc<PodInfo>, view: View<'a>) -> Self {
        Self {
            pod,
            view,
            overlay: Overlay::default(),
            numa: None,
            nominated: None,
            absorbed: None,
        }
    }

    /// Returns the pods that this one absorbs; empty if there are none.
    #[must_use]
    pub fn absorbed(&self) -> &'a [Arc<PodInfo>] {
        self.absorbed.unwrap_or_default()
    }

    /// Returns the amount of `resource` that the pods on `node` request, with the overlay applied.
    #[inline]
    #[must_use]
    pub fn requested(&self, node: NodeIndex, resource: ResourceId) -> i64 {
        let booked = self.view.nodes.requested(node, resource);
        if self.overlay.is_empty() {
            return booked;
        }
        let sum = |pods: &[Arc<PodInfo>]| -> i64 {
            if resource == PODS {
                i64::try_from(pods.len()).unwrap_or(i64::MAX)
            } else {
                pods.iter().map(|pod| pod.requests.get(resource)).sum()
            }
        };
        booked - sum(self.overlay.removed) + sum(self.overlay.added)
    }

    /// Returns CPU (millicores) and memory (bytes) requested on `node`, with defaults for containers without
    /// requests.
    #[inline]
    #[must_use]
    pub fn requested_for_scoring(&self, node: NodeIndex) -> [i64; 2] {
        let [mut cpu, mut memory] = self.view.nodes.requested_for_scoring(node);
        for pod in self.overlay.removed {
            cpu -= pod.scoring[0];
            memory -= pod.scoring[1];
        }
        for pod in self.overlay.added {
            cpu += pod.scoring[0];
            memory += pod.scoring[1];
        }
        [cpu, memory]
    }

    /// Iterates over the pods on `node`, without holders ([`Holders`]).
    pub fn pods(&self, node: NodeIndex) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        self.booked(node).filter(|pod| !pod.is_holder())
    }

    /// Iterates over the pods and holders on `node`.
    pub fn booked(&self, node: NodeIndex) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        let Self { view, overlay, .. } = *self;
        let booked = view.nodes.booked(node);
        booked
            .filter(move |pod| overlay.removed.is_empty() || !overlay.removes(&pod.uid))
            .chain(overlay.added)
    }
}

/// The state that a plugin prepared for this cycle; empty when it prepared none.
#[derive(Default)]
pub struct State(Option<Box<dyn Any + Send + Sync>>);

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "State({})",
            if self.0.is_some() { "set" } else { "empty" }
        )
    }
}

impl State {
    /// Creates a state that holds `value`.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Box::new(value)))
    }

    /// Returns the value if it is a `T`.
    #[inline]
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref().and_then(|value| value.downcast_ref())
    }
}

/// A plugin's treatment of holders: objects in the form of a pod that only reserve capacity on a node for
/// later pods, such as reservations ([`Booked::Holder`](crate::state::Booked)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Holders {
    /// None of the plugin's methods is called for holders: objects that only reserve capacity.
    #[default]
    Ignored,
    /// The plugin filters and scores nodes for holders as for pods, but does not count them as allocated.
    Judged,
    /// Holders are treated as pods: all methods are called for them.
    Booked,
}
