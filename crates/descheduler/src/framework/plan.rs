//! The plan that a cycle returns.

use crate::rules::SkipReason;
use crate::state::PodInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use koord_api::scheduling::PodMigrationJob;
use std::sync::Arc;

/// Action that evicts a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    /// Create this PodMigrationJob.
    Job(Box<PodMigrationJob>),
    /// Do nothing: the evictor only shows what it would do.
    Nothing,
    /// Evict the pod through its `eviction` subresource.
    Evict(Option<DeleteOptions>),
}

/// A planned move of a pod.
#[derive(Debug, Clone)]
pub struct Move {
    /// The pod to move.
    pub pod: Arc<PodInfo>,
    /// Name of the profile.
    pub profile: Arc<str>,
    /// Name of the strategy.
    pub strategy: &'static str,
    /// Reason for users.
    pub reason: String,
    /// Action that evicts the pod; `None` in a dry run.
    pub intent: Option<Intent>,
    /// Target node; `None` without a [`Placement`](super::Placement).
    pub target: Option<Arc<str>>,
    /// Node that this and other moves drain; when one of them fails, the rest is not carried out.
    pub drains: Option<Arc<str>>,
}

impl Move {
    /// Returns true if the move is carried out, not only shown.
    #[must_use]
    pub fn is_real(&self) -> bool {
        matches!(self.intent, Some(Intent::Job(_) | Intent::Evict(_)))
    }
}

/// An action of a plan. Actions are carried out in order.
#[derive(Debug, Clone)]
pub enum Action {
    /// Move a pod.
    Move(Box<Move>),
    /// Make a node unschedulable before it is drained; undone when a move that drains it fails.
    Cordon {
        /// Name of the node.
        node: Arc<str>,
        /// Strategy that requested it.
        strategy: &'static str,
    },
    /// Set the annotation `controller.kubernetes.io/pod-deletion-cost`.
    DeletionCost {
        /// Pod to annotate.
        pod: Arc<PodInfo>,
        /// The new value.
        cost: i32,
        /// Strategy that requested it.
        strategy: &'static str,
    },
}

/// A pod that was considered and stays.
#[derive(Debug, Clone)]
pub struct SkippedPod {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// Name of the profile.
    pub profile: Arc<str>,
    /// Strategy that considered the pod.
    pub strategy: &'static str,
    /// Reason why the pod stays.
    pub reason: SkipReason,
}

/// A strategy's note about a node, or about the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Name of the profile.
    pub profile: Arc<str>,
    /// Name of the strategy.
    pub strategy: &'static str,
    /// Node that the note is about; `None` for the whole cluster.
    pub node: Option<Arc<str>>,
    /// Text for users: `hot: cpu usage 71.00% > threshold 65.00%, 2 of 5 cycles`.
    pub text: String,
    /// Machine-readable meaning of the note.
    pub finding: Finding,
}

/// Machine-readable meaning of a note.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Finding {
    /// Information for users only.
    #[default]
    Other,
    /// The node is hot. Reports must explain why nothing is moved from it.
    Hot,
    /// The node is hot, but not yet for long enough.
    Early,
    /// The node was skipped because its usage data are unusable. The text names the problem without figures,
    /// so that equal problems have equal texts.
    Skipped(&'static str),
}

impl Note {
    /// Returns true if the note classifies its node as hot.
    #[must_use]
    pub fn is_hot(&self) -> bool {
        matches!(self.finding, Finding::Hot | Finding::Early)
    }

    /// Returns true if the note classifies its node as hot, but not yet for long enough.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.finding == Finding::Early
    }
}

/// The actions that a cycle plans, and why it does not plan more.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Actions in the order in which they are carried out.
    pub actions: Vec<Action>,
    /// Pods that stay, once for each strategy and rule.
    pub skipped: Vec<SkippedPod>,
    /// Notes in the order of strategies.
    pub notes: Vec<Note>,
    /// Error that ended the cycle early.
    pub error: Option<String>,
}

impl Plan {
    /// Returns the moves among the actions.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.actions.iter().filter_map(|action| match action {
            Action::Move(planned) => Some(&**planned),
            Action::Cordon { .. } | Action::DeletionCost { .. } => None,
        })
    }
}
