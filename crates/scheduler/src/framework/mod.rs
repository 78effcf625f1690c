//! The extension points, and what plugins see.
//!
//! Two rules make the engine fast. A plugin judges a node by its dense index against columns, with
//! the pod's side prepared once per cycle ([`PreFilter`], [`PreScore`]). And it
//! says what of a pod it reads ([`Sign`]): pods that sign the same share verdicts and
//! scores, until the plugin or the engine touches a node.

mod answer;
mod books;
mod diagnosis;
mod effects;
mod event;
mod extender;
mod groups;
mod index;
mod plugin;
mod profile;
mod reading;
mod registry;
mod roles;
mod rules;
mod shared;
mod status;
mod watch;

pub use answer::{
    BindError, BindPlan, GroupPreemption, Judge, Lacks, Normalize, NotShown, PermitResult,
    PodPatch, Pool, PostFilterResult, PreFilterResult, PreScoreResult, Preemption, RulesVersion,
};
pub use books::{
    ObjectEvents, PodEvents, PostBind, PostFilterTransformer, Preparation, Reserve, Tick,
};
pub use diagnosis::{Diagnosis, NodeRefusal, Words};
pub(crate) use diagnosis::{RowVerdict, Tally};
pub use effects::{Effects, Problem, Remark, ReportedProblems, Timed, Verb, Write};
pub use event::{Action, ClusterEvent, EventNames, Helps, Interest, ObjectChange, Subject};
pub use extender::{Advice, Advised, Agreed};
pub use groups::{Groups, Label, Surroundings};
pub use index::{Index, IndexKind, Indexes};
pub use plugin::{AnyPlugin, BoxedPlugin, Plugin, Roles};
pub use profile::{Instance, Profile, ProfileError, Profiles};
pub use reading::{Family, Kind, Reading, Readings};
pub use registry::{Build, BuildContext, BuildError, Factory, Order, Registry};
pub use roles::{
    Admission, Alignment, Bind, Grouping, Insight, Metered, Offer, Permit, Planning, PostFilter,
    PreBind, Protection, QueueHints, Release, Volatile,
};
pub(crate) use rules::NoRule;
pub use rules::{Filter, Inputs, PreEnqueue, PreFilter, PreScore, Score, Sign};
pub use shared::PerProfile;
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

/// The extension points as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Points(pub u16);

impl Points {
    /// May keep a pod out of the active queue.
    pub const PRE_ENQUEUE: Self = Self(1);
    /// Orders the queue.
    pub const QUEUE_SORT: Self = Self(1 << 1);
    /// Looks at the pod before any node.
    pub const PRE_FILTER: Self = Self(1 << 2);
    /// Judges nodes.
    pub const FILTER: Self = Self(1 << 3);
    /// Tries to make room when no node fits.
    pub const POST_FILTER: Self = Self(1 << 4);
    /// Prepares scoring.
    pub const PRE_SCORE: Self = Self(1 << 5);
    /// Scores nodes.
    pub const SCORE: Self = Self(1 << 6);
    /// Books what the pod takes.
    pub const RESERVE: Self = Self(1 << 7);
    /// May make the pod wait before binding.
    pub const PERMIT: Self = Self(1 << 8);
    /// Adds to the patch that precedes the binding.
    pub const PRE_BIND: Self = Self(1 << 9);
    /// Says how to bind.
    pub const BIND: Self = Self(1 << 10);
    /// Is told of a binding.
    pub const POST_BIND: Self = Self(1 << 11);

    /// Both sets together.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `other` is wholly in this set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The engine's state as plugins read it.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// All nodes with what is booked on them, assumed pods included.
    pub nodes: &'a NodeStore,
    /// Resource names and numbers.
    pub resources: &'a ResourceTable,
    /// What is known of objects that more than one plugin reads.
    pub indexes: &'a Indexes,
    /// The time of this cycle or event: the same for all plugins and nodes of a cycle.
    pub now: Timestamp,
}

