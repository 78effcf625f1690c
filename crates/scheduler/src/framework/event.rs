//! What can make a refused pod worth another try.

use crate::state::{NodeInfo, PodInfo};
use std::any::Any;
use std::sync::Arc;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A node.
    Node,
    /// A pod that is bound to a node.
    AssignedPod,
    /// A pod that is not bound: the waiting pod itself.
    UnscheduledPod,
    /// Another kind, in the form `plural.version.group`.
    Object(&'static str),
}

/// What happened, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action(pub u16);

impl Action {
    /// It appeared.
    pub const ADD: Self = Self(1);
    /// It is gone.
    pub const DELETE: Self = Self(1 << 1);
    /// A node's allocatable changed.
    pub const NODE_ALLOCATABLE: Self = Self(1 << 2);
    /// A node's labels changed.
    pub const NODE_LABEL: Self = Self(1 << 3);
    /// A node's taints or its unschedulable flag changed.
    pub const NODE_TAINT: Self = Self(1 << 4);
    /// A node's annotations changed.
    pub const NODE_ANNOTATION: Self = Self(1 << 5);
    /// A pod's labels or annotations changed.
    pub const POD_LABEL: Self = Self(1 << 6);
    /// A pod asks for less than before.
    pub const POD_SCALE_DOWN: Self = Self(1 << 7);
    /// The pod's own scheduling gates, tolerations or other fields of its spec changed.
    pub const POD_SPEC: Self = Self(1 << 8);
    /// Another kind of object changed.
    pub const UPDATE: Self = Self(1 << 9);

    /// Both sets together.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets have an element in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// An event with the objects it is about.
#[derive(Debug, Clone)]
pub struct ClusterEvent<'a> {
    /// What it is about.
    pub subject: Subject,
    /// What happened.
    pub action: Action,
    /// The node, for [`Subject::Node`].
    pub node: Option<&'a NodeInfo>,
    /// The pod, for the pod subjects: the new state, or the last one of a deleted pod.
    pub pod: Option<&'a PodInfo>,
    /// The object, for [`Subject::Object`].
    pub object: Option<&'a ObjectChange>,
}

impl<'a> ClusterEvent<'a> {
    /// Returns what happened to a pod that has a node.
    pub(crate) fn of_assigned(action: Action, pod: &'a PodInfo) -> Self {
        Self {
            subject: Subject::AssignedPod,
            action,
            node: None,
            pod: Some(pod),
            object: None,
        }
    }

    /// The name under which upstream's metrics count it; what happens to objects of other kinds is
    /// named by who watches them.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match (self.subject, self.action) {
            (Subject::Node, Action::ADD) => "NodeAdd",
            (Subject::Node, Action::DELETE) => "NodeDelete",
            (Subject::Node, Action::NODE_ALLOCATABLE) => "NodeUpdateNodeAllocatable",
            (Subject::Node, Action::NODE_LABEL) => "NodeUpdateNodeLabel",
            (Subject::Node, Action::NODE_TAINT) => "NodeUpdateNodeTaint",
            (Subject::Node, Action::NODE_ANNOTATION) => "NodeUpdateNodeAnnotation",
            (Subject::Node, _) => "NodeUpdate",
            (Subject::AssignedPod, Action::ADD) => "AssignedPodAdd",
            (Subject::AssignedPod, Action::DELETE) => "AssignedPodDelete",
            (Subject::AssignedPod, Action::POD_LABEL) => "AssignedPodUpdatePodLabel",
            (Subject::AssignedPod, Action::POD_SCALE_DOWN) => "AssignedPodUpdatePodScaleDown",
            (Subject::AssignedPod, _) => "AssignedPodUpdate",
            (Subject::UnscheduledPod, _) => "UnschedulablePodUpdate",
            (Subject::Object(kind), _) => kind,
        }
    }
}

/// How metrics call what happens to objects of a kind: added, updated, deleted.
pub type EventNames = [&'static str; 3];

/// The [`EventNames`] of a kind that is called so.
#[macro_export]
macro_rules! event_names {
    ($resource:literal) => {
        [
            concat!($resource, "Add"),
            concat!($resource, "Update"),
            concat!($resource, "Delete"),
        ]
    };
}

/// A plugin's interest in a kind of event.
#[derive(Debug, Clone, Copy)]
pub struct Interest {
    /// What it must be about.
    pub subject: Subject,
    /// Any of these must have happened.
    pub actions: Action,
}

/// A plugin's judgement of one event for one pod it refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helps {
    /// The pod may fit now.
    Queue,
    /// The event does not help this pod.
    Skip,
}

/// A change of an object of a kind that a plugin watches.
#[derive(Debug, Clone)]
pub struct ObjectChange {
    /// `plural.version.group`.
    pub kind: &'static str,
    /// What happened: [`Action::ADD`], [`Action::UPDATE`] or [`Action::DELETE`].
    pub action: Action,
    /// The state before, if it was known.
    pub old: Option<Arc<dyn Any + Send + Sync>>,
    /// The state now, or the last one of a deleted object.
    pub new: Arc<dyn Any + Send + Sync>,
}

impl ObjectChange {
    /// Which of a kind's `names` it has.
    #[must_use]
    pub fn named(&self, names: &EventNames) -> &'static str {
        let [add, update, delete] = names;
        match self.action {
            Action::ADD => add,
            Action::DELETE => delete,
            _ => update,
        }
    }

    /// The object, when it is a `T`.
    #[must_use]
    pub fn new_as<T: Any>(&self) -> Option<&T> {
        self.new.downcast_ref()
    }
}
