//! Cluster events that can make refused pods schedulable.

use crate::state::{NodeInfo, PodInfo};
use std::any::Any;
use std::sync::Arc;

/// The kind of object that an event concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A node.
    Node,
    /// A pod that is bound to a node.
    AssignedPod,
    /// A pod that is not bound: the waiting pod itself.
    UnscheduledPod,
    /// An object of another kind, named `plural.version.group`.
    Object(&'static str),
}

/// The kind of change of an object, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action(pub u16);

impl Action {
    /// The object was added.
    pub const ADD: Self = Self(1);
    /// The object was deleted.
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
    /// A pod requests less than before.
    pub const POD_SCALE_DOWN: Self = Self(1 << 7);
    /// The waiting pod's own scheduling gates, tolerations or other fields of its spec changed.
    pub const POD_SPEC: Self = Self(1 << 8);
    /// An object that is neither a pod nor a node changed.
    pub const UPDATE: Self = Self(1 << 9);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the sets have an element in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A cluster event with the object it concerns.
#[derive(Debug, Clone)]
pub struct ClusterEvent<'a> {
    /// The kind of object.
    pub subject: Subject,
    /// The kind of change.
    pub action: Action,
    /// The node, for [`Subject::Node`].
    pub node: Option<&'a NodeInfo>,
    /// The pod, for the pod subjects: the new state, or the last one of a deleted pod.
    pub pod: Option<&'a PodInfo>,
    /// The object, for [`Subject::Object`].
    pub object: Option<&'a ObjectChange>,
}

impl<'a> ClusterEvent<'a> {
    /// Creates the event for a change of a pod that is on a node.
    pub(crate) fn for_assigned_pod(action: Action, pod: &'a PodInfo) -> Self {
        Self {
            subject: Subject::AssignedPod,
            action,
            node: None,
            pod: Some(pod),
            object: None,
        }
    }

    /// Returns the name of the event in upstream's metrics. For [`Subject::Object`] this is the kind;
    /// [`Watch`](super::Watch) has the names of its events.
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

/// The names in metrics of the events that concern a kind: added, updated, deleted.
pub type EventNames = [&'static str; 3];

/// Returns the [`EventNames`] of the kind with this name.
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

/// A set of events that a plugin is interested in.
#[derive(Debug, Clone, Copy)]
pub struct Interest {
    /// The kind of object that the event must concern.
    pub subject: Subject,
    /// The actions of which at least one must have happened.
    pub actions: Action,
}

/// Effect of an event on a pod that a plugin refused. Upstream: `QueueingHint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueingHint {
    /// The pod may be schedulable now.
    Queue,
    /// The event does not help this pod.
    Skip,
}

/// A change of an object of a watched kind.
#[derive(Debug, Clone)]
pub struct ObjectChange {
    /// The kind: `plural.version.group`.
    pub kind: &'static str,
    /// The kind of change: [`Action::ADD`], [`Action::UPDATE`] or [`Action::DELETE`].
    pub action: Action,
    /// The previous state; `None` if it is not available.
    pub old: Option<Arc<dyn Any + Send + Sync>>,
    /// The current state, or the last one of a deleted object.
    pub new: Arc<dyn Any + Send + Sync>,
}

impl ObjectChange {
    /// Returns the name among `names` that matches the action.
    #[must_use]
    pub fn named(&self, names: &EventNames) -> &'static str {
        let [add, update, delete] = names;
        match self.action {
            Action::ADD => add,
            Action::DELETE => delete,
            _ => update,
        }
    }

    /// Returns the current object if it is a `T`.
    #[must_use]
    pub fn new_as<T: Any>(&self) -> Option<&T> {
        self.new.downcast_ref()
    }
}