impl<'a> View<'a> {
    /// The index `T`; `None` when no plugin named it ([`Inputs::indexes`]).
    #[must_use]
    pub fn index<T: Index>(&self) -> Option<&'a T> {
        self.indexes.get()
    }
}

/// How the node that is judged differs from the books: pods to imagine away (victims of a
/// preemption, reservations that the pod may use) and pods to imagine there (nominated ones).
#[derive(Debug, Clone, Copy, Default)]
pub struct Overlay<'a> {
    /// Booked on the node, and to be treated as if they were not.
    pub removed: &'a [Arc<PodInfo>],
    /// Not on the node, and to be treated as if they were.
    pub added: &'a [Arc<PodInfo>],
}

impl Overlay<'_> {
    /// Whether the node is as the books say.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Whether the pod with this uid is imagined away.
    #[must_use]
    pub fn removes(&self, uid: &str) -> bool {
        self.removed.iter().any(|pod| *pod.uid == *uid)
    }
}

/// One pod's scheduling cycle.
#[derive(Debug, Clone, Copy)]
pub struct Cycle<'a> {
    /// The pod that is placed.
    pub pod: &'a Arc<PodInfo>,
    /// The state it is placed into.
    pub view: View<'a>,
    /// What to imagine of the node handed to the same call. Whoever reads what is booked on a node
    /// reads it through the methods below, or honours this itself.
    pub overlay: Overlay<'a>,
    /// The NUMA nodes that were agreed on for the node handed to the same call, if any were.
    pub numa: Option<NumaMask>,
    /// At reserve and later: the pod whose place this one takes ([`Release::nominate`]).
    pub nominated: Option<&'a Arc<PodInfo>>,
    /// The pods on the node handed to the same call that move into what this one, a reservation,
    /// holds there ([`Release::takes_in`]). What they were given is part of what it gets. Before
    /// reserve they are imagined away, too. None: whether any may is not known, or none may, and then
    /// [`Release::released`] says who is imagined away.
    pub taken_in: Option<&'a [Arc<PodInfo>]>,
}

impl<'a> Cycle<'a> {
    /// A cycle with nothing imagined.
    #[must_use]
    pub fn new(pod: &'a Arc<PodInfo>, view: View<'a>) -> Self {
        Self {
            pod,
            view,
            overlay: Overlay::default(),
            numa: None,
            nominated: None,
            taken_in: None,
        }
    }

    /// The pods that this one takes in, if any.
    #[must_use]
    pub fn taken_in(&self) -> &'a [Arc<PodInfo>] {
        self.taken_in.unwrap_or_default()
    }

    /// What the pods on `node` request of `resource`.
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

    /// CPU (milli) and memory requested on `node`, with defaults for containers without requests.
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

    /// The pods on `node`, without holders.
    pub fn pods(&self, node: NodeIndex) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        self.booked(node).filter(|pod| !pod.is_holder())
    }

    /// The pods and holders on `node`.
    pub fn booked(&self, node: NodeIndex) -> impl Iterator<Item = &'a Arc<PodInfo>> + use<'a> {
        let Self { view, overlay, .. } = *self;
        let booked = view.nodes.booked(node);
        booked
            .filter(move |pod| overlay.removed.is_empty() || !overlay.removes(&pod.uid))
            .chain(overlay.added)
    }
}

/// What a plugin prepared for this cycle; empty when it prepared nothing.
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
    /// Holds `value`.
    #[must_use]
    pub fn of<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Box::new(value)))
    }

    /// The value, when it is a `T`.
    #[inline]
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref().and_then(|value| value.downcast_ref())
    }
}

/// What a plugin makes of holders: what has the form of a pod and only keeps room on a node for pods
/// to come, like a reservation ([`Booked::Holder`](crate::state::Booked)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Holders {
    /// Nothing: none of its hooks is called for them.
    #[default]
    Ignored,
    /// It says where they go, as of pods; they are no part of its books.
    Judged,
    /// They are pods to it: all hooks are called for them.
    Booked,
}
