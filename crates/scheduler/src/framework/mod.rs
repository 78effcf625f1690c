//! The extension points, and what plugins see.
//!
//! Two rules make the engine fast. A plugin judges a node by its dense index against columns, with
//! the pod's side prepared once per cycle ([`Plugin::pre_filter`], [`Plugin::pre_score`]). And it
//! says what of a pod it reads ([`Plugin::sign`]): pods that sign the same share verdicts and
//! scores, until the plugin or the engine touches a node.

mod event;
mod profile;
mod registry;
mod status;

pub use event::{Action, ClusterEvent, Hint, Interest, ObjectChange, Subject};
pub use profile::{Instance, Profile, ProfileError, Profiles};
pub use registry::{Build, BuildContext, BuildError, Factory, Registry};
pub use status::{Code, Reason, Reasons, Rejection, Verdict};

use crate::Watch;
use crate::engine::Diagnosis;
use crate::state::{NodeIndex, NodeStore, PodInfo};
use jiff::Timestamp;
use koord_model::resources::ResourceTable;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

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
    /// The time of this cycle or event: the same for all plugins and nodes of a cycle.
    pub now: Timestamp,
}

/// One pod's scheduling cycle.
#[derive(Debug, Clone, Copy)]
pub struct Cycle<'a> {
    /// The pod that is placed.
    pub pod: &'a Arc<PodInfo>,
    /// The state it is placed into.
    pub view: View<'a>,
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
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref().and_then(|value| value.downcast_ref())
    }
}

/// Answer of [`Plugin::pre_filter`].
#[derive(Debug)]
pub enum PreFilter {
    /// Filter with this state, on the listed nodes only if any are listed.
    Ready {
        /// Handed to [`Plugin::filter`].
        state: State,
        /// Only these nodes can fit.
        nodes: Option<Vec<NodeIndex>>,
    },
    /// Nothing to check: the plugin's filter is not called for this pod.
    Skip,
    /// No node can fit.
    Reject(Rejection),
}

impl PreFilter {
    /// Ready with `value` as state and no restriction.
    #[must_use]
    pub fn ready<T: Any + Send + Sync>(value: T) -> Self {
        Self::Ready {
            state: State::of(value),
            nodes: None,
        }
    }
}

/// Answer of [`Plugin::pre_score`].
#[derive(Debug)]
pub enum PreScore {
    /// Score with this state.
    Ready(State),
    /// The plugin scores nothing for this pod.
    Skip,
}

/// How raw scores become 0..=100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// They already are.
    None,
    /// Divided by the largest among the feasible nodes.
    Max,
    /// As `Max`, then subtracted from 100; all 100 when the largest is 0.
    MaxReversed,
    /// By [`Plugin::normalize`], over all feasible nodes each time: costs O(nodes) per pod.
    Custom,
}

/// Answer of [`Plugin::post_filter`].
#[derive(Debug)]
pub enum PostFilter {
    /// Room will be made on this node; the pod is nominated to it.
    Nominated(Arc<str>),
    /// No help, with the text for the pod's condition; may be empty.
    Unhelpful(String),
}

/// Answer of [`Plugin::permit`].
#[derive(Debug)]
pub enum Permit {
    /// Bind now.
    Allow,
    /// Keep what is booked and wait, at most this long.
    Wait(Duration),
    /// Give back what is booked.
    Reject(Rejection),
}

/// How a pod is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindPlan {
    /// Not by this plugin.
    Skip,
    /// By a POST to the pod's binding subresource.
    Binding,
}

/// What the pre-bind plugins add to a pod; sent as one merge patch before the binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPatch {
    /// Annotations to set.
    pub annotations: std::collections::BTreeMap<String, String>,
    /// Labels to set.
    pub labels: std::collections::BTreeMap<String, String>,
}

impl PodPatch {
    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty()
    }
}

/// Whether pods that signed the same may share verdicts and scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signable {
    /// Everything of the pod that the plugin reads was written to the signature.
    Yes,
    /// The plugin's answers cannot be shared; the pod is placed exhaustively.
    No,
}

/// Everything of a pod that the plugins of its profile read: the identity of its shape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Signature(Vec<u8>);

impl Signature {
    /// Appends a text, delimited.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as i64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Appends a number.
    pub fn number(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends resource amounts.
    pub fn amounts(&mut self, amounts: &koord_model::resources::Amounts) {
        for (id, amount) in amounts.iter() {
            self.number(i64::from(id.0));
            self.number(amount);
        }
        self.number(-1);
    }

    /// Appends a value in a canonical text form.
    pub fn debug(&mut self, value: &impl std::fmt::Debug) {
        self.text(&format!("{value:?}"));
    }
}

/// An object that could not be understood, to be reported on the object itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `Pod`, `Node`, ...
    pub kind: &'static str,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
    /// Names the key and the value.
    pub message: String,
}

/// What a plugin asks of the engine while it digests an event.
#[derive(Debug, Default)]
pub struct Effects {
    /// Nodes whose verdicts or scores may have changed.
    pub touched: Vec<NodeIndex>,
    /// All of them.
    pub touch_all: bool,
    /// Waiting pods (by uid) that may bind as far as this plugin is concerned.
    pub allow: Vec<(Arc<str>, &'static str)>,
    /// Waiting pods that must give back what they hold, and why.
    pub reject: Vec<(Arc<str>, &'static str, Reason)>,
    /// Refused pods (by uid) to try again at once.
    pub activate: Vec<Arc<str>>,
    /// Objects that could not be understood.
    pub problems: Vec<Problem>,
}

/// A scheduling rule. One instance may serve several profiles.
///
/// All methods are called from the one task that owns the engine. Methods with `&self` may be
/// called for several nodes at a time.
pub trait Plugin: Send + Sync {
    /// The name in configuration files and metrics.
    fn name(&self) -> &'static str;
    /// The extension points it implements.
    fn points(&self) -> Points;

    /// The events that can make a pod that this plugin refused schedulable.
    fn interests(&self) -> Vec<Interest> {
        Vec::new()
    }
    /// Whether `event` helps `pod`, which this plugin refused.
    fn hint(&self, _pod: &PodInfo, _event: &ClusterEvent<'_>, _view: View<'_>) -> Hint {
        Hint::Queue
    }
    /// Writes everything of `pod` that this plugin's pre-filter, filter and scores read.
    fn sign(&self, _pod: &PodInfo, _signature: &mut Signature) -> Signable {
        Signable::No
    }

    /// Kinds, beside pods and nodes, that the plugin needs to see.
    fn watches(&self) -> Vec<Watch> {
        Vec::new()
    }
    /// An object of a watched kind changed.
    fn on_object(&mut self, _change: &ObjectChange, _view: View<'_>, _fx: &mut Effects) {}
    /// A node appeared, changed or went. The engine has touched it already.
    fn on_node(&mut self, _node: NodeIndex, _view: View<'_>, _fx: &mut Effects) {}
    /// A pod was assumed on or found bound to a node. The engine has touched the node already.
    fn on_assigned(
        &mut self,
        _pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
    /// A pod on a node changed.
    fn on_updated(
        &mut self,
        _old: &Arc<PodInfo>,
        _new: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
    /// A pod left a node: deleted, finished, or its binding failed.
    fn on_unassigned(
        &mut self,
        _pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
    /// Before each cycle: touch the nodes whose verdicts change by the passing of time alone.
    fn tick(&mut self, _view: View<'_>, _fx: &mut Effects) {}

    /// Whether the pod may enter the active queue.
    fn pre_enqueue(&self, _pod: &PodInfo) -> Verdict {
        Ok(())
    }
    /// Looks at the pod once, before any node.
    fn pre_filter(&self, _cycle: &Cycle<'_>) -> PreFilter {
        PreFilter::Ready {
            state: State::default(),
            nodes: None,
        }
    }
    /// Whether the pod may run on `node`.
    fn filter(&self, _cycle: &Cycle<'_>, _state: &State, _node: NodeIndex) -> Verdict {
        Ok(())
    }
    /// No node fits: make room, or say why that is impossible.
    fn post_filter(&mut self, _cycle: &Cycle<'_>, _diagnosis: &Diagnosis) -> PostFilter {
        PostFilter::Unhelpful(String::new())
    }
    /// Prepares scoring.
    fn pre_score(&self, _cycle: &Cycle<'_>) -> PreScore {
        PreScore::Ready(State::default())
    }
    /// The raw score of `node`.
    fn score(&self, _cycle: &Cycle<'_>, _state: &State, _node: NodeIndex) -> i64 {
        0
    }
    /// How raw scores are brought to 0..=100.
    fn normalization(&self) -> Normalize {
        Normalize::None
    }
    /// Brings raw scores, in order of node index, to 0..=100. For [`Normalize::Custom`].
    fn normalize(&self, _cycle: &Cycle<'_>, _scores: &mut [i64]) {}

    /// Books what the pod takes beyond plain resources. Undone by [`Plugin::unreserve`].
    fn reserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex) -> Verdict {
        Ok(())
    }
    /// Gives back what [`Plugin::reserve`] booked; must tolerate that it booked nothing.
    fn unreserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex) {}
    /// Whether the pod may bind now.
    fn permit(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex) -> Permit {
        Permit::Allow
    }
    /// Adds to the patch that precedes the binding.
    fn pre_bind(&self, _cycle: &Cycle<'_>, _node: NodeIndex, _patch: &mut PodPatch) -> Verdict {
        Ok(())
    }
    /// How to bind.
    fn bind(&self, _cycle: &Cycle<'_>, _node: NodeIndex) -> BindPlan {
        BindPlan::Skip
    }
    /// The pod is bound.
    fn post_bind(&mut self, _pod: &Arc<PodInfo>, _node: &str, _view: View<'_>) {}
}
